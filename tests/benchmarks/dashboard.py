"""Public models with eager, stock and tcompile in turn in one process, and a page of the results over commits.

    make dashboard                                          what is installed, on the GPU where there is one
    make dashboard NAMES=bert,timm: MODES=inference DEVICE=cpu SIZE=tiny
    python -m tests.benchmarks.dashboard --page             the page alone, of the results that are kept

NAMES are parts of names, separated by commas. MODES are `inference` and `training`; `inference:reduce-overhead` names
the mode of both compilers. Each row is measured in a process of its own with empty caches. Rows are kept in
tests/benchmarks/results/dashboard-DATE-COMMIT-DEVICE.json; those of one file add up, and the page is
build/dashboard.html.

A row passes where nothing raised, results and gradients are eager's within rounding, something was compiled, and no
graph fell back to eager.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import datetime
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .dashboard_models import MODELS, TINY, build, installed
from .dashboard_page import page, passes, summary

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("eager", "stock", "tcompile")
MODES = ("inference", "training")
COMPILER_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
LEAST_SAMPLES = 5
Run = Callable[[], Any]


def measure(
    name: str,
    mode: str,
    device: str = "cpu",
    size: str = "real",
    engines: tuple[str, ...] = ENGINES,
    seconds: float = 6.0,
) -> dict[str, Any]:
    """One row, in this process: first calls and their equality, memory, then the engines in turn for `seconds`."""
    import torch

    use, _, compiler_mode = mode.partition(":")
    training = use == "training"
    base, step = build(name, training, device, size)
    row: dict[str, Any] = {"model": name, "mode": mode, "device": device, "size": size, "engines": {}}
    runs: dict[str, Run] = {}
    wanted: Any = None
    # who comes first finds libraries and files cold, and it alternates by model
    others = [e for e in engines if e != "eager"][:: 1 if zlib.crc32(name.encode()) % 2 else -1]
    for engine in ["eager", *others]:
        facts = row["engines"][engine] = {}
        try:
            held = _held(device)
            module = copy.deepcopy(base)
            run = _runner(engine, module, step, training, device, compiler_mode or "default")
            torch.manual_seed(7)
            before = _random_state(device)
            got = _first(engine, run, facts, device)
            if engine == "eager":
                wanted, row["random"] = got, not torch.equal(before, _random_state(device))
            else:
                facts.update(_compared(got, wanted))
            del got
            for _ in range(3 if seconds else 0):
                run(None)
            facts["memory_bytes"] = _memory(lambda run=run: run(None), device, held) if seconds else None
            if engine == "eager" and seconds:
                row["work"] = _work(lambda run=run: run(None), device)
            runs[engine] = lambda run=run: run(None)
        except Exception as e:  # a row of the table, whatever a model or a compiler raises
            facts["error"] = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
    wanted = None
    _time_in_turn(runs, row, seconds, device)
    return row


def _runner(engine: str, module: Any, step: Any, training: bool, device: str, mode: str) -> Callable[..., Any]:
    """`run(gradients)`: one call, or one training step that puts the gradients into a list where one is given."""
    import torch

    import tcompile

    call = module
    if engine == "tcompile":
        call = tcompile.compile(module, mode=mode)
    elif engine == "stock":
        torch._dynamo.reset()
        call = torch.compile(module, mode=mode)
    if not training:

        def infer(gradients: list | None) -> Any:
            with torch.no_grad():
                return step(call)

        return infer
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=1e-4)

    def train(gradients: list | None) -> Any:
        mixed = torch.autocast(device, torch.bfloat16) if device != "cpu" else contextlib.nullcontext()
        with mixed:
            loss = step(call)
        loss.backward()
        if gradients is not None:
            gradients += [None if p.grad is None else p.grad.clone() for p in parameters]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return train


def _work(run: Callable[[], Any], device: str) -> dict[str, float]:
    """Operations of the model's products, and what the machine can do of them, and of copies, in a second."""
    from torch.utils.flop_counter import FlopCounterMode

    from tcompile.kernel_magics.limits import machine_limits

    with FlopCounterMode(display=False) as counter:
        run()
    limits = machine_limits("cpu" if device == "cpu" else "cuda", busy=True)
    return {
        "flops": counter.get_total_flops(),
        "flops_per_second": limits["matmul_flops_per_second" if device == "cpu" else "bfloat16_flops_per_second"],
        "bytes_per_second": limits["copy_bytes_per_second"],
    }


def _first(engine: str, run: Callable[..., Any], facts: dict[str, Any], device: str) -> list[Any]:
    """The result and the gradients of the first call. What tcompile's report says of it goes to `facts`."""
    import tcompile

    gradients: list[Any] = []
    with tcompile.record() if engine == "tcompile" else contextlib.nullcontext() as builder:
        _wait(device)
        start = time.perf_counter()
        result = run(gradients)
        _wait(device)
        facts["first_seconds"] = time.perf_counter() - start
    if builder is not None:
        report = builder.report()
        facts["graphs"] = len(report.graphs)
        facts["bytes_of_kernels"] = sum((k.bytes or 0) * k.launches for k in report.kernels)
        facts["breaks"] = sum(b.count for b in report.graph_breaks if not b.harmless)
        facts["graphs_run_by_eager"] = sum(g.ran == "eager" for g in report.graphs)
        # single operators that torch's own kernels compute are library calls
        facts["fallbacks"] = [
            f"{f.what}: {f.reason}"[:200] for f in report.fallbacks if not f.reason.startswith("eager kernel:")
        ]
    return [result.clone(), *gradients]


def _compared(got: list[Any], wanted: list[Any]) -> dict[str, Any]:
    """Relative errors of the result and of all gradients together, and how many gradients are there on one side alone."""
    pairs = [(a, b) for a, b in zip(got[1:], wanted[1:]) if a is not None and b is not None]
    return {
        "error_of_result": _relative([(got[0], wanted[0])]),
        "error_of_gradients": _relative(pairs) if pairs else None,
        "gradients_missing": sum((a is None) != (b is None) for a, b in zip(got[1:], wanted[1:])),
    }


def _relative(pairs: list[tuple[Any, Any]]) -> float:
    """The norm of the differences over that of the wanted values; infinite where shapes, NaN or infinities differ."""
    import torch

    difference = size = 0.0
    for a, b in pairs:
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        a, b = a.double(), b.double()
        finite = b.isfinite()
        if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()) or not bool(a[finite].isfinite().all()):
            return float("inf")
        difference += float((a[finite] - b[finite]).square().sum())
        size += float(b[finite].square().sum())
    return (difference / size) ** 0.5 if size else float(difference > 0)


def _time_in_turn(runs: dict[str, Run], row: dict[str, Any], seconds: float, device: str) -> None:
    samples: dict[str, list[float]] = {engine: [] for engine in runs}
    end = time.perf_counter() + seconds
    while seconds and runs and (time.perf_counter() < end or min(map(len, samples.values())) < LEAST_SAMPLES):
        for engine, run in runs.items():
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            samples[engine].append(time.perf_counter() - start)
    for engine, taken in samples.items():
        if taken:
            row["engines"][engine]["quartiles"] = statistics.quantiles(taken, n=4)


def _wait(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def _random_state(device: str) -> Any:
    import torch

    return torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()


def _held(device: str) -> int:
    import torch

    gc.collect()
    return torch.cuda.memory_allocated() if device != "cpu" else 0


def _memory(run: Run, device: str, held: int) -> int | None:
    """Bytes at the peak of one call. GPU: over what was held before the model was made, so that weights and what
    stays between calls count. CPU: resident memory over that before the call; None where the system does not tell."""
    import torch

    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        run()
        _wait(device)
        return torch.cuda.max_memory_allocated() - held
    from tcompile.compiler.runtime import output_pool

    output_pool.clear()
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
        before = _status("VmRSS")
        run()
        return _status("VmHWM") - before
    except OSError:  # not Linux, or a container that forbids it
        return None


def _status(name: str) -> int:
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(name))


def measure_apart(name: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """A row from a fresh process with empty caches; a row with an error where the process ends without one."""
    with tempfile.TemporaryDirectory(prefix="tcompile-dashboard-") as cache:
        caches = {
            "TCOMPILE_CACHE_DIR": f"{cache}/tcompile",
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "TRITON_CACHE_DIR": f"{cache}/triton",
        }
        os.mkdir(caches["TCOMPILE_CACHE_DIR"], 0o700)
        command = [sys.executable, "-m", "tests.benchmarks.dashboard", "--here", "--names", name, "--modes", mode]
        command += ["--device", options.device, "--size", options.size, "--seconds", str(options.seconds)]
        command += ["--engines", options.engines]
        failed = {"model": name, "mode": mode, "device": options.device, "size": options.size, "engines": {}}
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **caches},
                capture_output=True,
                text=True,
                timeout=options.limit,
            )
        except subprocess.TimeoutExpired:
            return {**failed, "error": f"took more than {options.limit:g} s"}
    rows = [line for line in done.stdout.splitlines() if line.startswith('{"model"')]
    if done.returncode or not rows:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {**failed, "error": f"the process ended with status {done.returncode}: {last[:300]}"}
    return json.loads(rows[-1])


def environment(device: str) -> dict[str, Any]:
    """Date, commit, versions, and what the machine is."""
    import torch

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=9", "HEAD") or "unknown"
    if git("status", "--porcelain", "--", "compiler", "extension", "kernel_magics"):
        commit += "-changed"
    now = datetime.datetime.now(datetime.timezone.utc)
    facts = {
        "date": now.date().isoformat(),
        "time": now.strftime("%H:%M UTC"),
        "commit": commit,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if device != "cpu" else f"CPU ({platform.machine()})",
        "threads": torch.get_num_threads(),
    }
    for library in ("transformers", "timm", "torchvision"):
        if installed(f"{library}:"):
            facts[library] = __import__(library).__version__
    return facts


def kept(folder: Path) -> list[dict[str, Any]]:
    """The runs that were kept, oldest first. A file that is no result of this program is named and left out."""
    runs = []
    for path in sorted(folder.glob("dashboard-*.json")):
        try:
            run = json.loads(path.read_text(encoding="utf-8"))
            run["facts"]["commit"], run["rows"][0]["model"]
        except (ValueError, KeyError, TypeError, IndexError) as e:
            print(f"{path.name} is no result of the dashboard ({type(e).__name__}: {e}): left out", file=sys.stderr)
            continue
        runs.append(run)
    return sorted(runs, key=lambda run: (run["facts"].get("date", ""), run["facts"].get("time", "")))


def keep(path: Path, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the rows; those that the file has of other models, modes and sizes stay."""
    old = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    new = {(r["model"], r["mode"], r["size"]) for r in rows}
    stay = [r for r in old if (r["model"], r["mode"], r["size"]) not in new]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"facts": facts, "rows": stay + rows}, indent=1) + "\n", encoding="utf-8")


def chosen(options: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """The models and the modes that the command line names. Ends the program, in words, where it names none."""
    parts = [p for p in options.names.split(",") if p]
    known = TINY if options.size == "tiny" else list(MODELS)
    for part in parts:
        if not any(part in name for name in known):
            parser.error(f"no model's name has {part!r} in it; there are {', '.join(known)}")
    names = [n for n in known if not parts or any(p == n if p in known else p in n for p in parts)]
    missing = sorted({n.partition(":")[0] for n in names if not installed(n)})
    names = [n for n in names if installed(n)]
    if missing:
        print(f"left out, since they are not installed: {', '.join(missing)}", file=sys.stderr)
    if not names:
        parser.error(f"nothing to measure: {', '.join(missing)} can't be imported")
    modes = options.modes.split(",")
    for mode in modes:
        use, colon, compiler = mode.partition(":")
        if use not in MODES or colon and compiler not in COMPILER_MODES:
            parser.error(f"a mode is {' or '.join(MODES)}, alone or with one of :{', :'.join(COMPILER_MODES)}: {mode}")
    unknown = [e for e in options.engines.split(",") if e not in ENGINES]
    if unknown:
        parser.error(f"no engine {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    return names, modes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default="", help="parts of names, separated by commas")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--device", default="", choices=("", "cpu", "cuda"))
    parser.add_argument("--size", default="real", choices=("real", "tiny"))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--seconds", type=float, default=6.0, help="of timing, for each row")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for each row, compilation included")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "dashboard.html")
    parser.add_argument("--page", action="store_true", help="write the page of the results that are kept")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    failed = 0
    if not options.page:
        import torch

        options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if options.device == "cuda" and not torch.cuda.is_available():
            parser.error("torch finds no GPU here; DEVICE=cpu measures on the CPU")
        names, modes = chosen(options, parser)
        if options.here:
            engines = tuple(options.engines.split(","))
            print(json.dumps(measure(names[0], modes[0], options.device, options.size, engines, options.seconds)))
            return 0
        facts = environment(options.device)
        path = options.results / f"dashboard-{facts['date']}-{facts['commit']}-{options.device}.json"
        rows: list[dict[str, Any]] = []
        for name in names:
            for mode in modes:
                rows.append(measure_apart(name, mode, options))
                keep(path, facts, rows)  # after each row: a run that is ended keeps what it has
                failed += not passes(rows[-1])
                print(summary(rows[-1]), flush=True)
        print(f"kept in {path}")
    runs = kept(options.results)
    if not runs:
        parser.error(f"no results in {options.results}: run `make dashboard`")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page(runs), encoding="utf-8")
    print(f"the page: {options.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
