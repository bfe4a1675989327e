"""`tcompile lab ...`: list, start, check, grade, solution."""

from __future__ import annotations

import argparse
import csv
import errno
import io
import os
import sys
from pathlib import Path
from typing import Iterable

from ..compiler.base import forks
from . import progress
from .grader import Limits, Result, grade
from .library import BuiltLab, Missing, find, labs
from .words import LANGUAGES, language, say, speak

__all__ = ["add_parser", "run", "sheet"]


def add_parser(commands: argparse._SubParsersAction) -> None:
    lab = commands.add_parser("lab", help="the course's labs: list, start, check, grade")
    lab.add_argument("--lang", choices=LANGUAGES, default="", help="language of texts (default: the environment's)")
    what = lab.add_subparsers(dest="what", metavar="what", required=True)
    listing = what.add_parser("list", help="the labs, and how far you are")
    start = what.add_parser("start", help="write the notebook of a lab into this folder")
    check = what.add_parser("check", help="run the public tests on your notebook")
    solution = what.add_parser("solution", help="write the solution's notebook (instructor's package)")
    grading = what.add_parser("grade", help="grade all notebooks below a folder")
    for parser in (listing, start, check, solution, grading):  # before or behind the command: both are typed
        parser.add_argument("--lang", choices=LANGUAGES, default=argparse.SUPPRESS, help="language of texts")
    for parser in (start, check, solution):
        parser.add_argument("number", type=int, help="of the lab")
    for parser in (start, solution):
        parser.add_argument("--into", default=".", help="the folder to write to")
    check.add_argument("--file", help="the notebook (default: labNN.ipynb in this folder)")
    check.add_argument("--exercise", default="", help="this one alone")
    grading.add_argument("folder", help="with the submissions, or one notebook")
    grading.add_argument("-o", "--output", help="the CSV file (default: to the terminal)")
    grading.add_argument("--feedback", help="a folder for one text per submission")
    grading.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="submissions at a time")
    grading.add_argument("--public", action="store_true", help="only public tests")
    for parser in (check, grading):
        parser.add_argument("--memory", type=_positive, default=Limits.memory_mb, help="MB beyond what torch takes")
        parser.add_argument("--seconds", type=_positive, default=Limits.seconds, help="for a whole submission")


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 up, got {text!r}")
    return number


def run(args: argparse.Namespace) -> int:
    speak(args.lang or language())
    try:
        return {"list": _list, "start": _start, "check": _check, "grade": _grade, "solution": _solution}[args.what](
            args
        )
    except Missing as e:
        print(e, file=sys.stderr)
        return 1


def _limits(args: argparse.Namespace) -> Limits:
    return Limits(memory_mb=args.memory, seconds=args.seconds)


def _list(args: argparse.Namespace) -> int:
    reached = progress.read(Path.cwd())
    for lab in labs():
        mine = reached.get(str(lab.number), {}).get("exercises", {})
        got = sum(p for p, _ in mine.values())
        of = sum(e["points"] for e in lab.facts["exercises"])
        here = f"   {say('points', points=got, of=of)}" if mine else ""
        minutes = say("minutes", minutes=lab.facts["minutes"])
        print(f"{lab.number:2}  {lab.facts['title'][language()]}  ({minutes}){here}")
    return 0


def _start(args: argparse.Namespace) -> int:
    lab = find(args.number)
    return _write(lab, lab.folder / f"lab.{language()}.ipynb", Path(args.into) / lab.file_name)


def _solution(args: argparse.Namespace) -> int:
    lab = find(args.number)
    if lab.instructor is None:
        raise Missing(say("no_instructor"))
    name = Path(args.into) / f"lab{lab.number:02d}.solution.ipynb"
    return _write(lab, lab.instructor / f"solution.{language()}.ipynb", name)


def _write(lab: BuiltLab, source: Path, target: Path) -> int:
    if target.exists():
        raise Missing(say("exists", file=target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as f:
            f.write(source.read_bytes())
    except OSError as e:
        raise _unwritten(target, e) from None
    print(say("started", file=target))
    return 0


def _unwritten(file: Path, error: OSError) -> Missing:
    return Missing(say("not_written", file=file, reason=error.strerror or type(error).__name__))


def _check(args: argparse.Namespace) -> int:
    lab = find(args.number)
    known = [e["name"] for e in lab.facts["exercises"]]
    if args.exercise and args.exercise not in known:
        raise Missing(say("no_exercise", lab=lab.number, name=args.exercise, names=", ".join(known)))
    path = Path(args.file or lab.file_name)
    if not path.exists():
        raise Missing(say("no_file", file=path, number=lab.number))
    result = grade(path, hidden=False, only=args.exercise, limits=_limits(args), language=args.lang)
    print(text_of(result, lab))
    if result.status != "graded":
        return 1
    names = [args.exercise] if args.exercise else known
    progress.note(path.parent, lab.number, {n: result.exercise(n) for n in names}, result.score)
    return 0 if all(not t.message for t in result.tests) else 1


def text_of(result: Result, lab: BuiltLab) -> str:
    """A result for its student: each exercise, and what failed in it."""
    if result.status != "graded":
        return result.message
    out = []
    for e in lab.facts["exercises"]:
        mine = [t for t in result.tests if t.exercise == e["name"]]
        if not mine:
            continue
        points, of = result.exercise(e["name"])
        mark = "✓" if points == of else "·" if points else "✗"
        out.append(f"{mark} {e['name']}: {say('points', points=points, of=of)}")
        for message in dict.fromkeys(t.message for t in mine if t.message):
            out.append("    " + message.replace("\n", "\n    "))
    if result.score:
        out.append("  ".join(f"{k} {v:g}" for k, v in result.score.items()))
    out.append(say("points", points=result.points, of=result.of))
    return "\n".join(out)


def _grade(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    if not folder.exists():
        raise Missing(say("no_folder", folder=folder))
    if folder.is_file():
        files, folder = [folder], folder.parent
    else:
        files = sorted(p for p in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    if not files:
        raise Missing(say("no_notebooks", folder=folder))
    for place in (args.output and Path(args.output), args.feedback and Path(args.feedback) / "x"):
        if place:  # asked before an hour of grading, and not after it
            _writable(place)
    hidden = not args.public
    if hidden and not any(lab.instructor for lab in labs()):
        print(say("no_hidden"), file=sys.stderr)
    limits = _limits(args)

    def one(path: Path) -> Result:
        result = grade(path, hidden=hidden, limits=limits, language=args.lang)
        result.file = str(path.relative_to(folder))
        print(f"{result.file}: {_short(result)}", file=sys.stderr)
        return result

    with forks.pool(args.jobs) as pool:
        results = list(pool.map(one, files))
    if args.feedback:
        _write_feedback(Path(args.feedback), results)
    text = sheet(results)
    if args.output:
        Path(args.output).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def _writable(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        reason = errno.EISDIR if file.is_dir() else 0 if os.access(file.parent, os.W_OK) else errno.EACCES
    except OSError as e:
        reason = e.errno or errno.EACCES
    if reason:
        raise _unwritten(file, OSError(reason, os.strerror(reason)))


def _short(result: Result) -> str:
    return say("points", points=result.points, of=result.of) if result.status == "graded" else result.message[-200:]


def _write_feedback(folder: Path, results: Iterable[Result]) -> None:
    for result in results:
        path = folder / Path(result.file).with_suffix(".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = text_of(result, find(result.lab)) if result.status == "graded" else result.message
        path.write_text(text + "\n", encoding="utf-8")


def sheet(results: list[Result]) -> str:
    """The results as CSV: a row a submission, a column an exercise. Nothing in it changes from run to run."""
    several = len({r.lab for r in results if r.lab}) > 1  # two labs may call an exercise the same
    columns = list(dict.fromkeys((r.lab, t.exercise) for r in results for t in r.tests))
    names = [f"{lab}.{name}" if several else name for lab, name in columns]
    figures = list(dict.fromkeys(k for r in results for k in r.score))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["submission", "lab", "status", "points", "of", *names, *(f"score: {k}" for k in figures)])
    for r in results:
        has = {t.exercise for t in r.tests}
        points = [f"{r.exercise(c)[0]:g}" if lab == r.lab and c in has else "" for lab, c in columns]
        scores = [f"{r.score[k]:g}" if k in r.score else "" for k in figures]
        writer.writerow([r.file, r.lab or "", r.status, f"{r.points:g}", f"{r.of:g}", *points, *scores])
    return out.getvalue()
