"""The process group of the ranks: made, broken off where a rank would wait for ever, and made anew.

A rank that waits in a collective of gloo runs no Python, and gloo has no abort. Its connections can be shut, though:
those that the making of the group opened. NCCL's operations are aborted.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from ...compiler.frontend.ranks import forget_answers

__all__ = ["RankGroup", "live_groups"]


def live_groups() -> list[tuple[str, Any]]:
    """Name and object of each process group of this rank."""
    return [(name, group) for group, name in _world.pg_names.items()]


class RankGroup:
    """The default group of this rank, on `device`. `number` counts how often it was made."""

    def __init__(self, device: str):
        self.device, self.number = device, 0
        self._store, self.rank, self.size = next(dist.rendezvous("env://"))
        self._opened: set[tuple[str, str]] = set()

    def make(self, number: int) -> None:
        """Join the group of that number; one that is there is left first."""
        if dist.is_initialized():
            self.break_off()
            dist.destroy_process_group()
        forget_answers()
        before = _sockets()
        backend = "cpu:gloo,cuda:nccl" if self.device == "cuda" else "gloo"
        store = dist.PrefixStore(f"tcompile/{number}", self._store)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size)
        dist.barrier()
        self._opened = _sockets() - before
        self.number = number

    def break_off(self) -> None:
        """Let everybody who waits in a collective of this group go, here and on other ranks: with an error."""
        if self.device == "cuda":
            for _, group in live_groups():
                with contextlib.suppress(RuntimeError):  # of a group without NCCL
                    group._get_backend(torch.device("cuda")).abort()
        for name, link in self._opened & _sockets():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
                connection.getpeername()  # not what gloo listens at: its thread would end the process
                connection.shutdown(socket.SHUT_RDWR)
        self._opened = set()


def _sockets() -> set[tuple[str, str]]:
    """The open sockets of this process: number and inode. Empty where the system doesn't say."""
    out = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                link = os.readlink(f"/proc/self/fd/{name}")
                if link.startswith("socket:"):
                    out.add((name, link))
    return out
