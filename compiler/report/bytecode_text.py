"""Bytecode as text for a report: the first level of what a cell goes through."""

from __future__ import annotations

import dis
from types import CodeType

__all__ = ["bytecode_text"]

_MOST_INSTRUCTIONS = 400


def bytecode_text(code: CodeType) -> str:
    """A row per instruction: the source line, the instruction, its argument."""
    rows = []
    for i in dis.get_instructions(code):
        line = i.positions.lineno if i.positions is not None else None
        rows.append(f"{line if line is not None else '':>5}  {i.opname:<24} {i.argrepr}".rstrip())
        if len(rows) == _MOST_INSTRUCTIONS:
            rows.append("       and more")
            break
    return "\n".join(rows)
