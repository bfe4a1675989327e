"""Public HuggingFace architectures with random weights: one graph each, equal to eager, served again on the second
call.
"""

import pytest
import torch

from .runner import Runner

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

TEXT = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    vocab_size=64,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
GQA = dict(TEXT, num_key_value_heads=2, head_dim=8)
VISION = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=16,
    patch_size=8,
    num_channels=3,
)
CONFIGS = {
    "bert": TEXT,
    "roberta": TEXT,
    "llama": GQA,
    "mistral": GQA,
    "qwen2": GQA,
    "vit": VISION,
    "clip_vision_model": VISION,
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=64, bos_token_id=1, eos_token_id=2),
    "distilbert": dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=64, max_position_embeddings=64),
    "t5": dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=64),
    "resnet": dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    "whisper": dict(
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        vocab_size=64,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    ),
}


def build(name):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **CONFIGS[name])
    if hasattr(config, "use_cache"):
        config.use_cache = False
    model = transformers.AutoModel.from_config(config).eval()
    if name in ("vit", "resnet", "clip_vision_model"):
        return model, lambda: {"pixel_values": torch.randn(2, 3, 16, 16)}
    if name == "whisper":
        return model, lambda: {
            "input_features": torch.randn(2, 8, 32),
            "decoder_input_ids": torch.randint(3, 64, (2, 4)),
        }
    if name == "t5":
        return model, lambda: {
            "input_ids": torch.randint(3, 64, (2, 8)),
            "decoder_input_ids": torch.randint(3, 64, (2, 4)),
        }
    return model, lambda: {
        "input_ids": torch.randint(3, 64, (2, 8)),
        "attention_mask": torch.ones(2, 8, dtype=torch.int64),
    }


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_one_graph(name):
    model, inputs = build(name)

    def call(kw):
        return model(**kw)

    run = Runner()
    for _ in range(2):
        kw = inputs()
        with torch.no_grad():
            expected = call(kw)
            got = run(call, kw)
        assert type(got) is type(expected) and list(got) == list(expected)
        for k, v in expected.items():
            if isinstance(v, torch.Tensor):
                torch.testing.assert_close(got[k], v, atol=1e-5, rtol=1e-4)
        assert got[0] is got[next(iter(got))]
    assert not run.breaks and not run.skips, run.breaks[:1] or run.skips
    assert len(run.captures) == 1


def test_training_forward_has_gradients():
    model, inputs = build("bert")
    model.train()
    for m in model.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0

    def call(kw):
        return model(**kw).last_hidden_state.square().mean()

    run = Runner()
    kw = inputs()
    call(kw).backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    run(call, kw).backward()
    got = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(got) == len(expected) and not run.breaks
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
