"""Jobs for the processes that compile GPU kernels: order, number at once, what is asked for twice, what is dropped."""

import os
import threading
import time

import pytest
import torch

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton.layout import GpuTarget  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.errors import RejectedKernel, ToolchainError  # noqa: E402
from tcompile.compiler.runtime.gpu import compile as gpu  # noqa: E402
from tcompile.compiler.runtime.gpu import job_queue  # noqa: E402
from tcompile.compiler.runtime.gpu.job_queue import Answer, drop, put  # noqa: E402

from ..codegen.triton.as_gpu import as_gpu  # noqa: E402


def test_what_is_waited_for_comes_first_and_of_that_the_longest():
    begun, go_on, seen = threading.Event(), threading.Event(), []
    first = Answer(lambda: begun.set() or go_on.wait(60))
    put(first, (), 1)
    assert begun.wait(60)
    rest = []
    for later, size in ((True, 9), (False, 1), (True, 5), (False, 7)):
        rest.append(Answer(lambda job=(later, size): seen.append(job)))
        put(rest[-1], (later, -size), 1)
    go_on.set()
    for a in rest:
        a.result()
    assert seen == [(False, 7), (False, 1), (True, 9), (True, 5)]


def test_so_many_at_once_and_their_errors():
    most, now, lock = [0], [0], threading.Lock()
    together = threading.Barrier(3, timeout=60)

    def job(n):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        together.wait()
        with lock:
            now[0] -= 1
        if n == 4:
            raise ValueError("four")
        return n

    answers = [Answer(lambda n=n: job(n)) for n in range(6)]
    for a in answers:
        put(a, (), 3)
    assert [a.result() for a in answers if a is not answers[4]] == [0, 1, 2, 3, 5]
    with pytest.raises(ValueError, match="four"):
        answers[4].result()
    assert most == [3]


def test_what_has_not_begun_can_be_dropped():
    begun, go_on = threading.Event(), threading.Event()
    first, second = Answer(lambda: begun.set() or go_on.wait(60)), Answer(lambda: 1)
    put(first, (), 1)
    assert begun.wait(60)
    put(second, (), 1)
    assert drop([first, second]) == [second]
    go_on.set()
    first.result()
    assert not second.ended() and not job_queue._waiting


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """(jobs, options): two kernels, and a cache of their own."""
    monkeypatch.setattr(gpu, "_loaded", {})
    target = GpuTarget("cuda", 90, 32, 132)
    g = as_gpu(lambda x: torch.cos(torch.sin(x) @ x) * 2, torch.randn(64, 64), target=target)
    assert len(g.kernels) > 1
    return [gpu.Job(k.source, target) for k in g.kernels], Options.make(options={"cache_dir": str(tmp_path)})


def worker(monkeypatch, answers):
    """`answers(request)` instead of a process; gives the requests that came."""
    came = []

    def ask(request):
        came.append(request)
        return answers(request)

    monkeypatch.setattr(gpu, "_ask", ask)
    return came


def compiled(request):
    with open(request["out"], "wb") as f:
        f.write(b"binary")
    return {
        "functions": [
            {"name": f["name"], "entry": f["name"], "shared": 0, "threads": 32, "bytes": 6 * (not i), "assembly": ""}
            for i, f in enumerate(request["functions"])
        ]
    }


def test_what_began_ahead_is_not_compiled_again(jobs, monkeypatch):
    go_on = threading.Event()
    came = worker(monkeypatch, lambda request: go_on.wait(60) and compiled(request))
    gpu.begin(*jobs)
    gpu.begin(*jobs)
    threading.Timer(0.1, go_on.set).start()
    assert [b.parts[0].code for b in gpu.compile_all(*jobs)] == [b"binary"] * len(jobs[0])
    assert len(came) == len(jobs[0]) and not gpu._asked


def test_what_failed_ahead_is_tried_again(jobs, monkeypatch):
    broken = [True]

    def answers(request):
        return {"error": "no such layout"} if broken[0] else compiled(request)

    came = worker(monkeypatch, answers)
    gpu.begin(*jobs)
    with pytest.raises(RejectedKernel, match="no such layout"):
        gpu.compile_all(*jobs)
    for a in list(gpu._asked.values()):
        a._ended.wait(60)
    broken[0], before = False, len(came)
    assert len(gpu.compile_all(*jobs)) == len(jobs[0]) and len(came) > before


def test_a_process_that_dies_and_a_disk_that_is_full(jobs, monkeypatch):
    def dies(request):
        raise ToolchainError("the process ended with -9")

    worker(monkeypatch, dies)
    with pytest.raises(ToolchainError, match="ended with -9"):
        gpu.compile_all(*jobs)
    folder, first = str(jobs[1].get("cache_dir")), jobs[0][0].request()["text"]

    def no_room(request):  # in the folder that was asked for; a temporary one has some
        if not request["out"].startswith(folder):
            return compiled(request)
        time.sleep(0.3 * (request["text"] != first))  # (the others are still at it when the first has failed)
        return {"error": "No space left on device", "errno": 28}

    worker(monkeypatch, no_room)
    assert len(gpu.compile_all(*jobs)) == len(jobs[0])


def test_a_child_compiles_for_itself(jobs, monkeypatch):
    go_on = threading.Event()
    worker(monkeypatch, lambda request: go_on.wait(60) and compiled(request))
    gpu.begin(*jobs)
    pid = os.fork()
    if pid == 0:
        go_on.set()
        os._exit(0 if len(gpu.compile_all(*jobs)) == len(jobs[0]) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    go_on.set()
    gpu.compile_all(*jobs)
