# lab: 8
# name: fusion
# minutes: 80
# stage: fusion

# %% text: story

# %% given: programs
import torch

import tcompile
from tcompile.labs.fusion_plugs import Op, fusion_stage, ops_of
from tcompile.labs.plugs import explain_with

torch.manual_seed(0)
x = torch.randn(32, 64)
weight = torch.rand(64)


def chain(x):
    return torch.relu(x * 2 + 1).sin()


def softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def norm(x, w):
    c = x - x.mean(-1, keepdim=True)
    return c * torch.rsqrt((c * c).mean(-1, keepdim=True) + 1e-5) * w


def turned(x):
    y = torch.exp(x)
    return y + y.t()


# %% show: look
for op in ops_of(softmax, x):
    print(
        f"{op.name:6} {op.kind:10} reads {op.reads!s:20} over {op.over!s:9} reduced {op.reduced!s:5} {op.bytes} bytes"
    )


# %% exercise: kept
def kept(op):
    """The sizes of an Op's loops without those that a reduction sums over."""
    # BEGIN SOLUTION
    return tuple(size for k, size in enumerate(op.over) if k not in op.reduced)
    # END SOLUTION


# %% exercise: traffic
def traffic(ops, groups):
    """Bytes that all kernels together read and write, if each group of names is a kernel."""
    # BEGIN SOLUTION
    by_name = {op.name: op for op in ops}
    total = 0
    for group in groups:
        outside = {r for name in group for r in by_name[name].reads if r not in group}
        asked = {r for op in ops if op.name not in group for r in op.reads}
        stored = {name for name in group if by_name[name].result or name in asked}
        total += sum(by_name[name].bytes for name in outside | stored)
    return total
    # END SOLUTION


# %% show: traffic_picture
def alone(ops):
    return [[op.name] for op in ops if op.kind != "input"]


def together(ops):
    return [[op.name for op in ops if op.kind != "input"]]


course.bars(
    {
        f.__name__: {"a kernel each": traffic(ops, alone(ops)), "one kernel": traffic(ops, together(ops))}
        for f, ops in ((chain, ops_of(chain, x)), (softmax, ops_of(softmax, x)), (norm, ops_of(norm, x, weight)))
    },
    "bytes",
)


# %% exercise: legal
def legal(members):
    """Whether these Ops can share the loops of one kernel."""
    # BEGIN SOLUTION
    names = {op.name for op in members}
    if any(op.crossed & names for op in members):
        return False
    reductions = {(op.over, op.reduced) for op in members if op.kind == "reduction"}
    others = {op.over for op in members if op.kind == "pointwise"}
    if not reductions:
        return len(others) <= 1
    reduction = next(op for op in members if op.kind == "reduction")
    return len(reductions) == 1 and others <= {reduction.over, kept(reduction)}
    # STUDENT
    # return True
    # END SOLUTION


# %% exercise: in_order
def in_order(ops, groups):
    """The groups in an order in which each reads only what ran before it. None if there is no such order."""
    # BEGIN SOLUTION
    by_name = {op.name: op for op in ops}
    done = {op.name for op in ops if op.kind == "input"}
    left, order = [list(g) for g in groups], []
    while left:
        ready = [g for g in left if all(r in done or r in g for name in g for r in by_name[name].reads)]
        if not ready:
            return None
        order.append(ready[0])
        left.remove(ready[0])
        done.update(ready[0])
    return order
    # STUDENT
    # return groups
    # END SOLUTION


# %% exercise: chains
def chains(ops):
    """Groups where a pointwise Op shares a kernel with the pointwise Op just before it, if it reads its result."""
    # BEGIN SOLUTION
    groups, last = [], None
    for op in ops:
        if op.kind == "input":
            continue
        if last is not None and last.kind == op.kind == "pointwise" and last.name in op.reads and legal([last, op]):
            groups[-1].append(op.name)
        else:
            groups.append([op.name])
        last = op
    return groups
    # END SOLUTION


# %% text: challenge-story


# %% exercise: my_fusion challenge
def my_fusion(ops):
    """Groups: as few kernels and bytes as you can."""
    # BEGIN SOLUTION
    by_name = {op.name: op for op in ops}
    groups, home = [], {}
    for op in ops:
        if op.kind == "input":
            continue
        first = max((home[r] for r in op.reads if r in home), default=0)
        for k in range(first, len(groups)):
            members = [by_name[name] for name in groups[k]]
            shares = any(m.name in op.reads or set(m.reads) & set(op.reads) for m in members)
            if shares and legal([*members, op]):
                break
        else:
            k = len(groups)
            groups.append([])
        groups[k].append(op.name)
        home[op.name] = k
    return groups
    # STUDENT
    # return chains(ops)
    # END SOLUTION


# %% show: fusion_picture
report = explain_with("fusion", fusion_stage(my_fusion), norm, x, weight)
course.stages(report)

# %% show: kernels
course.kernels(report)

# %% tests
import torch

import tcompile
from tcompile.labs.fusion_plugs import Op, fusion_stage, ops_of
from tcompile.labs.plugs import explain_with
from tcompile.labs.testing import at_least, at_most, holds, same, stage_ran, tensors_close


def several(x):
    h = torch.tanh(x)
    return h * 2, h.cos(), h.sum(-1)


def columns(x):
    a = torch.sin(x)
    return a * a.sum(0), torch.cos(x)


def both(x):
    y = torch.exp(x)
    return y.sum(0), y.sum(1)


def apart(ops):
    return [[op.name] for op in ops if op.kind != "input"]


def figures(report):
    return sum(k.launches for k in report.kernels), sum(k.bytes * k.launches for k in report.kernels)


def counted(lab, program, *args):
    """The student's count of bytes against the report's, with every operator apart."""
    ops = ops_of(program, *args)
    measured = figures(explain_with("fusion", fusion_stage(apart), program, *args))[1]
    same(lab.traffic(ops, apart(ops)), measured, what=f"traffic({program.__name__}, a kernel each)", look="traffic")


def is_legal(lab, want, program, names, *args):
    members = [op for op in ops_of(program, *args) if op.name in names]
    same(len(members), len(names), what=f"operators of {program.__name__}")
    same(lab.legal(members), want, what=f"legal({', '.join(names)} of {program.__name__})", look="legal")


def planned(lab, function, program, *args):
    """The student's groups in the pipeline: right, and the report of it."""
    stage = fusion_stage(function)
    report = explain_with("fusion", stage, program, *args)
    stage_ran(report, "fusion", function, look="stage")
    with tcompile.stages.replace("fusion", stage), tcompile.config.patch(suppress_errors=False):
        got = tcompile.compile(program)(*args)
    want = program(*args)
    pairs = zip(got, want) if isinstance(want, tuple) else ((got, want),)
    for a, b in pairs:
        tensors_close(a, b, what=f"{program.__name__} in your kernels", look="stage")
    at_least(len(report.kernels), 1, what=f"kernels of {program.__name__}", look="stage")
    return figures(report)


def as_good(lab, program, *args):
    """No more kernels and bytes than the compiler's own."""
    kernels, moved = planned(lab, lab.my_fusion, program, *args)
    target = figures(tcompile.explain(program)(*args))
    at_most(kernels, target[0], what=f"kernels of {program.__name__}", look="kernels")
    at_most(moved, target[1], what=f"bytes of {program.__name__}", look="bytes")


# %% test: kept points=1
def test_kept_of_a_row_sum(lab):
    same(
        lab.kept(Op("s", "reduction", ("x",), (32, 64), (1,))),
        (32,),
        what="kept(over (32, 64), reduced (1,))",
        look="kept",
    )
    same(
        lab.kept(Op("p", "pointwise", ("x",), (32, 64))), (32, 64), what="kept(over (32, 64), not reduced)", look="kept"
    )


# %% hidden: kept points=1
def test_kept_of_other_reductions(lab):
    same(
        lab.kept(Op("s", "reduction", (), (2, 3, 5), (0, 2))),
        (3,),
        what="kept(over (2, 3, 5), reduced (0, 2))",
        look="kept",
    )
    same(lab.kept(Op("s", "reduction", (), (4, 4), (0, 1))), (), what="kept(over (4, 4), reduced (0, 1))", look="kept")


# %% test: traffic points=3
def test_bytes_apart_are_the_reports(lab):
    counted(lab, lab.chain, torch.ones(32, 64))
    counted(lab, lab.softmax, torch.ones(16, 48))


# %% hidden: traffic points=3
def test_bytes_of_several_results(lab):
    counted(lab, several, torch.ones(8, 40))
    counted(lab, lab.norm, torch.ones(8, 40), torch.ones(40))


def test_bytes_in_groups(lab):
    ops = ops_of(several, torch.ones(8, 40))
    names = [op.name for op in ops if op.kind != "input"]
    report = explain_with("fusion", fusion_stage(lambda ops: [names[:2], names[2:]]), several, torch.ones(8, 40))
    same(
        lab.traffic(ops, [names[:2], names[2:]]),
        figures(report)[1],
        what="traffic(two groups, one reads the other's result)",
        look="traffic",
    )


# %% test: legal points=4
def test_legal_of_rows(lab):
    x = torch.ones(32, 64)
    is_legal(lab, True, lab.chain, ("mul", "add", "relu"), x)
    is_legal(lab, True, lab.softmax, ("amax", "sub", "exp", "sum_1", "div"), x)
    is_legal(lab, False, lab.turned, ("exp", "add"), torch.ones(32, 32))


# %% hidden: legal points=4
def test_legal_of_sums_both_ways(lab):
    x = torch.ones(8, 40)
    is_legal(lab, False, both, ("sum_1", "sum_2"), x)
    is_legal(lab, True, both, ("exp", "sum_1"), x)
    is_legal(lab, True, columns, ("sin", "sum_1", "mul", "cos"), x)


def test_legal_of_a_value_per_row(lab):
    args = torch.ones(8, 40), torch.ones(40)
    is_legal(lab, True, lab.norm, ("sum_1", "div", "sub"), *args)
    is_legal(lab, False, lab.norm, ("div", "sub"), *args)


# %% test: in_order points=3
def test_an_order_is_found(lab):
    ops = ops_of(lab.chain, torch.ones(4, 8))
    same(
        lab.in_order(ops, [["relu", "sin"], ["mul", "add"]]),
        [["mul", "add"], ["relu", "sin"]],
        what="in_order([[relu, sin], [mul, add]])",
        look="order",
    )
    same(lab.in_order(ops, [["mul", "relu"], ["add", "sin"]]), None, what="in_order(a cycle)", look="cycle")


# %% hidden: in_order points=3
def test_orders_of_a_diamond(lab):
    ops = [
        Op("x", "input"),
        *(Op(n, "pointwise", r, (4,)) for n, r in (("a", ("x",)), ("b", ("a",)), ("c", ("a",)), ("d", ("b", "c")))),
    ]
    same(lab.in_order(ops, [["a", "d"], ["b"], ["c"]]), None, what="in_order([[a, d], [b], [c]])", look="cycle")
    got = lab.in_order(ops, [["d"], ["c"], ["b"], ["a"]])
    holds(isinstance(got, list) and len(got) == 4, what="in_order([[d], [c], [b], [a]]) has four groups", look="order")
    places = [g[0] for g in got]
    holds(places[0] == "a" and places[-1] == "d", what="a is first and d is last", look="order")


# %% test: chains points=4
def test_chains_in_the_pipeline(lab):
    kernels, _ = planned(lab, lab.chains, lab.chain, torch.linspace(-2, 2, 512).reshape(8, 64))
    same(kernels, 1, what="kernels of chain", look="kernels")


# %% hidden: chains points=3
def test_chains_end_at_reductions(lab):
    kernels, _ = planned(lab, lab.chains, lab.softmax, torch.linspace(-2, 2, 512).reshape(8, 64))
    same(kernels, 4, what="kernels of softmax, by chains", look="kernels")


def test_chains_leave_what_is_turned(lab):
    kernels, _ = planned(lab, lab.chains, lab.turned, torch.linspace(-2, 2, 256).reshape(16, 16))
    same(kernels, 2, what="kernels of turned", look="legal")


# %% test: my_fusion points=3
def test_softmax_is_as_good(lab):
    as_good(lab, lab.softmax, torch.linspace(-2, 2, 512).reshape(8, 64))


def test_norm_is_as_good(lab):
    as_good(lab, lab.norm, torch.linspace(-2, 2, 512).reshape(8, 64), torch.linspace(0, 1, 64))


# %% hidden: my_fusion points=3
def test_several_results_are_as_good(lab):
    as_good(lab, several, torch.linspace(-2, 2, 320).reshape(8, 40))


def test_sums_of_columns_are_as_good(lab):
    as_good(lab, columns, torch.linspace(-2, 2, 320).reshape(8, 40))
    as_good(lab, both, torch.linspace(-2, 2, 320).reshape(8, 40))


def test_what_is_turned_stays_right(lab):
    as_good(lab, lab.turned, torch.linspace(-2, 2, 144).reshape(12, 12))


# %% score
def score(lab):
    x = torch.linspace(-2, 2, 512).reshape(8, 64)
    programs = ((lab.softmax, (x,)), (lab.norm, (x, x[0])), (several, (x,)), (columns, (x,)), (both, (x,)))
    each = [figures(explain_with("fusion", fusion_stage(lab.my_fusion), f, *args)) for f, args in programs]
    return {"kernels": sum(k for k, _ in each), "bytes": sum(b for _, b in each)}


# %% speed
def speed(lab):
    x, weight = torch.randn(256, 512), torch.randn(512)
    with tcompile.stages.replace("fusion", fusion_stage(lab.my_fusion)):
        fast = tcompile.compile(lab.norm)
        fast(x, weight)
    return lambda: fast(x, weight)
