"""The CPU's cores, and its instructions that matter for speed."""

import os
import pathlib
import re
from collections.abc import Collection

_CPU_INFO = pathlib.Path("/proc/cpuinfo")
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def count_cores() -> int:
    """Return the number of cores to use."""
    # OMP_NUM_THREADS can be a list with a number for each level of nesting.
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if given.isdecimal() and int(given):
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_flags() -> list[str] | None:
    """Return the CPU's instructions that matter for matrix products; None if unknown."""
    if not _CPU_INFO.is_file():  # only Linux has this file
        return None
    found = re.search(r"^flags\s*:(.*)$", _CPU_INFO.read_text("utf-8", "replace"), re.MULTILINE)
    return [flag for flag in _FLAGS if flag in found[1].split()] if found else None


def advise(flags: Collection[str] | None) -> dict[str, str]:
    """Return whether each smaller ``dtype`` pays on a CPU with these ``cpu_flags``, in words."""
    if flags is None:
        unknown = "unknown: this system does not list the CPU's instructions; measure it"
        return {"bfloat16": unknown, "int8": unknown}
    bfloat16 = "does not pay: the CPU has neither amx_bf16 nor avx512_bf16"
    for name, gain in (("avx512_bf16", "pays a little"), ("amx_bf16", "pays")):
        if name in flags:
            bfloat16 = f"{gain} in batches: the CPU has {name}; not for single sentences"
    int8 = "pays: the CPU has VNNI"
    if overflows_in_int8(flags):
        int8 = "pays little in batches: the CPU has neither avx512_vnni nor avx_vnni"
    return {"bfloat16": bfloat16, "int8": int8}


def overflows_in_int8(flags: Collection[str] | None) -> bool:
    """Return whether sums of eight-bit products can overflow on a CPU with these ``cpu_flags``."""
    return not {"avx512_vnni", "avx_vnni"}.intersection(flags or ())
