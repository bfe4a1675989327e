"""What replay compiles as contractions in tiles: attention, its gradients, chains of products. (A file of its own, since
kernels' text names lines.)"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.nn import functional as F

from .programs import Program

__all__ = ["tiled", "training_on_gpu"]


def tiled() -> dict[str, Callable[[], Program]]:
    def biased_attention_in_windows() -> Program:
        def f(q: Any, k: Any, v: Any, table: Any) -> Any:
            at = torch.arange(q.shape[-2])
            scores = torch.tanh(q @ k.mT / 5) * 5 + table[(at[:, None] - at[None, :]).clamp(0, 15)]
            near = (at[:, None] - at[None, :]).abs() < 20
            return torch.softmax(torch.where(near, scores, -float("inf")), -1) @ v

        return f, (*(torch.randn(2, 3, 64, 32).half() for _ in range(3)), torch.randn(16).half()), False

    def attention_gradients_f16() -> Program:
        def f(q: Any, k: Any, v: Any, g: Any, log: Any, delta: Any) -> Any:
            p = torch.exp((q.float() @ k.float().mT) * 0.2 - log[..., None])
            ds = (p * (g.float() @ v.float().mT - delta[..., None]) * 0.2).to(q.dtype)
            return ds @ k, ds.mT @ q, p.to(v.dtype).mT @ g

        return (
            f,
            (*(torch.randn(2, 3, 64, 32).half() for _ in range(4)), torch.randn(2, 3, 64), torch.randn(2, 3, 64)),
            False,
        )

    def dropout_by_bits() -> Program:
        from tcompile.compiler.ops.dropout_attention import ATTENTION, BACKWARD, words

        def f(q: Any, k: Any, v: Any, g: Any, bits: Any) -> Any:
            out, log = ATTENTION(q, k, v, bits, 0.75, True, 0.2)
            return out, *BACKWARD(g, q, k, v, out, log, bits, 0.75, True, 0.2)

        bits = torch.randint(-(2**31), 2**31, (2, words(2, 2, 77, 77)), dtype=torch.int32)
        return f, (*(torch.randn(2, 2, 77, 32).half() for _ in range(4)), bits[0] | bits[1]), False

    made = (biased_attention_in_windows, attention_gradients_f16, dropout_by_bits)
    return {f.__name__: f for f in made}


def training_on_gpu() -> dict[str, Callable[[], Program]]:
    """Programs whose joint graphs are a GPU's before they are parted: its passes see both directions."""

    def attention(dropout: float) -> Program:
        def f(q: Any, k: Any, v: Any) -> Any:
            scores = (q @ k.mT * 0.2).masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), -float("inf"))
            return F.dropout(torch.softmax(scores, -1), dropout) @ v

        return f, tuple(torch.randn(2, 3, 64, 32).half().requires_grad_() for _ in range(3)), True

    def chains() -> Program:
        shapes = ((40, 32), (32, 64), (32, 64), (64, 32))
        given = tuple(torch.randn(*s).bfloat16().requires_grad_() for s in shapes)
        return (lambda x, w, v, u: (F.silu(x @ w) * (x @ v)) @ u), given, True

    return {
        "training on a gpu: attention": lambda: attention(0.0),
        "training on a gpu: attention with dropout": lambda: attention(0.1),
        "training on a gpu: chains": chains,
    }
