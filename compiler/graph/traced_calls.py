"""Calling torch functions while tracing: factories must give TraceTensors too.

A function without tensor arguments (torch.zeros, torch.arange, ...) never reaches TraceTensor.__torch_dispatch__: it
would make a real tensor, fix symbolic sizes and draw random numbers now. `trace_call` routes those to their aten
operators.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch.utils import _pytree as pytree

from .recurrent import for_symbols
from .tensor import DataDependentError, TraceTensor, dispatch_operator

__all__ = ["trace_call", "is_factory", "factory_overload", "call_factory_overload"]

aten = torch.ops.aten


def _sizes(args: tuple) -> list:
    """torch.zeros(2, 3) and torch.zeros((2, 3)) are the same."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return list(args[0])
    return list(args)


def _sized(op: Any) -> Callable:
    def f(*args: Any, **kw: Any) -> Any:
        size = kw.pop("size", None)
        return op, ([*size] if size is not None else _sizes(args),), kw

    return f


def _plain(op: Any) -> Callable:
    return lambda *args, **kw: (op, args, kw)


def _between(packet: Any) -> Callable:
    """linspace and logspace, whose ends may be tensors."""

    def f(*args: Any, **kw: Any) -> Any:
        ends = [args[i] if i < len(args) else kw.get(name) for i, name in enumerate(("start", "end"))]
        kinds = ["Tensor" if isinstance(end, torch.Tensor) else "Scalar" for end in ends]
        return getattr(packet, "_".join(kinds) if "Tensor" in kinds else "default"), args, kw

    return f


def _arange(*args: Any, **kw: Any) -> Any:
    start, end, step = kw.pop("start", None), kw.pop("end", None), kw.pop("step", None)
    args = list(args)
    if start is None and end is None:
        if len(args) == 1:
            start, end = 0, args[0]
        else:
            start, end = args[:2]
            step = args[2] if len(args) > 2 else step
    elif end is None:
        end = args[0] if args else None
    elif start is None:
        start = args[0] if args else 0
    op = aten.arange.start_step if step is not None else aten.arange.start if start else aten.arange.default
    values = (start, end, step) if step is not None else (start, end) if start else (end,)
    return op, values, kw


def _full(size: Any, fill_value: Any, **kw: Any) -> Any:
    return aten.full.default, (list(size) if isinstance(size, (tuple, list)) else [size], fill_value), kw


def _randint(*args: Any, **kw: Any) -> Any:
    low, high, size = kw.pop("low", None), kw.pop("high", None), kw.pop("size", None)
    rest = list(args)
    if size is None:
        size = rest.pop()
    if high is None:
        high = rest.pop()
    if rest:
        low = rest.pop()
    return aten.randint.low, (low or 0, high, list(size)), kw


def _eye(n: Any, m: Any = None, **kw: Any) -> Any:
    return (aten.eye.default, (n,), kw) if m is None else (aten.eye.m, (n, m), kw)


_FACTORIES: dict[Any, Callable] = {
    torch.zeros: _sized(aten.zeros.default),
    torch.ones: _sized(aten.ones.default),
    torch.rand: _sized(aten.rand.default),
    torch.randn: _sized(aten.randn.default),
    torch.empty: _sized(aten.empty.memory_format),
    torch.arange: _arange,
    torch.full: _full,
    torch.randint: _randint,
    torch.eye: _eye,
    torch.linspace: _between(aten.linspace),
    torch.logspace: _between(aten.logspace),
    torch.randperm: _plain(aten.randperm.default),
    torch.normal: _plain(aten.normal.float_float),
    torch.empty_strided: _plain(aten.empty_strided.default),
    torch.scalar_tensor: _plain(aten.scalar_tensor.default),
}


def is_factory(fn: Any) -> bool:
    """Whether `fn` makes a tensor from nothing and has to be called by `trace_call`."""
    try:
        return fn in _FACTORIES
    except TypeError:
        return False


def factory_overload(fn: Any, args: Sequence, kwargs: dict) -> Any:
    """The overload of aten that `fn` stands for, if that makes a tensor from numbers and sizes alone (aten.full,
    aten.rand.default); else None.
    """
    if type(fn) not in (torch._ops.OpOverload, torch._ops.OpOverloadPacket) or any(
        isinstance(a, torch.Tensor) for a in pytree.tree_leaves((args, kwargs))
    ):
        return None
    if isinstance(fn, torch._ops.OpOverloadPacket):
        if not fn._qualified_op_name.startswith("aten::"):
            return None
        try:
            name = torch._C._jit_resolve_packet(
                fn._qualified_op_name, *pytree.tree_map(_hint, list(args)), **pytree.tree_map(_hint, dict(kwargs))
            )
        except RuntimeError:  # the call says what is wrong
            return None
        fn = getattr(fn, name or "default")
    made = [str(r.type) for r in fn._schema.returns]
    return (
        fn
        if fn.namespace == "aten"
        and made == ["Tensor"]
        and not any("Tensor" in str(arg.type) for arg in fn._schema.arguments)
        else None
    )


def call_factory_overload(op: Any, args: Sequence, kwargs: dict) -> TraceTensor:
    """op(*args, **kwargs) of what `factory_overload` gave; without a device, on the CPU."""
    if kwargs.get("generator") is not None:
        raise NotImplementedError(f"{op} with generator= is not traced")
    args, kwargs = (
        [list(arg) if isinstance(arg, (list, tuple)) else arg for arg in args],
        {name: list(value) if isinstance(value, (list, tuple)) else value for name, value in kwargs.items()},
    )
    kw = {
        name: value
        for name, value in kwargs.items()
        if value is not None and not (name == "pin_memory" and value is False)
    }
    if any(arg.name == "device" for arg in op._schema.arguments):
        kw["device"] = torch.device(kw.get("device", "cpu"))
    return dispatch_operator(op, tuple(args), kw)


# products that C++ folds by the number of elements; their results are memory of their own
_PRODUCTS = frozenset(
    (torch._C._nn.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__)
)


def _hint(x: Any) -> Any:
    return 2 if isinstance(x, torch.SymInt) else 1.5 if isinstance(x, torch.SymFloat) else x


def _specialised(x: Any) -> Any:
    """The same tensors and sizes with their symbols fixed to the hints, by guards."""
    if isinstance(x, TraceTensor) and x.tt_env is not None:
        for s in (*x.shape, *x.stride()):
            int(s)
        return torch.ops.aten.alias.default(x)
    if isinstance(x, torch.SymInt):
        return int(x)
    if type(x) in (list, tuple):
        return type(x)(map(_specialised, x))
    return x


def _in_own_memory(x: Any) -> Any:
    """A copy of a tensor that is known by plain numbers, but for the place in memory that it is a view of."""
    if isinstance(x, TraceTensor) and not any(isinstance(size, torch.SymInt) for size in x.shape):
        return torch.ops.aten.clone.default(x, memory_format=torch.contiguous_format)
    return x


def _known_number(x: Any) -> Any:
    return int(x) if isinstance(x, torch.SymInt) else x


def _one_hot(x: TraceTensor, num_classes: Any = -1) -> Any:
    """On tensors without data torch makes it of a comparison, and does not check the classes as it does on the CPU
    (CUDA's scatter asserts).
    """
    out = torch._C._nn.one_hot(x, num_classes)
    if x.device.type == "cpu":
        wrong = torch.logical_or(x < 0, x >= num_classes).any()
        # an index out of range where one is wrong
        trace_call(torch.zeros, (1,), {"device": x.device})[wrong.long()[None]]
    return out


def trace_call(fn: Callable, args: tuple, kwargs: dict) -> Any:
    """fn(*args, **kwargs) on TraceTensors; factories give TraceTensors. Raises NotImplementedError for what cannot be
    traced (a generator, out= of a factory)."""
    if is_factory(fn) and not any(isinstance(arg, TraceTensor) for arg in (*args, *kwargs.values())):
        kw = dict(kwargs)
        if kw.pop("generator", None) is not None or kw.pop("out", None) is not None:
            raise NotImplementedError(f"{fn.__name__} with generator= or out= is not traced")
        grad = kw.pop("requires_grad", False)
        kw = {
            key: value
            for key, value in kw.items()
            if value is not None and not (key == "pin_memory" and value is False)
        }
        if "device" in kw:
            kw["device"] = torch.device(kw["device"]) if not isinstance(kw["device"], torch.device) else kw["device"]
        op, oargs, okw = _FACTORIES[fn](*args, **kw)
        t = dispatch_operator(op, tuple(oargs), okw)
        return t.requires_grad_() if grad else t
    if (op := factory_overload(fn, args, kwargs)) is not None:
        return call_factory_overload(op, args, kwargs)
    fn = for_symbols(fn, args, kwargs)
    try:
        return fn(*args, **kwargs) if fn is not torch._C._nn.one_hot else _one_hot(*args, **kwargs)
    except RuntimeError as e:
        if "NYI SymInt equality" in str(e):  # autograd's formulas look at exponents
            return fn(*map(_known_number, args), **{name: _known_number(value) for name, value in kwargs.items()})
        if "expected to contain only concrete integers" in str(e) or "when we expected a concrete int" in str(e):
            # a C++ composite makes a tensor of a symbolic size by itself: once more with the sizes fixed
            return fn(*map(_specialised, args), **{name: _specialised(value) for name, value in kwargs.items()})
        if fn in _PRODUCTS and "with symbolic sizes/strides" in str(e):  # torch 2.11, for a row at a place that varies
            return fn(*map(_in_own_memory, args), **{name: _in_own_memory(value) for name, value in kwargs.items()})
        if "data is not allocated yet" in str(e):  # a C++ composite read the values (tensor_split by a tensor, ...)
            raise DataDependentError(f"{getattr(fn, '__name__', fn)} reads a tensor's values") from None
        raise
