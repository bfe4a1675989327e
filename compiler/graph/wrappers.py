"""Wrapper subclasses: tensors whose class says by `__torch_dispatch__` what operators do with the tensors inside.

In a graph such a tensor is a TraceTensor with the outer sizes, which autograd sees, and with an instance of the class
over TraceTensors (`tt_wrapper`). An operator that reaches it below autograd is handed to the class's
`__torch_dispatch__`, as torch would hand it on. What that does with the inner tensors is traced like anything else.

`Wrap` and `Unwrap` are the way in and out: graph inputs and results are inner tensors. Autograd passes both by taking
the gradient apart, or by making it of its parts, so that a way in and a way out undo each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from ..guards.snapshots import copied, snapshot
from .captured import CapturedGraph
from .meta.core import state
from .opinfo import op_info
from .tensor import TraceTensor, from_meta, holds_outer, tensor_meta
from .traced_calls import call_factory_overload, factory_overload

__all__ = [
    "Wrapping",
    "Fixed",
    "Crossing",
    "Wrap",
    "Unwrap",
    "Inner",
    "is_wrapper",
    "take_apart",
    "written_inside",
    "gradients_cross",
]


@dataclass(frozen=True, eq=False)
class Fixed:
    """What stands among the inner tensors of a wrapper and is none: the mesh of a DTensor."""

    value: Any


@dataclass(frozen=True, eq=False)
class Wrapping:
    """How a wrapper is made of its inner tensors: what `__tensor_flatten__` said. `inner` has a Wrapping where an inner
    tensor is a wrapper itself, and None for a plain tensor.
    """

    cls: type
    names: tuple[str, ...]
    context: Any
    inner: tuple["Wrapping | Fixed | None", ...]


@dataclass(eq=False)
class Crossing:
    """A place where a wrapper enters or leaves a graph. `gradient`: how its gradient is made, where that was traced."""

    wrapping: Wrapping
    gradient: Wrapping | None = None


def is_wrapper(t: Any) -> bool:
    """Whether a tensor is of a traceable wrapper subclass of the program's, or of a library's."""
    return type(t) is not TraceTensor and is_traceable_wrapper_subclass(t)


# --- apart, and together
def take_apart(t: torch.Tensor) -> tuple[Wrapping, tuple, list[torch.Tensor]]:
    """(how it is made, its sizes and strides, the plain tensors inside), all of them of wrappers inside, too."""
    if type(t) is TraceTensor:
        if t.tt_wrapper is None:
            raise NotImplementedError("a plain tensor stands where one of a wrapper subclass did, which is not traced")
        t = t.tt_wrapper
    names, context = t.__tensor_flatten__()  # type: ignore[attr-defined]
    inner: list[Wrapping | Fixed | None] = []
    sizes: list[Any] = []
    plain: list[torch.Tensor] = []
    for name in names:
        part = getattr(t, name)
        if is_wrapper(part):
            wrapping, own, parts = take_apart(part)
            inner.append(wrapping)
            sizes.append(own)
            plain += parts
            continue
        is_plain = isinstance(part, torch.Tensor)
        inner.append(None if is_plain else Fixed(part))
        sizes.append(None)
        plain += [part] if is_plain else []
    return (
        Wrapping(type(t), tuple(names), copied(context), tuple(inner)),
        (tuple(t.shape), tuple(t.stride()), tuple(sizes)),
        plain,
    )


def put_together(wrapping: Wrapping, sizes: tuple, plain: Sequence[torch.Tensor]) -> torch.Tensor:
    """The wrapper over these tensors; in a graph that is traced, the tensor that stands for it."""
    if not any(type(t) is TraceTensor for t in plain):
        return _made(wrapping, sizes, iter(plain))
    with _tracing(), _Factories():
        return _outer(_made(wrapping, sizes, iter(plain)), {})


def _made(wrapping: Wrapping, sizes: tuple, plain: Iterator[torch.Tensor]) -> torch.Tensor:
    size, stride, own = sizes
    parts = {}
    for name, inner, of_inner in zip(wrapping.names, wrapping.inner, own, strict=True):
        if inner is None:
            parts[name] = next(plain)
        else:
            parts[name] = inner.value if isinstance(inner, Fixed) else _made(inner, of_inner, plain)
    if all(type(n) is int for n in size):
        size = torch.Size(size)
    return wrapping.cls.__tensor_unflatten__(parts, copied(wrapping.context), size, stride)  # type: ignore[attr-defined]


def _sizes_of_gradient(sizes: tuple, wrapping: Wrapping, plain: Sequence[torch.Tensor]) -> tuple:
    """The sizes of a wrapper whose parts may be laid out in another way than those that it is the gradient of."""
    alike = next((t for t in plain if tuple(t.shape) == tuple(sizes[0])), None)
    own = tuple(
        _sizes_of_gradient(s, i, plain) if isinstance(i, Wrapping) else s for s, i in zip(sizes[2], wrapping.inner)
    )
    return sizes[0], sizes[1] if alike is None else tuple(alike.stride()), own


# --- operators
class _Factories(TorchDispatchMode):
    """While a class's own code is traced: tensors that it makes from nothing are part of the graph."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if state.tracing_wrapper and factory_overload(func, args, kwargs or {}) is not None:
            return call_factory_overload(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_map(change, v) for v in value)
    return {k: _map(change, v) for k, v in value.items()} if type(value) is dict else change(value)


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
            at = next((i for i, c in enumerate(classes) if issubclass(type(value), c)), len(classes))
            classes.insert(at, type(value))
        return value

    args, kwargs = _map(instance, args), _map(instance, kwargs)
    with _tracing(), _Factories():
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
    return _map(lambda value: _outer(value, outers), result)


def _written(op: Any, args: tuple, kwargs: dict) -> list[TraceTensor]:
    """The wrappers that an operator writes to, by its schema. Only their inner tensors' elements may be written."""
    info = op_info(op)
    given = [args[i] if i < len(args) else kwargs.get(info.arg_names[i]) for i in info.writes]
    written = [t for x in given for t in (x if isinstance(x, (list, tuple)) else (x,)) if holds_outer((t,))]
    if written and info.kind == "metadata" or any(t.tt_differentiable for t in written):
        raise NotImplementedError(f"{op} writes to a tensor of a wrapper subclass in a way that is not traced")
    return written


def written_inside() -> list[TraceTensor]:
    """What the code of wrapper classes has written to since this was last asked."""
    written, state.written_inside = state.written_inside or [], []
    return written


def _ask(classes: list[type], op: Any, args: tuple, kwargs: dict) -> Any:
    for cls in classes:
        result = cls.__torch_dispatch__(op, tuple(classes), args, kwargs)
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
        return _made(wrapping, _map(_of_fixed_sizes, sizes), iter(_map(_of_fixed_sizes, plain)))
    return value


class _tracing:
    """Operators of a class's own code are traced."""

    def __enter__(self) -> None:
        if state.written_inside is None:
            state.written_inside = []
        self.before, state.tracing_wrapper = state.tracing_wrapper, True

    def __exit__(self, *exc: Any) -> None:
        state.tracing_wrapper = self.before


def _outer(value: Any, known: dict[int, TraceTensor]) -> Any:
    """The tensor that stands for a wrapper; other values as they are."""
    if not is_wrapper(value):
        return value
    if id(value) in known:
        return known[id(value)]
    if value.layout is not torch.strided:
        raise NotImplementedError(f"a {type(value).__name__} of layout {value.layout} is not traced")
    traced = [t for t in take_apart(value)[2] if type(t) is TraceTensor]
    env = next((t.tt_env for t in traced if t.tt_env is not None), None)
    outer = from_meta(tensor_meta(value).replace(requires_grad=False), env)
    outer.tt_wrapper = value
    state.by_class = run_by_class
    return outer


# --- the ways in and out
class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, crossing: Crossing, sizes: tuple, *plain: torch.Tensor) -> torch.Tensor:
        ctx.crossing, ctx.traced = crossing, type(plain[0]) is TraceTensor
        return put_together(crossing.wrapping, sizes, [t.detach() for t in plain])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        if not ctx.traced:
            gradient = _as_traced(gradient, ctx.crossing.wrapping)
        wrapping, _, plain = take_apart(gradient)
        if ctx.traced:
            ctx.crossing.gradient = wrapping
        elif gradient.requires_grad:  # of a backward pass that is differentiated in its turn
            plain = _Leave.apply(Crossing(wrapping), gradient)
        return (None, None, *plain)


def _as_traced(gradient: Any, wrapping: Wrapping) -> torch.Tensor:
    """A gradient from outside in the form that the graph was made for: that of the result that it belongs to."""
    found = take_apart(gradient)[0] if type(gradient) is wrapping.cls else None
    if found is not None and _alike(found, wrapping):
        return gradient
    coerce = getattr(gradient, "__coerce_same_metadata_as_tangent__", None)
    coerced = coerce(wrapping.context) if coerce is not None and found is not None else None
    if coerced is None:
        other = " of another flatten context" if found is not None else ""
        raise RuntimeError(
            f"the gradient of a {wrapping.cls.__name__} is a {type(gradient).__name__}{other}. The compiled backward"
            " takes one of the form that the result has: compute the loss inside of the compiled part, or give that."
        )
    return coerced


def _alike(a: Wrapping, b: Wrapping) -> bool:
    if a.cls is not b.cls or a.names != b.names or snapshot(a.context) != snapshot(b.context):
        return False
    for x, y in zip(a.inner, b.inner):
        if type(x) is not type(y):
            return False
        if isinstance(x, Wrapping) and not _alike(x, y):
            return False
    return True


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, crossing: Crossing, t: torch.Tensor) -> tuple:
        wrapping, ctx.sizes, plain = take_apart(t)
        ctx.crossing = crossing
        return tuple(p.detach() for p in plain)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        wrapping = ctx.crossing.gradient or ctx.crossing.wrapping
        sizes = _sizes_of_gradient(ctx.sizes, wrapping, gradients)
        if torch.is_grad_enabled() and any(g.requires_grad for g in gradients):
            return None, _Enter.apply(Crossing(wrapping), sizes, *gradients)
        return None, put_together(wrapping, sizes, gradients)


class _Call:
    """A callable that is a node of captured graphs, and a function of entries."""

    def __init__(self, name: str):
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__

    def __deepcopy__(self, memo: dict) -> "_Call":
        return self


class Wrap(_Call):
    """The wrapper over inner tensors that are given in order: (sizes, *plain) -> wrapper."""

    def __init__(self, crossing: Crossing, requires_grad: bool):
        super().__init__(f"wrap_{crossing.wrapping.cls.__name__}")
        self.crossing, self.requires_grad = crossing, requires_grad

    def __call__(self, sizes: tuple, *plain: torch.Tensor) -> torch.Tensor:
        if not self.requires_grad or not any(t.requires_grad for t in plain):
            return put_together(self.crossing.wrapping, sizes, plain)
        with torch.enable_grad():  # it requires grad in whatever mode it comes
            made = _Enter.apply(self.crossing, sizes, *plain)
        if type(made) is TraceTensor:
            made.tt_differentiable = True
        return made


class Unwrap(_Call):
    """The inner tensors of a wrapper: wrapper -> tuple of them. Autograd passes through, unless they are only read."""

    def __init__(self, crossing: Crossing, differentiable: bool = True):
        super().__init__(f"unwrap_{crossing.wrapping.cls.__name__}")
        self.crossing, self.differentiable = crossing, differentiable

    def __call__(self, t: torch.Tensor) -> tuple:
        if not t.requires_grad or not self.differentiable:
            return tuple(take_apart(t)[2])
        with torch.enable_grad():
            return _Leave.apply(self.crossing, t)


class Inner(_Call):
    """An inner tensor as an attribute of a wrapper: it has no history, as in eager."""

    def __init__(self, name: str):
        super().__init__(f"inner_{name}")
        self.name = name

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        wrapper = t.tt_wrapper if type(t) is TraceTensor else t
        return _outer(getattr(wrapper, self.name), {}) if type(t) is TraceTensor else getattr(wrapper, self.name)


def gradients_cross(captured: CapturedGraph) -> bool:
    """Whether gradients of wrappers enter or leave a graph: parts of them are of use only where all of it is traced."""
    return any(
        isinstance(n.target, Wrap)
        and n.target.requires_grad
        or isinstance(n.target, Unwrap)
        and n.target.differentiable
        for n in captured.graph_module.graph.nodes
    )
