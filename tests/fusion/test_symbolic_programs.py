"""Small programs with symbolic sizes (and their static twins) that random programs found wrong: values as eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tcompile

x4, x5 = torch.arange(4.0).sin(), torch.arange(5.0).cos()


def rolled_as_far_as_it_is_long(x):
    v = x * 0.5 + 1
    return v.roll(3, 1).clone().mul_(2), v.clone().index_fill_(3, torch.tensor([2]), 3.0)


def broadcast_of_a_quotient_that_is_one(x, y):
    v = (x * 2).reshape(4, -1)
    return (
        v + y,
        v.expand(4, 5) * y,
        v.expand(2, 4, 1) * 2,
        (v * torch.ones(4, 1)).sum(1),
        torch.cat([v.expand(2, 4, 1), v[None] * 2], 0),
    )


def broadcast_of_a_rest_that_is_one(x, y):
    return x[3:] * 2 + y, (x[3:] * 2).expand(5) * y


def broadcast_of_every_second_that_is_one(x):
    v = x[:, 2::2]
    return v + x, torch.where(v.count_nonzero(0) > x, v, x), v.sum(0) * x


def reads_of_nothing(x):
    v = x[:, 5:5].flip(1)
    w = v.diff(dim=0).clone().mul_(2).float().clone()
    return w.index_fill_(0, torch.tensor([1]), 3.0), v.roll(1, 0).sum(1)


def copied_between_layouts(x):
    v = x.transpose(0, 2)
    return v, v.float().clone().copy_(x * v)


def quotient_of_a_constant_under_a_mask(x):
    v = x.argmax(0) // 3
    return torch.cat([v, v], -1).amax(0, keepdim=True)


def window_of_bfloat16_beyond_it(x):
    return F.pad(x.bfloat16().diff(dim=1).float(), (-1, 2, 1, 0), value=0.5)


PROGRAMS = [
    (rolled_as_far_as_it_is_long, (torch.arange(108.0).sin().view(4, 3, 3, 3),)),
    (broadcast_of_a_quotient_that_is_one, (x4, x5)),
    (broadcast_of_a_rest_that_is_one, (x4, x5)),
    (broadcast_of_every_second_that_is_one, (torch.arange(12.0).view(4, 3),)),
    (broadcast_of_every_second_that_is_one, (torch.arange(12.0).view(3, 4),)),
    (reads_of_nothing, (torch.arange(49.0).view(7, 7),)),
    (copied_between_layouts, (torch.arange(10.0).view(1, 10, 1),)),
    (quotient_of_a_constant_under_a_mask, (torch.ones(1, 1, dtype=torch.bfloat16),)),
    (window_of_bfloat16_beyond_it, (torch.arange(12.0).view(3, 4),)),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function, args", PROGRAMS, ids=[f.__name__ for f, _ in PROGRAMS])
def test_like_eager(function, args, dynamic):
    got, want = tcompile.compile(function, dynamic=dynamic)(*args), function(*args)
    torch.testing.assert_close(got, want)
