"""Entries, code caches and dispatchers, in C and in Python."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import weakref

import pytest
import tcompile.compiler.runtime.dispatch as dispatch
from tcompile.compiler.guards import Guard, compile_guards
from tcompile.compiler.guards import source as S
from tcompile.compiler.native import native

from ..pace import least, within


def n_parameters(code):
    """How many parameter slots a frame of this code has: the length of the `args` that guards are checked against."""
    return (
        code.co_argcount
        + code.co_kwonlyargcount
        + bool(code.co_flags & inspect.CO_VARARGS)
        + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    )


class Kit:
    def __init__(self, kind):
        self.native = kind == "native"
        if self.native:
            self.Entry, self.CodeCache, self.Dispatcher = native.Entry, native.CodeCache, native.Dispatcher
        else:
            self.Entry, self.CodeCache, self.Dispatcher = (
                dispatch.PythonEntry,
                dispatch.PythonCodeCache,
                dispatch.PythonDispatcher,
            )
        self.run_original = native.RUN_ORIGINAL if self.native else dispatch._PYTHON_RUN_ORIGINAL

    def entry(self, guards, fn, n_locals=1):
        return self.Entry(compile_guards(guards, n_locals, force_python=not self.native), fn)


@pytest.fixture(params=["native", "python"])
def kit(request, monkeypatch):
    if request.param == "native" and native is None:
        pytest.skip("the C extension is not built")
    k = Kit(request.param)
    monkeypatch.setattr(dispatch, "RUN_ORIGINAL", k.run_original)
    return k


def compiled(func, *args):
    return ("compiled", *args)


def signatures():
    def plain(a, b):
        return a, b

    def defaults(a, b=2, c=3):
        return a, b, c

    def kwonly(a, *, k, m=5):
        return a, k, m

    def posonly(a, b=7, /, c=8):
        return a, b, c

    def star(a, *rest, k=1):
        return a, rest, k

    def both(a, b=2, *rest, k=3, **more):
        return a, b, rest, k, more

    def nothing():
        return ()

    def clash(a, /, **more):
        return a, more

    return [plain, defaults, kwonly, posonly, star, both, nothing, clash]


@pytest.mark.parametrize("f", signatures(), ids=lambda f: f.__name__)
def test_binding_is_cpythons(kit, f):
    cache = kit.CodeCache()
    cache.add(kit.entry([], compiled, n_parameters(f.__code__)))
    d = kit.Dispatcher(f, cache, lambda *a: pytest.fail("missed"))
    calls = [
        ((), {}),
        ((1,), {}),
        ((1, 2), {}),
        ((1, 2, 3), {}),
        ((1, 2, 3, 4), {}),
        ((1,), {"b": 5}),
        ((), {"a": 1, "b": 2}),
        ((1,), {"k": 4}),
        ((1,), {"k": 4, "m": 6}),
        ((1, 2, 3), {"k": 9, "z": 10}),
        ((1,), {"a": 2}),
        ((1,), {"c": 2}),
        ((1,), {"zz": 0, "b": 4}),
    ]
    for args, kwargs in calls:
        try:
            wanted = f(*args, **kwargs)
        except TypeError as error:
            with pytest.raises(TypeError) as caught:
                d(*args, **kwargs)
            assert str(caught.value) == str(error)
        else:
            got = d(*args, **kwargs)
            assert got[0] == "compiled"
            # parameters come in co_varnames order: *rest and **more last
            names = f.__code__.co_varnames[: n_parameters(f.__code__)]
            by_name = dict(zip(names, got[1:]))
            bound = inspect.signature(f).bind(*args, **kwargs)
            bound.apply_defaults()
            assert by_name == dict(bound.arguments), (wanted, got)


def test_hit_miss_and_order(kit):
    x = S.local(0, "x")
    missed = []

    def f(x):
        return "original"

    cache = kit.CodeCache()

    def miss(d, func, args):
        missed.append((func, args, list(cache.last_failures)))
        if args[0] == "run":
            return kit.run_original
        if args[0] == "value":
            return 99
        e = kit.entry([Guard(x, "EQUALS", args[0])], lambda fn, v: ("new", v))
        cache.add(e)
        return e

    d = kit.Dispatcher(f, cache, miss)
    assert d(1) == ("new", 1) and d(2) == ("new", 2) and d(1) == ("new", 1)
    assert d("run") == "original" and d("value") == 99
    assert [m[1] for m in missed] == [(1,), (2,), ("run",), ("value",)]
    assert missed[0][2] == [] and [i for _, i in missed[1][2]] == [0] and len(missed[2][2]) == 2
    first, second = cache.entries
    assert first.hits == 2 and second.hits == 1  # last hit first
    assert d(2) == ("new", 2) and cache.entries == (second, first)
    cache.remove(second)
    assert cache.entries == (first,) and len(cache) == 1
    with pytest.raises(ValueError):
        cache.remove(second)
    with pytest.raises(TypeError):
        cache.add("no entry")
    assert cache.lookup(f, (1,)) is first and cache.lookup(f, (5,)) is None
    assert cache.last_failures == [(first, 0)]
    cache.clear()
    assert cache.entries == () and cache.lookup(f, (1,)) is None


def test_exceptions_pass_through(kit):
    def f(x):
        return x

    cache = kit.CodeCache()

    def broken(fn, x):
        raise KeyError(x)

    cache.add(kit.entry([Guard(S.local(0, "x"), "TYPE", int)], broken))
    d = kit.Dispatcher(f, cache, lambda d, fn, args: 1 / 0)
    with pytest.raises(KeyError) as caught:
        d(3)
    assert [t.name for t in caught.traceback][-1] == "broken"
    with pytest.raises(ZeroDivisionError):
        d("x")
    assert not dispatch.is_disabled()


def test_works_as_a_method_and_as_the_function(kit):
    class Thing:
        def m(self, x=1):
            """Doc of m."""
            return self, x

    original = Thing.m
    original.mark = "user attribute"
    cache = kit.CodeCache()
    cache.add(kit.entry([], lambda fn, self, x: ("c", self, x), 2))
    Thing.m = kit.Dispatcher(original, cache, lambda *a: None)
    t = Thing()
    assert t.m() == ("c", t, 1) and t.m(x=5) == ("c", t, 5) and Thing.m(t, 2) == ("c", t, 2)
    d = Thing.m
    assert d.__wrapped__ is original and d.__name__ == "m" and d.__qualname__ == original.__qualname__
    assert (
        d.__doc__ == "Doc of m."
        and d.__module__ == __name__
        and d.__code__ is original.__code__
        and d.mark == "user attribute"
    )
    assert inspect.signature(d) == inspect.signature(original)
    d.note = 3
    assert d.note == 3 and not hasattr(original, "note") and "compiled" in repr(d)
    with pytest.raises(AttributeError):
        _ = d.no_such
    assert weakref.ref(d)() is d
    with pytest.raises(TypeError):
        kit.Dispatcher(len, cache, print)


def test_subclass_of_the_dispatcher(kit):
    class Mine(kit.Dispatcher):
        def extra(self):
            return "extra"

    cache = kit.CodeCache()
    cache.add(kit.entry([], compiled))
    m = Mine(lambda x: x, cache, print)
    assert m(4) == ("compiled", 4) and m.extra() == "extra"


def test_disabled_threads_run_originals(kit):
    def f(x):
        return ("original", x)

    cache = kit.CodeCache()
    cache.add(kit.entry([], compiled))
    inner = []

    def miss(d, fn, args):
        inner.append(d(0) if not args[0] else None)  # compiled code is off while the compiler works
        return kit.run_original

    d = kit.Dispatcher(f, cache, miss)
    with dispatch.disabled():
        assert d(1) == ("original", 1) and dispatch.is_disabled()
        with dispatch.disabled():
            pass
        other = []
        t = threading.Thread(target=lambda: other.append(d(1)))
        t.start()
        t.join()
        assert other == [("compiled", 1)]
    assert d(1) == ("compiled", 1)
    cache.clear()
    assert d(0) == ("original", 0) and inner == [("original", 0)]


def test_code_replaced_behind_our_back(kit):
    def f(x):
        return 1

    cache = kit.CodeCache()
    cache.add(kit.entry([], compiled))
    d = kit.Dispatcher(f, cache, print)
    f.__code__ = (lambda x: 2).__code__
    assert d(0) == 2


def test_changing_the_cache_inside_a_guard(kit):
    """A guard that asks Python may let other code change the cache: nothing breaks."""
    cache = kit.CodeCache()

    class Program:
        def check(self, func, args):
            cache.clear()
            cache.add(kit.Entry(good, compiled))
            return 0

    good = compile_guards([], 1, force_python=not kit.native)
    cache.add(kit.Entry(Program(), compiled))
    d = kit.Dispatcher(lambda x: x, cache, lambda *a: "missed")
    assert d(1) in ("missed", ("compiled", 1))
    assert d(1) == ("compiled", 1)


def test_no_leaks_in_many_calls(kit):
    def f(a, b=2, *rest, **more):
        return a

    cache = kit.CodeCache()
    x = S.local(0, "a")
    cache.add(kit.entry([Guard(x, "TYPE", float)], lambda fn, *a: None, 4))
    cache.add(kit.entry([Guard(x, "TYPE", list), Guard(S.item(x, 0), "EQUALS", 1)], lambda fn, *a: a[0], 4))
    d = kit.Dispatcher(f, cache, lambda *a: kit.run_original)
    value, extra = [1], object()
    d(value, 1, extra, k=extra)
    d("miss")  # `last_failures` holds the entries from now on
    d("miss")
    n = 100_000 if kit.native else 5_000
    gc.collect()
    before = [sys.getrefcount(o) for o in (value, extra, cache, f, *cache.entries)]
    blocks = sys.getallocatedblocks()
    for _ in range(n):
        d(value, 1, extra, k=extra)
        d(value)
    for _ in range(n // 20):
        d("miss")
        try:
            d()
        except TypeError:
            pass
    gc.collect()
    assert [sys.getrefcount(o) for o in (value, extra, cache, f, *cache.entries)] == before
    assert sys.getallocatedblocks() - blocks < 500


def test_caches_live_and_die_with_their_code():
    scope = {}
    exec("def f(x): return x", scope)
    code = scope["f"].__code__
    cache = dispatch.code_cache(code)
    assert dispatch.code_cache(code) is cache and len(cache) == 0
    twin = code.replace()
    assert twin == code and dispatch.code_cache(twin) is not cache
    assert dispatch.code_cache((lambda: 0).__code__, False) is None
    marker = type("Marker", (), {})()
    cache.add(dispatch.Entry(compile_guards([], 1), compiled, marker))
    gone = weakref.ref(marker)
    dispatch.forget_code(code)
    del marker
    gc.collect()
    assert gone() is None and len(cache) == 0


def test_threads_share_a_cache(kit):
    cache = kit.CodeCache()
    x = S.local(0, "x")
    for k in range(4):
        cache.add(kit.entry([Guard(x, "EQUALS", k)], lambda fn, v, k=k: (k, v)))
    d = kit.Dispatcher(lambda x: x, cache, lambda *a: pytest.fail("missed"))
    wrong = []

    def work(k):
        for _ in range(3000):
            if d(k) != (k, k):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(native is None, reason="the C extension is not built")
def test_overhead(capsys):
    """Dispatch costs less than a call by way of a Python function, and a TENSOR guard a fraction of the same tests in
    Python. `make bench` holds the budgets in nanoseconds.
    """
    import torch
    from tcompile.compiler.guards import TensorSpec

    t = torch.randn(4, 4)
    dtype, device = t.dtype, t.device
    spec = TensorSpec(torch.Tensor, dtype, device, False, (4, 4), (4, 1))

    def f(x, y):
        return x

    def entry(fn, x, y):
        return x

    def by_python(*args):
        return entry(f, *args)

    def holds(x):
        same = type(x) is torch.Tensor and x.dtype is dtype and x.device == device and not x.requires_grad
        return same and x.shape == (4, 4) and x.stride() == (4, 1)

    def dispatcher(*guards):
        cache = native.CodeCache()
        cache.add(native.Entry(compile_guards(list(guards), 2), entry))
        return native.Dispatcher(f, cache, print)

    def often(call, *args):
        return lambda: [call(*args) for _ in range(2_000)]

    two = [Guard(S.local(i, name), "TENSOR", spec) for i, name in enumerate("xy")]
    works = (
        often(entry, f, t, t),
        often(by_python, t, t),
        often(dispatcher(), t, t),
        often(dispatcher(*two), t, t),
        often(holds, t),
    )

    def ratios():
        direct, python, bare, guarded, tests = least(*works, rounds=30)
        return (bare - direct) / (python - direct), (guarded - bare) / 2 / tests

    call = within(lambda: ratios()[0], 1)
    guard = within(lambda: ratios()[1], 0.15)
    with capsys.disabled():
        print(f"\ndispatch {call:.2f} of a Python function's call; a TENSOR guard {guard:.3f} of the tests in Python")
    assert call <= 1 and guard <= 0.15  # 0.35 and 0.035 on an idle machine
