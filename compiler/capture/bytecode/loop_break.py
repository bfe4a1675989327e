"""A graph break at a loop: the loop runs natively, its body and what follows it do not have to.

`make_loop_break` is make_break (resume.py) for a whole loop. The function it makes restores the frame's state where the
loop starts, and then iterates natively. It calls `dispatch(region_function, ...)` for each iteration's body
(regions.py). When the loop is left, in whatever way, it calls `dispatch(resume_function, ...)` for the code that
follows."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any, Callable, Collection, Iterable

from .flow import LASTI, PREV_EXC, VALUE, Kinds, analyse, bind, reachable, successors, transfer
from .instructions import Bytecode, Handler, Instruction, decode
from .loops import Loop
from .opset import SLOT_CHANGES
from .regions import CannotOutline, Plan, RegionSpec, emit_region_call, make_region
from .resume import (
    ResumeSpec,
    check_started,
    copy_ending,
    emit_tail,
    live_mask,
    params_for,
    plain_slots,
    resolve,
    restore,
    resume_at,
    short_ending,
)
from .splice import Param, Splice, cells_used, check_first_cell, check_supported

__all__ = ["LoopBreakSpec", "make_loop_break", "make_native_loop"]


@dataclass(frozen=True, eq=False)
class LoopBreakSpec(ResumeSpec):
    """A function that runs a loop and goes on in one of `successors`. `index` is loop.head; params and closure as for
    any break.
    """

    region: RegionSpec | None = None
    successors: tuple[ResumeSpec, ...] = ()


@dataclass
class _Way:
    """A way out of the loop, and what happens there."""

    target: int
    kinds: Kinds
    must: int
    may: int
    resume: ResumeSpec | None = None
    ending: list[int] | None = None


def make_loop_break(
    code: CodeType,
    loop: Loop,
    nulls: Collection[int] = (),
    bound: Iterable[int] | int | None = None,
    *,
    dispatch: Callable[..., Any],
    leave: Callable[..., Any] | None = None,
    locals_are_globals: bool = False,
) -> LoopBreakSpec:
    """A function that runs `loop` (of find_loops(code)) from the state before instruction loop.head: for a `for` loop
    the iterator is on top of the stack, for a `while` loop the first test has been passed. Arguments and calling
    convention as for make_break; `leave` dispatches what follows the loop, where that is not `dispatch`.

    Raises CannotResume, CannotOutline.
    """
    bytecode = _supported(code, loop, locals_are_globals)
    kinds, mask = resolve(bytecode, loop.head, nulls, bound)
    plan = Plan(bytecode, loop)
    region = make_region(plan)
    ways = _ways(plan, kinds, mask)
    for way in ways.values():
        way.ending = short_ending(bytecode, way.target, way.kinds, way.must)
        if way.ending is None:
            way.resume = resume_at(code, bytecode, way.target, way.kinds, way.must, way.may & ~way.must)
    outer = plan.outer
    caught = _caught(code, plan, kinds, mask)
    handled = reachable(bytecode, outer.target.index) if outer is not None and caught is None else set()
    used = set(handled).union(*(way.ending or () for way in ways.values()))
    closure = set(cells_used(bytecode, used)) | set(region.closure)
    for way in ways.values():
        closure |= set(way.resume.closure if way.resume is not None else ())
    closure |= set(caught.closure if caught is not None else ())
    params = _params(bytecode, loop, kinds, mask)
    splice = Splice(bytecode, params, sorted(closure), bytecode.instructions[loop.head].positions)
    restore(splice, kinds, params, splice.closure, mask)
    _emit(splice, plan, region, ways, outer, handled, dispatch, leave or dispatch, caught)
    return LoopBreakSpec(
        splice.finish(),
        loop.head,
        params,
        splice.closure,
        kinds,
        mask,
        0,
        region,
        tuple(way.resume for way in ways.values() if way.resume is not None),
    )


def make_native_loop(
    code: CodeType,
    loop: Loop,
    nulls: Collection[int] = (),
    bound: Iterable[int] | int | None = None,
    *,
    dispatch: Callable[..., Any],
    leave: Callable[..., Any] | None = None,
    locals_are_globals: bool = False,
) -> LoopBreakSpec:
    """As make_loop_break for a `for` loop whose body cannot be a function of its own: an inlined comprehension appends
    to a list that lies below it on the stack. The whole loop runs natively, and what follows it is resumed. Raises
    CannotResume, CannotOutline.
    """
    bytecode = _supported(code, loop, locals_are_globals)
    kinds, mask = resolve(bytecode, loop.head, nulls, bound)
    flow, instructions = analyse(bytecode), bytecode.instructions
    head = instructions[loop.head]
    inside = {loop.head, *loop.body}
    leaves = {following for index in inside for following, _ in successors(bytecode, index)} - inside
    if loop.kind != "for" or head.target is None or leaves != {head.target.index}:
        raise CannotOutline("the loop is left in several ways")
    handled: set[int] = set()
    touched = 0
    for index in inside:
        ins = instructions[index]
        if ins.handler is not None:
            handled |= set(reachable(bytecode, ins.handler.target.index))
        if ins.op in SLOT_CHANGES:
            touched |= 1 << ins.slot
    must, may = bind(head, kinds, flow.must[loop.head], flow.may[loop.head])
    must, may = mask & ~touched | must & touched, mask & ~touched | may & touched
    resume = resume_at(code, bytecode, head.target.index, transfer(head, kinds, True), must, may & ~must)
    closure = sorted(set(cells_used(bytecode, inside | handled)) | set(resume.closure))
    params = _params(bytecode, loop, kinds, mask)
    splice = Splice(bytecode, params, closure, head.positions)
    restore(splice, kinds, params, splice.closure, mask)
    jump = splice.emit("JUMP")
    copies = splice.copy(inside | handled)
    first = copies[loop.head]
    lead = jump.target = Instruction("NOP", positions=splice.position, handler=first.handler)  # resume.py says why
    splice.code.insert(splice.code.index(first), lead)
    first.target = emit_tail(splice, resume, leave or dispatch)
    return LoopBreakSpec(splice.finish(), loop.head, params, splice.closure, kinds, mask, 0, None, (resume,))


def _supported(code: CodeType, loop: Loop, locals_are_globals: bool) -> Bytecode:
    bytecode = decode(code)
    check_supported(bytecode, locals_are_globals)
    check_first_cell(bytecode)
    check_started(bytecode, loop.head)
    return bytecode


def _params(bytecode: Bytecode, loop: Loop, kinds: Kinds, bound: int) -> tuple[Param, ...]:
    """Of a function that begins at the loop."""
    return params_for(bytecode, kinds, bound & live_mask(bytecode, loop.head) & plain_slots(bytecode))


def _ways(plan: Plan, kinds: Kinds, bound: int) -> dict[int, _Way]:
    """Where the loop goes on, by index; what the body does not touch is bound or not as it was before."""
    bytecode, loop, flow = plan.bytecode, plan.loop, plan.flow
    touched = _touched(plan)
    base = kinds[: plan.base]
    ways: dict[int, _Way] = {}

    def add(target: int, stack: Kinds, must: int, may: int) -> None:
        must, may = bound & ~touched | must & touched, bound & ~touched | may & touched
        old = ways.get(target)
        if old is not None:
            must, may = must & old.must, may | old.may
        ways[target] = _Way(target, stack, must, may)

    if loop.kind == "for":
        head = bytecode.instructions[loop.head]
        assert head.target is not None
        must, may = bind(head, kinds, flow.must[loop.head], flow.may[loop.head])
        add(head.target.index, transfer(head, kinds, True), must, may)
    for leave in plan.by_id():
        if leave.id != 0:
            add(leave.target, base + leave.kinds, leave.must, leave.may)
    return ways


def _caught(code: CodeType, plan: Plan, kinds: Kinds, bound: int) -> ResumeSpec | None:
    """Where an exception that leaves the loop goes on: in the handler around it, behind PUSH_EXC_INFO; None where there
    is none.
    """
    outer, bytecode, flow = plan.outer, plan.bytecode, plan.flow
    if outer is None or outer.target.op != "PUSH_EXC_INFO":
        return None
    touched, target = _touched(plan), outer.target.index
    must, may = bound & ~touched | flow.must[target] & touched, bound & ~touched | flow.may[target] & touched
    after = (*kinds[: outer.depth], *((LASTI,) if outer.lasti else ()), PREV_EXC, VALUE)
    return resume_at(code, bytecode, target + 1, after, must, may & ~must)


def _touched(plan: Plan) -> int:
    """Slots that the body may fill or empty; the loop's head may bind its variable, too."""
    touched = 0
    for index in (plan.loop.head, *plan.members):
        ins = plan.bytecode.instructions[index]
        if ins.op in SLOT_CHANGES:
            touched |= 1 << ins.slot
    return touched


def _emit(
    splice: Splice,
    plan: Plan,
    region: RegionSpec,
    ways: dict[int, _Way],
    outer: Handler | None,
    handled: set[int],
    dispatch: Callable[..., Any],
    leave: Callable[..., Any],
    caught: ResumeSpec | None,
) -> None:
    bytecode, loop = plan.bytecode, plan.loop
    # target set below
    handler = None if outer is None else Handler(bytecode.instructions[loop.head], outer.depth, outer.lasti)
    landings = {target: Instruction("NOP", positions=splice.position) for target in ways}

    def emit(op: str, arg: Any = None, **fields: Any) -> Instruction:
        return splice.emit(op, arg, handler=handler, **fields)

    start = emit("NOP")
    if loop.kind == "for":
        head = bytecode.instructions[loop.head]
        step = emit("FOR_ITER")
        step.positions, step.target = head.positions, landings[head.target.index]
    emit_region_call(
        plan,
        region,
        dispatch,
        emit,
        handler,
        splice.slot,
        lambda way_out: start if way_out.id == 0 else landings[way_out.target],
    )
    for target, landing in landings.items():
        way = ways[target]
        splice.code.append(landing)
        if way.ending is not None:
            copy_ending(splice, bytecode, way.ending)
        else:
            assert way.resume is not None
            emit_tail(splice, way.resume, leave)
    if handler is not None and caught is not None:
        handler.target = splice.emit("PUSH_EXC_INFO")
        emit_tail(splice, caught, leave)
    elif handler is not None:
        handler.target = splice.copy(handled)[outer.target.index]
