"""A report as one HTML page that needs nothing else, and where the views' JavaScript lies that it carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..compiler.base.quoting import script_json
from .render import html

__all__ = ["bundle_path", "page"]


def bundle_path() -> Path | None:
    """The views as one JavaScript file, or None where the labextension was not built (it needs Node)."""
    here = Path(__file__).resolve()
    places = (here.parents[1] / "labextension", here.parents[1] / "extension" / "labextension")
    return next((p / "standalone.js" for p in places if (p / "standalone.js").exists()), None)


def page(report: Any) -> str:
    """The report as one HTML page that needs nothing else: interactive where scripts run, complete where they do
    not.
    """
    script = bundle_path()
    title = html.esc(report.title or "tcompile report")
    static = html.render_html(report)
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    head += (
        '<meta name="viewport" content="width=device-width"><style>:root{color-scheme:light'
        " dark}body{margin:16px;font-family:system-ui,sans-serif}</style></head>"
    )
    if script is None:
        return f"{head}<body>{static}</body></html>\n"
    data = script_json(report.to_json())
    code = script.read_text(encoding="utf-8").replace("</script", "<\\/script")
    body = (
        f'<div id="tcompile"></div><noscript>{static}</noscript><script type="application/json"'
        f' id="tcompile-report">{data}</script>'
    )
    # The bundle's last statement exports; a page calls `page` instead.
    return f'{head}<body>{body}<script type="module">{_as_page(code)}</script></body></html>\n'


def _as_page(code: str) -> str:
    """The bundle with its exports replaced by a call of `page`."""
    at = code.rindex("export{")
    names = dict(
        (exported.strip(), local.strip())
        for local, _, exported in (part.partition(" as ") for part in code[at + 7 : code.index("}", at)].split(","))
    )
    return f"{code[:at]}{names.get('page') or 'page'}();"
