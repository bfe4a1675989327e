"""What to say of a cell beside what the compiler says: why nothing of it could be compiled, or what an error of torch's
own means here.
"""

from __future__ import annotations

from typing import Any

from ..compiler.report.schema import Finding
from .tracebacks import text_of

__all__ = ["about_error", "about_cell", "own_magic", "why_nothing"]

_NO_GPU = (
    "Torch not compiled with CUDA enabled",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "CUDA driver version is insufficient",
)


def about_error(e: BaseException) -> list[Finding]:
    """Remedies for errors that have little to do with compiling, but that a notebook meets often."""
    text = text_of(e)
    if any(words in text for words in _NO_GPU):
        why = "this torch was built without CUDA" if _NO_GPU[0] in text else "torch finds no GPU that it can use here"
        action = 'write device = "cuda" if torch.cuda.is_available() else "cpu", and use device instead of "cuda"'
        return [Finding("warning", f"the cell uses a GPU, but {why}", action)]
    if type(e).__name__ == "OutOfMemoryError":
        return [
            Finding(
                "warning",
                "the GPU's memory is full",
                "delete tensors of earlier cells (del x), also from Out[...], and call torch.cuda.empty_cache()",
            )
        ]
    return []


def about_cell(cell: Any, body: str) -> list[Finding]:
    """What keeps a whole cell from being compiled."""
    magic = own_magic(body)
    if magic:
        text = f"`{magic}` runs the rest of the cell by itself: only functions that it calls are compiled"
        return [
            Finding(
                "info", text, f"leave `{magic}` out: the report has the times, and repeat=N runs the whole cell again"
            )
        ]
    if cell.is_async:
        return [
            Finding(
                "info",
                "a cell that awaits runs as plain Python, except for the functions that it calls",
                "put the tensor code into a function",
            )
        ]
    return []


def why_nothing(cell: Any, body: str) -> str:
    """Words for a report in which nothing was compiled; empty where no tensor code ran."""
    if own_magic(body):
        return f"nothing was compiled: {own_magic(body)} runs the cell by itself"
    return "nothing was compiled: a cell that awaits runs as plain Python" if cell.is_async else ""


def own_magic(body: str) -> str:
    """The cell magic that a cell begins with below `%%tcompile`."""
    first = next((line.strip() for line in body.splitlines() if line.strip()), "")
    return first.split()[0] if first.startswith("%%") else ""
