"""Training steps by CUDA graphs: what forward keeps stays in the graph's memory, and is never read after it was
overwritten. Here by stand-ins for graphs on the CPU (`graph_stand_in.py`), in tests/gpu by graphs."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator

import pytest
import torch
import torch.nn as nn

import tcompile
from tcompile.compiler.ops import mask_bits, keep_bits
from tcompile.compiler import config, events
from tcompile.compiler.rewrite import fast_dropout
from tcompile.compiler.native import native
from tcompile.compiler.runtime.gpu import cuda_graphs, step_memory

from .graph_stand_in import graphs_on_the_cpu

device = "cpu"

pytestmark = pytest.mark.skipif(native is None, reason="CUDA graphs need the C extension")


@contextmanager
def noting(on: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[cuda_graphs.CudaGraphs]]:
    """All that is captured on a device, with the number of replays, where whether they pay off is not asked."""
    found: list[Any] = []
    init, replay = cuda_graphs.CudaGraphs.__init__, cuda_graphs.CudaGraphs._replay

    def noted(self: Any, *args: Any) -> None:
        init(self, *args)
        self.replays = 0
        found.append(self)

    def counted(self: Any, *args: Any) -> tuple:
        self.replays += 1
        return replay(self, *args)

    monkeypatch.setattr(cuda_graphs.CudaGraphs, "__init__", noted)
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "_replay", counted)
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "_worth_it", lambda *a: "")
    monkeypatch.setattr(sys.modules[__name__], "device", on)
    yield found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[cuda_graphs.CudaGraphs]]:
    with graphs_on_the_cpu(monkeypatch), noting("cpu", monkeypatch) as found:
        yield found


def data(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device)


def net(norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 32),
        nn.BatchNorm1d(32) if norm else nn.LayerNorm(32),
        nn.GELU(),
        nn.Linear(32, 16),
        nn.Tanh(),
        nn.Linear(16, 8),
    )


def replays(made: list, backward: bool) -> int:
    return sum(c.replays for c in made if c.backward == backward)


def reasons(made: list) -> str:
    return " | ".join(r for c in made for r in c.reasons)


class Pair:
    """The same module twice, compiled and eager, and their optimizers."""

    def __init__(self, module: nn.Module, **options: Any):
        self.modules = (module.to(device), copy.deepcopy(module))
        self.calls: tuple[Callable, Callable] = (
            tcompile.compile(module, mode="reduce-overhead", **options),
            self.modules[1],
        )
        self.optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in self.modules]

    def step(self, how: Callable[[Callable], Any], update: bool = True) -> None:
        """how(call) runs forward and backward."""
        seed = int(torch.randint(1 << 30, ()))
        for call, m, o in zip(self.calls, self.modules, self.optimizers):
            torch.manual_seed(seed)
            if update:
                o.zero_grad()
            how(call)
            if update:
                o.step()
        self.check()

    def check(self) -> None:
        for p, q in zip(self.modules[0].parameters(), self.modules[1].parameters()):
            torch.testing.assert_close(p, q, atol=5e-5, rtol=1e-3)
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                torch.testing.assert_close(p.grad, q.grad, atol=5e-5, rtol=1e-3)
        for a, b in zip(self.modules[0].buffers(), self.modules[1].buffers()):
            torch.testing.assert_close(a, b)


@contextmanager
def hearing(kind: str) -> Iterator[list[events.Event]]:
    """The events of a kind, of all threads: on a GPU backward runs in one of autograd's."""
    heard: list[events.Event] = []
    listener = events.subscribe(lambda e: heard.append(e) if e.kind == kind else None)
    yield heard
    events.unsubscribe(listener)


def test_both_passes_replay_and_nothing_is_copied(made: list) -> None:
    pair = Pair(net())
    with hearing("cudagraph") as captured:
        for _ in range(10):
            x = data(12, 16)
            pair.step(lambda call: call(x).square().mean().backward())
    forward, backward = made
    assert replays(made, False) == 8 and replays(made, True) == 8 and not reasons(made)
    (g,) = forward.entries.values()
    assert g.held is not None and len(g.held.views) >= 4 and not g.held.own and not g.held.alive
    (b,) = backward.entries.values()
    assert b.destroys
    first, second = captured
    assert first.copied_bytes <= x.numel() * 4 and first.result_bytes == 12 * 8 * 4 and first.held_bytes >= 12 * 32 * 4
    assert second.copied_bytes <= x.numel() * 4 + 12 * 8 * 4 and second.result_bytes == sum(
        p.numel() * 4 for p in pair.modules[0].parameters()
    )


def test_gradients_add_up_over_steps(made: list) -> None:
    pair = Pair(net())
    for _ in range(8):
        x = data(12, 16)
        pair.step(lambda call: call(x).square().mean().backward(), update=False)
    assert replays(made, True) >= 5


def test_two_forwards_before_one_backward(made: list) -> None:
    pair = Pair(net(norm=False))
    for _ in range(8):
        x, y = data(12, 16), data(12, 16)
        pair.step(lambda call: (call(x) - call(y)).square().mean().backward())
    assert replays(made, False) >= 5 and replays(made, True) >= 5
    assert "an earlier call" in reasons(made)


def test_a_retained_graph(made: list) -> None:
    pair = Pair(net())

    def twice(call: Callable) -> None:
        loss = call(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()

    for _ in range(8):
        x = data(12, 16)
        pair.step(twice)
    assert replays(made, True) >= 10  # captured while the graph was retained: it destroys nothing
    made.clear()
    pair = Pair(net())
    for i in range(9):
        x = data(12, 16)
        pair.step(twice if i > 5 else lambda call: call(x).square().mean().backward())
    assert "after the backward pass" in reasons(made)


def test_hooks_that_keep_what_was_saved(made: list) -> None:
    pair = Pair(net(norm=False))
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    updated = {p.data_ptr() for m in pair.modules for p in m.parameters()}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.data_ptr() not in updated:
            kept.append((t, t.detach().clone()))
        return t

    for i in range(10):
        x = data(12, 16)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            pair.step(lambda call: call(x).square().mean().backward())
        if i % 3 == 2:
            assert all(torch.equal(t, was) for t, was in kept)
            kept.clear()
    assert replays(made, False) > 0


def test_a_hook_that_moves_what_was_saved(made: list) -> None:
    pair = Pair(net())
    for _ in range(8):
        x = data(12, 16)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            pair.step(lambda call: call(x).square().mean().backward())
    assert replays(made, False) >= 5


def test_results_that_wait_for_their_backward(made: list) -> None:
    pair = Pair(net(norm=False))
    for i in range(12):
        x, y = data(12, 16), data(12, 16)
        # its backward comes after another step's, or never
        waiting = {call: call(y) for call in pair.calls} if i % 3 == 1 else {}
        pair.step(lambda call: call(x).square().mean().backward(), update=not waiting)
        if i % 2 and waiting:
            pair.step(lambda call: waiting[call].sum().backward(), update=False)
    assert replays(made, False) >= 8 and replays(made, True) >= 6 and "an earlier call" in reasons(made)


def test_an_exception_between(made: list) -> None:
    pair = Pair(net())
    for i in range(9):
        x = data(12, 16)

        def run(call: Callable) -> None:
            loss = call(x).square().mean()
            if i % 3 == 1:
                raise ValueError
            loss.backward()

        for call, o in zip(pair.calls, pair.optimizers):
            o.zero_grad()
            try:
                run(call)
            except ValueError:
                continue
            o.step()
        pair.check()
    assert replays(made, True) >= 3


def test_parameters_that_move(made: list) -> None:
    pair = Pair(net(norm=False))
    for i in range(14):
        if i in (5, 9):
            for m in pair.modules:
                m[0].weight.data = m[0].weight.data.clone()
        x = data(12, 16)
        pair.step(lambda call: call(x).square().mean().backward())
    assert sum(g.captures for c in made if not c.backward for g in c.entries.values()) >= 2 and replays(made, True) >= 2
    backward = next(c for c in made if c.backward)
    assert all(not held.dropped for _, held in backward.entries)


def test_sizes_have_graphs_each(made: list) -> None:
    pair = Pair(net(norm=False), dynamic=True)
    for i in range(20):
        x = data((5, 9, 33)[i % 3], 16)
        pair.step(lambda call: call(x).square().mean().backward())
    assert replays(made, False) >= 9 and replays(made, True) >= 9


def test_dropout(made: list) -> None:
    pair = Pair(nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 8)))
    for _ in range(8):
        x = data(12, 16)
        pair.step(lambda call: call(x).square().mean().backward())
    assert replays(made, True) >= 5


class ByBits(nn.Module):
    """Dropout whose bits eager draws as the compiled graph does."""

    eager = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.eager:
            return torch.native_dropout(x, 0.5, True)[0]
        words = keep_bits.KEEP_BITS(-(-x.numel() // 32), 0.5, device=x.device)
        return x * mask_bits.UNPACK(words, list(x.shape), [0, 1]) * 2


def test_dropout_by_bits(made: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_dropout, "DEVICE", torch.device(device).type)
    with config.patch(fast_dropout=True):
        pair = Pair(nn.Sequential(nn.Linear(16, 32), ByBits(), nn.ReLU(), nn.Linear(32, 33), ByBits()))
        pair.modules[1][1].eager = pair.modules[1][4].eager = True
        for _ in range(8):
            x = data(12, 16)
            pair.step(lambda call: call(x).square().mean().backward())
    assert replays(made, False) >= 5 and replays(made, True) >= 5


def test_evaluation_between_and_two_models(made: list) -> None:
    pairs = [Pair(net()), Pair(net(norm=False))]
    for i in range(12):
        x = data(12, 16)
        for p in pairs:
            p.step(lambda call: call(x).square().mean().backward())
        with torch.no_grad():
            for p in pairs:
                torch.testing.assert_close(p.calls[0](x), p.calls[1](x), atol=5e-5, rtol=1e-3)
    assert replays(made, True) >= 16


def test_independent_losses(made: list) -> None:
    torch.manual_seed(0)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = net(False), net(False)

        def forward(self, x: torch.Tensor) -> tuple:
            return self.a(x).square().mean(), self.b(x).square().mean()

    pair = Pair(Two())

    def run(call: Callable) -> None:
        first, second = call(x)
        (second if turned else first).backward()
        (first if turned else second).backward()

    for i in range(12):
        x, turned = data(12, 16), i % 4 == 3
        pair.step(run)
    assert replays(made, False) >= 8 and replays(made, True) >= 8


def test_several_results_and_gradients_that_are_not_asked_for(made: list) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> tuple:
            h = torch.tanh(self.a(x))
            return torch.sigmoid(self.b(h)), torch.exp(self.c(h))

    torch.manual_seed(0)
    pair = Pair(Two())
    for i in range(16):
        x = data(12, 16)
        pair.step(lambda call: sum(t.sum() for t, used in zip(call(x), (i % 3 != 0, i % 3 != 1)) if used).backward())
    assert replays(made, True) >= 8


def test_the_function_goes_before_the_backward(made: list) -> None:
    m = net(norm=False).to(device)
    c = tcompile.compile(m, mode="reduce-overhead")
    for _ in range(5):
        c(data(12, 16)).square().mean().backward()
    m.zero_grad()
    x = data(12, 16)
    want = torch.autograd.grad(m(x).square().mean(), list(m.parameters()))
    loss = c(x).square().mean()
    pool = weakref.ref(made[0].step.pool)
    made.clear()
    del c
    gc.collect()
    loss.backward()
    for p, g in zip(m.parameters(), want):
        torch.testing.assert_close(p.grad, g, atol=5e-5, rtol=1e-3)
    del loss, m, p
    tcompile.reset()
    gc.collect()
    assert pool() is None


def test_without_room_it_runs_plainly(made: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "most_bytes", lambda index: 100)
    pair = Pair(net())
    with hearing("fallback") as said:
        for _ in range(6):
            x = data(12, 16)
            pair.step(lambda call: call(x).square().mean().backward())
    assert not any(c.captured for c in made) and len(said) == 2 and all("quarter" in e.reason for e in said)


def test_results_that_are_views(made: list) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple:
        h, g = torch.tanh(x @ w), torch.sin(x @ w)
        return h, h.t(), h[1:, :3], g.view(-1)[4:], g[:, 0], x[2:], h.view(torch.int32)

    c, w = tcompile.compile(f, mode="reduce-overhead"), data(16, 8)
    for _ in range(8):
        x = data(6, 16)
        y = x.clone()
        got, want = c(x, w), f(y, w)
        for a, b in zip(got, want):
            torch.testing.assert_close(a.double(), b.double(), atol=5e-5, rtol=1e-3)
            assert a.dtype == b.dtype and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
        for results, given in ((got, x), (want, y)):
            results[1].mul_(2), results[4].zero_(), results[5].add_(1)
        for a, b in zip((*got, x), (*want, y)):
            torch.testing.assert_close(a.double(), b.double(), atol=5e-5, rtol=1e-3)
    assert sum(m.replays for m in made) >= 5 and not reasons(made)

    def trained(x: torch.Tensor, w: torch.Tensor) -> tuple:
        h = torch.tanh(x @ w)
        return h[:, :4], h[:, 4:].exp(), h.t()

    c, w = tcompile.compile(trained, mode="reduce-overhead"), data(16, 8).requires_grad_()
    v = w.detach().clone().requires_grad_()
    for _ in range(8):
        x = data(6, 16)
        for call, p in ((c, w), (trained, v)):
            a, b, t = call(x, p)
            (a.sum() + (b * b).sum() + t[0].sum()).backward()
        torch.testing.assert_close(w.grad, v.grad, atol=5e-5, rtol=1e-3)
    assert not reasons(made) and replays(made, True) >= 6


def test_a_tensor_over_memory_keeps_its_pool() -> None:
    class Owner:
        pass

    pool, t = Owner(), torch.arange(12.0).reshape(3, 4).t()
    v = step_memory.over(t, pool)
    gone = weakref.ref(pool)
    del pool
    assert torch.equal(v, t) and v.stride() == t.stride() and v.data_ptr() == t.data_ptr() and gone() is not None
    w = v.detach()
    del v
    assert gone() is not None
    del w
    assert gone() is None


def test_where_replays_do_not_pay_off_calls_go_to_the_plan(made: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "_worth_it", lambda *a: "a replay took longer")
    monkeypatch.setattr(
        cuda_graphs.CudaGraphs,
        "__call__",
        lambda self, *inputs, call=cuda_graphs.CudaGraphs.__call__: seen.append(self) or call(self, *inputs),
    )
    seen: list[Any] = []
    f = tcompile.compile(lambda x: x.sin() * 2 + x, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(9):
            x = data(33)
            torch.testing.assert_close(f(x), x.sin() * 2 + x)
    assert seen == [made[0]] * (cuda_graphs.WATCHED + 1) and "a replay took longer" in reasons(made)


def lent(made: list) -> int:
    return sum(len(g.lent.views) for c in made for g in c.entries.values() if g.lent is not None)


def test_what_forward_kept_is_given_back(made: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the backward was captured nobody owns it any more: the allocator has had it for what backward makes."""
    owned: list[weakref.ref] = []
    init = step_memory.Held.__init__

    def noted(self: Any, kept: Any, *args: Any) -> None:
        init(self, kept, *args)
        if not owned:
            owned.extend(map(weakref.ref, kept))

    monkeypatch.setattr(step_memory.Held, "__init__", noted)
    pair = Pair(net())
    for _ in range(6):
        x = data(12, 16)
        pair.step(lambda call: call(x).square().mean().backward())
    gc.collect()
    assert len(owned) >= 4 and not [r for r in owned if r() is not None] and replays(made, True) >= 3


def test_gradients_stay_where_they_are_made(made: list) -> None:
    pair = Pair(net())
    for k in range(10):
        x = data(12, 16)
        pair.step(lambda call: call(x).square().mean().backward())
    assert lent(made) == len(list(pair.modules[0].parameters())) and not reasons(made)
    (g,) = made[1].entries.values()
    places = {p.grad.data_ptr() for p in pair.modules[0].parameters()}
    assert places == {place[0] for place in g.lent.views}
    pair.optimizers[0].zero_grad()
    assert not g.lent.alive


@pytest.mark.parametrize("forward_first", [False, True])
def test_gradients_that_are_kept_are_copied_from_then_on(made: list, forward_first: bool) -> None:
    """Added to over several passes, held by the program, or let go of only between forward and backward."""
    pair = Pair(net())
    kept = []
    for k in range(16):
        x = data(12, 16)
        if k % 4 == 3:
            for m in pair.modules:
                kept.append([(p.grad, p.grad.clone()) for p in m.parameters()])
        if forward_first:

            def how(call: Callable) -> None:
                y = call(x).square().mean()
                pair.optimizers[0 if call is pair.calls[0] else 1].zero_grad()
                y.backward()

            pair.step(how, update=False)
        else:
            if k % 3 == 0:
                for o in pair.optimizers:
                    o.zero_grad()
            pair.step(lambda call: call(x).square().mean().backward(), update=False)
        if k > 10:
            assert all(torch.equal(a, b) for held_ones in kept[-2:] for a, b in held_ones) or not forward_first
    assert not lent(made) and "gradients are copied" in reasons(made)
    assert replays(made, True) >= 6


def test_gradients_that_another_thread_lets_go_of_at_once_stay(made: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's own backward thread does, which holds its last gradient a little longer than the call."""
    monkeypatch.setattr(cuda_graphs, "GRACE_S", 30.0)
    pair, kept = Pair(net()), []
    for k in range(10):
        x = data(12, 16)
        letting_go = threading.Timer(0.02, kept.clear)
        letting_go.start()
        pair.step(lambda call: call(x).square().mean().backward())
        letting_go.join()
        kept += [p.grad for p in pair.modules[0].parameters()]
    assert lent(made) == len(kept) and not reasons(made)


def test_gradients_held_by_the_program_keep_their_values(made: list) -> None:
    pair = Pair(net())
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for k in range(12):
        x = data(12, 16)
        pair.step(lambda call: call(x).square().mean().backward())
        kept += [(p.grad, p.grad.clone()) for p in pair.modules[0].parameters() if k in (4, 5, 9)]
        assert all(torch.equal(a, b) for a, b in kept)
    assert not lent(made)


class Blocks:
    """Equal blocks, compiled as one function that is given each of them, and eager."""

    def __init__(self, n: int):
        blocks = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(n)])
        self.modules = (blocks.to(device), copy.deepcopy(blocks))

    def step(self, block: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = data(12, 16)
        losses = []
        for call, blocks in zip((block, lambda m, x: m(x)), self.modules):
            y = x
            for b in blocks:
                y = call(b, y)
            losses.append(y.square().mean())
            losses[-1].backward()
        torch.testing.assert_close(*losses)
        for p, q in zip(self.modules[0].parameters(), self.modules[1].parameters()):
            torch.testing.assert_close(p.grad, q.grad, atol=5e-5, rtol=1e-3)
            p.grad = q.grad = None
        return losses[0]


def test_equal_blocks_have_graphs_of_their_own(made: list) -> None:
    blocks = Blocks(4)
    block = tcompile.compile(lambda m, x: m(x), mode="reduce-overhead")
    for _ in range(8):
        blocks.step(block)
    forwards, backwards = [c for c in made if not c.backward], [c for c in made if c.backward]
    assert [c.replays for c in forwards] == [6] * 4, "two calls of each are watched"
    assert sum(c.replays for c in backwards) == 24 and not reasons(made)


def test_a_model_that_is_built_anew_has_graphs_again(made: list) -> None:
    block = tcompile.compile(lambda m, x: m(x), mode="reduce-overhead")
    seen = 0
    for _ in range(3):
        blocks = Blocks(2)
        for _ in range(5):
            blocks.step(block)
        assert replays(made, False) - seen == 6
        seen += 6
        del blocks
        gc.collect()
    assert sum(c.captured for c in made if not c.backward and c is c.sets.members[0]) == 2, "old ones are gone"
