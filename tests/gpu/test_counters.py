"""Products of CUDA graphs whose counters are cleared at a graph's beginning, by every algorithm that the library
offers.
"""

import pytest
import torch
import torch.nn as nn

import tcompile
from tcompile.compiler.native import native
from tcompile.compiler.runtime.gpu import gpu_graph, counters
from tcompile.compiler.runtime.native_program import gemm_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
ALGORITHMS = 8


def test_replays_are_right_by_every_algorithm(monkeypatch):
    cleared: list[int] = []
    clear_first = counters.clear_first

    def noted(*args):
        cleared.append(clear_first(*args))
        return cleared[-1]

    monkeypatch.setattr(counters, "clear_first", noted)
    torch.manual_seed(0)
    m = nn.Sequential(
        nn.Linear(512, 2048),
        nn.GELU(),
        nn.Linear(2048, 512),
        nn.LayerNorm(512),
        nn.Linear(512, 1536),
        nn.GELU(),
        nn.Linear(1536, 512),
    )
    m = m.cuda().bfloat16()
    for k in range(ALGORITHMS):

        def chosen(steps, opts, index):
            found = {}
            for s in steps:
                gemm = gemm_of(s) if getattr(s, "out_variant", None) is not None else ()
                rows = native.gemm_algorithms(index, gemm, ALGORITHMS) if gemm else ()
                if rows:
                    found[gemm] = rows[k % len(rows)][:2]
            return found

        monkeypatch.setattr(gpu_graph, "choose_algorithms", chosen)
        tcompile.reset()
        c = tcompile.compile(m, mode="reduce-overhead")
        for i in range(7):
            x = torch.randn(4096, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            out, want = c(x), m(y)
            torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)
            g = torch.randn_like(want)
            got = torch.autograd.grad(out, [x, *m.parameters()], g)
            for a, b in zip(got, torch.autograd.grad(want, [y, *m.parameters()], g)):
                assert (a.float() - b.float()).norm() <= 2e-2 * b.float().norm() + 1e-3
    if torch.cuda.get_device_capability() == (9, 0):  # (whose library has such algorithms)
        assert any(cleared), cleared
