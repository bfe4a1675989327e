/** Memory over one call against eager, the buffers of each plan, and what forward keeps for backward. */

import { Child, empty, h, section, table } from '../dom';
import { bytes, count, engineName, place, plural, shortOp, tensorType } from '../format';
import { expandGraph } from '../payload';
import { plot } from '../plot';
import { Memory, Partition, PartitionValue, Report } from '../schema';
import { Model } from '../selection';
import { t, words } from '../texts';
import { baseOf, isView, Kept, keptInside } from './kept';
import { ViewContext } from './view';

/** By kind of a value: why it is kept, and not computed again. */
export const KEPT_WORDS: { [kind: string]: string } = words({
  inside: 'backward reads it from memory',
  activation: 'the rest is computed again from it',
  dear: 'too costly to compute again',
  result: 'the caller gets it as well',
  random: 'random numbers, drawn once',
  copy: 'its input may change before backward',
  weight: 'a weight, converted once for both passes'
});
const MOST_PLANS = 12;
const MOST_BUFFERS = 80;

export interface MemoryView {
  element: HTMLElement;
  /** The list of what a graph keeps, opened. */
  partition: (index: number) => HTMLElement | null;
  dispose: () => void;
}

export function memoryView({ model }: ViewContext): MemoryView {
  const { report } = model;
  const disposers: (() => void)[] = [];
  const plans = report.memory.filter(m => m.buffers.length || m.peak_bytes);
  const most = Math.max(0, ...report.partitions.map(p => p.saved_bytes));
  const kept = [
    ...report.partitions.map((p, i) => partitionElement(p, i, model, p.saved_bytes === most)),
    ...keptInside(model).map(k => insideElement(k, model))
  ];
  const element = h(
    'div',
    null,
    section(
      t('Memory over one call'),
      plans.length
        ? [
            figures(plans, report),
            curves(plans, report, disposers),
            plans.some(m => m.buffers.length)
              ? h(
                  'details',
                  null,
                  h('summary', null, t('each buffer over the steps of its plan')),
                  plans
                    .filter(m => m.buffers.length)
                    .slice(0, MOST_PLANS)
                    .map(m => lifetimes(m, report))
                )
              : null
          ]
        : empty(t('No plan with buffers: everything was written straight into outputs, or nothing was compiled.'))
    ),
    kept.length ? section(t('Kept for backward'), kept) : null
  );
  const opened = (i: number) => {
    kept[i]?.querySelector('details')?.setAttribute('open', '');
    return kept[i] ?? null;
  };
  return { element, partition: opened, dispose: () => disposers.forEach(f => f()) };
}

function nameOf(graph: number | null, report: Report): string {
  return graph === null ? '' : (report.graphs[graph]?.name ?? t('graph {0}', graph));
}

function figures(plans: Memory[], report: Report): HTMLElement {
  const element = table(
    [
      { title: t('graph'), cell: m => h('code', null, nameOf(m.graph, report)) },
      { title: t('peak'), number: true, cell: m => bytes(m.peak_bytes) },
      {
        title: t('reached in'),
        cell: m =>
          m.peak_at
            ? [
                h('code', null, shortOp(m.peak_at)),
                m.peak_line?.length
                  ? h('span.tc-muted', null, ` ${place(m.peak_line[0], m.peak_line[1], report.source.file)}`)
                  : null
              ]
            : '–'
      },
      { title: t('without reuse'), number: true, cell: m => bytes(m.without_reuse_bytes) },
      {
        title: t('eager’s peak'),
        number: true,
        cell: m => bytes(m.eager_peak_bytes),
        hint: t('at best: each value freed right after its last use')
      }
    ],
    plans,
    { label: t('Memory of each graph'), limit: 20 }
  );
  element.classList.add('tc-narrow-table');
  return element;
}

/** Bytes alive over the call, of the graph that needs most: ours over the plan's steps, eager's over its operators. */
function curves(plans: Memory[], report: Report, disposers: (() => void)[]): Child {
  const known = plans.filter(m => (m.plan_live?.length ?? 0) > 1);
  const size = (m: Memory) => Math.max(m.peak_bytes ?? 0, m.eager_peak_bytes ?? 0);
  const largest = known.sort((a, b) => size(b) - size(a))[0];
  if (!largest) {
    return null;
  }
  const curve = (values: number[]) => ({ x: values.map((_, i) => (100 * i) / (values.length - 1)), y: values });
  const figure = plot(
    [
      ...((largest.eager_live?.length ?? 0) > 1
        ? [{ name: engineName('eager'), colour: '--tc-engine-eager', ...curve(largest.eager_live!) }]
        : []),
      { name: engineName('tcompile'), colour: '--tc-engine-tcompile', ...curve(largest.plan_live!) }
    ],
    {
      label: t('Bytes alive over one call'),
      xTitle: t('% of the graph'),
      yTitle: '',
      xFormat: v => `${Math.round(v)} %`,
      yFormat: v => bytes(Math.round(v))
    }
  );
  disposers.push(figure.dispose);
  const trains =
    largest.graph !== null && expandGraph(report.graphs[largest.graph].captured).some(n => n.op === 'backward');
  return h(
    'figure.tc-figure-box',
    null,
    h(
      'figcaption',
      null,
      t('Bytes alive while {0} runs, beside its inputs', nameOf(largest.graph, report)),
      (largest.eager_live?.length ?? 0) > 1
        ? t('; eager at best, each value freed right after its last use')
        : t('; what eager needs is not known of a graph with a backward pass inside'),
      trains && largest.eager_live?.length ? t(', and without what its autograd keeps until backward') : ''
    ),
    figure.element
  );
}

/** Each buffer as a bar over the steps of the plan in which it is alive. */
function lifetimes(m: Memory, report: Report): HTMLElement {
  const steps = Math.max(m.steps, ...m.buffers.map(b => b.end), 1);
  const largest = Math.max(...m.buffers.map(b => b.bytes), 1);
  return h(
    'div.tc-memory',
    null,
    h(
      'p',
      null,
      h('code', null, nameOf(m.graph, report)),
      h(
        'span.tc-muted',
        null,
        t(': {0} over {1} of the plan', plural(m.buffers.length, 'buffer'), plural(m.steps, 'step'))
      )
    ),
    h(
      'div.tc-timeline',
      { role: 'list', 'aria-label': t('Buffers over the steps of the plan') },
      m.buffers.slice(0, MOST_BUFFERS).map(b =>
        h(
          'div.tc-lane',
          { role: 'listitem' },
          h('span.tc-lane-name', { title: b.name }, b.name),
          h(
            'span.tc-lane-track',
            null,
            h(
              `span.tc-buffer.tc-buffer-${b.kind === 'output' ? 'output' : b.reuse ? 'reused' : 'temp'}`,
              {
                title:
                  t('{0}: {1}, steps {2} to {3}', b.name, bytes(b.bytes), b.start, b.end) +
                  (b.reuse ? t(', in the memory of {0}', b.reuse) : ''),
                style: {
                  left: `${(b.start / steps) * 100}%`,
                  width: `${(Math.max(0.3, b.end - b.start) / steps) * 100}%`,
                  '--tc-strength': `${Math.round(18 + 32 * (b.bytes / largest))}%`
                }
              },
              bytes(b.bytes),
              b.reuse ? t(' in {0}', b.reuse) : ''
            )
          )
        )
      )
    ),
    m.buffers.length > MOST_BUFFERS
      ? h('p.tc-muted', null, t('and {0} more buffers', m.buffers.length - MOST_BUFFERS))
      : null
  );
}

// ------------------------------------------------------------------------------------------------------ forward and
// backward

/** By name of a kept value, the operations of backward that read it. */
export function readers(p: Partition, model: Model): Map<string, string> {
  const out = new Map<string, string>();
  const backward = p.backward[p.backward.length - 1];
  if (backward === undefined || !model.levels(backward).includes('lowered')) {
    return out;
  }
  const nodes = model.graphNodes(backward, 'lowered');
  const kept = new Map(p.saved.map(v => [`saved_${v.name}`, v.name]));
  for (const n of nodes) {
    for (const i of n.op === 'output' ? [] : n.inputs) {
      const name = kept.get(baseOf(nodes[i], nodes).name);
      const op = shortOp(n.op);
      if (name && !isView(n) && !(out.get(name) ?? '').split(', ').includes(op)) {
        out.set(name, [...(out.get(name)?.split(', ') ?? []), op].join(', '));
      }
    }
  }
  return out;
}

/** Values that are kept; a row leads to its operation. */
function valuesTable(
  model: Model,
  graph: number | null,
  rows: PartitionValue[],
  label: string,
  read = new Map<string, string>()
): HTMLElement {
  const here = model.report.source.file;
  const row = (v: PartitionValue) => {
    const node = graph === null ? undefined : model.nodeNamed(graph, v.name);
    if (node) {
      model.selectNode(graph!, node, 'partition');
    } else if (v.line) {
      model.selectLine(v.file || here, v.line, 'partition');
    }
  };
  return table<PartitionValue>(
    [
      { title: t('value'), cell: v => h('code', null, v.name) },
      { title: t('operation'), cell: v => h('code', { title: v.op }, shortOp(v.op)) },
      { title: t('bytes'), number: true, cell: v => bytes(v.bytes) },
      { title: t('type'), short: true, cell: v => tensorType(v) },
      ...(read.size
        ? [
            {
              title: t('why it is kept'),
              cell: (v: PartitionValue) => [
                v.kind === 'inside' && read.get(v.name) ? '' : (KEPT_WORDS[v.kind] ?? v.kind),
                v.kind !== 'inside' && read.get(v.name) ? '; ' : '',
                read.get(v.name) ? [t('backward reads it in '), h('code', null, read.get(v.name)!)] : ''
              ]
            }
          ]
        : []),
      {
        title: t('line'),
        cell: v => [v.line ? place(v.file, v.line, here) : '', v.module ? h('div.tc-muted', null, v.module) : null]
      }
    ],
    rows,
    { label, limit: 12, onRow: row }
  );
}

/** A graph that holds its backward pass: what of its forward part stays in memory until backward has read it. */
function insideElement(k: Kept, model: Model): HTMLElement {
  return h(
    'div.tc-partition',
    { tabindex: -1 },
    h(
      'p',
      null,
      h('code', null, nameOf(k.graph, model.report)),
      ': ',
      t(
        'forward and backward are one graph; {0} in {1} stay in memory until backward reads them',
        bytes(k.bytes),
        plural(k.values.length, 'value')
      )
    ),
    h(
      'details',
      { open: true },
      h('summary', null, t('what is kept, the largest first')),
      valuesTable(model, k.graph, k.values, t('Values that are kept'), k.readers)
    )
  );
}

function partitionElement(p: Partition, index: number, model: Model, open: boolean): HTMLElement {
  const { report } = model;
  const bars: [string, number][] = [
    [t('kept'), p.saved_bytes],
    [t('if nothing were computed again'), p.read_bytes]
  ];
  if (p.eager_bytes !== null) {
    bars.push([t('what eager keeps'), p.eager_bytes]);
  }
  const longest = Math.max(...bars.map(([, b]) => b), 1);
  const values = (rows: PartitionValue[], label: string, read?: Map<string, string>) =>
    valuesTable(model, p.graph, rows, label, read);
  return h(
    'div.tc-partition',
    { tabindex: -1, 'data-partition': index },
    h(
      'p',
      null,
      h('code', null, nameOf(p.graph, report)),
      ': ',
      t(
        '{0} in {1}, {2} computed again in backward',
        bytes(p.saved_bytes),
        plural(p.saved.length, 'value'),
        count(p.recomputed.length)
      ),
      p.budget < 1 ? t(', memory budget {0}', p.budget) : '',
      p.backward.length || !p.saved_bytes ? '' : t('; no backward pass has run of it yet')
    ),
    p.read_bytes + (p.eager_bytes ?? 0) === 0
      ? null
      : h(
          'div.tc-bars.tc-bars-long',
          { role: 'list', 'aria-label': t('Bytes kept from forward to backward') },
          bars.map(([name, b], i) =>
            h(
              'div.tc-bar-row',
              { role: 'listitem' },
              h('span.tc-bar-name', null, name),
              h(
                'span.tc-bar-track',
                { 'aria-hidden': 'true' },
                h(i ? 'span.tc-bar.tc-engine-eager' : 'span.tc-bar.tc-engine-tcompile', {
                  style: { width: `${((100 * b) / longest).toFixed(2)}%` }
                })
              ),
              h('span.tc-bar-value', null, bytes(b))
            )
          )
        ),
    p.saved.length
      ? h(
          'details',
          { open },
          h('summary', null, t('what is kept, the largest first')),
          values(p.saved, t('Values that are kept'), readers(p, model))
        )
      : null,
    p.recomputed.length
      ? h(
          'details',
          null,
          h('summary', null, t('what is computed again')),
          values(p.recomputed, t('Values that are computed again'))
        )
      : null
  );
}
