"""Arguments and globals of every kind, changed between calls: the result is always eager's."""

from __future__ import annotations

import collections
import datetime
import decimal
import pathlib
import random
import types
import warnings

import pytest
import tcompile
import torch
import torch.nn as nn

from .changing import eq, run, x


def test_global_list_rebound():
    ns = {"L": [1, 2], "torch": torch}
    exec("def fn(x): return x+L[0]+len(L)", ns)
    c = run(ns["fn"])
    f = ns["fn"]
    eq(f(x), c(x))
    ns["L"] = [3]
    eq(f(x), c(x))
    ns["L"] = (3,)
    eq(f(x), c(x))
    ns["L"] = {0: 5}
    eq(f(x), c(x))


def test_global_deleted():
    ns = {"K": 2}
    exec("def fn(x):\n try: k=K\n except NameError: k=9\n return x*k", ns)
    c = run(ns["fn"])
    f = ns["fn"]
    eq(f(x), c(x))
    del ns["K"]
    eq(f(x), c(x))
    ns["K"] = 3
    eq(f(x), c(x))


def test_int_float_bool_keys():

    def fn(x, d):
        return x + d[1]

    c = run(fn)
    for d in ({1: 2}, {1.0: 3}, {True: 4}, {1: 2.5}):
        eq(fn(x, d), c(x, d))


def test_str_arg():

    def fn(x, s):
        return x + len(s) if s.startswith("a") else x

    c = run(fn)
    for s in ("a", "ab", "b", "ac"):
        eq(fn(x, s), c(x, s))


def test_slice_arg():

    def fn(x, s):
        return x[s]

    c = run(fn)
    for s in (slice(0, 2), slice(1, 3), slice(None), slice(0, 4, 2), 1):
        eq(fn(x, s), c(x, s))


def test_dtype_arg():

    def fn(x, d):
        return x.to(d)

    c = run(fn)
    for d in (torch.float64, torch.float32, torch.int32):
        eq(fn(x, d), c(x, d))


def test_nested_tuple_arg():

    def fn(x, t):
        return x * t[0][1] + t[1]["a"]

    c = run(fn)
    for t in (((1, 2), {"a": 1}), ((1, 3), {"a": 1}), ((1, 2), {"a": 2}), ([1, 2], {"a": 1})):
        eq(fn(x, t), c(x, t))


def test_optional_tensor():

    def fn(x, y=None):
        return x if y is None else x + y

    c = run(fn)
    for y in (None, x, None, x.double(), torch.ones(3)):
        eq(fn(x, y), c(x, y))


def test_tensor_in_list_alias():

    def fn(l):
        return l[0] + l[1] if l[0] is not l[1] else l[0] * 5

    c = run(fn)
    a, b = (torch.ones(3), torch.ones(3))
    for l in ([a, b], [a, a], [b, a], [b, b]):
        eq(fn(l), c(l))


def test_mutated_alias():

    def fn(a, b):
        a.add_(1)
        return a + b

    c = run(fn)
    for mk in (
        lambda: (torch.ones(3), torch.ones(3)),
        lambda: (lambda t: (t, t))(torch.ones(3)),
        lambda: (lambda t: (t[:3], t[1:4]))(torch.ones(5)),
        lambda: (lambda t: (t, t.view(3)))(torch.ones(3)),
    ):
        a = mk()
        b = mk()
        eq(fn(*a), c(*b))
        eq(a[0], b[0])
        eq(a[1], b[1])


def test_obj_alias_mutated():

    class A:
        pass

    def fn(x, a, b):
        a.k = 3
        return x + b.k

    c = run(fn)

    def two():
        a, b = (A(), A())
        a.k = b.k = 1
        return (a, b)

    a, b = two()
    eq(fn(x, a, b), c(x, *two()))
    a, _ = two()
    eq(fn(x, a, a), c(x, *(lambda o: (o, o))(two()[0])))


def test_generator_arg():

    def fn(x, g):
        return x + sum(g)

    c = run(fn)
    for k in (2, 3):
        eq(fn(x, iter(range(k))), c(x, iter(range(k))))


def test_range_arg():

    def fn(x, r):
        for i in r:
            x = x + i
        return x

    c = run(fn)
    for r in (range(2), range(3), range(1, 3), [1, 2]):
        eq(fn(x, r), c(x, r))


def test_set_arg():

    def fn(x, s):
        return x + (1 if "a" in s else 0) + len(s)

    c = run(fn)
    for s in ({"a"}, {"b"}, {"a", "b"}, frozenset({"a"})):
        eq(fn(x, s), c(x, s))


def test_datetime_arg():

    def fn(x, d):
        return x + d.year

    c = run(fn)
    for d in (datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)):
        eq(fn(x, d), c(x, d))


def test_decimal_arg():

    def fn(x, d):
        return x + float(d)

    c = run(fn)
    for d in (decimal.Decimal("1.5"), decimal.Decimal("2.5")):
        eq(fn(x, d), c(x, d))


def test_path_arg():

    def fn(x, d):
        return x + len(d.name)

    c = run(fn)
    for d in (pathlib.Path("/a/bc"), pathlib.Path("/a/bcd")):
        eq(fn(x, d), c(x, d))


def test_userdict():
    d = collections.UserDict(a=1)

    def fn(x):
        return x + d["a"]

    c = run(fn)
    eq(fn(x), c(x))
    d["a"] = 4
    eq(fn(x), c(x))


def test_chainmap():
    d = collections.ChainMap({"a": 1}, {"b": 2})

    def fn(x):
        return x + d["a"] + d["b"]

    c = run(fn)
    eq(fn(x), c(x))
    d["a"] = 4
    eq(fn(x), c(x))
    d.maps[1]["b"] = 7
    eq(fn(x), c(x))


def test_mappingproxy():
    d = {"a": 1}
    p = types.MappingProxyType(d)

    def fn(x):
        return x + p["a"] + len(p)

    c = run(fn)
    eq(fn(x), c(x))
    d["a"] = 4
    eq(fn(x), c(x))
    d["b"] = 4
    eq(fn(x), c(x))


def test_simplens():
    s = types.SimpleNamespace(a=1)

    def fn(x):
        return x + s.a

    c = run(fn)
    eq(fn(x), c(x))
    s.a = 4
    eq(fn(x), c(x))
    s.__dict__["a"] = 5
    eq(fn(x), c(x))


def test_thread_local():
    import threading

    t = threading.local()
    t.k = 2

    def fn(x):
        return x * t.k

    c = run(fn)
    eq(fn(x), c(x))
    t.k = 3
    eq(fn(x), c(x))


def test_contextvar():
    import contextvars

    v = contextvars.ContextVar("v", default=2)

    def fn(x):
        return x * v.get()

    c = run(fn)
    eq(fn(x), c(x))
    v.set(3)
    eq(fn(x), c(x))


def test_random_state():

    def fn(x):
        return x + random.random()

    c = run(fn)
    random.seed(0)
    a = [fn(x) for _ in range(3)]
    random.seed(0)
    b = [c(x) for _ in range(3)]
    eq(a, b)


def test_counter_global():
    ns = {"n": 0}
    exec("def fn(x):\n global n\n n+=1\n return x+n", ns)
    f = ns["fn"]
    c = run(f)
    a = [f(x) for _ in range(12)]
    ns["n"] = 0
    b = [c(x) for _ in range(12)]
    eq(a, b)
    assert ns["n"] == 12


def test_attr_counter():

    class A:
        pass

    a = A()
    a.n = 0

    def fn(x):
        a.n += 1
        return x + a.n

    c = run(fn)
    r = [fn(x) for _ in range(12)]
    a.n = 0
    s = [c(x) for _ in range(12)]
    eq(r, s)


def test_warnings_filter():
    def fn(x):
        warnings.warn("w", stacklevel=1)
        return x + 1

    c = run(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eq(fn(x), c(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for g in (fn, c):
            with pytest.raises(UserWarning):
                g(x)


def test_requires_grad_flip():
    w = torch.ones(3)

    def fn(x):
        return x * w

    c = run(fn)
    eq(fn(x), c(x))
    w.requires_grad_(True)
    assert c(x).requires_grad
    w.requires_grad_(False)
    assert not c(x).requires_grad


def test_layout_sparse():

    def fn(a):
        return a.sum() * 2

    c = run(fn)
    eq(fn(x), c(x))
    eq(fn(x.to_sparse()), c(x.to_sparse()))


def test_subclass_tensor():

    class T(torch.Tensor):
        pass

    def fn(a):
        return a * 2

    c = run(fn)
    eq(fn(x), c(x))
    t = x.as_subclass(T)
    assert type(c(t)) is type(fn(t))


def test_conj_neg():

    def fn(a):
        return a * 2

    c = run(fn)
    z = torch.randn(3, dtype=torch.complex64)
    eq(fn(z), c(z))
    eq(fn(z.conj()), c(z.conj()))
    eq(fn(z.conj().imag), c(z.conj().imag))


def test_memory_format():
    m = nn.Conv2d(3, 4, 3)
    c = run(m)
    a = torch.randn(1, 3, 8, 8)
    for t in (a, a.contiguous(memory_format=torch.channels_last), a):
        u, v = (m(t), c(t))
        eq(u, v)
        assert u.stride() == v.stride()


@pytest.mark.parametrize("dynamic", [None, False, True])
def test_fewer_dimensions_after_a_size_was_learned(dynamic):
    """What sizes and strides of larger tensors taught says nothing of a tensor that has no such dimension."""

    def fn(x):
        return x * 2 + x.stride(0)

    c = tcompile.compile(fn, backend="eager", dynamic=dynamic)
    for shape in ((4, 3), (4, 4), (3,), (5,), (4, 5)):
        z = torch.ones(shape)
        eq(fn(z), c(z))
    for width in (6, 8):
        z = torch.ones(3, 2, width)[:, :, 0]
        eq(fn(z), c(z))
        eq(fn(z.t()[:1]), c(z.t()[:1]))
    eq(fn(torch.ones(3)), c(torch.ones(3)))
