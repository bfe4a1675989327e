"""What a call without an entry teaches: sizes and numbers that vary; and how many entries are enough.

A notebook runs its cells again and again. Each run of a cell counts towards `recompile_limit` anew (a *generation* of
entries), so that running it often never ends in eager code; entries of earlier runs serve, too, and the oldest make
room.
"""

from __future__ import annotations

import collections
import dis
import functools
import itertools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..base.labels import is_loop
from ..capture.bytecode.instructions import decode
from ..capture.bytecode.regions import LOOP_ITEM
from ..capture.bytecode.resume import STACK
from ..capture.kinds.outside_iterators import left_of
from ..capture.machine.stack_values import is_numpy_scalar
from ..guards.guard import Guard
from ..guards.python_program import evaluate_source
from ..guards.source import Source, attr, count, dict_value, glob, item, local, where_number
from ..guards.source_values import Unreachable, instance_dict, length

__all__ = [
    "FrameState",
    "OutsideValues",
    "carried",
    "compare_with_first",
    "first_call",
    "learn",
    "numbers_of_turns",
    "numbers_so_far",
    "only_addresses_differ",
    "is_before_first_step",
    "is_full",
    "make_room",
]

_ADDRESS_RUNS = 2  # runs that may compile anew for want of one
_ITEMS = 4  # of what a loop's turn is given that are looked at
_LENGTHS = 4  # of a container that is read whole that are compiled for,
_LENGTHS_OF_TURNS = 2  # and in turns of a loop, where it grows in each
_FLAGS = 4  # values of a sequence, each of which is true or false, that entries are made for
_LEAST_ADDRESS = 1 << 16
_NUMBERS = 256  # of a list that are looked at
_DIGITS = 12  # characters of a float that nobody writes
_MOST_OUTSIDE = 1024  # values from outside that are kept; the oldest go
_SMALL = 256  # whole numbers up to it are met by chance
_PART = 4  # characters of a text that is looked for in others
_SERVED = 2  # calls that an entry serves, on an average, where more of them are worth making
_READS, _SETS = ("LOAD_NAME", "LOAD_GLOBAL"), ("STORE_NAME", "STORE_GLOBAL")
_GIVES = ("STORE_FAST", *_SETS, "DELETE_FAST", "UNPACK_SEQUENCE", "NOP", "JUMP")
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_RESULTS = 8  # of a tuple that a call returned that are looked at


@dataclass
class FrameState:
    """What an engine has learned of one code object."""

    name: str  # co_qualname
    dynamic_dims: dict[Any, set[int]] = field(default_factory=dict)  # Source of a tensor -> dimensions that are symbols
    dynamic_strides: dict[Any, set[int]] = field(default_factory=dict)  # the same for strides that follow from no size
    dynamic_ints: set[Any] = field(default_factory=set)  # Sources of ints that are symbols
    signed_ints: set[Any] = field(default_factory=set)  # those of them that an entry takes at any value, below 2 too
    dynamic_floats: set[Any] = field(default_factory=set)  # Sources of floats that are inputs of the graph
    dynamic_texts: set[Any] = field(default_factory=set)  # Sources of texts that nobody is to guard by what they say
    lengths: dict[Any, set[int]] = field(default_factory=dict)  # how long a list was that is read whole
    unread: set[Any] = field(default_factory=set)  # Sources of what no entry reads whole: containers, or their lengths
    waited: int = -1  # the run of a cell in which a library's root last ran plain for want of an entry that serves
    waits_for: tuple[int, ...] | None = None  # ids of that call's arguments, until the frame hook has met it
    served: int = -1  # calls that its entries had served then
    renamed_unmet: list[Any] = field(default_factory=list)  # sources of guards of entries that else serve, renamed
    addresses: set[int] = field(default_factory=set)  # runs in which an object that was told by its id was another one
    given_up: bool = False  # its entries served too few calls: no more are made in later runs
    put_off: int = -1  # the run in which it ran plain since enough was compiled in it (cell_work.py)
    first: dict[Any, Any] | None = None  # what the call was given that set_stance had run eager before all others
    skips: int = 0
    alike: int = 0  # the latest of these, for one reason
    rest: int = 0  # calls that capture does not look at before the next one that it does
    last_skip: str = ""  # why capture passed the frame over last
    skip_reason: str = ""  # not empty: run as it is from now on

    def vary(self, places: Iterable[Source]) -> None:
        """What lies there is not the same in each run, whatever it is."""
        for varying in (self.dynamic_ints, self.dynamic_floats, self.dynamic_texts):
            varying.update(places)


# ---- sizes and numbers that vary
def first_call(code: types.CodeType, args: tuple) -> dict[Any, Any]:
    """Sizes and numbers of a call that runs before anything is compiled, by the Sources of the frame's parameters."""
    given = {local(k, name): value for k, (name, value) in enumerate(zip(code.co_varnames, args))}
    sizes = {source: tuple(value.shape) for source, value in given.items() if type(value) in _PLAIN_TENSORS}
    return sizes | {source: value for source, value in given.items() if type(value) in (int, float)}


def compare_with_first(state: FrameState, code: types.CodeType, args: tuple) -> None:
    """What differs between the first call and this one varies: the first entry is made for all its values."""
    if state.first is None:
        return
    for source, value in first_call(code, args).items():
        before = state.first.get(source)
        if before is None or type(before) is not type(value) or before == value:
            continue
        if type(value) is int:
            state.dynamic_ints.add(source)
        elif type(value) is float:
            state.dynamic_floats.add(source)
        elif len(before) == len(value):
            varying = {d for d, (n, m) in enumerate(zip(before, value)) if n != m}
            state.dynamic_dims.setdefault(source, set()).update(varying)
    state.first = {}


def numbers_of_turns(code: types.CodeType, known: "OutsideValues") -> set[Any]:
    """Sources of the numbers that differ from turn to turn where `code` is one turn of a loop, or the rest of one: its
    item, what the item holds (enumerate, zip), and what one turn hands to the next (counters, sums). Nothing has to
    teach that: the second turn would be a second compilation. `known` keeps what turns call their items."""
    if not is_loop(code.co_qualname):
        return set()
    handed = _handed_on(code)
    if (turns := _item_of_turn(code)) is None:
        names = known.items.get(_frame(code), frozenset())
        held = {local(k, name) for k, name in enumerate(code.co_varnames[: code.co_argcount]) if name in names}
        # (in a cell also where functions that the turn has called have a rest of their own, which goes on with its own)
        return handed | held | {glob(name) for name in names if is_a_cells(code)}
    others = known.items.get(_frame(code), frozenset()) if is_a_cells(code) else frozenset()  # (of all its loops)
    known.items[_frame(code)] = others | _names_of_item(code, turns)
    turn = local(code.co_varnames.index(turns), turns)
    return {turn, *(item(turn, i) for i in range(_ITEMS)), *handed}


def _item_of_turn(code: types.CodeType) -> str | None:
    """The parameter of one turn of a loop that is its item: of a loop in a loop it has a longer name."""
    parameters = code.co_varnames[: code.co_argcount]
    return max((name for name in parameters if name.rstrip("_") == LOOP_ITEM), key=len, default=None)


def _names_of_item(code: types.CodeType, turns: str) -> frozenset[str]:
    """The names that a turn gives to its item, or to what that holds: globals, where the loop is a cell's."""
    instructions = iter(decode(code).instructions)
    for ins in instructions:
        if ins.op == "LOAD_FAST" and code.co_varnames[ins.slot] == turns:
            break
    given = itertools.takewhile(lambda ins: ins.op in _GIVES, instructions)
    stored = ((ins.arg if ins.op in _SETS else code.co_varnames[ins.slot], ins.op) for ins in given)
    return frozenset(name for name, op in stored if op in ("STORE_FAST", *_SETS))


def _handed_on(code: types.CodeType) -> set[Any]:
    """The parameters that a turn reads before it sets them; in a cell its names."""
    if is_a_cells(code):
        return {glob(name) for name in carried(code)}
    first: dict[int, bool] = {}
    stored: set[int] = set()
    for ins in decode(code).instructions:
        if ins.op in ("LOAD_FAST", "LOAD_FAST_CHECK"):
            first.setdefault(ins.slot, True)
        elif ins.op == "STORE_FAST":
            first.setdefault(ins.slot, False)
            stored.add(ins.slot)
    return {
        local(slot, code.co_varnames[slot])
        for slot, read in first.items()
        if read and slot in stored and slot < code.co_argcount
    }


def numbers_so_far(func: types.FunctionType, args: tuple) -> set[Any]:
    """Sources of the floats in lists and dicts that a frame filled before this rest of it: the losses of a training.
    Another run gives others. In a cell they are globals. Attributes are such floats, too, where nobody would write
    their digits: the mean that a meter holds.
    """
    code = func.__code__
    held = [(local(k, name), value) for k, (name, value) in enumerate(zip(code.co_varnames, args))]
    attributes = {attr(source, name) for source, value in held for name in _computed(value)}
    if is_a_cells(code):
        held += [(glob(name), func.__globals__.get(name)) for name in code.co_names]
    return attributes | {
        step(source, i)
        for source, value in held
        if type(value) in (list, dict)
        for step, items in ((item, enumerate(value)) if type(value) is list else (dict_value, value.items()),)
        for i, number in itertools.islice(items, _NUMBERS)
        if type(number) is float or is_numpy_scalar(number)
    }


def _computed(value: Any) -> list[str]:
    """The attributes of an object, of its own or of a named tuple, that are floats which a computation has given."""
    cls = type(value)
    if tuple in cls.__mro__:
        names = vars(cls).get("_fields", ())
        held = dict(zip(names, tuple.__iter__(value))) if type(names) is tuple else {}
    elif cls.__module__.partition(".")[0] in ("builtins", "torch") or torch.nn.Module in cls.__mro__:
        return []
    else:
        held = instance_dict(value) or {}
    floats = ((name, n) for name, n in itertools.islice(held.items(), _NUMBERS) if type(n) is float)
    return [name for name, n in floats if len(repr(n)) >= _DIGITS]


class OutsideValues:
    """Numbers and texts that differ from run to run, since code that is not captured made them: those of one engine.

    A seed that was drawn, the name of a temporary folder, a time, the loss of an epoch: what resumes a frame after a
    break is given such a value, and the rest of the cell hands it on. The next run has another. So no entry takes one
    for a constant: a number is a symbol or an input of the graph, and a text is read when the entry runs. What looks at
    the number or the text itself fixes it, as ever.

    Values are known again by what they are, wherever the program has put them. Small whole numbers and single letters
    are everywhere: these are known by their place, the top of the stack after the break, and by the names of the frame
    that the program has given them, or what it has computed of them.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[type, Any], None] = {}
        self._names: dict[tuple[str, str], set[str]] = {}  # file and qualified name of a frame -> its names
        self.items: dict[tuple[str, str], frozenset[str]] = {}  # the same of a loop -> what it calls its items

    def take(self, code: types.CodeType, args: tuple) -> list[Source]:
        """`code` resumes a frame: on the top of its stack is what the call that broke has returned. Texts among its
        locals are from outside, too, where they hold such a text: a file in a folder. Gives the places of values that
        are known by their place alone.
        """
        names = code.co_varnames[: code.co_argcount]
        at = next((i for i in reversed(range(len(names))) if names[i].startswith(STACK)), None)
        top = None if at is None else args[at]
        results = top[:_RESULTS] if type(top) is tuple and top else (top,)
        found = [result for result in results if _tells(result)]
        texts = [value for t, value in self._values if t is str and len(value) >= _PART]
        found += [arg for arg in args if type(arg) is str and any(text in arg for text in texts)]
        for value in found:
            self._values[type(value), value] = None
        while len(self._values) > _MOST_OUTSIDE:
            del self._values[next(iter(self._values))]
        if at is not None and top is results[0]:
            self.named(code, {_plain(names[at]): True})
        places = self.places(code)
        if at is not None and top is not results[0]:
            places += [item(local(at, names[at]), i) for i in range(len(results))]
        return places

    def places(self, code: types.CodeType) -> list[Source]:
        """What of a frame's names varies."""
        known = self._names.get(_frame(code), ())
        if not known:
            return []
        held = [local(i, name) for i, name in enumerate(code.co_varnames[: code.co_argcount]) if _plain(name) in known]
        return held + [glob(name) for name in code.co_names if name in known and is_a_cells(code)]

    def named(self, code: types.CodeType, varying: Mapping[str, bool]) -> None:
        """What an entry of the frame leaves under a name varies, or does not."""
        for name, varies in varying.items():
            known = self._names.setdefault(_frame(code), set())
            (known.add if varies else known.discard)(name)
        while len(self._names) > _MOST_OUTSIDE:
            del self._names[next(iter(self._names))]

    def __contains__(self, value: Any) -> bool:
        return bool(self._values) and (type(value), value) in self._values

    def clear(self) -> None:
        self._values.clear()
        self._names.clear()
        self.items.clear()


@functools.lru_cache(maxsize=64)
def carried(code: types.CodeType) -> tuple[str, ...]:
    """The names that a cell reads before it sets them: a counter, a step, the best result so far."""
    first: dict[str, bool] = {}
    stored = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _READS:
            first.setdefault(instruction.argval, True)
        elif instruction.opname in _SETS:
            first.setdefault(instruction.argval, False)
            stored.add(instruction.argval)
    return tuple(name for name, read in first.items() if read and name in stored)


def is_a_cells(code: types.CodeType) -> bool:
    """Whether a frame is a cell's own, or a part of it: its names are globals."""
    return code.co_qualname.startswith("<module>")


def _plain(name: str) -> str:
    """What lay on the stack has a name of its own in each frame that goes on, which says how deep."""
    return name.rstrip("_") if name.startswith(STACK) else name


def _frame(code: types.CodeType) -> tuple[str, str]:
    return code.co_filename, "<module>" if is_a_cells(code) else code.co_qualname


def _tells(value: Any) -> bool:
    """Whether a value is unlikely to be met by chance."""
    t = type(value)
    return t is str and len(value) > 1 or t in (int, float) and not (abs(value) <= _SMALL and float(value).is_integer())


def learn(state: FrameState, guards: Sequence[Guard], func: Any, args: tuple) -> None:
    """Sizes, strides, ints and floats that differ from what an entry's guards expect are symbols in the next entry, and
    texts vary. All of them at once: they often change together, and each one learned alone would cost a compilation.
    So do the floats of one list: losses of a training, of which the first ones may be the same again.
    """
    for guard in guards:
        if (teach := _TAUGHT_BY.get(guard.kind)) is not None:
            teach(state, guard, func, args)
    lists = {s.base for s in state.dynamic_floats if s.kind == "item" and type(s.key) is int}
    state.dynamic_floats.update(
        where_number(guard.source)
        for guard in guards
        if guard.kind == "EQUALS"
        and type(guard.expected) is float
        and guard.source is not None
        and where_number(guard.source).base in lists
    )


def _value(guard: Guard, func: Any, args: tuple) -> Any:
    return _found(guard.source, func, args)


def _found(source: Source | None, func: Any, args: tuple) -> Any:
    try:
        return evaluate_source(source, func, args)
    except Unreachable:
        return None


def _learn_constant(state: FrameState, guard: Guard, func: Any, args: tuple) -> None:
    if guard.source is None:
        return
    value = _value(guard, func, args)
    if type(guard.expected) is str:
        if guard.source.base is None and type(value) is str and value != guard.expected:
            state.dynamic_texts.add(guard.source)
    elif type(guard.expected) in (int, float) and type(value) in (int, float):
        # (a sum that began as 0 is a float from the second turn on)
        if type(value) is not type(guard.expected) or value != guard.expected:
            varying = state.dynamic_ints if type(value) is int else state.dynamic_floats
            varying.add(where_number(guard.source))


def _learn_flag(state: FrameState, guard: Guard, func: Any, args: tuple) -> None:
    if type(guard.expected) is bool and guard.source is not None:
        if type(value := _value(guard, func, args)) is bool and value is not guard.expected:
            _leave_unread(state, guard.source, func, args)


def _learn_one_object(state: FrameState, guard: Guard, func: Any, args: tuple) -> None:
    """Tensors of a batch that are one in some calls and not in others: samples that were drawn from a memory."""
    assert guard.source is not None
    if _value(guard, func, args) is not _found(guard.expected, func, args):
        _leave_unread(state, guard.source, func, args)
        _leave_unread(state, guard.expected, func, args)


def _learn_other_objects(state: FrameState, guard: Guard, func: Any, args: tuple) -> None:
    same = collections.defaultdict(list)
    for source in guard.expected:
        if (value := _found(source, func, args)) is not None:
            same[id(value)].append(source)
    for source in itertools.chain(*(sources for sources in same.values() if len(sources) > 1)):
        _leave_unread(state, source, func, args)


def _leave_unread(state: FrameState, source: Source, func: Any, args: tuple) -> None:
    """A flag or a tensor lies in sequences of some length: a batch that was drawn, whose values no entry can foresee.
    The outermost of them is not read from now on. An attribute of an item is another matter: what layers hold.
    """
    outermost = None
    while source.kind == "item" and source.base is not None:
        source = source.base
        if _is_long(_found(source, func, args)):
            outermost = source
    if outermost is not None:
        state.unread.add(outermost)


def _is_long(value: Any) -> bool:
    kind = next((kind for kind in (list, tuple, collections.deque) if kind in type(value).__mro__), None)
    return kind is not None and kind.__len__(value) > _FLAGS


def _learn_length(state: FrameState, guard: Guard, func: Any, args: tuple) -> None:
    """The length of a list that grows is a number that varies; after a few of them no more are compiled for. So is what
    an iterator through a list has left."""
    source, before, value = guard.source, guard.expected, _value(guard, func, args)
    if source is None:
        return
    left = source.kind == "asked" and source.key is left_of and type(value) is tuple
    counted = source if left else count(source, value)
    if counted is not None and (now := length(value)) != before:
        state.dynamic_ints.add(counted)
        _saw_lengths(state, counted, before, now)


def _saw_lengths(state: FrameState, counted: Any, *seen: int) -> None:
    lengths = state.lengths.setdefault(counted, set())
    lengths.update(seen)
    grows = is_loop(state.name) or counted.key is left_of
    if len(lengths) > (_LENGTHS_OF_TURNS if grows else _LENGTHS):
        state.unread.add(counted)


def _learn_keys(state: FrameState, guard: Guard, func: Any, args: tuple) -> None:
    """A dict that grows, or one that is keyed by the addresses of objects: each run of a cell gives it other ones."""
    before, value = guard.expected, _value(guard, func, args)
    counted = None if guard.source is None else count(guard.source, value)
    if counted is None:
        return
    keys = (*before, *value)
    if {*map(type, keys)} == {int} and min(keys) >= _LEAST_ADDRESS and len({*keys}) == len(keys):
        state.unread.add(counted)
    elif len(before) != len(value):
        _saw_lengths(state, counted, len(before), len(value))


def _learn_tensor(state: FrameState, guard: Guard, func: Any, args: tuple) -> None:
    spec, value = guard.expected, _value(guard, func, args)
    if type(value) is not spec.type or value.layout is not torch.strided or value.dim() != len(spec.shape):
        return
    with torch._C.DisableTorchFunctionSubclass():
        shape, stride = tuple(value.shape), value.stride()
    dims = {d for d, (w, n) in enumerate(zip(spec.shape, shape)) if type(w) is int and w != n}
    if dims:
        state.dynamic_dims.setdefault(guard.source, set()).update(dims)
    strides = {d for d, (w, n) in enumerate(zip(spec.stride, stride)) if type(w) is int and w != n and min(w, n) > 1}
    if strides:
        state.dynamic_strides.setdefault(guard.source, set()).update(strides)


def _learn_sign(state: FrameState, g: Guard, func: Any, args: tuple) -> None:
    """The item of a loop that was 0 in its first turn is so again when the loop runs anew."""
    if g.source is not None and g.takes_any_number:
        state.signed_ints.add(g.source)


_TAUGHT_BY: dict[str, Callable[[FrameState, Guard, Any, tuple], None]] = {
    "TENSOR": _learn_tensor,
    "EQUALS": _learn_constant,
    "INT_SYMBOL": _learn_sign,
    "LEN": _learn_length,
    "DICT_KEYS": _learn_keys,
    "ID": _learn_flag,
    "ALIAS": _learn_one_object,
    "NO_ALIAS": _learn_other_objects,
}


def is_before_first_step(state: FrameState, misses: Iterable[tuple[Any, int]]) -> bool:
    """Whether an entry does not serve since it looks at the state of an optimizer, which has none yet."""
    unmet = [entry.program.guards[index].source for entry, index in misses if index >= 0]
    return any(
        step.kind == "optimized"
        for source in (*unmet, *state.renamed_unmet)
        if source is not None
        for step in source.path()
    )


def only_addresses_differ(state: FrameState, misses: Iterable[tuple[Any, int]], generation: int) -> bool:
    """Whether each run of a cell would compile the frame anew: it reads the id of an object that every run makes."""
    for entry, index in misses:
        source = entry.program.guards[index].source
        if entry.generation != generation and source is not None and source.kind == "asked" and source.key is id:
            state.addresses.add(generation)
    return len(state.addresses) > _ADDRESS_RUNS


# ---- how many entries are enough
def is_full(cache: Any, state: FrameState, generation: int, limit: int) -> bool:
    """Whether this generation has as many entries as it may have: none, where those of an earlier one served little
    more than the calls that they were made for. Each run of the cell would compile as many again.
    """
    made = [entry for entry in cache.entries if getattr(entry, "generation", 0) == generation]
    if len(made) < limit and not state.given_up:
        return False
    state.given_up = state.given_up or sum(e.hits for e in made) < _SERVED * len(made)
    return True


def make_room(cache: Any, generation: int, limit: int) -> None:
    """Entries of earlier generations that were not used for longest go, where there are too many."""
    old = [entry for entry in cache.entries if getattr(entry, "generation", 0) != generation]
    for e in old[limit:]:
        cache.remove(e)
