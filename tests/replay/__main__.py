"""Replay: what the compiler makes of known programs, against what it made before. `make replay`.

    python -m tests.replay              compare with the snapshot; differences are shown, and exit 1
    python -m tests.replay --save       make the snapshot anew, where a difference is meant (the commit explains it)
    python -m tests.replay NAME ...     these programs alone

Of each program: the text of its kernels for a CPU of one fixed kind and for a GPU, both host plans, the calls of
torch's own kernels with their reasons, guards in words, and what the report says. Nothing is compiled by a C++
compiler and no GPU is needed: graphs run by torch's own kernels. A snapshot serves one version of torch and Python.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import lzma
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import torch

HERE = Path(__file__).parent
HASHES, TEXTS = HERE / "snapshot.json", HERE / "texts.json.xz"
# what a report says of time, place and process
_PASSING = re.compile(
    r"seconds|^(id|created|environment|stages|speedups|cache|autotune|break_even|timeline|memory|options|source|file"
    r"|started|hits|live|ns|wall|answers|unused)$"
)


def replay(make: Callable[[], tuple]) -> dict[str, str]:
    """aspect -> text"""
    import tcompile
    from tcompile.compiler import api, stages
    from tcompile.compiler.report.json import plain

    cpu: list[Any] = []
    gpu: list[str] = []

    def lowering(aten: Any, opts: Any) -> Any:
        gpu.append(_for_gpu(aten, opts))
        return stages.original("lowering")(aten, opts=opts)

    def runtime(generated: Any, opts: Any, eager: Any = None) -> Any:
        cpu.append(generated)
        return eager

    api.reset()
    torch.manual_seed(0)
    fn, args, grad = make()
    with (
        stages.replace("lowering", lowering),
        stages.replace("runtime", runtime),
        torch.set_grad_enabled(grad),
        mock.patch("tcompile.compiler.codegen.generate.host_target", _target),
    ):
        torch.manual_seed(0)
        report = tcompile.explain(fn)(*args)
        if grad:
            out = report.result[0] if isinstance(report.result, tuple) else report.result
            out.sum().backward()
    return {
        "cpu kernels": "\n".join(k.source.text for g in cpu for k in g.kernels),
        "cpu plan": "\n".join(g.host.source for g in cpu),
        "calls": "\n".join(str(line) for g in cpu for line in _calls(g)),
        "gpu": "\n".join(gpu),
        "guards": "\n".join(f"{g.entry} {g.kind} {g.source}: {g.text} ({g.why}, {g.cls})" for g in report.guards),
        "report": json.dumps(_steady({**plain(report), "guards": []}), indent=1, sort_keys=True),
    }


def replay_training_on_gpu(make: Callable[[], tuple]) -> dict[str, str]:
    """aspect -> text, of what a GPU would run forward and backward."""
    from tcompile.compiler import api

    from ..codegen.triton.as_gpu import train_as_gpu

    api.reset()
    torch.manual_seed(0)
    fn, args, _ = make()
    _, forward, backward = train_as_gpu(fn, *args)
    return {"gpu forward": _text(forward), "gpu backward": _text(backward)}


def _target(opts: Any = None) -> Any:
    from tcompile.compiler.codegen.cpp.support import Target

    return Target(32, frozenset(("avx2", "fma", "f16c")))


def _calls(generated: Any) -> list[str]:
    from tcompile.compiler.fusion.schedule import Extern

    return [f"{s.op}: {s.reason}" for s in generated.schedule.steps if isinstance(s, Extern)]


def _for_gpu(aten: Any, opts: Any) -> str:
    """The same graph as for a GPU, in text. Where it cannot be one, the error is what is compared."""
    from tcompile.compiler.codegen.generate import generate_triton
    from tcompile.compiler.fusion.fuse import schedule
    from tcompile.compiler.lowering.lower import lower

    from ..codegen.triton.as_gpu import turn
    from ..codegen.triton.interpreter import SMALL

    try:
        graph = aten.copy()
        turn(graph)
        made = generate_triton(schedule(lower(graph, opts, trial=True), opts), opts, None, SMALL)
        return _text(made)
    except Exception as e:
        return f"not for a GPU: {type(e).__name__}: {e}"


def _text(made: Any) -> str:
    return "\n".join([*(k.source.text for k in made.kernels), made.host.source, *_calls(made)])


def _steady(x: Any) -> Any:
    """A report without what differs from run to run."""
    if isinstance(x, dict):
        return {k: _steady(v) for k, v in x.items() if not _PASSING.search(k)}
    if isinstance(x, list):
        return [_steady(v) for v in x]
    if isinstance(x, str):
        x = re.sub(r'/[^"\\\s]*/tests/replay/', "tests/replay/", x)  # where the repository lies is no matter
        x = re.sub(r"\d[\d.]*\s*(ns|us|µs|ms|s|min)\b", "TIME", x)
        return re.sub(r"0x[0-9a-f]+|object at \S+|\b\d{10,}\b", "PLACE", x)
    return x


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main() -> int:
    from .programs import programs
    from .tiled import training_on_gpu

    parser = argparse.ArgumentParser(prog="python -m tests.replay")
    parser.add_argument("names", nargs="*", help="programs; all, where none is named")
    parser.add_argument("--save", action="store_true", help="make the snapshot anew")
    parser.add_argument("--lines", type=int, default=40, help="lines of difference that are shown of each text")
    asked = parser.parse_args()
    on_gpu = training_on_gpu()
    every = {**programs(), **on_gpu}
    chosen = {n: every[n] for n in asked.names} if asked.names else every
    versions = {"torch": torch.__version__.partition("+")[0], "python": platform.python_version().rpartition(".")[0]}
    before = {} if asked.save or not HASHES.exists() else json.loads(HASHES.read_text())
    if not asked.save and before.get("versions") != versions:
        print(f"the snapshot is of {before.get('versions')}, this is {versions}: nothing to compare")
        return 2
    now: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", TCOMPILE_CACHE_DIR=folder):
        for name, make in chosen.items():
            try:
                now[name] = replay_training_on_gpu(make) if name in on_gpu else replay(make)
            except Exception as e:
                now[name] = {"error": f"{type(e).__name__}: {e}"}
    hashes = {n: {k: _hash(v) for k, v in texts.items()} for n, texts in now.items()}
    if asked.save:
        HASHES.write_text(json.dumps({"versions": versions, "programs": hashes}, indent=0, sort_keys=True) + "\n")
        TEXTS.write_bytes(lzma.compress(json.dumps(now, sort_keys=True).encode(), preset=9))
        print(f"{len(now)} programs saved, {sum('error' in t for t in now.values())} of them as errors")
        return 0
    old = before["programs"]
    differ = [
        (n, k)
        for n in chosen
        for k in sorted({*hashes[n], *old.get(n, {})})
        if hashes[n].get(k) != old.get(n, {}).get(k)
    ]
    texts = json.loads(lzma.decompress(TEXTS.read_bytes())) if differ else {}
    for n, k in differ:
        a, b = (t.get(n, {}).get(k, "").splitlines() for t in (texts, now))
        lines = list(difflib.unified_diff(a, b, f"{n}: {k} (snapshot)", f"{n}: {k} (now)", lineterm="", n=1))
        print(
            "\n".join(
                [*lines[: asked.lines], *([f"... {len(lines) - asked.lines} more lines"] * (len(lines) > asked.lines))]
            )
        )
    print(
        f"{len(chosen)} programs, {len(differ)} texts differ" + (f" in {len({n for n, _ in differ})}" if differ else "")
    )
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
