"""What every reproducer carries along: how its inputs are made, and how a compiled run is compared with eager.

The text of these functions is copied into the file as it stands here, so that the file needs torch and tcompile alone.
Minifying runs the same functions. The compiler, `tcompile`, is handed to them: nothing here imports it.
"""

from __future__ import annotations

import base64
import math
import sys
import zlib
from typing import Any

import torch

__all__ = [
    "tensor",
    "rebuilt",
    "flattened",
    "run_once",
    "in_float64",
    "difference_in_words",
    "compare_with_eager",
    "list_breaks",
    "check_and_say",
]


def tensor(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: str = "cpu",
    *,
    mean: float = 0.0,
    std: float = 1.0,
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    data: str = "",
) -> torch.Tensor:
    """A tensor of this layout: random values (normal, or whole numbers from low to high), or those in `data`."""
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if math.prod(shape) else 0
    if data:
        memory = torch.frombuffer(bytearray(zlib.decompress(base64.b85decode(data))), dtype=dtype).clone()
    elif dtype is torch.bool:
        memory = torch.rand(size) < 0.5
    elif dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        memory = torch.randn(size, dtype=wide) * std + mean
        if low is not None and high is not None and not dtype.is_complex:
            memory = memory.clamp(low, high)
        memory = memory.to(dtype)
    else:
        memory = torch.randint(int(low or 0), int(high or 0) + 1, (size,)).to(dtype)
    return memory.to(device).as_strided(shape, stride).requires_grad_(requires_grad)


def rebuilt(kind: Any, attributes: dict[str, Any]) -> Any:
    """An instance of a class with these attributes, made without calling its __init__."""
    made = kind.__new__(kind)
    if isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
        for name in ("_parameters", "_buffers", "_modules"):
            made.__dict__[name].update(attributes.pop(name))
    made.__dict__.update(attributes)
    return made


def flattened(value: Any) -> list[Any]:
    """The values in nested tuples, lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    return [x for item in value for x in flattened(item)] if isinstance(value, (tuple, list)) else [value]


def run_once(function: Any, args: Any, seed: int) -> list[Any]:
    """What a call gives, what it leaves in its arguments, and the gradients of arguments that require one."""
    torch.manual_seed(seed)
    out = flattened(function(*args))
    ends = [
        output
        for output in out
        if isinstance(output, torch.Tensor) and output.requires_grad and output.is_floating_point()
    ]
    leaves = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.is_leaf and arg.requires_grad]
    if ends and leaves:
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return [*out, *(leaf_tensor.detach() for leaf_tensor in tensors), *(leaf.grad for leaf in leaves)]


def in_float64(args: Any) -> list[Any]:
    """The arguments with floating point tensors in float64."""
    floating = [isinstance(arg, torch.Tensor) and arg.is_floating_point() for arg in args]
    return [arg.detach().double().requires_grad_(arg.requires_grad) if f else arg for arg, f in zip(args, floating)]


def difference_in_words(got: list[Any], expected: list[Any], exact: list[Any]) -> str:
    """Where `got` differs from `expected` by more than rounding, in words; "" where nowhere. `exact` is float64's."""
    if len(got) != len(expected):
        return f"{len(got)} results, eager gives {len(expected)}"
    for i, (value, wanted, exact_value) in enumerate(zip(got, expected, exact)):
        if not (isinstance(value, torch.Tensor) and isinstance(wanted, torch.Tensor)):
            if type(value) is not type(wanted) or value != wanted and not (value != value and wanted != wanted):
                return f"result {i} is {value!r}, eager gives {wanted!r}"
            continue
        if (value.shape, value.dtype) != (wanted.shape, wanted.dtype):
            return f"result {i} is {value.dtype} {list(value.shape)}, eager gives {wanted.dtype} {list(wanted.shape)}"
        value, wanted = value.detach(), wanted.detach()
        if not (wanted.is_floating_point() or wanted.is_complex()):
            if not torch.equal(value, wanted):
                return f"result {i}: {int((value != wanted).sum())} of {wanted.numel()} values differ from eager's"
            continue
        if not torch.equal(value.isfinite(), wanted.isfinite()):
            return f"result {i}: NaN or infinity where eager has none, or the other way round"
        here = wanted.isfinite()
        wide = torch.complex128 if wanted.is_complex() else torch.float64
        exact_value = (
            exact_value.detach()
            if isinstance(exact_value, torch.Tensor) and exact_value.shape == wanted.shape
            else wanted
        )
        value, wanted, exact_value = value[here].to(wide), wanted[here].to(wide), exact_value[here].to(wide)
        if not wanted.numel():
            continue
        error, rounding = (
            float((value - wanted).abs().max()),
            float((wanted - exact_value).abs().nan_to_num(0, 0, 0).max()),
        )
        allowed = 4 * rounding + 16 * torch.finfo(expected[i].dtype).eps * float(wanted.abs().max())
        if error > allowed:
            return f"result {i}: the largest difference from eager is {error:.3g}; rounding explains {allowed:.3g}"
    return ""


def compare_with_eager(tcompile: Any, program: Any, inputs: Any, how: dict[str, Any], seed: int) -> tuple[str, str]:
    """("same", ""), or what is wrong: "differs" or "raises", and the words for it."""
    expected = run_once(program, inputs(), seed)
    try:
        exact = run_once(program, in_float64(inputs()), seed)
    except Exception:  # an operator that takes no float64
        exact = expected
    if len(exact) != len(expected):
        exact = expected
    try:
        got = run_once(tcompile.compile(program, **how), inputs(), seed)
    except Exception as e:
        return "raises", f"{type(e).__name__}: {e}"
    words = difference_in_words(got, expected, exact)
    return ("differs" if words else "same"), words


def list_breaks(tcompile: Any, program: Any, inputs: Any, how: dict[str, Any], seed: int) -> tuple[str, str]:
    """("same", "") where the program is one graph, else "breaks" and its graph breaks."""
    torch.manual_seed(seed)
    report = tcompile.explain(program, **how)(*inputs())
    return ("breaks" if report.graph_breaks else "same"), "; ".join(
        graph_break.reason for graph_break in report.graph_breaks
    )


def check_and_say(check: Any, tcompile: Any, program: Any, inputs: Any, how: dict[str, Any], seed: int) -> int:
    """Check, and say it: 1 where something is wrong, else 0. With --kernels, show the generated code first."""
    if "--kernels" in sys.argv:
        for kernel in tcompile.explain(program, **how)(*inputs()).kernels:
            print(f"# {kernel.name}\n{kernel.source}")
    kind, words = check(tcompile, program, inputs, how, seed)
    print(f"{kind}: {words}" if words else "the failure does not appear here")
    return 0 if kind == "same" else 1
