"""What a user wants to see in one kernel, or in two: for trying out whether the compiler decided well.

Options `force_fuse` and `force_split` name pairs of operators, as a report names them: `"sum_1:mul_2, exp:sum_1"`. A
pair to split always holds. A pair to fuse overrides what fusion would cost, never what would make it wrong: where it
can't be, the refusal says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Iterable

from ..errors import OptionError

__all__ = ["ForcedFusion", "NOTHING_FORCED"]

Pairs = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class ForcedFusion:
    """Pairs of names of operators (of lowered nodes)."""

    fuse: Pairs = frozenset()
    split: Pairs = frozenset()

    @classmethod
    def of(cls, opts: Any) -> "ForcedFusion":
        """From the options. Raises OptionError for what is not a list of pairs."""
        fuse, split = (_pairs(name, opts.get(name, "")) for name in ("force_fuse", "force_split"))
        both = fuse & split
        if both:
            raise OptionError(f"force_fuse and force_split both name {':'.join(sorted(both)[0])}")
        return cls(fuse, split) if fuse or split else NOTHING_FORCED

    def __bool__(self) -> bool:
        return bool(self.fuse or self.split)

    def apart(self, a: Iterable[str], b: Iterable[str]) -> str:
        """The pair that must not share a kernel, as text; empty where there is none."""
        return _found(self.split, a, b)

    def together(self, a: Iterable[str], b: Iterable[str]) -> str:
        """The pair that is wanted in one kernel, as text; empty where there is none."""
        return _found(self.fuse, a, b)


def _found(pairs: Pairs, a: Iterable[str], b: Iterable[str]) -> str:
    if not pairs:
        return ""
    left, right = set(a), set(b)
    return next((f"{x}:{y}" for x, y in sorted(pairs) if x in left and y in right or y in left and x in right), "")


def _pairs(name: str, text: str) -> Pairs:
    out = set()
    for part in re.split(r"[,\s]+", text.strip()) if text.strip() else ():
        names = part.split(":")
        if len(names) != 2 or not all(names) or names[0] == names[1]:
            raise OptionError(
                f"option {name!r} is pairs of operators such as 'sum_1:mul_2, exp:sum_1' (names as in a report's"
                f" graphs), got {part!r}"
            )
        out.add((min(names), max(names)))
    return frozenset(out)


NOTHING_FORCED = ForcedFusion()
