"""Numbers for people: seconds, bytes, ratios and counts, each with its unit."""

from __future__ import annotations

import math

__all__ = [
    "against",
    "count",
    "differs",
    "interval",
    "per_cent",
    "plural",
    "ratio",
    "scientific",
    "seconds",
    "seconds_range",
    "share_bounds",
    "size",
    "with_article",
]


def seconds(x: float | None) -> str:
    """0.41 s, 12 ms, 5.8 µs, 310 ns; an en dash for what is not known."""
    if x is None:
        return "–"
    if x == 0:
        return "0 s"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if abs(x) >= 0.0995 * factor and unit == "s" or abs(x) >= 0.9995 * factor or unit == "ns":
            return f"{_two(x / factor)} {unit}"
    return f"{x:.3g} s"


def seconds_range(lo: float | None, hi: float | None) -> str:
    """`57.3–58.9 µs`: both ends in one unit, with enough digits to tell them apart."""
    if lo is None or hi is None:
        return "–"
    if lo == hi:
        return "one sample"
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, factor = next(((u, f) for u, f in units if hi >= 0.9995 * f), ("ns", 1e-9))
    digits = next(
        (d for d in range(3) if round(lo / factor, d) != round(hi / factor, d) and hi / factor * 10**d >= 10), 1
    )
    return f"{lo / factor:.{digits}f}–{hi / factor:.{digits}f} {unit}"


def share_bounds(seen: int, of: int) -> tuple[float, float]:
    """Between which shares a part lies that was seen at `seen` of `of` looks, with 95 % confidence (Wilson's score)."""
    z = 1.96
    p, room = seen / of, z * z / of
    middle, half = p + room / 2, z * math.sqrt(p * (1 - p) / of + room / (4 * of))
    return (middle - half) / (1 + room), (middle + half) / (1 + room)


def size(x: float | None) -> str:
    """Bytes: 96 KB, 1.2 MB."""
    if x is None:
        return "–"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if x >= factor:
            return f"{_two(x / factor)} {unit}"
    return f"{int(x)} B"


def ratio(x: float) -> str:
    return f"{x:.0f}×" if x >= 99.5 else f"{x:.2g}×" if x >= 9.95 else f"{x:.1f}×" if x >= 1.095 else f"{x:.2f}×"


_WIDE = 3.0  # an interval that many times as long as its lower end: what lies in its middle is chance
_UNCLEAR = 10.0  # as wide as that it says which is faster, and not by how much


def interval(value: float, lo: float, hi: float) -> str:
    """`2.9× [2.8–3.0]`, both with the same number of digits; a single sample has no interval, and says so. A wide one
    stands alone: `2.5–84×`."""
    if lo == hi:
        return f"{ratio(value)} [one sample]"
    if hi > _WIDE * lo:
        return f"{ratio(lo).removesuffix('×')}–{ratio(hi)}"
    digits = 0 if value >= 99.5 else 1 if value >= 1.095 and hi - lo >= 0.1 or value >= 9.95 else 2
    return f"{value:.{digits}f}× [{lo:.{digits}f}–{hi:.{digits}f}]"


def differs(lo: float, hi: float) -> bool:
    """Whether a ratio with this interval says faster or slower: not where the interval holds 1, or where there was one
    sample."""
    return lo != hi and not lo <= 1 <= hi


def against(value: float, lo: float, hi: float, what: str) -> str:
    """How a speed compares with that of `what`: `2.9× [2.8–3.0] faster than eager`, and for a ratio below 1 its
    inverse, `slower`. Where neither is known: `no clear difference from eager (0.98× [0.95–1.03])`."""
    if lo == hi:
        return f"one sample of each: too few to compare with {what}"
    if not differs(lo, hi):
        return f"no clear difference from {what} ({interval(value, lo, hi)})"
    way = "faster" if value >= 1 else "slower"
    figure = interval(value, lo, hi) if value >= 1 else interval(1 / value, 1 / hi, 1 / lo)
    return f"{way} than {what} ({figure})" if hi > _UNCLEAR * lo else f"{figure} {way} than {what}"


def per_cent(share: float) -> str:
    """`12 %`, `< 1 %`."""
    return f"{100 * share:.0f} %" if share >= 0.005 or share <= 0 else "< 1 %"


def scientific(x: float | None) -> str:
    return "–" if x is None else f"{x:.2e}"


def count(n: int) -> str:
    """1 900: thin groups of three, so that large counts can be read."""
    return f"{n:,}".replace(",", " ")


def with_article(noun: str) -> str:
    """`an int`, `a float`: by the first letter, as names of classes are read."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}" if noun else noun


def plural(n: int, word: str, words: str = "") -> str:
    return f"{count(n)} {word if n == 1 else words or word + 's'}"


def _two(x: float) -> str:
    """Two significant digits, never scientific."""
    a = abs(x)
    return f"{x:.0f}" if a >= 9.95 else f"{x:.1f}" if a >= 0.995 else f"{x:.2f}"
