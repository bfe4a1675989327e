"""Entries, the cache of a code object, and dispatch: from a call to the compiled code that may serve it.

`Entry(program, fn, meta)` is compiled code (`fn(func, *parameters)`) with the guards under which it may serve a call.
`code_cache(code, owner=...)` is the CodeCache of a code object for one set of options, which the frame hook looks into;
`cache.lookup(func, args)` gives the entry whose guards hold, and moves it to the front; after a miss
`cache.last_failures` names the first guard of each entry that did not hold. `Dispatcher(func, cache, miss)` is a
function-like callable: it binds arguments as CPython does, looks the entry up and calls it. Where none serves,
`miss(dispatcher, func, args)` decides, with compiled code switched off in this thread: it gives an Entry to run
(preferred: that runs with compiled code on again), RUN_ORIGINAL, or the call's result. Parameters are in the order of
co_varnames: positional, keyword-only, *args tuple, **kwargs dict.

The classes are the C extension's where it is built (a hit costs 22-36 ns plus guards), else the Python ones below.
"""

from __future__ import annotations

import copyreg
import inspect
import operator
import sys
import threading
import types
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from ..native import native

__all__ = [
    "Entry",
    "CodeCache",
    "Dispatcher",
    "RUN_ORIGINAL",
    "code_cache",
    "forget_code",
    "forget_all",
    "disabled",
    "is_disabled",
    "stance",
    "forced_backend",
]


class PythonEntry:
    """Entry in Python; the C class has the same attributes."""

    def __init__(self, program: Any, fn: Callable, meta: Any = None) -> None:
        if not callable(fn):
            raise TypeError("Entry: fn must be callable")
        self.program, self.fn, self.meta, self.hits, self.switches = program, fn, meta, 0, 0


def stance() -> str:
    """What torch.compiler.set_stance says: "default", "force_eager", "eager_on_recompile", "fail_on_recompile" or
    another of stock's.
    """
    stock = sys.modules.get("torch._dynamo.eval_frame")
    return "default" if stock is None else stock._stance.stance


def forced_backend() -> Any:
    """The backend that torch.compiler.set_stance(force_backend=...) names; None without one."""
    stock = sys.modules.get("torch._dynamo.eval_frame")
    return None if stock is None else getattr(stock._stance, "backend", None)


class PythonCodeCache:
    """CodeCache in Python; the C class has the same methods."""

    def __init__(self) -> None:
        self._entries: list[PythonEntry] = []
        self.last_failures: list[tuple[PythonEntry, int]] = []
        self.skip = False
        self.rest = 0

    @property
    def entries(self) -> tuple[PythonEntry, ...]:
        return tuple(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: PythonEntry) -> None:
        if not isinstance(entry, PythonEntry):
            raise TypeError(f"add: an Entry was expected, not {type(entry).__name__}")
        self._entries = [entry, *self._entries]

    def remove(self, entry: PythonEntry) -> None:
        if entry not in self._entries:
            raise ValueError("remove: the entry is not in this cache")
        self._entries = [other for other in self._entries if other is not entry]

    def clear(self) -> None:
        self._entries, self.last_failures = [], []

    def lookup(self, func: Callable, args: tuple) -> PythonEntry | None:
        if stance() == "force_eager":
            return None
        failures = []
        for entry in self._entries:  # the list is replaced, never changed: safe to walk
            failed = entry.program.check(func, args)
            if failed == -1:
                if self._entries and entry is not self._entries[0] and entry in self._entries:
                    self._entries = [entry, *(other for other in self._entries if other is not entry)]
                    entry.switches += 1
                return entry
            failures.append((entry, failed))
        self.last_failures = failures
        return None


class _Thread(threading.local):
    disabled = 0


_thread = _Thread()
_PYTHON_RUN_ORIGINAL = object()


def _fx_traces() -> bool:
    fx = sys.modules.get("torch.fx._symbolic_trace")
    return fx is not None and fx.is_fx_symbolic_tracing()


class PythonDispatcher:
    """Dispatcher in Python; the C class behaves the same."""

    def __init__(self, func: types.FunctionType, cache: Any, miss: Callable) -> None:
        if not isinstance(func, types.FunctionType):
            raise TypeError(f"Dispatcher: a Python function was expected, not {type(func).__name__}")
        self.__wrapped__, self.cache, self.miss = func, cache, miss
        self._code = func.__code__
        self.__doc__, self.__module__ = func.__doc__, func.__module__

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        return self if obj is None else types.MethodType(self, obj)

    @property
    def __class__(self) -> type:  # torch.fx.symbolic_trace takes nothing but functions and modules
        return types.FunctionType if _fx_traces() else PythonDispatcher

    @__class__.setter
    def __class__(self, cls: type) -> None:
        raise TypeError("the class of a compiled function stays as it is")

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __repr__(self) -> str:
        return f"<compiled {self.__wrapped__!r}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        func = self.__wrapped__
        if _thread.disabled or func.__code__ is not self._code or _is_watched():
            return func(*args, **kwargs)
        bound = bind_parameters(func, args, kwargs)
        if bound is None:
            return func(*args, **kwargs)  # raises the TypeError
        with disabled():
            entry = self.cache.lookup(func, bound)
            result = self.miss(self, func, bound) if entry is None else None
        if entry is None:
            if result is RUN_ORIGINAL:
                return func(*args, **kwargs)
            if not isinstance(result, PythonEntry):
                return result
            entry = result
        entry.hits += 1
        return entry.fn(func, *bound)


def _is_watched() -> bool:
    """Whether a trace function, a debugger, coverage or a profile function of Python's watches this thread; cProfile
    does not count.
    """
    if sys.gettrace() is not None or callable(sys.getprofile()):
        return True
    return sys.version_info >= (3, 12) and any(sys.monitoring.get_tool(tool) is not None for tool in (0, 1, 3, 4, 5))


def bind_parameters(func: types.FunctionType, args: tuple, kwargs: dict[str, Any]) -> tuple | None:
    """The frame's parameters in co_varnames order, or None where the arguments do not fit."""
    code = func.__code__
    n_pos, n_named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    has_varargs, has_varkw = code.co_flags & inspect.CO_VARARGS, code.co_flags & inspect.CO_VARKEYWORDS
    values = dict(zip(names, args[:n_pos]))
    if len(args) > n_pos and not has_varargs:
        return None
    extra = {}
    for name, value in kwargs.items():
        if name in names[code.co_posonlyargcount : n_named]:
            if name in values:
                return None
            values[name] = value
        elif has_varkw:
            extra[name] = value
        else:
            return None
    defaults = func.__defaults__ or ()
    values = {**dict(zip(names[n_pos - len(defaults) : n_pos], defaults)), **(func.__kwdefaults__ or {}), **values}
    if any(name not in values for name in names[:n_named]):
        return None
    out = [values[name] for name in names[:n_named]]
    if has_varargs:
        out.append(args[n_pos:])
    if has_varkw:
        out.append(extra)
    return tuple(out)


def _reduce(d: Any) -> Any:
    """A compiled function pickles by its name, as functions do; one that its name does not find, as the function it was
    made from.
    """
    found: Any = sys.modules.get(d.__module__)
    for part in d.__qualname__.split("."):
        found = getattr(found, part, None)
    return d.__qualname__ if found is d else (operator.getitem, ([d.__wrapped__], 0))


_by_code: dict[tuple[int, int], PythonCodeCache] = {}  # id of the code, owner
# by id; where the extension keeps the caches on the code objects
_with_caches: dict[int, weakref.ref[types.CodeType]] = {}

if native is not None:
    Entry, CodeCache, Dispatcher, RUN_ORIGINAL = native.Entry, native.CodeCache, native.Dispatcher, native.RUN_ORIGINAL
else:
    Entry, CodeCache, Dispatcher, RUN_ORIGINAL = PythonEntry, PythonCodeCache, PythonDispatcher, _PYTHON_RUN_ORIGINAL


copyreg.pickle(Dispatcher, _reduce)


def code_cache(code: types.CodeType, create: bool = True, owner: int = 0) -> Any:
    """The CodeCache of a code object (by identity: equal code objects may have different globals) for the set of
    options of number `owner`, or None where there is none and `create` is false. It lives as long as the code object.
    Nothing that an entry holds may hold the code object in its turn: code objects are not garbage collected, and the
    cycle would stay for good."""
    if native is not None:
        found = native.code_cache(code, create, owner)
        if create and id(code) not in _with_caches:
            _with_caches[id(code)] = weakref.ref(code, lambda _, key=id(code): _with_caches.pop(key, None))
        return found
    found = _by_code.get((id(code), owner))
    if found is None and create:
        found = _by_code[id(code), owner] = PythonCodeCache()
        weakref.finalize(code, _by_code.pop, (id(code), owner), None).atexit = False
    return found


def forget_code(code: types.CodeType, owner: int | None = None) -> None:
    """Drop the entries of a code object for the set of options of number `owner` (None: for all), and its skip mark."""
    if native is not None:
        native.forget_code(code, -1 if owner is None else owner)
    for key, cache in _by_code.items():
        if key[0] == id(code) and owner in (None, key[1]):
            cache.clear()
            cache.skip = False


def forget_all() -> None:
    """Drop the entries of all code objects that have a cache."""
    for reference in list(_with_caches.values()):
        code = reference()
        if code is not None:
            forget_code(code)
    for cache in _by_code.values():
        cache.clear()
        cache.skip = False


@contextmanager
def disabled() -> Iterator[None]:
    """Run originals in this thread for the length of a with-block: dispatchers and the frame hook stand aside."""
    if native is not None:
        native.disable()
    _thread.disabled += 1
    try:
        yield
    finally:
        _thread.disabled -= 1
        if native is not None:
            native.enable()


def is_disabled() -> bool:
    """Whether compiled code is switched off in this thread."""
    return bool(native.disabled_depth() if native is not None else _thread.disabled)
