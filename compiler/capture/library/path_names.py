"""Functions of os.path on texts that vary: the entry calls them when it runs."""

from __future__ import annotations

import os.path
import types
from typing import TYPE_CHECKING, Any

from ..kinds import calls
from ..kinds.callables import python_function
from ..numbers.late_text import made_late

if TYPE_CHECKING:
    from ..machine.machine import Machine


@python_function(
    *((os.path.__name__, name) for name in ("join", "basename", "dirname", "normpath")), wants_function=True
)
def path_name(machine: Machine, fn: types.FunctionType, *args: Any, **kwargs: Any) -> Any:
    """A path made of others, none of which is looked up."""
    if machine.late_texts and (late := made_late(machine, fn, args, kwargs)) is not None:
        return late
    return calls.call_python(machine, fn, list(args), kwargs)
