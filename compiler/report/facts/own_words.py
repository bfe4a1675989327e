"""What capture says in names of its own, in the words of whoever wrote the program."""

from __future__ import annotations

import ast
import functools
import re
from typing import Any

from ...base.labels import REST
from ..cell_source import runs_often

__all__ = ["NO_NAME", "is_setup", "name_sizes", "part_of_no_name", "users_words"]

NO_NAME = "an intermediate value"
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def users_words(text: str, line: str) -> str:
    """A text in the user's names. A loop's body gets its item as `__value`, outlined as a function: its name stands in
    the loop's `line`. What follows a break gets what lay on the stack as `__stack_0`: it has no name. What follows one
    in a function that was called gets the rest of its caller as `rest_of_f`."""
    if REST in text:
        text = re.sub(rf"`?\b{REST}(\w+?)_*\b`?", _what_follows, text)
    if "__" not in text:
        return text
    if "__value" in text:
        names = _names_of_item(line)

        def named(m: re.Match) -> str:
            steps = re.findall(r"\[\d+\]", m[1])
            known = next(n for n in range(len(steps), -1, -1) if "".join(steps[:n]) in names)
            name, rest = names["".join(steps[:known])], "".join(steps[known:])
            return f"({name}){rest}" if rest and ", " in name else name + rest

        text = re.sub(r"__value_*((?:\[\d+\])*)", named, text)
    text = re.sub(r"`__stack_\d+_*\.?((?<=\.)[^`]+|\[[^`]*)`", rf"`\1` of {NO_NAME}", text)
    return re.sub(r"(?:the tensor )?`?__stack_\d+_*`?", NO_NAME, text)


def _what_follows(m: re.Match) -> str:
    return f"what follows a break in {'the cell' if m[1] == 'module' else m[1]}"


@functools.lru_cache(maxsize=256)
def _names_of_item(line: str) -> dict[str, str]:
    """What a loop calls its item, and parts of it: `{"": "i, (x, y)", "[0]": "i", "[1]": "x, y", "[1][0]": "x"}`."""
    found = re.match(r"\s*(?:async\s+)?for\s+(.+?)\s+in\b", line)
    try:
        statement = ast.parse(f"{found.group(1)} = 0").body[0] if found else None
    except (SyntaxError, ValueError):
        statement = None
    if not isinstance(statement, ast.Assign):
        return {"": "item"}
    out: dict[str, str] = {}
    left: list[tuple[str, ast.expr]] = [("", statement.targets[0])]
    for path, node in left:
        parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else []
        out[path] = ", ".join(map(ast.unparse, parts)) if parts else ast.unparse(node)
        fixed = next((i for i, part in enumerate(parts) if isinstance(part, ast.Starred)), len(parts))
        left += [(f"{path}[{i}]", part) for i, part in enumerate(parts[:fixed])]
    return out


def part_of_no_name(source: str) -> str:
    """`shape[0] of __stack_2`: a part of what has no name, to be told in that order; so is its length."""
    source = re.sub(r"^len\((__stack_\d+_*)\)$", r"the length of \1", source)
    return re.sub(r"^(__stack_\d+_*)\.?(.+)$", r"\2 of \1", source)


def name_sizes(report: Any) -> None:
    """Relations of sizes that made a recompile, in the names of what the symbols are of: `i % 64 != 0`, not `s0 % ...`.
    A symbol that is one thing in one graph of the function and another in the next keeps its name."""
    for frame in {
        recompile.frame for recompile in report.recompiles if recompile.kind == "PREDICATE" and not recompile.source
    }:
        of: dict[str, set[str]] = {}
        for y in (symbol for graph in report.graphs if graph.frame == frame for symbol in graph.symbols):
            of.setdefault(y.name, set()).add(y.source)
        names = {name: min(sources) for name, sources in of.items() if len(sources) == 1 and min(sources)}
        if not names:
            continue
        symbol = re.compile(r"\b(" + "|".join(names) + r")\b")
        for row in [*report.recompiles, *report.timeline]:
            if row.frame == frame and getattr(row, "kind", "") in ("PREDICATE", "recompile"):
                for field in ("detail", "expected", "got", "text"):
                    if hasattr(row, field):
                        setattr(row, field, _exchanged(getattr(row, field), symbol, names))


def _exchanged(text: str, symbol: re.Pattern, names: dict[str, str]) -> str:
    return symbol.sub(lambda m: names[m[1]], text)


def is_setup(b: Any) -> bool:
    """A break in what a cell's top level does once: it imports a module, defines a class, makes an object, moves a
    module to a device or dtype, seeds a generator, or prints. After a first break an `__init__` is a frame of its own.
    Comprehensions count as the line that they stand in."""
    named = [str(c[0]).rpartition(".")[2] for c in b.call_chain]
    inside = [n for n in named if n not in _COMPREHENSIONS]
    seeds = b.reason.endswith("generator is seeded.")
    return (
        (b.kind in ("class_definition", "import") or seeds or b.kind == "print" and not runs_often(b.file, b.line))
        and inside == ["<module>"]
        or b.kind == "tensor_data"
        and "_apply" in inside
        and not runs_often(b.file, b.line)
        or inside[:1] == ["__init__"]
        or inside[:2] == ["<module>", "__init__"]
    )
