"""Public architectures with random weights: transformers always, timm and torchvision where they are installed.

A name is `library:architecture`. Two sizes: "real" (those that are published, with less work on the CPU) and "tiny"
(two layers of width 32, for tests; transformers alone).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["MODELS", "TINY", "Model", "build", "installed", "make"]

Step = Callable[[Any], torch.Tensor]  # of a model or its compiled form: the loss in training, else a result
TINY_TEXT: dict[str, Any] = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    vocab_size=96,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
TINY_DECODER = dict(TINY_TEXT, num_key_value_heads=2, head_dim=8)
TINY_T5: dict[str, Any] = dict(
    d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=96, decoder_start_token_id=0
)
TINY_IMAGE: dict[str, Any] = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
    num_labels=10,
)


@dataclass(frozen=True)
class Model:
    """How an architecture is made, and what it is called with."""

    kind: str  # of its input: "text" | "pairs" (encoder and decoder) | "image" | "speech" | "waves"
    batch: int  # on a GPU; an eighth of it on the CPU
    length: int = 0  # tokens; at most 128 on the CPU
    auto: str = ""  # transformers' class
    config: dict[str, Any] = field(default_factory=dict)
    tiny: dict[str, Any] | None = None


def text(auto: str, batch: int, length: int = 512, tiny: dict[str, Any] | None = None, **config: Any) -> Model:
    return Model("text", batch, length, f"AutoModelFor{auto}", config, tiny)


def pairs(batch: int, length: int = 512, tiny: dict[str, Any] | None = None, **config: Any) -> Model:
    return Model("pairs", batch, length, "AutoModelForSeq2SeqLM", config, tiny)


def image(batch: int, tiny: dict[str, Any] | None = None, **config: Any) -> Model:
    return Model("image", batch, auto="AutoModelForImageClassification", config=config, tiny=tiny)


BASE: dict[str, Any] = dict(
    hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, vocab_size=32000
)
MODELS: dict[str, Model] = {
    "transformers:bert": text("MaskedLM", 16, tiny=TINY_TEXT),
    "transformers:roberta": text("MaskedLM", 16),
    "transformers:albert": text("MaskedLM", 8, **{k: v for k, v in BASE.items() if k != "vocab_size"}),
    "transformers:distilbert": text("MaskedLM", 16),
    "transformers:deberta-v2": text("MaskedLM", 4, **BASE),
    "transformers:longformer": text("MaskedLM", 2, 1024, attention_window=256, max_position_embeddings=1026),
    "transformers:gpt2": text(
        "CausalLM",
        8,
        tiny=dict(n_embd=32, n_layer=2, n_head=4, vocab_size=96, n_positions=64, bos_token_id=1, eos_token_id=2),
    ),
    "transformers:opt": text("CausalLM", 4, 1024),
    "transformers:gpt_neox": text("CausalLM", 4, 1024, **BASE),
    "transformers:llama": text("CausalLM", 4, 1024, tiny=TINY_DECODER, **BASE, num_key_value_heads=4),
    "transformers:qwen3": text("CausalLM", 2, 1024, **BASE, num_key_value_heads=4, head_dim=64),
    "transformers:gemma2": text("CausalLM", 2, 1024, **BASE, num_key_value_heads=4, head_dim=64),
    "transformers:mixtral": text("CausalLM", 2, 512, **{**BASE, "num_hidden_layers": 4}, num_key_value_heads=4),
    "transformers:mamba": text("CausalLM", 2, 512, hidden_size=768, num_hidden_layers=4, vocab_size=32000),
    "transformers:t5": pairs(4, tiny=TINY_T5, decoder_start_token_id=0),
    "transformers:bart": pairs(4),
    "transformers:whisper": Model("speech", 4, 128, "AutoModelForSpeechSeq2Seq"),
    "transformers:wav2vec2": Model("waves", 4, auto="AutoModel", config=dict(mask_time_prob=0.0)),
    "transformers:vit": image(64, tiny=TINY_IMAGE),
    "transformers:swin": image(64),
    "transformers:convnext": image(64),
    "transformers:resnet": image(
        64, tiny=dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10)
    ),
    **{
        f"timm:{name}": Model("image", batch)
        for name, batch in {
            "mobilenetv3_large_100": 128,
            "efficientnet_b0": 128,
            "convnext_tiny": 64,
            "swin_tiny_patch4_window7_224": 64,
            "vit_base_patch16_224": 64,
            "regnety_032": 64,
            "poolformer_s24": 64,
            "ghostnet_100": 128,
            "hrnet_w18": 32,
            "levit_128": 128,
            "dm_nfnet_f0": 32,
            "volo_d1_224": 32,
        }.items()
    },
    **{
        f"torchvision:{name}": Model("image", batch)
        for name, batch in {
            "resnet18": 128,
            "resnet50": 64,
            "resnext50_32x4d": 64,
            "densenet121": 32,
            "shufflenet_v2_x1_0": 128,
            "mobilenet_v3_large": 128,
        }.items()
    },
}
TINY = [name for name, model in MODELS.items() if model.tiny is not None]


def installed(name: str) -> bool:
    """Whether the library of the model can be imported."""
    return importlib.util.find_spec(name.partition(":")[0]) is not None


def make(name: str, size: str) -> torch.nn.Module:
    """The model with random weights."""
    library, _, architecture = name.partition(":")
    if library == "timm":
        import timm

        return timm.create_model(architecture, pretrained=False)
    if library == "torchvision":
        import torchvision

        return torchvision.models.get_model(architecture, weights=None)
    import transformers

    model = MODELS[name]
    settings = model.config if size == "real" else model.tiny
    if settings is None:
        raise ValueError(f"{name} has no tiny configuration; there are {', '.join(TINY)}")
    config = transformers.AutoConfig.for_model(architecture, **settings)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return getattr(transformers, model.auto).from_config(config)


def inputs(name: str, module: torch.nn.Module, size: str, device: str) -> dict[str, torch.Tensor]:
    """What transformers' models take by keyword. Other libraries' models take `pixel_values` as their one argument."""
    model, config = MODELS[name], getattr(module, "config", None)
    draw = torch.Generator().manual_seed(1)
    small, tiny = device == "cpu", size == "tiny"
    batch = 2 if tiny else max(1, model.batch // 8) if small else model.batch
    if model.kind == "image":
        side = getattr(config, "image_size", 224) if config is not None else module.default_cfg["input_size"][1]
        side = 32 if tiny else side if isinstance(side, int) else side[0]
        return {"pixel_values": torch.randn(batch, 3, side, side, generator=draw)}
    if model.kind == "waves":
        return {"input_values": torch.randn(batch, 32000, generator=draw)}
    length = 8 if tiny else min(model.length, 128) if small else model.length
    ids = torch.randint(3, min(config.vocab_size, 20000), (batch, length), generator=draw)
    if model.kind == "speech":
        return {"input_features": torch.randn(batch, 80, 3000, generator=draw), "decoder_input_ids": ids}
    if model.kind == "pairs":
        return {"input_ids": ids, "decoder_input_ids": ids.roll(1, 1)}
    return {"input_ids": ids}


def build(name: str, training: bool, device: str, size: str = "real") -> tuple[torch.nn.Module, Step]:
    """The model, and what is measured of it: a result, or in training the loss. Inference on a GPU is in float16."""
    torch.manual_seed(0)
    module = make(name, size)
    given = inputs(name, module, size, device)
    dtype = torch.float32 if training or device == "cpu" else torch.float16
    given = {k: v.to(device, dtype if v.is_floating_point() else None) for k, v in given.items()}
    if training and MODELS[name].kind in ("text", "pairs", "speech"):
        given["labels"] = given.get("decoder_input_ids", given["input_ids"] if "input_ids" in given else None)
        given.pop("decoder_input_ids", None)
    keywords = name.startswith("transformers:")

    def step(call: Any) -> torch.Tensor:
        out = call(**given) if keywords else call(given["pixel_values"])
        if training and getattr(out, "loss", None) is not None:
            return out.loss
        first = out if isinstance(out, torch.Tensor) else getattr(out, "logits", None)
        first = out[0] if first is None else first
        return first.float().square().mean() if training else first

    module = module.to(device, dtype)
    return (module.train() if training else module.eval()), step
