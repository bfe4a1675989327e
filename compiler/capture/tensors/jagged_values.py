"""Jagged nested tensors in the program: from outside, made inside, and as what the entry gives back.

The program sees a Subclassed of torch's class; `nested` is an instance of that class over TraceTensors, which answers
what can be asked without elements. The graph has the tensors inside alone (graph/wrappers/jagged.py).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from ...graph.tensor import DataDependentError, TraceTensor
from ...graph.wrappers import (
    Call,
    JaggedCall,
    Nested,
    is_jagged,
    jagged_parts,
    lengths_by,
    longest_by,
    longest_of,
    make_jagged,
    nested_class,
    written_inside,
)
from ...guards import source as S
from ...guards.source import Source
from ...guards.tensors import has_tangent
from ..kinds.callables import python_function
from ..machine.signals import Break, Skip
from .tensor_subclasses import PLAIN_TENSORS, Subclassed

if TYPE_CHECKING:
    from ..entry.entry_source import EntryWriter
    from ..machine.machine import Machine
    from ..machine.world import World

__all__ = ["holds_nested", "jagged_attribute", "like_nested", "load_jagged", "operate_jagged", "write_jagged"]

# What the instance over TraceTensors says of a nested tensor as it is.
_FACTS = frozenset(
    ("shape", "ndim", "dtype", "device", "layout", "itemsize")
    + ("is_nested", "is_cpu", "is_cuda", "is_meta", "is_sparse", "is_quantized", "is_mkldnn")
)
_FIELDS = {"_values": 0, "_offsets": 1, "_lengths": 2}
# torch's table of the lengths of sequences, which may have them or not -> what the program reads them by
_LENGTHS = {"max_seqlen": ("_max_seqlen", "_max_seqlen_tensor"), "min_seqlen": ("_min_seqlen", "_min_seqlen_tensor")}
_COMPUTES = {
    "_get_max_seqlen": "max_seqlen",
    "_get_min_seqlen": "min_seqlen",
    "longest_of": "span",
    "lengths_of": "rows",
}


class _NoPlain:
    """In the place of the plain tensor that other tensors of classes stand for."""

    def __getattr__(self, name: str) -> Any:
        raise Break("unsupported", f"a nested tensor is used in a way that is not captured ({name})")


@dataclasses.dataclass(frozen=True)
class _Known:
    """A length that is known, where torch keeps a tensor of that shape."""

    shape: tuple


@dataclasses.dataclass(frozen=True)
class _Length:
    """Asks a nested tensor, or offsets, for the length of the longest or shortest sequence. Nothing is written to: the
    question belongs to a guard."""

    name: str

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, t: Any) -> int:
        if not is_jagged(t):
            return longest_by(t)
        if self.name == "span":
            return longest_of(t)
        kept = t._metadata_cache.get(self.name)
        if kept is not None:
            return kept.shape[0]
        if self.name == "max_seqlen":
            return longest_of(t)
        return int((t._offsets.diff() if t._lengths is None else t._lengths).min())


@dataclasses.dataclass(frozen=True)
class _LengthAt:
    """Asks a nested tensor, or offsets, for the length of one sequence; -1 where there is none."""

    at: int

    __name__ = "length"

    def __call__(self, t: Any) -> int:
        lengths = lengths_by(t._offsets if is_jagged(t) else t)
        return lengths[self.at] if self.at < len(lengths) else -1


@dataclasses.dataclass(frozen=True)
class _Check:
    """What a guard asks of a nested tensor, apart from its class and from the tensors inside. keeps: which lengths of
    its sequences torch's table has."""

    requires_grad: bool
    ragged_idx: int
    holes: bool
    keeps: tuple

    __name__ = "nested"

    @staticmethod
    def of(t: Any) -> "_Check":
        return _Check(t.requires_grad, t._ragged_idx, t._lengths is not None, _keeps(t))

    def __call__(self, t: Any) -> bool:
        return (
            t.requires_grad == self.requires_grad
            and t._ragged_idx == self.ragged_idx
            and (t._lengths is not None) == self.holes
            and _keeps(t) == self.keeps
            and not has_tangent(t)
        )


def _keeps(t: Any) -> tuple:
    cache = t._metadata_cache
    return cache.get("max_seqlen") is not None, cache.get("min_seqlen") is not None


class _ReadValues(Call):
    """The values of a nested tensor, through which gradients pass."""

    def __init__(self) -> None:
        super().__init__("nested_values")

    def __call__(self, t: Any) -> tuple:
        with torch.enable_grad():
            return (t.values(),)


_AS_IT_IS = "the frame runs as it is"
_READ_VALUES = _ReadValues()


def holds_nested(value: Any, depth: int = 0) -> bool:
    if type(value) is Subclassed:
        return value.nested is not None
    if type(value) in (list, tuple) and depth < 4:
        return any(holds_nested(item, depth + 1) for item in value)
    return type(value) is dict and depth < 4 and any(holds_nested(item, depth + 1) for item in value.values())


# --- from outside
def load_jagged(world: World, real: Any, source: Source) -> Subclassed:
    """The stand-in for a nested tensor from outside; its values, offsets and lengths are inputs."""
    machine = world.machine
    if not world.opts.nested:
        raise Skip(f"the tensor `{source.name()}` is a nested tensor, which the backend does not know; {_AS_IT_IS}")
    inner = [t for t in (real._values, real._offsets, real._lengths) if t is not None]
    if type(real) is not nested_class() or any(type(axis) not in PLAIN_TENSORS for axis in inner):
        raise Skip(
            f"the tensor `{source.name()}` is a {type(real).__name__} over tensors of other classes; {_AS_IT_IS}"
        )
    if real._values.requires_grad and not real.requires_grad:
        raise Skip(
            f"the tensor `{source.name()}` is a nested tensor without gradients over one that has them; {_AS_IT_IS}"
        )
    check = _Check.of(real)
    if not check(real):
        raise Skip(f"the tensor `{source.name()}` is a nested tensor with a tangent; {_AS_IT_IS}")
    world.guard(source, "TYPE", type(real), "class of the tensor")
    world.guard(S.asked(source, check), "ID", True, "what kind of nested tensor it is")
    at = S.attr(source, "_values")
    known = machine.world.opts.dynamic_dims
    known[at] = {*known.get(at, ()), real._ragged_idx - 1}  # how many rows there are is another number each time
    values = _input(world, real, source, at) if real.requires_grad else world.load_tensor(real._values, at)
    offsets = world.load_tensor(real._offsets, S.attr(source, "_offsets"))
    lengths = None if real._lengths is None else world.load_tensor(real._lengths, S.attr(source, "_lengths"))
    cache = {
        name: _Known((_number(machine, S.asked(source, _Length(name)), real),))
        for name, kept in zip(_LENGTHS, check.keeps)
        if kept
    }
    made = world.register(_stand_in(machine, values, offsets, lengths, real._ragged_idx, cache), source)
    world.subclassed[id(real)] = made
    world.register(real, source)
    world.reals[id(made)] = real
    machine.ragged[id(offsets if lengths is None else lengths)] = made
    return made


def _number(machine: Machine, source: Source, real: Any) -> Any:
    """What is asked for, as a symbol."""
    number = source.key(real)
    symbol = machine.env.create_int(number, source)
    if isinstance(symbol, int):
        machine.world.guard(source, "EQUALS", number, "the length of a sequence")
    else:
        machine.world.guard(source, "INT_SYMBOL", machine.env.to_expr(symbol), "the length of a sequence")
    return symbol


def _input(world: World, real: Any, source: Source, at: Source) -> TraceTensor:
    """The values of a nested tensor that requires grad."""
    (alias,) = _READ_VALUES(real)
    reached = S.item(S.unwrapped(source, _READ_VALUES), 0)
    trace = world.stand_in(alias, at)
    spec = world.spec(alias, trace)
    world.register(alias, reached)
    world.guarded_as[reached] = at
    world.tensors[id(alias)], world.reals[id(trace)] = trace, alias
    world.machine.graph.add_input(alias, trace, reached, spec, False)
    world.guard(
        at, "TENSOR", dataclasses.replace(spec, type=type(real._values), requires_grad=real._values.requires_grad)
    )
    return trace


def _stand_in(machine: Machine, values: Any, offsets: Any, lengths: Any, ragged_idx: int, cache: dict) -> Subclassed:
    machine.subclassed = True
    made = Subclassed(nested_class(), _NoPlain())  # type: ignore[arg-type]
    made.nested = make_jagged(values, offsets, lengths, ragged_idx)
    made.nested._metadata_cache = cache
    machine.ragged_sizes[made.nested._size[ragged_idx].node.nested_int()] = offsets if lengths is None else lengths
    return made


def like_nested(machine: Machine, subclassed: Subclassed, values: TraceTensor) -> Subclassed:
    """A nested tensor of these values with the sequences of another one."""
    t = subclassed.nested
    return machine.world.create(_stand_in(machine, values, t._offsets, t._lengths, t._ragged_idx, t._metadata_cache))


# --- calls
def operate_jagged(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """A function of torch, or an operator of Python, that is given nested tensors."""
    name = getattr(fn, "__name__", "")
    if fn is getattr:
        return _fact(machine, args[0], args[1])
    if type(fn).__name__ == "method-wrapper" and name == "__get__":
        return _fact(machine, args[0], fn.__self__.__name__)
    written = _written(machine, name, args) if _writes(name) else None
    if written is None and _writes(name) or "out" in kwargs or name in _OF_THE_OBJECT:
        raise Break("unsupported", f"{name} of a nested tensor is not captured")
    instances: list[Any] = []

    def instance(value: Any) -> Any:
        if type(value) is Subclassed:
            if value.nested is None:
                raise Break("unsupported", f"a nested tensor and a {value.tensor_class.__name__} meet in {name}")
            instances.append(value.nested)
            return value.nested
        if type(value) in (list, tuple):
            return type(value)(map(instance, value))
        return {key: instance(item) for key, item in value.items()} if type(value) is dict else value

    args, kwargs = [instance(arg) for arg in args], {key: instance(value) for key, value in kwargs.items()}
    result = _run(machine, fn, args, kwargs, instances)
    if written is None:
        return result
    if type(result) is not Subclassed or result.nested._values is not written.nested._values:
        raise Break("unsupported", f"{name} of a nested tensor is not captured")
    return written


def _written(machine: Machine, name: str, args: list) -> Any:
    """The nested tensor whose values a call writes to; None where they are not all that eager would change: of one from
    outside the version, too, which autograd looks at."""
    first, world = args[0] if args else None, machine.world
    if type(first) is not Subclassed or id(first) in world.reals or name.strip("_") in _NOT_VALUES:
        return None
    memory = first.nested._values.tt_storage
    given = (s.nested for s in world.subclassed.values() if s.nested is not None)
    return None if any(t._values.tt_storage is memory for t in given) else first


# (what changes the tensor itself, or less of it than all its values)
_NOT_VALUES = frozenset("setitem setattr delattr requires_grad detach resize set share_memory".split())
_OF_THE_OBJECT = frozenset(
    ("requires_grad_", "register_hook", "retain_grad", "backward", "data_ptr", "storage", "untyped_storage")
    + ("register_post_accumulate_grad_hook", "__deepcopy__", "__reduce_ex__", "__repr__", "__format__", "as_subclass")
)
_AUGMENTED = frozenset(
    f"i{op}" for op in ("add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split())
)


def _writes(name: str) -> bool:
    own = name.strip("_")
    if name in ("and_", "or_", "not_"):  # (Python's words, as functions)
        return False
    return (
        name.endswith("_") and not name.endswith("__") or own in _AUGMENTED or own in ("setitem", "setattr", "delattr")
    )


def _run(machine: Machine, fn: Any, args: list, kwargs: dict, instances: list) -> Any:
    """The call, once more where it needed a length that has to be asked for."""
    while True:
        call, given = JaggedCall.of(fn, args, kwargs, machine.ragged_sizes)
        written_inside()
        try:
            new = _natively(machine, call, given)
            break
        except DataDependentError as e:
            if not _ask(machine, e, instances):
                raise Break(
                    "data_dependent_shape",
                    f"{getattr(fn, '__name__', fn)} of a nested tensor needs the lengths of its sequences",
                    "make it, and take it apart, outside of the compiled part; or work on values() and offsets()",
                ) from None
        except NotImplementedError as e:
            raise Break("unsupported", f"{getattr(fn, '__name__', fn)} of a nested tensor: {e}") from None
    if (written := written_inside()) or new:
        machine.graph.record("call_function", call, tuple(given), {}, new)
        machine.graph.writes_to(written)

    def nested(pattern: Nested, values: Any, offsets: Any, lengths: Any) -> Any:
        if pattern.family >= 0:
            cache = instances[pattern.family]._metadata_cache
        else:
            cache = {name: _Known((length,)) for name, length in zip(_LENGTHS, pattern.lengths) if length is not None}
        return machine.world.create(_stand_in(machine, values, offsets, lengths, pattern.ragged_idx, cache))

    return call.value(given, new, nested)


def _natively(machine: Machine, call: JaggedCall, given: list) -> tuple:
    try:
        return call(*given)
    except (DataDependentError, NotImplementedError):
        raise
    except Exception as e:
        return machine.native(_again, e)


def _again(error: Exception) -> Any:
    raise error


def _ask(machine: Machine, error: DataDependentError, instances: list) -> bool:
    """Whether a call failed for want of a length, which is known from now on."""
    at, found = error.__traceback__, None
    while at is not None:
        name = at.tb_frame.f_code.co_name
        if name in _COMPUTES:
            nested_tensor = at.tb_frame.f_code.co_varnames[0]  # the first parameter of each of them
            found = _COMPUTES[name], at.tb_frame.f_locals[nested_tensor]
        at = at.tb_next
    if found is None:
        return False
    name, nested = found
    mine = [
        instance
        for instance in instances
        if instance._offsets is nested._offsets and instance._lengths is nested._lengths
    ]
    return any([_learn(machine, t, name) for t in mine])


def _learn(machine: Machine, nested: Any, name: str) -> bool:
    """Make a length of a nested tensor known; False where it is, or where nobody can be asked. What torch would keep of
    it, it keeps once the entry has run."""
    keeper = nested._offsets if nested._lengths is None else nested._lengths
    owner = machine.ragged.get(id(keeper))
    if name in nested._metadata_cache or name in ("span", "rows") and nested.__dict__.get(name) is not None:
        return False
    if owner is not None:
        source, real = machine.world.sources[id(owner)], machine.world.reals[id(owner)]
    elif nested._lengths is None and name != "min_seqlen" and machine.world.reals.get(id(keeper)) is not None:
        real = machine.world.reals[id(keeper)]
        source = machine.world.sources[id(real)]
    else:
        return False
    if id(keeper.tt_storage) in machine.graph.written:
        return False
    if name == "rows":
        sequences = range(int(keeper.shape[0]) - 1)
        nested.rows = tuple(_number(machine, S.asked(source, _LengthAt(sequence)), real) for sequence in sequences)
        return True
    number = _number(machine, S.asked(source, _Length(name)), real)
    if name == "span":
        nested.span = number
        return True
    nested._metadata_cache[name] = _Known((number,))
    if owner is not None and owner.nested._metadata_cache is nested._metadata_cache:
        machine.effects.set_attribute(owner, _LENGTHS[name][1], machine.call(torch.zeros, [number, 0]))
    return True


# --- attributes
def jagged_attribute(machine: Machine, subclassed: Subclassed, name: str) -> Any:
    """NotImplemented: an attribute of the class."""
    if name in _FIELDS:
        return jagged_parts(subclassed.nested)[_FIELDS[name]]
    if name == "_ragged_idx":
        return subclassed.nested._ragged_idx
    for key, (attribute, _) in _LENGTHS.items():
        if name == attribute and (key in subclassed.nested._metadata_cache or _learn(machine, subclassed.nested, key)):
            return subclassed.nested._metadata_cache[key].shape[0]
    if name in subclassed.nested.__dict__ or name in _HIDDEN or name in subclassed.__dict__:
        raise Break("tensor_attribute", f"the attribute {name} of a nested tensor is read")
    return NotImplemented


_HIDDEN = frozenset(
    ("_max_seqlen_tensor", "_min_seqlen_tensor", "_maybe_max_seqlen", "_maybe_min_seqlen", "__dict__")
    + ("_get_max_seqlen", "_get_min_seqlen", "__tensor_flatten__", "_is_contiguous_or_false")
)


def _fact(machine: Machine, s: Any, name: str) -> Any:
    if name == "requires_grad":
        return s.nested._values.requires_grad
    if name not in _FACTS:
        raise Break("tensor_attribute", f"the attribute {name} of a nested tensor is read")
    value = getattr(s.nested, name)
    return (
        tuple(value)
        if isinstance(value, torch.Size) and any(isinstance(item, torch.SymInt) for item in value)
        else value
    )


@python_function(("torch.nested", "nested_tensor_from_jagged"))
def _from_jagged(machine: Machine, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = (
        [machine.deep_plain(arg) for arg in args],
        {name: machine.deep_plain(value) for name, value in kwargs.items()},
    )
    if not machine.world.opts.nested:
        raise Break("unsupported", "a nested tensor is made, which the backend would not know")
    return _run(machine, torch.nested.nested_tensor_from_jagged, args, kwargs, [])


# --- results
def _made(values: Any, offsets: Any, lengths: Any, ragged_idx: int, like: Any, longest: Any, shortest: Any) -> Any:
    """A nested tensor that an entry gives back. `like` is one with the same table of lengths."""
    if not values.requires_grad:
        made = make_jagged(values, offsets, lengths, ragged_idx, longest, shortest)
    else:
        from torch.nested._internal.nested_tensor import nested_view_from_values_offsets_lengths

        with torch.enable_grad():
            made = nested_view_from_values_offsets_lengths(values, offsets, lengths, ragged_idx, shortest, longest)
    if like is not None:
        made._metadata_cache = like._metadata_cache
    return made


_made.__name__ = "nested_tensor"


def write_jagged(writer: EntryWriter, subclassed: Subclassed) -> str:
    """The entry's expression for a nested tensor that was made inside."""
    machine, t = writer.machine, subclassed.nested
    keeper = t._offsets if t._lengths is None else t._lengths
    owner = machine.ragged.get(id(keeper))
    like, lengths = "None", [t._maybe_max_seqlen, t._maybe_min_seqlen]
    if owner is not None and owner.nested._metadata_cache is t._metadata_cache:
        like, lengths = writer.load(machine.world.sources[id(owner)]), [None, None]
    given = ", ".join(writer.value(part) for part in (*jagged_parts(t), t._ragged_idx))
    return writer.assign(
        subclassed, f"{writer.constant(_made)}({given}, {like}, {', '.join(map(writer.value, lengths))})"
    )
