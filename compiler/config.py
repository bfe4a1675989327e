"""Every option, mode and environment variable of tcompile, in one table.

`OPTIONS` says of each option its type, default, meaning and environment variable. `config.<name>` reads and sets the
process-wide default (`tcompile.config.recompile_limit = 16`); an `Options` object is one call's view of them: the
defaults, then the mode, then what the caller gave. Names follow torch._dynamo.config and torch._inductor.config where
those have one.
"""

from __future__ import annotations

import difflib
import itertools
import math
import os
import sys
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Hashable, Iterator

from .errors import OptionError

__all__ = ["MODES", "OPTIONS", "Option", "Options", "defaults", "options_number", "patch"]


@dataclass(frozen=True)
class Option:
    name: str
    type: Any  # a type, a tuple of allowed values, or FUNCTION
    default: Any
    doc: str
    env: str | None = None
    least: float = -math.inf  # of a number, inclusive
    most: float = math.inf


def _o(
    name: str,
    type_: Any,
    default: Any,
    doc: str,
    env: str | None = None,
    *,
    least: float = -math.inf,
    most: float = math.inf,
) -> Option:
    return Option(name, type_, default, doc, env, least, most)


FUNCTION = "function"  # the type of an option that takes a function, or None

OPTIONS: dict[str, Option] = {
    o.name: o
    for o in (
        _o(
            "recompile_limit",
            int,
            8,
            "most entries of a function; past that it runs eager, and the report says so",
            "TCOMPILE_RECOMPILE_LIMIT",
            least=1,
        ),
        _o(
            "cell_instruction_limit",
            int,
            500_000,
            "most bytecode instructions that capture interprets in one run of a cell; the rest of the cell then runs as"
            " plain Python, and is compiled in the next run; 0: no limit",
            "TCOMPILE_CELL_INSTRUCTION_LIMIT",
            least=0,
        ),
        _o(
            "cell_kernel_limit",
            int,
            400,
            "most kernels that one run of a cell generates; the rest of the cell then runs as plain Python, and is"
            " compiled in the next run; 0: no limit",
            "TCOMPILE_CELL_KERNEL_LIMIT",
            least=0,
        ),
        _o(
            "switch_off_slower",
            bool,
            True,
            "code that compiling makes slower runs as plain Python: entries of library code in a cell (in later"
            " sessions too), and cells that run again; never under deterministic algorithms",
            "TCOMPILE_SWITCH_OFF_SLOWER",
        ),
        _o(
            "suppress_errors",
            bool,
            True,
            "an internal error gives the eager result and a note; False raises it (tests)",
            "TCOMPILE_SUPPRESS_ERRORS",
        ),
        _o("verify", bool, False, "check every stage's output against the stage's own rules", "TCOMPILE_VERIFY"),
        _o("verbose", bool, False, "log an internal error with the compiler's own traceback", "TCOMPILE_VERBOSE"),
        _o("debug", bool, False, "write every stage's output below debug_dir", "TCOMPILE_DEBUG"),
        _o("debug_dir", str, "tcompile_debug", "where debug writes", "TCOMPILE_DEBUG_DIR"),
        _o("print_guards", bool, False, "log the guards of each new entry, as TCOMPILE_LOGS=guards does", None),
        _o("cache", bool, True, "use the disk cache of compiled kernels", "TCOMPILE_CACHE"),
        _o("cache_dir", str, "", "folder of the disk cache; empty: the user's cache folder", "TCOMPILE_CACHE_DIR"),
        _o(
            "cache_size_limit_mb",
            int,
            1024,
            "most MB of the disk cache; past that the oldest files are dropped",
            None,
            least=0,
        ),
        _o("cxx", str, "", "C++ compiler; empty: $CXX, then g++, then clang++", "TCOMPILE_CXX"),
        _o("threads", int, 0, "threads of a CPU kernel; 0: torch.get_num_threads()", "TCOMPILE_THREADS", least=0),
        _o("simd", ("auto", "avx512", "avx2", "none"), "auto", "vector instructions of CPU kernels", "TCOMPILE_SIMD"),
        _o(
            "cpu_products",
            ("auto", "generated", "library"),
            "auto",
            "float32 matrix products on the CPU: generated code or torch's library; "
            "auto: what is faster on this processor",
            "TCOMPILE_CPU_PRODUCTS",
        ),
        _o(
            "gpu_products",
            ("auto", "generated", "library"),
            "auto",
            "matrix products and depthwise convolutions of 16 bits on a GPU: generated code with what follows it, or "
            "torch's library; auto: depthwise convolutions are generated, and matrix products of fewer bits or where "
            "max-autotune measured so",
            "TCOMPILE_GPU_PRODUCTS",
        ),
        _o(
            "attention",
            ("auto", "generated", "library"),
            "auto",
            "attention on a GPU: a generated kernel or the library's; auto: whichever is expected to be faster, "
            "including its launch",
            "TCOMPILE_ATTENTION",
        ),
        _o(
            "early_launch",
            bool,
            True,
            "on Hopper GPUs and later, a generated kernel is launched while the one before it ends, and waits for it"
            " itself",
            "TCOMPILE_EARLY_LAUNCH",
        ),
        _o(
            "compile_workers",
            int,
            0,
            "processes that compile kernels; 0: one per core",
            "TCOMPILE_COMPILE_WORKERS",
            least=0,
        ),
        _o("disable_fusion", bool, False, "one kernel per operator", "TCOMPILE_DISABLE_FUSION"),
        _o("max_fusion_size", int, 4096, "most operators in one kernel", None, least=1),
        _o(
            "force_fuse",
            str,
            "",
            'pairs of operators to put into one kernel, where that is possible: "sum_1:mul_2, exp:sum_1", names as in a'
            " report's graphs",
            None,
        ),
        _o(
            "force_split",
            str,
            "",
            "pairs of operators to keep in kernels of their own, written as for force_fuse",
            None,
        ),
        _o("epilogue_fusion", bool, True, "fuse the operators that follow a matrix product into one kernel", None),
        _o("pattern_matcher", bool, True, "rewrite known patterns (attention, ...) to library kernels", None),
        _o("disabled_passes", str, "", "names of graph passes to leave out, separated by commas", None),
        _o("emulate_precision", bool, False, "round after every operator as eager does", None),
        _o(
            "fallback_random",
            bool,
            True,
            "random operators draw the numbers that eager draws: by its kernels, or on a GPU in generated kernels",
            None,
        ),
        _o(
            "fast_dropout",
            bool,
            False,
            "dropout on a GPU draws bits of its own: eager's distribution, not its numbers",
            None,
        ),
        _o(
            "whole_steps",
            bool,
            True,
            "backward passes and optimizer steps inside of a compiled function become part of its graph; False: they"
            " break it",
            None,
        ),
        _o(
            "capture_scalar_outputs",
            bool,
            True,
            "under fullgraph, sizes and Python functions may need numbers from tensors (x.item(), x.tolist()): the"
            " graph is split there",
            None,
        ),
        _o(
            "capture_dynamic_output_shape_ops",
            bool,
            True,
            "under fullgraph, the size of an operator's result may depend on values (nonzero, unique, masks as "
            "indices): the graph is split there",
            None,
        ),
        _o(
            "error_on_graph_break",
            bool,
            False,
            "a graph break is an error, unless tcompile.error_on_graph_break(...) in the code says otherwise; it does"
            " not ask for one graph, as fullgraph does",
            "TCOMPILE_ERROR_ON_GRAPH_BREAK",
        ),
        _o(
            "guard_filter_fn",
            FUNCTION,
            None,
            "a function that takes a list of guards and returns a list of bools: which of them stay, as in stock. A"
            " guard has name, has_value, value, guard_type, derived_guard_types, is_global and orig_guard. The report"
            " shows what goes. Guards that kernels need to read memory always stay",
            None,
        ),
        _o(
            "activation_memory_budget",
            float,
            1.0,
            "how much may be kept from forward to backward, as a share of what is kept by default: below 1, expensive"
            " values are computed again, too; 0 keeps only inputs and random numbers",
            None,
            least=0,
            most=1,
        ),
        _o(
            "chunked_loss_mb",
            int,
            512,
            "a linear layer that only a cross entropy reads is computed in chunks of rows, with its gradients, where"
            " its result takes at least this many MB in float32; 0: never",
            None,
            least=0,
        ),
        _o("freezing", bool, False, "inference: treat parameters as constants", None),
        _o("max_autotune", bool, False, "search kernel variants by measuring them", None),
        _o("autotune_seconds", float, 2.0, "most seconds of search per kernel", "TCOMPILE_AUTOTUNE_SECONDS", least=0),
        _o("cudagraphs", bool, False, "replay the graph's kernels as one CUDA graph (GPU only)", None),
        _o(
            "output_pool_mb",
            int,
            128,
            "most MB of large results (16 MB and more) whose memory later calls may use again; 0: off",
            None,
            least=0,
        ),
    )
}

# What each mode sets. On the CPU there are no CUDA graphs: reduce-overhead is default there, and max-autotune searches.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"max_autotune": True, "cudagraphs": True, "fast_dropout": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True, "fast_dropout": True},
}


def check(name: str, value: Any) -> Any:
    """`value` as option `name` wants it, or an OptionError that says what to write."""
    opt = OPTIONS.get(name) if isinstance(name, str) else None
    if opt is None:
        near = difflib.get_close_matches(str(name), OPTIONS, 1, 0.5)
        hint = f" Did you mean {near[0]!r}?" if near else f" Known options: {', '.join(OPTIONS)}."
        raise OptionError(f"unknown option {name!r}.{hint}")
    if isinstance(opt.type, tuple):
        if value not in opt.type:
            raise OptionError(f"option {name!r} is one of {', '.join(map(repr, opt.type))}, got {value!r}")
        return value
    if opt.type is FUNCTION:
        if value is not None and not (callable(value) and isinstance(value, Hashable)):
            raise OptionError(
                f"option {name!r} is a function or None, got {value!r}"
                + (", which has no hash" if callable(value) else "")
                + f"; give it to tcompile.compile(options=...) or tcompile.config.{name}"
            )
        return value
    if opt.type is bool and isinstance(value, str) and value.lower() in ("0", "1", "true", "false", "on", "off"):
        return value.lower() in ("1", "true", "on")
    given = value
    if opt.type in (int, float) and isinstance(value, str):
        try:
            value = opt.type(value)
        except ValueError:
            raise OptionError(f"option {name!r} is {_article(opt)}, got {given!r}") from None
    if opt.type is float and type(value) is int:
        value = float(value)
    if type(value) is not opt.type:
        raise OptionError(f"option {name!r} is {_article(opt)}, for example {opt.default!r}; got {given!r}")
    if opt.type in (int, float) and not opt.least <= value <= opt.most:
        raise OptionError(f"option {name!r} is {_article(opt)}, got {given!r}")
    return value


def _article(opt: Option) -> str:
    words = {"int": "a whole number", "float": "a number", "bool": "True or False", "str": "a string"}[
        opt.type.__name__
    ]
    if opt.most < math.inf:
        return f"{words} from {opt.least:g} to {opt.most:g}"
    return f"{words}, at least {opt.least:g}" if opt.least > -math.inf else words


def _initial() -> dict[str, Any]:
    out = {}
    for option in OPTIONS.values():
        raw = os.environ.get(option.env) if option.env else None
        out[option.name] = option.default if raw is None else check(option.name, raw)
    return out


_values: dict[str, Any] = _initial()


def defaults() -> dict[str, Any]:
    """The process-wide defaults at this moment."""
    return dict(_values)


@contextmanager
def patch(**changes: Any) -> Iterator[None]:
    """Set defaults for the length of a with-block: `with config.patch(disable_fusion=True): ...`"""
    new = {key: check(key, change) for key, change in changes.items()}
    old = {k: _values[k] for k in new}
    _values.update(new)
    try:
        yield
    finally:
        _values.update(old)


@dataclass
class Options:
    """The options of one compile() call, one cell or one explain(). Immutable by convention; `get(name)` gives an
    option with mode and caller's settings applied over the process-wide defaults."""

    mode: str = "default"
    backend: Any = "tcompile"
    fullgraph: bool = False
    dynamic: bool | None = None
    given: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        mode: str | None = None,
        backend: Any = "tcompile",
        fullgraph: bool = False,
        dynamic: bool | None = None,
        options: dict[str, Any] | None = None,
    ) -> "Options":
        """Check everything a user can write; errors name the argument and what to write."""
        if mode is not None and options is not None:
            raise OptionError(
                "mode= and options= can't be given together: put what you need into options= alone "
                "(max-autotune is options={'max_autotune': True})"
            )
        if mode is not None and not (isinstance(mode, str) and mode in MODES):
            near = difflib.get_close_matches(str(mode), MODES, 1, 0.4)
            raise OptionError(
                f"mode is one of {', '.join(map(repr, MODES))}, got {mode!r}."
                + (f" Did you mean {near[0]!r}?" if near else "")
            )
        if not isinstance(fullgraph, bool):
            raise OptionError(f"fullgraph is True or False, got {fullgraph!r}")
        if dynamic is not None and not isinstance(dynamic, bool):
            raise OptionError(f"dynamic is None, True or False, got {dynamic!r}")
        if options is not None and not isinstance(options, dict):
            raise OptionError(f"options is a dict such as {{'max_autotune': True}}, got {type(options).__name__}")
        given = {key: check(key, value) for key, value in (options or {}).items()}
        if backend == "cudagraphs":  # this compiler's kernels, replayed
            backend, given = "tcompile", {"cudagraphs": True, **given}
        return cls(mode or "default", backend, fullgraph, dynamic, given)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self.given:
            return self.given[name]
        m = MODES[self.mode]
        if name in m:
            return m[name]
        return _values.get(name, default)

    def values(self) -> tuple:
        """What all options are now, in the order of the table."""
        return tuple(map(self.get, OPTIONS))

    def of_code(self) -> tuple:
        """Those that generated code may depend on: no folders, and no functions of the program's."""
        names = (
            option.name
            for option in OPTIONS.values()
            if option.type is not FUNCTION and not option.name.endswith("_dir")
        )
        return tuple(map(self.get, names))


_numbers = itertools.count(1)
_number_of: dict[tuple, int] = {}
_number_of_object: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _object_number(value: Any) -> int | None:
    """A number of this object's own, without keeping it alive; None where that cannot be."""
    try:
        return _number_of_object.setdefault(value, next(_numbers))
    except TypeError:  # no weak references to it, or no hash
        return None


def options_number(opts: Options, to_backend: bool, replaced: tuple) -> int:
    """A number for a set of options: what library code was compiled to under it serves all engines of that set, and no
    others. `to_backend`: whether a backend gets keywords of its own; `replaced`: what stands for stages.
    """
    named = isinstance(opts.backend, str)
    backend = opts.backend if named else None if to_backend else _object_number(opts.backend)
    choose = opts.given.get("guard_filter_fn")
    filtered = 0 if choose is None else _object_number(choose)
    if backend is None or filtered is None:
        return next(_numbers)
    given = tuple(sorted((name, repr(value)) for name, value in opts.given.items()))
    key = (opts.mode, backend, opts.fullgraph, opts.dynamic, given, filtered, replaced)
    return _number_of.setdefault(key, next(_numbers))


class _Config(ModuleType):
    """Makes `config.name` read and write the defaults, with checks."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _values[name]
        except KeyError:
            raise AttributeError(f"tcompile.config has no option {name!r}; options: {', '.join(OPTIONS)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OPTIONS:
            _values[name] = check(name, value)
        elif name.startswith("__") or name in globals():
            super().__setattr__(name, value)
        else:
            check(name, value)  # raises, with a suggestion

    def __dir__(self) -> list[str]:
        return sorted({*globals(), *OPTIONS})


sys.modules[__name__].__class__ = _Config
