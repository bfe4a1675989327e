"""Text of the user's in text that we generate: one function a language.

File names, names of functions, variables, modules, keys, options and backends may hold anything: line ends, quotes,
backslashes, `*/`, `</script>`, NUL, surrogates of file names that are not UTF-8. What goes into generated C++, CUDA,
Triton, Python, HTML or JSON goes through here. Constants in Python text are `repr` of plain values.
"""

from __future__ import annotations

import html
import keyword
import re
import unicodedata
from typing import Any

__all__ = ["comment", "identifier", "is_plain_name", "file_name", "printed", "well_formed", "html_text", "script_json"]

_LONGEST_COMMENT = 400
_NOT_IN_NAMES = re.compile(r"[^0-9A-Za-z_]")


def comment(text: Any) -> str:
    """In a comment of one line, of C++, CUDA, Python and Triton. Only what is printed stays: no line end of any kind,
    no NUL, no surrogate and no change of direction; no backslash, which continues a line of C++; no trigraph, which may
    be one."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[:_LONGEST_COMMENT])
    return line.replace("\\", "/").replace("??", "? ?").replace("??", "? ?").replace("*/", "* /")


def identifier(text: Any, otherwise: str = "t") -> str:
    """A name in C++ and Python text: letters, digits and underscores of ASCII, not a digit first."""
    name = _NOT_IN_NAMES.sub("_", str(text)) or otherwise
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def is_plain_name(name: str) -> bool:
    """Whether `x.name` and `f(name=x)` can be written, and mean this name: Python's parser writes some letters in
    another way.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name == "__debug__":
        return False
    return name.isascii() or unicodedata.normalize("NFKC", name) == name


def file_name(text: Any) -> str:
    """In the file name of compiled code, and in a line of text that names one."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def printed(text: str) -> str:
    """In text of several lines that is printed: a terminal, and a notebook's text output, obey escape sequences."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def well_formed(text: str) -> str:
    """In JSON, and in all that is written as UTF-8: lone surrogates become U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def html_text(text: Any) -> str:
    """In HTML, between tags and in quoted attributes."""
    return html.escape(well_formed(str(text)).replace("\0", "\ufffd"))


def script_json(text: str) -> str:
    """JSON text within a script element of HTML: nothing in it ends the element or begins a comment."""
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
