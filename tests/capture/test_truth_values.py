"""Bools that are read from tensors: the graph goes on where nothing but the program's results hangs on them."""

from __future__ import annotations

import pytest
import tcompile
import torch

PROGRAMS = {
    "bool of a tensor": lambda x: (bool(x.sum()), x + 1),
    "bool of a comparison": lambda x: {"any": bool((x > 5).any()), "y": x + 1},
    "bool of a number": lambda x: (bool(x.sum().item()), bool(x.long().sum().item()), x + 1),
    "item of a bool": lambda x: ((x > 0).any().item(), x * 2),
    "tolist of bools": lambda x: ((x > 0).tolist(), x * 2),
    "not": lambda x: (not x.sum().item() > 0, not (x > 0).any(), x + 1),
    "of one element": lambda x: (bool(x[:1, None]), bool(x.isnan().any()), x + 1),
}


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [1.0, -2.0, 7.0], [float("nan"), 0.0, 0.0]])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_bool_that_is_returned_ends_no_graph(program, values):
    x = torch.tensor(values)
    ours, theirs = tcompile.compile(program, fullgraph=True)(x), program(x)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert [type(v) for v in torch.utils._pytree.tree_leaves(ours)] == [
        type(v) for v in torch.utils._pytree.tree_leaves(theirs)
    ]


USES = {
    "a branch": lambda x: x + 1 if bool((x > 5).any()) else x - 1,
    "a number": lambda x: (int((x > 5).any().item()), float((x > 5).any()), (x > 5).any().item() + 1, x + 1),
    "a factor": lambda x: x * bool((x > 5).any()),
    "words": lambda x: (f"{bool((x > 5).any())} {(x > 0).tolist()}", x + 1),
    "both": lambda x: (bool((x > 5).any()) and bool((x < 0).any()), x + 1),
    "a key": lambda x: ({True: 1, False: 2}[bool((x > 5).any())], x + 1),
    "the value at that time": lambda x: (bool(x.sum()), x.zero_(), bool(x.sum())),
}


@pytest.mark.parametrize("values", [[0.0, 0.0, 1.0], [1.0, -2.0, 7.0]])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_uses_of_a_bool_that_is_read(use, values):
    ours, theirs = tcompile.compile(use)(torch.tensor(values)), use(torch.tensor(values))
    leaves = torch.utils._pytree.tree_leaves
    assert all(map(same, leaves(ours), leaves(theirs))) and len(leaves(ours)) == len(leaves(theirs))


def same(a, b):
    return type(a) is type(b) and (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b)


@pytest.mark.parametrize("shape", [(0,), (2,), (2, 1)])
def test_a_tensor_of_other_than_one_element_has_no_truth(shape):
    with pytest.raises(RuntimeError, match="Boolean value of Tensor"):
        tcompile.compile(lambda x: bool(x + 1))(torch.ones(shape))
