"""CUDA C++ to device code by NVRTC, the compiler library that every CUDA build of torch brings along.

The worker processes load this file by its path (worker.py), so it imports nothing of torch or tcompile.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

__all__ = ["compile_text", "library"]


@functools.cache
def library() -> ctypes.CDLL:
    """NVRTC: of the packages beside torch, else the system's. Raises RuntimeError where there is none."""
    found = [
        path
        for folder in sys.path
        if folder
        for path in sorted(Path(folder).glob("nvidia/*/lib/libnvrtc.so.*"), reverse=True)
        if "alt" not in path.name
    ]
    for name in [*map(str, found), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError(
        "NVRTC was not found: neither the package nvidia-cuda-nvrtc nor libnvrtc.so of a CUDA toolkit is installed"
    )


def compile_text(text: str, arch: str) -> tuple[bytes, str]:
    """(device code, PTX) of CUDA C++ for an architecture ("sm_90a"). Raises RuntimeError with what the compiler
    says.
    """
    lib = library()
    program = ctypes.c_void_p()
    _check(lib, lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None))
    try:
        words = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"-lineinfo"]
        failed = lib.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
        if failed:
            raise RuntimeError(_read(lib, program, "ProgramLog").decode(errors="replace"))
        return _read(lib, program, "CUBIN"), _read(lib, program, "PTX").decode()
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _read(lib: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(lib, getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(max(1, size.value))
    _check(lib, getattr(lib, f"nvrtcGet{what}")(program, data))
    raw = data.raw[: size.value]
    return raw if what == "CUBIN" else raw.rstrip(b"\0")


def _check(lib: ctypes.CDLL, code: int) -> None:
    if code:
        lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC: {lib.nvrtcGetErrorString(code).decode()}")
