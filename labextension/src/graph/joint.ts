/** Forward and backward as one graph: what forward keeps is drawn as edges from its node to where backward reads it. */

import { GraphNode, Partition, Report } from '../schema';

/** The partition that a graph is the forward or a backward graph of, with both parts known. */
export function partitionOf(report: Report, graph: number): Partition | null {
  return (
    report.partitions.find(
      p => p.graph !== null && p.backward.length > 0 && (p.graph === graph || p.backward.includes(graph))
    ) ?? null
  );
}

/**
 * The graphs that the joint graph is put together of: forward, and the backward graph that `graph` is, or the first
 * one.
 */
export function partsOf(p: Partition, graph: number): [number, number] {
  return [p.graph!, p.backward.includes(graph) ? graph : p.backward[0]];
}

/**
 * The nodes of both, in topological order, each with its home. Placeholders of the backward graph for values of the
 * forward graph (`saved_NAME`, or an input's own name) are gone: their readers read the forward node.
 */
export function joinGraphs(
  forward: GraphNode[],
  backward: GraphNode[],
  [first, second]: [number, number]
): GraphNode[] {
  const joint: GraphNode[] = [];
  const put = (node: GraphNode, graph: number, inputs: number[], part: string): number => {
    joint.push({
      ...node,
      index: joint.length,
      inputs,
      module: node.module && node.module !== part ? `${part}.${node.module.replace(/^backward\./, '')}` : part,
      home: { graph, index: node.index }
    });
    return joint.length - 1;
  };
  const byName = new Map<string, number>();
  const place: number[] = [];
  for (const node of forward) {
    place[node.index] = put(
      node,
      first,
      node.inputs.map(i => place[i]),
      'forward'
    );
    byName.set(node.name, place[node.index]);
  }
  const moved: number[] = [];
  for (const node of backward) {
    const source = ['input', 'parameter'].includes(node.op)
      ? (byName.get(node.name.replace(/^saved_/, '')) ?? byName.get(node.name))
      : undefined;
    moved[node.index] =
      source ??
      put(
        node,
        second,
        node.inputs.map(i => moved[i]),
        'backward'
      );
  }
  return joint;
}
