"""Finding and running the C++ compiler; what happens when that fails."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from tcompile.compiler import events
from tcompile.compiler.codegen.generate import generate
from tcompile.compiler.config import Options
from tcompile.compiler.errors import ToolchainError
from tcompile.compiler.runtime.build_graph import build
from tcompile.compiler.runtime.toolchain import find

from .helper import chain_schedule, compiled, script

pytestmark = pytest.mark.usefixtures("own_cache")

x = torch.randn(10)


def test_no_compiler_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler.*g\+\+.*CXX"):
        compiled(chain_schedule(10, 1.0))
    with pytest.raises(ToolchainError, match="cxx='nonsense'"):
        find(Options.make(options={"cxx": "nonsense"}))


def test_without_compiler_the_eager_graph_serves(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    heard = []
    opts = Options.make()
    with events.listen(heard.append):
        graph = build(generate(chain_schedule(10, 1.0), opts=opts), opts=opts, eager=lambda t: (t + 1,))
    assert graph.how == "eager" and graph(x)[0].equal(x + 1)
    assert any(e.kind == "fallback" and "no C++ compiler" in e.reason for e in heard)


def test_failing_compiler_shows_its_words(tmp_path):
    bad = script(
        tmp_path / "bad++",
        'if [ "$1" = --version ]; then echo bad 1.0; exit 0; fi\necho "error: the disk is full" >&2; exit 1',
    )
    with pytest.raises(ToolchainError, match="the disk is full"):
        compiled(chain_schedule(10, 1.0), cxx=bad)


def test_killed_compiler(tmp_path):
    bad = script(tmp_path / "dying++", 'if [ "$1" = --version ]; then echo dying 1.0; exit 0; fi\nkill -9 $$')
    with pytest.raises(ToolchainError, match="killed by signal 9"):
        compiled(chain_schedule(10, 1.0), cxx=bad)


def test_interrupt_leaves_no_process_and_no_files(tmp_path, own_cache):
    mark = tmp_path / "pid"
    slow = script(
        tmp_path / "slow++", f'if [ "$1" = --version ]; then echo slow 1.0; exit 0; fi\necho $$ > {mark}\nsleep 600'
    )
    text = (
        "import signal\nfrom tests.runtime.helper import *\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        f"try:\n    compiled(chain_schedule(10, 1.0), cxx={slow!r})\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    child = subprocess.Popen(
        [sys.executable, "-c", text], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.time() + 300  # a busy machine imports torch slowly
    while not (mark.exists() and mark.read_text().strip()) and time.time() < until:
        time.sleep(0.02)
    pid = int(mark.read_text())
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=300)
    assert "interrupted" in out, err
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not list(own_cache.glob("v1/build-*"))


def test_a_compiler_that_starts_slowly_is_waited_for(own_cache, monkeypatch):
    from tcompile.compiler.runtime import toolchain

    start = toolchain._start
    monkeypatch.setattr(toolchain, "STARTS", 0.01)
    monkeypatch.setattr(toolchain, "_start", lambda tool, unit: (time.sleep(0.2), start(tool, unit))[1])
    heard = []
    with events.listen(heard.append):
        assert compiled(chain_schedule(10, 8.0))(x)[0].equal(x + 8)
    assert not [e for e in heard if e.kind == "cache" and e.what == "folder"]


def test_version_is_remembered(own_cache, tmp_path, monkeypatch):
    from tcompile.compiler.runtime import toolchain
    from tcompile.compiler.runtime.cache import open_cache

    count = tmp_path / "count"
    tool = script(
        tmp_path / "my++", f'if [ "$1" = --version ]; then echo x >> {count}; echo my 1.0; exit 0; fi\nexec g++ "$@"'
    )
    opts = Options.make(options={"cxx": tool})
    for _ in range(3):
        monkeypatch.setattr(toolchain, "_found", {})
        assert find(opts, open_cache(opts)).version == "my 1.0"
    assert count.read_text() == "x\n"


def test_words_beside_the_compiler_s_name_are_part_of_the_key(own_cache, monkeypatch):
    """A kernel of `g++ -DX` is not one of `g++`, in this process nor on disk."""
    s = chain_schedule(10, 77.0)
    seen = []
    for cxx in ("g++", "g++ -DTC_WORD=1", "g++", "g++ -DTC_WORD=2"):
        monkeypatch.setenv("CXX", cxx)
        heard = []
        with events.listen(heard.append):
            assert compiled(s)(x)[0].equal(x + 77)
        seen.append([(e.hit, "TC_WORD" in e.reason) for e in heard if e.kind == "cache"])
    assert seen == [[(False, False)], [(False, True)], [], [(False, True)]]


def test_flags_keep_the_process_s_denormals():
    compiled(chain_schedule(10, 1.0))(x)
    assert torch.tensor(1e-40) * 1.0 != 0
    for flag in ("-ffast-math", "-Ofast"):
        assert flag not in find(Options.make()).flags(
            __import__("tcompile.compiler.codegen.target", fromlist=["x"]).host_target()
        )
