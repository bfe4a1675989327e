"""tests/runtime/test_training_graphs.py by CUDA graphs."""

from typing import Any, Iterator

import pytest
import torch

from tests.runtime import test_training_graphs as steps
from tests.runtime.test_training_graphs import *  # noqa: F403

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    with steps.noting("cuda", monkeypatch) as found:
        yield found
