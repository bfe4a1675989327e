"""A kernel that the GPU's compiler refuses: other ways to print it, a file that shows the refusal, a graph without
fusion, torch's own kernels; each counted, the result right. Without a GPU; tests/gpu has the whole.
"""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

import tcompile  # noqa: E402
from tcompile.compiler import stages  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.errors import RejectedKernel  # noqa: E402
from tcompile.compiler.runtime.gpu import compile as gpu  # noqa: E402
from tcompile.compiler.runtime.gpu.compile import Job, compile_all  # noqa: E402
from tcompile.compiler.runtime.gpu.rejected import in_other_ways  # noqa: E402
from tcompile.compiler.runtime.gpu.tune import candidates  # noqa: E402
from tcompile.compiler.runtime.gpu.workers import Worker  # noqa: E402

from .test_compiled import CUDA, PROGRAMS, compile_fn, generate_triton  # noqa: E402


def kernel():
    fn, *args = PROGRAMS["pointwise"]()
    return generate_triton(compile_fn(fn, *args), {}, None, CUDA[2]).kernels[0]


@pytest.fixture
def refuses(monkeypatch):
    """refuses(n): the first n kernels that a worker is asked for are rejected."""
    asked: list[dict] = []
    ask = Worker.ask

    def install(n):
        def answer(self, job):
            asked.append(job)
            return {"error": 'PassManager::run failed\n"""'} if len(asked) <= n else ask(self, job)

        monkeypatch.setattr(gpu, "_loaded", {})
        monkeypatch.setattr(Worker, "ask", answer)
        return asked

    return install


def test_the_next_way_to_print_it_is_taken_and_counted(refuses, tmp_path, monkeypatch):
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path))
    k = kernel()
    asked = refuses(2)
    with tcompile.record() as r:
        (printed,) = in_other_ways([k], CUDA[2], Options())
    assert len(asked) == 3 and asked[2] != asked[0]
    code = printed.source.text.partition("@triton.jit")[2]  # (comments and the kernel's number are not compiled)
    assert code.replace(k.name, "k_add_mul_sub_exp") == asked[2]["text"].partition("@triton.jit")[2]
    (said,) = [f.reason for f in r.report().fallbacks]
    assert k.name in said and "PassManager" in said and "To see it alone" in said


def test_where_every_way_is_rejected_the_first_refusal_is_raised(refuses, tmp_path, monkeypatch):
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path))
    k = kernel()
    asked = refuses(100)
    with pytest.raises(RejectedKernel, match="PassManager"):
        in_other_ways([k], CUDA[2], Options())
    assert 1 < len(asked) <= len(candidates(k, CUDA[2]))


@pytest.mark.parametrize("broken", [True, False])
def test_the_file_shows_the_refusal_by_itself(broken, tmp_path, monkeypatch, refuses):
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path))
    k = kernel()
    if broken:
        k = replace(k, source=replace(k.source, text=k.source.text.replace("libdevice.exp(", "libdevice.no_such(")))
    else:
        refuses(1)
    with pytest.raises(RejectedKernel) as e:
        compile_all([Job(k.source, CUDA[2])], Options())
    (file,) = tmp_path.rglob("rejected/*.py")
    assert str(file) in str(e.value)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300)
    assert ("no_such" in done.stderr and done.returncode) if broken else "is compiled" in done.stdout


def test_a_graph_whose_kernel_is_rejected_in_every_way_is_compiled_without_fusion():
    seen = []

    def runtime(generated, opts, eager=None):
        seen.append((bool(opts.get("disable_fusion")), len(generated.kernels)))
        if not opts.get("disable_fusion"):
            raise RejectedKernel("triton rejects a generated kernel: too clever")
        return stages.original("runtime")(generated, opts=opts, eager=eager)

    x = torch.randn(40, 5)

    def f(x):
        return torch.softmax(x.exp() * 2, -1).sum(0)

    with stages.replace("runtime", runtime), tcompile.record() as r:
        torch.testing.assert_close(tcompile.compile(f, options={"suppress_errors": True})(x), f(x))
    assert [fused for fused, _ in seen] == [False, True] and seen[1][1] > seen[0][1]
    assert any("without fusion" in x.reason and "too clever" in x.reason for x in r.report().fallbacks)
    with stages.replace("runtime", runtime), pytest.raises(RejectedKernel):
        tcompile.compile(f, options={"suppress_errors": False})(x)
