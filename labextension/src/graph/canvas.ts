/** A laid-out graph on a canvas: pan, zoom, walk by keyboard. Only what is in view is drawn, and only when something changed. */

import { bytes, nodeBytes, plural, seconds, shortOp, tensorType } from '../format';
import { GraphNode } from '../schema';
import { kernelColour, kernelTint, readTheme, Theme } from '../theme';
import { Box, Edge, Layout } from './layout';
import { t } from '../texts';
import { Group, Item, size } from './tree';

export interface CanvasEvents {
  /** A node or a module was chosen; null: the empty ground was. `extend` with shift held. */
  choose: (box: Box | null, extend: boolean) => void;
  /** A module is to be opened or closed. */
  toggle: (group: Group) => void;
  /** Something lies under the pointer; `text` may have several lines. */
  hover: (text: string, x: number, y: number) => void;
}

interface Caption {
  text: string;
  x: number;
  y: number;
  colour: string;
}

/** The longest edge, in drawing units, along which a kernel's outline reaches. */
const LINK = 130;
/** Edges of the chosen boxes that are labelled: more would cover each other. */
const MOST_LABELLED = 14;
const LEAF_H = 38;
const SOURCE_H = 22;
const GROUP_H = 44;
const MIN_SCALE = 0.002;
const MAX_SCALE = 2.5;

export function label(node: GraphNode): string {
  return node.op === 'input' || node.op === 'parameter' || node.op === 'output' ? node.name : shortOp(node.op);
}

/** `f32 128×512, 256 KiB`, with its strides where these are not those of rows after each other. */
export function valueWords(node: GraphNode): string {
  const size = nodeBytes(node);
  const strides = node.stride ? t('strides {0}', node.stride.join(', ')) : '';
  return [tensorType(node), size === null ? '' : bytes(size), strides].filter(Boolean).join(', ');
}

export function measure(item: Item): { w: number; h: number } {
  if (item.kind === 'group') {
    return { w: Math.max(120, item.label.length * 7.4 + 44), h: GROUP_H };
  }
  const { node } = item;
  if (node.op === 'input' || node.op === 'parameter' || node.op === 'output') {
    return { w: Math.max(48, Math.min(node.name.length, 26) * 6.4 + 22), h: SOURCE_H };
  }
  return { w: Math.max(64, Math.max(label(node).length * 7.4, tensorType(node).length * 6) + 26), h: LEAF_H };
}

/** A long name with its end: names of one kind begin alike. */
function clipMiddle(text: string, width: number, perChar: number): string {
  const room = Math.max(3, Math.floor(width / perChar));
  const head = Math.floor((room - 1) / 3);
  return text.length <= room ? text : `${text.slice(0, head)}…${text.slice(text.length - (room - 1 - head))}`;
}

/** A kernel's name no longer than the box that it stands over: its neighbour has one, too. */
function clipped(name: string, width: number): string {
  const most = Math.max(8, Math.floor(width / 5.2));
  return name.length > most ? `${name.slice(0, most - 1)}…` : name;
}

/** An edge from forward to backward: a value that is kept meanwhile. */
function isKept(edge: Edge): boolean {
  return edge.source.home !== undefined && edge.source.home.graph !== edge.target.home?.graph;
}

export class GraphCanvas {
  readonly element: HTMLCanvasElement;
  private context: CanvasRenderingContext2D;
  private layout: Layout | null = null;
  private scale = 1;
  private tx = 0;
  private ty = 0;
  private width = 0;
  private height = 0;
  private theme: Theme;
  private pending = 0;
  private selected: Box[] = [];
  private found: Set<Box> | null = null;
  private marked = new Map<string, string>();
  private ghosts: Set<Box> | null = null;
  private touched = new Set<Edge>();
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
    private cost: (item: Item) => { seconds: number; share: number } | null = () => null
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
    this.theme = readTheme(this.element);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.element);
    this.listen();
  }

  dispose(): void {
    this.observer.disconnect();
    cancelAnimationFrame(this.pending);
  }

  retheme(): void {
    this.theme = readTheme(this.element);
    this.invalidate();
  }

  show(layout: Layout, keep: boolean): void {
    this.layout = layout;
    this.found = null;
    this.ghosts = null;
    this.touched.clear();
    this.selected = [];
    if (!keep) {
      this.fitted = '';
    }
    this.resize();
  }

  select(boxes: Box[], reveal: boolean): void {
    this.selected = boxes;
    this.touched = new Set(this.layout?.edges.filter(e => boxes.includes(e.from) || boxes.includes(e.to)) ?? []);
    if (reveal && boxes.length) {
      this.reveal(boxes[0]);
    }
    this.invalidate();
  }

  highlight(found: Set<Box> | null): void {
    this.found = found;
    this.invalidate();
  }

  /** Marks nodes by name; a closed group with such a node in it is marked, too. */
  mark(marks: Map<string, string>): void {
    this.marked = marks;
    this.invalidate();
  }

  /** Boxes that are not there yet. */
  fade(boxes: Set<Box> | null): void {
    this.ghosts = boxes;
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
      const first = this.layout.edges[0]?.to;
      this.tx = this.width / 2 - ((first?.x ?? 0) + (first?.w ?? 0) / 2) * this.scale;
    }
    this.invalidate();
  }

  reveal(box: Box): void {
    if (this.scale < 0.5) {
      this.scale = 0.8;
    }
    const left = box.x * this.scale + this.tx;
    const top = box.y * this.scale + this.ty;
    const margin = 24;
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
  viewport(): { x: number; y: number; w: number; h: number } {
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
        const item = this.selected[0]?.item;
        if (item?.kind === 'group') {
          this.events.toggle(item);
        }
      },
      Backspace: () => {
        const group = this.selected[0]?.parent?.item;
        if (group?.kind === 'group' && group.parent) {
          this.events.toggle(group);
        }
      },
      ArrowDown: () => this.walk('down'),
      ArrowUp: () => this.walk('up'),
      ArrowLeft: () => this.walk('left'),
      ArrowRight: () => this.walk('right'),
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

  /** To an input, a reader, or the neighbour in the same layer. */
  private walk(direction: 'up' | 'down' | 'left' | 'right'): void {
    const { layout } = this;
    if (!layout) {
      return;
    }
    const from = this.selected[0];
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
      this.events.choose(next, false);
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
      ? `\n${t('{0}, {1} % of what was profiled', seconds(cost.seconds), Math.round(100 * cost.share))}`
      : '';
    if (box.item.kind === 'group') {
      return `${box.item.path}\n${t('{0}, double click to open', plural(size(box.item), 'operation'))}${took}`;
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
      this.theme = readTheme(this.element);
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
    const { context: c, layout, theme, scale } = this;
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
    const view = this.viewport();
    const visible = (b: Box) =>
      b.x + b.w >= view.x && b.x <= view.x + view.w && b.y + b.h >= view.y && b.y <= view.y + view.h;

    for (const frame of layout.frames) {
      if (frame.parent && visible(frame)) {
        this.drawFrame(frame, theme);
      }
    }
    const boxes = layout.boxes.filter(visible);
    const captions: Caption[] = [];
    if (scale > 0.12) {
      this.drawKernels(boxes, layout, captions);
    }
    this.drawEdges(layout, view);
    for (const box of boxes) {
      this.drawBox(box, theme);
    }
    this.drawCaptions(captions);
    this.onDraw?.();
  }

  private drawFrame(frame: Box, theme: Theme): void {
    const c = this.context;
    const group = frame.item as Group;
    c.beginPath();
    c.roundRect(frame.x, frame.y, frame.w, frame.h, 8);
    c.globalAlpha = theme.dark ? 0.4 : 0.55;
    c.fillStyle = group.depth % 2 ? theme.surface : theme.background;
    c.fill();
    c.globalAlpha = 1;
    c.strokeStyle = theme.border;
    c.lineWidth = 1;
    c.stroke();
    if (this.scale > 0.2) {
      c.fillStyle = theme.muted;
      c.font = `600 11px ${theme.font}`;
      c.textBaseline = 'middle';
      c.textAlign = 'left';
      c.fillText(`▾ ${group.label}`, frame.x + 10, frame.y + 13);
    }
  }

  /** One soft outline around the nodes of a kernel: their boxes and the edges between them, drawn as one shape. */
  private drawKernels(boxes: Box[], layout: Layout, captions: Caption[]): void {
    const c = this.context;
    const members = new Map<number, Box[]>();
    for (const box of boxes) {
      if (box.item.kind === 'leaf' && box.item.node.kernel !== null) {
        const list = members.get(box.item.node.kernel);
        if (list) {
          list.push(box);
        } else {
          members.set(box.item.node.kernel, [box]);
        }
      }
    }
    // Long edges inside a kernel stay lines: a broad band across the graph would hide what lies between.
    const inside = new Map<number, Edge[]>();
    const linked = new Set<Box>();
    for (const edge of layout.edges) {
      const { from, to } = edge;
      if (
        from.item.kind === 'leaf' &&
        to.item.kind === 'leaf' &&
        from.item.node.kernel !== null &&
        from.item.node.kernel === to.item.node.kernel &&
        members.has(from.item.node.kernel) &&
        to.y - from.y - from.h < LINK
      ) {
        linked.add(to);
        const list = inside.get(from.item.node.kernel);
        if (list) {
          list.push(edge);
        } else {
          inside.set(from.item.node.kernel, [edge]);
        }
      }
    }
    const { dark } = this.theme;
    for (const [kernel, list] of members) {
      const shapes: [number, string][] = [
        [8, kernelTint(kernel, 'outline', dark)],
        [7, kernelTint(kernel, 'ground', dark)]
      ];
      for (const [grow, colour] of shapes) {
        c.fillStyle = c.strokeStyle = colour;
        c.lineWidth = 2 * grow;
        c.lineCap = 'round';
        c.beginPath();
        for (const edge of inside.get(kernel) ?? []) {
          trace(c, edge);
        }
        c.stroke();
        c.beginPath();
        for (const b of list) {
          c.roundRect(b.x - grow, b.y - grow, b.w + 2 * grow, b.h + 2 * grow, 6 + grow);
        }
        c.fill();
      }
      if (this.scale > 0.45) {
        // A kernel in several pieces has its name on each.
        for (const top of list.filter(b => !linked.has(b))) {
          captions.push({
            text: clipped(this.kernelNames[kernel] ?? t('kernel {0}', kernel), top.w),
            x: top.x,
            y: top.y - 10,
            colour: kernelColour(kernel, 1, dark)
          });
        }
      }
    }
  }

  /** Names of kernels, over the edges, with a halo so that they stay readable. */
  private drawCaptions(captions: Caption[]): void {
    const c = this.context;
    c.font = `600 9.5px ${this.theme.font}`;
    c.textAlign = 'left';
    c.textBaseline = 'bottom';
    c.lineWidth = 4;
    c.lineJoin = 'round';
    for (const { text, x, y, colour } of captions) {
      c.strokeStyle = this.theme.background;
      c.strokeText(text, x, y);
      c.fillStyle = colour;
      c.fillText(text, x, y);
    }
  }

  private drawEdges(layout: Layout, view: { x: number; y: number; w: number; h: number }): void {
    const c = this.context;
    const { theme } = this;
    c.lineWidth = Math.min(1.2, 0.8 / this.scale);
    c.strokeStyle = theme.muted;
    c.globalAlpha = this.selected.length ? 0.25 : 0.5;
    for (const kept of layout.edges[0]?.source.home ? [false, true] : [false]) {
      c.setLineDash(kept ? [4 / Math.min(1, this.scale), 3 / Math.min(1, this.scale)] : []);
      c.beginPath();
      for (const edge of layout.edges) {
        const [, y0, , y1] = ends(edge);
        if (
          Math.max(y0, y1) >= view.y &&
          Math.min(y0, y1) <= view.y + view.h &&
          !this.touched.has(edge) &&
          isKept(edge) === kept
        ) {
          trace(c, edge);
        }
      }
      c.stroke();
    }
    c.setLineDash([]);
    c.globalAlpha = 1;
    if (this.touched.size) {
      c.strokeStyle = theme.accent;
      c.lineWidth = Math.max(1.6, 1.2 / this.scale);
      c.beginPath();
      for (const edge of this.touched) {
        trace(c, edge);
      }
      c.stroke();
    }
    if (this.scale > 0.5 && this.touched.size && this.touched.size <= MOST_LABELLED) {
      this.drawLabels();
    }
    if (this.scale > 0.35) {
      c.fillStyle = theme.muted;
      c.beginPath();
      for (const edge of layout.edges) {
        const [, , x1, y1] = ends(edge);
        if (y1 >= view.y && y1 <= view.y + view.h) {
          c.moveTo(x1, y1);
          c.lineTo(x1 - 3.5, y1 - 6);
          c.lineTo(x1 + 3.5, y1 - 6);
        }
      }
      c.fill();
    }
  }

  /** What flows along the edges of the chosen boxes. */
  private drawLabels(): void {
    const c = this.context;
    c.font = `10px ${this.theme.mono}`;
    c.textAlign = 'center';
    c.textBaseline = 'middle';
    c.lineWidth = 4;
    c.lineJoin = 'round';
    for (const edge of this.touched) {
      const [x0, y0, x1, y1] = ends(edge);
      const near = this.selected.includes(edge.from) ? 0.62 : 0.38; // towards the other end: many edges meet at the chosen box
      const [x, y] = [x0 + (x1 - x0) * near, y0 + (y1 - y0) * near];
      const text = edge.count > 1 ? plural(edge.count, 'value') : valueWords(edge.source);
      c.strokeStyle = this.theme.background;
      c.strokeText(text, x, y);
      c.fillStyle = this.theme.text;
      c.fillText(text, x, y);
    }
  }

  private drawBox(box: Box, theme: Theme): void {
    const c = this.context;
    const { item } = box;
    const selected = this.selected.includes(box);
    const faded = (this.found !== null && !this.found.has(box)) || this.ghosts?.has(box);
    const source = item.kind === 'leaf' && box.h === SOURCE_H;
    c.globalAlpha = faded ? 0.3 : 1;
    c.beginPath();
    if (this.scale < 0.1) {
      c.rect(box.x, box.y, box.w, box.h);
    } else {
      c.roundRect(box.x, box.y, box.w, box.h, source ? box.h / 2 : 6);
    }
    c.fillStyle = item.kind === 'group' ? theme.surface : source ? theme.raised : theme.background;
    c.fill();
    const hit = this.found?.has(box);
    c.strokeStyle = selected || hit ? theme.accent : theme.border;
    c.lineWidth = selected ? 2.5 : hit ? 2 : 1;
    c.stroke();
    if (this.scale < 0.22) {
      c.globalAlpha = 1;
      return;
    }
    const mark = this.marked.size ? markOf(item, this.marked) : '';
    if (mark) {
      c.fillStyle = mark === 'large' ? 'hsl(35, 90%, 48%)' : theme.error;
      c.beginPath();
      c.arc(box.x + box.w - 2, box.y + 2, 5, 0, 2 * Math.PI);
      c.fill();
    }
    c.textBaseline = 'middle';
    c.textAlign = 'center';
    const middle = box.x + box.w / 2;
    if (item.kind === 'group') {
      c.fillStyle = theme.text;
      c.font = `600 12px ${theme.font}`;
      c.fillText(`▸ ${item.label}`, middle, box.y + 16);
      c.fillStyle = theme.muted;
      c.font = `10px ${theme.font}`;
      const cost = this.cost(item);
      c.fillText(
        cost ? `${plural(size(item), 'operation')} · ${seconds(cost.seconds)}` : plural(size(item), 'operation'),
        middle,
        box.y + 32
      );
      this.heat(box, cost);
      c.strokeStyle = theme.border;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(box.x + 6, box.y + box.h + 2.5);
      c.lineTo(box.x + box.w - 6, box.y + box.h + 2.5);
      c.stroke();
    } else if (source) {
      c.fillStyle = theme.muted;
      c.font = `11px ${theme.mono}`;
      c.fillText(clipMiddle(item.node.name, box.w - 14, 6.7), middle, box.y + box.h / 2 + 0.5);
    } else {
      const extern = item.node.kernel === null;
      c.fillStyle = theme.text;
      c.font = `600 12px ${theme.font}`;
      const type = tensorType(item.node);
      c.fillText(label(item.node), middle, type ? box.y + 13.5 : box.y + box.h / 2);
      c.fillStyle = theme.muted;
      c.font = `10px ${theme.mono}`;
      c.fillText(type, middle, box.y + 28);
      c.fillStyle = extern ? theme.muted : kernelColour(item.node.kernel!, 1, theme.dark);
      c.fillRect(box.x, box.y + 8, 3, box.h - 16);
      this.heat(box, this.cost(item));
    }
    c.globalAlpha = 1;
  }

  /** What a box takes of the profiled call: a line below it, as long as its share. */
  private heat(box: Box, cost: { share: number } | null): void {
    if (!cost || cost.share < 0.002) {
      return;
    }
    const c = this.context;
    const width = box.w - 12;
    c.fillStyle = this.theme.border;
    c.fillRect(box.x + 6, box.y + box.h - 4, width, 2);
    c.fillStyle = this.theme.dark ? 'hsl(28, 85%, 58%)' : 'hsl(22, 85%, 46%)';
    c.fillRect(box.x + 6, box.y + box.h - 4, Math.max(2, width * Math.min(1, cost.share)), 2);
  }
}

/** The worst mark of an item's nodes. */
function markOf(item: Item, marked: Map<string, string>): string {
  if (item.kind === 'leaf') {
    return marked.get(item.node.name) ?? '';
  }
  const inside = item.children.map(child => markOf(child, marked)).filter(m => m);
  return inside.find(m => m !== 'large') ?? inside[0] ?? '';
}

function ends(edge: Edge): [number, number, number, number] {
  const { from, to } = edge;
  return [from.x + from.w / 2, from.y + from.h, to.x + to.w / 2, to.y];
}

function curve(y0: number, y1: number): number {
  return Math.max(12, Math.min(60, Math.abs(y1 - y0) / 2));
}

function trace(c: CanvasRenderingContext2D, edge: Edge): void {
  const [x0, y0, x1, y1] = ends(edge);
  const bend = curve(y0, y1);
  c.moveTo(x0, y0);
  c.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
}
