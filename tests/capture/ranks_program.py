"""One rank of test_ranks_agree.py: `ranks_program.py RANK FOLDER ENTRY` trains nothing, calls a library's model, and
prints what became of it. Times are made up: an entry takes ENTRY seconds on this rank, a plain call one."""

from __future__ import annotations

import json
import sys

import torch

from tcompile.compiler import config, events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import hook, slow_entries
from tests.capture.test_library_policy import installed


def main(rank: int, folder: str, entry: float) -> None:
    def timed(form, fn, *args):
        return fn(*args), 1.0 if fn is slow_entries.call_original else entry

    slow_entries._timed = timed
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    library, decided = next(installed()), {}

    def note(e: events.Event) -> None:
        if e.kind == "library":
            decided[e.frame] = e.decision

    names = {"torch": torch, "lib": library, "x": torch.ones(4, 8), "model": library.build()}
    text = "with torch.no_grad():\n    for _ in range(10):\n        out = lib.drive(model, x)"
    with config.patch(switch_off_slower=True, cache_dir=f"{folder}/{rank}"), events.listen(note):
        hook.run_code(compile(text, "<cell 1>", "exec"), names, Options.make(None, "eager", False, None, None))
    print(json.dumps(decided.get("Net.forward", "compiled")), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
