"""What a rank prints and displays, on its way to the notebook: also what C code and child processes print."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

from ...compiler.base import forks
from .wire import Channel

__all__ = ["RankOutput", "make_display_classes"]

_MARK = b"\0tcompile: so far\0"  # everything before it has been read
_PATIENCE = 2.0


class RankOutput:
    """Files 1 and 2 of this process, read by threads that send what comes."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._files: list[tuple[int, Any]] = []  # a file's number, and what says that a mark came
        for number, stream in ((1, "stdout"), (2, "stderr")):
            reading, writing = os.pipe()
            os.dup2(writing, number)
            os.close(writing)
            came = forks.signal()
            self._files.append((number, came))
            forks.start_thread(partial(self._read, reading, stream, came), f"tcompile-{stream}")
        for file in (sys.stdout, sys.stderr):
            file.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def _read(self, reading: int, stream: str, came: Any) -> None:
        rest = b""
        while data := os.read(reading, 1 << 16):
            text, mark, after = (rest + data).partition(_MARK)
            cut = len(text) if mark else _whole(text)
            if text[:cut]:
                self._channel.send("output", stream=stream, text=text[:cut].decode(errors="replace"))
            rest = after if mark else text[cut:]
            if mark:
                came.set()

    def flush(self) -> None:
        """Come back when everything that was printed is sent."""
        sys.stdout.flush()
        sys.stderr.flush()
        for number, came in self._files:
            came.clear()
            os.write(number, _MARK)
        for _, came in self._files:
            came.wait(_PATIENCE)


def _whole(text: bytes) -> int:
    """Up to where `text` can be sent: not a part of a mark, nor of a character."""
    at = text.rfind(b"\0")
    if at >= 0 and _MARK.startswith(text[at:]):
        return at
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:  # begins a character of several bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if back < length else len(text)
        if byte < 0x80:
            break
    return len(text)


def make_display_classes(channel: Channel) -> tuple[type, type]:
    """IPython's hook for values and its publisher, which send instead of printing."""

    class RankHook(DisplayHook):
        def write_output_prompt(self) -> None:
            """The notebook says whose value it is."""

        def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
            sys.stdout.flush()
            channel.send("display", data=format_dict, metadata=md_dict or {}, value=True)

        def finish_displayhook(self) -> None:
            self._is_active = False

    class RankPublisher(DisplayPublisher):
        def publish(self, data: Any, metadata: Any = None, **rest: Any) -> None:
            sys.stdout.flush()
            channel.send("display", data=data, metadata=metadata or {}, value=False)

        def clear_output(self, wait: bool = False) -> None:
            """What is shown of other ranks stays."""

    return RankHook, RankPublisher
