"""Public HuggingFace architectures train as eager trains them: 20 whole steps, each one graph, in float64 (some norms
compute in float32 even so).
"""

from __future__ import annotations

import copy

import pytest
import torch

import tcompile
from tcompile.compiler import events
from tests.capture.test_huggingface import CONFIGS, build

STEPS = 20


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_twenty_whole_steps(name):
    model, make = build(name)
    model.double().train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    other = copy.deepcopy(model)
    said: list[str] = []

    def hear(e: events.Event) -> None:
        if e.kind in ("break", "skip", "recompile"):
            said.append(f"{e.kind} {e.facts}")

    def step(m, optimizer, inputs):
        optimizer.zero_grad()
        loss = m(**inputs)[0].pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    tcompile.reset()
    compiled = tcompile.compile(step)
    # a large eps: Adam makes whole steps of gradients that are nothing but rounding (biases of keys, weights before a
    # batch norm)
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-3, eps=1e-3) for m in (model, other)]
    events.subscribe(hear)
    try:
        for k in range(STEPS):
            torch.manual_seed(k)
            inputs = {n: v.double() if v.is_floating_point() else v for n, v in make().items()}
            torch.manual_seed(k)  # t5 drops out attention by a function, not a module
            want = step(model, optimizers[0], inputs)
            torch.manual_seed(k)
            got = compiled(other, optimizers[1], inputs)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
    finally:
        events.unsubscribe(hear)
    assert not said, said
    for (n, p), q in zip(model.named_parameters(), other.parameters()):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-5, msg=lambda m, n=n: f"{n}: {m}")
