"""What a device can do at best, measured once: bytes copied per second, float32 operations per second of a matrix
product, and the same in bfloat16.
"""

from __future__ import annotations

import time

import torch

__all__ = ["machine_limits"]

_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}  # larger than the caches
_SIZE = {"cpu": 768, "cuda": 8192}
_NARROW_SIZE = {"cpu": 256, "cuda": 8192}  # a processor without instructions for bfloat16 takes a hundred times as long
_ROUNDS = 3


_quiet: set[str] = set()  # devices that were measured while nothing else was at work
_best: dict[str, dict[str, float]] = {}


def machine_limits(device: str = "cpu", busy: bool = False) -> dict[str, float]:
    """`copy_bytes_per_second` counts reads and writes, `matmul_flops_per_second` and `bfloat16_flops_per_second`
    multiplications and additions. All are the best of a few rounds on the device ("cpu", with the threads that torch
    uses, or "cuda"). Takes some 0.2 s, and 130 MB or 1 GB for a moment. A machine that is `busy` shows less than it can
    do: it is measured again at the next call, and the best counts.
    """
    if device not in _quiet:
        known, found = _best.get(device, {}), _measured(device)
        _best[device] = {name: max(value, known.get(name, 0.0)) for name, value in found.items()}
        if not busy:
            _quiet.add(device)
    return dict(_best[device])


def _measured(device: str) -> dict[str, float]:
    size, wait = _SIZE[device], torch.cuda.synchronize if device == "cuda" else lambda: None
    source = torch.ones(_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    a = torch.ones(size, size, device=device)
    out = torch.empty_like(a)
    narrow = torch.ones(_NARROW_SIZE[device], _NARROW_SIZE[device], device=device, dtype=torch.bfloat16)
    copy, product, in_16_bits = [], [], []
    with torch.no_grad():
        for _ in range(_ROUNDS + 1):
            wait()
            t0 = time.perf_counter()
            target.copy_(source)
            wait()
            t1 = time.perf_counter()
            torch.mm(a, a, out=out)
            wait()
            copy.append(t1 - t0)
            t2 = time.perf_counter()
            torch.mm(narrow, narrow)
            wait()
            product.append(t2 - t1)
            in_16_bits.append(time.perf_counter() - t2)
    return {
        "copy_bytes_per_second": 2 * source.nbytes / min(copy),
        "matmul_flops_per_second": 2 * size**3 / min(product),
        "bfloat16_flops_per_second": 2 * len(narrow) ** 3 / min(in_16_bits),
    }
