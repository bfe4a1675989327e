"""Writes the pages of docs/ that are made from the compiler's own tables: options, breaks, operators, the picture.

python tools/reference.py            write what is not current
python tools/reference.py --check    exit with 1, and name the pages, where one is not current
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import Any, Callable, Iterable

DOCS = Path(__file__).resolve().parents[1] / "docs"
_NOTE = "<!-- Made by tools/reference.py from {source}. Change that, and run `make tables`. -->"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"

    return [line(head), line("---" for _ in head), *map(line, rows)]


def options_page() -> str:
    from tcompile.compiler.config import OPTIONS

    def kind(o: Any) -> str:
        if isinstance(o.type, tuple):
            return " ".join(f"`{v}`" for v in o.type)
        return f"`{o.type.__name__}`" if isinstance(o.type, type) else f"`{o.type}`"

    rows = [
        (f"`{o.name}`", kind(o), f"`{o.default!r}`", f"`{o.env}`" if o.env else "", o.doc) for o in OPTIONS.values()
    ]
    return "\n".join(
        [
            "# Options",
            _NOTE.format(source="compiler/config.py"),
            "",
            "Give an option to `tcompile.compile(fn, options={...})`, to a cell (`%%tcompile name=value`), to",
            "`tcompile.config`, or by its variable of the environment. A call's own option wins over the process's.",
            "",
            *_table(("option", "values", "default", "environment", "does"), rows),
            "",
        ]
    )


def breaks_page() -> str:
    from tcompile.compiler.capture.breaks.causes import CAUSES, ALLOWED_BY_FULLGRAPH

    kinds: dict[str, list[tuple[str, str]]] = {}
    for c in CAUSES:
        kinds.setdefault(c.kind, []).append((c.reason, c.remedy))
    lines = [
        "# Graph breaks",
        _NOTE.format(source="compiler/capture/breaks/causes.py"),
        "",
        "A graph break ends a compiled part where capture can't go on. The program goes on as it is, and the next part",
        "is compiled. A report names the kind, the line, the reason, and what to do. `{code}` and `{name}` stand for",
        "your code.",
        "Kinds marked `*` part the graph under `fullgraph=True`, too, without an error.",
        "",
    ]
    rows = []
    for kind in sorted(kinds):
        mark = "\\*" if kind in ALLOWED_BY_FULLGRAPH else ""
        rows += [(f"`{kind}`{mark if i == 0 else ''}", r, m) for i, (r, m) in enumerate(kinds[kind])]
    return "\n".join([*lines, *_table(("kind", "reason", "what to do"), rows), ""])


def operators_page() -> str:
    from tcompile.compiler.lowering.rule_table import RULES
    from tcompile.compiler.ops.collectives import communicates
    from tcompile.compiler.ops import closed_set

    from tcompile.compiler.lowering import rules  # noqa: F401  registers the rules

    parts = (
        ("Element by element", closed_set.POINTWISE),
        ("Reductions", closed_set.REDUCTIONS),
        ("Views", closed_set.VIEWS),
        ("Movement of data", closed_set.DATA_MOVEMENT),
        ("Factories", closed_set.FACTORIES),
    )
    computed = [op for op in RULES if hasattr(op, "_schema") and not communicates(op)]
    lines = [
        "# Operators",
        _NOTE.format(source="compiler/ops/closed_set.py and compiler/lowering"),
        "",
        "Every operator of torch is taken apart into the closed set below, has a rule that makes loops of it, or is",
        "called as it is. `tests/ops` compares all operators of torch's own table with eager.",
        "",
        "## The closed set",
        "",
        *_table(("part", "operators"), [(name, row) for name, t in parts for row in _rows(t.values())]),
        "",
        "## Loops by a rule of their own",
        "",
        *_table(("operators",), [(row,) for row in _rows(map(_name, computed))]),
        "",
        "## Left to torch's kernels, and why",
        "A rule may still take some of their calls: small products on the CPU, attention on a GPU.",
        "",
    ]
    reasons: dict[str, list[str]] = {}
    for name, why in closed_set.LIBRARY.items():
        reasons.setdefault(why, []).append(name)
    rows = [(why, row) for why, names in sorted(reasons.items()) for row in _rows(names)]
    return "\n".join([*lines, *_table(("reason", "operators"), rows), ""])


def _name(op: Any) -> str:
    return str(op).removeprefix("aten.").partition(".")[0]


def _rows(names: Iterable[Any], most: int = 30) -> list[str]:
    """Names in order, so many in a row of a table."""
    each = [f"`{n}`" for n in sorted({str(n) for n in names})]
    return [" ".join(each[i : i + most]) for i in range(0, len(each), most)]


def picture() -> str:
    """The stages of compiler/stages.py from left to right, each with what it gives."""
    from tcompile.compiler.stages import STAGES

    width, height, gap, top = 128, 58, 22, 46
    colours = ("#dbeafe", "#e0e7ff", "#ede9fe", "#fae8ff", "#ffe4e6", "#ffedd5", "#dcfce7")
    total = len(STAGES) * (width + gap) + gap
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} 178" font-family="system-ui, sans-serif">',
        "<title>The stages of tcompile, from a cell to a launch</title>",
        f'<rect width="{total}" height="178" rx="8" fill="#ffffff"/>',
        f'<text x="{gap}" y="26" font-size="14" fill="#334155">a cell or a function</text>',
        f'<text x="{total - gap}" y="26" font-size="14" fill="#334155" text-anchor="end">results, and a report</text>',
    ]
    for i, s in enumerate(STAGES):
        x = gap + i * (width + gap)
        out.append(
            f'<rect x="{x}" y="{top}" width="{width}" height="{height}" rx="7" fill="{colours[i % len(colours)]}"'
            ' stroke="#475569"/>'
        )
        out.append(
            f'<text x="{x + width / 2}" y="{top + 34}" font-size="16" font-weight="600" fill="#0f172a"'
            f' text-anchor="middle">{escape(s.name)}</text>'
        )
        for k, row in enumerate(_wrapped(s.gives, 20)):
            out.append(
                f'<text x="{x + width / 2}" y="{top + height + 20 + 15 * k}" font-size="12" fill="#334155"'
                f' text-anchor="middle">{escape(row)}</text>'
            )
        if i:
            y = top + height / 2
            out.append(f'<path d="M{x - gap + 3} {y}H{x - 5}l-5 -4m5 4l-5 4" stroke="#475569" fill="none"/>')
    out += [
        f'<text x="{total / 2}" y="164" font-size="12" fill="#475569" text-anchor="middle">'
        "guards are checked before each call; what every stage states as an event, the report shows</text>",
        "</svg>",
        "",
    ]
    return "\n".join(out)


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width)


PAGES: dict[str, Callable[[], str]] = {
    "options.md": options_page,
    "breaks.md": breaks_page,
    "operators.md": operators_page,
    "pictures/pipeline.svg": picture,
}


def stale() -> list[str]:
    """Pages whose file is not what the tables give."""
    out = []
    for name, make in PAGES.items():
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != make():
            out.append(name)
    return out


def main() -> None:
    names = stale()
    if "--check" in sys.argv[1:]:
        if names:
            sys.exit(f"not current in docs/: {', '.join(names)}. Run `make docs`.")
        return
    for name in names:
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGES[name](), encoding="utf-8")
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
