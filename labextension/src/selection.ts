/** The one selection that all views share: a line of code, and what belongs to it in graph, kernels and guards. */

import { joinGraphs, partitionOf, partsOf } from './graph/joint';
import { expandGraph } from './payload';
import { GraphNode, Report } from './schema';

export interface Place {
  file?: string;
  line?: number | null;
  graph?: number | null;
  node?: number | null;
  /** A second node of the graph, chosen beside the first: the question is what keeps the two apart. */
  beside?: number;
  kernel?: number | null;
  /** The line itself was chosen: `kernel` is but one of those that hold an operation of it. */
  whole?: boolean;
}

/** `joint`: forward and backward together. */
export type Level = 'captured' | 'lowered' | 'joint';
type Listener = (place: Place, origin: unknown) => void;

/**
 * The graph that a reader wants to see first: of those kept the one that takes longest, forward before backward;
 * without times the one with the most operations.
 */
export function mainGraph(model: Model): number {
  const { graphs, kernels, externs, partitions, profiles } = model.report;
  const backward = new Set(partitions.flatMap(p => p.backward));
  const profiled = new Set(profiles.flatMap(p => p.columns.graph ?? []));
  const took = graphs.map(g =>
    g.kernels.reduce((sum, k) => sum + (kernels[k]?.seconds ?? 0) * (kernels[k]?.launches ?? 0), 0)
  );
  externs.forEach(x => (took[x.graph ?? -1] += x.seconds ?? 0));
  const timed = took.some(t => t > 0);
  const rank = (i: number) => {
    const weight = timed ? took[i] : graphs[i].ops;
    return model.levels(i).length ? (backward.has(i) ? 0 : 1e9) + weight * (profiled.has(i) ? 2 : 1) : -1;
  };
  let best = 0;
  graphs.forEach((_, i) => {
    if (rank(i) > rank(best)) {
      best = i;
    }
  });
  return best;
}

/** The report with its graphs expanded once, and the selection over it. */
export class Model {
  readonly report: Report;
  place: Place = {};
  private nodes = new Map<string, GraphNode[]>();
  private listeners = new Set<Listener>();

  constructor(report: Report) {
    this.report = report;
  }

  /** The levels that were kept. */
  levels(graph: number): Level[] {
    const g = this.report.graphs[graph];
    const own = (['captured', 'lowered'] as const).filter(level => g?.[level]?.count);
    const partition = partitionOf(this.report, graph);
    const whole = partition && partsOf(partition, graph).every(i => this.report.graphs[i]?.lowered?.count);
    return whole ? [...own, 'joint'] : own;
  }

  graphNodes(graph: number, level: Level): GraphNode[] {
    const key = `${graph}/${level}`;
    let nodes = this.nodes.get(key);
    if (!nodes) {
      if (level === 'joint') {
        const parts = partsOf(partitionOf(this.report, graph)!, graph);
        nodes = joinGraphs(this.graphNodes(parts[0], 'lowered'), this.graphNodes(parts[1], 'lowered'), parts);
      } else {
        nodes = expandGraph(this.report.graphs[graph]?.[level]);
      }
      this.nodes.set(key, nodes);
    }
    return nodes;
  }

  /** A node of the lowered graph, by its name. */
  nodeNamed(graph: number, name: string): GraphNode | undefined {
    return this.levels(graph).includes('lowered')
      ? this.graphNodes(graph, 'lowered').find(n => n.name === name)
      : undefined;
  }

  isHere(file: string | undefined): boolean {
    return !file || file === this.report.source.file;
  }

  select(place: Place, origin?: unknown): void {
    this.place = place;
    for (const listener of [...this.listeners]) {
      listener(place, origin);
    }
  }

  selectNode(graph: number, node: GraphNode, origin?: unknown): void {
    const home = node.home ?? { graph, index: node.index };
    this.select({ file: node.file, line: node.line, graph: home.graph, node: home.index, kernel: node.kernel }, origin);
  }

  selectKernel(index: number, origin?: unknown): void {
    const kernel = this.report.kernels[index];
    const [file, line] = kernel?.lines[0] ?? [undefined, undefined];
    this.select({ kernel: index, graph: kernel?.graph, file, line }, origin);
  }

  /** A line lights the kernels that hold an operation of it. */
  selectLine(file: string, line: number, origin?: unknown): void {
    const kernel = this.report.kernels.findIndex(k => k.lines.some(([f, l]) => f === file && l === line));
    const known = kernel >= 0 ? this.report.kernels[kernel] : null;
    this.select({ file, line, kernel: known ? kernel : null, graph: known?.graph, whole: true }, origin);
  }

  /** Two operations of a graph by their names. */
  selectPair(graph: number, names: string[]): void {
    const [a, b] = names.map(name => this.nodeNamed(graph, name));
    if (a) {
      this.select({ file: a.file, line: a.line, graph, node: a.index, beside: b?.index, kernel: a.kernel });
    }
  }

  onSelect(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}
