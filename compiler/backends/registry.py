"""The table of backends by name, and what compiles a graph by each."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from typing import Any, Callable

import torch

from .. import events
from ..base.fx_modules import written_out
from ..capture.breaks.failing import undone
from ..capture.numbers.late_text import in_words
from ..graph.captured import CapturedGraph
from ..config import Options
from ..errors import BackendError, OptionError
from ..runtime.dispatch import disabled

__all__ = ["BACKENDS", "compiler_of", "list_backends", "register_backend", "resolve"]

Backend = Callable[..., Callable]
Compiler = Callable[[CapturedGraph, Options], Callable[..., tuple]]
BACKENDS: dict[str, Backend] = {}


def register_backend(fn: Backend | None = None, *, name: str | None = None) -> Any:
    """Make `fn(gm, example_inputs, **options) -> callable` known by `name`, its own by default; usable as a decorator.
    A name that was registered before now means `fn`. OptionError for what is no function, and for a name that is this
    compiler's own.
    """
    if name is not None and not (isinstance(name, str) and name):
        raise OptionError(f"register_backend: name is a string, got {name!r}")
    if fn is None:
        return lambda f: register_backend(f, name=name)
    if not callable(fn):
        raise OptionError(f"register_backend takes a function backend(gm, example_inputs), got {type(fn).__name__}")
    known_as = str(name or getattr(fn, "__name__", type(fn).__name__))
    if known_as in _OWN:
        raise OptionError(f"register_backend: {known_as!r} is a backend of tcompile itself; give yours another name=")
    BACKENDS[known_as] = fn
    return fn


def list_backends() -> list[str]:
    """Names that backend= takes without asking torch."""
    return sorted({*_OWN, *BACKENDS})


def resolve(backend: Any) -> Any:
    """Check backend= early: the name or callable itself, or an OptionError with the names there are."""
    if callable(backend):
        return backend
    if not isinstance(backend, str):
        raise OptionError(f"backend is a name or a function backend(gm, example_inputs), got {type(backend).__name__}")
    if backend in _OWN or backend in BACKENDS:
        return backend
    from . import registered

    names = list(dict.fromkeys([*list_backends(), *registered.names()]))
    if backend in names:
        return backend
    near = difflib.get_close_matches(backend, names, 1, 0.5)
    raise OptionError(
        f"unknown backend {backend!r}."
        + (f" Did you mean {near[0]!r}?" if near else "")
        + f" Backends: {', '.join(names)}"
    )


def compiler_of(captured: CapturedGraph, opts: Options, backend_options: dict[str, Any]) -> Compiler:
    """What compiles a captured graph under `opts`: the stages, with the bridge to autograd around them where gradients
    are asked for, or the adapter of another backend. Raises NotImplementedError where kernels can't be made for the
    graph's tensors, with the reason."""
    backend = opts.backend
    if isinstance(backend, str) and backend in _OWN:
        return _OWN[backend](captured, opts)
    if isinstance(backend, str) and backend not in BACKENDS:
        from . import registered

        return functools.partial(_by_other, registered.lookup(backend), backend_options)
    return functools.partial(_by_other, BACKENDS[backend] if isinstance(backend, str) else backend, backend_options)


def _by_stages(captured: CapturedGraph, opts: Options) -> Compiler:
    from .. import stages
    from ..autograd import bridge

    _check_devices(captured, opts)
    return bridge.compile_with_grad if bridge.wants_gradients(captured) else stages.compile_captured


def _by_eager_autograd(captured: CapturedGraph, opts: Options) -> Compiler:
    from ..autograd import bridge

    return bridge.aot_eager


# This compiler's own backends: what gives the compiler of a graph.
_OWN: dict[Any, Callable[[CapturedGraph, Options], Compiler]] = {
    "tcompile": _by_stages,
    "cudagraphs": _by_stages,  # with the option of that name: config.Options.make
    "aot_eager": _by_eager_autograd,
    "eager": lambda captured, opts: _as_captured,
}


def _as_captured(captured: CapturedGraph, opts: Options) -> Callable[..., tuple]:
    return written_out(captured.graph_module).forward


def _by_other(
    fn: Backend, backend_options: dict[str, Any], captured: CapturedGraph, opts: Options
) -> Callable[..., tuple]:
    """A backend of other people's, which takes a GraphModule and example inputs, and no symbols."""
    written_out(captured.graph_module)
    make = functools.partial(_call_backend, fn, backend_options, captured)
    if any(
        i.kind == "int" or i.spec is not None and any(type(size) is not int for size in i.spec.shape)
        for i in captured.inputs
    ):
        from .registered import SymbolicGraph

        return SymbolicGraph(make, captured, opts.get("recompile_limit"))
    return make(captured.graph_module, list(captured.example_inputs))


def _check_devices(captured: CapturedGraph, opts: Options) -> None:
    """Raises NotImplementedError where kernels can't be made for the graph's tensors, with the reason."""
    devices: dict[torch.device, str] = {}
    for node in captured.graph_module.graph.nodes:
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            devices.setdefault(val.device, node.name)
    for device, name in devices.items():
        if device.type not in ("cpu", "cuda"):
            raise NotImplementedError(f"{name} is on {device}, and kernels are made for the CPU and for CUDA")
    if any(device.type == "cuda" for device in devices):
        from ..runtime.gpu.device import why_not
        from ..runtime.gpu.workers import prestart, processes

        why = why_not()
        if why is not None:
            raise NotImplementedError(f"no kernels for the GPU: {why}")
        prestart(min(1 + len(captured.graph_module.graph.nodes) // 10, processes(opts)))


def _call_backend(
    fn: Backend, options: dict[str, Any], captured: CapturedGraph, gm: torch.fx.GraphModule, example_inputs: list
) -> Callable[..., tuple]:
    name = getattr(fn, "__name__", type(fn).__name__)
    try:
        compiled = fn(gm, example_inputs, **options)
    except Exception as e:
        if _declines(e):
            events.fallback(
                captured.name, f"backend {name!r} declines it: {in_words(e)}; the graph runs with torch's own kernels"
            )
            return undone(captured)
        if isinstance(e, TypeError):
            try:
                inspect.signature(fn).bind(gm, example_inputs, **options)
            except TypeError as why:
                raise BackendError(
                    f"backend {name!r} can't be called as backend(gm, example_inputs): {why}", name
                ) from e
        raise BackendError(f"backend {name!r} raised {in_words(e)}", name) from e
    if not callable(compiled):
        raise BackendError(
            f"backend {name!r} returned {type(compiled).__name__}; it should return a callable, for example gm.forward",
            name,
        )

    def run(*inputs: Any) -> tuple:
        try:
            with disabled():  # what a backend runs is not captured again
                out = compiled(*inputs)
        except Exception as e:
            e._tcompile_backend = name  # type: ignore[attr-defined]
            raise
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    return run


def _declines(error: Exception) -> bool:
    """Whether a backend says by `error` that a graph is not for it, as torch's own backends do of operators that they
    know nothing of.
    """
    if "torch._dynamo" not in sys.modules:
        return False
    from . import registered

    return isinstance(error, registered.declining())
