"""Floats of eight bits: bytes in memory, float32 in registers. They are rounded as torch rounds: to even; what is too
large becomes infinite in e5m2, and in e4m3fn NaN or the largest number, as torch's version has it (`_TOP`). The
machine's own conversions do otherwise.
"""

from __future__ import annotations

import torch

__all__ = ["HELPERS", "OLDER"]

_TOP = int(torch.tensor(1e30).to(torch.float8_e4m3fn).view(torch.uint8))

HELPERS = {
    "_to_e4m3": (
        "@triton.jit\ndef _to_e4m3(x):\n    b = x.to(tl.int32, bitcast=True)\n    sign = (b >> 24) & 0x80\n    b = b &"
        " 0x7fffffff\n    small = (b.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000\n"
        "    normal = (b - 0x3bf80001 + ((b >> 20) & 1)) >> 20\n    finite = tl.where(b < 0x3c800000, small,"
        f" tl.minimum(normal, {_TOP:#x}))\n    return (tl.where(b > 0x7f800000, 0x7f, finite) | sign).to(tl.uint8)\n"
    ),
    "_to_e5m2": (
        "@triton.jit\ndef _to_e5m2(x):\n    b = x.to(tl.int32, bitcast=True)\n    sign = (b >> 24) & 0x80\n    b = b &"
        " 0x7fffffff\n    small = (b.to(tl.float32, bitcast=True) + 128.0).to(tl.int32, bitcast=True) - 0x43000000\n   "
        " normal = (b - 0x37f00001 + ((b >> 21) & 1)) >> 21\n    large = tl.where(b > 0x7f800000, 0x7f, 0x7c)\n   "
        " return (tl.where(b >= 0x47800000, large, tl.where(b < 0x38800000, small, normal)) | sign).to(tl.uint8)\n"
    ),
    "_from_e4m3": "@triton.jit\ndef _from_e4m3(u):\n    return u.to(tl.float8e4nv, bitcast=True).to(tl.float32)\n",
    "_from_e5m2": (
        "@triton.jit\ndef _from_e5m2(u):\n    return (u.to(tl.int16) << 8).to(tl.float16,"
        " bitcast=True).to(tl.float32)\n"
    ),
}
# For machines that do not know the type.
OLDER = {
    "_from_e4m3": (
        "@triton.jit\ndef _from_e4m3(u):\n    b = u.to(tl.int32)\n    small = (b & 7).to(tl.float32) * 0.001953125\n"
        "    normal = (((b & 0x7f) << 20) + 0x3c000000).to(tl.float32, bitcast=True)\n"
        '    x = tl.where((b & 0x7f) == 0x7f, float("nan"), tl.where((b & 0x78) == 0, small, normal))\n'
        "    return tl.where(b >= 128, -x, x)\n"
    )
}
