"""Exported programs on disk: a zip archive of one JSON text and the raw bytes of the tensors.

`grammar.py` says what a file may contain. Nothing in it is executed or unpickled, all of it is checked before any of it
is used, and what does not fit is an ExportError.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Collection, Sequence

import torch
import torch.nn as nn

from ..errors import ExportError, TCompileError
from . import grammar
from .arithmetic import NUMBER, TENSOR
from .graph_json import custom_operators, decode_graph, encode_graph
from .exported_program import ExportedModule, ExportedProgram
from .package import package
from .program_calls import Check, Input
from .value_json import decode, encode

__all__ = ["save", "load_exported"]

_FORMAT = "tcompile exported program"
_VERSION = 1


def save(program: ExportedProgram, path: Any) -> None:
    """Write to a file that `tcompile.load_exported` reads, in a process without the source: text and raw tensors, no
    pickles. A file that is there is replaced once the new one is whole."""
    tensors: dict[int, int] = {}
    kept: list[torch.Tensor] = []
    state = []
    for name, t in program.state.items():
        index = tensors.setdefault(id(t), len(kept))
        if index == len(kept):
            kept.append(t)
        state.append([name, index])
    signature = [
        [name, kind, None if default is None else _default(name, default[0])]
        for name, kind, default in program.signature
    ]
    text = {
        "format": _FORMAT,
        "version": _VERSION,
        "torch": torch.__version__,
        "name": program.name,
        "training": program.training,
        "grad_matters": program.grad_matters,
        "signature": signature,
        "graph": encode_graph(program.graph_module),
        "inputs": [[i.name, i.kind, encode(i.path), i.key] for i in program.inputs],
        "checks": [[check.kind, encode(check.path), encode(check.expected), check.where] for check in program.checks],
        "result": encode(program.result),
        "state": state,
        "symbols": encode(program.symbols),
        "parameters": program.parameters,
        "tensors": [_describe(t) for t in kept],
    }
    data = json.dumps(text, allow_nan=False).encode()
    _program(_parse(data), kept, program.backend, custom_operators(text["graph"]))  # what cannot be loaded is not saved
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as f, zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
            z.writestr("program.json", data)
            for k, t in enumerate(kept):
                z.writestr(f"tensors/{k}", _bytes(t))
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


ExportedProgram.save = save  # type: ignore[attr-defined]
ExportedProgram.package = package  # type: ignore[attr-defined]


def _default(name: str, value: Any) -> list:
    try:
        return [encode(value)]
    except ExportError:
        raise ExportError(
            f"the default of the parameter {name!r} is a {type(value).__name__} and cannot be saved: pass it as an"
            " argument, or make the default a plain value"
        ) from None


def _describe(tensor: torch.Tensor) -> dict:
    if (
        tensor.layout is not torch.strided
        or type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer)
        or tensor.is_quantized
    ):
        raise ExportError(
            f"a tensor of state is a {type(tensor).__name__} of layout {tensor.layout}; only dense tensors can be saved"
        )
    return {
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "stride": _strides(tensor),
        "device": str(tensor.device),
        "requires_grad": tensor.requires_grad,
        "parameter": isinstance(tensor, nn.Parameter),
    }


def _strides(tensor: torch.Tensor) -> list[int]:
    """As they are, where a file may say so."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    return strides if _lie_apart(shape, strides) else list(torch.empty(shape, device="meta").stride())


def _lie_apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the strides give each element memory of its own, without large gaps."""
    extent = 1
    for stride, size in sorted((st, size) for st, size in zip(strides, shape) if size > 1):
        if stride < extent:
            return False
        extent += stride * (size - 1)
    return extent <= grammar.GAPS * max(1, math.prod(shape))


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""


def load_exported(
    path: Any, *, backend: Any = "tcompile", device: Any = None, operators: Collection[str] = ()
) -> ExportedProgram:
    """The program that ExportedProgram.save wrote. `backend` compiles it when it is called. `device`: where its state
    goes, the device it was saved on by default. `operators`: custom operators that it may call, such as
    ("mylib::scale",). ExportError where the file is no such program, was damaged, or needs what this torch does not
    have.

    A file may come from anybody: it calls operators on tensors, and reaches no code, file or memory beyond its
    arguments and its state.
    """
    from ..backends import resolve

    if not isinstance(path, (str, os.PathLike)):
        raise ExportError(f"load_exported takes the path of a file, got {type(path).__name__}")
    if isinstance(operators, str) or not all(isinstance(operator, str) for operator in operators):
        raise ExportError(f"operators is a collection of names such as ('mylib::scale',), got {operators!r}")
    backend = resolve(backend)
    with open(path, "rb") as f:  # (one that is not there, or may not be read, is no damage)
        return _read(f, path, backend, device, operators)


def _read(f: BinaryIO, path: Any, backend: Any, device: Any, operators: Collection[str]) -> ExportedProgram:
    try:
        with zipfile.ZipFile(f) as z:
            names = _entries(z, os.fstat(f.fileno()).st_size)
            text = _parse(z.read("program.json"))
            if text.get("format") != _FORMAT:
                raise ExportError(f"{path} holds no exported program")
            if text.get("version") != _VERSION:
                raise ExportError(
                    f"{path} was written as version {str(text.get('version'))[:40]}; this tcompile reads version"
                    f" {_VERSION}"
                )
            grammar.check_fields(text)
            if len(names) != 1 + len(text["tensors"]):
                raise ExportError("the file's tensors and their bytes do not fit each other")
            kept = [_tensor(d, z.read(f"tensors/{k}"), device) for k, d in enumerate(text["tensors"])]
        return _program(text, kept, backend, operators, loaded=True)
    except (TCompileError, MemoryError):
        raise
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError, EOFError) as e:
        raise ExportError(f"{path} holds no exported program, or is damaged: {e}") from None
    except KeyError as e:
        raise ExportError(f"{path} is incomplete: {e}") from None
    except Exception as e:  # whatever a file may hold
        raise ExportError(f"{path} is damaged: {type(e).__name__}: {str(e)[:200]}") from None


def _entries(z: zipfile.ZipFile, whole: int) -> set[str]:
    """The names of the archive's entries. What they hold takes no more room than the file itself, of `whole` bytes."""
    infos = z.infolist()
    names = {info.filename for info in infos}
    if len(names) != len(infos) or names != {"program.json", *(f"tensors/{k}" for k in range(len(infos) - 1))}:
        raise ExportError("the file has other entries than an exported program, or lacks some")
    if any(
        info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size
        for info in infos
    ):
        raise ExportError("the file is compressed or encrypted: an exported program is stored as it is")
    if sum(info.file_size for info in infos) > whole:
        raise ExportError("the file's entries are larger than the file")
    return names


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


def _parse(data: bytes) -> dict:
    """The JSON object of a text that is neither too long nor too deep."""
    if len(data) > grammar.MOST_TEXT:
        raise ExportError(f"the file's program is a text of {len(data)} bytes")
    plain = _STRING.sub(b"", data)
    brackets = plain.translate(None, _NO_BRACKET)
    if plain.count(b",") + len(brackets) > grammar.MOST_VALUES:
        raise ExportError("the file's program holds too many values")
    if brackets:
        opens = torch.frombuffer(bytearray(brackets.translate(_OPENS)), dtype=torch.int8)
        if int(opens.cumsum(0, dtype=torch.int32).max()) > grammar.MOST_DEPTH:
            raise ExportError(f"the file's program is nested more than {grammar.MOST_DEPTH} values deep")
    text = json.loads(data, parse_int=_whole, parse_constant=_constant, object_pairs_hook=_object)
    if not isinstance(text, dict):
        raise ExportError("the file holds no exported program")
    return text


_OPENS = bytes(1 if c in b"[{" else 255 for c in range(256))  # 1 and -1 as bytes


def _whole(text: str) -> int:
    if len(text) > 20:
        raise ExportError(f"the file holds a whole number of {len(text)} digits")
    return int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ExportError("the file's program has a field twice")
    return made


def _constant(text: str) -> Any:
    raise ExportError(f"the file holds {text}, which is not JSON")


def _program(
    text: dict, kept: list[torch.Tensor], backend: Any, operators: Collection[str], loaded: bool = False
) -> ExportedProgram:
    signature = [
        [grammar.identifier(n), grammar.words(k), None if d is None else [decode(d[0])]]
        for n, k, d in text["signature"]
    ]
    parameters = dict.fromkeys(str(name) for name, _, _ in signature)
    state = _state(text["state"], kept)
    symbols = {
        grammar.identifier(key): _symbol(value, parameters)
        for key, value in decode({"dict": _pairs(text["symbols"])}).items()
    }
    facts = grammar.Facts(parameters, state, symbols)
    checks = []
    for kind, path, expected, where in text["checks"]:
        expected = decode(expected)
        checks.append(Check(kind, facts.check(kind, decode(path), expected), expected, grammar.words(where)))
    facts.finish()
    inputs = [_input(decode(row), facts) for row in text["inputs"]]
    floating = _floating_arguments(checks)
    graph = decode_graph(
        text["graph"],
        [_KINDS[i.kind] for i in inputs],
        allowed=operators,
        plain={
            k
            for k, i in enumerate(inputs)
            if (state[i.key].is_floating_point() if i.kind == "state" else i.path and repr(i.path) in floating)
        },
    )
    result = decode(text["result"])
    facts.result(result, len(graph.meta["kinds"]))
    listed = [grammar.state_name(p) for p in text["parameters"]]
    if not set(listed) <= set(state):
        raise ExportError("the file names parameters that it lacks")
    return ExportedProgram(
        name=grammar.words(text["name"]),
        graph_module=graph,
        signature=signature,
        inputs=inputs,
        checks=checks,
        result=result,
        state=state,
        parameters=listed,
        symbols=symbols,
        training=text["training"],
        grad_matters=text["grad_matters"],
        backend=backend,
        loaded=loaded,
    )


# (a size symbol may be an int argument)
_KINDS = {"argument": TENSOR, "state": TENSOR, "number": NUMBER, "size": NUMBER}


def _floating_arguments(checks: list[Check]) -> set[str]:
    """The paths, as text, that the checks say to be tensors of floating dtype."""
    found: dict[str, bool] = {}
    for check in checks:
        if check.kind == "tensor":
            path, dtype = repr(check.path), decode({"torch": check.expected["dtype"]})
            found[path] = found.get(path, True) and dtype.is_floating_point
    return {path for path, floating in found.items() if floating}


def _pairs(symbols: dict) -> Any:
    """Of `encode` of a dict."""
    if set(symbols) != {"dict"}:
        raise ExportError("the file's sizes are not a dict")
    return symbols["dict"]


def _symbol(where: Any, parameters: Collection[str]) -> list:
    path, dim = where
    if dim is not None and type(dim) is not int:
        raise ExportError(f"the file has a size of dimension {str(dim)[:40]!a}")
    return [grammar.check_path(path, parameters), dim]


def _input(row: Any, facts: grammar.Facts) -> Input:
    name, kind, path, key = row
    known: dict[str, Collection[str]] = {"state": facts.state, "size": facts.known}
    if kind in ("argument", "number"):
        return Input(grammar.words(name), kind, grammar.check_path(path, facts.parameters), "")
    if kind not in known or key not in known[kind]:
        raise ExportError(f"the file's graph takes an input {str(name)[:40]!a} from nowhere")
    return Input(grammar.words(name), kind, [], key)


_TAKEN = {*dir(ExportedModule), *vars(nn.Module()), "_exported_program"}


def _state(rows: Any, kept: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors by name. Names are those that modules can have."""
    state: dict[str, torch.Tensor] = {}
    for name, index in rows:
        parts = grammar.state_name(name).split(".")
        if name in state or type(index) is not int or not 0 <= index < len(kept):
            raise ExportError(f"the file's state names {name[:40]!a} twice, or a tensor that it lacks")
        if len(parts) > grammar.LONGEST_PATH or not all(parts) or not _TAKEN.isdisjoint(parts):
            raise ExportError(f"the file's state has the name {name[:40]!a}, which a module cannot have")
        state[name] = kept[index]
    for name in state:
        at = name.find(".")
        while at >= 0:
            if name[:at] in state:
                raise ExportError("the file's state has a tensor where it has a module")
            at = name.find(".", at + 1)
    return state


_TENSOR = {"dtype": str, "shape": list, "stride": list, "device": str, "requires_grad": bool, "parameter": bool}
_MOST_DIMENSIONS = 64


def _tensor(d: Any, data: bytes, device: Any) -> torch.Tensor:
    if not isinstance(d, dict) or {key: type(value) for key, value in d.items()} != _TENSOR:
        raise ExportError("the file has a tensor without its facts")
    dtype, shape, strides = decode({"torch": d["dtype"]}), d["shape"], d["stride"]
    if (
        len(shape) != len(strides)
        or len(shape) > _MOST_DIMENSIONS
        or any(type(s) is not int or not 0 <= s < 2**62 for s in (*shape, *strides))
    ):
        raise ExportError("the file's tensors have an invalid shape or strides")
    n = math.prod(shape)
    if not isinstance(dtype, torch.dtype) or len(data) != n * dtype.itemsize:
        raise ExportError("the file's tensors have the wrong size")
    if n and not _lie_apart(shape, strides) and all(strides):  # (strides of 0: expanded, by older versions)
        raise ExportError("the file's tensors have strides that overlap or leave gaps")
    if dtype is torch.bool and n and int(torch.frombuffer(bytearray(data), dtype=torch.uint8).max()) > 1:
        raise ExportError("the file's tensors hold flags that are neither true nor false")
    flat = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if n else torch.empty(shape, dtype=dtype)
    if n and list(flat.stride()) != strides and all(strides):
        flat = torch.empty_strided(shape, strides, dtype=dtype).copy_(flat)
    place = device if device is not None else decode({"device": d["device"]})
    try:
        flat = flat.to(place)
    except (RuntimeError, AssertionError) as e:  # (torch without CUDA asserts)
        raise ExportError(
            f'the program\'s state cannot be put on {place}: {e}. Write load_exported(..., device="cpu") to have it'
            " elsewhere than "
            f"on {d['device']}, where it was saved"
        ) from None
    if d["parameter"]:
        return nn.Parameter(flat, requires_grad=d["requires_grad"])
    return flat.requires_grad_(d["requires_grad"])
