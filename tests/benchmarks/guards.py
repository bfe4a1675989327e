"""What guards cost at each call, ours and stock torch.compile's, in one process.

    python -m tests.benchmarks.guards                  ours alone
    python -m tests.benchmarks.guards --torch          and stock's, on the same functions and models
    python -m tests.benchmarks.guards --torch --write  and keep the table in tests/benchmarks/results

Ours: `measure_cost` (guard_cost.py) on the call that the entry was made for. Stock's: `check` of the guard
manager of the cache entry, for the same arguments. Both are the best of several rounds, taken in turn, in nanoseconds;
graphs run by torch's own kernels and are no part of it.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile
from tcompile.compiler import events
from tcompile.compiler.guards import compile_guards, measure_cost

RESULTS = Path(__file__).parent / "results"
ROUNDS, CALLS = 7, 50


def small(x, y):
    return torch.sin(x) * y + 1


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p(x).view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2)
        self.gate, self.up, self.down = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )
        self.act, self.drop = nn.SiLU(), nn.Dropout(0.1)
        self.scale = 1.0

    def forward(self, x):
        x = x + self.drop(self.attention(self.norm1(x)))
        y = self.norm2(x)
        return x + self.down(self.act(self.gate(y)) * self.up(y)) * self.scale


class Decoder(nn.Module):
    """Token embedding, layers, head: the structure of a language model, small in width."""

    def __init__(self, layers: int, width: int = 16):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def best(call: Callable[[], Any], n: int = CALLS) -> float:
    """Nanoseconds a call, the best of ROUNDS rounds."""
    found = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(n):
            call()
        found = min(found, (time.perf_counter_ns() - start) / n)
    return found


def ours(fn: Any, args: tuple) -> dict[str, float]:
    """ns of all guards; of those on structure (all but tensors' metadata); of one parameter's metadata."""
    made: list[Any] = []
    with events.listen(lambda e: made.append(e) if e.kind == "entry" else None):
        tcompile.compile(fn, backend="eager")(*args)
    e = made[-1]
    program, inputs = e.entry.program, (e.func, e.args)
    structure = [g for g in program.guards if g.kind not in ("TENSOR", "NO_OVERLAP", "NO_ALIAS", "PREDICATE")]
    parameters = [g for g in program.guards if g.kind == "TENSOR" and issubclass(g.expected.type, nn.Parameter)]
    n = len(e.args)

    def whole(guards: list) -> float:
        cost = measure_cost(compile_guards(guards, n), *inputs)
        assert cost is not None
        return cost.whole

    out = {
        "guards": float(len(program.guards)),
        "all": min(whole(program.guards) for _ in range(3)),
        "structure": min(whole(structure) for _ in range(3)),
    }
    if parameters:
        cost = measure_cost(program, *inputs)
        assert cost is not None
        each = [cost.each[i] for i, g in enumerate(program.guards) if i in cost.each and g in parameters]
        out["parameter"] = sum(each) / len(each)
    return out


def stock(fn: Any, args: tuple) -> dict[str, float]:
    """The same of stock: it does not part structure from parameters, so `all` alone."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    torch._dynamo.reset()
    torch.compile(fn, backend="eager", fullgraph=True)(*args)
    code = fn.forward.__code__ if isinstance(fn, nn.Module) else fn.__code__
    entry = _debug_get_cache_entry_list(code)[0]
    names = code.co_varnames[: code.co_argcount]
    f_locals = dict(zip(names, (fn, *args) if isinstance(fn, nn.Module) else args))
    manager = entry.guard_manager
    assert manager.check(f_locals)
    return {"all": best(lambda: manager.check(f_locals))}


def cases() -> list[tuple[str, Any, tuple]]:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (1, 4))
    return [
        ("small function, 2 tensors", small, (torch.randn(8), torch.randn(8))),
        ("one layer", Layer(16).eval(), (torch.randn(1, 4, 16),)),
        ("decoder, 12 layers", Decoder(12).eval(), (ids,)),
        ("decoder, 80 layers", Decoder(80).eval(), (ids,)),
    ]


def table(rows: list[dict[str, Any]], facts: dict[str, str]) -> str:
    def us(value: float | None) -> str:
        return "" if value is None else f"{value / 1000:.3g}"

    lines = [
        ", ".join(f"{k} {v}" for k, v in facts.items()),
        "",
        "Microseconds a call; a parameter's metadata in nanoseconds.",
        "",
    ]
    lines += [
        "| call | guards | structure | all guards | one parameter, ns | stock, all guards | stock / ours |",
        "| --- " * 7 + "|",
    ]
    for r in rows:
        o, s = r["ours"], r.get("stock", {})
        ratio = f"{s['all'] / o['all']:.1f}x" if s else ""
        parameter = f"{o['parameter']:.1f}" if "parameter" in o else ""
        lines.append(
            f"| {r['call']} | {o['guards']:.0f} | {us(o['structure'])} | {us(o['all'])} | {parameter} | {us(s.get('all'))} | {ratio} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="store_true", help="stock torch.compile too")
    parser.add_argument("--write", action="store_true", help="keep the table")
    options = parser.parse_args()
    facts = {
        "date": datetime.date.today().isoformat(),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }
    rows = []
    with torch.no_grad():
        for name, fn, args in cases():
            row: dict[str, Any] = {"call": name, "ours": ours(fn, args)}
            if options.torch:
                row["stock"] = stock(fn, args)
            rows.append(row)
            print(table(rows[-1:], facts).splitlines()[-1], flush=True)
    if options.write:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{facts['date']}-guards.md"
        known = path.read_text().rstrip() + "\n\n" if path.exists() else "# Guards, measured\n\n"
        path.write_text(known + table(rows, facts))
        print(f"kept in tests/benchmarks/results/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
