"""Adapter: hands a captured graph to a backend registered with torch.

One of the two files that may import torch._dynamo (the other is stock.py).
"""

from __future__ import annotations

import operator
import re
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Iterator

import torch

from .. import events
from ..capture.breaks.failing import undone
from ..graph.captured import CapturedGraph
from ..symbolic.expr import as_expr

__all__ = ["names", "lookup", "declining", "SymbolicGraph"]


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


def declining() -> tuple[type[Exception], ...]:
    """The errors by which a backend asks that a graph, or a frame, runs as it is."""
    from torch._dynamo import exc

    return *exc.exceptions_allowed_to_be_fallback, exc.SkipFrame


# In what inductor writes for a graph: its kernels (on a GPU after a comment that names the nodes of the graph), and the
# calls of libraries.
_KERNEL = re.compile(
    r"^(?:# Topologically Sorted Source Nodes: \[(?P<nodes>[^\]]*)\](?:(?!\n\w+ = ).)*?\n)?"
    r"(?P<name>\w+) = async_compile\.(?P<kind>\w+)\((?:(?!\'\'\').)*\'\'\'(?P<source>.*?)\'\'\'",
    re.S | re.M,
)
_LIBRARY = re.compile(r"^ +(?:\w+ = )?(?:extern_kernels\.|torch\.ops\.)([\w.]+)\(", re.M)


@contextmanager
def _inductor_code() -> Iterator[None]:
    """States the kernels and library calls that inductor writes meanwhile, as this compiler states its own. Other
    backends write none.
    """
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
                events.emit(
                    "kernel",
                    name=k["name"],
                    source=k["source"].strip(),
                    language="triton" if k["kind"] == "triton" else "c++",
                    origins=[n.strip() for n in (k["nodes"] or "").split(",") if n.strip()],
                )
            events.emit("schedule", extern=[(op, "a library's kernel", []) for op in _LIBRARY.findall(text)])


class SymbolicGraph:
    """A graph with symbolic sizes, compiled by a backend of somebody else's.

    Such backends know sizes as stock gives them: example inputs are tensors and torch's SymInts, and a TracingContext
    says which dimensions are dynamic. Whatever the backend relied on stands in torch's ShapeEnv as guards: where they
    don't hold for a call, the backend is asked again, `limit` times. From then on the graph runs with torch's kernels.
    What it relied on of several inputs (that two are one tensor, which of them share elements) stands in the context,
    in the inputs' names. Without names torch would compare each two views of one memory in symbols.
    """

    def __init__(self, make: Callable[[Any, list], Callable], captured: CapturedGraph, limit: int):
        self.make, self.captured, self.limit = make, captured, limit
        self.compiled: list[tuple[Callable[[tuple], bool], Callable]] = []
        self.untouched = _copy(captured.graph_module)  # a backend may change the graph that it is given
        self._add(captured.graph_module, captured.example_inputs)

    def __call__(self, *inputs: Any) -> Any:
        for holds, call in self.compiled:
            if holds(inputs):
                return call(*inputs)
        if len(self.compiled) >= self.limit:
            if len(self.compiled) == self.limit:
                events.fallback(
                    self.captured.name,
                    f"the backend relies on sizes, and has compiled the graph {self.limit} times "
                    "(recompile_limit); the graph runs with torch's own kernels",
                )
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
        fakes = {
            name: first.from_tensor(inputs[name], symbolic_context=context, source=context.tensor_source)
            for name, context in contexts.items()
        }
        ints = self._ints(env, inputs, fakes)
        places = _name_inputs(gm)
        context = TracingContext(FakeTensorMode(shape_env=env))
        for key, c in contexts.items():
            context.tensor_to_context[inputs[key]] = c
        with tracing(context), _overlaps_by_hints():
            call = self.make(gm, [ints.get(i, x) for i, x in enumerate(inputs)])
        text = env.produce_guards_expression([fakes.get(i, ints.get(i, x)) for i, x in enumerate(inputs)])
        # torch would parse it at each call
        code: Any = text and compile(
            text.strip(), f"<sizes that the backend of {self.captured.name} relies on>", "eval"
        )
        relations = [_relation(guard, places) for guard in context.guards_context.aotautograd_guards]

        def holds(inputs: tuple) -> bool:
            return (code is None or env.evaluate_guards_expression(code, inputs)) and all(
                relation(inputs) for relation in relations
            )

        self.compiled.append((holds, call))
        return call

    def _contexts(self) -> dict[int, Any]:
        """Which dimensions of the tensors among the inputs are dynamic, in torch's words."""
        from torch._dynamo.source import LocalSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatefulSymbolicContext

        return {
            i: StatefulSymbolicContext(
                dynamic_sizes=[
                    DimDynamic.STATIC if type(size) is int else DimDynamic.DYNAMIC for size in spec.spec.shape
                ],
                tensor_source=LocalSource(f"t{i}"),
            )
            for i, spec in enumerate(self.captured.inputs)
            if spec.kind == "tensor"
        }

    def _ints(self, env: Any, inputs: Any, fakes: dict[int, Any]) -> dict[int, Any]:
        """torch's SymInts for the ints among `inputs`; the size of a tensor's dimension is that very symbol."""
        from torch._dynamo.source import LocalSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        sizes = {
            own: fake.shape[d]
            for key, fake in fakes.items()
            for d, own in enumerate(self.captured.inputs[key].spec.shape)
        }
        symints = {}
        for i, node in enumerate(self.captured.graph_module.graph.find_nodes(op="placeholder")):
            if self.captured.inputs[i].kind == "int":
                size = sizes.get(as_expr(node.meta["val"]))
                symints[i] = (
                    env.create_unspecified_symint_and_symbol(inputs[i], LocalSource(f"t{i}"), DimDynamic.DYNAMIC)
                    if size is None
                    else size
                )
        return symints


def _name_inputs(gm: torch.fx.GraphModule) -> dict[Any, Callable[[tuple], Any]]:
    """Names what a graph reads as stock's capture does. Gives each name's value among the inputs of a call."""
    from torch._dynamo.source import LocalSource

    places: dict[Any, Callable[[tuple], Any]] = {}
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        node._dynamo_source = LocalSource(f"t{i}")
        places[node._dynamo_source] = operator.itemgetter(i)
    held: dict[str, Any] = {}
    for name, tensor in [*gm.named_parameters(remove_duplicate=False), *gm.named_buffers(remove_duplicate=False)]:
        held[name] = LocalSource(f"held.{name}")
        places[held[name]] = partial(_first, tensor)
    gm.__dict__["_param_name_to_source"] = held
    gm.meta["dynamo_compile_id"] = None  # by this torch knows that the names are there
    return places


def _first(x: Any, *rest: Any) -> Any:
    return x


@contextmanager
def _overlaps_by_hints() -> Iterator[None]:
    """Which of many views of one memory share elements torch finds by comparing each two of them, in symbols, only to
    drop the guards: the relation as a whole is what it then relies on. With the numbers of this call that is a
    thousandth of the time."""
    from torch._functorch._aot_autograd import input_output_analysis as analysis
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    in_symbols = analysis.compute_overlapping_tensors

    def overlapping(tensors: list, symbolic: bool = True) -> set[int]:
        if not symbolic or not ShapeEnv._suppress_guards_tls():
            return in_symbols(tensors, symbolic=symbolic)
        return in_symbols([_with_hints(tensor) for tensor in tensors], symbolic=False)

    analysis.compute_overlapping_tensors = overlapping
    try:
        yield
    finally:
        analysis.compute_overlapping_tensors = in_symbols


def _with_hints(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without data that lies as `tensor` does in this call."""

    def hint(n: Any) -> Any:
        return n.node.hint if isinstance(n, torch.SymInt) else n

    shape, stride, offset = [*map(hint, tensor.shape)], [*map(hint, tensor.stride())], hint(tensor.storage_offset())
    return torch.empty((), dtype=tensor.dtype, device="meta").as_strided(shape, stride, offset)


def _relation(guard: Any, places: dict[Any, Callable[[tuple], Any]]) -> Callable[[tuple], bool]:
    """What a backend relied on of several inputs, as a predicate of a call's inputs."""
    from torch._C._dynamo.guards import compute_overlapping_tensors
    from torch._guards import DuplicateInputs, StorageOverlap

    if isinstance(guard, DuplicateInputs):
        a, b = places[guard.input_source_a], places[guard.input_source_b]
        return lambda inputs: a(inputs) is b(inputs)
    if isinstance(guard, StorageOverlap):
        of = [places[source] for source in (*guard.overlapping_sources, *guard.non_overlapping_sources)]
        overlapping = set(range(len(guard.overlapping_sources)))
        return lambda inputs: compute_overlapping_tensors([f(inputs) for f in of], symbolic=False) == overlapping
    raise NotImplementedError(f"a backend relies on {type(guard).__name__}, which is not known here")


def _copy(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return torch.fx.GraphModule(gm, graph)
