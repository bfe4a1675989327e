/**
 * A laid-out graph on a canvas: pan, zoom, walk by keyboard. Only what is in view is drawn, and only when something
 * changed.
 */

import { seconds } from '../format';
import { readTheme } from '../theme';
import { Cost, GraphDrawing, Rectangle } from './drawing';
import { Box, Edge, Layout } from './layout';
import { curve, ends, isKept, valueWords } from './shapes';
import { t } from '../texts';
import { Group, sizeWords } from './tree';

export interface CanvasEvents {
  /** A node or a module was chosen; null: the empty ground was. `extend` with shift held. */
  choose: (box: Box | null, extend: boolean) => void;
  /** A module is to be opened or closed. */
  toggle: (group: Group) => void;
  /** Something lies under the pointer; `text` may have several lines. */
  hover: (text: string, x: number, y: number) => void;
}

const MIN_SCALE = 0.002;
const MAX_SCALE = 2.5;
/** Around what is brought into sight, in pixels. */
const MARGIN = 24;

export class GraphCanvas {
  readonly element: HTMLCanvasElement;
  private context: CanvasRenderingContext2D;
  private drawing: GraphDrawing;
  private layout: Layout | null = null;
  private scale = 1;
  private tx = 0;
  private ty = 0;
  private width = 0;
  private height = 0;
  private pending = 0;
  private kernelNames: string[];
  private drag: { x: number; y: number; moved: boolean } | null = null;
  private observer: ResizeObserver;
  /** The room that the picture was laid into, and where it lay then. */
  private fitted = '';
  private laid = '';

  /** `cost`: seconds of what a box stands for, and its share of all that was profiled; null where nothing is known. */
  constructor(
    kernelNames: string[],
    private events: CanvasEvents,
    private cost: Cost = () => null
  ) {
    this.kernelNames = kernelNames;
    this.element = document.createElement('canvas');
    this.element.className = 'tc-graph-canvas';
    this.element.tabIndex = 0;
    this.element.setAttribute('role', 'application');
    this.element.setAttribute('aria-roledescription', t('graph'));
    this.element.setAttribute(
      'aria-label',
      t('Graph. Arrow keys walk from node to node, Enter opens or closes a module, plus and minus zoom, 0 shows all.')
    );
    this.context = this.element.getContext('2d')!;
    this.drawing = new GraphDrawing(this.context, readTheme(this.element), kernelNames, cost);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.element);
    this.listen();
  }

  dispose(): void {
    this.observer.disconnect();
    cancelAnimationFrame(this.pending);
  }

  retheme(): void {
    this.drawing.theme = readTheme(this.element);
    this.invalidate();
  }

  show(layout: Layout, keep: boolean): void {
    this.layout = layout;
    this.drawing.clear();
    if (!keep) {
      this.fitted = '';
    }
    this.resize();
  }

  select(boxes: Box[], reveal: boolean): void {
    this.drawing.selected = boxes;
    this.drawing.touched = new Set(
      this.layout?.edges.filter(e => boxes.includes(e.from) || boxes.includes(e.to)) ?? []
    );
    if (reveal && boxes.length) {
      this.reveal(this.around(boxes));
    }
    this.invalidate();
  }

  /** The room of all these boxes, where it fits into the view; else the first of them. */
  private around(boxes: Box[]): Rectangle {
    const [x, y] = [Math.min(...boxes.map(b => b.x)), Math.min(...boxes.map(b => b.y))];
    const w = Math.max(...boxes.map(b => b.x + b.w)) - x;
    const h = Math.max(...boxes.map(b => b.y + b.h)) - y;
    const room = 2 * MARGIN;
    const fits = w * this.scale < this.width - room && h * this.scale < this.height - room;
    return fits ? { x, y, w, h } : boxes[0];
  }

  highlight(found: Set<Box> | null): void {
    this.drawing.found = found;
    this.invalidate();
  }

  /** Marks nodes by name; a closed group with such a node in it is marked, too. */
  mark(marks: Map<string, string>): void {
    this.drawing.marked = marks;
    this.invalidate();
  }

  /** Boxes that are not there yet. */
  fade(boxes: Set<Box> | null): void {
    this.drawing.ghosts = boxes;
    this.invalidate();
  }

  zoom(factor: number, x = this.width / 2, y = this.height / 2): void {
    const scale = Math.max(MIN_SCALE, Math.min(MAX_SCALE, this.scale * factor));
    this.tx = x - ((x - this.tx) * scale) / this.scale;
    this.ty = y - ((y - this.ty) * scale) / this.scale;
    this.scale = scale;
    this.invalidate();
  }

  /** All of it, or the readable top of it where all would be too small to read. */
  fit(everything = true): void {
    if (!this.layout || !this.width) {
      return;
    }
    const { w, h } = this.layout.root;
    const whole = Math.min(this.width / w, this.height / h, 1);
    this.scale = Math.max(MIN_SCALE, everything ? whole : Math.max(whole, Math.min(1, Math.max(this.width / w, 0.72))));
    this.tx = (this.width - w * this.scale) / 2;
    this.ty = h * this.scale < this.height ? (this.height - h * this.scale) / 2 : 0;
    if (w * this.scale > this.width) {
      // What stands on top is in the middle, as far as the picture stays full.
      const { boxes } = this.layout;
      const top = Math.min(...boxes.map(b => b.y));
      const middles = boxes.filter(b => b.y < top + 1).map(b => b.x + b.w / 2);
      const middle = middles.length ? middles.reduce((a, b) => (Math.abs(b - w / 2) < Math.abs(a - w / 2) ? b : a)) : 0;
      this.tx = Math.min(0, Math.max(this.width - w * this.scale, this.width / 2 - middle * this.scale));
    }
    this.invalidate();
  }

  reveal(box: Rectangle): void {
    if (this.scale < 0.5) {
      this.scale = 0.8;
    }
    const left = box.x * this.scale + this.tx;
    const top = box.y * this.scale + this.ty;
    const margin = MARGIN;
    if (
      left < margin ||
      top < margin ||
      left + box.w * this.scale > this.width - margin ||
      top + box.h * this.scale > this.height - margin
    ) {
      this.tx = this.width / 2 - (box.x + box.w / 2) * this.scale;
      this.ty = this.height / 2 - (box.y + box.h / 2) * this.scale;
    }
    this.invalidate();
  }

  /** Drawing units of the visible part. */
  viewport(): Rectangle {
    return {
      x: -this.tx / this.scale,
      y: -this.ty / this.scale,
      w: this.width / this.scale,
      h: this.height / this.scale
    };
  }

  centerOn(x: number, y: number): void {
    this.tx = this.width / 2 - x * this.scale;
    this.ty = this.height / 2 - y * this.scale;
    this.invalidate();
  }

  onDraw: (() => void) | null = null;

  // ------------------------------------------------------------------------------------------------ input

  private listen(): void {
    const at = (event: MouseEvent) => {
      const rect = this.element.getBoundingClientRect();
      return { x: event.clientX - rect.left, y: event.clientY - rect.top };
    };
    this.element.addEventListener('pointerdown', event => {
      const { x, y } = at(event);
      this.drag = { x, y, moved: false };
      this.element.setPointerCapture(event.pointerId);
    });
    this.element.addEventListener('pointermove', event => {
      const { x, y } = at(event);
      if (this.drag) {
        const dx = x - this.drag.x;
        const dy = y - this.drag.y;
        if (this.drag.moved || Math.abs(dx) + Math.abs(dy) > 4) {
          this.tx += dx;
          this.ty += dy;
          this.drag = { x, y, moved: true };
          this.element.classList.add('tc-grabbing');
          this.invalidate();
        }
        return;
      }
      this.hoverAt(x, y);
    });
    this.element.addEventListener('pointerup', event => {
      const { x, y } = at(event);
      const moved = this.drag?.moved;
      this.drag = null;
      this.element.classList.remove('tc-grabbing');
      if (!moved) {
        const onTitle = this.titleAt(x, y);
        if (onTitle) {
          this.events.toggle(onTitle);
        } else {
          this.events.choose(this.boxAt(x, y), event.shiftKey);
        }
      }
    });
    this.element.addEventListener('pointercancel', () => (this.drag = null));
    this.element.addEventListener('pointerleave', () => this.events.hover('', 0, 0));
    this.element.addEventListener('dblclick', event => {
      const { x, y } = at(event);
      const box = this.boxAt(x, y);
      if (box?.item.kind === 'group') {
        this.events.toggle(box.item);
      }
    });
    this.element.addEventListener(
      'wheel',
      event => {
        // The page must stay scrollable past the graph: the wheel zooms with ctrl or once the graph has the focus.
        if (!event.ctrlKey && document.activeElement !== this.element) {
          return;
        }
        event.preventDefault();
        const { x, y } = at(event);
        this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), x, y);
      },
      { passive: false }
    );
    this.element.addEventListener('keydown', event => this.key(event));
  }

  private key(event: KeyboardEvent): void {
    const pan = 60;
    const act: { [key: string]: () => void } = {
      '+': () => this.zoom(1.25),
      '=': () => this.zoom(1.25),
      '-': () => this.zoom(0.8),
      '0': () => this.fit(),
      Escape: () => this.events.choose(null, false),
      Enter: () => {
        const item = this.drawing.selected[0]?.item;
        if (item?.kind === 'group') {
          this.events.toggle(item);
        }
      },
      Backspace: () => {
        const group = this.drawing.selected[0]?.parent?.item;
        if (group?.kind === 'group' && group.parent) {
          this.events.toggle(group);
        }
      },
      ArrowDown: () => this.walk('down', event.shiftKey),
      ArrowUp: () => this.walk('up', event.shiftKey),
      ArrowLeft: () => this.walk('left', event.shiftKey),
      ArrowRight: () => this.walk('right', event.shiftKey),
      W: () => {
        this.ty += pan;
        this.invalidate();
      },
      S: () => {
        this.ty -= pan;
        this.invalidate();
      },
      A: () => {
        this.tx += pan;
        this.invalidate();
      },
      D: () => {
        this.tx -= pan;
        this.invalidate();
      }
    };
    const action = act[event.key];
    if (action && !event.metaKey && !event.ctrlKey) {
      event.preventDefault();
      event.stopPropagation();
      action();
    }
  }

  /** To an input, a reader, or the neighbour in the same layer; `extend`: it is chosen beside the first. */
  private walk(direction: 'up' | 'down' | 'left' | 'right', extend = false): void {
    const { layout } = this;
    if (!layout) {
      return;
    }
    const from = this.drawing.selected[extend ? this.drawing.selected.length - 1 : 0];
    if (!from) {
      this.events.choose(layout.boxes[0] ?? null, false);
      return;
    }
    let next: Box | undefined;
    if (direction === 'up' || direction === 'down') {
      const near =
        direction === 'up'
          ? layout.edges.filter(e => e.to === from).map(e => e.from)
          : layout.edges.filter(e => e.from === from).map(e => e.to);
      const centre = from.x + from.w / 2;
      near.sort((a, b) => Math.abs(a.x + a.w / 2 - centre) - Math.abs(b.x + b.w / 2 - centre));
      next = near[0];
    } else {
      const sign = direction === 'left' ? -1 : 1;
      const row = layout.boxes.filter(
        b => b !== from && b.y < from.y + from.h && b.y + b.h > from.y && sign * (b.x - from.x) > 0
      );
      row.sort((a, b) => sign * (a.x - b.x));
      next = row[0];
    }
    if (next) {
      this.events.choose(next, extend);
      this.reveal(next);
    }
  }

  private inUnits(x: number, y: number): { ux: number; uy: number } {
    return { ux: (x - this.tx) / this.scale, uy: (y - this.ty) / this.scale };
  }

  private boxAt(x: number, y: number): Box | null {
    const { ux, uy } = this.inUnits(x, y);
    return this.layout?.boxes.find(b => ux >= b.x && ux <= b.x + b.w && uy >= b.y && uy <= b.y + b.h) ?? null;
  }

  private titleAt(x: number, y: number): Group | null {
    const { ux, uy } = this.inUnits(x, y);
    const frames = this.layout?.frames ?? [];
    for (let i = frames.length - 1; i > 0; i--) {
      const f = frames[i];
      if (ux >= f.x && ux <= f.x + f.w && uy >= f.y && uy <= f.y + 24) {
        return f.item as Group;
      }
    }
    return null;
  }

  private hoverAt(x: number, y: number): void {
    const box = this.boxAt(x, y);
    const title = box ? null : this.titleAt(x, y);
    this.element.style.cursor = box || title ? 'pointer' : 'grab';
    if (box) {
      this.events.hover(this.describe(box), x, y);
    } else if (title) {
      this.events.hover(`${title.path}\n${t('click to close')}`, x, y);
    } else {
      const edge = this.edgeAt(x, y);
      this.events.hover(
        edge
          ? `${edge.source.name} → ${edge.target.name}\n${valueWords(edge.source)}` +
              (isKept(edge) ? `\n${t('kept for backward')}` : '') +
              (edge.count > 1 ? `\n${t('and {0} more', edge.count - 1)}` : '')
          : '',
        x,
        y
      );
    }
  }

  private describe(box: Box): string {
    const cost = this.cost(box.item);
    const took = cost
      ? `\n${cost.of ?? t('{0}, {1} % of what was profiled', seconds(cost.seconds), Math.round(100 * cost.share))}`
      : '';
    if (box.item.kind === 'group') {
      return `${box.item.path}\n${t('{0}, double click to open', sizeWords(box.item))}${took}`;
    }
    const { node } = box.item;
    const kernel = node.kernel === null ? '' : `\n${this.kernelNames[node.kernel] ?? ''}`;
    return `${node.name} = ${node.op}\n${valueWords(node)}${kernel}${took}`;
  }

  private edgeAt(x: number, y: number): Edge | null {
    const { ux, uy } = this.inUnits(x, y);
    const near = 6 / this.scale;
    let best: Edge | null = null;
    let distance = near;
    for (const edge of this.layout?.edges ?? []) {
      const [x0, y0, x1, y1] = ends(edge);
      if (uy < Math.min(y0, y1) - near || uy > Math.max(y0, y1) + near) {
        continue;
      }
      const bend = curve(y0, y1);
      for (let i = 0; i <= 16; i++) {
        const t = i / 16;
        const s = 1 - t;
        const px = s * s * s * x0 + 3 * s * s * t * x0 + 3 * s * t * t * x1 + t * t * t * x1;
        const py = s * s * s * y0 + 3 * s * s * t * (y0 + bend) + 3 * s * t * t * (y1 - bend) + t * t * t * y1;
        const d = Math.hypot(px - ux, py - uy);
        if (d < distance) {
          distance = d;
          best = edge;
        }
      }
    }
    return best;
  }

  // ------------------------------------------------------------------------------------------------ drawing

  private resize(): void {
    const { clientWidth, clientHeight } = this.element;
    if (!clientWidth || !clientHeight) {
      return;
    }
    const ratio = window.devicePixelRatio || 1;
    this.width = clientWidth;
    this.height = clientHeight;
    this.element.width = Math.round(clientWidth * ratio);
    this.element.height = Math.round(clientHeight * ratio);
    const view = `${this.width} ${this.height}`;
    // Until the reader has moved it, the picture is laid into whatever room there is.
    const unmoved = this.fitted && this.fitted !== view && this.laid === `${this.tx} ${this.ty} ${this.scale}`;
    if (this.layout && (!this.fitted || unmoved)) {
      this.drawing.theme = readTheme(this.element);
      this.fitted = view;
      this.fit(false);
      this.draw();
      this.laid = `${this.tx} ${this.ty} ${this.scale}`;
    } else {
      this.draw();
    }
  }

  private invalidate(): void {
    if (!this.pending) {
      this.pending = requestAnimationFrame(() => {
        this.pending = 0;
        this.draw();
      });
    }
  }

  private draw(): void {
    const { context: c, layout, scale } = this;
    const ratio = window.devicePixelRatio || 1;
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.clearRect(0, 0, this.element.width, this.element.height);
    if (!layout) {
      return;
    }
    // A piece of the graph stays in view, however far one pans.
    const margin = 60;
    this.tx = Math.max(margin - layout.root.w * scale, Math.min(this.width - margin, this.tx));
    this.ty = Math.max(margin - layout.root.h * scale, Math.min(this.height - margin, this.ty));
    c.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * this.tx, ratio * this.ty);
    this.drawing.draw(layout, this.viewport(), scale);
    this.onDraw?.();
  }
}
