/**
 * A flame chart on a canvas: time from left to right, what lies in what from top to bottom. Zoom, pan, walk by
 * keyboard.
 */

import { roundStep, seconds } from '../format';
import { HUES, onThemeChange, readTheme, Theme } from '../theme';
import { t } from '../texts';
import { Bar } from './spans';

export interface FlameEvents {
  choose: (bar: Bar | null) => void;
  hover: (bar: Bar | null, x: number, y: number) => void;
}

export const ROW = 20;
const AXIS = 22;
const PAD = 6;
/** Pixels below which a bar has no name. */
const LEAST_NAMED = 26;
const MOST_ZOOM = 1e6;

/** Hues by kind, and by part for groups. A kernel has its own colour in all views. */
const KIND_HUES: { [kind: string]: number } = {
  library: 188,
  python: 45,
  guards: 285,
  memory: 0,
  plan: 220,
  launch: 160
};
const PART_HUES: { [part: string]: number } = { forward: 212, backward: 28, gradients: 52, optimizer: 148 };

/** An area that the theme's text reads on. */
export function barColour(bar: Bar, dark: boolean): string {
  const { span } = bar;
  const kind = span?.kind ?? 'group';
  const tint = (hue: number, saturation: number) => `hsl(${hue}, ${saturation}%, ${dark ? 31 : 80}%)`;
  if (kind === 'kernel' || (kind === 'launch' && span!.kernel !== null)) {
    return tint(span!.kernel === null ? 212 : HUES[span!.kernel % HUES.length], dark ? 45 : 68);
  }
  if (kind in KIND_HUES) {
    return tint(KIND_HUES[kind], kind === 'memory' ? 0 : kind === 'plan' ? 12 : dark ? 38 : 52);
  }
  return bar.part in PART_HUES ? tint(PART_HUES[bar.part], dark ? 18 : 26) : tint(220, 6);
}

export class FlameCanvas {
  readonly element: HTMLCanvasElement;
  onDraw: (() => void) | null = null;
  private context: CanvasRenderingContext2D;
  private bars: Bar[] = [];
  private rows: Bar[][] = [];
  private total = 1;
  private from = 0;
  private to = 1;
  private width = 0;
  private theme: Theme;
  private pending = 0;
  private chosen: Bar | null = null;
  private lit: Set<Bar> | null = null;
  private drag: { x: number; from: number; to: number; moved: boolean } | null = null;
  private stop: (() => void)[] = [];

  constructor(private events: FlameEvents) {
    this.element = document.createElement('canvas');
    this.element.className = 'tc-flame';
    this.element.tabIndex = 0;
    this.element.setAttribute('role', 'application');
    this.element.setAttribute('aria-roledescription', t('flame chart'));
    this.element.setAttribute(
      'aria-label',
      t(
        'One call over time. Left and right walk along a row, up and down between what holds and what is held, Enter zooms in, plus and minus zoom, 0 shows all.'
      )
    );
    this.context = this.element.getContext('2d')!;
    this.theme = readTheme(this.element);
    const observer = new ResizeObserver(() => this.resize());
    observer.observe(this.element);
    this.stop.push(
      () => observer.disconnect(),
      onThemeChange(() =>
        requestAnimationFrame(() => {
          this.theme = readTheme(this.element);
          this.invalidate();
        })
      )
    );
    this.listen();
  }

  dispose(): void {
    this.stop.forEach(f => f());
    cancelAnimationFrame(this.pending);
  }

  show(bars: Bar[]): void {
    this.bars = bars;
    this.rows = [];
    for (const bar of bars) {
      (this.rows[bar.depth] ??= []).push(bar);
    }
    this.total = bars[0] ? bars[0].end : 1;
    [this.from, this.to] = [0, this.total];
    this.chosen = null;
    this.lit = null;
    this.element.style.height = `${AXIS + this.rows.length * ROW + PAD}px`;
    this.resize();
  }

  /** The bars that are marked; null: none is, and none is faded. */
  light(bars: Set<Bar> | null): void {
    this.lit = bars;
    this.invalidate();
  }

  select(bar: Bar | null, reveal: boolean): void {
    this.chosen = bar;
    if (bar && reveal && (bar.begin < this.from || bar.end > this.to || (bar.end - bar.begin) * this.scale() < 3)) {
      this.zoomTo(bar, 0.15);
    }
    this.invalidate();
  }

  /** Shows the bar over `share` of the width. */
  zoomTo(bar: Bar, share = 0.9): void {
    const length = Math.max(bar.end - bar.begin, this.total / MOST_ZOOM);
    this.view((bar.begin + bar.end) / 2 - length / share / 2, length / share);
  }

  fit(): void {
    this.view(0, this.total);
  }

  zoom(factor: number, x = this.width / 2): void {
    const at = this.from + x / this.scale();
    const length = (this.to - this.from) / factor;
    this.view(at - x / (this.width / length), length);
  }

  private scale(): number {
    return this.width / (this.to - this.from);
  }

  /** The window of time, within the call. */
  private view(from: number, length: number): void {
    const bounded = Math.min(this.total, Math.max(this.total / MOST_ZOOM, length));
    this.from = Math.max(0, Math.min(this.total - bounded, from));
    this.to = this.from + bounded;
    this.invalidate();
  }

  private listen(): void {
    const { element } = this;
    const at = (event: MouseEvent) => {
      const box = element.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    element.addEventListener('pointerdown', event => {
      this.drag = { x: at(event).x, from: this.from, to: this.to, moved: false };
      element.setPointerCapture(event.pointerId);
    });
    element.addEventListener('pointermove', event => {
      const { x, y } = at(event);
      if (this.drag) {
        const moved = x - this.drag.x;
        if (this.drag.moved || Math.abs(moved) > 4) {
          this.drag.moved = true;
          this.view(this.drag.from - moved / this.scale(), this.drag.to - this.drag.from);
        }
        return;
      }
      const bar = this.barAt(x, y);
      element.style.cursor = bar ? 'pointer' : 'grab';
      this.events.hover(bar, x, y);
    });
    element.addEventListener('pointerup', event => {
      const { x, y } = at(event);
      const moved = this.drag?.moved;
      this.drag = null;
      if (!moved) {
        this.events.choose(this.barAt(x, y));
      }
    });
    element.addEventListener('pointercancel', () => (this.drag = null));
    element.addEventListener('pointerleave', () => this.events.hover(null, 0, 0));
    element.addEventListener('dblclick', event => {
      const { x, y } = at(event);
      const bar = this.barAt(x, y);
      if (bar) {
        this.zoomTo(bar);
      }
    });
    element.addEventListener(
      'wheel',
      event => {
        // The page stays scrollable past the chart: the wheel zooms with ctrl, or once the chart has the focus.
        if (!event.ctrlKey && document.activeElement !== element) {
          return;
        }
        event.preventDefault();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
          this.view(this.from + (event.deltaX || event.deltaY) / this.scale(), this.to - this.from);
        } else {
          this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), at(event).x);
        }
      },
      { passive: false }
    );
    element.addEventListener('keydown', event => this.key(event));
  }

  private key(event: KeyboardEvent): void {
    const pan = (this.to - this.from) * 0.15;
    const act: { [key: string]: () => void } = {
      '+': () => this.zoom(1.5),
      '=': () => this.zoom(1.5),
      '-': () => this.zoom(1 / 1.5),
      '0': () => this.fit(),
      Enter: () => this.chosen && this.zoomTo(this.chosen),
      Escape: () => this.events.choose(null),
      ArrowLeft: () => this.walk(-1),
      ArrowRight: () => this.walk(1),
      ArrowUp: () => this.chosen && this.chosen.parent >= 0 && this.go(this.bars[this.chosen.parent]),
      ArrowDown: () => this.go(this.chosen ? this.bars.find(b => b.parent === this.chosen!.index) : this.bars[0]),
      a: () => this.view(this.from - pan, this.to - this.from),
      d: () => this.view(this.from + pan, this.to - this.from)
    };
    const action = act[event.key];
    if (action && !event.metaKey && !event.ctrlKey) {
      event.preventDefault();
      event.stopPropagation();
      action();
    }
  }

  private walk(step: number): void {
    const row = this.rows[this.chosen?.depth ?? 0] ?? [];
    this.go(this.chosen ? row[row.indexOf(this.chosen) + step] : row[0]);
  }

  private go(bar: Bar | undefined): void {
    if (bar) {
      this.events.choose(bar);
      this.select(bar, true);
    }
  }

  private barAt(x: number, y: number): Bar | null {
    const row = this.rows[Math.floor((y - AXIS) / ROW)];
    if (!row || y < AXIS) {
      return null;
    }
    const reach = 2 / this.scale();
    const time = this.from + x / this.scale();
    return (
      row.find(b => time >= b.begin && time <= b.end) ??
      row.find(b => time >= b.begin - reach && time <= b.end + reach) ??
      null
    );
  }

  private resize(): void {
    const { clientWidth, clientHeight } = this.element;
    if (!clientWidth || !clientHeight) {
      return;
    }
    const ratio = window.devicePixelRatio || 1;
    this.width = clientWidth;
    this.element.width = Math.round(clientWidth * ratio);
    this.element.height = Math.round(clientHeight * ratio);
    this.theme = readTheme(this.element);
    this.draw();
  }

  private invalidate(): void {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  private draw(): void {
    const { context: c, theme } = this;
    const ratio = window.devicePixelRatio || 1;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, this.width, this.element.height);
    if (!this.width) {
      return;
    }
    this.axis();
    c.textBaseline = 'middle';
    c.textAlign = 'left';
    this.rows.forEach((row, depth) => {
      const y = AXIS + depth * ROW;
      const bold = depth < 2;
      c.font = `${bold ? '600 ' : ''}11px ${theme.font}`;
      let last = -1;
      // The bars of a row are in order and do not overlap: the first in view is found by halves.
      for (let i = firstIn(row, this.from); i < row.length && row[i].begin <= this.to; i++) {
        const bar = row[i];
        const left = (bar.begin - this.from) * this.scale();
        const width = Math.max(0.6, (bar.end - bar.begin) * this.scale());
        const marked = bar === this.chosen || this.lit?.has(bar);
        if (width < 1.5 && left + width < last && !marked) {
          continue; // the pixel is taken
        }
        last = left + Math.max(1, width);
        c.globalAlpha = this.lit && !marked ? 0.3 : 1;
        c.fillStyle = barColour(bar, theme.dark);
        c.fillRect(left, y, Math.max(1, width - (width > 3 ? 1 : 0)), ROW - 1);
        if (marked) {
          c.strokeStyle = theme.accent;
          c.lineWidth = bar === this.chosen ? 2 : 1;
          c.strokeRect(left + 1, y + 1, Math.max(1, width - 3), ROW - 3);
        }
        if (width >= LEAST_NAMED) {
          this.name(bar, Math.max(0, left), Math.min(this.width, left + width), y + ROW / 2);
        }
      }
    });
    c.globalAlpha = 1;
    this.onDraw?.();
  }

  /** The bar's name and its time, as far as there is room between two edges. */
  private name(bar: Bar, left: number, right: number, y: number): void {
    const c = this.context;
    const room = right - left - 8;
    const time = `  ${seconds(bar.end - bar.begin)}`;
    const letter = Math.max(1, c.measureText(bar.name).width / (bar.name.length || 1)) * 1.02;
    if (room < 16) {
      return;
    }
    c.fillStyle = this.theme.text;
    const whole = bar.name.length * letter;
    const text = whole <= room ? bar.name : `${bar.name.slice(0, Math.max(1, Math.floor(room / letter) - 2))}…`;
    c.fillText(text, left + 4, y + 0.5);
    if (whole + time.length * letter <= room) {
      c.fillText(time, left + 4 + c.measureText(text).width, y + 0.5);
    }
  }

  private axis(): void {
    const { context: c, theme } = this;
    c.font = `10px ${theme.font}`;
    c.textBaseline = 'middle';
    c.textAlign = 'left';
    const length = this.to - this.from;
    const most = Math.max(2, Math.floor(this.width / 90));
    const step = roundStep(length / most);
    const bottom = AXIS + this.rows.length * ROW;
    for (let k = Math.ceil(this.from / step); k * step <= this.to; k++) {
      const x = Math.round((k * step - this.from) * this.scale()) + 0.5;
      c.strokeStyle = theme.border;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(x, AXIS - 6);
      c.lineTo(x, bottom);
      c.stroke();
      c.fillStyle = theme.muted;
      if (x + 50 < this.width) {
        c.fillText(tickWords(k * step, step), x + 3, AXIS / 2);
      }
    }
  }
}

/** As many digits as tell two ticks apart. */
function tickWords(value: number, step: number): string {
  const [unit, size] =
    value >= 1 || step >= 0.5
      ? ['s', 1]
      : value >= 1e-3 || step >= 5e-4
        ? ['ms', 1e-3]
        : value >= 1e-6 || value === 0
          ? ['µs', 1e-6]
          : ['ns', 1e-9];
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return `${(value / size).toFixed(Math.min(6, digits))} ${unit}`;
}

/** The first bar that ends at `time` or later. */
function firstIn(row: Bar[], time: number): number {
  let [low, high] = [0, row.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row[middle].end < time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}
