"""EntryCall: one call that reached the compiler from user code, kept so that it can be timed again.

The engine states one per function and run, as `events.emit("call", frame=..., call=EntryCall(...))`, at the outermost
captured call (calls made by captured code belong to it). It refers to the arguments, it does not copy them.
"""

from __future__ import annotations

import dis
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Callable, Iterator

import torch

from ..base.fx_modules import written_out
from ..capture.bytecode.memo import CodeMemo

__all__ = ["EntryCall", "GraphCall", "CallState", "PLAIN_REST", "may_have_effects"]

PLAIN_REST = "what follows a break runs as plain Python"  # why_not of code that no entry was made for

_PURE = tuple(
    """LOAD_ STORE_FAST RETURN_ POP_ PUSH_NULL COPY SWAP COMPARE_ CONTAINS_ IS_OP JUMP_ BUILD_ UNPACK_ UNARY_ BINARY_
    TO_BOOL FORMAT_ CONVERT_ LIST_ RESUME NOP CACHE EXTENDED_ARG MAKE_CELL NOT_TAKEN RERAISE""".split()
)


@dataclass
class CallState:
    """The modes of torch that a call ran under and that change what it computes: read when it is made, applied
    later.
    """

    grad: bool = field(default_factory=torch._C.is_grad_enabled)
    inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    autocast: dict[str, tuple[bool, Any]] = field(
        default_factory=lambda: {
            d: (torch._C.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")
        }
    )

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Run a with-block under the same modes."""
        with ExitStack() as stack:
            if self.inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, (on, dtype) in self.autocast.items():
                if on:
                    stack.enter_context(torch.autocast(device, dtype))
            yield


@dataclass
class GraphCall:
    """One compiled graph with its inputs, for timing the graph alone. `eager` and `compiled` take `inputs`. Made before
    the graph runs for the first time: an input whose version is another one later may be one that the graph writes
    to. `unseen`: positions of those that it may write to without a version that tells."""

    name: str
    module: torch.fx.GraphModule
    compiled: Callable[..., Any]
    inputs: tuple
    unseen: frozenset[int] = frozenset()
    versions: tuple = ()
    number: int | None = None  # of the graph in the report that tells of this run

    def __post_init__(self) -> None:
        self.versions = tuple(_version(x) for x in self.inputs)

    @property
    def eager(self) -> Callable[..., Any]:
        return written_out(self.module).forward

    def changed(self) -> list[torch.Tensor]:
        """The inputs that somebody has written to since, or that cannot tell."""
        return [
            x
            for k, (x, version) in enumerate(zip(self.inputs, self.versions))
            if isinstance(x, torch.Tensor) and (version is None or k in self.unseen or _version(x) != version)
        ]


_NORMS = frozenset(("batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"))


def unseen_writes(graph: torch.fx.Graph) -> frozenset[int]:
    """Positions of the inputs that a graph of torch's calls may write to without a change of version: the running
    statistics of norms, and what it takes the `data` of. More may be among them than are written."""
    reached: list[torch.fx.Node] = []
    for node in graph.nodes:
        if node.target is getattr and node.args[1] == "data":
            reached.append(node.args[0])
        elif _called(node.target) in _NORMS:
            given = (*node.args[1:], *(value for key, value in node.kwargs.items() if key != "input"))
            reached += [x for x in given if isinstance(x, torch.fx.Node)]
    seen: set[torch.fx.Node] = set()
    while reached:
        node = reached.pop()
        if node not in seen:
            seen.add(node)
            reached += node.all_input_nodes
    return frozenset(k for k, n in enumerate(graph.find_nodes(op="placeholder")) if n in seen)


def _called(target: Any) -> str:
    packet = getattr(target, "overloadpacket", target)
    return getattr(packet, "__name__", "")


def _version(x: Any) -> int | None:
    """None for what has no version: tensors made in inference mode, and no tensors."""
    return x._version if isinstance(x, torch.Tensor) and not x.is_inference() else None


_effects: CodeMemo[bool] = CodeMemo()


@dataclass
class EntryCall:
    """`fn(*args, **kwargs)` as user code called it. `safe`: running it again has no effect but its result; `why_not`
    says in one phrase why it is not. `graphs` serve where it is not safe; of those `latest` are what one call runs.
    `compile_seconds` is what its entry cost."""

    name: str
    fn: Callable[..., Any]
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    file: str = ""
    line: int | None = None
    safe: bool = True
    why_not: str = ""
    graphs: list[GraphCall] = field(default_factory=list)
    compile_seconds: float | None = None
    compiled: Callable[..., Any] | None = (
        None  # `fn` through the entries it has, without the frame hook; None: compile it for timing
    )
    state: CallState = field(default_factory=CallState)
    sets: tuple[str, ...] = ()  # globals of `fn` that running it sets, and whoever runs it again puts back
    reads: tuple[str, ...] = ()  # those of them that it reads first: they are put back before each run
    attributes: tuple[Any, ...] = ()  # that it sets, as (weak reference to an object, name): so are they
    latest: list[GraphCall] = field(default_factory=list)


def may_have_effects(code: CodeType) -> bool:
    """Whether code that runs as plain Python can do more than give a result. Each turn of a loop asks."""
    known = _effects.get(code)
    if known is None:
        known = _effects[code] = _changes_something(code)
    return known


def _changes_something(code: CodeType) -> bool:
    """Whether code that runs as plain Python can do more than give a result, by its instructions: it calls something,
    or changes something. Names that a cell sets are put back by whoever runs it again; one that it reads as well would
    be another each time."""
    instructions = list(dis.get_instructions(code))
    read = {instruction.argval for instruction in instructions if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL")}
    top_level = code.co_qualname.startswith("<module>")
    return any(
        not instruction.opname.startswith(_PURE)
        and not (top_level and instruction.opname in ("STORE_NAME", "STORE_GLOBAL") and instruction.argval not in read)
        or instruction.opname == "BINARY_OP"
        and instruction.argrepr.endswith("=")
        for instruction in instructions
    )
