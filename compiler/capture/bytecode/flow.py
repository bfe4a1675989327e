"""Data flow over a Bytecode: reachability, what each stack slot holds, which locals are bound, which are live.

Sets of local slots are int bit masks (bit i is slot i). Exception edges count: an instruction that a handler covers has
the handler's target as a successor, with the stack cut to the handler's depth. Instructions that cannot raise
(opset.NEVER_RAISES) have no such edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator

from .instructions import Bytecode, Instruction
from .opset import EXIT_SLOTS, NEVER_RAISES, SLOT_BINDS, SLOT_CHANGES, SLOT_EMPTIES, SLOT_READS, SLOT_USES, pops, pushes
from .wire import UnsupportedBytecode

__all__ = [
    "Flow",
    "analyse",
    "successors",
    "transfer",
    "bind",
    "reachable",
    "depths",
    "on_exception",
    "slots_in",
    "looks_at_frame",
    "is_frame_inspection",
    "VALUE",
    "NULL",
    "MAYBE",
    "PREV_EXC",
    "LASTI",
    "EXC",
]

# What a stack slot holds, as far as the code alone tells.
VALUE = "value"  # an object
NULL = "null"  # the empty slot of a call sequence
MAYBE = "maybe"  # an object or NULL, decided at run time (LOAD_METHOD, LOAD_FAST_AND_CLEAR)
PREV_EXC = "prev_exc"  # what PUSH_EXC_INFO saved: the exception (or None) that was being handled before
LASTI = "lasti"  # an instruction pointer for RERAISE
EXC = "exc"  # the exception a handler was entered with, not yet taken up by PUSH_EXC_INFO

Kinds = tuple[str, ...]


@dataclass(frozen=True)
class Flow:
    """Facts before each instruction, by index. None / 0 where it cannot be reached."""

    kinds: list[Kinds | None]  # the stack, bottom first
    must: list[int]  # slots surely bound
    may: list[int]  # slots possibly bound
    live: list[int]  # slots whose content may still be used

    def depth(self, index: int) -> int | None:
        kinds = self.kinds[index]
        return None if kinds is None else len(kinds)


def successors(bytecode: Bytecode, index: int) -> Iterator[tuple[int, bool]]:
    """(index, by jumping) of what may run next, exceptions aside."""
    ins = bytecode.instructions[index]
    if ins.target is not None:
        yield ins.target.index, True
    if ins.falls_through:
        if index + 1 >= len(bytecode.instructions):
            raise UnsupportedBytecode(f"{bytecode.qualname} runs off its end")
        yield index + 1, False


def _swapped(ins: Instruction, kinds: Kinds) -> Kinds:
    below = list(kinds)
    below[-1], below[-ins.arg] = below[-ins.arg], below[-1]
    return tuple(below)


# What the stack is after instructions that leave what they look at, and what others push that is not an object.
_AFTER: dict[str, Callable[[Instruction, Kinds], Kinds]] = {
    "SWAP": _swapped,
    "COPY": lambda ins, kinds: kinds + (kinds[-ins.arg],),
    "WITH_EXCEPT_START": lambda ins, kinds: kinds + (VALUE,),
}
_PUSHED: dict[str, Kinds] = {
    "PUSH_NULL": (NULL,),
    "BEFORE_WITH": (VALUE, *(NULL,) * (EXIT_SLOTS - 1), VALUE),
    "PUSH_EXC_INFO": (PREV_EXC, VALUE),
    "LOAD_FAST_AND_CLEAR": (MAYBE,),
}


def transfer(ins: Instruction, kinds: Kinds, jump: bool = False) -> Kinds:
    """The stack after `ins`, given the stack before it."""
    if (after := _AFTER.get(ins.op)) is not None:
        return after(ins, kinds)
    pushed = _PUSHED.get(ins.op) or ((MAYBE if ins.pushes_method else VALUE),) * pushes(ins, jump)
    return kinds[: len(kinds) - pops(ins)] + pushed


def _join(a: Kinds, b: Kinds, where: str) -> Kinds:
    if a == b:
        return a
    if len(a) != len(b):
        raise UnsupportedBytecode(f"stack depth {len(a)} meets {len(b)} in {where}")
    return tuple(x if x == y else EXC if {x, y} == {EXC, VALUE} else MAYBE for x, y in zip(a, b))


def on_exception(ins: Instruction, kinds: Kinds) -> Kinds:
    """The stack at the handler's target when `ins` raises."""
    handler = ins.handler
    return kinds[: handler.depth] + ((LASTI,) if handler.lasti else ()) + (EXC,)


def bind(ins: Instruction, kinds: Kinds, must: int, may: int) -> tuple[int, int]:
    """Slots surely and possibly bound after `ins`."""
    bit = 1 << ins.slot if ins.slot >= 0 else 0
    if ins.op in SLOT_EMPTIES:
        return must & ~bit, may & ~bit
    if ins.op in SLOT_BINDS and pops(ins) and kinds[-1] != VALUE:
        return must & ~bit, may | bit if kinds[-1] == MAYBE else may & ~bit
    if ins.op in SLOT_BINDS or ins.op in SLOT_READS:  # (it raises where the slot is empty)
        return must | bit, may | bit
    return must, may


def _forward(bytecode: Bytecode) -> tuple[list, list[int], list[int]]:
    instructions = bytecode.instructions
    count = len(instructions)
    kinds: list[Kinds | None] = [None] * count
    must, may = [0] * count, [0] * count
    bound = sum(1 << i for i, slot in enumerate(bytecode.slots) if slot.param or slot.cell or slot.free)
    kinds[0], must[0], may[0] = (), bound, bound
    work = [0]

    def reach(index: int, stack: Kinds, m: int, y: int) -> None:
        old = kinds[index]
        if old is None:
            kinds[index], must[index], may[index] = stack, m, y
            work.append(index)
            return
        joined = _join(old, stack, bytecode.qualname)
        state = (joined, must[index] & m, may[index] | y)
        if state != (old, must[index], may[index]):
            kinds[index], must[index], may[index] = state
            work.append(index)

    while work:
        index = work.pop()
        ins, stack, m, y = instructions[index], kinds[index], must[index], may[index]
        after_must, after_may = bind(ins, stack, m, y)
        if ins.handler is not None and ins.op not in NEVER_RAISES:
            reach(ins.handler.target.index, on_exception(ins, stack), m & after_must, y | after_may)
        for following, jump in successors(bytecode, index):
            after = transfer(ins, stack, jump)
            if ins.op == "LOAD_FAST_AND_CLEAR":
                bit = 1 << ins.slot
                after = stack + (VALUE if m & bit else MAYBE if y & bit else NULL,)
            reach(following, after, after_must, after_may)
    return kinds, must, may


# a frame that mentions these may read its own locals by name, so all of them are kept (attributes: `model.eval()` is
# none of them)
FRAME_GLOBALS = frozenset(["locals", "vars", "dir", "eval", "exec", "breakpoint"])
FRAME_ATTRIBUTES = frozenset(["_getframe", "currentframe", "set_trace"])


def looks_at_frame(bytecode: Bytecode) -> bool:
    """The code mentions something that can read its frame's locals by name."""
    return any(is_frame_inspection(ins) for ins in bytecode.instructions)


def is_frame_inspection(ins: Instruction) -> bool:
    """See FRAME_GLOBALS."""
    if ins.op in ("LOAD_GLOBAL", "LOAD_NAME"):
        return ins.arg in FRAME_GLOBALS
    return ins.op in ("LOAD_ATTR", "LOAD_METHOD") and ins.arg in FRAME_ATTRIBUTES


def _backward(bytecode: Bytecode, kinds: list) -> list[int]:
    instructions = bytecode.instructions
    live = [0] * len(instructions)
    everything = (1 << len(bytecode.slots)) - 1 if looks_at_frame(bytecode) else 0
    changed = True
    while changed:
        changed = False
        for index in range(len(instructions) - 1, -1, -1):
            if kinds[index] is None:
                continue
            ins = instructions[index]
            out = everything
            for following, _ in successors(bytecode, index):
                out |= live[following]
            if ins.slot >= 0:
                bit = 1 << ins.slot
                if ins.op in SLOT_CHANGES:
                    out &= ~bit
                if ins.op in SLOT_USES:
                    out |= bit
            if ins.handler is not None and ins.op not in NEVER_RAISES:
                out |= live[ins.handler.target.index]
            if out != live[index]:
                live[index] = out
                changed = True
    return live


def analyse(bytecode: Bytecode) -> Flow:
    """All facts; remembered for Bytecodes that come from `decode`. Raises UnsupportedBytecode on code whose stack does
    not add up.
    """
    if bytecode.flow is not None:
        return bytecode.flow
    kinds, must, may = _forward(bytecode)
    flow = Flow(kinds, must, may, _backward(bytecode, kinds))
    if bytecode.shared:
        bytecode.flow = flow
    return flow


def depths(bytecode: Bytecode) -> list[int | None]:
    """Stack depth before each instruction; None where it cannot be reached. Raises UnsupportedBytecode where two paths
    disagree.
    """
    instructions = bytecode.instructions
    found: list[int | None] = [None] * len(instructions)
    work = [(0, 0)]
    while work:
        index, depth = work.pop()
        if found[index] is not None:
            if found[index] != depth:
                raise UnsupportedBytecode(f"stack depth {found[index]} meets {depth} at {index} in {bytecode.qualname}")
            continue
        found[index] = depth
        ins = instructions[index]
        if depth < pops(ins):
            raise UnsupportedBytecode(f"{ins!r} in {bytecode.qualname} finds {depth} on the stack")
        handler = ins.handler
        if handler is not None:
            work.append((handler.target.index, handler.depth + handler.lasti + 1))
        for following, jump in successors(bytecode, index):
            work.append((following, depth - pops(ins) + pushes(ins, jump)))
    return found


def reachable(bytecode: Bytecode, entry: int) -> set[int]:
    """Indices of what may run from `entry` on."""
    seen: set[int] = set()
    work = [entry]
    while work:
        index = work.pop()
        if index in seen:
            continue
        seen.add(index)
        ins = bytecode.instructions[index]
        if ins.handler is not None:
            work.append(ins.handler.target.index)
        work.extend(following for following, _ in successors(bytecode, index))
    return seen


def slots_in(mask: int) -> list[int]:
    """The slot numbers of a mask, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
