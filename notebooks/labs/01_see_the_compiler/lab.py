# lab: 1
# name: see_the_compiler
# minutes: 75

# %% text: story

# %% given: programs
import torch

import tcompile

torch.manual_seed(0)
x = torch.randn(64, 128)
weight = torch.rand(128)


def chain(x):
    return torch.relu(x * 2 + 1).sin()


def softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def total(x):
    return (x - x.mean()) * 2


def both(x):
    return x.sum(0), x.sum(1)


# %% text: look-first

# %% show: first_report
report = tcompile.explain(chain)(x)
print(report.summary.line)
print(report.kernels[0].ir)

# %% exercise: predicted_kernels
# How many kernels does each program become?
# BEGIN SOLUTION
predicted_kernels = {"chain": 1, "softmax": 1, "total": 1, "both": 2}
# STUDENT
# predicted_kernels = {"chain": 0, "softmax": 0, "total": 0, "both": 0}
# END SOLUTION


# %% exercise: traffic
def traffic(report):
    """Bytes that the kernels of a report read and write in one call."""
    # BEGIN SOLUTION
    return sum((k.bytes or 0) * k.launches for k in report.kernels)
    # END SOLUTION


# %% show: traffic_picture
programs = {"chain": chain, "softmax": softmax, "total": total, "both": both}
moved = {}
for name, program in programs.items():
    fused = tcompile.explain(program)(x)
    apart = tcompile.explain(program, options={"disable_fusion": True})(x)
    moved[name] = {"fused": traffic(fused), "a kernel each": traffic(apart)}
course.bars(moved, "bytes")

# %% text: breaks


# %% given: breaking
def scaled(x):
    peak = int(x.abs().max())
    return x / peak


def step(x):
    h = torch.sin(x) * 2
    if h.sum() > 0:
        return h + 1
    return torch.cos(h) - 1


def noisy(x):
    print("a number is on its way")
    return torch.tanh(x).sum(-1)


# %% exercise: breaks_of
def breaks_of(program, *args):
    """[(line in the function, kind), ...]: where a call of the program breaks. Line 1 is the `def`."""
    # BEGIN SOLUTION
    report = tcompile.explain(program)(*args)
    first = program.__code__.co_firstlineno
    return [(b.line - first + 1, b.kind) for b in report.graph_breaks]
    # END SOLUTION


# %% exercise: whole_step
def whole_step(x):
    """What `step` gives, in one graph."""
    # BEGIN SOLUTION
    h = torch.sin(x) * 2
    return torch.where(h.sum() > 0, h + 1, torch.cos(h) - 1)
    # END SOLUTION


# %% exercise: entries_needed
def entries_needed(sizes):
    """How many entries a function of one vector has after calls with these sizes, one after the other."""
    # BEGIN SOLUTION
    served, symbol = set(), False
    for n in sizes:
        if n in served or symbol and n >= 2:
            continue
        if served and n >= 2:
            symbol = True  # the second size: a symbol serves this one and all others from 2 up
        else:
            served.add(n)
    return len(served) + symbol
    # END SOLUTION


# %% text: challenge-story


# %% given: clumsy
def clumsy(x, weight):
    """Each row less its mean, scaled, and what is negative cut off."""
    rows = []
    for row in x:
        mean = row.mean().item()
        rows.append((row - mean) * weight)
    y = torch.stack(rows)
    return torch.relu(y.double()).float()


# %% exercise: tidy challenge
def tidy(x, weight):
    """What `clumsy` gives. Fewer kernels, fewer bytes, fewer compilations."""
    # BEGIN SOLUTION
    return torch.relu((x - x.mean(-1, keepdim=True)) * weight)
    # STUDENT
    # return clumsy(x, weight)
    # END SOLUTION


# %% show: tidy_picture
course.kernels(tcompile.explain(tidy)(x, weight))

# %% tests
import types

import torch

import tcompile
from tcompile.labs.testing import at_most, holds, same, tensors_close


def kernels_of(lab, name, *args):
    return len(tcompile.explain(getattr(lab, name))(*args).kernels)


def prediction(lab, name, *args):
    guess = lab.predicted_kernels
    same(type(guess), dict, what="type(predicted_kernels)", look="guesses")
    holds(name in guess, what=f"{name!r} in predicted_kernels", look="guesses")
    same(guess[name], kernels_of(lab, name, *args), what=f"predicted_kernels[{name!r}]", look="kernels")


def entries_after(sizes):
    @tcompile.compile
    def vector(x):
        return torch.sin(x) + 1

    with tcompile.record() as record:
        for n in sizes:
            vector(torch.ones(n))
    return len(record.report().entries)


def entries(lab, sizes):
    same(lab.entries_needed(sizes), entries_after(sizes), what=f"entries_needed({sizes})", look="entries")


def measured(lab):
    """Kernels, bytes and compilations of `tidy` over four batches."""
    fast = tcompile.compile(lab.tidy)
    with tcompile.record() as record:
        for rows in (64, 32, 48, 80):
            fast(torch.ones(rows, 128), torch.ones(128))
    report = record.report()
    first = tcompile.explain(lab.tidy)(torch.ones(64, 128), torch.ones(128))
    moved = sum((k.bytes or 0) * k.launches for k in first.kernels)
    return {"kernels": len(first.kernels), "bytes": moved, "compilations": len(report.entries)}


# %% test: predicted_kernels points=2
def test_chain_and_softmax_are_predicted(lab):
    prediction(lab, "chain", torch.ones(64, 128))
    prediction(lab, "softmax", torch.ones(64, 128))


# %% hidden: predicted_kernels points=3
def test_all_four_are_predicted(lab):
    for name in ("chain", "softmax", "total", "both"):
        prediction(lab, name, torch.ones(48, 96))


# %% test: traffic points=3
def test_traffic_of_two_kernels(lab):
    x = torch.ones(64, 128)
    report = tcompile.explain(lab.both)(x)
    want = sum(k.bytes * k.launches for k in report.kernels)
    same(lab.traffic(report), want, what="traffic(explain(both)(x))", look="traffic")


# %% hidden: traffic points=4
def test_traffic_counts_launches_and_unknown_bytes(lab):
    kernel = types.SimpleNamespace
    report = types.SimpleNamespace(
        kernels=[kernel(bytes=10, launches=3), kernel(bytes=None, launches=2), kernel(bytes=7, launches=1)]
    )
    same(lab.traffic(report), 37, what="traffic(kernels of 10 bytes 3 times, unknown, 7 bytes)", look="traffic")


def test_traffic_of_nothing(lab):
    same(lab.traffic(types.SimpleNamespace(kernels=[])), 0, what="traffic(no kernels)", look="traffic")


# %% test: breaks_of points=3
def test_where_step_breaks(lab):
    same(
        lab.breaks_of(lab.step, torch.ones(8)), [(3, "data_dependent_branch")], what="breaks_of(step, x)", look="breaks"
    )


# %% hidden: breaks_of points=2
def test_where_scaled_breaks(lab):
    same(lab.breaks_of(lab.scaled, torch.ones(8)), [(2, "item")], what="breaks_of(scaled, x)", look="breaks")


def test_printing_a_text_does_not_break(lab):
    same(lab.breaks_of(lab.noisy, torch.ones(4, 8)), [], what="breaks_of(noisy, x)", look="breaks")


# %% test: whole_step points=4
def test_the_step_is_right_and_whole(lab):
    for x in (torch.ones(100), -torch.ones(100)):
        tensors_close(lab.whole_step(x), lab.step(x), what="whole_step(x)", look="whole")
    report = tcompile.explain(lab.whole_step)(torch.ones(100))
    same(len(report.graph_breaks), 0, what="len(explain(whole_step)(x).graph_breaks)", look="whole")
    same(len(report.graphs), 1, what="len(explain(whole_step)(x).graphs)", look="whole")


# %% hidden: whole_step points=2
def test_the_step_at_the_ends(lab):
    near = torch.tensor([0.01, -0.005])
    for x in (torch.zeros(5), near, -near, near * float("nan"), torch.ones(3, dtype=torch.float64), torch.ones(0)):
        tensors_close(lab.whole_step(x), lab.step(x), what=f"whole_step({x.tolist()}, {x.dtype})", look="whole")


def test_one_entry_serves_both_signs(lab):
    fast = tcompile.compile(lab.whole_step, fullgraph=True)
    with tcompile.record() as record:
        for x in (torch.ones(64), -torch.ones(64)):
            tensors_close(fast(x), lab.step(x), what="compile(whole_step)(x)", look="whole")
    same(len(record.report().entries), 1, what="entries of whole_step", look="whole")


# %% test: entries_needed points=2
def test_one_size_and_two(lab):
    entries(lab, [16, 16, 16])
    entries(lab, [16, 24, 16])


def test_a_batch_of_one(lab):
    entries(lab, [16, 24, 1, 40])


# %% hidden: entries_needed points=2
def test_sizes_from_one_up(lab):
    entries(lab, [1, 5, 7])
    entries(lab, [1, 0, 1, 0])


def test_sizes_in_any_order(lab):
    entries(lab, [4, 0, 1, 7, 9])
    entries(lab, [5, 1, 1, 5, 6])
    entries(lab, [5, 7, 2, 3])


# %% test: tidy points=4
def test_tidy_is_right_and_breaks_nowhere(lab):
    x, weight = torch.linspace(-2, 3, 64 * 128).reshape(64, 128).sin(), torch.linspace(0, 2, 128)
    tensors_close(lab.tidy(x, weight), lab.clumsy(x, weight), what="tidy(x, weight)", look="tidy")
    report = tcompile.explain(lab.tidy)(x, weight)
    same(len(report.graph_breaks), 0, what="len(explain(tidy)(x, weight).graph_breaks)", look="tidy")


def test_tidy_is_one_kernel(lab):
    at_most(measured(lab)["kernels"], 1, what="kernels of tidy", look="tidy")


# %% hidden: tidy points=3
def test_tidy_compiles_twice_at_most(lab):
    at_most(measured(lab)["compilations"], 2, what="compilations of tidy over four batches", look="tidy-sizes")


def test_tidy_moves_each_byte_once(lab):
    at_most(measured(lab)["bytes"], 2 * 64 * 128 * 4 + 128 * 4, what="bytes of tidy", look="tidy")


def test_tidy_elsewhere(lab):
    x, weight = torch.linspace(-1, 1, 33).reshape(3, 11), torch.linspace(-1, 1, 11)
    tensors_close(lab.tidy(x, weight), lab.clumsy(x, weight), what="tidy(3 rows of 11)", look="tidy")
    same(len(tcompile.explain(lab.tidy)(x, weight).graph_breaks), 0, what="breaks of tidy(3 rows of 11)", look="tidy")


# %% score
def score(lab):
    return measured(lab)


# %% speed
def speed(lab):
    x, weight = torch.randn(512, 128), torch.randn(128)
    fast = tcompile.compile(lab.tidy)
    return lambda: fast(x, weight)
