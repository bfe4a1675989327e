"""The picture of a puzzle: each tensor as a grid of its values, coloured by the program that touches an element.

One drawing for paper (static SVG in greys that read on white and on black) and for the live widget (the page's own
colour as ink). What colour says is said once more: by a mark, by a number, or by the words below.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Sequence

import torch

from .pictures import COLOURS, GREY, Picture, rect, svg, text
from .puzzle_run import Index, Played, Touch, program_text
from .words import say

__all__ = ["picture"]

WIDE, HIGH, GAP = 38, 26, 28
WIDTH = 760  # of a row of tensors
WRONG = "#d14b4b"
LISTED = 6  # accesses outside that are listed by place


def number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    for digits in (4, 3, 2, 1):
        words = f"{value:.{digits}g}"
        if len(words) <= 5:
            return words
    return words


def picture(
    played: Played,
    program: Index | None = None,
    ink: str = GREY,
    blank: frozenset[str] = frozenset(),
    verdict: bool = True,
) -> Picture:
    """What all programs touch; or, with `program`, what this one does, in order. `blank` names tensors without
    values."""
    order = {p: n for n, p in enumerate(played.case.every_program())}
    shapes: list[str] = []
    words: list[str] = []
    left, top, deep, wide = 4.0, 4.0, 0.0, 240.0
    for name, tensor in played.case.tensors().items():
        drawn, w, h = _tensor(played, name, tensor, program, order, ink, left, top, name in blank)
        if left > 4 and left + w > WIDTH:
            left, top, deep = 4.0, top + deep, 0.0
            drawn, w, h = _tensor(played, name, tensor, program, order, ink, left, top, name in blank)
        shapes += drawn
        left, deep = left + w + GAP, max(deep, h + 14)
        wide = max(wide, left)
        words.append(_facts(played, name))
    top += deep
    said = (played.problem or say("puzzle_solved")) if verdict else ""
    for line in (*words, *_lines(said)):
        last = line == words[-1] if words else False
        shapes.append(text(4, top + 12, line, ink, extra="" if line in words else "font-weight='bold'"))
        wide = max(wide, 12 + 6.6 * sum(2 if ord(c) > 0x2E80 else 1 for c in line))
        top += 22 if last else 17
    alt = "\n".join([*words, said] if said else words)
    return Picture(svg(wide, top + 6, shapes), alt)


def _lines(message: str, width: int = 104) -> list[str]:
    """A message in lines of so many characters; what is far too long is cut."""
    out = []
    for line in message.splitlines():
        while len(line) > width:
            cut = line.rfind(" ", 20, width)
            cut = cut if cut > 0 else width
            out.append(line[:cut])
            line = "  " + line[cut:].lstrip()
        out.append(line)
    return out[:8]


def _facts(played: Played, name: str) -> str:
    write = name in played.case.outputs
    counts = played.counts(name, write)
    return say(
        "puzzle_written" if write else "puzzle_read",
        name=f"{name} {list(played.case.tensors()[name].shape)}",
        n=sum(counts.values()),
        again=len(played.again(name)),
        outside=len(played.outside(name)),
        never=len(played.never(name)),
    )


def _tensor(
    played: Played,
    name: str,
    tensor: torch.Tensor,
    program: Index | None,
    order: dict[Index, int],
    ink: str,
    left: float,
    top: float,
    blank: bool,
) -> tuple[list[str], float, float]:
    """The shapes of one tensor with its upper left corner here, its width and its height."""
    write = name in played.case.outputs
    touched: dict[Index, list[Touch]] = defaultdict(list)
    for t in played.touches:
        if t.tensor == name and t.write is write and t.inside:
            touched[t.index].append(t)
    turns = _turns(played, name, write, program)
    again = set(played.again(name))
    wrong = set(played.wrong(name)) if write else set()
    columns = tensor.shape[-1]
    shapes = [text(left, top + 12, f"{name} {list(tensor.shape)}", ink)]
    top += 20
    for index in torch.cartesian_prod(*(torch.arange(n) for n in tensor.shape)).reshape(-1, tensor.ndim).tolist():
        at = tuple(index)
        r, c = (0, *at) if len(at) == 1 else at
        shapes += _element(
            name, at, left + WIDE * c, top + HIGH * r, touched[at], played, program, turns, order, at in again,
            at in wrong, write, ink, blank,
        )  # fmt: skip
    rows = 1 if tensor.ndim == 1 else tensor.shape[0]
    right, extra = left + WIDE * columns + 8, 0.0
    outside = [t for t in played.outside(name) if program is None or t.program == program]
    for n, t in enumerate(outside[:LISTED]):
        line = f"! {list(t.index)}"
        shapes.append(text(right, top + 14 + 14 * n, line, WRONG, extra="font-size='11'"))
        extra = max(extra, 7.0 * len(line))
    if len(outside) > LISTED:
        shapes.append(text(right, top + 14 + 14 * LISTED, f"+ {len(outside) - LISTED}", WRONG, extra="font-size='11'"))
    return shapes, WIDE * columns + extra, 20 + max(HIGH * rows, 14.0 * min(len(outside), LISTED + 1))


def _turns(played: Played, name: str, write: bool, program: Index | None) -> dict[Index, int]:
    """When the chosen program first comes to each element: 1, 2, ..."""
    turns: dict[Index, int] = {}
    if program is not None:
        for t in played.touches:
            if t.tensor == name and t.write is write and t.program == program and t.inside:
                turns.setdefault(t.index, len(turns) + 1)
    return turns


def _element(
    name: str,
    at: Index,
    x: float,
    y: float,
    by: Sequence[Touch],
    played: Played,
    program: Index | None,
    turns: dict[Index, int],
    order: dict[Index, int],
    again: bool,
    wrong: bool,
    write: bool,
    ink: str,
    blank: bool,
) -> list[str]:
    chosen = at in turns
    who = program if chosen and program is not None else by[0].program if by else None
    colour = "none" if who is None else COLOURS[order.get(who, 0) % len(COLOURS)]
    faint = program is not None and not chosen
    programs = ", ".join(dict.fromkeys(program_text(t.program) for t in by)) or "-"
    value = played.values[name][at].item()
    tip = f"{name}{list(at)}: {say('puzzle_programs')} {programs}"
    if write:
        tip += f"; {say('wanted', value=number(played.case.outputs[name][at].item()))}"
    solid = f"fill-opacity='{0.2 if faint else 0.9}'"
    edge = f"stroke='{WRONG}' stroke-width='2'" if wrong else f"stroke='{GREY}' stroke-opacity='.6'"
    shapes = [rect(x + 1, y + 1, WIDE - 2, HIGH - 2, colour, tip, f"rx='2' {solid} {edge}")]
    words = "" if blank or write and not by else number(value)
    shown = "#ffffff" if who is not None and not faint else ink
    shapes.append(text(x + WIDE / 2, y + HIGH / 2 + 5, words, shown, "middle", "font-size='12'"))
    small = "font-size='8'"
    if wrong:
        shapes.append(text(x + 4, y + 10, "×", shown, extra="font-size='10' font-weight='bold'"))
    elif chosen:
        shapes.append(text(x + 4, y + 9, turns[at], shown, extra=small))
    if again:
        shapes.append(f"<circle cx='{x + WIDE - 6:g}' cy='{y + 6:g}' r='3' fill='{shown}'/>")
    return shapes
