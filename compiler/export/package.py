"""Packages: `program.package(path)` compiles an exported program into a folder that runs without compiler and source.

    manifest.json      versions, arguments and their checks, results, the plan (package_plan.py), kernels, tensors
    checksum           the SHA-256 of the manifest, which holds that of each kernel
    kernels/*          shared libraries (CPU) or cubins (GPU)
    weights.bin        the tensors of its state; or a file elsewhere

load_package.py runs it in Python, cpp/tcompile_package.h in C++.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from .. import stages
from ..codegen.generated import Generated
from ..codegen.plan_functions import view_of
from ..base import unseen_writes
from ..config import Options
from ..errors import ExportError
from ..graph.captured import CapturedGraph, GraphInput
from ..graph.meta.core import TensorMeta
from ..graph.tensor import from_meta
from ..ops import lstm, philox
from ..native.ready import native_ready
from ..runtime.native_program import NotInC, ProgramBuilder, detached_view
from ..runtime.plan_parts import DTYPE_CODES
from ..symbolic.env import INT_LIMIT, ShapeEnv
from ..symbolic.expr import Expr, as_expr, is_signed, maybe_int, symbol
from .exported_program import ExportedProgram
from .package_kernels import kernel_files
from .package_plan import encode_plan
from .program_calls import Check, Input, path_text
from .value_json import decode_expr, encode, encode_expr

__all__ = ["package", "KIND", "FORMAT"]

KIND, FORMAT = "tcompile.package", 1
_ALIGN = 64  # bytes, of tensors in the file
_OWN: dict[Any, Any] = {
    torch.Tensor.copy_: torch.ops.aten.copy_.default,
    unseen_writes.copy_unseen: torch.ops.aten.copy_.default,
    unseen_writes.note: None,
    view_of: "view",
    detached_view: "view",
    torch.autograd.graph.increment_version: "count",
    philox.STATE: "draw",
    lstm.OURS: lstm.TORCHS,  # (a package has no backward: the argument that says whether there is one is left out)
}


def package(program: ExportedProgram, path: Any, *, weights: Any = None, options: dict[str, Any] | None = None) -> Path:
    """Compile the program into the folder `path`, which `tcompile.load_package` runs without a compiler and without the
    source, and C++ by `tcompile_package.h`. Gives the path. A package computes no gradients.

    weights   a file for the state's tensors, beside the folder or anywhere; None: in the folder
    options   those of `compile`; {"simd": "avx2"} makes kernels for any x86-64 processor with AVX2

    ExportError where the program calls what is no operator of torch's own library. A package that is there is
    replaced once the new one is whole.
    """
    target = Path(path)
    _check_target(target)
    if program.backend != "tcompile":
        raise ExportError(f"{program.name}: the backend of packages is 'tcompile', not {program.backend!r}")
    opts = Options.make(options={**(options or {}), "output_pool_mb": 0, "cudagraphs": False})
    tensors = _Tensors()
    state = {name: tensors.laid_out(value) for name, value in program.state.items()}
    captured = _captured(program, state)
    known = len(captured.env.guards)
    try:
        with torch.no_grad():
            generated = stages.generate(captured, opts)
        strides = _strides(captured)
    finally:
        for node in program.graph.nodes:
            node.meta.pop("val", None)
    found = captured.env.guards[known:]
    checks = [*program.checks, *(Check("sizes", [], encode_expr(e), f"{f}:{n}" if f else "") for e, f, n, _ in found)]
    plan = encode_plan(_plan_of(generated, opts), _OWN, tensors.number)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=target.name, suffix=".part", dir=target.parent))
    try:
        (work / "kernels").mkdir()
        kernels, needs = kernel_files(generated, opts, work / "kernels")
        kept = {name: tensors.number(value) for name, value in state.items()}
        place = work / "weights.bin" if weights is None else Path(weights)
        size, total = tensors.write(place)
        manifest = {
            "kind": KIND,
            "format": FORMAT,
            "made_by": {"tcompile": _version(), "torch": torch.__version__},
            "needs": {"system": f"{sys.platform} {platform.machine()}", **needs},
            **_outside(program, checks, strides, generated, kept),
            "plan": plan,
            "kernels": kernels,
            "files": {f"kernels/{f.name}": _digest(f) for f in sorted((work / "kernels").iterdir())},
            "tensors": tensors.described,
            "weights": {"file": _weights_name(place, work, target), "bytes": size, "sum": total},
        }
        text = json.dumps(manifest, allow_nan=False).encode()
        (work / "manifest.json").write_bytes(text)
        (work / "checksum").write_text(hashlib.sha256(text).hexdigest())
        work.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return target


def _check_target(target: Path) -> None:
    """A package may be replaced; nothing else is."""
    if target.exists() and not (target / "checksum").is_file():
        raise ExportError(f"{target} exists already and is not a package: give another path")


def _version() -> str:
    from ..runtime.cache import key_parts

    return key_parts((), "")["version"]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _weights_name(place: Path, work: Path, target: Path) -> str:
    return place.name if place.parent == work else os.path.relpath(place.absolute(), target.absolute())


# --- the graph
def _captured(program: ExportedProgram, state: dict[str, torch.Tensor]) -> CapturedGraph:
    """The program's graph with sizes that are symbols of the program's names, as capture made it."""
    env = ShapeEnv()
    for name in program.symbols:
        if name not in program.hints:
            raise ExportError(f"{program.name}: call the program once before, so that its usual sizes are known")
        env.hints[name], env.sources[name] = program.hints[name], None
        whole = program.symbols[name][1] is None
        env.ranges[name] = (-INT_LIMIT if is_signed(name) else 2, INT_LIMIT if whole else None)
        env._ints |= {name} if whole else set()
    for check in program.checks:
        if check.kind == "sizes" and not env.decide(as_expr(decode_expr(check.expected))):
            raise ExportError(f"{program.name}: the sizes {program.hints} do not fit its checks")
    tensors = {path_text(check.path): check for check in program.checks if check.kind == "tensor"}
    inputs, nodes = [], program.graph.find_nodes(op="placeholder")
    for node, i in zip(nodes, program.inputs):
        inputs.append(GraphInput(i.name, None, "tensor" if i.kind in ("argument", "state") else "int"))
        node.meta["val"] = _value(program, i, env, state, tensors)
    return CapturedGraph(program.graph_module, inputs, env, "packaged")


def _value(program: ExportedProgram, i: Input, env: ShapeEnv, state: dict, tensors: dict[str, Check]) -> Any:
    """What stands for an input while the graph is compiled."""
    if i.kind == "state":
        return state[i.key]
    if i.kind == "size":
        return env.wrap(symbol(i.key))
    if i.kind == "number":
        raise ExportError(
            f"{program.name}: `{path_text(i.path)}` is a number that varies and is not a size: pass it to a package"
            " as a tensor"
        )
    name = path_text(i.path)
    want = tensors[name].expected
    shape = tuple(maybe_int(decode_expr(s)) for s in want["shape"])
    strides = program.strides.get(name)
    stride = _contiguous(shape) if strides is None else tuple(maybe_int(decode_expr(stride)) for stride in strides)
    device = torch.device(want["device"]) if want["device"] == "cpu" else torch.device(want["device"], 0)
    return from_meta(TensorMeta(shape, stride, getattr(torch, want["dtype"].removeprefix("torch.")), device), env)


def _contiguous(shape: tuple) -> tuple:
    out: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        out.append(maybe_int(as_expr(step)))
        step = as_expr(step) * (size if isinstance(size, Expr) else max(size, 1))
    return tuple(reversed(out))


def _plan_of(generated: Generated, opts: Options) -> Any:
    native_ready()  # (torch's C functions are found from then on)
    builder = _Builder(generated, {kernel.name: kernel.name for kernel in generated.kernels}, opts)
    try:
        return builder.parts()[0]
    except NotInC:
        raise ExportError(
            "the program returns a view of what came in, or has sizes or operators that only Python can run: return "
            "`.clone()` of it"
        ) from None


class _Builder(ProgramBuilder):
    """Plans that name operators, and whose results have no version."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.function = lambda op: op

    def _output(self, o: Any, changes: int) -> tuple[int, Any]:
        return super()._output(o, 0)


# --- what a caller sees
def _outside(
    program: ExportedProgram, checks: list[Check], strides: list[Any], generated: Generated, kept: dict[str, int]
) -> dict[str, Any]:
    """Arguments, checks and results: as saved programs have them for Python (files.py), and flat for C++."""
    schedule = generated.schedule
    in_place = {*schedule.written, *(i for i, _ in schedule.mutations)}
    in_place |= {
        output.value if output.kind == "input" else output.value[0]
        for output in schedule.outputs
        if output.kind in ("input", "view")
    } & set(range(len(schedule.inputs)))
    arguments, at = _arguments(program, checks)
    inputs: list[dict[str, Any]] = []
    for k, i in enumerate(program.inputs):
        if i.kind == "state":
            inputs.append({"state": kept[i.key]})
        elif i.kind == "size":
            inputs.append({"size": i.key})
        else:
            row = arguments[at[path_text(i.path)]]
            row["stride"] = strides[k]
            row["in_place"] = k in in_place
            inputs.append({"argument": at[path_text(i.path)]})
    apart = [
        [at.get(path_text(check.path)), at.get(path_text(check.expected))] for check in checks if check.kind == "apart"
    ]
    return {
        "name": program.name,
        "signature": [[n, k, None if d is None else [encode(d[0])]] for n, k, d in program.signature],
        "checks": [[check.kind, encode(check.path), encode(check.expected), check.where] for check in checks],
        "result": encode(program.result),
        "symbols": encode(program.symbols),
        "calls": [[i.name, i.kind, encode(i.path), i.key] for i in program.inputs],
        "state": kept,
        "arguments": arguments,
        "inputs": inputs,
        "apart": [pair for pair in apart if None not in pair],
        "sizes": [[check.expected, check.where] for check in checks if check.kind == "sizes"],
        "results": list(_flat(program.result, "result", at, kept)),
    }


def _strides(captured: CapturedGraph) -> list[Any]:
    """Of each input that is a tensor, as its graph was compiled for."""
    values = [node.meta["val"] for node in captured.graph_module.graph.find_nodes(op="placeholder")]
    return [
        [encode_expr(captured.env.to_expr(x)) for x in value.stride()] if isinstance(value, torch.Tensor) else None
        for value in values
    ]


def _arguments(program: ExportedProgram, checks: list[Check]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The tensors and whole numbers among the arguments, in the order of the signature, and where each stands."""
    order = {name: k for k, (name, _, _) in enumerate(program.signature)}
    rows: list[dict[str, Any]] = []
    at: dict[str, int] = {}
    for c in sorted((check for check in checks if check.kind in ("tensor", "int")), key=lambda c: order[c.path[0]]):
        name = path_text(c.path)
        if name in at:
            continue
        at[name] = len(rows)
        if c.kind == "int":
            rows.append({"name": name, "size": c.expected, "where": c.where})
            continue
        dtype = getattr(torch, c.expected["dtype"].removeprefix("torch."))
        rows.append(
            {
                "name": name,
                "dtype": DTYPE_CODES[dtype],
                "device": c.expected["device"],
                "shape": c.expected["shape"],
                "where": c.where,
            }
        )
    return rows, at


def _flat(shape: Any, name: str, at: dict[str, int], kept: dict[str, int]) -> Any:
    """The tensors and numbers in a result, each with its name and where it comes from."""
    kind, of = shape[0], shape[1]
    if kind == "argument":
        found = at.get(path_text(of))
        yield [name, "argument", found] if found is not None else [name, "const", None]
    elif kind == "state":
        yield [name, "state", kept[of]]
    elif kind == "const":
        yield [name, "const", of]
    elif kind in ("output", "size"):
        yield [name, kind, of]
    else:
        for k, part in enumerate(of):
            key, value = part if kind in ("dict", "namedtuple", "record") else (k, part)
            yield from _flat(value, f"{name}[{key!r}]", at, kept)


# --- tensors
class _Tensors:
    """The tensors of a package, as they will lie in its file."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.numbers: dict[int, int] = {}
        self.same: dict[int, torch.Tensor] = {}
        self.described: list[dict[str, Any]] = []

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of state without gaps or overlaps; the same tensor gives the same one."""
        if tensor.layout is not torch.strided or type(tensor) not in (
            torch.Tensor,
            torch.nn.Parameter,
            torch.nn.Buffer,
        ):
            raise ExportError(
                f"a tensor of state is a {type(tensor).__name__} of layout {tensor.layout}, not a dense one"
            )
        if id(tensor) not in self.same:
            d = tensor.detach().resolve_conj().resolve_neg()
            self.same[id(tensor)] = d if _is_dense(d) else d.contiguous()
        return self.same[id(tensor)]

    def number(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self.numbers:
            self.numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor if _is_dense(tensor) else tensor.contiguous())
        return self.numbers[id(tensor)]

    def write(self, place: Path) -> tuple[int, int]:
        """The file, whole before it gets its name; its size, and the sum of its 64-bit words."""
        handle, partial = tempfile.mkstemp(prefix=place.name, suffix=".part", dir=place.parent)
        at = total = 0
        with os.fdopen(handle, "wb") as f:
            for tensor in self.tensors:
                data = _bytes_of(tensor)
                data += bytes(-len(data) % _ALIGN)
                self.described.append(
                    {
                        "dtype": DTYPE_CODES[tensor.dtype],
                        "shape": list(tensor.shape),
                        "stride": list(tensor.stride()),
                        "device": tensor.device.type,
                        "offset": at,
                        "bytes": tensor.numel() * tensor.element_size(),
                    }
                )
                f.write(data)
                at += len(data)
                total += int(torch.frombuffer(bytearray(data), dtype=torch.int64).sum()) if data else 0
        os.chmod(partial, 0o644)
        os.replace(partial, place)
        return at, (total + 2**63) % 2**64 - 2**63


def _is_dense(tensor: torch.Tensor) -> bool:
    return torch.ops.aten.is_non_overlapping_and_dense(tensor) and tensor.dtype in DTYPE_CODES


def _bytes_of(tensor: torch.Tensor) -> bytes:
    host = tensor.detach().cpu()
    return ctypes.string_at(host.data_ptr(), host.numel() * host.element_size()) if host.numel() else b""
