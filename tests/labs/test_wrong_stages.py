"""What a student's stage may not do is an error in words: groups that can't be kernels, values that backward lacks."""

from __future__ import annotations

import pytest
import torch

from tcompile.labs.autograd_plugs import autograd_stage
from tcompile.labs.fusion_plugs import fusion_stage
from tcompile.labs.plugs import explain_with
from tcompile.labs.answers import told


def both_ways(x):
    y = torch.exp(x)
    return y.sum(0), y.sum(1)


def product(x, w):
    return torch.sin(x @ w)


def words(stage, function, program, *args) -> str:
    with pytest.raises(Exception) as caught:
        explain_with(stage, function, program, *args)
    return told(caught.value)


def test_what_can_not_share_a_kernel_says_so():
    def one(ops):
        return [[op.name for op in ops if op.kind != "input"]]

    assert "can't share a kernel" in words("fusion", fusion_stage(one), both_ways, torch.ones(8, 40))


def test_an_operator_left_out_is_named():
    assert "'exp' in 0 groups" in words("fusion", fusion_stage(lambda ops: []), both_ways, torch.ones(8, 40))


def test_a_value_that_backward_lacks_is_named():
    x, w = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    assert "backward needs 'mm'" in words("autograd", autograd_stage(lambda values: []), product, x, w)


def test_an_unsolved_stage_is_unsolved():
    def blank(ops):
        raise NotImplementedError("your code here")

    assert words("fusion", fusion_stage(blank), both_ways, torch.ones(8, 40)) in ("not solved yet.", "尚未完成。")
