import pytest
from tcompile.compiler.errors import OptionError
from tcompile.kernel_magics.options import CellOptions, comment_options, parse


@pytest.mark.parametrize("line", ["mode=max-autotune", "--mode max-autotune", "--mode=max-autotune"])
def test_one_option_three_spellings(line):
    assert parse(line).options.mode == "max-autotune"


def test_flags_and_values():
    o = parse(
        "--fullgraph --dynamic -o r compare=eager,torch repeat=3 time=500ms --disable-fusion recompile_limit=4 --quiet"
    )
    assert o.options.fullgraph and o.options.dynamic is True and o.out == "r" and o.compare == ("eager", "torch")
    assert o.repeat == 3 and o.time == 0.5 and o.quiet
    assert o.options.get("disable_fusion") is True and o.options.get("recompile_limit") == 4


@pytest.mark.parametrize(
    "text, seconds", [("1s", 1.0), ("0.25", 0.25), ("500ms", 0.5), ("2m", 120.0), ("off", None), (".5s", 0.5)]
)
def test_time(text, seconds):
    assert parse(f"time={text}").time == seconds


def test_defaults_and_negation():
    o = parse("")
    assert o == CellOptions() and o.time == 1.0 and o.compare == ("eager",)
    assert parse("--no-pattern-matcher").options.get("pattern_matcher") is False
    assert parse("dynamic=False").options.dynamic is False and parse("dynamic=None").options.dynamic is None
    assert parse("compare=torch").compare == ("eager", "torch")


def test_base_is_kept_unless_overridden():
    base = parse("mode=max-autotune time=off --fullgraph")
    o = parse("mode=default", None, base)
    assert o.options.mode == "default" and o.options.fullgraph and o.time is None
    assert base.options.mode == "max-autotune"


@pytest.mark.parametrize(
    "line, words",
    [
        ("mod=default", ["unknown option 'mod'", "mode"]),
        ("--fulgraph", ["fullgraph"]),
        ("mode=fast", ["mode is one of", "'max-autotune'"]),
        ("max-autotune", ["mode=max-autotune"]),
        ("fullgraph", ["--fullgraph"]),
        ("--mode", ["needs a value"]),
        ("time=soon", ["time=1s"]),
        ("repeat=0", ["repeat="]),
        ("repeat=-1", ["repeat="]),
        ("compare=inductor", ["eager and torch"]),
        ("-o 1x", ["variable name"]),
        ("backend=nonsense_backend", ["unknown backend"]),
        ("recompile_limit=many", ["whole number"]),
        ("dynamic=maybe", ["dynamic is True or False"]),
        ("mode= default", ["needs a value"]),
        ("backend='", ["cannot read"]),
        ("--zzz", ["unknown option"]),
    ],
)
def test_errors_name_the_argument_and_say_what_to_write(line, words):
    with pytest.raises(OptionError) as e:
        parse(line)
    for w in words:
        assert w in str(e.value)


def test_backend_from_the_namespace():
    def mine(gm, example_inputs):
        return gm.forward

    assert parse("backend=mine", {"mine": mine}).options.backend is mine
    assert parse("backend=eager", {"eager": mine}).options.backend == "eager"


def test_comment_form():
    assert comment_options("# tcompile: mode=default\nx") == "mode=default"
    assert comment_options("# note\n#tcompile: --fullgraph\nx") == "--fullgraph"
    assert comment_options("x\n# tcompile: mode=default") is None and comment_options("") is None
