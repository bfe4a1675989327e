"""Floats that may differ from call to call, where they meet tensors: a scalar input of the graph in place of a number
in its code.

A 0-dim tensor of the other operand's own dtype gives what eager gives for a Python number: the same result dtype, and
the same rounding, as the number is rounded to the operator's type either way. For bfloat16 and float16, whose operators
compute in float32, the operation is written out in float32. Where that does not hold, the number is relied on.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any, Callable

import torch

from ...graph.tensor import TraceTensor, trace_tensor_like
from ...guards import source as S
from ...guards.guard import TensorSpec
from .float_node import FloatNode
from .overflow import AS_TENSORS
from .tensor_reads import Read, as_tensor, is_read

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = [
    "holds_float",
    "by_tensor",
    "filled",
    "full_of",
    "scalar_operation",
    "pinned",
    "float_symbol",
    "scalar_input",
    "holds_scale",
    "scaled",
]

_OPERATORS: dict[Any, bool] = {  # -> whether it writes to its first operand
    operator.add: False,
    operator.sub: False,
    operator.mul: False,
    operator.truediv: False,
    operator.iadd: True,
    operator.isub: True,
    operator.imul: True,
    operator.itruediv: True,
    torch.add: False,
    torch.sub: False,
    torch.mul: False,
    torch.div: False,
    torch.subtract: False,
    torch.multiply: False,
    torch.divide: False,
    torch.true_divide: False,
}
METHODS: dict[str, Callable] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "divide": torch.divide,
    "true_divide": torch.true_divide,
    "add_": operator.iadd,
    "sub_": operator.isub,
    "mul_": operator.imul,
    "div_": operator.itruediv,
}
# Functions in which a 0-dim tensor means what the number means, by name: those that round the number to the type of the
# first tensor, and others.
_OF_FIRST = frozenset(("fill_", "masked_fill", "masked_fill_", "index_fill", "index_fill_", "setitem"))
_COMPARISONS = frozenset(
    ("lt", "le", "gt", "ge", "eq", "ne", "less", "less_equal", "greater", "greater_equal", "not_equal")
)
_BOUNDS = frozenset(("clamp", "clip", "clamp_", "clip_"))
_BY_TENSOR = (
    _OF_FIRST
    | _COMPARISONS
    | _BOUNDS
    | frozenset(
        """where clamp_min clamp_max clamp_min_ clamp_max_ pow pow_ lerp lerp_ mod floordiv remainder remainder_
        floor_divide floor_divide_ imod ifloordiv ipow fmod fmod_ xlogy copysign""".split()
    )
)
_POWERS = frozenset(("pow", "pow_", "ipow"))
_FILLED = frozenset(("full", "full_like", "new_full"))
_WIDE = (torch.float32, torch.float64)
_NARROW = (torch.bfloat16, torch.float16)


def float_symbol(machine: Machine, value: float, source: S.Source) -> torch.SymFloat:
    """The stack value of a float that may differ from call to call."""
    return torch.SymFloat(FloatNode(value, source, machine.env))


def holds_float(args: Any) -> bool:
    """Whether one of the arguments is a float that may vary, or any number that is read."""
    return any(type(arg) is torch.SymFloat or type(arg) is torch.SymInt and is_read(arg) for arg in args)


def _is_number(value: Any) -> bool:
    """Whether the graph can hold the number as a tensor."""
    return type(value) is torch.SymFloat and isinstance(value.node, FloatNode) or is_read(value)


def pinned(value: Any) -> Any:
    """A value in which every float that may vary is the number that it is now, which is relied on."""
    if type(value) is torch.SymFloat:
        return float(value)
    if is_read(value):
        return int(value)
    if type(value) in (list, tuple):
        return type(value)(map(pinned, value))
    return {key: pinned(item) for key, item in value.items()} if type(value) is dict else value


def by_tensor(machine: Machine, name: str, args: list, kwargs: dict) -> tuple[list, dict] | None:
    """The arguments of a function, or of a method behind its tensor, with scalar inputs of the graph in place of floats
    that may vary; None where only the numbers will do."""
    given = [*args, *kwargs.values()]
    tensors = [a for a in given if type(a) is TraceTensor]
    if name not in _BY_TENSOR or not tensors or not all(map(_is_number, (a for a in given if holds_float((a,))))):
        return None
    dtype = _scalar_dtype(name, tensors, any(type(a) is torch.SymFloat for a in given))
    if dtype is None:
        return None
    bounds = name in _BOUNDS
    only_bound = bounds and sum(a is not None for a in (*args[1:], kwargs.get("min"), kwargs.get("max"))) == 1
    use = "bound" if only_bound else _use_of(name, args)
    if use and not all(
        S.as_number(a.node.expr, dtype, use) for a in given if type(a) is torch.SymFloat and not is_read(a)
    ):
        return None
    above = kwargs.get("max") is not None or len(args) > 2 and args[2] is not None

    def as_tensor(a: Any) -> Any:
        if _is_number(a):
            number = scalar_input(machine, a.node, dtype, tensors[0].device, use)
            return (
                _without_nan(machine, number, above)
                if only_bound and type(a) is torch.SymFloat and is_read(a)
                else number
            )
        if bounds and type(a) in (int, float):  # both bounds are tensors, or none is
            return machine.torch_factory(torch.full, [(), a], {"dtype": dtype, "device": tensors[0].device})
        return a

    return list(map(as_tensor, args)), {key: as_tensor(value) for key, value in kwargs.items()}


def _scalar_dtype(name: str, tensors: list[TraceTensor], floats: bool) -> torch.dtype | None:
    """The dtype in which a tensor without dimensions means what the number means; None where there is none."""
    typed = tensors[:1] if name in _OF_FIRST else tensors
    dtypes = {t.dtype for t in typed if t.dtype.is_floating_point or t.dtype.is_complex}
    integers = not floats and all(t.dtype == torch.int64 for t in typed)
    if len(dtypes) > 1 or not dtypes and not integers and (name in _OF_FIRST or name.endswith("_")):
        return None
    dtype = dtypes.pop() if dtypes else torch.int64 if integers else torch.get_default_dtype()
    if dtype in _WIDE or integers or dtype in _NARROW and name in _OF_FIRST | _COMPARISONS:
        return dtype
    return None


def _use_of(name: str, args: list) -> str:
    """What the function uses its number as, where that is not the same as a tensor (source.as_number)."""
    if name in _POWERS:
        return "exponent" if args and type(args[0]) is TraceTensor else ""
    return "" if name in AS_TENSORS else "held"


def _without_nan(machine: Machine, number: TraceTensor, above: bool) -> Any:
    """The only bound of a clamp, infinite where it is a NaN that bounds nothing."""
    if not _no_bound_is_nan():
        return number
    return machine.torch_function(torch.nan_to_num, [number, math.inf if above else -math.inf, math.inf, -math.inf], {})


@functools.cache
def _no_bound_is_nan() -> bool:
    """Whether a NaN that is the only bound of a clamp bounds nothing, as before torch 2.13."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return not torch.zeros(()).clamp(min=math.nan).isnan()


def full_of(machine: Machine, number: torch.SymInt, like: TraceTensor) -> TraceTensor:
    """A 0-dim tensor of an int that varies, of the dtype of another."""
    return machine.torch_factory(torch.full, [(), number], {"dtype": like.dtype, "device": like.device})


def filled(machine: Machine, name: str, make: Callable[[Any], Any], number: Any) -> Any:
    """`make(number)`, a tensor full of a float that may vary; None where only the number will do."""
    if name not in _FILLED or not _is_number(number):
        return None
    return machine.torch_method(make(0.0 if type(number) is torch.SymFloat else 0), "fill_", [number], {})


def scalar_operation(machine: Machine, fn: Any, args: list, run: Callable[[Any, list], Any]) -> Any:
    """`fn(*args)` where an argument is a float that may vary; `run(fn, args)` records a call."""
    writes = _OPERATORS.get(fn) if getattr(fn, "__hash__", None) else None
    if writes is None and (given := by_tensor(machine, fn.__name__, args, {})) is not None:
        return run(fn, given[0])
    tensors = [arg for arg in args if type(arg) is TraceTensor]
    floats = [arg for arg in args if _is_number(arg)]
    if writes is None or len(args) != 2 or len(tensors) != 1 or len(floats) != 1:
        return run(fn, pinned(args))
    tensor, dtype = tensors[0], tensors[0].dtype
    if writes and type(args[0]) is not TraceTensor:
        return run(fn, pinned(args))
    if fn is operator.truediv and args[0] is floats[0]:  # as Tensor.__rtruediv__ computes it
        return scalar_operation(
            machine, operator.mul, [machine.torch_method(tensor, "reciprocal", [], {}), floats[0]], run
        )
    if dtype == torch.int64 and type(floats[0]) is torch.SymInt:
        return run(
            fn,
            [scalar_input(machine, floats[0].node, dtype, tensor.device) if arg is floats[0] else arg for arg in args],
        )
    if dtype in _WIDE or not (dtype.is_floating_point or dtype.is_complex) and type(floats[0]) is torch.SymFloat:
        scalar = scalar_input(
            machine, floats[0].node, dtype if dtype in _WIDE else torch.get_default_dtype(), tensor.device
        )
        return run(fn, [scalar if arg is floats[0] else arg for arg in args])
    if dtype in _NARROW and not writes:
        wide = machine.torch_method(tensor, "to", [torch.float32], {})
        scalar = scalar_input(machine, floats[0].node, torch.float32, tensor.device)
        return machine.torch_method(run(fn, [scalar if arg is floats[0] else wide for arg in args]), "to", [dtype], {})
    return run(fn, pinned(args))


def scalar_input(
    machine: Machine, node: FloatNode | Read, dtype: torch.dtype, device: torch.device, use: str = ""
) -> TraceTensor:
    """The graph's input for the float, one for each dtype, device and use. The entry fills it at each call. A number
    that is too large for the dtype is infinite. Where it has a `use` to which it is not the same as a tensor
    (`as_number`), the call runs as plain Python.
    """
    if isinstance(node, Read):
        return as_tensor(machine, node, dtype, device, bool(use))
    source = S.scalar(node.source, dtype, device, use)
    known = machine.world.scalars.get(source)
    if known is None:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            real = S.scalar_tensor(node.expr, dtype, device, use)
        known = machine.world.scalars[source] = trace_tensor_like(real)
        spec = TensorSpec(torch.Tensor, dtype, device, False, (), ())
        machine.graph.add_input(real, known, source, spec, False)
    return known


# ---- `x.add(y, alpha=s)`, `x.addcmul(a, b, value=s)` and their like where `s` is a 0-dim tensor, or a float that may
# vary. torch takes a number there, and reads it from a tensor. In a graph it stays a tensor: the operation is written
# out in the order of eager's kernels, in float32 for narrower types, as those compute.
_KEYWORDS = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}


def holds_scale(obj: TraceTensor, name: str, args: list, kwargs: dict) -> bool:
    """Whether a call of a tensor's method is one of these."""
    keyword = _KEYWORDS.get(name.rstrip("_"))
    if keyword is None or keyword not in kwargs or len(kwargs) != 1 or not obj.dtype.is_floating_point:
        return False
    scale = kwargs[keyword]
    if not (
        isinstance(scale, TraceTensor)
        and scale.dim() == 0
        and scale.dtype.is_floating_point
        or type(scale) is torch.SymFloat
        and isinstance(scale.node, FloatNode)
        and (is_read(scale) or S.as_number(scale.node.expr, _wide(obj), "held"))
    ):
        return False
    return len(args) == (1 if keyword == "alpha" else 2) and all(
        isinstance(arg, TraceTensor)
        and arg.dim()
        and arg.dtype.is_floating_point
        and torch.promote_types(arg.dtype, obj.dtype) == obj.dtype
        for arg in args
    )


def _wide(tensor: TraceTensor) -> torch.dtype:
    """The type that a tensor's operators compute in."""
    return torch.float32 if tensor.dtype in _NARROW else tensor.dtype


def scaled(machine: Machine, obj: TraceTensor, name: str, args: list, kwargs: dict, call_method: Callable) -> Any:
    """The operation with products and sums."""

    def call(t: Any, method: str, *operands: Any) -> Any:
        return call_method(machine, t, method, list(operands), {})

    plain = name.rstrip("_")
    scale = kwargs[_KEYWORDS[plain]]
    wide = _wide(obj)
    if type(scale) is torch.SymFloat:
        scale = scalar_input(machine, scale.node, wide, obj.device, "" if is_read(scale) else "held")
    elif scale.dtype != wide:
        scale = call(scale, "to", wide)
    widen: Callable = lambda t: t if t.dtype == wide else call(t, "to", wide)  # noqa: E731
    term = call(widen(args[0]), "mul", scale)
    if plain == "addcmul":
        term = call(term, "mul", widen(args[1]))
    elif plain == "addcdiv":
        term = call(term, "div", widen(args[1]))
    if wide == obj.dtype:
        return call(obj, ("sub" if plain == "sub" else "add") + name[len(plain) :], term)
    result = call(call(widen(obj), "sub" if plain == "sub" else "add", term), "to", obj.dtype)
    return call(obj, "copy_", result) if name != plain else result
