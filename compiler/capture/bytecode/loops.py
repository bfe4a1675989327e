"""Loops in bytecode: dominators, natural loops, how they nest."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType

from .flow import Flow, analyse, successors
from .instructions import Bytecode, Instruction, decode
from .opset import NEVER_RAISES

__all__ = ["Loop", "find_loops", "dominators", "edges"]


@dataclass(eq=False)
class Loop:
    """One source loop.

    kind     "for": `head` is its FOR_ITER and `entry` the instruction after it;  "while": entry is where an iteration
                                                                                  starts
    body     indices of the instructions that one iteration may execute and still reach the next, FOR_ITER excluded
    again    indices that, when reached from the body, mean "next iteration"
    """

    kind: str
    head: int
    entry: int
    body: frozenset[int]
    again: frozenset[int]
    line: int | None
    parent: Loop | None = None
    children: list[Loop] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """0 for an outermost loop."""
        return 0 if self.parent is None else self.parent.depth + 1


def edges(bytecode: Bytecode, flow: Flow) -> list[list[int]]:
    """Successors by index, exception edges included; empty for unreachable instructions."""
    found: list[list[int]] = []
    for index, ins in enumerate(bytecode.instructions):
        if flow.kinds[index] is None:
            found.append([])
            continue
        after = [following for following, _ in successors(bytecode, index)]
        if ins.handler is not None and ins.op not in NEVER_RAISES:
            after.append(ins.handler.target.index)
        found.append(after)
    return found


def dominators(after: list[list[int]]) -> list[int]:
    """Immediate dominators (Cooper, Harvey, Kennedy 2001) of the graph entered at 0; -1 where unreachable, 0's own is
    0.
    """
    order: list[int] = []
    state = [0] * len(after)
    stack: list[tuple[int, int]] = [(0, 0)]
    state[0] = 1
    while stack:
        node, at = stack.pop()
        if at < len(after[node]):
            stack.append((node, at + 1))
            child = after[node][at]
            if not state[child]:
                state[child] = 1
                stack.append((child, 0))
        else:
            order.append(node)
    rank = [-1] * len(after)
    for position, node in enumerate(order):
        rank[node] = position
    before: list[list[int]] = [[] for _ in after]
    for node in order:
        for child in after[node]:
            before[child].append(node)
    idom = [-1] * len(after)
    idom[0] = 0
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            new = -1
            for parent in before[node]:
                if idom[parent] < 0:
                    continue
                if new < 0:
                    new = parent
                    continue
                a, b = new, parent
                while a != b:
                    while rank[a] < rank[b]:
                        a = idom[a]
                    while rank[b] < rank[a]:
                        b = idom[b]
                new = a
            if new != idom[node]:
                idom[node], changed = new, True
    return idom


def dominates(idom: list[int], a: int, b: int) -> bool:
    """Every path from the start to b passes a."""
    while idom[b] >= 0:
        if a == b:
            return True
        if b == 0:
            return False
        b = idom[b]
    return False


def _natural_loops(after: list[list[int]], idom: list[int], bytecode: Bytecode) -> dict[int, tuple[set[int], set[int]]]:
    """header -> (members, sources of its back edges)."""
    before: list[list[int]] = [[] for _ in after]
    for node, following in enumerate(after):
        for child in following:
            before[child].append(node)
    loops: dict[int, tuple[set[int], set[int]]] = {}
    for node, ins in enumerate(bytecode.instructions):
        if idom[node] < 0:
            continue
        for header in {following for following, _ in successors(bytecode, node)}:
            if not dominates(idom, header, node):  # a function made to start inside a loop jumps back to a later index
                continue
            members, sources = loops.setdefault(header, ({header}, set()))
            sources.add(node)
            work = [node]
            while work:
                member = work.pop()
                if member not in members:
                    members.add(member)
                    work.extend(before[member])
    return loops


def _same_loop(
    natural: dict[int, tuple[set[int], set[int]]], idom: list[int], instructions: list[Instruction]
) -> dict[int, int]:
    """outer header -> inner header, for pairs that stand for one `while` of the source."""
    same: dict[int, int] = {}
    for inner, (members, _) in natural.items():
        for outer, (_, sources) in natural.items():
            if (
                outer == inner
                or not dominates(idom, outer, inner)
                or "FOR_ITER" in (instructions[outer].op, instructions[inner].op)
            ):
                continue
            if not any(dominates(idom, inner, source) for source in sources):
                continue  # nothing in the inner one goes on with the outer one
            if all(instructions[i].op == "NOP" for i in range(outer, inner)) or _repeats_test(
                outer, members, instructions
            ):
                same[outer] = inner
    return same


def _repeats_test(header: int, members: set[int], instructions: list[Instruction]) -> bool:
    """The first test after `header` stands in `members` once more."""
    index = header
    while instructions[index].falls_through and not instructions[index].is_jump:
        index += 1
    test = instructions[index]
    return (
        test.is_conditional
        and test.line is not None
        and any(
            member != index and instructions[member].is_conditional and instructions[member].positions == test.positions
            for member in members
        )
    )


def _last(same: dict[int, int], header: int) -> int:
    while header in same:
        header = same[header]
    return header


def find_loops(code: CodeType | Bytecode) -> list[Loop]:
    """All `for` and `while` loops, outer ones before those they contain.

    CPython writes a `while` loop's test twice, before the loop and at its bottom, and `continue` goes to the first:
    what looks like two nested loops is one. Its iteration starts after the first test and ends with the second.
    Likewise where only a NOP is between two headers.
    """
    bytecode = code if isinstance(code, Bytecode) else decode(code)
    flow = analyse(bytecode)
    after = edges(bytecode, flow)
    idom = dominators(after)
    natural = _natural_loops(after, idom, bytecode)
    instructions = bytecode.instructions
    same = _same_loop(natural, idom, instructions)
    loops = []
    for header, (members, _) in natural.items():
        if header in same:
            continue  # an outer header of a loop that is listed under its inner one
        ins = instructions[header]
        if ins.op == "FOR_ITER":
            loops.append(Loop("for", header, header + 1, frozenset(members - {header}), frozenset([header]), ins.line))
            continue
        headers = {header} | {outer for outer in same if _last(same, outer) == header}
        body = frozenset(i for h in headers for i in natural[h][0] if dominates(idom, header, i))
        loops.append(Loop("while", header, header, body, frozenset(headers), ins.line))
    loops.sort(key=lambda loop: (-len(loop.body), loop.head))
    for at, loop in enumerate(loops):
        for candidate in reversed(loops[:at]):
            if loop.head in candidate.body and loop.body <= candidate.body and loop is not candidate:
                loop.parent = candidate
                candidate.children.append(loop)
                break
    return sorted(loops, key=lambda loop: (loop.depth, loop.head))
