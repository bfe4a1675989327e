"""Masks of bits in Triton (ops/mask_bits.py). Truth values that lie together in a tile are packed and unpacked in the
registers of the thread that holds them. What lies apart reads its byte, and changes its bit in the word, one by one."""

from __future__ import annotations

__all__ = ["HELPERS"]

# Printed into the source where they are used.
HELPERS = {
    "_halves": (
        "@triton.jit\ndef _halves(x):  # every other one along the last axis\n"
        "    return tl.split(tl.reshape(x, x.shape[:-1] + [x.shape[-1] // 2, 2]))\n"
    ),
    "_to_bits": (
        "@triton.jit\ndef _to_bits(x):  # bytes of eight neighbours along the last axis\n"
        "    even, odd = _halves(x)\n    a, b = _halves(even)\n    c, d = _halves(odd)\n"
        "    x0, x4 = _halves(a)\n    x2, x6 = _halves(b)\n    x1, x5 = _halves(c)\n    x3, x7 = _halves(d)\n"
        "    byte = tl.where(x0, 1, 0)\n"
        + "".join(f"    byte = tl.where(x{k}, byte | {1 << k}, byte)\n" for k in range(1, 8))
        + "    return byte.to(tl.uint8)\n"
    ),
    "_from_bits": (
        "@triton.jit\ndef _from_bits(x, n: tl.constexpr):  # n neighbours along the last axis of each byte, or word\n"
        "    bits = tl.broadcast_to(tl.expand_dims(x.to(tl.int32), -1), x.shape + [n]) & (1 << tl.arange(0, n))\n"
        "    return tl.reshape(bits != 0, x.shape[:-1] + [x.shape[-1] * n])\n"
    ),
    "_put_bit": (
        "@triton.jit\ndef _put_bit(bytes, at, x, mask):  # of its word alone\n    word ="
        " bytes.to(tl.pointer_type(tl.int32)) + (at >> 5)\n    bit = tl.full([], 1, tl.int32) << (at &"
        " 31).to(tl.int32)\n    tl.atomic_or(word, bit, mask & x, sem='relaxed')\n    tl.atomic_and(word, ~bit, mask &"
        " (x == 0), sem='relaxed')\n"
    ),
}
