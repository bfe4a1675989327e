"""`%%tcompile` and `%tcompile`, the doors through which IPython reaches a session."""

from __future__ import annotations

import difflib
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from . import completion
from .completion import COMMANDS
from .engine import Engine
from .session import Session

__all__ = ["TCompileMagics", "load", "unload"]

HELP = """\
%%tcompile [options]                run the cell through the compiler and report under it
# tcompile: mode=max-autotune       the same, as a comment on top of the cell, which other tools ignore
%tcompile on [options]              every cell from now on; a cell's own options in its comment
%tcompile off | last | status       compile no cell, even with a comment; the last report again; the state
%tcompile cache [clear]             the compiled kernels on disk
%tcompile ranks [stop]              the processes of `%%tcompile ranks=N`, or their end
%tcompile reset                     forget everything compiled in this process
%tcompile help

options: key=value, --key value and --flag are the same
  mode=default | reduce-overhead | max-autotune | max-autotune-no-cudagraphs
  backend=tcompile | eager | <registered name> | <function backend(gm, example_inputs)>
  --fullgraph                       one graph, or an error that names the line
  --dynamic                         sizes are symbols from the start
  compare=eager,torch               engines to time beside tcompile (torch: stock torch.compile)
  time=1s | off                     seconds of timing after the cell      repeat=N   run the whole cell again, N times
  --check                           every node against eager and float64: where results begin to differ
  ranks=N                           run the cell in N processes of torch.distributed, one report for all
  -o r                              r is the CompileReport                --quiet    no report
  any option of tcompile.config:    disable_fusion=True recompile_limit=4 ..."""


@magics_class
class TCompileMagics(Magics):
    """The magics of one shell."""

    def __init__(self, shell: Any, engine: Engine | None = None):
        super().__init__(shell)
        self.session = Session(shell, engine)

    @no_var_expand
    @line_cell_magic
    def tcompile(self, line: str, cell: str | None = None) -> Any:
        __tracebackhide__ = True
        if cell is not None:
            return self.session.run(line, cell)
        word, _, rest = line.strip().partition(" ")
        if not word:
            word = "help"
        if word not in COMMANDS:
            near = difflib.get_close_matches(word, COMMANDS, 1, 0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            if "=" in word or word.startswith("-"):
                hint = (
                    f" Options go to `%tcompile on {line.strip()}`, or to `%%tcompile {line.strip()}` as a cell's first"
                    " line."
                )
            raise UsageError(f"tcompile: unknown command {word!r}.{hint} Commands: {', '.join(COMMANDS)}")
        if rest.strip() and word not in ("on", "cache", "ranks"):
            raise UsageError(f"tcompile: `%tcompile {word}` takes nothing more, got {rest.strip()!r}")
        return getattr(self, "_" + word)(rest.strip())

    tcompile.__doc__ = f"Compile tensor code and show what happened.\n\n{HELP}"  # what `%%tcompile?` shows

    def _on(self, rest: str) -> None:
        self.session.always = self.session.options(rest)
        self.session.refused = False
        given = " ".join(f"{k}={v}" for k, v in self.session.always.given.items())
        print(f"tcompile is on for every cell{' with ' + given if given else ''}; `%tcompile off` ends it")

    def _off(self, rest: str) -> None:
        print("tcompile is off" if self.session.always is not None else "tcompile was off already")
        self.session.always = None
        self.session.refused = True

    def _last(self, rest: str) -> Any:
        if self.session.last is None:
            print("no report yet: run a cell that begins with %%tcompile")
        return self.session.last

    def _status(self, rest: str) -> None:
        from .status import status_lines

        print("\n".join(status_lines(self.session)))

    def _cache(self, rest: str) -> None:
        from .status import cache_lines, clear_cache

        if rest not in ("", "clear"):
            raise UsageError(f"tcompile: `%tcompile cache` or `%tcompile cache clear`, got {rest!r}")
        print("\n".join(clear_cache() if rest else cache_lines()))

    def _ranks(self, rest: str) -> None:
        if rest not in ("", "stop"):
            raise UsageError(f"tcompile: `%tcompile ranks` or `%tcompile ranks stop`, got {rest!r}")
        print("\n".join(self.session.ranks.stop_words() if rest else self.session.ranks.status_words()))

    def _reset(self, rest: str) -> None:
        self.session.engine.reset()
        print("compiled entries are forgotten; compiled kernels stay on disk (`%tcompile cache clear`)")

    def _help(self, rest: str) -> None:
        print(HELP)


def load(shell: Any, engine: Engine | None = None) -> TCompileMagics:
    """Install the magics in a shell. Loading again replaces them: nothing is installed twice."""
    unload(shell)
    magics = TCompileMagics(shell, engine)
    shell.register_magics(magics)
    magics.session.install()
    completion.install(shell)
    return magics


def unload(shell: Any) -> None:
    """Take the magics out of a shell; what was compiled stays."""
    found = shell.find_cell_magic("tcompile")
    owner = getattr(found, "__self__", None)
    if not isinstance(owner, TCompileMagics):
        return
    owner.session.remove()
    completion.remove(shell)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("tcompile", None)
