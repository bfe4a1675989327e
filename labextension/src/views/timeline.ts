/**
 * One call as one picture: what was compiled before it, its guards, each kernel and library call by name, Python
 * between.
 */

import { append, button, Child, clear, empty, h, section, table } from '../dom';
import { stageBar } from '../figures';
import { bytes, count, place, plural, seconds } from '../format';
import { FlameCanvas } from '../profile/flame';
import { Bar, barsOf, isStep, linesOf, Span, spansOf } from '../profile/spans';
import { CallProfile, Report } from '../schema';
import { hostOf } from '../host';
import { Place } from '../selection';
import { question } from './controls';
import { View, ViewContext } from './view';
import { t, words } from '../texts';

const KIND_WORDS: { [kind: string]: string } = words({
  call: 'the call',
  entry: 'compiled entry',
  guards: 'guards',
  graph: 'graph',
  kernel: 'generated kernel',
  library: 'library call',
  memory: 'memory',
  plan: 'the plan itself',
  python: 'Python between',
  launch: 'launch of a step on the GPU',
  group: 'group'
});
const PART_WORDS: { [part: string]: string } = words({
  forward: 'forward',
  backward: 'backward',
  gradients: 'gradients',
  optimizer: 'optimizer'
});
/** Other programs have this share of a call's length before it is said. */
const NOISY = 1.5;
const ROWS = 12;

const LANE = ['kernel', 'library'];
const TIMED = '`%%tcompile time=1s`';

type Grouping = 'name' | 'module' | 'part' | 'line' | 'kind';
const GROUPINGS: { [by in Grouping]: string } = words({
  name: 'kernel and library call',
  module: 'module',
  part: 'forward, backward',
  line: 'line',
  kind: 'kind'
});

interface Row {
  name: string;
  seconds: number;
  count: number;
  bars: Bar[];
}

export function timelineView(context: ViewContext): View {
  const { model, memory } = context;
  const { report } = model;
  if (!report.profiles.length) {
    return unprofiled(context);
  }
  const state: { call: number; by: Grouping } = (memory.timeline ??= { call: 0, by: 'name' });
  let bars: Bar[] = [];
  let chosen: Bar | null = null;
  const status = h('span.tc-muted', { role: 'status' });
  const details = h('div.tc-flame-details', { 'aria-live': 'polite' });
  const totals = h('div');
  const facts = h('p.tc-muted');
  const tip = h('div.tc-tip', { role: 'tooltip' });
  const flame = new FlameCanvas({
    choose: bar => choose(bar, true),
    hover: (bar, x, y) => {
      tip.textContent = bar ? barWords(bar, report, profile()) : '';
      tip.classList.toggle('tc-visible', !!bar);
      const flip = x > stage.clientWidth - 240;
      tip.style.left = flip ? '' : `${x + 14}px`;
      tip.style.right = flip ? `${stage.clientWidth - x + 10}px` : '';
      tip.style.top = `${y + 14}px`;
    }
  });
  const stage = h('div.tc-flame-stage', null, flame.element, tip);
  const profile = () => report.profiles[state.call];

  const choose = (bar: Bar | null, tell: boolean) => {
    chosen = bar;
    status.textContent = '';
    flame.select(bar, false);
    flame.light(null);
    clear(details);
    append(
      details,
      bar
        ? barFacts(bar, bars, report, profile(), context)
        : [
            h(
              'p.tc-muted',
              null,
              t(
                'Choose a bar to see what it is. Arrow keys walk, Enter zooms in, 0 shows all; the wheel zooms once the picture has the focus.'
              )
            )
          ]
    );
    const span = bar?.span;
    if (tell && span) {
      const node = span.graph !== null && span.node ? model.nodeNamed(span.graph, span.node) : undefined;
      if (span.line !== null || span.kernel !== null || node) {
        const [file, line] = span.line !== null ? [span.file, span.line] : [undefined, undefined];
        model.select({ file, line, graph: span.graph, node: node?.index, kernel: span.kernel }, 'timeline');
      }
    }
  };

  /** Another view chose a line, a node or a kernel: what belongs to it is lit. */
  const follow = (p: Place, origin: unknown) => {
    if (origin === 'timeline') {
      return;
    }
    const node =
      p.node !== undefined && p.node !== null && p.graph !== undefined && p.graph !== null
        ? nodeName(p.graph, p.node)
        : '';
    const steps = bars.filter(b => b.span && isStep(b.span));
    let found = node ? steps.filter(b => b.span!.graph === p.graph && b.span!.node === node) : [];
    if (!found.length && !p.whole && p.kernel !== undefined && p.kernel !== null) {
      found = steps.filter(b => b.span!.kernel === p.kernel);
    }
    if (!found.length && p.line) {
      found = steps.filter(b =>
        linesOf(report, b.span!).some(([f, l]) => l === p.line && f === (p.file ?? report.source.file))
      );
    }
    flame.light(found.length ? new Set(found) : null);
    const took = found.reduce((sum, b) => sum + b.span!.seconds, 0);
    status.textContent = found.length
      ? t('{0}, {1} of the call', plural(found.length, 'step'), percent(took / profile().seconds))
      : '';
  };
  const nodeName = (graph: number, index: number) =>
    model.levels(graph).includes('lowered') ? (model.graphNodes(graph, 'lowered')[index]?.name ?? '') : '';

  const search = h('input.tc-input', {
    type: 'search',
    placeholder: t('find a kernel, call, module, line'),
    'aria-label': t('Search the call')
  }) as HTMLInputElement;
  let hits: Bar[] = [];
  let hit = -1;
  const find = () => {
    const wanted = search.value.trim().toLowerCase();
    hits = wanted
      ? bars.filter(b =>
          `${b.name} ${b.span?.node ?? ''} ${b.span?.module ?? b.path} ${b.span?.line ? `line ${b.span.line}` : ''}`
            .toLowerCase()
            .includes(wanted)
        )
      : [];
    hit = -1;
    flame.light(wanted ? new Set(hits) : null);
    const took = hits.reduce((sum, b) => sum + (b.span && isStep(b.span) ? b.span.seconds : 0), 0);
    status.textContent = wanted ? `${plural(hits.length, 'match', 'matches')}${took ? `, ${seconds(took)}` : ''}` : '';
  };
  search.oninput = find;
  search.onkeydown = event => {
    event.stopPropagation();
    if (event.key === 'Enter' && hits.length) {
      event.preventDefault();
      hit = (hit + (event.shiftKey ? -1 : 1) + hits.length) % hits.length;
      flame.light(new Set(hits));
      flame.select(hits[hit], true);
      status.textContent = t('{0} of {1}', hit + 1, hits.length);
    } else if (event.key === 'Escape') {
      search.value = '';
      find();
    }
  };
  const tool = (label: string, title: string, act: () => void) =>
    button(label, { class: 'tc-button tc-tool', title, 'aria-label': title }, act);
  const chooser =
    report.profiles.length > 1
      ? (h(
          'select.tc-select',
          { 'aria-label': t('Call') },
          report.profiles.map((p, i) =>
            h('option', { value: i, selected: i === state.call }, `${p.name} · ${seconds(p.seconds)}`)
          )
        ) as HTMLSelectElement)
      : null;
  if (chooser) {
    chooser.onchange = () => {
      state.call = Number(chooser.value);
      load();
    };
  }
  const grouping = h('div.tc-segments', { role: 'group', 'aria-label': t('Totals by') });
  const group = () => {
    clear(grouping);
    append(
      grouping,
      (Object.keys(GROUPINGS) as Grouping[])
        .filter(
          by => by !== 'part' || new Set(bars.flatMap(b => (b.span && isStep(b.span) ? [b.span.part] : []))).size > 1
        )
        .map(by =>
          button(GROUPINGS[by], { class: 'tc-segment', 'aria-pressed': String(by === state.by) }, () => {
            state.by = by;
            group();
          })
        )
    );
    clear(totals);
    const rows = totalRows(bars, state.by, report);
    const all = profile().seconds;
    totals.append(
      table<Row>(
        [
          {
            title: GROUPINGS[state.by],
            cell: r =>
              ['name', 'module'].includes(state.by) && r.bars[0].span && isStep(r.bars[0].span)
                ? h('code', null, r.name)
                : r.name
          },
          { title: t('time'), number: true, cell: r => seconds(r.seconds) },
          {
            title: t('share'),
            number: true,
            cell: r => [
              h(
                'span.tc-meter',
                { 'aria-hidden': 'true' },
                h('span', { style: { width: `${Math.min(100, (100 * r.seconds) / all)}%` } })
              ),
              h('span.tc-meter-words', null, percent(r.seconds / all))
            ]
          },
          { title: t('times'), number: true, cell: r => count(r.count) }
        ],
        rows,
        {
          label: t('Where the time of the call went'),
          limit: ROWS,
          onRow: r => {
            flame.light(new Set(r.bars));
            flame.select(r.bars[0], true);
            choose(r.bars.length === 1 ? r.bars[0] : null, r.bars.length === 1);
            if (r.bars.length > 1) {
              flame.light(new Set(r.bars));
              status.textContent = plural(r.bars.length, 'step');
            }
          }
        }
      )
    );
  };
  const load = () => {
    const p = profile();
    bars = barsOf(spansOf(p));
    flame.show(bars);
    facts.textContent = profileWords(p);
    choose(null, false);
    group();
    find();
    follow(model.place, null);
  };
  const stages = report.stages.filter(s => s.self_seconds > 0);
  const element = h(
    'div',
    null,
    stages.length
      ? h(
          'details.tc-fold',
          null,
          h('summary', null, t('Compiled before the call, once: {0}', seconds(report.summary.compile_seconds))),
          stageBar(report.stages)
        )
      : null,
    section(
      t('One call'),
      facts,
      h(
        'div.tc-toolbar',
        null,
        chooser,
        h('span.tc-search', null, search, status),
        h(
          'span.tc-tools',
          null,
          tool('−', t('Zoom out'), () => flame.zoom(1 / 1.5)),
          tool('+', t('Zoom in'), () => flame.zoom(1.5)),
          tool('⤢', t('Show all'), () => flame.fit())
        )
      ),
      stage,
      legend(),
      details
    ),
    section(t('Where its time went'), h('div.tc-toolbar', null, grouping), totals)
  );
  load();
  const stop = model.onSelect(follow);
  return {
    element,
    shown: () => flame.select(chosen, false),
    dispose: () => {
      stop();
      flame.dispose();
    },
    reveal: (kind, index) => {
      if (kind === 'profiles' && report.profiles[index]) {
        state.call = index;
        load();
      }
    }
  };
}

function percent(share: number): string {
  return share > 0 && share < 0.005 ? t('< 1 %') : t('{0} %', Math.round(100 * share));
}

function legend(): HTMLElement {
  const entry = (kind: string) =>
    h(
      'span',
      null,
      h(`span.tc-swatch.tc-flame-${kind}`, { 'aria-hidden': 'true' }),
      kind === 'kernel' ? t('generated kernels, each in its own colour') : KIND_WORDS[kind]
    );
  return h('div.tc-legend', null, ['kernel', 'library', 'guards', 'python'].map(entry));
}

/** Why there is no picture, and a button that makes one where the calls are still in a kernel. */
function unprofiled({ model, replace }: ViewContext): View {
  const { report } = model;
  const off = report.speedups.status === 'off';
  const why = !off
    ? report.speedups.calls.some(c => c.why_not)
      ? t('No call was profiled: {0}.', whyNot(report))
      : report.entries.some(e => e.seconds)
        ? t(
            'No call was profiled: none of them can be run again, or the C extension is not built (`python -m tcompile doctor` says).'
          )
        : t('No call was profiled: entries of an earlier run served, and that run has no profile of them.')
    : report.source.cell === null
      ? t('No call was profiled: a program recorded this report, and times nothing. A cell with {0} does.', TIMED)
      : t('No call was profiled: timing was off. {0} profiles a call.', TIMED);
  const element = h('div', null, empty(why));
  const ask = () => {
    const host = off && report.source.cell !== null && element.isConnected ? hostOf(element) : null;
    if (host) {
      append(
        element,
        question(host, t('time and profile now'), async say => {
          replace((await host.ask('retime', { report: report.id, seconds: 1, compare: ['eager'] }, say)).report);
          return null;
        })
      );
    }
  };
  const frame = requestAnimationFrame(ask); // (only in the document can the kernel be found)
  return { element, dispose: () => cancelAnimationFrame(frame) };
}

/** Why the calls are not run again, each reason once. */
function whyNot(report: Report): string {
  return [...new Set(report.speedups.calls.map(c => c.why_not).filter(Boolean))].join('; ');
}

function profileWords(p: CallProfile): string {
  const how =
    p.how === 'graphs'
      ? p.backward
        ? t(
            'Its graphs alone, one after the other, then their backward passes: the call has effects and is not run again whole.'
          )
        : t('Its graphs alone, one after the other: the call has effects and is not run again whole.')
      : p.backward
        ? t('Run again with a clock around each step, and a backward pass from its result.')
        : t('Run again with a clock around each step.');
  const cost = p.plain_seconds
    ? t(' {0} with the clock, {1} without.', seconds(p.seconds), seconds(p.plain_seconds))
    : ` ${seconds(p.seconds)}.`;
  const noisy =
    p.plain_seconds && p.seconds > NOISY * p.plain_seconds
      ? t(' The machine was busy, or the steps are shorter than the clock: see the shares, not the figures.')
      : '';
  const lane = p.columns.kind.some((kind, i) => i && p.columns.parent[i] === 0 && LANE.includes(p.tables.kind[kind]));
  const device =
    p.device !== 'cuda'
      ? ''
      : lane
        ? t(' The last row is the GPU’s: each step begins when it is launched or when the one before ends.') +
          t(' The GPU works for {0} of it, {1}.', seconds(worked(p)), percent(worked(p) / p.seconds))
        : t(' Bars are launches by the host: for how long the GPU works on each is not known.');
  const earlier = p.earlier ? t('Profiled in the run that compiled it: this run was not profiled again. ') : '';
  return (
    earlier +
    how +
    cost +
    noisy +
    device +
    (p.lost ? t(' {0} left out: the record was full.', plural(p.lost, 'step')) : '')
  );
}

/** How long the GPU works in a call: the steps that lie in the call itself. */
function worked(p: CallProfile): number {
  const { kind, parent, length } = p.columns;
  return kind.reduce(
    (sum, k, i) => sum + (i && !parent[i] && LANE.includes(p.tables.kind[k]) ? length[i] * 1e-9 : 0),
    0
  );
}

function barWords(bar: Bar, report: Report, p: CallProfile): string {
  const length = bar.end - bar.begin;
  const s = bar.span;
  return [
    s?.node && s.kind !== 'kernel' ? `${bar.name} → ${s.node}` : bar.name,
    `${seconds(length)}, ${percent(length / p.seconds)}`,
    KIND_WORDS[s?.kind ?? 'group'] ?? s?.kind ?? '',
    s ? s.module : bar.path,
    s?.line ? place(s.file, s.line, report.source.file) : ''
  ]
    .filter(Boolean)
    .join('\n');
}

function barFacts(bar: Bar, bars: Bar[], report: Report, p: CallProfile, context: ViewContext): Child[] {
  const length = bar.end - bar.begin;
  const s = bar.span;
  const kernel = s && s.kernel !== null ? report.kernels[s.kernel] : undefined;
  const fact = (name: string, value: Child) => h('div.tc-fact', null, h('dt', null, name), h('dd', null, value));
  const inside = bars.filter(b => b.parent === bar.index).reduce((sum, b) => sum + b.end - b.begin, 0);
  return [
    h('h4', null, bar.name),
    h(
      'dl.tc-facts',
      null,
      fact(t('is'), s ? (KIND_WORDS[s.kind] ?? s.kind) : t('steps of a module, one after the other')),
      fact(t('time'), `${seconds(length)}, ${percent(length / p.seconds)}`),
      inside ? fact(t('of it its own'), seconds(Math.max(0, length - inside))) : null,
      fact(t('begins at'), seconds(bar.begin)),
      (s?.module ?? bar.path) ? fact(t('module'), s?.module ?? bar.path) : null,
      s?.line ? fact(t('from'), place(s.file, s.line, report.source.file)) : null,
      s?.node
        ? fact(
            t('operation'),
            button(s.node, { class: 'tc-link' }, () => context.go('graph'))
          )
        : null,
      kernel
        ? fact(
            t('kernel'),
            button(kernel.name, { class: 'tc-link' }, () => context.go(`kernels/${s!.kernel}`))
          )
        : null,
      kernel?.bytes ? fact(t('bytes'), bytes(kernel.bytes)) : null
    )
  ];
}

/** The call's steps and its gaps by a property of theirs, the longest first. */
function totalRows(bars: Bar[], by: Grouping, report: Report): Row[] {
  const rows = new Map<string, Row>();
  const add = (name: string, took: number, bar: Bar) => {
    const row = rows.get(name) ?? { name, seconds: 0, count: 0, bars: [] };
    row.seconds += took;
    row.count++;
    row.bars.push(bar);
    rows.set(name, row);
  };
  for (const bar of bars) {
    const s = bar.span;
    if (!s || ['call', 'entry', 'graph'].includes(s.kind)) {
      continue;
    }
    const kind = KIND_WORDS[s.kind] ?? s.kind;
    if (!isStep(s) || by === 'kind') {
      add(kind, s.seconds, bar);
    } else if (by === 'line') {
      const lines = linesOf(report, s);
      lines.forEach(([file, line]) => add(place(file, line, report.source.file), s.seconds / lines.length, bar));
      if (!lines.length) {
        add(t('no line'), s.seconds, bar);
      }
    } else {
      add(
        by === 'name'
          ? s.name
          : by === 'part'
            ? (PART_WORDS[s.part] ?? s.part)
            : moduleName(s) || t('outside of modules'),
        s.seconds,
        bar
      );
    }
  }
  return [...rows.values()].sort((a, b) => b.seconds - a.seconds);
}

/** A step's module without the part that it is in: backward's time is its module's, too. */
function moduleName(s: Span): string {
  return s.module === s.part ? '' : s.module.startsWith(`${s.part}.`) ? s.module.slice(s.part.length + 1) : s.module;
}
