"""What this machine can do at best, measured once: bytes copied per second, float32 operations per second of a matrix product."""

from __future__ import annotations

import time
from functools import lru_cache

import torch

__all__ = ["machine_limits"]

_BYTES = 64 << 20  # larger than the caches
_SIZE = 768
_ROUNDS = 3


@lru_cache(maxsize=1)
def machine_limits() -> dict[str, float]:
    """`copy_bytes_per_second` counts reads and writes, `matmul_flops_per_second` multiplications and additions; both are the best of
    a few rounds on the CPU, with the threads that torch uses. Takes some 0.1 s and 130 MB for a moment."""
    source = torch.ones(_BYTES // 4)
    target = torch.empty_like(source)
    a = torch.ones(_SIZE, _SIZE)
    out = torch.empty_like(a)
    copy, product = [], []
    with torch.no_grad():
        for _ in range(_ROUNDS + 1):
            t0 = time.perf_counter()
            target.copy_(source)
            t1 = time.perf_counter()
            torch.mm(a, a, out=out)
            copy.append(t1 - t0)
            product.append(time.perf_counter() - t1)
    return {
        "copy_bytes_per_second": 2 * _BYTES / min(copy),
        "matmul_flops_per_second": 2 * _SIZE**3 / min(product),
    }
