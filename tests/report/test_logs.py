"""set_logs and TCOMPILE_LOGS."""

import logging
import subprocess
import sys

import pytest
import torch
from standin import state_compilation

from tcompile.compiler import events, logs
from tcompile.compiler.errors import OptionError


def f(x):
    return torch.sin(x) * x


@pytest.fixture(autouse=True)
def off():
    yield
    logs.set_logs()


@pytest.fixture
def heard(caplog):
    caplog.set_level(logging.DEBUG, "tcompile")
    logging.getLogger("tcompile").propagate = True
    return lambda: {r.name: r.getMessage() for r in caplog.records}


def test_each_log_says_its_part(heard):
    logs.set_logs(all=True)
    state_compilation(f, torch.ones(4), brk=True, recompile=True)
    text = heard()
    assert set(text) == {f"tcompile.{n}" for n in logs.LOGS}
    assert "sin: float32[4] = torch.sin(x)" in text["tcompile.graph"]
    assert (
        "instead: use torch.where" in text["tcompile.graph_breaks"]
        and "x.shape[0]: 5 → 4" in text["tcompile.recompiles"]
    )
    assert (
        "`x` is a float32 tensor on cpu of shape (4)" in text["tcompile.guards"]
        and "* 1.0 µs  tile=8" in text["tcompile.autotuning"]
    )
    assert "def entry" in text["tcompile.output_code"] and "aten.mm.default" in text["tcompile.schedule"]


def test_on_off_and_detail(heard):
    logs.set_logs(guards=True)
    state_compilation(f, torch.ones(4))
    assert set(heard()) == {"tcompile.guards"} and "[TENSOR" not in heard()["tcompile.guards"]
    logs.set_logs(guards=logging.DEBUG)
    state_compilation(f, torch.ones(4))
    assert "[TENSOR, checked]" in heard()["tcompile.guards"]
    logs.set_logs()
    assert not events._global


def test_unknown_names():
    with pytest.raises(OptionError, match="Did you mean 'guards'"):
        logs.set_logs(guard=True)
    with pytest.raises(OptionError, match="True, False or a logging level"):
        logs.set_logs(guards="yes")


def test_environment(heard):
    logs.from_environment("graph_breaks,+guards,-graph,grap")
    assert logs._on == {"graph_breaks": logging.INFO, "guards": logging.DEBUG}
    logs.from_environment("all,-output_code")
    assert set(logs._on) == set(logs.LOGS) - {"output_code"}


def test_environment_variable_prints_to_stderr_and_a_typing_error_stops_nothing():
    code = "import tcompile, logging; logging.getLogger('tcompile.graph').info('here'); print('done')"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**__import__("os").environ, "TCOMPILE_LOGS": "graph,gaurds"},
    )
    assert run.stdout == "done\n" and "here" in run.stderr and "Did you mean 'guards'" in run.stderr
