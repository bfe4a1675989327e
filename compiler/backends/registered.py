"""Adapter: hands a captured graph to a backend registered with torch, and makes tcompile one of those.

One of the two files that may import torch._dynamo (the other is stock.py).
"""
from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Any, Callable, Iterator

import torch

from .. import events
from ..capture.failing import undone
from ..graph.captured import CapturedGraph
from ..symbolic.expr import as_expr

__all__ = ["names", "lookup", "tcompile_backend", "SymbolicGraph"]


def names() -> list[str]:
    """Backends that torch knows, without those of this package."""
    import torch._dynamo
    return [n for n in torch._dynamo.list_backends(exclude_tags=()) if n != "tcompile"]


def lookup(name: str) -> Callable:
    """The function behind a torch backend's name; it takes (gm, example_inputs)."""
    from torch._dynamo.backends.registry import lookup_backend
    fn = lookup_backend(name)

    def backend(gm: Any, example_inputs: list, **options: Any) -> Callable:
        with events.stage(name), _inductor_code():
            return fn(gm, example_inputs, **options)
    backend.__name__ = name
    return backend


# In what inductor writes for a graph: its kernels (on a GPU after a comment that names the nodes of the graph), and the calls of libraries.
_KERNEL = re.compile(r"^(?:# Topologically Sorted Source Nodes: \[(?P<nodes>[^\]]*)\](?:(?!\n\w+ = ).)*?\n)?"
                     r"(?P<name>\w+) = async_compile\.(?P<kind>\w+)\((?:(?!\'\'\').)*\'\'\'(?P<source>.*?)\'\'\'", re.S | re.M)
_LIBRARY = re.compile(r"^ +(?:\w+ = )?(?:extern_kernels\.|torch\.ops\.)([\w.]+)\(", re.M)


@contextmanager
def _inductor_code() -> Iterator[None]:
    """States the kernels and library calls that inductor writes meanwhile, as this compiler states its own. Other backends write none."""
    if not events.heard():
        yield
        return
    from torch._inductor.graph import GraphLowering
    texts: list[str] = []
    before, GraphLowering.save_output_code = GraphLowering.save_output_code, texts.append
    try:
        yield
    finally:
        GraphLowering.save_output_code = before
        for text in texts:
            for k in _KERNEL.finditer(text):
                events.emit("kernel", name=k["name"], source=k["source"].strip(), language="triton" if k["kind"] == "triton" else "c++",
                            origins=[n.strip() for n in (k["nodes"] or "").split(",") if n.strip()])
            events.emit("schedule", extern=[(op, "a library's kernel", []) for op in _LIBRARY.findall(text)])


def tcompile_backend(gm: Any, example_inputs: list, *, options: dict[str, Any] | None = None, mode: str | None = None, **more: Any) -> Callable:
    """`torch.compile(model, backend="tcompile")`: stock capture, this compiler's graph stages and kernels. torch gives
    example inputs as FakeTensors or tensors; the graph is taken through the pipeline at the first real call."""
    from ..api import compile_fx
    if mode not in (None, "default"):
        more["mode"] = mode
    return compile_fx(gm, example_inputs, **(options or {}), **more)


class SymbolicGraph:
    """A graph with symbolic sizes, compiled by a backend of somebody else's.

    Such backends know sizes as stock gives them: example inputs are tensors and torch's SymInts, and a TracingContext says which
    dimensions are dynamic. Whatever the backend relied on stands in torch's ShapeEnv as guards: where they don't hold for a call, the backend
    is asked again, `limit` times; from then on the graph runs by torch's kernels.
    """

    def __init__(self, make: Callable[[Any, list], Callable], captured: CapturedGraph, limit: int):
        self.make, self.captured, self.limit = make, captured, limit
        self.compiled: list[tuple[Callable[[tuple], bool], Callable]] = []
        self.untouched = _copy(captured.graph_module)     # a backend may change the graph that it is given
        self._add(captured.graph_module, captured.example_inputs)

    def __call__(self, *inputs: Any) -> Any:
        for holds, call in self.compiled:
            if holds(inputs):
                return call(*inputs)
        if len(self.compiled) >= self.limit:
            if len(self.compiled) == self.limit:
                events.emit("fallback", what=self.captured.name, reason=f"the backend relied on sizes, and was asked {self.limit} times "
                            "(recompile_limit); the graph runs by torch's own kernels", count=1)
                self.compiled.append((lambda inputs: True, undone(self.captured)))
            return self.compiled[-1][1](*inputs)
        return self._add(_copy(self.untouched), inputs)(*inputs)

    def _add(self, gm: torch.fx.GraphModule, inputs: Any) -> Callable:
        from torch._guards import TracingContext, tracing
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv
        env = ShapeEnv(duck_shape=False)
        contexts = self._contexts()
        first = FakeTensorMode(shape_env=env)
        fakes = {i: first.from_tensor(inputs[i], symbolic_context=c, source=c.tensor_source) for i, c in contexts.items()}
        ints = self._ints(env, inputs, fakes)
        context = TracingContext(FakeTensorMode(shape_env=env))
        for i, c in contexts.items():
            context.tensor_to_context[inputs[i]] = c
        with tracing(context):
            call = self.make(gm, [ints.get(i, x) for i, x in enumerate(inputs)])
        code = env.produce_guards_expression([fakes.get(i, ints.get(i, x)) for i, x in enumerate(inputs)])
        self.compiled.append((lambda inputs: code is None or env.evaluate_guards_expression(code, inputs), call))
        return call

    def _contexts(self) -> dict[int, Any]:
        """Which dimensions of the tensors among the inputs are dynamic, in torch's words."""
        from torch._dynamo.source import LocalSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatefulSymbolicContext
        return {i: StatefulSymbolicContext(
                    dynamic_sizes=[DimDynamic.STATIC if type(n) is int else DimDynamic.DYNAMIC for n in spec.spec.shape],
                    tensor_source=LocalSource(f"t{i}"))
                for i, spec in enumerate(self.captured.inputs) if spec.kind == "tensor"}

    def _ints(self, env: Any, inputs: Any, fakes: dict[int, Any]) -> dict[int, Any]:
        """torch's SymInts for the ints among `inputs`; the size of a tensor's dimension is that very symbol."""
        from torch._dynamo.source import LocalSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic
        sizes = {own: fake.shape[d] for i, fake in fakes.items() for d, own in enumerate(self.captured.inputs[i].spec.shape)}
        symints = {}
        for i, node in enumerate(n for n in self.captured.graph_module.graph.nodes if n.op == "placeholder"):
            if self.captured.inputs[i].kind == "int":
                size = sizes.get(as_expr(node.meta["val"]))
                symints[i] = env.create_unspecified_symint_and_symbol(inputs[i], LocalSource(f"t{i}"), DimDynamic.DYNAMIC) if size is None else size
        return symints


def _copy(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return torch.fx.GraphModule(gm, graph)
