"""Checks behind `python -m tcompile doctor`: each says what it found and, if something is wrong, what to do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from typing import Callable, Iterator

__all__ = ["checks"]

Result = tuple[bool | None, str, str]  # fine (None: not needed for compiling), what was found, what to do


def checks() -> Iterator[tuple[str, bool | None, str, str]]:
    """(name, fine, what was found, remedy) of every check; a check that fails itself is a finding, not an error."""
    for name, check in _CHECKS.items():
        try:
            ok, text, remedy = check()
        except Exception as e:
            ok, text, remedy = False, f"{type(e).__name__}: {e}", ""
        yield name, ok, text, remedy


def _python() -> Result:
    v = sys.version_info
    free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    ok = (3, 11) <= v[:2] <= (3, 14) and sys.implementation.name == "cpython" and not free
    return (
        ok,
        f"{sys.implementation.name} {v.major}.{v.minor}.{v.micro}{' (free-threaded)' if free else ''}",
        "tcompile captures the bytecode of CPython 3.11 to 3.14, of builds with the interpreter's lock",
    )


def _torch() -> Result:
    import torch

    major, minor = (int(x) for x in torch.__version__.split(".")[:2])
    return (major, minor) >= (2, 11), torch.__version__, "pip install 'torch>=2.11'"


def _native() -> Result:
    from .compiler.native import native, why_missing

    if native is None:
        return (
            None,
            f"not built: {why_missing}",
            "without it guards run in Python and %%tcompile sees no frames; pip install -e . builds it",
        )
    return True, os.path.basename(native.__file__ or ""), ""


def _cxx() -> Result:
    from pathlib import Path

    from .compiler.codegen.target import host_target
    from .compiler.config import Options
    from .compiler.errors import ToolchainError
    from .compiler.runtime.toolchain import Unit, compile_units, find

    opts = Options()
    remedy = "install one (apt install g++), or set TCOMPILE_CXX; until then compiled functions run eager kernels"
    try:
        tool = find(opts)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "k.cpp")
            source.write_text('extern "C" void k(float* p, long n) { for (long i = 0; i < n; ++i) p[i] += 1; }')
            t0 = time.perf_counter()
            compile_units(tool, [Unit(("doctor",), source, source.with_suffix(".so"), tool.flags(host_target(opts)))])
    except ToolchainError as e:
        return False, str(e), remedy
    return True, f"{' '.join(tool.command)}, a kernel in {time.perf_counter() - t0:.2f} s", ""


def _cache() -> Result:
    from .compiler.runtime.cache import why_unusable
    from .kernel_magics.status import cache_folder

    folder = cache_folder()
    why = why_unusable(folder)
    if why:
        return (
            False,
            f"{folder} cannot be used: {why}",
            "set TCOMPILE_CACHE_DIR to a folder that can; until then every process compiles anew",
        )
    free = shutil.disk_usage(folder).free
    return (
        free > 100_000_000,
        f"{folder}, {free / 1e9:.1f} GB free",
        "little space is left: python -m tcompile cache --clear",
    )


def _compile() -> Result:
    import torch
    from .compiler import api

    x = torch.randn(1000)

    def probe(a: torch.Tensor) -> torch.Tensor:
        return torch.sin(a) * a + 2

    t0 = time.perf_counter()
    with api.record(title="doctor") as builder:
        y = api.compile(probe)(x)
    took = time.perf_counter() - t0
    report = builder.report()
    if not torch.allclose(y, probe(x), atol=1e-6):
        return False, "a compiled function gives other values than eager", "please report this"
    ok = bool(report.graphs) and bool(report.kernels) and not report.errors
    return (
        ok,
        f"{report.summary.line} ({took:.2f} s in all)",
        "; ".join(report.errors) or "the function ran, but not through a kernel of its own",
    )


def _jupyter() -> Result:
    found = [n for n in ("IPython", "ipykernel", "jupyterlab", "ipywidgets", "plotly") if importlib.util.find_spec(n)]
    missing = [n for n in ("IPython", "ipykernel", "jupyterlab", "ipywidgets", "plotly") if n not in found]
    return (
        (True if not missing else None),
        "there: " + (", ".join(found) or "none") + (f"; not there: {', '.join(missing)}" if missing else ""),
        "pip install 'tcompile[jupyter]' for notebooks",
    )


def _labextension() -> Result:
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "labextension")
    installed = os.path.join(sys.prefix, "share", "jupyter", "labextensions", "tcompile-lab")
    for place in (installed, folder):
        if os.path.exists(os.path.join(place, "package.json")):
            return True, place, ""
    return None, "not installed", "reports are drawn as HTML without it; pip install 'tcompile[jupyter]' brings it"


_CHECKS: dict[str, Callable[[], Result]] = {
    "Python": _python,
    "torch": _torch,
    "C extension": _native,
    "C++ compiler": _cxx,
    "disk cache": _cache,
    "compiling": _compile,
    "Jupyter": _jupyter,
    "JupyterLab extension": _labextension,
}
