"""Running under torch.autocast, as the option `autocast=bfloat16` asks, and how far results differ under it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator

__all__ = ["AUTOCAST", "autocast", "difference", "tensors_of"]

AUTOCAST = ("bfloat16",)  # float16 needs its gradients scaled: that is the program's to write


@contextmanager
def autocast(name: str) -> Iterator[None]:
    """Run a with-block under torch.autocast with the dtype of this name, on every device there is; empty: as it is."""
    if not name:
        yield
        return
    import torch

    with ExitStack() as stack:
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, getattr(torch, name)))
        yield


def difference(run: Callable[[], list[Any]], other: Callable[[], list[Any]]) -> float | None:
    """By how much the tensors of two runs differ, relative to their size: the largest of their RMS errors. None where
    there is nothing to compare, or where `run` gives something else each time."""
    first, again, changed = run(), run(), other()
    same, errors = _errors(first, again), _errors(first, changed)
    return max(errors) if errors and same is not None and not any(same) else None


def tensors_of(result: Any) -> list[Any]:
    """Copies of the floating-point tensors in a result, in float64."""
    import torch

    leaves = torch.utils._pytree.tree_leaves(result)
    found = [x.detach() for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]
    return [x.to(torch.float64, copy=True) for x in found]


def _errors(first: list[Any], second: list[Any]) -> list[float] | None:
    """None where the two are not of the same shapes."""
    if [x.shape for x in first] != [x.shape for x in second]:
        return None
    sizes = [float(a.norm()) for a in first]
    return [float((a - b).norm()) / (n or 1.0) for a, b, n in zip(first, second, sizes)]
