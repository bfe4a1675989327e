"""ExportedProgram: a graph with its inputs, its guards on the arguments, and its state."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Iterator

import torch
import torch.nn as nn

from ..graph.torch_modes import autocast_nesting
from ..errors import ExportError
from .graph_json import sets_modes
from .program_calls import Check, Input, ProgramCalls
from .safe_targets import AUTOCAST_DEVICES

__all__ = ["ExportedProgram", "ExportedModule"]


class ExportedProgram(ProgramCalls):
    """What `tcompile.export` gives.

    graph_module   torch.fx.GraphModule of torch-level calls; `graph` and `code` are its own
    inputs         what its placeholders are
    checks         what it relies on of the arguments
    state          name -> tensor: parameters, buffers, and tensors that the function held
    parameters     names in `state` that are parameters

    Calling it checks the arguments (ExportError names the one that does not fit, what was expected and what came), and
    runs the graph compiled by `backend`. `module()` is an nn.Module of the same graph and state, for training or
    further use.
    """

    def __init__(
        self,
        name: str,
        graph_module: torch.fx.GraphModule,
        signature: list,
        inputs: list[Input],
        checks: list[Check],
        result: Any,
        state: dict[str, torch.Tensor],
        parameters: list[str],
        symbols: dict[str, list],
        training: bool,
        grad_matters: bool,
        backend: Any = "tcompile",
        loaded: bool = False,
    ):
        super().__init__(name, signature, inputs, checks, result, state, symbols, grad_matters)
        self.graph_module, self.parameters = graph_module, parameters
        self.training, self.backend, self.loaded = training, backend, loaded
        self.hints: dict[str, int] = {}  # sizes of the last call, or of the example
        self.strides: dict[str, list] = {}  # of the example's tensors, by argument
        self._kept = modes_kept if sets_modes(graph_module) else nullcontext
        self._compiled: Callable | None = None

    # --- what it is
    @property
    def graph(self) -> torch.fx.Graph:
        return self.graph_module.graph

    @property
    def code(self) -> str:
        """The graph as Python text."""
        return self.graph_module.code

    @property
    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self.state)

    def __repr__(self) -> str:
        n = sum(node.op.startswith("call") for node in self.graph.nodes)
        dims = self.shown_sizes()
        return (
            f"ExportedProgram {self.name}({', '.join(p[0] for p in self.signature)}): {n} calls, {len(self.state)}"
            " tensors of state" + (f", sizes {dims}" if dims else "")
        )

    # --- calls
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self.state, args, kwargs, self._compile())

    def _compile(self) -> Callable:
        if self._compiled is None:
            from ..api import compile
            from ..frontend.graph_calls import flat_caller

            self._compiled = compile(
                flat_caller(self.graph_module), backend=self.backend, dynamic=None if self.symbols else False
            )
        return self._compiled

    def _run(self, state: dict[str, torch.Tensor], args: tuple, kwargs: dict, run: Callable) -> Any:
        arguments = self._bind(args, kwargs)
        sizes = self.check(arguments)
        self.hints = sizes
        given = self._given(arguments, sizes, state)
        with self._kept():
            try:
                outputs = run(*given)
            except _MISUSES as e:
                if not self.loaded:
                    raise
                raise ExportError(f"{self.name}: its graph calls what does not fit: {type(e).__name__}: {e}") from e
        return self._build(self.result, outputs, arguments, sizes, state)

    # --- use
    def module(self) -> "ExportedModule":
        """An nn.Module that runs the graph, with the state as its parameters and buffers under their names. The tensors
        are shared.
        """
        return ExportedModule(self)

    # files.py gives it `save(path)` and `package(path)`.


class ExportedModule(nn.Module):
    """The program as a module: same checks; the graph runs with torch's kernels as any module does, and can be trained
    or compiled.
    """

    _exported_program: ExportedProgram

    def __init__(self, program: ExportedProgram):
        super().__init__()
        object.__setattr__(self, "_exported_program", program)
        for name, value in program.state.items():
            owner: nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner._modules[part]  # type: ignore[assignment]
            if isinstance(value, nn.Parameter):
                owner.register_parameter(last, value)
            else:
                owner.register_buffer(last, value)
        self.training = program.training

    def train(self, mode: bool = True) -> "ExportedModule":
        if mode != self._exported_program.training:
            raise ExportError(
                f"{self._exported_program.name} was exported in"
                f" {'training' if self._exported_program.training else 'evaluation'} mode: that is part of its graph"
            )
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        state: dict[str, Any] = {
            **dict(self.named_parameters(remove_duplicate=False)),
            **dict(self.named_buffers(remove_duplicate=False)),
        }
        return self._exported_program._run(state, args, kwargs, self._exported_program.graph_module)


# What Python raises where a graph calls an operator with arguments of the wrong kinds.
_MISUSES = (TypeError, AttributeError, NameError, KeyError, RecursionError, OverflowError, AssertionError)


@contextmanager
def modes_kept() -> Iterator[None]:
    """The modes of gradients and autocast are afterwards as they were, whatever the graph sets and however it ends."""
    gradients, caching = torch._C.is_grad_enabled(), torch.is_autocast_cache_enabled()
    autocast = {d: (torch._C.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES}
    depth = autocast_nesting()
    try:
        yield
    finally:
        torch.set_grad_enabled(gradients)
        torch.set_autocast_cache_enabled(caching)
        for device, (enabled, dtype) in autocast.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        while (now := autocast_nesting()) != depth:
            (torch.autocast_decrement_nesting if now > depth else torch.autocast_increment_nesting)()
