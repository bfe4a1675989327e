/**
 * Layered layout of nested groups, in time linear in nodes and edges (times the depth of nesting).
 *
 * Each opened group is laid out on its own and is then one box in its parent's layout, so boxes never overlap. Layers
 * are longest paths; inputs sit directly above their first reader; the order inside a layer follows two barycentre
 * sweeps; the x positions minimise the squared distance to the neighbours' mean under the minimal gaps (pool adjacent
 * violators). A very tall chain is folded into columns, a very wide layer into rows.
 */

import { GraphNode } from '../schema';
import { Group, Item, Tree } from './tree';

export interface Box {
  item: Item;
  /** Top left corner and size, in drawing units; absolute once the layout is done. */
  x: number;
  y: number;
  w: number;
  h: number;
  opened: boolean;
  layer: number;
  parent: Box | null;
  children: Box[];
}

export interface Edge {
  from: Box;
  to: Box;
  /** The nodes at both ends; for collapsed groups one edge stands for all between them. */
  source: GraphNode;
  target: GraphNode;
  count: number;
}

export interface Layout {
  root: Box;
  /** Leaves and collapsed groups, top to bottom. */
  boxes: Box[];
  /** Opened groups, outermost first. */
  frames: Box[];
  edges: Edge[];
  /** The visible box that holds each node. */
  boxOf: Box[];
}

export interface Measure {
  (item: Item): { w: number; h: number };
}

const GAP_X = 22;
const GAP_Y = 30;
const PAD = 14;
const TITLE = 24;
/** Frames that are higher continue in columns: all of a graph is to be readable, in a view that is wider than high. */
const FOLD_FROM = 2000;
const WIDE = 1.8;
const FOLD_GAP = 60;
/** A layer that is wider continues in further rows, where its frame would be a line: hundreds of parameters' updates. */
const WRAP_FROM = 1400;

interface Work {
  box: Box;
  preds: number[];
  succs: number[];
  center: number;
}

/** Inputs, parameters and what is made from nothing (full, arange): drawn beside their first reader. */
function isSource(item: Item): boolean {
  return item.kind === 'leaf' && !item.node.inputs.length;
}

export function layout(tree: Tree, opened: Set<string>, measure: Measure): Layout {
  const boxes: Box[] = [];
  const frames: Box[] = [];
  const boxOf: Box[] = new Array(tree.leaves.length);

  const build = (item: Item, parent: Box | null): Box => {
    const isOpen = item.kind === 'group' && (item.parent === null || opened.has(item.id));
    const box: Box = { item, x: 0, y: 0, w: 0, h: 0, opened: isOpen, layer: 0, parent, children: [] };
    if (isOpen) {
      frames.push(box);
      box.children = (item as Group).children.map(child => build(child, box));
    } else {
      Object.assign(box, measure(item));
      boxes.push(box);
      if (item.kind === 'leaf') {
        boxOf[item.node.index] = box;
      } else {
        for (let i = item.first; i <= item.last; i++) {
          boxOf[tree.order[i]] = box;
        }
      }
    }
    return box;
  };
  const root = build(tree.root, null);

  const edges = collectEdges(tree, boxOf);
  const depth = (box: Box | null) => {
    let d = 0;
    for (let b = box; b && b.parent; b = b.parent) {
      d++;
    }
    return d;
  };
  // Each edge belongs to the innermost frame that holds both its ends, between two children of that frame.
  const inner = new Map<Box, [Box, Box][]>();
  for (const edge of edges) {
    let a = edge.from;
    let b = edge.to;
    let da = depth(a);
    let db = depth(b);
    for (; da > db; da--) {
      a = a.parent!;
    }
    for (; db > da; db--) {
      b = b.parent!;
    }
    while (a.parent !== b.parent) {
      a = a.parent!;
      b = b.parent!;
    }
    if (a !== b && a.parent) {
      const list = inner.get(a.parent);
      if (list) {
        list.push([a, b]);
      } else {
        inner.set(a.parent, [[a, b]]);
      }
    }
  }
  for (let i = frames.length - 1; i >= 0; i--) {
    arrange(frames[i], inner.get(frames[i]) ?? []);
  }
  const settle = (box: Box, x: number, y: number) => {
    box.x += x;
    box.y += y;
    for (const child of box.children) {
      settle(child, box.x, box.y);
    }
  };
  settle(root, 0, 0);
  boxes.sort((a, b) => a.y - b.y || a.x - b.x);
  return { root, boxes, frames, edges, boxOf };
}

function collectEdges(tree: Tree, boxOf: Box[]): Edge[] {
  const edges: Edge[] = [];
  const seen = new Map<Box, Map<Box, Edge>>();
  for (const { node } of tree.leaves) {
    const to = boxOf[node.index];
    for (const input of node.inputs) {
      const from = boxOf[input];
      if (!from || from === to) {
        continue;
      }
      let targets = seen.get(from);
      if (!targets) {
        seen.set(from, (targets = new Map()));
      }
      const known = targets.get(to);
      if (known) {
        known.count++;
      } else {
        const edge = { from, to, source: tree.leaves[input].node, target: node, count: 1 };
        targets.set(to, edge);
        edges.push(edge);
      }
    }
  }
  return edges;
}

/** Place the children of one frame relative to it, and give the frame its size. */
function arrange(frame: Box, edges: [Box, Box][]): void {
  const title = frame.parent ? TITLE : 0;
  const index = new Map(frame.children.map((box, i) => [box, i]));
  const work: Work[] = frame.children.map(box => ({ box, preds: [], succs: [], center: 0 }));
  const linked = new Set<number>();
  for (const [a, b] of edges) {
    const i = index.get(a)!;
    const j = index.get(b)!;
    const key = i * work.length + j;
    if (!linked.has(key)) {
      linked.add(key);
      work[j].preds.push(i);
      work[i].succs.push(j);
    }
  }
  // Children are in topological order: one pass gives the longest paths.
  for (const w of work) {
    w.box.layer = 0;
    for (const p of w.preds) {
      w.box.layer = Math.max(w.box.layer, work[p].box.layer + 1);
    }
  }
  for (const w of work) {
    if (isSource(w.box.item) && w.succs.length) {
      w.box.layer = Math.max(0, Math.min(...w.succs.map(s => work[s].box.layer)) - 1);
    }
  }
  const layers: number[][] = [];
  work.forEach((w, i) => (layers[w.box.layer] ??= []).push(i));
  let filled = layers.filter(layer => layer);

  const order = new Float64Array(work.length);
  filled.forEach(layer => layer.forEach((i, at) => (order[i] = at)));
  const sweep = (layer: number[], side: 'preds' | 'succs') => {
    const key = new Map(
      layer.map(i => {
        const near = work[i][side];
        return [i, near.length ? near.reduce((sum, n) => sum + order[n], 0) / near.length : order[i]];
      })
    );
    layer.sort((a, b) => key.get(a)! - key.get(b)! || a - b);
    layer.forEach((i, at) => (order[i] = at));
  };
  for (let round = 0; round < 2; round++) {
    filled.forEach(layer => layer.length > 1 && sweep(layer, 'preds'));
    [...filled].reverse().forEach(layer => layer.length > 1 && sweep(layer, 'succs'));
  }

  filled = wrapped(filled, work);
  for (const layer of filled) {
    spread(
      layer.map(i => work[i]),
      w => w.center
    );
  }
  const mean = (w: Work, near: number[]) =>
    near.length ? near.reduce((sum, n) => sum + work[n].center, 0) / near.length : w.center;
  for (let round = 0; round < 2; round++) {
    for (const layer of filled) {
      spread(
        layer.map(i => work[i]),
        w => mean(w, w.preds)
      );
    }
    for (const layer of [...filled].reverse()) {
      spread(
        layer.map(i => work[i]),
        w => mean(w, w.succs.length ? w.succs : w.preds)
      );
    }
  }

  let y = title + PAD;
  let left = Infinity;
  let right = -Infinity;
  const tops: number[] = [];
  for (const layer of filled) {
    const height = Math.max(...layer.map(i => work[i].box.h));
    tops.push(y);
    for (const i of layer) {
      const { box, center } = work[i];
      box.x = center - box.w / 2;
      box.y = y + (isSource(box.item) ? height - box.h : 0); // sources stand at the foot of their layer
      left = Math.min(left, box.x);
      right = Math.max(right, box.x + box.w);
    }
    y += height + GAP_Y;
  }
  if (!filled.length) {
    left = right = 0;
    y = title + PAD + GAP_Y;
  }
  for (const { box } of work) {
    box.x += PAD - left;
  }
  const width = right - left;
  const height = y - GAP_Y - title - PAD;
  const tallest = filled.reduce((most, layer) => Math.max(most, ...layer.map(i => work[i].box.h)), 0);
  const columns = fold(width, height, tallest);
  let bottom = title + PAD + height;
  if (columns > 1) {
    bottom = 0;
    let column = 0;
    let start = title + PAD;
    filled.forEach((layer, at) => {
      if (column < columns - 1 && tops[at] - start >= height / columns) {
        column++;
        start = tops[at];
      }
      for (const i of layer) {
        const { box } = work[i];
        box.x += column * (width + FOLD_GAP);
        box.y += title + PAD - start;
        bottom = Math.max(bottom, box.y + box.h);
      }
    });
  }
  const caption = frame.item.kind === 'group' ? frame.item.label.length * 7.5 + 2 * PAD + 30 : 0;
  frame.w = Math.max(columns * width + (columns - 1) * FOLD_GAP + 2 * PAD, caption);
  frame.h = bottom + PAD;
}

/** The layers, those that are far wider than their frame is high in several rows. */
function wrapped(layers: number[][], work: Work[]): number[][] {
  const wide = (i: number) => work[i].box.w + GAP_X;
  const height = (layer: number[]) => Math.max(...layer.map(i => work[i].box.h)) + GAP_Y;
  const width = (layer: number[]) => layer.reduce((sum, i) => sum + wide(i), 0);
  const area = layers.reduce((sum, layer) => sum + width(layer) * height(layer), 0);
  const room = Math.max(WRAP_FROM, Math.sqrt(WIDE * area), ...work.map((_, i) => wide(i)));
  return layers.flatMap(layer => {
    const rows: number[][] = [[]];
    const even = width(layer) / Math.ceil(width(layer) / room);
    let at = 0;
    for (const i of layer) {
      const row = rows[rows.length - 1];
      if (row.length && (at + wide(i) > room || at >= even)) {
        rows.push([i]);
        at = wide(i);
      } else {
        row.push(i);
        at += wide(i);
      }
    }
    return rows;
  });
}

/** Deep models are long chains: a very tall frame continues in further columns. */
function fold(width: number, height: number, tallest: number): number {
  if (height < FOLD_FROM || height < 4 * width) {
    return 1;
  }
  const columns = Math.max(1, Math.round(Math.sqrt((WIDE * height) / (width + FOLD_GAP))));
  return Math.max(1, Math.min(columns, Math.floor(height / tallest))); // a column is no shorter than its tallest member
}

/** Centers as near to the wanted ones as the gaps allow (least squares). */
function spread(layer: Work[], wanted: (w: Work) => number): void {
  const offsets: number[] = [];
  let at = 0;
  layer.forEach((w, i) => {
    if (i > 0) {
      at += layer[i - 1].box.w / 2 + GAP_X + w.box.w / 2;
    }
    offsets.push(at);
  });
  const blocks: { mean: number; size: number; from: number }[] = [];
  layer.forEach((w, i) => {
    let block = { mean: wanted(w) - offsets[i], size: 1, from: i };
    while (blocks.length && blocks[blocks.length - 1].mean > block.mean) {
      const last = blocks.pop()!;
      const size = last.size + block.size;
      block = { mean: (last.mean * last.size + block.mean * block.size) / size, size, from: last.from };
    }
    blocks.push(block);
  });
  for (const block of blocks) {
    for (let i = block.from; i < block.from + block.size; i++) {
      layer[i].center = block.mean + offsets[i];
    }
  }
}
