"""For every test: internal errors raise, every stage is verified, and the disk cache is a folder for tests."""
from __future__ import annotations

import os
import tempfile

os.environ.setdefault("TCOMPILE_SUPPRESS_ERRORS", "0")
os.environ.setdefault("TCOMPILE_VERIFY", "1")
os.environ.setdefault("TCOMPILE_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"tcompile-tests-{os.getuid()}"))


def pytest_collection_modifyitems(items: list) -> None:
    """Browser tests last: Playwright's synchronous interface leaves an event loop running in the thread."""
    items.sort(key=lambda item: "browser" in item.path.parts)
