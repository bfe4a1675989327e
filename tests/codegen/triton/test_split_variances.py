"""Variances whose rows are shared among programs: squares around the means of pieces become squares around one mean."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton.layout import Choices, GpuTarget  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.fusion.memory.memory_plan import same_index  # noqa: E402
from tcompile.compiler.lowering.ir import walk  # noqa: E402
from tcompile.compiler.runtime.gpu.compile import Job, compile_all  # noqa: E402

from .as_gpu import as_gpu  # noqa: E402
from .interpreter import check  # noqa: E402

SPLIT = Choices("split", rblock=16, split=4)


@pytest.mark.parametrize("along", [0, 1], ids=["columns", "rows"])
@pytest.mark.parametrize("case", ["plain", "far from zero", "equal", "nan", "inf"])
def test_squares_around_one_mean(along, case):
    x = torch.randn(70, 70, dtype=torch.float64)
    x = x * 1e-2 + 1e3 if case == "far from zero" else torch.full_like(x, 0.1) if case == "equal" else x
    x = x.float()
    if case in ("nan", "inf"):
        x[3, 5] = float(case)
    f = lambda x: torch.var_mean(x, along, correction=0)
    check(f, x, choices=SPLIT, rtol=2e-3 if case == "far from zero" else 1e-4, atol=1e-7)


def test_a_batch_norm_that_trains_compiles():
    """Its sums are used by rows and by columns (Triton 3.6 rejected that)."""

    def f(x, w, b, mean, var):
        return F.batch_norm(x.float(), mean, var, w, b, training=True).to(x.dtype)

    target = GpuTarget("cuda", 90, 32, 132)
    kernels = as_gpu(f, torch.randn(6272, 256).bfloat16(), *(torch.ones(256) for _ in range(4)), target=target).kernels
    assert any(k.source.choices["shape"] == "split" for k in kernels)
    assert len(compile_all([Job(k.source, target) for k in kernels], Options())) == len(kernels)


def test_a_result_of_columns_does_not_lie_in_what_the_rows_still_read():
    """The weight's gradient of a batch norm was written over the scale that the pass over the rows read after it: on a
    GPU what is made of sums alone is made as soon as they are there.
    """

    def f(gradient, x, scale):
        total = (gradient * x).sum(0)
        return total * scale, (gradient - x * total) * scale

    g = as_gpu(f, torch.randn(4096, 64), torch.randn(4096, 64), torch.randn(64))
    found = 0
    for k in (k.kernel for k in g.kernels):
        for i, b in enumerate(k.inputs):
            for o, out in enumerate(k.outputs):
                stored = [st for st in k.stages for s in st.stores if s.buffer is out]
                reading = [st for st in k.stages if any(v.op == "load" and v.attr[0] is b for v in walk(st.roots()))]
                if stored and not stored[0].axes and any(st is not stored[0] for st in reading):
                    found += 1
                    assert not same_index(k, i, o, True)
    assert found
