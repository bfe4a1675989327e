"""Special methods, attributes of modules, and functions kept in data, changed between calls: the result is always
eager's.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing

import pytest
import torch
import torch.nn as nn

from .changing import eq, run, x


def test_module_attr_deleted():
    mod = types.ModuleType("mm")
    mod.K = 2

    def fn(x):
        return x * getattr(mod, "K", 7)

    c = run(fn)
    eq(fn(x), c(x))
    del mod.K
    eq(fn(x), c(x))
    mod.__getattr__ = lambda n: 5
    eq(fn(x), c(x))


def test_nested_module_params():

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.ps = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
            s.d = nn.ModuleDict({"a": nn.Linear(3, 3)})

        def forward(s, x):
            for p in s.ps:
                x = x + p
            for k, v in s.d.items():
                x = v(x)
            return x

    m = M()
    c = run(m)
    eq(m(x), c(x))
    m.ps.append(nn.Parameter(torch.full((3,), 2.0)))
    eq(m(x), c(x))
    m.d["b"] = nn.ReLU()
    eq(m(x), c(x))
    m.ps[0] = nn.Parameter(torch.zeros(3))
    eq(m(x), c(x))
    del m.d["a"]
    eq(m(x), c(x))


def test_weight_tying():

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = nn.Linear(3, 3)
            s.b = nn.Linear(3, 3)
            s.b.weight = s.a.weight

        def forward(s, x):
            return s.b(s.a(x)) if s.a.weight is s.b.weight else s.a(x)

    m = M()
    c = run(m)
    eq(m(x), c(x))
    m.b.weight = nn.Parameter(m.a.weight.detach().clone())
    eq(m(x), c(x))
    m.b.weight = m.a.weight
    eq(m(x), c(x))


def test_buffer_shape():

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("b", torch.ones(3))

        def forward(s, x):
            return x + s.b.sum() * s.b.shape[0]

    m = M()
    c = run(m)
    eq(m(x), c(x))
    m.b = torch.ones(5)
    eq(m(x), c(x))
    m.b.resize_(2)
    eq(m(x), c(x))
    m.b = None
    for f in (m, c):
        with pytest.raises((AttributeError, TypeError)):
            f(x)


def test_hooks_all():
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    c = run(m)
    eq(m(x), c(x))
    h = m[0].register_forward_hook(lambda m, a, o: o + 1)
    eq(m(x), c(x))
    h2 = m[0].register_forward_pre_hook(lambda m, a: (a[0] * 2,))
    eq(m(x), c(x))
    h.remove()
    eq(m(x), c(x))
    h2.remove()
    eq(m(x), c(x))
    h = m[1].register_forward_hook(lambda m, a, k, o: o + 1, with_kwargs=True)
    eq(m(x), c(x))
    h.remove()
    h = nn.modules.module.register_module_forward_hook(lambda m, a, o: o * 1.5)
    eq(m(x), c(x))
    h.remove()
    eq(m(x), c(x))


def test_training_submodule():
    m = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.BatchNorm1d(3))
    c = run(m)
    m.eval()
    eq(m(x), c(x))
    m[2].train()
    a = m(x)
    m[2].reset_running_stats()
    m2 = m
    m[2].reset_running_stats()
    b = c(x)
    eq(a, b)


def test_closure_list():
    l = [1, 2]

    def fn(x):
        return x + sum(l)

    c = run(fn)
    eq(fn(x), c(x))
    l[0] = 5
    eq(fn(x), c(x))
    l.append(2)
    eq(fn(x), c(x))


def test_closure_obj_method():

    class A:
        def __init__(s):
            s.w = 2

        def f(s, x):
            return x * s.w

    a = A()
    g = a.f

    def fn(x):
        return g(x)

    c = run(fn)
    eq(fn(x), c(x))
    a.w = 5
    eq(fn(x), c(x))
    A.f = lambda s, x: x
    eq(fn(x), c(x))


def test_dataclass_eq():

    @dataclasses.dataclass
    class P:
        a: int = 1

    p, q = (P(1), P(1))

    def fn(x):
        return x + 1 if p == q else x - 1

    c = run(fn)
    eq(fn(x), c(x))
    q.a = 2
    eq(fn(x), c(x))


def test_class_dict_items():

    class A:
        a = 1
        b = 2

    def fn(x):
        return x + sum((v for k, v in vars(A).items() if k in ("a", "b")))

    c = run(fn)
    eq(fn(x), c(x))
    A.b = 9
    eq(fn(x), c(x))


def test_vars_obj():

    class A:
        pass

    a = A()
    a.p = 1

    def fn(x):
        return x + sum(vars(a).values()) + len(a.__dict__)

    c = run(fn)
    eq(fn(x), c(x))
    a.q = 5
    eq(fn(x), c(x))
    a.p = 3
    eq(fn(x), c(x))


def test_dir_obj():

    class A:
        pass

    a = A()
    a.p = 1

    def fn(x):
        return x + len([n for n in dir(a) if not n.startswith("_")])

    c = run(fn)
    eq(fn(x), c(x))
    a.q = 5
    eq(fn(x), c(x))
    A.z = 1
    eq(fn(x), c(x))


def test_getattr_dynamic():

    class A:
        pass

    a = A()
    a.p = 1
    a.q = 2

    def fn(x, n):
        return x + getattr(a, n)

    c = run(fn)
    for n in ("p", "q", "p"):
        eq(fn(x, n), c(x, n))
    a.q = 7
    eq(fn(x, "q"), c(x, "q"))


def test_callable_check():

    class A:
        pass

    a = A()

    def fn(x):
        return x + callable(a)

    c = run(fn)
    eq(fn(x), c(x))
    A.__call__ = lambda s: 1
    eq(fn(x), c(x))


def test_issubclass_check():

    class A:
        pass

    class B2:
        pass

    ns = {"T": B2}

    def fn(x):
        return x + issubclass(ns["T"], A)

    c = run(fn)
    eq(fn(x), c(x))
    ns["T"] = type("C", (A,), {})
    eq(fn(x), c(x))
    B2.__bases__


def test_protocol_check():

    @typing.runtime_checkable
    class P(typing.Protocol):
        def go(self): ...

    class A:
        pass

    a = A()

    def fn(x):
        return x + isinstance(a, P)

    c = run(fn)
    eq(fn(x), c(x))
    A.go = lambda s: 1
    eq(fn(x), c(x))


def test_iter_dunder():

    class A:
        def __init__(s):
            s.l = [1, 2]

        def __iter__(s):
            return iter(s.l)

    a = A()

    def fn(x):
        return x + sum(a)

    c = run(fn)
    eq(fn(x), c(x))
    a.l.append(5)
    eq(fn(x), c(x))
    A.__iter__ = lambda s: iter([9])
    eq(fn(x), c(x))


def test_getitem_dunder():

    class A:
        def __init__(s):
            s.l = [1, 2]

        def __getitem__(s, i):
            return s.l[i]

    a = A()

    def fn(x):
        return x + a[0]

    c = run(fn)
    eq(fn(x), c(x))
    a.l[0] = 5
    eq(fn(x), c(x))
    A.__getitem__ = lambda s, i: 9
    eq(fn(x), c(x))


def test_contains_dunder():

    class A:
        def __contains__(s, i):
            return False

    a = A()

    def fn(x):
        return x + (3 in a)

    c = run(fn)
    eq(fn(x), c(x))
    A.__contains__ = lambda s, i: True
    eq(fn(x), c(x))


def test_add_dunder():

    class A:
        pass

    A.__add__ = lambda s, o: 2
    a = A()

    def fn(x):
        return x + (a + 1)

    c = run(fn)
    eq(fn(x), c(x))
    A.__add__ = lambda s, o: 3
    eq(fn(x), c(x))


def test_radd_tensor():

    class A:
        pass

    A.__radd__ = lambda s, o: o * 2
    a = A()

    def fn(x):
        return x + a

    c = run(fn)
    eq(fn(x), c(x))
    A.__radd__ = lambda s, o: o * 3
    eq(fn(x), c(x))


def test_index_dunder():

    class A:
        v = 1

        def __index__(s):
            return s.v

    a = A()

    def fn(x):
        return x + [5, 6, 7][a]

    c = run(fn)
    eq(fn(x), c(x))
    A.v = 2
    eq(fn(x), c(x))


def test_float_dunder():

    class A:
        v = 1.0

        def __float__(s):
            return s.v

    a = A()

    def fn(x):
        return x + float(a)

    c = run(fn)
    eq(fn(x), c(x))
    A.v = 2.0
    eq(fn(x), c(x))


def test_format_dunder():

    class A:
        v = "ab"

        def __str__(s):
            return s.v

    a = A()

    def fn(x):
        return x + len(f"{a}")

    c = run(fn)
    eq(fn(x), c(x))
    A.v = "abc"
    eq(fn(x), c(x))
    A.__str__ = lambda s: "z"
    eq(fn(x), c(x))
    A.__format__ = lambda s, f: "longer"
    eq(fn(x), c(x))


def test_ctx_manager():

    class A:
        v = 1

        def __enter__(s):
            return s.v

        def __exit__(s, *a):
            return False

    a = A()

    def fn(x):
        with a as v:
            return x + v

    c = run(fn)
    eq(fn(x), c(x))
    A.v = 2
    eq(fn(x), c(x))
    A.__enter__ = lambda s: 9
    eq(fn(x), c(x))


def test_getattr_class_fallback():

    class A:
        def __getattr__(s, n):
            return 2

    a = A()

    def fn(x):
        return x * a.anything

    c = run(fn)
    eq(fn(x), c(x))
    a.anything = 5
    eq(fn(x), c(x))
    del a.anything
    A.anything = 7
    eq(fn(x), c(x))
    del A.anything
    A.__getattr__ = lambda s, n: 9
    eq(fn(x), c(x))


def test_module_counter():

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.n = 0
            s.l = nn.Linear(3, 3)

        def forward(s, x):
            s.n += 1
            return s.l(x) * s.n

    m = M()
    c = run(m)
    r = [m(x) for _ in range(12)]
    m.n = 0
    s = [c(x) for _ in range(12)]
    eq(r, s)


def test_lambda_default_capture():
    fs = [lambda x, i=i: x * i for i in range(3)]

    def fn(x, k):
        return fs[k](x)

    c = run(fn)
    for k in (0, 1, 2):
        eq(fn(x, k), c(x, k))
    fs[1].__defaults__ = (7,)
    eq(fn(x, 1), c(x, 1))
    fs[0] = fs[2]
    eq(fn(x, 0), c(x, 0))


def test_func_in_dict():
    d = {"a": lambda x: x + 1, "b": lambda x: x + 2}

    def fn(x, k):
        return d[k](x)

    c = run(fn)
    for k in "abab":
        eq(fn(x, k), c(x, k))
    d["a"] = d["b"]
    eq(fn(x, "a"), c(x, "a"))


def test_func_attr_list():

    def h(x):
        return x * h.w

    h.w = 2

    def fn(x):
        return h(x)

    c = run(fn)
    eq(fn(x), c(x))
    h.w = 4
    eq(fn(x), c(x))


def test_wraps_wrapped():

    def base(x):
        return x + 1

    @functools.wraps(base)
    def w(x):
        return w.__wrapped__(x) * 2

    def fn(x):
        return w(x)

    c = run(fn)
    eq(fn(x), c(x))
    w.__wrapped__ = lambda x: x - 1
    eq(fn(x), c(x))


def test_total_ordering():

    @functools.total_ordering
    class V:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

        def __lt__(s, o):
            return s.v < o.v

    a, b = (V(1), V(2))

    def fn(x):
        return x + (a >= b)

    c = run(fn)
    eq(fn(x), c(x))
    a.v = 3
    eq(fn(x), c(x))


def test_singledispatch():

    @functools.singledispatch
    def g(v):
        return 1

    @g.register
    def _(v: int):
        return 2

    def fn(x, v):
        return x + g(v)

    c = run(fn)
    eq(fn(x, 1), c(x, 1))
    eq(fn(x, "a"), c(x, "a"))
    g.register(str)(lambda v: 5)
    eq(fn(x, "a"), c(x, "a"))
