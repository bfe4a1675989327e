"""Generated kernels compiled for GPUs that are not here: registers, spills and shared memory, compared with what was
recorded.

`TCOMPILE_RECORD_RESOURCES=1 pytest tests/codegen/triton/test_compiled.py` writes resources.json anew; a change of code
generation then shows in the diff.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tcompile
import torch.nn.functional as F

triton = pytest.importorskip("triton")

from tcompile.compiler.codegen.generate import generate_triton  # noqa: E402
from tcompile.compiler.codegen.triton.layout import GpuTarget  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.runtime.gpu import workers  # noqa: E402
from tcompile.compiler.runtime.gpu.compile import Job, compile_all  # noqa: E402

from .interpreter import compile_fn  # noqa: E402

pytestmark = pytest.mark.slow

RECORD = Path(__file__).with_name("resources.json")
CUDA = [GpuTarget("cuda", 70, 32, 80), GpuTarget("cuda", 80, 32, 108), GpuTarget("cuda", 90, 32, 132)]
AMD = GpuTarget("hip", "gfx942", 64, 304)


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype)


def normalise(a):
    var, mean = torch.var_mean(a.float(), (0, 2, 3), correction=0, keepdim=True)
    return torch.relu((a - mean) * torch.rsqrt(var + 1e-5)).to(a.dtype)


PROGRAMS = {
    "pointwise": lambda: (lambda a, b: torch.relu((a + b) * a - b) * 2 + torch.exp(a), meta(1 << 16), meta(1 << 16)),
    "transpose": lambda: (lambda a: a.t().contiguous() + 1, meta(512, 1024)),
    "softmax": lambda: (lambda a: F.softmax(a, -1), meta(64, 4096)),
    "softmax of long rows": lambda: (lambda a: F.softmax(a, -1), meta(200, 50304)),
    "layer norm + gelu": lambda: (
        lambda a, w, b: F.gelu(F.layer_norm(a, (4096,), w, b)),
        meta(64, 4096),
        meta(4096),
        meta(4096),
    ),
    "gelu of a product's sum, bf16": lambda: (
        lambda a, b: F.gelu(a + b),
        meta(64, 4096, dtype=torch.bfloat16),
        meta(4096, dtype=torch.bfloat16),
    ),
    "rms norm bf16": lambda: (
        lambda a, w: F.rms_norm(a, (4096,), w),
        meta(64, 4096, dtype=torch.bfloat16),
        meta(4096, dtype=torch.bfloat16),
    ),
    "cross entropy": lambda: (lambda a, t: F.cross_entropy(a, t), meta(256, 5000), torch.zeros(256, dtype=torch.int64)),
    "batch norm": lambda: (normalise, meta(16, 64, 28, 28, dtype=torch.bfloat16).to(memory_format=torch.channels_last)),
    "variance of long rows": lambda: (lambda a: F.layer_norm(a, (50304,)), meta(300, 50304)),
    "column sums": lambda: (lambda a: a.sum(0), meta(4096, 512)),
    "whole sum": lambda: (lambda a: a.sum(), meta(1 << 16)),
    "argmax": lambda: (lambda a: (a.argmax(1), a.amax(1)), meta(64, 3000)),
    "embedding": lambda: (lambda w, i: F.embedding(i, w) * 2, meta(100, 64), torch.zeros(64, dtype=torch.int64)),
}


def usage(code: bytes, tmp: Path) -> dict:
    """What ptxas says of one function."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    path = tmp / "kernel.cubin"
    path.write_bytes(code)
    out = subprocess.run(
        [str(tool if tool.exists() else shutil.which("cuobjdump")), "--dump-resource-usage", str(path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    m = re.search(r"REG:(\d+) STACK:(\d+)", out)
    return {"registers": int(m[1]), "stack": int(m[2])}


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compile(name, tmp_path):
    fn, *args = PROGRAMS[name]()
    schedule = compile_fn(fn, *args)
    opts = Options()
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found = {}
    jobs = [(t, k, Job(k.source, t)) for t in (*CUDA, AMD) for k in generate_triton(schedule, {}, None, t).kernels]
    for (target, k, _), binary in zip(jobs, compile_all([j for *_, j in jobs], opts)):
        for p in binary.parts:
            row = {"shared": p.shared, "threads": p.threads}
            if target.backend == "cuda":
                row |= usage(p.code, tmp_path)
                assert row["stack"] == 0, f"{p.name} spills on {target.text}: {row}"
            assert row["shared"] <= 48 * 1024
            found.setdefault(target.text, {})[p.name] = row
    if os.environ.get("TCOMPILE_RECORD_RESOURCES"):
        RECORD.write_text(
            json.dumps({**recorded, "triton": triton.__version__, name: found}, indent=1, sort_keys=True) + "\n"
        )
    elif recorded.get("triton") == triton.__version__:
        assert found == recorded[name], (
            f"other code than was recorded for {name!r}: look at the difference, then record it anew"
        )


def test_assembly_names_the_lines_of_the_kernel():
    """What a called function became counts as the line that calls it; nothing that only a debugger reads is left."""
    fn, *args = PROGRAMS["gelu of a product's sum, bf16"]()
    source = generate_triton(compile_fn(fn, *args), {}, None, CUDA[2]).kernels[0].source
    text = compile_all([Job(source, CUDA[2])], Options())[0].parts[0].assembly()
    lines = source.text.split("\n")
    at, pieces = "", {}
    for row in text.split("\n"):
        if m := re.fullmatch(r"\t// line (\d+)", row):
            at = lines[int(m[1]) - 1]
        pieces.setdefault(at, []).append(row)
    call = next(x for x in pieces if "_gelu_bfloat16(" in x)
    assert "    " == call[:4] and any("ex2.approx" in row for row in pieces[call]), (
        "the instructions of the function belong to its call"
    )
    assert any("ld.global" in row for row in pieces[next(x for x in pieces if "in0_at_0 = tl.load" in x)])
    assert ".loc" not in text and ".debug" not in text and "$L__tmp" not in text and ".visible .entry" in text


def test_a_kernel_that_triton_rejects_is_an_error_with_its_text():
    from tcompile.compiler.errors import ToolchainError

    fn, *args = PROGRAMS["pointwise"]()
    k = generate_triton(compile_fn(fn, *args), {}, None, CUDA[2]).kernels[0]
    source = replace(k.source, text=k.source.text.replace("libdevice.exp(", "libdevice.no_such_function("))
    with pytest.raises(ToolchainError, match="libdevice"):
        compile_all([Job(source, CUDA[2])], Options())


def test_binaries_come_from_the_disk_cache(tmp_path, monkeypatch):
    from tcompile.compiler.errors import ToolchainError
    from tcompile.compiler.runtime.gpu import compile as gpu

    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path))
    monkeypatch.setattr(gpu, "_loaded", {})
    fn, *args = PROGRAMS["pointwise"]()
    job = Job(generate_triton(compile_fn(fn, *args), {}, None, CUDA[2]).kernels[0].source, CUDA[2])
    first = compile_all([job], Options())[0]

    def no_worker():
        raise ToolchainError("compiled again")

    monkeypatch.setattr(gpu, "_loaded", {})
    monkeypatch.setattr(gpu, "take", no_worker)
    assert compile_all([job], Options())[0] == first
    file = next(tmp_path.rglob("*.so"))
    file.write_bytes(file.read_bytes()[:-9])  # a broken file is not used
    monkeypatch.setattr(gpu, "_loaded", {})
    with pytest.raises(ToolchainError, match="compiled again"):
        compile_all([job], Options())


def test_what_another_worker_compiled_is_not_taken_from_the_disk_cache(tmp_path, monkeypatch):
    """A binary's file holds what the worker's text made of it: the lines of its assembly were wrong where another
    checkout had compiled the kernel into the same folder.
    """
    from tcompile.compiler.runtime.gpu import compile as gpu

    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path / "cache"))
    fn, *args = PROGRAMS["pointwise"]()
    job = Job(generate_triton(compile_fn(fn, *args), {}, None, CUDA[2]).kernels[0].source, CUDA[2])
    folder = tmp_path / "gpu"
    folder.mkdir()
    for name in ("worker.py", "nvrtc.py"):
        shutil.copy(Path(workers.__file__).with_name(name), folder)
    other = folder / "worker.py"
    other.write_text(other.read_text().replace("// line {in_kernel", "// at {in_kernel"))

    def assembly():
        monkeypatch.setattr(gpu, "_loaded", {})
        workers.toolchain.cache_clear()
        workers.stop_workers()
        return compile_all([job], Options())[0].parts[0].assembly()

    with monkeypatch.context() as patch:
        patch.setattr(workers, "__file__", str(folder / "workers.py"))
        assert "// at " in assembly()
    assert "// line " in assembly()


def test_tritons_own_cache_is_left_alone_and_a_worker_does_not_hash_triton(tmp_path):
    """Ours is asked before; the key of Triton's costs a third of a second of a process's first kernel."""
    fn, *args = PROGRAMS["pointwise"]()
    job = Job(generate_triton(compile_fn(fn, *args), {}, None, CUDA[2]).kernels[0].source, CUDA[2])
    program = """
import sys, worker, triton.runtime.cache as cache, triton.compiler.compiler as compiler
def hashed(): raise AssertionError("triton hashes itself")
for module in (cache, compiler):
    if hasattr(module, "triton_key"): module.triton_key = hashed
sys.argv = ["worker.py"]
worker.main()
"""
    folder = Path(workers.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps({**job.request(), "out": str(tmp_path / "out.bin")}) + "\n",
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(folder), "TRITON_CACHE_DIR": str(tmp_path / "tritons")},
        timeout=120,
    )
    answer = json.loads(done.stdout)
    assert answer.get("functions"), answer
    assert [p.name for p in tmp_path.iterdir()] == ["out.bin"]  # (nor is anything left of what was written meanwhile)


def test_a_cache_folder_without_room_is_replaced(tmp_path, monkeypatch):
    """What a worker can't write is no fault of the kernel's: the binaries go to a folder of the process's own, which is
    said.
    """
    from tcompile.compiler.runtime.gpu import compile as gpu

    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path))
    monkeypatch.setattr(gpu, "_loaded", {})
    asked, ask = [], workers.Worker.ask

    def full(self, request):
        asked.append(request["out"])
        return (
            {"error": "OSError: no room", "errno": 28}
            if request["out"].startswith(str(tmp_path))
            else ask(self, request)
        )

    monkeypatch.setattr(workers.Worker, "ask", full)
    fn, *args = PROGRAMS["pointwise"]()
    job = Job(generate_triton(compile_fn(fn, *args), {}, None, CUDA[2]).kernels[0].source, CUDA[2])
    assert compile_all([job], Options())[0].parts and len(asked) == 2


def test_processes_that_cannot_start_are_said_when_one_is_needed(monkeypatch):
    from tcompile.compiler.errors import ToolchainError

    def refused(*args, **kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    workers.stop_workers()
    monkeypatch.setattr(workers.subprocess, "Popen", refused)
    workers.prestart(2)
    with pytest.raises(ToolchainError, match="can't be started"):
        workers.take()


def test_the_compiler_is_imported_by_several_threads_at_once():
    program = """
import gc, threading, torch, tcompile
failed, together = [], threading.Barrier(4)
def use(name):
    together.wait()
    try:
        getattr(tcompile, name)
    except BaseException as e:
        failed.append(e)
threads = [threading.Thread(target=use, args=(n,)) for n in ("compile", "explain", "compile", "record")]
[t.start() for t in threads], [t.join() for t in threads]
print(failed, gc.isenabled(), end="")
"""
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, timeout=120, check=True)
    assert done.stdout == "[] True", done.stdout


def test_a_worker_starts_while_the_compiler_is_imported_where_the_program_uses_a_gpu():
    program = """
import torch, tcompile
torch.cuda.is_initialized = lambda: {uses}
tcompile.compile
from tcompile.compiler.runtime.gpu import workers
print(len(workers._idle), end="")
"""
    for uses in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", program.format(uses=uses)], text=True, capture_output=True, timeout=120, check=True
        )
        assert done.stdout == str(int(uses)), done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_read_or_written_before_the_kernel_before_is_done(name, tmp_path):
    """Option early_launch: kernels are launched while the one before ends. The machine code waits before it touches
    memory.
    """
    fn, *args = PROGRAMS[name]()
    early = replace(CUDA[2], early=True)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    for k in generate_triton(compile_fn(fn, *args), {}, None, early).kernels:
        (binary,) = compile_all([Job(k.source, early)], Options())
        for p in binary.parts:
            (tmp_path / "kernel.cubin").write_bytes(p.code)
            code = subprocess.run(
                [str(tool if tool.exists() else shutil.which("cuobjdump")), "-sass", str(tmp_path / "kernel.cubin")],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            seen = re.findall(r"\b(ACQBULK|LDG|STG|LDGSTS|ATOMG?|RED|UTMALDG|UTMASTG|LD|ST)\b(?=[. ])", code)
            assert seen and seen[0] == "ACQBULK" and seen.count("ACQBULK") == 1, (p.name, seen[:4])
    for k in generate_triton(compile_fn(fn, *args), {}, None, CUDA[2]).kernels:
        assert "_wait" not in k.source.text
