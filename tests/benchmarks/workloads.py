"""Small workloads that the budgets name: name -> function giving (callable, inputs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["WORKLOADS"]

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def sincos_1k() -> Made:
    return (lambda x, y: torch.sin(x) + torch.cos(y)), (torch.randn(1000), torch.randn(1000))


def pointwise_1m() -> Made:
    return (lambda a, b, c, d: torch.relu((a + b) * c - d) * 2 + 1), tuple(torch.randn(1 << 20) for _ in range(4))


def softmax() -> Made:
    return (lambda x: torch.softmax(x, dim=-1)), (torch.randn(2048, 2048),)


def layernorm_gelu() -> Made:
    norm = nn.LayerNorm(2048).eval()
    return (lambda x: F.gelu(norm(x))), (torch.randn(1024, 2048),)


def rmsnorm_bf16() -> Made:
    weight = torch.randn(2048, dtype=torch.bfloat16)

    def rmsnorm(x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight

    return rmsnorm, (torch.randn(1024, 2048, dtype=torch.bfloat16),)


def thousand_additions() -> Made:
    def add(x: torch.Tensor) -> torch.Tensor:
        for _ in range(1000):
            x = x + 1
        return x

    return add, (torch.randn(1000),)


def mlp_128() -> Made:
    widths = (1024, 1024, 1024)
    layers = [m for i, o in zip(widths, widths[1:]) for m in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(1024, 10)).eval(), (torch.randn(128, 1024),)


WORKLOADS: dict[str, Callable[[], Made]] = {
    f.__name__: f for f in (sincos_1k, pointwise_1m, softmax, layernorm_gelu, rmsnorm_bf16, thousand_additions, mlp_128)
}
