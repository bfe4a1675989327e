"""When objects end: weak references, their callbacks, finalizers. What the program can tell of it is what eager says,
call after call.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any, Callable

import pytest
import tcompile
import torch

x = torch.arange(1.0, 5.0)


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b):
            same(one, other)
    else:
        assert a == b


class Holder:
    def __init__(self, value: Any = None) -> None:
        self.value = value


class Finalized:
    def __init__(self, log: list) -> None:
        self.log = log

    def __del__(self) -> None:
        self.log.append(1)


def callback(x: torch.Tensor, log: list) -> Any:
    held = Holder()
    reference = weakref.ref(held, lambda r: log.append(1))
    y = x * 2
    del held
    gc.collect()
    return y + len(log), reference() is None


def rebound(x: torch.Tensor, log: list) -> Any:
    held = Holder()
    reference = weakref.ref(held)
    before = reference() is None
    held = None
    return x * 2, before, reference() is None


def tensor(x: torch.Tensor, log: list) -> Any:
    y = x * 2
    reference = weakref.ref(y)
    z = y + 1
    del y
    return z, reference() is None


def within(x: torch.Tensor, log: list) -> Any:
    def make() -> Any:
        return weakref.ref(Holder())

    return x * 2, make()() is None


def popped(x: torch.Tensor, log: list) -> Any:
    held = [Holder()]
    reference = weakref.ref(held[0])
    held.pop()
    return x * 2, reference() is None


def finalize(x: torch.Tensor, log: list) -> Any:
    held = Holder()
    weakref.finalize(held, log.append, 1)
    y = x * 2
    del held
    return y + len(log)


def finalizer(x: torch.Tensor, log: list) -> Any:
    held = Finalized(log)
    y = x * 2
    del held
    return y + len(log)


def tables(x: torch.Tensor, log: list) -> Any:
    keys, values, members, held = (
        weakref.WeakKeyDictionary(),
        weakref.WeakValueDictionary(),
        weakref.WeakSet(),
        Holder(),
    )
    keys[held], values["a"] = 1, held
    members.add(held)
    before = len(keys), len(values), len(members)
    del held
    return x * 2, before, len(keys), len(values), len(members)


def proxy(x: torch.Tensor, log: list) -> Any:
    held = Holder(3.0)
    stand_in = weakref.proxy(held)
    y = x * stand_in.value
    del held
    try:
        return y, stand_in.value
    except ReferenceError:
        return y, "gone"


def counted(x: torch.Tensor, log: list) -> Any:
    held = Holder()
    return x * 2, sys.getrefcount(held) - sys.getrefcount([held, held][0])


@pytest.mark.parametrize(
    "program", [callback, rebound, tensor, within, popped, finalize, finalizer, tables, proxy, counted]
)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_objects_made_inside(program: Callable, backend: str) -> None:
    compiled, mine, theirs = tcompile.compile(program, backend=backend), [], []
    for _ in range(3):
        expected = program(x, theirs)
        same(compiled(x, mine), expected)
        assert mine == theirs


log: list = []
box: Any = None


def of_a_list(x: torch.Tensor, held: list) -> Any:
    y = x * 2
    held.clear()
    return y + len(log)


def of_an_item(x: torch.Tensor, held: list) -> Any:
    y = x * 2
    held[0] = None
    return y + len(log)


def of_an_attribute(x: torch.Tensor, held: list) -> Any:
    y = x * 2
    holder.value = None
    return y + len(log)


def of_a_deleted_attribute(x: torch.Tensor, held: list) -> Any:
    y = x * 2
    del holder.value
    return y + len(log)


def of_a_dict(x: torch.Tensor, held: list) -> Any:
    y = x * 2
    table.pop("a")
    return y + len(log)


def of_a_global(x: torch.Tensor, held: list) -> Any:
    global box
    y = x * 2
    box = None
    return y + len(log)


def of_an_inner_list(x: torch.Tensor, held: list) -> Any:
    y = x * 2
    table["b"] = None
    return y + len(log)


holder, table = Holder(), {}


@pytest.mark.parametrize(
    "program",
    [of_a_list, of_an_item, of_an_attribute, of_a_deleted_attribute, of_a_dict, of_a_global, of_an_inner_list],
)
@pytest.mark.parametrize("heard_by", ["__del__", "callback"])
def test_objects_from_outside(program: Callable, heard_by: str) -> None:
    global box
    places: dict[Callable, Callable[[list, Any], Any]] = {
        of_a_list: lambda held, o: held.append(o),
        of_an_item: lambda held, o: held.append(o),
        of_an_attribute: lambda held, o: setattr(holder, "value", o),
        of_a_deleted_attribute: lambda held, o: setattr(holder, "value", o),
        of_a_dict: lambda held, o: table.update(a=o),
        of_a_global: lambda held, o: globals().update(box=o),
        of_an_inner_list: lambda held, o: table.update(b=[[o]]),
    }
    compiled, references = tcompile.compile(program, backend="eager"), []

    def run(f: Callable) -> Any:
        made, held = (Finalized(log) if heard_by == "__del__" else Holder()), []
        if heard_by == "callback":
            references.append(weakref.ref(made, lambda r: log.append(1)))
        places[program](held, made)
        del made
        return f(x, held)

    for _ in range(3):
        log.clear()
        expected = run(program)
        log.clear()
        torch.testing.assert_close(run(compiled), expected)


def test_a_reference_from_outside_is_asked_after_its_target_went() -> None:
    def program(x: torch.Tensor, held: list, reference: Any) -> Any:
        held.clear()
        return x * 2, reference() is None

    compiled = tcompile.compile(program, backend="eager")
    for f in (program, compiled, compiled):
        held = [Holder()]
        assert f(x, held, weakref.ref(held[0]))[1]
    held = [Holder()]
    kept, reference = held[0], weakref.ref(held[0])
    assert not compiled(x, held, reference)[1] and kept is reference()


def test_frames_that_run_plainly_have_their_calls_compiled_and_say_why() -> None:
    made = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    def program(x: torch.Tensor, k: float = 2.0, *rest: Any, shift: float = 1.0, **named: Any) -> Any:
        held = Holder()
        reference = weakref.ref(held)
        y = inner(x) * k + shift + sum(rest) + sum(named.values())
        del held
        return y, reference() is None

    def backend(gm: Any, inputs: Any) -> Any:
        made.append(gm)
        return gm.forward

    compiled = tcompile.compile(program, backend=backend)
    for arguments, named in (((x,), {}), ((x, 3.0, 4, 5), {"shift": 2.0, "other": 7}), ((x,), {})):
        torch.testing.assert_close(compiled(*arguments, **named), program(*arguments, **named))
    assert len(made) == 1
    report = tcompile.explain(program)(x)
    assert any(b.kind == "lifetime" and "weak reference" in b.reason for b in report.graph_breaks)
    with pytest.raises(tcompile.FullGraphError, match="weak reference"):
        tcompile.compile(program, fullgraph=True)(x)


def test_the_guards_so_far_hold_for_frames_that_run_plainly() -> None:
    def program(x: torch.Tensor, wanted: bool) -> Any:
        if wanted:
            held = Holder()
            reference = weakref.ref(held)
            del held
            return x * 2, reference() is None
        return x * 3, None

    made = []
    compiled = tcompile.compile(program, backend=lambda gm, inputs: made.append(gm) or gm.forward)
    for wanted in (True, False, True, False):
        torch.testing.assert_close(compiled(x, wanted), program(x, wanted))
    assert len(made) == 1


def _noting(x: torch.Tensor, log: list) -> Any:
    try:
        for k in range(3):
            yield x * k
    finally:
        log.append("closed")


def left_by_break(x: torch.Tensor, log: list) -> Any:
    for y in _noting(x, log):
        if len(log) < 9:
            break
    return y + len(log), list(log)


def left_by_break_in_a_loop(x: torch.Tensor, log: list) -> Any:
    for k in range(3):
        for y in _noting(x + k, log):
            break
        x = x + y + len(log)
    return x, list(log)


@pytest.mark.parametrize("fn", [left_by_break, left_by_break_in_a_loop])
def test_a_generator_that_a_loop_leaves_is_closed_there(fn: Callable) -> None:
    compiled = tcompile.compile(fn, backend="eager")
    for _ in range(2):
        same(compiled(x, []), fn(x, []))
