"""One test of a lab on the names of a notebook, for graders that run the notebook themselves."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any, Mapping

from .library import Missing, find
from .answers import Submission, use_looks
from .words import language, say

__all__ = ["run_test"]


@lru_cache(maxsize=None)
def _module(number: int, hidden: bool) -> ModuleType:
    return find(number).tests(hidden)


def run_test(number: int, key: str, names: Mapping[str, Any]) -> None:
    """Run the test `public:...` or `hidden:...`; raises what it raises. Hidden ones need the instructor's package."""
    import torch

    part, _, test = key.partition(":")
    lab = find(number)
    if part == "hidden" and lab.instructor is None:
        raise Missing(say("no_instructor"))
    use_looks(lab.facts["looks"].get(language()) or {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        getattr(_module(number, part == "hidden"), test)(
            Submission(**{k: v for k, v in names.items() if not k.startswith("_")}, _broken={})
        )
