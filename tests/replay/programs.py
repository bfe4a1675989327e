"""What replay compiles: functions that between them go through every stage, public models in small configurations, and
a slice of torch's operator table. Each is a function that makes (callable, arguments), and whether a gradient is asked
for."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["Program", "programs"]

Program = tuple[Callable[..., Any], tuple[Any, ...], bool]
EVERY = 12  # of so many operators of op_db one is taken


def _functions() -> dict[str, Callable[[], Program]]:
    def mlp() -> Program:
        return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)), (_t(4, 32),), True

    def convolutions() -> Program:
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        return model.eval(), (_t(2, 3, 16, 16),), False

    def attention() -> Program:
        def f(q: Any, k: Any, v: Any) -> Any:
            return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v

        return f, tuple(_t(2, 4, 32, 16) for _ in range(3)), False

    def attention_training() -> Program:
        def f(q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()

        return f, tuple(_t(2, 4, 32, 16, grad=True) for _ in range(3)), True

    def loss() -> Program:
        return (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1)), (_t(8, 16, grad=True), torch.arange(8)), True

    def rmsnorm_bf16() -> Program:
        def f(x: Any, w: Any) -> Any:
            y = x.float()
            return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

        return f, (_t(16, 64).bfloat16(), _t(64).bfloat16()), False

    def breaks() -> Program:
        def f(x: Any) -> Any:
            y = torch.sin(x) * 2
            if y.sum() > 0:
                y = y + 1
            return y.relu(), float(y.max())

        return f, (_t(8, 8),), False

    def windows_and_scans() -> Program:
        def f(x: Any) -> Any:
            y = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3, 1)
            return y.cumsum(-1), F.interpolate(x, scale_factor=2.0, mode="bilinear"), x.flip(-1).roll(2, -1)

        return f, (_t(2, 3, 12, 12),), False

    def writes() -> Program:
        def f(x: Any, i: Any, v: Any) -> Any:
            y = x.clone()
            y[:, 1:3] = 0
            y.index_add_(0, i, v)
            return y, x.gather(0, i[:, None].expand(-1, x.shape[1])), torch.where(y > 0, y, -y).sum(0)

        return f, (_t(8, 6), torch.tensor([1, 3, 3]), _t(3, 6)), False

    def containers() -> Program:
        def f(d: Any, n: Any) -> Any:
            d["out"] = [t * n for t in d["in"]]
            return {k: len(v) for k, v in d.items()}, sum(d["out"])

        return f, ({"in": [_t(4), _t(4)]}, 3), False

    def products() -> Program:
        def f(a: Any, b: Any, c: Any) -> Any:
            return torch.relu(a @ b + c) @ b.t(), torch.einsum("ij,kj->ik", a, b.t())

        return f, (_t(48, 32), _t(32, 64), _t(64)), False

    def dropout() -> Program:
        return (lambda x: F.dropout(x, 0.25) * 2), (_t(8, 64, grad=True),), True

    def causal_attention_bf16() -> Program:
        def f(q: Any, k: Any, v: Any) -> Any:
            scores = (q @ k.transpose(-1, -2)).float() * 0.2
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            return torch.softmax(scores.masked_fill(~seen, -float("inf")), -1).to(v.dtype) @ v

        return f, tuple(_t(2, 2, 100, n).bfloat16() for n in (24, 24, 40)), False

    def chain_bf16() -> Program:
        return (
            (lambda x, w, u: F.silu(x @ w) @ u),
            tuple(_t(*s).bfloat16() for s in ((40, 32), (32, 64), (64, 32))),
            False,
        )

    made = (mlp, convolutions, attention, attention_training, loss, rmsnorm_bf16, breaks, windows_and_scans, writes)
    return {f.__name__: f for f in (*made, containers, products, dropout, causal_attention_bf16, chain_bf16)}


def _t(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_(grad)


def _model(name: str) -> Callable[[], Program]:
    def made() -> Program:
        from ..capture.test_huggingface import build

        model, inputs = build(name)
        keywords = inputs()
        return (lambda kw: model(**kw)), (keywords,), False

    return made


def _operators() -> dict[str, Callable[[], Program]]:
    from torch.testing._internal.common_methods_invocations import op_db

    def of(op: Any) -> Callable[[], Program]:
        def made() -> Program:
            sample = next(iter(op.sample_inputs("cpu", torch.float32)))
            return (lambda x, a, k: op.op(x, *a, **k)), (sample.input, tuple(sample.args), dict(sample.kwargs)), False

        return made

    fit = sorted((o for o in op_db if torch.float32 in o.dtypes), key=lambda o: (o.name, o.variant_test_name))
    return {f"op {o.name} {o.variant_test_name}".strip(): of(o) for o in fit[::EVERY]}


def programs() -> dict[str, Callable[[], Program]]:
    from .tiled import tiled

    models = {f"model {n}": _model(n) for n in ("bert", "gpt2", "llama", "vit", "t5")}
    return {**_functions(), **models, **_operators(), **tiled()}
