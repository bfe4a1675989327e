# lab: 4
# name: guards
# minutes: 75
# stage: capture

# %% text: story

# %% given: programs
import math

import torch

import tcompile
from tcompile.labs.plugs import Check, Read, explain_with, guard_stage, sizes_stage

torch.manual_seed(0)
x = torch.randn(8, 16)


def power(x, k):
    return x**k


def layered(x, flags, config):
    h = x * config["gain"]
    if flags[0]:
        h = h + 1
    if "bias" in config:
        h = h + config["bias"]
    for _ in flags:
        h = h * 2
    return h


# %% text: reads


# %% show: reads
def show(reads):
    for read in reads:
        print(f"{read.name:18} {read.use:9} {read.detail or '':8} {'' if read.use == 'tensor' else read.value!r}")
    return [Check(read.name, "True") for read in reads]  # guards nothing at all


course.stages(explain_with("capture", guard_stage(show), layered, x, [True, False], {"gain": 3.0}))


# %% exercise: value_test
def value_test(value):
    """Python text that is true for a `v` of the same type and equal to `value`: an int, a float, a str or None."""
    # BEGIN SOLUTION
    if isinstance(value, float):
        if math.isnan(value):
            return "type(v) is float and v != v"
        sign = math.copysign(1.0, value)
        if math.isinf(value):
            return f"type(v) is float and v == float({str(value)!r})"
        return f"type(v) is float and v == {value!r} and math.copysign(1.0, v) == {sign!r}"
    return f"type(v) is {type(value).__name__} and v == {value!r}" if value is not None else "v is None"
    # END SOLUTION


# %% exercise: tensor_test
def tensor_test(t):
    """Python text that is true for a tensor `v` on which a graph for `t` may run: class, dtype, device, shape, strides,
    and whether it requires a gradient."""
    # BEGIN SOLUTION
    return (
        f"type(v) is torch.{type(t).__name__} and v.dtype is {t.dtype} and v.device == torch.device({str(t.device)!r})"
        f" and tuple(v.shape) == {tuple(t.shape)} and v.stride() == {t.stride()}"
        f" and v.requires_grad is {t.requires_grad}"
    )
    # END SOLUTION


# %% exercise: check_of
def check_of(read):
    """The Check for one Read. Uses are tensor, value, length, keys, absent, identity and type."""
    # BEGIN SOLUTION
    v = read.value
    if read.use == "tensor":
        test = tensor_test(v)
    elif read.use == "value":
        test = value_test(v)
    elif read.use == "length":
        test = f"len(v) == {len(v)}"
    elif read.use == "keys":
        test = f"tuple(v) == {tuple(v)!r}"
    elif read.use == "absent":
        test = f"{read.detail!r} not in v"
    elif read.use == "identity":
        test = f"v is {v!r}"
    else:
        test = f"type(v) is {type(v).__name__}"
    return Check(read.name, test)
    # END SOLUTION


# %% exercise: guards
def guards(reads):
    """The Checks of an entry: none missing, none twice."""
    # BEGIN SOLUTION
    return list(dict.fromkeys(check_of(read) for read in reads))
    # END SOLUTION


# %% text: plugged


# %% show: stale
def careless(reads):
    return [check_of(read) for read in reads if read.use == "tensor"]


with tcompile.stages.replace("capture", guard_stage(careless)):
    fast = tcompile.compile(power)
    print(fast(torch.full((2,), 3.0), 2), fast(torch.full((2,), 3.0), 3), "<- should be 27")


# %% exercise: first_failure
def first_failure(checks, values):
    """The first Check that does not hold for `values` (by the Check's name), or None. A name that is not there fails."""
    # BEGIN SOLUTION
    for check in checks:
        if check.name not in values:
            return check
        if not eval(check.test, {"torch": torch, "math": math}, {"v": values[check.name]}):
            return check
    return None
    # END SOLUTION


# %% text: challenge-story


# %% exercise: symbols challenge
def symbols(history):
    """{name of a tensor: set of its dimensions that are symbols}, for the last call of a history of shapes."""
    # BEGIN SOLUTION
    found = {}
    for name, shape in history[-1].items():
        alike = [call[name] for call in history if name in call and len(call[name]) == len(shape)]
        found[name] = {d for d in range(len(shape)) if len({other[d] for other in alike}) > 1}
    return found
    # STUDENT
    # return {}
    # END SOLUTION


# %% show: sizes_picture
def scored(x, w):
    return torch.softmax(x * w, -1)


def compilations(choose, sizes):
    """Of each call, whether it compiled."""
    entries = [0]
    with tcompile.stages.replace("capture", sizes_stage(choose)):
        fast = tcompile.compile(scored)
        with tcompile.record() as record:
            for n in sizes:
                fast(torch.ones(n, 16), torch.ones(16))
                entries.append(len(record.report().entries))
    return [after > before for before, after in zip(entries, entries[1:])]


batches = (8, 12, 20, 28, 8, 40)
course.timeline(
    {"no symbols": compilations(lambda history: {}, batches), "yours": compilations(symbols, batches)}, batches
)

# %% tests
import math

import torch

import tcompile
from tcompile.labs.plugs import Check, Read, explain_with, guard_stage, sizes_stage
from tcompile.labs.testing import at_most, holds, same, stage_ran, tensors_close

NAMES = {"torch": torch, "math": math}


def says(test, value):
    try:
        return bool(eval(test, dict(NAMES), {"v": value}))
    except Exception as e:
        holds(False, what=f"eval({test!r}) for v = {value!r} raises no {type(e).__name__} ({e})", look="text")


def value(lab, made_for, value, want):
    test = lab.value_test(made_for)
    same(type(test), str, what=f"type(value_test({made_for!r}))", look="text")
    same(
        says(test, value),
        want,
        what=f"value_test({made_for!r}) for v = {value!r} ({type(value).__name__})",
        look="value",
    )


def tensor(lab, made_for, v, want, words):
    same(says(lab.tensor_test(made_for), v), want, what=f"tensor_test(a float32 (4, 6)) for {words}", look="tensor")


def check(lab, read, value, want):
    made = lab.check_of(read)
    holds(
        isinstance(made, Check) and made.name == read.name,
        what=f"check_of({read}) is a Check of {read.name}",
        look="check",
    )
    same(says(made.test, value), want, what=f"check_of({read.use} of {read.value!r}) for v = {value!r}", look="check")


def calls(lab, program, *arguments):
    """Calls with the student's guards: each right, and how many entries there were."""
    with tcompile.stages.replace("capture", guard_stage(lab.guards)), tcompile.config.patch(suppress_errors=False):
        fast = tcompile.compile(program)
        with tcompile.record() as record:
            for args in arguments:
                shown = ", ".join(f"tensor{list(a.shape)}" if isinstance(a, torch.Tensor) else repr(a) for a in args)
                tensors_close(fast(*args), program(*args), what=f"{program.__name__}({shown})", look="stale")
    report = record.report()
    stage_ran(report, "capture", lab.guards, look="stale")
    return len(report.entries)


def dims(lab, *shapes):
    return {k: sorted(v) for k, v in lab.symbols([{"x": s} for s in shapes]).items() if v}


def batches(lab, shapes, program=None):
    """Entries and symbols of calls with these shapes."""

    def scored(x, w):
        return torch.softmax(x * w, -1)

    chosen = []

    def choose(history):
        chosen.append(lab.symbols(history))
        return chosen[-1]

    choose.__qualname__ = lab.symbols.__qualname__
    with tcompile.stages.replace("capture", sizes_stage(choose)), tcompile.config.patch(suppress_errors=False):
        fast = tcompile.compile(scored)
        with tcompile.record() as record:
            for shape in shapes:
                x, w = torch.linspace(-1, 1, math.prod(shape)).reshape(shape), torch.linspace(0, 1, shape[-1])
                tensors_close(fast(x, w), scored(x, w), what=f"softmax of {shape}", look="symbols")
    report = record.report()
    stage_ran(report, "capture", lab.symbols, look="symbols")
    return len(report.entries), max(sum(map(len, c.values())) for c in chosen)


# %% test: value_test points=2
def test_numbers_and_texts(lab):
    value(lab, 2, 2, True)
    value(lab, 2, 3, False)
    value(lab, "sum", "sum", True)
    value(lab, "sum", "mean", False)


def test_types_differ(lab):
    value(lab, 2, 2.0, False)
    value(lab, 1, True, False)
    value(lab, None, 0, False)
    value(lab, None, None, True)


# %% hidden: value_test points=2
def test_floats_that_hurt(lab):
    value(lab, math.nan, math.nan, True)
    value(lab, math.nan, 1.0, False)
    value(lab, 0.0, -0.0, False)
    value(lab, -0.0, -0.0, True)
    value(lab, math.inf, math.inf, True)
    value(lab, math.inf, -math.inf, False)
    value(lab, 0.1, 0.1, True)


def test_texts_with_quotes(lab):
    for text in ("it's", 'a "b"', "back\\slash", "new\nline", ""):
        value(lab, text, text, True)
        value(lab, text, text + " ", False)


# %% test: tensor_test points=3
def test_tensors(lab):
    t = torch.ones(4, 6)
    tensor(lab, t, torch.zeros(4, 6), True, "another tensor of that kind")
    tensor(lab, t, torch.ones(5, 6), False, "shape (5, 6)")
    tensor(lab, t, torch.ones(4, 6, dtype=torch.float64), False, "dtype float64")
    tensor(lab, t, torch.ones(4, 6, requires_grad=True), False, "a tensor that requires a gradient")


# %% hidden: tensor_test points=3
def test_strides_and_classes(lab):
    t = torch.ones(4, 6)
    tensor(lab, t, torch.ones(6, 4).T, False, "a transposed (6, 4)")
    tensor(lab, t, torch.nn.Parameter(torch.ones(4, 6), requires_grad=False), False, "a Parameter")
    tensor(lab, torch.ones(6, 4).T, torch.ones(6, 4).T, True, "the same strides")
    tensor(lab, t, 3, False, "the number 3")


# %% test: check_of points=3
def test_containers(lab):
    check(lab, Read("flags", "length", [True, False]), [1, 2], True)
    check(lab, Read("flags", "length", [True, False]), [1], False)
    check(lab, Read("config", "absent", {"gain": 1}, "bias"), {"gain": 1, "bias": 2}, False)
    check(lab, Read("config", "absent", {"gain": 1}, "bias"), {}, True)
    check(lab, Read("flags[0]", "identity", True), 1, False)
    check(lab, Read("flags[0]", "identity", True), True, True)


# %% hidden: check_of points=3
def test_keys_are_in_order(lab):
    check(lab, Read("config", "keys", {"a": 1, "b": 2}), {"a": 5, "b": 6}, True)
    check(lab, Read("config", "keys", {"a": 1, "b": 2}), {"b": 1, "a": 2}, False)
    check(lab, Read("config", "keys", {}), {"a": 1}, False)


def test_exact_types(lab):
    class Mine(dict):
        pass

    check(lab, Read("config", "type", {}), Mine(), False)
    check(lab, Read("config", "type", {}), {"a": 1}, True)
    check(lab, Read("flags", "type", [1]), (1,), False)


# %% test: guards points=4
def test_nothing_stale_is_served(lab):
    x = torch.full((3,), 3.0)
    same(calls(lab, lab.power, (x, 2), (x, 3), (x, 2)), 2, what="entries of power for k = 2, 3, 2", look="many")


def test_what_did_not_change_does_not_recompile(lab):
    x = torch.full((3,), 3.0)
    got = calls(lab, lab.layered, (x, [True], {"gain": 2.0}), (x + 1, [True], {"gain": 2.0, "note": "new"}))
    same(got, 1, what="entries of layered where a key is added that nobody reads", look="many")


# %% hidden: guards points=4
def test_containers_that_change(lab):
    x = torch.full((3,), 3.0)
    got = calls(
        lab,
        lab.layered,
        (x, [True], {"gain": 2.0}),
        (x, [False], {"gain": 2.0}),
        (x, [True, True], {"gain": 2.0}),
        (x, [True], {"gain": 3.0}),
        (x, [True], {"gain": 2.0, "bias": 1.0}),
        (x, [True], {"gain": 2.0}),
    )
    same(got, 5, what="entries of layered for five programs", look="many")


def test_tensors_that_change(lab):
    x = torch.arange(12.0).reshape(3, 4)
    got = calls(lab, lab.power, (x, 2), (x.double(), 2), (x.reshape(4, 3).T, 2), (x[:2], 2), (x, 2))
    same(got, 4, what="entries of power for four kinds of tensors", look="many")


def test_no_check_is_there_twice(lab):
    reads = [Read("k", "value", 2), Read("flags", "type", []), Read("k", "value", 2)]
    same(len(lab.guards(reads)), 2, what="len(guards(k, flags, k))", look="twice")


# %% test: first_failure points=2
def test_the_first_that_fails(lab):
    checks = [Check("k", "v > 1"), Check("flags", "len(v) == 2"), Check("k", "v < 5")]
    same(lab.first_failure(checks, {"k": 7, "flags": [1, 2]}), checks[2], what="first_failure(k=7)", look="failure")
    same(lab.first_failure(checks, {"k": 2, "flags": [1, 2]}), None, what="first_failure(k=2)", look="failure")


# %% hidden: first_failure points=2
def test_what_is_not_there_fails(lab):
    checks = [Check("k", "v > 1"), Check("flags[1]", "v is True")]
    same(lab.first_failure(checks, {"k": 2}), checks[1], what="first_failure without flags[1]", look="failure")
    same(lab.first_failure([], {}), None, what="first_failure([], {})", look="failure")


# %% test: symbols points=3
def test_what_changed_is_a_symbol(lab):
    same(dims(lab, (8, 16)), {}, what="symbols of one call", look="symbols")
    same(dims(lab, (8, 16), (12, 16)), {"x": [0]}, what="symbols of (8, 16), (12, 16)", look="symbols")


def test_a_batch_compiles_twice(lab):
    entries, count = batches(lab, [(8, 16), (12, 16), (20, 16), (8, 16)])
    at_most(entries, 2, what="compilations over four batches", look="symbols")


# %% hidden: symbols points=2
def test_what_changed_stays_a_symbol(lab):
    same(dims(lab, (8, 16), (12, 16), (12, 24)), {"x": [0, 1]}, what="symbols of three calls", look="earlier")
    same(dims(lab, (8, 16), (8, 16, 2)), {}, what="symbols where the number of dimensions changed", look="rank")


def test_batch_and_length(lab):
    entries, count = batches(lab, [(8, 16), (12, 16), (12, 24), (20, 40), (5, 7)])
    at_most(entries, 3, what="compilations where batch and length change", look="earlier")


def test_what_never_changed_is_fixed(lab):
    entries, count = batches(lab, [(8, 16), (12, 16), (1, 16), (30, 16)])
    at_most(count, 1, what="symbols where the batch alone changes", look="fixed")
    at_most(entries, 3, what="compilations with a batch of one", look="fixed")


# %% score
def score(lab):
    entries, count = batches(lab, [(8, 16), (12, 16), (20, 16), (12, 24), (5, 7)])
    return {"compilations": entries, "symbols": count}
