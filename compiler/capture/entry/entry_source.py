"""The entry's text: loads, the graph, the effects in order, and the value that is returned (or the call that goes
on).
"""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import gc
import itertools
import math
import operator
import pathlib
import types
import weakref
from typing import TYPE_CHECKING, Any, Sequence

import torch

from ...guards.source import Source, asked_text, plain_text, array_text, calc_text, optimizer_state_text, scalar_text
from ...guards.weak import Weak
from ...base.quoting import identifier, is_plain_name
from ...symbolic.expr import Expr
from ..arrays.array_value import Array
from ..numbers.random_draws import generator_states, restore_generators
from ..numbers.float_node import FloatNode
from ..bytecode.splice import UNBOUND
from ..kinds.caches import asked_again
from ..library import polyfills
from .effects import Effect
from ..breaks.failing import Keeping
from ..machine.exceptions import calling_code, traceback_at
from ..machine.generators import InlineGenerator, PythonIterator
from ..numbers.late_text import Given, LateText, Made
from ..numbers.tensor_reads import Read, is_read
from ..kinds.outside_iterators import OutsideIterator
from ..machine.signals import Break, Unrebuildable
from ..tensors.tensor_subclasses import Subclassed
from ..library.training import freed_result, without_history
from ...graph.tensor import TraceTensor
from ..machine.stack_values import ATOMS, BOUND_NATIVE, IMMUTABLE, MISSING, is_numpy_constant, native_owner, specialize

if TYPE_CHECKING:
    from ..machine.frame import GlobalScope
    from ..machine.machine import Machine

__all__ = ["EntryWriter"]

_MOST_TOTALS = 1000  # sums of an itertools.accumulate that are computed before anybody asks
_SYMBOLIC = (torch.SymInt, torch.SymBool, torch.SymFloat)
_REDUCED = (
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    type(iter({})),
    type(iter("")),
    zip,
    enumerate,
    reversed,
    type(reversed([])),
    type(iter({}.items())),
    type(iter({}.values())),
    type(iter(set())),
    map,
    filter,
    itertools.repeat,
    itertools.count,
    itertools.compress,
    itertools.chain,
    itertools.islice,
    itertools.takewhile,
    itertools.dropwhile,
    itertools.filterfalse,
    itertools.zip_longest,
    itertools.product,
    itertools.permutations,
    itertools.combinations,
    itertools.combinations_with_replacement,
)
_NATIVE_CONTENT = frozenset(
    (
        object,
        types.SimpleNamespace,
        collections.OrderedDict,
        collections.defaultdict,
        dict,
        list,
        set,
        int,
        str,
        float,
        bytes,
        frozenset,
    )
)


def _own_setattr(t: type) -> bool:
    """Whether the class sets attributes by a Python function of its own."""
    setter = t.__setattr__
    return isinstance(setter, types.FunctionType) and setter is not torch.nn.Module.__setattr__


def _may_raise(step: Source) -> bool:
    return step.kind == "computed" or step.kind == "scalar" and step.key[2]


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
        self._made: dict[int, str] = {}  # inside objects that have a name already
        self._making: set[int] = set()
        self._waiting: dict[int, list[str]] = {}  # objects that are being made -> cells that are to hold them
        self._count = 0
        self._const_names: dict[int, str] = {}
        self._keep: list[Any] = []
        self.returns = False  # whether nothing of the frame is left after this
        self.gone_through: list[tuple[list, Unrebuildable]] = []
        for fn, args, kwargs, value in machine.cached:
            given = [self._given(v) for v in (fn, value, *args)] + [f"{k}={self._given(v)}" for k, v in kwargs.items()]
            self.computed.append(f"{self.constant(asked_again)}({', '.join(given)})")
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

    def _given(self, v: Any) -> str:
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
            if (
                native is not None and type(owner).__getitem__ is not native.__getitem__
            ):  # past what a subclass overrides
                return f"{native.__name__}.__getitem__({base}, {subscript})"
            return f"{base}[{subscript}]"
        if kind == "calc":
            return calc_text(base, key, self.constant)
        if kind == "scalar":
            return scalar_text(base, key, self.constant)
        if kind == "array":
            return array_text(base, self.constant)
        if kind == "plain":
            return plain_text(base, self.constant)
        if kind == "asked":
            return asked_text(base, key, self.constant)
        if kind == "optimized":
            return optimizer_state_text(base, key)
        return {
            "type": f"type({base})",
            "cell": f"{base}.cell_contents",
            "default": f"{base}.__defaults__[{key}]",
            "kwdefault": f"{base}.__kwdefaults__[{key!r}]",
            "size": f"{base}.shape[{key}]",
            "stride": f"{base}.stride({key})",
            "offset": f"{base}.storage_offset()",
        }[kind]

    def line(self, text: str) -> None:
        self.body.append(text)

    def assign(self, value: Any, text: str) -> str:
        name = self.fresh()
        self.line(f"{name} = {text}")
        self._made[id(value)] = name
        self._keep.append(value)
        return name

    # --- values
    def value(self, v: Any) -> str:
        """An expression for a stack value. Raises Unrebuildable."""
        t = type(v)
        if t in ATOMS:
            return self._atom(v)
        if t is TraceTensor:
            return self._tensor(v)
        if isinstance(v, _SYMBOLIC):
            return self._symbolic(v)
        source = self.machine.world.sources.get(id(v))
        if source is not None:
            return self.load(source)
        name = self._made.get(id(v))
        if name is not None:
            return name
        real = self.machine.world.shadowed.get(id(v))
        if real is not None:  # an iterator over an outside container goes on over that container
            return self.value(real)
        if id(v) in self._making:
            raise Unrebuildable(v, f"a {t.__name__} that contains itself")
        self._making.add(id(v))
        try:
            text = self._make(v, t)
        finally:
            self._making.discard(id(v))
        for cell in self._waiting.pop(id(v), ()):
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
        self._keep.append(v)
        return self.constant(v)

    def _tensor(self, v: TraceTensor) -> str:
        world = self.machine.world
        real = world.reals.get(id(v))
        if real is not None:
            return self.load(world.sources[id(real)])
        if "grad" in world.pending.get(id(v), ()):
            raise Unrebuildable(v, "a leaf that was made inside and has a gradient")
        choice = self.machine.choices.get(id(v))
        if choice is not None:
            name = self._made.get(id(v))
            if name is None:
                new, old = self.value(choice.new), self.value(choice.old)
                name = self.assign(v, f"{new} if {self._output(choice.condition)}.item() else {old}")
            return name
        error = self.machine.passes.error_of(v)
        if error is not None:
            return self._made.get(id(v)) or self.assign(
                v,
                f"{self.constant(freed_result)}({self._output(without_history(self.machine, v))},"
                f" {self.constant(error, 'error')})",
            )
        if self._is_detached(v):
            return self._made.get(id(v)) or self.assign(v, f"{self._output(v)}.detach()")
        return self._output(v)

    def _is_detached(self, v: TraceTensor) -> bool:
        """Whether a result lies in an input's memory and is no view of it to autograd: graphs give views of inputs."""
        if v.requires_grad or v._is_view():
            return False
        return any(type(t) is TraceTensor and t.tt_storage is v.tt_storage for t in self.machine.world.tensors.values())

    def _output(self, v: Any) -> str:
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
        held = self._made.get(id(node.tensor)) or self.assign(node.tensor, f"{self._output(node.tensor)}.tolist()")
        return held + "".join(f"[{i}]" for i in node.path)

    def _symbolic(self, v: Any) -> str:
        if is_read(v):
            return self._made.get(id(v.node)) or self.assign(v.node, self._read(v.node))
        if isinstance(v, torch.SymFloat) and isinstance(v.node, FloatNode):
            return self.load(v.node.source)
        if not isinstance(v, torch.SymInt):
            return repr(specialize(v))
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

    def _text(self, made: str | Made | Given) -> str:
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
        t = type(v)
        source = self.machine.world.sources.get(id(v))
        fixed = (
            source is not None and source.root.kind == "const"
        )  # random.random: a method of an object that nothing else names
        if source is not None and t in BOUND_NATIVE and self.machine.world.source_of(v.__self__) is None:
            return self.load(source)  # its owner is another at the next call
        if t in BOUND_NATIVE and not fixed and self._has_owner(v) and type(v.__self__) is not TraceTensor:
            descriptor = getattr(type(v.__self__), v.__name__, None)
            if type(descriptor) in (types.MethodDescriptorType, types.WrapperDescriptorType):
                return f"{self.constant(types.MethodType)}({self.constant(descriptor)}, {self.value(v.__self__)})"
        return self.value(v)

    def sequence(self, items: Any) -> str:
        return ", ".join(self.value(v) for v in items)

    def _make(self, v: Any, t: type) -> str:
        if t is OutsideIterator:
            return self.value(v.real)
        if t is LateText:
            return self.assign(v, " + ".join(map(self._text, v.parts)) or "''")
        if t is Array:
            if v._source is not None:
                return self.load(v._source)
            name = self.assign(v, f"{self.value(v._tensor)}.numpy(){'[()]' if v._number else ''}")
            if v._fixed:
                self.line(f"{name}.setflags(write=False)")
            return name
        if t is Subclassed:
            name = self.assign(
                v, f"{self.constant(torch.Tensor.as_subclass)}({self.value(v.plain)}, {self._class(v.tensor_class)})"
            )
            for key, x in v.__dict__.items():
                self.line(f"{name}.__dict__[{key!r}] = {self.value(x)}")
            return name
        if t is tuple:
            return self.assign(v, f"({self.sequence(v)}{',' if len(v) == 1 else ''})") if len(v) else "()"
        if t is list:
            return self.assign(v, f"[{self.sequence(v)}]")
        if t is dict:
            return self.assign(v, "{" + ", ".join(f"{self.value(k)}: {self.value(x)}" for k, x in v.items()) + "}")
        if t is set:
            return self.assign(v, "{" + self.sequence(v) + "}" if v else "set()")
        if t is bytearray:
            return self.assign(v, f"bytearray({bytes(v)!r})")
        if t is frozenset:
            return self.assign(v, f"frozenset([{self.sequence(v)}])")
        if v is UNBOUND:
            return self.constant(v, "unbound")
        if t is slice:
            return f"slice({self.value(v.start)}, {self.value(v.stop)}, {self.value(v.step)})"
        if isinstance(v, torch.Size):
            return f"{self.constant(torch.Size)}([{self.sequence(v)}])"
        if isinstance(v, type) and id(v) in self.machine.world.made:
            raise Unrebuildable(v, f"the class {v.__name__}, defined inside")
        if isinstance(
            v,
            (
                type,
                types.ModuleType,
                types.BuiltinFunctionType,
                enum.Enum,
                types.WrapperDescriptorType,
                types.MethodDescriptorType,
                types.CodeType,
                types.GenericAlias,
            ),
        ) and not (isinstance(v, types.BuiltinFunctionType) and self._has_owner(v)):
            self._keep.append(v)
            return self.constant(v)
        if t is types.FunctionType:
            return self.value(v.__dict__["interprets"]) if "interprets" in v.__dict__ else self._function(v)
        if (t is types.MethodType or t in BOUND_NATIVE) and type(v.__self__) in (TraceTensor, Array):
            return self.assign(v, f"{self.value(v.__self__)}.{v.__name__}")
        if t is types.MethodType:
            return self.assign(
                v, f"{self.constant(types.MethodType)}({self.value(v.__func__)}, {self.value(v.__self__)})"
            )
        if t in BOUND_NATIVE:
            return self.assign(v, f"{self.value(v.__self__)}.{v.__name__}")
        if t is types.CellType:
            return self._cell(v)
        if t is weakref.ReferenceType and (target := v()) is not None:
            return self.assign(v, f"{self.constant(weakref.ref)}({self.value(target)})")
        if t is functools.partial:
            return self.assign(
                v,
                f"{self.constant(functools.partial)}({self.value(v.func)}, *{self.value(v.args)},"
                f" **{self.value(v.keywords)})",
            )
        if t is collections.OrderedDict:
            return self.assign(
                v, f"{self.constant(t)}([{', '.join(f'({self.value(k)}, {self.value(x)})' for k, x in v.items())}])"
            )
        if t is collections.defaultdict:
            items = ", ".join(f"({self.value(k)}, {self.value(x)})" for k, x in v.items())
            return self.assign(v, f"{self.constant(t)}({self.value(v.default_factory)}, [{items}])")
        if t is collections.deque:
            return self.assign(v, f"{self.constant(t)}([{self.sequence(v)}], {v.maxlen!r})")
        if isinstance(v, tuple):
            return self._tuple_subclass(v, t)
        if isinstance(v, BaseException):
            return self._exception(v, t)
        if t is super:
            return self.assign(v, f"super({self.value(v.__thisclass__)}, {self.value(v.__self__)})")
        if t in (type({}.keys()), type({}.values()), type({}.items())):
            method = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}[t]
            return self.assign(v, f"{self.value(dict(v.mapping))}.{method}()")
        if id(v) in self.machine.world.class_dicts:  # of a class: what it holds when the entry runs
            return self.assign(v, f"{self.constant(vars)}({self.value(self.machine.world.class_dicts[id(v)])})")
        if t is types.MappingProxyType:
            return self.assign(v, f"{self.constant(t)}({self.value(gc.get_referents(v)[0])})")
        if t in (staticmethod, classmethod):
            return self.assign(v, f"{self.constant(t)}({self.value(v.__func__)})")
        if isinstance(v, _REDUCED):
            return self._iterator(v)
        if t is InlineGenerator and v.frame.code is polyfills.accumulate.__code__:
            return self.assign(
                v,
                f"{self.constant(itertools.accumulate)}([{self.sequence(self._totals(v))}],"
                f" {self.constant(polyfills.latter)})",
            )
        if isinstance(v, (InlineGenerator, PythonIterator)) or id(v) in self.machine.origins:
            raise Unrebuildable(v, f"a {'generator' if t is InlineGenerator else t.__name__}")
        if is_numpy_constant(v):
            self._keep.append(v)
            return self.constant(v)
        if (
            t in (torch.finfo, torch.iinfo, torch.device, operator.itemgetter, operator.attrgetter)
            or t in IMMUTABLE
            or t
            in (
                pathlib.PosixPath,
                pathlib.WindowsPath,
                pathlib.PurePosixPath,
                pathlib.PureWindowsPath,
                datetime.datetime,
                datetime.timezone,
            )
        ):
            self._keep.append(v)
            return self.constant(v)
        return self._instance(v, t)

    def _totals(self, v: InlineGenerator) -> list[Any]:
        """What an itertools.accumulate that leaves the captured part will give. It is computed now, where that has no
        effects and nobody else has the list that it goes through."""
        refusal, before, items = Unrebuildable(v, "an accumulate"), len(self.machine.effects.entries), v.frame.slots[0]
        if type(items) is list and not self.machine.world.is_outside(items) and self.returns:
            self.gone_through.append((items, refusal))
        elif type(items) is not tuple:
            raise refusal
        try:
            totals = list(itertools.islice(v, _MOST_TOTALS + 1))
        except (Exception, Break):
            raise refusal from None
        if len(self.machine.effects.entries) != before or not v.finished:
            raise refusal
        return totals

    def result(self, value: Any) -> None:
        """The last line: what the function returns."""
        self.returns = True
        self.line(f"return {self.value(value)}")
        for items, refusal in self.gone_through:
            if id(items) in self._made:
                raise refusal

    @staticmethod
    def _has_owner(v: Any) -> bool:
        return not isinstance(native_owner(v), (types.ModuleType, type(None), type))

    def _cell(self, v: types.CellType) -> str:
        """A cell made inside; it has its name before its content, which may refer to it."""
        name = self.fresh()
        self.line(f"{name} = {self.constant(types.CellType)}()")
        self._made[id(v)] = name
        self._keep.append(v)
        try:
            content = v.cell_contents
        except ValueError:
            return name
        if id(content) in self._making:  # a function that refers to itself
            self._waiting.setdefault(id(content), []).append(name)
        else:
            self.line(f"{name}.cell_contents = {self.value(content)}")
        return name

    def _function(self, v: types.FunctionType) -> str:
        world = self.machine.world
        if (
            world.sources.get(id(v)) is None
            and v.__module__ is not None
            and not v.__closure__
            and v.__name__ != "<lambda>"
            and "<locals>" not in v.__qualname__
        ):
            self._keep.append(v)
            return self.constant(v)
        space = self._globals(self.machine.scope_of(v.__globals__))
        closure = "None"
        if v.__closure__:
            closure = "(" + "".join(self.value(c) + ", " for c in v.__closure__) + ")"
        defaults = self.value(v.__defaults__) if v.__defaults__ else "None"
        name = self.fresh()
        self._keep.append(v)
        self.line(
            f"{name} = {self.constant(types.FunctionType)}({self.constant(v.__code__, 'code')}, {space},"
            f" {v.__name__!r}, {defaults}, {closure})"
        )
        self._made[id(v)] = name
        self.line(f"{name}.__qualname__ = {v.__qualname__!r}")
        if v.__kwdefaults__:
            self.line(f"{name}.__kwdefaults__ = {self.value(v.__kwdefaults__)}")
        if v.__module__ != v.__globals__.get("__name__"):
            self.line(f"{name}.__module__ = {v.__module__!r}")
        if v.__doc__ != (
            v.__code__.co_consts[0] if v.__code__.co_consts and isinstance(v.__code__.co_consts[0], str) else None
        ):
            self.line(f"{name}.__doc__ = {v.__doc__!r}")
        for key, x in v.__dict__.items():
            self.line(f"{name}.__dict__[{key!r}] = {self.value(x)}")
        return name

    def _tuple_subclass(self, v: Any, t: type) -> str:
        if t.__module__ == "torch.return_types":
            return self.assign(v, f"{self.constant(t)}([{self.sequence(tuple(v))}])")
        return self.assign(
            v, f"tuple.__new__({self.constant(t)}, ({self.sequence(tuple.__iter__(v))}{',' if len(v) == 1 else ''}))"
        )

    def _exception(self, v: BaseException, t: type) -> str:
        cls = self._class(t)
        name = self.assign(v, f"{cls}.__new__({cls}, {self.sequence(v.args)})")
        self.line(f"{name}.args = {self.value(v.args)}")
        for key, x in v.__dict__.items():
            self.line(
                f"{name}.{key} = {self.value(x)}"
                if is_plain_name(key)
                else f"setattr({name}, {key!r}, {self.value(x)})"
            )
        if v.__cause__ is not None:
            self.line(f"{name}.__cause__ = {self.value(v.__cause__)}")
        if v.__suppress_context__:
            self.line(f"{name}.__suppress_context__ = True")
        if v.__context__ is not None:
            self.line(f"{name}.__context__ = {self.value(v.__context__)}")
        trail = self.machine.trails.get(id(v))
        if trail:
            self.line(f"{name}.__traceback__ = {self.constant(traceback_at(trail), 'traceback')}")
        return name

    def _iterator(self, v: Any) -> str:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            parts = v.__reduce__()
        fn, args = parts[0], parts[1]
        name = self.assign(v, f"{self.value(fn)}({self.sequence(args)})")
        if len(parts) > 2 and parts[2] is not None:
            self.line(f"{name}.__setstate__({self.value(parts[2])})")
        return name

    def _class(self, t: type) -> str:
        if id(t) in self.machine.world.made:
            raise Unrebuildable(t, f"an instance of the class {t.__name__}, defined inside")
        return self.constant(t)

    def _instance(self, v: Any, t: type) -> str:
        """An instance of a class written in Python, field by field, without its __init__."""
        native = next(b for b in t.__mro__ if not b.__flags__ & (1 << 9))  # the class of C that holds the content
        if (
            native not in _NATIVE_CONTENT
            or t.__flags__ & (1 << 7)
            or any(
                isinstance(vars(b).get("__new__"), types.BuiltinFunctionType) and b not in _NATIVE_CONTENT
                for b in t.__mro__
            )
        ):
            raise Unrebuildable(v, f"a {t.__module__}.{t.__name__} made inside")
        cls = self._class(t)
        base = next(
            (b for b in (collections.OrderedDict, collections.defaultdict, dict, list, set) if isinstance(v, b)), object
        )
        if base is object and isinstance(v, (int, str, float, bytes, frozenset)):
            kind = next(b for b in (int, str, float, bytes, frozenset) if isinstance(v, b))
            name = self.assign(v, f"{kind.__name__}.__new__({cls}, {self.value(kind(v))})")
        else:
            maker = self.constant(native) if native.__module__ != "builtins" else native.__name__
            name = self.assign(v, f"{maker}.__new__({cls})")
            if base is list:
                self.line(f"list.extend({name}, [{self.sequence(list.__iter__(v))}])")
            elif base is set:
                self.line(f"set.update({name}, [{self.sequence(set.__iter__(v))}])")
            elif base is not object:
                for k in base.__iter__(v):
                    self.line(f"{maker}.__setitem__({name}, {self.value(k)}, {self.value(dict.__getitem__(v, k))})")
        fields = getattr(v, "__dict__", None)
        if fields:
            self.line(f"{name}.__dict__.update({{{', '.join(f'{k!r}: {self.value(x)}' for k, x in fields.items())}}})")
        for owner in t.__mro__:
            slots = owner.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot in ("__dict__", "__weakref__"):
                    continue
                mangled = (
                    f"_{owner.__name__.lstrip('_')}{slot}"
                    if slot.startswith("__") and not slot.endswith("__")
                    else slot
                )
                x = getattr(v, mangled, MISSING)
                if x is not MISSING:
                    self.line(f"object.__setattr__({name}, {mangled!r}, {self.value(x)})")
        return name

    # --- effects
    def effect(self, e: Effect) -> None:
        kind = e.kind
        if kind == "setattr":
            target = self.value(e.target)
            if type(e.target) is Subclassed or _own_setattr(
                type(e.target)
            ):  # it ran already, while captured: what it did at last is to be done
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
            space = self._globals(e.target)
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
            f"{self.constant(types.FunctionType)}({self.constant(calling_code(position), 'code')},"
            f" {self._globals(scope)})"
            for position, scope in e.places
        ]
        return f"{frames[0]}({''.join(f + ', ' for f in frames[1:])}" if frames else ""

    def _globals(self, scope: GlobalScope) -> str:
        return "__fn.__globals__" if scope.root else self.constant(scope.namespace, "globals")

    def _base(self, base: type) -> str:
        return base.__name__ if base.__module__ == "builtins" else self.constant(base)

    def _arguments(self, e: Effect) -> str:
        named = [f"{k}={self.value(v)}" for k, v in e.kwargs.items() if is_plain_name(k)]
        odd = ", ".join(f"{k!r}: {self.value(v)}" for k, v in e.kwargs.items() if not is_plain_name(k))
        return ", ".join([self.value(a) for a in e.args] + named + ([f"**{{{odd}}}"] if odd else []))

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
        arguments = [self.load(s) for s in graph_inputs if s is not None] if has_graph else []
        lines = [f"def entry(__fn{''.join(', ' + p for p in self.params)}):"]
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
                "".join(arguments[i] + ", " for i in positions) for positions in (keeping.copied, keeping.watched)
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
        lines.append(f"    return __failed(__error.pop(), __fn, ({''.join(p + ', ' for p in self.params)}))")
        return "\n".join(lines) + "\n"
