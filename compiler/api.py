"""What users call: compile, explain, disable, enable, run_code, reset. Names and meanings follow torch.compile."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import types
from typing import Any, Callable, cast

import torch
import torch.nn as nn

from . import events, stages
from .backends import list_backends, register_backend, resolve
from .config import OPTIONS, Options
from .frontend.engine import Engine, engines, new_engine
from .frontend.graph_calls import compile_fx
from .errors import OptionError
from .frontend.hook import enable, run_code
from .marks import (
    disable,
    error_on_graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
    mark_unbacked,
    maybe_mark_dynamic,
)
from .frontend.module_wrapper import calls_of, original_module, wrap_module
from .report.builder import record
from .report.cell_source import source_of
from .runtime.dispatch import Dispatcher

__all__ = [
    "compile",
    "explain",
    "disable",
    "enable",
    "error_on_graph_break",
    "run_code",
    "record",
    "reset",
    "save_cache",
    "load_cache",
    "is_compiling",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "register_backend",
    "list_backends",
    "compile_fx",
    "stages",
]


def compile(
    fn: Any = None,
    *,
    mode: str | None = None,
    backend: Any = "tcompile",
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    **backend_options: Any,
) -> Any:
    """Compile a function or an nn.Module; usable as a decorator, with or without arguments.

    mode       "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs"
    backend    "tcompile", "eager", a function backend(gm, example_inputs) -> callable, or a backend's name known to
               torch
    fullgraph  True: one graph, or a FullGraphError that names line, reason and remedy. It is split only at what no
               graph can hold: a hook that is put on a tensor, a parameter that is made, x.data that is set
    dynamic    None: static first, a size that changes becomes a symbol; True: symbols from the start; False: never
    options    a dict of the options in tcompile.config; not together with mode
    disable    True: nothing is compiled, `fn` comes back as it is
    further keywords go to a callable backend

    Returns a callable like `fn`, with the same results and side effects. It is compiled on its first call. For a module
    it is an object that shares the module's state (state_dict, parameters, train/eval) and pickles as the module."""
    __tracebackhide__ = True  # IPython shows a mistake in the options at the user's line alone
    opts = Options.make(mode, resolve(backend), fullgraph, dynamic, options)
    if backend_options and not callable(opts.backend):
        first = next(iter(backend_options))
        near = difflib.get_close_matches(
            first, ("mode", "backend", "fullgraph", "dynamic", "options", "disable"), 1, 0.7
        )
        hint = (
            f" Write options={{{first!r}: ...}}." if first in OPTIONS else f" Did you mean {near[0]!r}?" if near else ""
        )
        raise OptionError(
            f"compile() got an unexpected keyword {first!r}; keywords beside mode, backend, fullgraph, dynamic "
            f"and options go to a callable backend.{hint}"
        )
    if not isinstance(disable, bool):
        raise OptionError(f"disable is True or False, got {disable!r}")

    def wrap(f: Any) -> Any:
        return f if disable else _wrap(f, opts, backend_options)

    return wrap if fn is None else wrap(fn)


def _wrap(fn: Any, opts: Options, backend_options: dict[str, Any]) -> Any:
    if isinstance(fn, torch.jit.ScriptModule):
        raise TypeError(
            f"tcompile.compile takes Python code, got a {type(fn).__name__}, which torch.jit has compiled: "
            "compile the module that it was made of"
        )
    owner = fn.__self__ if isinstance(fn, types.MethodType) else fn
    engine = new_engine(opts, backend_options, owner if isinstance(owner, nn.Module) else None)
    if isinstance(fn, nn.Module):
        return wrap_module(fn, engine)
    return _wrap_callable(fn, engine)


def _wrap_callable(fn: Any, engine: Engine) -> Any:
    if isinstance(fn, Dispatcher):
        fn = fn.__wrapped__
    if isinstance(fn, types.FunctionType):
        if fn.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return _suspending(fn, engine.opts)
        return engine.dispatcher(fn)
    if isinstance(fn, types.MethodType):
        if isinstance(fn.__self__, nn.Module):
            fn = types.MethodType(fn.__func__, original_module(fn.__self__))
        return types.MethodType(_wrap_callable(fn.__func__, engine), fn.__self__)
    if isinstance(fn, functools.partial):
        return functools.partial(_wrap_callable(fn.func, engine), *fn.args, **fn.keywords)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(_wrap_callable(fn.__func__, engine))
    if isinstance(fn, type) and isinstance(inspect.getattr_static(fn, "__call__", None), types.FunctionType):
        # a decorated class: calls of its instances are compiled, modules' hooks with them
        fn.__call__ = _wrap_callable(inspect.getattr_static(fn, "__call__"), engine)  # type: ignore[method-assign]
        return fn
    if isinstance(fn, type) or not callable(fn):
        what = (
            f"the class {fn.__name__}: compile an instance or a method" if isinstance(fn, type) else type(fn).__name__
        )
        raise TypeError(f"tcompile.compile takes a function or nn.Module, got {what}")

    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return engine.dispatcher(cast(types.FunctionType, call))


def _suspending(fn: Callable, opts: Options) -> Callable:
    """Generators and coroutines run as they are; the frames that they call are compiled."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        events.emit(
            "skip", frame=fn.__qualname__, reason="a generator or coroutine runs as it is; what it calls is compiled"
        )
        with enable(opts):
            return fn(*args, **kwargs)

    return call


def explain(fn: Any, *, check: bool = False, **kwargs: Any) -> Callable[..., Any]:
    """`explain(fn)(*args)` compiles `fn` anew for these arguments, calls it, and returns a CompileReport of what
    happened. Keywords are those of `compile`. The call's own value is `report.result`. With `check=True`, every node of
    the graphs is compared with eager and with float64 (`report.numerics`). The first that differs beyond rounding is a
    finding."""
    if not isinstance(check, bool):
        raise OptionError(f"check is True or False, got {check!r}")
    fn = (
        original_module(fn)
        if isinstance(fn, nn.Module)
        else getattr(fn, "__wrapped__", fn)
        if isinstance(fn, Dispatcher)
        else fn
    )
    compiled = compile(fn, **kwargs)
    _stand_alone(compiled)

    def run(*args: Any, **kw: Any) -> Any:
        name = getattr(fn, "__qualname__", type(fn).__name__)
        with record(title=name, source=source_of(fn)) as builder:
            value = compiled(*args, **kw)
        report = builder.report()
        report.result, report.compile_args = value, dict(kwargs)
        if check:
            from .report.numerics import check_calls

            check_calls(builder.calls, report, Options.make(kwargs.get("mode"), options=kwargs.get("options")))
        return report

    return run


def _stand_alone(compiled: Any) -> None:
    """Nothing that was compiled for an equal module serves here."""
    if isinstance(compiled, nn.Module):
        calls_of(compiled).engine.module = None
    elif isinstance(compiled, types.MethodType):
        method: Any = compiled.__func__
        method.miss.__self__.module = None


def explain_stock(fn: Any) -> Callable[..., Any]:
    """`explain_stock(fn)(*args)` gives a CompileReport of what stock torch.compile makes of a call: graphs, graph
    breaks at their lines, guards. The function that it returns can be called several times: the last report tells of
    all calls, with their recompiles. It is for comparing, and for those who must ship with stock."""
    from .backends import stock

    if not callable(fn):
        raise TypeError(f"explain_stock takes a function or a module, got {type(fn).__name__}")
    return stock.explain(
        original_module(fn)
        if isinstance(fn, nn.Module)
        else getattr(fn, "__wrapped__", fn)
        if isinstance(fn, Dispatcher)
        else fn
    )


def save_cache(path: str | os.PathLike) -> int:
    """Write the kernels that this process compiled or used to one file, and return their number. A machine of the same
    kind that loads it (`load_cache`) compiles none of them. Raises CacheFileError where there is nothing to save."""
    from .runtime import cache_file

    return cache_file.save(path, Options.make())


def load_cache(path: str | os.PathLike, *, trusted: bool = False) -> int:
    """Put the kernels of a file that `save_cache` wrote into the disk cache. Returns how many of them the cache lacked.

    The file holds machine code: load it only from people whom you trust. A warning says so unless `trusted` is True.
    Each checksum is checked before anything is kept. Raises CacheFileError where the file is damaged or is no file of
    `save_cache`, or where another version of tcompile, or one for another processor or GPU, saved it.

    The compiler is imported now, so that the first call need not."""
    from .runtime import cache_file

    if not isinstance(trusted, bool):
        raise OptionError(f"trusted is True or False, got {trusted!r}")
    new = cache_file.load(path, Options.make(), trusted)
    stages.load(known=True)
    return new


def reset() -> None:
    """Forget every compiled entry of this process. The disk cache stays: `%tcompile cache clear`, or `python -m
    tcompile cache --clear` in a shell, empties it."""
    from .frontend import hook
    from .runtime import output_pool

    for engine in engines:
        e = engine()
        if e is not None:
            e.reset()
    hook.reset()
    output_pool.clear()
