"""Decisions by time that all ranks of a process group share: rank 0's. Compiled and plain code may order their
collectives differently, so that ranks which decided each for itself would wait for each other for ever.

A question about a function has one answer, through the group's store: no collective is needed, which could meet the
program's own. Ranks count the same calls, so they ask at the same time.
"""

from __future__ import annotations

import datetime

import torch

from .. import events

__all__ = ["agreed", "forget_answers", "several"]

WAIT = datetime.timedelta(seconds=20)
_answers: dict[str, str] = {}


def several() -> bool:
    """Whether this process is one of several ranks."""
    d = torch.distributed
    return d.is_available() and d.is_initialized() and d.get_world_size() > 1


def agreed(mine: str, what: str) -> str:
    """Rank 0's answer to a question about `what`, which is asked once; `mine` where there is one rank. A rank that gets
    no answer in time takes "on": nothing is switched off."""
    if not several():
        return mine
    if (known := _answers.get(what)) is not None:
        return known
    from torch.distributed.distributed_c10d import _get_default_store

    store, key = _get_default_store(), f"tcompile/{what}"
    if torch.distributed.get_rank() == 0:
        store.set(key, mine)
    else:
        try:
            store.wait([key], WAIT)
            mine = store.get(key).decode()
        except RuntimeError as e:  # the wait ended
            events.fallback("ranks", f"rank 0 decided nothing in time: {e}")
            mine = "on"
    _answers[what] = mine
    return mine


def forget_answers() -> None:
    """The process group is another one from now on: all of its ranks ask again."""
    _answers.clear()
