"""torch.distributed's collectives, called by the program: functional operators of the graph.

`dist.all_reduce(t)` is `all_reduce`, `wait_tensor` and a copy into `t`, with async_op=True as well: the wait is done
where the result is first read (rewrite/late_waits.py), which is after the handle's wait(). Which group is meant is
known when the frame is captured: the graph has its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ....guards import source as S
from ...kinds import attributes
from ...kinds.callables import FUNCTIONS, python_function
from ...kinds.objects.class_attributes import read_class
from ...kinds.parameters import interpret
from ...machine.signals import Break

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = ["group_of", "operation_of"]

_C10D, _FUNCTIONAL = "torch.distributed.distributed_c10d", "torch.distributed._functional_collectives"
_ENDS = ("", "_autograd")
# What no operator of graphs does: objects, groups, and what torch deprecates.
_BETWEEN_PROCESSES = (
    "monitored_barrier new_group init_process_group destroy_process_group split_group"
    " send_object_list recv_object_list"
    " gather_object scatter_object_list all_gather_object broadcast_object_list"
    " all_reduce_coalesced all_gather_coalesced"
).split()
_BY_NAME = "no operator has a name for the operation by which processes combine tensors"


# --- groups and operations
def _default_group(module: Any) -> Any:
    """Asks torch.distributed's module for the group of all processes."""
    return module.GroupMember.WORLD


def group_of(machine: Machine, group: Any, tag: Any = "") -> tuple[str, int]:
    """The name of a group and how many processes are in it. The group is relied on as the object that it is."""
    import torch.distributed._functional_collectives as functional
    from torch.distributed import distributed_c10d

    _check_assigned(machine)
    group = _known(machine, group)
    name = machine.native(functional._resolve_group_name, group, tag)
    if distributed_c10d._rank_not_in_group(distributed_c10d._resolve_process_group(name)):
        raise Break("c_call", "a collective is called for a group that this process is not in")
    return str(name), machine.native(distributed_c10d._get_group_size_by_name, name)


def _check_assigned(machine: Machine) -> None:
    """Where another process never comes, a collective waits until Ctrl-C: what a cell assigned before is to be there
    then."""
    if machine.frames[0].code.co_qualname == "<module>" and any(
        effect.kind in ("global", "delglobal") for effect in machine.effects
    ):
        raise Break("collective")


def _known(machine: Machine, group: Any) -> Any:
    """A group, which is relied on as the object that it is; that of all processes for None."""
    from torch.distributed import distributed_c10d

    if group is None:
        where = S.asked(machine.world.anchor(distributed_c10d), _default_group)
        group = _default_group(distributed_c10d)
        if group is None:
            raise Break("c_call", "a collective is called before there is a group of processes")
        machine.world.guard(where, "WEAK_ID", group, "the group of all processes")
        return group
    group = machine.deep_plain(group)
    for part in group if isinstance(group, tuple) else (group,):
        source = machine.world.source_of(part)
        if source is not None and not isinstance(part, (str, int)):
            machine.world.guard(source, "WEAK_ID", part, "a group of processes")
    return group


@python_function(
    *((_C10D, f"get_{name}") for name in ("rank", "world_size", "process_group_ranks", "backend")),
    *((_C10D, f"get_{name}_rank") for name in ("global", "group")),
    wants_function=True,
)
def place_in_group(machine: Machine, fn: Any, group: Any = None, *ranks: Any, **named: Any) -> Any:
    found = machine.native(
        fn, _known(machine, group), *map(machine.plain, ranks), **{k: machine.plain(v) for k, v in named.items()}
    )
    return machine.world.create(found) if type(found) is list else found


@python_function(
    *((_C10D, name) for name in _BETWEEN_PROCESSES), ("torch.distributed.rendezvous", "rendezvous"), wants_function=True
)
def between_processes(machine: Machine, fn: Any, *args: Any, **kwargs: Any) -> None:
    raise Break("c_call", f"torch.distributed.{fn.__name__}")


def _read_operations(machine: Machine, cls: Any, name: str) -> Any:
    """dist.ReduceOp.SUM: a class of C, whose operations are what they are."""
    found = getattr(cls, name, None)
    if type(found) is not torch.distributed.ReduceOp.RedOpType:
        return read_class(machine, cls, name)
    machine.world.anchor(found)
    return found


def _refuse_write(machine: Machine, cls: Any, name: str, value: Any) -> None:
    raise Break("mutation", f"`{name}` of torch.distributed.{cls.__name__} is set")


def _asked(fn: Any) -> Any:
    return lambda machine, group: machine.native(fn, _known(machine, group))


if torch.distributed.is_available():
    for _fn in (torch.distributed.ProcessGroup.rank, torch.distributed.ProcessGroup.size):
        _fn = getattr(_fn, "__func__", _fn)  # (torch 2.11's are wrapped, which has no hash)
        FUNCTIONS[_fn] = _asked(_fn)
    attributes.TENSORS[type(torch.distributed.ReduceOp)] = attributes.Access(_read_operations, _refuse_write, None)


def operation_of(machine: Machine, op: Any) -> str:
    import torch.distributed._functional_collectives as functional

    op = machine.plain(op)
    if isinstance(op, str):
        return op.lower()
    source = machine.world.source_of(op)
    if source is not None:
        machine.world.guard(source, "WEAK_ID", op, "the operation by which processes combine tensors")
    name = functional.REDUCE_OP_TO_STR.get(op)
    if name is None:
        raise Break("c_call", _BY_NAME)
    return name


# --- what capture interprets in their place
class Handle:
    """What `async_op=True` gives: who reads the result has waited for it."""

    def __init__(self, given: Any):
        self.given = given

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def exception(self) -> None:
        return None

    def result(self) -> list:
        return [self.given] if isinstance(self.given, torch.Tensor) else list(self.given)

    def get_future(self) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self.result())
        return future


@python_function((__name__, "Handle.get_future"))
def get_future(machine: Machine, handle: Any) -> None:
    raise Break("c_call", "torch.distributed.Work.get_future")


def exchanged(out: Any, async_op: bool, op: Any, tensor: torch.Tensor, *args: Any) -> Handle | None:
    """One collective that gives its result to `out`, a tensor or a list of one for each process. It has no history."""
    with torch.no_grad():
        result = torch.ops._c10d_functional.wait_tensor.default(op(tensor.contiguous(), *args))
        if isinstance(out, torch.Tensor):
            out.copy_(result.view(out.shape))
        else:
            for part, given in zip(out, result.chunk(len(out))):
                part.copy_(given.view(part.shape))
    return Handle(out) if async_op else None


def exchanged_parts(out: Any, async_op: bool, op: Any, tensor: torch.Tensor, sizes: Any, *args: Any) -> Handle | None:
    """The same for parts of several sizes."""
    with torch.no_grad():
        result = torch.ops._c10d_functional.wait_tensor.default(op(tensor, sizes, *args))
        for part, given in zip(out, result.split(sizes)):
            part.copy_(given.view(part.shape))
    return Handle(out) if async_op else None


def joined(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def gathered(result: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    return torch.cat(torch.chunk(result, size, 0), dim) if dim else result


_ops = torch.ops._c10d_functional


def _exchange(machine: Machine, op: Any, args: list, out: Any, async_op: Any) -> Any:
    return interpret(machine, exchanged, [out, async_op, op, *args], {})


def _sum() -> Any:
    return torch.distributed.ReduceOp.SUM


@python_function((_C10D, "all_reduce"))
def all_reduce(machine: Machine, tensor: Any, op: Any = None, group: Any = None, async_op: Any = False) -> Any:
    name, _ = group_of(machine, group)
    operation = operation_of(machine, _sum() if op is None else op)
    return _exchange(machine, _ops.all_reduce.default, [tensor, operation, name], tensor, async_op)


@python_function((_C10D, "broadcast"))
def broadcast(
    machine: Machine, tensor: Any, src: Any = None, group: Any = None, async_op: Any = False, group_src: Any = None
) -> Any:
    from torch.distributed import distributed_c10d

    name, _ = group_of(machine, group)
    members = distributed_c10d._resolve_process_group(name)
    root = machine.native(
        distributed_c10d._canonicalize_group_rank, members, machine.plain(src), machine.plain(group_src)
    )
    return _exchange(machine, _ops.broadcast.default, [tensor, root, name], tensor, async_op)


@python_function((_C10D, "all_gather_into_tensor"), (_C10D, "all_gather_single"))
def all_gather_into_tensor(
    machine: Machine, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: Any = False
) -> Any:
    name, size = group_of(machine, group)
    return _exchange(machine, _ops.all_gather_into_tensor.default, [input_tensor, size, name], output_tensor, async_op)


@python_function((_C10D, "all_gather"))
def all_gather(machine: Machine, tensor_list: Any, tensor: Any, group: Any = None, async_op: Any = False) -> Any:
    name, size = group_of(machine, group)
    flat = machine.call(machine.getattr(tensor, "reshape"), [-1])
    return _exchange(machine, _ops.all_gather_into_tensor.default, [flat, size, name], tensor_list, async_op)


@python_function((_C10D, "reduce_scatter_tensor"), (_C10D, "reduce_scatter_single"))
def reduce_scatter_tensor(
    machine: Machine, output: Any, input: Any, op: Any = None, group: Any = None, async_op: Any = False
) -> Any:
    name, size = group_of(machine, group)
    flat = machine.call(machine.getattr(input, "reshape"), [-1])
    operation = operation_of(machine, _sum() if op is None else op)
    return _exchange(machine, _ops.reduce_scatter_tensor.default, [flat, operation, size, name], output, async_op)


@python_function((_C10D, "reduce_scatter"))
def reduce_scatter(
    machine: Machine, output: Any, input_list: Any, op: Any = None, group: Any = None, async_op: Any = False
) -> Any:
    return reduce_scatter_tensor(machine, output, interpret(machine, joined, [input_list], {}), op, group, async_op)


@python_function((_C10D, "all_to_all"))
def all_to_all(
    machine: Machine, output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: Any = False
) -> Any:
    """The tensors for all processes are one after the other in one tensor, and so are those of all processes."""
    name, _ = group_of(machine, group)
    sizes = [
        [machine.call(machine.getattr(t, "numel"), []) for t in machine.iterate(tensors)]
        for tensors in (output_tensor_list, input_tensor_list)
    ]
    flat = interpret(machine, joined, [input_tensor_list], {})
    return interpret(
        machine, exchanged_parts, [output_tensor_list, async_op, _ops.all_to_all_single.default, flat, *sizes, name], {}
    )


@python_function((_C10D, "all_to_all_single"))
def all_to_all_single(
    machine: Machine,
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: Any = False,
) -> Any:
    name, size = group_of(machine, group)
    splits = [_splits(machine, t, s, size) for t, s in ((output, output_split_sizes), (input, input_split_sizes))]
    return _exchange(machine, _ops.all_to_all_single.default, [input, *splits, name], output, async_op)


def _splits(machine: Machine, t: Any, sizes: Any, parts: int) -> list:
    if sizes is not None and (given := list(machine.iterate(sizes))):
        return given
    rows = machine.call(machine.getattr(t, "size"), [0])
    return [machine.native(lambda: rows // parts)] * parts


# --- functional ones
def _waited(machine: Machine, op: Any, args: list) -> Any:
    return machine.call(_ops.wait_tensor.default, [machine.call(op, args)])


@python_function((_FUNCTIONAL, "wait_tensor"))
def wait_tensor(machine: Machine, tensor: Any) -> Any:
    return machine.call(_ops.wait_tensor.default, [tensor])


@python_function((_FUNCTIONAL, "all_reduce"))
def functional_all_reduce(machine: Machine, self: Any, reduceOp: Any, group: Any, tag: Any = "") -> Any:
    name, _ = group_of(machine, group, tag)
    return _waited(machine, _ops.all_reduce.default, [self, operation_of(machine, reduceOp), name])


@python_function((_FUNCTIONAL, "broadcast"))
def functional_broadcast(machine: Machine, self: Any, src: Any, group: Any, tag: Any = "") -> Any:
    name, _ = group_of(machine, group, tag)
    return _waited(machine, _ops.broadcast.default, [self, src, name])


@python_function(*((_FUNCTIONAL, f"all_gather_{kind}{end}") for kind in ("tensor", "single") for end in _ENDS))
def functional_all_gather(machine: Machine, self: Any, gather_dim: Any, group: Any, tag: Any = "") -> Any:
    name, size = group_of(machine, group, tag)
    result = _waited(machine, _ops.all_gather_into_tensor.default, [self, size, name])
    return interpret(machine, gathered, [result, machine.plain(gather_dim), size], {})


@python_function(*((_FUNCTIONAL, f"reduce_scatter_{kind}{end}") for kind in ("tensor", "single") for end in _ENDS))
def functional_reduce_scatter(
    machine: Machine, self: Any, reduceOp: Any, scatter_dim: Any, group: Any, tag: Any = ""
) -> Any:
    name, size = group_of(machine, group, tag)
    if dim := machine.plain(scatter_dim):
        self = interpret(machine, scattered, [self, dim, size], {})
    return _waited(machine, _ops.reduce_scatter_tensor.default, [self, operation_of(machine, reduceOp), size, name])


def scattered(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    if tensor.size(dim) % size:
        raise AssertionError(f"input dimension 0 ({tensor.size(0)} must be a multiple of group_size {size})")
    return torch.cat(torch.chunk(tensor, size, dim))


@python_function((_FUNCTIONAL, "all_to_all_single"), (_FUNCTIONAL, "all_to_all_single_autograd"))
def functional_all_to_all(
    machine: Machine, self: Any, output_split_sizes: Any, input_split_sizes: Any, group: Any, tag: Any = ""
) -> Any:
    name, size = group_of(machine, group, tag)
    splits = [_splits(machine, self, s, size) for s in (output_split_sizes, input_split_sizes)]
    return _waited(machine, _ops.all_to_all_single.default, [self, *splits, name])


# (of several tensors: one after the other)
@python_function((_FUNCTIONAL, "all_reduce_coalesced"))
def functional_all_reduces(machine: Machine, self: Any, reduceOp: Any, group: Any, tag: Any = "") -> list:
    return machine.world.create(
        [functional_all_reduce(machine, t, reduceOp, group, tag) for t in machine.iterate(self)]
    )


@python_function((_FUNCTIONAL, "all_gather_into_tensor_coalesced"))
def functional_all_gathers(machine: Machine, self: Any, group: Any, tag: Any = "") -> list:
    return machine.world.create([functional_all_gather(machine, t, 0, group, tag) for t in machine.iterate(self)])


@python_function((_FUNCTIONAL, "reduce_scatter_tensor_coalesced"))
def functional_reduce_scatters(
    machine: Machine, inputs: Any, reduceOp: Any, scatter_dim: Any, group: Any, tag: Any = ""
) -> list:
    pairs = zip(machine.iterate(inputs), machine.iterate(scatter_dim), strict=True)
    return machine.world.create([functional_reduce_scatter(machine, t, reduceOp, dim, group, tag) for t, dim in pairs])


# --- torch.distributed.nn.functional: collectives with gradients, in which two steps are no operators
_WITH_GRADIENTS = "torch.distributed.nn.functional"


def exchange_all(ctx: Any, group: Any, received: Any, *tensors: torch.Tensor) -> tuple:
    """_AlltoAll.forward, which is a loop of scatter() with gloo."""
    ctx.group = group
    ctx.input_tensor_size_list = [tensor.size() for tensor in tensors]
    torch.distributed.all_to_all(received, [tensor.contiguous() for tensor in tensors], group=group)
    return tuple(received)


def reduce_to_source(ctx: Any, gradient: torch.Tensor) -> tuple:
    """_Broadcast.backward: the sum for the source, zeros for the others."""
    gradient = gradient.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(gradient, group=ctx.group)
    rank = ctx.global_rank if hasattr(ctx, "global_rank") else ctx.rank  # (torch before 2.14)
    return None, None, gradient if ctx.src == rank else torch.zeros_like(gradient)


@python_function((_WITH_GRADIENTS, "_AlltoAll.forward"))
def _exchange_all(machine: Machine, *args: Any) -> Any:
    return interpret(machine, exchange_all, list(args), {})


@python_function((_WITH_GRADIENTS, "_Broadcast.backward"))
def _reduce_to_source(machine: Machine, ctx: Any, gradient: Any) -> Any:
    return interpret(machine, reduce_to_source, [ctx, gradient], {})
