"""A captured graph that raises: the call is run again as it is, so that the error, its line, what handles it and the
state left are eager's.

The entry does its effects after the graph, so nothing of the program has happened when the graph fails, except what the
graph itself wrote into its inputs. A backend that runs the graph's calls in order may have done such a write before the
call that fails. So the entry keeps copies of the inputs concerned, and gives them back first. That holds on the CPU: on
an accelerator errors arrive late, and end the process's use of it. Where a call fails that nobody expected to, or
inputs are too large to be copied, their versions tell whether one was written: then the error is final."""

from __future__ import annotations

import inspect
import operator
import types
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

import torch
import torch.fx

from ...base.fx_nodes import is_call, is_input, is_method
from ...base.fx_modules import written_out
from ...ops.raising import KEEP_BYTES, may_raise
from ...graph.torch_modes import TorchModes
from ...graph.captured import CapturedGraph

__all__ = ["Keeping", "keeping", "keep", "give_back", "changes_modes", "undone", "run_natively", "call_original"]

_RANDOM = tuple(
    """rand dropout bernoulli normal multinomial uniform exponential poisson rrelu cauchy geometric_ log_normal
    random""".split()
)
_IN_PLACE = frozenset(
    f
    for f in vars(operator).values()
    if callable(f)
    and getattr(f, "__name__", "").startswith("i")
    and hasattr(operator, "__" + getattr(f, "__name__", "") + "__")
)


def _name(node: torch.fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    return getattr(node.target, "__name__", "") or str(node.target)


def _schema(node: torch.fx.Node) -> torch.FunctionSchema | None:
    op = node.target
    if isinstance(op, torch._ops.OpOverloadPacket):
        op = getattr(op, op.overloads()[0])
    return op._schema if isinstance(op, torch._ops.OpOverload) else None


def _fails_for_values(node: torch.fx.Node) -> bool:
    name, schema = _name(node), _schema(node)
    if not may_raise(schema.name.replace("::", ".") + ".default" if schema is not None else name):
        return False
    if name in ("getitem", "__getitem__"):
        return any(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes[1:])
    value = node.meta.get("val")
    if "div" in name or "mod" in name or "remainder" in name or "pow" in name:
        return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point
    return True


def _written(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Arguments that a call changes."""
    name, schema = _name(node), _schema(node)
    if schema is not None:
        given = {arg.name: x for arg, x in zip(schema.arguments, node.args)} | node.kwargs
        return [n for arg in schema.arguments if arg.is_write and arg.name in given for n in _nodes(given[arg.name])]
    found = []
    if (
        name.endswith("_")
        and not name.endswith("__")
        or node.target in _IN_PLACE
        or name in ("setitem", "__setitem__")
        or name.startswith("__i")
    ):
        found += node.all_input_nodes[:1]
    if isinstance(node.kwargs.get("out"), torch.fx.Node):
        found.append(node.kwargs["out"])
    if name in ("batch_norm", "instance_norm"):
        found += [
            a
            for a in (*node.args[1:3], node.kwargs.get("running_mean"), node.kwargs.get("running_var"))
            if isinstance(a, torch.fx.Node)
        ]
    return found


def _nodes(x: Any) -> list[torch.fx.Node]:
    return (
        [x]
        if isinstance(x, torch.fx.Node)
        else [n for n in x if isinstance(n, torch.fx.Node)]
        if isinstance(x, (list, tuple))
        else []
    )


@dataclass
class Keeping:
    """What a call of a graph notes beforehand: `copied` and `watched` are positions of inputs that the graph writes, of
    which copies are made, or versions are looked at; `random`: the generator's state is kept."""

    copied: list[int] = field(default_factory=list)
    watched: list[int] = field(default_factory=list)
    random: bool = False

    def __bool__(self) -> bool:
        return bool(self.copied or self.watched or self.random)


def keeping(graph: CapturedGraph) -> Keeping:
    """For a backend that runs the calls in order. Copied is what is written before a call that may be expected to
    fail.
    """
    nodes = list(graph.graph_module.graph.nodes)
    calls = [node for node in nodes if is_call(node) or is_method(node)]
    storages: dict[int, int] = {}
    for i, (n, example) in enumerate(zip((node for node in nodes if is_input(node)), graph.example_inputs)):
        value = n.meta.get("val")
        if isinstance(example, torch.Tensor) and hasattr(value, "tt_storage"):
            storages.setdefault(id(value.tt_storage), i)
    last = max((k for k, call in enumerate(calls) if _fails_for_values(call)), default=-1)
    early, written = set(), set()
    for k, n in enumerate(calls):
        for w in _written(n):
            at = storages.get(id(getattr(w.meta.get("val"), "tt_storage", None)))
            if at is not None and k < len(calls) - 1:
                written.add(at)
                if k <= last and graph.example_inputs[at].device.type == "cpu":
                    early.add(at)
    if sum(graph.example_inputs[i].nbytes for i in early) > KEEP_BYTES:
        early = set()
    random = any(word in _name(call) for call in calls[: last + 1] for word in _RANDOM)
    return Keeping(sorted(early), sorted(written - early), random)


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def keep(copied: Sequence[torch.Tensor], watched: Sequence[torch.Tensor], random: bool) -> tuple:
    """What give_back needs: copies of tensors, versions of others, the state of the random number generator."""
    with torch.no_grad():
        copies = [(tensor, tensor.detach().clone()) for tensor in copied]
    return copies, [(t, _version(t)) for t in watched], torch.get_rng_state() if random else None


def give_back(error: Exception, kept: tuple) -> None:
    """Undo what a graph that raised `error` wrote; where that can't be undone, the error is final."""
    copies, versions, random = kept
    if any(version is None or tensor._version != version for tensor, version in versions):
        error._tcompile_final = True  # type: ignore[attr-defined]
        return
    for tensor, copy in copies:
        tensor.data.copy_(copy)
    if random is not None:
        torch.set_rng_state(random)


def changes_modes(graph: CapturedGraph) -> str | None:
    """Modes that the graph's own calls switch, and that one that fails in between leaves as they are not the caller's:
    "grad", "all" (autocast, kernels of attention), or None."""
    setters = {node.target for node in graph.graph_module.graph.nodes if is_call(node) and node.meta.get("state")}
    return None if not setters else "grad" if setters == {torch._C._set_grad_enabled} else "all"


def undone(graph: CapturedGraph) -> Callable[..., tuple]:
    """The graph's calls in their order, for a backend whose entries rely on that a graph that fails has changed
    nothing: what was written and which modes were switched is undone."""
    run, noted, modes = written_out(graph.graph_module).forward, keeping(graph), changes_modes(graph)
    if not noted and modes is None:
        return run

    def call(*inputs: Any) -> tuple:
        before = TorchModes()
        kept = keep([inputs[i] for i in noted.copied], [inputs[i] for i in noted.watched], noted.random)
        try:
            return run(*inputs)
        except Exception as e:
            before.restore()
            give_back(e, kept)
            raise

    return call


def run_natively(error: Exception, func: types.FunctionType, args: tuple, *, handlers: bool) -> Any:
    """The default for CaptureOptions.failed: the frame as it is."""
    if getattr(error, "_tcompile_final", False):
        # raised by the user's own hook while the graph's results were handed over, or by `undone`
        raise error
    return call_original(func, args)


def call_original(func: types.FunctionType, args: tuple) -> Any:
    """Call `func` with the tuple of its parameters' values (co_varnames order; *args and **kwargs last)."""
    code = func.__code__
    n, k = code.co_argcount, code.co_kwonlyargcount
    positional, keyword = list(args[:n]), dict(zip(code.co_varnames[n : n + k], args[n : n + k]))
    rest = list(args[n + k :])
    if code.co_flags & inspect.CO_VARARGS:
        positional += rest.pop(0)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        keyword |= rest.pop(0)
    return func(*positional, **keyword)
