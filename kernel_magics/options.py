"""The options of a cell: `mode=max-autotune --fullgraph -o r`, as `%%tcompile`, `%tcompile on` and `# tcompile:` take
them.

`key=value`, `--key value`, `--key=value` and `--flag` are the same options; dashes and underscores in names are the
same. Everything is checked before the cell runs, and every error names the argument and says what to write.
"""

from __future__ import annotations

import difflib
import keyword
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import Any, Iterator, Mapping

from ..compiler import config
from ..compiler.errors import OptionError
from .precision import AUTOCAST
from .ranks.plan import HELP as RANKS_HELP, RanksPlan, parse_ranks

__all__ = ["CellOptions", "parse", "catalogue", "comment_options", "option_names", "values_of", "ENGINES"]

ENGINES = ("eager", "torch")
_OWN = {
    "mode": (
        "default compiles fast, reduce-overhead replays CUDA graphs, max-autotune searches kernels by measuring (and"
        " replays, except max-autotune-no-cudagraphs)"
    ),
    "backend": "tcompile, eager, a registered backend, or the name of a function backend(gm, example_inputs)",
    "fullgraph": "one graph, or an error naming the line",
    "dynamic": "sizes are symbols from the start (False: never)",
    "compare": "engines to time beside tcompile: eager,torch",
    "repeat": "times to run the whole cell again for timing (its effects happen again)",
    "time": "seconds of timing after the cell: 1s, 500ms, off",
    "autocast": "bfloat16: the cell runs under torch.autocast, with products in 16 bits and sums in 32",
    "check": "compare every node of the graphs with eager and with float64, after the cell",
    "ranks": RANKS_HELP,
    "o": "-o name: a variable that gets the CompileReport",
    "quiet": "show no report",
}
_FLAGS = {"fullgraph", "dynamic", "quiet", "check"}


@dataclass
class CellOptions:
    """What one cell asked for. `options` goes to the compiler, the rest is the notebook's."""

    options: config.Options = field(default_factory=config.Options)
    compare: tuple[str, ...] = ("eager",)
    repeat: int = 0
    time: float | None = 1.0  # seconds; None: off
    out: str | None = None
    quiet: bool = False
    check: bool = False
    autocast: str = ""  # the name of a dtype: "bfloat16"; empty: as the cell says itself
    ranks: RanksPlan | None = None  # None: this process runs the cell
    given: dict[str, Any] = field(default_factory=dict)  # as written, for the report

    def words(self) -> dict[str, Any]:
        """The options as the report shows them."""
        return {"mode": self.options.mode, **self.given}


def option_names() -> list[str]:
    return [*_OWN, *config.OPTIONS]


def catalogue() -> list[dict[str, Any]]:
    """Every option with its values and its help, for completion and hover help outside of the kernel."""
    return [{"name": n, "help": _help(n), "values": values_of(n), "flag": _is_flag(n)} for n in option_names()]


def values_of(name: str) -> list[str]:
    """Values to offer for completion."""
    if name == "mode":
        return list(config.MODES)
    if name == "backend":
        from ..compiler.backends import list_backends

        return list(dict.fromkeys([*list_backends(), "inductor"]))  # stock's own, in the same views
    if name == "compare":
        return ["eager", "torch", "eager,torch"]
    if name == "time":
        return ["1s", "5s", "off"]
    if name == "autocast":
        return list(AUTOCAST)
    option = config.OPTIONS.get(name)
    if name in _FLAGS or option is not None and option.type is bool:
        return ["True", "False"]
    return list(option.type) if option is not None and isinstance(option.type, tuple) else []


def parse(
    line: str,
    namespace: Mapping[str, Any] | None = None,
    base: CellOptions | None = None,
    on_rank: bool = False,
) -> CellOptions:
    """Read a line of options over those of `base`. `namespace` is where a backend function is looked up. `on_rank`: in
    a process that `ranks=` started. Raises OptionError."""
    raw: dict[str, Any] = dict(base.given) if base is not None else {}
    given = dict(_pairs(line))
    raw.update(given)
    cell = replace(base, given=raw) if base is not None else CellOptions(given=raw)
    mode, backend, fullgraph, dynamic = "default", "tcompile", False, None
    settings: dict[str, Any] = {}
    for name, value in raw.items():
        if name == "mode":
            mode = value
        elif name == "backend":
            backend = _backend(value, namespace or {})
        elif name == "fullgraph":
            fullgraph = _bool(name, value)
        elif name == "dynamic":
            dynamic = None if value in ("None", "auto") else _bool(name, value)
        elif name == "compare":
            cell.compare = _engines(value)
        elif name == "repeat":
            cell.repeat = _repeat(value)
        elif name == "time":
            cell.time = _seconds(value)
        elif name == "ranks":
            cell.ranks = None if on_rank else parse_ranks(value)
        elif name == "o":
            if not str(value).isidentifier() or keyword.iskeyword(str(value)):
                raise OptionError(f"-o takes a variable name, such as -o r; got {value!r}")
            cell.out = value
        elif name == "quiet":
            cell.quiet = _bool(name, value)
        elif name == "check":
            cell.check = _bool(name, value)
        elif name == "autocast":
            if value not in AUTOCAST:
                raise OptionError(f"autocast= takes {' or '.join(AUTOCAST)}; got {value!r}")
            settings[name] = cell.autocast = value  # entries of its own, as for the compiler's options
        else:
            settings[name] = config.check(name, value)
    measured = [name for name in ("compare", "repeat", "time", "check") if name in given]
    if cell.ranks is not None and measured:
        raise OptionError(
            f"{measured[0]}= is not taken with ranks=: ranks don't repeat calls, since they would have to agree on"
            " how often. The report tells what each rank did in the cell"
        )
    if settings.keys() & {"force_fuse", "force_split"}:
        from ..compiler.fusion.forced_fusion import ForcedFusion

        ForcedFusion.of(settings)  # a mistake is said before the cell runs
    cell.options = config.Options.make(mode=mode, backend=backend, fullgraph=fullgraph, dynamic=dynamic)
    cell.options.given.update(settings)
    return cell


def _pairs(line: str) -> Iterator[tuple[str, Any]]:
    try:
        words = shlex.split(line)
    except ValueError as e:
        raise OptionError(f"cannot read the options {line!r}: {e}") from None
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if word.startswith("-") and word.strip("-"):
            name, eq, value = word.lstrip("-").partition("=")
            name, negated = _known(name.replace("-", "_"))
            if eq:
                yield name, value
            elif _is_flag(name):
                yield name, "False" if negated else "True"
            elif i < len(words):
                yield name, words[i]
                i += 1
            else:
                raise OptionError(f"option --{name.replace('_', '-')} needs a value: {_help(name)}")
        elif "=" in word:
            name, _, value = word.partition("=")
            name, _ = _known(name.strip().replace("-", "_"))
            if not value:
                raise OptionError(f"option {name}= needs a value without spaces around the equals sign: {_help(name)}")
            yield name, value
        else:
            raise OptionError(f"cannot read {word!r}: options are written {_example(word)}")


def _known(name: str) -> tuple[str, bool]:
    names = option_names()
    if name in names:
        return name, False
    if name.startswith("no_") and name[3:] in names and _is_flag(name[3:]):
        return name[3:], True
    near = difflib.get_close_matches(name, [n for n in names if n != "o"], 2, 0.5)
    hint = (
        f" Did you mean {' or '.join(near)}?" if near else f" Options: {', '.join(_OWN)}, and those of tcompile.config."
    )
    raise OptionError(f"unknown option {name!r}.{hint}")


def _is_flag(name: str) -> bool:
    option = config.OPTIONS.get(name)
    return name in _FLAGS or option is not None and option.type is bool


def _help(name: str) -> str:
    if name in _OWN:
        return _OWN[name]
    option = config.OPTIONS[name]
    return option.doc


def _example(word: str) -> str:
    if word in config.MODES:
        return f"mode={word}"
    near = difflib.get_close_matches(word.replace("-", "_"), option_names(), 1, 0.75)
    if near:
        return f"--{near[0]}" if _is_flag(near[0]) else f"{near[0]}=<{_help(near[0])}>"
    return "key=value or --flag"


def _bool(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text in ("true", "1", "on", "yes"):
        return True
    if text in ("false", "0", "off", "no"):
        return False
    raise OptionError(f"{name} is True or False, got {value!r}")


def _backend(value: str, namespace: Mapping[str, Any]) -> Any:
    from ..compiler.backends import list_backends, resolve

    if value not in list_backends() and callable(namespace.get(value)):
        return namespace[value]
    return resolve(value)


def _engines(value: str) -> tuple[str, ...]:
    names = [v.strip() for v in value.split(",") if v.strip()]
    for n in names:
        if n not in (*ENGINES, "tcompile"):
            near = difflib.get_close_matches(n, ENGINES, 1, 0.4)
            raise OptionError(
                f"compare= takes engines among eager and torch, separated by commas; got {n!r}."
                + (f" Did you mean {near[0]!r}?" if near else "")
            )
    return tuple(e for e in ENGINES if e in names or e == "eager")


def _repeat(value: str) -> int:
    if not str(value).isdecimal() or not 1 <= int(value) <= 1_000_000:
        raise OptionError(
            f"repeat= is how many times to run the whole cell again, a whole number from 1 up; got {value!r}"
        )
    return int(value)


def _seconds(value: str) -> float | None:
    text = str(value).strip().lower()
    if text in ("off", "0", "none", "false"):
        return None
    m = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min|m)?", text)
    if not m:
        raise OptionError(f"time= is seconds for timing, such as time=1s or time=500ms, or time=off; got {value!r}")
    return float(m.group(1)) * {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, None: 1.0}[m.group(2)]


_COMMENT = re.compile(r"^\s*#\s*tcompile:\s*(.*?)\s*$")


def comment_options(cell: str) -> str | None:
    """The options of a `# tcompile: ...` comment among the comments that begin a cell, or None."""
    for line in cell.splitlines():
        m = _COMMENT.match(line)
        if m:
            return m.group(1)
        if line.strip() and not line.lstrip().startswith("#"):
            return None
    return None
