"""The command line: `python -m tcompile info | cache [--clear] | doctor`."""

from __future__ import annotations

import argparse
import sys
from typing import Sequence

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
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 2
    if args.command == "info":
        return _info()
    if args.command == "cache":
        return _cache(args.clear)
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
