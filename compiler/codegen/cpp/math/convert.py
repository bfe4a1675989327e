"""Vectors of one type as vectors of another: `tc::convert<V>(x)`, lane by lane, with C's semantics.

GCC's __builtin_convertvector takes vectors apart lane by lane where the sizes differ by more than two (an uint8 as an
int32: 70 instructions for 16 lanes instead of one) and halves them where a single instruction would do. So the
conversions that a machine has an instruction for are written with it, and wide steps between integers are taken in two.
"""

from __future__ import annotations

from typing import Iterable

__all__ = ["conversions"]

_LETTER = {1: "b", 2: "w", 4: "d", 8: "q"}
_HEAD = "template <> inline __attribute__((always_inline))"  # (a specialisation has no storage class of its own)
_HELD = 16  # bytes: the smallest vector register


def conversions(
    tags: Iterable[str], sizes: dict[str, int], lanes: int, features: frozenset[str]
) -> tuple[str, set[str]]:
    """(C++ text, tags of the vectors that it uses) for kernels whose vectors have these tags. `sizes`: bytes of a lane
    by tag; `features`: names of instruction sets, as in /proc/cpuinfo."""
    used = sorted(set(tags), key=lambda t: (sizes[t], t))
    text = ["template <class V, class A> INLINE V convert(A x) { return __builtin_convertvector(x, V); }"]
    needed = set(used)
    done: set[tuple[str, str]] = set()

    def define(a: str, b: str) -> None:
        if (a, b) in done or a == b:
            return
        done.add((a, b))
        name = _instruction(a, b, sizes, lanes, features)
        if name is not None:
            text.append(_by_instruction(a, b, name, sizes[a] * lanes, sizes[b] * lanes))
            return
        middle = _between(a, b, sizes)
        if middle is not None:
            define(a, middle), define(middle, b)
            needed.add(middle)
            text.append(f"{_HEAD} v{b} convert<v{b}, v{a}>(v{a} x) {{ return convert<v{b}>(convert<v{middle}>(x)); }}")

    for a in used:
        for b in used:
            define(a, b)
    return "\n".join(text) + "\n", needed


def _is_int(tag: str) -> bool:
    return tag[0] != "f"


def _instruction(a: str, b: str, sizes: dict[str, int], lanes: int, features: frozenset[str]) -> str | None:
    """The instruction for whole vectors, or None."""
    small, large = sorted((sizes[a] * lanes, sizes[b] * lanes))
    wide = "avx512vl" in features and "avx512dq" in features and "avx512bw" in features
    if large < _HELD or large > (64 if wide else 32) or "avx2" not in features:
        return None
    if _is_int(a) and _is_int(b):
        if sizes[a] < sizes[b]:
            return f"vpmov{'z' if a[0] == 'u' else 's'}x{_LETTER[sizes[a]]}{_LETTER[sizes[b]]}"
        return f"vpmov{_LETTER[sizes[a]]}{_LETTER[sizes[b]]}" if wide and sizes[a] > sizes[b] else None
    if small < _HELD:
        return None
    if (a, b) == ("f32", "i64"):
        return "vcvttps2qq" if wide else None
    return {("f32", "f64"): "vcvtps2pd", ("i32", "f64"): "vcvtdq2pd"}.get((a, b))


def _between(a: str, b: str, sizes: dict[str, int]) -> str | None:
    """A type on the way from a to b."""
    if _is_int(a) and _is_int(b):
        if max(sizes[a], sizes[b]) >= 4 * min(sizes[a], sizes[b]):
            return f"{a[0]}{8 * (sizes[a] * 2 if sizes[a] < sizes[b] else sizes[a] // 2)}"
    elif _is_int(a) and sizes[a] < 4:
        return "i32"
    return None


def _by_instruction(a: str, b: str, name: str, n_from: int, n_to: int) -> str:
    head = f"{_HEAD} v{b} convert<v{b}, v{a}>(v{a} x) {{ "
    if n_from < _HELD:  # the lower part of a register
        return (
            f"{head}v{b} r; u64 bits = 0; __builtin_memcpy(&bits, &x, sizeof x); u64 part"
            f" __attribute__((vector_size({_HELD}))) = {{bits, 0}}; "
            f'asm("{name} %1, %0" : "=v"(r) : "v"(part)); return r; }}'
        )
    if n_to < _HELD:
        return (
            f"{head}v{b} r; u64 part __attribute__((vector_size({_HELD}))); "
            f'asm("{name} %1, %0" : "=v"(part) : "v"(x)); u64 bits = part[0]; __builtin_memcpy(&r, &bits, sizeof r);'
            " return r; }"
        )
    return f'{head}v{b} r; asm("{name} %1, %0" : "=v"(r) : "v{"m" if n_to > n_from else ""}"(x)); return r; }}'
