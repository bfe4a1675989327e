"""The contexts that a checkpoint is given, against eager."""

import contextlib
import functools

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import tcompile


@pytest.mark.parametrize(
    "contexts",
    [
        lambda: (torch.autocast("cpu"), torch.autocast("cpu")),
        lambda: (torch.no_grad(), torch.no_grad()),
        lambda: torch.no_grad(),
        lambda: (contextlib.nullcontext(), contextlib.nullcontext()),
        lambda: create_selective_checkpoint_contexts([torch.ops.aten.mm.default]),
        functools.partial(create_selective_checkpoint_contexts, lambda ctx, op, *args: CheckpointPolicy.MUST_SAVE),
    ],
)
def test_the_contexts_of_a_checkpoint(contexts):
    """Only those that are known to change nothing may be left out."""

    def fn(x):
        return checkpoint(lambda a: (a @ a).sin() * a, x, use_reentrant=False, context_fn=contexts)

    told = []
    for f in (fn, tcompile.compile(fn)):
        x = torch.arange(16.0).view(4, 4).mul_(0.1).requires_grad_()
        try:
            f(x).sum().backward()
            told.append(x.grad)
        except Exception as error:
            told.append(type(error))
    if isinstance(told[0], torch.Tensor):
        torch.testing.assert_close(told[1], told[0])
    else:
        assert told[0] is told[1]
