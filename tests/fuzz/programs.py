"""A writer of random Python programs on tensors: the first oracle's input.

`programs()` is a Hypothesis strategy of Python source texts, `write(choices)` makes one. They define `def f(a, b, c, n,
s, box): ...`, where `a`, `b` and `c` are float tensors of shape (4, 3), perhaps the same one or views of one memory,
`n` is a small int, `s` a float and `box` a dict that the caller keeps. The programs use control flow, containers,
views, mutation, closures, exceptions, and constructs that break a graph. They always terminate, and every value stays
finite or becomes inf/nan the same way in eager.
"""

from __future__ import annotations

from hypothesis import strategies as st

from .breaking_statements import BREAKING, BreakingStatements
from .choices import Choices, Drawn
from .common_statements import CommonStatements
from .rare_statements import RARE, RareStatements


class Writer(CommonStatements, RareStatements, BreakingStatements):
    def statement(self, indent):
        kinds = ["assign"] * 6 + ["again", "inplace", "append", "dict", "int", "unpack", "global", "format"]
        if self.depth < 2:
            kinds += ["if", "for", "closure", "comprehension", "try", "while", "generator", "object", "with"]
            if self.breaks < 3:
                kinds += [
                    "tensor_if",
                    "item",
                    "print",
                    "loop_break",
                    "early",
                    "raise_after",
                    *["inside"] * 6,
                    *BREAKING,
                ]
            kinds += [
                "property",
                "arguments",
                "variadic",
                "defaults",
                "record",
                "slices",
                "attributes",
                "view_of_input",
                "alias",
                "dtypes",
                "empty",
                "finally",
                "while_else",
                "sorted",
                "words",
                "walrus",
                "match",
                "yield",
                "counter",
                "inherit",
                "detach",
                "partial",
                "nested",
                *RARE,
            ]
        return getattr(self, "s_" + self.pick(kinds))(indent)


def write(choices: Choices) -> str:
    """One program: a function `f` that uses the names of PRELUDE."""
    w = Writer(choices)
    body = []
    for _ in range(choices.pick((1, 2, 3, 4, 5, 6, 8))):
        body += w.statement("    ")
    result = ", ".join(w.tensor() for _ in range(choices.integer(1, 3)))
    return "\n".join(
        [
            "def f(a, b, c, n, s, box):",
            "    items, table, notes, extra = [a], {}, [], []",
            *body,
            f"    return [{result}], items, table, notes, extra, n",
            "",
        ]
    )


@st.composite
def programs(draw) -> str:
    return write(Drawn(draw))
