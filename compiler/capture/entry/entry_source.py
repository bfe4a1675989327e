"""The entry's text: loads, the graph, the effects in order, and the value that is returned (or the call that goes
on).
"""

from __future__ import annotations

import enum
import math
import types
from typing import TYPE_CHECKING, Any, Sequence

import torch

from ...guards.source import Source, step_text
from ...guards.weak import Weak
from ...base.quoting import identifier, is_plain_name
from ...symbolic.expr import Expr
from ..numbers.random_draws import generator_states, restore_generators
from ..numbers.float_node import FloatNode
from .cache_asks import write_asks
from .effects import Effect
from .made_values import make
from ..breaks.failing import Keeping
from ..machine.exceptions import calling_code, traceback_at
from ..numbers.late_text import Given, Made
from ..numbers.tensor_reads import Read, is_read
from ..machine.signals import Unrebuildable
from ..tensors.bit_views import record_flipped
from ..tensors.tensor_subclasses import Subclassed
from ..library.training import freed_result, name_of_node, without_history
from ...graph.tensor import TraceTensor, counted_with
from ...ops.conjugates import has_bits, view_with_bits
from ..machine.stack_values import ATOMS, BOUND_NATIVE, MISSING, has_owner, specialize

if TYPE_CHECKING:
    from .locations import Position
    from ..machine.frame import GlobalScope
    from ..machine.machine import Machine

__all__ = ["EntryWriter"]

_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)


def _own_setattr(cls: type) -> bool:
    """Whether the class sets attributes by a Python function of its own."""
    setter = cls.__setattr__
    return isinstance(setter, types.FunctionType) and setter is not torch.nn.Module.__setattr__


def counted_apart(tensor: torch.Tensor, version: int, view: bool, beside: torch.Tensor | None = None) -> torch.Tensor:
    """A result of the graph as a tensor of `x.data`, changed so often, or a view of it. `beside`: one of the same."""
    if beside is not None and beside.dtype is tensor.dtype:
        tensor = beside.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return tensor if view else tensor.detach()
    tensor = tensor.data
    if version:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
    return tensor.view_as(tensor) if view else tensor


def _may_raise(step: Source) -> bool:
    return step.kind in ("computed", "cached") or step.kind == "scalar" and step.key[2]


class EntryWriter:
    """Collects the lines of one entry. Values are made again from what the entry has: sources, constants, graph
    outputs.
    """

    def __init__(self, machine: Machine, params: Sequence[str]):
        self.machine, self.params = machine, params
        self.namespace: dict[str, Any] = {}
        self.loads: list[str] = []  # before the graph
        self.computed: list[str] = []  # after those: they may raise what the program raises
        self.body: list[str] = []  # after it
        self.outputs: list[Any] = []  # values that the graph must give
        self._output_names: dict[Any, str] = {}
        self._source_names: dict[Source, str] = {}
        self.made: dict[int, str] = {}  # inside objects that have a name already
        self.making: set[int] = set()
        self.waiting: dict[int, list[str]] = {}  # objects that are being made -> cells that are to hold them
        self._count = 0
        self._const_names: dict[int, str] = {}
        self._tracebacks: dict[tuple, types.TracebackType | None] = {}
        self._noted: set[int] = set()  # tensors made inside whose own attributes are set
        self.kept: list[Any] = []
        self._apart: dict[int, str] = {}  # what `x.data` gave -> a result that counts its changes
        self.returns = False  # whether nothing of the frame is left after this
        self.gone_through: list[tuple[list, Unrebuildable]] = []
        write_asks(self)
        for source in machine.world.draws:  # each once, in order, whether or not it is used
            self.load(source)

    # --- names
    def fresh(self, prefix: str = "__t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, obj: Any, hint: str = "") -> str:
        """A name in the entry's namespace."""
        name = self._const_names.get(id(obj))
        if name is None:
            hint = hint or getattr(obj, "__name__", "") or type(obj).__name__
            base = "__c_" + identifier(hint)
            name, k = base, 1
            while name in self.namespace:
                k += 1
                name = f"{base}_{k}"
            self.namespace[name] = obj
            self._const_names[id(obj)] = name
        return name

    def traceback(self, trail: Sequence[Position]) -> str:
        """One object for exceptions that passed the same places, as a group and its parts have one."""
        made = self._tracebacks.get(tuple(trail))
        if made is None:
            made = self._tracebacks[tuple(trail)] = traceback_at(trail)
        return self.constant(made, "traceback")

    def given(self, v: Any) -> str:
        """A value that the entry has before anything is made: an object from outside, or a constant."""
        source = self.machine.world.sources.get(id(v)) if type(v) not in ATOMS else None
        return self.constant(v) if source is None else self.load(source)

    def load(self, source: Source) -> str:
        """A variable that holds what the source gives when the entry starts."""
        name = self._source_names.get(source)
        if name is not None:
            return name
        if source.kind == "const":
            name = self.constant(source.held, getattr(source.key, "__name__", ""))
            if type(source.held) is Weak:
                held, name = name, self.fresh("__s")
                self.loads.append(f"{name} = {held}()")
        elif source.kind == "local":
            name = self.params[source.key[0]]
        else:
            text = self.step(source)
            name = self.fresh("__s")
            (self.computed if any(map(_may_raise, source.path())) else self.loads).append(f"{name} = {text}")
        self._source_names[source] = name
        return name

    def name_source(self, source: Source) -> str:
        """The variable that is to hold what a source gives."""
        name = self._source_names[source] = self.fresh("__s")
        return name

    def step(self, source: Source) -> str:
        """The expression for one step of a path, over the variable of its base."""
        if source.kind == "ratio":
            return f"{self._integer(source.key[0])} / {self._integer(source.key[1])}"
        if source.kind == "computed":
            return f"{self.constant(source.key[0])}({', '.join(self._operand(o) for o in source.key[1])})"
        if source.base is None:
            return source.code("__fn", self.namespace)
        base = self.load(source.base)
        kind, key = source.kind, source.key
        if kind == "attr":
            owner = self.machine.world.loaded.get(source.base)
            if owner is None and source.base.kind == "const":
                owner = source.base.key
            if isinstance(owner, torch.nn.Module):
                for table in ("_parameters", "_buffers", "_modules"):  # past Module.__getattr__, which is slow
                    if key in owner.__dict__.get(table, ()) and key not in owner.__dict__:
                        return f"{base}.{table}[{key!r}]"
            return f"{base}.{key}" if is_plain_name(key) else f"getattr({base}, {key!r})"
        if kind in ("item", "dict"):
            plain = isinstance(key, (str, int, bool, bytes, type(None))) and not isinstance(key, enum.Enum)
            subscript = repr(key) if plain else self.constant(key, "key")
            owner = self.machine.world.loaded.get(source.base)
            native = next((b for b in (list, tuple, dict) if isinstance(owner, b)), None)
            if native is not None and type(owner).__getitem__ is not native.__getitem__:
                # past what a subclass overrides
                return f"{native.__name__}.__getitem__({base}, {subscript})"
            return f"{base}[{subscript}]"
        return step_text(kind, base, key, self.constant)

    def line(self, text: str) -> None:
        self.body.append(text)

    def assign(self, value: Any, text: str) -> str:
        name = self.fresh()
        self.line(f"{name} = {text}")
        self.made[id(value)] = name
        self.kept.append(value)
        return name

    # --- values
    def value(self, v: Any) -> str:
        """An expression for a stack value. Raises Unrebuildable."""
        cls = type(v)
        if cls in ATOMS:
            return self._atom(v)
        if cls is TraceTensor:
            return self._tensor(v)
        if isinstance(v, _SYMBOLIC):
            return self._symbolic(v)
        source = self.machine.world.sources.get(id(v))
        if source is not None:
            return self.load(source)
        name = self.made.get(id(v))
        if name is not None:
            return name
        real = self.machine.world.shadowed.get(id(v))
        if real is not None:  # an iterator over an outside container goes on over that container
            return self.value(real)
        if id(v) in self.making:
            raise Unrebuildable(v, f"a {cls.__name__} that contains itself")
        self.making.add(id(v))
        try:
            text = make(self, v)
        finally:
            self.making.discard(id(v))
        for cell in self.waiting.pop(id(v), ()):
            self.line(f"{cell}.cell_contents = {text}")
        return text

    def _atom(self, v: Any) -> str:
        if v is None or v is True or v is False or v is ...:
            return repr(v)
        if type(v) is float:
            if math.isinf(v) or math.isnan(v):
                return f"float('{v!r}')"
            return repr(v)
        if type(v) in (int, str, bytes):
            return repr(v)
        if type(v) is torch.dtype:
            return self.constant(v, repr(v).replace("torch.", ""))
        self.kept.append(v)
        return self.constant(v)

    def _tensor(self, v: TraceTensor) -> str:
        world = self.machine.world
        real = world.reals.get(id(v))
        if real is not None:
            return self.load(world.sources[id(real)])
        own = world.pending.get(id(v), {})
        if "grad" in own:
            raise Unrebuildable(v, "a leaf that was made inside and has a gradient")
        name = self._made_tensor(v)
        if own and id(v) not in self._noted:
            self._noted.add(id(v))
            for key, value in own.items():
                self.line(f"setattr({name}, {key!r}, {self.value(value)})")
        return name

    def _made_tensor(self, v: TraceTensor) -> str:
        choice = self.machine.choices.get(id(v))
        if choice is not None:
            name = self.made.get(id(v))
            if name is None:
                new, old = self.value(choice.new), self.value(choice.old)
                name = self.assign(v, f"{new} if {self._output(choice.condition)}.item() else {old}")
            return name
        error = self.machine.passes.error_of(v)
        if error is not None:
            return self.made.get(id(v)) or self.assign(
                v,
                f"{self.constant(freed_result)}({self._output(without_history(self.machine, v))},"
                f" {self.constant(error, 'error')}, {name_of_node(v)!r})",
            )
        if has_bits(v):
            return self.made.get(id(v)) or self._with_bits(v)
        if v.requires_grad:
            return self._output(v)
        data = next((d for d in self.machine.graph.apart if d.tt_storage is v.tt_storage and counted_with(v, d)), None)
        if data is None and not self._is_no_view_of_an_input(v):
            return self._output(v)
        name = self.made.get(id(v))
        if name is not None:
            return name
        if data is None:
            return self.assign(v, f"{self._output(v)}.detach()")
        before = self._apart.get(id(data))
        if v.is_inference():
            return self.assign(v, f"{self._output(v)}.data")
        name = self.assign(
            v, f"{self.constant(counted_apart)}({self._output(v)}, {v._version}, {v._is_view()}, {before})"
        )
        self._apart.setdefault(id(data), name)
        return name

    def _with_bits(self, v: TraceTensor) -> str:
        """A conjugate or negative view, of a result of the graph in its memory."""
        memory = record_flipped(self.machine, v, v.is_conj(), v.is_neg(), v.grad_fn is not None)
        bits = f"{v.is_conj()}, {v.is_neg()}, {v.grad_fn is not None}, {v._is_view()}"
        return self.assign(v, f"{self.constant(view_with_bits)}({self._tensor(memory)}, {bits})")

    def _is_no_view_of_an_input(self, v: TraceTensor) -> bool:
        """Whether a result lies in an input's memory and is no view of it to autograd: graphs give views of inputs. (A
        view of one that requires grad requires it, too, under no_grad as well.)"""
        return any(
            type(tensor) is TraceTensor
            and tensor.tt_storage is v.tt_storage
            and (tensor.requires_grad or not v._is_view())
            for tensor in self.machine.world.tensors.values()
        )

    def _output(self, v: Any) -> str:
        if type(v) is TraceTensor and v.tt_wrapper is not None:
            raise Unrebuildable(v, "the value of a tensor of a wrapper subclass")
        node = self.machine.graph.arg(v)
        name = self._output_names.get(node)
        if name is None:
            name = self._output_names[node] = f"__g{len(self.outputs)}"
            self.outputs.append(v)
        return name

    def _read(self, node: Read) -> str:
        """A number that the graph's results hold."""
        if node.tensor is None:
            assert node.function is not None
            return f"{self.constant(node.function)}({self.sequence(node.operands)})"
        if not node.path:
            return f"{self._output(node.tensor)}.item()"
        held = self.made.get(id(node.tensor)) or self.assign(node.tensor, f"{self._output(node.tensor)}.tolist()")
        return held + "".join(f"[{i}]" for i in node.path)

    def _symbolic(self, v: Any) -> str:
        if is_read(v):
            return self.made.get(id(v.node)) or self.assign(v.node, self._read(v.node))
        if isinstance(v, torch.SymFloat) and isinstance(v.node, FloatNode):
            return self.load(v.node.source)
        if not isinstance(v, torch.SymInt):
            return repr(specialize(v))
        if v.node.is_nested_int():
            raise Unrebuildable(v, "the length of a jagged dimension")
        return self._integer(self.machine.env.to_expr(v))

    def _operand(self, operand: Any) -> str:
        if isinstance(operand, Source):
            return self.load(operand)
        return self._integer(operand) if isinstance(operand, Expr) else self._atom(operand)

    def _integer(self, expr: Expr) -> str:
        """Over variables that hold the symbols."""
        names = {}
        for symbol in sorted(expr.symbol_names()):
            names[symbol] = self.load(self.machine.env.sources[symbol])
        text = expr.py()
        if names:
            import re

            text = re.sub(r"[A-Za-z_]\w*", lambda w: names.get(w.group(), w.group()), text)
        return f"({text})"

    def text_part(self, made: str | Made | Given) -> str:
        if type(made) is str:
            return repr(made)
        if type(made) is Given:
            return self.load(made.source)
        assert type(made) is Made
        named = f", **{self.value(made.kwargs)}" if made.kwargs else ""
        return f"{self.constant(made.function)}({self.sequence(made.args)}{named})"

    def stack_value(self, v: Any) -> str:
        """As `value`, for the operand stack at a break: there a bound native method is only going to be called, and
        guards of the resume function can look into a MethodType."""
        cls = type(v)
        source = self.machine.world.sources.get(id(v))
        # random.random: a method of an object that nothing else names
        fixed = source is not None and source.root.kind == "const"
        if source is not None and cls in BOUND_NATIVE and self.machine.world.source_of(v.__self__) is None:
            return self.load(source)  # its owner is another at the next call
        if cls in BOUND_NATIVE and not fixed and has_owner(v) and type(v.__self__) is not TraceTensor:
            descriptor = getattr(type(v.__self__), v.__name__, None)
            if type(descriptor) in (types.MethodDescriptorType, types.WrapperDescriptorType):
                return f"{self.constant(types.MethodType)}({self.constant(descriptor)}, {self.value(v.__self__)})"
        return self.value(v)

    def sequence(self, items: Any) -> str:
        return ", ".join(self.value(item) for item in items)

    def result(self, value: Any) -> None:
        """The last line: what the function returns."""
        self.returns = True
        self.line(f"return {self.value(value)}")
        for items, refusal in self.gone_through:
            if id(items) in self.made:
                raise refusal

    # --- effects
    def effect(self, e: Effect) -> None:
        kind = e.kind
        if kind == "setattr":
            target = self.value(e.target)
            if type(e.target) is Subclassed or _own_setattr(type(e.target)):
                # it ran already, while captured: what it did at last is to be done
                base = self.constant(torch.nn.Module) if isinstance(e.target, torch.nn.Module) else "object"
                self.line(f"{base}.__setattr__({target}, {e.name!r}, {self.value(e.value)})")
            elif is_plain_name(e.name):
                self.line(f"{target}.{e.name} = {self.value(e.value)}")
            else:
                self.line(f"setattr({target}, {e.name!r}, {self.value(e.value)})")
        elif kind == "delattr":
            target = self.value(e.target)
            if isinstance(type(e.target).__delattr__, types.FunctionType) and not isinstance(e.target, torch.nn.Module):
                self.line(f"object.__delattr__({target}, {e.name!r})")
            else:
                self.line(f"del {target}.{e.name}" if is_plain_name(e.name) else f"delattr({target}, {e.name!r})")
        elif kind in ("global", "delglobal"):
            space = self.globals_of(e.target)
            if kind == "global":
                self.line(f"{space}[{e.name!r}] = {self.value(e.value)}")
            else:
                self.line(f"del {space}[{e.name!r}]")
        elif kind == "cell":
            cell = self.value(e.target)
            if e.value is MISSING:
                self.line(f"del {cell}.cell_contents")
            else:
                self.line(f"{cell}.cell_contents = {self.value(e.value)}")
        elif kind == "method":
            target, base = self.value(e.target), e.base
            assert base is not None
            if e.name == "__setitem__":
                self.line(
                    f"{self._base(base)}.__setitem__({target}, {self.value(e.args[0])}, {self.value(e.args[1])})"
                    if type(e.target) is not base
                    else f"{target}[{self.value(e.args[0])}] = {self.value(e.args[1])}"
                )
            elif e.name == "__delitem__":
                self.line(
                    f"del {target}[{self.value(e.args[0])}]"
                    if type(e.target) is base
                    else f"{self._base(base)}.__delitem__({target}, {self.value(e.args[0])})"
                )
            elif type(e.target) is base:
                self.line(f"{target}.{e.name}({self._arguments(e)})")
            else:
                self.line(f"{self._base(base)}.{e.name}({target}, {self._arguments(e)})")
        else:
            opening = "(" if not e.places else ", " if e.args or e.kwargs else ""
            self.line(f"{self._at(e)}{self.value(e.target)}{opening}{self._arguments(e)})")

    def _at(self, e: Effect) -> str:
        """The beginning of a call that passes through stand-ins for the frames that the program called from."""
        frames = [
            f"{self.constant(types.FunctionType)}({self.constant(calling_code(position), 'calling_code')},"
            f" {self.globals_of(scope)})"
            for position, scope in e.places
        ]
        return f"{frames[0]}({''.join(frame + ', ' for frame in frames[1:])}" if frames else ""

    def globals_of(self, scope: GlobalScope) -> str:
        return "__fn.__globals__" if scope.root else self.constant(scope.namespace, "globals")

    def _base(self, base: type) -> str:
        return base.__name__ if base.__module__ == "builtins" else self.constant(base)

    def _arguments(self, e: Effect) -> str:
        named = [f"{name}={self.value(item)}" for name, item in e.kwargs.items() if is_plain_name(name)]
        odd = ", ".join(f"{name!r}: {self.value(item)}" for name, item in e.kwargs.items() if not is_plain_name(name))
        return ", ".join([self.value(arg) for arg in e.args] + named + ([f"**{{{odd}}}"] if odd else []))

    # --- the whole
    def text(
        self,
        graph_inputs: Sequence[Source | None],
        has_graph: bool,
        keeping: Keeping = Keeping(),
        modes: str | None = None,
        name: str = "graph_0",
    ) -> str:
        """The entry's source. `graph_inputs` are the sources of the graph's placeholders, in order; `keeping` what
        failing.keeping gave, `modes` what failing.changes_modes gave."""
        arguments = (
            [self.load(graph_input) for graph_input in graph_inputs if graph_input is not None] if has_graph else []
        )
        lines = [f"def entry(__fn{''.join(', ' + param for param in self.params)}):"]
        draws = self.machine.world.draws
        if draws:
            lines.append(f"    __generators = {self.constant(generator_states)}()")
        lines += [f"    {text}" for text in self.loads]
        if not has_graph and not self.computed:
            return "\n".join([*lines, *(f"    {text}" for text in self.body)]) + "\n"
        outs = ", ".join(f"__g{i}" for i in range(len(self.outputs)))
        assign = f"{outs}{',' if len(self.outputs) == 1 else ''} = " if self.outputs else ""
        if keeping:
            copied, watched = (
                "".join(arguments[position] + ", " for position in positions)
                for positions in (keeping.copied, keeping.watched)
            )
            lines.append(f"    __kept = __keep(({copied}), ({watched}), {keeping.random})")
        back = f"        {'__set_grad_enabled(__modes)' if modes == 'grad' else '__modes.restore()'}"
        if modes:
            lines.append("    __modes = " + ("__grad_enabled()" if modes == "grad" else "__TorchModes()"))
        call = [f"        {assign}{name}({', '.join(arguments)})"] if has_graph else []
        lines += [
            "    try:",
            *(f"        {text}" for text in self.computed),
            *call,
            "    except Exception as __e:",
            "        __error = [__e]",
            *([back, "    except BaseException:", back, "        raise"] if modes else []),
            "    else:",
        ]
        lines += [f"        {text}" for text in self.body]
        if keeping:
            lines.append("    __give_back(__error[0], __kept)")
        if draws:
            lines.append(f"    {self.constant(restore_generators)}(__generators)")
        lines.append(f"    return __failed(__error.pop(), __fn, ({''.join(param + ', ' for param in self.params)}))")
        return "\n".join(lines) + "\n"
