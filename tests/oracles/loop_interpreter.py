"""A slow evaluator of schedules: the meaning of the loop IR, written with torch operations on index grids.

It is the oracle for code generation's tests, and lets fusion be tested without a C++ compiler. Memory is poisoned when
it is allocated and when it is released, so that a wrong memory plan shows; loads outside of a buffer raise, unless a
`masked` keeps them away.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Mapping, Sequence

import torch

from tcompile.compiler.ops import mask_bits, keep_bits, philox
from tcompile.compiler.errors import check_error
from tcompile.compiler.lowering.ir import Acc, Buffer, Kernel, Value, walk
from tcompile.compiler.lowering.lowered import Param
from tcompile.compiler.lowering.primitives import REDUCTIONS
from tcompile.compiler.lowering.verify_loops import unmasked
from tcompile.compiler.symbolic.expr import Expr, as_expr
from tcompile.compiler.fusion.memory.liveness import nbytes
from tcompile.compiler.fusion.schedule import Alloc, Extern, Free, Launch, Schedule, View

__all__ = ["run_schedule", "run_kernel", "evaluate"]


def evaluate(e: Any, values: Mapping[str, Any]) -> Any:
    """An Expr over ints and int64 tensors."""
    if isinstance(e, int):
        return e
    op = e.op
    if op == "sym":
        return values[e.name]
    if e.is_const:
        return e.value
    if op in ("add", "mul"):
        total: Any = 0
        for c, atoms in e.terms():
            t: Any = c
            for a in atoms:
                t = t * evaluate(a, values)
            total = total + t
        return total
    xs = [evaluate(a, values) for a in e.args]
    if op == "ite":
        return torch.where(*map(torch.as_tensor, xs))
    if op in ("and", "or"):
        r = xs[0]
        for x in xs[1:]:
            r = (r & x) if op == "and" else (r | x)
        return r
    if any(isinstance(x, torch.Tensor) for x in xs):
        ts = [torch.as_tensor(x) for x in xs]
        f: Callable = {
            "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
            "mod": torch.remainder,
            "lshift": torch.bitwise_left_shift,
            "bitand": torch.bitwise_and,
            "eq": torch.eq,
            "ne": torch.ne,
            "le": torch.le,
            "min": torch.minimum,
            "max": torch.maximum,
        }[op]
    else:
        ts = xs
        f = {
            "floordiv": operator.floordiv,
            "mod": operator.mod,
            "lshift": operator.lshift,
            "bitand": operator.and_,
            "eq": operator.eq,
            "ne": operator.ne,
            "le": operator.le,
            "min": min,
            "max": max,
        }[op]
    r = ts[0]
    for x in ts[1:]:
        r = f(r, x)
    return r


# those that torch has under another name, or not at all
_PRIMS: dict[str, Callable] = {
    "relu": lambda x: x.clamp_min(0),
    "erf_rough": torch.erf,
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "philox": philox.drawn,
    "keep_word": keep_bits.keep_words,
    "fma": lambda a, b, c: a * b + c,
    "masked": torch.where,
    "trigamma": lambda x: torch.polygamma(1, x),
    "frexp_mantissa": lambda x: torch.frexp(x)[0],
    "frexp_exponent": lambda x: torch.frexp(x)[1].to(x.dtype),
}


def _prim(name: str) -> Callable:
    return _PRIMS.get(name) or getattr(torch, name, None) or getattr(torch.special, name)


def flat(t: torch.Tensor) -> torch.Tensor:
    span = 1 + sum((s - 1) * st for s, st in zip(t.shape, t.stride())) if t.numel() else 0
    return torch.as_strided(t, (span,), (1,), t.storage_offset())


def run_kernel(
    kernel: Kernel,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    sizes: Sequence[int] = (),
    params: Sequence[float] = (),
) -> None:
    """Run one kernel on tensors; the outputs are written."""
    mem = {
        b: mask_bits.unpacked(flat(t)) if b.bits else flat(t)
        for b, t in zip((*kernel.inputs, *kernel.outputs), (*inputs, *outputs))
    }
    env: dict[str, Any] = {s.name: n for s, n in zip(kernel.sizes, sizes)}
    outer_sizes = [evaluate(as_expr(a.size), env) for a in kernel.outer]
    n_outer = 1
    for s in outer_sizes:
        n_outer *= s
    accs: dict[str, torch.Tensor] = {}
    scalars = {name: torch.tensor(v, dtype=d) for (name, d), v in zip(kernel.params, params)}
    for b in kernel.locals:
        n = 1
        for s in b.shape:
            n *= evaluate(as_expr(s), env)
        mem[b] = torch.full((n_outer, n), 77, dtype=b.dtype)
    for stage in kernel.stages:
        inner_sizes = [evaluate(as_expr(a.size), env) for a in stage.axes]
        _Stage(kernel, stage, env, outer_sizes, inner_sizes, mem, accs, scalars).run()
    for b, t in zip(kernel.outputs, outputs):
        if b.bits:
            flat(t).view(torch.uint8).copy_(mask_bits.packed(mem[b]))


class _Stage:
    def __init__(
        self,
        kernel: Kernel,
        stage: Any,
        env: dict,
        outer: list[int],
        inner: list[int],
        mem: dict,
        accs: dict,
        scalars: dict,
    ):
        self.stage, self.mem, self.accs, self.scalars = stage, mem, accs, scalars
        self.outer, self.inner = outer, inner
        self.grid = [*outer, *inner]
        self.env = dict(env)
        n = len(self.grid)
        for k, (a, s) in enumerate(zip((*kernel.outer, *stage.axes), self.grid)):
            shape = [1] * n
            shape[k] = s
            self.env[a.symbol.name] = torch.arange(s).reshape(shape)
        n_outer = 1
        for s in outer:
            n_outer *= s
        self.outer_id = torch.arange(n_outer).reshape(outer + [1] * len(inner))

    def run(self) -> None:
        roots = self.stage.roots()
        strict = unmasked(roots)
        vals: dict[int, torch.Tensor] = {}
        for v in walk(roots):
            running = (
                next((a for a in self.stage.accs if a.running and a.name == v.attr), None) if v.op == "acc" else None
            )
            vals[v.id] = (
                self.value(v, vals, v.id in strict) if running is None else self.scan(running, vals[running.value.id])
            )
        results = {a.name: self.reduce(a, vals[a.value.id]) for a in self.stage.accs if not a.running}
        for s in self.stage.stores:
            self.store(s, vals[s.value.id], {f"ind{p.id}": vals[p.id] for p in s.positions})
        self.accs.update(results)

    def value(self, v: Value, vals: dict[int, torch.Tensor], strict: bool) -> torch.Tensor:
        op = v.op
        if op in ("load", "index"):
            e = v.attr[1] if op == "load" else v.attr
            env = {**self.env, **{f"ind{a.id}": vals[a.id] for a in v.args}} if v.args else self.env
            at = torch.as_tensor(evaluate(e, env), dtype=torch.int64)
            return at.to(v.dtype) if op == "index" else self.load(v.attr[0], at, strict)
        if op == "const":
            return torch.tensor(v.attr, dtype=v.dtype)
        if op == "param":
            return self.scalars[v.attr]
        if op == "acc":
            return self.accs[v.attr].reshape(self.outer + [1] * len(self.inner))
        xs = [vals[a.id] for a in v.args]
        if op == "cast":
            return xs[0].to(v.dtype)
        if op == "check_index":
            i, n = xs
            bad = (i < 0) | (i >= n)
            if strict and bool(bad.expand(self.grid).any()):
                raise check_error(v.attr)
            return torch.where(bad, torch.zeros((), dtype=torch.int64), i)
        r = _prim(op)(*xs)
        if r.dtype != v.dtype:
            raise AssertionError(f"{v!r} gave {r.dtype}")
        return r

    def load(self, b: Buffer, at: torch.Tensor, strict: bool) -> torch.Tensor:
        flat = self.mem[b]
        local = b.scope == "local"
        n = flat.shape[-1]
        if strict and at.numel() and 0 not in self.grid and (int(at.min()) < 0 or int(at.max()) >= n):
            raise AssertionError(f"load of {b.name} at {int(at.min())}..{int(at.max())}, it has {n} elements")
        if n == 0 or 0 in self.grid:
            return torch.zeros((), dtype=b.holds).expand([1] * len(self.grid) if 0 not in self.grid else self.grid)
        at = at.clamp(0, n - 1)
        return flat[self.outer_id, at] if local else flat[at]

    def store(self, s: Any, x: torch.Tensor, positions: dict[str, torch.Tensor]) -> None:
        flat = self.mem[s.buffer]
        at = torch.as_tensor(evaluate(s.index, {**self.env, **positions}), dtype=torch.int64).expand(self.grid)
        x = x.expand(self.grid)
        if 0 in self.grid:
            return
        if int(at.min()) < 0 or int(at.max()) >= flat.shape[-1]:
            raise AssertionError(
                f"store to {s.buffer.name} at {int(at.min())}..{int(at.max())}, it has {flat.shape[-1]} elements"
            )
        if x.dtype != flat.dtype:
            raise AssertionError(f"store of {x.dtype} to {s.buffer!r}")
        if s.buffer.scope == "local":
            flat[self.outer_id.expand(self.grid), at] = x
        elif s.mode == "rows":
            flat[at.reshape(-1)] = 0
            flat.scatter_reduce_(0, at.reshape(-1), x.reshape(-1), "sum")
        elif s.mode != "set":
            how = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[s.mode]
            flat.scatter_reduce_(0, at.reshape(-1), x.reshape(-1), how)
        elif s.positions:
            for i, y in zip(at.reshape(-1).tolist(), x.reshape(-1)):  # in order: of equal positions the last one stays
                flat[i] = y
        else:
            flat[at.reshape(-1)] = x.reshape(-1).clone()

    def scan(self, a: Acc, x: torch.Tensor) -> torch.Tensor:
        x = x.expand(self.grid)
        if 0 in self.grid:
            return torch.zeros(self.grid, dtype=a.dtype)
        if a.op in ("sum", "prod"):
            return getattr(torch, f"cum{a.op}")(x, -1, dtype=a.dtype)
        if a.op == "logaddexp":
            return torch.logcumsumexp(x, -1)
        best, at = getattr(torch, f"cum{a.op.removeprefix('arg')}")(x, -1)
        return at if a.op.startswith("arg") else best

    def reduce(self, a: Acc, x: torch.Tensor) -> torch.Tensor:
        n_outer, n = self.outer_id.numel(), 1
        for s in self.inner:
            n *= s
        x = x.expand(self.grid).reshape(n_outer, n)
        if a.op in ("argmax", "argmin"):
            return getattr(torch, a.op)(x, 1) if n else torch.zeros(n_outer, dtype=torch.int64)
        x = x.to(a.dtype)
        if n == 0:
            return torch.full((n_outer,), _identity(a.op, a.dtype), dtype=a.dtype)
        if a.op in ("sum", "prod"):
            return getattr(torch, a.op)(x, 1, dtype=a.dtype)
        if a.op in ("max", "min"):
            return getattr(torch, "a" + a.op)(x, 1)
        if a.op in ("any", "all"):
            return getattr(torch, a.op)(x, 1)
        r = x[:, 0]
        for k in range(1, n):
            r = r ^ x[:, k]
        return r


def _identity(op: str, dtype: torch.dtype) -> Any:
    start = REDUCTIONS[op].start
    if start in ("zero", "one"):
        return int(start == "one")
    if dtype.is_floating_point:
        return float("-inf") if start == "lowest" else float("inf")
    return torch.iinfo(dtype).min if start == "lowest" else torch.iinfo(dtype).max


def run_schedule(s: Schedule, inputs: Sequence[Any]) -> tuple:
    """The graph's outputs for `inputs`; mutated inputs are written."""
    return _Run(s, inputs).run()


class _Run:
    def __init__(self, s: Schedule, inputs: Sequence[Any]):
        self.s, self.inputs = s, inputs
        self.tensors: dict[Buffer, torch.Tensor] = {}
        self.blocks: dict[Buffer, torch.Tensor] = {}
        self.sizes: dict[str, int] = {}
        self.params: dict[str, float] = {}
        for b, x in zip(s.inputs, inputs):
            if isinstance(b, Buffer):
                self.tensors[b] = x
            elif isinstance(b, tuple):
                self.params[b[1]] = x
        for name, (i, what, d) in s.symbols.items():
            x = inputs[i]
            self.sizes[name] = x if what == "value" else x.shape[d] if what == "size" else x.stride(d)

    def size(self, e: Any) -> int:
        return e if isinstance(e, int) else e.eval(self.sizes)

    def get(self, b: Buffer) -> torch.Tensor:
        if b not in self.tensors and b.kind == "constant":
            self.tensors[b] = self.s.constants[b.name]
        return self.tensors[b]

    def run(self) -> tuple:
        for step in self.s.steps:
            if isinstance(step, Alloc):
                self.alloc(step)
            elif isinstance(step, Free):
                self.poison(step.buffer)
                del self.tensors[step.buffer]
            elif isinstance(step, View):
                base, b = self.get(step.base), step.buffer
                self.tensors[b] = torch.as_strided(
                    base,
                    [self.size(x) for x in b.shape],
                    [self.size(x) for x in b.stride],
                    base.storage_offset() + self.size(step.offset),
                )
            elif isinstance(step, Launch):
                run_kernel(
                    step.kernel,
                    [self.get(b) for b in step.inputs],
                    [self.get(b) for b in step.outputs],
                    [self.size(e) for e in step.sizes],
                    [self.params[p] for p in step.params],
                )
            else:
                self.call(step)
        for i, b in self.s.mutations:
            self.inputs[i].copy_(self.get(b))
        return tuple(self.output(o) for o in self.s.outputs)

    def alloc(self, step: Alloc) -> None:
        b = step.buffer
        n = self.size(nbytes(b))
        if step.reuse is None:
            block = torch.full((max(n, 1),), 0xAB, dtype=torch.uint8)
        else:
            block = (
                self.blocks[step.reuse]
                if step.reuse in self.blocks
                else flat(self.tensors[step.reuse]).view(torch.uint8)
            )
            assert block.numel() >= n, f"{b!r} does not fit in the memory of {step.reuse!r}"
        self.blocks[b] = block
        self.tensors[b] = torch.as_strided(
            block[:n].view(b.dtype) if n else torch.empty(0, dtype=b.dtype),
            [self.size(x) for x in b.shape],
            [self.size(x) for x in b.stride],
        )

    def poison(self, b: Buffer) -> None:
        if b in self.blocks:
            self.blocks[b].fill_(0xCD)

    def call(self, step: Extern) -> None:
        args, kwargs = self.real(step.args), self.real(step.kwargs)
        if step.out_variant is not None:
            step.out_variant(*args, **kwargs, **dict(zip(step.out_names, (self.get(b) for b in step.outputs))))
            return
        out = step.op(*args, **kwargs)
        for b, t in zip(step.outputs, out if isinstance(out, (tuple, list)) else (out,)):
            if b is not None:
                assert t.dtype == b.dtype and list(t.shape) == [self.size(x) for x in b.shape], (
                    f"{step.op}: {t.shape} is not {b!r}"
                )
                assert t.numel() == 0 or all(
                    st == self.size(w) for n, st, w in zip(t.shape, t.stride(), b.stride) if n != 1
                ), f"{step.op}: strides {t.stride()} are not {b.stride}"
                self.tensors[b] = t

    def real(self, x: Any) -> Any:
        if isinstance(x, Buffer):
            return self.get(x)
        if isinstance(x, Param):
            return self.params[x.name]
        if isinstance(x, Expr):
            return self.size(x)
        if isinstance(x, dict):
            return {k: self.real(v) for k, v in x.items()}
        if isinstance(x, (list, tuple)):
            return type(x)(self.real(v) for v in x)
        return x

    def output(self, o: Any) -> Any:
        if o.kind == "buffer":
            return self.get(o.value)
        if o.kind == "input":
            return self.inputs[o.value]
        if o.kind == "int":
            return self.size(o.value)
        if o.kind == "view":
            base, shape, stride, offset = o.value
            t = self.inputs[base] if isinstance(base, int) else self.get(base)
            if o.dtype is not None:
                raise NotImplementedError("a view as another dtype")
            return torch.as_strided(
                t, [self.size(x) for x in shape], [self.size(x) for x in stride], t.storage_offset() + self.size(offset)
            )
        if o.kind == "const":
            return o.value
        raise NotImplementedError(f"output of kind {o.kind!r}")
