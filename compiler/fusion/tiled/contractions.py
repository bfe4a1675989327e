"""Contractions in tiles as kernels (templates.Contraction): attention, its gradients, chains of products.

One engine for the patterns of `PATTERNS`. A matcher finds a sum over the keys of a row. The engine takes in what is
done with each element of the result, makes the kernel, and puts it in the place of its steps. A kernel is taken only
where it makes its inner products superfluous: what is never in memory is the point of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Sequence

import torch

from ...lowering.ir import Axis, Buffer, LoopNest, Stage, Value, acc, cast, load, loads, round_to, walk
from ...lowering.lowered import Extern, LoweredStep, View
from ...lowering.rewrite import Rewriter, mapped, tidy, with_operands
from ...lowering.templates import Contraction, InnerProduct, Softmax, WeightedSum
from ...ops.tile_sizes import DTYPES
from ...symbolic.expr import as_expr
from ..inline import does_more
from ..schedule import Template
from .attention_rows import RowResult, row_results
from .mask_conditions import normal_form
from .match import Match, Product
from .match_attention import CALLS, match_attention
from .match_chains import match_chain
from .producers import COLUMN, INNER, Finder, NoMatch, is_product, made_by, on_gpu, read_by, replaced
from .tile_kernel import ATTENTION_KERNEL, CHAIN_KERNEL, Kind, TileNames, tile_kernel

__all__ = ["contractions"]


class Pattern(NamedTuple):
    kind: Kind
    match: Callable[[Finder, Extern, bool], Match]  # (steps, one of them, whether a library's kernel is no choice)
    settle: Callable[[Finder, "Pattern", Sequence[Extern], bool], list[LoweredStep]]


@dataclass
class Bundle:
    """Matches that are one kernel."""

    matches: list[Match]
    products: dict[Value, Product]
    template: Template | None = None
    gone: list[Any] = field(default_factory=list)  # the steps that it stands for, the last one that makes a result
    place: Any = None  # the last of them


def contractions(
    steps: Sequence[LoweredStep], needed: Sequence[Buffer], hints: dict[str, int], opts: Any
) -> list[LoweredStep]:
    """The steps with contractions of GPU tensors as Template steps, where these are the better choice (option
    `attention`)."""
    steps, wanted = list(steps), opts.get("attention", "auto")
    if wanted == "library" or opts.get("emulate_precision", False):
        return steps
    for pattern in PATTERNS:
        calls = [
            step
            for step in steps
            if isinstance(step, Extern) and (str(step.op) in CALLS or is_product(step)) and on_gpu(step)
        ]
        if calls:
            steps = pattern.settle(Finder(steps, needed, hints), pattern, calls, wanted == "generated")
    return steps


def _each(finder: Finder, pattern: Pattern, calls: Sequence[Extern], always: bool) -> list[LoweredStep]:
    """A kernel for each match, in the order of the steps: the next may read what this one makes."""
    for call in calls:
        try:
            found = pattern.match(finder, call, always)
            bundle = _built(finder, pattern.kind, Bundle([found], found.products), set())
            dead = finder.superfluous(bundle.gone, bundle.template)
            if not _saved(finder, found, dead):
                continue
            finder.put(bundle.template, _place(finder, bundle.template, bundle.place, dead), dead)
        except NoMatch:
            continue
    return finder.steps()


def _together(finder: Finder, pattern: Pattern, calls: Sequence[Extern], always: bool) -> list[LoweredStep]:
    """Matches that go through the same products are one kernel, and a product is superfluous where all that read it are
    such kernels: which ones are taken is known of all together."""
    found = []
    for call in calls:
        try:
            found.append(pattern.match(finder, call, always))
        except NoMatch:
            continue
    while found:
        results = {contraction.step.outputs[0] for contraction in found}
        bundles = [_built(finder, pattern.kind, b, results) for b in _bundles(found)]
        gone = [x for bundle in bundles for x in bundle.gone]
        dead = finder.superfluous(gone, *[bundle.template for bundle in bundles])
        kept = [contraction for contraction in found if _saved(finder, contraction, dead)]
        if len(kept) == len(found):
            return _placed(finder, bundles, {id(step) for step in dead}) or finder.first
        found = kept  # (without those whose products are made in any case)
    return finder.first


# kind of kernel, how its sum is found, how it is settled which matches are taken
PATTERNS = (Pattern(ATTENTION_KERNEL, match_attention, _each), Pattern(CHAIN_KERNEL, match_chain, _together))


def _saved(finder: Finder, found: Match, dead: Sequence[Any]) -> bool:
    """Whether nothing makes the products of a match any more. (The products of a library's call are nowhere.)"""
    return all(
        any(step is finder.made[product.attr[0]] for step in dead) for product in found.products if product.is_load
    )


def _bundles(found: Sequence[Match]) -> list[Bundle]:
    """Chains over the same space, the products of one among those of the other."""
    out: list[Bundle] = []
    for contraction in sorted(found, key=lambda contraction: -len(contraction.products)):
        for bundle in out:
            if (
                bundle.matches[0].space == contraction.space
                and contraction.products.keys() <= bundle.products.keys()
                and all(bundle.products[key] == product for key, product in contraction.products.items())
            ):
                bundle.matches.append(contraction)
                break
        else:
            out.append(Bundle([contraction], dict(contraction.products)))
    for bundle in out:
        # (a tile that needs fewer products comes first, and its numbers are gone early)
        bundle.matches.sort(key=lambda contraction: len(contraction.products))
    return out


# ---- the kernel
def _built(finder: Finder, kind: Kind, bundle: Bundle, results: set[Buffer | None]) -> Bundle:
    """The bundle with its kernel, a Template step. `results`: of all matches that are tried together."""
    first = bundle.matches[0]
    axes = (*first.batch, *first.rows, first.keys)
    names = TileNames((*axes, Axis(INNER, 1), Axis(COLUMN, 1)))
    batch, rows, (keys,) = names.sized(first.batch), names.sized(first.rows), names.sized((first.keys,))
    with_softmax = first.score is not None  # (such a match is a bundle of its own)
    elements: dict[Value, Value] = {}
    products = []
    for k, (key, product) in enumerate(bundle.products.items()):
        name = "product" if with_softmax else f"product{k}"
        elements[key] = product.element(acc(name, torch.float32))
        products.append(InnerProduct(name, Axis(INNER, product.inner), names.value(product.a), names.value(product.b)))
    softmax, read = None, [x for product in bundle.products.values() for x in (product.a, product.b)]
    if first.score is not None:
        names.value(first.c)  # (an operand of the kernel comes before what its score reads)
        score = _computed(finder, first, first.score, elements)
        softmax = Softmax(names.value(score), first.empty)
        read.append(score)
    sums, stages, more, buffers = [], [], [], []
    for j, found in enumerate(bundle.matches):
        name = "mixed" if with_softmax else f"sum{j}"
        factor = None
        if found.factor is not None:
            factor = _computed(finder, found, found.factor, elements)
        out = found.step.outputs[0]
        assert out is not None
        buffer, at, value, bundle.place, followers = finder.followers(found, out, found.ranges(), name)
        if any(_memory(finder, item.attr[0]) in results for item in loads([value])):
            # what follows two chains would be in both, and each wait for the other
            buffer, at, followers = out, tidy(found.index, found.ranges()), []
            value = round_to(acc(name, torch.float32), out.dtype)
        columns = Axis(COLUMN, found.columns)
        sums.append(WeightedSum(name, columns, None if factor is None else names.value(factor), names.value(found.c)))
        stages.append(Stage((columns,), [], [names.store(buffer, at, value)]))
        read += [found.c, value, *([] if factor is None else [factor])]
        buffers.append(buffer)
        more += followers
    gone = [*(match.step for match in bundle.matches), *more]
    numbers = _numbers_of_rows(finder, first, gone, read, buffers) if first.numbers is not None else []
    if numbers:
        stages.append(
            Stage((), [], [names.store(number.nest.buffer, number.index, number.value) for number in numbers])
        )
    nests = [number.nest for number in numbers]
    bundle.template = tile_kernel(
        kind,
        Contraction(batch, rows, keys, tuple(products), tuple(sums), softmax),
        stages,
        names,
        finder.hints,
        bundle.matches[-1].step,
        (origin for x in (*bundle.matches, *more, *nests) for origin in x.origins),
        (line for match in bundle.matches for line in match.lines),
    )
    bundle.gone = [*gone, *nests]
    return bundle


def _computed(finder: Finder, found: Match, value: Value, elements: dict[Value, Value]) -> Value:
    """A score or a factor as a tile computes it: masks as conditions, and what is cheap made instead of read."""
    for key, element in elements.items():
        value = replaced(value, key, element)
    value = _read_where_drawn(finder, found, finder.expanded(value, found.ranges(), finder.cheap))
    value = cast(value, torch.float32)
    return normal_form(
        value if found.score is not None else _unrounded(value)
    )  # (scores are rounded where eager's are)


def _unrounded(root: Value) -> Value:
    """The value without roundings to 16 bits on the way: a tile's numbers are in registers, and rounded where they are
    multiplied.
    """

    def rule(value: Value, args: tuple[Value, ...]) -> Value:
        x = args[0] if args else value
        widened = value.is_cast and value.dtype == torch.float32 and x.is_cast and x.dtype in DTYPES
        return x.args[0] if widened and x.args[0].dtype == torch.float32 else with_operands(value, args)

    return mapped(root, rule)


def _read_where_drawn(finder: Finder, found: Match, value: Value) -> Value:
    """A dropout's mask as it is in memory, where something else needs it there: each element drawn alone takes four
    times as long as neighbours together.
    """
    known: dict[int, Value] = {}
    ranges = found.ranges()
    conditions = [
        item for item in walk([value]) if item.dtype == torch.bool and any(arg.op == "philox" for arg in item.args)
    ]
    for nest in finder.first if conditions else ():
        if (
            not isinstance(nest, LoopNest)
            or nest.value.dtype != torch.bool
            or nest.buffer.dtype != torch.bool
            or not any(arg.op == "philox" for arg in nest.value.args)
        ):
            continue
        axes = [axis.symbol.name for axis in nest.domain]
        if [as_expr(axis.size) for axis in nest.domain] == [
            as_expr(a.size) for a in (*found.batch, *found.rows, found.keys)
        ]:
            mapping = dict(zip(axes, (axis.symbol for axis in (*found.batch, *found.rows, found.keys))))
            renamed = lambda expr, mapping=mapping: tidy(expr.subs(mapping), ranges)  # type: ignore[misc]  # noqa: E731
            same = Rewriter(on_index=renamed)(nest.value)
            known |= {
                condition.id: load(nest.buffer, tidy(nest.index.subs(mapping), ranges))
                for condition in conditions
                if condition is same
            }
    return Rewriter(known=known)(value) if known else value


def _numbers_of_rows(
    finder: Finder, found: Match, gone: Sequence[Any], values: Sequence[Value], results: list[Buffer]
) -> list[RowResult]:
    """What the kernel stores besides `results`: numbers of rows that steps read which stay when `gone` are not there.
    `values`: what it computes.
    """
    assert found.numbers is not None
    rows = row_results(finder, found.numbers, found.ranges())
    reads = tuple(dict.fromkeys(value.attr[0] for value in loads(values)))
    tried = Template(found.step.op, reads, {}, results, reason="attention")
    dead = {id(step) for step in finder.superfluous([*gone, *(row.nest for row in rows.values())], tried)}
    return [
        row
        for key, row in rows.items()
        if key in finder.needed or any(id(step) not in dead for step in finder.readers.get(key, ()))
    ]


def _memory(finder: Finder, buffer: Buffer) -> Buffer:
    """What a buffer is a view of."""
    while isinstance(view := finder.made.get(buffer), View):
        buffer = view.base
    return buffer


# ---- its place
def _place(finder: Finder, step: Template, place: Any, dead: Sequence[Any]) -> Any:
    """Which of the steps that go the kernel runs in the place of: after what makes all that it reads, before all
    that reads what it makes.
    """
    gone = {id(one) for one in dead}
    after = max((finder.ends[arg] for arg in step.args if arg in finder.ends), default=-1)
    before = min(
        (
            finder.order[id(one)]
            for buffer in made_by(step)
            for one in finder.readers.get(buffer, ())
            if id(one) not in gone
        ),
        default=len(finder.first),
    )
    if after < finder.order[id(place)] < before:
        return place
    fits = [one for one in dead if after < finder.order[id(one)] < before]
    if not fits:
        raise NoMatch
    return max(fits, key=lambda one: finder.order[id(one)])


def _placed(finder: Finder, bundles: Sequence[Bundle], dead: set[int]) -> list[LoweredStep] | None:
    """The steps with the bundles' kernels: each where the first of its results was made, behind what it reads and was
    made later. None where that does not go: one of its results leads to another, or what has to come earlier has
    effects."""
    at = {id(s): i for i, s in enumerate(finder.first)}
    kernels = [
        (min(at[id(s)] for s in bundle.gone), bundle.template) for bundle in bundles if bundle.template is not None
    ]
    new = {id(t) for _, t in kernels}
    order: list[Any] = [
        t
        for _, t in sorted(
            [*((i + 0.5, s) for i, s in enumerate(finder.first) if id(s) not in dead), *kernels], key=lambda x: x[0]
        )
    ]
    at |= {id(bundle.template): max(at[id(s)] for s in bundle.gone) for bundle in bundles}
    makers: dict[Buffer, list[Any]] = {}
    for step in order:
        for b in made_by(step):
            makers.setdefault(b, []).append(step)
    done: dict[int, Any] = {}

    def missing(x: Any) -> Any:
        """Something that x reads and that is not there yet. (Of several that write one buffer, those that come before
        x.)
        """
        return next(
            (
                y
                for b in read_by(x)
                for y in makers.get(b, ())
                if y is not x and id(y) not in done and (len(makers[b]) == 1 or at[id(y)] < at[id(x)])
            ),
            None,
        )

    for step in order:
        path = [step]  # each step waits for the next
        while path:
            x = path[-1]
            before = missing(x) if id(x) not in done else None
            if before is not None and (any(y is before for y in path) or does_more(before) and id(before) not in new):
                return None
            if before is not None:
                path.append(before)
            else:
                done.setdefault(id(x), path.pop())
    return list(done.values())
