"""Attention with dropout of our own, forward and backward: the library's loses half of its time on making random
numbers, twice.

`words` are keep bits (keep_bits.py), drawn before and read by both passes. The bit of key n lies in word n // 32 of a
row. Once the word is shifted by n % 8, the bit is at the upper end of byte n // 8 % 4: one instruction makes the byte's
sign the mask of a number. Words of rows are neighbours: (batch * heads, words of a row, rows). The operators' own
implementations are their definition, in float32."""

from __future__ import annotations

from typing import Any

import torch

from ..symbolic.expr import as_expr, ceildiv, maybe_int

__all__ = ["ATTENTION", "BACKWARD", "keep_mask", "words"]

_ours = torch.library.Library("tcompile", "FRAGMENT")
_ours.define(
    "dropout_attention(Tensor q, Tensor k, Tensor v, Tensor words, float keep, bool is_causal, float scale) -> (Tensor,"
    " Tensor)"
)
_ours.define(
    "dropout_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor logarithm, Tensor words,"
    " float keep, bool is_causal, float scale) -> (Tensor, Tensor, Tensor)"
)


def words(batch: Any, heads: Any, rows: Any, keys: Any) -> Any:
    """How many words hold the bits of all scores."""
    return maybe_int(as_expr(batch) * heads * ceildiv(as_expr(keys), 32) * rows)


def keep_mask(words: torch.Tensor, batch: int, heads: int, rows: int, keys: int) -> torch.Tensor:
    """(batch, heads, rows, keys): what is kept."""
    n = torch.arange(32, dtype=torch.int32, device=words.device)
    bits = words.view(batch, heads, -1, 1, rows) >> (8 * (n // 8) + 7 - n % 8).view(1, 1, 1, 32, 1) & 1
    return bits.flatten(2, 3)[:, :, :keys].transpose(2, 3).bool()


def _scores(q: torch.Tensor, k: torch.Tensor, is_causal: bool, scale: float) -> torch.Tensor:
    s = q.float() @ k.float().mT * scale
    return (
        s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -torch.inf)
        if is_causal
        else s
    )


def _like(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`x` in the dtype of `like`, its dimensions in the order in which those of `like` lie in memory."""
    strides = like.stride()
    order = sorted(range(4), key=lambda d: -strides[d])
    return x.to(like.dtype).permute(order).contiguous().permute(sorted(range(4), key=order.__getitem__))


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, words: torch.Tensor, keep: float, is_causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = _scores(q, k, is_causal, scale)
    p = torch.softmax(scores, -1) * keep_mask(words, *scores.shape) / keep
    return _like(p @ v.float(), q), torch.logsumexp(scores, -1) / torch.log(torch.tensor(2.0))


def _backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    logarithm: torch.Tensor,
    words: torch.Tensor,
    keep: float,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores = _scores(q, k, is_causal, scale)
    mask, g = keep_mask(words, *scores.shape) / keep, grad.float()
    p = torch.softmax(scores, -1)
    ds = p * (g @ v.float().mT * mask - (g * out.float()).sum(-1, keepdim=True)) * scale
    return _like(ds @ k.float(), q), _like(ds.mT @ q.float(), k), _like((p * mask).mT @ g, v)


_ours.impl("dropout_attention", _forward, "CompositeExplicitAutograd")
_ours.impl("dropout_attention_backward", _backward, "CompositeExplicitAutograd")
ATTENTION = torch.ops.tcompile.dropout_attention.default
BACKWARD = torch.ops.tcompile.dropout_attention_backward.default
