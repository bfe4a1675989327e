"""Two of transformers' models that were not one graph: `python -m tests.oracles.transformers_models` tries them all."""

import pytest

pytest.importorskip("transformers")

from .transformers_models import check, names, tiny  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["bart", "llama4_text", "falcon_mamba"])
def test_one_graph_as_in_eager(name):
    """Settings that are copied deeply, gradients of complex numbers, versions that are asked for after effects."""
    row = check(name)
    assert "skipped" not in row, row
    assert row["graphs"] == 2 and not row["breaks"], row
    assert row["results"] < 1e-4 and row["gradients"] < 1e-3 and row["second size"] < 1e-4, row


def test_what_stays_large_is_skipped(monkeypatch):
    assert "bart" in names() and sum(p.numel() for p in tiny("bart").parameters()) < 1_000_000
    monkeypatch.setattr("tests.oracles.transformers_models.MOST_PARAMETERS", 10)
    assert check("bart") == {"name": "bart", "skipped": "ValueError: it stays large"}
