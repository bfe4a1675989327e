"""What a device can do at best, measured once: bytes copied per second, float32 operations per second of a matrix
product.
"""

from __future__ import annotations

import time
from functools import lru_cache

import torch

__all__ = ["machine_limits"]

_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}  # larger than the caches
_SIZE = {"cpu": 768, "cuda": 8192}
_ROUNDS = 3


@lru_cache(maxsize=None)
def machine_limits(device: str = "cpu") -> dict[str, float]:
    """`copy_bytes_per_second` counts reads and writes, `matmul_flops_per_second` multiplications and additions; both
    are the best of a few rounds on the device ("cpu", with the threads that torch uses, or "cuda"). Takes some 0.1 s,
    and 130 MB or 1 GB for a moment.
    """
    size, wait = _SIZE[device], torch.cuda.synchronize if device == "cuda" else lambda: None
    source = torch.ones(_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    a = torch.ones(size, size, device=device)
    out = torch.empty_like(a)
    copy, product = [], []
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
            product.append(time.perf_counter() - t1)
    return {
        "copy_bytes_per_second": 2 * source.nbytes / min(copy),
        "matmul_flops_per_second": 2 * size**3 / min(product),
    }
