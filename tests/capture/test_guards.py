"""Completeness of guards: whatever capture relied on is changed between calls; the result must be eager's. What it did
not rely on may change freely."""

import collections
import types

import pytest
import torch

from .runner import Runner, same

X = torch.linspace(-2, 2, 12).reshape(3, 4)
FLAG = 1
TABLE = {"k": 2.0, "other": 5}
NAMES = ["a", "b"]


def scale(x):
    return x * 2


class Thing:
    factor = 2

    def __init__(self):
        self.items = [1, 2]
        self.opts = {"a": 1}
        self.child = None
        self.n = 3

    def apply(self, x):
        return x * self.factor


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)
        self.drop = torch.nn.Dropout(0.5)
        self.register_buffer("buf", torch.ones(4))
        self.act = torch.relu
        self.k = 2

    def forward(self, x):
        return self.act(self.drop(self.lin(x))) * self.k + self.buf


def check(fn, make_args, change, recaptures=True):
    """fn before and after `change(args)`; equal to eager both times."""
    run = Runner()
    args = make_args()
    torch.manual_seed(0)
    first = run(fn, *args)
    torch.manual_seed(0)
    same(first, fn(*args))
    before = len(run.captures)
    assert before >= 1
    change(*args)
    torch.manual_seed(0)
    second = run(fn, *args)
    torch.manual_seed(0)
    same(second, fn(*args))
    assert (len(run.captures) > before) == recaptures
    return run


def test_globals():
    def fn(x):
        return scale(x) * FLAG + TABLE["k"] + len(NAMES)

    def restore():
        globals().update(FLAG=1, TABLE={"k": 2.0, "other": 5}, NAMES=["a", "b"], scale=ORIGINAL)

    ORIGINAL = scale
    try:
        check(fn, lambda: (X,), lambda x: globals().update(FLAG=7))
        check(fn, lambda: (X,), lambda x: TABLE.update(k=9.0))
        check(fn, lambda: (X,), lambda x: TABLE.update(other=9), recaptures=False)
        check(fn, lambda: (X,), lambda x: NAMES.append("c"))
        check(fn, lambda: (X,), lambda x: globals().update(UNRELATED=9), recaptures=False)
        check(fn, lambda: (X,), lambda x: globals().update(scale=lambda v: v * 5))
        restore()
        check(fn, lambda: (X,), lambda x: setattr(scale, "__code__", (lambda x: x * 11).__code__))
    finally:
        ORIGINAL.__code__ = (lambda x: x * 2).__code__
        restore()


def test_attributes_of_objects():
    def fn(t, x):
        y = t.apply(x) + t.items[0] + t.opts["a"] + t.n
        if t.child is not None:
            y = y * 2
        if hasattr(t, "extra"):
            y = y + t.extra
        return y

    change = [
        lambda t, x: setattr(t, "n", 4),
        lambda t, x: t.items.__setitem__(0, 9),
        lambda t, x: t.opts.update(a=5),
        lambda t, x: setattr(t, "child", 1),
        lambda t, x: setattr(t, "extra", 3),
        lambda t, x: setattr(t, "factor", 9),
        lambda t, x: setattr(t, "apply", lambda v: v * 100),
        lambda t, x: setattr(t, "items", [5]),
    ]
    for c in change:
        check(fn, lambda: (Thing(), X), c)
    for c in [lambda t, x: t.items.append(3), lambda t, x: setattr(t, "unrelated", 1), lambda t, x: t.opts.update(z=1)]:
        check(fn, lambda: (Thing(), X), c, recaptures=False)
    try:
        check(fn, lambda: (Thing(), X), lambda t, x: setattr(Thing, "factor", 5))
    finally:
        Thing.factor = 2
    original = Thing.apply
    try:
        check(fn, lambda: (Thing(), X), lambda t, x: setattr(Thing, "apply", lambda self, v: v * 3))
    finally:
        Thing.apply = original


def test_another_instance_of_the_class_needs_no_capture():
    def fn(t, x):
        return t.apply(x) + t.n

    run = Runner()
    same(run(fn, Thing(), X), fn(Thing(), X))
    same(run(fn, Thing(), X), fn(Thing(), X))
    assert len(run.captures) == 1


MODULE_CHANGES = {
    "eval": (lambda m, x: m.eval(), True),
    "train_again": (lambda m, x: m.train(), False),
    "attribute": (lambda m, x: setattr(m, "k", 3), True),
    "function": (lambda m, x: setattr(m, "act", torch.tanh), True),
    "parameter": (lambda m, x: setattr(m.lin, "weight", torch.nn.Parameter(torch.zeros(4, 4))), False),
    "double": (lambda m, x: (m.double(), setattr(x, "data", x.data.double())), True),
    "data": (lambda m, x: setattr(m.lin.weight, "data", torch.zeros(4, 4)), False),
    "requires_grad": (lambda m, x: m.lin.weight.requires_grad_(False), True),
    "submodule": (lambda m, x: setattr(m, "lin", torch.nn.Linear(4, 4, bias=False)), True),
    "buffer": (lambda m, x: m.buf.add_(1), False),
    "new_buffer": (lambda m, x: setattr(m, "buf", torch.zeros(1)), True),
    "hook": (lambda m, x: m.lin.register_forward_hook(lambda mod, a, out: out * 2), True),
    "pre_hook": (lambda m, x: m.register_forward_pre_hook(lambda mod, a: (a[0] + 1,)), True),
    "forward": (lambda m, x: setattr(m.lin, "forward", lambda v: v * 2), True),
    "rate": (lambda m, x: setattr(m.drop, "p", 0.1), True),
    "in_place_weight": (lambda m, x: m.lin.weight.data.mul_(2), False),
    "class": (lambda m, x: setattr(m, "__class__", OtherNet), True),
    "dict": (lambda m, x: m.__dict__.update(k=5), True),
}


class OtherNet(Net):
    def forward(self, x):
        return self.lin(x) * 7


@pytest.mark.parametrize("name", MODULE_CHANGES)
def test_module_changes(name):
    def fn(m, x):
        return m(x)

    change, recaptures = MODULE_CHANGES[name]
    check(fn, lambda: (Net(), X.clone()), change, recaptures)


def test_global_module_hook():
    def fn(m, x):
        return m(x)

    handles = []
    try:
        check(
            fn,
            lambda: (Net().eval(), X),
            lambda m, x: handles.append(
                torch.nn.modules.module.register_module_forward_hook(lambda mod, a, out: out + 1)
            ),
        )
    finally:
        for h in handles:
            h.remove()


@pytest.mark.parametrize(
    "second,recaptures",
    [
        (torch.ones(3, 4), False),
        (torch.ones(2, 4), True),
        (torch.ones(3, 4, dtype=torch.float64), True),
        (torch.ones(4, 3).T, True),
        (torch.ones(3, 4, requires_grad=True), True),
        (torch.ones(12), True),
        (torch.empty(0, 4), True),
        (torch.tensor(1.0), True),
        (torch.ones(1, 4), True),
        (torch.ones(3, 4, dtype=torch.bfloat16), True),
        (torch.ones(3, 4, dtype=torch.int64), True),
        (torch.nn.Parameter(torch.ones(3, 4)), True),
        (torch.ones(6, 4)[::2], True),
    ],
)
def test_inputs(second, recaptures):
    def fn(x):
        return (x * 2 + 1).sum(-1)

    run = Runner()
    same(run(fn, X), fn(X))
    same(run(fn, second), fn(second))
    assert (len(run.captures) == 2) == recaptures


def test_python_arguments():
    def fn(x, n, flag, name, items, d):
        y = x * n if flag else x - n
        for i in items:
            y = y + i
        return y + len(name) + d["a"]

    base = (X, 3, True, "ab", [1, 2], {"a": 1})
    run = Runner()
    variants = [
        base,
        (X, 4, True, "ab", [1, 2], {"a": 1}),
        (X, 3, False, "ab", [1, 2], {"a": 1}),
        (X, 3, True, "abc", [1, 2], {"a": 1}),
        (X, 3, True, "ab", [1, 2, 3], {"a": 1}),
        (X, 3, True, "ab", [1, 5], {"a": 1}),
        (X, 3, True, "ab", [1, 2], {"a": 2}),
        (X, 3.0, True, "ab", [1, 2], {"a": 1}),
        (X, 3, 1, "ab", (1, 2), {"a": 1}),
    ]
    for v in variants:
        same(run(fn, *v), fn(*v))
    count = len(run.captures)
    for v in variants:
        same(run(fn, *v), fn(*v))
    assert len(run.captures) == count == len(variants)
    same(run(fn, X, 3, True, "ab", [1, 2], {"a": 1, "b": 7}), fn(X, 3, True, "ab", [1, 2], {"a": 1, "b": 7}))
    assert len(run.captures) == count, "a key that was not read does not matter"


def test_closures_and_defaults():
    k = 2
    other = [1]

    def fn(x, scale=3):
        return x * k * scale + other[0]

    def set_k(v):
        nonlocal k
        k = v

    run = Runner()
    same(run(fn, X), fn(X))
    set_k(5)
    same(run(fn, X), fn(X))
    other[0] = 4
    same(run(fn, X), fn(X))
    fn.__defaults__ = (9,)
    same(run(fn, X), fn(X))
    assert len(run.captures) == 4


def test_function_arguments_are_guarded_by_code_and_closure():
    def fn(f, x):
        return f(x) + 1

    run = Runner()
    for k in (1, 1, 2):
        f = lambda v, k=k: v * k  # noqa: E731
        same(run(fn, f, X), fn(f, X))
    assert len(run.captures) == 2


def test_state():
    def fn(x):
        return (x * 2).requires_grad, x + 1, torch.is_grad_enabled()

    x = X.clone().requires_grad_()
    run = Runner()
    same(run(fn, x), fn(x))
    with torch.no_grad():
        same(run(fn, x), fn(x))
    with torch.inference_mode():
        assert run(fn, X)[2] is False
    same(run(fn, x), fn(x))
    assert len(run.captures) == 3

    def mm(x):
        return x @ x.T

    run = Runner()
    same(run(mm, X), mm(X))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(run(mm, X), mm(X))
    assert len(run.captures) == 2

    def make(x):
        return x + torch.ones(4)

    run = Runner()
    same(run(make, X), make(X))
    torch.set_default_dtype(torch.float64)
    try:
        same(run(make, X), make(X))
    finally:
        torch.set_default_dtype(torch.float32)


def test_identity_of_arguments():
    def fn(a, b):
        if a is b:
            return a * 2
        return a + b

    run = Runner()
    y = torch.ones(3, 4)
    same(run(fn, X, X), fn(X, X))
    same(run(fn, X, y), fn(X, y))
    same(run(fn, y, y), fn(y, y))
    same(run(fn, y, X), fn(y, X))
    assert len(run.captures) == 2


def test_overlapping_inputs_changed_in_place():
    def fn(a, b):
        a.add_(1)
        return a * b

    run = Runner()
    for make in (lambda: (torch.ones(4), torch.ones(4)), lambda: (lambda t: (t[:4], t[2:6]))(torch.ones(8))):
        p, q = make(), make()
        same(run(fn, *p), fn(*q))
        same(p, q)


def test_containers_of_tensors():
    def fn(ts, d):
        return sum(ts) + d["x"] * len(ts), [t + 1 for t in ts]

    run = Runner()
    a = ([X, X + 1], {"x": X})
    same(run(fn, *a), fn(*a))
    b = ([X * 2, X], {"x": X * 3})
    same(run(fn, *b), fn(*b))
    assert len(run.captures) == 2, "aliasing between the list and the dict changed"
    c = ([X, X + 1, X + 2], collections.OrderedDict(x=X))
    same(run(fn, *c), fn(*c))


def test_namespace_and_module_objects():
    ns = types.SimpleNamespace(a=2, b=3)

    def fn(n, x):
        return x * n.a

    run = Runner()
    same(run(fn, ns, X), fn(ns, X))
    ns.b = 7
    same(run(fn, ns, X), fn(ns, X))
    assert len(run.captures) == 1
    ns.a = 9
    same(run(fn, ns, X), fn(ns, X))
    assert len(run.captures) == 2


def test_a_global_that_hides_a_builtin():
    def fn(x):
        return x * max(2, 3) + helper_module.count([1, 2])

    helper_module = types.ModuleType("helper_module")
    exec("def count(v):\n    return len(v)\n", helper_module.__dict__)
    run = Runner()
    same(run(fn, X), fn(X))
    helper_module.len = lambda v: 100
    same(run(fn, X), fn(X))
    try:
        globals()["max"] = lambda *a: 50
        same(run(fn, X), fn(X))
    finally:
        del globals()["max"]
    same(run(fn, X), fn(X))


def test_a_module_attribute_that_appears():
    import tests.capture.runner as mod

    def fn(x):
        return x + getattr(mod, "not_there", 1)

    run = Runner()
    same(run(fn, X), fn(X))
    mod.not_there = 5
    try:
        same(run(fn, X), fn(X))
    finally:
        del mod.not_there


@pytest.mark.parametrize(
    "first,second",
    [
        (slice(0, 1), slice(1, 3)),
        (frozenset({1}), frozenset({0})),
        (b"a", b"b"),
        (range(2), range(3)),
        (torch.float64, torch.int32),
        (2.0, 3.0),
        (0.0, -0.0),
        (1, True),
    ],
)
def test_constants_of_all_kinds(first, second):
    def fn(x, v):
        if isinstance(v, slice):
            return x[v]
        if isinstance(v, frozenset):
            return x + (1 in v)
        if isinstance(v, (bytes, range)):
            return x + v[-1]
        return x.to(v) if isinstance(v, torch.dtype) else torch.copysign(x, x * 0 + v) + v

    run = Runner()
    for v in (first, second, first):
        same(run(fn, X, v), fn(X, v))
    assert len(run.captures) == 2
