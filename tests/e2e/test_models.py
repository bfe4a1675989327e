"""HuggingFace models with real sizes, two layers, random weights: one graph, no break, equal to eager."""

from __future__ import annotations

import pytest
import torch

import tcompile

transformers = pytest.importorskip("transformers")


def tensors(o):
    return [t for t in (o.to_tuple() if hasattr(o, "to_tuple") else (o,)) if isinstance(t, torch.Tensor)]


def bert():
    cfg = transformers.BertConfig(num_hidden_layers=2)
    ids = torch.randint(0, cfg.vocab_size, (4, 128))
    return transformers.BertModel(cfg).eval(), dict(input_ids=ids, attention_mask=torch.ones_like(ids))


def resnet():
    return transformers.ResNetModel(transformers.ResNetConfig(depths=[1, 1, 1, 1])).eval(), dict(
        pixel_values=torch.randn(2, 3, 64, 64)
    )


@pytest.mark.parametrize("make", [bert, resnet])
def test_inference(make):
    torch.manual_seed(0)
    m, kw = make()
    with torch.no_grad():
        want = m(**kw)
        r = tcompile.explain(m)(**kw)
        assert len(r.graphs) == 1 and not r.graph_breaks
        got = tcompile.compile(m, fullgraph=True)(**kw)
    assert type(got) is type(want)
    for a, b in zip(tensors(got), tensors(want)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
