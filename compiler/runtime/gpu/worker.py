"""A process that compiles Triton source, or CUDA C++: `python worker.py`, one JSON job per line in, one JSON answer per
line out.

It is run as a script and imports triton alone (0.1 s), and nvrtc.py beside it, neither torch nor tcompile. Triton's own
cache is left out: ours is asked before, and the key of Triton's hashes its whole library (400 MB: 0.35 s of a process's
first kernel, seconds where the disk is cold). A job:
    {"text", "target": [backend, arch, warp], "out": path, "functions": [{"name", "signature": {argument: type},
    "constants": {...},
     "aligned": [positions of 16-byte aligned pointers], "options": {...}}]}
or, for CUDA C++, {"language": "cuda", "text", "target", "out", "functions": [{"name", "shared", "threads"}]}, which
NVRTC compiles. An answer: {"functions": [{"name", "entry", "shared", "threads", "bytes", "assembly"}]} with the
binaries, one after the other, in `out`; or {"error": text}, and "errno" where files can't be written, or "machine"
where no other kernel would do better. `assembly` is the
text of `readable`, deflated, in base 64. A line {"patience": n} is no job: the process ends where none comes for n
seconds.
"""

from __future__ import annotations

import base64
import errno
import importlib.util
import json
import linecache
import os
import re
import select
import tempfile
import traceback
import zlib
from pathlib import Path
from typing import Any, Iterator

_NO_ASSEMBLER = re.compile(r"[Cc]annot find ptxas|ptxas\W+failed with error code -(9|15)\b")
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def compile_job(job: dict[str, Any]) -> dict[str, Any]:
    if job.get("language") == "cuda":
        done, binaries = _cuda(job)
    else:
        with tempfile.TemporaryDirectory(prefix="triton-", dir=os.path.dirname(job.get("out", "")) or None) as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            done, binaries = _triton(job)
    if job.get("out"):
        partial = f"{job['out']}.{os.getpid()}.tmp"
        with open(partial, "wb") as h:
            for binary in binaries:
                h.write(binary)
        os.replace(partial, job["out"])
    return {"functions": done}


def _cuda(job: dict[str, Any]) -> tuple[list[dict[str, Any]], list[bytes]]:
    spec = importlib.util.spec_from_file_location("nvrtc", Path(__file__).with_name("nvrtc.py"))
    assert spec is not None and spec.loader is not None
    nvrtc = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nvrtc)
    binary, ptx = nvrtc.compile_text(job["text"], f"sm_{job['target'][1]}a")
    return [{**f, "entry": f["name"], "bytes": len(binary), "assembly": _packed(ptx)} for f in job["functions"]], [
        binary
    ] * len(job["functions"])


def _packed(assembly: str) -> str:
    return base64.b64encode(zlib.compress(readable(assembly).encode(), 9)).decode()


def _triton(job: dict[str, Any]) -> tuple[list[dict[str, Any]], list[bytes]]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    text = job["text"]
    file = f"<triton {abs(hash(text)):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    namespace: dict[str, Any] = {"__name__": file}
    exec(compile(text, file, "exec"), namespace)
    backend, arch, warp = job["target"]
    done, binaries = [], []
    for f in job["functions"]:
        attrs = {(i,): [["tt.divisibility", 16]] for i in f["aligned"]}
        source = ASTSource(namespace[f["name"]], f["signature"], f["constants"], attrs)
        compiled = triton.compile(source, target=GPUTarget(backend, arch, warp), options=f["options"])
        binary = compiled.asm.get("cubin") or compiled.asm["hsaco"]
        meta = compiled.metadata
        if getattr(meta, "global_scratch_size", 0):
            raise RuntimeError(
                f"{f['name']} needs {meta.global_scratch_size} bytes of global scratch, which the launcher does not"
                " give"
            )
        binaries.append(binary)
        done.append(
            {
                "name": f["name"],
                "entry": meta.name,
                "shared": meta.shared,
                "threads": meta.num_warps * warp,
                "bytes": len(binary),
                "assembly": _packed(compiled.asm.get("ptx") or compiled.asm["amdgcn"]),
            }
        )
    return done, binaries


_LOC = re.compile(r"\s*\.loc\s+\d+ (\d+) ")
_CALLED_FROM = re.compile(r":(\d+):\d+ \]")  # up to Triton 3.7: the whole chain of calls
_INLINED_AT = re.compile(r"\s*\.loc\s+\d+ (\d+) (\d+), .*inlined_at \d+ (\d+) (\d+)")  # from 3.8 on: the last call
_INLINE_ASM = re.compile(r"\s*[/;]+ (begin|end) inline asm")
_FOR_DEBUGGERS = re.compile(
    r"\s*(\$L__(tmp|func_(begin|end))\d+:|\.Ltmp\d+:|[/;]+ (begin|end) inline"
    r" asm|\.(file|section|globl|p2align|type|size|cfi_\w+)\b|//\s*$)"
)


def readable(assembly: str) -> str:
    """PTX (or AMD's assembly) for people: `// line N` before the instructions that line N of the Triton source became
    (of the kernel itself, where they stand in a function that it calls), without labels and tables that only debuggers
    read."""
    # where code stands -> its function's call
    calls = {m.group(1, 2): m.group(3, 4) for m in map(_INLINED_AT.match, assembly.split("\n")) if m}

    def in_kernel(line: str) -> str:
        if m := _INLINED_AT.match(line):
            at = m.group(3, 4)
            while at in calls:  # a function that a function calls
                at = calls[at]
            return at[0]
        return (_CALLED_FROM.findall(line) or _LOC.findall(line))[-1]

    out: list[str] = []
    at_line = told = ""
    inside = False
    for line in re.split(r"\n\s*\.section\s+\.debug", assembly, maxsplit=1)[0].split("\n"):
        if m := _INLINE_ASM.match(line):
            inside = m[1] == "begin"
        if _LOC.match(line):
            if not inside:  # there newer compilers count the lines of the assembly itself
                at_line = f"\t// line {in_kernel(line)}"
            continue
        if not line.strip() or _FOR_DEBUGGERS.match(line):
            continue
        if at_line != told:
            told = at_line
            out.append(told)
        out.append(line.rstrip())
    return "\n".join(out) + "\n"


def _import_triton() -> None:
    """Triton, with what its first kernel would import, and without its hash of itself: what it caches lies in a folder
    of the job's alone.
    """
    import triton
    import triton.compiler.code_generator
    from triton.compiler import compiler
    from triton.runtime import cache

    for module in (compiler, cache):  # (where it lies depends on the version)
        if hasattr(module, "triton_key"):
            module.triton_key = lambda: triton.__version__


def _requests() -> Iterator[bytes]:
    """The jobs, a line each."""
    text, patience = b"", None
    while select.select([0], [], [], patience)[0] and (more := os.read(0, 1 << 16)):
        *lines, text = (text + more).split(b"\n")
        for line in lines:
            patience = None
            if line.startswith(b'{"patience"'):
                patience = json.loads(line)["patience"]
            else:
                yield line


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    _import_triton()  # while nobody waits
    for line in _requests():
        try:
            answer = compile_job(json.loads(line))
        except Exception as e:
            answer = {"error": "".join(traceback.format_exception_only(type(e), e)).strip()[-6000:]}
            if isinstance(e, OSError) and e.errno in UNWRITABLE:
                answer["errno"] = e.errno
            elif isinstance(e, (OSError, MemoryError)) or _NO_ASSEMBLER.search(str(e)):
                answer["machine"] = True
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
