/** The one selection that all views share: a line of code, and what belongs to it in graph, kernels and guards. */

import { expandGraph } from './payload';
import { GraphNode, Report } from './schema';

export interface Place {
  file?: string;
  line?: number | null;
  graph?: number | null;
  node?: number | null;
  kernel?: number | null;
}

export type Level = 'captured' | 'lowered';
type Listener = (place: Place, origin: unknown) => void;

/** The graph that a reader wants to see first: the one with the most operations of those kept. */
export function mainGraph(model: Model): number {
  const { graphs } = model.report;
  let best = 0;
  graphs.forEach((g, i) => {
    if (model.levels(i).length && (!model.levels(best).length || g.ops > graphs[best].ops)) {
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

  /** The level that was kept: lowered where it is there, else captured. */
  levels(graph: number): Level[] {
    const g = this.report.graphs[graph];
    return (['captured', 'lowered'] as Level[]).filter(level => g?.[level]?.count);
  }

  graphNodes(graph: number, level: Level): GraphNode[] {
    const key = `${graph}/${level}`;
    let nodes = this.nodes.get(key);
    if (!nodes) {
      nodes = expandGraph(this.report.graphs[graph]?.[level]);
      this.nodes.set(key, nodes);
    }
    return nodes;
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
    this.select({ file: node.file, line: node.line, graph, node: node.index, kernel: node.kernel }, origin);
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
    this.select({ file, line, kernel: known ? kernel : null, graph: known?.graph }, origin);
  }

  onSelect(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}
