"""Objects and containers are changed between calls in every way that Python has: the result is always eager's."""

from __future__ import annotations

import collections
import enum

import torch
import torch.nn as nn

from .changing import eq, run, x


def test_obj_is():

    class A:
        pass

    a, b = (A(), A())

    def fn(x, o):
        return x + 1 if o is a else x + 2

    c = run(fn)
    for f in (a, b, a):
        eq(fn(x, f), c(x, f))


def test_two_obj_is():

    class A:
        pass

    a, b = (A(), A())

    def fn(x, o, p):
        return x + 1 if o is p else x + 2

    c = run(fn)
    for f in ((a, b), (a, a), (b, b)):
        eq(fn(x, *f), c(x, *f))


def test_list_is():
    a, b = ([1], [1])

    def fn(x, o, p):
        return x + 1 if o is p else x + 2

    c = run(fn)
    for f in ((a, b), (a, a), (b, b)):
        eq(fn(x, *f), c(x, *f))


def test_tensor_is():
    a, b = (torch.ones(3), torch.ones(3))

    def fn(x, o, p):
        return x + o + p if o is p else x + 2

    c = run(fn)
    for f in ((a, b), (a, a), (b, b)):
        eq(fn(x, *f), c(x, *f))


def test_enum_member():

    class E(enum.Enum):
        A = 1
        B = 2

    def fn(x, e):
        return x + 1 if e is E.A else x + e.value

    c = run(fn)
    for e in (E.A, E.B, E.A):
        eq(fn(x, e), c(x, e))


def test_namedtuple_field():
    P = collections.namedtuple("P", "a b")

    def fn(x, p):
        return x * p.a + p.b

    c = run(fn)
    for p in (P(1, 2), P(3, 2), P(1, 5), P(1.5, 2), P(x, 2)):
        eq(fn(x, p), c(x, p))


def test_slots():

    class A:
        __slots__ = ("k",)

    a = A()
    a.k = 2

    def fn(x):
        return x * a.k

    c = run(fn)
    eq(fn(x), c(x))
    a.k = 3
    eq(fn(x), c(x))


def test_set_membership():
    s = {1, 2}

    def fn(x):
        return x + 1 if 3 in s else x - 1

    c = run(fn)
    eq(fn(x), c(x))
    s.add(3)
    eq(fn(x), c(x))


def test_dict_order():
    d = {"a": 1, "b": 2}

    def fn(x):
        for k in d:
            x = x * 2 + d[k]
        return x

    c = run(fn)
    eq(fn(x), c(x))
    v = d.pop("a")
    d["a"] = v
    eq(fn(x), c(x))


def test_deque():
    d = collections.deque([1, 2])

    def fn(x):
        return x + sum(d)

    c = run(fn)
    eq(fn(x), c(x))
    d.append(3)
    eq(fn(x), c(x))


def test_counter():
    d = collections.Counter("aab")

    def fn(x):
        return x + d["a"]

    c = run(fn)
    eq(fn(x), c(x))
    d["a"] = 9
    eq(fn(x), c(x))


def test_nested_list():
    l = [[1, 2], [3]]

    def fn(x):
        return x + l[0][1] + l[1][0]

    c = run(fn)
    eq(fn(x), c(x))
    l[0][1] = 9
    eq(fn(x), c(x))
    l[1] = [7]
    eq(fn(x), c(x))


def test_numpy_const():
    import numpy as np

    a = np.float32(2.0)
    l = [a]

    def fn(x):
        return x * float(l[0])

    c = run(fn)
    eq(fn(x), c(x))
    l[0] = np.float32(3.0)
    eq(fn(x), c(x))


def test_numpy_array():
    import numpy as np

    a = np.ones(3, dtype=np.float32)

    def fn(x):
        return x * torch.from_numpy(a)

    c = run(fn)
    eq(fn(x), c(x))
    a[0] = 3
    eq(fn(x), c(x))


def test_tensor_attr():
    t = torch.ones(3)
    t.k = 2

    def fn(x):
        return x * t.k

    c = run(fn)
    eq(fn(x), c(x))
    t.k = 3
    eq(fn(x), c(x))


def test_tensor_grad_presence():
    t = torch.ones(3, requires_grad=True)

    def fn(x):
        return x + 1 if t.grad is None else x + t.grad

    c = run(fn)
    eq(fn(x), c(x))
    t.grad = torch.ones(3)
    eq(fn(x), c(x))
    t.grad = None
    eq(fn(x), c(x))


def test_is_leaf():

    def fn(x):
        return x + 1 if x.is_leaf else x + 2

    c = run(fn)
    a = torch.ones(2, requires_grad=True)
    for t in (torch.ones(2), a, a * 2):
        eq(fn(t).detach(), c(t).detach())


def test_contiguous_branch():

    def fn(x):
        return x + 1 if x.is_contiguous() else x + 2

    c = run(fn)
    for t in (x, torch.ones(3, 4).t(), torch.ones(4, 6)[:, ::2]):
        eq(fn(t), c(t))


def test_storage_offset_branch():

    def fn(x):
        return x + x.storage_offset()

    c = run(fn)
    b = torch.ones(10)
    for t in (b[:4], b[2:6], b[3:7]):
        eq(fn(t), c(t))


def test_is_inference():

    def fn(x):
        return x + 1 if x.is_inference() else x + 2

    c = run(fn)
    with torch.inference_mode():
        t = torch.ones(3)
    for u in (torch.ones(3), t):
        eq(fn(u), c(u))


def test_names_version():

    def fn(x):
        return x + x._version

    c = run(fn)
    t = torch.ones(3)
    eq(fn(t), c(t))
    t.add_(1)
    eq(fn(t), c(t))


def test_data_ptr_branch():

    def fn(x, y):
        return x + 1 if x.data_ptr() == y.data_ptr() else x + 2

    c = run(fn)
    t = torch.ones(3)
    eq(fn(t, t), c(t, t))
    eq(fn(t, t.clone()), c(t, t.clone()))
    eq(fn(t, t.view(3)), c(t, t.view(3)))


def test_id_branch():
    first, second = [1], [1]
    known = id(first)

    def fn(x, l):
        return x + 1 if id(l) == known else x + 2

    c = run(fn)
    eq(fn(x, first), c(x, first))
    eq(fn(x, second), c(x, second))


def test_param_swap_data():
    m = nn.Linear(3, 2)
    c = run(m)
    eq(m(x), c(x))
    m.weight.data = torch.ones(5, 3)
    m.bias = None
    eq(m(x), c(x))
    m.double()
    eq(m(x.double()), c(x.double()))


def test_dict_keys_typed():
    d = {1: 2.0}

    def fn(x):
        return x * d.get(1, 0) + len(d)

    c = run(fn)
    eq(fn(x), c(x))
    d[1.0] = 5
    eq(fn(x), c(x))
    d.clear()
    d[True] = 4
    eq(fn(x), c(x))


def test_int_vs_bool():

    def fn(x, n):
        return x + n if n is True else x - n

    c = run(fn)
    for n in (1, True, 1.0, 2, 2.0, 3):
        eq(fn(x, n), c(x, n))


def test_kwargs_order():

    def fn(x, **kw):
        for k, v in kw.items():
            x = x * 2 + v
        return x

    c = run(fn)
    eq(fn(x, a=1, b=2), c(x, a=1, b=2))
    eq(fn(x, b=2, a=1), c(x, b=2, a=1))
    eq(fn(x, b=2, c=1), c(x, b=2, c=1))


def test_getitem_override():

    class L(list):
        pass

    l = L([1, 2])

    def fn(x):
        return x + l[0]

    c = run(fn)
    eq(fn(x), c(x))
    L.__getitem__ = lambda s, i: 9
    eq(fn(x), c(x))
