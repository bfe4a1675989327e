/** What a box says and how large it is, and where an edge runs, in drawing units. */

import { bytes, nodeBytes, shortOp, tensorType } from '../format';
import { GraphNode } from '../schema';
import { Edge } from './layout';
import { t } from '../texts';
import { Item } from './tree';

/**
 * How a name begins of what a graph was given by a module, or that a break had left on the stack: no word of the
 * program's.
 */
const OWN_ROOT = /^(self|stack_\d+)_(?=\D)/;
const LEAF_H = 38;
export const SOURCE_H = 22;
const GROUP_H = 44;

/** What a box says: a node's name, as in all other views, where it tells the operation (`add_3`); else the operation. */
export function label(node: GraphNode): string {
  const source = node.op === 'input' || node.op === 'parameter' || node.op === 'output';
  const op = shortOp(node.op);
  const numbered = node.name.startsWith(op) && /^_\d+$/.test(node.name.slice(op.length));
  return source ? node.name.replace(OWN_ROOT, '') : numbered ? node.name : op;
}

/** `f32 128×512, 262 KB`, with its strides where these are not those of rows after each other. */
export function valueWords(node: GraphNode): string {
  const size = nodeBytes(node);
  const strides = node.stride ? t('strides {0}', node.stride.join(', ')) : '';
  return [tensorType(node), size === null ? '' : bytes(size), strides].filter(Boolean).join(', ');
}

export function measure(item: Item): { w: number; h: number } {
  if (item.kind === 'group') {
    // of `248 operations · 79.5 ms` below it, too
    return { w: Math.max(150, item.label.length * 7.4 + 44), h: GROUP_H };
  }
  const { node } = item;
  if (node.op === 'input' || node.op === 'parameter' || node.op === 'output') {
    return { w: Math.max(48, Math.min(label(node).length, 26) * 6.4 + 22), h: SOURCE_H };
  }
  return { w: Math.max(64, Math.max(label(node).length * 7.4, tensorType(node).length * 6) + 26), h: LEAF_H };
}

/** An edge from forward to backward: a value that is kept meanwhile. */
export function isKept(edge: Edge): boolean {
  return edge.source.home !== undefined && edge.source.home.graph !== edge.target.home?.graph;
}

/** Where it begins and ends. */
export function ends(edge: Edge): [number, number, number, number] {
  const { from, to } = edge;
  return [from.x + from.w / 2, from.y + from.h, to.x + to.w / 2, to.y];
}

/** How far its control points lie from its ends. */
export function curve(y0: number, y1: number): number {
  return Math.max(12, Math.min(60, Math.abs(y1 - y0) / 2));
}

/** A point of an edge: 0 where it begins, 1 where it ends. */
export function along(edge: Edge, at: number): { x: number; y: number } {
  const [x0, y0, x1, y1] = ends(edge);
  const bend = curve(y0, y1);
  const of = (a: number, b: number, c: number, d: number) =>
    (1 - at) ** 3 * a + 3 * (1 - at) ** 2 * at * b + 3 * (1 - at) * at ** 2 * c + at ** 3 * d;
  return { x: of(x0, x0, x1, x1), y: of(y0, y0 + bend, y1 - bend, y1) };
}

export function trace(c: CanvasRenderingContext2D, edge: Edge): void {
  const [x0, y0, x1, y1] = ends(edge);
  const bend = curve(y0, y1);
  c.moveTo(x0, y0);
  c.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
}

/** An edge of which nobody sees the bend. */
export function straight(c: CanvasRenderingContext2D, edge: Edge): void {
  const [x0, y0, x1, y1] = ends(edge);
  c.moveTo(x0, y0);
  c.lineTo(x1, y1);
}
