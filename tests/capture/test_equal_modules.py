"""Equal modules that are compiled one by one: what the first was compiled to serves them all, and no other module."""

from __future__ import annotations

import contextlib
import copy
import gc
import types
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import tcompile
from tcompile.compiler import events
from tcompile.compiler.frontend.inventory import compiled_functions


class Block(nn.Module):
    def __init__(self, width: int = 6, scale: float = 1.0) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 9), nn.Linear(9, width)
        self.drop, self.scale = nn.Dropout(0.5), scale
        self.register_buffer("calls", torch.zeros(()))
        self.ways: dict[str, bool] = {"relu": True}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        h = self.up(self.norm(x))
        h = torch.relu(h) if self.ways["relu"] else torch.tanh(h)
        return x + self.scale * self.down(self.drop(h))


def forwards(blocks: list[nn.Module]) -> list[Callable]:
    for b in blocks:
        b.forward = tcompile.compile(b.forward)
    return list(blocks)


def modules(blocks: list[nn.Module]) -> list[Callable]:
    return [tcompile.compile(b) for b in blocks]


@contextlib.contextmanager
def captures() -> Iterator[list[str]]:
    """The functions that are captured, from a start without entries."""
    tcompile.reset()
    found: list[str] = []
    with events.listen(lambda e: found.append(e.frame) if e.kind == "graph" else None):
        yield found


def train(calls: list[Callable], blocks: list[nn.Module]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(4, 6, requires_grad=True)
    h = x
    for call in calls:
        h = call(h)
    h.square().sum().backward()
    left = [t for b in blocks for t in (*b.buffers(), *(p.grad for p in b.parameters() if p.grad is not None))]
    return [h.detach(), x.grad, *left]


def check(wrap: Callable, blocks: list[nn.Module], graphs: int, train: Callable = train) -> None:
    for b in blocks:
        b.zero_grad()
    plain = [copy.deepcopy(b) for b in blocks]
    want = train(plain, plain)
    with captures() as found:
        got = train(wrap(blocks), blocks)
    assert len(want) == len(got)
    for a, b in zip(want, got):
        torch.testing.assert_close(a, b)
    assert len(found) == graphs, found


WRAPS = pytest.mark.parametrize("wrap", [forwards, modules])


@WRAPS
def test_one_graph_for_all(wrap: Callable) -> None:
    blocks = [Block().eval() for _ in range(5)]
    check(wrap, blocks, 1)


def four_times(up: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(x, up.weight) * 4


def differs(block: Block, how: str) -> Block:
    if how == "width":
        block.up, block.down = nn.Linear(6, 7), nn.Linear(7, 6)
    elif how == "number":
        block.scale = 2.0
    elif how == "flag":
        block.ways["relu"] = False
    elif how == "mode":
        block.train()
    elif how == "frozen":
        block.up.weight.requires_grad_(False)
    elif how == "no bias":
        block.up.bias = None
    elif how == "inner hook":
        block.up.register_forward_hook(lambda m, a, out: out * 3)
    elif how == "inner forward":
        block.up.forward = types.MethodType(four_times, block.up)
    elif how == "other class":
        block.norm = nn.RMSNorm(6)
    elif how == "tied":
        block.norm.weight = block.norm.bias
    return block


@WRAPS
@pytest.mark.parametrize(
    "how",
    ["width", "number", "flag", "mode", "frozen", "no bias", "inner hook", "inner forward", "other class", "tied"],
)
def test_a_block_that_differs_is_compiled_anew(wrap: Callable, how: str) -> None:
    blocks = [Block().eval() for _ in range(4)]
    differs(blocks[1], how)
    torch.manual_seed(0)
    if how == "mode":  # dropout draws random numbers of its own
        blocks[1].drop.p = 0.0
    check(wrap, blocks, 1 if how == "tied" else 2)  # (what reads two parameters may as well read one twice)
    blocks = [Block().eval() for _ in range(3)]
    differs(blocks[0], how)
    blocks[0].drop.p = blocks[1].drop.p if how != "mode" else 0.0
    check(wrap, blocks, 2)


@WRAPS
def test_another_dtype_is_compiled_anew(wrap: Callable) -> None:
    def call(calls: list[Callable], blocks: list[nn.Module]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        return [f(torch.randn(4, 6).to(b.up.weight.dtype)).detach() for f, b in zip(calls, blocks)]

    check(wrap, [Block().eval(), Block().double().eval(), Block().eval()], 2, call)


def test_a_block_with_a_hook_is_compiled_with_it() -> None:
    blocks = [Block().eval() for _ in range(3)]
    blocks[1].register_forward_hook(Doubled())
    check(modules, blocks, 2)


class Doubled:
    def __call__(self, module: nn.Module, args: tuple, out: torch.Tensor) -> torch.Tensor:
        return out * 2

    def __deepcopy__(self, memo: dict) -> Doubled:
        return self


def doubled(module: nn.Module, args: tuple) -> tuple:
    return (args[0] * 2,)


class Less:
    """A hook with a number of its own."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, module: nn.Module, args: tuple, out: torch.Tensor) -> torch.Tensor:
        return out - self.by


@WRAPS
def test_hooks_of_parts_are_shared_whatever_their_numbers(wrap: Callable) -> None:
    blocks = [Block(scale=1 / 16).eval() for _ in range(4)]
    for b in blocks:
        b.up.register_forward_pre_hook(doubled)
        b.up.register_forward_hook(Less(0.25))
        b.down.register_forward_pre_hook(doubled)
        b.down.register_forward_pre_hook(doubled, prepend=True)
    check(wrap, blocks, 1)
    for b in blocks:
        b.__dict__.pop("forward", None)
    blocks[1].up.register_forward_pre_hook(doubled)
    check(wrap, blocks, 2)
    for b in blocks:
        b.__dict__.pop("forward", None)
    blocks[2].up._forward_hooks.popitem()
    blocks[2].up.register_forward_hook(Less(0.5))
    check(wrap, blocks, 3)


@WRAPS
def test_changes_of_one_block_alone(wrap: Callable) -> None:
    """What changes later in a block ends what it shares, for this block."""
    blocks = [Block().eval() for _ in range(3)]
    plain = [copy.deepcopy(b) for b in blocks]
    calls, x = wrap(blocks), torch.randn(4, 6)
    for step in range(3):
        for both in (blocks, plain):
            if step == 1:
                both[0].ways["relu"] = False
            if step == 2:
                both[2].up.weight.data.mul_(3)
                both[1].scale = 5.0
        for call, want in zip(calls, plain):
            torch.testing.assert_close(call(x), want(x))


class Stopping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.a(x))
        print("", end="")
        torch.save(x.detach(), "/dev/null")
        return torch.relu(self.b(x)) + 1


@WRAPS
def test_what_follows_a_break_is_shared_and_outlives_the_first(wrap: Callable) -> None:
    blocks = [Stopping() for _ in range(3)]
    plain = [copy.deepcopy(b) for b in blocks]
    calls, x = wrap(blocks), torch.randn(2, 3)
    with captures() as found:
        for call, want in zip(calls, plain):
            torch.testing.assert_close(call(x), want(x))
        assert len(found) == 2
        first = weakref.ref(blocks[0])
        del calls[0], blocks[0], plain[0], call
        gc.collect()
        assert first() is None
        for call, want in zip(calls, plain):
            torch.testing.assert_close(call(x), want(x))
    assert len(found) == 2


def test_limits_are_of_each_module() -> None:
    """Each of more widths than the limit is compiled, though all have the same code."""
    blocks = [Block(scale=k / 16).eval() for k in range(12)]
    check(forwards, blocks, 12)


def test_other_options_are_other_entries() -> None:
    blocks = [Block().eval() for _ in range(3)]
    x = torch.randn(4, 6)
    with captures() as found, tcompile.config.patch(threads=1):
        tcompile.compile(blocks[0], dynamic=False)(x)
        tcompile.compile(blocks[1])(x)
        tcompile.config.threads = 2
        tcompile.compile(blocks[2])(x)
        tcompile.explain(blocks[2])(x)
        tcompile.explain(blocks[2].forward)(x)
    assert len(found) == 5


def test_a_shared_entry_is_listed_once() -> None:
    tcompile.reset()
    calls = modules([Block().eval() for _ in range(3)])
    for call in calls:
        call(torch.randn(4, 6))
    (row,) = [f for f in compiled_functions() if f.name == "Block.forward"]
    assert (row.entries, row.calls) == (1, 3)
