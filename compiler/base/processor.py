"""Facts about the machine that code is generated for, read once."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

__all__ = ["cpu_features", "cpu_name", "cpu_vendor", "generated_products_win"]


@functools.cache
def _first_cpu() -> dict[str, str]:
    """The lines of /proc/cpuinfo about the first processor; empty where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {k.strip(): v.strip() for k, _, v in pairs}


@functools.cache
def cpu_features() -> frozenset[str]:
    """Instruction set extensions, as /proc/cpuinfo names them."""
    info = _first_cpu()
    return frozenset((info.get("flags") or info.get("Features") or "").split())


def cpu_name() -> str:
    """ "AMD EPYC 7763 64-Core Processor", ...; empty where it is not known."""
    return _first_cpu().get("model name", "")


def cpu_vendor() -> str:
    """ "GenuineIntel", "AuthenticAMD", ...; empty where it is not known."""
    return _first_cpu().get("vendor_id", "")


def generated_products_win() -> bool:
    """Whether matrix products in generated code beat the library behind torch.mm. That is MKL, which does its best on
    Intel's processors alone; elsewhere generated code was measured at twice its speed."""
    return (
        platform.machine() in ("x86_64", "AMD64")
        and {"avx2", "fma"} <= cpu_features()
        and cpu_vendor() != "GenuineIntel"
    )
