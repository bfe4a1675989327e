# lab: 11
# name: capstone
# minutes: 60

# %% text: story

# %% given: bugs
import torch

import tcompile


def branching(x):
    h = torch.tanh(x)
    if h.sum() > 0:
        return h * 2
    return h - 1


def counting(x):
    total = x * 0
    for k in range(x.shape[0] // 8):
        total = total + x * k
    return total


def running(x):
    return torch.relu(x) - torch.relu(x).cumsum(-1)[:, -1:]


def weighing(x):
    ones = torch.ones(x.shape[1], 1)
    return (x * x) @ ones + 1


def fetching(x):
    rows = [row.tolist() for row in x]
    return torch.tensor([max(row) for row in rows]) * 2


# %% show: first
x = torch.linspace(-1, 2, 16 * 64).reshape(16, 64)
report = tcompile.explain(branching)(x)
print(report.summary.line)
course.kernels(report)


# %% exercise: facts
def facts(report):
    """{"breaks": ..., "graphs": ..., "kernels": ...}: how many a report has. Each launch of a kernel counts."""
    # BEGIN SOLUTION
    return {
        "breaks": len(report.graph_breaks),
        "graphs": len(report.graphs),
        "kernels": sum(k.launches for k in report.kernels),
    }
    # END SOLUTION


# %% exercise: whole
def whole(x):
    """What `branching` gives, in one graph."""
    # BEGIN SOLUTION
    h = torch.tanh(x)
    return torch.where(h.sum() > 0, h * 2, h - 1)
    # STUDENT
    # return branching(x)
    # END SOLUTION


# %% exercise: formula
def formula(x):
    """What `counting` gives, in one entry for all sizes from 2 up."""
    # BEGIN SOLUTION
    k = x.shape[0] // 8
    return x * (k * (k - 1) // 2)
    # STUDENT
    # return counting(x)
    # END SOLUTION


# %% exercise: summing
def summing(x):
    """What `running` gives, in one kernel."""
    # BEGIN SOLUTION
    r = torch.relu(x)
    return r - r.sum(-1, keepdim=True)
    # STUDENT
    # return running(x)
    # END SOLUTION


# %% exercise: generated
def generated(x):
    """What `weighing` gives, in one kernel, without a library call."""
    # BEGIN SOLUTION
    return (x * x).sum(-1, keepdim=True) + 1
    # STUDENT
    # return weighing(x)
    # END SOLUTION


# %% exercise: staying challenge
def staying(x):
    """What `fetching` gives: no value leaves the graph, one kernel."""
    # BEGIN SOLUTION
    return x.amax(-1) * 2
    # STUDENT
    # return fetching(x)
    # END SOLUTION


# %% show: after
course.kernels(tcompile.explain(staying)(x))

# %% tests
import torch

import tcompile
from tcompile.labs.testing import at_most, same, tensors_close


def data(rows=16, columns=64, sign=1.0):
    return sign * torch.linspace(-1, 2, rows * columns).reshape(rows, columns)


def right(fixed, slow, *sizes):
    for sign in (1.0, -1.0):
        x = data(*sizes, sign=sign)
        tensors_close(fixed(x), slow(x), what=f"{fixed.__name__}(x)", look="right", atol=1e-4)
        compiled = tcompile.compile(fixed)(x)
        tensors_close(compiled, slow(x), what=f"{fixed.__name__}(x), compiled", look="right", atol=1e-4)


def lean(fixed, *sizes):
    """One graph, one kernel, no break, no library call."""
    report = tcompile.explain(fixed)(data(*sizes))
    name = fixed.__name__
    same(len(report.graph_breaks), 0, what=f"graph breaks of {name}", look="breaks")
    same(len(report.graphs), 1, what=f"graphs of {name}", look="breaks")
    same(sum(k.launches for k in report.kernels), 1, what=f"kernels of {name}", look="kernels")
    same("library call" in report.summary.line, False, what=f'"library call" in the summary of {name}', look="calls")
    return report


def entries(program, sizes):
    fast = tcompile.compile(program, dynamic=True)
    with tcompile.record() as record:
        for rows in sizes:
            fast(data(rows, 4))
    return len(record.report().entries)


# %% test: facts points=2
def test_facts_of_branching(lab):
    report = tcompile.explain(lab.branching)(data())
    got = lab.facts(report)
    same(got["breaks"], len(report.graph_breaks), what='facts(report)["breaks"]', look="facts")
    same(got["graphs"], len(report.graphs), what='facts(report)["graphs"]', look="facts")


# %% hidden: facts points=2
def test_facts_of_running(lab):
    report = tcompile.explain(lab.running)(data())
    same(
        lab.facts(report)["kernels"],
        sum(k.launches for k in report.kernels),
        what='facts(report)["kernels"]',
        look="facts",
    )


# %% test: whole points=3
def test_whole(lab):
    right(lab.whole, lab.branching)
    report = tcompile.explain(lab.whole)(data())
    same(len(report.graph_breaks), 0, what="graph breaks of whole", look="breaks")


# %% hidden: whole points=3
def test_whole_elsewhere(lab):
    right(lab.whole, lab.branching, 5, 7)
    report = tcompile.explain(lab.whole)(data(5, 7))
    same((len(report.graph_breaks), len(report.graphs)), (0, 1), what="breaks and graphs of whole", look="breaks")


# %% test: formula points=3
def test_formula(lab):
    right(lab.formula, lab.counting)
    at_most(entries(lab.formula, (4, 9, 17, 33)), 1, what="entries of formula", look="entries")


# %% hidden: formula points=3
def test_formula_elsewhere(lab):
    right(lab.formula, lab.counting, 41, 3)
    at_most(entries(lab.formula, (2, 8, 16, 24, 64)), 1, what="entries of formula", look="entries")


# %% test: summing points=3
def test_summing(lab):
    right(lab.summing, lab.running)
    lean(lab.summing)


# %% hidden: summing points=3
def test_summing_elsewhere(lab):
    right(lab.summing, lab.running, 7, 33)
    lean(lab.summing, 7, 33)


# %% test: generated points=3
def test_generated(lab):
    right(lab.generated, lab.weighing)
    lean(lab.generated)


# %% hidden: generated points=3
def test_generated_elsewhere(lab):
    right(lab.generated, lab.weighing, 9, 40)
    lean(lab.generated, 9, 40)


# %% test: staying points=3
def test_staying(lab):
    right(lab.staying, lab.fetching)
    lean(lab.staying)


# %% hidden: staying points=3
def test_staying_elsewhere(lab):
    right(lab.staying, lab.fetching, 12, 20)
    lean(lab.staying, 12, 20)


# %% score
def score(lab):
    reports = [tcompile.explain(f)(data()) for f in (lab.whole, lab.summing, lab.generated, lab.staying)]
    return {"kernels": sum(k.launches for r in reports for k in r.kernels)}
