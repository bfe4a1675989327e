"""The process that tries programs: text comes in as lines of JSON, what became of it goes out.

Its death, or silence, is an answer too, which the parent reads (`trials.py`). What programs print goes nowhere.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

__all__ = ["tried", "serve"]


def tried(text: str, check: str) -> tuple[str, str]:
    """Run a reproducer's text and its check in this process: "same", "differs", "raises", "breaks" or "invalid", and
    words. Invalid is a program that fails by itself, under eager."""
    import tcompile

    space: dict[str, Any] = {"__name__": "reproducer"}
    tcompile.reset()
    try:
        exec(compile(text, "<reproducer>", "exec"), space)
        kind, words = space[check](tcompile, space["program"], space["inputs"], space["HOW"], space["SEED"])
    except Exception as e:  # whatever it raises: eager could not run it
        return "invalid", f"{type(e).__name__}: {e}"
    return str(kind), str(words)


def serve() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(tried(request["text"], request["check"])), file=answers, flush=True)


if __name__ == "__main__":
    serve()
