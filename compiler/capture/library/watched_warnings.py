"""warnings.catch_warnings inside of a frame: the program looks for warnings where it keeps them in a list, or has them
raised.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from ..machine.signals import Plainly

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["keeps_warnings", "refuse_watched_operator"]


def keeps_warnings(m: Machine) -> bool:
    """Whether the program is inside of catch_warnings(record=True)."""
    written = m.world.pending.get(id(warnings.__dict__))
    return bool(written) and any(
        name in written and written[name] is not vars(warnings)[name] for name in ("showwarning", "_showwarnmsg_impl")
    )


def refuse_watched_operator(m: Machine) -> None:
    """An operator may give a warning, when it runs: the program is not to look for that where the graph has not run
    yet.
    """
    written = m.world.pending.get(id(warnings.__dict__))
    if written and (
        keeps_warnings(m)
        or any(type(f) is tuple and f[0] == "error" and f not in warnings.filters for f in written.get("filters", ()))
    ):
        raise Plainly(
            "c_call",
            "an operator runs where warnings are kept in a list, or raised, by warnings.catch_warnings",
            "look for warnings outside of the compiled region",
            calls_compiled=False,
        )
