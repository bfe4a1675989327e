"""The recorder: torch-level calls as nodes of one fx graph."""

from __future__ import annotations

import enum
import keyword
import operator
from typing import Any, Callable

import torch
import torch.fx

from ...graph import known_values
from ...graph.tensor import TensorMeta, TraceTensor, from_meta
from ...base.fx_nodes import is_call
from ...base.fx_modules import call_node, graph_module
from ...guards.source import Source
from ...base.quoting import identifier
from ...symbolic.expr import symbol
from ..tensors.patched_torch import function_target
from ..numbers.overflow import number_too_large
from ...graph.captured import CapturedGraph, GraphInput
from ...graph.wrappers import Wrap
from ..machine.signals import Break
from ..library.watched_warnings import refuse_watched_operator

__all__ = ["GraphBuilder", "PLAIN", "PYTHON_DTYPES", "as_trace", "real_meta"]

# as torch takes Python's types for a dtype
PYTHON_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
# Kinds of values that calls of torch take as they are, beside tensors and numbers that vary.
PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_AS_THEY_ARE = (*PLAIN, type(...))  # an index may have an ellipsis


def as_trace(result: Any) -> Any:
    """Real tensors that torch made (constants) become TraceTensors."""
    if isinstance(result, torch.Tensor) and type(result) is not TraceTensor:
        if type(result) not in (torch.Tensor, torch.nn.Parameter):
            raise Break("unsupported", f"a tensor of class {type(result).__name__} is made")
        return from_meta(real_meta(result))
    if type(result) in (list, tuple) and any(
        isinstance(r, torch.Tensor) and type(r) is not TraceTensor for r in result
    ):
        return type(result)(as_trace(r) for r in result)
    return result


def real_meta(tensor: torch.Tensor, device: Any = None) -> TensorMeta:
    return TensorMeta(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        device or tensor.device,
        tensor.storage_offset(),
        tensor.requires_grad,
    )


class Scope:
    """A graph that grows: the frame's own, or the body of a higher-order operator inside it. `nodes` maps the id of a
    TraceTensor to the node that computes it. What a body uses of the graphs around it becomes a parameter: `lifted` has
    their nodes, in order. transform: the name of torch.func's transform whose function this is.
    """

    def __init__(self, transform: str = "") -> None:
        self.transform = transform
        self.graph = torch.fx.Graph()
        self.nodes: dict[int, torch.fx.Node] = {}
        self.lifted: dict[torch.fx.Node, torch.fx.Node] = {}  # node of the graph around it -> the body's placeholder
        self.last_input: torch.fx.Node | None = None

    def placeholder(self, name: str, meta: dict[str, Any]) -> torch.fx.Node:
        first = next(iter(self.graph.nodes), None)
        where = (
            self.graph.inserting_after(self.last_input)
            if self.last_input is not None
            else (
                self.graph.inserting_before(first)
                if first is not None
                else self.graph.inserting_after(self.graph._root)
            )
        )
        with where:
            node = self.graph.placeholder(name if name != "self" else "self_")  # (fx takes that one for the module)
        node.target = node.name  # (a body inside of a body: both call their own parameters the same)
        node.meta.update(meta)
        self.last_input = node
        return node

    def lift(self, outer: torch.fx.Node) -> torch.fx.Node:
        node = self.lifted.get(outer)
        if node is None:
            node = self.lifted[outer] = self.placeholder(outer.name, dict(outer.meta))
        return node


class GraphBuilder:
    """Grows the graph of one frame. The tensors are kept alive, so that an id never names two."""

    def __init__(self, machine: Any):
        self.machine = machine
        self.root = Scope()
        self.scopes = [self.root]  # the frame's graph, then the bodies that are being captured
        self.keep: list[Any] = []
        self.inputs: list[GraphInput] = []
        self.examples: list[Any] = []
        self.expr_nodes: dict[Any, torch.fx.Node] = {}
        self.calls = 0  # nodes that compute something
        self.written: set[int] = set()  # ids of the storages that some call writes into
        self.writes: list[int] = []  # the same of each call, in order
        self.apart: list[TraceTensor] = []  # what `x.data` gave: the version of x says nothing of writes to it
        self.fixed: set[int] = set()  # ids of those that no call may write into from here on
        self.chosen: set[int] = set()  # ids of those that stand for the memory of one of several tensors
        self._names: set[str] = set()

    @property
    def graph(self) -> torch.fx.Graph:
        return self.scopes[-1].graph

    @property
    def nodes(self) -> dict[int, torch.fx.Node]:
        return self.scopes[-1].nodes

    def find(self, key: int, level: int = -1) -> torch.fx.Node | None:
        """The node of a tensor's id in the graph that grows now; one of a graph around it is lifted."""
        level %= len(self.scopes)
        node = self.scopes[level].nodes.get(key)
        if node is None and level:
            outer = self.find(key, level - 1)
            if outer is not None:
                node = self.scopes[level].nodes[key] = self.scopes[level].lift(outer)
        return node

    # --- inputs
    def _placeholder(self, wanted: str) -> torch.fx.Node:
        name = identifier(wanted).strip("_").lower() or "arg"
        while "__" in name:
            name = name.replace("__", "_")
        name = base = name if name[0].isalpha() and not keyword.iskeyword(name) else f"arg_{name}"
        k = 0
        while name in self._names:
            k += 1
            name = f"{base}_{k}"
        self._names.add(name)
        return self.root.placeholder(name, {})

    def add_input(self, real: torch.Tensor, trace: TraceTensor, source: Source | None, spec: Any, static: bool) -> None:
        name = source.name().replace("._modules[", "[") if source is not None else "arg"
        node = self._placeholder(self.machine.parameter_names.of(name, real))
        node.meta.update(val=trace, stack=[], module="")
        self.inputs.append(GraphInput(node.name, source, "tensor", static, spec))
        self.examples.append(real)
        self.root.nodes[id(trace)] = node
        self.keep.append(trace)

    def symbol_node(self, name: str) -> torch.fx.Node:
        """The placeholder that carries a size symbol."""
        source = self.machine.env.sources[name]
        node = self._placeholder(name)
        hint = int(self.machine.env.hints[name])
        node.meta.update(val=self.machine.env.wrap(symbol(name)), stack=[], module="")
        self.inputs.append(GraphInput(node.name, source, "int"))
        self.examples.append(hint)
        return node

    def expr_node(self, expr: Any) -> Any:
        """A node (or an int) that computes a size expression from the symbols' placeholders."""
        if expr.is_const:
            return expr.value
        if len(self.scopes) > 1:  # computed in the frame's graph, and lifted from there
            inner, self.scopes = self.scopes, [self.root]
            try:
                node = self.expr_node(expr)
            finally:
                self.scopes = inner
            for scope in inner[1:]:
                node = scope.lift(node)
            return node
        node = self.expr_nodes.get(expr)
        if node is None:
            if expr.op == "sym":
                node = self.symbol_node(next(iter(expr.symbol_names())))
            else:
                fn = _EXPR_FUNCTIONS.get(expr.op)
                if fn is None:
                    raise Break("unsupported", f"the size expression {expr.py()} is used as an argument")
                args = [self.expr_node(a) if hasattr(a, "op") else a for a in expr.args]
                node = args[0]
                for a in args[1:]:
                    node = self.graph.call_function(fn, (node, a))
                    node.meta.update(val=None, stack=self.machine.stack_positions(), module=self.machine.module_path)
                if len(args) == 1:
                    node = self.graph.call_function(fn, (args[0],))
                    node.meta.update(val=None, stack=self.machine.stack_positions(), module=self.machine.module_path)
                node.meta["val"] = self.machine.env.wrap(expr)
            self.expr_nodes[expr] = node
        return node

    # --- calls
    def arg(self, value: Any) -> Any:
        """A value as an argument of a node."""
        cls = type(value)
        if cls in _AS_THEY_ARE:
            return value
        if isinstance(value, TraceTensor):
            node = self.find(id(value))
            if node is None:
                raise Break("unsupported", "a tensor was made in a way that capture did not see")
            return node
        if cls is torch.SymInt:
            expr = self.machine.env.to_expr(value)
            if not self.machine.env.fits(expr):
                raise Break("unsupported", "an integer of more than 64 bits is given to a torch function")
            node = self.expr_node(expr)
            if isinstance(node, torch.fx.Node):
                node.meta["val"] = value
            return node
        world = self.machine.world
        if isinstance(value, torch.Tensor):
            return self.arg(world.load_tensor(value, world.anchor(value)))
        if cls is tuple or cls is list or isinstance(value, torch.Size):
            value = self.machine.plain(value)
            items = [self.arg(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if cls is dict:
            return {key: self.arg(item) for key, item in self.machine.plain(value).items()}
        if cls is slice:
            return slice(self.arg(value.start), self.arg(value.stop), self.arg(value.step))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return tuple(self.arg(item) for item in value)
        if isinstance(value, (int, float, str)):  # enum members, numpy's float64 and the like
            if isinstance(value, enum.Enum) and value.name in type(value).__members__:  # (fx prints it by that name)
                return value
            return next(base(value) for base in (int, float, str) if isinstance(value, base))
        if isinstance(value, (torch.SymBool, torch.SymFloat)):  # a node takes numbers and sizes: fixed, with a guard
            return bool(value) if isinstance(value, torch.SymBool) else float(value)
        if cls is type and value in PYTHON_DTYPES:
            return PYTHON_DTYPES[value]
        raise Break("unknown_object", f"a torch function is given an object of type {cls.__name__}")

    def record(self, kind: str, target: Callable | str, args: tuple, kwargs: dict, result: Any) -> Any:
        """Add a call whose result on TraceTensors is `result` (a tensor, or a tuple or list that holds some)."""
        if target is operator.pow and not isinstance(args[0], TraceTensor):
            target = torch.pow  # torch.fx writes -2.0 ** x for (-2.0) ** x
        if self.chosen:
            self._refuse_views(args, result)
        refused = number_too_large(target, args, kwargs, result)
        if refused is not None:
            raise Break("unsupported", f"{refused} is more than {result.dtype} holds")
        if self.machine.world.pending:
            refuse_watched_operator(self.machine, target, args, kwargs)
        if kind == "call_function":
            target = function_target(self.machine, target)
        given = {name: self.arg(value) for name, value in kwargs.items()}
        node = call_node(self.graph, kind, target, tuple(self.arg(a) for a in args), given)
        return self.made(node, result)

    def made(self, node: torch.fx.Node, result: Any) -> Any:
        """Take in a new node of a call, and what it gives."""
        self.calls += 1
        self._attach(node, result, self.machine.stack_positions(), self.machine.module_path)
        return result

    def becomes(self, t: TraceTensor, before: TraceTensor, method: str, args: tuple, kwargs: dict) -> None:
        """A call has made the object `t`, which was as `before`, another view of its memory."""
        node = self.nodes[id(before)] = self.nodes.pop(id(t))
        node.meta["val"] = before
        self.keep.append(before)
        self.record("call_method", method, (before, *args), kwargs, t)

    def writes_to(self, value: Any) -> None:
        """A call changes `value` in place."""
        for t in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(t, TraceTensor):
                if id(t.tt_storage) in self.fixed:
                    raise Break(
                        "choice",
                        "a tensor is written to that is, or may be, what max() or min() chose by values of tensors",
                    )
                known_values.forget(t.tt_storage)
                self.written.add(id(t.tt_storage))
                self.writes.append(id(t.tt_storage))
                self.keep.append(t.tt_storage)

    def _refuse_views(self, args: tuple, result: Any) -> None:
        """A view of what stands for another tensor would not lie in that tensor's memory."""
        for t in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(t, TraceTensor) and id(t.tt_storage) in self.chosen and not any(t is a for a in args):
                raise Break("choice", "a view is made of what max() or min() chose by values of tensors")

    def fix(self, value: Any) -> None:
        """Who else stands for the memory of `value` holds a copy."""
        if isinstance(value, TraceTensor):
            self.fixed.add(id(value.tt_storage))
            self.keep.append(value.tt_storage)

    def record_state(self, target: Callable, args: tuple) -> None:
        """A change of torch's state (grad mode, autocast) that holds for the nodes after it."""
        node = self.graph.call_function(target, args)
        node.meta.update(val=None, state=True, stack=self.machine.stack_positions(), module=self.machine.module_path)

    def _attach(self, node: torch.fx.Node, result: Any, stack: list, module: str) -> None:
        node.meta.update(val=result, stack=stack, module=module)
        if isinstance(result, TraceTensor):
            if id(result) not in self.nodes:
                self.nodes[id(result)] = node
                self.keep.append(result)
        elif isinstance(result, (tuple, list)):
            for i, part in enumerate(result):
                if isinstance(part, TraceTensor) and id(part) in self.nodes:
                    continue
                if isinstance(part, (TraceTensor, tuple, list)) and part is not None and _holds_tensor(part):
                    item = self.graph.call_function(operator.getitem, (node, i))
                    self._attach(item, part, stack, module)

    # --- the end
    def finish(self, outputs: list[Any], name: str) -> CapturedGraph | None:
        """Close the graph over the TraceTensors (or SymInts) that the entry needs; None where nothing was computed."""
        out_nodes = [self.arg(output) for output in outputs]
        if not self.calls:
            return None
        self._balance_regions()
        self.graph.output(tuple(out_nodes))
        self._drop_unused()
        module = graph_module(self.graph, name)
        return CapturedGraph(module, self.inputs, self.machine.env, name, self.examples)

    def _balance_regions(self) -> None:
        """What a graph enters and does not leave, the entry counts (a break lies inside of an autocast region): run by
        other backends, call by call, the graph would count it, too."""
        targets = [node.target for node in self.graph.nodes if node.meta.get("state")]
        entered = targets.count(torch.autocast_increment_nesting) - targets.count(torch.autocast_decrement_nesting)
        for _ in range(max(entered, -entered)):
            self.record_state(torch.autocast_decrement_nesting if entered > 0 else torch.autocast_increment_nesting, ())

    def _drop_unused(self) -> None:
        """Parts of tuples and wrappers that nobody reads, and inputs of which only the metadata was used."""
        for node in reversed(list(self.graph.nodes)):
            if (
                not node.users
                and is_call(node)
                and (isinstance(node.target, Wrap) or node.target is operator.getitem and _of_tuple(node.args[0]))
            ):
                self.graph.erase_node(node)
        unused = {n.name for n in self.graph.find_nodes(op="placeholder") if not n.users}
        for node in [n for n in self.graph.nodes if n.name in unused]:
            self.graph.erase_node(node)
        kept = [(i, example) for i, example in zip(self.inputs, self.examples) if i.name not in unused]
        self.inputs, self.examples = [i for i, _ in kept], [e for _, e in kept]


def _of_tuple(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), (tuple, list))


def _holds_tensor(value: Any) -> bool:
    return isinstance(value, TraceTensor) or (
        isinstance(value, (tuple, list)) and any(_holds_tensor(item) for item in value)
    )


_EXPR_FUNCTIONS: dict[str, Callable] = {
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "lshift": operator.lshift,
    "bitand": operator.and_,
    "min": torch.sym_min,
    "max": torch.sym_max,
}
