"""What a table of native methods is made of: cases in order, of which the first that fits a call is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...machine.stack_values import BOUND_NATIVE

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = ["NativeCall", "Case", "Cases", "bound"]


class NativeCall(NamedTuple):
    """A call of a method that a C class defines, on `owner`."""

    fn: Any
    owner: Any
    name: str
    args: list
    kwargs: dict


class Case(NamedTuple):
    """Calls of methods with one of the names, on an owner of one of the kinds, of which `when` holds: what to do."""

    do: Callable[[Machine, NativeCall], Any]
    names: tuple[str, ...] = ()  # none: of any name
    kinds: type | tuple[type, ...] = object
    when: Callable[[Machine, NativeCall], bool] | None = None


class Cases:
    """A table of cases. Which of them a method's name leaves is worked out once a name."""

    def __init__(self, *cases: Case):
        self.cases = cases
        self._named: dict[str, tuple[Case, ...]] = {}

    def find(self, machine: Machine, call: NativeCall) -> Case | None:
        """The first case that fits."""
        name, owner = call.name, call.owner
        cases = self._named.get(name)
        if cases is None:
            cases = self._named[name] = tuple(case for case in self.cases if not case.names or name in case.names)
        for case in cases:
            if isinstance(owner, case.kinds) and (case.when is None or case.when(machine, call)):
                return case
        return None


def bound(fn: Any, owner: Any) -> Any:
    """A native method bound to its owner, past what a subclass overrides."""
    return fn if isinstance(fn, BOUND_NATIVE) else fn.__get__(owner)
