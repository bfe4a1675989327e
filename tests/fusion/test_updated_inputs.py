"""Updates of parts of an input: written into it where nothing else reads it, copied back where something does."""

from __future__ import annotations

import pytest
import torch

import tcompile
from tcompile.compiler import events
from tcompile.compiler.fusion.schedule import Alloc

LARGE, SMALL = (2, 4, 2048, 64), (2, 4, 16, 64)  # past the size up to which inputs are kept as they were, and below


def copies(cache, at, new):
    cache.index_copy_(2, at, new)
    return (cache * 2).sum(2)


def puts(cache, at, new):
    cache[:, :, at] = new
    return cache.amax()


def adds(cache, at, new):
    cache.index_add_(2, at, new)
    return cache[0].sum(1)


def fills(cache, at, new):
    cache.index_fill_(2, at, 3.0)
    return cache.sum(1) + new.sum(1)


def gives_it_back(cache, at, new):
    return cache.index_copy_(2, at, new)


def attends(cache, at, new):
    return torch.nn.functional.scaled_dot_product_attention(new, cache.index_copy_(2, at, new), cache)


def reads_before(cache, at, new):
    before = cache.sum()
    cache.index_copy_(2, at, new)
    return before


def is_made_of_it(cache, at, new):
    cache.index_copy_(2, at, new * cache[:, :, :1])
    return cache.sum(3)


def is_read_between(cache, at, new):
    cache.index_copy_(2, at, new)
    between = cache[:, 1:].sum(2)
    cache.index_copy_(2, at + 1, new + 1)
    return between


def keeps_the_old(cache, at, new):
    return cache.index_copy(2, at, new), cache


def run(fn, shape, **options):
    """The schedules, after two calls that are compared with eager."""
    tcompile.reset()
    schedules = []
    compiled = tcompile.compile(fn, **options)
    with events.listen(lambda e: schedules.append(e.schedule) if e.kind == "schedule" else None), torch.no_grad():
        for length in (shape[2], shape[2] + 3):
            ours = torch.randint(-4, 5, (*shape[:2], length, shape[3])).float()  # sums are exact
            theirs = ours.clone()
            at, new = torch.tensor([length - 2]), torch.randint(-4, 5, (*shape[:2], 1, shape[3])).float()
            result, wanted = compiled(ours, at, new), fn(theirs, at, new)
            torch.testing.assert_close(result, wanted)
            torch.testing.assert_close(ours, theirs)
            assert ours._version == theirs._version
    return schedules


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [copies, puts, adds, fills, gives_it_back, attends])
def test_a_large_input_is_written_where_it_is(fn, dynamic):
    for s in run(fn, LARGE, dynamic=dynamic):
        assert not s.mutations and len(s.written) == 1
        size = max(b.shape[2] if type(b.shape[2]) is int else 0 for b in s.inputs if getattr(b, "shape", ())[2:])
        assert not any(isinstance(step, Alloc) and step.buffer.shape == (2, 4, size, 64) for step in s.steps)


@pytest.mark.parametrize("shape", [LARGE, SMALL])
@pytest.mark.parametrize("fn", [reads_before, is_made_of_it, is_read_between, keeps_the_old])
def test_what_else_reads_the_input_reads_the_old_values(fn, shape):
    run(fn, shape)
    run(fn, shape, dynamic=True)


@pytest.mark.parametrize("fn", [copies, puts, adds, fills, gives_it_back, attends])
def test_a_small_input_stays_as_it_was_where_a_call_may_fail(fn):
    run(fn, SMALL)
    compiled = tcompile.compile(fn)
    cache = torch.randn(SMALL)
    before = cache.clone()
    with pytest.raises(IndexError):
        compiled(cache, torch.tensor([99]), torch.randn(2, 4, 1, 64))
    assert torch.equal(cache, before)


@pytest.mark.parametrize("fn", [copies, adds])
def test_a_position_outside_writes_nothing_elsewhere(fn):
    """A large input may be written in part when the call raises, as by eager: at the positions given, at no others."""
    compiled = tcompile.compile(fn)
    new = torch.ones(*LARGE[:2], 3, LARGE[3])
    compiled(torch.zeros(LARGE), torch.tensor([1, 2, 3]), new)
    cache = torch.zeros(LARGE)
    with pytest.raises(IndexError):
        compiled(cache, torch.tensor([3, 99_999, 5]), new)
    cache[:, :, [3, 5]] = 0
    assert not cache.any()


def test_views_of_the_updated_input_are_results():
    def f(cache, at, new):
        cache.index_copy_(2, at, new)
        return cache.view(-1)[10:20].view(2, 5)

    ours, at, new = torch.randn(LARGE), torch.tensor([7]), torch.randn(*LARGE[:2], 1, LARGE[3])
    theirs = ours.clone()
    result = tcompile.compile(f)(ours, at, new)
    torch.testing.assert_close(result, f(theirs, at, new))
    torch.testing.assert_close(ours, theirs)
    ours.zero_()
    assert not result.any()
