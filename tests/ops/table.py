"""The table of operators: every entry of torch's op_db through the whole compiler, against eager.

    python -m tests.ops.table [--names add,mul] [--dtype float32] [--limit 6] [--jobs 16] [--within 400] [--part 0/4]
    [--out rows.json]
    python -m tests.ops.table --from rows.json        write the tables from rows that were measured elsewhere

Each operator runs in a process of its own with a time limit, --jobs at once, so that a hang or a crash is a line of the
table. Writes table.md (to read) and table.json (what tests hold) beside this file; with --names or --dtype the other
rows stay.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from collections import Counter
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
JSON, MD = FOLDER / "table.json", FOLDER / "table.md"
FIRST = torch.float32
OTHERS = (torch.bfloat16, torch.int64, torch.bool)
LIMITS = {FIRST: 5}  # samples of each operator; OTHER_LIMIT for the other dtypes
OTHER_LIMIT = 2
GRADIENTS = 2  # samples of each operator that has gradients, in FIRST
SECONDS = 150  # for one operator
RESULTS = ("right", "refused", "crashed", "wrong")  # best first
KINDS = ("lowered", "composed", "eager call", "break")

__all__ = ["jobs", "measure", "run_jobs", "load", "is_worse", "main"]

Job = tuple[str, str, int]  # name in op_db, dtype, samples


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def jobs(names: list[str] | None = None, dtypes: list[str] | None = None, limit: int | None = None) -> list[Job]:
    """What there is to run: every operator in float32 (else the first dtype that it has), then in the other dtypes."""
    from ..oracles.opdb import op_infos

    out: list[Job] = []
    for dtype in (FIRST, *OTHERS):
        for name, info in op_infos().items():
            has = info.supported_dtypes("cpu")
            d = dtype
            if dtype not in has:
                if dtype is not FIRST or not has:
                    continue
                d = min(has, key=lambda x: (not x.is_floating_point, str(x)))
                if d in OTHERS:
                    continue
            if names is not None and name not in names and f"{name}:{dtype_name(d)}" not in names:
                continue
            if dtypes is None or dtype_name(d) in dtypes:
                out.append((name, dtype_name(d), limit or LIMITS.get(dtype, OTHER_LIMIT)))
    return out


def measure(job: Job) -> dict[str, Any]:
    """One row, in this process."""
    from ..oracles.opdb import op_infos
    from .gradients import operator
    from .harness import run

    name, dtype, limit = job
    info = op_infos()[name]
    row = run(info, getattr(torch, dtype), limit, spread=True)
    o = row.outcome
    words = [*o.failed, *o.refused]
    gradient, why = (
        operator(info, "tcompile", GRADIENTS) if dtype == dtype_name(FIRST) and info.supports_autograd else ("none", "")
    )
    words += [f"gradient: {why}"] if why else []
    return {
        "name": name,
        "dtype": dtype,
        "kind": row.kind,
        "result": row.result,
        "agreed": o.agreed,
        "refused": len(o.refused),
        "failed": len(o.failed),
        "kernels": row.kernels,
        "calls": row.calls,
        "eager": row.eager,
        "gradient": gradient,
        "why": _short(words[0]) if words else "",
    }


def _short(text: str, n: int = 400) -> str:
    text = " ".join(text.replace(f"{ROOT}/", "").split())
    return text if len(text) <= n else text[: n - 1] + "…"


def _died(job: Job, how: str) -> dict[str, Any]:
    return {
        "name": job[0],
        "dtype": job[1],
        "kind": "break",
        "result": "crashed",
        "agreed": 0,
        "refused": 0,
        "failed": 1,
        "kernels": 0,
        "calls": {},
        "eager": [],
        "gradient": "none",
        "why": how,
    }


def _child(job: Job, out: Connection) -> None:
    try:
        row = measure(job)
    except BaseException as e:  # noqa: BLE001 - samples that can't be made, and whatever else: a line of the table
        row = {**_died(job, _short(f"{type(e).__name__}: {e}")), "harness": True}
    out.send(row)
    out.close()


def run_jobs(
    todo: list[Job], at_once: int = 2, seconds: float = SECONDS, within: float = math.inf, say: bool = False
) -> list[dict[str, Any]]:
    """Rows of the jobs, each from a forked process that is killed after `seconds`; none is started after `within`
    seconds.
    """
    end = time.monotonic() + within
    measure(("add", dtype_name(FIRST), 1))  # before forking, so that children find op_db and the compiler imported
    context = multiprocessing.get_context("fork")
    waiting, running, rows = list(reversed(todo)), {}, []
    while waiting or running:
        if time.monotonic() > end:
            waiting.clear()
        while waiting and len(running) < at_once:
            job = waiting.pop()
            here, there = context.Pipe(False)
            p = context.Process(target=_child, args=(job, there), daemon=True)
            p.start()
            there.close()
            running[here] = (p, job, time.monotonic())
        for pipe in wait(list(running), timeout=1.0):
            p, job, _ = running.pop(pipe)  # type: ignore[index]
            try:
                row = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                p.join()
                row = _died(job, f"the process died: exit code {p.exitcode}")
            p.join(10)
            if p.is_alive():  # (it has said what it had to say)
                p.kill()
            rows.append(row)
            if say:
                print(
                    f"{len(rows):5} {row['dtype']:9} {row['result']:8} {row['kind']:11} {row['name']}  {row['why'][:150]}",
                    flush=True,
                )
        for pipe, (p, job, began) in list(running.items()):
            if time.monotonic() - began > seconds:
                p.kill()
                p.join()
                running.pop(pipe)
                rows.append(_died(job, f"no end within {seconds:g} s"))
    return rows


def version() -> str:
    return torch.__version__.split("+")[0]


def load() -> list[dict[str, Any]]:
    """The rows of the table; `torch` of each is the version that it was measured with."""
    if not JSON.exists():
        return []
    table = json.loads(JSON.read_text())
    return [{"torch": table["about"]["torch"], **r} for r in table["rows"]]


def is_worse(new: dict[str, Any], old: dict[str, Any]) -> bool:
    """Whether a row measured again, on as many samples or fewer, fell behind: more failures, more refusals, torch's
    kernels where there were none."""
    calls = bool(new["calls"] or new["eager"]) and not (old["calls"] or old["eager"])
    return (
        new["failed"] > old["failed"]
        or new["refused"] > old["refused"]
        or calls
        or new["gradient"] == "wrong" != old["gradient"]
    )


def is_bad(row: dict[str, Any]) -> bool:
    return row["result"] in ("wrong", "crashed") or row["gradient"] == "wrong"


def save(rows: list[dict[str, Any]]) -> None:
    torch_version = Counter(r["torch"] for r in rows).most_common(1)[0][0]
    rows = [{k: v for k, v in r.items() if (k, v) != ("torch", torch_version)} for r in rows]
    order = {d: i for i, d in enumerate([dtype_name(FIRST), *map(dtype_name, OTHERS)])}
    rows = sorted(rows, key=lambda r: (order.get(r["dtype"], 0), r["name"]))
    head = {"torch": torch_version, "limits": {"first": LIMITS[FIRST], "others": OTHER_LIMIT}}
    lines = ",\n".join(json.dumps(r, sort_keys=True) for r in rows)
    JSON.write_text('{"about": %s,\n"rows": [\n%s\n]}\n' % (json.dumps(head), lines))
    MD.write_text(markdown(rows, head))


def markdown(rows: list[dict[str, Any]], head: dict[str, Any]) -> str:
    out = [
        "# Operators",
        "",
        f"Every entry of torch {head['torch']}'s op_db through `tcompile.compile(fullgraph=True)` on the CPU, against eager: values, dtypes, "
        "shapes, strides,",
        "aliasing, effects on inputs, errors. Written by `make optable`; `table.json` holds the same rows. Rows that another torch measured say so.",
        "",
        f"- *float32*: {head['limits']['first']} samples of each operator, taken from all over; operators without float32 in their first dtype. "
        f"Other dtypes: {head['limits']['others']} samples.",
        f"- *gradient*: {GRADIENTS} samples in float32, against eager's and, where they differ, float64's.",
        "- **lowered**: kernels of our own, or views; **composed**: with calls of torch's kernels; **eager call**: one such call; "
        "**break**: not captured.",
        "- **right**: equal to eager; **refused**: a clear error under fullgraph=True, eager otherwise; **crashed**: an internal error; **wrong**.",
        "",
    ]
    first = [r for r in rows if r["dtype"] not in map(dtype_name, OTHERS)]
    parts = [("float32", first), *((dtype_name(d), [r for r in rows if r["dtype"] == dtype_name(d)]) for d in OTHERS)]
    out += [
        "| dtype | operators | " + " | ".join((*RESULTS, *KINDS)) + " |",
        "| --- |" + " ---: |" * (1 + len(RESULTS) + len(KINDS)),
    ]
    for label, some in parts:
        results, kinds = Counter(r["result"] for r in some), Counter(r["kind"] for r in some)
        out.append(
            f"| {label} | {len(some)} | "
            + " | ".join(str(results[x]) for x in RESULTS)
            + " | "
            + " | ".join(str(kinds[x]) for x in KINDS)
            + " |"
        )
    gradients = Counter(r["gradient"] for r in rows)
    out += ["", f"Gradients: {gradients['right']} operators right, {gradients['wrong']} wrong."]
    bad = [r for r in rows if is_bad(r)]
    if bad:
        out += ["", "## Wrong or crashed", "", "| operator | dtype | result | why |", "| --- | --- | --- | --- |"]
        out += [f"| {r['name']} | {r['dtype']} | {r['result']} | {_cell(r['why'])} |" for r in bad]
    for label, some in parts:
        graded = label == dtype_name(FIRST)
        out += [
            "",
            f"## {label}",
            "",
            f"| operator | how | result | samples |{' gradient |' * graded} torch's kernels, reasons |",
            "| --- | --- | --- | ---: |" + " --- |" * (1 + graded),
        ]
        for r in some:
            n = r["agreed"] + r["refused"] + r["failed"]
            how = ", ".join(f"{k.removeprefix('aten.')}" for k in r["calls"])
            version = f"torch {r['torch']}" if "torch" in r else ""
            words = "; ".join(x for x in (version, how, r["why"], *r["eager"]) if x)
            name = r["name"] if label == r["dtype"] else f"{r['name']} ({r['dtype']})"
            gradient = [r["gradient"]] * graded
            out.append(
                "| " + " | ".join([name, r["kind"], r["result"], f"{r['agreed']}/{n}", *gradient, _cell(words)]) + " |"
            )
    return "\n".join(out) + "\n"


def _cell(text: str, n: int = 160) -> str:
    return _short(text, n).replace("|", "\\|").replace("<", "&lt;")


def measured(a: argparse.Namespace) -> list[dict[str, Any]]:
    os.environ.setdefault("TCOMPILE_SUPPRESS_ERRORS", "0")
    torch.set_num_threads(1)
    import tcompile

    tcompile.config.suppress_errors = False
    tcompile.config.verify = True
    todo = jobs(a.names.split(",") if a.names else None, a.dtype.split(",") if a.dtype else None, a.limit)
    if a.part:
        k, n = map(int, a.part.split("/"))
        todo = todo[k::n]
    return run_jobs(todo, a.jobs, a.seconds, a.within, say=True)


def main() -> None:
    ap = argparse.ArgumentParser(prog="python -m tests.ops.table", description=(__doc__ or "").splitlines()[0])
    ap.add_argument("--names", help="operators of op_db, or operator:dtype, separated by commas (default: all)")
    ap.add_argument("--dtype", help="dtypes, separated by commas (default: float32 and the other passes)")
    ap.add_argument("--limit", type=int, help="samples of each operator")
    ap.add_argument("--jobs", type=int, default=2, help="operators at once")
    ap.add_argument("--seconds", type=float, default=SECONDS, help="for one operator")
    ap.add_argument(
        "--within",
        type=float,
        default=math.inf,
        help="seconds after which no operator is started; those keep their rows",
    )
    ap.add_argument("--part", help="k/n: every n-th operator from the k-th on; the table keeps its other rows")
    ap.add_argument("--out", help="write the rows to this file as JSON, and no table")
    ap.add_argument("--from", dest="measured", help="measure nothing: take the rows of a file that --out wrote")
    a = ap.parse_args()
    run = json.loads(Path(a.measured).read_text()) if a.measured else {"torch": version(), "rows": measured(a)}
    rows = run["rows"]
    if a.out:
        Path(a.out).write_text(json.dumps(run))
    else:
        done = {(r["name"], r["dtype"]) for r in rows}
        save(
            [*({**r, "torch": run["torch"]} for r in rows), *(r for r in load() if (r["name"], r["dtype"]) not in done)]
        )
    print(dict(Counter(r["result"] for r in rows)), dict(Counter(r["kind"] for r in rows)))


if __name__ == "__main__":
    main()
