"""Entries of library code that are slower than the code they stand for are switched off.

Nobody asked for library code to be compiled, so it must pay. Its plain time is known: its frames ran plain while they
were watched. The first calls of a new entry are timed, too. Where they are not clearly faster, or no plain call of this
form was seen, a few calls run plain and are timed. An entry that is slower by a margin runs plain from then on, with
everything below it. The report says so, and it counts as a fallback.

The decision holds for code, form of call (shapes, dtypes, the module's parameters, the gradient mode) and device. It is
kept with the disk cache, and holds in later sessions. `reset()` forgets both.

What else the machine does must not decide. A difference below `SURE` is measured twice, one round after the other, and
both have to say it. It holds in later sessions once two of them have found it. Whatever was kept is measured again
after some sessions.

    training         what is timed changes between steps alone: at the optimizer's step, or where a cell begins
    process groups   every rank counts the same calls, and takes what rank 0 decides
    deterministic    under torch's deterministic algorithms nothing is decided by time, and no such decision holds
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
import types
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable

import torch

from .. import events
from ..base.processor import cpu_name
from ..capture.breaks.failing import call_original
from ..capture.bytecode.memo import CodeMemo
from ..config import Options
from ..guards.state import read_field
from ..runtime.cache import open_cache
from ..runtime.dispatch import disabled
from ..runtime.stock_hook import hide
from .call_forms import Form, code_digest, form_of
from .ranks import agreed, several

__all__ = ["Measured", "Timings", "MARGIN", "SURE"]

WARM = 2  # calls of an entry that are not timed: the rest of it may be compiled in them
CALLS = 8  # of one form that are timed; the quickest counts
PLAIN = 3  # plain calls that are timed
MOST = 64  # calls of an entry after which one whose forms all differ is not timed any more
MARGIN = 1.1  # an entry is slower from this ratio on,
LEAST = 2e-6  # and from this many seconds on
SURE = 1.5  # from this ratio on one measurement is enough: a busy machine makes smaller ones,
ROUNDS = 2  # and else so many have to agree, in one session
SESSIONS = 2  # and so many sessions, until it holds in later ones
TRUSTED = 8  # sessions that go by what was kept, until one measures again
CLEAR = 0.5  # below this share of a first plain call, which may have been slow, an entry pays in any case
_FORMS = 256  # forms of one code object whose times are kept


@dataclass
class _Known:
    """What is known of one form of call of one code object."""

    plain: float | None = None  # the quickest, in seconds
    gain: float = 0.0  # of a call of an entry that stays, in seconds
    verdict: str = ""  # "off", "on"
    words: str = ""  # why it is off
    said: int = -1  # the run of a cell whose report has it
    key: str = ""  # of its note on disk
    before: str = ""  # the verdict that the note has,
    agreeing: int = 0  # and how many earlier sessions have found it, one after the other


@dataclass
class Timings:
    """What one engine knows of the times of library code."""

    opts: Options
    run: int = 0  # of a cell
    forms: CodeMemo[dict[Form, _Known]] = field(default_factory=CodeMemo)
    _training: list["Measured"] = field(default_factory=list)  # that wait for the end of a step

    def active(self) -> bool:
        """Whether time may decide. Where the program watches each operator, nothing asks a tensor for its form."""
        return (
            bool(self.opts.get("switch_off_slower"))
            and not torch.are_deterministic_algorithms_enabled()
            and not any(read_field("torch_function")[1:])
        )

    def reset(self) -> None:
        for code in self.forms:
            for known in self.forms[code].values():
                if known.key:
                    open_cache(self.opts).drop_note(known.key)
        self.forms.clear()
        self._training.clear()

    def next_run(self) -> None:
        """A cell is about to run: one step of a training is over."""
        self.run += 1
        self.between_steps()

    def between_steps(self) -> None:
        waiting, self._training = self._training, []
        for measured in waiting:
            measured.go_on()

    def of(self, code: types.CodeType, form: Form) -> _Known:
        known = self.forms.get(code)
        if known is None:
            known = self.forms[code] = {}
        if form not in known and len(known) >= _FORMS:
            return _Known()
        return known.setdefault(form, _Known())

    # ---- calls that run plain
    def run_plain(self, code: types.CodeType, func: types.FunctionType, args: tuple) -> Any:
        """The call as it is, with everything below it; its time is kept."""
        if not self.active() or _is_recording():
            return call_original(func, args)
        form = form_of(args)
        result, seconds = _timed(form, call_original, func, args)
        self.saw_plain(self.of(code, form), seconds)
        return result

    @staticmethod
    def saw_plain(known: _Known, seconds: float) -> None:
        known.plain = seconds if known.plain is None else min(seconds, known.plain)

    def is_off(self, code: types.CodeType, args: tuple) -> bool:
        """Whether a call of this form runs plain, since its entry was slower, in this session or an earlier one."""
        if not self.active():
            return False
        form = form_of(args)
        known = self.of(code, form)
        if not known.key:
            self._read(code, form, known)
        if known.verdict != "off":
            return False
        self.say(code, known)
        return True

    def _read(self, code: types.CodeType, form: Form, known: _Known) -> None:
        known.key = _key(code, form, self.opts)
        if several():  # folders of ranks may differ
            return
        note = open_cache(self.opts).get_note(known.key)
        try:
            kept = json.loads(note) if note else {}
            if (verdict := kept.get("verdict")) not in ("on", "off"):
                return
            known.before, known.agreeing = verdict, int(kept.get("sessions", 1))
            entry, plain, used = float(kept["entry"]), float(kept["plain"]), int(kept.get("used", 0))
        except (ValueError, KeyError, TypeError, AttributeError):
            open_cache(self.opts).drop_note(known.key)
            return
        sure = verdict == "on" or known.agreeing >= SESSIONS or entry > plain * SURE
        if sure and used < TRUSTED:
            known.verdict, known.gain = verdict, plain - entry
            known.words = _words(entry, plain, " in an earlier session")
            open_cache(self.opts).put_note(known.key, json.dumps({**kept, "used": used + 1}))

    def say(self, code: types.CodeType, known: _Known) -> None:
        """State it once in each run of a cell: what was switched off is a fallback."""
        if known.said == self.run:
            return
        known.said = self.run
        place = {"frame": code.co_qualname, "file": code.co_filename, "line": code.co_firstlineno}
        events.emit("library", decision="switched off", reason=known.words, **place)
        events.fallback(code.co_qualname, f"switched off: {known.words}")

    # ---- entries
    def watch(self, entry: Any, cache: Any, code: types.CodeType, leaf: bool) -> None:
        """Time the first calls of a new entry."""
        if self.active():
            entry.fn = Measured(self, entry, cache, code, leaf)

    def decide(self, code: types.CodeType, form: Form, known: _Known, entry: float | None) -> str:
        """The verdict on an entry whose quickest call took `entry` seconds; it is kept on disk."""
        off = entry is not None and known.plain is not None and _slower(entry, known.plain)
        verdict = agreed("off" if off else "on", code_digest(code))
        known.verdict, known.words = verdict, _words(entry, known.plain)
        known.gain = known.plain - entry if known.plain is not None and entry is not None else 0.0
        known.key = known.key or _key(code, form, self.opts)
        if entry is not None and known.plain is not None and not several():
            sessions = 1 + (known.agreeing if verdict == known.before else 0)
            kept = {"verdict": verdict, "entry": entry, "plain": known.plain, "sessions": sessions}
            open_cache(self.opts).put_note(known.key, json.dumps(kept))
        return verdict


class Measured:
    """Stands for the compiled function of an entry while its calls are timed, and for one that is switched off."""

    __slots__ = (
        "_timings",
        "_entry",
        "_cache",
        "_code",
        "_leaf",
        "_raw",
        "_stage",
        "_calls",
        "_ran",
        "_plain",
        "_form",
        "_rounds",
    )

    def __init__(self, timings: Timings, entry: Any, cache: Any, code: types.CodeType, leaf: bool):
        self._timings, self._entry, self._cache, self._leaf = timings, entry, weakref.ref(cache), leaf
        self._code = weakref.ref(code)  # nothing that an entry holds may hold its code
        self._raw: Callable = entry.fn
        self._stage: Callable = self._run
        self._calls = self._plain = self._rounds = 0
        self._ran: dict[Form, list[float]] = {}
        self._form: Form  # of which enough calls were timed

    def __call__(self, func: types.FunctionType, *args: Any) -> Any:
        __tracebackhide__ = True
        if not self._timings.active() or _is_recording():
            return self._raw(func, *args)
        return self._stage(func, args)

    def _run(self, func: types.FunctionType, args: tuple) -> Any:
        """Time a call of the entry."""
        __tracebackhide__ = True
        form, code = form_of(args), self._code()
        known = self._timings.of(code, form) if code is not None else None
        if known is not None and known.verdict == "on":  # in an earlier session, or for a model that is gone
            self._stays(known)
        result, seconds = _timed(form, self._raw, func, *args)
        self._calls += 1
        if self._calls > WARM:
            times = self._ran.setdefault(form, [])
            times.append(seconds)
            if len(times) >= CALLS or several() and self._calls >= WARM + CALLS:
                self._form = form
                self._end(form)
            elif self._calls >= MOST:
                self._entry.fn = self._raw
        return result

    def _as_it_is(self, func: types.FunctionType, args: tuple) -> Any:
        """Between two steps of a training, until the step ends."""
        __tracebackhide__ = True
        return self._raw(func, *args)

    def _run_plain(self, func: types.FunctionType, args: tuple) -> Any:
        """Time a plain call."""
        __tracebackhide__ = True
        self._entry.hits -= 1
        form = form_of(args)
        with disabled():
            result, seconds = _timed(form, call_original, func, args)
        if (code := self._code()) is not None:
            self._timings.saw_plain(self._timings.of(code, form), seconds)
        self._plain += 1
        if self._plain == PLAIN:
            self._end(form)
        return result

    def _off(self, func: types.FunctionType, args: tuple) -> Any:
        """The entry is switched off."""
        __tracebackhide__ = True
        self._entry.hits -= 1
        if (code := self._code()) is not None:
            self._timings.say(code, self._timings.of(code, self._form))
        with disabled():
            return call_original(func, args)

    def _end(self, form: Form) -> None:
        """A stage is over: the next one begins, in training once the step is over."""
        if form.trains:
            if self._stage == self._run:
                self._stage = self._as_it_is
            self._timings._training.append(self)
        else:
            self.go_on()

    def go_on(self) -> None:
        code = self._code()
        if code is None:
            return
        known, best = self._timings.of(code, self._form), min(self._ran[self._form])
        clear = known.plain is not None and best < CLEAR * known.plain and not several()
        if self._plain < PLAIN and not clear:
            self._stage = self._run_plain
        elif self._once_more(known, best):
            self._ran.clear()
            self._calls, self._plain, known.plain = WARM, 0, None
            self._stage = self._run
        elif self._timings.decide(code, self._form, known, best) == "on":
            self._stays(known)
        else:
            self._switch_off(code, known)

    def _once_more(self, known: _Known, best: float) -> bool:
        """Whether a difference is measured again: it is none that a busy machine does not make."""
        self._rounds += 1
        return (
            self._rounds < ROUNDS
            and known.plain is not None
            and _slower(best, known.plain)
            and best < known.plain * SURE
            and not several()
        )

    def _stays(self, known: _Known) -> None:
        self._entry.fn = self._raw
        if self._entry.meta is not None:
            self._entry.meta.gain = known.gain

    def _switch_off(self, code: types.CodeType, known: _Known) -> None:
        self._stage = self._off
        self._timings.say(code, known)
        cache = self._cache()
        if self._leaf and cache is not None and len(cache) == 1:  # even a look at its guards would cost too much
            cache.remove(self._entry)


for _step in (Measured.__call__, Measured._run, Measured._run_plain, Measured._off, Measured._as_it_is):
    hide(_step.__code__)


def _key(code: types.CodeType, form: Form, opts: Options) -> str:
    """The name of the note about a form of call, for this device and set of options."""
    options = (
        opts.mode,
        repr(opts.backend),
        opts.dynamic,
        sorted((key, repr(value)) for key, value in opts.given.items()),
    )
    text = "\n".join((code_digest(code), repr(form), _device(form.gpu), repr(options), torch.__version__))
    return f"slower-{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def _device(gpu: bool) -> str:
    cpu = f"{cpu_name()} {platform.machine()} {torch.get_num_threads()} threads"
    return f"{torch.cuda.get_device_name()} {cpu}" if gpu else cpu


# ---- times
def _timed(form: Form, fn: Callable, *args: Any) -> tuple[Any, float]:
    """(the result, seconds) of a call; on a GPU until its work is done."""
    __tracebackhide__ = True
    if form.gpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    result = fn(*args)
    if form.gpu:
        torch.cuda.synchronize()
    return result, time.perf_counter() - began


hide(_timed.__code__)


def _is_recording() -> bool:
    """Whether a CUDA graph is being recorded: nothing may wait for the GPU then."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _slower(entry: float, plain: float) -> bool:
    return entry > plain * MARGIN + LEAST


def _words(entry: float | None, plain: float | None, when: str = "") -> str:
    return f"its calls took {_ms(entry)}{when}, and {_ms(plain)} as plain Python"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
