"""CPython's own tests as an oracle: what they say under `tcompile.enable()` must be what they say without.

    python -m tests.oracles.cpython [--forced | --methods] [--strict] [--jobs N] [--timeout S] [module ...]

Each module of the interpreter's `test` package runs in a process of its own: once plain, once with the frame hook on.
With --forced every frame of the tests goes through capture, tensors or not: its entry is used, its breaks are resumed.
With --methods each test is a compiled function, without the hook. A test that passes plain and not under the compiler
is a difference, and so are a crash, a hang, and a test that passes only under the compiler.

`run(module, mode, timeout)` gives a Run; `compare(plain, compiled)` the differences.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LANGUAGE", "MODES", "Run", "run", "compare"]

MODES = ("plain", "enabled", "forced", "methods")

# The modules about the language and the types and modules that everything is made of. Not all exist in every version.
LANGUAGE = """
    test_grammar test_generators test_contextlib test_with test_exceptions test_scope test_descr test_dict test_list
    test_set test_tuple test_iter test_itertools test_functools test_operator test_collections test_enum
    test_dataclasses test_patma test_fstring test_unpack test_unpack_ex test_extcall test_keywordonlyarg test_call
    test_class test_super test_property test_dictviews test_slice test_range test_string test_string_literals test_str
    test_unicode test_int test_float test_math test_named_expressions test_except_star test_exception_variations
    test_coroutines test_asyncgen test_threading test_copy test_pickle test_weakref test_gc test_sys_settrace
    test_sys_setprofile test_monitoring test_traceback test_code test_frame test_inspect test_raise
    test_generator_stop test_yield_from test_dynamic test_dictcomps test_listcomps test_setcomps test_genexps
    test_funcattrs test_positional_only_arg test_opcodes test_compare test_augassign test_bool test_complex
    test_decorators test_types test_typing test_abc test_isinstance test_lambda test_global test_nonlocal
    test_metaclass test_pow test_sort test_heapq test_bisect test_deque test_defaultdict test_userdict test_userlist
    test_weakset test_zip test_builtin test_binop test_contains test_enumerate test_hash test_index test_long
    test_numeric_tower test_richcmp test_statistics test_subclassinit test_type_aliases test_type_params
    test_contextlib_async test_context test_random test_fractions test_decimal test_json test_string_template
    test_textwrap test_reprlib test_pprint test_copyreg test_sys test_dis test_peepholer test_compile test_syntax
    test_format test_unittest test_cmath test_struct test_array test_bytes test_memoryview test_ordered_dict
    test_counter test_difflib test_graphlib test_ast test_symtable test_queue test_sched test_contextvars
    test_linecache test_warnings test_zlib test_memoryio""".split()


@dataclass
class Run:
    """What one module's tests said: test -> outcome ("ok", "FAIL", "ERROR", "skipped", ...), and the words of those
    that failed.
    """

    module: str
    mode: str
    outcomes: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # of the compiler's events
    errors: list[str] = field(default_factory=list)  # internal errors that fell back to eager
    last: str = ""  # the test that was running when the process ended early
    end: str = ""  # not empty: crashed, hung, could not be imported


def run(module: str, mode: str = "plain", timeout: float = 300.0, only: str = "", strict: bool = False) -> Run:
    """Run `module` (of the package `test`) in a process of its own; `only`: tests whose id contains it; `strict`: an
    internal error of the compiler fails the test, where users would get the eager result and a note."""
    found = Run(module, mode)
    with tempfile.TemporaryDirectory(prefix="tcompile-cpython-") as folder:
        log = Path(folder) / "log"
        environment = dict(
            os.environ, TCOMPILE_SUPPRESS_ERRORS="01"[not strict], PYTHONFAULTHANDLER="1", OMP_NUM_THREADS="1"
        )
        root = Path(__file__).resolve().parents[2]
        try:
            done = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("cpython_child.py")), module, mode, str(log), only],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout,
            )
            tail, code = done.stdout[-3000:], done.returncode
        except subprocess.TimeoutExpired as late:
            said = late.stdout or b""
            tail, code = (said if isinstance(said, str) else said.decode(errors="replace"))[-3000:], None
        for line in log.read_text().splitlines() if log.exists() else ():
            kind, *rest = json.loads(line)
            if kind == "start":
                found.last = rest[0]
            elif kind == "test":
                found.outcomes[rest[0]] = rest[1]
                if rest[2]:
                    found.words[rest[0]] = rest[2].replace(str(root), "")
            elif kind == "error":
                found.errors.append(f"{rest[0]}: {rest[1]}")
            elif kind == "counts":
                found.counts = rest[0]
            elif kind == "end":
                found.last = ""
    if code is None:
        found.end = f"did not end within {timeout:.0f} s, in {found.last}"
    elif code != 0:
        found.end = f"exit status {code}{f', in {found.last}' if found.last else ''}\n{tail}"
    return found


def compare(plain: Run, compiled: Run) -> list[str]:
    """The differences, in words; an empty list where there are none."""
    found = []
    if plain.end and not plain.outcomes:
        return []  # not a module of this version, or not to be run here at all
    if compiled.end and not plain.end:
        found.append(f"{compiled.module} ({compiled.mode}): {compiled.end}")
    for name, outcome in plain.outcomes.items():
        now = compiled.outcomes.get(name)
        if now != outcome and not (now is None and compiled.end):
            found.append(f"{name} ({compiled.mode}): {outcome} plain, {now} compiled\n{compiled.words.get(name, '')}")
    found += [
        f"{name} ({compiled.mode}): not there plain, {now} compiled\n{compiled.words.get(name, '')}"
        for name, now in compiled.outcomes.items()
        if name not in plain.outcomes and not plain.end
    ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=LANGUAGE)
    parser.add_argument("--forced", action="store_true", help="every frame of the tests is captured")
    parser.add_argument("--methods", action="store_true", help="each test is compiled as a function")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--strict", action="store_true", help="internal errors of the compiler fail the test")
    parser.add_argument("--only", default="", help="tests whose id contains this")
    options = parser.parse_args()
    mode = "forced" if options.forced else "methods" if options.methods else "enabled"

    def both(module: str) -> tuple[Run, Run]:
        return run(module, "plain", options.timeout, options.only), run(
            module, mode, options.timeout * 3, options.only, options.strict
        )

    total = differing = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for plain, compiled in pool.map(both, options.modules):
            differences = compare(plain, compiled)
            total += len(plain.outcomes)
            differing += len(differences)
            print(
                f"{plain.module}: {len(plain.outcomes)} tests, {len(differences)} differences; {compiled.counts}"
                + (f"; plain: {plain.end.splitlines()[-1]}" if plain.end else ""),
                flush=True,
            )
            for text in compiled.errors:
                print("  internal error in " + text.replace("\n", " "), flush=True)
            for text in differences:
                print("  " + text.rstrip().replace("\n", "\n    "), flush=True)
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"Python {version}, {mode}: {total} tests of {len(options.modules)} modules, {differing} differences")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
