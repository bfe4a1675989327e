"""What a rank did while a cell ran: when it compiled, when it communicated, how much memory it needed.

Collectives are those that torch's flight recorder saw: it stands below every way to them, eager, compiled, functional.
On the CPU it doesn't say when one ended; hooks of the process groups do, where torch has them. On a GPU it says how
long each took there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from ...compiler import events
from .rank_group import live_groups

__all__ = ["RankRecorder", "BUFFER"]

BUFFER = {"TORCH_FR_BUFFER_SIZE": "20000", "TORCH_NCCL_ENABLE_TIMING": "1"}
_HOOK = 7261  # under which the hooks are registered
_SOON = 1_000_000  # nanoseconds between two waits for the compiler that are one


class _Heard:
    """What hooks hear of a collective: its operator, whether the program waits at the call, when it was done."""

    def __init__(self, name: str, sync: bool):
        self.name, self.sync = name, sync
        self.end: int | None = None

    def ended(self, _: Any) -> None:
        self.end = time.time_ns()


def _operator(name: str) -> str:
    """`gloo:all_reduce` and `_allgather_base` as hooks call them."""
    return name.rpartition(":")[2].replace("_", "").lower()


class RankRecorder:
    """`begin`, run, `end`: the facts of a cell, with times in nanoseconds of the clock that hosts share."""

    def __init__(self, device: str):
        self.device = device
        self._since = time.time_ns()  # the process group is there from now on
        self._recorded = bool(_flight_record())  # its first barrier, at least
        self._hooked: set[int] = set()
        self._heard: dict[str, list[_Heard]] = {}  # by group, in order
        self._compiling: list[list[int]] = []
        self._depth: dict[int, int] = {}

    def begin(self) -> None:
        self._heard, self._compiling, self._depth = {}, [], {}
        self._hook_groups()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            with suppress(OSError), open("/proc/self/clear_refs", "w") as f:
                f.write("5")  # from now on the peak is this cell's
        events.subscribe(self._hear)
        self._began = time.time_ns()

    def end(self) -> dict[str, Any]:
        if self.device == "cuda":
            torch.cuda.synchronize()  # what the cell began is the cell's
        ended = time.time_ns()
        events.unsubscribe(self._hear)
        peak, kept = self._memory()
        return {
            "began": self._began,
            "ended": ended,
            "compiling": self._compiling,
            "collectives": self._collectives(),
            "peak": peak,
            "kept": kept,
        }

    # -- compiling
    def _hear(self, e: Any) -> None:
        if e.kind != "stage":
            return
        me, now = threading.get_ident(), time.time_ns()
        if e.phase == "begin":
            self._depth[me] = self._depth.get(me, 0) + 1
            if self._depth[me] == 1:
                last = self._compiling[-1] if self._compiling else None
                if last is not None and now - last[1] < _SOON:
                    last[1] = now
                else:
                    self._compiling.append([now, now])
        else:
            self._depth[me] = self._depth.get(me, 1) - 1
            if self._compiling:
                self._compiling[-1][1] = now

    # -- communication
    def _hook_groups(self) -> None:
        """Hear when collectives of groups that are there end. Groups that a cell makes are heard once a collective of
        another group has begun."""
        if not hasattr(dist.ProcessGroup, "register_post_hook") or self.device == "cuda":
            return
        for name, group in live_groups():
            if id(group) not in self._hooked:
                self._hooked.add(id(group))
                group.register_post_hook(_HOOK, self._hook_of(name))

    def _hook_of(self, name: str) -> Any:
        def after(args: Any) -> None:
            heard = _Heard(args.name.name.replace("_", "").lower(), not args.async_op)
            self._heard.setdefault(name, []).append(heard)
            if len(live_groups()) != len(self._hooked):
                self._hook_groups()
            if args.work is None:
                return
            with suppress(RuntimeError):  # of a backend whose works have no future
                args.work.get_future().add_done_callback(heard.ended)

        return after

    def _collectives(self) -> list[dict[str, Any]]:
        out = []
        entries = [e for e in _flight_record() if e["time_created_ns"] >= self._began]
        heard = self._heard_of(entries)
        for i, entry in enumerate(entries):
            group, length = entry["process_group"][0], entry.get("duration_ms")
            out.append(
                {
                    "name": entry["profiling_name"],
                    "group": group,
                    "number": entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"],
                    "p2p": entry["is_p2p"],
                    "begin": entry["time_created_ns"],
                    "end": heard[i].end if i in heard else None,
                    "took": None if length is None else int(length * 1e6),
                    "sync": heard[i].sync if i in heard else None,
                    "sizes": entry["input_sizes"],
                    "dtypes": entry["input_dtypes"],
                }
            )
        return out

    def _heard_of(self, entries: list[dict[str, Any]]) -> dict[int, _Heard]:
        """What the hooks heard of the recorder's entries. Both are in order, and a group that was made in the cell has
        hooks only from some entry on. Where the two tell of different operators, nothing is said."""
        out: dict[int, _Heard] = {}
        for group, heard in self._heard.items():
            places = [i for i, e in enumerate(entries) if e["process_group"][0] == group][-len(heard) :]
            names = [_operator(entries[i]["profiling_name"]) for i in places]
            if len(places) == len(heard) and all(n.startswith(h.name) for n, h in zip(names, heard)):
                out.update(zip(places, heard))
        return out

    def sequence(self) -> dict[str, int] | None:
        """How many collectives each group has had: ranks that agree can go on with the group. None: not known."""
        if not self._recorded:
            return None
        out = {name: 0 for name, _ in live_groups()}
        for entry in _flight_record():
            if not entry["is_p2p"] and entry["time_created_ns"] >= self._since:
                group = entry["process_group"][0]
                out[group] = max(out.get(group, 0), entry["collective_seq_id"])
        return out

    def _memory(self) -> tuple[int | None, int | None]:
        """Bytes at the most and bytes now: of the GPU's memory, else of the process."""
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        found = {}
        with suppress(OSError), open(f"/proc/{os.getpid()}/status") as f:
            found = {k: v for k, _, v in (line.partition(":") for line in f)}
        peak, now = (int(found[k].split()[0]) * 1024 if k in found else None for k in ("VmHWM", "VmRSS"))
        return peak, now


def _flight_record() -> list[dict[str, Any]]:
    from torch._C import _distributed_c10d as c10d

    out: dict[tuple, dict[str, Any]] = {}
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            for entry in json.loads(dump()).get("entries", ()):
                key = (entry["process_group"][0], entry["is_p2p"], entry["op_id"], entry["time_created_ns"])
                if "duration_ms" in entry or key not in out:
                    out[key] = entry
    return sorted(out.values(), key=lambda e: e["time_created_ns"])
