"""Tiny models of transformers on a GPU, as they are used: a step with a loss under autocast, and inference in half
precision. Every graph is made of kernels and of calls that the compiler chose. Skipped where there is no GPU.
"""

import pytest
import torch

import tcompile

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

from ..oracles.transformers_models import distance, tiny, whole  # noqa: E402

HEADS = {
    "AutoModelForMaskedLM": "albert bert deberta-v2 distilbert electra longformer mobilebert roberta".split(),
    "AutoModelForCausalLM": "gpt2 gpt_neox llama mixtral opt".split(),
    "AutoModelForSeq2SeqLM": "bart t5".split(),
}


def model_of(head, name):
    config = tiny(name).config
    config.use_cache = False
    torch.manual_seed(0)
    return getattr(transformers, head).from_config(config).cuda()


def checked(report):
    assert report.graphs
    assert not [f for f in report.fallbacks if "torch's own kernels" in f.reason or "runs eager" in f.reason]


@pytest.mark.parametrize("head, name", [(head, name) for head, names in HEADS.items() for name in names])
def test_no_graph_is_left_to_torch(head, name):
    model = model_of(head, name).train()
    ids = torch.randint(3, 300, (2, 32), device="cuda")
    given = {"input_ids": ids, "decoder_input_ids": ids} if "Seq2Seq" in head else {"input_ids": ids}

    def step(call):
        torch.manual_seed(1)
        with torch.autocast("cuda", torch.bfloat16):
            loss = call(**given, labels=ids).loss
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        model.zero_grad(set_to_none=True)
        return [loss.detach()], gradients

    for m in model.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0  # (attention draws other numbers where transformers gives a compiled one a mask)
    want, gradients = step(model)
    with tcompile.record() as record:
        got, ours = step(tcompile.compile(model))
    checked(record.report())
    assert distance(got, want) < 2e-2 and distance(whole(ours), whole(gradients)) < 0.1

    model.eval().half()
    with torch.no_grad():
        expected = model(**given).logits
        with tcompile.record() as record:
            logits = tcompile.compile(model)(**given).logits
    checked(record.report())
    assert distance([logits], [expected]) < 2e-2
