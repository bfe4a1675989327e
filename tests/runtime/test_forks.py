"""A child of a fork can go on, whatever the other threads of the parent were in the middle of."""

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PROGRAM = """
import faulthandler, gc, os, sys, threading, time
import torch, tcompile
from tcompile.compiler import events, stages
from tcompile.compiler.base import forks

def program(k):
    def f(x):
        return torch.relu(x @ x + k).sum(-1) * k
    return f

def right(k):
    x = torch.randn(4, 4)
    return torch.allclose(tcompile.compile(program(k))(x), program(k)(x), atol=1e-4)

def child(check):
    faulthandler.dump_traceback_later(60, exit=True)
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            ok = check() and right(3) and gc.isenabled()
        except BaseException:
            import traceback
            traceback.print_exc()
            ok = False
        os._exit(0 if ok else 1)
    took = time.monotonic() - began
    return os.waitpid(pid, 0)[1], took

assert right(1)
inside, go_on = threading.Event(), threading.Event()
"""


def run(text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(text)], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_thread_compiles_for_longer_than_a_fork_waits():
    run("""
    def slow(*args, **more):
        inside.set()
        go_on.wait()
        return stages.original("fusion")(*args, **more)

    def work():
        with stages.replace("fusion", slow), events.listen(lambda e: None):
            tcompile.compile(program(2))(torch.randn(3, 3))

    forks.PATIENCE = 0.2
    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60) and not gc.isenabled()
    stages._replaced.clear()
    for first in (True, False):
        status, took = child(lambda: not events._listening)
        assert status == 0
        assert first or took < 0.2, "the second fork waits for the same thread again"
    go_on.set()
    thread.join()
    assert gc.isenabled() and right(4)
    """)


def test_a_fork_waits_for_what_is_soon_done():
    run("""
    def work():
        with stages.compiling():
            inside.set()
            time.sleep(0.5)
            go_on.set()

    threading.Thread(target=work).start()
    assert inside.wait(60)
    status, took = child(go_on.is_set)
    assert status == 0 and took > 0.2
    """)


def test_the_thread_that_forks_compiles():
    run("""
    def check():
        return stages._lock._is_owned()
    with stages.compiling():
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(60, exit=True)
    if pid == 0:
        os._exit(0 if right(3) and gc.isenabled() and not stages._lock._is_owned() else 1)
    assert os.waitpid(pid, 0)[1] == 0 and right(4) and gc.isenabled()
    """)


def test_another_thread_imports_a_part_of_the_compiler(tmp_path):
    (tmp_path / "slow_part.py").write_text(
        "import threading, time\nif threading.current_thread() is not threading.main_thread():\n    time.sleep(1000)\nfull = True\n"
    )
    run(f"""
    import importlib, tcompile.compiler
    forks.PATIENCE = 0.1
    tcompile.compiler.__path__.append({str(tmp_path)!r})
    threading.Thread(target=lambda: importlib.import_module("tcompile.compiler.slow_part"), daemon=True).start()
    while "tcompile.compiler.slow_part" not in sys.modules:
        time.sleep(0.01)
    status, _ = child(lambda: importlib.import_module("tcompile.compiler.slow_part").full)
    assert status == 0
    os._exit(0)
    """)


def test_workers_stay_the_parent_s(tmp_path):
    (tmp_path / "worker.py").write_text(
        "import json, sys\nfor line in sys.stdin:\n    print(json.dumps({'got': json.loads(line)}), flush=True)\n"
    )
    run(f"""
    from pathlib import Path
    from tcompile.compiler.runtime.gpu import workers
    workers.Path = lambda _: Path({str(tmp_path / "workers.py")!r})
    w = workers.take()
    assert w.ask({{"n": 1}}) == {{"got": {{"n": 1}}}}
    workers.give(w)

    def check():
        gone = not workers._idle
        other = workers.take()
        own = other is not w and other.ask({{"n": 2}}) == {{"got": {{"n": 2}}}}
        workers.stop_workers()
        other.stop()
        return gone and own

    assert child(check)[0] == 0
    again = workers.take()
    assert again is w and again.ask({{"n": 3}}) == {{"got": {{"n": 3}}}}
    again.stop()
    """)
