"""Operators on wrappers, by the `__torch_dispatch__` of their classes, while a graph is traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._library.simple_registry import find_torch_dispatch_rule
from torch.utils._python_dispatch import TorchDispatchMode

from ..meta.core import state
from ..opinfo import op_info
from ..tensor import TraceTensor, from_meta, holds_outer, tensor_meta
from ..traced_calls import call_factory_overload, factory_overload
from .wrapping import Wrapping, is_dtensor, is_wrapper, made_of, take_apart

__all__ = ["put_together", "inside", "outer_tensor", "run_by_class", "written_inside"]


def put_together(wrapping: Wrapping, sizes: tuple, plain: Sequence[torch.Tensor]) -> torch.Tensor:
    """The wrapper over these tensors; in a graph that is traced, the tensor that stands for it."""
    if not any(type(t) is TraceTensor for t in plain):
        return made_of(wrapping, sizes, iter(plain))
    with inside():
        return outer_tensor(made_of(wrapping, sizes, iter(plain)), {})


class _Factories(TorchDispatchMode):
    """While a class's own code is traced: tensors that it makes from nothing are part of the graph."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if state.tracing_wrapper and factory_overload(func, args, kwargs or {}) is not None:
            return call_factory_overload(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_map(change, item) for item in value)
    return {key: _map(change, item) for key, item in value.items()} if type(value) is dict else change(value)


def run_by_class(op: Any, args: tuple, kwargs: dict) -> Any:
    """An operator on tensors that stand for wrappers, by the `__torch_dispatch__` of their classes."""
    written = _written(op, args, kwargs)
    before = [take_apart(t)[2] for t in written]
    outers: dict[int, TraceTensor] = {}
    classes: list[type] = []

    def instance(value: Any) -> Any:
        if type(value) is TraceTensor and value.tt_wrapper is not None:
            outers[id(value.tt_wrapper)] = value
            value = value.tt_wrapper
        if is_wrapper(value) and type(value) not in classes:
            # subclasses are asked before the classes that they derive from, others in the order of the arguments
            at = next((i for i, cls in enumerate(classes) if issubclass(type(value), cls)), len(classes))
            classes.insert(at, type(value))
        return value

    args, kwargs = _map(instance, args), _map(instance, kwargs)
    with inside():
        try:
            result = _ask(classes, op, args, kwargs)
        except (TypeError, RuntimeError) as e:
            if "unhashable type: non-nested SymInt" not in str(e):
                raise
            # the class keeps what it knows in a table of sizes: once more with the sizes fixed, by guards
            result = _ask(classes, op, _map(_of_fixed_sizes, args), _map(_of_fixed_sizes, kwargs))
    for t, plain in zip(written, before):
        if any(p is not q for p, q in zip(plain, take_apart(t)[2])):
            raise NotImplementedError(f"{op} exchanges the inner tensors of a wrapper, which is not traced")
    return _map(lambda value: outer_tensor(value, outers), result)


def _written(op: Any, args: tuple, kwargs: dict) -> list[TraceTensor]:
    """The wrappers that an operator writes to, by its schema. Only their inner tensors' elements may be written."""
    info = op_info(op)
    given = [args[write] if write < len(args) else kwargs.get(info.arg_names[write]) for write in info.writes]
    written = [t for x in given for t in (x if isinstance(x, (list, tuple)) else (x,)) if holds_outer((t,))]
    if written and info.kind == "metadata" or any(tensor.tt_differentiable for tensor in written):
        raise NotImplementedError(f"{op} writes to a tensor of a wrapper subclass in a way that is not traced")
    return written


def written_inside() -> list[TraceTensor]:
    """What the code of wrapper classes has written to since this was last asked."""
    written, state.written_inside = state.written_inside or [], []
    return written


def _ask(classes: list[type], op: Any, args: tuple, kwargs: dict) -> Any:
    for cls in classes:
        if is_dtensor(cls):  # by torch's C++, before it looks for `__torch_dispatch__`, which only raises up to 2.13
            return op(*args, **kwargs)
        rule = find_torch_dispatch_rule(op, cls) if op.namespace != "aten" else None  # torch.library has one for it
        ask = cls.__torch_dispatch__ if rule is None else functools.partial(rule, cls)
        result = ask(op, tuple(classes), args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(f"no implementation found for {op} on types that implement __torch_dispatch__: {classes}")


def _of_fixed_sizes(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return int(value)
    if type(value) is TraceTensor and value.tt_env is not None:
        for n in (*value.shape, *value.stride()):
            int(n)
        return torch.ops.aten.alias.default(value)
    if is_wrapper(value):
        wrapping, sizes, plain = take_apart(value)
        return made_of(wrapping, _map(_of_fixed_sizes, sizes), iter(_map(_of_fixed_sizes, plain)))
    return value


@contextmanager
def inside() -> Iterator[None]:
    """Code of a wrapper's class, or of the library that it is of, runs: its operators and factories are traced."""
    with _tracing(), _Factories():
        yield


class _tracing:
    """Operators of a class's own code are traced."""

    def __enter__(self) -> None:
        if state.written_inside is None:
            state.written_inside = []
        self.before, state.tracing_wrapper = state.tracing_wrapper, True

    def __exit__(self, *exc: Any) -> None:
        state.tracing_wrapper = self.before


def outer_tensor(value: Any, known: dict[int, TraceTensor]) -> Any:
    """The tensor that stands for a wrapper; other values as they are."""
    if not is_wrapper(value):
        return value
    if id(value) in known:
        return known[id(value)]
    if value.layout is not torch.strided:
        raise NotImplementedError(f"a {type(value).__name__} of layout {value.layout} is not traced")
    traced = [t for t in take_apart(value)[2] if type(t) is TraceTensor]
    env = next((tensor.tt_env for tensor in traced if tensor.tt_env is not None), None)
    outer = from_meta(tensor_meta(value).replace(requires_grad=False), env)
    outer.tt_wrapper = value
    state.by_class = run_by_class
    return outer
