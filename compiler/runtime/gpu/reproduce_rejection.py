"""A file that shows by itself, without tcompile, how a compiler or a device refuses one generated kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["keep_reproducer"]

_TRITON = """

if __name__ == "__main__":
    import json

    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    JOB = json.loads({job!r})
    for f in JOB["functions"]:
        aligned = {{(i,): [["tt.divisibility", 16]] for i in f["aligned"]}}
        source = ASTSource(globals()[f["name"]], f["signature"], f["constants"], aligned)
        kernel = triton.compile(source, target=GPUTarget(*JOB["target"]), options=f["options"])
        print(f["name"], "is compiled")
        if {loads}:
            kernel._init_handles()
            print(f["name"], "is loaded; registers, shared memory and threads are there")
"""


def keep_reproducer(
    folder: Path, name: str, key: str, job: dict[str, Any], error: str, stage: str = "compile"
) -> Path | None:
    """Write the file into `folder`/rejected; None where it can't be written. `job`: what the worker was asked
    (worker.py), `error`: its answer, or the driver's where the kernel was compiled and `stage` is "load".
    """
    loads = stage == "load"
    said = "".join(f"# {line}\n" for line in error.splitlines())
    if job.get("language") == "cuda":
        arch = job["target"][1]
        text = (
            f"// {'The device' if loads else 'NVRTC'} rejects this; nvcc -arch=sm_{arch}a -cubin -Xptxas -v shows why\n"
            f"{said.replace('# ', '// ')}{job['text']}"
        )
        ending = ".cu"
    else:
        described = json.dumps({key: value for key, value in job.items() if key != "text"})
        who = "The device" if loads else "Triton"
        body = _TRITON.format(job=described, loads=loads)
        text = f"# {who} rejects this; running the file shows why\n{said}{job['text']}{body}"
        ending = ".py"
    path = folder / "rejected" / f"{name}-{key[:12]}{ending}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path
