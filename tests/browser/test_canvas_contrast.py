"""Text on canvas (the graph, the timeline) reads on what it is drawn on: a contrast of 4.5, in every theme."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tcompile import CompileReport
from tcompile.compiler.report import schema as s
from tcompile.compiler.report.profiles import encode_spans

from .notebooks import SAMPLE
from .pages import THEMES, opened, saved, show

# Each text is compared with what lies under it at that moment: the colour that most of a few points there have.
WATCH = """() => {
  window.seen = 0;
  window.bad = {};
  const probe = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const pixel = colour => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => c * a / 255 + under[i] * (1 - a / 255));
  const light = rgb => rgb.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = pixel(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const plain = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
    if (this.canvas.isConnected && String(text).trim()) {
      const m = this.getTransform(), width = this.measureText(text).width;
      const begin = this.textAlign === 'center' ? x - width / 2 : this.textAlign === 'right' || this.textAlign === 'end' ? x - width : x;
      const base = ground(this.canvas), votes = {};
      for (let i = 0; i <= 8; i++) {
        const at = m.transformPoint({x: begin + width * i / 8, y});
        if (at.x < 0 || at.y < 0 || at.x >= this.canvas.width || at.y >= this.canvas.height) continue;
        const under = over([...this.getImageData(at.x, at.y, 1, 1).data], base).map(Math.round).join();
        votes[under] = (votes[under] ?? 0) + 1;
      }
      const most = Object.entries(votes).sort((a, b) => b[1] - a[1])[0];
      if (most) {
        const under = most[0].split(',').map(Number), ink = pixel(this.fillStyle);
        ink[3] *= this.globalAlpha;
        const [high, low] = [light(over(ink, under)), light(under)].sort((a, b) => b - a);
        const contrast = (high + 0.05) / (low + 0.05);
        window.seen++;
        if (contrast < 4.5) window.bad[`${this.fillStyle} on ${most[0]}`] = `${contrast.toFixed(2)} ${text}`;
      }
    }
    return plain.call(this, text, x, y, ...rest);
  };
}"""


def colourful() -> CompileReport:
    """The sample, with a call whose kernels have every colour there is, and one of each other kind of step."""
    report = CompileReport.from_json(SAMPLE.read_text())
    report.kernels += [replace(report.kernels[0], name=f"kernel_more_{i}") for i in range(8)]
    call = s.CallProfile("forward", "In[4]", 2, "call", "cpu", 1e-4)
    rows = [s.ProfileSpan("call", "forward", -1, 0.0, 1e-4), s.ProfileSpan("graph", "graph_0", 0, 0.0, 1e-4, 0)]
    rows += [s.ProfileSpan("kernel", f"kernel_{k}", 1, k * 1e-5, 1e-5, 0, k, part="forward") for k in range(8)]
    rows += [s.ProfileSpan("library", "mm", 1, 8e-5, 1e-5, 0), s.ProfileSpan("guards", "guards", 0, 9e-5, 5e-6)]
    encode_spans(call, rows)
    report.profiles = [call]
    return report


@pytest.mark.parametrize("theme", [None, *THEMES])
def test_text_on_canvas_has_contrast(browser: Any, tmp_path: Path, theme: str | None) -> None:
    with opened(browser, saved(tmp_path, colourful()), theme=theme) as (page, problems):
        page.evaluate(WATCH)
        for tab in ("graph", "profile"):
            before = page.evaluate("window.seen")
            show(page, tab)
            for key in ("ArrowDown", "ArrowDown", "ArrowRight", "+", "+"):  # something is chosen, and seen large
                page.locator(".tc-panels > :not([hidden]) canvas").first.press(key)
                page.wait_for_timeout(80)
            assert page.evaluate("window.seen") > before + 10, f"{tab}: nothing was drawn"
        assert page.evaluate("window.bad") == {}
        assert all("willReadFrequently" in words for words in problems), "but for what this test reads"
