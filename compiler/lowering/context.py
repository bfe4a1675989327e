"""What rules write with: `Lowering`, with the steps made so far. lower.py walks over the graph.

Rules (rules/) take it as `lo`. It stores values to buffers, reduces, views, and calls what has no rule.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any, NamedTuple, Sequence

import torch
import torch.fx

from ..ops import philox
from ..symbolic.expr import as_expr, ceildiv, maybe_int
from .ir import Axis, Buffer, LoopNest, Value, cast, const, index, is_position, load, prim, reduced_dtype
from .lowered import Extern, LoweredStep, Param, View
from .promote import compute_dtype, operand, rounded
from .rule_table import NoRule
from .buffer_strides import (
    aligned_rows,
    matrix_in_place,
    memory_order,
    narrowed,
    order_of_loads,
    rows_apart,
    rows_in_place,
    same_strides,
    strides_of,
)
from .ref import (
    Ref,
    Scalar,
    contiguous_strides,
    dim_symbol,
    flat_index,
    is_one,
    is_tensor,
    numel,
    plain_size,
    ref_of_buffer,
    remap,
    same,
    shape_of,
    strided,
)

__all__ = ["Lowering", "DTYPES", "summed"]

BETWEEN = "a copy between devices"  # why the operator is called
DTYPES = frozenset(
    (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
    )
)
FLOAT8 = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))  # a GPU's kernels read and write them
OUT_VARIANTS = frozenset(("mm", "bmm", "addmm", "baddbmm"))
# Operators that allocate for themselves and whose results are known to share no memory with anything.
FRESH = frozenset(
    """_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    convolution native_dropout dropout_attention dropout_attention_backward _grouped_mm""".split()
)

# Where operators take a mask that is added to scores: attention, whose kernels take operands of any strides between
# rows.
_MASKS = {
    "_scaled_dot_product_flash_attention": -1,
    "_scaled_dot_product_cudnn_attention": 3,
    "_scaled_dot_product_efficient_attention": 3,
    "_scaled_dot_product_cudnn_attention_backward": 8,
    "_scaled_dot_product_efficient_attention_backward": 4,
    "dropout_attention": -1,
    "dropout_attention_backward": -1,
}


def summed(value: Value) -> Value:
    """The sum of one number, or of several that were added up without a zero to begin with: that of -0.0 is 0.0."""
    return prim("add", value, const(0.0, value.dtype)) if value.dtype.is_floating_point else value


class Lowering:
    """The state of one run. Rules use `pointwise`, `store`, `reduce` and `meta`."""

    def __init__(self, aten: Any, opts: Any):
        self.aten, self.opts = aten, opts
        self.emulate = bool(opts.get("emulate_precision", False))
        self.refs: dict[torch.fx.Node, Any] = {}
        self.steps: list[LoweredStep] = []
        self.inputs: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.fallbacks: Counter[str] = Counter()
        self.node = None
        self.on_two_devices = False  # computed on a GPU, beside tensors of the CPU
        self._names: set[str] = set()
        self._views: dict[tuple, Buffer] = {}
        self._view_base: dict[Buffer, Buffer] = {}
        self._realised: dict[tuple, Buffer] = {}
        self.foreign: set[Buffer] = set()  # made by library calls that allocate for themselves
        self.drawing: Extern | None = None  # what draws for rules (rules/random.py), until torch's kernels draw
        self.drawing_at = 0  # where that stands: before whatever may be computed of it
        self._nests: dict[Buffer, list[LoopNest]] = {}  # of the steps whose ids are known
        self._known: set[int] = set()

    def nests_of(self, buffer: Buffer) -> list[LoopNest]:
        """The nests so far that store into a buffer."""
        for step in reversed(self.steps):  # (what is put between earlier ones is no nest)
            if id(step) in self._known:
                break
            self._known.add(id(step))
            if isinstance(step, LoopNest):
                self._nests.setdefault(step.buffer, []).insert(0, step)
        return self._nests.get(buffer, [])

    def take_back(self, mark: int) -> None:
        """Drop the steps from a place on."""
        del self.steps[mark:]
        self._nests.clear(), self._known.clear()

    @cached_property
    def named(self) -> dict[str, torch.fx.Node]:
        return {node.name: node for node in self.aten.graph.nodes}

    @property
    def node(self) -> torch.fx.Node | None:
        """The node that is lowered now: values that are made meanwhile are for it."""
        return self._node

    @node.setter
    def node(self, node: torch.fx.Node | None) -> None:
        self._node = node
        Value.making_for = node.name if node is not None else ""

    # ---- what rules use
    def meta(self, node: torch.fx.Node | None = None, k: int | None = None) -> Any:
        value = (node or self.node).meta["val"]
        return value if k is None else value[k]

    def out_shape(self, k: int | None = None) -> tuple:
        return shape_of(self.meta(k=k).shape)

    def store(
        self,
        value: Value,
        shape: Sequence[Any],
        dtype: torch.dtype | None = None,
        stride: Sequence[Any] | None = None,
        suffix: str = "",
    ) -> Ref:
        """A nest that computes `value` (over j symbols of `shape`) into a new buffer; the Ref that reads it."""
        dtype = dtype or value.dtype
        if value.dtype != dtype:
            value = cast(value, dtype)
        _supported(dtype, value, self.dtypes())
        buffer = self._buffer(self._node_name() + suffix, tuple(shape), dtype, stride)
        axes = memory_order(buffer.shape, buffer.stride)
        idx = flat_index(buffer.shape, buffer.stride)
        self.steps.append(LoopNest(buffer, axes, idx, value, domain=axes, origins=self.origins(), lines=self.lines()))
        return Ref(buffer.shape, dtype, load(buffer, idx))

    def operands(self, *xs: Ref | Scalar) -> list[Value]:
        """Operands in the dtype that the node computes in: its own, or float32 for low precision."""
        dtype = compute_dtype(self.meta().dtype)
        return [operand(arg, dtype) for arg in xs]

    def rounded(self, value: Value) -> Ref:
        """What the node computes of its `operands`, as its own result."""
        return self.pointwise(rounded(value, self.meta().dtype))

    def pointwise(self, value: Value, k: int | None = None) -> Ref:
        """`value` as the node's own result (or its k-th): shape, dtype and strides from the node."""
        meta = self.meta(k=k)
        shape, stride = shape_of(meta.shape), strides_of(meta)
        if any(type(st) is int and st == 0 and not is_one(size) for size, st in zip(shape, stride)):
            stride = None  # a copy of something expanded: its elements do not coincide
        suffix = f"_{k}" if k is not None else ""
        if self.on_gpu:
            narrow = narrowed(value, shape)
            if narrow != shape:  # (masks above all: the same for every query)
                ref = self.store(value, narrow, meta.dtype, None, suffix)
                return Ref(shape, ref.dtype, ref.value)
        return self.store(value, shape, meta.dtype, stride, suffix)

    def reduce(
        self,
        op: str,
        value: Value,
        src_shape: Sequence[Any],
        dims: Sequence[int],
        keepdim: bool,
        stride: Sequence[Any] | None = None,
        suffix: str = "",
        logical_order: bool = False,
    ) -> Ref:
        """A nest that reduces `value` (over j symbols of src_shape) over `dims`, in value's dtype (int64 for
        argmax/argmin).
        """
        _supported(value.dtype, value, self.dtypes())
        ndim = len(src_shape)
        reduced = {dim % ndim for dim in dims} if ndim else set()
        out_dtype = reduced_dtype(op, value.dtype)
        shape = tuple(
            1 if dim in reduced else size for dim, size in enumerate(src_shape) if keepdim or dim not in reduced
        )
        order = list(range(ndim)) if logical_order else order_of_loads(value, src_shape)
        domain = tuple(Axis(dim_symbol(ndim, dim), src_shape[dim]) for dim in order if not is_one(src_shape[dim]))
        red_names = {dim_symbol(ndim, d).name for d in reduced}
        buffer = self._buffer(self._node_name() + suffix, shape, out_dtype, stride)
        kept = [dim for dim in range(ndim) if dim not in reduced]
        kept_strides = (
            [st for dim, st in zip(range(ndim), buffer.stride) if dim not in reduced]
            if keepdim
            else list(buffer.stride)
        )
        idx = as_expr(0)
        for d, st in zip(kept, kept_strides):
            if not is_one(src_shape[d]):
                idx = idx + dim_symbol(ndim, d) * st
        if not any(axis.symbol.name in red_names for axis in domain):  # one element: it is its own reduction
            one = const(0, torch.int64) if is_position(op) else value
            one = summed(one) if op == "sum" else one
            at = dict(zip(kept, kept_strides))
            axes = memory_order(
                tuple(1 if dim in reduced else src_shape[dim] for dim in range(ndim)),
                tuple(at.get(dim, 1) for dim in range(ndim)),
            )
            self.steps.append(LoopNest(buffer, axes, idx, one, domain=axes, origins=self.origins(), lines=self.lines()))
            return ref_of_buffer(buffer)
        axes = tuple(axis for axis in domain if axis.symbol.name not in red_names)
        raxes = tuple(axis for axis in domain if axis.symbol.name in red_names)
        self.steps.append(
            LoopNest(buffer, axes, idx, value, raxes, op, domain, origins=self.origins(), lines=self.lines())
        )
        return ref_of_buffer(buffer)

    # ---- memory
    def realise(self, ref: Ref, stride: Sequence[Any] | None = None, fresh: bool = False) -> Buffer:
        """A buffer that holds the tensor: the buffer it is a view of (as a View step), or a copy where no strided view
        of a buffer gives these elements (or not with the strides asked for). fresh: all of some memory that is no graph
        input."""
        seen = strided(ref)
        if seen is not None:
            base, strides, offset = seen
            fits = stride is None or same_strides(ref.shape, strides, stride)
            if fits and not (fresh and base.kind in ("input", "constant")):
                if stride is not None:
                    strides = tuple(stride)
                if (
                    same(offset, 0)
                    and len(base.shape) == ref.ndim
                    and all(map(same, base.shape, ref.shape))
                    and same_strides(ref.shape, base.stride, strides)
                ):
                    return base
                if not fresh or (
                    same(offset, 0) and same(numel(base.shape), numel(ref.shape)) and base not in self.foreign
                ):
                    return self.view(base, ref.shape, strides, offset)
        if fresh:
            return self.copy(ref, stride)
        if stride is not None and all(type(st) is int and st > 0 for st in stride):
            order = sorted(range(ref.ndim), key=lambda d: -stride[d])  # (a matrix and its transpose are one copy)
            if [stride[dim] for dim in order] != list(stride):
                turned = remap(
                    ref,
                    tuple(ref.shape[dim] for dim in order),
                    {dim: dim_symbol(ref.ndim, k) for k, dim in enumerate(order)},
                )
                return self.view(self.realise(turned, tuple(stride[dim] for dim in order)), ref.shape, tuple(stride), 0)
        k = (ref.value, ref.shape, tuple(stride) if stride is not None else None)
        buffer = self._realised.get(k)
        if buffer is None:
            buffer = self._realised[k] = self.copy(ref, stride)
        return buffer

    def copy(self, ref: Ref, stride: Sequence[Any] | None) -> Buffer:
        """A copy in memory of its own, by a nest; by torch for dtypes that nests do not have."""
        seen = strided(ref)
        if ref.dtype not in DTYPES and any(type(size) is int and size == 0 for size in ref.shape):
            out = self._buffer(self._node_name() + "_copy", ref.shape, ref.dtype, stride)
            kwargs = {"dtype": ref.dtype, "device": torch.device(out.device)}
            self.steps.append(
                Extern(
                    torch.ops.aten.empty_strided.default,
                    (list(out.shape), list(out.stride)),
                    kwargs,
                    [out],
                    reason=f"no elements of {ref.dtype}",
                    origin=self._node_name(),
                )
            )
            return out
        beside = self.is_beside() and seen is not None
        if not beside and (ref.dtype in self.dtypes() or seen is None and not ref.dtype.is_complex):
            return self.store(ref.value, ref.shape, ref.dtype, stride, suffix="_copy").value.attr[0]
        if seen is None:
            return self.taken(ref, stride)
        base, strides, offset = seen
        out = self._buffer(self._node_name() + "_copy", ref.shape, ref.dtype, stride)
        args = (self.view(base, ref.shape, strides, offset),)
        dense = same_strides(ref.shape, out.stride, contiguous_strides(ref.shape))
        kwargs = {"memory_format": torch.contiguous_format if dense else torch.preserve_format}
        self.steps.append(
            Extern(
                torch.ops.aten.clone.default,
                args,
                kwargs,
                [out],
                reason=f"a copy of {ref.dtype}",
                origin=self._node_name(),
            )
        )
        self.foreign.add(out)
        return out

    def taken(self, ref: Ref, stride: Sequence[Any] | None) -> Buffer:
        """A copy of complex numbers that no strided view gives: a nest counts the positions, torch takes what lies
        there.
        """
        base, expr = ref.value.attr
        extent = as_expr(1)
        for size, st in zip(base.shape, base.stride):
            extent = extent + (as_expr(size) - 1) * st
        memory = self.view(base, (plain_size(extent),), (1,), 0)
        at = self.store(index(expr), ref.shape, torch.int64, stride, suffix="_at").value.attr[0]
        out = self._buffer(self._node_name() + "_copy", ref.shape, ref.dtype, stride)
        take = torch.ops.aten.take.default
        self.steps.append(
            Extern(
                take, (memory, at), {}, [out], _out_variant(take), ("out",), f"a copy of {ref.dtype}", self._node_name()
            )
        )
        return out

    def view(self, base: Buffer, shape: tuple, stride: tuple, offset: Any, bits: bool = False) -> Buffer:
        k = (id(base), shape, stride, offset, bits)
        buffer = self._views.get(k)
        if buffer is None:
            buffer = self._views[k] = self._buffer(base.name + "_view", shape, base.dtype, stride, base.device)
            buffer.bits = bits
            self._view_base[buffer] = base
            self.steps.append(View(buffer, base, offset))
        return buffer

    def new_buffer(self, shape: Sequence[Any], dtype: torch.dtype, stride: Sequence[Any] | None = None) -> Buffer:
        """A buffer named after the node, for rules that make their nests themselves."""
        return self._buffer(self._node_name(), tuple(shape), dtype, stride)

    def _buffer(
        self,
        name: str,
        shape: tuple,
        dtype: torch.dtype,
        stride: Sequence[Any] | None = None,
        device: Any = None,
        kind: str = "temp",
    ) -> Buffer:
        unique, k = name, 0
        while unique in self._names:
            k += 1
            unique = f"{name}_{k}"
        self._names.add(unique)
        stride = contiguous_strides(shape) if stride is None else tuple(stride)
        if device is None:
            device = self._device()
        return Buffer(
            unique, dtype, shape, stride, "global", device, kind, self.node.name if self.node is not None else ""
        )

    def _device(self) -> Any:
        value = self.node.meta.get("val") if self.node is not None else None
        if isinstance(value, (tuple, list)):
            value = next((item for item in value if is_tensor(item)), None)
        return getattr(value, "device", None) or torch.device("cpu")

    @property
    def on_gpu(self) -> bool:
        """Whether the node's results are."""
        return torch.device(self._device()).type == "cuda"

    def is_beside(self) -> bool:
        """Whether the node's results are on the CPU in a graph for a GPU: torch's own kernels compute them."""
        return self.on_two_devices and torch.device(self._device()).type == "cpu"

    def dtypes(self) -> frozenset[torch.dtype]:
        """What nests have for the node's device."""
        return DTYPES | FLOAT8 if self.on_gpu else DTYPES

    def _node_name(self) -> str:
        return self.node.name if self.node is not None else "out"

    def origins(self) -> tuple[str, ...]:
        return (self.node.name,) if self.node is not None else ()

    def lines(self) -> tuple:
        stack = (self.node.meta.get("stack") if self.node is not None else None) or ()
        return tuple((frame[0], frame[1]) for frame in stack[-1:])

    # ---- calls of torch's kernels
    def _results_of_call(self, name: str, vals: list, rows: bool) -> tuple[list[Buffer | None], list[Any]]:
        """(a buffer for each tensor that a library call gives, what stands for each of its results). `rows`: rows of a
        matrix begin where the library reads fastest."""
        outs: list[Buffer | None] = []
        result: list[Any] = []
        for k, val in enumerate(vals):
            if is_tensor(val):
                buffer = self._buffer(
                    name if len(vals) == 1 else f"{name}_{k}",
                    shape_of(val.shape),
                    val.dtype,
                    (rows and aligned_rows(val.dtype, val.shape, strides_of(val))) or strides_of(val),
                    val.device,
                )
                outs.append(buffer)
                result.append(ref_of_buffer(buffer))
            else:
                outs.append(None)
                result.append(val if val is None or isinstance(val, (bool, float)) else plain_size(val))
        return outs, result

    def _operand(self, arg: Any, meta: Any, call: _Call) -> Any:
        """What a library call is given for an argument. `meta`: that of the graph's own operand."""
        if isinstance(arg, Ref):
            return self._operand_in_memory(arg, meta, call)
        if isinstance(arg, Scalar):
            return Param(arg.name)
        if isinstance(arg, (list, tuple)):
            ms = meta if isinstance(meta, (list, tuple)) and len(meta) == len(arg) else [None] * len(arg)
            return type(arg)(self._operand(item, item_meta, call) for item, item_meta in zip(arg, ms))
        return arg

    def _operand_in_memory(self, ref: Ref, meta: Any, call: _Call) -> Buffer:
        """A value in the layout that the call reads right, or fastest."""
        strides = strides_of(meta) if is_tensor(meta) else None
        if call.own_memory:
            return self.realise(ref, strides, fresh=True)
        if call.mask is not None and ref is call.mask:
            return self.mask(ref, meta)
        if call.attention and rows_in_place(ref):
            return self.realise(ref)  # (and parts of a wider product)
        aligned = self.aligned(ref, meta) if call.rows else None
        return aligned or self.realise(ref, None if call.rows and matrix_in_place(ref) else strides)

    def extern(self, node: torch.fx.Node, args: tuple, kwargs: dict, reason: str) -> Any:
        """Call the operator itself on realised arguments."""
        op = node.target
        originals = _tensor_metas(node.args, node.kwargs)
        packet = op._schema.name.split("::")[-1]
        rows = packet in OUT_VARIANTS and self.on_gpu

        at = _MASKS.get(packet)
        call = _Call(
            own_memory=packet.startswith("as_strided"),
            attention=at is not None,
            mask=args[at] if at is not None and 0 <= at < len(args) else None,
            rows=rows,
        )
        cargs = tuple(self._operand(arg, meta, call) for arg, meta in zip(args, originals[0]))
        ckwargs = {name: self._operand(value, originals[1].get(name), call) for name, value in kwargs.items()}
        val = node.meta["val"]
        outs, result = self._results_of_call(node.name, list(val) if isinstance(val, (tuple, list)) else [val], rows)
        variant, names = None, ()
        if packet in OUT_VARIANTS and len(outs) == 1 and not self.is_beside():
            variant = _out_variant(op)
            names = ("out",) if variant is not None else ()
        if variant is None and packet not in FRESH:
            self.foreign.update(out for out in outs if out is not None)
        lines = [tuple(x) for x in self.lines()]
        self.steps.append(Extern(op, cargs, ckwargs, outs, variant, names, reason, node.name, lines))
        if philox.draws(op, args, kwargs) or op.namespace != "aten":
            self.forget_drawing()
        return tuple(result) if isinstance(val, (tuple, list)) else result[0]

    def forget_drawing(self) -> None:
        """The last step draws random numbers by itself: what is drawn after it is not drawn together with what was
        drawn before.
        """
        self.drawing, self.drawing_at = None, len(self.steps)

    def mask(self, ref: Ref, meta: Any) -> Buffer:
        """What attention adds to its scores. Its kernels take what is expanded as it is, but rows in one piece alone:
        what lies otherwise they read wrongly, without a word. Where this one lies is not what eager's operand would
        (views of pads are seen through).
        """
        seen = strided(ref)
        if seen is not None and rows_apart(ref.shape, seen[1], seen[2]):
            return self.realise(ref)
        strides = strides_of(meta)
        repeated = [type(st) is int and st == 0 for st in strides]
        shape = tuple(1 if same_everywhere else size for size, same_everywhere in zip(ref.shape, repeated))
        if not is_one(shape[-1]) and not same(strides[-1], 1):
            rows = contiguous_strides((*shape[:-1], maybe_int(ceildiv(as_expr(shape[-1]), 8) * 8)))
            strides = tuple(0 if same_everywhere else st for st, same_everywhere in zip(rows, repeated))
        if not any(repeated):
            return self.realise(ref, strides)
        once = remap(ref, shape, {dim: 0 for dim, same_everywhere in enumerate(repeated) if same_everywhere})
        kept = self.realise(
            once,
            tuple(
                st if not same_everywhere else packed
                for st, same_everywhere, packed in zip(strides, repeated, contiguous_strides(shape))
            ),
        )
        return self.view(kept, ref.shape, strides, 0)

    def aligned(self, ref: Ref, meta: Any) -> Buffer | None:
        """An operand of a matrix product with rows that begin at aligned addresses, where that takes no further copy;
        else None.
        """
        seen = strided(ref)
        if seen is not None and seen[0].kind != "temp" or not is_tensor(meta) or len(meta.shape) != 2:
            return None
        if strides_of(meta)[1] == 1:
            st = aligned_rows(meta.dtype, meta.shape, strides_of(meta))
            return None if st is None else self.realise(ref, st)
        turned = (meta.shape[1], meta.shape[0])
        st = aligned_rows(meta.dtype, turned, strides_of(meta)[::-1])
        if st is None:
            return None
        buffer = self.realise(remap(ref, turned, {0: dim_symbol(2, 1), 1: dim_symbol(2, 0)}), st)
        return self.view(buffer, ref.shape, st[::-1], 0)


class _Call(NamedTuple):
    """What decides in which layout a library call reads its operands."""

    own_memory: bool  # positions count from where the operand's memory begins
    attention: bool
    mask: Any  # the operand that is added to the scores of an attention
    rows: bool  # those of a matrix begin where the library reads fastest


def _tensor_metas(args: tuple, kwargs: dict) -> tuple[list, dict]:
    """The recorded metadata of each argument, in the arguments' own structure."""

    def m(a: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            return a.meta.get("val")
        if isinstance(a, (list, tuple)):
            return [m(x) for x in a]
        return None

    return [m(arg) for arg in args], {name: m(value) for name, value in kwargs.items()}


def _supported(dtype: torch.dtype, value: Value, dtypes: frozenset[torch.dtype]) -> None:
    """Nests compute in these dtypes only."""
    if dtype not in dtypes:
        raise NoRule("complex numbers" if dtype.is_complex else f"values of {dtype}")
    for part in (value, *value.args):
        if part.dtype not in dtypes:
            raise NoRule("complex numbers" if part.dtype.is_complex else f"values of {part.dtype}")


_out_variants: dict[Any, Any] = {}


def _out_variant(op: Any) -> Any:
    variant = _out_variants.get(op, op)
    if variant is op:
        variant = getattr(op.overloadpacket, "out", None)
        _out_variants[op] = variant
    return variant
