"""`load_package`: a package (package.py) as a callable. No compiler runs, and no stage of this one is imported."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import warnings
from pathlib import Path
from typing import Any, Callable

import torch

from ..base.processor import cpu_features
from ..codegen.plan_functions import as_planned, view_of
from ..errors import CacheFileError, ExportError, OptionError
from ..guards.guard import TensorSpec
from ..guards.tensors import tensor_mismatch
from ..runtime.plan_parts import DTYPE_CODES, native_program
from . import value_json
from .package_guards import binder, quick_call
from .package_plan import decode_plan
from .program_calls import Check, Input, ProgramCalls, path_text
from .value_json import decode

__all__ = ["load_package", "PackagedProgram", "cpp_path"]

KIND, FORMAT = "tcompile.package", 1


def cpp_path() -> str:
    """The folder of `tcompile_package.h` and `tcompile_package.cpp`, with which C++ programs run packages."""
    return str(Path(__file__).parent / "cpp")


def load_package(
    path: str | os.PathLike, *, trusted: bool = False, device: Any = None, weights: str | os.PathLike | None = None
) -> "PackagedProgram":
    """The program that `ExportedProgram.package` wrote, as a callable.

    The folder holds machine code: load one only from whom you trust. A warning says so unless `trusted` is True. Each
    checksum is checked before anything runs. `device`: of several GPUs, which. `weights`: where the state's tensors
    are, if not where the package says.

    CacheFileError, in words, where the folder is no package or damaged, or was made for another machine or torch.
    """
    if not isinstance(trusted, bool):
        raise OptionError(f"trusted is True or False, got {trusted!r}")
    if not trusted:
        warnings.warn(
            f"{os.fspath(path)} holds machine code, which runs in your process with all your permissions. Its checksum "
            "finds damage, not malice: load such a package only from someone you trust, and then pass trusted=True.",
            stacklevel=2,
        )
    folder = Path(path)
    manifest = _manifest(folder)
    place = _place(manifest["needs"], device, str(folder))
    _check_files(folder, manifest)
    tensors = _tensors(manifest, Path(weights) if weights is not None else folder / manifest["weights"]["file"], place)
    return PackagedProgram(manifest, tensors, place, _program(manifest, folder, tensors, place))


class PackagedProgram(ProgramCalls):
    """What `load_package` gives: it checks arguments as the exported program did, and computes no gradients.

    state   name -> tensor: parameters, buffers, and tensors that the function held. What the program changes stays
            changed until the process ends; the file stays as it is
    """

    def __init__(self, m: dict[str, Any], tensors: list[torch.Tensor], place: torch.device, run: Callable):
        super().__init__(
            m["name"],
            [[n, k, None if d is None else [decode(d[0])]] for n, k, d in m["signature"]],
            [Input(n, k, decode(path), key) for n, k, path, key in m["calls"]],
            [Check(kind, decode(path), decode(expected), where) for kind, path, expected, where in m["checks"]],
            decode(m["result"]),
            {name: tensors[value] for name, value in m["state"].items()},
            decode(m["symbols"]),
            False,
        )
        self._run, self._place = run, place
        self._arguments = {row["name"]: row for row in m["arguments"]}
        self._bound = binder(self.signature)
        self._names = [name for name, _, _ in self.signature]
        self._quick = quick_call(self, self._arguments, place, run, self._carefully)

    def __repr__(self) -> str:
        sizes = self.shown_sizes()
        return f"PackagedProgram {self.name}({', '.join(self._names)})" + (f", sizes {sizes}" if sizes else "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._quick(*args, **kwargs)

    def _carefully(self, *args: Any, **kwargs: Any) -> Any:
        """What the quick way does not know: errors in words, and tensors that lie otherwise than planned."""
        try:
            arguments = dict(zip(self._names, self._bound(*args, **kwargs)))
        except TypeError as e:
            raise ExportError(f"{self.name} was exported as {self.name}({', '.join(self._names)}): {e}") from None
        sizes = self.check(arguments)
        given = self._given(arguments, sizes, self.state)
        for k, i in enumerate(self.inputs):
            if i.kind == "argument":
                given[k] = self._laid_out(path_text(i.path), given[k], sizes)
        with torch.autocast(self._place.type, enabled=False), torch.no_grad():
            outputs = self._run(*given)
        return self._build(self.result, outputs, arguments, sizes, self.state)

    def _laid_out(self, name: str, tensor: torch.Tensor, sizes: dict[str, int]) -> torch.Tensor:
        """The tensor as the plan wants it: a copy where only its strides differ, and nothing is written to it."""
        row = self._arguments[name]
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ExportError(
                f"{self.name}: argument `{name}` requires a gradient, and a package computes none: call it under "
                "torch.no_grad()"
            )
        shape, stride = (tuple(value_json.evaluate(e, sizes) for e in row[k]) for k in ("shape", "stride"))
        spec = TensorSpec(type(tensor), tensor.dtype, self._place, tensor.requires_grad, shape, stride)
        wrong = tensor_mismatch(tensor, spec, {})
        if wrong is None:
            return tensor
        part, want, got = wrong
        if not part.startswith("stride") or row["in_place"]:
            hint = ", since the program writes to it or returns it" if part.startswith("stride") else ""
            raise ExportError(f"{self.name}: argument `{name}`: expected {part} {want}, got {got}{hint}")
        return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor.detach())


# --- reading
def _manifest(folder: Path) -> dict[str, Any]:
    try:
        text, wanted = (folder / "manifest.json").read_bytes(), (folder / "checksum").read_text().strip()
    except FileNotFoundError as e:
        raise CacheFileError(f"{folder} is not a package: it lacks {Path(e.filename).name}") from None
    except (NotADirectoryError, UnicodeDecodeError) as e:
        raise CacheFileError(f"{folder} is not a package: {e}") from None
    if hashlib.sha256(text).hexdigest() != wanted:
        raise CacheFileError(f"{folder} is damaged: the checksum of its manifest does not match")
    m = json.loads(text)
    if m.get("kind") != KIND:
        raise CacheFileError(f"{folder} is not a package")
    if m.get("format") != FORMAT:
        raise CacheFileError(f"{folder} has format {m.get('format')!r}; this tcompile reads format {FORMAT}")
    return m


def _place(needs: dict[str, Any], device: Any, shown: str) -> torch.device:
    """The device that the package runs on. CacheFileError where this machine is of another kind."""
    here = f"{sys.platform} {platform.machine()}"
    if needs["system"] != here:
        raise CacheFileError(f"{shown} was made for {needs['system']}, and here is {here}")
    if needs["device"] == "cpu":
        missing = sorted(set(needs["features"]) - cpu_features())
        if missing:
            raise CacheFileError(
                f"{shown} was made for a processor with {', '.join(missing)}, which this one lacks. Make one here, or "
                'with package(..., options={"simd": "avx2"})'
            )
        place = torch.device("cpu")
    else:
        if not torch.cuda.is_available():
            raise CacheFileError(f"{shown} was made for a GPU, and here is none")
        place = torch.device("cuda", torch.cuda.current_device())
    if device is not None:
        asked = torch.device(device)
        if asked.type != place.type:
            raise CacheFileError(f"{shown} was made for {place.type}, and cannot run on {asked}")
        place = asked if asked.index is not None else place
    if place.type == "cuda":
        major, minor = torch.cuda.get_device_capability(place)
        if needs["arch"] != 10 * major + minor:
            raise CacheFileError(f"{shown} was made for sm_{needs['arch']}, and {place} is sm_{major}{minor}")
    return place


def _check_files(folder: Path, m: dict[str, Any]) -> None:
    for name, wanted in m["files"].items():
        try:
            data = (folder / name).read_bytes()
        except OSError as e:
            raise CacheFileError(f"{folder} is damaged: {e}") from None
        if hashlib.sha256(data).hexdigest() != wanted:
            raise CacheFileError(f"{folder} is damaged: the checksum of {name} does not match. None of it was loaded")


def _tensors(m: dict[str, Any], file: Path, place: torch.device) -> list[torch.Tensor]:
    """The tensors: pages of the file, which are copied only where they are written to; on a GPU, a copy of all."""
    wanted = m["weights"]
    try:
        size = file.stat().st_size
    except OSError as e:
        raise CacheFileError(f"the package's weights are not there: {e}") from None
    if size != wanted["bytes"]:
        raise CacheFileError(f"{file} is damaged, or of another package: {size} bytes instead of {wanted['bytes']}")
    words = torch.from_file(str(file), shared=False, size=size // 8, dtype=torch.int64)
    there = words.to(place)  # in one piece
    if int(there.sum()) != wanted["sum"]:
        raise CacheFileError(f"{file} is damaged, or of another package: its checksum does not match")
    dtypes = {code: dtype for dtype, code in DTYPE_CODES.items()}
    out = []
    for d in m["tensors"]:
        data = (words if d["device"] == "cpu" else there).view(torch.uint8)
        flat = data[d["offset"] : d["offset"] + d["bytes"]].view(dtypes[d["dtype"]])
        out.append(flat.as_strided(d["shape"], d["stride"]))
    return out


def _program(m: dict[str, Any], folder: Path, tensors: list[torch.Tensor], place: torch.device) -> Callable:
    from ..native.ready import native_ready

    if not native_ready():
        raise CacheFileError("packages need tcompile's C extension, which is not built here or does not fit this torch")
    own: dict[str, Callable] = {"view": view_of, "count": torch.autograd.graph.increment_version}
    if place.type == "cuda":
        from ..ops import philox
        from ..runtime.gpu.device import why_no_launch
        from .package_launchers import cuda_kernels

        why = why_no_launch()
        if why is not None:
            raise CacheFileError(f"{folder}: {why}")
        own["draw"] = philox.draw
        kernels = cuda_kernels(m["kernels"], folder, place.index)
    else:
        from .package_launchers import cpu_kernels

        kernels = cpu_kernels(m["kernels"], folder)
    program = native_program(decode_plan(m["plan"], own, kernels, tensors, place), as_planned)
    if program is None:
        raise CacheFileError(f"{folder} is damaged: its sizes are beyond 64 bits")
    return program
