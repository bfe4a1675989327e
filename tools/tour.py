"""Pictures of a report's views, and a short recording of a walk by keyboard, as the browser tests make them: of the
report that was made last, so that they never age.

A recording is an animated PNG: every browser plays it, and no program but the browser is needed to make it.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

__all__ = ["VIEWS", "animated_png", "recording", "views"]

WIDTH, TALLEST = 980, 720  # of a picture, in CSS pixels
FRAME_MS = 700
WALK = (*("ArrowDown",) * 5, "ArrowRight", "ArrowRight", "Enter")  # in the picture of one call
SIGNATURE = b"\x89PNG\r\n\x1a\n"

# tab -> what a reader finds there
VIEWS = {
    "overview": "Where the time of the cell went, and what would change it, most gain first.",
    "code": "Cell, graph, loop IR and kernel: choose a line, and it lights up in all of them.",
    "graph": "Modules, forward, backward and optimizer as groups, with what each costs.",
    "profile": "One call as one picture: guards, kernels, library calls, Python between.",
    "guards": "What the compiled code relies on, what failed, and which call waited for the compiler.",
    "speed": "Each engine timed in turn, each kernel beside what the machine can do, memory over the call.",
}


def views(page: Any, folder: Path) -> list[str]:
    """Take a picture of each view of the report that is open in `page`. The names of the files."""
    names = []
    for tab in VIEWS:
        _open(page, tab)
        names.append(f"{tab}.png")
        page.screenshot(path=folder / names[-1], clip=_clip(page), animations="disabled")
    return names


def recording(page: Any, path: Path) -> int:
    """Record a walk through the picture of one call, by keys alone. How many frames."""
    _open(page, "profile")
    flame = page.locator(".tc-flame")
    flame.focus()
    clip = _clip(page)
    frames = [page.screenshot(clip=clip, animations="disabled")]
    for key in WALK:
        flame.press(key)
        page.wait_for_timeout(150)
        frames.append(page.screenshot(clip=clip, animations="disabled"))
    path.write_bytes(animated_png(frames, FRAME_MS))
    return len(frames)


def _open(page: Any, tab: str) -> None:
    page.locator(".tc-tab", has_text=tab).click()
    page.wait_for_timeout(600)  # a graph is laid out after its tab is shown


def _clip(page: Any) -> dict[str, float]:
    box = page.locator(".tc-report").first.bounding_box()
    return {**box, "height": min(box["height"], TALLEST - box["y"])}


def animated_png(frames: list[bytes], ms: int) -> bytes:
    """Pictures of one size and kind as one PNG that plays once."""
    parts = [list(_chunks(f)) for f in frames]
    head = next(data for name, data in parts[0] if name == b"IHDR")
    if any(next(data for name, data in p if name == b"IHDR") != head for p in parts):
        raise ValueError("the frames of a recording differ in size or kind")
    width, height = struct.unpack(">II", head[:8])
    out = SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"acTL", struct.pack(">II", len(frames), 1))
    number = 0
    for i, p in enumerate(parts):
        out += _chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, width, height, 0, 0, ms, 1000, 0, 0))
        number += 1
        for data in (data for name, data in p if name == b"IDAT"):
            out += _chunk(b"IDAT", data) if i == 0 else _chunk(b"fdAT", struct.pack(">I", number) + data)
            number += i > 0
    return out + _chunk(b"IEND", b"")


def _chunks(png: bytes) -> Any:
    at = len(SIGNATURE)
    while at < len(png):
        length = struct.unpack(">I", png[at : at + 4])[0]
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
