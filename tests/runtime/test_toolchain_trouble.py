"""Trouble at each stage of the toolchain: eager's result, one count, one message, and compiled kernels once the
toolchain is back.
"""

import errno
import logging
import os
import resource
import tempfile

import pytest
import torch

import tcompile
from tcompile.compiler import events
from tcompile.compiler.base import forks
from tcompile.compiler.errors import RejectedKernel, ToolchainError
from tcompile.compiler.runtime import cache, cpu_kernels, toolchain, waiting

from .helper import chain_schedule, script

pytestmark = pytest.mark.usefixtures("own_cache")

VERSION = 'if [ "$1" = --version ]; then echo trouble 1.0; exit 0; fi\n'
OUTPUT = 'while [ $# -gt 0 ]; do if [ "$1" = -o ]; then out="$2"; fi; shift; done\n'

# What the compiler does in place of compiling: a script, or what CXX is.
COMPILERS = {
    "killed": VERSION + "kill -9 $$",
    "its part is killed": VERSION + 'echo "g++: fatal error: Killed signal terminated program cc1plus" >&2; exit 1',
    "does nothing": VERSION + "exit 0",
    "has no linker": VERSION + "echo \"collect2: fatal error: cannot find 'ld'\" >&2; exit 1",
    "rejects": VERSION + 'echo "k.cpp:1: error: nonsense" >&2; exit 1',
    "writes no library": VERSION + OUTPUT + 'echo junk > "$out"',
    "writes an empty library": VERSION + OUTPUT + 'echo "int nothing;" | g++ -shared -fPIC -x c++ - -o "$out"',
    "writes half of a library": VERSION + 'g++ "$@"; ' + OUTPUT + 'truncate -s 3000 "$out"',
    "makes a pipe": VERSION + OUTPUT + 'mkfifo "$out"',
    "makes a folder": VERSION + OUTPUT + 'mkdir "$out"',
    "hangs": VERSION + "sleep 1000",
    "version fails": "exit 1",
}
COMMANDS = {
    "false": "/bin/false",
    "a folder": "/tmp",
    "an unknown option": "g++ --nonsense",
    "a quote that is open": 'g++ "',
    "does not start": "/bin/nonsense++ -O1",
}


@pytest.fixture
def trouble(monkeypatch, tmp_path):
    """As in a process that begins (conftest.py empties the rest): no temporary folder, nothing was said."""
    monkeypatch.setattr(cache, "_open", {})
    monkeypatch.setattr(cache, "_temporary", None)
    monkeypatch.setattr(waiting, "_said", set())
    monkeypatch.delenv("CXX", raising=False)
    return monkeypatch


class Program:
    """A compiled function, its calls and what was said of them."""

    def __init__(self, **how):
        self.said, self.built = [], 0
        self.x = torch.linspace(-1, 1, 37)
        options = {"suppress_errors": True, **how.pop("options", {})}
        self.c = tcompile.compile(self.f, options=options, **how)

    @staticmethod
    def f(x):
        return (torch.sin(x) * 3 + x).exp() - x

    def call(self, grad=False):
        def hear(e):
            if e.kind == "fallback":
                self.said.append(e)
            self.built += e.kind == "schedule"  # its kernels are there

        x, y = (self.x.clone().requires_grad_(grad) for _ in range(2))
        with events.listen(hear):
            got = self.c(x)
            if grad:
                got.sum().backward()
        want = self.f(y)
        if grad:
            want.sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
        torch.testing.assert_close(got, want)
        return got.detach().equal(want.detach())


def fails(program, monkeypatch, mend, grad=False):
    """In trouble, and after `mend`."""
    parts = 2 if grad else 1  # forward and backward
    for _ in range(3):
        assert program.call(grad), "not eager's numbers"
    assert [(e.what, e.count) for e in program.said] == [("toolchain", 1)] * parts and not program.built
    mend()
    monkeypatch.setattr(waiting, "_last_success", float("inf"))  # as if another graph had been built
    program.call(grad)
    assert program.built == parts and len(program.said) == parts
    program.call(grad)
    assert program.built == parts and len(program.said) == parts


@pytest.mark.parametrize("name", COMPILERS)
def test_the_compiler(name, trouble, tmp_path):
    trouble.setattr(toolchain, "MOST_SECONDS", 0.3 if name == "hangs" else 600.0)
    path = tmp_path / "trouble++"
    trouble.setenv("CXX", script(path, COMPILERS[name]))

    def mend():
        trouble.setattr(toolchain, "MOST_SECONDS", 600.0)
        script(path, 'exec g++ "$@"')

    fails(Program(), trouble, mend)


def test_a_version_in_no_encoding(trouble, tmp_path):
    trouble.setenv(
        "CXX", script(tmp_path / "odd++", r'if [ "$1" = --version ]; then printf "\377\n"; else g++ "$@"; fi')
    )
    program = Program()
    program.call()
    assert program.built == 1 and not program.said


@pytest.mark.parametrize("name", COMMANDS)
def test_what_cxx_is(name, trouble):
    trouble.setenv("CXX", COMMANDS[name])
    program = Program(options={"cxx": COMMANDS[name]}) if name in ("a folder", "does not start") else Program()
    if name in ("a folder", "does not start"):  # the option is not looked up anew
        assert program.call() and [e.count for e in program.said] == [1]
        return
    fails(program, trouble, lambda: trouble.delenv("CXX"))


@pytest.mark.parametrize("how", [dict(fullgraph=True), dict(dynamic=True), dict(grad=True)], ids=str)
def test_however_it_is_compiled(how, trouble, tmp_path):
    trouble.setenv("CXX", script(tmp_path / "trouble++", COMPILERS["killed"]))
    how = dict(how)
    grad = how.pop("grad", False)
    fails(Program(**how), trouble, lambda: trouble.delenv("CXX"), grad)


def test_errors_that_are_to_be_heard(trouble, tmp_path):
    trouble.setenv("CXX", script(tmp_path / "trouble++", COMPILERS["killed"]))
    with pytest.raises(ToolchainError, match="killed by signal 9"):
        Program(options={"suppress_errors": False}).call()


def refuse(number):
    def refused(*args, **more):
        raise OSError(number, os.strerror(number))

    return refused


STAGES = {
    "threads": (forks, "start_thread", lambda *args: (_ for _ in ()).throw(RuntimeError("can't start new thread"))),
    "processes": (toolchain.subprocess, "Popen", refuse(errno.EAGAIN)),
    "work folder": (cache.KernelCache, "workspace", refuse(errno.ENOSPC)),
    "library into its place": (cache.KernelCache, "put", refuse(errno.EROFS)),
    "source": (cpu_kernels.Path, "write_text", refuse(errno.ENOSPC)),
    "loading": (cpu_kernels.ctypes, "CDLL", refuse(errno.ENOMEM)),
    "opening the cache": (cpu_kernels, "open_cache", refuse(errno.EIO)),
    "any folder": (tempfile, "mkdtemp", refuse(errno.ENOENT)),
}


@pytest.mark.parametrize("name", STAGES)
def test_the_system_at(name, trouble):
    where, attribute, refused = STAGES[name]
    original = getattr(where, attribute)
    trouble.setattr(where, attribute, refused)
    program = Program()
    for _ in range(2):
        assert program.call()
    assert [(e.what, e.count) for e in program.said] == [("toolchain", 1)]
    trouble.setattr(where, attribute, original)
    trouble.setattr(waiting, "_last_success", float("inf"))
    program.call()
    assert program.built == 1 and len(program.said) == 1


def test_files_may_not_grow(trouble):
    """RLIMIT_FSIZE: the source can be written, the library can not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    program = Program()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
        eager = program.call()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert eager and [(e.what, e.count) for e in program.said] == [("toolchain", 1)]
    trouble.setattr(waiting, "_last_success", float("inf"))
    program.call()
    assert program.built == 1 and len(program.said) == 1


@pytest.mark.parametrize("name", ["new\nline", "quo'te\"s", "sp ace", "-o", "a$(touch x)", "ü\\", "#%"])
def test_the_cache_folder_has_any_name(name, trouble, tmp_path):
    trouble.setitem(tcompile.config._values, "cache_dir", str(tmp_path / name))
    program = Program()
    program.call()
    assert program.built == 1 and not program.said and list((tmp_path / name).glob("v1/*/*.so"))


@pytest.mark.parametrize("name", ["\0", "~nobody-of-this-name/x", "/dev/null/x", "/proc/x"])
def test_no_folder_of_that_name_can_be(name, trouble):
    trouble.setitem(tcompile.config._values, "cache_dir", name)
    program = Program()
    program.call()
    assert program.built == 1 and not program.said  # a temporary one serves


@pytest.mark.parametrize("what", ["rm -rf", "chmod -R a-w"])
def test_the_cache_folder_changes_midway(what, trouble, tmp_path):
    folder = tmp_path / "kernels"
    trouble.setitem(tcompile.config._values, "cache_dir", str(folder))
    trouble.setenv(
        "CXX",
        script(
            tmp_path / "odd++",
            VERSION + f'[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; {what} {folder}; }}\nexec g++ "$@"',
        ),
    )
    program = Program()
    program.call()
    assert program.built and not program.said
    os.path.exists(folder) and os.system(f"chmod -R u+w {folder}")


def test_a_path_with_spaces_and_quotes(trouble, tmp_path):
    folder = tmp_path / "my 'own' tools"
    folder.mkdir()
    trouble.setenv("CXX", script(folder / "g++", 'exec g++ "$@"'))
    program = Program()
    program.call()
    assert program.built == 1 and not program.said


def test_a_failing_toolchain_is_tried_ever_more_rarely(trouble, tmp_path):
    count = tmp_path / "count"
    trouble.setenv("CXX", script(tmp_path / "trouble++", VERSION + f"echo x >> {count}\nkill -9 $$"))
    now = [0.0]
    trouble.setattr(waiting.time, "monotonic", lambda: now[0])
    program = Program()
    tries = []
    for second in range(0, 200):
        now[0] = float(second)
        before = count.read_text().count("x") if count.exists() else 0
        program.call()
        if count.read_text().count("x") > before:
            tries.append(second)
    assert tries == [0, 11, 32, 73, 154] and len(program.said) == 1


def test_a_script_hears_of_it_once(trouble, tmp_path, caplog):
    trouble.setenv("CXX", script(tmp_path / "trouble++", COMPILERS["killed"]))
    with caplog.at_level(logging.WARNING, "tcompile"):
        for k in range(3):
            c = tcompile.compile(lambda x, k=k: torch.sin(x) * (k + 2.5), options={"suppress_errors": True})
            for _ in range(2):
                c(torch.ones(3))
    assert len([r for r in caplog.records if "killed by signal 9" in r.getMessage()]) == 1


WORKERS = {
    "hangs": ("import time\ntime.sleep(1000)", "said nothing"),
    "ends": ("import sys\nsys.exit('no memory')", "no memory"),
    "babbles": ("print('what?', flush=True)\nimport sys\nsys.stdin.read()", "GPU kernels"),
    "ends in the middle": ("import sys\nsys.stdin.readline()\nsys.stdout.write('{\"functions\":')", "GPU kernels"),
}


@pytest.mark.parametrize("name", WORKERS)
def test_a_process_that_compiles_for_a_gpu(name, trouble, tmp_path):
    from tcompile.compiler.runtime.gpu import workers

    text, words = WORKERS[name]
    (tmp_path / "worker.py").write_text(text)
    trouble.setattr(workers, "Path", lambda _: tmp_path / "workers.py")
    trouble.setattr(workers, "MOST_SECONDS", 0.5 if name == "hangs" else 60.0)
    w = workers.Worker()
    with pytest.raises(ToolchainError, match=words):
        w.ask({"text": "x" * 200_000})
    assert w.process.returncode is not None


ENDS = {
    "a crash": ("os.abort()", RejectedKernel, "the compiler crashes", 1),
    "killed each time": ("os.kill(os.getpid(), 9)", ToolchainError, "ended with -9", 2),
    "killed once": ("len(tries) > 1 or os.kill(os.getpid(), 9)", None, "", 2),
    "no assembler": ("answer = {'error': 'Cannot find ptxas', 'machine': True}", ToolchainError, "not work here", 1),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_a_process_ends_says_whose_fault_it_is(name, trouble, tmp_path):
    """A kernel that crashes its compiler is printed in another way; a machine without memory is asked again."""
    pytest.importorskip("triton")
    from tcompile.compiler.codegen.triton.layout import GpuTarget
    from tcompile.compiler.config import Options
    from tcompile.compiler.runtime.gpu import compile as gpu
    from tcompile.compiler.runtime.gpu import workers

    from ..codegen.triton.as_gpu import as_gpu

    does, error, words, processes = ENDS[name]
    (tmp_path / "worker.py").write_text(
        "import faulthandler, json, os, sys\nfaulthandler.disable()\n"
        "for line in sys.stdin:\n"
        f"    with open({str(tmp_path / 'tries')!r}, 'a') as f:\n        f.write('x')\n"
        f"    tries = open({str(tmp_path / 'tries')!r}).read()\n"
        "    job = json.loads(line)\n    open(job['out'], 'wb').write(b'code')\n"
        "    functions = [{'name': f['name'], 'entry': f['name'], 'shared': 0, 'threads': 32, 'bytes': 4 * (not i),"
        " 'assembly': ''} for i, f in enumerate(job['functions'])]\n    answer = {'functions': functions}\n"
        f"    {does}\n    print(json.dumps(answer), flush=True)\n"
    )
    workers.toolchain()  # (known from the real one)
    trouble.setattr(workers, "Path", lambda _: tmp_path / "workers.py")
    trouble.setattr(workers, "_idle", [])
    trouble.setattr(gpu, "_loaded", {})
    target = GpuTarget("cuda", 90, 32, 132)
    (k,) = as_gpu(lambda x: torch.sin(x) + 1, torch.randn(64), target=target).kernels
    opts = Options.make(options={"cache_dir": str(tmp_path / "cache")})
    try:
        if error is None:
            assert gpu.compile_all([gpu.Job(k.source, target)], opts)[0].parts[0].code == b"code"
        else:
            with pytest.raises(error, match=words) as raised:
                gpu.compile_all([gpu.Job(k.source, target)], opts)
            assert isinstance(raised.value, RejectedKernel) == (error is RejectedKernel)
            assert list((tmp_path / "cache").rglob("rejected/*.py")) or error is not RejectedKernel
        assert len((tmp_path / "tries").read_text()) == processes
    finally:
        workers.stop_workers()


@pytest.mark.parametrize("stands", [True, False])
def test_a_job_s_error_that_no_other_kernel_would_mend(stands):
    """As worker.py tells it: Triton's own words where its assembler is missing or was killed."""
    from tcompile.compiler.runtime.gpu.worker import _NO_ASSEMBLER

    words = ("Cannot find ptxas", "PTXAS error: `ptxas` failed with error code -9\nRepro command")
    others = ("PTXAS error: `ptxas` failed with error code 255", "PassManager::run failed", "`ptxas` raised SIGSEGV")
    assert all(bool(_NO_ASSEMBLER.search(w)) == stands for w in (words if stands else others))


def test_kernels_for_a_gpu_fail_on_the_same_road(trouble):
    from dataclasses import replace

    from tcompile.compiler.codegen.generate import generate
    from tcompile.compiler.config import Options
    from tcompile.compiler.runtime import build_graph as runtime
    from tcompile.compiler.runtime.gpu import gpu_graph as gpu

    tried = []

    def build_gpu(generated, opts, eager):
        tried.append(generated)
        if len(tried) == 1:
            raise ToolchainError("the process that compiles GPU kernels ended with -9")
        return runtime.CompiledGraph(generated, lambda x: (x + 1,), "cuda graph", {})

    trouble.setattr(gpu, "build_gpu", build_gpu)
    said, opts = [], Options.make(options={"suppress_errors": True})
    with events.listen(said.append):
        graph = runtime.build(replace(generate(chain_schedule(10, 1.0), opts=opts), cuda=0), opts, lambda x: (x + 2,))
        names = {"graph_0": graph.call}
        graph.call.held_by(names, "graph_0")
        x = torch.zeros(3)
        assert graph(x)[0].equal(x + 2) and graph.how == "eager"
        trouble.setattr(waiting, "_last_success", float("inf"))
        assert (
            graph(x)[0].equal(x + 1)
            and graph.how == "cuda graph"
            and names["graph_0"](x)[0].equal(x + 1)
            and names["graph_0"] is graph.call
        )
    assert [(e.what, e.count) for e in said if e.kind == "fallback"] == [("toolchain", 1)] and len(tried) == 2
