/**
 * A profiled call: its spans out of the report's columns, the bars of its picture, and what it says of lines and nodes.
 */

import { CallProfile, Report } from '../schema';

export interface Span {
  index: number;
  kind: 'call' | 'entry' | 'guards' | 'graph' | 'kernel' | 'library' | 'launch' | 'memory' | 'plan' | 'python' | string;
  name: string;
  parent: number;
  /** Seconds after the call's begin. */
  begin: number;
  seconds: number;
  graph: number | null;
  kernel: number | null;
  /** Of the lowered graph. */
  node: string;
  file: string;
  line: number | null;
  module: string;
  part: 'forward' | 'backward' | 'optimizer' | '' | string;
  /** Where its line lies outside of the cell: the cell's line that led there. */
  called: number | null;
}

/** One rectangle: a span, or a group of steps that follow each other (a part, a module). */
export interface Bar {
  index: number;
  span: Span | null;
  name: string;
  /** Where a group is: `backward.encoder.0`. */
  path: string;
  part: string;
  begin: number;
  end: number;
  depth: number;
  parent: number;
  /** Seconds of the spans in it that no other bar of its holds. */
  steps: number;
}

const STEPS = ['kernel', 'library'];
/** Levels of modules that are drawn: a deep nesting of one in the other says little. */
const MOST_LEVELS = 5;

export const isStep = (s: Span) => STEPS.includes(s.kind);
/** Done by a GPU while the host goes on: a step in the call itself. */
export const onDevice = (s: Span) => isStep(s) && s.parent === 0;
/** Of a step, as the host sees it. */
const inPlan = (s: Span) => isStep(s) || s.kind === 'launch';

export function spansOf(p: CallProfile): Span[] {
  const { columns: c, tables } = p;
  return (c.kind ?? []).map((kind, index) => {
    const [file, line] = tables.line[c.line[index]];
    return {
      index,
      kind: tables.kind[kind],
      name: tables.name[c.name[index]],
      parent: c.parent[index],
      begin: c.begin[index] * 1e-9,
      seconds: c.length[index] * 1e-9,
      graph: c.graph[index] < 0 ? null : c.graph[index],
      kernel: c.kernel[index] < 0 ? null : c.kernel[index],
      node: tables.node[c.node[index]],
      file,
      line,
      module: tables.module[c.module[index]],
      part: tables.part[c.part[index]],
      called: (c.called?.[index] ?? -1) < 0 ? null : c.called[index]
    };
  });
}

/**
 * The names of the groups that a step lies in, outermost first: its part, where the graph has several, and its
 * module's.
 */
function groupsOf(span: Span, parts: boolean): string[] {
  const [first, ...rest] = span.module.split('.');
  const inside = first === span.part ? rest : span.module ? [first, ...rest] : [];
  // `layer.3`: a number alone says nothing.
  const names: string[] = [];
  for (const name of inside) {
    if (/^\d+$/.test(name) && names.length) {
      names[names.length - 1] += `.${name}`;
    } else {
      names.push(name);
    }
  }
  return [...(parts && span.part ? [span.part] : []), ...names.slice(0, MOST_LEVELS)];
}

/** The bars of the picture, parents before what lies in them. */
export function barsOf(spans: Span[]): Bar[] {
  const bars: Bar[] = [];
  const inside = new Map<number, Span[]>();
  for (const s of spans.filter(s => !onDevice(s))) {
    const list = inside.get(s.parent);
    if (list) {
      list.push(s);
    } else {
      inside.set(s.parent, [s]);
    }
  }
  const add = (bar: Omit<Bar, 'index' | 'steps'>): Bar => {
    const made = { ...bar, index: bars.length, steps: bar.span && isStep(bar.span) ? bar.span.seconds : 0 };
    bars.push(made);
    for (let up = made.parent; made.steps && up >= 0; up = bars[up].parent) {
      bars[up].steps += made.steps;
    }
    return made;
  };
  const put = (span: Span, parent: number, depth: number, part: string): void => {
    const bar = add({
      span,
      name: span.name,
      path: span.module,
      part: span.part || part,
      begin: span.begin,
      end: span.begin + span.seconds,
      depth,
      parent
    });
    const children = inside.get(span.index) ?? [];
    if (span.kind === 'graph') {
      steps(children, bar.index, depth + 1);
    } else {
      children.forEach(child => put(child, bar.index, depth + 1, bar.part));
    }
  };
  const steps = (children: Span[], parent: number, depth: number): void => {
    const parts = new Set(children.filter(inPlan).map(s => s.part)).size > 1;
    const paths = children.map(s => (inPlan(s) ? groupsOf(s, parts) : null));
    // What is no step (memory, the plan itself) stays in the groups that its neighbours share.
    paths.forEach((path, i) => {
      if (!path) {
        const before = paths[i - 1] ?? [];
        const after = paths.slice(i + 1).find(p => p) ?? [];
        let shared = 0;
        while (shared < before.length && before[shared] === after[shared]) {
          shared++;
        }
        paths[i] = before.slice(0, shared);
      }
    });
    level(children, paths as string[][], 0, parent, depth);
  };
  const level = (children: Span[], paths: string[][], at: number, parent: number, depth: number): void => {
    for (let i = 0; i < children.length;) {
      const name = paths[i][at];
      if (name === undefined) {
        put(children[i++], parent, depth, '');
        continue;
      }
      let end = i + 1;
      while (end < children.length && paths[end][at] === name) {
        end++;
      }
      // A group in a group with nothing beside it is one group of both names.
      let to = at;
      while (paths[i][to + 1] !== undefined && paths.slice(i, end).every(p => p[to + 1] === paths[i][to + 1])) {
        to++;
      }
      if (end === i + 1 && at > 0) {
        put(children[i], parent, depth, '');
      } else {
        const last = children[end - 1];
        const bar = add({
          span: null,
          name: paths[i].slice(at, to + 1).join('.'),
          path: paths[i].slice(0, to + 1).join('.'),
          part: children[i].part,
          begin: children[i].begin,
          end: last.begin + last.seconds,
          depth,
          parent
        });
        level(children.slice(i, end), paths.slice(i, end), to + 1, bar.index, depth + 1);
      }
      i = end;
    }
  };
  const root = spans[0];
  if (root) {
    put(root, -1, 0, '');
  }
  const below = Math.max(0, ...bars.map(b => b.depth)) + 1;
  spans.filter(onDevice).forEach(s => put(s, 0, below, ''));
  return bars;
}

/**
 * The lines that a span's work comes from: a kernel's go to all of its operations' lines in equal parts, those of a
 * backward graph to the line that called it.
 */
export function linesOf(report: Report, s: Span): [string, number][] {
  const called: [string, number] | [] = s.graph === null ? [] : (report.graphs[s.graph]?.called_at ?? []);
  if (called.length) {
    return [called];
  }
  const lines = s.kernel === null ? [] : (report.kernels[s.kernel]?.lines ?? []);
  return lines.length ? lines : s.line === null ? [] : [[s.file, s.line]];
}

/** The main profile: the longest of one call end to end, or else of graphs. */
export function mainProfile(report: Report): CallProfile | undefined {
  return report.profiles[0];
}

export interface Costs {
  /** Seconds of all that was profiled. */
  total: number;
  /** By `file:line`. */
  lines: Map<string, number>;
  /** By line of the cell: what it calls takes, where the lines of that lie outside of the cell. */
  called: Map<number, number>;
  /** By `file:line` of other code: the line of the cell that led there most. */
  callers: Map<string, number>;
  /** By `graph/node`: a library call's time, or that of the kernel that computes it. */
  nodes: Map<string, number>;
  /** By kernel. */
  kernels: Map<number, number>;
}

const known = new WeakMap<Report, Costs>();

/** What lines, nodes and kernels take of the profiled calls; computed once a report. */
export function costsOf(report: Report): Costs {
  let costs = known.get(report);
  if (!costs) {
    costs = { total: 0, lines: new Map(), called: new Map(), callers: new Map(), nodes: new Map(), kernels: new Map() };
    const led = new Map<string, [string, number, number]>();
    const add = <K>(map: Map<K, number>, key: K, value: number) => map.set(key, (map.get(key) ?? 0) + value);
    for (const p of report.profiles) {
      costs.total += p.seconds;
      for (const s of spansOf(p)) {
        if (!isStep(s)) {
          continue;
        }
        const lines = linesOf(report, s);
        for (const [file, line] of lines) {
          add(costs.lines, `${file}:${line}`, s.seconds / lines.length);
          if (s.called !== null && file !== report.source.file) {
            add(costs.called, s.called, s.seconds / lines.length);
            const way = `${file}:${line}`;
            const [, , before] = led.get(`${way} ${s.called}`) ?? ['', 0, 0];
            led.set(`${way} ${s.called}`, [way, s.called, before + s.seconds]);
          }
        }
        if (s.kernel !== null) {
          add(costs.kernels, s.kernel, s.seconds);
        } else if (s.graph !== null && s.node) {
          add(costs.nodes, `${s.graph}/${s.node}`, s.seconds);
        }
      }
    }
    for (const [way, line] of [...led.values()].sort((a, b) => a[2] - b[2])) {
      costs.callers.set(way, line);
    }
    known.set(report, costs);
  }
  return costs;
}
