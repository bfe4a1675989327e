"""More of the language: each function is captured in one graph, or breaks where its comment says, and always equals
eager.
"""

import abc
import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import operator
import typing

import pytest
import torch

from .runner import check_one_graph

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Slotted:
    __slots__ = ("a", "_b")

    def __init__(self, a):
        self.a = a
        self._b = 2

    @property
    def b(self):
        return self._b

    @b.setter
    def b(self, v):
        self._b = v + 1


class Vector:
    def __init__(self, *xs):
        self.xs = xs

    def __add__(self, o):
        return Vector(*[a + b for a, b in zip(self.xs, o.xs)])

    def __radd__(self, o):
        return self if o == 0 else NotImplemented

    def __mul__(self, k):
        return Vector(*(a * k for a in self.xs))

    __rmul__ = __mul__

    def __getitem__(self, i):
        return self.xs[i]

    def __eq__(self, o):
        return isinstance(o, Vector) and len(self.xs) == len(o.xs)

    def __lt__(self, o):
        return len(self.xs) < len(o.xs)

    def __iter__(self):
        yield from self.xs

    def __bool__(self):
        return len(self.xs) > 0

    def __neg__(self):
        return Vector(*[-v for v in self.xs])

    def __iadd__(self, k):
        self.xs = tuple(v + k for v in self.xs)
        return self

    def __call__(self, x):
        return x * len(self.xs)

    def __repr__(self):
        return f"V{len(self.xs)}"


class Described:
    class Field:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, owner=None):
            return self if obj is None else obj.__dict__[self.name] * 2

        def __set__(self, obj, value):
            obj.__dict__[self.name] = value

    f = Field()


class Abstract(abc.ABC):
    @abc.abstractmethod
    def go(self, x): ...

    @classmethod
    def create(cls, *a):
        return cls(*a)


class Concrete(Abstract):
    count = 0

    def __init__(self, k=3):
        self.k = k

    def go(self, x):
        return x * self.k

    @functools.cached_property
    def cached(self):
        return self.k + 100

    @staticmethod
    def static(x):
        return x - 1


class Mixin:
    def go(self, x):
        return super().go(x) + 1


class Mixed(Mixin, Concrete):
    pass


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: float = 1.0


class Point(typing.NamedTuple):
    x: torch.Tensor
    y: int = 1

    def total(self):
        return self.x + self.y


@functools.lru_cache(maxsize=None)
def cached_square(n):
    return n * n


def slots(x):
    s = Slotted(x)
    s.b = 4
    return s.a + s.b


def overloads(x):
    v = Vector(x, x + 1) + Vector(x, x)
    v += 1
    w = 2 * v * 3
    total = sum([v, w], Vector(x, x))
    return (
        list(-total),
        w[0],
        v == w,
        v < Vector(x, x, x),
        bool(Vector()),
        repr(v),
        v(x),
        [*v],
        sorted([Vector(1, 2), Vector(1)])[0].xs,
    )


def descriptors(x):
    d = Described()
    d.f = 3
    return x * d.f


def inheritance(x):
    m = Mixed.create(5)
    return (
        m.go(x) + Concrete.static(x),
        m.cached,
        m.cached,
        isinstance(m, Abstract),
        issubclass(Mixed, Concrete),
        Mixed.__mro__[1].__name__,
        type(m).count,
        m.__class__.__name__,
    )


def dataclass_tools(x):
    f = Frozen(1, 2.0)
    g = dataclasses.replace(f, a=5)
    try:
        f.a = 3
    except dataclasses.FrozenInstanceError:
        y = x + 1
    return (
        y * g.a,
        f < g,
        f == Frozen(1, 2.0),
        [fl.name for fl in dataclasses.fields(f)],
        dataclasses.is_dataclass(f),
        dataclasses.asdict(g),
    )


def named_tuples(x):
    p = Point(x, 3)
    a, b = p
    q = p._replace(y=10)
    return p.total(), a * b, q, p._asdict()["y"], p._fields, collections.namedtuple("Q", "u v")(1, 2).u if False else 0


def generators_send(x):
    def gen():
        total = 0
        while True:
            got = yield total
            if got is None:
                return total
            total += got

    g = gen()
    next(g)
    g.send(3)
    out = g.send(4)
    try:
        g.send(None)
    except StopIteration as stop:
        out += stop.value

    def catching():
        try:
            yield 1
        except ValueError:
            yield 2
        finally:
            log.append("closed")

    log = []
    c = catching()
    first = next(c)
    second = c.throw(ValueError("x"))
    c.close()
    return x * out, first, second, log


def with_tools(x):
    with contextlib.ExitStack() as stack:
        log = []
        stack.callback(log.append, 1)
        stack.enter_context(contextlib.nullcontext())
        y = x + 1
    with contextlib.suppress(KeyError):
        {}["x"]
    return y, log


def returning_from_finally(x):
    def f():
        for i in range(3):
            try:
                if i == 1:
                    return x + i
            finally:
                seen.append(i)

    seen = []
    return f(), seen


def nested_try(x):
    out = []
    for k in range(4):
        try:
            try:
                if k == 0:
                    raise KeyError(k)
                if k == 1:
                    raise ValueError("v")
                if k == 2:
                    1 / 0
            except KeyError as e:
                out.append(e.args)
            except ValueError:
                raise
            else:
                out.append("else")
        except (ValueError, ZeroDivisionError) as e:
            out.append(type(e).__name__)
    try:
        int("z")
    except ValueError as e:
        out.append(str(e))
    return x + len(out), out


class MyError(Exception):
    def __init__(self, code, extra=None):
        super().__init__(f"code {code}")
        self.code = code


def own_exceptions(x):
    try:
        raise MyError(3)
    except MyError as e:
        return x + e.code, str(e), e.args


def iter_tools(x):
    pairs = list(itertools.product([1, 2], "ab"))
    acc = list(itertools.accumulate([1, 2, 3], operator.mul))
    groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2], key=lambda v: v)]
    taken = list(itertools.islice(itertools.count(5), 3))
    z = list(itertools.zip_longest([1], [2, 3], fillvalue=0))
    stars = list(itertools.starmap(pow, [(2, 3), (3, 2)]))
    tw = list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1]))
    tensors = list(itertools.chain([x], (t + 1 for t in [x])))
    return (
        x * acc[-1],
        pairs,
        groups,
        taken,
        z,
        stars,
        tw,
        tensors,
        list(itertools.repeat(1, 2)),
        list(itertools.combinations([1, 2, 3], 2)),
    )


def sets_and_dicts(x):
    a, b = {1, 2, 3}, {2, 3, 4}
    d = dict(zip("ab", [x, x + 1]))
    e = {**d, "c": 1} | {"z": 2}
    f = dict.fromkeys(["p", "q"], 0)
    counts = collections.Counter("hello")
    dq = collections.deque([1, 2], maxlen=3)
    dq.append(3)
    dq.appendleft(0)
    dd = collections.defaultdict(list)
    dd["k"].append(x)
    return (
        a & b,
        a | b,
        a - b,
        a ^ b,
        a <= b,
        d["a"] + d["b"],
        sorted(e),
        list(f.items()),
        counts["l"],
        list(dq),
        dd["k"][0],
        {k: len(k) for k in e},
        [k for k in d.keys() & {"a"}],
        list(reversed([1, 2])),
        "a" in d,
        d.get("zz", 4),
        max(d, key=lambda k: k),
    )


def strings(x):
    s = "Hello,World"
    return (
        x + len(s),
        s.split(","),
        s.lower().replace("l", "L"),
        s[::-1],
        s.startswith("He"),
        " ".join(["a", "b"]),
        "%05.1f" % 2.345,
        f"{3.14159:.{2}f}",
        s.encode().hex(),
        "abc".join("xy"),
        s.partition(","),
        f"{x.dtype}",
        "x" * 3,
        repr("q"),
        f"{[1, 2]} {dict(a=1)}",
    )


def numbers(x):
    return (
        x * math.pi + math.floor(2.7) + math.log2(8),
        divmod(7, 2),
        round(2.567, 1),
        abs(-3),
        pow(2, 5, 7),
        int("12"),
        float("1.5"),
        complex(1, 2),
        7 // 2,
        -7 % 3,
        2**0.5,
        ~5,
        6 & 3,
        1 << 4,
        bin(5),
        sum([1, 2.5]),
        math.isnan(float("nan")),
        bool([]),
        min(3, 1),
        hash("a") == hash("a"),
        ord("a"),
    )


def recursion(x):
    def depth(n):
        return x if n == 0 else depth(n - 1) + n

    return depth(6)


def caching(x):
    return x * cached_square(4) + cached_square(4)


def decorators(x):
    def times(n):
        def deco(fn):
            @functools.wraps(fn)
            def wrapper(*args, **kwargs):
                return fn(*args, **kwargs) * n

            return wrapper

        return deco

    @times(3)
    @times(2)
    def f(v, *, bias=1):
        """doc"""
        return v + bias

    @torch.no_grad()
    def g(v):
        return v * 2

    return f(x, bias=4), f.__name__, f.__doc__, g(x)


def keyword_only(x):
    def f(a, /, b, *rest, c, d=4, **kw):
        return a + b + sum(rest) + c + d + sum(kw.values())

    return f(x, 1, 2, 3, c=4, e=5), f(*[x, 1], **{"c": 2})


def wrong_calls(x):
    def f(a, b):
        return a

    out = []
    for args, kw in [((1,), {}), ((1, 2, 3), {}), ((1, 2), {"b": 3}), ((1,), {"c": 1})]:
        try:
            f(*args, **kw)
        except TypeError as e:
            out.append(str(e).split(".")[-1])
    return x + len(out), out


def type_checks(x):
    return (
        x + 1,
        isinstance(x, torch.Tensor),
        type(x) is torch.Tensor,
        isinstance(3, (int, str)),
        callable(len),
        isinstance([], list),
        type(3).__name__,
        hasattr(x, "shape"),
        hasattr(x, "nope"),
        getattr(x, "nope", 7),
        isinstance(x, torch.nn.Parameter),
        torch.is_tensor(x),
        x is not None,
        isinstance(x.shape, tuple),
        isinstance(x.shape[0], int),
        torch.is_floating_point(x),
    )


def deep_unpacking(x):
    (a, (b, *c)), d = [(x, (1, 2, 3)), {"k": [x]}]
    [e] = d["k"]
    for i, (p, q) in enumerate([(1, 2), (3, 4)]):
        a = a + p * q * i
    return a, b, c, e


def comprehension_scopes(x):
    k = 2
    return (
        [[i * j * k for j in range(2)] for i in range(3) if i],
        {(i, j) for i in range(2) for j in range(2) if i != j},
        [y for i in range(3) if (y := i * 2) > 1],
        x * k,
    )


def chained(x):
    return (
        x[0].unsqueeze(-1).expand(4, 2).transpose(0, 1).contiguous().view(-1).chunk(2)[0].clamp(min=0).pow(2),
        torch.stack([x, x]).mean((0, 1)),
        x[:, None, ::2],
        x[[0, 2]],
        x[torch.tensor([1, 0])],
        x[..., -1],
        x.gt(0).any(),
        (x > 0) & (x < 1),
        -x,
        ~(x > 0),
        x @ x.T,
        x**2,
        2**x,
        1 - x,
        x // 2,
    )


def out_arguments(x):
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    z = torch.zeros(3, 4)
    z[1] = x[0]
    z[:, 0] += 1
    z.copy_(z * 2)
    a, b = torch.max(x, dim=0)
    v = x.sort(dim=1)
    return y, z, a, b, v.values, v.indices, torch.topk(x, 2)[0]


def einsum_and_friends(x):
    return (
        torch.einsum("ij,kj->ik", x, x),
        torch.split(x, 2, dim=1)[0],
        torch.meshgrid(x[0], x[1], indexing="ij")[0],
        torch.norm(x),
        torch.where(x > 0, x, 0.0),
        torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
        torch.cdist(x, x),
        torch.broadcast_tensors(x, x[0])[1],
    )


def autocast_inside(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
    return y, x @ x.T, torch.is_autocast_enabled("cpu")


def grad_modes(x):
    w = x.clone().requires_grad_() if False else x
    with torch.no_grad():
        a = torch.is_grad_enabled()
        with torch.enable_grad():
            b = torch.is_grad_enabled()
        w = w * 2
    with torch.set_grad_enabled(False):
        c = torch.is_grad_enabled()
    return w, a, b, c, torch.is_grad_enabled(), x.detach().requires_grad


def local_imports(x):
    import math as m
    from collections import OrderedDict as OD

    return x * m.sqrt(4), OD(a=1)


def global_functions(x):
    return (
        functools.reduce(operator.add, map(lambda t: t.sum(), [x, x + 1])),
        operator.itemgetter(1)([1, 2]),
        operator.attrgetter("shape")(x),
    )


def while_else_loops(x):
    n = 0
    while n < 3:
        n += 1
    else:
        x = x + n
    for _ in []:
        pass
    else:
        x = x * 2
    return x


def conditional_expressions(x):
    a = None
    b = a or x
    c = a and x
    d = x if a is None else a
    e = not a
    assert b is x, "message"
    return b + 1, c, d, e, (a is None) == e


def copies(x):
    import copy

    a = [1, [2, 3]]
    b = copy.copy(a)
    c = copy.deepcopy(a)
    b[1].append(4)
    return x + len(a[1]), a, b, c


FUNCTIONS = [
    slots,
    overloads,
    descriptors,
    inheritance,
    dataclass_tools,
    named_tuples,
    generators_send,
    with_tools,
    returning_from_finally,
    nested_try,
    own_exceptions,
    iter_tools,
    sets_and_dicts,
    strings,
    numbers,
    recursion,
    caching,
    decorators,
    keyword_only,
    wrong_calls,
    type_checks,
    deep_unpacking,
    comprehension_scopes,
    chained,
    out_arguments,
    einsum_and_friends,
    autocast_inside,
    grad_modes,
    local_imports,
    global_functions,
    while_else_loops,
    conditional_expressions,
    copies,
]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_graph(fn):
    check_one_graph(fn, X)
