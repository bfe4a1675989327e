"""torch.nn.attention.flex_attention, written out: scores, what the program's functions make of them for all rows and
keys at once, softmax, values.

Fusion finds attention in this spelling as in any other (fusion/tiled/match_attention.py). Training keeps no scores:
`_Attention.backward` is written out, too. A block mask says by its function which keys a row sees; the blocks that it
lists are hints, as is `kernel_options`.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch

from ...graph.higher_order import Template, TransformCall
from ...graph.meta.core import TensorMeta
from ...graph.tensor import from_meta, TraceTensor
from .bodies import Purity, capture_body, grad_mode, record_call, stand_in
from ..kinds.callables import python_function
from ..kinds.parameters import interpret

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []

_MODULE = "torch.nn.attention.flex_attention"
_DIMENSIONS = ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None))


# --- interpreted
def _for_all(function: Callable, scores: bool) -> Callable:
    """A function of (score,) batch, head, row and key, for all of them."""
    for dims in _DIMENSIONS:
        function = torch.vmap(function, in_dims=(0, *dims) if scores else dims)
    return function


def _scores(query: Any, key: Any, scale: Any) -> Any:
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.to(wide) @ key.to(wide).transpose(-2, -1) * scale


def _places(score: Any) -> tuple:
    """The numbers of all batches, heads, rows and keys."""
    return tuple([torch.arange(size, device=score.device) for size in score.shape])


def _modified(score_mod: Any, score: Any) -> Any:
    return _for_all(score_mod, True)(score, *_places(score)).to(score.dtype)


def _seen(mask_mod: Any, score: Any) -> Any:
    return _for_all(mask_mod, False)(*_places(score))


def _for_each_head(x: Any, batch: Any, groups: int) -> Any:
    """Keys or values as many times as queries' heads share them, and for each batch."""
    if groups > 1:
        x = (
            x[:, :, None]
            .expand(x.shape[0], x.shape[1], groups, x.shape[2], x.shape[3])
            .reshape(x.shape[0], x.shape[1] * groups, x.shape[2], x.shape[3])
        )
    return x if x.shape[0] == batch else x.expand(batch, -1, -1, -1)


def _laid_out(x: Any, order: tuple) -> Any:
    """The same with dimensions `order` from the slowest to the fastest."""
    if order == (0, 1, 2, 3):
        return x
    return x.permute(order).clone(memory_format=torch.contiguous_format).permute([order.index(dim) for dim in range(4)])


def _attention(
    query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, scale: Any, groups: int, orders: tuple, most: bool
) -> tuple:
    """(result, logarithms of sums, largest scores: None where not asked for). `orders`: how query, key and value are
    laid out.
    """
    key, value = _for_each_head(key, query.shape[0], groups), _for_each_head(value, query.shape[0], groups)
    score = _scores(query, key, scale)
    if score_mod is not None:
        score = _modified(score_mod, score)
    if mask_mod is not None:
        score = torch.where(_seen(mask_mod, score), score, -float("inf"))
    out = torch._safe_softmax(score, -1).to(query.dtype) @ value.to(query.dtype)
    return _laid_out(out, orders[0]), torch.logsumexp(score, -1), score.amax(-1) if most else None


def _pullback(score_mod: Any, score: Any, learned: tuple, gradient: Any) -> tuple:
    """Gradients of the scores and of what else `score_mod` reads, from that of its results. (Done by `_pullback_`: no
    transform of torch.func differentiates by what a function closes over.)"""
    raise NotImplementedError


class _Attention(torch.autograd.Function):
    """Attention that keeps no scores: backward makes them again, with the rows' sums that forward kept. As eager's own
    backward in its steps and their rounding.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Any,
        key: Any,
        value: Any,
        score_mod: Any,
        mask_mod: Any,
        scale: Any,
        groups: int,
        orders: tuple,
        most: bool,
        *learned: Any,
    ) -> tuple:
        out, sums, top = _attention(query, key, value, score_mod, mask_mod, scale, groups, orders, most)
        out = out.clone()  # (no view: what the program gets is what is kept)
        ctx.save_for_backward(query, key, value, out, sums, *learned)
        ctx.of = (score_mod, mask_mod, scale, groups, orders)
        if most:
            ctx.mark_non_differentiable(top)
            return out, sums, top
        return out, sums

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_sums: Any, *_: Any) -> tuple:
        query, key, value, out, sums, *learned = ctx.saved_tensors
        score_mod, mask_mod, scale, groups, orders = ctx.of
        batch, shared = query.shape[0], key.shape[0]
        key, value = _for_each_head(key, batch, groups), _for_each_head(value, batch, groups)
        score = _scores(query, key, scale)
        wide = score.dtype
        y = score if score_mod is None else _modified(score_mod, score)
        seen = None if mask_mod is None else _seen(mask_mod, score)
        if seen is not None:
            y = torch.where(seen, y, -float("inf"))
        p = torch.exp(y - torch.where(sums == -float("inf"), 0.0, sums)[..., None])  # (of a row that sees nothing: 0)
        grad_value = p.to(query.dtype).transpose(-2, -1) @ grad_out
        from_values = grad_out.to(wide) @ value.to(wide).transpose(-2, -1)
        less = (grad_out.to(wide) * out.to(wide)).sum(-1) - grad_sums
        gradient = p * (from_values - less[..., None])
        more = ()
        if score_mod is not None:
            gradient, *more = _pullback(score_mod, score, tuple(learned), gradient)
        gradient = gradient * scale
        if seen is not None:
            gradient = torch.where(seen, gradient, 0.0)
        gradient = gradient.to(query.dtype)
        grad_query, grad_key = gradient @ key, gradient.transpose(-2, -1) @ query
        if groups > 1:
            grad_key, grad_value = (
                grad_key.unflatten(1, (-1, groups)).sum(2),
                grad_value.unflatten(1, (-1, groups)).sum(2),
            )
        if shared != batch:
            grad_key, grad_value = grad_key.sum(0, keepdim=True), grad_value.sum(0, keepdim=True)
        return (
            *[_laid_out(x, order) for x, order in zip((grad_query, grad_key, grad_value), orders)],
            None,
            None,
            None,
            None,
            None,
            None,
            *more,
        )


def _apply(*args: Any) -> Any:
    return _Attention.apply(*args)


def _as_autocast(dtype: Any, *operands: Any) -> tuple:
    return tuple([operand if operand.dtype == torch.float64 else operand.to(dtype) for operand in operands])


def _outside_autocast(device: str, function: Any, args: tuple) -> Any:
    with torch.autocast(device, enabled=False):
        return function(*args)


def _mask(mask_mod: Callable, sizes: tuple, device: Any) -> Any:
    return _for_all(mask_mod, False)(*[torch.arange(size, device=device) for size in sizes])


# --- what is done instead of interpreting torch's functions
@contextmanager
def _by_tensors(machine: Machine) -> Iterator[None]:
    """Numbers of a batch, a head, a row or a key are tensors without dimensions here, and index tensors."""
    before, machine.index_by_tensors = machine.index_by_tensors, True
    try:
        yield
    finally:
        machine.index_by_tensors = before


@python_function((_MODULE, "flex_attention"), wants_function=True)
def flex_attention_(
    machine: Machine,
    fn: Any,
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: Any = None,
    enable_gqa: Any = False,
    return_lse: Any = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    gqa, lse = machine.truth(enable_gqa), machine.truth(return_lse)
    under_autocast = (
        isinstance(query, torch.Tensor)
        and query.device.type in ("cpu", "cuda")
        and torch._C.is_autocast_enabled(query.device.type)
    )
    if under_autocast and torch._C.DispatchKey.AutocastCUDA in torch.ops.higher_order.flex_attention.py_kernels:
        # (not in older torches)
        query, key, value = interpret(
            machine, _as_autocast, [torch.get_autocast_dtype(query.device.type), query, key, value], {}
        )
    mask_mod = None if block_mask is None else machine.getattr(block_mask, "mask_mod")
    if not _fits(machine, query, key, value, block_mask, gqa) or lse and return_aux is not None:
        # (eager says what is wrong)
        return interpret(
            machine,
            fn,
            [query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options],
            {"return_aux": return_aux},
        )
    inner, _ = int(query.shape[-1]), int(value.shape[-1])  # (fixed, as eager has them)
    if scale is None:
        scale = 1.0 / math.sqrt(inner)
    orders = tuple(tuple(sorted(range(4), key=lambda d: -x.stride()[d])) for x in (query, key, value))
    sums, most = (
        (lse, False)
        if return_aux is None
        else (machine.truth(machine.getattr(return_aux, name)) for name in ("lse", "max_scores"))
    )
    args = [query, key, value, score_mod, mask_mod, scale, query.shape[1] // key.shape[1], orders]
    with _by_tensors(machine):
        learned = _learned(machine, score_mod, query) if torch._C.is_grad_enabled() and score_mod is not None else []
        if torch._C.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, *learned)):
            function, args = _apply, [*args, most, *learned]
        else:
            function, args = _attention, [*args, most]
        out, *more = (
            interpret(machine, function, args, {})
            if not under_autocast
            else interpret(machine, _outside_autocast, [query.device.type, function, tuple(args)], {})
        )
    more = [more[0] if sums else None, more[1] if most else None]
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return out, machine.call(AuxOutput, more, {})
    return (out, more[0]) if lse else out


def _learned(machine: Machine, score_mod: Any, query: TraceTensor) -> list[TraceTensor]:
    """What the function of scores reads of its surroundings that needs a gradient."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    numbers = [from_meta(TensorMeta((), (), dtype, query.device), machine.env) for dtype in (wide, *[torch.int64] * 4)]
    pure = Purity(machine, "a function of scores", score_mod)
    with grad_mode(False):
        body = capture_body(machine, "score_mod", numbers, lambda: machine.call(score_mod, list(numbers)))
    pure.check()
    return [
        tensor
        for node in body.lifted
        if isinstance(tensor := node.meta.get("val"), TraceTensor) and tensor.requires_grad
    ]


@python_function((__name__, "_pullback"))
def _pullback_(machine: Machine, score_mod: Any, score: TraceTensor, learned: Any, gradient: TraceTensor) -> Any:
    by = [stand_in(machine, score, requires_grad=True), *machine.iterate(learned)]
    arguments, tensors = Template.of(((tuple([score, *by[1:]]), gradient), {}))
    with grad_mode(True):
        body = capture_body(machine, "score_mod", by, lambda: interpret(machine, _modified, [score_mod, by[0]], {}))
    call = TransformCall(
        "vjp", body.graph, _values_of_vjp, arguments, Template.of(body.result)[0], Template.of((tuple(by), {}))[0]
    )
    return record_call(machine, call, tensors, body.lifted)


def _values_of_vjp(function: Callable) -> Callable:
    def run(primals: tuple, gradient: Any) -> tuple:
        return torch.func.vjp(function, *primals)[1](gradient)

    return run


def _fits(machine: Machine, query: Any, key: Any, value: Any, block_mask: Any, gqa: bool) -> bool:
    """Whether eager takes these operands."""
    if (
        not all(type(x) is TraceTensor and x.dim() == 4 and x.device == query.device for x in (query, key, value))
        or not query.dtype == key.dtype == value.dtype
    ):
        return False
    heads, few = query.shape[1], key.shape[1]
    if (
        key.shape[1:3] != value.shape[1:3]
        or key.shape[0] != value.shape[0]
        or query.shape[3] != key.shape[3]
        or heads % few
        or heads != few
        and not gqa
    ):
        return False
    if block_mask is None:
        return bool(key.shape[0] == query.shape[0])
    blocks = machine.getattr(block_mask, "kv_num_blocks")
    if (
        blocks.device != query.device
        or key.shape[0] != query.shape[0]
        and not key.shape[0] == 1 <= blocks.shape[0] == query.shape[0]
    ):
        return False
    return tuple(machine.plain(n) for n in machine.iterate(machine.getattr(block_mask, "seq_lengths"))) == (
        query.shape[2],
        key.shape[2],
    )


@python_function((_MODULE, "create_mask"), wants_function=True)
def create_mask_(
    machine: Machine, fn: Any, mod_fn: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any, device: Any = None
) -> Any:
    code = getattr(mod_fn, "__code__", None)
    if code is None or code.co_argcount != 4 or device is None:
        return interpret(machine, fn, [mod_fn, B, H, Q_LEN, KV_LEN, device], {})
    with _by_tensors(machine):
        return interpret(
            machine, _mask, [mod_fn, (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN), device], {}
        )
