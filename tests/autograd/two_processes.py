"""Runs cases in two or more processes of one group, each eager and compiled, and prints a line of JSON for each."""

from __future__ import annotations

import faulthandler
import importlib
import json
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["WORLD", "start"]

WORLD = 2
# gloo's thread may be the last to let a tensor go, for which it needs Python: a process that ends meanwhile aborts
_exchanged: list[torch.Tensor] = []


def start(module: str, backend: str, *names: str, world: int = WORLD) -> None:
    """The CASES of a module by its `compare(case, device)`, which gives a row whose "same" has to hold in all
    processes. `names`: no other cases.
    """
    with tempfile.TemporaryDirectory() as folder:  # a free port may be another's before the group binds it
        torch.multiprocessing.spawn(_process, (folder, module, backend, names, world), nprocs=world)


def _process(rank: int, folder: str, module: str, backend: str, names: Sequence[str], world: int) -> None:
    warnings.simplefilter("ignore")
    faulthandler.enable()
    runs = importlib.import_module(module)
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    else:
        give_gloo_one_thread()
    dist.init_process_group(backend, init_method=f"file://{folder}/group", rank=rank, world_size=world)
    for case in runs.CASES:
        if names and case.__name__ not in names:
            continue
        row: dict[str, Any] = runs.compare(case, device)
        same = torch.tensor([float(row["same"])], device=device)
        _exchanged.append(same)
        dist.all_reduce(same, dist.ReduceOp.MIN)
        row["same"] = bool(same.item())
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def give_gloo_one_thread() -> None:
    """gloo's two threads share a context, and gathers that run on both at once end the process now and then with a
    broken heap: about one of 200,000 in plain PyTorch 2.14. One thread for each group does not.
    """
    of_torch = dist.ProcessGroupGloo
    make = of_torch.__init__

    def with_one_thread(group: Any, store: Any, rank: int, size: int, timeout: Any, **_: Any) -> None:
        options = of_torch._Options()
        options._threads, options._timeout = 1, timeout
        options._devices = [of_torch.create_default_device()]
        make(group, store, rank, size, options)

    of_torch.__init__ = with_one_thread
