"""Guards: what an entry relied on, checked at each call.

In: capture's list of `Guard`s over `Source`s. Out: `compile_guards(...)`, a program whose `check(func, args)` says
whether all hold or which does not, in C where the extension is built; `explain_failure(...)`, the words for a failure;
`read_state(...)`, the global state that a capture relied on.
"""

from __future__ import annotations

from .explain import explain_failure
from .guard import Guard, GuardFailure, TensorSpec
from .program import GuardProgram, compile_guards
from .state import DEFAULT_FIELDS, read_state

__all__ = [
    "Guard",
    "GuardFailure",
    "TensorSpec",
    "GuardProgram",
    "compile_guards",
    "explain_failure",
    "read_state",
    "DEFAULT_FIELDS",
]
