"""What one report says at several places: one cause, one figure."""

from __future__ import annotations

import pytest
import tcompile
import torch
from make_sample import sample
from tcompile.compiler.base.figures import against
from tcompile.compiler.report import schema as s
from tcompile.compiler.report.conclusions.answers import answers_of
from tcompile.compiler.report.conclusions.waits import FOLLOWS, causes
from tcompile.compiler.report.finish import closed_line


def test_what_is_compiled_again_after_a_break_for_the_same_reason_is_no_second_cause():
    @tcompile.compile
    def f(x):
        y = torch.sin(x) + 1
        if y.max() > 100:
            y = y - 1
        return torch.cos(y) * 2

    with tcompile.record() as builder:
        for n in (64, 100):
            x = torch.randn(n, 4)
            torch.testing.assert_close(f(x), torch.cos(torch.sin(x) + 1) * 2)
    r = builder.report()
    first, second = r.recompiles
    assert (first.source, second.source) == ("x", "y") and "mark_dynamic(x, 0)" in first.suggestion
    assert second.suggestion == f"{FOLLOWS} `x.shape[0]`", "y is made inside: nobody marks it before the call"
    assert causes(r) == [first] and "(x.shape[0])" in closed_line(r)
    assert not any("y.shape" in f.text for f in r.findings)
    begins = [e.goes_on for e in r.entries]
    assert begins[0] is None and begins[2] is None and begins[1] == begins[3] != 0, begins


def test_one_sample_of_each_is_no_comparison():
    assert against(171.0, 171.0, 171.0, "eager") == "one sample of each: too few to compare with eager"
    assert "no clear difference" in against(1.0, 0.9, 1.1, "eager")


def test_no_kernel_computes_faster_than_the_machine_can():
    """The peak was measured once, perhaps while others were at work."""
    r = sample()
    for k in r.kernels:
        k.seconds, k.flops, k.bytes = None, None, None
    k = r.kernels[0]
    k.seconds, k.flops, k.bytes = 1e-3, 10**9, 1000  # 1e12 a second
    slow = r.kernels[1]
    slow.seconds, slow.flops, slow.bytes = 1e-3, 10**8, 1000
    r.environment |= {"copy_bytes_per_second": 1e10, "matmul_flops_per_second": 1e10}
    r.wall = s.Wall(
        2.0, "sampled", 99, [s.WallPart("kernels", x.name, 1.0, 1, ref=f"kernels/{i}") for i, x in enumerate((k, slow))]
    )
    (a,) = [a for a in answers_of(r) if "compiled kernel" in a.text]
    assert "together at 55 % of what this machine can do" in a.text, "one at 100 %, one at 10 %"


@pytest.mark.parametrize("changed", [False, True])
def test_more_or_fewer_is_better_only_where_the_code_changed(changed: bool):
    before, after = sample(), sample()
    after.summary.graphs += 1
    after.source.text += "\nz = 1" * changed
    (c,) = [c for c in after.diff(before).changes if c.what == "graphs"]
    assert c.better is (False if changed else None)
    after.graphs = after.graphs[:1]
    after.memory = [s.Memory(0, peak_bytes=1)]
    assert not any(c.what.startswith("peak") for c in after.diff(before).changes), "peaks of other graphs"
