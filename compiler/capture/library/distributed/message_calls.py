"""What processes send to each other, what one of them alone gets or gives, and barriers (ops/messages.py).

A receiver has what came once it waited: the tensor that it gave is written there, by the graph or, where the handle is
waited for outside, by the handle. So a frame never waits for what another process sends only after a later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ....ops.messages import SPACE
from ...kinds.callables import python_function
from ...kinds.parameters import interpret
from ...machine.signals import Break
from .collective_calls import group_of, operation_of

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__: list[str] = []

_C10D = "torch.distributed.distributed_c10d"
_ops = getattr(torch.ops, SPACE)


class Message:
    """What has begun: `token` is ready when it is over, and holds what is to be written to `into`."""

    def __init__(self, token: torch.Tensor, into: Any):
        self.token, self.into, self.over = token, into, False

    def wait(self, timeout: Any = None) -> bool:
        if not self.over:
            self.over = True
            with torch.no_grad():
                result = torch.ops._c10d_functional.wait_tensor.default(self.token)
                if isinstance(self.into, torch.Tensor):
                    self.into.copy_(result)
                elif self.into is not None:
                    for part, given in zip(self.into, result.unbind()):
                        part.copy_(given)
        return True

    def is_completed(self) -> bool:
        return self.wait()

    def is_success(self) -> bool:
        return self.wait()

    def synchronize(self) -> None:
        self.wait()

    def exception(self) -> None:
        return None


def begun(into: Any, async_op: bool, op: Any, tensor: torch.Tensor, *args: Any) -> Message | None:
    """One exchange. It has no history."""
    with torch.no_grad():
        message = Message(op(tensor, *args), into)
    if async_op:
        return message
    message.wait()
    return None


def stacked(tensors: Any) -> torch.Tensor:
    return torch.stack(list(tensors))


def batch(messages: Any) -> list:
    return [each.op(each.tensor, each.peer, each.group, each.tag) for each in messages]


def _begin(machine: Machine, op: str, tensor: Any, args: list, into: Any, async_op: Any) -> Any:
    return interpret(machine, begun, [into, async_op, getattr(_ops, op).default, tensor, *args], {})


def _place(machine: Machine, group: Any, rank: Any, group_rank: Any) -> tuple[str, int, int, int]:
    """The name of a group, how many are in it, and the ranks in it of another process and of this one."""
    from torch.distributed import distributed_c10d

    name, size = group_of(machine, group)
    members = distributed_c10d._resolve_process_group(name)
    other = machine.native(
        distributed_c10d._canonicalize_group_rank, members, machine.plain(rank), machine.plain(group_rank)
    )
    return name, size, other, members.rank()


def _parts(machine: Machine, name: str, tensor: Any, given: Any, expected: int) -> list:
    """The tensors of a root, one for each process. torch.distributed refuses those of several dtypes; of several sizes
    backends do.
    """
    parts = [] if given is None else list(machine.iterate(given))
    if len(parts) != expected:
        raise Break("c_call", f"torch.distributed.{name} gets another number of tensors than there are processes")
    first, *others = [(machine.getattr(t, "dtype"), *machine.getattr(t, "shape")) for t in (tensor, *parts)]
    if any(one != first for one in others):
        raise Break("c_call", "processes exchange tensors of several dtypes or sizes")
    return parts


def _send(machine: Machine, tensor: Any, dst: Any, group: Any, tag: Any, group_dst: Any, later: bool) -> Any:
    name, _, other, own = _place(machine, group, dst, group_dst)
    if other == own:
        raise Break("c_call", "a process sends to itself")
    return _begin(machine, "send", tensor, [not later, other, machine.plain(tag), name], None, later)


@python_function((_C10D, "send"))
def send(
    machine: Machine, tensor: Any, dst: Any = None, group: Any = None, tag: Any = 0, group_dst: Any = None
) -> None:
    _send(machine, tensor, dst, group, tag, group_dst, False)


@python_function((_C10D, "isend"))
def isend(
    machine: Machine, tensor: Any, dst: Any = None, group: Any = None, tag: Any = 0, group_dst: Any = None
) -> Any:
    return _send(machine, tensor, dst, group, tag, group_dst, True)


def _receive(machine: Machine, tensor: Any, src: Any, group: Any, tag: Any, group_src: Any, later: bool) -> tuple:
    from torch.distributed import distributed_c10d

    if src is None and group_src is None:
        raise Break("c_call", "a process receives from whichever process sends")
    name, _, other, own = _place(machine, group, src, group_src)
    if other == own:
        raise Break("c_call", "a process receives from itself")
    message = _begin(machine, "receive", tensor, [other, machine.plain(tag), name], tensor, later)
    members = distributed_c10d._resolve_process_group(name)
    return message, machine.native(distributed_c10d.get_global_rank, members, other)


@python_function((_C10D, "recv"))
def recv(machine: Machine, tensor: Any, src: Any = None, group: Any = None, tag: Any = 0, group_src: Any = None) -> Any:
    return _receive(machine, tensor, src, group, tag, group_src, False)[1]


@python_function((_C10D, "irecv"))
def irecv(
    machine: Machine, tensor: Any, src: Any = None, group: Any = None, tag: Any = 0, group_src: Any = None
) -> Any:
    return _receive(machine, tensor, src, group, tag, group_src, True)[0]


@python_function((_C10D, "batch_isend_irecv"))
def batch_isend_irecv(machine: Machine, p2p_op_list: Any) -> Any:
    from torch.distributed import distributed_c10d

    for each in machine.iterate(p2p_op_list):
        name, _ = group_of(machine, machine.getattr(each, "group"))
        members = distributed_c10d._resolve_process_group(name)
        device = machine.getattr(machine.getattr(each, "tensor"), "device")
        if getattr(members._get_backend(device), "supports_coalescing", False):
            raise Break("c_call", "this backend begins a batch of messages at once")
    return interpret(machine, batch, [p2p_op_list], {})


@python_function((_C10D, "gather"))
def gather(
    machine: Machine,
    tensor: Any,
    gather_list: Any = None,
    dst: Any = None,
    group: Any = None,
    async_op: Any = False,
    group_dst: Any = None,
) -> Any:
    name, size, root, own = _place(machine, group, 0 if dst is None and group_dst is None else dst, group_dst)
    _parts(machine, "gather", tensor, gather_list, size if root == own else 0)
    return _begin(machine, "gather_to", tensor, [own == root, root, size, name], gather_list or None, async_op)


@python_function((_C10D, "scatter"))
def scatter(
    machine: Machine,
    tensor: Any,
    scatter_list: Any = None,
    src: Any = None,
    group: Any = None,
    async_op: Any = False,
    group_src: Any = None,
) -> Any:
    name, size, root, own = _place(machine, group, 0 if src is None and group_src is None else src, group_src)
    parts = _parts(machine, "scatter", tensor, scatter_list, size if root == own else 0)
    with_parts = interpret(machine, stacked, [scatter_list], {}) if parts else tensor
    return _begin(machine, "scatter_from", with_parts, [own == root, root, name], tensor, async_op)


@python_function((_C10D, "reduce"))
def reduce(
    machine: Machine,
    tensor: Any,
    dst: Any = None,
    op: Any = None,
    group: Any = None,
    async_op: Any = False,
    group_dst: Any = None,
) -> Any:
    name, _, root, _ = _place(machine, group, dst, group_dst)
    operation = operation_of(machine, torch.distributed.ReduceOp.SUM if op is None else op)
    return _begin(machine, "reduce_to", tensor, [operation, root, name], tensor, async_op)


@python_function((_C10D, "barrier"))
def barrier(
    machine: Machine, group: Any = None, async_op: Any = False, device_ids: Any = None, timeout: Any = None
) -> Any:
    if device_ids is not None or timeout is not None:
        raise Break("c_call", "torch.distributed.barrier")
    name, _ = group_of(machine, group)
    return _begin(machine, "barrier", machine.call(torch.empty, [0]), [name], None, async_op)
