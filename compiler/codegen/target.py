"""The machine that code is generated for."""

from __future__ import annotations

import os
import platform
import shutil
from typing import Any

from ..base.processor import cpu_features
from .cpp.support import Target

__all__ = ["cpu_features", "host_target"]

_AVX512 = frozenset(("avx512f", "avx512dq", "avx512bw", "avx512vl"))
_AVX2 = frozenset(("avx2", "fma", "f16c"))


def host_target(opts: Any = None) -> Target:
    """The widest vectors that this machine has and the option `simd` allows. Anything but x86-64 gets 16-byte vectors
    of GCC's portable kind."""
    simd = opts.get("simd") if opts is not None else "auto"
    have = cpu_features() if platform.machine() in ("x86_64", "AMD64") else frozenset()
    # GCC's names of single instructions are not clang's, which finds the instructions for plain loops over lanes itself
    named = frozenset() if _compiles_with_clang(opts) else have
    if simd in ("auto", "avx512") and _AVX512 <= have and _AVX2 <= have:
        return Target(64, named)
    if simd in ("auto", "avx512", "avx2") and _AVX2 <= have:
        return Target(32, frozenset(f for f in named if not f.startswith("avx512")))
    return Target(16, frozenset(("sse2",)) if have else frozenset())


def _compiles_with_clang(opts: Any) -> bool:
    """Whether runtime/toolchain.py will find clang, by the names it goes by."""
    asked = (opts.get("cxx") if opts is not None else "") or os.environ.get("CXX", "")
    if asked:
        return "clang" in asked
    return shutil.which("g++") is None and shutil.which("clang++") is not None
