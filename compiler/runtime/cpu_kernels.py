"""Compiled kernels as callables: from source text through the disk cache to `kernel(*tensors, *sizes, *scalars)`.

With the C extension a kernel is a `native.Kernel`; without it `PythonKernel` calls the same function through ctypes, on
one thread. Libraries and callables are kept for the process by content, so a kernel that a second graph needs is loaded
already.
"""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any, Callable, Sequence


from .. import events
from ..base import forks
from ..codegen.cpp.dtypes import ctype
from ..codegen.generated import GeneratedKernel
from ..errors import ToolchainError, check_error
from ..native import native
from ..native.ready import native_ready
from .cache import KernelCache, content_key, open_cache, temporary_cache
from .cache_misses import remember, why_missing
from .joined_kernels import KernelLibrary, Text, groups, joined, symbol_end
from .toolchain import Toolchain, Unit, compile_units, find, workers

__all__ = ["load_kernels", "load_text", "PythonKernel", "native_ready"]

_lock = forks.lock()
_libraries: dict[str, KernelLibrary] = {}


def load_text(units: Sequence[tuple[str, str]], target: Any, opts: Any) -> list[KernelLibrary]:
    """Libraries of C++ texts given as (name, text), compiled where the cache does not have them. Raises
    ToolchainError.
    """
    cache = open_cache(opts)
    tool = find(opts, cache)
    with _lock:
        keys = [content_key(text, tool.flags(target, text), tool.version) for _, text in units]
        missing: dict[str, Text] = {}
        for key, (name, text) in zip(keys, units):
            if key in _libraries:
                continue
            path = cache.get(key)
            if path is not None:
                library = _open_library(path, cache, key, text)
                if library is not None:
                    _libraries[key] = library
                    events.emit("cache", key=key, hit=True, reason="", what=name)
                    continue
            if key not in missing:
                flags = tool.flags(target, text)
                missing[key] = Text(key, name, text, flags)
                reason = why_missing(cache, name, text, flags, tool.version)
                events.emit("cache", key=key, hit=False, reason=reason, what=name)
        if missing:
            texts = list(missing.values())
            try:
                _compile(texts, cache, tool, opts)
            except OSError as e:  # a full disk, a folder that was removed or became read-only
                why = f"cache folder {cache.root} can't be written: {e}"
                try:
                    _compile(texts, temporary_cache(opts, why), tool, opts)
                except OSError as again:
                    raise ToolchainError(f"compiled kernels can't be written: {again}") from e
        return [_libraries[key] for key in keys]


def _open_library(path: Path, cache: KernelCache, key: str, text: str) -> KernelLibrary | None:
    try:
        return KernelLibrary(ctypes.CDLL(str(path)), path, symbol_end(key, text))
    except OSError as e:
        events.emit("cache", key=key, hit=False, reason=f"does not load: {e}", what="kernel")
        cache._remove(key)
        return None


def _compile(missing: list[Text], cache: KernelCache, tool: Toolchain, opts: Any) -> None:
    work, limit = cache.workspace(), workers(opts)
    try:
        together = groups(missing, limit)
        try:
            libraries = _build(together, work, tool, limit)
        except ToolchainError:
            if len(together) == len(missing):
                raise
            together = [[t] for t in missing]  # whose fault it is, is said of one kernel
            libraries = _build(together, work, tool, limit)
        for group, library in zip(together, libraries):
            for text in group:
                path = cache.put(text.key, library, text.text)
                remember(cache, text.name, text.key, text.text, text.flags, tool.version)
                _libraries[text.key] = KernelLibrary(ctypes.CDLL(str(path)), path, symbol_end(text.key, text.text))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build(together: list[list[Text]], work: Path, tool: Toolchain, limit: int) -> list[Path]:
    """A library for each group."""
    units = []
    for group in together:
        source = work / f"{group[0].key}.cpp"
        source.write_text(joined(group), encoding="utf-8")
        units.append(Unit(tuple(t.name for t in group), source, source.with_suffix(".so"), group[0].flags))
    compile_units(tool, units, limit)
    return [unit.output for unit in units]


def load_kernels(kernels: Sequence[GeneratedKernel], target: Any, opts: Any) -> list[Callable]:
    """A callable for each kernel. Raises ToolchainError where there is no working compiler."""
    libraries, out = load_text([(kernel.name, kernel.source.code) for kernel in kernels], target, opts), []
    for kernel, library in zip(kernels, libraries):
        try:
            out.append(make_kernel(kernel, library, opts))
        except AttributeError as e:
            _forget(library, open_cache(opts))
            raise ToolchainError(f"the library of kernel {kernel.name} lacks a function: {e}") from None
    return out


def _forget(library: KernelLibrary, cache: KernelCache) -> None:
    for key in [key for key, known in _libraries.items() if known is library]:
        del _libraries[key]
        cache._remove(key)


def make_kernel(kernel: GeneratedKernel, library: KernelLibrary, opts: Any) -> Callable:
    """The callable of one kernel in a loaded library."""
    kinds = "".join("f" if ctype(dtype).is_float else "i" for _, dtype in kernel.kernel.params)
    n_buffers, n_sizes = kernel.n_buffers, len(kernel.kernel.sizes)
    checks = tuple(kernel.source.checks)
    phases, plan = (
        [kernel.source.symbol(phase) for phase in kernel.source.phases],
        kernel.source.symbol(kernel.source.plan_symbol),
    )
    if native_ready():

        def address(name: str) -> int:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

        return native.Kernel(
            kernel.name,
            library,
            tuple(map(address, phases)),
            address(plan),
            n_buffers,
            n_sizes,
            kinds,
            checks,
            check_error,
            int(opts.get("threads")),
        )
    return PythonKernel(kernel.name, library, phases, plan, n_buffers, n_sizes, kinds, checks)


class PythonKernel:
    """What native.Kernel is, through ctypes and on one thread."""

    def __init__(
        self,
        name: str,
        library: KernelLibrary,
        phases: Sequence[str],
        plan: str,
        n_buffers: int,
        n_sizes: int,
        kinds: str,
        checks: tuple[str, ...],
    ):
        self.name, self.library, self.n_buffers, self.n_sizes, self.kinds, self.checks = (
            name,
            library,
            n_buffers,
            n_sizes,
            kinds,
            checks,
        )
        self.phases = [getattr(library, phase) for phase in phases]
        for phase in self.phases:
            phase.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_longlong] * 2
            phase.restype = ctypes.c_int
        self.plan = getattr(library, plan)
        self.threads = 1

    def __call__(self, *args: Any) -> None:
        n_buffers, m = self.n_buffers, self.n_buffers + self.n_sizes
        if len(args) != m + len(self.kinds):
            raise TypeError(
                f"{self.name} takes {n_buffers} tensors, {self.n_sizes} sizes and {len(self.kinds)} scalars,"
                f" got {len(args)}"
                " arguments"
            )
        buffers = (ctypes.c_void_p * (n_buffers + 1))(*[arg.data_ptr() for arg in args[:n_buffers]])
        sizes = (ctypes.c_longlong * (self.n_sizes + 1))(*args[n_buffers:m])
        params = (_Scalar * (len(self.kinds) + 1))(
            *[_Scalar(f=arg) if kind == "f" else _Scalar(i=int(arg)) for kind, arg in zip(self.kinds, args[m:])]
        )
        plan = (ctypes.c_longlong * (1 + 2 * len(self.phases)))()
        self.plan(sizes, plan)
        scratch = ctypes.create_string_buffer(max(1, plan[0]))
        for i, phase in enumerate(self.phases):
            failed = phase(buffers, sizes, params, scratch, 0, plan[1 + 2 * i])
            if failed:
                raise check_error(self.checks[failed - 1])

    def __repr__(self) -> str:
        return f"<kernel {self.name} through ctypes>"


class _Scalar(ctypes.Union):
    _fields_ = [("f", ctypes.c_double), ("i", ctypes.c_longlong)]
