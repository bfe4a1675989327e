"""Functions with a cache (functools.cache, memo decorators, cached_property): what they give is what the cache holds,
changed by whoever has it.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import pytest
import tcompile
import torch

from .changing import eq

x = torch.ones(2)
factor = 2.0


def memo(fn: Callable) -> Callable:
    cache: dict = {}

    def inner(*args: Any) -> Any:
        if args not in cache:
            cache[args] = fn(*args)
        return cache[args]

    return inner


DECORATORS = {"cache": functools.cache, "lru_cache": functools.lru_cache(maxsize=2), "by hand": memo}


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_tensor_in_a_cache_is_one_and_the_same(decorator: str, backend: str) -> None:
    def observed(wrap: Callable) -> list:
        weights = DECORATORS[decorator](lambda n: torch.ones(2) * n)
        f = wrap(lambda x: (weights(2).add_(x).clone(), weights(2) is weights(2)))
        return [f(x), f(x), weights(2).mul_(3).clone(), f(x), f(x)]

    torch.testing.assert_close(observed(lambda f: tcompile.compile(f, backend=backend)), observed(lambda f: f))


def test_lists_and_objects_in_a_cache() -> None:
    def observed(wrap: Callable) -> list:
        @functools.cache
        def numbers(n: int) -> list:
            return [n]

        def program(x: torch.Tensor) -> Any:
            numbers(1).append(1)
            return x + len(numbers(1)), numbers(1) is numbers(1)

        f = wrap(program)
        return [f(x), f(x), numbers(1), f(x)]

    torch.testing.assert_close(observed(lambda f: tcompile.compile(f, backend="eager")), observed(lambda f: f))


def test_numbers_in_a_cache_stay_until_it_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.cache
    def scaled(n: int) -> float:
        return n * factor

    f = tcompile.compile(lambda x: x * scaled(3), backend="eager", fullgraph=True)
    assert torch.equal(f(x), x * 6)
    monkeypatch.setitem(globals(), "factor", 5.0)
    assert torch.equal(f(x), x * 6)
    scaled.cache_clear()
    assert torch.equal(f(x), x * 15) and torch.equal(f(x), x * 15)


def test_a_method_with_a_cache() -> None:
    class Table:
        def __init__(self, k: float) -> None:
            self.k = k

        @functools.lru_cache  # noqa: B019  (what is tested)
        def scale(self, n: int) -> float:
            return self.k * n

    first, second = Table(2.0), Table(3.0)
    f = tcompile.compile(lambda x, t: x * t.scale(3), backend="eager", fullgraph=True)
    for t in (first, second, first):
        assert torch.equal(f(x, t), x * t.k * 3)
    first.k = 7.0
    assert torch.equal(f(x, first), x * 6)


@pytest.mark.parametrize("argument", ["tensor", "after effects"])
def test_what_may_depend_on_more_is_called_where_it_stands(argument: str) -> None:
    def observed(wrap: Callable) -> list:
        seen: list = []

        @functools.cache
        def total(key: Any) -> Any:
            return key * 2 if argument == "tensor" else len(seen)

        def program(x: torch.Tensor, key: Any) -> Any:
            seen.append(1)
            return x + total(key)

        f, key = wrap(program), torch.ones(2) if argument == "tensor" else 1
        return [f(x, key), f(x, key), f(x, torch.ones(2) if argument == "tensor" else 2)]

    torch.testing.assert_close(observed(lambda f: tcompile.compile(f, backend="eager")), observed(lambda f: f))


def test_a_cached_property_of_a_list() -> None:
    class Owner:
        @functools.cached_property
        def items(self) -> list:
            return []

    def program(x: torch.Tensor, owner: Owner) -> Any:
        owner.items.append(1)
        return x + len(owner.items)

    f, mine, theirs = tcompile.compile(program, backend="eager"), Owner(), Owner()
    for _ in range(3):
        assert torch.equal(f(x, mine), program(x, theirs)) and mine.items == theirs.items


def test_single_dispatch() -> None:
    def observed(wrap: Callable) -> list:
        @functools.singledispatch
        def shifted(value: Any, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        f = wrap(lambda x: shifted(1, x) * shifted("a", x))
        out = [f(x)]
        for kind in (str, int, str):
            shifted.register(kind, lambda value, x, k=len(out): x + 10 * k)
            out.append(f(x))
        return out

    torch.testing.assert_close(observed(lambda f: tcompile.compile(f, backend="eager")), observed(lambda f: f))


def test_what_a_cached_function_does_when_it_runs_is_seen() -> None:
    def observed(wrap: Callable) -> list:
        notes: list = []

        @functools.cache
        def once() -> None:
            notes.append(1)

        def program(x: torch.Tensor) -> Any:
            before = len(notes)
            once()
            return x + 10 * before + len(notes)

        f = wrap(program)
        out = [f(x), f(x)]
        once.cache_clear()
        return [*out, f(x), f(x), notes]

    torch.testing.assert_close(observed(lambda f: tcompile.compile(f, backend="eager")), observed(lambda f: f))


def test_a_tuple_in_a_cache_is_the_same_tuple() -> None:
    pair = functools.cache(lambda n: (n, (n, 2)))
    f = tcompile.compile(lambda x: (x * pair(3)[1][0], pair(3)), backend="eager")
    for _ in range(2):
        assert f(x)[1] is pair(3)


@pytest.mark.parametrize("result", ["number", "tensor", "text", "list", "none"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_cache_counts_what_the_program_asks(result: str, backend: str) -> None:
    """Capture asks it for nothing: cache_info() says what eager says, inside and outside."""

    def observed(wrap: Callable) -> list:
        ran: list = []

        @functools.lru_cache(maxsize=4)
        def given(n: int) -> Any:
            return {"number": n * 2, "tensor": torch.ones(2) * n, "text": "a" * n, "list": [n], "none": None}[result]

        def program(x: torch.Tensor, n: int) -> Any:
            first, second = given(n), given(3)
            info = given.cache_info()
            return x + 1, first, second, tuple(info)

        f = wrap(program)
        for n in (2, 2, 3, 2):
            ran += [f(x, n), tuple(given.cache_info())]
        given.cache_clear()
        return [*ran, f(x, 2), tuple(given.cache_info())]

    eq(observed(lambda f: tcompile.compile(f, backend=backend)), observed(lambda f: f))


@pytest.mark.parametrize("reads", ["nothing", "what is changed"])
def test_asked_after_effects(reads: str) -> None:
    """One that gives the same without them is in the graph; another is called where it stands, and cached then."""
    kept: list = []

    @functools.cache
    def half(n: int) -> float:
        return n / 2

    @functools.cache
    def scaled(n: int) -> float:
        return n * 2 + (len(kept) if reads == "what is changed" else half(n))

    def program(x: torch.Tensor) -> Any:
        kept.append(0)
        return x * scaled(3), scaled(3)

    with tcompile.record() as record:
        f = tcompile.compile(program, backend="eager")
        for cleared in (False, True, False):
            if cleared:
                scaled.cache_clear()
            before = len(kept)
            got, size = f(x), scaled.cache_info().currsize
            after = list(kept)
            del kept[before:]
            if cleared:
                scaled.cache_clear()
            eq(got, program(x))
            assert after == kept and size == 1
    assert bool(record.report().graph_breaks) == (reads == "what is changed")


class Recipe:
    """What a cache holds of a pattern, as einops has it: an object of lists."""

    def __init__(self, order: list[int], groups: list[tuple[int, ...]]) -> None:
        self.order, self.groups = order, groups


class Cooking:
    """Functions with caches as a library of tensor patterns has them."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @functools.lru_cache(8)
        def recipe(pattern: str, names: tuple[str, ...]) -> Recipe:
            left, right = (side.split() for side in pattern.split("->"))
            return Recipe([left.index(name) for name in right], [(i,) for i in range(len(names))])

        @functools.lru_cache(8)
        def sizes(recipe: Recipe, shape: tuple[int, ...], scale: int = 1) -> tuple:
            return None, [shape[i] * scale for i in recipe.order], {i: shape[i] for (i,) in recipe.groups}, len(shape)

        self.recipe, self.sizes = recipe, sizes

    def program(self, x: torch.Tensor) -> Any:
        recipe = self.recipe("a b c -> c a b", ("a", "b"))
        _, sizes, named, rank = self.sizes(recipe, x.shape)
        _, doubled, _, _ = self.sizes(recipe, x.shape, scale=2)
        y = x.permute(recipe.order).reshape(sizes) * rank
        return y.sum(0) + named[0] + doubled[1], recipe, sizes


def test_objects_and_lists_in_a_cache_are_in_the_graph() -> None:
    """They are those that the cache has, whoever changes them, also for sizes that vary."""
    theirs, ours = Cooking(), Cooking()
    with tcompile.record() as record:
        f = tcompile.compile(ours.program, backend="eager", fullgraph=True)
        for call, shape in enumerate([(2, 3, 4), (2, 3, 4), (3, 3, 4), (5, 3, 4), (7, 3, 4), (2, 3, 4), (2, 3, 4)]):
            x = torch.randn(shape)
            (want, _, _), (got, recipe, sizes) = theirs.program(x), f(x)
            assert torch.equal(got, want) and recipe is ours.recipe("a b c -> c a b", ("a", "b"))
            assert sizes is ours.sizes(recipe, x.shape)[1]
            assert theirs.recipe("a b c -> c a b", ("a", "b")) and theirs.sizes(
                theirs.recipe("a b c -> c a b", ("a", "b")), x.shape
            )
            for cooking in (theirs, ours):
                if call == 4:  # whoever has them may change them
                    cooking.recipe("a b c -> c a b", ("a", "b")).order.reverse()
                    cooking.sizes.cache_clear()
                if call == 5:
                    cooking.sizes(cooking.recipe("a b c -> c a b", ("a", "b")), x.shape)[2][0] = 100
    assert len(record.report().graphs) == 3


def test_what_a_cache_lost_runs_as_it_is() -> None:
    """A hit says nothing of what the function does: where the cache lost it, that happens where the program asks."""

    def observed(wrap: Callable) -> list:
        seen: list = []

        @functools.lru_cache(maxsize=1)
        def table(n: int, *, kind: str) -> list:
            seen.append(("made", n))
            return [n, kind]

        def program(x: torch.Tensor) -> Any:
            seen.append("begun")
            found = table(3, kind="a")
            return x * found[0], found is table(3, kind="a")

        table(3, kind="a")
        f = wrap(program)
        out = [f(x), f(x)]
        table(4, kind="a")
        out += [f(x), f(x)]
        table.cache_clear()
        return [*out, f(x), [str(s) for s in seen], tuple(table.cache_info())[2:]]

    eq(observed(lambda f: tcompile.compile(f, backend="eager")), observed(lambda f: f))


def test_tensors_in_a_cache_are_inputs_once_they_are_there() -> None:
    @functools.cache
    def rotations(n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(n, device=device) * 0.1
        return angles.cos(), angles.sin()

    def program(x: torch.Tensor) -> Any:
        cos, sin = rotations(x.shape[0], x.device)
        return x * cos + x.flip(0) * sin, cos

    with tcompile.record() as record:
        f = tcompile.compile(program, backend="eager")
        f(x)
        broken = len(record.report().graph_breaks)
        graphs = len(record.report().graphs)
        for _ in range(2):
            got, cos = f(x)
            assert torch.equal(got, program(x)[0]) and cos is rotations(2, x.device)[0]
        assert broken == 1 and len(record.report().graph_breaks) == 1 and len(record.report().graphs) == graphs + 1
    rotations(2, x.device)[0].fill_(5.0)
    assert torch.equal(f(x)[0], program(x)[0])
    rotations.cache_clear()
    assert torch.equal(f(x)[0], program(x)[0]) and torch.equal(f(x)[0], program(x)[0])


def test_random_numbers_of_a_cached_function_are_drawn_once() -> None:
    def observed(wrap: Callable) -> list:
        @functools.cache
        def noise(n: int) -> list:
            return [torch.randn(n)]

        f = wrap(lambda x: (x + torch.randn(2), x * noise(2)[0], torch.randn(2)))
        torch.manual_seed(0)
        return [f(x), f(x), f(x)]

    eq(observed(lambda f: tcompile.compile(f, backend="eager")), observed(lambda f: f))


def test_one_object_for_a_number_that_varies_and_one_that_does_not() -> None:
    def observed(wrap: Callable) -> list:
        numbers = functools.cache(lambda n: [n])

        def program(x: torch.Tensor) -> Any:
            first, second = numbers(x.shape[0]), numbers(3)
            return x + first[0], first is second, first, second

        f = wrap(program)
        return [f(torch.ones(n)) for n in (2, 5, 3, 7, 3)]

    eq(observed(lambda f: tcompile.compile(f, backend="eager")), observed(lambda f: f))


def test_asked_again_for_a_number_that_varies() -> None:
    """Queries and keys of one size, or of sizes that are equal in some calls: one object, of one question."""

    @functools.lru_cache
    def shape(n: int, axes: tuple) -> tuple:
        return [n, 2], {"n": n}, axes

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        first, second = shape(len(a), (1,)), shape(len(b), (1,))
        return a.reshape(first[0]) * 2, b.reshape(second[0]) + first[1]["n"], shape(len(a), (2,))[0]

    compiled = tcompile.compile(program, backend="eager", fullgraph=True)
    for n, m in ((3, 3), (4, 4), (5, 5), (6, 7), (7, 6), (8, 8)):
        counts = []
        for f in (program, compiled):
            shape.cache_clear()
            a, b = torch.ones(n, 2), torch.ones(m, 2)
            got = f(a, b)
            counts.append((got, shape.cache_info()))
        torch.testing.assert_close(counts[0][0], counts[1][0])
        assert counts[0][1] == counts[1][1]
