"""The option `ranks=`: how many processes, on what, and whether this process starts them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ...compiler.errors import OptionError

__all__ = ["RanksPlan", "parse_ranks", "ADDRESS", "KEY", "HELP"]

ADDRESS = "TCOMPILE_RANKS_ADDRESS"  # where a rank finds the notebook's process
KEY = "TCOMPILE_RANKS_KEY"  # a secret that both know

HELP = (
    "processes that run the cell, each a rank of torch.distributed: ranks=2, ranks=cpu:4, or ranks=16@host:port for"
    " ranks that torchrun starts on several hosts"
)
_FORM = re.compile(r"(?:(cpu|cuda):)?(\d+)(?:@([^:@\s]+|\[[^\]]+\]):(\d+))?")
_MOST = 1024


@dataclass(frozen=True)
class RanksPlan:
    """`device` is "cpu" or "cuda". `host` and `port`: where this process waits for ranks that others start."""

    count: int
    device: str
    host: str = ""
    port: int = 0

    @property
    def started_here(self) -> bool:
        return not self.host

    def command(self) -> str:
        """What starts the ranks of several hosts: one line for each host."""
        device = "" if self.device == "cuda" else " --device cpu"
        return (
            f"{ADDRESS}={self.host}:{self.port} {KEY}=... torchrun --nnodes=HOSTS --nproc-per-node=RANKS_OF_A_HOST"
            f" --rdzv-backend=c10d --rdzv-endpoint=FIRST_HOST:29500 -m tcompile.kernel_magics.ranks{device}"
        )


def parse_ranks(value: str) -> RanksPlan | None:
    """The plan of `ranks=value`; None for `off`. Raises OptionError."""
    text = str(value).strip().lower()
    if text in ("off", "none"):
        return None
    found = _FORM.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= _MOST:
        raise OptionError(
            f"ranks= is the number of processes that run the cell, a whole number from 1 to {_MOST}, such as ranks=2,"
            f" ranks=cpu:4 or ranks=16@host:29600; got {value!r}"
        )
    asked, count, host, port = found[1], int(found[2]), found[3] or "", int(found[4] or 0)
    if host:
        if not 0 < port < 65536:
            raise OptionError(f"ranks={value}: the port is a whole number from 1 to 65535")
        if not os.environ.get(KEY):
            raise OptionError(
                f"ranks={value}: ranks of other hosts have to know a secret. Set the environment variable {KEY} to the"
                " same value in this kernel (`%env`, before the cell) and on the hosts"
            )
        return RanksPlan(count, asked or "cuda", host.strip("[]"), port)
    return RanksPlan(count, _device(value, asked, count))


def _device(value: str, asked: str | None, count: int) -> str:
    """The kind of device of ranks on this machine. Counting its GPUs makes no CUDA context."""
    import torch

    gpus = torch.cuda.device_count() if asked != "cpu" and torch.cuda.is_available() else 0
    if asked == "cuda" and not gpus:
        raise OptionError(f"ranks={value}: torch finds no GPU here; write ranks=cpu:{count}")
    if gpus and count > gpus:
        raise OptionError(
            f"ranks={value}: a rank has a GPU of its own, and this machine has {gpus}; write ranks={gpus}, or"
            f" ranks=cpu:{count} for processes on the CPU"
        )
    return "cuda" if gpus else "cpu"
