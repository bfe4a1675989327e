"""Random numbers made inside of the kernel that uses them.

On a GPU they are those that eager draws (`Drawn`): an element's word is a function of the generator's state and of the
element's place in torch's kernel (ops/philox.py). With option `fallback_random=False` they are our own (`_Stream`),
from the element's position and a seed that torch's generator gives once per operator and call: torch.manual_seed
repeats them. Everything else is torch's kernels' to draw.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from ...base.fx_nodes import is_call, is_constant, is_input
from ...ops import philox
from ...symbolic.expr import as_expr
from ..ir import Value, cast, const, index, load, prim
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..lowered import Extern, View
from ..promote import compute_dtype, operand, rounded
from ..ref import Ref, contiguous_strides, divides, flat_index, numel

I64 = torch.int64


def _signed(x: int) -> Value:
    return const(x - (1 << 64) if x >= 1 << 63 else x, I64)


def _shifted(value: Value, n: int) -> Value:
    """z >> n without the sign."""
    return prim("bitwise_and", prim("bitwise_right_shift", value, const(n, I64)), const((1 << (64 - n)) - 1, I64))


def _mixed(z: Value) -> Value:
    """splitmix64's finaliser: every bit of the result depends on every bit of z."""
    z = prim("mul", prim("bitwise_xor", z, _shifted(z, 30)), _signed(0xBF58476D1CE4E5B9))
    z = prim("mul", prim("bitwise_xor", z, _shifted(z, 27)), _signed(0x94D049BB133111EB))
    return prim("bitwise_xor", z, _shifted(z, 31))


class _Stream:
    """The random bits of one operator's result, over j symbols of its shape."""

    def __init__(self, lo: Lowering, shape: tuple, generator: Any = None):
        if lo.opts.get("fallback_random", True) or generator is not None:
            raise NoRule("random numbers")
        seed = lo._buffer(lo._node_name() + "_seed", (1,), I64)
        draw = {"dtype": I64, "device": torch.device(lo._device())}
        lo.steps.append(
            Extern(
                torch.ops.aten.randint.low,
                (0, (1 << 63) - 1, [1]),
                draw,
                [seed],
                reason="seed of random numbers",
                origin=lo._node_name(),
            )
        )
        lo.foreign.add(seed)
        at = index(flat_index(shape, contiguous_strides(shape)))
        self.bits = _mixed(
            prim("add", load(seed, flat_index((1,), (1,))), prim("mul", at, _signed(0x9E3779B97F4A7C15)))
        )

    def uniform(self, dtype: torch.dtype, again: int = 0, result: torch.dtype | None = None) -> Value:
        """In [0, 1): as many bits as `result` (`dtype` itself) holds, so that rounding never makes it 1. `again`:
        another number for the same element."""
        z = self.bits if not again else _mixed(prim("add", self.bits, _signed(0x9E3779B97F4A7C15 * again % (1 << 64))))
        n = {torch.float64: 53, torch.bfloat16: 8, torch.float16: 11}.get(result or dtype, 24)
        return prim("mul", cast(_shifted(z, 64 - n), dtype), const(2.0**-n, dtype))

    def normal(self, dtype: torch.dtype) -> Value:
        """Box and Muller's."""
        radius = prim(
            "sqrt", prim("mul", const(-2.0, dtype), prim("log", prim("sub", const(1.0, dtype), self.uniform(dtype))))
        )
        return prim("mul", radius, prim("cos", prim("mul", const(2 * math.pi, dtype), self.uniform(dtype, 1))))


def _float(lo: Lowering) -> torch.dtype:
    dtype = lo.meta().dtype
    if not dtype.is_floating_point:
        raise NoRule("random numbers")
    return compute_dtype(dtype)


@rule("aten.rand.default", "aten.rand_like.default")
def rand(lo: Lowering, node: Any, *args: Any, **kw: Any) -> Ref:
    return lo.rounded(_Stream(lo, lo.out_shape()).uniform(_float(lo), result=lo.meta().dtype))


@rule("aten.randn.default", "aten.randn_like.default")
def randn(lo: Lowering, node: Any, *args: Any, **kw: Any) -> Ref:
    return lo.rounded(_Stream(lo, lo.out_shape()).normal(_float(lo)))


@rule("aten.uniform.default")
def uniform(lo: Lowering, node: Any, x: Ref, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None) -> Ref:
    d = _float(lo)
    u = _Stream(lo, lo.out_shape(), generator).uniform(d, result=lo.meta().dtype)
    return lo.rounded(prim("add", prim("mul", u, prim("sub", operand(high, d), operand(low, d))), operand(low, d)))


@rule("aten.normal_functional.default")
def normal(lo: Lowering, node: Any, x: Ref, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Ref:
    d = _float(lo)
    return lo.rounded(
        prim("add", prim("mul", _Stream(lo, lo.out_shape(), generator).normal(d), operand(std, d)), operand(mean, d))
    )


@rule("aten.exponential.default")
def exponential(lo: Lowering, node: Any, x: Ref, rate: Any = 1.0, *, generator: Any = None) -> Ref:
    d = _float(lo)
    u = _Stream(lo, lo.out_shape(), generator).uniform(d)
    return lo.rounded(prim("div", prim("neg", prim("log", prim("sub", const(1.0, d), u))), operand(rate, d)))


@rule("aten.bernoulli.p")
def bernoulli_p(lo: Lowering, node: Any, x: Ref, p: Any = 0.5, *, generator: Any = None) -> Ref:
    u = _Stream(lo, lo.out_shape(), generator).uniform(torch.float32)
    return lo.pointwise(cast(prim("lt", u, operand(p, torch.float32)), lo.meta().dtype))


@rule("aten.bernoulli.default")
def bernoulli(lo: Lowering, node: Any, p: Ref, *, generator: Any = None) -> Ref:
    d = _float(lo)
    u = _Stream(lo, lo.out_shape(), generator).uniform(d)
    return lo.pointwise(cast(prim("lt", u, operand(p, d)), lo.meta().dtype))


@rule("aten.native_dropout.default")
def native_dropout(lo: Lowering, node: Any, x: Ref, p: Any, train: bool | None) -> tuple[Ref, Ref]:
    # (eager's draws where nothing is left out, too)
    if train is False or p == 0 and not lo.opts.get("fallback_random", True):
        return lo.pointwise(x.value, 0), lo.pointwise(const(True, torch.bool), 1)
    if not isinstance(p, float) or not x.dtype.is_floating_point:
        raise NoRule("random numbers")
    d = compute_dtype(x.dtype)
    stream = _Stream(lo, lo.out_shape(k=0))
    keep = prim("ge", stream.uniform(torch.float32), const(p, torch.float32))
    mask = lo.pointwise(keep, 1)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    kept = prim("mul", prim("mul", operand(x, d), cast(mask.value, d)), const(scale, d))
    return lo.pointwise(rounded(kept, x.dtype), 0), mask


# ---- eager's numbers
_LEFT_OUT = "random numbers: "
# elements: without vectors each takes a word of four; beyond, that takes longer than a kernel of torch's
SMALL = 1 << 20


class Drawn:
    """The words of one operator's result as torch's kernel draws them, over j symbols of its shape."""

    def __init__(self, lo: Lowering, meta: Any, vector: int = 1, in_order: bool = False, laid: Any = None):
        """`vector`: neighbours that a thread takes at a time; `in_order`: elements are counted by their index, not as
        they lie in memory; `laid`: a graph input that has to be aligned."""
        shape, stride = tuple(meta.shape), tuple(meta.stride)
        n, device = numel(shape), torch.device(lo._device())
        hint = as_expr(n).eval(
            {**dict.fromkeys(as_expr(n).symbol_names(), SMALL), **(getattr(lo.aten.env, "hints", None) or {})}
        )
        if vector < 4 and hint > SMALL:
            raise NoRule(_LEFT_OUT + "too many for one word of four each")
        if not in_order and not _dense(shape, stride):
            raise NoRule(_LEFT_OUT + "elements that lie apart")
        at = index(flat_index(shape, contiguous_strides(shape) if in_order else stride))
        state = drawn_state(lo, philox.increment(n, device.index or 0), laid)
        self.word = prim(
            "philox",
            load(state, as_expr(0)),
            load(state, as_expr(1)),
            at,
            index(as_expr(philox.threads(n, device.index or 0))),
            const(vector, I64),
        )

    def below(self, p: float) -> Value:
        """Whether the uniform number is below p."""
        return prim("lt", self.word, const(philox.threshold(p), I64))

    def uniform(self) -> Value:
        """In (0, 1], float32."""
        f32 = torch.float32
        return prim("add", prim("mul", cast(self.word, f32), const(2.0**-32, f32)), const(2.0**-33, f32))


def drawn_state(lo: Lowering, increment: Any, laid: Any = None) -> Any:
    """Where seed and counter of a draw will lie, which advances the generator so far. One step draws for all operators
    until one of torch's draws.
    """
    if lo.drawing is None:
        memory = lo._buffer(f"{lo._node_name()}_state", (0,), I64)
        lo.foreign.add(memory)
        lo.drawing = Extern(
            philox.STATE,
            ([], []),
            {"device": lo._device()},
            [memory],
            reason="seeds of random numbers",
            origin=lo._node_name(),
        )
        lo.steps.insert(lo.drawing_at, lo.drawing)
    (inputs, increments), memory = lo.drawing.args, lo.drawing.outputs[0]
    increments.append(as_expr(increment))
    if laid is not None and laid not in inputs:
        inputs.append(laid)
    memory.shape = (2 * len(increments),)
    state = lo._buffer(f"{memory.name}_{len(increments)}", (2,), I64)
    lo.steps.insert(lo.drawing_at + len(increments), View(state, memory, 2 * len(increments) - 2))
    return state


def drawing_device(lo: Lowering) -> int:
    """The index of the device whose generator's state kernels of this graph can take."""
    device = torch.device(lo._device())
    if device.type != "cuda" or torch.version.hip is not None:
        raise NoRule(_LEFT_OUT + "torch's to draw")
    if lo.opts.get("cudagraphs") and not philox.draws_in_graphs(device.index or 0):
        raise NoRule(_LEFT_OUT + "a CUDA graph, in which only this torch's own kernels can draw")
    return device.index or 0


def _dense(shape: tuple, stride: tuple) -> bool:
    """Whether the elements lie side by side, in whatever order."""
    n: Any = 1
    for size, st in sorted(
        ((size, st) for size, st in zip(shape, stride) if not (type(size) is int and size == 1)),
        key=lambda x: _hinted(x[1]),
    ):
        if as_expr(st) is not as_expr(n):
            return False
        n = as_expr(n) * size
    return True


def _hinted(e: Any) -> int:
    return e if type(e) is int else int(e.eval(dict.fromkeys(e.symbol_names(), 8191)))


def _base(node: Any) -> Any:
    """The node that made the memory that `node` is, or is a view of."""

    def is_view(op: Any) -> bool:
        return isinstance(op, torch._ops.OpOverload) and any(
            arg.alias_info is not None for arg in op._schema.arguments[:1]
        )

    while is_call(node) and (is_view(node.target) or node.target is operator.getitem and is_view(node.args[0].target)):
        node = node.args[0]
    return node


def _begins(lo: Lowering, node: Any) -> tuple[Any, Any]:
    """(elements from an aligned address to where `node` begins, the graph input whose address that is: None where it is
    memory of its own).
    """
    base, offset = _base(node), as_expr(node.meta["val"].storage_offset)
    if is_constant(base):
        raise NoRule(_LEFT_OUT + "a constant")
    if not is_input(base):
        return offset, None
    own = as_expr(base.meta["val"].storage_offset)
    if divides(as_expr(philox.ALIGNMENT), own * base.meta["val"].dtype.itemsize) is None:
        raise NoRule(_LEFT_OUT + "an input at an odd address")
    return offset - own, lo.refs[base].value.attr[0]


def _on_gpu(lo: Lowering, n: Any, generator: Any = None) -> int:
    """The index of the device on which eager's numbers are made in kernels."""
    if not lo.opts.get("fallback_random", True) or generator is not None or n == 0:
        raise NoRule(_LEFT_OUT + "torch's to draw")
    return drawing_device(lo)


@rule("aten.native_dropout.default")
def eager_dropout(lo: Lowering, node: Any, x: Ref, p: Any, train: bool | None) -> tuple[Ref, Ref]:
    n = numel(x.shape)
    device = _on_gpu(lo, n)
    if (
        train is False
        or not isinstance(p, float)
        or not 0 < p < 1
        or x.dtype not in (torch.float32, torch.bfloat16, torch.float16)
    ):
        raise NoRule(_LEFT_OUT + f"dropout of {x.dtype} with p = {p}")
    meta = node.args[0].meta["val"]
    vector = philox.neighbours(x.dtype, device)
    if not vector:
        raise NoRule(_LEFT_OUT + "this torch draws in another way")
    dense = _dense(tuple(meta.shape), tuple(meta.stride))
    begin, laid = _begins(lo, node.args[0])
    whole = vector
    while vector > 1 and (not dense or any(divides(as_expr(vector), e) is None for e in (as_expr(n), begin))):
        vector //= 2
    if vector < whole and dense and not as_expr(n).is_const:
        raise NoRule(_LEFT_OUT + "a number of elements that decides how torch draws")
    kept = Drawn(lo, meta if dense else lo.meta(k=0), vector, in_order=vector == 1, laid=laid)
    p1 = torch.tensor(1 - p, dtype=torch.float32).item()
    mask = lo.pointwise(kept.below(p1), 1)
    d = compute_dtype(x.dtype)
    factor = prim("where", mask.value, const(1 / p1, d), const(0.0, d))  # (x * 1 * scale or x * 0 * scale, in one)
    return lo.pointwise(rounded(prim("mul", operand(x, d), factor), x.dtype), 0), mask


def _plain(lo: Lowering, generator: Any = None) -> Drawn:
    meta = lo.meta()
    device = _on_gpu(lo, numel(meta.shape), generator)
    if meta.dtype not in (torch.float32, torch.bfloat16, torch.float16) or not philox.plain(device):
        raise NoRule(_LEFT_OUT + f"{meta.dtype} on this torch")
    return Drawn(lo, meta)


@rule("aten.bernoulli.p")
def eager_bernoulli(lo: Lowering, node: Any, x: Ref, p: Any = 0.5, *, generator: Any = None) -> Ref:
    if not isinstance(p, (int, float)):
        raise NoRule(_LEFT_OUT + "a probability that varies")
    return lo.pointwise(cast(_plain(lo, generator).below(float(p)), lo.meta().dtype))


def _between(lo: Lowering, low: float, high: float, generator: Any = None) -> Ref:
    dtype, f32 = lo.meta().dtype, torch.float32
    u = _plain(lo, generator).uniform()
    begin, end = (torch.tensor(x, dtype=torch.float64).to(dtype) for x in (low, high))
    first, last = begin.item(), end.item()
    # (both rounded as they stand, not left out between operators: a number that is the upper bound then is the lower
    # one)
    x = cast(cast(prim("fma", u, const((end - begin).item(), f32), const(first, f32)), dtype), f32)
    return lo.pointwise(cast(prim("where", prim("eq", x, const(last, f32)), const(first, f32), x), dtype))


@rule("aten.rand.default", "aten.rand_like.default")
def eager_rand(lo: Lowering, node: Any, *args: Any, **kw: Any) -> Ref:
    return _between(lo, 0.0, 1.0)


@rule("aten.uniform.default")
def eager_uniform(lo: Lowering, node: Any, x: Ref, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None) -> Ref:
    if not all(isinstance(v, (int, float)) for v in (low, high)):
        raise NoRule(_LEFT_OUT + "bounds that vary")
    return _between(lo, float(low), float(high), generator)
