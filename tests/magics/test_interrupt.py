"""Ctrl-C, in a real kernel: in the cell, and in the timing after it."""

import os
import time

import pytest

from tests.kernels import STARTUP_SECONDS, kernel_manager

pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

HERE = os.path.dirname(os.path.abspath(__file__))
SETUP = f"""import sys; sys.path.insert(0, {HERE!r})
import standin, time, torch
from tcompile.kernel_magics import magics
magics.load(get_ipython(), standin.StandIn())
x = torch.ones(8)
def f(x):
    return torch.sin(x) * x"""


@pytest.fixture(scope="module")
def kernel():
    manager = kernel_manager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=STARTUP_SECONDS)
    assert run(client, SETUP)["status"] == "ok"
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code, interrupt=None, outputs=None):
    """Execute; `interrupt` is (kernel manager, seconds after the kernel became busy)."""
    request = client.execute(code)
    end, hit = time.time() + 60, None
    while time.time() < end:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != request:  # a slow start leaves answers to questions asked before
            continue
        kind = message["header"]["msg_type"]
        if outputs is not None and kind not in ("status", "execute_input"):
            outputs.append(message)
        if kind == "stream" and "started" in message["content"]["text"] and interrupt:
            hit = interrupt
            time.sleep(hit[1])
            hit[0].interrupt_kernel()
        if kind == "status" and message["content"]["execution_state"] == "idle":
            break
    while True:
        reply = client.get_shell_msg(timeout=60)
        if reply["parent_header"].get("msg_id") == request:
            return reply["content"]


def test_interrupt_in_the_cell(kernel):
    manager, client = kernel
    out = []
    code = "%%tcompile\nkept = 5\nprint('started', flush=True)\ntime.sleep(30)\nnever = 1"
    reply = run(client, code, (manager, 1.0), out)
    assert reply["status"] == "error" and reply["ename"] == "KeyboardInterrupt"
    text = "".join(next(m for m in out if m["msg_type"] == "error")["content"]["traceback"])
    assert "session.py" not in text and "time.sleep" in text
    assert run(client, "assert kept == 5 and 'never' not in globals()")["status"] == "ok"


def test_interrupt_in_the_timing_keeps_the_result(kernel):
    manager, client = kernel
    out = []
    code = """%%tcompile -o r time=40s
def slow(x):
    print('started', flush=True) if armed else None
    time.sleep(0.05 if armed else 0)
    return torch.sin(x) * x
armed = False
compile_now = (f, x)
standin.state_compilation = (lambda old: lambda fn, *a, **k: (old(f, *a, **k), events.emit('call', frame='slow', cached=False, call=EntryCall('slow', slow, a)))[0])(standin.state_compilation)
from tcompile.compiler import events
from tcompile.compiler.frontend.entry_calls import EntryCall
armed = True
6 * 7"""
    began = time.time()
    reply = run(client, code, (manager, 0.2), out)
    assert reply["status"] == "ok" and time.time() - began < 30
    assert any(m["msg_type"] == "execute_result" and m["content"]["data"]["text/plain"] == "42" for m in out)
    assert run(client, "assert 'interrupted' in r.speedups.reason, r.speedups.reason")["status"] == "ok"
