"""What is refused: the message names the argument, what was expected and what came."""

from __future__ import annotations

import pytest
import torch

import tcompile
from tcompile.compiler import events, marks
from tcompile.compiler.errors import OptionError


def double(x):
    return x * 2


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("recompile_limit", 0, "a whole number, at least 1, got 0"),
        ("recompile_limit", "-1", "a whole number, at least 1, got '-1'"),
        ("recompile_limit", "many", "a whole number, at least 1, got 'many'"),
        ("recompile_limit", True, "a whole number, at least 1, for example 8; got True"),
        ("activation_memory_budget", 1.5, "a number from 0 to 1, got 1.5"),
        ("activation_memory_budget", float("nan"), "a number from 0 to 1, got nan"),
        ("autotune_seconds", -1, "a number, at least 0, got -1"),
        ("threads", -2, "a whole number, at least 0, got -2"),
        ("max_fusion_size", 0, "a whole number, at least 1, got 0"),
        ("simd", "avx", "one of 'auto', 'avx512'"),
        ("disable_fuson", True, "Did you mean 'disable_fusion'?"),
    ],
)
def test_values_of_options(name, value, words):
    for write in (
        lambda: tcompile.compile(double, options={name: value}),
        lambda: setattr(tcompile.config, name, value),
    ):
        with pytest.raises(OptionError) as e:
            write()
        assert repr(name) in str(e.value) and words in str(e.value)


def test_numbers_as_text_and_whole_numbers_for_fractions_are_taken():
    with tcompile.config.patch(recompile_limit="3", autotune_seconds=1):
        assert tcompile.config.recompile_limit == 3 and tcompile.config.autotune_seconds == 1.0


def test_an_unknown_stage_is_refused_when_it_is_named():
    with pytest.raises(OptionError, match="no stage 'fuson'.*Did you mean 'fusion'"):
        tcompile.stages.replace("fuson", double)
    with pytest.raises(OptionError, match="replaced by a function, got int"):
        tcompile.stages.replace("fusion", 3)


def test_an_unknown_backend_lists_each_name_once():
    with pytest.raises(OptionError) as e:
        tcompile.compile(double, backend="inducto")
    names = str(e.value).split("Backends: ")[1].split(", ")
    assert "Did you mean 'inductor'?" in str(e.value) and len(names) == len(set(names))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_is_refused_in_words():
    with pytest.raises(
        TypeError, match="takes Python code, got a RecursiveScriptModule.*compile the module that it was made of"
    ):
        tcompile.compile(torch.jit.script(torch.nn.ReLU()))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: tcompile.compile(double, mode=["default"]), "mode is one of 'default'"),
        (lambda x: tcompile.compile(double, backend=["eager"]), "backend is a name or a function"),
        (lambda x: tcompile.compile(double, options={3: True}), "unknown option 3"),
        (lambda x: tcompile.compile(double, full_graph=True), "Did you mean 'fullgraph'"),
        (lambda x: tcompile.compile(double, disable=1), "disable is True or False, got 1"),
        (lambda x: tcompile.enable(3).__enter__(), "enable.. takes keywords .mode=.*got 3"),
        (
            lambda x: tcompile.mark_dynamic(x, True),
            "mark_dynamic: dim is an int from -2 to 1, or a tuple of such, for this tensor, got True",
        ),
        (lambda x: tcompile.mark_dynamic(x, None), "mark_dynamic: dim is an int .* got None"),
        (lambda x: tcompile.mark_dynamic(x.sum(), 0), "which has no dimensions"),
        (lambda x: tcompile.mark_static(3), "mark_static takes a tensor, got int"),
        (lambda x: tcompile.record(title=3).__enter__(), "record: title is a string, got int"),
        (lambda x: tcompile.register_backend(double, name=3), "name is a string, got 3"),
        (lambda x: tcompile.register_backend(double, name="eager"), "'eager' is a backend of tcompile itself"),
        (lambda x: tcompile.set_logs(all="graph"), "all is True, False or a logging level, got 'graph'"),
        (lambda x: tcompile.export(double, (x,), kwargs=[3]), "keywords as a dict: .*got list"),
        (lambda x: tcompile.export(double, (x,), backend="no"), "unknown backend 'no'"),
        (lambda x: tcompile.load_exported(3), "takes the path of a file, got int"),
        (lambda x: tcompile.CompileReport.from_json(3), "report: not JSON"),
    ],
)
def test_what_is_no_argument_is_named(call, words):
    with pytest.raises((OptionError, TypeError, ValueError, IndexError), match=words):
        call(torch.ones(3, 2))


def test_disabled_compilation_gives_the_function_back():
    assert tcompile.compile(double, disable=True) is double
    assert tcompile.compile(disable=True)(double) is double


def test_dimensions_are_marked_from_the_front():
    x = torch.ones(3, 2, 4)
    tcompile.mark_dynamic(x, [0, -1])
    tcompile.maybe_mark_dynamic(x, 1)
    tcompile.mark_static(x)
    assert marks.dynamic_dims(x) == marks.static_dims(x) == {0, 1, 2}


def test_a_class_is_decorated():
    @tcompile.compile(fullgraph=True)
    class Layer(torch.nn.Module):
        def __init__(self, n):
            super().__init__()
            self.linear = torch.nn.Linear(n, n)

        def forward(self, x):
            return self.linear(x).relu()

    class More(Layer):
        def forward(self, x):
            return super().forward(x) + 1

    @tcompile.compile
    class Shift:
        def __call__(self, x, by=1):
            return x + by

    x = torch.randn(2, 3)
    with tcompile.record() as recorded:
        for layer in (Layer(3), More(3)):
            assert isinstance(layer, Layer)
            torch.testing.assert_close(layer(x), layer.forward(x))
            layer.register_forward_hook(lambda module, args, out: out * 2)
            torch.testing.assert_close(layer(x), layer.forward(x) * 2)
        torch.testing.assert_close(Shift()(x, by=2), x + 2)
    assert len(recorded.report().graphs) >= 3
    with pytest.raises(TypeError, match="compile an instance or a method"):
        tcompile.compile(type("Plain", (), {}))


@pytest.mark.parametrize("backend", ["tcompile", "eager", lambda gm, inputs: gm])
def test_a_parameter_may_be_called_self(backend):
    fallbacks = []
    x = torch.ones(3)
    with events.listen(lambda e: fallbacks.append(e) if e.kind == "fallback" else None):
        out = tcompile.compile(lambda self, other: self + other, backend=backend)(x, x)
    torch.testing.assert_close(out, x + x)
    assert not fallbacks
