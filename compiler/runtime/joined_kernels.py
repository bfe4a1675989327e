"""Kernels that one run of the C++ compiler builds together.

Starting the compiler, reading what every kernel begins with, assembling and linking take as long as a small kernel
itself. So the kernels of a graph go to one compiler for each core, several in one source file. In that file each kernel
stands in a namespace of its own, and its functions bear its key in their names: the library serves every kernel in it.
What several begin with, word for word, stands there once, and is compiled once: most of a matrix product is.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

__all__ = ["Text", "KernelLibrary", "groups", "joined", "symbol_end"]

MOST_TOGETHER = 8  # kernels in one file: so many load when one of them is used
_HEAD_ENDS = "}  // namespace tc\n"  # of what kernels share (codegen/cpp/support.py)
_FUNCTION = re.compile(r'^extern "C" \w+ (\w+)\(', re.MULTILINE)


@dataclass(frozen=True)
class Text:
    """The C++ text of one kernel, with its key in the cache."""

    key: str
    name: str
    text: str
    flags: tuple[str, ...]


def symbol_end(key: str, text: str) -> str:
    """What a kernel's functions are called by in its library, behind their names in the text."""
    return "" if _stands_alone(text) else "_" + key[:16]


def _stands_alone(text: str) -> bool:
    """Headers can't be read inside of a namespace."""
    return "#include" in text


def groups(texts: Sequence[Text], workers: int) -> list[list[Text]]:
    """What is compiled together, the longest first: as many groups as workers, evened out by length, of equal flags."""
    out: list[list[Text]] = []
    for flags in dict.fromkeys(text.flags for text in texts):
        same = [text for text in texts if text.flags == flags]
        out += [[t] for t in same if _stands_alone(t.text)]
        joint = sorted((t for t in same if not _stands_alone(t.text)), key=lambda t: len(t.text), reverse=True)
        bins: list[list[Text]] = [[] for _ in range(min(len(joint), max(workers, -(-len(joint) // MOST_TOGETHER))))]
        for t in joint:
            min((b for b in bins if len(b) < MOST_TOGETHER), key=_length).append(t)
        out += bins
    return sorted(out, key=_length, reverse=True)


def _length(group: Sequence[Text]) -> int:
    return sum(len(t.text) for t in group)


def joined(group: Sequence[Text]) -> str:
    """One source file of all of them."""
    heads: dict[str, str] = {}  # the text of one -> its namespace
    return "".join(_in_namespace(t, heads) for t in group)


def _in_namespace(text: Text, heads: dict[str, str]) -> str:
    end = symbol_end(text.key, text.text)
    if not end:
        return text.text
    names = dict.fromkeys(_FUNCTION.findall(text.text))
    renamed = "".join(f"#define {name} {name}{end}\n" for name in names)
    back = "".join(f"#undef {name}\n" for name in names)
    begin, mark, rest = text.text.rpartition(_HEAD_ENDS)
    head, before = begin + mark, ""
    if head and head not in heads:
        heads[head] = f"head{end}"
        before = f"namespace head{end} {{\n{head}}}\n"
    use = f"using namespace {heads[head]};\n" if head else ""
    return f"{before}{renamed}namespace kernel{end} {{\n{use}{rest}\n}}\n{back}"


class KernelLibrary:
    """One kernel's functions in a library, by their names in its text."""

    def __init__(self, library: ctypes.CDLL, path: Path, end: str):
        self._library, self.path, self._end = library, path, end

    def symbol(self, name: str) -> str:
        return name + self._end

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        function = getattr(self._library, self.symbol(name))
        self.__dict__[name] = function  # (with the types that a caller gives it)
        return function
