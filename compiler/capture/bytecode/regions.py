"""Loop bodies taken out into functions of their own.

`make_region(Plan(bytecode, loop))` makes of a loop's body a function of its own, `emit_region_call` the code that
stands in its place:

region   a function that runs one iteration of the loop's body. Its parameters are the locals that the body needs and,
         for a `for` loop, the value that the iterator gave; it returns a tuple `(exit_id, values...)`. exit_id 0 is the
         next iteration. The others are the places outside the loop where an iteration may go: break, return, the loop
         test failing, continue of an outer loop. There the host goes on with the original code. Handlers inside the
         body move into the region. An exception that they do not handle passes through to the host, whose handlers
         around the loop still apply. If those may read locals that the body has set, the region catches the exception
         and returns it with the locals. The host raises it again, without a traceback entry of its own.
call     `dispatch(region_function, *arguments)`, the unpacking of the values into the locals, and a jump per exit_id.

A local that an iteration may leave unbound travels as UNBOUND. Cells are shared through the region's closure. In
module-level code names are globals, so nothing but the loop's value is passed. Raises CannotOutline where the body
works on the stack below it (a comprehension) or looks at its frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CellType, CodeType
from typing import Any, Callable

from .flow import MAYBE, NULL, VALUE, Flow, Kinds, bind, analyse, is_frame_inspection, slots_in, successors, transfer
from .instructions import Bytecode, Handler, Instruction
from .loops import Loop, dominates, dominators, edges
from .opset import NEVER_RAISES, SLOT_CELLS, SLOT_CHANGES, SLOT_EMPTIES, SLOT_READS, reach
from .splice import UNBOUND, Param, Splice, cells_used, delete_if_unbound, push_or_unbound
from .version import NULL_FIRST

__all__ = ["LOOP_ITEM", "CannotOutline", "Exit", "RegionSpec", "Plan", "make_region", "emit_region_call"]

LOOP_ITEM = "__value"  # the parameter of a loop's turn that is its item; in inner loops with underscores behind it
_SETS = SLOT_CHANGES - SLOT_CELLS  # a local: to a value, or to nothing


class CannotOutline(Exception):
    """This loop's body cannot become a function. str() says why."""


@dataclass(frozen=True)
class Exit:
    """What a region's result (id, locals..., stack values...) means: the locals go to `slots` of the host; the stack
    values, top first, go onto its stack. It goes on at `target` (an index in the original). `raises`: the last value is
    an exception, to be raised there.
    """

    id: int
    target: int
    slots: tuple[int, ...]
    stack: int
    raises: bool = False


@dataclass(frozen=True, eq=False)
class RegionSpec:
    """The function made of a loop's body. `params`, `closure` as in resume.ResumeSpec; locals that may be unbound come
    as UNBOUND.
    """

    code: CodeType
    loop: Loop
    params: tuple[Param, ...]
    closure: tuple[int, ...]
    exits: tuple[Exit, ...]


@dataclass
class Leave:
    """All edges out of the region to one place."""

    id: int
    target: int
    kinds: Kinds  # above the base
    must: int
    may: int
    slots: tuple[int, ...] = ()


class Plan:
    """Analysis of one loop: which instructions move, what crosses the border."""

    def __init__(self, bytecode: Bytecode, loop: Loop) -> None:
        self.bytecode, self.loop = bytecode, loop
        self.flow: Flow = analyse(bytecode)
        kinds = self.flow.kinds[loop.entry]
        assert kinds is not None
        self.base = len(kinds) - (loop.kind == "for")
        self.entry_kinds = kinds[self.base :]
        self.idom = dominators(edges(bytecode, self.flow))
        self.members = self._members()
        self._check()
        self.outer = self._outer()
        self.leaves = self._leaves()
        self.raised = self._raised()
        self.needed = self._liveness()

    # --- which instructions
    def inner(self, handler: Handler) -> bool:
        """The handler belongs to the body, not to something around the loop. In a function that starts inside the loop,
        the loop's entry dominates everything: there the stack tells, on which a `with` statement around the loop has
        its exit function.
        """
        if handler.depth < self.base:
            return False
        following = self.bytecode.instructions[handler.target.index + 1 :][:1]
        if handler.depth == self.base and following and following[0].op == "WITH_EXCEPT_START":
            return False
        return dominates(self.idom, self.loop.entry, handler.target.index)

    def _outer(self) -> Handler | None:
        """The handler around the loop that gets what the body does not handle."""
        found: Handler | None = None
        for index in (self.loop.head, *self.members):
            ins = self.bytecode.instructions[index]
            handler = ins.handler
            if handler is None or ins.op in NEVER_RAISES or self.inner(handler):
                continue
            if found is not None and found.target is not handler.target:
                raise CannotOutline("parts of the loop's body have different handlers around it")
            found = handler
        return found

    def raises(self, index: int) -> bool:
        """The instruction's exceptions go to the handler around the loop."""
        ins = self.bytecode.instructions[index]
        if ins.handler is None or self.inner(ins.handler) or ins.op in NEVER_RAISES:
            return False
        return ins.op != "LOAD_FAST" or not self.flow.must[index] >> ins.slot & 1

    def _members(self) -> set[int]:
        """The loop's body, and the code of its handlers until the stack holds plain values again."""
        flow, instructions = self.flow, self.bytecode.instructions
        members = set(self.loop.body)
        work = list(members)
        while work:
            index = work.pop()
            ins = instructions[index]
            grown = [
                f
                for f, _ in successors(self.bytecode, index)
                if f not in self.loop.again and any(kind != VALUE for kind in (flow.kinds[f] or ())[self.base :])
            ]
            if ins.handler is not None and ins.op not in NEVER_RAISES and self.inner(ins.handler):
                grown.append(ins.handler.target.index)
            for following in grown:
                if following not in members:
                    members.add(following)
                    work.append(following)
        return members

    def _check(self) -> None:
        for index in self.members:
            ins = self.bytecode.instructions[index]
            depth = self.flow.depth(index)
            assert depth is not None
            if depth - reach(ins) < self.base:
                raise CannotOutline(
                    "the body of the loop works on values that lie below it on the stack (a comprehension)"
                )
            if is_frame_inspection(ins):
                raise CannotOutline(f"the body of the loop may look at its frame's locals ({ins.arg})")
            if ins.op == "RETURN_VALUE":
                raise CannotOutline("the body of the loop returns out of an exception handler")
            if ins.handler is not None and self.inner(ins.handler) and ins.handler.depth < self.base:
                raise CannotOutline("an exception handler of the body drops values from below the loop")
        if any(kind == MAYBE or kind == NULL for kind in self.entry_kinds):
            raise CannotOutline("the loop starts within a call sequence")

    # --- what crosses the border
    def _leaves(self) -> dict[int, Leave]:
        flow, loop = self.flow, self.loop
        leaves: dict[int, Leave] = {}
        again = loop.head if loop.kind == "for" else loop.entry
        for index in sorted(self.members):
            ins = self.bytecode.instructions[index]
            kinds = flow.kinds[index]
            assert kinds is not None
            must, may = bind(ins, kinds, flow.must[index], flow.may[index])
            for following, jump in successors(self.bytecode, index):
                if following in self.members and following not in loop.again:
                    continue
                stack = transfer(ins, kinds, jump)[self.base :]
                if any(kind != VALUE for kind in stack):
                    raise CannotOutline("the loop is left within a call sequence")
                old = leaves.get(following)
                if old is None:
                    leaves[following] = Leave(-1, following, stack, must, may)
                else:
                    old.must &= must
                    old.may |= may
        for number, target in enumerate(sorted(leaves, key=lambda t: (t != again, t))):
            leaves[target].id = number if again in leaves else number + 1
        return leaves

    def _raised(self) -> Leave | None:
        """The way to the handler around the loop."""
        sources = [index for index in self.members if self.raises(index)]
        if not sources or self.outer is None:
            return None
        must, may = -1, 0
        for index in sources:
            must &= self.flow.must[index]
            may |= self.flow.may[index]
        return Leave(
            1 + max((leave.id for leave in self.leaves.values()), default=0),
            self.outer.target.index,
            (VALUE,),
            must,
            may,
        )

    def by_id(self) -> list[Leave]:
        """The exits in order, without the raised exception."""
        return sorted(self.leaves.values(), key=lambda leave: leave.id)

    def all_exits(self) -> list[Leave]:
        """by_id(), then the raised exception if it takes locals along."""
        return self.by_id() + ([self.raised] if self.raised is not None else [])

    def _liveness(self) -> int:
        """Slots that the body needs at its entry: used before they are set, or possibly set and wanted at some exit.
        Fills in what each exit gives back."""
        flow = self.flow
        plain = sum(1 << i for i, slot in enumerate(self.bytecode.slots) if not (slot.cell or slot.free))
        at_leave, at_raise = self._touched()
        for target, leave in self.leaves.items():
            leave.slots = tuple(slots_in(at_leave[target] & flow.live[target] & plain))
        wanted_at_raise = 0
        if self.raised is not None:
            wanted_at_raise = at_raise & flow.live[self.raised.target] & plain
            self.raised.slots = tuple(slots_in(wanted_at_raise))
            if not wanted_at_raise:
                self.raised = None  # nothing to bring along: the exception simply passes
        needed = self._live(wanted_at_raise)
        if (
            any(slot.free and slot.name == "__class__" for slot in self.bytecode.slots)
            and plain & 1
            and self.bytecode.slots[0].param
        ):
            needed |= 1  # zero-argument super() takes the first parameter out of the frame
        return needed & plain & flow.may[self.loop.entry]

    def _handled_inside(self, ins: Instruction) -> bool:
        """Whether what the instruction raises goes to a handler within the body."""
        return ins.handler is not None and ins.op not in NEVER_RAISES and self.inner(ins.handler)

    def _touched(self) -> tuple[dict[int, int], int]:
        """Forward: slots that may have been set on the way to each exit, and to where an exception leaves the body."""
        touched = dict.fromkeys(self.members, -1)
        touched[self.loop.entry] = 0
        at_leave = dict.fromkeys(self.leaves, 0)
        at_raise = 0
        work = [self.loop.entry]
        while work:
            index = work.pop()
            ins = self.bytecode.instructions[index]
            now = touched[index]
            if self.raised is not None and self.raises(index):
                at_raise |= now
            if ins.op in _SETS:
                now |= 1 << ins.slot
            after = [following for following, _ in successors(self.bytecode, index)]
            if self._handled_inside(ins):
                after.append(ins.handler.target.index)
            for following in after:
                if following in self.leaves:
                    at_leave[following] |= now
                elif touched[following] < 0 or now & ~touched[following]:
                    touched[following] = now | max(touched[following], 0)
                    work.append(following)
        return at_leave, at_raise

    def _live(self, wanted_at_raise: int) -> int:
        """Backward: slots that are needed at the body's entry."""
        live = dict.fromkeys(self.members, 0)
        changed = True
        order = sorted(self.members, reverse=True)
        while changed:
            changed = False
            for index in order:
                ins = self.bytecode.instructions[index]
                out = 0
                for following, _ in successors(self.bytecode, index):
                    leave = self.leaves.get(following)
                    out |= live[following] if leave is None else sum(1 << slot for slot in leave.slots)
                if ins.slot >= 0:
                    bit = 1 << ins.slot
                    if ins.op in _SETS:
                        out &= ~bit
                    if ins.op in SLOT_READS:
                        out |= bit
                if self._handled_inside(ins):
                    out |= live[ins.handler.target.index]
                elif self.raises(index):
                    out |= wanted_at_raise
                if out != live[index]:
                    live[index], changed = out, True
        return live[self.loop.entry]

    def must_be_empty(self) -> int:
        """Slots in which UNBOUND cannot stand for emptiness: the body empties them, or an instruction could read them
        while they are.
        """
        found = 0
        for index in self.members:
            ins = self.bytecode.instructions[index]
            empty = ins.op in SLOT_EMPTIES or ins.op in SLOT_READS and not self.flow.must[index] >> ins.slot & 1
            if empty:
                found |= 1 << ins.slot
        return found


def make_region(plan: Plan) -> RegionSpec:
    """The function that runs one iteration."""
    bytecode, loop, flow = plan.bytecode, plan.loop, plan.flow
    entry = bytecode.instructions[loop.entry]
    params: list[Param] = [Param("local", number, _identifier(bytecode, number)) for number in slots_in(plan.needed)]
    taken = {slot.name for slot in bytecode.slots} | {param.name for param in params}
    for depth in range(len(plan.entry_kinds)):
        name = LOOP_ITEM if depth == len(plan.entry_kinds) - 1 else f"{LOOP_ITEM}_{depth}"
        while name in taken:
            name += "_"
        taken.add(name)
        params.append(Param("stack", depth, name))
    closure = cells_used(bytecode, plan.members)
    splice = Splice(bytecode, params, closure, entry.positions)
    for number in closure:
        if not flow.must[loop.entry] >> number & 1:
            splice.emit("DELETE_FAST", slot=splice.slot(number))
    empty = plan.must_be_empty()
    uncertain = plan.needed & ~flow.must[loop.entry]
    for number in slots_in(uncertain & empty):
        delete_if_unbound(splice.emit, splice.slot(number))
    splice.restore_stack(
        plan.entry_kinds, {depth: len(params) - len(plan.entry_kinds) + depth for depth in range(len(plan.entry_kinds))}
    )
    in_slot = uncertain & ~empty
    for number in slots_in(_sometimes_set(plan) & ~plan.needed & ~empty):
        splice.emit("LOAD_CONST", UNBOUND)
        splice.emit("STORE_FAST", slot=splice.slot(number))
        in_slot |= 1 << number
    _copy_body(plan, splice, in_slot)
    exits = tuple(Exit(leave.id, leave.target, leave.slots, len(leave.kinds)) for leave in plan.by_id())
    if plan.raised is not None:
        exits += (Exit(plan.raised.id, plan.raised.target, plan.raised.slots, 1, True),)
    made = splice.finish(qualname=f"{bytecode.qualname}.<loop at line {loop.line}>")
    return RegionSpec(made, loop, tuple(params), closure, exits)


def _sometimes_set(plan: Plan) -> int:
    """Slots given back at an exit where they may be unbound."""
    found = 0
    for leave in plan.all_exits():
        found |= sum(1 << slot for slot in leave.slots if not leave.must >> slot & 1)
    return found


def _identifier(bytecode: Bytecode, number: int) -> str:
    name = bytecode.slots[number].name
    return name if name.isidentifier() else f"__local_{number}"


def _copy_body(plan: Plan, splice: Splice, sentinel_in_slot: int) -> None:
    """The body's instructions, and a way out for each edge that leaves it."""
    jump = splice.emit("JUMP")
    start = len(splice.code)
    copies = splice.copy(plan.members)
    copied = splice.code[start:]
    del splice.code[start:]
    index_of = {id(copy): index for index, copy in copies.items()}
    ways: dict[int, Instruction] = {}

    def way_out(target: int) -> Instruction:
        if target not in ways:
            ways[target] = Instruction("NOP", positions=splice.position)
        return ways[target]

    caught = Instruction("NOP", positions=splice.position)
    around = Handler(caught, 0, False) if plan.raised is not None else None
    handlers: dict[int, Handler | None] = {}
    for ins in copied:
        index = index_of[id(ins)]
        original = plan.bytecode.instructions[index]
        if index == plan.loop.entry:
            lead = Instruction("NOP", positions=splice.position)  # covered like the entry: resume.py says why
            jump.target = lead
            splice.code.append(lead)
        splice.code.append(ins)
        old = original.handler
        if old is not None and original.op in NEVER_RAISES and old.target.index not in copies and plan.inner(old):
            old = None  # a handler that nothing can reach
        if old is not None and id(old) not in handlers:
            handlers[id(old)] = (
                Handler(copies[old.target.index], old.depth - plan.base, old.lasti) if plan.inner(old) else around
            )
        ins.handler = handlers[id(old)] if old is not None else None
        if index == plan.loop.entry:
            lead.handler = ins.handler
        if original.target is not None and original.target.index in plan.leaves:
            ins.target = way_out(original.target.index)
        if original.falls_through and index + 1 in plan.leaves:
            out = splice.emit("JUMP")
            out.target, out.positions = way_out(index + 1), ins.positions
    late: list[Callable[[], None]] = []
    for target, first in ways.items():
        splice.code.append(first)
        _pack(splice, plan.leaves[target], sentinel_in_slot, late)
    if plan.raised is not None:
        splice.code.append(caught)
        _pack(splice, plan.raised, sentinel_in_slot, late)
    for out_of_line in late:
        out_of_line()


def _pack(splice: Splice, leave: Leave, sentinel_in_slot: int, late: list[Callable[[], None]]) -> None:
    """Return (id, locals..., stack values...)."""
    saved = splice.save_stack(leave.kinds)
    splice.emit("LOAD_CONST", leave.id)
    for pushed, number in enumerate(leave.slots, 1):
        slot = splice.slot(number)
        if leave.must >> number & 1 or sentinel_in_slot >> number & 1:
            splice.emit("LOAD_FAST", slot=slot)
        elif not leave.may >> number & 1:
            splice.emit("LOAD_CONST", UNBOUND)
        else:
            push_or_unbound(splice.emit, slot, pushed, None, late)
    for depth in reversed(range(len(leave.kinds))):
        splice.load_and_forget(saved[depth])
    splice.emit("BUILD_TUPLE", 1 + len(leave.slots) + len(leave.kinds))
    splice.emit("RETURN_VALUE")


def emit_region_call(
    plan: Plan,
    region: RegionSpec,
    dispatch: Callable[..., Any],
    emit: Callable[..., Instruction],
    handler: Handler | None,
    slot_of: Callable[[int], int],
    landing: Callable[[Leave], Instruction],
) -> None:
    """The call of the region in place of the body: the loop's value is on the stack if there is one. Afterwards the
    locals are up to date and control is at landing(leave). `emit` appends instructions covered by `handler`; slot_of
    renumbers the original's slots.
    """
    loop, flow = plan.loop, plan.flow
    late: list[Callable[[], None]] = []
    carries = len(plan.entry_kinds)  # 1 if the loop's value is on the stack: it is kept on top, to be the last argument
    pushed = 0

    def under() -> None:
        nonlocal pushed
        pushed += 1
        if carries:
            emit("SWAP", 2)

    def constant_call(function: Any, after: Callable[[], None]) -> None:
        for op in ("PUSH_NULL", "LOAD_CONST") if NULL_FIRST else ("LOAD_CONST", "PUSH_NULL"):
            emit(op, function if op == "LOAD_CONST" else None)
            after()

    constant_call(dispatch, under)
    if region.closure:
        for number in region.closure:
            if flow.must[loop.entry] >> number & 1:
                emit("LOAD_CLOSURE", slot=slot_of(number))
            else:
                constant_call(CellType, lambda: None)
                emit("CALL", 0)
        emit("BUILD_TUPLE", len(region.closure))
    emit("LOAD_CONST", region.code)
    emit("MAKE_FUNCTION", 8 if region.closure else 0)
    under()
    for param in region.params:
        if param.kind == "local":
            if flow.must[loop.entry] >> param.number & 1:
                emit("LOAD_FAST", slot=slot_of(param.number))
            else:
                push_or_unbound(emit, slot_of(param.number), plan.base + pushed + carries, handler, late)
            under()
    emit("CALL", 1 + len(region.params))
    leaves = plan.all_exits()
    for leave in leaves:
        following: Instruction | None = None
        if leave is not leaves[-1]:
            emit("COPY", 1)
            emit("LOAD_CONST", 0)
            emit("BINARY_SUBSCR")
            emit("LOAD_CONST", leave.id)
            emit("IS_OP", False)
            following = emit("POP_JUMP_IF_FALSE")
        emit("UNPACK_SEQUENCE", 1 + len(leave.slots) + len(leave.kinds))
        emit("POP_TOP")
        for number in leave.slots:
            slot = slot_of(number)
            emit("STORE_FAST", slot=slot)
            if not leave.must >> number & 1:
                delete_if_unbound(emit, slot)
        if leave is plan.raised:
            emit("RERAISE", 0)
        else:
            emit("JUMP").target = landing(leave)
        if following is not None:
            following.target = emit("NOP")
    for out_of_line in late:
        out_of_line()
