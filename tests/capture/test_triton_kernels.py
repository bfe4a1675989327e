"""Triton kernels of the program's own: one break at the launch, none in triton; as an operator, none."""
import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("triton")
PROGRAM = textwrap.dedent("""
    import torch, tcompile, triton, triton.language as tl

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)

    tuned = triton.autotune([triton.Config({"BLOCK": 32})], key=["n"])(add)

    def launch(x, y):
        out = torch.empty_like(x)
        add[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
        return out

    @torch.library.custom_op("triton_kernels::add", mutates_args=())
    def operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return launch(x, y)

    @operator.register_fake
    def _(x, y):
        return torch.empty_like(x)

    x, y = torch.randn(100), torch.randn(100)
    for f, graphs in ((launch, 2), (operator, 1)):
        report = tcompile.explain(lambda x, y: f(x.sin(), y) * 2)(x, y)
        torch.testing.assert_close(report.result, (x.sin() + y) * 2)
        kinds = [(b.kind, b.line) for b in report.graph_breaks]
        assert len(kinds) == (graphs > 1) and all(k == "triton_kernel" and line == 13 for k, line in kinds), kinds
        assert len(report.graphs) == graphs and not any("internal" in x.reason for x in report.fallbacks)
""")


def test_launches(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM + "print('done')")
    done = subprocess.run([sys.executable, str(file)], text=True, capture_output=True, timeout=120, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.stdout == "done\n", done.stderr[-3000:]
