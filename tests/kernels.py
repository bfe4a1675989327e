"""Kernels that tests start. They listen on sockets in a folder: a free TCP port may be another's by then."""

from __future__ import annotations

import itertools
import tempfile
from typing import Any

__all__ = ["STARTUP_SECONDS", "kernel_manager", "notebook_client"]

STARTUP_SECONDS = 180  # a machine of two cores compiles C++ beside it
_folder = tempfile.TemporaryDirectory(prefix="kernels-")
_numbers = itertools.count()


def _sockets() -> dict[str, str]:
    """Traits of a kernel manager: an address of its own, short enough for a Unix socket (107 bytes)."""
    return {"transport": "ipc", "ip": f"{_folder.name}/{next(_numbers)}"}


def kernel_manager() -> Any:
    """A manager of one kernel, not yet started."""
    from jupyter_client import KernelManager

    return KernelManager(kernel_name="python3", **_sockets())


def notebook_client(notebook: Any, **options: Any) -> Any:
    """A client that runs a notebook in a kernel of its own. `options`: of `nbclient.NotebookClient`."""
    import nbclient
    from traitlets.config import Config

    return nbclient.NotebookClient(
        notebook,
        kernel_name="python3",
        startup_timeout=STARTUP_SECONDS,
        config=Config(KernelManager=_sockets()),
        **options,
    )
