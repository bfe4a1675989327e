"""id(), the text of objects that have none of their own, and the subclasses of a class: never those of an earlier
call.
"""

from __future__ import annotations

import collections
import gc

import pytest
import torch

import tcompile

X = torch.arange(6.0).reshape(2, 3) / 5


class Plain:
    def method(self):
        pass


class Named:
    def __init__(self, name):
        self.name = name

    def method(self):
        pass

    def __repr__(self):
        return self.name


def one():
    pass


def two():
    pass


A, B = Plain(), Plain()
TEXTS = [
    lambda o: str(o),
    lambda o: repr(o),
    lambda o: f"{o} {o!r:>70}",
    lambda o: "%s" % o,
    lambda o: "{}".format(o),
    lambda o: str([o, {1: (o,)}]),
]


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize(
    "objects",
    [(A, B), (one, two), (Named("a").method, Named("b").method), (A.method, B.method), (Named.method, Plain.method)],
    ids=["objects", "functions", "methods", "methods of objects", "functions of classes"],
)
def test_text_is_that_of_this_calls_object(objects, text, fullgraph):
    compiled = tcompile.compile(lambda x, o: (text(o), x + 1), fullgraph=fullgraph, backend="eager")
    for o in (*objects, *objects, one):
        assert compiled(X, o)[0] == text(o)


def test_one_graph_for_the_text_of_an_outside_object():
    compiled = tcompile.compile(lambda x: (x + 1, str(A), id(A)), fullgraph=True, backend="eager")
    assert compiled(X)[1:] == (str(A), id(A))


@pytest.mark.parametrize("make", [lambda: str(Plain()), lambda: str([Plain()]), lambda: str(lambda: 0)], ids=range(3))
def test_text_of_what_is_made_inside_parts_the_graph(make):
    got, after = tcompile.compile(lambda x: (make(), x + 1), fullgraph=True, backend="eager")(X)
    assert " at 0x" in got
    torch.testing.assert_close(after, X + 1)


def test_ids_of_many_tensors_need_few_entries():
    """An id that changes from call to call is a number that varies."""
    captured = []

    def backend(gm, inputs):
        captured.append(gm)
        return gm.forward

    fn = lambda x, n: (id(x), x + 1 if id(x) == n else x - 1)  # noqa: E731
    compiled = tcompile.compile(fn, fullgraph=True, backend=backend)
    tensors = [X + i for i in range(12)]
    for i, x in enumerate(tensors):
        n = id(x) if i % 2 else 0
        torch.testing.assert_close(compiled(x, n), fn(x, n))
    assert len(captured) <= 4


def test_ids_as_keys_and_of_modules():
    class Net(torch.nn.Module):
        def forward(self, x, table):
            return x + table.get(id(x), 3) + (id(self) == self.own) + (id(self.weight) in table)

    net = Net()
    net.weight, net.own = torch.nn.Parameter(torch.ones(())), id(net)
    compiled = tcompile.compile(net, fullgraph=True, backend="eager")
    for table in ({id(X): 2}, {}, {id(net.weight): 1}):
        torch.testing.assert_close(compiled(X, table), net(X, table))


def test_ids_as_keys_of_objects_that_are_made_anew():
    """As torch's GradScaler keeps the state of its optimizers."""

    class Keeper:
        def __init__(self):
            self.states = collections.defaultdict(lambda: {"stage": 0, "found": []})

        def step(self, x, owner):
            state = self.states[id(owner)]
            state["stage"] += 1
            state["found"].append(x.sum())
            return x * state["stage"] + (2 if id(owner) in self.states else 3)

        def update(self, x):
            return x + sum(f for state in self.states.values() for f in state["found"])

    def program(x, keeper, owner):
        y = keeper.step(x.sin(), owner)
        return keeper.update(y.cos()) * 2

    compiled, kept = tcompile.compile(program), []
    with tcompile.record() as record:
        for _ in range(6):
            ours, theirs, owners = Keeper(), Keeper(), [Plain(), Plain()]
            kept.append(owners)  # so that each has an address of its own
            for owner in (owners[0], owners[0], *owners):
                torch.testing.assert_close(compiled(X, ours, owner), program(X, theirs, owner))
            assert ours.states.keys() == theirs.states.keys()
    late = [r for r in record.report().recompiles if r.at_call > 8]
    assert not late, late


def test_id_of_what_is_made_inside():
    def fn(x):
        parts = [x]
        return {id(parts): 3}[id(parts)] + x, id(parts) == id(x), len({id(x + 1)})

    torch.testing.assert_close(tcompile.compile(fn, fullgraph=True, backend="eager")(X), fn(X))


def test_subclasses_are_those_of_the_moment():
    class Base:
        pass

    class First(Base):
        def scale(self, x):
            return x * 2

    captured = []

    def backend(gm, inputs):
        captured.append(gm)
        return gm.forward

    def fn(x):
        for c in Base.__subclasses__():
            x = c().scale(x)
        return x, Base.__subclasses__(), len(type.__subclasses__(Base))

    compiled = tcompile.compile(fn, fullgraph=True, backend=backend)

    def check(names):
        for _ in range(2):
            got = compiled(X)
            assert [c.__name__ for c in got[1]] == names and got[1] == Base.__subclasses__() and got[2] == len(names)
            torch.testing.assert_close(got[0], X * 2 ** len(names))

    check(["First"])

    class Second(First, Base):
        pass

    check(["First", "Second"])
    assert len(captured) == 2
    del Second
    gc.collect()
    check(["First"])


def test_hashes_of_objects_without_one_of_their_own_are_those_of_the_call() -> None:
    """Such a hash is the object's address: one made inside has none yet, and another call brings another object."""

    def of_one_made_inside(x: torch.Tensor) -> tuple:
        made, plain = Plain(), object()

        def inner() -> None: ...

        return x + 1, [(o, hash(o)) for o in (made, plain, inner)]

    for _ in range(2):
        assert all(hash(o) == n for o, n in tcompile.compile(of_one_made_inside)(torch.ones(2))[1])
    held = [Plain(), Plain(), lambda: 1, lambda: 2]  # all at once: each has another address
    compiled = tcompile.compile(lambda x, o: (x + 1, hash(o)))
    assert [compiled(torch.ones(2), o)[1] for o in held * 2] == [hash(o) for o in held * 2]
    lasting = (None, ..., int, Plain, print, torch, torch.float32)
    assert tcompile.compile(lambda x: (x + 1, list(map(hash, lasting))))(torch.ones(2))[1] == list(map(hash, lasting))
