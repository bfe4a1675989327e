"""torch.nn.attention.flex_attention, written out: scores, what the program's functions make of them for all rows and keys at once, softmax, values.

Lowering finds attention in this spelling as in any other (../fusion/attention.py). A block mask says by its function which keys a row sees; the blocks
that it lists are hints, as is `kernel_options`.
"""
from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch
import torch.utils.checkpoint

from .builtin_calls import python_function
from .calls import interpret
from .world import TraceTensor

if TYPE_CHECKING:
    from .machine import Machine

__all__: list[str] = []

_MODULE = "torch.nn.attention.flex_attention"
_DIMENSIONS = ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None))


# --- interpreted
def _for_all(function: Callable, scores: bool) -> Callable:
    """A function of (score,) batch, head, row and key, for all of them."""
    for dims in _DIMENSIONS:
        function = torch.vmap(function, in_dims=(0, *dims) if scores else dims)
    return function


def _attention(query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, scale: Any, groups: int, order: tuple, back: tuple, sums: bool, most: bool) -> tuple:
    """(result, logarithms of sums, largest scores: None where not asked for). `order`, `back`: dimensions of the query by their strides, and the way back."""
    batch, heads, rows, _ = query.shape
    keys = key.shape[2]
    if groups > 1:
        key, value = (x[:, :, None].expand(x.shape[0], x.shape[1], groups, x.shape[2], x.shape[3]).reshape(x.shape[0], heads, x.shape[2], x.shape[3]) for x in (key, value))
    if key.shape[0] != batch:
        key, value = key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    score = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
    places = tuple([torch.arange(n, device=query.device) for n in (batch, heads, rows, keys)])
    if score_mod is not None:
        score = _for_all(score_mod, True)(score, *places).to(wide)
    if mask_mod is not None:
        score = torch.where(_for_all(mask_mod, False)(*places), score, -float("inf"))
    out = torch._safe_softmax(score, -1).to(query.dtype) @ value.to(query.dtype)
    if order != (0, 1, 2, 3):
        out = out.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    return out, torch.logsumexp(score, -1) if sums else None, score.amax(-1) if most else None


def _made_again(*args: Any) -> tuple:
    """The same, whose scores backward makes anew: forward is one kernel then, and keeps none."""
    return torch.utils.checkpoint.checkpoint(_attention, *args, use_reentrant=False)


def _mask(mask_mod: Callable, sizes: tuple, device: Any) -> Any:
    return _for_all(mask_mod, False)(*[torch.arange(n, device=device) for n in sizes])


# --- what is done instead of interpreting torch's functions
@contextmanager
def _by_tensors(m: Machine) -> Iterator[None]:
    """Numbers of a batch, a head, a row or a key are tensors without dimensions here, and index tensors."""
    before, m.index_by_tensors = m.index_by_tensors, True
    try:
        yield
    finally:
        m.index_by_tensors = before


@python_function((_MODULE, "flex_attention"), wants_function=True)
def flex_attention_(m: Machine, fn: Any, query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: Any = None, enable_gqa: Any = False,
                    return_lse: Any = False, kernel_options: Any = None, *, return_aux: Any = None) -> Any:
    gqa, lse = m.truth(enable_gqa), m.truth(return_lse)
    mask_mod = None if block_mask is None else m.getattr(block_mask, "mask_mod")
    if not _fits(m, query, key, value, block_mask, gqa) or lse and return_aux is not None:
        return interpret(m, fn, [query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options], {"return_aux": return_aux})      # (eager says what is wrong)
    if scale is None:
        scale = 1.0 / math.sqrt(int(query.shape[-1]))
    order = tuple(sorted(range(4), key=lambda d: -query.stride()[d]))
    back = tuple(order.index(d) for d in range(4))
    sums, most = (lse, False) if return_aux is None else (m.truth(m.getattr(return_aux, name)) for name in ("lse", "max_scores"))
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    with _by_tensors(m):
        out, *more = interpret(m, _made_again if trains else _attention,
                               [query, key, value, score_mod, mask_mod, scale, query.shape[1] // key.shape[1], order, back, sums, most], {})
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput
        return out, m.call(AuxOutput, more, {})
    return (out, more[0]) if lse else out


def _fits(m: Machine, query: Any, key: Any, value: Any, block_mask: Any, gqa: bool) -> bool:
    """Whether eager takes these operands."""
    if not all(type(x) is TraceTensor and x.dim() == 4 and x.device == query.device for x in (query, key, value)) or not query.dtype == key.dtype == value.dtype:
        return False
    heads, few = query.shape[1], key.shape[1]
    if key.shape[1:3] != value.shape[1:3] or key.shape[0] != value.shape[0] or query.shape[3] != key.shape[3] or heads % few or heads != few and not gqa:
        return False
    if block_mask is None:
        return bool(key.shape[0] == query.shape[0])
    blocks = m.getattr(block_mask, "kv_num_blocks")
    if blocks.device != query.device or key.shape[0] != query.shape[0] and not key.shape[0] == 1 <= blocks.shape[0] == query.shape[0]:
        return False
    return tuple(m.plain(n) for n in m.iterate(m.getattr(block_mask, "seq_lengths"))) == (query.shape[2], key.shape[2])


@python_function((_MODULE, "create_mask"), wants_function=True)
def create_mask_(m: Machine, fn: Any, mod_fn: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any, device: Any = None) -> Any:
    code = getattr(mod_fn, "__code__", None)
    if code is None or code.co_argcount != 4 or device is None:
        return interpret(m, fn, [mod_fn, B, H, Q_LEN, KV_LEN, device], {})
    with _by_tensors(m):
        return interpret(m, _mask, [mod_fn, (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN), device], {})
