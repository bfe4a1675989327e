# lab: 9
# name: cpp
# minutes: 85
# stage: codegen

# %% text: story

# %% given: programs
import torch

from tcompile.labs.cpp_plugs import FUNCTIONS, INFIX, Step, body_of, cpp_stage, evaluate, instructions, rows_of
from tcompile.labs.plugs import explain_with

torch.manual_seed(0)
x = torch.randn(4, 200)
weight = torch.rand(200)


def chain(x):
    return torch.relu(x * 2 + 1) * 0.5


def squares(x):
    return (x * x).sum(-1)


def norm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w


def scaled(x):
    return x / x.abs().amax(-1, keepdim=True)


# %% show: look
for row in rows_of(norm, x, weight):
    print(row)

print("\nsigns:", INFIX)
print("calls:", *FUNCTIONS)
print("a step:", repr(Step("mul0", "mul", ("load0", 2.0))))


# %% exercise: expression
def expression(step):
    """The C++ of an arithmetic Step: `(a + b)` for an add, `relu(a)` for a relu. Numbers are floats: `2.0f`."""
    # BEGIN SOLUTION
    args = [a if isinstance(a, str) else number(a) for a in step.args]
    if step.op in INFIX:
        return f"({args[0]} {INFIX[step.op]} {args[1]})"
    return f"{step.op}({', '.join(args)})"


def number(value):
    if value in (float("inf"), -float("inf")):
        return "(-__builtin_inff())" if value < 0 else "__builtin_inff()"
    return f"({value!r}f)"
    # END SOLUTION


# %% exercise: scalar_pass
def scalar_pass(p):
    """C++ of a pass, one element at a time: a loop over i where `p.each`, and without a loop where not."""
    # BEGIN SOLUTION
    at, before, inside = "i" if p.each else "0", [], []
    for step in p.steps:
        args = [a if isinstance(a, str) else number(a) for a in step.args]
        if step.op == "load":
            inside.append(f"const float {step.name} = {args[0]}[{at}];")
        elif step.op == "store":
            inside.append(f"{args[0]}[{at}] = {args[1]};")
        elif step.op == "sum":
            before.append(f"{step.name} = 0.0f;")
            inside.append(f"{step.name} = {step.name} + {args[0]};")
        elif step.op == "max":
            before.append(f"{step.name} = -__builtin_inff();")
            inside.append(f"{step.name} = maximum({step.name}, {args[0]});")
        else:
            inside.append(f"const float {step.name} = {expression(step)};")
    if not p.each:
        return "\n".join(inside)
    return "\n".join([*before, "for (i64 i = 0; i < n; ++i) {", *inside, "}"])
    # END SOLUTION


# %% show: scalar_in_the_pipeline
report = explain_with("codegen", cpp_stage(scalar_pass), norm, x, weight)
print(body_of(rows_of(norm, x, weight)[0], scalar_pass))
course.stages(report)


# %% text: vectors


# %% exercise: vector_pass
def vector_pass(p):
    """C++ of a pass that reduces nothing: vectors of p.lanes elements, and what is left at the end of the row."""
    # BEGIN SOLUTION
    if not p.each or p.reductions:
        return scalar_pass(p)
    return "\n".join(
        [
            "i64 i = 0;",
            f"for (; i + {p.lanes} <= n; i += {p.lanes}) {{",
            *vector_steps(p, "i"),
            "}",
            "if (i < n) {",
            *vector_steps(p, "i", "n - i"),
            "}",
        ]
    )


def vector_steps(p, at, left="", into=""):
    """The steps of a pass on a vector at `at`; with `left`, on so many lanes. `into`: the end of accumulators' names."""
    here, lines, few = {step.name for step in p.steps}, [], f", {left}" if left else ""
    for step in p.steps:
        args = [a if isinstance(a, str) else number(a) for a in step.args]
        if step.op == "load":
            lines.append(f"const vec {step.name} = load({args[0]} + {at}{few});")
        elif step.op == "store":
            value = args[1] if args[1] in here else f"splat({args[1]})"
            lines.append(f"store({args[0]} + {at}, {value}{few});")
        elif step.op in ("sum", "max"):
            lanes = step.name + "_lanes" + into
            new = f"{lanes} + {args[0]}" if step.op == "sum" else f"maximum({lanes}, {args[0]})"
            lines.append(f"{lanes} = keep({left}, {new}, {lanes});" if left else f"{lanes} = {new};")
        else:
            lines.append(f"const vec {step.name} = {expression(step)};")
    return lines
    # END SOLUTION


# %% exercise: sum_pass
def sum_pass(p):
    """C++ of any pass: a sum or max has an accumulator in each lane, and becomes a number at the end."""
    # BEGIN SOLUTION
    if not p.reductions:
        return vector_pass(p)
    lines = ["i64 i = 0;"]
    for step in p.reductions:
        lines.append(f"vec {step.name}_lanes = splat({'0.0f' if step.op == 'sum' else '-__builtin_inff()'});")
    lines += [f"for (; i + {p.lanes} <= n; i += {p.lanes}) {{", *vector_steps(p, "i"), "}"]
    lines += ["if (i < n) {", *vector_steps(p, "i", "n - i"), "}"]
    lines += [f"{step.name} = lanes_{step.op}({step.name}_lanes);" for step in p.reductions]
    return "\n".join(lines)
    # END SOLUTION


# %% text: challenge-story


# %% exercise: fast_pass challenge
def fast_pass(p):
    """C++ of any pass, with as few instructions as you can."""
    # BEGIN SOLUTION
    if not p.each:
        return scalar_pass(p)
    wide, lines = 4, ["i64 i = 0;"]
    for step in p.reductions:
        first = "0.0f" if step.op == "sum" else "-__builtin_inff()"
        lines += [f"vec {step.name}_lanes{u or ''} = splat({first});" for u in range(wide)]
    lines.append(f"for (; i + {wide * p.lanes} <= n; i += {wide * p.lanes}) {{")
    for u in range(wide):
        lines += ["{", *vector_steps(p, f"i + {u * p.lanes}", into=str(u or "")), "}"]
    lines += ["}", f"for (; i + {p.lanes} <= n; i += {p.lanes}) {{", *vector_steps(p, "i"), "}"]
    lines += ["if (i < n) {", *vector_steps(p, "i", "n - i"), "}"]
    for step in p.reductions:
        all_lanes = f"{step.name}_lanes"
        for u in range(1, wide):
            other = f"{step.name}_lanes{u}"
            all_lanes = f"{all_lanes} + {other}" if step.op == "sum" else f"maximum({all_lanes}, {other})"
        lines.append(f"{step.name} = lanes_{step.op}({all_lanes});")
    return "\n".join(lines)
    # STUDENT
    # return sum_pass(p)
    # END SOLUTION


# %% show: instructions_picture
def all_three(program, *args):
    mine = {f.__name__: instructions(program, *args, by=f) for f in (scalar_pass, sum_pass, fast_pass)}
    return {**mine, "the compiler's": instructions(program, *args)}


long = torch.randn(4, 500)
course.bars({"chain": all_three(chain, long), "squares": all_three(squares, long)}, "instructions")

# %% show: the_report
report = explain_with("codegen", cpp_stage(fast_pass), norm, x, weight)
course.stages(report)

# %% show: kernels
course.kernels(report)

# %% tests
import math

import torch

import tcompile
from tcompile.labs.cpp_plugs import Step, cpp_stage, evaluate, instructions, rows_of
from tcompile.labs.plugs import explain_with
from tcompile.labs.testing import at_most, holds, same, stage_ran, tensors_close


def valued(lab, op, args, want, **values):
    """The value of a step's C++, against torch's."""
    text = lab.expression(Step("r", op, args))
    holds(isinstance(text, str), what=f"expression(Step('r', {op!r}, {args!r})) is a str", look="expression")
    got = evaluate(text, **values)
    what = f"{text} for {values}"
    same(got, torch.tensor(want, dtype=torch.float32).item(), what=what, look="expression")


def printed(lab, function, program, *args):
    """The student's C++ in the pipeline: right, and the report names it."""
    stage = cpp_stage(function)
    report = explain_with("codegen", stage, program, *args)
    stage_ran(report, "codegen", function, look="stage", declined=0)
    want = program(*args)
    pairs = zip(report.result, want) if isinstance(want, tuple) else ((report.result, want),)
    for a, b in pairs:
        tensors_close(a, b, what=f"{program.__name__} of {tuple(args[0].shape)} in your C++", look="stage")


def fewer(lab, function, program, *args):
    """The student's vectors against the student's own loop of single elements."""
    plain = instructions(program, *args, by=lab.scalar_pass)
    mine = instructions(program, *args, by=function)
    what = f"instructions of {program.__name__}, with {lanes_here()} lanes, {plain} one at a time"
    at_most(mine, 3 * plain / lanes_here(), what=what, look="fewer")


def lanes_here():
    return rows_of(torch.neg, torch.ones(4))[0].passes[0].lanes


def near(lab, part, program, *args):
    """The challenge: no more instructions than this part of the compiler's own."""
    shipped = instructions(program, *args)
    what = f"instructions of {program.__name__}, of which the compiler's C++ takes {shipped}"
    at_most(instructions(program, *args, by=lab.fast_pass), part * shipped, what=what, look="near")


def rows(n, columns, first=-2.0, last=2.0):
    return torch.linspace(first, last, n * columns).reshape(n, columns)


def broadcast(x, w):
    return x * w + x[:, :1]


def several(x):
    h = torch.abs(x)
    return h * 2, h - 1, torch.maximum(x, h * 0.5)


def both(x):
    return x.sum(-1), x.amax(-1)


def spread(x):
    return x.amax(-1, keepdim=True).expand_as(x) + 0.0


def whole(x):
    return (x * x).sum()


# %% test: expression points=2
def test_infix_and_numbers(lab):
    valued(lab, "mul", ("a", 2.0), 6.0, a=3.0)
    valued(lab, "sub", (1.0, "a"), -2.0, a=3.0)
    valued(lab, "div", ("a", "b"), 1.5, a=3.0, b=2.0)


def test_functions(lab):
    valued(lab, "relu", ("a",), 0.0, a=-3.0)
    valued(lab, "maximum", ("a", 0.5), 0.5, a=-3.0)


# %% hidden: expression points=2
def test_numbers_of_all_sizes(lab):
    valued(lab, "add", ("a", 1e-05), 1.00001, a=1.0)
    valued(lab, "mul", ("a", 1e30), 2e30, a=2.0)
    valued(lab, "sub", ("a", -1.0), 3.0, a=2.0)
    valued(lab, "minimum", ("a", math.inf), 2.0, a=2.0)
    valued(lab, "maximum", ("a", -math.inf), -2.0, a=-2.0)


def test_numbers_are_floats_and_not_doubles(lab):
    for value in (0.1, 0.7, 3.3):
        want = (torch.tensor(1.3) * torch.tensor(value)).item()
        valued(lab, "mul", ("a", value), want, a=1.3)


# %% test: scalar_pass points=4
def test_a_chain_one_at_a_time(lab):
    printed(lab, lab.scalar_pass, lab.chain, rows(4, 40))


def test_a_sum_one_at_a_time(lab):
    printed(lab, lab.scalar_pass, lab.squares, rows(4, 40))


# %% hidden: scalar_pass points=4
def test_two_passes_one_at_a_time(lab):
    printed(lab, lab.scalar_pass, lab.norm, rows(3, 37), torch.linspace(0, 1, 37))
    printed(lab, lab.scalar_pass, lab.scaled, rows(5, 11))


def test_a_maximum_of_negative_numbers(lab):
    printed(lab, lab.scalar_pass, both, rows(3, 21, -9.0, -1.0))


# %% test: vector_pass points=5
def test_vectors_are_right(lab):
    printed(lab, lab.vector_pass, lab.chain, rows(4, 64))


def test_the_end_of_a_row(lab):
    printed(lab, lab.vector_pass, lab.chain, rows(1, 123))


def test_vectors_take_fewer_instructions(lab):
    fewer(lab, lab.vector_pass, lab.chain, rows(4, 128))


# %% hidden: vector_pass points=4
def test_rows_shorter_than_a_vector(lab):
    printed(lab, lab.vector_pass, lab.chain, rows(1, 3))
    printed(lab, lab.vector_pass, several, rows(3, 5))


def test_values_of_a_row_beside_values_of_columns(lab):
    printed(lab, lab.vector_pass, broadcast, rows(3, 45), torch.linspace(0, 1, 45))
    fewer(lab, lab.vector_pass, broadcast, rows(3, 160), torch.linspace(0, 1, 160))


# %% test: sum_pass points=5
def test_a_sum_in_vectors(lab):
    printed(lab, lab.sum_pass, lab.squares, rows(4, 64))


def test_a_sum_with_an_end(lab):
    printed(lab, lab.sum_pass, lab.squares, rows(3, 77))
    printed(lab, lab.sum_pass, lab.norm, rows(3, 77), torch.linspace(0, 1, 77))


def test_a_sum_takes_fewer_instructions(lab):
    fewer(lab, lab.sum_pass, lab.squares, rows(4, 256))


# %% hidden: sum_pass points=6
def test_a_maximum_with_an_end(lab):
    printed(lab, lab.sum_pass, both, rows(3, 37, -9.0, -1.0))
    printed(lab, lab.sum_pass, lab.scaled, rows(2, 50))


def test_a_row_that_is_all_of_it(lab):
    printed(lab, lab.sum_pass, whole, rows(5, 33))


def test_a_number_in_every_column(lab):
    printed(lab, lab.sum_pass, spread, rows(3, 37, -9.0, -1.0))


# %% test: fast_pass points=4
def test_fast_passes_are_right(lab):
    printed(lab, lab.fast_pass, lab.norm, rows(3, 333), torch.linspace(0, 1, 333))
    printed(lab, lab.fast_pass, lab.scaled, rows(3, 50))


def test_a_chain_near_the_compiler(lab):
    near(lab, 1.1, lab.chain, rows(4, 500))


# %% hidden: fast_pass points=4
def test_sums_near_the_compiler(lab):
    near(lab, 1.15, lab.squares, rows(2, 2000))
    near(lab, 1.15, lab.scaled, rows(2, 2000))


def test_other_rows_stay_right(lab):
    printed(lab, lab.fast_pass, both, rows(3, 71, -9.0, -1.0))
    printed(lab, lab.fast_pass, several, rows(1, 9))
    near(lab, 1.15, lab.norm, rows(2, 2000), torch.linspace(0, 1, 2000))


# %% score
def score(lab):
    x = rows(2, 2000)
    programs = ((lab.chain, (x,)), (lab.squares, (x,)), (lab.norm, (x, x[0])), (lab.scaled, (x,)))
    return {"instructions": sum(instructions(f, *args, by=lab.fast_pass) for f, args in programs)}


# %% speed
def speed(lab):
    x, weight = torch.randn(256, 512), torch.randn(512)
    with tcompile.stages.replace("codegen", cpp_stage(lab.fast_pass)):
        fast = tcompile.compile(lab.norm)
        fast(x, weight)
    return lambda: fast(x, weight)
