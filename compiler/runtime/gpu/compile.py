"""Triton source and CUDA C++ to device binaries: worker processes, and the disk cache.

A binary's file is one line of JSON (entry names, shared memory, threads, sizes) and the functions' code. Its key is the
content: source, constants, types, alignment, options, target, the version of triton and the text of worker.py; so a
warm start imports no triton at all.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import signal
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Sequence

import torch

from ... import events
from ...base import forks, meanwhile
from ...codegen.kernel_sources import TritonSource
from ...codegen.triton.layout import GpuTarget
from ...codegen.triton.open_numbers import is_number
from ...errors import NoToolchainError, RejectedKernel, ToolchainError
from ..cache import KernelCache, content_key, open_cache, temporary_cache
from ..cache_misses import remember, why_missing
from .job_queue import Answer, drop, put
from .reproduce_rejection import keep_reproducer
from .workers import give, processes, take, toolchain, triton_version

# what does not matter in a kernel's text: its number within a graph, and the comments that it begins with
_COUNT = re.compile(r"^k\d+_")
_HEADER = re.compile(r"^#.*", re.MULTILINE)

__all__ = ["Binary", "Part", "Job", "begin", "compile_all", "refused_by_device"]


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
            (function,) = self.source.functions
            parts = [
                {"name": function.name, "shared": self.source.shared, "threads": function.warps * self.target.warp}
            ]
            return {
                "language": "cuda",
                "text": self.source.text,
                "target": [self.target.backend, self.target.arch, self.target.warp],
                "functions": parts,
                "toolkit": torch.version.cuda,
            }
        functions = []
        own, shared = self.source.name, _COUNT.sub("k_", self.source.name)
        for function in self.source.functions:
            signature = {**dict(function.arguments), **dict.fromkeys(function.constants, "constexpr")}
            pointers = [
                i
                for i, (n, t) in enumerate(function.arguments)
                if t.startswith("*") and (self.aligned or n.startswith("part")) or is_number(n)
            ]
            options: dict[str, Any] = {
                "num_warps": function.warps,
                "num_stages": function.stages,
                "enable_fp_fusion": self.contract,
            }
            if self.target.backend == "cuda":
                options["enable_reflect_ftz"] = False  # eager keeps denormals
            if self.source.asserts:
                options |= {"debug": True, "sanitize_overflow": False}
            functions.append(
                {
                    "name": function.name.replace(own, shared, 1),
                    "signature": signature,
                    "constants": function.constants,
                    "aligned": pointers,
                    "options": options,
                }
            )
        target = self.target
        text = _HEADER.sub("#", self.source.text).replace(own, shared)
        return {"text": text, "target": [target.backend, target.arch, target.warp], "functions": functions}


# ---- from jobs to binaries
_loaded: dict[str, Binary] = {}
_asked: dict[str, Answer] = {}  # by key: what is compiled at this moment, or waits for its turn


def compile_all(jobs: Sequence[Job], opts: Any) -> list[Binary]:
    """The binaries of all jobs, in order; what the disk cache lacks is compiled in parallel. Raises ToolchainError."""
    keys, answers = _begin(jobs, opts, open_cache(opts))
    if answers:
        try:
            _wait(answers)
        except OSError as e:
            why = f"cache folder {open_cache(opts).root} can't be written: {e}"
            for key, answer in answers.items():
                if _asked.get(key) is answer:  # it still writes there: it would be taken for one of the next
                    with contextlib.suppress(Exception):
                        answer.result()
            _, answers = _begin(jobs, opts, temporary_cache(opts, why), quiet=True)
            try:
                _wait(answers)
            except OSError as again:
                raise ToolchainError(f"compiled kernels can't be written: {again}") from e
    return [_loaded[key] for key in keys]


def begin(jobs: Sequence[Job], opts: Any) -> None:
    """Have jobs compiled that will be asked for later (`compile_all`), behind those that somebody waits for. What goes
    wrong is said then.
    """
    _begin(jobs, opts, open_cache(opts), later=True)


def _begin(
    jobs: Sequence[Job], opts: Any, cache: KernelCache, later: bool = False, quiet: bool = False
) -> tuple[list[str], dict[str, Answer]]:
    """The jobs' keys, and the answers to wait for. quiet: what the cache lacks was said before."""
    if triton_version() is None:
        raise NoToolchainError("triton is not installed: pip install triton")
    limit = processes(opts)
    keys: list[str] = []
    answers: dict[str, Answer] = {}
    for job in jobs:
        request, name = job.request(), job.source.name
        key = content_key(json.dumps(request, sort_keys=True), (), toolchain())
        keys.append(key)
        if key in _loaded or key in answers:
            continue
        under_way = _asked.get(key)
        if under_way is not None:
            answers[key] = under_way
            continue
        path = cache.get(key)
        binary = _read(path) if path is not None else None
        if binary is not None:
            _loaded[key] = binary
            events.emit("cache", key=key, hit=True, reason="", what=name)
            continue
        if not quiet:
            reason = why_missing(cache, name, request["text"], _settings(request), toolchain())
            events.emit("cache", key=key, hit=False, reason=reason, what=name)
        order = later, -len(request["text"]) * len(request["functions"])
        answers[key] = _asked[key] = Answer(partial(_compile, key, request, name, cache))
        put(answers[key], order, limit)
    return keys, answers


def _wait(answers: dict[str, Answer]) -> None:
    """Until all are there. Raises what the first of them raises; those that have not begun are left out then."""
    try:
        meanwhile.use(lambda: all(a.ended() for a in answers.values()))
        for answer in answers.values():
            answer.result()
    except BaseException:
        gone = set(map(id, drop(answers.values())))
        for key, answer in answers.items():
            if id(answer) in gone:
                _asked.pop(key, None)
        raise


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


def _compile(key: str, request: dict[str, Any], name: str, cache: KernelCache) -> None:
    """Have a process compile one kernel, and keep it: in `_loaded`, and on disk."""
    try:
        work = cache.workspace()
        try:
            out = work / f"{key}.bin"
            answer = _ask({**request, "out": str(out)})
            if "errno" in answer:
                raise OSError(answer["errno"], answer["error"])
            if "machine" in answer:
                raise ToolchainError(f"the compiler of GPU kernels does not work here: {answer['error']}")
            if "error" in answer:
                who = "NVRTC" if "toolkit" in request else "triton"
                raise _rejection(who, "compile", answer["error"], cache, name, key, request)
            packed = work / f"{key}.so"
            packed.write_bytes(json.dumps(answer["functions"]).encode() + b"\n" + out.read_bytes())
            binary = _read(packed)
            if binary is None:
                raise ToolchainError("the process that compiles Triton code wrote an incomplete binary")
            cache.put(key, packed, request["text"])
            remember(cache, name, key, request["text"], _settings(request), toolchain())
            _loaded[key] = binary
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        _asked.pop(key, None)


def refused_by_device(job: Job, opts: Any, error: Exception) -> RejectedKernel:
    """The same as what a compiler's refusal raises, where the device refuses what was compiled."""
    request = job.request()
    key = content_key(json.dumps(request, sort_keys=True), (), toolchain())
    return _rejection("the device", "load", str(error), open_cache(opts), job.source.name, key, request)


def _rejection(
    who: str, stage: str, error: str, cache: KernelCache, name: str, key: str, request: dict[str, Any]
) -> RejectedKernel:
    file = keep_reproducer(cache.folder, name, key, request, error, stage)
    alone = f"To see it alone: {file}\n" if file is not None else ""
    return RejectedKernel(f"{who} rejects a generated kernel: {error}\n{alone}{request['text']}")


# how a process ends whose compiler crashes, by the kernel's fault
_CRASHES = {-s for s in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)}


def _ask(request: dict[str, Any], again: bool = True) -> dict[str, Any]:
    """A process's answer. Where it was killed (the machine had no memory left) another one is asked, once."""
    worker = take()
    try:
        answer = worker.ask(request)
    except ToolchainError as e:
        if worker.died in _CRASHES:
            return {"error": f"the compiler crashes: {e}"}
        if worker.died == -signal.SIGKILL and again:
            return _ask(request, False)
        raise
    except BaseException:
        worker.stop()  # it may be in the middle of the job
        raise
    give(worker)
    return answer


@forks.in_child
def _forget() -> None:
    _asked.clear()


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
