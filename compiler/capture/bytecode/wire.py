"""The encodings that 3.11, 3.12 and 3.13 share: code units, the exception table, the line table."""

from __future__ import annotations

import opcode
import sys
from types import CodeType
from typing import Iterable, Iterator, NamedTuple

__all__ = [
    "UnsupportedBytecode",
    "Raw",
    "read_raw",
    "caches_of",
    "parse_exception_table",
    "encode_exception_table",
    "encode_line_table",
]


class UnsupportedBytecode(Exception):
    """The code object holds something this version's mapping does not know, or the canonical code cannot be
    expressed.
    """


class Raw(NamedTuple):
    """One instruction as stored, EXTENDED_ARG folded in. `start`: its first prefix; `offset`: its own unit; `next`:
    after its caches.
    """

    op: str
    arg: int
    start: int
    offset: int
    next: int


def _cache_table() -> dict[str, int]:
    entries = opcode._inline_cache_entries  # a list by number up to 3.12, a dict by name on 3.13
    if isinstance(entries, dict):
        return dict(entries)
    return {opcode.opname[number]: count for number, count in enumerate(entries) if count}


_CACHES = _cache_table()
_OPNAME = opcode.opname


def caches_of(op: str) -> int:
    """Inline cache units after an instruction."""
    return _CACHES.get(op, 0)


def read_raw(code: CodeType) -> list[Raw]:
    """The instructions of `code`, unspecialised (co_code gives them so), without caches."""
    text = code.co_code
    raws: list[Raw] = []
    at, start, arg = 0, 0, 0
    while at < len(text):
        op = _OPNAME[text[at]]
        arg = arg << 8 | text[at + 1]
        if op == "EXTENDED_ARG":
            at += 2
            continue
        following = at + 2 + 2 * _CACHES.get(op, 0)
        raws.append(Raw(op, arg, start, at, following))
        at = start = following
        arg = 0
    return raws


def parse_exception_table(table: bytes) -> Iterator[tuple[int, int, int, int, bool]]:
    """Rows (start, end, target, depth, lasti), byte offsets, end exclusive."""
    data = iter(table)

    def varint(byte: int) -> int:
        value = byte & 63
        while byte & 64:
            byte = next(data)
            value = value << 6 | byte & 63
        return value

    for first in data:
        start = varint(first) * 2
        length = varint(next(data)) * 2
        target = varint(next(data)) * 2
        packed = varint(next(data))
        yield start, start + length, target, packed >> 1, bool(packed & 1)


def encode_exception_table(rows: Iterable[tuple[int, int, int, int, bool]]) -> bytes:
    """The inverse of parse_exception_table."""
    out = bytearray()

    def varint(value: int, marker: int = 0) -> None:
        groups = [value & 63]
        while value := value >> 6:
            groups.append(value & 63)
        for position, group in enumerate(reversed(groups)):
            out.append(group | (64 if position < len(groups) - 1 else 0) | (marker if position == 0 else 0))

    for start, end, target, depth, lasti in rows:
        varint(start // 2, 128)
        varint((end - start) // 2)
        varint(target // 2)
        varint(depth << 1 | lasti)
    return bytes(out)


def encode_line_table(firstlineno: int, spans: Iterable[tuple[int, tuple]]) -> bytes:
    """co_linetable for spans (code units, (line, end_line, col, end_col))."""
    out = bytearray()
    line_now = firstlineno

    def varint(value: int) -> None:
        while value >= 64:
            out.append(value & 63 | 64)
            value >>= 6
        out.append(value)

    def signed(value: int) -> None:
        varint(-value << 1 | 1 if value < 0 else value << 1)

    for units, (line, end_line, col, end_col) in spans:
        while units > 0:
            n = min(units, 8)
            units -= n
            if line is None:
                out.append(128 | 15 << 3 | n - 1)
                continue
            delta = line - line_now
            line_now = line
            if col is None or end_col is None or end_line is None:
                out.append(128 | 13 << 3 | n - 1)
                signed(delta)
            elif end_line == line and delta == 0 and col < 80 and 0 <= end_col - col < 16:
                out.append(128 | col >> 3 << 3 | n - 1)
                out.append((col & 7) << 4 | end_col - col)
            elif end_line == line and 0 <= delta < 3 and col < 128 and end_col < 128:
                out.append(128 | 10 + delta << 3 | n - 1)
                out.append(col)
                out.append(end_col)
            elif end_line < line:
                raise UnsupportedBytecode(f"position ends at line {end_line}, before it starts at {line}")
            else:
                out.append(128 | 14 << 3 | n - 1)
                signed(delta)
                varint(end_line - line)
                varint(col + 1)
                varint(end_col + 1)
    return bytes(out)


def opcode_number(op: str) -> int:
    """The running interpreter's number of a native instruction."""
    try:
        return opcode.opmap[op]
    except KeyError:
        raise UnsupportedBytecode(
            f"{op} is not an instruction of Python {sys.version_info[0]}.{sys.version_info[1]}"
        ) from None
