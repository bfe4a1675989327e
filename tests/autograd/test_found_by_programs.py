"""Gradients of small programs that random programs found wrong: as eager's."""
from __future__ import annotations

import pytest
import torch

import tcompile


def results_of_one_input_that_save_different_things(x):
    """Each has a backward pass of its own; none reads what another one saved."""
    a = x.clone()
    b = a.cummax(0)[0].masked_fill(a > 0.3, 0.25)
    return a, b, x.gather(0, x.long().abs() % 2), torch.cdist(x, x), torch.atan2(x, x + 2)


def an_expanded_result(x):
    return (x * 2).sum(1, keepdim=True).expand(-1, 5), x[None].expand(3, -1, -1), (x * 3)[:1].expand(4, -1)


@pytest.mark.parametrize("function", [results_of_one_input_that_save_different_things, an_expanded_result], ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0)])
def test_one_by_one_and_together(function, order):
    seen = []
    for f in (function, tcompile.compile(function)):
        x = torch.arange(8.0).sin().view(4, 2).requires_grad_()
        results = f(x)
        for k in order:
            if k < len(results):
                (results[k] * results[k].detach().cos()).sum().backward()
        y = x.detach().clone().requires_grad_()
        sum((t * (k + 1)).sum() for k, t in enumerate(f(y))).backward()
        seen.append((x.grad, y.grad))
    torch.testing.assert_close(seen[1], seen[0])
