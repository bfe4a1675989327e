"""Living with stock torch.compile in one process: what is ours is hidden from its frame hook.

Stock sees every Python frame that code compiled by it reaches, this compiler's own engine and entries among them.
`hide(code)` makes it pass such frames over, with all that they call. Needs nothing of torch._dynamo: the marks lie in
torch's C extension.
"""

from __future__ import annotations

import types
from typing import Any, Callable

import torch

__all__ = ["hide", "hidden"]


def _make_hide() -> Callable[[types.CodeType], None]:
    stock: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    mark = getattr(stock, "set_code_exec_strategy", None)
    if mark is None:
        return lambda code: None
    # this frame, and the frames that it starts
    skip = stock._FrameExecStrategy(stock._FrameAction.SKIP, stock._FrameAction.SKIP)
    return lambda code: mark(code, skip)


hide: Callable[[types.CodeType], None] = _make_hide()


def hidden(fn: Any) -> Any:
    """Decorator: stock runs this function as it is, and breaks its graph where it is called."""
    hide(fn.__code__)
    fn._torchdynamo_disable = True
    return fn
