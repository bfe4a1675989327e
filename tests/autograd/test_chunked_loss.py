"""Linear + cross entropy in chunks of rows: loss and gradients as eager's, without the logits in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler import events

ROWS, WIDTH, CLASSES = 1024, 16, 600  # 2.4 MB of logits
LOGITS = ROWS * CLASSES * 4


def arguments(ignored: Any = None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    t = torch.randint(0, CLASSES, (4, ROWS // 4))
    if ignored is not None:
        t[:, ignored] = -100
    return [
        torch.randn(4, ROWS // 4, WIDTH, requires_grad=True),
        torch.randn(CLASSES, WIDTH, requires_grad=True),
        torch.randn(CLASSES, requires_grad=True),
        t,
    ]


def plain(x, w, b, t):
    return F.cross_entropy(F.linear(x, w, b).view(-1, CLASSES), t.view(-1))


def next_token(x, w, b, t):
    logits = F.linear(torch.tanh(x), w).float()
    return torch.nn.CrossEntropyLoss()(logits[..., :-1, :].contiguous().view(-1, CLASSES), t[:, 1:].reshape(-1))


def weighted(x, w, b, t):
    return F.cross_entropy(
        F.linear(x, w, b).flatten(0, 1), t.flatten(), weight=torch.linspace(0.5, 2, CLASSES), label_smoothing=0.1
    )


def summed(x, w, b, t):
    return (
        F.cross_entropy(F.linear(x, w, b).reshape(-1, CLASSES).to(torch.float32), t.flatten(), reduction="sum")
        * x.mean()
    )


def frozen(x, w, b, t):
    return F.cross_entropy(F.linear(x, w.detach(), b).view(-1, CLASSES), t.view(-1))


def logits_as_well(x, w, b, t):
    logits = F.linear(x, w, b)
    return F.cross_entropy(logits.view(-1, CLASSES), t.view(-1)) + logits.mean()


def sixteen_bits(x, w, b, t):
    return F.cross_entropy(F.linear(x.half(), w.half(), b.half()).view(-1, CLASSES).float(), t.view(-1))


def steps(fn: Callable, ignored: Any, amp: bool = False) -> list:
    args = arguments(ignored)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        loss = fn(*args)
    (loss * 3).backward()
    return [loss.detach(), *(a.grad for a in args[:3])]


class Heard:
    def __enter__(self) -> Heard:
        self.chunked, self.peak = 0, 0
        events.subscribe(self.hear)
        return self

    def hear(self, e: events.Event) -> None:
        if e.kind == "partition":
            self.chunked += sum(n.name.startswith("mm") for n in e.facts["partition"].forward.graph.nodes) > 3
        if e.kind == "schedule":
            self.peak = max(self.peak, e.facts["memory"]["peak_bytes"])

    def __exit__(self, *_: object) -> None:
        events.unsubscribe(self.hear)


def compiled(fn: Callable, mb: int) -> Callable:
    tcompile.reset()
    return tcompile.compile(fn, options={"chunked_loss_mb": mb})


SOME, ALL = slice(None, None, 3), slice(None)


@pytest.mark.parametrize(
    "fn, ignored", [(plain, None), (plain, ALL), (next_token, SOME), (weighted, SOME), (summed, None), (frozen, SOME)]
)
def test_like_eager(fn, ignored):
    want = steps(fn, ignored)
    with Heard() as heard:
        got = steps(compiled(fn, 2), ignored)
    assert heard.chunked
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_under_autocast():
    want = steps(next_token, SOME, amp=True)
    for g, w in zip(steps(compiled(next_token, 2), SOME, amp=True), want):
        torch.testing.assert_close(g, w, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("fn", [logits_as_well, sixteen_bits])
def test_whole_where_it_would_be_wrong(fn):
    with Heard() as heard:
        got = steps(compiled(fn, 2), None)
    assert not heard.chunked
    for g, w in zip(got, steps(fn, None)):
        torch.testing.assert_close(g, w, rtol=1e-2, atol=1e-3)


def test_memory():
    with Heard() as whole:
        steps(compiled(plain, 0), None)
    with Heard() as chunked:
        steps(compiled(plain, 2), None)
    assert not whole.chunked and whole.peak >= LOGITS
    assert chunked.chunked and chunked.peak < 0.8 * LOGITS


def test_in_a_whole_step():
    """Forward, backward and update in one graph; the weight of the linear layer is the embedding's."""

    def run(wrap: Callable) -> list:
        torch.manual_seed(0)
        table = torch.nn.Embedding(CLASSES, WIDTH)
        optimizer = torch.optim.AdamW(table.parameters(), 1e-2)

        def step(ids):
            optimizer.zero_grad()
            loss = F.cross_entropy(F.linear(torch.tanh(table(ids)), table.weight), ids.roll(1, 0))
            loss.backward()
            optimizer.step()
            return loss

        f = wrap(step)
        return [*(f(torch.randint(0, CLASSES, (ROWS,))).detach() for _ in range(3)), table.weight.detach()]

    want = run(lambda f: f)
    for g, w in zip(run(lambda f: compiled(f, 2)), want):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)


def test_gradients_of_gradients():
    def run(fn: Callable) -> list:
        x, w, b, t = arguments()
        (g,) = torch.autograd.grad(fn(x, w, b, t), w, create_graph=True)
        g.pow(2).sum().backward()
        return [g.detach(), x.grad, w.grad]

    for g, w in zip(run(compiled(plain, 2)), run(plain)):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-6)
