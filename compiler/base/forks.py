"""Locks, threads and changes of the process, so made that a child forked meanwhile can go on.

A fork copies one thread. What the others held or had changed for the length of a block stays so in the child for ever.
A lock is never let go, the collector of cycles never runs again, a module that was being imported is waited for. So
everything of that kind is made here (a test finds what is made elsewhere), and a fork waits up to PATIENCE for the
others: then the child has no half-made state at all. Who takes longer is left alone, and the locks and changes of that
thread are undone in the child.

It imports nothing of the compiler.
"""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Callable, Iterator

__all__ = ["lock", "start_thread", "begin_thread", "signal", "pool", "changed", "resting", "pass_over", "in_child"]

PATIENCE = 5.0  # seconds that a fork waits for what another thread is in the middle of
NAP = 0.002  # seconds between two looks

_locks: list[Any] = []  # in the order in which they are taken where several are
_stuck: set[int] = set()  # ids of those that a fork waited for in vain
_changes: list[tuple[int, Callable[[], None]]] = []
_in_child: list[Callable[[], None]] = []
_mine = threading.local()  # .taken: the locks that this thread took in order to fork


def lock() -> Any:
    """A re-entrant lock for the life of the process."""
    made = threading.RLock()
    _locks.append(made)
    return made


def start_thread(target: Callable[[], None], name: str) -> None:
    """A thread that ends with the process. A child does not have it: what waits for it belongs into one function, or
    into `in_child`.
    """
    threading.Thread(target=target, name=name, daemon=True).start()


def begin_thread(target: Callable[[], None]) -> None:
    """As `start_thread`, for what is begun with every cell: nobody waits until it runs, which on a busy machine takes
    milliseconds, and `threading` does not list it.
    """
    _thread.start_new_thread(target, ())


def signal() -> threading.Event:
    """For one function that waits for a thread of its own."""
    return threading.Event()


def pool(workers: int) -> ThreadPoolExecutor:
    """Threads for the length of one with-block."""
    return ThreadPoolExecutor(workers)


@contextmanager
def changed(undo: Callable[[], None]) -> Iterator[None]:
    """For the length of a with-block the process is in another state; `undo` ends it, here or in a child of another
    thread's fork.
    """
    here = (threading.get_ident(), undo)
    _changes.append(here)
    try:
        yield
    finally:
        _changes.remove(here)
        undo()


@contextmanager
def resting() -> Iterator[None]:
    """The collector of cycles rests for the length of a with-block."""
    with changed(gc.enable if gc.isenabled() else _nothing):
        gc.disable()
        yield


def _nothing() -> None:
    pass


_MOST_PASSED_OVER = 3_000_000
_passed_over: int | None = 0  # objects that the collector has not looked at; None: the program freezes objects


def pass_over() -> None:
    """Have the collector take what was made while it rested for old: it looks there when it looks at everything, not at
    once. Where that has become much, it looks at everything now.

    In a program that freezes objects of its own nothing is passed over: these would thaw. To count them goes over all
    of them, so that it is done once.
    """
    global _passed_over
    if _passed_over is None:
        return
    _passed_over += gc.get_count()[0]
    if gc.get_freeze_count():
        _passed_over = None
    elif _passed_over > _MOST_PASSED_OVER:
        _passed_over = 0
        gc.collect()
    else:
        gc.freeze()
        gc.unfreeze()


def in_child(f: Callable[[], None]) -> Callable[[], None]:
    """Call `f` in each child, after the locks are free: to forget processes and files of the parent's."""
    _in_child.append(f)
    return f


# ---- around a fork
def _before() -> None:
    _mine.taken = taken = []
    end = time.monotonic() + PATIENCE
    for one in _locks:
        if one.acquire(timeout=0 if id(one) in _stuck else max(0.0, end - time.monotonic())):
            taken.append(one)
            _stuck.discard(id(one))
        else:
            _stuck.add(id(one))
    while (
        len(taken) == len(_locks)
        and any(thread != threading.get_ident() for thread, _ in _changes)
        and time.monotonic() < end
    ):
        time.sleep(NAP)


def _after() -> None:
    while _mine.taken:
        _mine.taken.pop().release()


def _after_in_child() -> None:
    taken = list(map(id, _mine.taken))
    _after()
    for one in _locks:
        if id(one) not in taken and not one._is_owned():  # (this thread may hold one: it goes on, and lets it go)
            one._at_fork_reinit()
    _stuck.clear()
    gone = [(thread, undo) for thread, undo in _changes if thread != threading.get_ident()]
    for change in reversed(gone):
        _changes.remove(change)
        change[1]()
    _forget_imports({thread for thread, _ in gone})
    for f in _in_child:
        f()


def _forget_imports(threads: set[int]) -> None:
    """Modules that other threads were importing, for us or of ours, are imported anew: Python would wait for ever for
    those threads.
    """
    locks = sys.modules["_frozen_importlib"]._module_locks
    held = {
        name: made.owner
        for name, reference in list(locks.items())
        if (made := reference()) is not None and made.owner is not None
    }
    ours = __name__.partition(".")[0]
    threads = threads | {owner for name, owner in held.items() if name.partition(".")[0] == ours}
    for name, owner in held.items():
        if owner in threads and owner != threading.get_ident():
            locks.pop(name, None)
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                sys.modules.pop(name, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
