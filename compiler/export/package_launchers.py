"""The kernels of a package as callables."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Callable

from ..errors import CacheFileError, check_error
from ..native import native
from .value_json import decode_expr

__all__ = ["cpu_kernels", "cuda_kernels"]


def cpu_kernels(rows: list[dict[str, Any]], folder: Path) -> dict[str, Callable]:
    assert native is not None
    out = {}
    for row in rows:
        try:
            library = ctypes.CDLL(str((folder / row["file"]).absolute()))
            addresses = [_address(library, name) for name in (*row["phases"], row["plan"])]
        except (OSError, AttributeError) as e:
            raise CacheFileError(f"the kernel {row['name']} of {folder} does not load: {e}") from None
        out[row["name"]] = native.Kernel(
            row["name"],
            library,
            tuple(addresses[:-1]),
            addresses[-1],
            row["buffers"],
            row["sizes"],
            "",
            tuple(row["checks"]),
            check_error,
            row["threads"],
        )
    return out


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def cuda_kernels(rows: list[dict[str, Any]], folder: Path, index: int) -> dict[str, Callable]:
    return {row["name"]: _cuda_kernel(row, row["forms"], folder, index) for row in rows}


def _cuda_kernel(row: dict[str, Any], forms: list[dict[str, Any]], folder: Path, index: int) -> Callable:
    """The first form; the other one serves buffers at odd addresses, and is loaded when they come."""
    import torch

    from ..runtime.gpu.gpu_kernels import LaunchFacts, launcher

    form, *rest = forms
    grids = [decode_expr(p["grid"]) for p in form["parts"]]
    offsets = [decode_expr(e) for e in form["offsets"]]
    facts = LaunchFacts(
        form["kinds"],
        grids,
        offsets[:-1],
        offsets[-1],
        [decode_expr(e) for e in form["limits"]],
        tuple(map(tuple, form["walks"])),
        any(p["waits"] for p in form["parts"]),
    )
    assert native is not None
    fixed = facts.fixed
    parts = []
    with torch.cuda.device(index):
        torch._C._cuda_setDevice(index)
        for p, grid in zip(form["parts"], grids):
            ((handle, *_),) = native.cuda_load((folder / p["file"]).read_bytes(), ((p["entry"], p["shared"]),))
            parts.append((handle, p["threads"], p["shared"], int(grid.value) if fixed else 0, p["waits"]))

    def too_large() -> Callable:
        raise RuntimeError(f"kernel {row['name']} of a package was made for sizes that 32-bit indices hold")

    unaligned = (lambda: _cuda_kernel(row, rest, folder, index)) if rest else None
    wide = too_large if facts.limits else None
    return launcher(row["name"], index, tuple(parts), row["buffers"], row["sizes"], facts, unaligned, wide)
