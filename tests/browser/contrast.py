"""The contrast of texts with what lies under them, in HTML and in SVG: a script for a page.

WCAG 2.1: 4.5 for text, 3 for large text and for signs. Colours are painted over one another as the browser does it. Under a text of
an SVG lie the areas that were drawn before it, and the page.
"""

from __future__ import annotations

__all__ = ["CONTRAST"]

# Gives how many texts were seen, and those that do not read: by element, contrast and words.
CONTRAST = """root => {
  const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = c => { context.clearRect(0, 0, 1, 1); context.fillStyle = c; context.fillRect(0, 0, 1, 1);
                      const d = context.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const over = (a, b) => { const alpha = a[3] + b[3] * (1 - a[3]);
                           return [0, 1, 2].map(i => alpha ? (a[i] * a[3] + b[i] * b[3] * (1 - a[3])) / alpha : 0).concat(alpha); };
  const light = c => { const f = c.slice(0, 3).map(v => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
                       return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const faded = (c, ...alphas) => [c[0], c[1], c[2], alphas.reduce((a, v) => a * Number(v), c[3])];
  const page = e => {
    let ground = [0, 0, 0, 0];
    for (let p = e; p && ground[3] < 0.99; p = p.parentElement)
      ground = over(ground, rgba(getComputedStyle(p).backgroundColor));
    return over(ground, [255, 255, 255, 1]);
  };
  const areas = e => {
    const svg = e.closest('svg'), box = e.getBoundingClientRect();
    const x = box.x + box.width / 2, y = box.y + box.height / 2;
    let ground = page(svg);
    for (const area of svg.querySelectorAll('rect, path, circle, polygon')) {
      const at = area.getBoundingClientRect(), style = getComputedStyle(area);
      const before = area.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING;
      if (!before || style.fill === 'none' || !area.checkVisibility({checkVisibilityCSS: true})) continue;
      if (at.left < x && x < at.right && at.top < y && y < at.bottom)
        ground = over(faded(rgba(style.fill), style.fillOpacity, style.opacity), ground);
    }
    return ground;
  };
  const opacity = e => {
    let all = 1;
    for (let p = e; p; p = p.parentElement) all *= getComputedStyle(p).opacity;
    return all;
  };
  const bad = {};
  const walker = document.createTreeWalker(document.querySelector(root ?? '.tc-report'), NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), e = walker.currentNode.parentElement;
    if (!text || e.matches('style, title')) continue;
    if (!e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})) continue;
    const style = getComputedStyle(e), drawn = e.closest('svg') !== null;
    if (drawn && Number(style.fillOpacity) * Number(style.opacity) === 0) continue;
    const ground = drawn ? areas(e) : page(e);
    const ink = drawn ? faded(rgba(style.fill), style.fillOpacity, opacity(e)) : faded(rgba(style.color), opacity(e));
    const [a, b] = [light(over(ink, ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && Number(style.fontWeight) >= 700;
    seen += 1;
    const sign = !/[\\p{L}\\p{N}]/u.test(text); // a picture, not words
    if (ratio >= (large || sign ? 3 : 4.5)) continue;
    bad[`${e.tagName}.${e.getAttribute('class')}`] = [ratio.toFixed(2), text.slice(0, 40)];
  }
  return [seen, bad];
}"""
