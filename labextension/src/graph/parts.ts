/**
 * Where each node of a graph is drawn: its part (forward, backward, the optimizer's step), its module, and of an
 * optimizer's step the parameter that it updates. Gives an order that stays topological, in which each group is one
 * run.
 */

import { GraphNode } from '../schema';
import { t, words } from '../texts';

export interface Placing {
  /** Indices of all nodes, in the order of the tree. */
  order: number[];
  /** By index: the names of the groups that a node is in, outermost first. */
  paths: string[][];
}

const PART_WORDS: { [part: string]: string } = words({
  forward: 'forward',
  backward: 'backward',
  gradients: 'gradients',
  optimizer: 'optimizer'
});
/** Whether a group holds the optimizer's step: it says least, as it is the same for each parameter. */
export const isUpdate = (path: string) => path === PART_WORDS.optimizer;
const PARTS = ['backward', 'gradients', 'optimizer'];
/**
 * A value that more nodes of an optimizer's step read belongs to none of the parameters. With few parameters few read
 * what they share.
 */
const SHARED = [8, 5, 3];
const LEAST_FOLDED = 4;
/** Inputs that fit above a graph. */
const MOST_INPUTS = 12;

const isSource = (n: GraphNode) => n.op === 'input' || n.op === 'parameter';

/** The part that a node says it is of. */
export function partOf(n: GraphNode): string {
  const first = n.module.split('.', 1)[0];
  return PARTS.includes(first) ? first : 'forward';
}

export function placeNodes(nodes: GraphNode[]): Placing {
  const found = new Set(nodes.filter(n => !isSource(n)).map(partOf));
  const several = PARTS.some(p => found.has(p)) && found.size > 1;
  const paths: string[][] = nodes.map(n => {
    const segments = n.module ? n.module.split('.') : [];
    if (n.op === 'output' || isSource(n)) {
      return isSource(n) ? segments : [];
    }
    const part = partOf(n);
    const inside = segments[0] === part ? segments.slice(1) : segments;
    return several ? [PART_WORDS[part], ...inside] : PARTS.includes(part) ? inside : segments;
  });
  const readers: number[][] = nodes.map(() => []);
  nodes.forEach(n => n.inputs.forEach(i => readers[i].push(n.index)));

  const updates = firstOf(SHARED, most => foldUpdates(nodes, readers, most));
  if (updates) {
    nodes.forEach(n => {
      const parameter = updates.of[n.index];
      if (parameter && !isSource(n)) {
        paths[n.index] = [
          ...(several ? [PART_WORDS.optimizer] : []),
          t('each of {0} parameters', updates.count),
          parameter
        ];
      }
    });
  }
  placeSources(nodes, readers, paths, several);

  // Nodes in the order of the graph; an update's after what all updates share, one parameter after the other; a source
  // before its first reader.
  const rank = (n: GraphNode) => (updates && partOf(n) === 'optimizer' && !isSource(n) ? updates.rank[n.index] : -1);
  const at = (n: GraphNode) => n.gone?.after ?? n.index;
  const inner = nodes.filter(n => !isSource(n)).sort((a, b) => at(a) - at(b) || a.index - b.index);
  const first = inner.findIndex(n => rank(n) >= 0);
  const head = first < 0 ? inner : inner.slice(0, first);
  const tail = first < 0 ? [] : inner.slice(first);
  const steps = tail.filter(n => rank(n) >= 0).sort((a, b) => rank(a) - rank(b) || at(a) - at(b) || a.index - b.index);
  const inOrder = [...head, ...steps, ...tail.filter(n => rank(n) < 0)];
  const sorted = several ? inRuns(inOrder, n => paths[n.index][0] ?? '') : inOrder;
  const order: number[] = [];
  const taken = new Uint8Array(nodes.length);
  for (const n of nodes) {
    if (isSource(n) && (!paths[n.index].length || !readers[n.index].length || paths[n.index][0] === INPUTS())) {
      order.push(n.index);
      taken[n.index] = 1;
    }
  }
  for (const n of sorted) {
    for (const i of n.inputs) {
      if (isSource(nodes[i]) && !taken[i]) {
        order.push(i);
        taken[i] = 1;
      }
    }
    order.push(n.index);
  }
  return { order, paths };
}

/**
 * Nodes with each part in as few runs as their inputs allow: while a node of the part is ready, it comes next. What a
 * part computes of nothing (a constant) would otherwise part another in two.
 */
function inRuns(nodes: GraphNode[], part: (n: GraphNode) => string): GraphNode[] {
  const at = new Map(nodes.map((n, i) => [n.index, i]));
  const parts = [...new Set(nodes.map(part))];
  // Of each part its nodes in order; those before `next` have been taken, and some behind it.
  const own = new Map(parts.map(p => [p, nodes.flatMap((n, i) => (part(n) === p ? [i] : []))]));
  const next = new Map(parts.map(p => [p, 0]));
  const taken = new Uint8Array(nodes.length);
  const ready = (i: number) => nodes[i].inputs.every(k => !at.has(k) || taken[at.get(k)!] || at.get(k)! > i);
  const out: GraphNode[] = [];
  while (out.length < nodes.length) {
    const first = taken.indexOf(0); // all before it is taken, so that it is ready
    const now = part(nodes[first]);
    const row = own.get(now)!;
    // One pass is enough: inputs stand before what reads them.
    for (let k = next.get(now)!; k < row.length; k++) {
      if (!taken[row[k]] && ready(row[k])) {
        taken[row[k]] = 1;
        out.push(nodes[row[k]]);
      }
    }
    while (taken[row[next.get(now)!]]) {
      next.set(now, next.get(now)! + 1);
    }
  }
  return out;
}

function firstOf<X, Y>(candidates: X[], make: (x: X) => Y | null): Y | null {
  for (const x of candidates) {
    const made = make(x);
    if (made !== null) {
      return made;
    }
  }
  return null;
}

/** `net.0.weight`: a parameter by its module, where that is known. */
function parameterName(n: GraphNode): string {
  const module = n.module.replace(/^(backward|gradients|optimizer)\.?/, '');
  const inName = `${module.replace(/\W/g, '_')}_`;
  return !module ? n.name : n.name.startsWith(inName) ? `${module}.${n.name.slice(inName.length)}` : module;
}

const INPUTS = () => t('inputs');

/**
 * A parameter stands in the module of its first reader; an input above the graph, or, where there are many, with what
 * alone reads it.
 */
function placeSources(nodes: GraphNode[], readers: number[][], paths: string[][], several: boolean): void {
  const outside: GraphNode[] = [];
  const inputs = nodes.filter(n => n.op === 'input').length;
  for (const n of nodes) {
    if (!isSource(n) || !readers[n.index].length) {
      continue;
    }
    const theirs = readers[n.index].map(i => paths[i]);
    if (n.op === 'parameter') {
      paths[n.index] = several ? theirs[0] : n.module ? n.module.split('.') : theirs[0];
      continue;
    }
    let shared = theirs[0];
    for (const path of theirs) {
      let k = 0;
      while (k < shared.length && shared[k] === path[k]) {
        k++;
      }
      shared = shared.slice(0, k);
    }
    if (shared.length && (inputs > MOST_INPUTS || (several && shared[0] !== PART_WORDS.forward))) {
      paths[n.index] = shared;
    } else {
      paths[n.index] = [];
      outside.push(n);
    }
  }
  if (outside.length > MOST_INPUTS) {
    outside.forEach(n => (paths[n.index] = [INPUTS()]));
  }
}

/**
 * The operations of an optimizer's step that update one parameter, for each of them: what hangs together once the
 * values that all of them share (a learning rate, a count of steps) are left out. Null where there are few, or they
 * depend on each other.
 */
function foldUpdates(
  nodes: GraphNode[],
  readers: number[][],
  most: number
): { of: (string | undefined)[]; rank: number[]; count: number } | null {
  const members = nodes.filter(n => !isSource(n) && n.op !== 'output' && partOf(n) === 'optimizer');
  const run = nodes
    .slice(members[0]?.index ?? 0, (members[members.length - 1]?.index ?? -1) + 1)
    .filter(n => !isSource(n));
  if (!members.length || run.length !== members.length) {
    return null; // several steps in one graph: what stands between them reads one and is read by the next
  }
  const inside = new Uint8Array(nodes.length);
  members.forEach(n => (inside[n.index] = 1));
  const up = nodes.map(n => n.index);
  const root = (i: number): number => {
    while (up[i] !== i) {
      up[i] = up[up[i]];
      i = up[i];
    }
    return i;
  };
  const wide = nodes.map(n => readers[n.index].filter(i => inside[i]).length > most);
  for (const n of members) {
    for (const i of n.inputs) {
      if (!wide[i] && !wide[n.index] && (inside[i] || isSource(nodes[i]))) {
        up[root(i)] = root(n.index);
      }
    }
  }
  // What updates a parameter reads it, or keeps state of it; all else is shared.
  const sizes = new Map<number, number>();
  members.forEach(n => sizes.set(root(n.index), (sizes.get(root(n.index)) ?? 0) + 1));
  const named = new Map<number, string>();
  nodes.forEach(n => {
    if (isSource(n) && !wide[n.index] && sizes.has(root(n.index))) {
      const at = root(n.index);
      const shape = Array.isArray(n.shape) && n.shape.length ? ` ${n.shape.join('×')}` : '';
      if (n.op === 'parameter' || !named.has(at)) {
        named.set(at, n.op === 'parameter' ? parameterName(n) + shape : n.name);
      }
    }
  });
  const updates = [...named.keys()].filter(at => (sizes.get(at) ?? 0) > 2);
  if (updates.length < LEAST_FOLDED) {
    return null;
  }
  const number = new Map(updates.map((at, k) => [at, k + 1]));
  const rank = nodes.map(n => (inside[n.index] ? (number.get(root(n.index)) ?? 0) : -1));
  const late = members.some(n => !rank[n.index] && n.inputs.some(i => inside[i] && rank[i] > 0));
  const crossed = members.some(
    n => rank[n.index] > 0 && n.inputs.some(i => inside[i] && rank[i] > 0 && rank[i] !== rank[n.index])
  );
  if (late || crossed) {
    return null;
  }
  return {
    of: nodes.map(n => (rank[n.index] > 0 ? named.get(root(n.index)) : undefined)),
    rank,
    count: updates.length
  };
}
