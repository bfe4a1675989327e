/**
 * The module tree over a graph's nodes.
 *
 * A group is one contiguous run of nodes of a module, in topological order, so that contracting any set of groups
 * leaves the graph acyclic; a module that is called twice gives two groups. Chains of groups with one member are
 * merged.
 */

import { GraphNode } from '../schema';
import { plural } from '../format';
import { isUpdate, placeNodes } from './parts';

export interface Leaf {
  kind: 'leaf';
  node: GraphNode;
  parent: Group;
}

export interface Group {
  kind: 'group';
  id: string;
  path: string;
  label: string;
  parent: Group | null;
  children: Item[];
  /** Nodes inside, at any depth: [first, last] of the tree's order. */
  first: number;
  last: number;
  depth: number;
}

export type Item = Leaf | Group;

export interface Tree {
  root: Group;
  /** By index of the node. */
  leaves: Leaf[];
  groups: Group[];
  /** Indices of the nodes, group by group. */
  order: number[];
}

function open(path: string, label: string, parent: Group | null, at: number, serial: number): Group {
  const depth = parent ? parent.depth + 1 : 0;
  return { kind: 'group', id: `${path}#${serial}`, path, label, parent, children: [], first: at, last: at, depth };
}

export function buildTree(nodes: GraphNode[]): Tree {
  const root = open('', '', null, 0, 0);
  const leaves: Leaf[] = new Array(nodes.length);
  const { order, paths } = placeNodes(nodes);
  const calls = new Map<string, number>();
  const stack: Group[] = [root];
  order.forEach((index, at) => {
    const node = nodes[index];
    const segments = paths[index];
    let depth = 0;
    while (depth < segments.length && depth + 1 < stack.length && stack[depth + 1].label === segments[depth]) {
      depth++;
    }
    stack.length = depth + 1;
    for (; depth < segments.length; depth++) {
      const parent = stack[stack.length - 1];
      const path = segments.slice(0, depth + 1).join('.');
      const serial = calls.get(path) ?? 0;
      calls.set(path, serial + 1);
      const group = open(path, segments[depth], parent, at, serial);
      parent.children.push(group);
      stack.push(group);
    }
    const parent = stack[stack.length - 1];
    const leaf: Leaf = { kind: 'leaf', node, parent };
    parent.children.push(leaf);
    leaves[index] = leaf;
    for (const group of stack) {
      group.last = at;
    }
  });
  const groups: Group[] = [];
  tidy(root, groups);
  return { root, leaves, groups, order };
}

/**
 * Merge a group whose only child is a group into it, and drop groups of a single node: a box around one box says
 * nothing.
 */
function tidy(group: Group, groups: Group[]): void {
  for (let i = 0; i < group.children.length; i++) {
    let child = group.children[i];
    while (child.kind === 'group' && child.children.length === 1) {
      const only: Item = child.children[0];
      if (only.kind === 'group') {
        only.label = `${child.label}.${only.label}`;
      }
      only.parent = group;
      child = only;
    }
    group.children[i] = child;
    if (child.kind === 'group') {
      if (/^\d+$/.test(child.label)) {
        // A number alone says nothing: `layer.3`.
        child.label = child.path.split('.').slice(-2).join('.');
      }
      child.depth = group.depth + 1;
      groups.push(child);
      tidy(child, groups);
    }
  }
}

const NO_OPERATIONS = ['input', 'parameter', 'output'];
/** Whether a node computes something: what a graph is given, and what it returns, are no operations. */
export const isOperation = (n: GraphNode) => !NO_OPERATIONS.includes(n.op);

/** How many operations a group holds. */
export function size(group: Group): number {
  let n = 0;
  for (const child of group.children) {
    n += child.kind === 'group' ? size(child) : isOperation(child.node) ? 1 : 0;
  }
  return n;
}

/** `12 operations`; of a group that only holds what the graph is given `3 inputs`. */
export function sizeWords(group: Group): string {
  const n = size(group);
  return n ? plural(n, 'operation') : plural(group.last - group.first + 1, 'input');
}

/** Of a graph larger than that, an overview is shown first. */
const LARGE = 120;

/**
 * Open groups from the top, level by level and the largest first, for as long as no more than `budget` items are
 * visible. Beside others an optimizer's step stays closed.
 */
export function initiallyOpen(tree: Tree, budget = tree.leaves.length > LARGE ? 16 : 90): Set<string> {
  const opened = new Set<string>();
  let visible = tree.root.children.length;
  let level: Group[] = tree.root.children.filter((c): c is Group => c.kind === 'group');
  level = level.length > 1 ? level.filter(group => !isUpdate(group.path)) : level;
  while (level.length) {
    const next: Group[] = [];
    for (const group of [...level].sort((a, b) => b.last - b.first - (a.last - a.first))) {
      // a graph that starts as one closed box says nothing
      const few = visible <= (tree.leaves.length > LARGE ? 3 : 8) && group.children.length <= 600;
      if (visible + group.children.length - 1 > budget && !few) {
        continue;
      }
      visible += group.children.length - 1;
      opened.add(group.id);
      next.push(...group.children.filter((c): c is Group => c.kind === 'group'));
    }
    level = next;
  }
  return opened;
}
