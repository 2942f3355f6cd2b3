"""The CPU's instructions that matter for speed."""

import pathlib
import re
from collections.abc import Collection

_CPU_INFO = pathlib.Path("/proc/cpuinfo")
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def cpu_flags() -> list[str] | None:
    """Return the CPU's instructions that matter for matrix products; None if unknown."""
    if not _CPU_INFO.is_file():  # only Linux has this file
        return None
    found = re.search(r"^flags\s*:(.*)$", _CPU_INFO.read_text("utf-8", "replace"), re.MULTILINE)
    return [flag for flag in _FLAGS if flag in found[1].split()] if found else None


def advise_bfloat16(flags: Collection[str] | None) -> str:
    """Return whether ``dtype="bfloat16"`` pays on a CPU with these ``cpu_flags``, in words."""
    if flags is None:
        return "unknown: this system does not list the CPU's instructions; measure it"
    if "amx_bf16" in flags:
        return "pays in batches: the CPU has amx_bf16; not for single sentences"
    if "avx512_bf16" in flags:
        return "pays a little in batches: the CPU has avx512_bf16; not for single sentences"
    return "does not pay: the CPU has neither amx_bf16 nor avx512_bf16"


def advise_int8(flags: Collection[str] | None) -> str:
    """Return whether ``dtype="int8"`` pays on a CPU with these ``cpu_flags``, in words."""
    if flags is None:
        return "unknown: this system does not list the CPU's instructions; measure it"
    if overflows_in_int8(flags):
        return "pays little in batches: the CPU has neither avx512_vnni nor avx_vnni"
    return "pays: the CPU has VNNI"


def overflows_in_int8(flags: Collection[str] | None) -> bool:
    """Return whether sums of eight-bit products can overflow on a CPU with these ``cpu_flags``."""
    return not {"avx512_vnni", "avx_vnni"}.intersection(flags or ())
