/** What forward leaves for backward, where both are one graph: no tensor leaves it, but memory is held meanwhile. */

import { partOf } from '../graph/parts';
import { nodeBytes, shortOp } from '../format';
import { GraphNode, PartitionValue, Shape } from '../schema';
import { Model } from '../selection';

export interface Kept {
  graph: number;
  bytes: number;
  /** The largest first. */
  values: PartitionValue[];
  /** By name of a value, the operations of backward that read it. */
  readers: Map<string, string>;
}

const VIEWS = new Set(
  `view _unsafe_view reshape permute transpose t expand slice select squeeze unsqueeze detach alias as_strided split
   split_with_sizes unbind chunk diagonal view_as_real view_as_complex`.split(/\s+/)
);
const SOURCES = ['input', 'parameter', 'output'];

/** Of each graph with a backward pass inside, the most bytes first. */
export function keptInside(model: Model): Kept[] {
  const { report } = model;
  const parted = new Set(report.partitions.flatMap(p => [p.graph, ...p.backward]));
  return report.graphs
    .flatMap((_, graph) => {
      const kept = parted.has(graph) || !model.levels(graph).includes('lowered') ? null : keptOf(model, graph);
      return kept?.values.length ? [kept] : [];
    })
    .sort((a, b) => b.bytes - a.bytes);
}

function keptOf(model: Model, graph: number): Kept {
  const nodes = model.graphNodes(graph, 'lowered');
  const buffers = model.report.memory.find(m => m.graph === graph)?.buffers ?? [];
  // `addmm_product`: the memory of `addmm`; what has none is computed again, inside of the kernel that reads it.
  const names = new Set(buffers.flatMap(b => [b.name, b.name.replace(/_[a-z]\w*$/, '')]));
  const found = new Map<GraphNode, string[]>();
  for (const n of nodes) {
    if (partOf(n) !== 'backward' || SOURCES.includes(n.op)) {
      continue;
    }
    for (const i of n.inputs) {
      const value = baseOf(nodes[i], nodes);
      const stays = partOf(value) === 'forward' && !SOURCES.includes(value.op) && value.op !== 'backward';
      const stored = names.size ? names.has(value.name) : value.kernel === null || value.kernel !== n.kernel;
      if (stays && stored && !isView(n)) {
        const ops = found.get(value) ?? [];
        found.set(value, ops.includes(shortOp(n.op)) ? ops : [...ops, shortOp(n.op)]);
      }
    }
  }
  const values = [...found.keys()]
    .map((n): PartitionValue => ({
      name: n.name,
      op: n.op,
      kind: 'inside',
      shape: n.shape as Shape | null,
      dtype: n.dtype,
      bytes: nodeBytes(n) ?? 0,
      module: n.module,
      file: n.file,
      line: n.line
    }))
    .sort((a, b) => b.bytes - a.bytes);
  return {
    graph,
    values,
    bytes: values.reduce((sum, v) => sum + v.bytes, 0),
    readers: new Map([...found].map(([n, ops]) => [n.name, ops.join(', ')]))
  };
}

/** Whether an operation computes nothing: it shows a value in another shape. */
export const isView = (n: GraphNode) => VIEWS.has(shortOp(n.op));

/** What a chain of views is a view of. */
export function baseOf(node: GraphNode, nodes: GraphNode[]): GraphNode {
  let at = node;
  while (isView(at) && at.inputs.length) {
    at = nodes[at.inputs[0]];
  }
  return at;
}
