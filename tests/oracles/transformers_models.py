"""Every model type of transformers with a tiny configuration, forward and backward, compiled against eager.

    python -m tests.oracles.transformers_models [--device cuda] [NAME ...]

One line of JSON for each type: what was given to it, graphs, breaks that matter and fallbacks. Three numbers say how far
results, gradients and results of a second size are from eager's. Types that can't be made tiny, or take none of the
inputs, are skipped with the reason.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import tcompile

__all__ = ["MOST_PARAMETERS", "check", "names", "tiny"]

MOST_PARAMETERS = 30_000_000
_SIZES = {
    **dict.fromkeys("hidden_size d_model n_embd dim embedding_size embed_dim".split(), 64),
    **dict.fromkeys(
        """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers
        num_encoder_layers num_key_value_heads num_experts_per_tok""".split(),
        2,
    ),
    **dict.fromkeys(
        """num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_experts
        num_local_experts n_routed_experts""".split(),
        4,
    ),
    **dict.fromkeys(
        "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff hidden_dim".split(),
        96,
    ),
    **dict.fromkeys("max_position_embeddings n_positions".split(), 64),
    **dict.fromkeys("head_dim d_kv v_head_dim sliding_window".split(), 16),
    **dict.fromkeys("q_lora_rank kv_lora_rank image_size".split(), 32),
    **dict.fromkeys("qk_rope_head_dim qk_nope_head_dim patch_size".split(), 8),
    **{"vocab_size": 320, "moe_intermediate_size": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}


def names() -> list[str]:
    from transformers import CONFIG_MAPPING

    return sorted(CONFIG_MAPPING.keys())


def _small(config: Any) -> dict[str, int]:
    return {k: v for k, v in _SIZES.items() if type(getattr(config, k, None)) is int}


def tiny(name: str) -> torch.nn.Module:
    """The model of a type, in eval mode. Raises what transformers raises for sizes that do not fit."""
    from transformers import CONFIG_MAPPING, AutoModel

    kind = CONFIG_MAPPING[name]
    default = kind()
    parts = {part: getattr(default, part, None) for part in getattr(kind, "sub_configs", None) or {}}
    config = kind(
        **_small(default), **{k: {**part.to_dict(), **_small(part)} for k, part in parts.items() if part is not None}
    )
    if vars(config).get("layer_types"):
        config.layer_types = config.layer_types[:2]
    torch.manual_seed(0)
    model = AutoModel.from_config(config).eval()
    if sum(p.numel() for p in model.parameters()) > MOST_PARAMETERS:
        raise ValueError("it stays large")
    return model


def _inputs() -> Iterator[dict[str, torch.Tensor]]:
    ids, image = torch.randint(3, 300, (2, 24)), torch.randn(2, 3, 32, 32)
    yield {"input_ids": ids}
    yield {"input_ids": ids, "decoder_input_ids": ids}
    yield {"pixel_values": image}
    yield {"pixel_values": torch.randn(2, 3, 224, 224)}
    yield {"input_ids": ids, "pixel_values": image}
    yield {"input_values": torch.randn(2, 4000)}
    yield {"input_features": torch.randn(2, 80, 200)}


def _that_fit(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    for given in _inputs():
        try:
            with torch.no_grad():
                model(**given)
        except Exception:  # noqa: S112  (the next ones are tried; a model that takes none is skipped)
            continue
        return given
    raise ValueError("it takes none of the inputs")


def _tensors(result: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(dict(result)) if isinstance(t, torch.Tensor)]


def distance(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """The largest difference, each as a share of the largest value."""
    if [t.shape for t in got] != [t.shape for t in want]:
        return float("inf")
    pairs = [(a.double(), b.double()) for a, b in zip(got, want) if a.numel() and not a.is_complex()]
    return max((float((a - b).abs().max() / (b.abs().max() + 1e-9)) for a, b in pairs), default=0.0)


def _step(call: Any, model: torch.nn.Module, given: dict[str, torch.Tensor]) -> tuple[list, list]:
    """Results, and gradients of the sum of their squares."""
    torch.manual_seed(1)
    results = _tensors(call(**given))
    loss = sum(t.float().square().mean() for t in results if t.is_floating_point() and t.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return [t.detach() for t in results], gradients


def whole(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """All gradients as one vector: those that are zero but for rounding have no relative error."""
    return [torch.cat([g.flatten().double() for g in gradients])] if gradients else []


def check(name: str, device: str = "cpu") -> dict[str, Any]:
    try:
        model = tiny(name)
        given = {k: v.to(device) for k, v in _that_fit(model).items()}
        model.to(device)
        want, gradients = _step(model, model, given)
    except Exception as e:
        return {"name": name, "skipped": f"{type(e).__name__}: {str(e)[:120]}"}
    compiled = tcompile.compile(model)
    with tcompile.record() as record:
        got, ours = _step(compiled, model, given)
    report = record.report()
    shorter = {k: v[:, :17] if v.dtype is torch.int64 else v for k, v in given.items()}
    with torch.no_grad():
        again = [_step(call, model, shorter)[0] for call in (compiled, model)]
    tcompile.reset()
    return {
        "name": name,
        "given": list(given),
        "graphs": len(report.graphs),
        "breaks": [f"{b.file.rpartition('/')[2]}:{b.line} {b.reason}" for b in report.graph_breaks if not b.harmless],
        "fallbacks": [f"{f.what}: {f.reason}" for f in report.fallbacks],
        "results": distance(got, want),
        "gradients": distance(whole(ours), whole(gradients)),
        "second size": distance(*again),
    }


def tell(checked: Callable[[str, str], dict[str, Any]], everything: Callable[[], list[str]]) -> None:
    """Print a line of JSON for each that the command line names, or for all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in asked.names or everything():
        try:
            row = checked(name, asked.device)
        except Exception as e:
            row = {"name": name, "error": f"{type(e).__name__}: {e}"}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    tell(check, names)
