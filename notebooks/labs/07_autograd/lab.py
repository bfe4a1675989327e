# lab: 7
# name: autograd
# minutes: 75
# stage: autograd

# %% text: story

# %% given: programs
import itertools

import torch

import tcompile
from tcompile.labs.autograd_plugs import Value, autograd_stage, values_of
from tcompile.labs.plugs import explain_with

torch.manual_seed(0)
x = torch.randn(16, 32, requires_grad=True)
weight = torch.randn(32, requires_grad=True)
matrix = torch.randn(32, 32, requires_grad=True)


def chain(x, w):
    return torch.sin(torch.exp(torch.tanh(x * w)) * x)


def layer(x, w):
    h = torch.nn.functional.gelu(x @ w)
    return torch.sigmoid(h) * h


def norm(x, w):
    c = x - x.mean(-1, keepdim=True)
    return c * torch.rsqrt((c * c).mean(-1, keepdim=True) + 1e-5) * w


# %% exercise: gradient
def gradient(steps, x, tangent):
    """The gradient by x of a chain of steps ("sin", "exp", "tanh", "square"), for the gradient `tangent` by its end."""
    # BEGIN SOLUTION
    values = [x]
    forward = {"sin": torch.sin, "exp": torch.exp, "tanh": torch.tanh, "square": torch.square}
    for step in steps:
        values.append(forward[step](values[-1]))
    for step, before, after in zip(reversed(steps), reversed(values[:-1]), reversed(values)):
        slope = {"sin": torch.cos(before), "exp": after, "tanh": 1 - after * after, "square": 2 * before}[step]
        tangent = tangent * slope
    return tangent
    # END SOLUTION


# %% show: look
for v in values_of(layer, x, matrix):
    print(f"{v.name:9} {v.kind:6} {v.bytes:5} bytes   reads {v.reads!s:18} {'wanted' if v.wanted else ''}")


# %% exercise: saved
def saved(values, kept):
    """Bytes that forward keeps, if it keeps these names. Inputs are alive anyway."""
    # BEGIN SOLUTION
    return sum(v.bytes for v in values if v.name in kept and v.kind != "input")
    # END SOLUTION


# %% exercise: again
def again(values, kept):
    """Names that backward computes again, in the order of `values`; None if it would need a dear one. Views and inputs
    don't count."""
    # BEGIN SOLUTION
    by_name = {v.name: v for v in values}
    todo, seen = [v.name for v in values if v.wanted], set()
    while todo:
        v = by_name[todo.pop()]
        if v.name in seen or v.name in kept or v.kind == "input":
            continue
        if v.kind == "dear":
            return None
        seen.add(v.name)
        todo += v.reads
    return [v.name for v in values if v.name in seen and v.kind == "cheap"]
    # END SOLUTION


# %% exercise: keep_wanted
def keep_wanted(values):
    """Keep what backward reads: compute nothing again."""
    # BEGIN SOLUTION
    return [v.name for v in values if v.wanted and v.kind in ("cheap", "dear")]
    # END SOLUTION


# %% show: in_the_pipeline
course.stages(explain_with("autograd", autograd_stage(keep_wanted), chain, x, weight))


# %% exercise: cheapest
def cheapest(values):
    """Names with the least bytes from which backward can be computed."""
    # BEGIN SOLUTION
    choices = [v.name for v in values if v.kind in ("cheap", "dear")]
    best = choices
    for count in range(len(choices) + 1):
        for kept in itertools.combinations(choices, count):
            if saved(values, kept) < saved(values, best) and again(values, kept) is not None:
                best = list(kept)
    return best
    # STUDENT
    # return keep_wanted(values)
    # END SOLUTION


# %% text: challenge-story


# %% exercise: within challenge
def within(values, budget):
    """Names of at most `budget` bytes, such that backward computes as few values again as can be. None if none fit."""
    # BEGIN SOLUTION
    choices = [v.name for v in values if v.kind in ("cheap", "dear")]
    best = None
    for count in range(len(choices) + 1):
        for kept in itertools.combinations(choices, count):
            if saved(values, kept) > budget or (more := again(values, kept)) is None:
                continue
            if best is None or len(more) < best[0]:
                best = len(more), list(kept)
    return best and best[1]
    # STUDENT
    # return cheapest(values)
    # END SOLUTION


# %% show: picture
def kept_bytes(keep, program, *args):
    return explain_with("autograd", autograd_stage(keep), program, *args).partitions[0].saved_bytes


course.bars(
    {
        f.__name__: {"what backward reads": kept_bytes(keep_wanted, f, *a), "cheapest": kept_bytes(cheapest, f, *a)}
        for f, a in ((chain, (x, weight)), (layer, (x, matrix)), (norm, (x, weight)))
    },
    "bytes",
)

# %% tests
import itertools

import torch

import tcompile
from tcompile.labs.autograd_plugs import Value, autograd_stage, values_of
from tcompile.labs.plugs import explain_with
from tcompile.labs.testing import at_most, holds, same, stage_ran, tensors_close

DIAMOND = [
    Value("x", "input", 0, (), True),
    Value("m", "dear", 100, ("x",), False),
    Value("a", "cheap", 80, ("m",), True),
    Value("b", "cheap", 10, ("a",), True),
    Value("v", "view", 0, ("b",), True),
    Value("c", "cheap", 80, ("a", "x"), True),
]


def arguments(lab, program, rows=8, columns=24):
    x = torch.linspace(-2, 2, rows * columns, dtype=torch.float64).reshape(rows, columns).sin().requires_grad_()
    w = torch.linspace(0.5, 1, columns, dtype=torch.float64)
    w = (
        torch.linspace(-1, 1, columns * columns, dtype=torch.float64).reshape(columns, columns)
        if program is lab.layer
        else w
    )
    return x, w.clone().requires_grad_()


def planned(lab, keep, program, *sizes):
    """Bytes kept by the student's choice in the pipeline; gradients as eager's."""
    args, other = arguments(lab, program, *sizes), arguments(lab, program, *sizes)
    report = explain_with("autograd", autograd_stage(keep), program, *args)
    stage_ran(report, "autograd", keep, look="stage")
    with tcompile.stages.replace("autograd", autograd_stage(keep)), tcompile.config.patch(suppress_errors=False):
        tcompile.compile(program)(*args).sum().backward()
    program(*other).sum().backward()
    for a, b, name in zip(args, other, "xw"):
        tensors_close(a.grad, b.grad, what=f"gradient of {program.__name__} by {name}", look="stage")
    holds(len(report.partitions) == 1, what=f"one partition of {program.__name__}", look="stage")
    return report.partitions[0]


def slopes(lab, *steps):
    x, tangent = torch.linspace(-1, 1, 7, requires_grad=True), torch.linspace(1, 2, 7)
    y = x
    for step in steps:
        y = getattr(torch, step)(y)
    y.backward(tangent)
    got = lab.gradient(list(steps), x.detach(), tangent)
    tensors_close(got, x.grad, what=f"gradient({list(steps)}, x, tangent)", look="gradient")


def as_cheap(lab, program, *sizes):
    own = tcompile.explain(program)(*arguments(lab, program, *sizes)).partitions[0].saved_bytes
    at_most(
        planned(lab, lab.cheapest, program, *sizes).saved_bytes,
        own,
        what=f"bytes kept of {program.__name__}",
        look="cheapest",
    )


def fits(lab, values, budget, fewest, what):
    kept = lab.within(values, budget)
    holds(kept is not None, what=f"within({what}, {budget}) finds names", look="within")
    at_most(
        sum(v.bytes for v in values if v.name in kept), budget, what=f"bytes of within({what}, {budget})", look="within"
    )
    more = lab.again(values, kept)
    holds(more is not None, what=f"backward can be computed from within({what}, {budget})", look="again")
    at_most(len(more), fewest, what=f"values computed again after within({what}, {budget})", look="fewest")


# %% test: gradient points=3
def test_gradients_of_short_chains(lab):
    slopes(lab, "sin")
    slopes(lab, "exp", "square")


# %% hidden: gradient points=2
def test_gradients_of_long_chains(lab):
    slopes(lab, "tanh", "exp", "sin", "square", "tanh")
    slopes(lab)


# %% test: saved points=1
def test_saved_bytes(lab):
    same(lab.saved(DIAMOND, ["m", "b", "x"]), 110, what='saved(values, ["m", "b", "x"])', look="saved")


# %% hidden: saved points=1
def test_saved_nothing(lab):
    same(lab.saved(DIAMOND, []), 0, what="saved(values, [])", look="saved")
    same(
        lab.saved([Value("i", "input", 50), Value("a", "cheap", 7)], ["i", "a"]),
        7,
        what="saved(an input of 50 bytes, 7)",
        look="saved",
    )


# %% test: again points=3
def test_what_is_computed_again(lab):
    same(lab.again(DIAMOND, ["m"]), ["a", "b", "c"], what='again(values, ["m"])', look="again")
    same(lab.again(DIAMOND, ["a", "c"]), ["b"], what='again(values, ["a", "c"])', look="again")


# %% hidden: again points=3
def test_what_can_not_be_computed(lab):
    same(lab.again(DIAMOND, []), None, what="again(values, [])", look="again")
    same(lab.again(DIAMOND, ["b", "c"]), None, what='again(values, ["b", "c"])', look="again")
    same(lab.again(DIAMOND, ["a", "b", "c"]), [], what='again(values, ["a", "b", "c"])', look="again")


# %% test: keep_wanted points=3
def test_nothing_is_computed_again(lab):
    part = planned(lab, lab.keep_wanted, lab.chain)
    same(part.saved_bytes, part.read_bytes, what="bytes kept of chain", look="wanted")


# %% hidden: keep_wanted points=3
def test_nothing_is_computed_again_elsewhere(lab):
    for program in (lab.layer, lab.norm):
        part = planned(lab, lab.keep_wanted, program, 6, 16)
        same(part.saved_bytes, part.read_bytes, what=f"bytes kept of {program.__name__}", look="wanted")


# %% test: cheapest points=3
def test_a_chain_keeps_nothing(lab):
    same(planned(lab, lab.cheapest, lab.chain).saved_bytes, 0, what="bytes kept of chain", look="cheapest")


# %% hidden: cheapest points=3
def test_as_cheap_as_the_compiler(lab):
    as_cheap(lab, lab.layer)
    as_cheap(lab, lab.norm, 6, 16)


def test_the_cheapest_of_a_diamond(lab):
    kept = lab.cheapest(DIAMOND)
    same(sum(v.bytes for v in DIAMOND if v.name in kept), 80, what="bytes of cheapest(values)", look="cheapest")


# %% test: within points=3
def test_within_little_and_much(lab):
    fits(lab, DIAMOND, 80, 2, "values")
    fits(lab, DIAMOND, 170, 0, "values")


# %% hidden: within points=3
def test_within_what_is_between(lab):
    fits(lab, DIAMOND, 90, 1, "values")
    fits(lab, DIAMOND, 100, 1, "values")
    same(lab.within(DIAMOND, 79), None, what="within(values, 79)", look="within")


def test_within_a_budget_in_the_pipeline(lab):
    values = values_of(lab.layer, *arguments(lab, lab.layer))
    one = max(v.bytes for v in values)
    fits(lab, values, 3 * one, 0, "layer")

    def keep(values):
        return lab.within(values, 2 * one)

    at_most(planned(lab, keep, lab.layer).saved_bytes, 2 * one, what="bytes kept of layer", look="within")


# %% score
def score(lab):
    total = 0
    for program in (lab.layer, lab.norm):
        values = values_of(program, *arguments(lab, program))
        least = sum(v.bytes for v in values if v.name in set(lab.cheapest(values)))
        total += len(lab.again(values, lab.within(values, 2 * least)))
    return {"computed again": total}
