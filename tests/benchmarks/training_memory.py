"""What training keeps and how much memory a step takes: tcompile beside eager and stock torch.compile, on the CPU.

    python -m tests.benchmarks.training_memory [MODEL ...] [--peak] [--stock inductor]

Saved bytes: what autograd keeps from forward to backward, counted by hooks for saved tensors, each storage once,
without the model's parameters, buffers and inputs. Stock is partitioned by its own min-cut partitioner;
`aot_eager_decomp_partition` (the default) has the partition of its default mode without generated code, `--stock
inductor` the whole.
Peak: the highest resident memory of two steps (forward, backward, no optimizer) over that before them, without
gradients, in a fresh process for each engine after three steps; pools are emptied before and count.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from typing import Any, Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

STOCK = "aot_eager_decomp_partition"
Step = Callable[[Callable], torch.Tensor]  # of a compiled model: the loss


def gpt2() -> tuple[nn.Module, Step]:
    from transformers import GPT2Config, GPT2LMHeadModel

    m = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=256, n_head=4, vocab_size=8192, use_cache=False))
    ids = torch.randint(0, 8192, (4, 128))
    return m, lambda c: c(input_ids=ids, labels=ids).loss


def bert() -> tuple[nn.Module, Step]:
    from transformers import BertConfig, BertForMaskedLM

    m = BertForMaskedLM(
        BertConfig(num_hidden_layers=2, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=8192)
    )
    ids = torch.randint(0, 8192, (4, 128))
    return m, lambda c: c(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss


def llama() -> tuple[nn.Module, Step]:
    from transformers import LlamaConfig, LlamaForCausalLM

    m = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2,
            hidden_size=256,
            intermediate_size=688,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=8192,
            use_cache=False,
        )
    )
    ids = torch.randint(0, 8192, (4, 128))
    return m, lambda c: c(input_ids=ids, labels=ids).loss


def vit() -> tuple[nn.Module, Step]:
    from transformers import ViTConfig, ViTForImageClassification

    m = ViTForImageClassification(
        ViTConfig(num_hidden_layers=2, hidden_size=192, num_attention_heads=3, intermediate_size=768, image_size=96)
    )
    x = torch.randn(4, 3, 96, 96)
    return m, lambda c: c(pixel_values=x).logits.pow(2).mean()


def t5() -> tuple[nn.Module, Step]:
    from transformers import T5Config, T5ForConditionalGeneration

    m = T5ForConditionalGeneration(
        T5Config(
            num_layers=2,
            num_decoder_layers=2,
            d_model=256,
            d_kv=64,
            d_ff=1024,
            num_heads=4,
            vocab_size=8192,
            decoder_start_token_id=0,
        )
    )
    ids = torch.randint(0, 8192, (4, 128))
    return m, lambda c: c(input_ids=ids, labels=ids).loss


def whisper() -> tuple[nn.Module, Step]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    m = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=8192,
            d_model=256,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=1024,
            decoder_ffn_dim=1024,
            num_mel_bins=80,
            max_source_positions=200,
            decoder_start_token_id=0,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    x, ids = torch.randn(2, 80, 400), torch.randint(3, 8192, (2, 64))
    return m, lambda c: c(input_features=x, labels=ids).loss


def resnet() -> tuple[nn.Module, Step]:
    from transformers import ResNetConfig, ResNetForImageClassification

    m = ResNetForImageClassification(ResNetConfig(num_labels=100, depths=[1, 1, 1, 1]))
    x, y = torch.randn(2, 3, 128, 128), torch.randint(0, 100, (2,))
    return m, lambda c: F.cross_entropy(c(x).logits, y)


def encoder() -> tuple[nn.Module, Step]:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
    m = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(4, 128, 256)
    return m, lambda c: c(x).pow(2).mean()


def mlp() -> tuple[nn.Module, Step]:
    m = nn.Sequential(
        nn.Linear(256, 1024),
        nn.GELU(),
        nn.LayerNorm(1024),
        nn.Dropout(0.1),
        nn.Linear(1024, 256),
        nn.SiLU(),
        nn.Linear(256, 10),
    )
    x, y = torch.randn(512, 256), torch.randint(0, 10, (512,))
    return m, lambda c: F.cross_entropy(c(x), y)


MODELS = {f.__name__: f for f in (gpt2, bert, llama, vit, t5, whisper, resnet, encoder, mlp)}


def compiled(engine: str, m: nn.Module, stock: str) -> Callable:
    if engine == "tcompile":
        import tcompile

        return tcompile.compile(m)
    return m if engine == "eager" else torch.compile(m, backend=stock)


def saved_bytes(m: nn.Module, step: Step, call: Callable) -> int:
    """Of one step, the first (which compiles) not counted. The loss outside of the model is eager in every engine."""
    step(call).backward()
    own = {t.untyped_storage().data_ptr() for t in (*m.parameters(), *m.buffers())}
    for closed in (c.cell_contents for c in step.__closure__ or ()):
        if isinstance(closed, torch.Tensor):
            own.add(closed.untyped_storage().data_ptr())
    kept: dict[int, int] = {}
    alive: list[Any] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        s = t.untyped_storage()
        if s.data_ptr() not in own:
            kept[s.data_ptr()] = s.nbytes()
            alive.append(s)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        step(call)
    return sum(kept.values())


def peak_bytes(m: nn.Module, step: Step, call: Callable) -> int:
    def train() -> None:
        for p in m.parameters():
            p.grad = None
        step(call).backward()

    for _ in range(3):
        train()
    for p in m.parameters():
        p.grad = None
    if "tcompile" in sys.modules:
        from tcompile.compiler.runtime import output_pool

        output_pool.clear()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # the high-water mark begins anew
    before = _status("VmRSS")
    train(), train()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(name))


def one(model: str, engine: str, peak: bool, stock: str) -> int:
    torch.manual_seed(0)
    m, step = MODELS[model]()
    m.train()
    call = compiled(engine, m, stock)
    return (peak_bytes if peak else saved_bytes)(m, step, call)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", nargs="*", default=list(MODELS))
    ap.add_argument("--peak", action="store_true")
    ap.add_argument("--stock", default=STOCK)
    ap.add_argument("--engine")  # of the processes that this one starts
    a = ap.parse_args()
    if a.engine:
        print(json.dumps(one(a.models[0], a.engine, a.peak, a.stock)))
        return
    engines = ("eager", a.stock, "tcompile")
    print("model".ljust(10), *(e.rjust(28) for e in engines))
    for model in a.models:
        row = []
        for e in engines:
            command = [
                sys.executable,
                "-m",
                "tests.benchmarks.training_memory",
                model,
                "--engine",
                e,
                "--stock",
                a.stock,
                *(["--peak"] if a.peak else []),
            ]
            p = subprocess.run(command, capture_output=True, text=True)
            row.append(
                f"{json.loads(p.stdout.splitlines()[-1]) / 2**20:.2f} MiB"
                if p.returncode == 0
                else p.stderr.strip().splitlines()[-1][:28]
            )
        print(model.ljust(10), *(r.rjust(28) for r in row), flush=True)


if __name__ == "__main__":
    main()
