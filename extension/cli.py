"""The command line: `python -m tcompile info | cache [--clear] | doctor | report FILE [-o OUT] | lab ...`."""

from __future__ import annotations

import argparse
import sys
from typing import Sequence

from .labs.commands import add_parser as add_lab_parser
from .labs.commands import run as run_lab

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit status: 0 fine, 1 something is wrong, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m tcompile", description="tcompile: a compiler for PyTorch code in notebooks"
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("info", help="versions, processor, compiler, options that differ from their defaults")
    cache = commands.add_parser("cache", help="the compiled kernels on disk")
    cache.add_argument("--clear", action="store_true", help="delete them")
    commands.add_parser("doctor", help="check that everything that compiling needs is there and works")
    report = commands.add_parser(
        "report", help="show a saved report, or those of a notebook; write them as HTML, JSON or text"
    )
    report.add_argument("file", help="a report saved as .json, or a notebook (.ipynb)")
    report.add_argument("-o", "--output", help="where to write it: .html (interactive page), .json, or text")
    report.add_argument(
        "-n", "--number", type=int, help="which report of a notebook, counted from 1 (default: the last)"
    )
    add_lab_parser(commands)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 2
    if args.command == "lab":
        return run_lab(args)
    if args.command == "info":
        return _info()
    if args.command == "cache":
        return _cache(args.clear)
    if args.command == "report":
        return _report(args.file, args.output, args.number)
    return _doctor()


def _info() -> int:
    from .compiler.report.environment import environment
    from .kernel_magics.status import cache_lines, changed_options

    facts = environment()
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name.ljust(width)}  {value}")
    changed = changed_options()
    print(
        "options".ljust(width) + "  " + (", ".join(f"{k}={v!r}" for k, v in changed.items()) or "all at their defaults")
    )
    print("\n".join(cache_lines()))
    return 0


def _cache(clear: bool) -> int:
    from .kernel_magics.status import cache_lines, clear_cache

    print("\n".join(clear_cache() if clear else cache_lines()))
    return 0


def _report(file: str, output: str | None, number: int | None) -> int:
    import json

    from . import CompileReport
    from .compiler.report.schema import MIME

    try:
        with open(file, encoding="utf-8") as f:
            data = json.load(f)
    except OSError as e:
        print(f"report: {file} cannot be read: {e}", file=sys.stderr)
        return 1
    except ValueError:
        print(f"report: {file} is no saved report (.json) and no notebook (.ipynb)", file=sys.stderr)
        return 1
    found = [data]
    if isinstance(data, dict) and "cells" in data:
        outputs = [o for c in data["cells"] for o in c.get("outputs", [])]
        found = [o["data"][MIME] for o in outputs if MIME in o.get("data", {})]
        if not found:
            print(f"report: no output of {file} is a tcompile report", file=sys.stderr)
            return 1
    which = len(found) if number is None else number
    if not 1 <= which <= len(found):
        print(f"report: --number is 1 to {len(found)} for {file}, got {which}", file=sys.stderr)
        return 2
    try:
        report = CompileReport.from_json(found[which - 1])
    except ValueError as e:
        print(f"report: {file}: {e}", file=sys.stderr)
        return 1
    if output is None:
        print(report)
    else:
        print(report.save(output))
    return 0


def _doctor() -> int:
    from .doctor import checks

    bad = 0
    for name, ok, text, remedy in checks():
        print(f"{'ok ' if ok else 'BAD' if ok is False else '-- '} {name}: {text}")
        if not ok and remedy:
            print(f"      {remedy}")
        bad += ok is False
        sys.stdout.flush()
    print(
        "everything that compiling needs is there"
        if not bad
        else f"{bad} of these need attention; what can't be compiled runs eager"
    )
    return 1 if bad else 0
