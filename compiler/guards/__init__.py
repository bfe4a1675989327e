"""Guards: what an entry relied on, checked at each call.

In: capture's list of `Guard`s over `Source`s. Out: `compile_guards(...)`, a program whose `check(func, args)` says
whether all hold or which does not, in C where the extension is built; `explain_failure(...)`, the words for a failure;
`read_state(...)`, the global state that a capture relied on; `would_recompile(...)`, whether a call that is described
in words would find an entry; `measure_cost(...)`, what the guards of an entry cost.
"""

from __future__ import annotations

from .guard_cost import GuardCost, measure_cost
from .explain import explain_failure
from .forecast import Forecast, TensorDescription, describe, would_recompile
from .guard import Guard, GuardFailure, TensorSpec
from .guard_program import GuardProgram, compile_guards
from .state import DEFAULT_FIELDS, read_state

__all__ = [
    "Guard",
    "GuardFailure",
    "TensorSpec",
    "GuardProgram",
    "compile_guards",
    "explain_failure",
    "would_recompile",
    "Forecast",
    "TensorDescription",
    "describe",
    "measure_cost",
    "GuardCost",
    "read_state",
    "DEFAULT_FIELDS",
]
