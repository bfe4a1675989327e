"""Functions, closures, defaults and globals are changed between calls in every way that Python has: the result is
always eager's.
"""

from __future__ import annotations

import collections
import functools
import math
import sys
import types

import tcompile
import torch
import torch.nn.functional as F

from .changing import eq, run, x


def test_func_is():

    def g1(x):
        return x + 1

    def g2(x):
        return x + 2

    def fn(x, f):
        return x + 1 if f is g1 else x + 2

    c = run(fn)
    for f in (g1, g2, g1):
        eq(fn(x, f), c(x, f))


def test_func_eq_in():

    def g1(x):
        return x + 1

    def g2(x):
        return x + 2

    def fn(x, f):
        return x + 1 if f in (g1,) else x + 2 if f == g2 else x + 3

    c = run(fn)
    for f in (g1, g2, g1, math.sin):
        eq(fn(x, f), c(x, f))


def test_func_hash_dict():

    def g1(x):
        return x + 1

    def g2(x):
        return x + 2

    d = {g1: 1.0, g2: 2.0}

    def fn(x, f):
        return x + d[f]

    c = run(fn)
    for f in (g1, g2, g1):
        eq(fn(x, f), c(x, f))


def test_func_name():

    def g1(x):
        return x + 1

    def g2(x):
        return x + 1

    def fn(x, f):
        return f(x) + len(f.__name__)

    c = run(fn)
    for f in (g1, g2, lambda x: x + 1):
        eq(fn(x, f), c(x, f))
    g1.__name__ = "longername"
    eq(fn(x, g1), c(x, g1))


def test_global_code_replaced():
    src = "def h(x): return x*2"
    ns = {"torch": torch}
    exec(src, ns)
    exec("def fn(x): return h(x)+1", ns)
    c = run(ns["fn"])
    eq(ns["fn"](x), c(x))

    def other(x):
        return x * 5

    ns["h"].__code__ = other.__code__
    eq(ns["fn"](x), c(x))


def test_global_redefined_defaults():
    ns = {"torch": torch}
    exec("def h(x,k=2): return x*k\ndef fn(x): return h(x)+1", ns)
    c = run(ns["fn"])
    eq(ns["fn"](x), c(x))
    exec("def h(x,k=3): return x*k", ns)
    eq(ns["fn"](x), c(x))
    ns["h"].__defaults__ = (9,)
    eq(ns["fn"](x), c(x))


def test_same_code_two_globals_root():
    code = compile("def f(x):\n    y=x*K\n    print(end='' if y.sum()>-1e9 else ' ')\n    return y+K", "a", "exec")
    n1 = {"K": 2}
    n2 = {"K": 3}
    exec(code, n1)
    exec(code, n2)
    with tcompile.enable(backend="eager"):
        for n in (n1, n2, n1, n2):
            r = n["f"](x)
        a = n1["f"](x)
        b = n2["f"](x)
    eq(a, x * 2 + 2)
    eq(b, x * 3 + 3)


def test_same_code_two_globals_loop():
    code = compile(
        "def f(x):\n    y=x*K\n    for i in range(3):\n        y=y*K\n        if y.sum()>1e9: print('')\n    return y+K",
        "a",
        "exec",
    )
    n1 = {"K": 2}
    n2 = {"K": 3}
    exec(code, n1)
    exec(code, n2)
    with tcompile.enable(backend="eager"):
        for n in (n1, n2, n1, n2):
            r = n["f"](x)
        a = n1["f"](x)
        b = n2["f"](x)
    eq(a, n1["f"](x))
    eq(b, n2["f"](x))


def test_same_code_two_closures_break():

    def mk(k):

        def f(x):
            y = x * k
            if y.sum() > 1000000000.0:
                print("")
            return y + k

        return f

    a, b = (mk(2), mk(3))
    with tcompile.enable(backend="eager"):
        for _ in range(2):
            ra = a(x)
            rb = b(x)
    eq(ra, a(x))
    eq(rb, b(x))


def test_import_inside():
    sys.modules["my_mod_q"] = types.ModuleType("my_mod_q")
    sys.modules["my_mod_q"].K = 2

    def fn(x):
        import my_mod_q

        return x * my_mod_q.K

    c = run(fn)
    eq(fn(x), c(x))
    sys.modules["my_mod_q"].K = 3
    eq(fn(x), c(x))
    n = types.ModuleType("my_mod_q")
    n.K = 7
    sys.modules["my_mod_q"] = n
    eq(fn(x), c(x))
    del sys.modules["my_mod_q"]


def test_from_import_inside():
    sys.modules["my_mod_q"] = types.ModuleType("my_mod_q")
    sys.modules["my_mod_q"].K = 2

    def fn(x):
        from my_mod_q import K

        return x * K

    c = run(fn)
    eq(fn(x), c(x))
    sys.modules["my_mod_q"].K = 3
    eq(fn(x), c(x))
    n = types.ModuleType("my_mod_q")
    n.K = 7
    sys.modules["my_mod_q"] = n
    eq(fn(x), c(x))
    del sys.modules["my_mod_q"]


def test_defaultdict():
    d = collections.defaultdict(int)

    def fn(x):
        return x + d["k"]

    c = run(fn)
    eq(fn(x), c(x))
    d["k"] = 3
    eq(fn(x), c(x))


def test_partial_kw():

    def h(x, k):
        return x * k

    p = functools.partial(h, k=2)

    def fn(x):
        return p(x)

    c = run(fn)
    eq(fn(x), c(x))
    p.keywords["k"] = 3
    eq(fn(x), c(x))


def test_partial_replaced():

    def h(x, k):
        return x * k

    ns = {"p": functools.partial(h, k=2)}
    exec("def fn(x): return p(x)", ns)
    c = run(ns["fn"])
    eq(ns["fn"](x), c(x))
    ns["p"] = functools.partial(h, k=4)
    eq(ns["fn"](x), c(x))


def test_closure_cell_deleted():

    def mk():
        k = 2

        def f(x):
            return x * k

        def d():
            nonlocal k
            k = 5

        return (f, d)

    f, d = mk()
    c = run(f)
    eq(f(x), c(x))
    d()
    eq(f(x), c(x))


def test_nested_closure():

    def mk():
        k = 2

        def h(x):
            return x * k

        def f(x):
            return h(x)

        def d():
            nonlocal k
            k = 5

        def e():
            nonlocal h
            h = lambda x: x - 1

        return (f, d, e)

    f, d, e = mk()
    c = run(f)
    eq(f(x), c(x))
    d()
    eq(f(x), c(x))
    e()
    eq(f(x), c(x))


def test_builtins_override():
    ns = {}
    exec("def fn(x): return x+abs(-2)", ns)
    c = run(ns["fn"])
    eq(ns["fn"](x), c(x))
    ns["abs"] = lambda v: 7
    eq(ns["fn"](x), c(x))
    del ns["abs"]
    eq(ns["fn"](x), c(x))
    import builtins

    old = builtins.abs
    builtins.abs = lambda v: 9
    try:
        eq(ns["fn"](x), c(x))
    finally:
        builtins.abs = old


def test_torch_patched():

    def fn(x):
        return torch.relu(x)

    c = run(fn)
    eq(fn(x), c(x))
    old = torch.relu
    torch.relu = lambda x: x * 0
    try:
        eq(fn(x), c(x))
    finally:
        torch.relu = old


def test_F_patched():

    def fn(x):
        return F.gelu(x)

    c = run(fn)
    eq(fn(x), c(x))
    old = F.gelu
    F.gelu = lambda x: x * 0
    try:
        eq(fn(x), c(x))
    finally:
        F.gelu = old


def test_math_patched():

    def fn(x):
        return x * math.pi

    c = run(fn)
    eq(fn(x), c(x))
    old = math.pi
    math.pi = 3
    try:
        eq(fn(x), c(x))
    finally:
        math.pi = old


def test_str_enum_default():

    def fn(x, mode="a"):
        return x + 1 if mode == "a" else x + 2

    c = run(fn)
    eq(fn(x), c(x))
    eq(fn(x, "b"), c(x, "b"))
    fn.__defaults__ = ("b",)
    eq(fn(x), c(x))


def test_weakref_target():
    import weakref

    class A:
        k = 2

    ns = {"a": A()}
    ns["r"] = weakref.ref(ns["a"])
    exec("def fn(x):\n o=r()\n return x*(o.k if o is not None else 9)", ns)
    c = run(ns["fn"])
    eq(ns["fn"](x), c(x))
    del ns["a"]
    eq(ns["fn"](x), c(x))


def test_mutable_default():

    def h(x, l=[]):  # noqa: B006
        return x + len(l)

    def fn(x):
        return h(x)

    c = run(fn)
    eq(fn(x), c(x))
    h.__defaults__[0].append(1)
    eq(fn(x), c(x))


def test_func_attr():

    def h(x):
        return x * h.k

    h.k = 2
    c = run(h)
    eq(h(x), c(x))
    h.k = 3
    eq(h(x), c(x))


def test_wrapped_deco():

    def deco(f):

        @functools.wraps(f)
        def w(*a, **k):
            return f(*a, **k) * 2

        return w

    ns = {"deco": deco}
    exec("@deco\ndef h(x): return x+1\ndef fn(x): return h(x)", ns)
    c = run(ns["fn"])
    eq(ns["fn"](x), c(x))
    exec("@deco\ndef h(x): return x+5", ns)
    eq(ns["fn"](x), c(x))
