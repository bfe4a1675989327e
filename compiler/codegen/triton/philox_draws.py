"""Philox 4x32-10 in Triton: what `philox` of the loop IR becomes (ops/philox.py). A counter's four words are those of
four neighbours: where these lie together in a tile they are computed once, and lie in the registers of the thread that
holds the neighbours.
"""

from __future__ import annotations

__all__ = ["HELPERS", "OLDER"]

# Printed into the source where they are used.
HELPERS = {
    "_product": (
        "@triton.jit\ndef _product(x, y):  # its upper and lower half, of one instruction\n    return"
        ' tl.inline_asm_elementwise("{.reg .b64 p; mul.wide.u32 p, $2, $3; mov.b64 {$1, $0}, p;}", "=r,=r,r,r", [x, y],'
        " dtype=(tl.uint32, tl.uint32), is_pure=True, pack=1)\n"
    ),
    "_philox": (
        "@triton.jit\ndef _philox(seed, counter, thread, rounds: tl.constexpr = 10):  # four words\n    k0 ="
        " seed.to(tl.uint32)\n    k1 = (seed >> 32).to(tl.uint32)\n    c0 = counter.to(tl.uint32)\n    c1 = (counter >>"
        " 32).to(tl.uint32)\n    c2 = thread.to(tl.uint32)\n    c3 = c2 * 0\n    m0 = tl.full([], 0xD2511F53,"
        " tl.uint32)\n    m1 = tl.full([], 0xCD9E8D57, tl.uint32)\n    for _ in tl.static_range(rounds):\n        p,"
        " low_p = _product(c0, m0)\n        q, low_q = _product(c2, m1)\n        c0, c1, c2, c3 = q ^ c1 ^ k0, low_q, p"
        " ^ c3 ^ k1, low_p\n        k0 = k0 + 0x9E3779B9\n        k1 = k1 + 0xBB67AE85\n    return c0, c1, c2, c3\n"
    ),
    "_folded": (
        "@triton.jit\ndef _folded(bits, word, ones: tl.constexpr, k: tl.constexpr):\n    return bits | word if (ones >>"
        " k) & 1 else bits & word\n"
    ),
    "_keep_word": (
        "@triton.jit\ndef _keep_word(seed, counter, at, ones: tl.constexpr):  # 32 bits, each 1 with probability ones /"
        " 2^16\n    bits = at * 0\n    for call in tl.static_range(4):\n        if ones % (16 << 4 * call) != 0:  #"
        " words for the zeros at its end change nothing\n            a, b, c, d = _philox(seed, counter + call, at,"
        " 7)\n            bits = _folded(_folded(_folded(_folded(bits, a, ones, 4 * call), b, ones, 4 * call + 1), c,"
        " ones, 4 * call + 2), d, ones, 4 * call + 3)\n    return bits\n"
    ),
    "_philox_one": (
        "@triton.jit\ndef _philox_one(seed, counter, at, threads, vector: tl.constexpr):  # an element's word\n"
        "    unit = at // vector\n    turn = unit // threads\n"
        "    if vector == 1:\n        word = turn % 4\n        counter += (turn // 4).to(tl.int64)\n"
        "    elif vector == 2:\n        word = at % 2\n        counter += turn.to(tl.int64)\n"
        "    else:\n        word = at % 4\n        counter += (turn * (vector // 4) + at % vector // 4).to(tl.int64)\n"
        "    a, b, c, d = _philox(seed, counter, unit % threads)\n"
        "    return tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d))\n"
    ),
    "_philox_four": (
        "@triton.jit\ndef _philox_four(seed, counter, at, threads, vector: tl.constexpr):  # the words of four"
        " neighbours from `at` on\n    unit = at // vector\n    step = unit // threads * (vector // 4) + at % vector //"
        " 4\n    return _philox(seed, counter + step.to(tl.int64), unit % threads)\n"
    ),
    "_philox_4": (
        "@triton.jit\ndef _philox_4(seed, counter, at, threads, vector: tl.constexpr):\n"
        "    a, b, c, d = _philox_four(seed, counter, at, threads, vector)\n"
        "    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))\n"
    ),
    "_philox_8": (
        "@triton.jit\ndef _philox_8(seed, counter, at, threads, vector: tl.constexpr):  # `at`: multiples of 8, as is"
        " `vector`\n    unit = at // vector\n    turn = unit // threads\n    thread = unit - turn * threads\n    after"
        " = counter + (turn * (vector // 4) + at % vector // 4).to(tl.int64)\n    a, b, c, d = _philox(seed, after,"
        " thread)\n    e, f, g, h = _philox(seed, after + 1, thread)\n    even = tl.interleave(tl.interleave(a, e),"
        " tl.interleave(c, g))\n    odd = tl.interleave(tl.interleave(b, f), tl.interleave(d, h))\n    return"
        " tl.interleave(even, odd)\n"
    ),
}
# For machines without that instruction.
OLDER = {"_product": "@triton.jit\ndef _product(x, y):\n    return tl.umulhi(x, y), x * y\n"}
