"""Functions, modules, containers, control flow: what capture gives equals eager, in one graph."""

import time
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import typing

import pytest
import torch
import torch.nn.functional as F

from .runner import Runner, check_one_graph, same


X = torch.linspace(-2, 2, 12).reshape(3, 4)
GLOBAL_SCALE = 3
CONFIG = {"scale": 2.0, "names": ["a", "b"]}


def pointwise(x):
    return torch.relu(x * 2 + 1) - torch.sin(x).cos()


def loop(x):
    for i in range(5):
        x = x + i
    return x


def nested_containers(x):
    d = {"a": [x, x + 1], "b": (x * 2, {"c": 3})}
    d["a"].append(x.sum())
    d["e"], *rest = d["a"]
    return d, rest, [v for v in rest if v.dim() == 0]


def comprehension(x):
    return [x * i for i in range(3)], {i: x + i for i in range(2)}, sum(x[i] for i in range(3))


def closures(x):
    k = 2

    def inner(y):
        nonlocal k
        k += 1
        return y * k

    a = inner(x)
    b = inner(x)
    return a + b, k


def uses_globals(x):
    return x * GLOBAL_SCALE + CONFIG["scale"] + len(CONFIG["names"])


def variadic(x, *args, flag=True, **kwargs):
    y = x
    for a in args:
        y = y + a
    for k, v in sorted(kwargs.items()):
        y = y * v
    return y if flag else -y


def calls_variadic(x):
    return variadic(x, 1, 2, z=3, flag=False) + variadic(*[x, x], **{"w": 2})


def generator(x):
    def gen(n):
        for i in range(n):
            got = yield x * i
            assert got is None
        return 5

    def outer():
        r = yield from gen(2)
        yield x + r

    return list(outer()), tuple(gen(1)), sum(gen(3))


def exceptions(x):
    try:
        raise KeyError("a")
    except KeyError as e:
        y = x + len(e.args)
    finally:
        y = x * 2
    try:
        {}["missing"]
    except (KeyError, ValueError):
        y = y + 1
    try:
        try:
            raise ValueError("inner")
        except ValueError as v:
            raise RuntimeError("outer") from v
    except RuntimeError as e:
        y = y + len(str(e.__cause__))
    return y


class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: int = 2


@dataclasses.dataclass
class Box:
    value: torch.Tensor
    scale: float = 2.0
    items: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.items.append(self.scale)

    @property
    def doubled(self):
        return self.value * 2


@dataclasses.dataclass
class Output(collections.OrderedDict):
    first: torch.Tensor = None
    second: torch.Tensor = None

    def __post_init__(self):
        for f in dataclasses.fields(self):
            if getattr(self, f.name) is not None:
                super().__setitem__(f.name, getattr(self, f.name))

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def classes_inside(x):
    p = Pair(x + 1)
    box = Box(x, scale=3.0)
    q = p._replace(b=5)
    return p, box, q.b, box.doubled, box.items


def model_output(x):
    out = Output(first=x + 1)
    out["second"] = x * 2
    return out


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


def enums(x):
    c = Color.RED
    if c is Color.RED and c.name == "RED":
        x = x + c.value
    return x, Color("b"), [m.value for m in Color]


def functional_tools(x):
    f = functools.partial(torch.add, alpha=2)
    y = f(x, x)
    y = functools.reduce(lambda a, b: a + b, [x, y, x])
    for a, b in zip([1, 2], itertools.chain([3], (4,))):
        y = y + a * b
    for i, v in enumerate(map(operator.neg, [x, y])):
        y = y + v * i
    return (
        y * math.sqrt(4) * max(1, 2, 3) * min([5, 4]),
        sorted([3, 1, 2], key=lambda v: -v),
        list(filter(None, [0, 1])),
    )


class Manager:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, *exc):
        self.log.append(exc[0] is None)
        return True


@contextlib.contextmanager
def managed(log):
    log.append(1)
    try:
        yield 7
    finally:
        log.append(2)


def context_managers(x):
    log = []
    with Manager(log) as mgr, managed(log) as seven:
        y = x + seven + len(mgr.log)
    with Manager(log):
        raise ValueError
    with contextlib.nullcontext():
        y = y + 1
    with torch.no_grad():
        z = x * 3
    return y, z, log


def strings(x):
    name, n = "a", 3
    s = f"{name!r:>5}-{n:03d}-{x.shape[0]}-{x.dtype}"
    return x + len(s), s, "-".join(str(d) for d in x.shape), "%s %d" % (name, n), "{:.2f}".format(1.5)


def star_unpacking(x):
    a, *b, c = [x, x + 1, x + 2, x + 3]
    first, (second, third) = a, (c, b)
    return first, second, third, [*b, a], {**{"k": 1}, "m": c}


def match_statement(x):
    out = []
    for v in [1, "s", [1, 2], {"k": 3}, (x,)]:
        match v:
            case int():
                out.append(x + v)
            case str() as s:
                out.append(s)
            case [a, b]:
                out.append(a + b)
            case {"k": k}:
                out.append(k)
            case _:
                out.append("rest")
    return out


def walrus_and_conditionals(x):
    if (n := x.shape[1]) > 3 and not n == 5:
        x = x + n
    y = x if n else -x
    return y, 1 < n < 10, n is None, n in (4, 5), x.dim() != 2


def views_and_inplace(x):
    y = x.clone()
    v = y[1:, ::2]
    v += 1
    y[0] = 5
    y.mul_(2)
    a, b = y.split(2, dim=1)
    return y, v, a + b, y.T, y[..., None].shape, y.view(-1)[3]


def factories(x):
    return (
        torch.zeros(2, 3),
        torch.arange(4) + x.sum(),
        torch.full((2,), 7.0),
        torch.tensor([1, 2]),
        x.new_ones(2),
        torch.ones_like(x),
        torch.eye(2),
    )


def tensor_properties(x):
    if x.is_floating_point() and x.device.type == "cpu" and x.requires_grad is False:
        return x.to(torch.float64), x.numel(), x.size(), x.stride(), x.ndim, x.T.shape, x.size(-1), tuple(x.shape)
    return x


def lambdas(x):
    fs = [lambda v, k=k: v * k for k in range(3)]
    return [f(x) for f in fs], (lambda *a: a[1])(x, x + 1)


def class_in_function(x):
    class Local:
        factor = 4

        def __init__(self, v):
            self.v = v

        def scaled(self):
            return self.v * self.factor

        @staticmethod
        def helper(v):
            return v + 1

        @classmethod
        def make(cls, v):
            return cls(v)

    return Local.make(x).scaled() + Local.helper(x)


def deleting(x):
    d = {"a": 1, "b": 2}
    del d["a"]
    y = x + 1
    z = y
    del y
    lst = [1, 2, 3]
    del lst[0]
    return z, d, lst


def while_loop(x):
    i = 0
    while True:
        i += 1
        if i == 2:
            continue
        x = x + i
        if i > 4:
            break
    else:
        x = x * 100
    return x, i


class Base:
    offset = 10

    def compute(self, x):
        return x + self.offset


class Derived(Base):
    def __init__(self):
        self.calls = []

    def compute(self, x):
        self.calls.append(len(self.calls))
        return super().compute(x) * 2

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return len(name)
        raise AttributeError(name)

    def __call__(self, x):
        return self.compute(x) + self.dyn_abc

    def __getitem__(self, i):
        return i * 2

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([1, 2])

    def __contains__(self, v):
        return v == 2

    def __add__(self, other):
        return other + 100

    def __eq__(self, other):
        return isinstance(other, Derived)


def user_objects(x):
    d = Derived()
    return (
        d(x),
        d[4],
        len(d),
        list(d),
        2 in d,
        d + x,
        d == Derived(),
        bool(d),
        hasattr(d, "nope"),
        getattr(d, "nope", 3),
    )


def functional_nn(x):
    w = torch.ones(5, 4)
    y = F.linear(x, w)
    y = F.gelu(y) + F.softmax(y, dim=-1)
    y = F.layer_norm(y, (5,))
    return F.dropout(y, 0.5, training=False), F.mse_loss(y, torch.zeros_like(y))


def early_return(x):
    for i in range(3):
        for j in range(3):
            if i * j == 2:
                return x * i + j
    return x


def decorated(x):
    @functools.wraps(pointwise)
    def wrapper(*a, **k):
        return pointwise(*a, **k) + 1

    return wrapper(x), wrapper.__name__


FUNCTIONS = [
    pointwise,
    loop,
    nested_containers,
    comprehension,
    closures,
    uses_globals,
    calls_variadic,
    generator,
    exceptions,
    classes_inside,
    model_output,
    enums,
    functional_tools,
    context_managers,
    strings,
    star_unpacking,
    match_statement,
    walrus_and_conditionals,
    views_and_inplace,
    factories,
    tensor_properties,
    lambdas,
    class_in_function,
    deleting,
    while_loop,
    user_objects,
    functional_nn,
    early_return,
    decorated,
]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_graph(fn):
    check_one_graph(fn, X)


class Block(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = torch.nn.LayerNorm(n)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(n, n) for _ in range(2)])
        self.heads = torch.nn.ModuleDict({"a": torch.nn.Linear(n, 2)})
        self.register_buffer("bias", torch.ones(n))
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.drop = torch.nn.Dropout(0.1)
        self.calls = 0

    def forward(self, x, residual=True):
        h = self.norm(x)
        for i, layer in enumerate(self.layers):
            h = torch.tanh(layer(h)) + self.bias * i
        h = self.drop(h)
        if residual:
            h = h + x
        return self.heads["a"](h) * self.scale


def test_module_in_one_graph():
    m = Block(4).eval()
    run = Runner()

    def call(x):
        return m(x), m(x, residual=False)

    same(run(call, X), call(X))
    same(run(call, X + 1), call(X + 1))
    assert len(run.captures) == 1 and not run.breaks
    graph = run.graphs[0]
    assert {n.op for n in graph.graph_module.graph.nodes} <= {"placeholder", "call_function", "call_method", "output"}
    static = [i for i in graph.inputs if i.static]
    assert len(static) == 10
    modules = {n.meta["module"] for n in graph.graph_module.graph.nodes if n.op == "call_function"}
    assert "m.norm" in modules and "m.layers.1" in modules, modules


def test_root_is_forward():
    m = Block(4).eval()
    run = Runner()
    same(run(Block.forward, m, X), m(X))
    same(run(Block.forward, m, X), m(X))
    assert len(run.captures) == 1 and not run.breaks


def test_thousand_additions_unroll_quickly():
    def many(x):
        for _ in range(1000):
            x = x + 1
        return x

    run = Runner()
    began = time.process_time()  # the machine may be busy with other things
    same(run(many, torch.zeros(3)), torch.full((3,), 1000.0))
    assert time.process_time() - began < 3  # 0.1 s on an idle machine


def test_nothing_to_do_is_a_quiet_skip():
    run = Runner()
    assert run(lambda a, b: a + b, 1, 2) == 3
    assert run.skips[0].quiet


def keyword_names(x, Class, Global):
    return x * Class + Global


def test_inputs_named_like_keywords():
    run = Runner()
    same(run(keyword_names, X, X + 1, X + 2), keyword_names(X, X + 1, X + 2))
    assert not run.breaks and not run.skips
