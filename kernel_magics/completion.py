"""Completion of the magic's commands and options, wherever IPython completes: a terminal, JupyterLab, VS Code.

A matcher rather than IPython's older `complete_command` hook: that one splits words at `=`, knows no comments, and its
words come among Python's keywords and names.
"""

from __future__ import annotations

import re
from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher

from .options import comment_options, option_names, values_of

__all__ = ["COMMANDS", "completions", "install", "remove"]

COMMANDS = ("on", "off", "last", "status", "cache", "ranks", "reset", "help")
_REST = {"cache": ("clear",), "ranks": ("stop",)}  # what a command takes
_LINE = re.compile(r"\s*(?:(%?%)tcompile\s|#\s*tcompile:)(.*)$", re.S)


def completions(text: str) -> tuple[str, list[str]]:
    """What `text`, a line up to the cursor, ends in, and the words that this may become: `("ma", ["max-autotune",
    ...])`. No words for lines that are not the magic's."""
    line = _LINE.match(text)
    if line is None:
        return "", []
    before, word = re.match(r"(.*?)(\S*)$", line[2], re.S).groups()  # type: ignore[union-attr]  # matches any text
    given = before.split()
    if line[1] == "%":
        if not given:
            return word, _begin(word, COMMANDS)
        if given[0] != "on":
            return word, _begin(word, _REST.get(" ".join(given), ()))
    option = _name(given[-1]) if given else ""
    if option in option_names() and given[-1].startswith("-") and not word.startswith("-"):  # --mode max
        return word, _begin(word, values_of(option))
    if "=" in word:
        name, _, value = word.partition("=")
        return value, _begin(value, values_of(_name(name)))
    names = [n for n in option_names() if n != "o"]
    if word.startswith("-"):
        return word, _begin(word, ("-o", *("--" + n.replace("_", "-") for n in names)))
    return word, _begin(word, [f"{n}=" for n in names])


def _begin(word: str, words: Any) -> list[str]:
    return [w for w in words if w.startswith(word)]


def _name(word: str) -> str:
    return word.lstrip("-").replace("-", "_")


@context_matcher(identifier="tcompile")
def _matcher(context: Any) -> dict[str, Any]:
    """IPython asks: whatever fits takes the place of Python's own names."""
    text = context.text_until_cursor
    if text.lstrip().startswith("#"):  # only a comment among those that begin the cell holds options
        so_far = "\n".join([*context.full_text.split("\n")[: context.cursor_line], text])
        if comment_options(so_far) is None:
            return {"completions": []}
    fragment, words = completions(text)
    return {
        "completions": [SimpleCompletion(text=w, type="magic") for w in words],
        "matched_fragment": fragment,
        "suppress": bool(words),
        "ordered": True,
    }


def install(shell: Any) -> None:
    if _matcher not in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.append(_matcher)


def remove(shell: Any) -> None:
    if _matcher in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(_matcher)
