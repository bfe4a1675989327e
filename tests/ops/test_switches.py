"""The switches that users of torch.compile know: each does what its name says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler.errors import OptionError


def kernels(fn, *args, **options):
    """(number of generated kernels, torch's kernels called, the result)."""
    tcompile.reset()
    with tcompile.record() as r:
        out = tcompile.compile(fn, fullgraph=True, options=options)(*args)
    report = r.report()
    return len(report.kernels), [e.op for e in report.externs], out


def chain(x):
    a = torch.relu(x).sum(1, keepdim=True)
    b = (x - a).exp() * 2
    return b.amax(0), b.tanh()


def test_disable_fusion_and_max_fusion_size():
    x = torch.randn(40, 30)
    fused, _, want = kernels(chain, x)
    apart, _, got = kernels(chain, x, disable_fusion=True)
    some, _, third = kernels(chain, x, max_fusion_size=2)
    assert fused < some < apart
    torch.testing.assert_close((got, third), (want, want))


def test_epilogue_fusion():
    x, w = torch.randn(64, 64), torch.randn(64, 64)

    def f(x, w):
        return torch.relu(x @ w + 1) * 2

    on, _, want = kernels(f, x, w, cpu_products="generated")
    off, _, got = kernels(f, x, w, cpu_products="generated", epilogue_fusion=False)
    assert on == 1 and off == 2
    torch.testing.assert_close(got, want)


def gates(x, y):
    z = x.clone()
    z[:, :4] = y
    z[:, 4:] = y * 2
    return z[:, :4] + 1


def graph_of(fn, *args, **options):
    tcompile.reset()
    with tcompile.record() as r:
        out = tcompile.compile(fn, fullgraph=True, options=options)(*args)
    return str(r.report().graphs[0].aten), out


def test_pattern_matcher_and_disabled_passes():
    x, y = torch.randn(6, 8), torch.randn(6, 4)
    on, want = graph_of(gates, x, y)
    off, got = graph_of(gates, x, y, pattern_matcher=False)
    named, third = graph_of(gates, x, y, disabled_passes="slices_of_scatters")
    assert "slice_scatter" not in on and "slice_scatter" in off and "slice_scatter" in named
    torch.testing.assert_close((got, third), (want, want))


def test_emulate_precision_rounds_as_eager_does():
    x = torch.randn(1000, dtype=torch.bfloat16)

    def f(x):
        return (x * 1.1 + 0.3) * x - 0.7 * x

    _, _, fused = kernels(f, x)
    _, _, exact = kernels(f, x, emulate_precision=True)
    assert torch.equal(exact, f(x))
    assert not torch.equal(fused, f(x))


def test_fallback_random():
    def f(x):
        return F.dropout(x, 0.4), torch.rand(1000), torch.randn_like(x), torch.bernoulli(torch.sigmoid(x))

    x = torch.randn(200, 100)
    torch.manual_seed(0)
    _, ops, own = kernels(f, x)
    torch.manual_seed(0)
    assert all(map(torch.equal, own, f(x)))  # eager's numbers
    compiled = tcompile.compile(f, fullgraph=True, options={"fallback_random": False})
    torch.manual_seed(0)
    one, two = compiled(x), compiled(x)
    torch.manual_seed(0)
    assert all(map(torch.equal, one, compiled(x)))
    assert not any(map(torch.equal, one, two))
    assert set(kernels(f, x, fallback_random=False)[1]) == {"aten.randint.low"}
    assert abs((one[0] == 0).float().mean() - 0.4) < 0.02
    assert abs(one[1].mean() - 0.5) < 0.05 and 0 <= one[1].min() and one[1].max() < 1
    assert abs(one[2].mean()) < 0.03 and abs(one[2].std() - 1) < 0.03
    assert one[1].bfloat16().max() <= 1
    low = tcompile.compile(
        lambda: torch.rand(100_000, dtype=torch.bfloat16), fullgraph=True, options={"fallback_random": False}
    )()
    assert low.max() < 1


def test_dropout_of_our_own_has_the_gradient_of_its_mask():
    x = torch.randn(50, 40, requires_grad=True)
    y = tcompile.compile(lambda x: F.dropout(x * 3, 0.5), options={"fallback_random": False})(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)
    torch.testing.assert_close(x.grad[x.grad != 0], torch.full_like(x.grad[x.grad != 0], 6.0))


def test_debug_writes_every_stage(tmp_path):
    tcompile.compile(chain, fullgraph=True, options={"debug": True, "debug_dir": str(tmp_path)})(torch.randn(4, 5))
    names = " ".join(p.name for p in tmp_path.rglob("*") if p.is_file())
    for stage in ("graph", "lowering", "fusion", "codegen"):
        assert stage in names, names


@pytest.mark.parametrize(
    "wrong,near",
    [
        ("disable_fuson", "disable_fusion"),
        ("max_fusion_sise", "max_fusion_size"),
        ("freezin", "freezing"),
        ("patern_matcher", "pattern_matcher"),
        ("epilog_fusion", "epilogue_fusion"),
    ],
)
def test_names_are_checked(wrong, near):
    with pytest.raises(OptionError, match=f"Did you mean '{near}'"):
        tcompile.compile(chain, options={wrong: True})
    with pytest.raises(OptionError, match="True or False"):
        tcompile.compile(chain, options={"freezing": "perhaps"})


def test_print_guards(caplog):
    with caplog.at_level("INFO", logger="tcompile.guards"):
        tcompile.compile(chain, options={"print_guards": True})(torch.ones(2, 2))
    assert any("guards of chain" in r.message and "`x` is a float32 tensor" in r.message for r in caplog.records)
    caplog.clear()
    tcompile.compile(chain)(torch.ones(2, 2))
    assert not caplog.records


@pytest.mark.parametrize("verbose", (False, True))
def test_verbose(verbose, caplog):
    def broken(lowered, *, opts):
        return len(lowered, opts)

    with tcompile.stages.replace("fusion", broken), tcompile.record() as r:
        tcompile.compile(chain, options={"verbose": verbose, "suppress_errors": True})(torch.ones(2, 2))
    (error,) = r.report().errors
    assert (
        "TypeError: len() takes exactly one argument" in error
        and ("return len(lowered, opts)" in caplog.text) is verbose
    )


def test_what_a_replaced_stage_compiled_is_not_served_without_it():
    def counted(lowered, *, opts):
        seen.append(opts)
        return tcompile.stages.original("fusion")(lowered, opts=opts)

    def kernels_made():
        with tcompile.record() as r, tcompile.enable():
            chain(x)
        return len(r.report().kernels)

    seen, x = [], torch.randn(4, 3)
    tcompile.reset()
    for _ in range(2):
        with tcompile.stages.replace("fusion", counted):
            kernels_made()
    assert len(seen) == 1 and kernels_made() > 0 and kernels_made() == 0 and len(seen) == 1
