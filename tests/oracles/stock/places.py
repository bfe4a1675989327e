"""What stock's tests call, with this compiler in its place.

`install(ours)` puts it there, once in a process, before a test module is imported. With ours=False stock's compiler
stays, and all else is the
same: the control, which tells what fails with the installed version whoever compiles.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import unittest
from collections import Counter
from typing import Any, Callable
from unittest import mock

import torch
import torch._dynamo
import torch._dynamo.testing
import torch._dynamo.utils
import torch._inductor.compile_fx
import torch._inductor.metrics
import torch._inductor.utils
import torch.testing
from torch.testing._internal import common_utils, logging_utils

import tcompile
from tcompile.compiler import api, config
from tcompile.compiler.frontend import engine
from tcompile.compiler.config import OPTIONS
from tcompile.compiler.frontend.module_wrapper import original_module

from .untold import Untold, UntoldText, has_untold

__all__ = ["NotOurs", "install", "leave_out", "placed"]

placed: Counter = Counter()  # how often each place was called


class NotOurs(unittest.SkipTest):
    """The test asks for something that this compiler does not stand for; its words are the cause."""


def _not_ours(what: str) -> Callable:
    def ask(*args: Any, **kwargs: Any) -> Any:
        raise NotOurs(f"asks {what}")

    return ask


# ------------------------------------------------------------------------------------------------ backends and what
# they record
class Recorder:
    """Stands for stock's backends that count and keep graphs: they compile as `backend` does, what they tell is
    untold.
    """

    backend: Any = "eager"

    def __init__(self, backend: Any = None):
        if backend is not None:
            self.backend = backend

    def __call__(self, gm: Any, inputs: Any) -> Callable:
        if self.backend == "eager":
            return gm.forward
        from torch._dynamo.backends.registry import lookup_backend

        return lookup_backend(self.backend)(gm, inputs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("compiler_name", "get_compiler_config"):  # what stock asks of a backend
            raise AttributeError(name)
        return Untold()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "backend":
            object.__setattr__(self, name, value)


class AotRecorder(Recorder):
    backend = "aot_eager"


class InductorRecorder(Recorder):
    backend = "inductor"


class TakenOver:
    """What inductor's compile_fx gives: its graph, which this compiler takes over where it made the graph, and else
    compiles when it is called.
    """

    def __init__(self, gm: Any, inputs: Any):
        self.gm, self.inputs, self.compiled = gm, inputs, None

    def __call__(self, *args: Any) -> Any:
        if self.compiled is None:
            self.compiled = api.compile_fx(self.gm, self.inputs)
        return self.compiled(*args)


def compile_fx(gm: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
    placed["compile_fx"] += 1
    return TakenOver(gm, inputs)


def compile_fx_inner(gm: Any, inputs: Any, *rest: Any, **options: Any) -> Callable:
    placed["compile_fx_inner"] += 1
    compiled = api.compile_fx(gm, inputs)
    return lambda args: compiled(*args)


def _names_inductor(backend: Any) -> bool:
    """Whether a function that a test gives as backend calls inductor's compile_fx."""
    code = getattr(backend, "__code__", None)
    return code is not None and "compile_fx" in code.co_names + code.co_freevars


def _backend(given: Any) -> Any:
    if isinstance(given, Recorder):
        given = given.backend
    while isinstance(given, functools.partial):
        given = given.func
    if given in ("inductor", None) or given in (compile_fx, torch._inductor.compile_fx):
        return "tcompile"
    return given


_compiler_of = engine.compiler_of


def _graph_taken_over(captured: Any, opts: Any, backend_options: Any) -> Any:
    """What the engine asks for a backend: a test's own that hands the graph to compile_fx is heard, and the graph goes
    through our stages.
    """
    if _names_inductor(opts.backend):
        taken = opts.backend(captured.graph_module, list(captured.example_inputs))
        if isinstance(taken, TakenOver) and taken.gm is captured.graph_module:
            ours = type(opts)(opts.mode, "tcompile", opts.fullgraph, opts.dynamic, opts.given)
            return lambda captured, _: _compiler_of(captured, ours, {})(captured, ours)
    return _compiler_of(captured, opts, backend_options)


# ------------------------------------------------------------------------------------------------ torch.compile and its
# like Stock's settings, where this compiler has one of the same meaning: (config, name there, name here)
SETTINGS = (
    ("torch._inductor.config", "freezing", "freezing"),
    ("torch._inductor.config", "emulate_precision_casts", "emulate_precision"),
)
# Arguments by which a test listens to stock's own guards and graphs.
LISTENERS = ("guard_export_fn", "guard_fail_fn", "guard_filter_fn", "hooks", "export", "rebuild_ctx")

_dynamic: bool | None = None  # what dynamic= is where a test leaves it open


def _options(given: dict[str, Any] | None) -> dict[str, Any]:
    found = {k: v for k, v in (given or {}).items() if k in OPTIONS and type(v) is type(OPTIONS[k].default)}
    for module, theirs, ours in SETTINGS:
        if getattr(importlib.import_module(module), theirs, False):
            found[ours] = True
    return found


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    **more: Any,
) -> Any:
    placed["compile"] += 1
    for name in LISTENERS:
        if more.pop(name, None) is not None or (options or {}).get(name) is not None:
            raise NotOurs(f"listens to stock's own guards ({name})")
    if dynamic is None:
        dynamic = True if not torch._dynamo.config.assume_static_by_default else _dynamic
    kinds: dict[str, Any] = (
        {"options": _options(options) or None} if mode in (None, "default") or _options(options) else {"mode": mode}
    )
    return api.compile(model, fullgraph=fullgraph, dynamic=dynamic, backend=_backend(backend), disable=disable, **kinds)


class _Decorator:
    """What torch._dynamo.optimize gives: a decorator that was once a context manager, too."""

    def __init__(self, **arguments: Any):
        self.arguments = arguments

    def __call__(self, fn: Any) -> Any:
        return compile(fn, **self.arguments)

    def __enter__(self) -> None:
        if torch._dynamo.config.raise_on_ctx_manager_usage:
            raise RuntimeError("torch._dynamo.optimize(...) is used with a context manager")
        self.hook = tcompile.enable(backend=_backend(self.arguments["backend"]), fullgraph=self.arguments["fullgraph"])
        self.hook.__enter__()

    def __exit__(self, *details: Any) -> None:
        self.hook.__exit__(*details)


def optimize(backend: Any = "inductor", *, nopython: bool = False, save_config: bool = True, **arguments: Any) -> Any:
    return _Decorator(backend=backend, fullgraph=nopython, **arguments)


def optimize_assert(backend: Any, *, save_config: bool = True, **arguments: Any) -> Any:
    return _Decorator(backend=backend, fullgraph=True, **arguments)


def run_decorator(fn: Any = None) -> Any:
    """torch._dynamo.run: what is compiled runs, and nothing more is compiled."""
    return (lambda f: f) if fn is None else fn


# What tests ask of stock alone: its export, its words, its caches. "module:name".
STOCK_ALONE = """
    torch._dynamo:export torch._dynamo:explain torch._dynamo.eval_frame:_debug_get_cache_entry_list
    torch._inductor:aot_compile torch._dynamo.eval_frame:export torch._dynamo.testing:extract_graph
    torch._dynamo.testing:extract_graph_and_tracker""".split()


class _Compiled(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch.nn.Module) and original_module(value) is not value


class OptimizedModule(metaclass=_Compiled):
    """Any module that this compiler made of another."""


def _ours() -> None:
    torch._dynamo.OptimizedModule = torch._dynamo.eval_frame.OptimizedModule = OptimizedModule  # type: ignore[misc, assignment]
    torch.compile = compile  # type: ignore[assignment]
    for module in (torch._dynamo, torch._dynamo.eval_frame, torch._dynamo.testing):
        for f in (optimize, optimize_assert):
            if hasattr(module, f.__name__):
                setattr(module, f.__name__, f)
    torch._dynamo.run = run_decorator
    torch._inductor.compile_fx.compile_fx = compile_fx  # type: ignore[assignment]
    torch._inductor.compile_fx.compile_fx_inner = compile_fx_inner  # type: ignore[assignment]
    torch._inductor.compile = compile_fx  # type: ignore[assignment]
    for place in STOCK_ALONE:
        module_name, name = place.split(":")
        setattr(importlib.import_module(module_name), name, _not_ours(place.replace(":", ".")))
    reset = torch._dynamo.reset

    @functools.wraps(reset)
    def both() -> None:
        reset()
        tcompile.reset()

    torch._dynamo.reset = both
    engine.compiler_of = _graph_taken_over


# ------------------------------------------------------------------------------------------------ what both runs leave
# out
def _code_of(fn: Callable, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs), Untold()


def _text_of(fn: Callable, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs), UntoldText()


def _text_alone(fn: Callable, *args: Any, **kwargs: Any) -> Any:
    fn(*args, **kwargs)
    return UntoldText()


def _forward_and_backward(fn: Callable) -> Any:
    result = fn()
    result.sum().backward()
    return result, Untold()


UTILITIES = {
    "run_and_get_code": _code_of,
    "run_and_get_kernels": _code_of,
    "run_and_get_cpp_code": _text_of,
    "run_fw_bw_and_get_code": _forward_and_backward,
    "run_and_get_triton_code": _text_alone,
    "get_code": _text_alone,
    "get_triton_code": _text_alone,
    "run_and_get_graph_lowering": _code_of,
    "add_scheduler_init_hook": _not_ours("inductor's scheduler"),
}


def make_logging_test(**kwargs: Any) -> Callable:
    """torch's decorator of tests that read stock's log."""

    def decorate(test: Callable) -> Callable:
        return functools.wraps(test)(lambda self: test(self, Untold()))

    return decorate


# Helpers of the test modules that read graphs.
READ_GRAPHS = ("find_first_node", "op_count", "count_ops", "assert_dict_matches_regex")


def leave_out(module: Any) -> None:
    """In a test module that was imported, what reads graphs is untold, and hooks on stock's guards do nothing."""
    for name in READ_GRAPHS:
        if hasattr(module, name):
            setattr(module, name, Untold())
    for value in list(vars(module).values()):
        if isinstance(value, type) and hasattr(value, "guard_manager_clone_hook_fn"):
            value.guard_manager_clone_hook_fn = lambda self, *args, **kwargs: None


class FileCheck:
    """torch's checks of text: all of them are on code and graphs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self


@contextlib.contextmanager
def _any_error(must: bool):
    """In the place of assertRaises for an error class of stock's own: what it refuses may work, and its words are its
    own.
    """

    class Said:
        exception: Any = Untold()

    raised = False
    try:
        yield Said()
    except unittest.SkipTest:
        raise
    except Exception:
        raised = True
    if must and not raised:
        raise AssertionError("nothing was raised, where stock says that a backend failed")


OWN_ERRORS = re.compile(r"torch\._(dynamo|inductor|subclasses|guards)\b|torch\.fx\.experimental")
MUST_RAISE = ("BackendCompilerFailed", "TorchRuntimeError")


def _stock_errors(expected: Any) -> list[type]:
    classes = expected if isinstance(expected, tuple) else (expected,)
    return [c for c in classes if isinstance(c, Untold) or isinstance(c, type) and OWN_ERRORS.match(c.__module__)]


def _raises(original: Callable, with_words: bool) -> Callable:
    @functools.wraps(original)
    def check(self: Any, expected: Any, *args: Any, **kwargs: Any) -> Any:
        own = _stock_errors(expected)
        if not own:
            return original(self, expected, *args, **kwargs)
        rest = args[1:] if with_words else args
        context = _any_error(any(getattr(c, "__name__", "") in MUST_RAISE for c in own))
        if not rest:
            return context
        with context:
            rest[0](*rest[1:], **kwargs)

    return check


def _told(original: Callable) -> Callable:
    @functools.wraps(original)
    def check(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if has_untold(args, 3) else original(self, *args, **kwargs)

    return check


def _assertions() -> None:
    for case in (unittest.TestCase, common_utils.TestCase):
        for name, method in list(vars(case).items()):
            if not name.startswith("assert") or not callable(method):
                continue
            if name.startswith("assertExpected"):
                setattr(case, name, lambda self, *args, **kwargs: None)
            elif name in ("assertRaises", "assertRaisesRegex"):
                setattr(case, name, _raises(method, name == "assertRaisesRegex"))
            elif name not in ("assertWarns", "assertWarnsRegex", "assertLogs", "assertNoLogs"):
                setattr(case, name, _told(method))
    for name in ("assertExpectedInline", "assertExpected", "assertExpectedRaisesInline"):
        setattr(common_utils.TestCase, name, lambda self, *args, **kwargs: None)


def _settings() -> None:
    """Settings that the installed version has no longer are left out of what a test sets."""
    kind = type(torch._dynamo.config)
    patch = kind.patch

    def known(self: Any, arg1: Any = None, arg2: Any = None, **kwargs: Any) -> Any:
        changes = {arg1: arg2} if isinstance(arg1, str) else dict(arg1 or kwargs)
        return patch(
            self,
            {
                k: v
                for k, v in changes.items()
                if k in self._config or k in getattr(self, "_compile_ignored_keys", ()) or _has(self, k)
            },
        )

    kind.patch = known  # type: ignore[method-assign]

    set_, get = kind.__setattr__, kind.__getattr__
    values = {name: getattr(torch._dynamo.config, stands) for name, stands in GONE.items()}
    kind.__setattr__ = lambda self, name, value: (
        values.update({name: value}) if name in GONE else set_(self, name, value)
    )  # type: ignore[method-assign]
    kind.__getattr__ = lambda self, name: values[name] if name in GONE else get(self, name)  # type: ignore[method-assign]
    kind.__delattr__ = lambda self, name: None  # type: ignore[method-assign]


# Settings that tests change by mock.patch and the installed version may lack: those that stand for them.
GONE = {
    "cache_size_limit": "recompile_limit",
    "accumulated_cache_size_limit": "accumulated_recompile_limit",
}


def _has(settings: Any, name: str) -> bool:
    try:
        getattr(settings, name)
        return True
    except AttributeError:
        return False


def install(ours: bool, dynamic: bool | None) -> None:
    global _dynamic
    _dynamic = dynamic
    testing = torch._dynamo.testing
    for name, stands in (
        ("CompileCounter", Recorder),
        ("CompileCounterWithBackend", Recorder),
        ("EagerAndRecordGraphs", Recorder),
        ("AotEagerAndRecordGraphs", AotRecorder),
        ("InductorAndRecordGraphs", InductorRecorder),
    ):
        setattr(testing, name, stands)
    for name in ("normalize_gm", "empty_line_normalizer", "strip_comment", "remove_trailing_space"):
        setattr(testing, name, lambda *args, **kwargs: UntoldText())
    for name, stands_for in UTILITIES.items():
        setattr(torch._inductor.utils, name, stands_for)
    logging_utils.make_logging_test = make_logging_test
    for name in ("getRecord", "getRecords", "hasRecord"):
        setattr(logging_utils.LoggingTestCase, name, lambda *args, **kwargs: Untold())
    torch.testing.FileCheck = FileCheck  # type: ignore[misc, assignment]
    torch._C.FileCheck = FileCheck  # type: ignore[misc, assignment]
    _assertions()
    _settings()
    torch._inductor.metrics = Untold()  # type: ignore[assignment]
    torch._dynamo.utils.counters = Untold()  # type: ignore[assignment]
    if ours:
        _ours()
    elif dynamic:
        stock = torch.compile
        torch.compile = functools.wraps(stock)(
            lambda *a, dynamic=None, **k: stock(*a, dynamic=True if dynamic is None else dynamic, **k)
        )
        mock.patch.object(torch._dynamo.config, "assume_static_by_default", False).start()
    config.recompile_limit = max(8, config.recompile_limit)
