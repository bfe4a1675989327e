"""Leaving compiled code in the middle of a function and coming back.

A graph break at instruction `index` needs two kinds of function:

* the *break function* gets the live locals and the operand stack as arguments, rebuilds the frame's state, executes the
  one instruction natively, under copies of the exception handlers that cover it, and then calls
* a *resume function* for where execution goes on: the original's code from there, with the live locals and the stack as
  its parameters.

Calling convention. Both are plain functions. `spec.params` lists the positional parameters (splice.Param): first the
locals that are bound and live, by slot, then the stack, bottom first, without NULLs. `spec.closure` lists the
original's slots whose *cells* form the closure, in the order of co_freevars: cells keep their identity. The break
function calls `dispatch(resume_function, *arguments)`, outside of any handler; `dispatch` is a constant of its code,
given by the integrator, who may look up a compiled entry by `resume_function.__code__`. With `dispatch=None` it calls
the resume function itself.

State. The caller says which stack slots hold NULL and which slots are bound; what else the stack holds is read off the
code. Handled exceptions are re-established: see Param. What cannot be carried over raises CannotResume with the reason.

Module-level code whose locals are its globals (notebook cells) uses *_GLOBAL instructions in the made functions; they
are not CO_OPTIMIZED, so calling them gives them globals() as f_locals. Pass `locals_are_globals=True`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType
from typing import Any, Callable, Collection, Iterable, Sequence

from ...base.labels import REST
from .assemble import assemble
from .flow import EXC, LASTI, MAYBE, NULL, PREV_EXC, VALUE, Kinds, analyse, reachable, slots_in, transfer
from .instructions import Bytecode, Handler, Instruction, decode
from .opset import SLOT_BINDS, SLOT_EMPTIES, pops
from .memo import CodeMemo
from .splice import (
    CannotResume,
    Param,
    Splice,
    cells_used,
    check_first_cell,
    check_supported,
    delete_if_unbound,
    push_or_unbound,
)
from .version import BRANCHES_ON_BOOL, NULL_FIRST

__all__ = ["STACK", "CannotResume", "Param", "ResumeSpec", "BreakSpec", "make_resume", "make_break", "raising"]

STACK = "__stack_"  # names of parameters for what lay on the stack begin so


@dataclass(frozen=True, eq=False)
class ResumeSpec:
    """A function that starts at an instruction of another. See the module's calling convention."""

    code: CodeType
    index: int  # of the instruction (in decode(original).instructions) where it starts
    params: tuple[Param, ...]
    closure: tuple[int, ...]  # slots of the original
    kinds: Kinds  # the operand stack, bottom first (flow.VALUE, NULL, PREV_EXC, LASTI)
    bound: int  # mask of slots bound on entry
    maybe: int = 0  # mask of slots that may be unbound: their argument is UNBOUND then

    def arguments(self, local_values: Any, stack: Sequence[Any], handled: dict[int, Any] | None = None) -> list[Any]:
        """The positional arguments that are the frame's state: `local_values[slot]`, `stack[depth]`,
        `handled[depth]`.
        """
        found = []
        for param in self.params:
            if param.kind == "within":
                break
            source = local_values if param.kind == "local" else stack if param.kind == "stack" else handled
            found.append(source[param.number])
        return found

    def function(self, namespace: dict[str, Any], cells: Sequence[CellType] = ()) -> FunctionType:
        """The function, over globals and the cells for `closure`."""
        made = FunctionType(self.code, namespace, self.code.co_name, None, tuple(cells) or None)
        made.__qualname__ = self.code.co_qualname
        return made


@dataclass(frozen=True, eq=False)
class BreakSpec(ResumeSpec):
    """A function that executes one instruction and goes on in one of `successors` (fall-through first, then the
    jump).
    """

    successors: tuple[ResumeSpec, ...] = field(default=())


def live_mask(bytecode: Bytecode, index: int) -> int:
    """Slots whose content may be used from `index` on."""
    live = analyse(bytecode).live[index]
    first = bytecode.slots[0] if bytecode.slots else None
    if (
        first is not None
        and first.param
        and not live & 1
        and any(slot.name == "__class__" and slot.free for slot in bytecode.slots)
    ):
        live |= 1  # zero-argument super() takes the first parameter out of the frame
    return live


def _mask(slots: Iterable[int] | int) -> int:
    return slots if isinstance(slots, int) else sum(1 << slot for slot in set(slots))


def resolve(
    bytecode: Bytecode, index: int, nulls: Collection[int], bound: Iterable[int] | int | None
) -> tuple[Kinds, int]:
    """The state at `index`, checked against what the code says."""
    flow = analyse(bytecode)
    known = flow.kinds[index]
    if known is None:
        raise CannotResume("the instruction cannot be reached")
    kinds = tuple(
        NULL if depth in nulls else VALUE if kind in (MAYBE, EXC) else kind for depth, kind in enumerate(known)
    )
    for depth, kind in enumerate(known):
        if (depth in nulls) != (kind == NULL) and kind != MAYBE:
            raise ValueError(
                f"stack slot {depth} at {bytecode.instructions[index]!r} holds {kind}; the caller says "
                f"{'NULL' if depth in nulls else 'a value'}"
            )
    must, may = flow.must[index], flow.may[index]
    if bound is None:
        undecided = must ^ may
        if undecided & live_mask(bytecode, index):
            names = [bytecode.slots[i].name for i in slots_in(undecided)]
            raise ValueError(f"say which slots are bound: the code does not decide {names}")
        return kinds, must
    mask = _mask(bound) | sum(1 << i for i, slot in enumerate(bytecode.slots) if slot.free)
    missing = must & live_mask(bytecode, index) & ~mask
    if missing:
        raise ValueError(
            f"slots {[bytecode.slots[i].name for i in slots_in(missing)]} are bound here, the caller says they are not"
        )
    return kinds, mask


def params_for(bytecode: Bytecode, kinds: Kinds, passed: int) -> tuple[Param, ...]:
    """The parameters: the locals of the mask `passed`, then the stack."""
    taken = {slot.name for slot in bytecode.slots}
    found = []

    def fresh(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    for number in slots_in(passed):
        name = bytecode.slots[number].name
        found.append(Param("local", number, name if name.isidentifier() else fresh("__local_" + name.strip("."))))
    for depth, kind in enumerate(kinds):
        if kind == VALUE:
            found.append(Param("stack", depth, fresh(f"{STACK}{depth}")))
        elif kind == PREV_EXC:
            found.append(Param("handled", depth, fresh(f"__handled_{depth}")))
    return tuple(found)


def plain_slots(bytecode: Bytecode) -> int:
    """Mask of the slots that hold values, not cells."""
    return sum(1 << i for i, slot in enumerate(bytecode.slots) if not (slot.cell or slot.free))


def restore(splice: Splice, kinds: Kinds, params: Sequence[Param], closure: Sequence[int], bound: int) -> None:
    """Emit what makes the frame's state out of the parameters."""
    for number in closure:
        if not bound >> number & 1:
            # an empty slot, in the middle of an inlined comprehension
            splice.emit("DELETE_FAST", slot=splice.slot(number))
    splice.restore_stack(
        kinds, {param.number: at for at, param in enumerate(params) if param.kind in ("stack", "handled")}
    )


_resumes: CodeMemo[dict[tuple, ResumeSpec]] = CodeMemo()


def make_resume(
    code: CodeType,
    index: int,
    nulls: Collection[int] = (),
    bound: Iterable[int] | int | None = None,
    *,
    maybe: Iterable[int] | int = 0,
    locals_are_globals: bool = False,
) -> ResumeSpec:
    """A function that goes on at instruction `index` of `code`.

    nulls: depths of the operand stack (0 is the bottom) that hold NULL; bound: slots that are bound (cell slots: hold a
    cell), a mask or numbers; None if the code decides it; maybe: slots whose arguments are UNBOUND where they are not
    bound. The same state gives the same spec, hence the same code object. Raises CannotResume; ValueError if the state
    contradicts the code.
    """
    bytecode = decode(code)
    check_supported(bytecode, locals_are_globals)
    kinds, mask = resolve(bytecode, index, nulls, bound)
    return resume_at(code, bytecode, index, kinds, mask, _mask(maybe))


def check_started(bytecode: Bytecode, index: int) -> None:
    """Raises CannotResume in the function's prologue."""
    first = next(i for i, ins in enumerate(bytecode.instructions) if ins.op == "RESUME")
    if index <= first:
        raise CannotResume("the function has not started yet")


def resume_at(code: CodeType, bytecode: Bytecode, index: int, kinds: Kinds, bound: int, maybe: int = 0) -> ResumeSpec:
    """make_resume for a state that is known to be right."""
    check_started(bytecode, index)
    maybe &= ~bound & live_mask(bytecode, index) & plain_slots(bytecode)
    live = live_mask(bytecode, index)
    plain = plain_slots(bytecode)
    specs = _resumes.get(code)
    if specs is None:
        specs = _resumes[code] = {}
    key = (index, kinds, bound & live, bound & ~plain, maybe)
    known = specs.get(key)
    if known is not None:
        return known
    check_first_cell(bytecode)
    params = params_for(bytecode, kinds, bound & live & plain | maybe)
    wanted = reachable(bytecode, index)
    closure = cells_used(bytecode, wanted)
    splice = Splice(bytecode, params, closure, bytecode.instructions[index].positions)
    for number in slots_in(maybe):
        delete_if_unbound(splice.emit, splice.slot(number))
    restore(splice, kinds, params, closure, bound)
    jump = splice.emit("JUMP")
    entry = splice.copy(wanted)[index]
    lead = jump.target = Instruction("NOP", positions=splice.position, handler=entry.handler)  # see _emit_body
    splice.code.insert(splice.code.index(entry), lead)
    spec = specs[key] = ResumeSpec(splice.finish(), index, params, closure, kinds, bound, maybe)
    positions = bytecode.instructions[index].positions
    _resume_codes[spec.code] = (positions[0] if positions else None) or 0
    return spec


_resume_codes: CodeMemo[int] = CodeMemo()  # the line at which execution goes on; 0: not known


def goes_on_at(code: CodeType) -> int | None:
    """The line at which a resume function goes on (0: not known); None where `code` is none. What goes on in a function
    that was part of its caller's graph takes the caller's rest as its first argument (see nested.py)."""
    first = code.co_varnames[: code.co_argcount][:1]
    return _resume_codes.get(code, 0 if first and first[0].startswith(REST) else None)


def raising(function: FunctionType, error: BaseException) -> FunctionType | None:
    """A resume function that restores the frame's state as `function` does and then raises `error` there, under the
    handlers of that place: what lies in the program's finally and with statements is done. None where `function` is no
    resume function."""
    code = function.__code__
    if _resume_codes.get(code) is None:
        return None
    bytecode = decode(code).copy()
    # from the restored state to where execution goes on
    jump = next(ins for ins in bytecode.instructions if ins.op == "JUMP")
    lead = jump.target
    assert lead is not None
    at_hand = [error]  # a code object must not keep the error, whose frames hold it
    load = [Instruction("LOAD_CONST", at_hand.pop), Instruction("PUSH_NULL")]
    made = [
        Instruction("NOP"),
        *(reversed(load) if NULL_FIRST else load),
        Instruction("CALL", 0),
        Instruction("RAISE_VARARGS", 1),
    ]
    for ins in made:
        ins.positions, ins.handler = lead.positions, lead.handler
    jump.target = made[0]
    bytecode.instructions.extend(made)
    raises = FunctionType(assemble(bytecode), function.__globals__, function.__name__, None, function.__closure__)
    raises.__qualname__ = function.__qualname__
    return raises


def _step(ins: Instruction, kinds: Kinds, bound: int, jump: bool) -> tuple[Kinds, int]:
    """The concrete state after `ins`."""
    bit = 1 << ins.slot if ins.slot >= 0 else 0
    after = transfer(ins, kinds, jump)
    if ins.op in SLOT_EMPTIES:
        after = after[: len(kinds)] + (VALUE if bound & bit else NULL,) * (len(after) - len(kinds))
        bound &= ~bit
    elif ins.op in SLOT_BINDS:
        bound = bound & ~bit if pops(ins) and kinds[-1] == NULL else bound | bit
    elif ins.pushes_method:
        after = after[:-2] + ((NULL, VALUE) if NULL_FIRST else (VALUE, NULL))
    return after, bound


def _emit_native(splice: Splice, ins: Instruction) -> Instruction:
    """The one instruction, so that what it leaves on the stack is known beforehand: a method is loaded bound, beside a
    NULL. A branch comes with its question: capture leaves it to the branch (`to_bool`), and CPython from 3.13 on reads
    what is no bool as if it were one.
    """
    if BRANCHES_ON_BOOL and ins.op in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"):
        splice.emit("TO_BOOL")
    native = ins.copy(handler=None, slot=splice.slot(ins.slot) if ins.slot >= 0 else -1)
    splice.code.append(native)
    if ins.pushes_method:
        native.op, native.method = ins.op if ins.method else "LOAD_ATTR", False
        splice.emit("PUSH_NULL")
        if NULL_FIRST:
            splice.emit("SWAP", 2)
    return native


def _emit_within(splice: Splice, settle: Callable[[Any], Any] | None) -> Instruction:
    """Call what goes on in the frame that the call made, and `settle` with its result. Gives the last instruction."""
    callee, arguments = (i for i, param in enumerate(splice.params) if param.kind == "within")
    if settle is not None:
        splice.push_call(settle)
    if NULL_FIRST:
        splice.emit("PUSH_NULL")
    splice.load_and_forget(callee)
    if not NULL_FIRST:
        splice.emit("PUSH_NULL")
    splice.load_and_forget(arguments)
    call = splice.emit("CALL_FUNCTION_EX", 0)
    return call if settle is None else splice.emit("CALL", 1)


def emit_tail(splice: Splice, resume: ResumeSpec, dispatch: Callable[..., Any] | None) -> Instruction:
    """Pack the state and call the resume function. Returns the first instruction."""
    first = len(splice.code)
    splice.emit("NOP")
    saved = splice.save_stack(resume.kinds)
    if dispatch is None:
        if NULL_FIRST:
            splice.emit("PUSH_NULL")
        splice.push_function(resume.code, resume.closure, resume.bound)
        if not NULL_FIRST:
            splice.emit("PUSH_NULL")
    else:
        splice.push_call(dispatch)
        splice.push_function(resume.code, resume.closure, resume.bound)
    late: list[Callable[[], None]] = []
    for at, param in enumerate(resume.params):
        if param.kind == "local" and resume.maybe >> param.number & 1:
            push_or_unbound(splice.emit, splice.slot(param.number), at + (2 if dispatch is None else 3), None, late)
            splice.emit("LOAD_CONST", None)
            splice.emit("STORE_FAST", slot=splice.slot(param.number))
        else:
            splice.load_and_forget(splice.slot(param.number) if param.kind == "local" else saved[param.number])
    splice.emit("CALL", len(resume.params) + (dispatch is not None))
    splice.emit("RETURN_VALUE")
    for out_of_line in late:
        out_of_line()
    return splice.code[first]


_HARMLESS = frozenset(
    ["NOP", "POP_TOP", "LOAD_CONST", "LOAD_FAST", "STORE_FAST", "COPY", "SWAP", "BUILD_TUPLE", "JUMP", "RETURN_VALUE"]
)
_SHORT = 12


def short_ending(bytecode: Bytecode, index: int, kinds: Kinds, bound: int) -> list[int] | None:
    """The instructions from `index` to the return, if they are few and can neither raise nor call: not worth a resume
    function.
    """
    path: list[int] = []
    while len(path) < _SHORT:
        ins = bytecode.instructions[index]
        if ins.op not in _HARMLESS or (ins.op == "LOAD_FAST" and not bound >> ins.slot & 1) or index in path:
            return None
        if ins.op in ("POP_TOP", "STORE_FAST") and kinds[-1] != VALUE:
            return None
        path.append(index)
        if ins.op == "RETURN_VALUE":
            return path
        kinds, bound = _step(ins, kinds, bound, ins.op == "JUMP")
        index = ins.target.index if ins.target is not None else index + 1
    return None


def make_break(
    code: CodeType,
    index: int,
    nulls: Collection[int] = (),
    bound: Iterable[int] | int | None = None,
    *,
    dispatch: Callable[..., Any] | None = None,
    locals_are_globals: bool = False,
    finish_short: bool = True,
    within: Callable[[Any], Any] | None = None,
) -> BreakSpec:
    """A function that executes instruction `index` natively and goes on in resume functions. Arguments as for
    make_resume.

    dispatch: called as dispatch(resume_function, *arguments); None: the resume function is called itself. With
    `finish_short`, an ending that only returns a value known by then (`return None` after the last call) is executed in
    place. An exception of the instruction goes on in a resume function that starts in the handler.

    within: the instruction is a call, and the frame that it made is left as well (nested.py). `nulls` are those below
    the call's operands, and the last two parameters, of kind "within", are what is called in the instruction's place
    and the tuple of its arguments. Under a handler the result goes through `within`.
    """
    bytecode = decode(code)
    check_supported(bytecode, locals_are_globals)
    if within is not None:
        known = analyse(bytecode).kinds[index]
        below = len(transfer(bytecode.instructions[index], known)) - 1 if known is not None else 0
        nulls = [*nulls, *(d for d, kind in enumerate(known or ()) if d >= below and kind == NULL)]
    kinds, mask = resolve(bytecode, index, nulls, bound)
    check_started(bytecode, index)
    live, plain = live_mask(bytecode, index), plain_slots(bytecode)
    check_first_cell(bytecode)
    ins = bytecode.instructions[index]
    held = kinds if within is None else kinds[:below]
    finish_short = finish_short and (within is None or ins.handler is not None)  # else the result may be Suspended
    params = params_for(bytecode, held, mask & live & plain)
    if within is not None:
        params += Param("within", 0, "__within"), Param("within", 1, "__within_args")
    caught = _caught(code, bytecode, ins, kinds, mask)
    handled = reachable(bytecode, ins.handler.target.index) if ins.handler is not None and caught is None else set()
    nexts: list[tuple[bool, ResumeSpec | None, list[int] | None]] = []
    if ins.op not in ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE"):
        for jump in (False, True) if ins.is_conditional else (True,) if ins.is_jump else (False,):
            following = ins.target.index if jump else index + 1
            after, after_bound = _step(ins, kinds, mask, jump)
            ending = short_ending(bytecode, following, after, after_bound) if finish_short else None
            resume = None if ending is not None else resume_at(code, bytecode, following, after, after_bound)
            nexts.append((jump, resume, ending))
    used = set(handled) | {index}
    for _, _, ending in nexts:
        used |= set(ending or ())
    closure = set(cells_used(bytecode, used)) | set(caught.closure if caught is not None else ())
    for _, resume, _ in nexts:
        closure |= set(resume.closure if resume is not None else ())
    splice = Splice(bytecode, params, sorted(closure), ins.positions)
    restore(splice, held, params, splice.closure, mask)
    _emit_body(splice, bytecode, ins, handled, nexts, dispatch, caught, within)
    return BreakSpec(
        splice.finish(),
        index,
        params,
        splice.closure,
        held,
        mask,
        successors=tuple(r for _, r, _ in nexts if r is not None),
    )


def _caught(code: CodeType, bytecode: Bytecode, ins: Instruction, kinds: Kinds, bound: int) -> ResumeSpec | None:
    """Where an exception of `ins` goes on: in the handler, behind the instruction that makes the exception the handled
    one. None where there is no handler, or one of the short ones without that instruction, which are copied."""
    handler = ins.handler
    if handler is None or handler.target.op != "PUSH_EXC_INFO":
        return None
    after = (*kinds[: handler.depth], *((LASTI,) if handler.lasti else ()), PREV_EXC, VALUE)
    return resume_at(code, bytecode, handler.target.index + 1, after, bound)


def _emit_body(
    splice: Splice,
    bytecode: Bytecode,
    ins: Instruction,
    handled: set[int],
    nexts: list,
    dispatch: Callable[..., Any] | None,
    caught: ResumeSpec | None,
    within: Callable[[Any], Any] | None,
) -> None:
    first = len(splice.code)
    splice.emit(
        "NOP"
        # 3.13 looks up the handler of a call that raises one code unit before it, so the handler must cover something
        # there
    )
    native = (
        _emit_native(splice, ins)
        if within is None
        else _emit_within(splice, within if ins.handler is not None else None)
    )
    covered = splice.code[first:]
    for jump, resume, ending in nexts:
        if ending is not None:
            entry = splice.emit("NOP")
            copy_ending(splice, bytecode, ending)
        else:
            entry = emit_tail(splice, resume, dispatch)
        if jump:
            native.target = entry
    if ins.handler is not None and caught is not None:
        catch = splice.emit("PUSH_EXC_INFO")
        emit_tail(splice, caught, dispatch)
    elif ins.handler is not None:
        catch = splice.copy(handled)[ins.handler.target.index]
    for each in covered if ins.handler is not None else ():
        each.handler = Handler(catch, ins.handler.depth, ins.handler.lasti)


def copy_ending(splice: Splice, bytecode: Bytecode, path: list[int]) -> None:
    """Emit a short ending."""
    for index in path:
        ins = bytecode.instructions[index]
        if ins.op != "JUMP":
            splice.code.append(ins.copy(handler=None, slot=splice.slot(ins.slot) if ins.slot >= 0 else -1))
