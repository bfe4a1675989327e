"""What the HTML of a report is made of: escaped text, tables, sections that fold, and the style.

Every text of the user's is escaped: all builds on `esc` and on `table`, which escapes plain strings.
"""

from __future__ import annotations

import re
from typing import Any, Sequence

from ...compiler.base.quoting import html_text

__all__ = ["ROWS", "STYLE", "Raw", "code", "dim", "esc", "fold", "prose", "sign", "table"]

ROWS = 40  # of a table

STYLE = """\
.tcr{font-size:13px;line-height:1.45;max-width:1100px;font-variant-numeric:tabular-nums}
.tcr summary{display:list-item;cursor:pointer;padding:2px 0}.tcr>details>summary{font-size:13.5px}
.tcr details details{margin:4px 0 4px 12px}.tcr .sec{font-variant:small-caps;letter-spacing:.03em}
.tcr table{border-collapse:collapse;margin:4px 0 8px;font-size:12px;display:block;\
overflow-x:auto;max-width:100%;border:0;table-layout:auto}
.tcr th,.tcr td{text-align:left!important;padding:1px 10px 1px 0;border:0;vertical-align:top;\
white-space:normal;max-width:60ch}
.tcr tr{background:transparent!important}
.tcr th{font-weight:600;opacity:.7}.tcr td.r{text-align:right!important;white-space:nowrap}
.tcr pre,.tcr code{font-family:var(--jp-code-font-family,ui-monospace,Menlo,Consolas,monospace);font-size:12px;\
background:transparent!important;color:inherit}
.tcr code{padding:0!important}
.tcr pre{margin:4px 0;padding:6px 8px;overflow-x:auto;max-height:420px;border-left:2px solid rgba(128,128,128,.35)}
.tcr td code{white-space:pre-wrap;overflow-wrap:anywhere}.tcr td.src code{white-space:pre}
.tcr .dim{opacity:.7}.tcr .find{margin:2px 0 2px 12px}.tcr .act{margin-left:14px}
@media (max-width:600px){.tcr .wide{display:none}.tcr td,.tcr th{padding-right:6px}}
"""


class Raw(str):
    """HTML that is already safe."""


def esc(x: Any) -> Raw:
    return x if isinstance(x, Raw) else Raw(html_text(x))


def prose(x: Any) -> Raw:
    """A sentence, whose `names` in backticks are code."""
    return Raw(re.sub(r"`([^`]+)`", r"<code>\1</code>", esc(x)))


def code(x: Any) -> Raw:
    return Raw(f"<code>{html_text(x)}</code>") if x not in ("", None) else Raw("")


def dim(x: Any) -> Raw:
    return Raw(f'<span class="dim">{esc(x)}</span>')


def sign(glyph: str, colour: str, words: Any = "") -> Raw:
    """A sign in a mid-tone, and words in the page's own colour: a mid-tone is too faint for words."""
    return Raw(f'<span style="color:{colour}">{esc(glyph)}</span>{esc(words)}')


def table(rows: Sequence[Sequence[Any]], head: Sequence[str] = (), right: Sequence[int] = (), limit: int = ROWS) -> str:
    """A table of cells, escaped unless Raw; past `limit` rows it says how many there are more."""
    out = ["<table>"]
    if head:
        out.append("<tr>" + "".join(f"<th>{esc(title)}</th>" for title in head) + "</tr>")
    for row in rows[:limit]:
        out.append(
            "<tr>"
            + "".join(
                f'<td class="r">{esc(cell)}</td>' if i in right else f"<td>{esc(cell)}</td>"
                for i, cell in enumerate(row)
            )
            + "</tr>"
        )
    out.append("</table>")
    if len(rows) > limit:
        out.append(f"<div>{dim(f'and {len(rows) - limit} more, in the report object')}</div>")
    return "".join(out)


def fold(title: str, body: str, note: str = "", open_: bool = False) -> str:
    """A section; an empty one is left out."""
    if not body:
        return ""
    return (
        f'<details{" open" if open_ else ""}><summary><b class="sec">{esc(title)}</b>'
        f" {dim(note)}</summary>{body}</details>"
    )
