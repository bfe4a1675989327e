"""Dropout's choice as bits: 32 elements' to a word, drawn together.

Where the numbers need not be eager's (option `fast_dropout`), an element takes one bit, not a random word of its own.
Probabilities are multiples of 2^-16: p = F / 2^16. A word of 32 bits that are each 1 with probability p is made of
sixteen random words. From the lowest bit of F on, what is there is or-ed with a random word where the bit is 1, and-ed
where it is 0. Each such step halves the probability so far and adds a half for a 1. Words for the zeros that F ends
with change nothing and are not drawn, so F ends with as many, in fours (a call of Philox), as leave p within CLOSE: for
0.1 four, for 0.5 twelve. What is kept is scaled by the probability that was drawn, so that the expectation is exact.

Word i of a draw takes subsequence i of Philox 4x32 with seven rounds, the fewest that its authors found to pass every
test. Its counters are offset / 4 .. offset / 4 + 3 of torch's generator: torch.manual_seed repeats the bits, and the
generator advances by 16 a draw."""

from __future__ import annotations

from typing import Any

import torch

from . import philox

__all__ = [
    "BITS",
    "INCREMENT",
    "KEEP_BITS",
    "ROUNDS",
    "drawable",
    "fraction",
    "keep_fraction",
    "keep_words",
    "scale",
    "wanted",
]

BITS = 16  # of a probability
INCREMENT = BITS  # random words of a draw, for each word
ROUNDS = 7
RARE = 2.0**-10
CLOSE = 2.0**-9  # of p (1 - p): what the probability drawn may be off by where fewer words do

_ours = torch.library.Library("tcompile", "FRAGMENT")
_ours.define("keep_bits(SymInt words, float p, *, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))


def wanted(opts: Any) -> bool:
    """Whether option `fast_dropout` holds, of a mode too: not where the caller asks for eager's numbers
    (`fallback_random=True`).
    """
    given = getattr(opts, "given", {})
    return bool(
        given.get(
            "fast_dropout", opts is not None and opts.get("fast_dropout") and not given.get("fallback_random", False)
        )
    )


def drawable(p: Any) -> bool:
    """Whether a probability may be drawn in steps of 2^-16: of a rare one they would show."""
    return isinstance(p, float) and RARE <= p <= 1 - RARE


def fraction(p: float) -> int:
    """The probability to drop that is drawn for p, in units of 2^-16."""
    for zeros in range(BITS - 4, -1, -4) if 0 <= p <= 1 else ():
        n = round(p * (1 << BITS - zeros)) << zeros
        if 0 < n < 1 << BITS and (not zeros or abs(n / (1 << BITS) - p) <= CLOSE * p * (1 - p)):
            return n
    raise ValueError(f"dropout by bits takes a probability between 0 and 1 by at least 2^-{BITS + 1}, got {p}")


def keep_fraction(p: float) -> int:
    """The same of the probability to keep."""
    return (1 << BITS) - fraction(p)


def scale(p: float) -> float:
    """What is kept is multiplied by this: the expectation is that of the input, whatever p was rounded to."""
    return (1 << BITS) / keep_fraction(p)


def _folded(words: list[torch.Tensor], ones: int) -> torch.Tensor:
    """Of sixteen random words: bits that are 1 with probability ones / 2^16."""
    r = torch.zeros_like(words[0])
    for k, word in enumerate(words):
        r = word | r if ones >> k & 1 else word & r
    return r


def keep_words(seed: torch.Tensor, counter: torch.Tensor, at: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
    """The primitive `keep_word` of the loop IR on tensors of int64: 32 bits each."""
    words: list[torch.Tensor] = []
    for step in range(BITS // 4):
        words += philox.words(seed, counter + step, at, ROUNDS)
    return _folded(words, int(ones))


def _keep_bits(words: int, p: float, *, device: torch.device) -> torch.Tensor:
    """The operator. Where torch's generator can't say its state (on the CPU, in a CUDA graph that the program captures)
    torch draws the random words.
    """
    ones = keep_fraction(p)
    if device.type != "cuda" or torch._C._cuda_isCurrentStreamCapturing():
        return _folded(
            list(torch.randint(-1 << 31, 1 << 31, (BITS, words), dtype=torch.int32, device=device).unbind()), ones
        )
    seed, counter = philox.draw((), [INCREMENT], device=device)
    return keep_words(seed, counter, torch.arange(words, device=device), torch.tensor(ones)).to(torch.int32)


_ours.impl("keep_bits", _keep_bits, "CompositeExplicitAutograd")
KEEP_BITS = torch.ops.tcompile.keep_bits.default
