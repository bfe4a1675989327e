"""The C extension, or None.

In: nothing. Out: `native`, the extension module (guard program, dispatcher, frame hook, launcher) or None, and
`why_missing`, one sentence for the user where it is None. Everything that uses it has a pure-Python path of the same
behaviour, apart from the frame hook; `TCOMPILE_NATIVE=0` chooses that path. It is built by
`python compiler/native/build.py`.

Where what is: module.c puts the parts together; values.c reaches and compares values without running user code;
tensor.c reads tensors; state.c torch's state; watch.c what a watched result depends on; program.c makes guard
programs, guards.c runs them, guard_loads.c and guard_checks.c are their steps; dispatch.c and dispatcher.c go from a
call to its entry; hook.c is the frame hook, activation.c says whose frames it looks at, code_state.c what is known of
their code; launcher.c calls kernels, cuda_kernel.c those on a GPU, cuda_driver.c reaches the GPU's driver,
cuda_static.c gives a CUDA graph its inputs; blob.c makes tensors of memory that others own; plan.c runs whole plans,
plan_make.c makes them, gemm.c runs their products on a GPU; trace.c writes down what ran when, stack.c where a thread
is; bridge.c calls with gradients, node.cpp (a module of its own: `autograd_node`) their place in autograd's graph.
Measured on 3.11 and 3.12, torch 2.11 and 2.13 (tests/native prints the figures): a TENSOR guard 8-11 ns, all fields of
a STATE guard 55 ns, 2,800 guards on the structure of a model of 400 modules 1.7-3 us, a parameter's metadata 8-10 ns,
dispatch 22-36 ns more than calling the entry, a frame that the hook passes over 12-16 ns.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
from types import ModuleType

from .. import events

__all__ = ["native", "why_missing", "say_missing", "autograd_node"]

API = 38  # TCOMPILE_NATIVE_API in native.h

NODE_API = 5  # in node.cpp

native: ModuleType | None = None
why_missing: str | None = None
_said = False
_how = f"Build it by: python {os.path.join(os.path.dirname(__file__), 'build.py')}"

if os.environ.get("TCOMPILE_NATIVE", "1") == "0":
    why_missing = "the C extension is switched off by TCOMPILE_NATIVE=0"
else:
    try:
        import tcompile.compiler.native._native as native  # type: ignore[import-not-found, no-redef]

        if getattr(native, "API", 0) != API:
            native = None
            why_missing = f"the C extension of tcompile was built from other sources than these. {_how}"
    except ImportError as error:
        why_missing = (
            f"the C extension of tcompile does not load ({error}); guards run in Python and cells cannot see "
            f"into library code. {_how}"
        )


def say_missing() -> None:
    """State the missing extension as a fallback event, once in a process."""
    global _said
    if native is None and not _said:
        _said = True
        events.fallback("native", why_missing)


@functools.cache
def autograd_node() -> ModuleType | None:
    """node.cpp's module, where one was built for this Python and this torch: what torch.autograd.Function does without
    it takes a microsecond more per call."""
    if native is None:
        return None
    import torch

    from .build import node_target

    path = node_target(torch.__version__)
    if not path.exists():
        return None
    loader = importlib.machinery.ExtensionFileLoader(f"{__name__}._node", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        events.fallback("native", f"{path.name} does not load: {error}. {_how}")
        return None
    if module.API != NODE_API:
        return None
    torch.autograd.graph.Node.register(module.Node)
    return module
