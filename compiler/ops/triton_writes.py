"""Which of a Triton kernel's pointers it writes, read from its IR (TTIR).

A pointer parameter reaches a value where the value is computed from it (`tt.addptr`, `tt.splat`, what a loop carries).
It is written where it reaches the place of a store or an atomic operation, here or in a function that is called.
Loaded numbers are no places. What is not understood counts as a write of every pointer that it is given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["written_parameters"]

_FUNCTION = re.compile(r"^\s*tt\.func\s+\w+\s+@([\w.$\"<>-]+)\((.*)$")
_NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
_OPERATION = re.compile(r"(?:\"([\w.]+)\"|\b([a-z_]+\.[\w.]+))")
_CARRIED = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+)")
_BLOCK = re.compile(r"^\s*\^(\w+)(?:\((.*)\))?:")  # `^bb2(%x: i32):` begins one
_BRANCH = re.compile(r"\^(\w+)(?:\(([^:)]*))?")  # `cf.br ^bb2(%y : i32)`
_CALLED = re.compile(r"tt\.call\s+@([\w.$\"<>-]+)\(([^)]*)\)")

# Operations that write at their first operand.
_WRITES = frozenset(
    """tt.store tt.atomic_rmw tt.atomic_cas tt.descriptor_store tt.descriptor_reduce tt.descriptor_scatter""".split()
)
# What these give holds no place: numbers that were loaded.
_LOADS = frozenset("tt.load tt.descriptor_load tt.descriptor_gather tt.ptr_to_int".split())
# What these give is a place where an operand is one.
_PASSES = frozenset(
    """tt.addptr tt.splat tt.broadcast tt.expand_dims tt.reshape tt.trans tt.join tt.split tt.cat tt.bitcast tt.advance
    tt.make_tensor_ptr tt.make_tensor_descriptor tt.unsplat tt.return""".split()
)
_DIALECTS = ("arith.", "math.", "scf.", "ub.", "cf.")


@dataclass
class _Function:
    parameters: list[str]
    lines: list[str] = field(default_factory=list)
    written: set[int] = field(default_factory=set)  # positions of parameters
    lost: bool = False  # something is written, and where can't be told
    result_of: set[int] = field(default_factory=set)  # positions of parameters that a result may be computed from
    blocks: dict[str, list[str]] = field(default_factory=dict)  # label -> the names that a branch gives values to


def written_parameters(ttir: str) -> set[int] | None:
    """Positions of the kernel's parameters (of its TTIR: constants are none) that it writes. None: it can't be told."""
    if any(op in ttir for op in ("tt.int_to_ptr", "cf.switch", "scf.while")):
        return None
    functions: dict[str, _Function] = {}
    public = None
    current: _Function | None = None
    for line in ttir.split("\n"):
        if match := _FUNCTION.match(line):
            parameters = match[2].partition(" attributes ")[0]
            current = functions[match[1]] = _Function(re.findall(r"(%[\w$.-]+): ", parameters))
            public = public or (match[1] if "tt.func public" in line else None)
        elif current is not None and (match := _BLOCK.match(line)):
            current.blocks[match[1]] = re.findall(r"(%[\w$.-]+): ", match[2] or "")
        elif current is not None:
            current.lines.append(line)
    if public is None:
        return None
    changed = True
    while changed:  # callers after what they call, whatever the order of the text
        before = [(len(function.written), len(function.result_of)) for function in functions.values()]
        for function in functions.values():
            _follow(function, functions)
        changed = before != [(len(function.written), len(function.result_of)) for function in functions.values()]
    return None if any(function.lost for function in functions.values()) else functions[public].written


def _follow(f: _Function, functions: dict[str, _Function]) -> None:
    """Take up what the function writes, by what is known of those that it calls."""
    reach: dict[str, set[int]] = {name: {i} for i, name in enumerate(f.parameters)}
    size = -1
    while size != (size := sum(map(len, reach.values()))):
        regions: list[list[list[str]]] = []  # of each open brace: by position, the names that its yields give to
        for line in f.lines:
            text = line.partition(" loc(")[0]
            left, _, right = text.partition(" = ") if text.lstrip().startswith("%") else ("", "", text)
            results = _results(left)
            _step(f, functions, reach, regions, results, right)
            carried = [a for a, _ in _carried(right)]
            given = [list(pair) for pair in zip(results, carried)] if carried else [[result] for result in results]
            for brace in re.sub(r"\{[^{}]*\}", "", text):
                if brace == "{":
                    regions.append(given)
                elif brace == "}" and regions:
                    given = regions.pop()  # (of `} else {`: both branches give the same)


def _results(left: str) -> list[str]:
    """Names of an operation's results: `%a, %b` or `%a:2`, whose parts are %a#0 and %a#1."""
    out = []
    for name, count in re.findall(r"(%[\w$.-]+)(?::(\d+))?", left):
        out += [f"{name}#{i}" for i in range(int(count))] if count else [name]
    return out


def _carried(text: str) -> list[tuple[str, str]]:
    """What a loop carries: (name inside, the value that it begins with)."""
    return _CARRIED.findall(text.partition("iter_args(")[2])


def _step(
    f: _Function,
    functions: dict[str, _Function],
    reach: dict[str, set[int]],
    regions: list[list[list[str]]],
    results: list[str],
    text: str,
) -> None:
    def of(names: list[str]) -> set[int]:
        return {i for name in names for i in reach.get(name, ())}

    def gives(names: list[str], places: set[int]) -> None:
        for name in names:
            reach.setdefault(name, set()).update(places)

    match = _OPERATION.search(text)
    if match is None:
        return
    op = match[1] or match[2]
    operands = _NAME.findall(text)
    if op == "tt.call":
        called = _CALLED.search(text)
        other = functions.get(called[1]) if called else None
        if called is None or other is None:
            f.written |= of(operands)
            return
        given = _NAME.findall(called[2])
        f.written |= of([given[i] for i in other.written if i < len(given)])
        gives(results, of([given[i] for i in other.result_of if i < len(given)]))
    elif op in _WRITES:
        places = of(operands[:1])
        f.lost |= not places
        f.written |= places
    elif op in _LOADS:
        return
    elif op == "tt.return":
        f.result_of |= of(operands)
    elif op in ("cf.br", "cf.cond_br"):
        for label, given in _BRANCH.findall(text):
            for name, operand in zip(f.blocks[label], _NAME.findall(given)):
                gives([name], of([operand]))
    elif op == "scf.yield":
        for names, operand in zip(regions[-1] if regions else [], operands):
            gives(names, of([operand]))
    elif op == "scf.for":
        for result, (inner, outer) in zip(results, _carried(text)):
            gives([inner, result], of([outer]))
    elif op in _PASSES or op.startswith(_DIALECTS):
        gives(results, of(operands))
    elif "!tt.ptr" in text or "tensordesc" in text:
        f.written |= of(operands)
        gives(results, of(operands))
