/** Draws a laid-out graph: modules, kernels around their nodes, edges, boxes. What is not in view is left out. */

import { plural, seconds, tensorType } from '../format';
import { kernelColour, kernelText, kernelTint, Theme } from '../theme';
import { Box, Edge, Layout } from './layout';
import { along, ends, isKept, label, SOURCE_H, straight, trace, valueWords } from './shapes';
import { t } from '../texts';
import { Group, Item, sizeWords } from './tree';

/** Seconds of what a box stands for, and its share of all that was profiled; null where nothing is known. */
/** `of`: words for an operation that is a part of a kernel, whose own time nobody can measure. */
export type Cost = (item: Item) => { seconds: number; share: number; of?: string } | null;

export interface Rectangle {
  x: number;
  y: number;
  w: number;
  h: number;
}

interface Caption {
  text: string;
  x: number;
  y: number;
  colour: string;
}

/** The longest edge, in drawing units, along which a kernel's outline reaches. */
const LINK = 130;
/** How much is left of what a search has not found: it stays readable. */
const FADED = 0.5;
/** Edges of the chosen boxes that are labelled: more would cover each other. */
const MOST_LABELLED = 14;
/** Below it boxes are dots of a map, in their kernels' colours, and edges are straight. */
const MAP = 0.1;
/** Of a frame's name on a map, in pixels. */
const MAP_FONT = 11;

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

export class GraphDrawing {
  selected: Box[] = [];
  /** Edges of the selected boxes. */
  touched = new Set<Edge>();
  /** What a search has found; the others are faded. */
  found: Set<Box> | null = null;
  /** Nodes with a mark, by name. */
  marked = new Map<string, string>();
  /** Boxes that are not there yet. */
  ghosts: Set<Box> | null = null;
  private scale = 1;
  /** Names of kernels that are drawn: labels keep away from them. */
  private captions: Caption[] = [];

  constructor(
    private context: CanvasRenderingContext2D,
    public theme: Theme,
    private kernelNames: string[],
    private cost: Cost
  ) {}

  /** Nothing is chosen, found or faded any more: the boxes are others. */
  clear(): void {
    this.found = null;
    this.ghosts = null;
    this.touched.clear();
    this.selected = [];
  }

  /** `view`: what is seen of it; the context's transform is set already. */
  draw(layout: Layout, view: Rectangle, scale: number): void {
    this.scale = scale;
    const visible = (b: Box) =>
      b.x + b.w >= view.x && b.x <= view.x + view.w && b.y + b.h >= view.y && b.y <= view.y + view.h;

    for (const frame of layout.frames) {
      if (frame.parent && visible(frame)) {
        this.drawFrame(frame);
      }
    }
    const boxes = layout.boxes.filter(visible);
    const captions: Caption[] = [];
    this.captions = captions;
    if (scale > 0.12) {
      this.drawKernels(boxes, layout, captions);
    }
    this.drawEdges(layout, view, boxes);
    for (const box of boxes) {
      if (scale < MAP) {
        this.drawDot(box);
      } else {
        this.drawBox(box);
      }
    }
    this.drawCaptions(captions);
    if (scale <= 0.2) {
      this.drawNames(layout.frames.filter(f => f.parent && visible(f)));
    }
  }

  private drawFrame(frame: Box): void {
    const { context: c, theme } = this;
    const group = frame.item as Group;
    c.beginPath();
    c.roundRect(frame.x, frame.y, frame.w, frame.h, 8);
    c.globalAlpha = theme.dark ? 0.4 : 0.55;
    c.fillStyle = group.depth % 2 ? theme.surface : theme.background;
    c.fill();
    c.globalAlpha = 1;
    c.strokeStyle = theme.border;
    c.lineWidth = Math.max(1, 0.6 / this.scale);
    c.stroke();
    if (this.scale > 0.2) {
      c.fillStyle = theme.muted;
      c.font = `600 11px ${theme.font}`;
      c.textBaseline = 'middle';
      c.textAlign = 'left';
      c.fillText(`▾ ${group.label}`, frame.x + 10, frame.y + 13);
    }
  }

  /** Names of frames on a map, as large as they can be read: those that fit into their frame, outermost first. */
  private drawNames(frames: Box[]): void {
    const { context: c, theme } = this;
    const size = MAP_FONT / this.scale;
    c.font = `600 ${size}px ${theme.font}`;
    c.textAlign = 'left';
    c.textBaseline = 'top';
    c.lineJoin = 'round';
    c.lineWidth = 3 / this.scale;
    const taken: Rectangle[] = [];
    for (const frame of frames) {
      const text = (frame.item as Group).label;
      const place = { x: frame.x + size / 3, y: frame.y + size / 4, w: c.measureText(text).width, h: 1.2 * size };
      const free = taken.every(
        p => place.x > p.x + p.w || p.x > place.x + place.w || place.y > p.y + p.h || p.y > place.y + place.h
      );
      if (free && place.w < frame.w && place.h < frame.h) {
        taken.push(place);
        c.strokeStyle = theme.background;
        c.strokeText(text, place.x, place.y);
        c.fillStyle = theme.text;
        c.fillText(text, place.x, place.y);
      }
    }
  }

  /** A box on a map: at least a pixel, in its kernel's colour. */
  private drawDot(box: Box): void {
    const { context: c, theme } = this;
    const { item } = box;
    const chosen = this.selected.includes(box) || this.found?.has(box);
    const kernel = item.kind === 'leaf' ? item.node.kernel : null;
    c.globalAlpha = !chosen && (this.found || this.ghosts?.has(box)) ? FADED / 2 : 1;
    c.fillStyle = chosen ? theme.accent : kernel === null ? theme.muted : kernelColour(kernel, 0.9, theme.dark);
    const least = (chosen ? 4 : 1) / this.scale;
    c.fillRect(box.x, box.y, Math.max(box.w, least), Math.max(box.h, least));
    c.globalAlpha = 1;
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
            colour: kernelText(kernel, dark)
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

  private drawEdges(layout: Layout, view: Rectangle, boxes: Box[]): void {
    const c = this.context;
    const { theme } = this;
    c.lineWidth = Math.min(1.2, 0.8 / this.scale);
    c.strokeStyle = theme.muted;
    c.globalAlpha = this.scale < MAP ? 0.15 : this.selected.length ? 0.25 : 0.5;
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
          if (this.scale < MAP) {
            straight(c, edge);
          } else {
            trace(c, edge);
          }
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
      this.drawLabels(boxes);
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

  /** What flows along the edges of the chosen boxes; beside these boxes, which are drawn over it. */
  private drawLabels(boxes: Box[]): void {
    const c = this.context;
    c.font = `10px ${this.theme.mono}`;
    c.textAlign = 'center';
    c.textBaseline = 'middle';
    c.lineWidth = 4;
    c.lineJoin = 'round';
    const taken = this.captions.map(({ text, x, y }) => ({
      x: x + 2.6 * text.length,
      y: y - 6,
      half: 2.6 * text.length
    }));
    for (const edge of this.touched) {
      const text = edge.count > 1 ? plural(edge.count, 'value') : valueWords(edge.source);
      const half = c.measureText(text).width / 2 + 4;
      // towards the other end: many edges meet at the chosen box; never over another label, nor under a box
      const out = this.selected.includes(edge.from);
      const place = [0.62, 0.5, 0.78, 0.4, 0.9, 0.3].map(at => ({ ...along(edge, out ? at : 1 - at), half }));
      const free = place.find(
        p =>
          !taken.some(q => Math.abs(p.x - q.x) < p.half + q.half && Math.abs(p.y - q.y) < 13) &&
          !boxes.some(b => p.x + half > b.x && p.x - half < b.x + b.w && p.y > b.y - 6 && p.y < b.y + b.h + 6)
      );
      if (!free) {
        continue; // the hint of the box tells it
      }
      taken.push(free);
      const { x, y } = free;
      c.strokeStyle = this.theme.background;
      c.strokeText(text, x, y);
      c.fillStyle = this.theme.text;
      c.fillText(text, x, y);
    }
  }

  /** Whether an edge joins it to a chosen box. */
  private isBeside(box: Box): boolean {
    return [...this.touched].some(e => e.from === box || e.to === box);
  }

  private drawBox(box: Box): void {
    const { context: c, theme } = this;
    const { item } = box;
    const selected = this.selected.includes(box);
    const missed = this.found !== null && !this.found.has(box) && !selected && !this.isBeside(box);
    const faded = missed || this.ghosts?.has(box);
    const source = item.kind === 'leaf' && box.h === SOURCE_H;
    c.globalAlpha = faded ? FADED : 1;
    c.beginPath();
    c.roundRect(box.x, box.y, box.w, box.h, source ? box.h / 2 : 6);
    c.fillStyle = item.kind === 'group' ? theme.surface : source ? theme.raised : theme.background;
    c.fill();
    const hit = this.found?.has(box);
    c.strokeStyle = selected || hit ? theme.accent : theme.border;
    c.lineWidth = selected ? 2.5 : hit ? 2 : 1;
    const gone = item.kind === 'leaf' ? item.node.gone : undefined;
    if (gone) {
      c.strokeStyle = selected ? theme.accent : gone.now ? theme.error : theme.muted;
      c.setLineDash([4, 3]);
    }
    c.stroke();
    c.setLineDash([]);
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
      c.fillText(cost ? `${sizeWords(item)} · ${seconds(cost.seconds)}` : sizeWords(item), middle, box.y + 32);
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
      c.fillText(clipMiddle(label(item.node), box.w - 14, 6.7), middle, box.y + box.h / 2 + 0.5);
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
