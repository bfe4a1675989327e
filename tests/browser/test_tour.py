"""The site's pictures and its recording are made of a report by the browser, and show what they say."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

from .conftest import ROOT
from .pages import TABS, opened, saved

sys.path.insert(0, str(ROOT / "tools"))
try:
    import tour
finally:
    sys.path.remove(str(ROOT / "tools"))


def test_pictures_of_all_views_and_a_recording(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path), width=tour.WIDTH) as (page, problems):
        names = tour.views(page, tmp_path)
        assert names == [f"{tab}.png" for tab in TABS if tab != "more"]
        assert len({(tmp_path / name).read_bytes() for name in names}) == len(names), "no two views are one picture"
        frames = tour.recording(page, tmp_path / "walk.png")
        assert not problems
        data = (tmp_path / "walk.png").read_bytes()
        assert data.count(b"fcTL") == frames == 1 + len(tour.WALK)
        page.goto("about:blank")
        page.set_content("<img>")
        seen = page.evaluate(
            """async bytes => {
                const image = document.querySelector('img');
                image.src = URL.createObjectURL(new Blob([new Uint8Array(bytes)], {type: 'image/png'}));
                await image.decode();
                return [image.naturalWidth, image.naturalHeight];
            }""",
            list(data),
        )
        assert seen == list(struct.unpack(">II", data[16:24]))
