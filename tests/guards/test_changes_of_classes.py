"""Classes and their instances are changed between calls in every way that Python has: the result is always eager's."""

from __future__ import annotations

import dataclasses
import functools

import torch.nn as nn

from .changing import eq, run, x


def test_method_defaults():

    class A:
        def m(self, x, k=2):
            return x * k

    a = A()

    def fn(x):
        return a.m(x)

    c = run(fn)
    eq(fn(x), c(x))
    A.m.__defaults__ = (5,)
    eq(fn(x), c(x))
    A.m.__kwdefaults__ = None
    eq(fn(x), c(x))


def test_method_kwdefaults():

    class A:
        def m(self, x, *, k=2):
            return x * k

    a = A()

    def fn(x):
        return a.m(x)

    c = run(fn)
    eq(fn(x), c(x))
    A.m.__kwdefaults__ = {"k": 7}
    eq(fn(x), c(x))
    A.m.__kwdefaults__["k"] = 9
    eq(fn(x), c(x))


def test_nn_forward_defaults():

    class M(nn.Module):
        def forward(self, x, k=2):
            return x * k

    m = M()

    class W(nn.Module):
        def __init__(s):
            super().__init__()
            s.m = m

        def forward(s, x):
            return s.m(x)

    w = W()
    c = run(w)
    eq(w(x), c(x))
    M.forward.__defaults__ = (5,)
    eq(w(x), c(x))


def test_replaced_method_same_code_other_default():

    def mk(d):

        def m(self, x, k=d):
            return x * k

        return m

    class A:
        m = mk(2)

    a = A()

    def fn(x):
        return a.m(x)

    c = run(fn)
    eq(fn(x), c(x))
    A.m = mk(4)
    eq(fn(x), c(x))


def test_replaced_method_same_code_other_closure():

    def mk(d):

        def m(self, x):
            return x * d

        return m

    class A:
        m = mk(2)

    a = A()

    def fn(x):
        return a.m(x)

    c = run(fn)
    eq(fn(x), c(x))
    A.m = mk(4)
    eq(fn(x), c(x))


def test_replaced_method_same_code_other_globals():
    src = "def m(self,x): return x*K"
    code = compile(src, "a", "exec")
    n1 = {"K": 2}
    n2 = {"K": 3}
    exec(code, n1)
    exec(code, n2)

    class A:
        m = n1["m"]

    a = A()

    def fn(x):
        return a.m(x)

    c = run(fn)
    eq(fn(x), c(x))
    A.m = n2["m"]
    eq(fn(x), c(x))


def test_dataclass_frozen():

    @dataclasses.dataclass(frozen=True)
    class C:
        a: int = 1
        b: float = 2.0

    def fn(x, p):
        return x * p.a + p.b

    c = run(fn)
    for p in (C(), C(3), C(1, 5), C(1.5, 2)):
        eq(fn(x, p), c(x, p))


def test_cached_property():

    class A:
        def __init__(s):
            s.k = 2

        @functools.cached_property
        def p(s):
            return s.k

    a = A()

    def fn(x):
        return x * a.p

    c = run(fn)
    eq(fn(x), c(x))
    a.k = 3
    eq(fn(x), c(x))
    del a.__dict__["p"]
    eq(fn(x), c(x))


def test_property():

    class A:
        def __init__(s):
            s.k = 2

        @property
        def p(s):
            return s.k

    a = A()

    def fn(x):
        return x * a.p

    c = run(fn)
    eq(fn(x), c(x))
    a.k = 3
    eq(fn(x), c(x))
    A.p = property(lambda s: 9)
    eq(fn(x), c(x))
    A.p = 11
    eq(fn(x), c(x))


def test_property_fget_code():

    class A:
        @property
        def p(s):
            return 2

    a = A()

    def fn(x):
        return x * a.p

    c = run(fn)
    eq(fn(x), c(x))
    A.__dict__["p"].fget.__code__ = (lambda s: 4).__code__
    eq(fn(x), c(x))


def test_descriptor():

    class D:
        def __init__(s, v):
            s.v = v

        def __get__(s, o, t):
            return s.v

    class A:
        d = D(2)

    a = A()

    def fn(x):
        return x * a.d

    c = run(fn)
    eq(fn(x), c(x))
    A.__dict__["d"].v = 5
    eq(fn(x), c(x))
    A.d = D(7)
    eq(fn(x), c(x))
    a.__dict__["d"] = 3
    eq(fn(x), c(x))


def test_mro_change():

    class A:
        k = 1

    class B2(A):
        pass

    class C2:
        k = 5

    b = B2()

    def fn(x):
        return x * b.k

    c = run(fn)
    eq(fn(x), c(x))
    A.k = 2
    eq(fn(x), c(x))
    B2.k = 3
    eq(fn(x), c(x))
    del B2.k
    eq(fn(x), c(x))


def test_super_change():

    class A:
        def m(s, x):
            return x + 1

    class B2(A):
        def m(s, x):
            return super().m(x) * 2

    b = B2()

    def fn(x):
        return b.m(x)

    c = run(fn)
    eq(fn(x), c(x))
    A.m = lambda s, x: x - 1
    eq(fn(x), c(x))


def test_super_insert():

    class A:
        k = 1

        def m(s, x):
            return x + 1

    class M(A):
        pass

    class B2(M):
        def m(s, x):
            return super().m(x) * 2

    b = B2()

    def fn(x):
        return b.m(x)

    c = run(fn)
    eq(fn(x), c(x))
    M.m = lambda s, x: x - 1
    eq(fn(x), c(x))


def test_isinstance_abc():
    import abc

    class P(abc.ABC):  # noqa: B024
        pass

    class A:
        pass

    a = A()

    def fn(x):
        return x + 1 if isinstance(a, P) else x - 1

    c = run(fn)
    eq(fn(x), c(x))
    P.register(A)
    eq(fn(x), c(x))


def test_hasattr_class():

    class A:
        pass

    a = A()

    def fn(x):
        return x + 1 if hasattr(a, "z") else x - 1

    c = run(fn)
    eq(fn(x), c(x))
    A.z = 1
    eq(fn(x), c(x))
    del A.z
    eq(fn(x), c(x))
    a.z = 2
    eq(fn(x), c(x))


def test_getattr_added():

    class A:
        pass

    a = A()

    def fn(x):
        return x + getattr(a, "z", 0)

    c = run(fn)
    eq(fn(x), c(x))
    A.__getattr__ = lambda s, n: 5
    eq(fn(x), c(x))


def test_len_dunder():

    class A:
        def __init__(s):
            s.n = 2

        def __len__(s):
            return s.n

    a = A()

    def fn(x):
        return x + len(a)

    c = run(fn)
    eq(fn(x), c(x))
    a.n = 3
    eq(fn(x), c(x))
    A.__len__ = lambda s: 9
    eq(fn(x), c(x))


def test_bool_dunder():

    class A:
        def __init__(s):
            s.n = 2

        def __bool__(s):
            return s.n > 2

    a = A()

    def fn(x):
        return x + 1 if a else x - 1

    c = run(fn)
    eq(fn(x), c(x))
    a.n = 3
    eq(fn(x), c(x))
    del A.__bool__
    a.n = 0
    eq(fn(x), c(x))


def test_bool_dunder_added():

    class A:
        pass

    a = A()

    def fn(x):
        return x + 1 if a else x - 1

    c = run(fn)
    eq(fn(x), c(x))
    A.__bool__ = lambda s: False
    eq(fn(x), c(x))
    del A.__bool__
    A.__len__ = lambda s: 0
    eq(fn(x), c(x))


def test_eq_dunder_added():

    class A:
        pass

    a, b = (A(), A())

    def fn(x):
        return x + 1 if a == b else x - 1

    c = run(fn)
    eq(fn(x), c(x))
    A.__eq__ = lambda s, o: True
    eq(fn(x), c(x))


def test_callable_obj():

    class A:
        def __call__(s, x):
            return x * 2

    a = A()

    def fn(x):
        return a(x)

    c = run(fn)
    eq(fn(x), c(x))
    A.__call__ = lambda s, x: x * 3
    eq(fn(x), c(x))


def test_staticmethod():

    class A:
        @staticmethod
        def f(x):
            return x * 2

    def fn(x):
        return A.f(x)

    c = run(fn)
    eq(fn(x), c(x))
    A.f = staticmethod(lambda x: x * 3)
    eq(fn(x), c(x))


def test_classmethod():

    class A:
        k = 2

        @classmethod
        def f(cls, x):
            return x * cls.k

    def fn(x):
        return A.f(x)

    c = run(fn)
    eq(fn(x), c(x))
    A.k = 3
    eq(fn(x), c(x))
    A.f = classmethod(lambda cls, x: x * 30)
    eq(fn(x), c(x))


def test_metaclass_attr():

    class Me(type):
        @property
        def k(cls):
            return cls._k

    class A(metaclass=Me):
        _k = 2

    def fn(x):
        return x * A.k

    c = run(fn)
    eq(fn(x), c(x))
    A._k = 3
    eq(fn(x), c(x))
    Me.k = property(lambda c: 8)
    eq(fn(x), c(x))


def test_bound_method_replaced():

    class A:
        def __init__(s, k):
            s.k = k

        def m(s, x):
            return x * s.k

    ns = {"p": A(2).m}
    exec("def fn(x): return p(x)", ns)
    c = run(ns["fn"])
    eq(ns["fn"](x), c(x))
    ns["p"] = A(4).m
    eq(ns["fn"](x), c(x))
    ns["p"].__self__.k = 9
    eq(ns["fn"](x), c(x))


def test_linear_forward_patched():
    l = nn.Linear(3, 2)

    def fn(x):
        return l(x)

    c = run(fn)
    eq(fn(x), c(x))
    old = nn.Linear.forward
    nn.Linear.forward = lambda s, x: x * 0
    try:
        eq(fn(x), c(x))
    finally:
        nn.Linear.forward = old


def test_module_getattr_patched():

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(3, 2)

        def forward(s, x):
            return s.l(x)

    m = M()
    c = run(m)
    eq(m(x), c(x))
    M.__getattr__ = lambda s, n: (lambda x: x * 0) if n == "l" else nn.Module.__getattr__(s, n)
    eq(m(x), c(x))


def test_module_list_reorder():
    l = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = l

        def forward(s, x):
            for q in s.l:
                x = q(x)
            return x

    m = M()
    c = run(m)
    eq(m(x), c(x))
    l[0], l[1] = (l[1], l[0])
    eq(m(x), c(x))
    l.insert(0, nn.Tanh())
    eq(m(x), c(x))


def test_class_swap_input():

    class A:
        def m(s, x):
            return x + 1

    class B2:
        def m(s, x):
            return x + 2

    a = A()

    def fn(x, a):
        return a.m(x)

    c = run(fn)
    eq(fn(x, a), c(x, a))
    a.__class__ = B2
    eq(fn(x, a), c(x, a))


def test_mutable_default_method():

    class A:
        def h(s, x, l=[]):  # noqa: B006
            return x + len(l)

    a = A()

    def fn(x):
        return a.h(x)

    c = run(fn)
    eq(fn(x), c(x))
    A.h.__defaults__[0].append(1)
    eq(fn(x), c(x))


def test_iterator_subclass_len():

    class L(list):
        pass

    l = L([1, 2])

    def fn(x):
        return x + sum(l)

    c = run(fn)
    eq(fn(x), c(x))
    l.append(3)
    eq(fn(x), c(x))
    L.__iter__ = lambda s: iter([9])
    eq(fn(x), c(x))


def test_instance_attribute_over_static_and_class_methods():
    class A:
        k = 2

        @staticmethod
        def still(x):
            return x * 2

        @classmethod
        def of(cls, x):
            return x * cls.k

    a = A()

    def fn(x):
        return a.still(x) + a.of(x)

    c = run(fn)
    eq(fn(x), c(x))
    a.still = lambda x: x - 1
    eq(fn(x), c(x))
    a.of = lambda x: x * 7
    eq(fn(x), c(x))
    del a.__dict__["still"]
    eq(fn(x), c(x))


def test_bases_replaced():
    class Base:
        def m(self, x):
            return x + 1

    class Mid(Base):
        pass

    class A(Mid):
        def m(self, x):
            return super().m(x) * 2

    a = A()

    def fn(x):
        return a.m(x) + isinstance(a, Mid)

    c = run(fn)
    eq(fn(x), c(x))
    A.__bases__ = (type("New", (Mid,), {"m": lambda self, x: x - 5}),)
    eq(fn(x), c(x))
    A.__bases__ = (Base,)
    eq(fn(x), c(x))


def test_a_class_without_a_module():
    class A:
        __slots__ = ("slot",)

        def m(self, x):
            return x * self.slot

        def __len__(self):
            return 1

    a = A()
    a.slot = 2

    def fn(x):
        return a.m(x) + (a == 3)

    c = run(fn)
    eq(fn(x), c(x))
    space = {"A": A}
    exec("Sub = type('Sub', (A,), {'__slots__': ()})", space)
    a.__class__ = space["Sub"]
    eq(fn(x), c(x))


def test_what_a_metaclass_says_of_instances_and_subclasses():

    class Meta(type):
        answer = True

        def __instancecheck__(cls, instance):
            return Meta.answer

        def __subclasscheck__(cls, subclass):
            return not Meta.answer

    class A(metaclass=Meta):
        pass

    class B(A):
        pass

    def fn(x):
        return (
            x
            + isinstance(3, A)
            + isinstance(x, (str, A)) * 2
            + isinstance(A(), A) * 4
            + issubclass(int, A) * 8
            + isinstance(3, B) * 16
            + issubclass(B, A) * 32
        )

    c = run(fn)
    for answer in (True, False, True):
        Meta.answer = answer
        eq(fn(x), c(x))
