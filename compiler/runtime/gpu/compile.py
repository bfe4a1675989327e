"""Triton source and CUDA C++ to device binaries: worker processes, and the disk cache.

A binary's file is one line of JSON (entry names, shared memory, threads, sizes) and the functions' code. Its key is the
content: source, constants, types, alignment, options, target, the version of triton and the text of worker.py; so a
warm start imports no triton at all.
"""

from __future__ import annotations

import base64
import json
import queue
import re
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import torch

from ... import events
from ...base import forks
from ...codegen.triton.layout import GpuTarget
from ...codegen.triton.open_numbers import is_number
from ...codegen.triton.printer import TritonSource
from ...errors import NoToolchainError, RejectedKernel, ToolchainError
from ..cache import KernelCache, content_key, open_cache, temporary_cache
from ..cache_misses import remember, why_missing
from .reproduce_rejection import keep_reproducer
from .workers import Worker, give, processes, take, toolchain, triton_version

# what does not matter in a kernel's text: its number within a graph, and the comments that it begins with
_COUNT = re.compile(r"^k\d+_")
_HEADER = re.compile(r"^#.*", re.MULTILINE)

__all__ = ["Binary", "Part", "Job", "compile_all"]


@dataclass(frozen=True)
class Part:
    """One function of a binary. `entry`: its symbol; `shared`: bytes of dynamic shared memory; `threads` per program;
    `packed`: its assembly, deflated in base 64."""

    name: str
    entry: str
    shared: int
    threads: int
    code: bytes
    packed: str

    def assembly(self) -> str:
        """PTX, or AMD's assembly, with the lines of the Triton source (worker.py, `readable`)."""
        return zlib.decompress(base64.b64decode(self.packed)).decode()


@dataclass(frozen=True)
class Binary:
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Job:
    """One kernel to compile. `aligned`: whether all its pointers are multiples of 16 bytes. `contract`: whether a * b +
    c may become one instruction. Kernels that are equal but for their names make one request."""

    source: TritonSource
    target: GpuTarget
    aligned: bool = True
    contract: bool = True

    def request(self) -> dict[str, Any]:
        if self.source.language == "cuda":
            (f,) = self.source.functions
            parts = [{"name": f.name, "shared": self.source.shared, "threads": f.warps * self.target.warp}]
            return {
                "language": "cuda",
                "text": self.source.text,
                "target": [self.target.backend, self.target.arch, self.target.warp],
                "functions": parts,
                "toolkit": torch.version.cuda,
            }
        functions = []
        own, shared = self.source.name, _COUNT.sub("k_", self.source.name)
        for f in self.source.functions:
            signature = {**dict(f.arguments), **dict.fromkeys(f.constants, "constexpr")}
            pointers = [
                i
                for i, (n, t) in enumerate(f.arguments)
                if t.startswith("*") and (self.aligned or n.startswith("part")) or is_number(n)
            ]
            options: dict[str, Any] = {"num_warps": f.warps, "num_stages": f.stages, "enable_fp_fusion": self.contract}
            if self.target.backend == "cuda":
                options["enable_reflect_ftz"] = False  # eager keeps denormals
            if self.source.asserts:
                options |= {"debug": True, "sanitize_overflow": False}
            functions.append(
                {
                    "name": f.name.replace(own, shared, 1),
                    "signature": signature,
                    "constants": f.constants,
                    "aligned": pointers,
                    "options": options,
                }
            )
        t = self.target
        text = _HEADER.sub("#", self.source.text).replace(own, shared)
        return {"text": text, "target": [t.backend, t.arch, t.warp], "functions": functions}


# ---- from jobs to binaries
_loaded: dict[str, Binary] = {}


def compile_all(jobs: Sequence[Job], opts: Any) -> list[Binary]:
    """The binaries of all jobs, in order; what the disk cache lacks is compiled in parallel. Raises ToolchainError."""
    if triton_version() is None:
        raise NoToolchainError("triton is not installed: pip install triton")
    cache = open_cache(opts)
    requests = [j.request() for j in jobs]
    names = [j.source.name for j in jobs]
    keys = [content_key(json.dumps(r, sort_keys=True), (), toolchain()) for r in requests]
    missing: dict[str, int] = {}
    for i, key in enumerate(keys):
        if key in _loaded or key in missing:
            continue
        path = cache.get(key)
        binary = _read(path) if path is not None else None
        name = names[i]
        if binary is not None:
            _loaded[key] = binary
            events.emit("cache", key=key, hit=True, reason="", what=name)
        else:
            missing[key] = i
            reason = why_missing(cache, name, requests[i]["text"], _settings(requests[i]), toolchain())
            events.emit("cache", key=key, hit=False, reason=reason, what=name)
    if missing:
        try:
            _compile(missing, requests, names, cache, opts)
        except OSError as e:
            try:
                _compile(
                    missing,
                    requests,
                    names,
                    temporary_cache(opts, f"cache folder {cache.root} can't be written: {e}"),
                    opts,
                )
            except OSError as again:
                raise ToolchainError(f"compiled kernels can't be written: {again}") from e
    return [_loaded[k] for k in keys]


def _settings(request: dict[str, Any]) -> tuple[str, ...]:
    """What a binary's key is made of beside its text, one word each: the device, constants and options of its
    functions.
    """
    words = [f"target={'.'.join(map(str, request['target']))}"]
    if "toolkit" in request:
        return *words, f"toolkit={request['toolkit']}", f"functions={json.dumps(request['functions'])}"
    for i, f in enumerate(request["functions"]):
        where = f"{f['name']}." if i else ""
        words += [
            f"{where}{k}={json.dumps(v)}" for part in ("constants", "options") for k, v in sorted(f[part].items())
        ]
        words += [f"{where}{k}={json.dumps(f[k], separators=(',', ':'))}" for k in ("aligned", "signature")]
    return tuple(words)


def _compile(
    missing: dict[str, int], requests: list[dict[str, Any]], names: list[str], cache: KernelCache, opts: Any
) -> None:
    work = cache.workspace()
    busy: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    taken: list[Worker] = []
    n = min(len(missing), processes(opts))
    clean = False
    try:
        for _ in range(n):
            w = take()
            taken.append(w)
            busy.put(w)

        def one(item: tuple[str, int]) -> None:
            key, i = item
            w = busy.get()
            try:
                out = work / f"{key}.bin"
                answer = w.ask({**requests[i], "out": str(out)})
                if "errno" in answer:
                    raise OSError(answer["errno"], answer["error"])
                if "error" in answer:
                    file = keep_reproducer(cache.folder, names[i], key, requests[i], answer["error"])
                    alone = f"To see it alone: {file}\n" if file is not None else ""
                    raise RejectedKernel(
                        f"{'NVRTC' if 'toolkit' in requests[i] else 'triton'} rejects a generated kernel:"
                        f" {answer['error']}\n{alone}{requests[i]['text']}"
                    )
                packed = work / f"{key}.so"
                packed.write_bytes(json.dumps(answer["functions"]).encode() + b"\n" + out.read_bytes())
                binary = _read(packed)
                if binary is None:
                    raise ToolchainError("the process that compiles Triton code wrote an incomplete binary")
                cache.put(key, packed, requests[i]["text"])
                remember(cache, names[i], key, requests[i]["text"], _settings(requests[i]), toolchain())
                _loaded[key] = binary
            finally:
                busy.put(w)

        if n == 1:
            for item in missing.items():
                one(item)
        else:
            with forks.pool(n) as pool:
                list(pool.map(one, missing.items()))
        clean = True
    except ToolchainError:
        clean = True  # every worker has answered, or has ended
        raise
    finally:
        for w in taken:
            if clean:
                give(w)
            else:
                w.stop()  # it may be in the middle of a job
        shutil.rmtree(work, ignore_errors=True)


def _read(path: Path) -> Binary | None:
    data = path.read_bytes()
    head, _, code = data.partition(b"\n")
    try:
        described = json.loads(head)
        parts, at = [], 0
        for f in described:
            parts.append(
                Part(f["name"], f["entry"], f["shared"], f["threads"], code[at : at + f["bytes"]], f["assembly"])
            )
            at += f["bytes"]
    except (ValueError, KeyError, TypeError):
        return None
    return Binary(tuple(parts)) if at == len(code) else None
