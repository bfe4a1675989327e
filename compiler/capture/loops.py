"""Loops that hold a break: they run natively, one captured region per iteration, and what follows is resumed."""
from __future__ import annotations

import types
from typing import Any, Callable, Sequence

from .bytecode.instructions import decode
from .bytecode.regions import UNBOUND, CannotOutline, Loop, RegionSpec, find_loops, outline_loop
from .bytecode.resume import make_resume

__all__ = ["LoopDriver", "Loop", "enclosing_loop", "same_loop", "CannotOutline"]

_NOTHING = object()


def enclosing_loop(code: types.CodeType, index: int) -> Loop | None:
    """The outermost loop of `code` whose iterations execute instruction `index`."""
    found: Loop | None = None
    for loop in find_loops(code):
        inside = index in loop.body or index in loop.again or (loop.kind == "for" and index == loop.head)
        if inside and (found is None or loop.depth < found.depth):
            found = loop
    return found


def same_loop(code: types.CodeType, loop: Loop, host: types.CodeType) -> int:
    """Where the host of an outlined loop begins it: the index of its FOR_ITER, or of an iteration's start. CannotOutline."""
    head = decode(code).instructions[loop.head]
    instructions = decode(host).instructions
    for found in find_loops(host):
        if found.kind == loop.kind and instructions[found.head].positions == head.positions:
            return found.head if found.kind == "for" else found.entry
    raise CannotOutline("the loop is not found in its host")


class LoopDriver:
    """Runs one loop of a frame: what the bytecode of the loop would do, with `dispatch(region, ...)` for each iteration and
    `dispatch(resume, ...)` for the code where an iteration leaves to.

    stack   kinds of the operand stack where the loop begins: `nulls` are the depths that hold NULL. For a `for` loop the iterator is
            on top of it
    bound   slots of plain locals that are bound there, in order: `run` gets their values
    cells   slots that hold cells, in order
    """

    def __init__(self, code: types.CodeType, loop: Loop, dispatch: Callable, nulls: Sequence[int], depth: int,
                 bound: Sequence[int], cells: Sequence[int]):
        self.code, self.loop, self.dispatch = code, loop, dispatch
        bytecode = decode(code)
        self.module_level = not bytecode.is_function
        head = bytecode.instructions[loop.head if loop.kind == "for" else loop.entry]
        if head.handler is not None:
            raise CannotOutline("the loop is inside a try or with statement")
        self.region: RegionSpec = outline_loop(code, loop, dispatch, locals_are_globals=self.module_level).region
        self.nulls, self.depth, self.bound, self.cells = tuple(nulls), depth, tuple(bound), tuple(cells)
        self.exits = {e.id: e for e in self.region.exits}
        self.exhausted = bytecode.instructions[loop.head].target.index if loop.kind == "for" else -1  # type: ignore[union-attr]
        self.again = {e.id for e in self.region.exits if e.target in loop.again or e.target == (loop.head if loop.kind == "for" else loop.entry)}

    def run(self, namespace: dict[str, Any], cells: tuple, stack: tuple, values: tuple) -> Any:
        """The rest of the frame from the loop on. `namespace` are the function's globals; `stack` holds the values of the stack
        without NULLs, bottom first."""
        slots: dict[int, Any] = dict(zip(self.bound, values))
        slots.update(zip(self.cells, cells))
        full: list[Any] = []
        given = iter(stack)
        for depth in range(self.depth):
            full.append(None if depth in self.nulls else next(given))
        region, dispatch = self.region, self.dispatch
        captured = tuple(slots[s] if s in slots else types.CellType() for s in region.closure)
        function = types.FunctionType(region.code, namespace, region.code.co_name, None, captured or None)
        function.__qualname__ = region.code.co_qualname
        locals_wanted = [p.number for p in region.params if p.kind == "local"]
        iterator = iter(full[-1]) if self.loop.kind == "for" else None
        while True:
            arguments = [slots.get(s, UNBOUND) for s in locals_wanted]
            if iterator is not None:
                value = next(iterator, _NOTHING)
                if value is _NOTHING:
                    full.pop()
                    return self._resume(namespace, self.exhausted, full, slots)
                arguments.append(value)
                del value
            result = dispatch(function, *arguments)
            exit_ = self.exits[result[0]]
            n = len(exit_.slots)
            for slot, value in zip(exit_.slots, result[1:1 + n]):
                if value is UNBOUND:
                    slots.pop(slot, None)
                else:
                    slots[slot] = value
            if exit_.id in self.again:
                del arguments, result
                continue
            full.extend(reversed(result[1 + n:]))
            return self._resume(namespace, exit_.target, full, slots)

    def _resume(self, namespace: dict[str, Any], target: int, stack: list, slots: dict[int, Any]) -> Any:
        spec = make_resume(self.code, target, [d for d in self.nulls if d < len(stack)], slots.keys(), locals_are_globals=self.module_level)
        function = spec.function(namespace, [slots[s] for s in spec.closure])
        return self.dispatch(function, *spec.arguments(slots, stack, {}))

