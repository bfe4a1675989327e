/**
 * Two graphs against each other: what each has that the other has not. Of one report, or of two that the page shows:
 * two runs, two modes, ours and stock's.
 */

import { Child, h, table } from '../dom';
import { count, plural, shortOp, tensorType } from '../format';
import { GraphNode } from '../schema';
import { Level, Model } from '../selection';
import { partOf } from './parts';
import { t } from '../texts';

export interface Other {
  name: string;
  nodes: () => GraphNode[];
}

const shown = new Set<WeakRef<Model>>();

/** Lets the graphs of a report be compared with those of others that are shown on this page. */
export function offer(model: Model): void {
  shown.add(new WeakRef(model));
}

/**
 * Graphs to compare with: the others of this report, and those of other reports, at the same level where they have it.
 */
export function others(model: Model, graph: number, level: Level): Other[] {
  const found: Other[] = [];
  for (const reference of shown) {
    const other = reference.deref();
    if (!other) {
      shown.delete(reference);
      continue;
    }
    const { report } = other;
    const title =
      other === model
        ? ''
        : `${report.source.cell ? t('Cell {0}', report.source.cell) : report.title || report.id}${report.options.engine === 'torch.compile' ? ', torch.compile' : ''}, ${report.created.slice(11, 19)}: `;
    report.graphs.forEach((g, i) => {
      const levels = other.levels(i);
      const wanted = levels.includes(level) ? level : levels[0];
      if (wanted && !(other === model && i === graph)) {
        found.push({ name: `${title}${g.name} · ${plural(g.ops, 'op')}`, nodes: () => other.graphNodes(i, wanted) });
      }
    });
  }
  return found;
}

interface Row {
  op: string;
  type: string;
  here: number;
  there: number;
}

const key = (n: GraphNode) => `${shortOp(n.op)}|${tensorType(n)}`;
const isOperation = (n: GraphNode) => !['input', 'parameter', 'output'].includes(n.op);

/** The difference in words and as a table, and the nodes that the other graph has no like of. */
export function compare(
  here: GraphNode[],
  there: GraphNode[],
  name: string
): { element: HTMLElement; only: GraphNode[] } {
  const rows = new Map<string, Row>();
  const add = (nodes: GraphNode[], side: 'here' | 'there') =>
    nodes.filter(isOperation).forEach(n => {
      const row = rows.get(key(n)) ?? { op: shortOp(n.op), type: tensorType(n), here: 0, there: 0 };
      row[side]++;
      rows.set(key(n), row);
    });
  add(here, 'here');
  add(there, 'there');
  const different = [...rows.values()]
    .filter(r => r.here !== r.there)
    .sort((a, b) => Math.abs(b.here - b.there) - Math.abs(a.here - a.there));
  const more = different.reduce((sum, r) => sum + Math.max(0, r.here - r.there), 0);
  const less = different.reduce((sum, r) => sum + Math.max(0, r.there - r.here), 0);
  // Of operations that both have, but not as often, the last ones stand for what is only here.
  const left = new Map([...rows].map(([k, r]) => [k, r.there]));
  const only = here.filter(isOperation).filter(n => {
    const n_ = left.get(key(n)) ?? 0;
    left.set(key(n), n_ - 1);
    return n_ <= 0;
  });
  const parts = (nodes: GraphNode[]) => new Set(nodes.filter(isOperation).map(partOf)).size;
  const words: Child = different.length
    ? t('{0} only here, {1} only in {2}.', plural(more, 'operation'), count(less), name)
    : t('Both have the same operations, of the same types.');
  return {
    only,
    element: h(
      'div',
      null,
      h('h4', null, t('Against {0}', name)),
      h(
        'p',
        null,
        words,
        parts(here) !== parts(there)
          ? ` ${t('One has a backward pass or an optimizer’s step that the other has not.')}`
          : null
      ),
      different.length
        ? table<Row>(
            [
              { title: t('operation'), cell: r => h('code', null, r.op) },
              { title: t('type'), cell: r => r.type },
              { title: t('here'), number: true, cell: r => count(r.here) },
              { title: t('there'), number: true, cell: r => count(r.there) }
            ],
            different,
            { label: t('Operations that differ'), limit: 12 }
          )
        : null
    )
  };
}
