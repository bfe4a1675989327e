"""tcompile: a compiler for PyTorch code that lives in the notebook.

    import tcompile
    fast = tcompile.compile(model)             # names and meanings as torch.compile's
    report = tcompile.explain(fn)(x)           # compile, and say what happened

    %load_ext tcompile                         # in a notebook: then %%tcompile on top of a cell

This module hands out the public names. The compiler is loaded when a name is first used: importing tcompile costs
little, needs no Jupyter and no network.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from .stock import offer_backend as _offer_backend

if TYPE_CHECKING:
    from .compiler import config, events, stages
    from .compiler.api import (
        compile,
        disable,
        enable,
        error_on_graph_break,
        explain,
        is_compiling,
        mark_dynamic,
        mark_static,
        mark_unbacked,
        maybe_mark_dynamic,
        list_backends,
        record,
        register_backend,
        reset,
        save_cache,
        load_cache,
    )
    from .compiler.errors import (
        BackendError,
        CacheFileError,
        ExportError,
        ReproduceError,
        ConstraintViolationError,
        FullGraphError,
        InternalError,
        OptionError,
        TCompileError,
        ToolchainError,
        VerifyError,
    )
    from .compiler.export.export_frame import export
    from .compiler.export.exported_program import ExportedProgram
    from .compiler.export.files import load_exported
    from .compiler.export.load_package import cpp_path, load_package
    from .compiler.logs import set_logs
    from .compiler.minifier import minify, reproduce
    from .compiler.reproduce import Reproducer
    from .compiler.report import CompileReport

# public name -> where it lives, below this package
_NAMES: dict[str, str] = {
    **dict.fromkeys(
        (
            "compile",
            "explain",
            "explain_stock",
            "disable",
            "enable",
            "error_on_graph_break",
            "is_compiling",
            "mark_dynamic",
            "mark_static",
            "mark_unbacked",
            "maybe_mark_dynamic",
            "reset",
            "record",
            "register_backend",
            "list_backends",
            "save_cache",
            "load_cache",
        ),
        "compiler.api",
    ),
    **dict.fromkeys(
        (
            "TCompileError",
            "OptionError",
            "BackendError",
            "ExportError",
            "ReproduceError",
            "CacheFileError",
            "ConstraintViolationError",
            "FullGraphError",
            "ToolchainError",
            "VerifyError",
            "InternalError",
        ),
        "compiler.errors",
    ),
    "export": "compiler.export.export_frame",
    "load_exported": "compiler.export.files",
    "ExportedProgram": "compiler.export.exported_program",
    **dict.fromkeys(("load_package", "cpp_path"), "compiler.export.load_package"),
    **dict.fromkeys(("minify", "reproduce"), "compiler.minifier"),
    "Reproducer": "compiler.reproduce",
    "set_logs": "compiler.logs",
    "CompileReport": "compiler.report",
    "config": "compiler.config:",
    "stages": "compiler.stages:",
    "events": "compiler.events:",  # modules
}

# what gives no report: a packaged program's first call is not to wait for the classes of reports
_WITHOUT_REPORTS = ("compiler.export.load_package", "compiler.errors")

__all__ = [*_NAMES, "__version__", "load_ipython_extension", "unload_ipython_extension"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("tcompile")
        except metadata.PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    where = _NAMES.get(name)
    if where is None:
        raise AttributeError(f"module 'tcompile' has no attribute {name!r}")
    module = _load("." + where.rstrip(":"))
    value = module if where.endswith(":") else getattr(module, name)
    globals()[name] = value
    if where not in _WITHOUT_REPORTS:
        _let_reports_draw_themselves()
    return value


def _load(module: str) -> Any:
    """Import a part of the compiler. Where the program uses a GPU, the process that compiles its first kernel starts
    meanwhile. The collector of cycles rests: what is imported stays, and a pass over all of torch takes a third of
    this."""
    if f"{__name__}{module}" in sys.modules:  # or on its way there, in another thread: then this waits
        return importlib.import_module(module, __name__)
    torch = sys.modules.get("torch")
    if module == ".compiler.api" and torch is not None and torch.cuda.is_initialized():
        from .compiler.runtime.gpu.workers import prestart

        prestart(1)
    from .compiler.base.forks import resting

    with resting():
        return importlib.import_module(module, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _let_reports_draw_themselves() -> None:
    """A report shown in a notebook is HTML also where the extension was not loaded. The drawing is imported when
    needed.
    """
    from .compiler.report import report

    def draw(r: Any) -> dict[str, Any]:
        from .kernel_magics.render import bundle  # importing it puts it in the place of these two

        return bundle(r)

    def view(r: Any, name: str) -> Any:
        from .kernel_magics.render import view

        return view(r, name)

    if report._renderer is None:
        report.set_renderer(draw, view)


_offer_backend()


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext tcompile`"""
    from .kernel_magics.magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """`%unload_ext tcompile`"""
    from .kernel_magics.magics import unload

    unload(ipython)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "tcompile-lab"}]


if os.environ.get("TCOMPILE_LOGS"):
    from .compiler.logs import from_environment

    from_environment()
