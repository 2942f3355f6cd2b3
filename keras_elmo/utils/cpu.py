"""What this machine's CPU multiplies fast."""

import pathlib
import platform

_CPU_INFO = pathlib.Path("/proc/cpuinfo")
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def cpu_name() -> str:
    """Return the name of the CPU, as its maker or the system gives it."""
    return _field("model name") or platform.processor() or platform.machine()


def cpu_flags() -> list[str] | None:
    """Return which of the instructions that matter here the CPU has; None if unknown."""
    flags = (_field("flags") or "").split()
    return [flag for flag in _FLAGS if flag in flags] if flags else None


def advise_bfloat16(flags) -> str:
    """Say whether ``dtype="bfloat16"`` pays on a CPU of these ``cpu_flags``."""
    if flags is None:
        return "unknown: this system does not tell the CPU's instructions; measure"
    if "amx_bf16" in flags:
        return "pays in batches, the CPU has amx_bf16; not for single sentences"
    if "avx512_bf16" in flags:
        return "pays a little in batches, the CPU has avx512_bf16; not for single sentences"
    return "does not pay: the CPU has neither amx_bf16 nor avx512_bf16"


def overflows_in_int8(flags) -> bool:
    """Whether sums of products of eight bits may overflow on a CPU of these ``cpu_flags``."""
    return not {"avx512_vnni", "avx_vnni"}.intersection(flags or ())


def _field(name):
    """Return the first value of a field that Linux gives for every core, or None."""
    if not _CPU_INFO.is_file():
        return None
    for line in _CPU_INFO.read_text("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
