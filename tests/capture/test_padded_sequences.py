"""pad_sequence: sequences side by side, part of the graph where they differ in their lengths only."""

from __future__ import annotations

import pytest
import tcompile
import torch
from torch.nn.utils.rnn import pad_sequence


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
def test_one_graph_with_gradients(batch_first: bool, side: str) -> None:
    def f(*sequences: torch.Tensor) -> torch.Tensor:
        return pad_sequence(sequences, batch_first, 2.0, side) * 3

    with tcompile.record() as record:
        compiled = tcompile.compile(f, backend="eager", fullgraph=True)
        for lengths in ((2, 4, 3), (5, 4, 3), (6, 7, 3), (9, 4, 8)):
            ours = [torch.randn(n, 2, requires_grad=True) for n in lengths]
            theirs = [t.detach().clone().requires_grad_() for t in ours]
            got, want = compiled(*ours), f(*theirs)
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want)
            got.square().sum().backward()
            want.square().sum().backward()
            torch.testing.assert_close([t.grad for t in ours], [t.grad for t in theirs])
    assert not record.report().fallbacks


def test_what_is_not_alike_is_as_in_eager() -> None:
    mixed = [torch.ones(2), torch.ones(3, dtype=torch.float64)]
    compiled = tcompile.compile(lambda *given: pad_sequence(given), backend="eager")
    torch.testing.assert_close(compiled(*mixed), pad_sequence(mixed))
    with pytest.raises(RuntimeError, match="padding_side"):
        tcompile.compile(lambda x: pad_sequence([x], padding_side="x"), backend="eager")(torch.ones(2))
