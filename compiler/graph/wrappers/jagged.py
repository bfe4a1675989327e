"""Jagged nested tensors (torch.nested, `layout=torch.jagged`) as the tensors inside of them.

A graph never has a nested tensor. A `JaggedCall` takes values, offsets and lengths, and puts nested tensors together.
It calls torch's function on them, and gives the tensors inside of what comes back. torch says by a table of functions
over values what operators do with nested tensors, below autograd. Here these functions run above it. So autograd sees
plain tensors alone, gradients are those of the values, and no formula for nested tensors is needed.

The size of the ragged dimension is torch's own: a number that is equal to itself alone, kept by the tensor of offsets.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch._C import DispatchKey
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from ..tensor import DataDependentError, TraceTensor
from .class_operators import inside
from .crossings import Call

__all__ = [
    "JaggedCall",
    "Nested",
    "is_jagged",
    "jagged_parts",
    "lengths_by",
    "longest_by",
    "longest_of",
    "make_jagged",
    "nested_class",
    "run_jagged",
]

_AUTOGRAD = (
    DispatchKey.AutogradFunctionality,
    DispatchKey.AutogradOther,
    DispatchKey.AutogradNestedTensor,
    DispatchKey.ADInplaceOrView,
)
_COMPOSITE = (DispatchKey.CompositeImplicitAutogradNestedTensor, DispatchKey.CompositeImplicitAutograd)
_QUESTIONS = (torch.Tensor.size, torch.Tensor.stride, torch.Tensor.dim)


def nested_class() -> type:
    """torch's class, which is not imported for programs without nested tensors."""
    from torch.nested._internal.nested_tensor import NestedTensor, _nt_view_dummy

    _nt_view_dummy()  # kept by torch: while a graph is traced it would be made of what has no elements
    return NestedTensor


def is_jagged(value: Any) -> bool:
    """By the class: to ask a tensor of the program's for its layout calls its `__torch_function__`."""
    nested = sys.modules.get("torch.nested._internal.nested_tensor")
    return nested is not None and issubclass(type(value), nested.NestedTensor)


def _holds_jagged(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_jagged, value))
    return any(map(_holds_jagged, value.values())) if isinstance(value, dict) else is_jagged(value)


def make_jagged(
    values: Any, offsets: Any, lengths: Any = None, ragged_idx: int = 1, longest: Any = None, shortest: Any = None
) -> Any:
    """A nested tensor over these. `longest`, `shortest`: what torch keeps of the lengths of its sequences, if any."""
    cls = nested_class()
    from torch.nested._internal.nested_tensor import _store_val_in_tensor

    _size_of(offsets if lengths is None else lengths)

    cache = {
        name: _store_val_in_tensor(n)
        for name, n in (("max_seqlen", longest), ("min_seqlen", shortest))
        if n is not None
    }
    return cls(values, offsets=offsets, lengths=lengths, _ragged_idx=ragged_idx, _metadata_cache=cache)


def _size_of(keeper: Any) -> None:
    """The size of a ragged dimension, where a graph is traced: torch's own takes no products with symbols, which
    strides may be."""
    if type(keeper) is not TraceTensor or keeper.dim() != 1 or keeper.is_floating_point():
        return
    from torch.nested._internal.nested_int import NestedIntNode
    from torch.nested._internal.nested_tensor import _tensor_symint_registry, get_tensor_symint

    class RaggedNode(NestedIntNode):
        def mul(self, other: Any) -> Any:
            if other.is_constant():
                return RaggedNode(self.t_id, self.coeff * other.constant_int())
            return RaggedNode(self.t_id, self.coeff * torch.SymInt(other))

    size = get_tensor_symint(keeper)
    if type(size.node) is NestedIntNode:
        _tensor_symint_registry[keeper] = torch.SymInt(RaggedNode(size.node.t_id, 1))


def jagged_parts(tensor: Any) -> tuple:
    """(values, offsets, lengths): None for what there is not."""
    return tensor._values, tensor._offsets, tensor._lengths


def longest_of(tensor: Any) -> int:
    """The length of the longest sequence. torch's own table of lengths is read, and not written to: whether it has one
    decides how far torch pads."""
    known = tensor._maybe_max_seqlen
    if known is not None:
        return known
    known = tensor.__dict__.get("span")
    if known is not None:
        return known
    source = tensor._offsets if tensor._lengths is None else tensor._lengths
    if type(source) is TraceTensor:
        raise DataDependentError("the length of the longest sequence needs the tensor's data")
    return longest_by(source, tensor._lengths is None)


def longest_by(source: torch.Tensor, are_offsets: bool = True) -> int:
    """The same by offsets or lengths."""
    found = _spans.get(source)
    if found is None or found[0] != source._version:
        lengths = source.diff() if are_offsets else source
        found = _spans[source] = source._version, int(lengths.max()) if lengths.numel() else 0
    return found[1]


def lengths_of(tensor: Any) -> list:
    """The lengths of all sequences, which lie one behind the other."""
    known = tensor.__dict__.get("rows")
    if known is not None:
        return list(known)
    if type(tensor._offsets) is TraceTensor:
        raise DataDependentError("the lengths of the sequences need the tensor's data")
    return list(lengths_by(tensor._offsets))


def lengths_by(offsets: torch.Tensor) -> tuple:
    """The same by offsets."""
    found = _lengths.get(offsets)
    if found is None or found[0] != offsets._version:
        found = _lengths[offsets] = offsets._version, tuple(offsets.diff().tolist())
    return found[1]


_lengths: Any = WeakTensorKeyDictionary()  # tensor of offsets -> (its version, the lengths)
_spans: Any = WeakTensorKeyDictionary()  # tensor of offsets or lengths -> (its version, the longest)


# --- torch's functions over values, above autograd
@contextmanager
def _autograd(on: bool) -> Iterator[None]:
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
    before = [excluded(k) for k in _AUTOGRAD]
    for k in _AUTOGRAD:
        torch._C._dispatch_tls_set_dispatch_key_excluded(k, not on)
    try:
        yield
    finally:
        for k, was in zip(_AUTOGRAD, before):
            torch._C._dispatch_tls_set_dispatch_key_excluded(k, was)


@contextmanager
def _watching(python: bool, running: Any = None) -> Iterator[None]:
    """Functions and operators on nested tensors are ours. python: so are those that Python calls, apart from `running`.
    Else C++ runs, and what it does with plain tensors is to be seen by autograd."""
    with ExitStack() as stack:
        if python:
            stack.enter_context(torch._C._EnableTorchFunction())
            stack.enter_context(_Functions(running))
            stack.enter_context(_autograd(True))
        else:
            stack.enter_context(_autograd(False))
            stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(_Operators(not python))
        yield


class _Functions(TorchFunctionMode):
    """What Python calls on nested tensors goes to C++ without autograd: it would see the nested tensors, and put their
    history in the place of the values'."""

    def __init__(self, running: Any):
        super().__init__()
        self.running = running

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        own = _OWN.get(func)
        if own is not None:
            return own(*args, **(kwargs or {}))
        if not _holds_jagged((args, kwargs)):
            return func(*args, **(kwargs or {}))
        return _function(func, args, kwargs or {}, func is self.running)


def _function(func: Any, args: tuple, kwargs: dict, plainly: bool = False) -> Any:
    from torch.nested._internal.ops import jagged_torch_function

    if func in _QUESTIONS or getattr(func, "__name__", "") == "__get__":
        return nested_class().__torch_function__(func, (nested_class(),), args, kwargs)
    if func is F.scaled_dot_product_attention or func is torch._C._nn.scaled_dot_product_attention:
        with _watching(python=True):
            return _attention(*args, **kwargs)
    if not plainly:
        try:
            with _watching(python=True, running=func):
                return jagged_torch_function(func, *args, **kwargs)
        except NotImplementedError as e:
            if e.args != (func,):
                raise
    with _watching(python=False):
        return func(*args, **kwargs)


class _Operators(TorchDispatchMode):
    """hidden: autograd is off, because C++ runs with nested tensors. For operators on plain tensors it is on again."""

    def __init__(self, hidden: bool):
        super().__init__()
        self.hidden = hidden

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        from torch.nested._internal.ops import lookup_jagged

        kwargs = kwargs or {}
        own = _OWN.get(func)
        if own is not None:
            with _watching(python=True):
                return own(*args, **kwargs)
        if not _holds_jagged((args, kwargs)):
            if kwargs.get("layout") is torch.jagged and func is torch.ops.aten.scalar_tensor.default:
                kwargs = {**kwargs, "layout": torch.strided}  # (C++ makes a number a tensor like the nested one)
            if not self.hidden:
                return func(*args, **kwargs)
            with _watching(python=True):
                return func(*args, **kwargs)
        own = _OF_SEQUENCES.get(func)
        if own is not None and is_jagged(args[0]) and args[0]._lengths is None:
            with _watching(python=True):
                result = own(*args, **kwargs)
            if result is not None:
                return result
        by_table = lookup_jagged(func, *args, **kwargs)
        if by_table is not None:
            with _watching(python=True):
                return by_table(*args, **kwargs)
        for key in _COMPOSITE:
            if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
                with _watching(python=False):
                    return func._op_dk(key, *args, **kwargs)
        raise NotImplementedError(f"{func} of a nested tensor")


# --- what torch's table does without gradients, or by kernels: functions with the operators' own parameters
def _values(self: Any) -> torch.Tensor:
    return torch.ops.aten.alias.default(self._values)


def _view_of_values(
    self: Any,
    offsets: Any,
    dummy: Any,
    lengths: Any = None,
    ragged_idx: int = 1,
    min_seqlen: Any = None,
    max_seqlen: Any = None,
) -> Any:
    cache = {k: t for k, t in (("max_seqlen", max_seqlen), ("min_seqlen", min_seqlen)) if t is not None}
    return nested_class()(self, offsets=offsets, lengths=lengths, _ragged_idx=ragged_idx, _metadata_cache=cache)


def _tracing(*given: Any) -> Any:
    """What is made of numbers alone is part of the graph, where one is traced: in a backward pass, too."""
    return inside() if any(type(t) is TraceTensor for t in given) else nullcontext()


def _pad(values: Any, offsets: Any, length: Any, padding: float) -> torch.Tensor:
    """(rows, ...) -> (sequences, length, ...)."""
    place = torch.arange(length, device=values.device)
    there = place < offsets.diff()[:, None]
    if values.shape[0] == 0:
        return values.new_full((*there.shape, *values.shape[1:]), padding)
    rows = values[torch.where(there, offsets[:-1, None] + place, 0)]
    if padding in (float("inf"), float("-inf")) and not values.is_floating_point():
        limits = torch.iinfo(values.dtype)
        padding = limits.max if padding > 0 else limits.min
    return rows.masked_fill(~there.view(*there.shape, *[1] * (values.dim() - 1)), padding)


def _unpad(padded: Any, offsets: Any, total: Any) -> torch.Tensor:
    """(sequences, length, ...) -> (rows, ...). Rows that are past a length, or of no sequence, are zeros."""
    row = torch.arange(total, device=padded.device, dtype=offsets.dtype)
    sequence = (torch.searchsorted(offsets, row, right=True) - 1).clamp(0, padded.shape[0] - 1)
    place = row - offsets[sequence]
    there = (place >= 0) & (place < padded.shape[1]) & (row < offsets[-1])
    rows = padded[sequence, torch.where(there, place, 0)]
    return rows.masked_fill(~there.view(-1, *[1] * (padded.dim() - 2)), 0)


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Any, offsets: Any, length: Any, padding: float) -> torch.Tensor:
        ctx.save_for_backward(offsets)
        ctx.total = values.shape[0]
        with _tracing(values):
            return _pad(values, offsets, length, padding)

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple:  # type: ignore[override]
        (offsets,) = ctx.saved_tensors
        return _Unpad.apply(g, offsets, ctx.total), None, None, None


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Any, offsets: Any, total: Any) -> torch.Tensor:
        ctx.save_for_backward(offsets)
        ctx.length = padded.shape[1]
        with _tracing(padded):
            return _unpad(padded, offsets, total)

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple:  # type: ignore[override]
        (offsets,) = ctx.saved_tensors
        return _Pad.apply(g, offsets, ctx.length, 0.0), None, None


def _padded_dense(values: Any, offsets: Sequence, max_lengths: Sequence, padding_value: float = 0.0) -> torch.Tensor:
    (own,), (length,) = offsets, max_lengths
    return _Pad.apply(values, own, length, padding_value)


def _unpadded_dense(dense: Any, offsets: Sequence, total_L: Any = None) -> torch.Tensor:  # noqa: N803
    (own,) = offsets
    return _Unpad.apply(dense, own, int(own[-1]) if total_L is None else total_L)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention of (sequences, heads, ragged, width): padded, with a mask of the keys that there are."""
    from torch.nested._internal.sdpa import jagged_scaled_dot_product_attention

    nested = (query, key, value)
    if not all(map(is_jagged, nested)) or all(t.dim() > 3 and t._ragged_idx == 1 for t in nested):
        return jagged_scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    if attn_mask is not None or dropout_p or any(t._lengths is not None or t._ragged_idx != 2 for t in nested):
        raise NotImplementedError("attention of nested tensors with a mask, dropout or holes")
    if any(t.dim() != 4 for t in nested) or key._size[2] != value._size[2]:
        raise NotImplementedError("attention of nested tensors that are not (sequences, heads, ragged, width)")

    def padded(tensor: Any) -> torch.Tensor:
        return _Pad.apply(tensor._values.transpose(0, 1), tensor._offsets, longest_of(tensor), 0.0).transpose(1, 2)

    q, k, v = map(padded, nested)
    place = torch.arange(k.shape[2], device=k.device)
    mask = (place < key._offsets.diff()[:, None])[:, None, None, :]
    if is_causal:
        mask = mask & (place <= torch.arange(q.shape[2], device=q.device)[:, None])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
    rows = _Unpad.apply(out.transpose(1, 2), query._offsets, query._values.shape[1])
    return nested_class()(
        rows.transpose(0, 1), offsets=query._offsets, _ragged_idx=2, _metadata_cache=query._metadata_cache
    )


def _unbind(self: Any, dim: int = 0) -> Any:
    """Parts of the values by themselves: most programs use them all, but gradients may come for some alone."""
    lengths, along = lengths_of(self), self._ragged_idx - 1
    if dim not in (0, -self.dim()) or sum(lengths) != self._values.shape[along]:
        return None
    ends = [0, *itertools.accumulate(lengths)]
    return tuple(self._values.narrow(along, start, length) for start, length in zip(ends, lengths))


def _select(self: Any, dim: int, index: int) -> Any:
    found = _unbind(self) if dim in (0, -self.dim()) else None
    return None if found is None else found[index]


# (None: torch's table knows)
_OF_SEQUENCES = {torch.ops.aten.unbind.int: _unbind, torch.ops.aten.select.int: _select}
_OWN: dict[Any, Callable] = {
    form: own
    for op, own in (
        (torch.ops.aten._nested_get_values, _values),
        (torch.ops.aten._nested_view_from_jagged, _view_of_values),
        (torch.ops.aten._jagged_to_padded_dense_forward, _padded_dense),
        (torch.ops.aten._padded_dense_to_jagged_forward, _unpadded_dense),
    )
    for form in (op, op.default)
}


def run_jagged(func: Any, args: tuple, kwargs: dict) -> Any:
    """A function of torch on nested tensors, whose values autograd sees."""
    with _watching(python=True):
        return func(*args, **kwargs)


# --- calls in a graph
@dataclass(frozen=True)
class _Given:
    """A tensor or number that a call is given."""

    at: int


@dataclass(frozen=True)
class _New:
    """A tensor that a call makes."""

    at: int


@dataclass(frozen=True)
class Nested:
    """A nested tensor.

    parts      values, offsets, lengths
    lengths    the longest and the shortest, where torch keeps them
    span       the longest, where only we know it
    rows       all of them, where they were asked for
    family     which of the nested tensors that a call is given has the same table of lengths; -1: none
    """

    parts: tuple
    ragged_idx: int
    lengths: tuple = field(default=(None, None), compare=False)
    span: Any = field(default=None, compare=False)
    family: int = -1
    rows: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class _RaggedSize:
    """The size of the ragged dimension whose offsets or lengths these are, times a number."""

    source: Any
    times: int


class JaggedCall(Call):
    """func(*args, **kwargs), whose nested tensors are given by what is inside of them: (*given) -> the new tensors.
    `result` says what they are parts of."""

    def __init__(self, func: Any, args: Any, kwargs: Any):
        super().__init__(f"jagged_{getattr(func, '__name__', 'call').strip('_')}")
        self.func, self.args, self.kwargs = func, args, kwargs
        self.result: Any = None

    @staticmethod
    def of(func: Any, args: list, kwargs: dict, sizes: dict[int, Any]) -> tuple["JaggedCall", list]:
        """The call, and what it is given. sizes: by the id of torch's number, the tensors that ragged sizes are kept
        by."""
        given: list[Any] = []
        write = _Writer(given, [], sizes, [])
        return JaggedCall(func, write(list(args)), write(kwargs)), given

    def __call__(self, *given: Any) -> tuple:
        families: list[Any] = []
        for t in given:
            _size_of(t)
        with _tracing(*given):
            args, kwargs = _read(self.args, given, families=families), _read(self.kwargs, given, families=families)
            result = run_jagged(self.func, tuple(args), kwargs)
        new: list[Any] = []
        pattern = _Writer(list(given), new, None, families)(result)
        if self.result is None:
            self.result = pattern
        elif _kinds(pattern) != _kinds(self.result):
            raise NotImplementedError(f"{self.__name__} gives other tensors than when it was captured")
        return tuple(new)

    def value(self, given: Sequence, new: Sequence, nested: Callable) -> Any:
        """The result, of these tensors. nested(pattern, *parts) makes what stands for a nested tensor."""
        return _read(self.result, given, new, nested)


class _Writer:
    """A value as a pattern. Of arguments (with `sizes`) the tensors go to `given`, of results new ones go to `new`;
    `families` are the nested tensors among the arguments."""

    def __init__(self, given: list, new: list, sizes: dict[int, Any] | None, families: list):
        self.given, self.new, self.sizes, self.families = given, new, sizes, families

    def __call__(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
            parts = [self(item) for item in value]
            named = hasattr(value, "_fields")
            return type(value)(*parts) if named else tuple(parts) if isinstance(value, tuple) else parts
        if type(value) is torch.Size:
            return tuple(map(self, value))
        if type(value) is dict:
            return {key: self(item) for key, item in value.items()}
        if type(value) is slice:
            return slice(self(value.start), self(value.stop), self(value.step))
        if is_jagged(value):
            return self._nested(value)
        if isinstance(value, torch.SymInt) and value.node.is_nested_int():
            if self.sizes is None:
                return value
            return _RaggedSize(self(self.sizes[value.node.nested_int()]), value.node.nested_int_coeff())
        if isinstance(value, torch.Tensor) or self.sizes is not None and isinstance(value, torch.SymInt):
            return self._tensor(value)
        return value

    def _nested(self, tensor: Any) -> Nested:
        parts, lengths = tuple(map(self, jagged_parts(tensor))), (tensor._maybe_max_seqlen, tensor._maybe_min_seqlen)
        if self.sizes is not None:
            span, rows = (self(tensor.__dict__.get(name)) for name in ("span", "rows"))
            return Nested(parts, tensor._ragged_idx, tuple(map(self, lengths)), span, rows=rows)
        cache = tensor._metadata_cache
        family = next((i for i, family in enumerate(self.families) if family._metadata_cache is cache), -1)
        return Nested(parts, tensor._ragged_idx, lengths, None, family)

    def _tensor(self, value: Any) -> Any:
        at = next((i for i, t in enumerate(self.given) if t is value), None)
        if at is not None:
            return _Given(at)
        if self.sizes is not None:
            self.given.append(value)
            return _Given(len(self.given) - 1)
        at = next((i for i, t in enumerate(self.new) if t is value), None)
        if at is None:
            at = len(self.new)
            self.new.append(value)
        return _New(at)


def _read(
    pattern: Any, given: Sequence, new: Sequence = (), nested: Callable | None = None, families: list | None = None
) -> Any:
    def read(p: Any) -> Any:
        return _read(p, given, new, nested, families)

    if type(pattern) is _Given:
        return given[pattern.at]
    if type(pattern) is _New:
        return new[pattern.at]
    if type(pattern) is Nested:
        parts = tuple(map(read, pattern.parts))
        if nested is not None:
            return nested(pattern, *parts)
        longest, shortest = map(read, pattern.lengths)
        values, offsets, lengths = parts
        made = make_jagged(values, offsets, lengths, pattern.ragged_idx, longest, shortest)
        made.span, made.rows = read(pattern.span), read(pattern.rows)
        if families is not None:
            families.append(made)
        return made
    if type(pattern) is _RaggedSize:
        from torch.nested._internal.nested_tensor import get_tensor_symint

        return get_tensor_symint(read(pattern.source), coeff=pattern.times)
    if isinstance(pattern, (list, tuple)):
        return type(pattern)(*map(read, pattern)) if hasattr(pattern, "_fields") else type(pattern)(map(read, pattern))
    if type(pattern) is dict:
        return {key: read(value) for key, value in pattern.items()}
    if type(pattern) is slice:
        return slice(*map(read, (pattern.start, pattern.stop, pattern.step)))
    return pattern


def _kinds(pattern: Any) -> Any:
    """What two results have in common: which tensors are new, and what they are parts of."""
    if isinstance(pattern, (list, tuple)):
        return tuple(map(_kinds, pattern))
    return pattern if type(pattern) in (_Given, _New, Nested) else type(pattern)
