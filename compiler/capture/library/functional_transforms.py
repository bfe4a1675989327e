"""torch.func: vmap, grad, vjp, jvp, jacobians, hessian.

The function is captured once into the body of one TransformCall, on tensors as it sees them inside of the transform
(slices for vmap). The transform itself is torch's own. It is applied to that body when the graph runs or is traced."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.utils._pytree as pytree

from ...graph.higher_order import Template, TransformCall
from .bodies import Body, capture_body, grad_mode, record_call, stand_in, without_wrappers
from ...guards import source as S
from ..kinds.callables import python_function
from ..machine.signals import Break
from ...graph.tensor import TraceTensor
from ..machine.stack_values import MISSING
from ..tensors.tensor_subclasses import Subclassed
from ..tensors.wrapper_values import as_program_sees

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["Transformed", "call_object", "jacobian_wrapper"]

_RANDOM = frozenset((torch.rand, torch.randn, torch.randint, torch.randperm))
_PUBLIC, _EAGER = "torch.func", "torch._functorch.eager_transforms"  # functions say either, by how torch was imported


class Transformed:
    """What torch.func.grad(f, ...) and its like return: called, it records a TransformCall. Made inside, never seen by
    eager code.
    """

    def __init__(self, name: str, function: Any, transform: Callable, inside: Callable, rebuild: Callable[[], Any]):
        self.name, self.function, self.transform, self.inside, self.rebuild = name, function, transform, inside, rebuild


def call_transformed(machine: Machine, t: Transformed, args: list, kwargs: dict) -> Any:
    """t(*args, **kwargs) of the program."""
    structure = (
        tuple(machine.deep_plain(arg) for arg in args),
        {name: machine.deep_plain(value) for name, value in kwargs.items()},
    )
    structure = _as_functions_see(machine, t.name, structure)
    arguments, tensors = Template.of(structure)
    inside_args, inside_kwargs = t.inside(machine, *structure)
    parameters, fresh = Template.of((inside_args, inside_kwargs))
    with grad_mode(True if t.name != "vmap" else torch._C.is_grad_enabled()):
        body = capture_body(
            machine, t.name, fresh, lambda: machine.call(t.function, list(inside_args), dict(inside_kwargs)), t.name
        )
    if t.name not in ("grad", "grad_and_value") and _draws(body.graph):
        # (one for each slice, or an error)
        raise Break(
            "higher_order",
            f"random numbers are made inside of torch.func.{t.name}",
            "make them outside and pass them in",
        )
    results, _ = Template.of(body.result)
    return _recorded(
        machine, TransformCall(t.name, body.graph, t.transform, arguments, results, parameters), tensors, body
    )


def _recorded(machine: Machine, call: TransformCall, tensors: list, body: Body) -> Any:
    out = record_call(machine, call, tensors, body.lifted)
    assert call.out is not None
    return as_program_sees(machine, call.out.fill(out))


def _as_functions_see(machine: Machine, name: str, structure: Any) -> Any:
    """The arguments of a transform. What a function gets of a wrapper is a tensor of torch's own class around it."""
    structure = without_wrappers(machine, structure)
    for value in pytree.tree_leaves(structure):
        if type(value) is Subclassed:
            raise Break("higher_order", f"torch.func.{name} is given a tensor of class {value.tensor_class.__name__}")
    return structure


def _draws(graph: torch.fx.GraphModule) -> bool:
    """Whether a body makes random numbers from nothing."""
    return any(
        node.target in _RANDOM or any(map(_draws, getattr(node.target, "bodies", {}).values()))
        for node in graph.graph.nodes
    )


def _same(machine: Machine, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Tensors inside of grad and its like: of the same metadata, needing a gradient where they can."""

    def inside(v: Any) -> Any:
        if not isinstance(v, TraceTensor):
            return v
        differentiable = v.requires_grad or v.dtype.is_floating_point or v.dtype.is_complex
        return stand_in(machine, v, requires_grad=differentiable, bits=True)

    return pytree.tree_map(inside, (args, kwargs))


def _slices(machine: Machine, in_dims: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Tensors inside of vmap: without the mapped dimension."""
    try:
        dims = (
            torch._functorch.vmap._broadcast_to_and_flatten(in_dims, pytree.tree_structure(args))
            if not isinstance(in_dims, int)
            else None
        )
    except Exception:
        dims = None
    leaves, spec = pytree.tree_flatten(args)
    if dims is None:
        if not isinstance(in_dims, int):
            raise Break("higher_order", "in_dims of vmap do not fit the arguments")
        dims = [in_dims if isinstance(leaf, TraceTensor) else None for leaf in leaves]

    def part(value: Any, d: Any) -> Any:
        if not isinstance(value, TraceTensor):
            return value
        if d is None:
            return stand_in(machine, value, bits=True)
        if not -value.dim() <= d < value.dim():
            raise Break("higher_order", "in_dims of vmap do not fit the arguments")
        return stand_in(machine, value, drop_dim=d, bits=True)

    mapped = pytree.tree_unflatten([part(leaf, dim) for leaf, dim in zip(leaves, dims)], spec)
    return mapped, pytree.tree_map(lambda v: part(v, 0), kwargs)


@python_function(("torch._functorch.apis", "vmap"), (_PUBLIC, "vmap"))
def vmap_(
    machine: Machine,
    func: Any,
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: Any = None,
) -> Transformed:
    in_dims, out_dims = machine.deep_plain(in_dims), machine.deep_plain(out_dims)
    if chunk_size is not None:
        raise Break("higher_order", "vmap is called with chunk_size", "call vmap without chunk_size")
    options = {"in_dims": in_dims, "out_dims": out_dims, "randomness": randomness}
    return _made(machine, "vmap", func, torch.vmap, options, functools.partial(_sliced, in_dims))


def _sliced(in_dims: Any, machine: Machine, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return _slices(machine, tuple(in_dims) if isinstance(in_dims, list) else in_dims, args, kwargs)


def _made(machine: Machine, name: str, func: Any, transform: Callable, options: dict, inside: Callable) -> Transformed:
    transformed = Transformed(name, func, functools.partial(_apply, transform, options), inside, lambda: None)
    machine.origins[id(transformed)] = machine.root_index
    machine.world.keep.append(transformed)
    return transformed


def _apply(transform: Callable, options: dict, function: Callable) -> Callable:
    return transform(function, **options)


def _register(name: str, home: str, transform: Callable, names: tuple[str, ...]) -> None:
    def handler(machine: Machine, func: Any, *args: Any, **kwargs: Any) -> Transformed:
        options = {**dict(zip(names, args)), **kwargs}
        options = {key: machine.deep_plain(option) for key, option in options.items()}
        return _made(machine, name, func, transform, options, _same)

    python_function((home, name), (_PUBLIC, name))(handler)


_register("grad", "torch._functorch.apis", torch.func.grad, ("argnums", "has_aux"))
_register("grad_and_value", "torch._functorch.apis", torch.func.grad_and_value, ("argnums", "has_aux"))
_register("jacrev", _EAGER, torch.func.jacrev, ("argnums",))
_register("jacfwd", _EAGER, torch.func.jacfwd, ("argnums", "has_aux"))
_register("hessian", _EAGER, torch.func.hessian, ("argnums",))


# --- transforms made outside: their wrappers are interpreted, and end in these
@python_function(("torch._functorch.vmap", "vmap_impl"))
def vmap_impl(
    machine: Machine,
    func: Any,
    in_dims: Any,
    out_dims: Any,
    randomness: Any,
    chunk_size: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    return call_transformed(
        machine, vmap_(machine, func, in_dims, out_dims, randomness, chunk_size=chunk_size), list(args), kwargs
    )


@python_function((_EAGER, "grad_impl"))
def grad_impl(machine: Machine, func: Any, argnums: Any, has_aux: Any, args: Any, kwargs: Any) -> Any:
    return _whole_transform(machine, "grad", torch.func.grad, func, argnums, has_aux, args, kwargs)


@python_function((_EAGER, "grad_and_value_impl"))
def grad_and_value_impl(machine: Machine, func: Any, argnums: Any, has_aux: Any, args: Any, kwargs: Any) -> Any:
    return _whole_transform(machine, "grad_and_value", torch.func.grad_and_value, func, argnums, has_aux, args, kwargs)


def _whole_transform(
    machine: Machine, name: str, transform: Callable, func: Any, argnums: Any, has_aux: Any, args: Any, kwargs: Any
) -> Any:
    options = {"argnums": machine.deep_plain(argnums), "has_aux": has_aux}
    return call_transformed(
        machine,
        _made(machine, name, func, transform, options, _same),
        list(machine.deep_plain(args)),
        dict(machine.deep_plain(kwargs)),
    )


_JACOBIANS = {f.__code__: f for f in (torch.func.jacrev, torch.func.jacfwd)}


def jacobian_wrapper(machine: Machine, fn: types.FunctionType) -> Transformed | None:
    """The Transformed for what jacrev and jacfwd returned outside: a closure of theirs over the function and its
    options.
    """
    code = fn.__code__
    for maker_code, maker in _JACOBIANS.items():
        if code in maker_code.co_consts and fn.__closure__:
            inside = {
                name: machine.getattr(cell, "cell_contents") for name, cell in zip(code.co_freevars, fn.__closure__)
            }
            options = {
                key: machine.deep_plain(value)
                for key, value in inside.items()
                if key in ("argnums", "has_aux", "randomness")
            }
            if "func" in inside and inside.get("chunk_size") is None:
                return _made(machine, maker.__name__, inside["func"], maker, options, _same)
    return None


# --- vjp and jvp take the arguments at once
def _vjp_values(function: Callable) -> Callable:
    def run(primals: tuple, cotangents: Any) -> Any:
        return torch.func.vjp(function, *primals)[1](cotangents)

    return run


def _vjp_results(has_aux: bool, function: Callable) -> Callable:
    def run(primals: tuple) -> Any:
        out = torch.func.vjp(function, *primals, has_aux=has_aux)
        return (out[0], out[2]) if has_aux else out[0]

    return run


def _vjp_aux_values(function: Callable) -> Callable:
    def run(primals: tuple, cotangents: Any) -> Any:
        return torch.func.vjp(function, *primals, has_aux=True)[1](cotangents)

    return run


def _jvp(options: dict, function: Callable) -> Callable:
    def run(primals: tuple, tangents: tuple) -> Any:
        return torch.func.jvp(function, primals, tangents, **options)

    return run


def _whole_call(machine: Machine, name: str, func: Any, transform: Callable, primals: tuple, *more: Any) -> Any:
    """transform(f)(primals, *more), where f is captured on tensors like the primals."""
    structure = _as_functions_see(machine, name, ((primals, *more), {}))
    arguments, tensors = Template.of(structure)
    inside, _ = _same(machine, structure[0][0], {})
    parameters, fresh = Template.of((inside, {}))
    with grad_mode(True):
        body = capture_body(machine, name, fresh, lambda: machine.call(func, list(inside)), name)
    results, _ = Template.of(body.result)
    return _recorded(machine, TransformCall(name, body.graph, transform, arguments, results, parameters), tensors, body)


@python_function((_EAGER, "vjp"), (_PUBLIC, "vjp"))
def vjp_(machine: Machine, func: Any, *primals: Any, has_aux: bool = False) -> Any:
    values = tuple(machine.deep_plain(primal) for primal in primals)
    out = _whole_call(machine, "vjp", func, functools.partial(_vjp_results, has_aux), values)
    pullback = Transformed("vjp", func, _vjp_aux_values if has_aux else _vjp_values, values, lambda: None)
    machine.origins[id(pullback)] = machine.root_index
    machine.world.keep.append(pullback)
    return (out[0], pullback, out[1]) if has_aux else (out, pullback)


@python_function((_EAGER, "jvp"), (_PUBLIC, "jvp"))
def jvp_(
    machine: Machine, func: Any, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> Any:
    return _whole_call(
        machine,
        "jvp",
        func,
        functools.partial(_jvp, {"strict": strict, "has_aux": has_aux}),
        machine.deep_plain(primals),
        machine.deep_plain(tangents),
    )


def call_object(machine: Machine, t: Transformed, args: list, kwargs: dict) -> Any:
    """Calling what a transform returned."""
    if t.name == "vjp":
        cotangents = machine.deep_plain(args[0] if len(args) == 1 else tuple(args))
        return _whole_call(machine, "vjp", t.function, t.transform, t.inside, cotangents)
    return call_transformed(machine, t, args, kwargs)


# --- torch.func.functional_call
@python_function(("torch._functorch.functional_call", "functional_call"), (_PUBLIC, "functional_call"))
def functional_call_(
    machine: Machine,
    module: Any,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: Any = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """module(*args) with other tensors in the place of its parameters and buffers, while the call lasts."""
    given = machine.deep_plain(parameter_and_buffer_dicts)
    tensors: dict[str, Any] = {}
    for part in given if isinstance(given, (list, tuple)) else [given]:
        tensors.update(part)
    args = () if args is None else machine.deep_plain(args)
    if machine.truth(strict):
        raise Break("higher_order", "functional_call is called with strict=True")
    places = _places(machine, module, tensors, machine.truth(tie_weights))
    pending = machine.world.pending
    before = []
    for owner, name, value in places:
        machine.getattr(owner, name)  # that it is there is relied on
        mine = pending.setdefault(id(owner), {})
        machine.world.keep.append(owner)
        before.append((mine, name, mine.get(name, MISSING)))
        mine[name] = value
    try:
        result = machine.call(
            module, list(args) if isinstance(args, tuple) else [args], dict(machine.deep_plain(kwargs or {}))
        )
        if any(mine.get(name) is not value for (mine, name, _), (_, _, value) in zip(before, places)):
            raise Break("mutation", "a parameter or buffer is replaced inside of functional_call")
    finally:
        for mine, name, old in reversed(before):
            if old is MISSING:
                mine.pop(name, None)
            else:
                mine[name] = old
    return result


@dataclass(frozen=True)
class TiedAs:
    """Asks a module whether the parameters and buffers of these names are others as well, as they were."""

    names: tuple[str, ...]
    ties: tuple[tuple[str, str], ...]

    @property
    def __name__(self) -> str:
        return "tied parameters"

    def __call__(self, module: torch.nn.Module) -> bool:
        mine = _parameters_and_buffers(module)
        return all(name in mine for name in self.names) and _tied(mine, self.names) == self.ties


def _parameters_and_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _tied(mine: dict[str, torch.Tensor], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The other names of those tensors, each with the first of `names` that is the same."""
    first: dict[int, str] = {}
    for name in names:
        first.setdefault(id(mine[name]), name)
    given = frozenset(names)
    return tuple((other, first[id(t)]) for other, t in mine.items() if other not in given and id(t) in first)


def _places(
    machine: Machine, module: torch.nn.Module, tensors: dict[str, Any], tie: bool
) -> list[tuple[torch.nn.Module, str, Any]]:
    """Where each given tensor goes: (owner, attribute, tensor); tied parameters take the one that is given for any of
    them.
    """
    mine = _parameters_and_buffers(module)
    for name in tensors:
        if name not in mine:
            raise Break("higher_order", f"functional_call is given {name!r}, which the module does not have")
    known = dict(tensors)
    if tie:
        check = TiedAs(tuple(tensors), _tied(mine, tensors))
        known.update((other, tensors[name]) for other, name in check.ties)
        if (source := machine.world.source_of(module)) is not None:
            machine.world.guard(S.asked(source, check), "ID", True, "which parameters are one")
    places = []
    for name, value in known.items():
        path, _, attribute = name.rpartition(".")
        owner = module.get_submodule(path)
        # reached as the program does: what nothing leads to is guarded to be this module and no other
        if functools.reduce(machine.getattr, path.split(".") if path else (), module) is not owner:
            raise Break("higher_order", f"functional_call finds {path!r} elsewhere than an attribute says")
        places.append((owner, attribute, value))
    return places
