"""The kernels of a package: files of machine code, and what a launcher has to know of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence


from ..base.processor import cpu_features
from ..codegen.generated import Generated, GeneratedKernel
from ..symbolic.expr import Expr
from .value_json import encode_expr

__all__ = ["kernel_files"]


def kernel_files(generated: Generated, opts: Any, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Write each kernel's code to `folder`. Gives their descriptions, and what a machine needs to run them."""
    if generated.cuda is not None:
        return _on_gpu(generated, opts, folder)
    from ..runtime.cpu_kernels import load_text

    if generated.kernels and opts.get("max_autotune"):
        from ..runtime.autotune import tune

        generated = tune(generated, opts)
    libraries = load_text([(kernel.name, kernel.source.code) for kernel in generated.kernels], generated.target, opts)
    rows = []
    files: dict[bytes, str] = {}  # a library may serve several kernels
    for kernel, library in zip(generated.kernels, libraries):
        code = library.path.read_bytes()
        if code not in files:
            files[code] = f"{kernel.name}.so"
            (folder / files[code]).write_bytes(code)
        rows.append(
            {
                "name": kernel.name,
                "file": f"kernels/{files[code]}",
                "phases": [library.symbol(kernel.source.symbol(phase)) for phase in kernel.source.phases],
                "plan": library.symbol(kernel.source.symbol(kernel.source.plan_symbol)),
                "buffers": kernel.n_buffers,
                "sizes": len(kernel.kernel.sizes),
                "checks": list(kernel.source.checks),
                "threads": generated.threads.get(kernel.name, int(opts.get("threads"))),
            }
        )
    return rows, {"device": "cpu", "features": _features(generated.target.width) if rows else []}


def _features(width: int) -> list[str]:
    """The instructions that code of this width may use: toolchain.py's flags for it."""
    if width == 64:
        return sorted(cpu_features())
    return ["avx2", "bmi2", "f16c", "fma"] if width == 32 else []


def _on_gpu(generated: Generated, opts: Any, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Each kernel twice: for buffers at multiples of 16 bytes, and for those at any address."""
    from ..codegen.triton.layout import Choices
    from ..codegen.triton.print_kernel import print_kernel
    from ..runtime.gpu.compile import Job, compile_all

    contract, target = not opts.get("emulate_precision", False), generated.target
    jobs = []
    for kernel in generated.kernels:
        plain = kernel.source  # (the copy engine takes no odd addresses)
        if plain.language == "cuda":
            plain = print_kernel(kernel.kernel, target, Choices(), name=kernel.source.name)
        jobs += [Job(kernel.source, target, True, contract), Job(plain, target, False, contract)]
    binaries = compile_all(jobs, opts)
    rows = []
    for i, kernel in enumerate(generated.kernels):
        forms = []
        for which, at in (("aligned", 2 * i), ("any", 2 * i + 1)):
            forms.append(_form(kernel, jobs[at].source, binaries[at], folder, which))
        rows.append(
            {
                "name": kernel.name,
                "buffers": kernel.n_buffers,
                "sizes": [str(size) for size in kernel.kernel.sizes],
                "forms": forms,
            }
        )
    return rows, {"device": "cuda", "arch": target.arch}


def _form(kernel: GeneratedKernel, source: Any, binary: Any, folder: Path, which: str) -> dict[str, Any]:
    from ..runtime.gpu.gpu_kernels import launch_facts

    facts = launch_facts(kernel, source)
    parts = []
    for n, (part, grid) in enumerate(zip(binary.parts, facts.grids)):
        name = f"{kernel.name}.{which}.{n}.cubin"
        (folder / name).write_bytes(part.code)
        parts.append(
            {
                "file": f"kernels/{name}",
                "entry": part.entry,
                "threads": part.threads,
                "shared": part.shared,
                "grid": encode_expr(grid),
                "waits": facts.waits,
            }
        )
    return {
        "parts": parts,
        "kinds": facts.kinds,
        "offsets": _encoded([*facts.offsets, facts.scratch]),
        "limits": _encoded(facts.limits),
        "walks": [list(walk) for walk in facts.walks],
    }


def _encoded(es: Sequence[Expr]) -> list[Any]:
    return [encode_expr(e) for e in es]
