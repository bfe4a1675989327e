"""Exported programs on disk: a zip archive of one JSON text and the raw bytes of the tensors.

Nothing in it is executed or unpickled: a graph may only call torch's tensor functions (`targets.py`), sizes are evaluated by a table of
operations, and what does not fit is an ExportError.
"""
from __future__ import annotations

import ctypes
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn

from ..errors import ExportError, TCompileError
from .graphs import decode_graph, encode_graph
from .program import Check, ExportedProgram, Input
from .values import decode, encode

__all__ = ["save", "load_exported"]

_FORMAT = "tcompile exported program"
_VERSION = 1


def save(program: ExportedProgram, path: Any) -> None:
    """Write the program to `path`; a file that is there is replaced once the new one is whole."""
    tensors: dict[int, int] = {}
    kept: list[torch.Tensor] = []
    state = []
    for name, t in program.state.items():
        index = tensors.setdefault(id(t), len(kept))
        if index == len(kept):
            kept.append(t)
        state.append([name, index])
    signature = [[name, kind, None if default is None else _default(name, default[0])] for name, kind, default in program.signature]
    text = {
        "format": _FORMAT, "version": _VERSION, "torch": torch.__version__, "name": program.name, "training": program.training,
        "grad_matters": program.grad_matters, "signature": signature, "graph": encode_graph(program.graph_module),
        "inputs": [[i.name, i.kind, encode(i.path), i.key] for i in program.inputs],
        "checks": [[c.kind, encode(c.path), encode(c.expected), c.where] for c in program.checks],
        "result": encode(program.result), "state": state, "symbols": encode(program.symbols), "parameters": program.parameters,
        "tensors": [_describe(t) for t in kept],
    }
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as f, zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
            z.writestr("program.json", json.dumps(text))
            for k, t in enumerate(kept):
                z.writestr(f"tensors/{k}", _bytes(t))
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _default(name: str, value: Any) -> list:
    try:
        return [encode(value)]
    except ExportError:
        raise ExportError(f"the default of the parameter {name!r} is a {type(value).__name__} and cannot be saved: pass it as an argument, "
                          "or make the default a plain value") from None


def _describe(t: torch.Tensor) -> dict:
    if t.layout is not torch.strided or type(t) not in (torch.Tensor, nn.Parameter, nn.Buffer) or t.is_quantized:
        raise ExportError(f"a tensor of state is a {type(t).__name__} of layout {t.layout}; only dense tensors can be saved")
    return {"dtype": str(t.dtype), "shape": list(t.shape), "stride": list(t.stride()), "device": str(t.device),
            "requires_grad": t.requires_grad, "parameter": isinstance(t, nn.Parameter)}


def _bytes(t: torch.Tensor) -> bytes:
    flat = t.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""


def load_exported(path: Any, *, backend: Any = "tcompile", device: Any = None) -> ExportedProgram:
    """The program that ExportedProgram.save wrote. `backend` compiles it when it is called. `device`: where its state goes, the device it was
    saved on by default. ExportError where the file is no such program, was damaged, or needs what this torch does not have."""
    from ..backends import resolve
    if not isinstance(path, (str, os.PathLike)):
        raise ExportError(f"load_exported takes the path of a file, got {type(path).__name__}")
    backend = resolve(backend)
    try:
        with zipfile.ZipFile(path) as z:
            text = json.loads(z.read("program.json"))
            if not isinstance(text, dict) or text.get("format") != _FORMAT:
                raise ExportError(f"{path} holds no exported program")
            if text.get("version") != _VERSION:
                raise ExportError(f"{path} was written as version {text.get('version')}; this tcompile reads version {_VERSION}")
            kept = [_tensor(d, z.read(f"tensors/{k}"), device) for k, d in enumerate(text["tensors"])]
        return _program(text, kept, backend)
    except (OSError, TCompileError, MemoryError):
        raise
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError, EOFError) as e:
        raise ExportError(f"{path} holds no exported program, or is damaged: {e}") from None
    except KeyError as e:
        raise ExportError(f"{path} is incomplete: {e}") from None
    except Exception as e:           # whatever a file may hold
        raise ExportError(f"{path} is damaged: {type(e).__name__}: {e}") from None


def _program(text: dict, kept: list[torch.Tensor], backend: Any) -> ExportedProgram:
    signature = [[str(n), str(k), None if d is None else [decode(d[0])]] for n, k, d in text["signature"]]
    state = {str(name): kept[index] for name, index in text["state"] if index >= 0}
    symbols = decode(text["symbols"])
    inputs = [Input(str(n), str(k), decode(p), str(key)) for n, k, p, key in text["inputs"]]
    known = {"state": state, "size": symbols}
    for i in inputs:
        if not (i.key in known[i.kind] if i.kind in known else i.kind in ("argument", "number") and i.path[0] in [p[0] for p in signature]):
            raise ExportError(f"the file's graph takes an input {i.name!r} from nowhere")
    checks = [Check(str(k), decode(p), decode(e), str(w)) for k, p, e, w in text["checks"]]
    graph = decode_graph(text["graph"])
    if sum(n.op == "placeholder" for n in graph.graph.nodes) != len(inputs):
        raise ExportError("the file's graph and its inputs do not fit each other")
    return ExportedProgram(str(text["name"]), graph, signature, inputs, checks, decode(text["result"]), state, list(text["parameters"]),
                           symbols, bool(text["training"]), bool(text["grad_matters"]), backend)


def _tensor(d: dict, data: bytes, device: Any) -> torch.Tensor:
    dtype = decode({"torch": d["dtype"]})
    shape = [int(s) for s in d["shape"]]
    n = 1
    for s in shape:
        n *= s
    if not isinstance(dtype, torch.dtype) or len(data) != n * dtype.itemsize or any(s < 0 for s in shape):
        raise ExportError("the file's tensors have the wrong size")
    flat = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if n else torch.empty(shape, dtype=dtype)
    strides = [int(s) for s in d["stride"]]
    if n and list(flat.stride()) != strides and all(s > 0 for s in strides):
        flat = torch.empty_strided(shape, strides, dtype=dtype).copy_(flat)
    place = device if device is not None else d["device"]
    try:
        flat = flat.to(place)
    except (RuntimeError, AssertionError) as e:        # (torch without CUDA asserts)
        raise ExportError(f"the program's state cannot be put on {place}: {e}. Write load_exported(..., device=\"cpu\") to have it elsewhere than "
                          f"on {d['device']}, where it was saved") from None
    if d["parameter"]:
        return nn.Parameter(flat, requires_grad=bool(d["requires_grad"]))
    return flat.requires_grad_(bool(d["requires_grad"]))
