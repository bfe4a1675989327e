"""`%%tcompile ranks=2`: cells in two processes on the CPU, their output, their ends, and one report of both."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from tests.kernels import STARTUP_SECONDS, kernel_manager

pytest.importorskip("IPython")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available())
        or not hasattr(os, "pidfd_open"),
        reason="this torch has no gloo, or this is not Linux",
    ),
]
SETUP = """%%tcompile ranks=cpu:2 --quiet
import os, time, torch
import torch.distributed as dist
x = torch.full((4,), rank + 1.0)"""


@pytest.fixture(scope="module")
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    from tcompile.kernel_magics import magics

    InteractiveShell.clear_instance()
    sh = InteractiveShell.instance(colors="nocolor")
    sh.history_manager.enabled = False
    sh.tcompile = magics.load(sh)
    yield sh
    magics.unload(sh)
    InteractiveShell.clear_instance()


@pytest.fixture
def ranks(shell):
    """The shell, with two ranks that have `x`."""
    assert run(shell, SETUP)[1].success
    return shell


def run(shell, cell):
    """What a cell printed, and its result."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        result = shell.run_cell(cell, store_history=True)
    return out.getvalue(), result


def interrupted(shell, cell, after=0.7):
    """The same, with Ctrl-C after some time; and the seconds that it took from then on."""
    timer = threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    out, result = run(shell, cell)
    timer.cancel()
    return out, result, time.monotonic() - begin - after


def pids(shell):
    return [f["pid"] for f in shell.tcompile.session.ranks.set.launcher.facts.values()]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(processes, seconds=10):
    end = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    return [p for p in processes if alive(p)]


# -- options
@pytest.mark.parametrize(
    "line, words",
    [
        ("ranks=0", "ranks= is the number of processes that run the cell, a whole number from 1 to 1024"),
        ("ranks=two", "got 'two'"),
        ("ranks=-1", "got '-1'"),
        ("ranks=2.5", "got '2.5'"),
        ("ranks=cuda:2", "ranks=cuda:2: torch finds no GPU here; write ranks=cpu:2"),
        ("ranks=2@host:99999", "the port is a whole number from 1 to 65535"),
        ("ranks=2@host:29600", "TCOMPILE_RANKS_KEY"),
        ("ranks=2 time=1s", "time= is not taken with ranks="),
        ("ranks=2 compare=torch", "compare= is not taken with ranks="),
        ("ranks=2 --check", "check= is not taken with ranks="),
    ],
)
def test_options_are_checked(monkeypatch, line, words):
    from tcompile.compiler.errors import OptionError
    from tcompile.kernel_magics.options import parse

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError) as e:
        parse(line)
    assert words in str(e.value)


def test_more_ranks_than_gpus(monkeypatch):
    from tcompile.compiler.errors import OptionError
    from tcompile.kernel_magics.options import parse

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parse("ranks=2").ranks.device == "cuda" and parse("ranks=cpu:4").ranks.device == "cpu"
    with pytest.raises(OptionError, match=r"ranks=3: .* this machine has 2; write ranks=2, or ranks=cpu:3"):
        parse("ranks=3")
    assert parse("ranks=off").ranks is None


# -- running
def test_a_display_of_one_rank_leaves_the_half_line_of_another(capsys):
    from tcompile.kernel_magics.ranks.labelled import Labelled

    out = Labelled(2)
    out.text(1, "stdout", "a")
    out.text(0, "stdout", "b")
    out.display(0, {"text/plain": "0"}, {}, True)
    out.text(1, "stdout", " 1\n")
    assert capsys.readouterr().out == "[rank 0] b\n[rank 0] Out: 0\n[rank 1] a 1\n"


def test_output_has_its_rank(ranks):
    out, result = run(
        ranks,
        "%%tcompile ranks=cpu:2 --quiet\nprint('a', rank, world_size, device)\nos.system('echo child')\nrank * 10",
    )
    assert result.success and result.result is None
    for rank in range(2):
        assert f"[rank {rank}] a {rank} 2 cpu\n" in out and f"[rank {rank}] child\n" in out
        assert f"[rank {rank}] Out: {rank * 10}\n" in out


def test_names_stay_and_values_are_right(ranks):
    assert run(ranks, "%%tcompile ranks=cpu:2 --quiet\ny = torch.relu(x * 2 - 3)\ndist.all_reduce(y)")[1].success
    out, _ = run(ranks, "%%tcompile ranks=cpu:2 --quiet\ny")
    assert out.count("Out: tensor([1., 1., 1., 1.])") == 2
    assert "y" not in ranks.user_ns and "x" not in ranks.user_ns


def test_a_rich_display_is_below_its_rank(ranks, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.publish_display_data", lambda data, metadata=None: shown.append(data))
    out, _ = run(
        ranks,
        "%%tcompile ranks=cpu:2 --quiet\nfrom IPython.display import HTML\nHTML(f'<b>{rank}</b>') if rank else None",
    )
    assert [d["text/html"] for d in shown] == ["<b>1</b>"] and "[rank 1] value:" in out


def test_a_cell_under_on_and_one_with_a_comment(ranks):
    out, result = run(ranks, "# tcompile: ranks=cpu:2 quiet=True\nprint('here', rank)")
    assert result.success and "[rank 1] here 1" in out
    run(ranks, "%tcompile on ranks=cpu:2 quiet=True")
    try:
        out, result = run(ranks, "z = x.cos().sum()\nprint('there', rank)")
    finally:
        run(ranks, "%tcompile off")
    assert result.success and "[rank 1] there 1" in out and "z" not in ranks.user_ns


def test_another_number_needs_an_end_first(ranks):
    out, result = run(ranks, "%%tcompile ranks=cpu:3\n1")
    assert not result.success and "`%tcompile ranks stop` ends them" in str(result.error_in_exec)
    assert "rank 1: cpu of " in run(ranks, "%tcompile ranks")[0]


# -- the report
def test_one_report_of_both(ranks):
    out, result = run(
        ranks,
        """%%tcompile ranks=cpu:2 -o r
def f(x):
    return torch.sin(x) * 2
y = f(x if rank == 0 else torch.ones(3, 5))
if rank == 1:
    time.sleep(0.3)
dist.all_reduce(x)
dist.barrier()""",
    )
    assert result.success and "2 ranks" in out
    r = ranks.user_ns["r"]
    rows = r.ranks.rows
    assert [row.rank for row in rows] == [0, 1] and all(row.status == "done" for row in rows)
    assert all(row.collectives == 2 and row.calls >= 1 and row.graphs >= 1 for row in rows)
    assert all(row.peak_bytes > 10e6 and row.compile_seconds > 0 for row in rows)
    w = r.ranks.waits[0]
    assert (w.rank, w.other) == (0, 1) and w.seconds > 0.2
    span = next(s for s in rows[0].spans if s.name == "all_reduce")
    assert span.last == 1 and span.early > 0.2 and span.bytes == 16 and span.seconds >= span.early
    d = next(d for d in r.ranks.differences if len(d.ranks) == 2)
    assert d.ranks == [[0], [1]] and "[4]" in d.texts[0] and "[3, 5]" in d.texts[1]
    assert sorted(r.ranks.reports) == [0, 1] and r.ranks.reports[1].kernels

    from tcompile.compiler.report import CompileReport

    again = CompileReport.from_json(r.to_json())
    assert [(w.rank, w.other, w.count) for w in again.ranks.waits] == [
        (w.rank, w.other, w.count) for w in r.ranks.waits
    ]
    assert again.ranks.differences == r.ranks.differences
    assert [row.rank for row in again.ranks.rows] == [0, 1] and "rank 0" in str(again)


# -- ends
def test_an_error_ends_all_and_has_its_rank(ranks):
    begin = time.monotonic()
    out, result = run(
        ranks, "%%tcompile ranks=cpu:2 --quiet\nif rank == 1:\n    raise ValueError('bad luck')\ntime.sleep(60)"
    )
    assert time.monotonic() - begin < 20
    e = result.error_in_exec
    assert type(e).__name__ == "RankError" and e.rank == 1
    assert "rank 1 raised ValueError" in str(e) and "The ranks keep their variables" in str(e)
    shown = "\n".join(e._render_traceback_())
    assert "bad luck" in shown and "----> 3     raise ValueError('bad luck')" in shown and "rank_process" not in shown
    assert run(ranks, "%%tcompile ranks=cpu:2 --quiet\ndist.all_reduce(x)")[1].success


def test_an_error_where_the_other_waits_in_a_collective(ranks):
    before = pids(ranks)
    assert run(ranks, "%%tcompile ranks=cpu:2 --quiet\nkept = rank")[1].success
    out, result = run(
        ranks,
        "%%tcompile ranks=cpu:2 --quiet\nif rank == 0:\n    time.sleep(2)\n    raise KeyError('k')\ndist.all_reduce(x)",
    )
    assert "rank 0 raised KeyError" in str(result.error_in_exec)
    assert "The process group was made anew" in str(result.error_in_exec)
    out, result = run(ranks, "%%tcompile ranks=cpu:2 --quiet\nx = torch.ones(2)\ndist.all_reduce(x)\nprint(kept, x)")
    assert result.success and "[rank 1] 1 tensor([2., 2.])" in out and pids(ranks) == before


def test_what_ended_one_cell_does_not_end_the_next(ranks):
    """A frontend may run several cells under one number. The interrupt of the first was heard by all of them."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        failed = ranks.run_cell("%%tcompile ranks=cpu:2\nraise ValueError(rank)", store_history=False)
        after = [ranks.run_cell("%%tcompile ranks=cpu:2\ny = x + 1", store_history=False) for _ in range(2)]
    assert not failed.success and all(r.success for r in after)


def test_ranks_that_compiled_other_graphs_are_told(ranks):
    cell = "%%tcompile ranks=cpu:2\ndef f(t):\n    return t.sin() if rank else t.relu() * 2\ny = f(torch.ones(8))"
    out, result = run(ranks, cell)
    assert result.success and "ranks compiled different graphs of " in out


def test_a_syntax_error(ranks):
    out, result = run(ranks, "%%tcompile ranks=cpu:2 --quiet\nx = = 1")
    assert "raised SyntaxError" in str(result.error_in_exec)


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "time.sleep(60)",
        "dist.all_reduce(x) if rank == 0 else time.sleep(60)",
        "dist.all_reduce(x) if rank == 0 else dist.recv(x, 0)",
        "if rank == 0: dist.all_reduce(x)",
    ],
)
def test_ctrl_c_ends_all(ranks, body):
    before = pids(ranks)
    out, result, seconds = interrupted(ranks, f"%%tcompile ranks=cpu:2 --quiet\nkept = 7\n{body}")
    assert isinstance(result.error_in_exec, KeyboardInterrupt) and "ended on all ranks" in str(result.error_in_exec)
    assert seconds < 10  # two at most, but for a machine that others use
    out, result = run(ranks, "%%tcompile ranks=cpu:2 --quiet\nx = torch.ones(2)\ndist.all_reduce(x)\nprint(kept, x)")
    assert result.success and out.count("7 tensor([2., 2.])") == 2 and pids(ranks) == before


def test_what_cannot_be_interrupted_is_ended(ranks):
    before = pids(ranks)
    out, result, seconds = interrupted(
        ranks,
        "%%tcompile ranks=cpu:2 --quiet\nimport signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "time.sleep(60)",
    )
    assert isinstance(result.error_in_exec, KeyboardInterrupt) and "the next cell starts new ones" in str(
        result.error_in_exec
    )
    assert seconds < 15 and not wait_for_end(before)


def test_a_rank_that_dies_ends_all(ranks):
    before = pids(ranks)
    out, result = run(
        ranks, "%%tcompile ranks=cpu:2 --quiet\nif rank == 1: os.kill(os.getpid(), 9)\ndist.all_reduce(x)"
    )
    assert "rank 1 ended (signal 9 (SIGKILL))" in str(result.error_in_exec)
    assert not wait_for_end(before)


def test_stop(ranks):
    before = pids(ranks)
    assert "have ended" in run(ranks, "%tcompile ranks stop")[0]
    assert not wait_for_end(before) and "no ranks" in run(ranks, "%tcompile ranks stop")[0]


def test_nothing_is_left_of_a_kernel_that_is_killed():
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\nfrom tcompile.kernel_magics import magics\n"
        "sh = InteractiveShell.instance()\nsh.history_manager.enabled = False\nm = magics.load(sh)\n"
        "sh.run_cell('%%tcompile ranks=cpu:2 --quiet\\n1')\n"
        "facts = m.session.ranks.set.launcher\n"
        "print('pids', facts._process.pid, *[f['pid'] for f in facts.facts.values()], flush=True)\n"
        "sh.run_cell('%%tcompile ranks=cpu:2 --quiet\\nwhile True: pass')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    started = next(line for line in process.stdout if line.startswith("pids"))
    process.kill()
    process.wait()
    process.stdout.close()
    assert not wait_for_end([int(p) for p in started.split()[1:]], 30)


def test_in_a_kernel():
    """Ctrl-C as a notebook sends it, the report as a notebook gets it, and the kernel's end."""
    pytest.importorskip("jupyter_client")
    from tcompile.compiler.report import MIME

    manager = kernel_manager()
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=STARTUP_SECONDS)

        def execute(code, interrupt=False):
            request, seen = client.execute(code), []
            while True:
                m = client.get_iopub_msg(timeout=300)
                if m["parent_header"].get("msg_id") != request:
                    continue
                seen.append((m["msg_type"], m["content"]))
                if interrupt and "started" in str(m["content"].get("text", "")):
                    interrupt = False
                    manager.interrupt_kernel()
                if m["msg_type"] == "status" and m["content"]["execution_state"] == "idle":
                    return seen

        execute("%load_ext tcompile")
        setup = "import os, time, torch, torch.distributed as dist\nx = torch.ones(3)\ndist.all_reduce(x)\nos.getpid()"
        seen = execute(f"%%tcompile ranks=cpu:2\n{setup}")
        shown = [c["data"] for kind, c in seen if kind in ("display_data", "update_display_data") and MIME in c["data"]]
        assert shown and len(shown[-1][MIME]["ranks"]) and "Ranks" in shown[-1]["text/html"]
        printed = "".join(c["text"] for kind, c in seen if kind == "stream")
        processes = [int(line.split("Out: ")[1]) for line in printed.splitlines() if "Out: " in line]
        assert len(processes) == 2 and all(map(alive, processes))
        seen = execute("%%tcompile ranks=cpu:2\nprint('started', flush=True)\ntime.sleep(60)", interrupt=True)
        error = next(c for kind, c in seen if kind == "error")
        assert error["evalue"].startswith("the cell was ended on all ranks") and all(map(alive, processes))
        seen = execute("%%tcompile ranks=cpu:2\nx")
        assert "[rank 1] Out: tensor([2., 2., 2.])" in "".join(c["text"] for kind, c in seen if kind == "stream")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert not wait_for_end(processes, 30)


# -- several hosts
def test_ranks_that_torchrun_starts(monkeypatch, shell):
    run(shell, "%tcompile ranks stop")
    monkeypatch.setenv("TCOMPILE_RANKS_KEY", "secret of this test")
    port = 29000 + os.getpid() % 1000
    env = {**os.environ, "TCOMPILE_RANKS_ADDRESS": f"127.0.0.1:{port}"}
    hosts = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={i}", "--nproc-per-node=1"]
            + ["--master-addr=127.0.0.1", f"--master-port={port + 1000}"]
            + ["-m", "tcompile.kernel_magics.ranks", "--device", "cpu"],
            env=env,
        )
        for i in range(2)
    ]
    try:
        out, result = run(
            shell,
            f"%%tcompile ranks=cpu:2@127.0.0.1:{port} -o r\nimport torch, torch.distributed as dist\n"
            "x = torch.ones(3) * (rank + 1)\ndist.all_reduce(x)\nx",
        )
        assert result.success, result.error_in_exec
        assert "torchrun --nnodes=HOSTS" in out and "[rank 1] Out: tensor([3., 3., 3.])" in out
        assert [row.collectives for row in shell.user_ns["r"].ranks.rows] == [1, 1]
        run(shell, "%tcompile ranks stop")
        assert all(h.wait(30) is not None for h in hosts)
    finally:
        for h in hosts:
            h.kill()
            h.wait()


def test_a_wrong_secret_is_not_let_in(tmp_path):
    from tcompile.kernel_magics.ranks.wire import accept, connect, listen

    door = listen(str(tmp_path / "door"))
    got = []
    thread = threading.Thread(target=lambda: got.append(accept(door, "right")))
    thread.start()
    with pytest.raises(OSError):
        connect(str(tmp_path / "door"), "wrong")
    thread.join()
    door.close()
    assert got == [None]
