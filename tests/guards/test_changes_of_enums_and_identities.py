"""Enums that change, identities of immutable values, dicts of classes: what eager says, call after call."""

from __future__ import annotations

import copy
import enum
import operator
from typing import Any, Callable

import pytest
import tcompile
import torch

from .changing import eq

x = torch.ones(3)


def make_enum() -> Any:
    class Kind(enum.Enum):
        A = 1
        B = 2
        C = (3, 4)

    return Kind


READS: dict[str, Callable] = {
    "value": lambda E, x: x * E.A.value,
    "_value_": lambda E, x: x * E.A._value_,
    "name": lambda E, x: x * len(E.A.name),
    "by value": lambda E, x: x * E(1).value,
    "by name": lambda E, x: x * E["A"].value,
    "all": lambda E, x: x * sum(e.value for e in E if e is not E.C),
    "text": lambda E, x: (x + 1, str(E.A), repr(E.A)),
    "part": lambda E, x: x * E.C.value[0],
}
CHANGES: dict[str, Callable] = {
    "_value_": lambda E: setattr(E.A, "_value_", 20),
    "_name_": lambda E: setattr(E.A, "_name_", "LONG"),
    "_value2member_map_": lambda E: E._value2member_map_.update({1: E.B}),
    "_member_map_": lambda E: E._member_map_.update(A=E.B),
    "_member_names_": lambda E: E._member_names_.append("B"),
    "tuple": lambda E: setattr(E.C, "_value_", (9, 9)),
}


@pytest.mark.parametrize("read", READS)
def test_an_enum_that_changes(read: str) -> None:
    for change in CHANGES.values():
        kinds = make_enum(), make_enum()
        f = READS[read]
        compiled = tcompile.compile(lambda x: f(kinds[0], x), backend="eager")  # noqa: B023
        eq(compiled(x), f(kinds[1], x))
        for kind in kinds:
            change(kind)
        eq(compiled(x), f(kinds[1], x))


IDENTITIES: dict[str, Callable] = {
    "s * 1": lambda s: s * 1 is s,
    "1 * s": lambda s: 1 * s is s,
    "s * True": lambda s: s * True is s,
    "s * 2": lambda s: s * 2 is s,
    "s * 0": lambda s: s * 0 is s,
    "s *= 1": lambda s: operator.imul(s, 1) is s,
    "s[:]": lambda s: s[:] is s,
    "s[0:len]": lambda s: s[0 : len(s)] is s,
    "s[::1]": lambda s: s[::1] is s,
    "s[1:]": lambda s: s[1:] is s[1:],
    "s[::-1]": lambda s: s[::-1] is s,
    "s + empty": lambda s: s + type(s)() is s,
    "empty + s": lambda s: type(s)() + s is s,
    "s += empty": lambda s: operator.iadd(s, type(s)()) is s,
    "s + s": lambda s: s + s is s,
    "type(s)(s)": lambda s: type(s)(s) is s,
    "copy": lambda s: copy.copy(s) is s,
}


@pytest.mark.parametrize(
    "value",
    [(1, 2), (torch.ones(1), 2), ((1, 2), ()), (), "abc", "", b"abc", b"", "a" * 300],
    ids=lambda v: repr(v)[:20],
)
def test_identities_of_sequences(value: Any) -> None:
    def program(x: torch.Tensor, s: Any) -> Any:
        return x + 1, [identity(s) for identity in IDENTITIES.values()]

    compiled = tcompile.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(x, value)[1] == program(x, value)[1]


@pytest.mark.parametrize(
    "value", [(1, "a", (2.5, None)), (), ((), [3]), [(1, 2)], "abc", {"k": (1, 2)}, frozenset((1, 2))], ids=repr
)
@pytest.mark.parametrize("fullgraph", [True, False])
def test_identities_of_deep_copies(value: Any, fullgraph: bool) -> None:
    """A tuple in which nothing is copied is its own copy."""

    def program(x: torch.Tensor, v: Any) -> Any:
        d = copy.deepcopy(v)
        parts = zip(d.values(), v.values()) if isinstance(v, dict) else zip(d, v)
        return x + 1, d is v, [a is b for a, b in parts], d

    compiled = tcompile.compile(program, backend="eager", fullgraph=fullgraph)
    for _ in range(2):
        assert compiled(x, value)[1:] == program(x, value)[1:]


def test_what_stands_twice_stands_twice_in_its_deep_copy() -> None:
    def program(x: torch.Tensor, v: Any) -> Any:
        d = copy.deepcopy(v)
        d[0].append(5)
        loop: list = [1]
        loop.append(loop)
        again = copy.deepcopy(loop)
        return x + len(d[1]), d[0] is d[1], d, again[1] is again, again is loop

    first, second = [1], [1]
    compiled = tcompile.compile(program, backend="eager", fullgraph=True)
    for v in ((first, first), (first, second), (second, second), [first, first], [second, first]):
        eq(compiled(x, v), program(x, v))
    assert first == second == [1]


def test_deep_copies_with_a_size_or_a_memo() -> None:
    def program(x: torch.Tensor) -> Any:
        sizes, given = (x.shape[0], 2), [1]
        memo: dict = {}
        known = copy.deepcopy(given, {id(given): 7})
        return (
            x + 1,
            copy.deepcopy(sizes) is sizes,
            copy.deepcopy([sizes]),
            copy.deepcopy(given, memo),
            id(given) in memo,
            known,
        )

    compiled = tcompile.compile(program, backend="eager")
    for n in (3, 4, 5):
        eq(compiled(torch.ones(n)), program(torch.ones(n)))


def test_identities_of_sets_and_numbers_that_vary() -> None:
    def program(x: torch.Tensor, n: int, s: frozenset) -> Any:
        return x + n, n + 0 is n, n * 1 is n, +n is n, n is five, frozenset(s) is s

    five = 5
    compiled = tcompile.compile(program, backend="eager")
    for n in (5, 6, 7, 5):
        assert compiled(x, n, frozenset((1, 2)))[1:] == program(x, n, frozenset((1, 2)))[1:]


CLASS_READS: dict[str, Callable] = {
    "text": lambda x, A: (x + 1, "55" in str(vars(A))),
    "names": lambda x, A: x + len([n for n in vars(A) if n[0] != "_"]),
    "length": lambda x, A: x + len(vars(A)),
    "item": lambda x, A: x + len(vars(A)["k"][0]),
    "get": lambda x, A: x + (vars(A).get("m") or 0),
    "in": lambda x, A: x + ("m" in vars(A)),
    "copy": lambda x, A: x + len(dict(vars(A))),
    "values": lambda x, A: (x, [v for n, v in vars(A).items() if n in ("k", "n", "m")]),
}


@pytest.mark.parametrize("read", CLASS_READS)
def test_the_dict_of_a_class(read: str) -> None:
    class Base:
        n = 3

    class A(Base):
        k = [[1], 2]

    f = CLASS_READS[read]
    compiled = tcompile.compile(f, backend="eager")
    for change in (
        lambda: None,
        lambda: A.k[0].append(55),
        lambda: setattr(A, "m", 4),
        lambda: setattr(A, "m", 55),
        lambda: delattr(A, "m"),
        lambda: setattr(A, "n", 55),
    ):
        change()
        eq(compiled(x, A), f(x, A))


def test_what_iter_gives_is_an_iterator() -> None:
    class Given:
        def __iter__(self) -> Any:
            return [1, 2]

    def program(x: torch.Tensor) -> Any:
        try:
            return x + sum(Given())
        except TypeError as error:
            return x - 1, str(error)

    assert tcompile.compile(program, backend="eager")(x)[1] == program(x)[1]
