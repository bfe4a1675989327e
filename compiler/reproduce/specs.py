"""What is known of an input without its values: layout, range and spread; or, where asked for, the values too."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import ReproduceError
from .in_file import tensor
from .literals import literal

__all__ = ["InputSpec", "Autocast", "spec_of", "autocast_now"]

_FEW = 64  # whole numbers that are kept as they are: offsets and lengths are seldom valid at random
_MOST_RANGED = 1 << 16  # whole numbers whose range is looked up while the program waits
_FEW_FLOATS = 4096  # floating point values whose spread is looked up while the program waits
_MOST_BYTES = 1 << 20  # of one input, in a file that holds values


Autocast = tuple[tuple[str, torch.dtype], ...]  # regions around a program: device and dtype


def autocast_now() -> Autocast:
    """The regions of autocast that are on in this thread."""
    return tuple((d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda") if torch._C.is_autocast_enabled(d))


@dataclass(frozen=True)
class InputSpec:
    """One input of a program. `value`: of anything that is no tensor."""

    name: str
    is_tensor: bool = True
    value: Any = None
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    requires_grad: bool = False
    low: float | None = None
    high: float | None = None
    mean: float = 0.0
    std: float = 1.0
    data: str = ""  # the values: zlib and base85 of the memory
    refused: str = ""  # why it can't be written into a file

    def text(self) -> str:
        """The expression that makes it, in the file."""
        if self.refused:
            raise ReproduceError(self.refused)
        if not self.is_tensor:
            return literal(self.value)
        parts = [literal(self.shape), literal(self.stride), repr(self.dtype)]
        parts += [] if self.device == "cpu" else [repr(self.device)]
        for name, plain in (("mean", 0.0), ("std", 1.0), ("low", None), ("high", None), ("requires_grad", False)):
            if getattr(self, name) != plain and not (self.data and name != "requires_grad"):
                parts.append(f"{name}={literal(getattr(self, name))}")
        parts += [f"data={self.data!r}"] if self.data else []
        return f"tensor({', '.join(parts)})"

    def make(self) -> Any:
        """The value itself, as the file makes it."""
        if self.refused:
            raise ReproduceError(self.refused)
        if not self.is_tensor:
            return self.value
        ranges: dict[str, Any] = {"mean": self.mean, "std": self.std, "low": self.low, "high": self.high}
        more: dict[str, Any] = {"requires_grad": self.requires_grad, "data": self.data}
        return tensor(self.shape, self.stride, self.dtype, self.device, **ranges, **more)

    def resized(self, shape: tuple[int, ...]) -> InputSpec:
        """The same with another shape: contiguous, and without values."""
        strides, step = [], 1
        for size in reversed(shape):
            strides.append(step)
            step *= max(size, 1)
        return replace(self, shape=shape, stride=tuple(reversed(strides)), data="")


def spec_of(name: str, value: Any, *, statistics: bool = False, exact: bool = False) -> InputSpec:
    """`statistics`: measure the spread of floating point values; `exact`: keep the values. Of whole numbers the range
    is looked up in any case, and few are kept: they may be indices."""
    if not isinstance(value, torch.Tensor):
        return InputSpec(name, is_tensor=False, value=value)
    kind = type(value)
    if value.layout is not torch.strided or kind not in (torch.Tensor, torch.nn.Parameter):
        what = kind.__name__ if value.layout is torch.strided else f"tensor of layout {value.layout}"
        return InputSpec(name, refused=f"the input {name} is a {what}: a reproducer writes plain tensors only")
    plain = value.detach()
    spec = InputSpec(
        name,
        shape=tuple(map(int, value.shape)),
        stride=tuple(map(int, value.stride())),
        dtype=value.dtype,
        device=str(value.device),
        requires_grad=value.requires_grad and torch._C.is_grad_enabled(),
    )
    if not plain.numel() or value.device.type == "meta":
        return spec
    whole = not (value.is_floating_point() or value.is_complex())
    if exact or whole and plain.numel() <= _FEW:
        return replace(spec, data=_bytes(name, plain))
    if whole and value.dtype is not torch.bool and (statistics or plain.numel() <= _MOST_RANGED):
        return replace(spec, low=int(plain.min()), high=int(plain.max()))
    state = type(value) is torch.Tensor and value.device.type == "cpu" and plain.numel() <= _FEW_FLOATS
    if (statistics or state) and value.is_floating_point():  # (such as an optimizer's: some are never negative)
        finite = plain.double()
        finite = finite[finite.isfinite()]
        if finite.numel():
            spread = float(finite.std(correction=0))
            low, high = _short(float(finite.min())), _short(float(finite.max()))
            return replace(spec, mean=_short(float(finite.mean())), std=_short(spread), low=low, high=high)
    return spec


def _short(x: float) -> float:
    return float(f"{x:.3g}")


def _bytes(name: str, plain: torch.Tensor) -> str:
    """The memory from the first to the last element, as text."""
    size = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride()))
    if size * plain.element_size() > _MOST_BYTES:
        raise ReproduceError(f"the values of {name} take {size * plain.element_size():,} bytes: too much for one file")
    memory = plain.as_strided((size,), (1,)).contiguous().cpu().clone()
    raw = bytes(memory.view(torch.uint8).tolist())
    return base64.b85encode(zlib.compress(raw, 9)).decode()
