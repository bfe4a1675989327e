"""What library code of a cell is compiled, decided as the tiers of a JIT decide: by counts, at the root that pays.

A cell's own lines and functions, and whatever the program names (`tcompile.compile`, fullgraph), are compiled at first
sight. Installed packages are another matter: between a cell and its tensor work lie constructors, loops, logging and
argument parsing. Capturing those costs time at each change of a name or a counter, and gains nothing. So library code
has four tiers:

    watched      its frames run as they are, and are counted
    root         a module's forward from its second call in a run; a function of tensors once its calls have done some
                 work, if it is one graph that pays
    followed     called from code that is being captured: captured with its caller, as long as nothing in it breaks the
                 graph
    left alone   it broke the graph of its caller, or does not pay as a root: it runs as plain Python, and is not looked
                 at again

Below code that is left alone the hook goes on looking, so that a model's forward is found wherever a library calls it.
Decisions are counts of calls, operators and instructions: they are the same in every run. `reset()` of the engine
forgets them.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import types
from dataclasses import dataclass
from typing import Any, Iterator

import torch

from .. import events
from ..base.figures import plural
from ..base.fx_nodes import is_call, is_method
from ..capture.bytecode.memo import CodeMemo
from ..capture.entry.locations import is_library_file
from ..capture.entry.result import SkipFrame
from ..graph.tensor import TraceTensor

__all__ = [
    "Library",
    "is_installed",
    "counted_gain",
    "FORWARD_CALLS",
    "FUNCTION_WORK",
    "FEWEST_OPERATORS",
    "FEWEST_IN_FUNCTION",
    "FOLLOWED_INSTRUCTIONS",
]

# The call of a module's forward that is compiled, in one run of a cell or in all: what runs once does not pay for its
# compilation, and a second run should not meet one for what each run calls once.
FORWARD_CALLS, FORWARD_CALLS_IN_ALL = 2, 8
# nanoseconds that eager needs for the calls of a function of tensors in one run, by estimate, until it is compiled
FUNCTION_WORK = 50_000_000
CALL_WORK = 20_000  # of one call, whatever its tensors: about five operators
# The same where an argument lies on a GPU: each operator's launch takes the host as long, whatever its size, and the
# graph's few launches take the place of all of them.
GPU_FUNCTION_WORK, GPU_CALL_WORK = 5_000_000, 50_000
BYTES_PER_NANOSECOND = 2  # of arguments: eager reads and writes them several times on the way
FEWEST_OPERATORS = 3  # in the graph of a module's forward: a single library call gains nothing
FEWEST_IN_FUNCTION = 4  # in the graph of a function: guards and the call of an entry cost about three eager operators
LONGEST_REST = 255  # frames of a function of tensors that pass unseen at most, while it is watched
IDLE_CALLS = 8  # frames with modules alone, of code that is not a forward, until it is not looked at again
FOLLOWED_INSTRUCTIONS = 4000  # that a followed library call may run before its first tensor operator
FOLLOWED_WITHOUT_TENSORS = 800  # the same for a call that is given no tensor: it sets something up
_LOOK = 16  # elements of a container that are looked at
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a tensor of a class of the program's is not asked anything

# What a call gains by counts, in nanoseconds on a CPU, measured roughly: decisions keep a factor of two from them.
# Times of small cells differ from run to run, and are known only after some runs; counts are known with the entry.
_OPERATOR = 1500  # a call of torch's for small tensors, from Python
_RECORDED = 3  # with its record for gradients, and the backward pass, so many times that
_ENTRY = 5000  # guards, the call, the results
_BREAK = 10_000  # what follows is a function of its own, made and looked up anew
_WRITTEN = 4  # bytes that eager writes in a nanosecond

_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")


@functools.lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """Whether a file is an installed package's, torch's own apart: torch's code has rules of its own (frames.RULES)."""
    return is_library_file(file) and not file.startswith((_TORCH, "<"))


@dataclass
class _Tier:
    """What is known of one code object of a library."""

    calls: int = 0  # of a forward in this run,
    in_all: int = 0  # and in all runs
    root: bool = False  # a forward that was called often enough
    work: int = 0  # of a function of tensors: nanoseconds in this run, by estimate
    run: int = 0  # the run that they were counted in
    idle: int = 0  # frames with modules alone
    rest: int = 0  # frames that pass unseen before the next one that is looked at
    forward: bool = False
    alone: str = ""  # not empty: why callers do not follow it
    never: bool = False  # it is no root, for good


class Library:
    """The tiers of the library code that one engine meets."""

    def __init__(self) -> None:
        self._tiers: CodeMemo[_Tier] = CodeMemo()

    def reset(self) -> None:
        self._tiers.clear()

    def _tier(self, code: types.CodeType) -> _Tier:
        tier = self._tiers.get(code)
        if tier is None:
            tier = self._tiers[code] = _Tier()
        return tier

    # ---- frames that the hook meets
    def is_root(self, code: types.CodeType, func: types.FunctionType, args: tuple, run: int) -> bool:
        """Whether this frame of library code is compiled. Counts the call, in `run` of a cell: later runs should not
        meet a compilation.
        """
        tier = self._tier(code)
        if code.co_name.startswith("<"):  # lambdas; parts of functions that capture has split
            tier.never = True
        if tier.never:
            return False
        calls, tier.rest = 1 + tier.rest, 0  # those that the hook passed on count like this one
        if tier.run != run:
            tier.run, tier.work, tier.calls = run, 0, 0
        if is_forward(func, args):
            tier.forward = True
            tier.calls, tier.in_all = tier.calls + 1, tier.in_all + 1
            tier.root = tier.root or tier.calls >= FORWARD_CALLS or tier.in_all >= FORWARD_CALLS_IN_ALL
            return tier.root
        if _is_protocol(func.__name__):
            tier.never = True
            return False
        if not any(True for arg in args for _ in _tensors(arg)):
            tier.idle += 1
            if tier.idle >= IDLE_CALLS:
                tier.never = not tier.work
                tier.rest = min(2 * calls, LONGEST_REST)
            return False
        on_gpu = _on_gpu(args)
        enough = GPU_FUNCTION_WORK if on_gpu else FUNCTION_WORK
        work = GPU_CALL_WORK if on_gpu else CALL_WORK + sum(map(_bytes, args)) // BYTES_PER_NANOSECOND
        tier.work += calls * work
        if tier.work >= enough:
            return True
        tier.rest = min(2 * calls, (enough - tier.work) // (4 * work), LONGEST_REST)
        return False

    def rest(self, code: types.CodeType) -> int:
        """How many frames of this code the hook passes on before it asks again: watching costs less than what is
        watched.
        """
        tier = self._tiers.get(code)
        return tier.rest if tier is not None else 0

    def is_watched(self, code: types.CodeType) -> bool:
        """Whether this forward was not called often so far: it runs as it is, with everything below, so that the root
        is what is compiled.
        """
        tier = self._tiers.get(code)
        return tier is not None and tier.forward and not tier.never and not tier.root

    def given_up(self, code: types.CodeType) -> bool:
        tier = self._tiers.get(code)
        return tier is not None and tier.never

    def is_leaf(self, code: types.CodeType) -> bool:
        """Whether a root is to be one graph without a module's call: a function that is not a forward."""
        tier = self._tiers.get(code)
        return tier is not None and not tier.forward

    def check_gain(self, code: types.CodeType, graph: Any, breaks: bool) -> None:
        """Raises SkipFrame where the graph of a root is too small to pay for guards and the call of an entry."""
        if not breaks and graph is not None and _only_makes(graph):
            raise SkipFrame("it only makes tensors of plain numbers", quiet=True)
        tier = self._tiers.get(code)
        if tier is None or not is_installed(code.co_filename) or breaks:
            return
        fewest = FEWEST_OPERATORS if tier.forward else FEWEST_IN_FUNCTION
        found = (
            sum(node.op not in ("placeholder", "output", "get_attr") for node in graph.graph_module.graph.nodes)
            if graph is not None
            else 0
        )
        if found < fewest:
            raise SkipFrame(f"its graph has {plural(found, 'operator')}: too few to be worth compiling", quiet=True)

    def give_up(self, code: types.CodeType, reason: str) -> None:
        """A root that is none, for good."""
        tier = self._tier(code)
        if not tier.never:
            tier.never = True
            events.emit("library", decision="left alone", reason=reason, **_place(code))

    # ---- library code that captured code calls
    instructions, instructions_without = FOLLOWED_INSTRUCTIONS, FOLLOWED_WITHOUT_TENSORS

    @staticmethod
    def is_library(code: types.CodeType) -> bool:
        return is_installed(code.co_filename)

    def left_alone(self, code: types.CodeType) -> str:
        """Why captured code of the program does not follow a call into `code`; empty: it does."""
        tier = self._tiers.get(code)
        return tier.alone if tier is not None else ""

    def leave_alone(self, codes: list[types.CodeType], reason: str) -> bool:
        """The graph of `codes[0]`, which is the program's, breaks in `codes[-1]`. If library code lies on the way, its
        outermost call is what breaks from now on. False: there is none, or callers know already."""
        outer = next((code for code in codes if is_installed(code.co_filename)), None)
        if outer is None:
            return False
        tier = self._tier(outer)
        if tier.alone:
            return False
        tier.alone = reason
        tier.in_all = max(tier.in_all, FORWARD_CALLS_IN_ALL - 1)  # the program calls it: a forward is compiled at once
        events.emit("library", decision="not followed", reason=reason, **_place(outer))
        return True


def is_forward(func: types.FunctionType, args: tuple) -> bool:
    """Whether a frame is a module's forward, decorated or not."""
    return func.__name__ == "forward" and bool(args) and torch.nn.Module in type(args[0]).__mro__


_MAKE = frozenset((torch.tensor, torch.as_tensor, torch.full, torch.stack, "fill_", "reshape"))


def _only_makes(graph: Any) -> bool:
    """Whether a graph reads no tensor, and does nothing but to put numbers into new ones: the losses of a training."""
    calls = [node for node in graph.graph_module.graph.nodes if node.op not in ("placeholder", "output")]
    return (
        bool(calls) and all(call.target in _MAKE for call in calls) and all(s.kind == "scalar" for s in _sources(graph))
    )


def _sources(graph: Any) -> list[Any]:
    return [i.source for i in graph.inputs if i.kind == "tensor"]


def counted_gain(result: Any) -> float | None:
    """Seconds by estimate, below zero where a call loses; None where nothing is known: on other devices than a CPU."""
    cost = _ENTRY + _BREAK * len(result.breaks)
    if result.graph is None:
        return -cost * 1e-9
    saved = 0
    for node in result.graph.graph_module.graph.nodes:
        if not (is_call(node) or is_method(node)):
            continue
        value = node.meta.get("val")
        made = value if isinstance(value, (list, tuple)) else (value,)
        tensors = [t for t in made if type(t) is TraceTensor]
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return None
        recorded = any(tensor.requires_grad for tensor in tensors) or node.target in (
            "backward",
            torch.autograd.backward,
        )
        saved += (_OPERATOR + sum(map(_made_bytes, tensors)) // _WRITTEN) * (_RECORDED if recorded else 1)
    return (saved - cost) * 1e-9


def _made_bytes(tensor: TraceTensor) -> int:
    """Of a fixed size; what varies in size may be large."""
    sizes = list(tensor.shape)
    return math.prod(sizes) * tensor.dtype.itemsize if all(type(size) is int for size in sizes) else 1 << 16


def _place(code: types.CodeType) -> dict[str, Any]:
    return {"frame": code.co_qualname, "file": code.co_filename, "line": code.co_firstlineno}


def _is_protocol(name: str) -> bool:
    """Methods that Python calls by itself set things up and tear them down; `__call__` is a call."""
    return name.startswith("__") and name.endswith("__") and name != "__call__"


def _tensors(a: Any) -> Iterator[torch.Tensor]:
    """The tensors that an argument is or, as a container, shows first. A tensor of a class of the program's is not
    asked anything.
    """
    items = a[:_LOOK] if type(a) in (list, tuple) else itertools.islice(a.values(), _LOOK) if type(a) is dict else (a,)
    return (item for item in items if torch.Tensor in type(item).__mro__)


def _on_gpu(args: tuple) -> bool:
    return any(x.device.type == "cuda" for arg in args for x in _tensors(arg) if type(x) in _PLAIN)


def _bytes(a: Any) -> int:
    return sum(x.numel() * x.element_size() for x in _tensors(a) if type(x) in _PLAIN)
