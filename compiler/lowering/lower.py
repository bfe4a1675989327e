"""aten graph -> loop nests. `lower` walks the graph once; each operator's rule (rules/) says what it computes.

Every operator that computes makes one loop nest (or a few) that stores to a buffer of its own with eager's strides.
Views make none, they are substitutions of index symbols (ref.py). What has no rule is an Extern call, with its reason,
and is counted. Fusion then decides which buffers exist at all.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
import torch.fx

from ..base.fx_nodes import is_call, is_constant, is_input
from .. import events
from ..ops.closed_set import NO_RULE, extern_reason, gives_views
from ..ops.functional_forms import Form, form_of
from ..symbolic.expr import Expr, as_expr
from . import rules  # noqa: F401  (registers the rules)
from .buffer_strides import strides_of
from .context import BETWEEN, DTYPES, Lowering
from .ir import Buffer, LoopNest, clear, const, loaded, param
from .lowered import Extern, LoweredGraph, OutputSpec
from .ref import Ref, Scalar, is_tensor, plain_size, ref_of_buffer, shape_of, strided
from .rule_table import ANY_DTYPE, RULES, NoRule

__all__ = ["lower"]


def lower(aten: Any, opts: Any, trial: bool = False) -> LoweredGraph:
    """AtenGraph -> LoweredGraph. Never fails for an operator that it does not know: that becomes an Extern, stated as a
    fallback but in a `trial`.
    """
    clear()
    lowered = Walk(aten, opts).run()
    if not trial:
        reasons = {str(step.op): step.reason for step in lowered.steps if isinstance(step, Extern)}
        for op, count in lowered.fallbacks.items():
            events.fallback(op, f"eager kernel: {reasons.get(op, NO_RULE)}", count=count)
    return lowered


def _device_of(node: torch.fx.Node) -> str:
    """The kind of device that a node's results are on; "" where there are none, or several."""
    val = node.meta.get("val")
    kinds = {torch.device(v.device).type for v in (val if isinstance(val, (list, tuple)) else (val,)) if is_tensor(v)}
    return next(iter(kinds)) if len(kinds) == 1 else ""


def _copies_between(node: torch.fx.Node) -> bool:
    """Whether a node copies a tensor from one device to another."""
    if node.target is not torch.ops.aten._to_copy.default:
        return False
    return _device_of(node) != _device_of(node.args[0])


def _on_two_devices(graph: torch.fx.Graph) -> bool:
    """Whether some of it is computed on a GPU, beside tensors of the CPU; a graph of the CPU may copy its results to
    one."""
    kinds = {_device_of(node) for node in graph.nodes}
    return {"cpu", "cuda"} <= kinds and any(map(_computes_on_gpu, graph.nodes))


def _computes_on_gpu(node: torch.fx.Node) -> bool:
    computes = isinstance(node.target, torch._ops.OpOverload) and not gives_views(node.target)
    return computes and _device_of(node) == "cuda" and not _copies_between(node)


def _refs(a: Any) -> list[Ref]:
    if isinstance(a, dict):
        return _refs(list(a.values()))
    if isinstance(a, (list, tuple)):
        return [r for x in a for r in _refs(x)]
    return [a] if isinstance(a, Ref) else []


class Walk(Lowering):
    """The walk over one graph, node by node."""

    def __init__(self, aten: Any, opts: Any):
        super().__init__(aten, opts)
        self._results: dict[torch.fx.Node, Buffer] = {}
        self._result_memory: set[Buffer] = set()
        self._given: list[Buffer] = []
        self._moved: dict[tuple, Ref] = {}
        self._of_numbers: dict[tuple, tuple] = {}  # (value, shape) of what the CPU makes of numbers -> its call
        self.on_two_devices = _on_two_devices(aten.graph)

    def run(self) -> LoweredGraph:
        n_input = 0
        for node in self.aten.graph.nodes:
            self.node = node
            if is_input(node):
                self.refs[node] = self.input(node, n_input)
                n_input += 1
            elif is_constant(node):
                self.refs[node] = self.constant(node)
            elif is_call(node):
                self.refs[node] = self.call(node)
        self.node = None
        outputs = [self.output(output) for output in self.aten.outputs]
        mutations = [(i, self.result(n)) for i, n in self.aten.mutations]
        env = self.aten.env
        return LoweredGraph(
            steps=self.steps,
            inputs=self.inputs,
            outputs=outputs,
            mutations=mutations,
            constants=self.constants,
            symbols=self._symbols(),
            hints=dict(getattr(env, "hints", None) or {}),
            fallbacks=dict(self.fallbacks),
            writes=getattr(self.aten, "writes", {}),
            given=self._given,
        )

    def input(self, node: torch.fx.Node, i: int) -> Any:
        val = node.meta["val"]
        if is_tensor(val):
            buffer = self._buffer(node.name, shape_of(val.shape), val.dtype, strides_of(val), val.device, "input")
            off = getattr(val, "storage_offset", 0)
            buffer.storage_offset = plain_size(off() if callable(off) else off)
            self.inputs.append(buffer)
            if getattr(self._graph_input(i), "given", False):
                self._given.append(buffer)
            return ref_of_buffer(buffer)
        if isinstance(val, float) or getattr(self._graph_input(i), "kind", "") == "float":
            name = node.name
            self.inputs.append(("param", name, torch.float64))
            return Scalar(name, param(name, torch.float64))
        e = as_expr(val)
        self.inputs.append(e)
        return plain_size(e)

    def _graph_input(self, i: int) -> Any:
        inputs = getattr(self.aten, "inputs", None) or []
        return inputs[i] if i < len(inputs) else None

    def constant(self, node: torch.fx.Node) -> Ref:
        owner: Any = getattr(self.aten, "constants", None)
        if isinstance(owner, dict) and node.target in owner:
            tensor = owner[node.target]
        else:
            tensor = self.aten.graph.owning_module if owner is None else owner
            for part in str(node.target).split("."):
                tensor = getattr(tensor, part)
        if tensor._is_zerotensor():  # (which has no memory)
            if tensor.dtype in DTYPES:
                return Ref(tuple(tensor.shape), tensor.dtype, const(0, tensor.dtype))
            tensor = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        tensor = tensor.resolve_conj().resolve_neg()
        if tensor.numel() == 1 and not tensor.dtype.is_complex and tensor.device.type == "cpu":
            return Ref(tuple(tensor.shape), tensor.dtype, const(tensor.item(), tensor.dtype))
        buffer = self._buffer(
            node.name, tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()), tensor.device, "constant"
        )
        self.constants[buffer.name] = tensor
        return ref_of_buffer(buffer)

    def call(self, node: torch.fx.Node) -> Any:
        target = node.target
        if getattr(target, "__name__", "") == "getitem" and not isinstance(target, torch._ops.OpOverload):
            seq, i = node.args
            return self.arg(seq)[i]
        args = tuple(self.arg(arg) for arg in node.args)
        kwargs = {name: self.arg(value) for name, value in node.kwargs.items()}
        if self.on_two_devices and isinstance(target, torch._ops.OpOverload) and not _copies_between(node):
            if self.on_gpu:
                args, kwargs = self.brought(args), self.brought(kwargs)
            elif not gives_views(target) and any(loaded([ref.value]) for ref in _refs((args, kwargs))):
                return self.beside(node, args, kwargs)
        key = target if form_of(target) is None else Form
        f = RULES.get(key)
        if f is None:
            if not isinstance(target, torch._ops.OpOverload):
                return self.scalar_call(target, args, kwargs)
            if extern_reason(target) == NO_RULE:
                self.fallbacks[str(target)] += 1
            reason = (
                _of_complex(node) if any(dtype.is_complex for dtype in _dtypes(node, args)) else extern_reason(target)
            )
            return self.extern(node, args, kwargs, reason)
        mark = len(self.steps)
        try:
            if key not in ANY_DTYPE:
                self._known_dtypes(node, args)
            result = f(self, node, *args, **kwargs)
        except NoRule as e:
            self.take_back(mark)
            if extern_reason(target) == NO_RULE:  # (others are called by choice)
                self.fallbacks[str(target)] += 1
            return self.extern(node, args, kwargs, str(e))
        if self.is_beside() and isinstance(result, Ref):
            if any(isinstance(step, LoopNest) for step in self.steps[mark:]):
                self.take_back(mark)
                return self.beside(node, args, kwargs)
            self._of_numbers[result.value, result.shape] = node, args, kwargs
        return result

    # ---- graphs for a GPU that hold tensors of the CPU
    def beside(self, node: torch.fx.Node, args: tuple, kwargs: dict) -> Any:
        """A node whose results are on the CPU, where kernels are a GPU's: a call of torch's kernel."""
        self.fallbacks[str(node.target)] += 1
        return self.extern(node, args, kwargs, "on the CPU, beside kernels of a GPU")

    def copy(self, ref: Ref, stride: Sequence[Any] | None) -> Buffer:
        made = self._of_numbers.get((ref.value, ref.shape))
        if made is None or not self.is_beside():
            return super().copy(ref, stride)
        reader, self.node = self.node, made[0]
        there = self.beside(*made)
        self.node = reader
        return self.realise(there, stride)

    def brought(self, a: Any) -> Any:
        """Operands of a kernel on the GPU: numbers and indices that lie in the CPU's memory are copied there."""
        if isinstance(a, dict):
            return {key: self.brought(value) for key, value in a.items()}
        if type(a) in (list, tuple):
            return type(a)(map(self.brought, a))
        if not isinstance(a, Ref) or not any(not buffer.on_gpu for buffer in loaded([a.value])) or strided(a) is None:
            return a
        known = (a.value, a.shape, str(self._device()))
        if known not in self._moved:
            there = self.realise(a)
            b = self._buffer(there.name + "_there", a.shape, a.dtype)
            lines = [tuple(x) for x in self.lines()]
            op, device = torch.ops.aten._to_copy.default, {"device": torch.device(self._device())}
            self.steps.append(Extern(op, (there,), device, [b], None, (), BETWEEN, self.node.name, lines))
            self.foreign.add(b)
            self._moved[known] = ref_of_buffer(b)
        return self._moved[known]

    def _known_dtypes(self, node: torch.fx.Node, args: tuple) -> None:
        """Nests have no floats of eight bits on a CPU, and neither complex numbers nor the rarer types anywhere."""
        for dtype in _dtypes(node, args):
            if dtype not in DTYPES and dtype not in self.dtypes():
                raise NoRule(_of_complex(node) if dtype.is_complex else f"values of {dtype}")

    def scalar_call(self, target: Callable, args: tuple, kwargs: dict) -> Any:
        """Python arithmetic on sizes (operator.add, ...) inside the graph."""
        return plain_size(
            target(
                *(as_expr(arg) if isinstance(arg, int) and not isinstance(arg, bool) else arg for arg in args), **kwargs
            )
        )

    def arg(self, a: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            return self.refs[a]
        if type(a) in (list, tuple) or isinstance(a, (list, tuple)):
            return type(a)(self.arg(x) for x in a) if type(a) in (list, tuple) else [self.arg(x) for x in a]
        if isinstance(a, slice):
            return slice(self.arg(a.start), self.arg(a.stop), self.arg(a.step))
        if isinstance(a, torch.SymInt):
            return plain_size(a)
        return a

    # ---- the end
    def result(self, node: torch.fx.Node) -> Buffer:
        """The buffer of a result of the graph: memory of its own, laid out as the node's metadata says."""
        b = self._results.get(node)
        if b is None:
            self.node = node
            ref = self.refs[node]
            b = self.realise(ref, strides_of(node.meta["val"]), fresh=True)
            memory = self._view_base.get(b, b)
            if memory in self._result_memory:  # two results are never one tensor
                b = memory = self.copy(ref, strides_of(node.meta["val"]))
            self._result_memory.add(memory)
            self._results[node] = b
            self.node = None
        return b

    def output(self, spec: Any) -> OutputSpec:
        """One of AtenGraph.outputs with buffers in the place of nodes."""
        kind, value = spec.kind, spec.value
        if kind == "buffer":
            return OutputSpec("buffer", self.result(value), changes=spec.changes)
        if kind == "view":
            base, shape, stride, offset = value
            base = self.result(base) if isinstance(base, torch.fx.Node) else base
            memory = base if isinstance(base, Buffer) else self.inputs[base]
            meta = getattr(spec, "meta", None)
            dtype = meta.dtype if meta is not None and meta.dtype != memory.dtype else None
            seen = (base, shape_of(shape), shape_of(stride), plain_size(offset))
            return OutputSpec("view", seen, dtype, spec.changes, spec.detached)
        if kind == "int":
            r = self.refs[value] if isinstance(value, torch.fx.Node) else value
            return OutputSpec("int", plain_size(r))
        return OutputSpec(kind, value)

    def _symbols(self) -> dict[str, tuple[int, str, int]]:
        """Where the host finds each size symbol's value: the first input that shows it bare."""
        out: dict[str, tuple[int, str, int]] = {}
        for i, b in enumerate(self.inputs):
            if isinstance(b, Expr):
                if b.is_symbol:
                    out.setdefault(b.name, (i, "value", 0))
            elif isinstance(b, Buffer):
                for what, sizes in (("size", b.shape), ("stride", b.stride)):
                    for dim, size in enumerate(sizes):
                        if isinstance(size, Expr) and size.is_symbol:
                            out.setdefault(size.name, (i, what, dim))
        return out


def _of_complex(node: torch.fx.Node) -> str:
    """Why an operator on complex numbers, which decompositions leave as they are, is called."""
    reason = extern_reason(node.target)
    return "complex numbers" if reason == NO_RULE else reason


def _dtypes(node: torch.fx.Node, args: tuple) -> list[torch.dtype]:
    """Those of a call's results and arguments, Python's complex numbers among them."""
    flat = (x for xs in (node.meta.get("val"), *args) for x in (xs if isinstance(xs, (tuple, list)) else (xs,)))
    found = (torch.complex64 if isinstance(x, complex) else getattr(x, "dtype", None) for x in flat)
    return [dtype for dtype in found if dtype is not None]
