"""What is reached in other ways than by names: weak references, attributes of threads, tensors as keys, callables that
the program wants in graphs.
"""

from __future__ import annotations

import collections
import gc
import threading
import weakref

import pytest
import torch
import torch._dynamo

import tcompile

Y = torch.arange(4.0)


class Owner:
    factor = 2


def whole(fn):
    return tcompile.compile(fn, fullgraph=True, backend="eager")


@pytest.mark.parametrize("make", [Owner, lambda: torch.ones(4)])
def test_the_target_of_a_weak_reference_is_followed_while_it_lives(make):
    def fn(reference, y):
        target = reference()
        return y - 1 if target is None else y * getattr(target, "factor", target)

    c, targets = whole(fn), [make(), make()]
    first, second = map(weakref.ref, targets)
    if isinstance(targets[1], Owner):
        targets[1].factor = 5
    else:
        targets[1].add_(3)
    for reference in (first, second, first, second):
        assert torch.equal(c(reference, Y), fn(reference, Y))
    del targets[0]
    gc.collect()
    assert first() is None, "an entry keeps what it knows by a weak reference alone"
    for reference in (first, second):
        assert torch.equal(c(reference, Y), fn(reference, Y))


def test_a_weak_reference_made_inside():
    box = Owner()

    def fn(x, y):
        box.reference = weakref.ref(x)
        return weakref.ref(x)() * y, box.reference

    x = torch.ones(4)
    product, reference = whole(fn)(x, Y)
    assert reference is box.reference is weakref.ref(x)
    assert torch.equal(product, Y)


def test_a_weak_reference_to_what_is_made_inside_breaks():
    def fn(x):
        y = x + 1
        reference = weakref.ref(y)
        return reference() is y, x * 2

    assert tcompile.compile(fn, backend="eager")(Y)[0]
    with pytest.raises(tcompile.FullGraphError, match="weak reference"):
        whole(fn)(Y)


def test_attributes_that_a_thread_lacks():
    local = threading.local()

    def fn(y):
        if not hasattr(local, "count"):
            local.count = 0
        local.count += 1
        del local.count
        try:
            local.count
        except AttributeError as e:
            local.said = str(e).partition(" object")[2]
        return y * getattr(local, "scale", 5), local.said

    run = whole(fn)
    for _ in range(2):
        for scale in (None, 2, 3):
            if scale is not None:
                local.scale = scale
            got, said = run(Y)
            assert torch.equal(got, Y * (scale or 5)) and said == " has no attribute 'count'"
            assert vars(local).keys() <= {"said", "scale"}
        del local.scale


def test_attributes_of_a_thread():
    local = threading.local()

    def fn(y):
        local.last = y
        local.count = local.count + 1
        return y * local.scale + local.count

    c, errors = whole(fn), []

    def run(scale):
        try:
            for i in range(3):
                local.scale, local.count = scale + i, 10 * i
                got = c(Y)
                assert torch.equal(got, Y * (scale + i) + 10 * i + 1)
                assert local.last is Y and local.count == 10 * i + 1
        except BaseException as e:
            errors.append(e)

    for scale in (2, 7):
        thread = threading.Thread(target=run, args=(scale,))
        thread.start()
        thread.join()
    assert not errors


@pytest.mark.parametrize("factory", [list, dict, lambda: 5])
def test_a_tensor_as_a_new_key(factory):
    key, made = torch.nn.Parameter(torch.ones(2)), []
    for compiled in (False, True):
        d = collections.defaultdict(factory)

        def fn(x, d=d):
            d["a"] = x + 1
            d[key] = 123
            d["a"] = x + 2
            d[1] = x
            return d["b"], d["a"], d[1]

        run = whole(fn) if compiled else fn
        made.append(([run(Y * i) for i in range(3)], d))
    (want, d), (got, e) = made
    assert repr(want) == repr(got)
    assert list(map(repr, d.items())) == list(map(repr, e.items()))


class Twice:
    def __init__(self, factor=2):
        self.factor, self.__name__ = factor, "twice"

    def __call__(self, x):
        return x * self.factor


@torch._dynamo.allow_in_graph
def unfollowed(x, others, k=1):
    torch._dynamo.graph_break()
    return x + others[0] * k, x.sum()


twice = torch._dynamo.allow_in_graph(Twice())


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
def test_callables_allowed_in_graphs(backend, monkeypatch):
    def fn(x):
        a, b = unfollowed(x, [x], k=3)
        return a * b + twice(x)

    c, x = tcompile.compile(fn, backend=backend, fullgraph=True), torch.rand(4, requires_grad=True)
    for _ in range(2):
        torch.testing.assert_close(c(x), fn(x))
        torch.testing.assert_close(torch.autograd.grad(c(x).sum(), x), torch.autograd.grad(fn(x).sum(), x))
    monkeypatch.setitem(globals(), "twice", torch._dynamo.allow_in_graph(Twice(5)))
    torch.testing.assert_close(c(x), fn(x))


@torch._dynamo.allow_in_graph
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        torch._dynamo.graph_break()
        ctx.rows = x.shape[0] * factor
        return x * factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.rows, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
def test_a_function_of_autograd_allowed_in_graphs(backend):
    """Its backward is followed with the gradients; sizes that it kept are those of each call."""

    def fn(x):
        return Scaled.apply(x, 3).sin()

    c = tcompile.compile(fn, backend=backend, fullgraph=True)
    for n in (2, 3, 4):
        x = torch.rand(n, 2, requires_grad=True)
        torch.testing.assert_close(c(x), fn(x))
        torch.testing.assert_close(torch.autograd.grad(c(x).sum(), x), torch.autograd.grad(fn(x).sum(), x))


def test_one_entry_serves_references_to_other_objects():
    """A module of torch keeps weak references to its weights: each module has others."""

    class Box:
        pass

    def f(box):
        target = box.reference()
        return box.value * 2 if target is box.value else box.value - (0 if target is None else target)

    def box_of(value, target):
        box = Box()
        box.value, box.reference, box.kept = value, weakref.ref(target), target
        return box

    fast = tcompile.compile(f)
    with tcompile.record() as record:
        for k in range(4):
            x = torch.full((3,), float(k))
            torch.testing.assert_close(fast(box_of(x, x)), x * 2)
        assert len(record.report().entries) == 1
        for k in range(3):
            x, other = torch.full((3,), float(k)), torch.ones(3)
            torch.testing.assert_close(fast(box_of(x, other)), x - other)
        gone = box_of(x, torch.ones(3))
        gone.kept = None
        torch.testing.assert_close(fast(gone), x)
    assert len(record.report().entries) == 3


def test_one_entry_serves_recurrent_modules_alike():
    modules = [torch.nn.LSTM(4, 6, batch_first=True) for _ in range(4)]
    fast = tcompile.compile(lambda module, x: module(x)[0])
    x = torch.randn(2, 5, 4)
    with tcompile.record() as record:
        for module in modules:
            torch.testing.assert_close(fast(module, x), module(x)[0])
        modules[0].weight_hh_l0 = torch.nn.Parameter(modules[0].weight_hh_l0 * 2)
        torch.testing.assert_close(fast(modules[0], x), modules[0](x)[0])
    assert len(record.report().entries) <= 2
