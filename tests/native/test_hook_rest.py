"""The hook rests where no tensor work is done, and is there again with torch's next operator."""

from __future__ import annotations

import threading

import pytest
import torch

import tcompile
from tcompile.compiler import events
from tcompile.compiler.native import autograd_node, native

pytestmark = pytest.mark.skipif(
    native is None or autograd_node() is None, reason="the C extension, or its part for this torch, is not built"
)


def nothing():
    pass


def idle(n=30_000):
    for _ in range(n):
        nothing()


def work(x):
    return torch.relu(x) * 2 + 1


@pytest.fixture
def captured():
    tcompile.reset()
    names = []
    with events.listen(lambda e: names.append(e.result.code.co_qualname) if e.kind == "capture_end" else None):
        yield names


def test_it_rests_until_the_next_operator(captured):
    x = torch.ones(3)
    with tcompile.enable(backend="eager"):
        assert native.hook_installed() and not native.hook_rests()
        idle()
        assert native.hook_rests() and not native.hook_installed()
        x + 1
        idle(10)  # the interpreter looks for what is pending
        assert native.hook_installed() and not native.hook_rests()
        assert torch.equal(work(x), x * 2 + 1)
        assert captured == ["work"]
        idle()
        assert native.hook_installed(), "what did tensor work is looked at to its end"
    assert not native.hook_installed() and not native.hook_rests()


def test_it_does_not_rest_after_tensor_work(captured):
    with tcompile.enable(backend="eager"):
        work(torch.ones(3))
        idle()
        assert native.hook_installed()
    assert captured == ["work"]


def test_each_cell_begins_anew():
    for _ in range(2):
        with tcompile.enable(backend="eager"):
            idle()
            assert native.hook_rests()
    assert not native.hook_rests() and not native.hook_installed()


def test_an_inner_block_ends_the_rest(captured):
    with tcompile.enable(backend="eager"):
        idle()
        assert native.hook_rests()
        with tcompile.enable(backend="eager", dynamic=False):
            assert native.hook_installed() and not native.hook_rests()
            work(torch.ones(3))
        assert native.hook_installed()
    assert captured == ["work"]


def test_an_operator_of_another_thread_wakes_it():
    with tcompile.enable(backend="eager"):
        idle()
        assert native.hook_rests()
        thread = threading.Thread(target=lambda: torch.ones(3) + 1)
        thread.start()
        thread.join()
        idle(10)
        assert native.hook_installed()


def test_an_error_and_deep_recursion_while_it_rests():
    def deep(n):
        return 0 if n == 0 else 1 + deep(n - 1)

    with pytest.raises(ZeroDivisionError), tcompile.enable(backend="eager"):
        idle()
        assert deep(500) == 500
        1 / 0
    assert not native.hook_rests() and not native.hook_installed()
    assert (torch.ones(2) + 1).sum() == 4
