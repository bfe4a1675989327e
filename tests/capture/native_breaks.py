"""Make a function break at a chosen instruction, or run its loops' bodies as functions, as compiled entries would, but
natively.

`variant_that_breaks(code, index, ...)` is the original with one addition: when `due()` is true at instruction `index`,
it packs its live locals and operand stack and returns the result of the break function. `states(function, args)` runs a
function under an opcode trace and reports in which states (bound slots) each instruction is met, so that every
reachable one can be tried. `outline_loops(code, dispatch)` replaces the bodies of loops by calls of their regions.
"""

from __future__ import annotations

import sys
from types import CodeType, FunctionType
from typing import Any, Callable

from tcompile.compiler.capture.bytecode import NULL_FIRST, Bytecode, Handler, Instruction, Slot, assemble, decode
from tcompile.compiler.capture.bytecode.flow import MAYBE, NULL, analyse
from tcompile.compiler.capture.bytecode.loop_break import LoopBreakSpec, make_loop_break
from tcompile.compiler.capture.bytecode.loops import Loop, find_loops
from tcompile.compiler.capture.bytecode.regions import (
    CannotOutline,
    Leave,
    Plan,
    RegionSpec,
    emit_region_call,
    make_region,
)
from tcompile.compiler.capture.bytecode.resume import BreakSpec, CannotResume, ResumeSpec, make_break
from tcompile.compiler.capture.bytecode.splice import as_globals, check_first_cell, check_supported


def rebuilt(function: FunctionType, code: CodeType) -> FunctionType:
    """`function` with other code."""
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def without_method_loads(code: CodeType) -> CodeType:
    """The same behaviour with methods loaded bound, so that the code alone decides where the stack holds NULL."""
    bytecode = decode(code).copy()
    made: list[Instruction] = []
    for ins in bytecode.instructions:
        made.append(ins)
        if ins.op == "LOAD_METHOD" or (ins.op == "LOAD_SUPER_ATTR" and ins.method):
            ins.op, ins.method = "LOAD_ATTR" if ins.op == "LOAD_METHOD" else ins.op, False
            made.append(Instruction("PUSH_NULL", positions=ins.positions, handler=ins.handler))
            if NULL_FIRST:
                made.append(Instruction("SWAP", 2, positions=ins.positions, handler=ins.handler))
    bytecode.instructions = made
    return assemble(bytecode)


def states(function: Callable, args: tuple) -> dict[int, list[int]]:
    """Instruction index -> for each time it is met in one call, in order, the mask of bound slots (cell slots counted
    as bound).
    """
    code = function.__code__
    bytecode = decode(code)
    by_offset: dict[int, int] = {}
    for ins in bytecode.instructions:
        by_offset.setdefault(ins.offset, ins.index)
    must = analyse(bytecode).must  # of cell slots the code tells all: they are not among f_locals
    cells = sum(1 << i for i, slot in enumerate(bytecode.slots) if slot.cell or slot.free)
    numbers = {slot.name: i for i, slot in enumerate(bytecode.slots)}
    seen: dict[int, list[int]] = {}

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            index = by_offset.get(frame.f_lasti)
            if index is not None:
                plain = sum(1 << numbers[name] for name in frame.f_locals if name in numbers)
                mask = plain & ~cells | must[index] & cells
                seen.setdefault(index, []).append(mask)
        return trace

    previous = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # 3.12 sends opcode events only if some frame asked for them before settrace
    sys.settrace(trace)
    try:
        function(*args)
    except Exception:  # the states on the way are what is asked for
        seen.setdefault(-1, [])
    finally:
        sys.settrace(previous)
    seen.pop(-1, None)
    return seen


def variant_that_breaks(
    code: CodeType,
    index: int,
    bound: int | None,
    due: Callable[[], bool],
    dispatch: Callable[..., Any],
    *,
    locals_are_globals: bool = False,
    finish_short: bool = False,
) -> tuple[CodeType, BreakSpec]:
    """`code` (as without_method_loads makes it) that leaves through a break function at `index` whenever due() is
    true.
    """
    spec = make_break(
        code,
        index,
        _nulls(code, index),
        bound,
        dispatch=dispatch,
        locals_are_globals=locals_are_globals,
        finish_short=finish_short,
    )
    return assemble(_with_exit(decode(code).copy(), index, spec, due)), spec


def variant_that_loops(
    code: CodeType,
    loop: Loop,
    bound: int | None,
    due: Callable[[], bool],
    dispatch: Callable[..., Any],
    *,
    locals_are_globals: bool = False,
) -> tuple[CodeType, LoopBreakSpec]:
    """The same with make_loop_break: leaves where `loop` starts."""
    spec = make_loop_break(
        code, loop, _nulls(code, loop.head), bound, dispatch=dispatch, locals_are_globals=locals_are_globals
    )
    return assemble(_with_exit(decode(code).copy(), loop.head, spec, due)), spec


def _nulls(code: CodeType, index: int) -> set[int]:
    kinds = analyse(decode(code)).kinds[index]
    if kinds is None:
        raise CannotResume("the instruction cannot be reached")
    if MAYBE in kinds:
        raise ValueError("the code does not decide where the stack holds NULL")
    return {depth for depth, kind in enumerate(kinds) if kind == NULL}


def _with_exit(bytecode: Bytecode, index: int, spec: ResumeSpec, due: Callable[[], bool]) -> Bytecode:
    entry = bytecode.instructions[index]
    stays = entry.copy()
    made: list[Instruction] = []
    taken = {slot.name for slot in bytecode.slots}
    n_locals = bytecode.nlocals
    temporaries: list[Slot] = []

    def emit(op: str, arg: Any = None, **fields: Any) -> Instruction:
        made.append(Instruction(op, arg, positions=entry.positions, **fields))
        return made[-1]

    def call(function: Any) -> None:
        if NULL_FIRST:
            emit("PUSH_NULL")
        emit("LOAD_CONST", function)
        if not NULL_FIRST:
            emit("PUSH_NULL")

    def temporary(depth: int) -> int:
        name = f"__t{depth}"
        assert name not in taken
        temporaries.append(Slot(name, True, False, False, False))
        return n_locals + len(temporaries) - 1

    call(due)
    emit("CALL", 0)
    jump = emit("POP_JUMP_IF_FALSE")
    lead = jump.target = Instruction("NOP", positions=entry.positions, handler=stays.handler)  # resume.py says why
    saved: dict[int, int] = {}
    for depth in range(len(spec.kinds) - 1, -1, -1):
        kind = spec.kinds[depth]
        if kind == "lasti":
            emit("POP_TOP")
            continue
        if kind == "prev_exc":
            call(sys.exception)
            emit("CALL", 0)
        saved[depth] = temporary(depth)
        emit("STORE_FAST", slot=saved[depth])
        if kind == "prev_exc":
            emit("POP_EXCEPT")
    if NULL_FIRST:
        emit("PUSH_NULL")
    if spec.closure:
        for number in spec.closure:
            if spec.bound >> number & 1:
                emit("LOAD_CLOSURE", slot=number)
            else:
                call(type((lambda: n_locals).__closure__[0]))
                emit("CALL", 0)
        emit("BUILD_TUPLE", len(spec.closure))
    emit("LOAD_CONST", spec.code)
    emit("MAKE_FUNCTION", 8 if spec.closure else 0)
    if not NULL_FIRST:
        emit("PUSH_NULL")
    for param in spec.params:
        emit("LOAD_FAST", slot=param.number if param.kind == "local" else saved[param.number])
    emit("CALL", len(spec.params))
    emit("RETURN_VALUE")
    # everything that jumped to the instruction now comes here first
    first = made[0]
    entry.op, entry.arg, entry.slot, entry.target, entry.kwnames = (
        first.op,
        first.arg,
        first.slot,
        first.target,
        first.kwnames,
    )
    entry.handler, entry.with_spec, entry.method, entry.two_arg = None, False, False, False
    made[0] = entry
    added = len(temporaries)
    for ins in bytecode.instructions:
        if ins is not entry and ins.slot >= n_locals:
            ins.slot += added
    if stays.slot >= n_locals:
        stays.slot += added
    for ins in made:
        if ins.op == "LOAD_CLOSURE" and ins.slot >= n_locals:
            ins.slot += added
    bytecode.slots[n_locals:n_locals] = temporaries
    bytecode.instructions[index : index + 1] = made + [lead, stays]
    if not bytecode.is_function:
        as_globals(bytecode.instructions)
    return bytecode


def _make_host(plan: Plan, region: RegionSpec, dispatch: Callable[..., Any]) -> CodeType:
    host = plan.bytecode.copy()
    entry = host.instructions[plan.loop.entry]
    outer = plan.outer
    handler = None if outer is None else Handler(host.instructions[outer.target.index], outer.depth, outer.lasti)
    stub: list[Instruction] = []

    def emit(op: str, arg: Any = None, **fields: Any) -> Instruction:
        stub.append(Instruction(op, arg, positions=entry.positions, handler=handler, **fields))
        return stub[-1]

    def landing(leave: Leave) -> Instruction:
        target = host.instructions[leave.target]
        return start if target is entry else target

    start = emit("NOP")
    emit_region_call(plan, region, dispatch, emit, handler, lambda slot: slot, landing)
    for ins in host.instructions:
        if ins.target is entry:
            ins.target = start
    host.instructions[plan.loop.entry : plan.loop.entry] = stub
    return assemble(host)


def outline_loop(
    code: CodeType, loop: Loop, dispatch: Callable[..., Any], locals_are_globals: bool
) -> tuple[CodeType, RegionSpec]:
    """Split `code` at `loop` (one of find_loops(code)). `dispatch(region_function, *arguments)` must return what the
    region returns.

    Raises CannotOutline, or splice.CannotResume for kinds of code that cannot be split at all (generators, class
    bodies).
    """
    bytecode = decode(code)
    check_supported(bytecode, locals_are_globals)
    check_first_cell(bytecode)
    plan = Plan(bytecode, loop)
    region = make_region(plan)
    return _make_host(plan, region, dispatch), region


def outline_loops(
    code: CodeType,
    dispatch: Callable[..., Any],
    *,
    innermost: bool = False,
    locals_are_globals: bool = False,
    choose: Callable[[Loop], bool] | None = None,
) -> tuple[CodeType, list[RegionSpec], list[tuple[Loop, str]]]:
    """Outline every outermost (or every innermost) loop. Returns the host, the regions in the order of their lines, and
    what could not be outlined with the reasons. `choose` may refuse loops."""
    regions: list[RegionSpec] = []
    refused: list[tuple[Loop, str]] = []
    done: set[tuple] = set()
    while True:
        for loop in find_loops(code):
            head = decode(code).instructions[loop.head]
            key = (loop.kind, head.positions)
            if key in done or (loop.children if innermost else loop.parent):
                continue
            done.add(key)
            if choose is not None and not choose(loop):
                continue
            try:
                host, region = outline_loop(code, loop, dispatch, locals_are_globals)
            except CannotOutline as error:
                refused.append((loop, str(error)))
                continue
            regions.append(region)
            code = host
            break
        else:
            return code, sorted(regions, key=lambda region: region.loop.line or 0), refused
