"""The stack of another thread, looked at while that thread goes on."""

import subprocess
import sys
import textwrap

PROGRAM = """
import gc, threading, time
from tcompile.kernel_magics.sampling import Sampler

class Cycle:
    def __init__(self):
        self.me = self

    def __del__(self):  # in the thread that looks: the other one leaves its frames meanwhile, and makes others
        if finish.locked():
            finish.release()
            done.wait(10)

def deep(k, f=lambda: 0, g=lambda: 1):
    a = b = c = d = e = f
    if k:
        deep(k - 1, g, f)
    else:
        ready.set()
        finish.acquire()
    return a

def churn(k, g=lambda: 1):
    a = b = c = d = e = f = h = i = j = g
    if k:
        churn(k - 1)
    else:
        done.set()
        stop.acquire()

def look(sampler, threshold):
    ready.wait()
    gc.collect()
    Cycle()
    gc.set_threshold(threshold)
    try:
        seen.append({code.co_name for code, _ in sampler._stack()})
    finally:
        gc.set_threshold(700)
        if finish.locked():
            finish.release()
        stop.release()

seen = []
for threshold in range(1, 45):
    ready, done = threading.Event(), threading.Event()
    finish, stop = threading.Lock(), threading.Lock()
    finish.acquire(), stop.acquire()
    looking = threading.Thread(target=look, args=(Sampler(), threshold))
    looking.start()
    deep(30), churn(40)
    looking.join()
print(len(seen), set.union(*seen) - {"deep", "churn", "<module>", "set", "notify_all", "notify", "__enter__", "__exit__"})
"""


def test_collecting_garbage_while_a_stack_is_read():
    """On Python 3.11 frames are made where they are looked at, which may run a finalizer."""
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "44 set()\n", "")
