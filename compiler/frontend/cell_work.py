"""CellWork: how much is compiled in one run of a cell at most.

A cell that reaches very much tensor code would compile for minutes before it gives its first result. Two counts bound
that: instructions that capture interprets, and kernels that are generated. They are the same in every run, whatever the
machine does meanwhile and whatever the disk cache holds. Past either the rest of the run is plain Python, and the next
run compiles it. What the program names (`tcompile.compile`, fullgraph) is not bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Options

__all__ = ["CellWork"]


@dataclass
class CellWork:
    """The work of one run so far, with its limits (0: none)."""

    instruction_limit: int
    kernel_limit: int
    instructions: int = 0
    kernels: int = 0

    @classmethod
    def of(cls, opts: Options) -> "CellWork":
        return cls(opts.get("cell_instruction_limit"), opts.get("cell_kernel_limit"))

    def spent(self) -> str:
        """Why nothing more is compiled in this run, in the words of the report; empty: there is room."""
        for made, limit, what, option in (
            (self.instructions, self.instruction_limit, "instructions were captured", "cell_instruction_limit"),
            (self.kernels, self.kernel_limit, "kernels were made", "cell_kernel_limit"),
        ):
            if limit and made >= limit:
                return (
                    f"{made} {what} for this cell, and {option} is {limit}: the rest runs plain, and is compiled when"
                    " the cell runs again"
                )
        return ""
