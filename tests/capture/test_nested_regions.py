"""Functions that torch.compiler.nested_compile_region decorated are captured where they are called."""

import torch

import tcompile


@torch.compiler.nested_compile_region
def block(x, scale=2.0):
    return torch.sin(x) * scale


def twice(x):
    return block(block(x), scale=3.0) + 1


def test_equal_blocks_are_one_graph_without_a_break():
    x, y = (torch.linspace(-1, 1, 7, requires_grad=True) for _ in range(2))
    with tcompile.record() as recording:
        got = tcompile.compile(twice, fullgraph=True)(x)
    want = torch.sin(torch.sin(y) * 2.0) * 3.0 + 1
    torch.testing.assert_close(got, want)
    got.sum().backward()
    want.sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    report = recording.report()
    assert len([g for g in report.graphs if g.captured]) == 1 and not report.graph_breaks and not report.fallbacks
