"""Where the code ran: versions, processor, compiler. Only facts that explain a figure; no names of machines or
users.
"""

from __future__ import annotations

import os
import platform
import shutil
from functools import lru_cache
from typing import Any

import torch

from ..base.installed_version import version

__all__ = ["environment"]


def environment() -> dict[str, Any]:
    """Facts as strings and numbers, in the order in which they are shown."""
    out: dict[str, Any] = {
        "tcompile": version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "compiler": _compiler(),
    }
    if torch.cuda.is_initialized():
        out["gpu"] = torch.cuda.get_device_name()
    return out


@lru_cache(maxsize=1)
def _cpu() -> str:
    if os.path.exists("/proc/cpuinfo"):  # Linux; elsewhere platform knows less, but something
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


@lru_cache(maxsize=1)
def _compiler() -> str:
    for name in filter(None, (os.environ.get("TCOMPILE_CXX"), os.environ.get("CXX"), "g++", "clang++")):
        if shutil.which(name):
            return os.path.basename(name)
    return "none found"
