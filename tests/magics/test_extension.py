"""The package's front door: public names, costs of importing, the command line."""

import os
import subprocess
import sys

import pytest

import tcompile
from tcompile.cli import main


def python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **env}
    )


@pytest.mark.parametrize("name", tcompile.__all__)
def test_public_names_are_there(name):
    assert getattr(tcompile, name) is not None and name in dir(tcompile)


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'complie'"):
        tcompile.complie  # noqa: B018


@pytest.mark.slow
def test_import_costs_little_and_needs_no_jupyter():
    code = """
import sys, time
import torch
t0 = time.process_time(); import tcompile; t1 = time.process_time()
tcompile.compile; tcompile.config; tcompile.set_logs
bad = [m for m in sys.modules if m.split(".")[0] in ("IPython", "ipywidgets", "plotly", "jupyterlab") or m.startswith(("torch._dynamo", "torch._inductor"))]
assert not bad, bad
print(t1 - t0)
"""
    run = python(code)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 0.3


def test_load_ext_costs_little():
    code = """
import sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
t0 = time.process_time()
shell.run_line_magic("load_ext", "tcompile")
t1 = time.process_time()
assert shell.find_cell_magic("tcompile") and not [m for m in ("torch", "plotly", "ipywidgets") if m in sys.modules]
shell.run_line_magic("unload_ext", "tcompile")
assert shell.find_cell_magic("tcompile") is None
print(t1 - t0)
"""
    run = python(code)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 0.5


def test_labextension_path():
    assert tcompile._jupyter_labextension_paths() == [{"src": "labextension", "dest": "tcompile-lab"}]


def test_a_report_draws_itself_without_the_extension_loaded():
    code = """
import sys, tcompile
r = tcompile.CompileReport(title="t")
assert "IPython" not in sys.modules
bundle = r._repr_mimebundle_()
assert set(bundle) == {"text/plain", "text/html", "application/vnd.tcompile.report.v1+json"}, bundle
"""
    run = python(code)
    assert run.returncode == 0, run.stderr


def cli(*args, **env):
    return subprocess.run(
        [sys.executable, "-m", "tcompile", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
    )


def test_a_reader_that_goes_is_no_error():
    """`python -m tcompile lab list | head -1`"""
    command = [sys.executable, "-m", "tcompile", "lab", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert "Error" not in said and process.returncode in (0, 1), said


@pytest.mark.slow
def test_command_line(tmp_path, monkeypatch, capsys):
    env = {"TCOMPILE_CACHE_DIR": str(tmp_path / "cache")}
    info = cli("info", **env)
    assert info.returncode == 0 and "torch" in info.stdout and "disk cache" in info.stdout
    doctor = cli("doctor", **env)
    assert "C++ compiler" in doctor.stdout and "compiling" in doctor.stdout, doctor.stderr
    assert doctor.returncode == 0, doctor.stdout
    monkeypatch.setitem(tcompile.config._values, "cache_dir", env["TCOMPILE_CACHE_DIR"])  # (the rest: in this process)
    assert main(["cache"]) == 0 and "0 kernels" not in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0 and "deleted" in capsys.readouterr().out
    assert main(["cache"]) == 0 and "0 kernels" in capsys.readouterr().out
    assert main([]) == 2
    with pytest.raises(SystemExit) as end:
        main(["nonsense"])
    assert end.value.code == 2


def test_doctor_takes_the_compiler_that_kernels_are_compiled_with(monkeypatch):
    from tcompile import doctor

    monkeypatch.setenv("CXX", "env g++")
    assert doctor._cxx()[0] and doctor._cxx()[1].split(",")[0].endswith("env g++")


@pytest.mark.slow
def test_doctor_names_what_is_missing(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    run = cli("doctor", TCOMPILE_CXX="no-such-compiler", TCOMPILE_CACHE_DIR=str(blocked / "below"))
    assert run.returncode == 1
    assert (
        "BAD C++ compiler: no C++ compiler: the option cxx='no-such-compiler' names no program" in run.stdout
        and "TCOMPILE_CXX" in run.stdout
    )
    assert "BAD disk cache" in run.stdout and "TCOMPILE_CACHE_DIR" in run.stdout


def test_the_first_compiled_cell_does_not_import_the_compiler():
    code = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext tcompile").raise_error()
assert "torch" not in sys.modules
shell.run_cell("import torch\\nx = torch.ones(8)").raise_error()
before = set(sys.modules)
shell.run_cell("%%tcompile time=off\\ny = (x + 1).relu() * 2").raise_error()
new = [m for m in sys.modules if m.startswith("tcompile.") and m not in before]
assert len(new) < 12, new
"""
    run = python(code)
    assert run.returncode == 0, run.stderr
