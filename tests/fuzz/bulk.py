"""Long runs of the fuzzers without Hypothesis, many times faster: `python -m tests.fuzz.bulk programs --seconds 600
--seed 1000`.

Scenario k of a run has the seed `seed + k`, and every seed gives the same scenario again (`--only SEED` runs one). What
differs from eager is made smaller and written to the folder `--out`, one file each; the totals go to a JSON file there,
line by line. Ends with status 1 if anything differed.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import gc
import json
import os
import pathlib
import platform
import random
import re
import signal
import sys
import time
import warnings
from typing import Any

from .choices import Rolled

# seconds after which one scenario counts as hanging; the first one also imports what it needs, and half an import
# breaks the rest
HANGS = 30
_begun: list[str] = []


class Hangs(BaseException):
    """No Exception: the programs catch those."""


def make(what: str, seed: int) -> dict[str, Any]:
    """The scenario of a seed, as arguments of its oracle."""
    if what == "programs":
        from .checks import CALLS, LAYOUTS
        from .programs import write

        choices = Rolled(seed)
        source, layout, grad = write(choices), choices.pick(LAYOUTS), choices.integer(0, 3) == 0
        return {
            "source": source,
            "layout": layout,
            "grad": grad,
            "calls": tuple(sorted(choices.random.sample(range(len(CALLS)), choices.pick((2, 2, 3))))),
        }
    rolled = random.Random(seed)
    if what == "numbers":
        from .numbers import write as write_numbers

        return {"source": write_numbers(rolled)}
    if what == "tensors":
        from .tensors import write as write_tensors

        return {
            "source": write_tensors(rolled),
            "dynamic": rolled.choice((None, None, True)),
            "grad": rolled.random() < 0.25,
        }
    from .changes import CHANGES

    return {"changes": [rolled.randrange(len(CHANGES)) for _ in range(rolled.choice((1, 1, 2, 2, 3, 4, 6)))]}


def run(what: str, scenario: dict[str, Any], backend: str) -> str:
    """Nothing, or in what way the scenario differs from eager."""
    from .checks import check_changes, check_program
    from .numbers import check_numbers
    from .tensors import check_tensors

    def hangs(*_: Any) -> None:
        raise Hangs(f"takes more than {HANGS} s")

    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANGS if _begun else 10 * HANGS)
    _begun.append(what)
    try:
        {"programs": check_program, "changes": check_changes, "tensors": check_tensors, "numbers": check_numbers}[what](
            **scenario, backend=backend
        )
    except AssertionError as e:
        return "differs: " + str(e)
    except (Exception, Hangs) as e:
        return f"{type(e).__name__}: {e}"
    finally:
        signal.alarm(0)
    return ""


def kind_of(found: str) -> str:
    """What a difference has in common with others of the same cause."""
    line = found.splitlines()[0] if found else ""
    for word in ("apart", "same", "overlap", "strided", "grad=True", "grad=False"):
        line = line.replace(f" {word}", "", 1)
    return re.sub(r"\d+", "", line)[:48]


def names_are_bound(source: str) -> bool:
    """Whether every name that is read is assigned somewhere: shrinking must not find NameErrors of its own making."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    from .prelude import namespace

    read, bound = set(), set(dir(builtins)) | set(namespace()) | {"F", "undefined_name"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
    return read <= bound


def smaller(what: str, scenario: dict[str, Any], backend: str, found: str, seconds: float = 20) -> dict[str, Any]:
    """A scenario that still differs in the same way and from which nothing can be left out."""
    until = time.monotonic() + seconds
    wanted = kind_of(found)
    is_source = what != "changes"
    key = "source" if is_source else "changes"
    parts = scenario[key].split("\n") if is_source else list(scenario[key])
    lowest = 0
    if is_source:
        lowest = next(k for k, line in enumerate(parts) if line.startswith("def f(")) + 1

    def joined(chosen: list) -> Any:
        return "\n".join(chosen) if is_source else chosen

    def fails(chosen: list) -> bool:
        if time.monotonic() > until:
            return False
        if is_source and not names_are_bound(joined(chosen)):
            return False
        return kind_of(run(what, {**scenario, key: joined(chosen)}, backend)) == wanted

    size = max(1, (len(parts) - lowest) // 2)
    while size:
        at = lowest
        while at < len(parts):
            rest = parts[:at] + parts[at + size :]
            if (rest if is_source else len(rest) < len(parts)) and fails(rest):
                parts = rest
            else:
                at += 1
        size //= 2
    small = {**scenario, key: joined(parts)}
    for k, v in {"layout": "apart", "grad": False, "dynamic": None}.items():
        if k in small and run(what, {**small, k: v}, backend):
            small[k] = v
    return small


def write_down(out: pathlib.Path, what: str, seed: int, small: dict[str, Any], found: str, backend: str) -> None:
    if "source" in small:
        source = small["source"]
        how = ", ".join(f"{k} {v}" for k, v in small.items() if k in ("layout", "grad", "dynamic"))
        text = (
            f"# seed {seed}, backend {backend}, {how}\n# "
            + "\n# ".join(found.split("\ndef f(")[0].split("\n")[:12])
            + "\n"
            + source
        )
    else:
        from .changes import CHANGES

        text = (
            f"# seed {seed}, backend {backend}\n# {small['changes']} {[CHANGES[i].__name__ for i in small['changes']]}\n# "
            + "\n# ".join(found.split("\n")[:12])
            + "\n"
        )
    (out / f"{what}-{backend}-{seed}.py").write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.bulk", description=__doc__)
    parser.add_argument("what", choices=("programs", "changes", "tensors", "numbers"))
    parser.add_argument("--backend", default="eager", help="eager: capture alone; tcompile: the whole compiler")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="of the first scenario; the time by default")
    parser.add_argument("--only", type=int, default=None, help="run this seed, show it and what it gives")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/fuzz"))
    args = parser.parse_args()
    os.environ.setdefault("TCOMPILE_SUPPRESS_ERRORS", "0")
    os.environ.setdefault("TCOMPILE_VERIFY", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if args.only is not None:
        scenario = make(args.what, args.only)
        print(scenario.pop("source", ""), scenario)
        found = run(args.what, make(args.what, args.only), args.backend)
        print(found.split("\ndef f(")[0] if found else "no difference")
        return int(bool(found))
    seed = args.seed if args.seed is not None else int(time.time()) * 1000
    args.out.mkdir(parents=True, exist_ok=True)
    began, done, different = time.monotonic(), 0, []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        while time.monotonic() - began < args.seconds and done < args.count:
            at = seed + done
            scenario = make(args.what, at)
            found = run(args.what, scenario, args.backend)
            done += 1
            if found:
                small = smaller(args.what, scenario, args.backend, found)
                found = run(args.what, small, args.backend) or found
                write_down(args.out, args.what, at, small, found, args.backend)
                different.append(at)
                print(f"seed {at}: {found.splitlines()[0][:200]}", flush=True)
            if done % 100 == 0:
                gc.collect()
            if done % 500 == 0:
                print(f"{done} {args.what} in {time.monotonic() - began:.0f} s", flush=True)
    finally:
        total = {
            "what": args.what,
            "backend": args.backend,
            "first_seed": seed,
            "scenarios": done,
            "different": different,
            "seconds": round(time.monotonic() - began),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        }
        with open(args.out / "totals.jsonl", "a") as f:
            f.write(json.dumps(total) + "\n")
        print(json.dumps(total))
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
