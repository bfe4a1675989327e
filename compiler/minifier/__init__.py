"""Minifying: a program that fails becomes the smallest one that fails in the same way.

in: a function and arguments. out: a `Reproducer`. `candidate.py` is a program as a graph and specs of its inputs;
`trials.py` runs candidates, in another process where they may end it; `smaller.py` makes them smaller.
"""

from .shrink import minify, reproduce

__all__ = ["minify", "reproduce"]
