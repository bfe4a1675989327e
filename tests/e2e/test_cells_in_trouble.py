"""Cells on a machine that lacks something, and cells that are interrupted: a clear word, eager's result, a usable
kernel.
"""

import os
import subprocess
import sys
import threading
import time

import pytest

from tests.kernels import STARTUP_SECONDS, kernel_manager

pytest.importorskip("IPython")

CELL = """
import torch
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
shell.history_manager.enabled = False
shell.run_line_magic("load_ext", "tcompile")
result = shell.run_cell("%%tcompile -o r time=off\\nimport torch\\nx = torch.ones(4)\\ny = torch.sin(x) * 2 + 1\\ny")
result.raise_error()
torch.testing.assert_close(result.result, torch.sin(torch.ones(4)) * 2 + 1)
shell.run_line_magic("tcompile", "status")
print("STATUS", shell.user_ns["r"].summary.status)
"""


def cell_with(**environment):
    env = {**os.environ, "TCOMPILE_SUPPRESS_ERRORS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", CELL], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_compiler(tmp_path):
    said = cell_with(TCOMPILE_CXX="/nonexistent/g++", TCOMPILE_CACHE_DIR=str(tmp_path))
    assert "STATUS eager" in said and "no C++ compiler" in said and "apt install g++" in said


def test_a_cache_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    said = cell_with(TCOMPILE_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert "STATUS compiled" in said and "(temporary: " in said and "Not a directory" in said


INTERRUPTED = """%%tcompile time=off
def deep(x):
    for i in range(60):
        x = torch.softmax(torch.sin(x) @ torch.cos(x.T) + i, -1) * 1.5
    return x
made = deep(torch.randn(16, 16))
while True:
    made = torch.sin(made)"""


@pytest.mark.parametrize("seconds", [0.4, 1.2])
def test_interrupted(seconds, tmp_path):
    """While it compiles, or after, while it runs: KeyboardInterrupt, no compiler process left, the kernel goes on."""
    pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    manager = kernel_manager()
    manager.start_kernel(env={**os.environ, "TCOMPILE_CACHE_DIR": str(tmp_path)})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=STARTUP_SECONDS)

        def run(code):
            return client.execute_interactive(code, timeout=120, output_hook=lambda message: said.append(message))[
                "content"
            ]

        said = []
        assert run("%load_ext tcompile\nimport torch\nkept = 41\n%tcompile on\n%tcompile off")["status"] == "ok"
        threading.Timer(seconds, manager.interrupt_kernel).start()
        began = time.monotonic()
        # An interrupt that lands in a weak reference's callback is lost, as in any Python program: a person presses
        # again.
        again = threading.Timer(seconds + 15, manager.interrupt_kernel)
        again.start()
        reply = run(INTERRUPTED)
        again.cancel()
        assert reply["status"] == "error" and reply["ename"] == "KeyboardInterrupt" and time.monotonic() - began < 60
        shown = "".join("".join(m["content"]["traceback"]) for m in said if m["msg_type"] == "error")
        assert "engine.py" not in shown and "session.py" not in shown
        left = (
            "import subprocess, os\nassert kept == 41\n"
            "assert not [c for c in open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read().split()\n"
            "            if 'cc1plus' in open(f'/proc/{c}/cmdline').read() or 'g++' in open(f'/proc/{c}/cmdline').read()]"
        )
        assert run(left)["status"] == "ok"
        assert run("%%tcompile -o r time=off\ny = torch.cos(torch.ones(3))\nassert y.shape == (3,)")["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
