"""A student's C++ as the codegen stage.

rows_of(program, *args)              the kernels of a call as plain facts: what is computed for one row, in passes
cpp_stage(printer)                   printer(a_pass) gives the C++ statements of one pass
instructions(program, *args, by=...) machine instructions that the kernels of a call execute
evaluate(text, x=1.5)                the value of a C++ expression

The lab prints what stands around: the function, the loop over rows, a pointer to the first element of the row for each
tensor, and a variable for each sum and max. A kernel that does not compile, crashes, does not end, or reaches past its
tensors is an error: it runs on trial first, in a process of its own.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any, Callable

import torch

import tcompile

from ..compiler import stages
from ..compiler.base.quoting import comment
from ..compiler.codegen.cpp.dtypes import ctype
from ..compiler.codegen.cpp.layout import merge_axes
from ..compiler.codegen.cpp.prims import Operand, expression
from ..compiler.codegen.cpp.printer import KernelSource
from ..compiler.codegen.cpp.support import SIGNATURE, Support, Target
from ..compiler.codegen.generate import cuda_index, generate_kernels
from ..compiler.codegen.generated import Generated, GeneratedKernel
from ..compiler.codegen.target import host_target
from ..compiler.config import Options
from ..compiler.errors import ToolchainError
from ..compiler.fusion.schedule import Launch
from ..compiler.lowering.ir import Axis, Buffer, Kernel, Stage, numel
from ..compiler.runtime.cpu_kernels import load_text
from ..compiler.stages import Decline
from ..compiler.symbolic.expr import Expr, ZERO, as_expr
from . import cpp_trial
from .plugs import named_after
from .testing import unsolved_said

__all__ = ["FUNCTIONS", "INFIX", "Pass", "Row", "Step", "body_of", "cpp_stage", "evaluate", "instructions", "rows_of"]

BLOCK = 16384  # elements of one row, where a kernel has no rows of its own
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
FUNCTIONS = ("neg", "abs", "sqrt", "rsqrt", "relu", "maximum", "minimum")
WORDS = "the lab's C++"  # the name of the student's lines in the compiler's messages


@dataclass(frozen=True)
class Step:
    """One line of a pass: name = op(args).

    op    "load" (args: a pointer), "store" (args: a pointer, a value), "sum" or "max" (args: what is reduced),
          or arithmetic: a key of INFIX, or one of FUNCTIONS
    args  names of values, and numbers (float)
    """

    name: str
    op: str
    args: tuple

    def __str__(self) -> str:
        words = ", ".join(str(a) for a in self.args)
        return f"{self.name + ' = ' if self.name else ''}{self.op}({words})"


@dataclass(frozen=True)
class Pass:
    """Steps that run for each column i of the row (`each`), with p[i]; or once, with p[0]. A
    sum or max of one pass is a number in the passes behind it. `lanes`: floats of a vector."""

    each: bool
    steps: tuple[Step, ...]
    lanes: int = 16

    @property
    def reductions(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.op in ("sum", "max"))

    def __str__(self) -> str:
        head = "for each i of n:" if self.each else "once:"
        return "\n".join([head, *(f"  {step}" for step in self.steps)])


@dataclass(frozen=True)
class Row:
    """What a kernel does with one row of n columns."""

    name: str
    passes: tuple[Pass, ...]

    def __str__(self) -> str:
        lines = [f"{self.name}, one row:"]
        for p in self.passes:
            lines += [f"  {line}" for line in str(p).splitlines()]
        return "\n".join(lines)


# ---- from the loop IR to rows
@dataclass
class _Plan:
    row: Row
    kernel: Kernel
    rows: tuple[Axis, ...]
    columns: Axis | None
    block: int
    pointers: dict[str, tuple[Buffer, Expr, bool]]  # name -> buffer, where its row begins, whether it steps with i


class _Reader:
    def __init__(self, kernel: Kernel, name: str, lanes: int):
        self.k = k = merge_axes(kernel)
        if k.template is not None or k.locals or k.params or k.checks or k.sizes:
            raise Decline("a kernel with scratch memory, scalar arguments, checks or open sizes")
        if any(b.dtype != torch.float32 for b in (*k.inputs, *k.outputs)):
            raise Decline("a tensor that is not float32")
        inner = [s.axes for s in k.stages if s.axes]
        if any(len(axes) > 1 for axes in inner):
            raise Decline("a reduction over dimensions that lie apart")
        self.columns = None if inner or not k.outer else k.outer[-1]
        self.rows = k.outer if inner else k.outer[:-1]
        self.block = 0 if inner or self.rows else BLOCK
        sizes = {str(as_expr(axes[0].size)) for axes in inner}
        if len(sizes) > 1:
            raise Decline("passes over different numbers of columns")
        if inner:
            self.columns = inner[0][0]
        self.lanes = lanes
        self.names: dict[Any, str] = {}
        self.taken: dict[str, int] = {}
        self.accs: dict[str, str] = {}
        self.pointers: dict[str, tuple[Buffer, Expr, bool]] = {}
        passes: list[Pass] = []
        for stage in k.stages:
            passes += self.stage(stage)
        self.plan = _Plan(Row(name, tuple(passes)), k, self.rows, self.columns, self.block, self.pointers)

    def fresh(self, op: str) -> str:
        n = self.taken[op] = self.taken.get(op, -1) + 1
        return f"{op}{n}"

    def stage(self, stage: Stage) -> list[Pass]:
        axis = stage.axes[0] if stage.axes else self.columns if not self.rows or self.block == 0 else None
        if stage.axes == () and any(s.axes for s in self.k.stages):
            axis = None  # what follows from a row's reductions
        once: list[Step] = []
        each: list[Step] = []
        here: dict[Any, str] = {}
        for acc in stage.accs:
            if acc.op not in ("sum", "max") or acc.running or acc.dtype != torch.float32:
                raise Decline(f"a reduction by {acc.op}")
            value = self.value(acc.value, axis, once, each, here)
            self.accs[acc.name] = name = self.fresh(acc.op)
            each.append(Step(name, acc.op, (value,)))
        for store in stage.stores:
            if store.mode != "set" or store.positions:
                raise Decline("a write at computed positions")
            value = self.value(store.value, axis, once, each, here)
            pointer, steps = self.pointer(store.buffer, store.index, axis)
            if steps != (axis is not None):
                raise Decline("a write that does not go along the row")
            (each if axis is not None else once).append(Step("", "store", (pointer, value)))
        return [Pass(kind, tuple(steps), self.lanes) for kind, steps in ((False, once), (True, each)) if steps]

    def pointer(self, buffer: Buffer, index: Expr, axis: Axis | None) -> tuple[str, bool]:
        """The pointer of an access, and whether it steps with the columns."""
        begin, steps = index, False
        if axis is not None and axis.symbol.name in index.symbol_names():
            begin = index.subs({axis.symbol.name: ZERO})
            if str(index - begin) != axis.symbol.name:
                raise Decline("columns that do not lie side by side")
            steps = True
        for name, (b, at, along) in self.pointers.items():
            if b is buffer and str(at) == str(begin) and along == steps:
                return name, steps
        taken = sum(b is buffer for b, *_ in self.pointers.values())
        name = buffer.name if not taken else f"{buffer.name}_{taken}"
        self.pointers[name] = buffer, begin, steps
        return name, steps

    def value(self, v: Any, axis: Axis | None, once: list[Step], each: list[Step], here: dict) -> Any:
        """The name of a value, with the steps that compute it; a number is itself."""
        if v.op == "const":
            return float(v.attr)
        if v.op == "acc":
            return self.accs[v.attr]
        known = self.names.get(v) or here.get(v)
        if known is not None:
            return known
        if v.dtype != torch.float32:
            raise Decline(f"a value of type {v.dtype}")
        if v.op == "load":
            if v.args:
                raise Decline("a read at computed positions")
            buffer, index = v.attr
            pointer, steps = self.pointer(buffer, index, axis)
            args: tuple = (pointer,)
        elif v.op in INFIX or v.op in FUNCTIONS:
            args = tuple(self.value(a, axis, once, each, here) for a in v.args)
            steps = any(n in args for n in here.values())
        else:
            raise Decline(f"the operation {v.op}")
        name = self.fresh(v.op)
        (each if steps else once).append(Step(name, v.op, args))
        (here if steps else self.names)[v] = name
        return name


def _plan_of(kernel: Kernel, name: str, target: Target) -> _Plan:
    return _Reader(kernel, name, target.width // 4).plan


# ---- C++ around the student's
# All lanes into one number, half by half.
_FOLD = """\
template <class V> INLINE V most(V a, V b) { return (a > b) | (a != a) ? a : b; }
template <int N, class F> INLINE float lanes_fold_of(const float *p, F f) {
    if constexpr (N == 2) return f(p[0], p[1]);
    else {
        typedef float half __attribute__((vector_size(2 * N)));
        half low, high;
        __builtin_memcpy(&low, p, sizeof low), __builtin_memcpy(&high, p + N / 2, sizeof high);
        low = f(low, high);
        return lanes_fold_of<N / 2>((const float *)&low, f);
    }
}
template <class F> INLINE float lanes_fold(vec v, F f) { return lanes_fold_of<L>((const float *)&v, f); }
"""


def _prelude(target: Target) -> str:
    """The vector type and its functions: the compiler's own, under short names."""
    s, ct = Support(target, target.width // 4), ctype(torch.float32)
    for key in ("access", "keep"):
        s.need(key)
    s.vector("f32")
    words = [
        "typedef vf32 vec;",
        "INLINE vec splat(float x) { return x - vec{}; }",
        "INLINE vec load(const float *p) { return tc::load<vec>(p, tc::All{}); }",
        "INLINE vec load(const float *p, i64 k) { return tc::load<vec>(p, tc::First{k}); }",
        "INLINE void store(float *p, vec v) { tc::store(p, v, tc::All{}); }",
        "INLINE void store(float *p, vec v, i64 k) { tc::store(p, v, tc::First{k}); }",
        "INLINE vec keep(i64 k, vec fresh, vec old) { return tc::keep(tc::First{k}, fresh, old); }",
    ]
    for op in FUNCTIONS:
        names = "ab" if op in ("maximum", "minimum") else "a"
        for kind, vector in (("float", False), ("vec", True)):
            given = [Operand(n, ct, vector) for n in names]
            takes = ", ".join(f"{kind} {n}" for n in names)
            words.append(f"INLINE {kind} {op}({takes}) {{ return {expression(s, op, ct, given)}; }}")
        if len(names) == 2:
            words.append(f"INLINE vec {op}(vec a, float b) {{ return {op}(a, splat(b)); }}")
            words.append(f"INLINE vec {op}(float a, vec b) {{ return {op}(splat(a), b); }}")
    words += [_FOLD, "INLINE float lanes_sum(vec v) { return lanes_fold(v, [](auto a, auto b) { return a + b; }); }"]
    words.append("INLINE float lanes_max(vec v) { return lanes_fold(v, [](auto a, auto b) { return most(a, b); }); }")
    s.index_helpers()
    return "\n".join([s.text(), *words, ""])


def _printed(plan: _Plan, body: str, target: Target, name: str) -> KernelSource:
    k = plan.kernel
    buffers = [*k.inputs, *k.outputs]
    n = as_expr(plan.columns.size) if plan.columns is not None else as_expr(1)
    rows = (n + (plan.block - 1)) // plan.block if plan.block else numel(plan.rows)
    inside = [f"const i64 n = {n.c()};"]
    if plan.block:
        inside = [f"const i64 first = row * {plan.block}, rest = {n.c()} - first;"]
        inside.append(f"const i64 n = rest < {plan.block} ? rest : {plan.block};")
    elif len(plan.rows) == 1:
        inside.append(f"const i64 {plan.rows[0].symbol.name} = row;")
    elif plan.rows:
        inside.append("i64 left = row;")
        for a in reversed(plan.rows):
            inside.append(f"const i64 {a.symbol.name} = left % {as_expr(a.size).c()}; left /= {as_expr(a.size).c()};")
    for pointer, (buffer, begin, steps) in plan.pointers.items():
        const = "" if buffer in k.outputs else "const "
        at = begin.c() + (" + first" if plan.block and steps else "")
        inside.append(f"{const}float *{pointer} = ({const}float *)buffer[{buffers.index(buffer)}] + ({at});")
    lines = [
        # loops become vectors where the lab's text says so, and nowhere else
        '#pragma GCC optimize("no-tree-loop-vectorize")',
        _prelude(target),
        f'extern "C" int {name}{SIGNATURE} {{',
        "    for (i64 row = begin; row < end; ++row) {",
        *(f"        {line}" for line in inside),
        "        {",
        f'#line 1 "{WORDS}"',
        body,
        '#line 1 "what stands behind it"',
        "        }",
        "    }",
        "    return 0;",
        "}",
        f'extern "C" void {name}_plan(const i64 *size, i64 *out) {{',
        f"    out[0] = 0; out[1] = {rows.c()}; out[2] = {1000} * ({n.c()});",
        "}",
        "",
    ]
    head = f"// {comment(f'{name}: ' + ', '.join(dict.fromkeys(k.origins)))}"
    return KernelSource(name, "\n".join([head, *lines]), [name], f"{name}_plan", [], {"shape": "a student's"})


def body_of(row: Row, printer: Callable[[Pass], str]) -> str:
    """The statements of one row: each pass as `printer` gives it, with a variable for each sum and max."""
    who = getattr(printer, "__name__", "the function")
    lines: list[str] = []
    for p in row.passes:
        with unsolved_said():
            text = printer(p)
        if not isinstance(text, str):
            raise TypeError(f"{who} should give C++ as a str, and gave {type(text).__name__}: {text!r:.200}")
        if not text.strip():
            raise ValueError(f"{who} gave no C++ for the pass\n{p}")
        lines += [f"float {step.name};" for step in p.reductions]
        lines += ["{", text, "}"] if p.each else [text]
    return "\n".join(lines)


def _tried(k: GeneratedKernel, target: Target, opts: Any) -> None:
    try:
        cpp_trial.try_out(k, target, opts)
    except ToolchainError as e:
        raise _words_of(e) from None


def _words_of(error: ToolchainError) -> SyntaxError:
    """The C++ compiler's own words, without names of files."""
    lines = [line for line in str(error).splitlines() if "error:" in line]
    said = [re.sub(r"^.*?" + re.escape(WORDS), WORDS, line) for line in lines]
    return SyntaxError("\n".join(said[:4]) or str(error))


def cpp_stage(printer: Callable[[Pass], str]) -> Callable:
    """`printer(a_pass)` as the codegen stage: C++ statements. Raise Decline for what is too hard."""

    def stage(schedule: Any, *, opts: Any) -> Generated:
        target = _cpu_target(schedule, opts)
        made: dict[str, tuple[_Plan, str]] = {}  # all of them before the first is printed: each of them may decline
        for step in schedule.steps:
            kernel: Any = step.kernel if isinstance(step, Launch) else None
            if kernel is not None and kernel.key() not in made:
                plan = _plan_of(kernel, kernel.name, target)
                made[kernel.key()] = plan, body_of(plan.row, printer)

        def source_of(kernel: Any, target: Target, *, name: str, printed: Any) -> KernelSource:
            source = _printed(*made[kernel.key()], target, name)
            _tried(GeneratedKernel(name, kernel, source), target, opts)
            return source

        # (a printer of one's own is part of what tells texts of earlier graphs apart)
        return generate_kernels(schedule, "c++", target, source_of, printed=(printer, repr(made)))

    return named_after(printer, stage)


def _cpu_target(schedule: Any, opts: Any) -> Target:
    if cuda_index(schedule) is not None:
        raise Decline("a program on a GPU")
    return host_target(opts)


def rows_of(program: Callable, *args: Any) -> list[Row]:
    """The kernels of one call, in order, as a student's function gets them."""
    found: list[Row] = []

    def look(schedule: Any, *, opts: Any) -> Generated:
        target = _cpu_target(schedule, opts)
        launches = [s for s in schedule.steps if isinstance(s, Launch)]
        found.extend(_plan_of(s.kernel, s.kernel.name, target).row for s in launches)
        return stages.original("codegen")(schedule, opts=opts)

    _through(look, program, args)
    return found


def instructions(program: Callable, *args: Any, by: Callable[[Pass], str] | None = None) -> int:
    """Machine instructions that the kernels of one call execute on one thread: printed `by` a student's function, or by
    the compiler. Raises Uncounted where the system does not let them be counted."""
    counted: list[int] = []
    make = stages.original("codegen") if by is None else cpp_stage(by)

    def count(schedule: Any, *, opts: Any) -> Generated:
        generated = make(schedule, opts=opts)
        target = _cpu_target(schedule, opts)
        each = {k.name: cpp_trial.instructions(k, target, opts) for k in generated.kernels}
        launches = [s for s in schedule.steps if isinstance(s, Launch)]
        counted.append(sum(each[generated.of(s).name] for s in launches))
        return generated

    _through(count, program, args)
    return sum(counted)


def _through(stage: Callable, program: Callable, args: tuple) -> None:
    with tcompile.stages.replace("codegen", stage), tcompile.config.patch(suppress_errors=False):
        tcompile.explain(program)(*args)


def evaluate(text: str, **values: float) -> float:
    """The value of a C++ expression of floats: evaluate("x * 2.0f", x=3.0)."""
    if not isinstance(text, str):
        raise TypeError(f"an expression should be C++ as a str, got {type(text).__name__}")
    opts = Options()
    target = host_target(opts)
    takes = ", ".join(f"float {name}" for name in values)
    line = f'extern "C" float tc_value({takes}) {{\n#line 1 "{WORDS}"\nreturn {text};\n}}\n'
    try:
        (library,) = load_text([("an expression", _prelude(target) + line)], target, opts)
    except ToolchainError as e:
        raise _words_of(e) from None
    library.tc_value.restype = ctypes.c_float
    return library.tc_value(*(ctypes.c_float(v) for v in values.values()))
