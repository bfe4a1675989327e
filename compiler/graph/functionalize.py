"""Recording into a functional graph: in-place operators and writes through views become new values.

Each TraceTensor is an *alias*: a chain of view operators from the *root* of its memory. A write makes a new value of
the root (the views' writes are scattered back, step by step) and raises the memory's version. An alias read after that
is made again from the root by its chain. What was written to an input is copied to it when the graph has run.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from ..symbolic.env import ShapeEnv
from ..symbolic.expr import Expr, as_expr, eq, le, lt, maybe_int
from ..symbolic.places import coincide
from .aten import AtenGraph, GraphOutput, OwnWrite
from ..base.fx_nodes import is_call
from ..base.fx_modules import call_node
from ..ops import conjugates
from ..ops.closed_set import gives_views
from ..ops.functional_forms import Form, form_of, functional_form, may_be_left_out, sharing, spread, spread_names
from .history import BACKWARD, backward_module
from .meta import TensorMeta, views_meta
from .meta.core import fold, is_dense, same, state
from .opinfo import OpInfo, op_info, run_rule
from .tensor import TraceTensor, counted_with, from_meta, tensor_meta

__all__ = ["Functionalizer", "NewValue"]

aten = torch.ops.aten


class _Memory:
    """One piece of memory: its version, and where it came from."""

    __slots__ = ("version", "root", "input", "constant", "written", "own_writes")

    def __init__(self, input: int | None = None, constant: bool = False):
        self.version = 0
        self.root: _Alias | None = None
        self.input = input
        self.constant = constant
        self.written = False
        self.own_writes: list[tuple[torch.Tensor, Form, str]] = []  # by operators of the program's: which tensor


class NewValue:
    """Among the values given to `Functionalizer.finish`: what an input holds after its in-place writes, as a tensor of
    its own. The caller copies it to the input, so the graph itself does not write that input."""

    def __init__(self, input: int):
        self.input = input


class _Alias:
    """A tensor as a step from its parent alias; `node` holds its value as of `version` of the memory."""

    __slots__ = ("memory", "parent", "op", "args", "kwargs", "index", "meta", "node", "version", "tensor")

    def __init__(
        self,
        memory: _Memory,
        node: torch.fx.Node,
        meta: TensorMeta,
        parent: "_Alias | None" = None,
        op: Any = None,
        args: tuple = (),
        kwargs: dict | None = None,
        index: int | None = None,
    ):
        self.memory, self.node, self.meta, self.parent = memory, node, meta, parent
        self.op, self.args, self.kwargs, self.index = op, args, kwargs or {}, index
        self.version = memory.version
        self.tensor: torch.Tensor | None = None


class Functionalizer:
    """A Recorder (graph/tensor.py) that builds an fx graph. `where` is the metadata given to nodes: "stack",
    "module".
    """

    def __init__(self, env: ShapeEnv | None):
        self.env = env
        self.graph = torch.fx.Graph()
        self.aliases: dict[int, _Alias] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.symbols: dict[str, torch.fx.Node] = {}
        self.where: dict[str, Any] = {}
        self._keep: list[Any] = []

    # ---- nodes
    def call(self, op: Any, args: tuple, kwargs: dict | None = None, val: Any = None) -> torch.fx.Node:
        node = call_node(self.graph, "call_function", op, args, kwargs or {}, _name_of(op))
        node.meta.update(self.where)
        if node.meta.get("module") == BACKWARD:
            node.meta["module"] = backward_module()
        node.meta["val"] = val
        return node

    def add_input(self, name: str, tensor: TraceTensor, index: int) -> torch.fx.Node:
        node = self.graph.create_node("placeholder", name, (), {}, name=name)
        meta = tensor_meta(tensor)
        node.meta["val"] = meta
        self._new_root(tensor, node, meta, _Memory(input=index))
        return node

    def add_scalar_input(self, name: str, val: Any) -> torch.fx.Node:
        node = self.graph.create_node("placeholder", name, (), {}, name=name)
        node.meta["val"] = val
        return node

    def constant(self, real: torch.Tensor, kept: bool = False) -> _Alias:
        """A real tensor that the graph uses: kept by the entry, never written. `kept`: the user holds it too and may
        change its values, so it is never folded."""
        name = f"{'kept' if kept else 'constant'}{len(self.constants)}"
        self.constants[name] = real
        node = self.graph.create_node("get_attr", name, (), {}, name=name)
        meta = tensor_meta(real)
        node.meta["val"] = meta
        node.meta.update(self.where)
        return self._new_root(real, node, meta, _Memory(constant=True))

    def lift(self, real: torch.Tensor, kept: bool = False) -> TraceTensor:
        """A TraceTensor that stands for a real tensor made while tracing (torch.tensor(...))."""
        tensor = from_meta(tensor_meta(real), self.env)
        self._bind(tensor, self.aliases.get(id(real)) or self.constant(real, kept))
        return tensor

    def _new_root(
        self, tensor: torch.Tensor, node: torch.fx.Node, meta: TensorMeta, memory: _Memory | None = None
    ) -> _Alias:
        memory = memory or _Memory()
        alias = memory.root = _Alias(memory, node, meta)
        self._bind(tensor, alias)
        return alias

    def _bind(self, tensor: torch.Tensor, alias: _Alias) -> None:
        self.aliases[id(tensor)] = alias
        if alias.tensor is None:
            alias.tensor = tensor
        self._keep.append(tensor)  # ids stay unique while the tensor lives

    def alias_of(self, tensor: torch.Tensor) -> _Alias:
        alias = self.aliases.get(id(tensor))
        if alias is None:
            if isinstance(tensor, TraceTensor):
                raise RuntimeError("a traced tensor reached the graph that no recorded operator made")
            alias = self.constant(tensor)
        return alias

    def rebind(self, tensor: torch.Tensor, to: torch.Tensor) -> None:
        """Let `to` stand where `tensor` stood: as the tensor of that memory."""
        alias = self.aliases[id(tensor)]
        alias.tensor = to
        self._bind(to, alias)

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor that the graph knows."""
        return [tensor for tensor in self._keep if isinstance(tensor, torch.Tensor)]

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        return self._value(self.alias_of(tensor))

    def _value(self, alias: _Alias) -> torch.fx.Node:
        """The node with the present value of an alias."""
        if alias.version != alias.memory.version:
            chain = []
            while alias.version != alias.memory.version:
                chain.append(alias)
                alias = alias.parent
            for step in reversed(chain):
                step.node = self._view_node(step, step.parent.node)
                step.version = step.memory.version
            alias = chain[0]
        return alias.node

    def _view_node(self, step: _Alias, parent: torch.fx.Node) -> torch.fx.Node:
        op, args = step.op, step.args
        if step.index is not None:
            op, args = _one_of_list(step)
        if op is aten.view.default:
            return self._reshape(parent, step.meta)
        if op in conjugates.OPERATORS:
            return self._with_bit(op, parent)
        if op is aten.as_strided.default:
            return self._as_strided(step, parent)
        return self.call(op, (parent, *args), step.kwargs, step.meta)

    def _as_strided(self, step: _Alias, parent: torch.fx.Node) -> torch.fx.Node:
        """as_strided reads the parent's memory as it is laid out in eager, offset relative to its first element."""
        base = step.parent.meta
        offset = maybe_int(as_expr(step.meta.storage_offset) - as_expr(base.storage_offset))
        if parent.meta["val"].stride != base.stride or gives_views(parent.target):
            parent = self.call(aten.clone.default, (parent,), {}, base.replace(storage_offset=0))
        return self.call(
            aten.as_strided.default, (parent, list(step.meta.shape), list(step.meta.stride), offset), {}, step.meta
        )

    def _reshape(self, node: torch.fx.Node, meta: TensorMeta) -> torch.fx.Node:
        """A view of a value, or of a contiguous copy where its strides do not allow the view."""
        meta_of = node.meta["val"]
        stride = views_meta.view_strides(meta_of.shape, meta_of.stride, meta.shape)
        if stride is None:
            meta_of = TensorMeta(
                meta_of.shape, views_meta.contiguous_strides(meta_of.shape), meta_of.dtype, meta_of.device
            )
            node = self.call(aten.clone.default, (node,), {"memory_format": torch.contiguous_format}, meta_of)
            stride = views_meta.view_strides(meta_of.shape, meta_of.stride, meta.shape)
        val = TensorMeta(meta.shape, stride, meta.dtype, meta.device)
        return self.call(aten.view.default, (node, list(meta.shape)), {}, val)

    def _with_bit(self, op: Any, node: torch.fx.Node) -> torch.fx.Node:
        """The value of a conjugate or negative view of a value."""
        computed = conjugates.OPERATORS[op]
        if node.target is computed:
            return node.args[0]
        return self.call(computed, (node,), {}, op_info(computed).rule(node.meta["val"]))

    # ---- recording
    def record(self, info: OpInfo, args: tuple, kwargs: dict, out: Any) -> None:
        outer, state.recorder = state.recorder, None
        try:
            if info.op is aten.native_batch_norm.default and args[3] is not None and args[5]:
                # it writes the running statistics without saying so in its schema; this one says so
                info = op_info(aten._native_batch_norm_legit.default)
                return self._record_write(info, args, kwargs, out)
            kind = info.kind
            if kind == "view" or kind == "metadata":
                self._record_view(info, args, kwargs, out)
            elif kind == "pure":
                self._record_pure(info.op, args, kwargs, out)
            else:
                self._record_write(info, args, kwargs, out)
        finally:
            state.recorder = outer

    def _arg(self, value: Any) -> Any:
        cls = value.__class__
        if cls is TraceTensor or isinstance(value, torch.Tensor):
            return self.node_of(value)
        if cls is list or cls is tuple:
            return [self._arg(item) for item in value]
        if cls is torch.SymInt:
            return maybe_int(self.env.to_expr(value)) if self.env is not None else int(value)
        if cls is torch.SymFloat:
            return float(value.node.guard_float("", 0))
        if cls is torch.SymBool:
            return bool(value)
        return value

    def _record_pure(self, op: Any, args: tuple, kwargs: dict, out: Any) -> None:
        nargs = tuple([self._arg(arg) for arg in args])
        nkwargs = {name: self._arg(value) for name, value in kwargs.items()} if kwargs else {}
        if isinstance(out, TraceTensor):
            meta = out.tt_meta
            self._new_root(out, self.call(op, nargs, nkwargs, meta), meta)
        elif isinstance(out, (tuple, list)):
            val = tuple(result.tt_meta if isinstance(result, TraceTensor) else result for result in out)
            node = self.call(op, nargs, nkwargs, val)
            for i, result in enumerate(out):
                if isinstance(result, TraceTensor):
                    self._new_root(result, self._getitem(node, i, result.tt_meta), result.tt_meta)
        elif not op_info(op).n_results and op is not aten._assert_tensor_metadata.default:
            # it is there to raise, or for an effect
            self.call(op, nargs, nkwargs, ())

    def _getitem(self, node: torch.fx.Node, i: int, val: TensorMeta) -> torch.fx.Node:
        return self.call(operator.getitem, (node, i), {}, val)

    def _record_view(self, info: OpInfo, args: tuple, kwargs: dict, out: Any) -> None:
        source = args[0] if args else kwargs[info.arg_names[0]]
        parent = self.alias_of(source)
        self._value(parent)
        rest = tuple([self._arg(arg) for arg in args[1:]])
        nkw = {name: self._arg(value) for name, value in kwargs.items() if args or name != info.arg_names[0]}
        op = info.functional
        if info.kind == "metadata":
            if parent.memory.input is not None and parent.tensor is source:
                raise NotImplementedError(f"{info.op} changes the shape of an input")
            out = source
        if op in _ALIASES:  # the same elements in the same shape
            self._bind(out, parent)
            return
        if op is aten._reshape_alias.default:
            op, rest = aten.view.default, (list(out.tt_meta.shape),)
        if op is aten.as_strided.default:
            root = parent.memory.root
            if isinstance(source, TraceTensor) and conjugates.has_bits(source):
                raise NotImplementedError("as_strided of a conjugate or negative view")
            if root is not None and root.meta.dtype == out.tt_meta.dtype:
                parent = root  # it looks at the memory, whatever view it is asked of
                self._value(parent)
            if not self._inside(out.tt_meta, parent.meta):
                raise NotImplementedError("as_strided reaches outside of its tensor")
        if isinstance(out, (list, tuple)):
            for i, result in enumerate(out):
                alias = _Alias(parent.memory, parent.node, result.tt_meta, parent, op, rest, nkw, i)
                alias.node = self._view_node(alias, parent.node)
                self._bind(result, alias)
            return
        alias = _Alias(parent.memory, parent.node, out.tt_meta, parent, op, rest, nkw)
        alias.node = self._view_node(alias, parent.node)
        self._bind(out, alias)

    def _inside(self, view: TensorMeta, base: TensorMeta) -> bool:
        """Whether all elements of a view by as_strided lie between the first and the last of its base."""
        if any(isinstance(size, int) and size == 0 for size in view.shape):
            return True
        begin, end = as_expr(view.storage_offset) - base.storage_offset, as_expr(0)
        last = begin
        for size, st in zip(view.shape, view.stride):
            last = last + (as_expr(size) - 1) * st
        for size, st in zip(base.shape, base.stride):
            end = end + (as_expr(size) - 1) * st
        return all(map(self._holds, (le(as_expr(0), begin), le(last, end))))

    def _holds(self, fact: Expr) -> bool:
        return bool(fact.value) if fact.is_const else self.env is not None and self.env.decide(fact)

    def _record_write(self, info: OpInfo, args: tuple, kwargs: dict, out: Any) -> None:
        def get(i: int) -> Any:
            return args[i] if i < len(args) else kwargs.get(info.arg_names[i])

        targets = [get(write) for write in info.writes]
        flat = [tensor for target in targets for tensor in (target if isinstance(target, (list, tuple)) else (target,))]
        if info.functional is not None and any(tensor is None for tensor in flat):
            raise NotImplementedError(f"{info.op} writes to arguments, and this call leaves some of them out")
        flat = [tensor for tensor in flat if tensor is not None]
        self._refuse_shared_memory(info.op, flat, (*args, *kwargs.values()))
        if info.name == "copy_":
            self._write(targets[0], self._fit(self._arg(args[1]), self.alias_of(targets[0]).meta))
            return
        if info.functional is None:
            return self._record_on_copies(info, args, kwargs, out)
        if info.functional is aten.bernoulli.p:
            return self._record_bernoulli(
                targets[0],
                [self._arg(arg) for arg in args[1:]],
                {key: self._arg(item) for key, item in kwargs.items() if key != "self"},
            )
        returns = info.functional._schema.returns
        lists = [str(result.type).startswith("List") for result in returns]
        if len(returns) > 1 and any(lists):
            raise NotImplementedError(f"{info.op} writes a list of tensors and gives other results, too")
        if info.kind == "out":
            names = {info.arg_names[write] for write in info.writes}
            fargs = [self._arg(arg) for i, arg in enumerate(args) if i not in info.writes]
            fkw = {key: self._arg(item) for key, item in kwargs.items() if key not in names}
        else:
            fargs, fkw = [self._arg(arg) for arg in args], {key: self._arg(item) for key, item in kwargs.items()}
            for name, value in info.fill.items():
                if name not in fkw and info.arg_names.index(name) >= len(fargs):
                    fkw[name] = value
        val = run_rule(info.rule, fargs, fkw) if info.rule is not None else None
        if val is None:
            val = tuple(self.alias_of(tensor).meta for tensor in flat)
            val = val[0] if len(returns) == 1 and not lists[0] else val
        node = self.call(info.functional, tuple(fargs), fkw, val)
        if isinstance(val, (tuple, list)):
            node.meta["val"] = tuple(val)
            skip = len(val) - len(flat) if len(val) > len(flat) else 0
            fresh = out if isinstance(out, (tuple, list)) else (out,)
            for i in range(skip):  # results that are fresh tensors, before the written ones
                if isinstance(fresh[i], TraceTensor):
                    self._new_root(fresh[i], self._getitem(node, i, val[i]), val[i])
            for i, tensor in enumerate(flat):
                self._write(tensor, self._fit(self._getitem(node, i + skip, val[i + skip]), self.alias_of(tensor).meta))
        else:
            self._write(flat[0], self._fit(node, self.alias_of(flat[0]).meta))

    def _record_on_copies(self, info: OpInfo, args: tuple, kwargs: dict, out: Any) -> None:
        """An operator without a functional form of torch's: ours, which gives what it gives and what it has written."""
        given = {**dict(zip(info.arg_names, args)), **kwargs}
        names = [info.arg_names[write] for write in info.writes]
        outs = (out,) if isinstance(out, TraceTensor) or len(info.aliases) == 1 else out or ()
        fresh = [out for out, alias in zip(outs, info.aliases) if alias is None]
        several = {
            name: value if isinstance(value, (list, tuple)) else [] if value is None else [value]
            for name in names
            if isinstance(value := given.get(name), (list, tuple)) or may_be_left_out(info.op, name)
        }
        lengths = tuple((name, len(values)) for name, values in several.items())
        results = tuple(len(result) if isinstance(result, (list, tuple)) else None for result in fresh)
        if lengths or any(result is not None for result in results):
            own = [tensor for o, result in zip(fresh, results) for tensor in ((o,) if result is None else o)]
            for name, values in several.items():
                given.pop(name, None)
                given |= zip(spread_names(name, len(values)), values)
            whole = own[0] if len(own) == 1 else own
            return self._record_on_copies(op_info(spread(info.op, lengths, results)), (), given, whole)
        same = self._arguments_that_are_written(info, given)
        op = sharing(info.op, tuple(same.items())) if same else info.op
        form = functional_form(op)
        written = [given[info.arg_names[write]] for write in info.writes if info.arg_names[write] not in same]
        if form is None or not all(isinstance(result, TraceTensor) for result in fresh):
            raise NotImplementedError(f"{info.op} writes its arguments and has no functional form")
        nargs = tuple(self._arg(arg) for key, arg in zip(info.arg_names, args) if key not in same)
        nkwargs = {key: self._arg(item) for key, item in kwargs.items() if key not in same}
        metas = [
            *(result.tt_meta for result in fresh),
            *(self.alias_of(tensor).meta.replace(storage_offset=0) for tensor in written),
        ]
        if not metas:  # what it writes was left out, all of it: it is called for what else it does
            self.call(info.op, nargs, nkwargs, ())
            return
        node = self.call(form.functional, nargs, nkwargs, tuple(metas) if len(metas) > 1 else metas[0])
        values = [self._getitem(node, i, meta) for i, meta in enumerate(metas)] if len(metas) > 1 else [node]
        for result, meta, value in zip(fresh, metas, values):
            self._new_root(result, value, meta)
        for tensor, name, value in zip(written, form.written, values[len(fresh) :]):
            self._write(tensor, value)
            if form.counts:
                self.alias_of(tensor).memory.own_writes.append((tensor, form, name))

    def _arguments_that_are_written(self, info: OpInfo, given: dict[str, Any]) -> dict[str, str]:
        """Arguments that are the tensor which another argument is written to: name -> name of that one. What an
        operator writes it may read again through them. Memory that they share in part is refused: on copies the
        operator would read what was there before."""
        same: dict[str, str] = {}
        for w in (info.arg_names[write] for write in info.writes):
            if w in same:
                continue
            alias = self.alias_of(given[w])
            for name, value in given.items():
                if name == w or name in same:
                    continue
                for item in value if isinstance(value, (list, tuple)) else (value,):
                    if not isinstance(item, torch.Tensor) or (other := self.alias_of(item)).memory is not alias.memory:
                        continue
                    if item is value and (item is given[w] or self._is_the_same(alias.meta, other.meta)):
                        same[name] = w
                    elif not self._apart(alias.meta, other.meta):
                        raise NotImplementedError(f"{info.op} gets memory that it writes in two arguments")
        return same

    def _is_the_same(self, one: TensorMeta, other: TensorMeta) -> bool:
        """Whether two views of one memory have the same elements at the same places."""
        dims = [
            (one.storage_offset, other.storage_offset),
            *zip(one.shape, other.shape),
            *zip(one.stride, other.stride),
        ]
        return (
            one.dtype is other.dtype
            and len(one.shape) == len(other.shape)
            and all(self._equal(size, other_size) for size, other_size in dims)
        )

    def _apart(self, one: TensorMeta, other: TensorMeta) -> bool:
        """Whether two tensors without gaps are known to lie apart in one memory."""
        if not (is_dense(one.shape, one.stride) and is_dense(other.shape, other.stride)):
            return False
        (begin, end), (other_begin, other_end) = _bytes_of(one), _bytes_of(other)
        return self._holds(le(end, other_begin)) or self._holds(le(other_end, begin))

    def _refuse_shared_memory(self, op: Any, written: list, operands: tuple) -> None:
        """What torch's kernels refuse, they are to say: a write to memory in which an operand lies in part
        (x.add_(x.T), x[1:].add_(x[:-1])). They look at tensors without gaps alone; so does this."""
        aliases = [
            self.aliases[id(operand)]
            for operand in operands
            if isinstance(operand, torch.Tensor) and id(operand) in self.aliases
        ]
        for tensor in written:
            a = self.alias_of(tensor)
            if any(
                alias is not a and alias.memory is a.memory and self._partly_in(a.meta, alias.meta) for alias in aliases
            ):
                raise NotImplementedError(f"{op} writes to memory that one of its arguments shares in part")

    def _partly_in(self, inner: TensorMeta, outer: TensorMeta) -> bool:
        """Whether two tensors without gaps share some of their memory, but are not the same
        (at::get_overlap_status).
        """
        if not (is_dense(inner.shape, inner.stride) and is_dense(outer.shape, outer.stride)):
            return False
        (begin, end), (other_begin, other_end) = _bytes_of(inner), _bytes_of(outer)
        if self._holds(eq(begin, other_begin)) and self._holds(eq(end, other_end)):
            return not (len(inner.stride) == len(outer.stride) and all(map(self._equal, inner.stride, outer.stride)))
        return self._holds(lt(begin, other_end)) and self._holds(lt(other_begin, end))

    def several_views_of(self, tensor: torch.Tensor) -> str:
        """The name of the operator (unbind, split, ...) that `tensor` is a part or a view of a part of: eager autograd
        refuses to write into it. Empty where there is none."""
        alias: _Alias | None = self.alias_of(tensor)
        while alias is not None and alias.index is None:
            alias = alias.parent
        return alias.op._schema.name.partition("::")[2] if alias is not None else ""

    def _record_bernoulli(self, tensor: torch.Tensor, args: list, kwargs: dict) -> None:
        """bernoulli_(p) draws in the order of memory, bernoulli(x, p) in that of the indices: dimensions are brought
        into memory's order.
        """
        meta = self.alias_of(tensor).meta
        hints = self.env.hints if self.env is not None else {}
        rank = [stride if isinstance(stride, int) else stride.eval(hints) for stride in meta.stride]
        order = sorted(range(len(rank)), key=lambda d: (-rank[d], d))
        one = TensorMeta((), (), meta.dtype, meta.device)
        turned = views_meta.permute(meta, order)
        x = self.call(aten.full.default, ([], 0), {"dtype": meta.dtype, "device": meta.device}, one)
        # what was in the memory does not matter
        x = self.call(aten.expand.default, (x, list(turned.shape)), {}, views_meta.expand(one, turned.shape))
        if not args and "p" not in kwargs:
            args = [0.5]
        node = self.call(
            aten.bernoulli.p,
            (x, *args),
            kwargs,
            TensorMeta(turned.shape, views_meta.contiguous_strides(turned.shape), turned.dtype, turned.device),
        )
        # backward wants the mask: as truth values it takes a quarter of the room
        mask = node.meta["val"].replace(dtype=torch.bool)
        node = self.call(
            aten._to_copy.default,
            (self.call(aten.ne.Scalar, (node, 0), {}, mask),),
            {"dtype": meta.dtype},
            mask.replace(dtype=meta.dtype),
        )
        if order != sorted(order):
            inverse = [order.index(dim) for dim in range(len(order))]
            node = self.call(aten.permute.default, (node, inverse), {}, views_meta.permute(node.meta["val"], inverse))
        self._write(tensor, node)

    def _fit(self, value: Any, to: TensorMeta) -> torch.fx.Node:
        """A value as it arrives in memory of that metadata: cast, moved and expanded."""
        if not isinstance(value, torch.fx.Node):
            raise NotImplementedError("writing a value that is not a tensor")
        meta = value.meta["val"]
        if meta.dtype != to.dtype or meta.device != to.device:
            meta = meta.replace(dtype=to.dtype, device=to.device)
            kw: dict[str, Any] = {"dtype": to.dtype}
            if value.meta["val"].device != to.device:
                kw["device"] = to.device
            value = self.call(aten._to_copy.default, (value,), kw, meta)
        if len(meta.shape) != len(to.shape) or not all(map(same, meta.shape, to.shape)):
            meta = views_meta.expand(meta, to.shape)
            value = self.call(aten.expand.default, (value, list(to.shape)), {}, meta)
        return value

    def _write(self, tensor: torch.Tensor, value: torch.fx.Node) -> None:
        alias = self.alias_of(tensor)
        memory = alias.memory
        memory.written = True
        steps = []
        x = alias
        while x.parent is not None:
            steps.append(x)
            self._value(x.parent)
            x = x.parent
        values = [(alias, value)]
        for step in steps:
            value = self._scatter(step, step.parent.node, value)
            values.append((step.parent, value))
        memory.version += 1
        for al, v in values:
            al.node, al.version = v, memory.version

    def _scatter(self, step: _Alias, parent: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
        """The parent's value with `value` in the place that the view step shows."""
        op, args, kw, pm = step.op, step.args, step.kwargs, step.parent.meta
        if op is aten.expand.default or coincide(step.meta.shape, step.meta.stride) or coincide(pm.shape, pm.stride):
            raise NotImplementedError("a write to a tensor whose elements share memory")
        if step.index is not None:
            op, args = _one_of_list(step)
        fresh = TensorMeta(pm.shape, views_meta.contiguous_strides(pm.shape), pm.dtype, pm.device)
        name = op._schema.name
        if name in ("aten::view", "aten::squeeze", "aten::unsqueeze") and op is not aten.view.dtype:
            return self._reshape(value, fresh)
        if op in conjugates.OPERATORS:
            return self._with_bit(op, value)
        if op is aten.view.dtype:
            return self.call(op, (value, pm.dtype), {}, pm)
        if name in ("aten::permute", "aten::transpose", "aten::t"):
            meta = value.meta["val"]
            if name == "aten::permute":
                inverse = [0] * len(pm.shape)
                for i, index in enumerate(args[0]):
                    inverse[index] = i
                return self.call(op, (value, inverse), {}, views_meta.permute(meta, inverse))
            return self.call(
                op, (value, *args), kw, views_meta.t(meta) if name == "aten::t" else views_meta.transpose(meta, *args)
            )
        if name in ("aten::view_as_real", "aten::view_as_complex"):
            meta = value.meta["val"]
            meta = TensorMeta(meta.shape, views_meta.contiguous_strides(meta.shape), meta.dtype, meta.device)
            value = self.call(aten.clone.default, (value,), {"memory_format": torch.contiguous_format}, meta)
            if name == "aten::view_as_real":
                return self.call(aten.view_as_complex.default, (value,), {}, views_meta.view_as_complex(meta))
            return self.call(aten.view_as_real.default, (value,), {}, views_meta.view_as_real(meta))
        scatter = _SCATTER.get(name)
        if scatter is not None:
            return self.call(scatter, (parent, value, *args), kw, fresh)
        if step.meta.dtype != pm.dtype:
            raise NotImplementedError(f"a write through {name} of another dtype")
        off = maybe_int(as_expr(step.meta.storage_offset) - as_expr(pm.storage_offset))
        if parent.meta["val"].stride != pm.stride or gives_views(parent.target):
            parent = self.call(aten.clone.default, (parent,), {}, pm.replace(storage_offset=0))
        return self.call(
            aten.as_strided_scatter.default,
            (parent, value, list(step.meta.shape), list(step.meta.stride), off),
            {},
            pm.replace(storage_offset=0),
        )

    # ---- the end
    def finish(self, values: tuple, inputs: list, name: str = "graph") -> AtenGraph:
        """Close the graph: `values` are what the captured graph returns."""
        results: list[torch.fx.Node] = []
        slots: dict[int, int] = {}
        handed_out = {value.input for value in values if isinstance(value, NewValue)}

        def slot(alias: _Alias) -> int:
            """The result that holds the memory whose root is `alias`, in the layout that eager gives it."""
            key = id(alias.memory)
            if key not in slots:
                node = self._laid_out(self._value(alias), alias.meta, alias.memory.constant)
                if any(results[slot] is node for slot in slots.values()):  # copied there from another result's memory
                    node = self._copied(node, alias.meta)
                slots[key] = len(results)
                results.append(node)
            return slots[key]

        counting = self._counting(values)
        outputs = [self._output(value, slot, counting) for value in values]
        mutations = []
        no_overlap = []
        writes = {}
        for alias in {id(alias.memory): alias.memory for alias in self.aliases.values()}.values():
            if alias.input is not None and alias.written:
                no_overlap.append(alias.input)
                writes[alias.input] = self._changes(alias, alias.root.tensor if alias.root is not None else None)
                if alias.input not in handed_out:
                    mutations.append((alias.input, len(results)))
                    results.append(self._value(alias.root))
        self.where = {}
        self.graph.create_node("output", "output", (tuple(results),), {}, name="output")
        return AtenGraph(
            graph=self.graph,
            inputs=inputs,
            plan=outputs,
            mutation_slots=sorted(mutations),
            env=self.env,
            constants=self.constants,
            no_overlap=sorted(no_overlap),
            name=name,
            writes=writes,
            own_writes=self._own_writes(values),
        )

    def _own_writes(self, values: tuple) -> tuple[OwnWrite, ...]:
        """What operators of the program's write: of each piece of memory that has results, in the first of those that
        count its changes."""
        found: dict[tuple[int, Form, str, int], OwnWrite] = {}
        for memory in {id(alias.memory): alias.memory for alias in self.aliases.values()}.values():
            for k, (tensor, form, name) in enumerate(memory.own_writes):
                if memory.input is not None:
                    root = memory.root.tensor if memory.root is not None else None
                    if root is None or counted_with(tensor, root):
                        found[id(memory), form, name, k] = OwnWrite(True, memory.input, form, name)
                    continue
                for position, value in enumerate(values):
                    if (
                        isinstance(value, TraceTensor)
                        and self.alias_of(value).memory is memory
                        and counted_with(tensor, value)
                    ):
                        found[id(memory), form, name, k] = OwnWrite(False, position, form, name)
                        break
        return tuple(found.values())

    def _laid_out(self, node: torch.fx.Node, meta: TensorMeta, constant: bool) -> torch.fx.Node:
        """A result node in memory of its own with eager's strides."""
        val = node.meta["val"]
        own = is_call(node) and not gives_views(node.target)
        if own and all(map(self._equal, val.stride, meta.stride)):
            return node
        if own and not constant and node.target is aten.clone.default and len(node.users) == 0:
            node.meta["val"] = meta.replace(storage_offset=0, requires_grad=False)
            return node
        return self._copied(node, meta)

    def _copied(self, node: torch.fx.Node, meta: TensorMeta) -> torch.fx.Node:
        return self.call(aten.clone.default, (node,), {}, meta.replace(storage_offset=0, requires_grad=False))

    def _counting(self, values: tuple) -> dict[int, torch.Tensor]:
        """Of each piece of memory that has results, one by whose version they count its changes. Those of some `x.data`
        count their own, which entries see to (capture/entry)."""
        found: dict[int, torch.Tensor] = {}
        for value in values:
            if isinstance(value, TraceTensor):
                memory = self.alias_of(value).memory
                root = memory.root.tensor if memory.root is not None else None
                if id(memory) not in found or root is not None and counted_with(value, root):
                    found[id(memory)] = value
        return found

    def _changes(self, memory: _Memory, tensor: Any) -> int:
        """How often autograd counts a tensor as changed. It doesn't count what is written through `x.data`."""
        return tensor._version if isinstance(tensor, TraceTensor) and not tensor.is_inference() else memory.version

    def _equal(self, one: Any, other: Any) -> bool:
        return self._holds(eq(as_expr(one), as_expr(other)))

    def _output(self, value: Any, slot: Any, counting: dict[int, torch.Tensor]) -> GraphOutput:
        if isinstance(value, NewValue):
            root = next(alias.memory.root for alias in self.aliases.values() if alias.memory.input == value.input)
            return GraphOutput("buffer", slot(root), root.meta.replace(storage_offset=0, requires_grad=True))
        if isinstance(value, torch.Tensor):
            alias = self.alias_of(value)
            meta = tensor_meta(value)
            memory = alias.memory
            if isinstance(value, TraceTensor) and conjugates.has_bits(value):
                raise NotImplementedError("a graph gives a conjugate or negative view")
            same = not isinstance(value, TraceTensor) or counted_with(value, counting[id(memory)])
            # (tensors of inference mode have no version)
            changes = self._changes(memory, value) if same and not value.is_inference() else 0
            if alias.parent is None:
                if memory.input is not None:
                    same_object = (
                        alias.tensor is value or id(value) in self.aliases and self.aliases[id(value)].tensor is value
                    )
                    if same_object:
                        return GraphOutput("input", memory.input, meta)
                    return GraphOutput("view", ("input", memory.input), meta.replace(storage_offset=0))
                s = slot(alias)
                if alias.tensor is not value and not memory.constant and self._seen_other(alias, value):
                    rel = meta.replace(storage_offset=0)
                    return GraphOutput("view", ("node", s), rel, changes, not value._is_view())
                return GraphOutput("buffer", s, meta, changes)
            root = memory.root
            # in elements of this view
            begin = as_expr(root.meta.storage_offset) * root.meta.dtype.itemsize // meta.dtype.itemsize
            offset = maybe_int(as_expr(meta.storage_offset) - begin)
            rel = meta.replace(storage_offset=offset)
            if memory.input is not None:
                return GraphOutput("view", ("input", memory.input), rel)
            return GraphOutput("view", ("node", slot(root)), rel, changes, not value._is_view())
        if isinstance(value, torch.SymInt):
            return GraphOutput("int", maybe_int(self.env.to_expr(value)))
        if type(value) is int:
            return GraphOutput("int", value)
        if isinstance(value, Expr):
            return GraphOutput("int", maybe_int(value))
        if isinstance(value, torch.SymBool):
            value = bool(value)
        if isinstance(value, torch.SymFloat):
            value = float(value.node.guard_float("", 0))
        return GraphOutput("const", value)

    def _seen_other(self, alias: _Alias, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is another object (a detach, an alias) on the same memory than the one that made it."""
        return alias.tensor is not None and alias.tensor is not tensor


def _bytes_of(meta: TensorMeta) -> tuple[Expr, Expr]:
    """Where a tensor without gaps begins and ends in its memory."""
    begin, elements = as_expr(meta.storage_offset) * meta.dtype.itemsize, as_expr(1)
    for size in meta.shape:
        elements = elements * as_expr(size)
    return begin, begin + elements * meta.dtype.itemsize


def _one_of_list(step: _Alias) -> tuple[Any, tuple]:
    """One result of split, chunk or unbind as a slice or select of the parent."""
    name = step.op._schema.name
    pm, index = step.parent.meta, step.index
    dim = step.args[1] if len(step.args) > 1 else step.kwargs.get("dim", 0)
    if name == "aten::unbind":
        dim = step.args[0] if step.args else step.kwargs.get("dim", 0)
        return aten.select.int, (dim, index)
    d = dim + len(pm.shape) if dim < 0 else dim
    sizes = step.args[0] if step.args else step.kwargs.get("split_size", step.kwargs.get("split_sizes"))
    if isinstance(sizes, (list, tuple)):
        start: Any = 0
        for size in sizes[:index]:
            start = fold(start + size)
    else:
        start = fold(sizes * index)
    return aten.slice.Tensor, (d, start, fold(start + step.meta.shape[d]))


def _name_of(op: Any) -> str:
    if (form := form_of(op)) is not None:
        op = form.op
    return op._schema.name.partition("::")[2].strip("_") if isinstance(op, torch._ops.OpOverload) else "item"


_ALIASES = frozenset({aten.alias.default, aten.detach.default, aten.lift_fresh.default})
_SCATTER = {
    "aten::slice": aten.slice_scatter.default,
    "aten::select": aten.select_scatter.default,
    "aten::diagonal": aten.diagonal_scatter.default,
}
