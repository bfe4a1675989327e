/**
 * The whole report in one element: the closed line, and the tabs behind it.
 *
 * Free of frameworks and of JupyterLab: `renderReport(element, json)` serves the MIME renderer, a widget and a plain
 * page.
 */

import { button, Child, clear, h, prose } from './dom';
import { comparison } from './figures';
import { compared, count, engineName, place, plural, seconds, STATUS_WORDS } from './format';
import { GraphView, graphState } from './graph/view';
import { decodeReport } from './payload';
import { Report } from './schema';
import { Model, Place } from './selection';
import { codeView } from './views/code';
import { guardsView } from './views/guards';
import { moreView } from './views/more';
import { mainCall, overview } from './views/overview';
import { ranksView } from './views/ranks';
import { speedView } from './views/speed';
import { timelineView } from './views/timeline';
import { View, ViewContext } from './views/view';
import { t, words } from './texts';

export interface Rendered {
  /** Opens the place a ref names: "breaks/0", "kernels/2", "speed", or a tab's name. */
  go: (ref: string) => void;
  /** Makes another's selection this one's. */
  select: (place: Place) => void;
  dispose: () => void;
}

export interface RenderOptions {
  /** One tab alone, without the closed line. */
  only?: string;
  /** Opened from the start. */
  opened?: boolean;
  onSelect?: (place: Place) => void;
}

interface Memory {
  opened: boolean;
  tab: string;
  [key: string]: any;
}

/** What the reader had open, by report: JupyterLab makes outputs anew when a cell scrolls out and in again. */
const memories = new Map<string, Memory>();

const TABS = ['ranks', 'overview', 'code', 'graph', 'profile', 'guards', 'speed', 'more'] as const;
type Tab = (typeof TABS)[number];
const TAB_WORDS: { [tab in Tab]: string } = words({
  ranks: 'ranks',
  overview: 'overview',
  code: 'code',
  graph: 'graph',
  profile: 'profile',
  guards: 'guards',
  speed: 'speed',
  more: 'more'
});
const TAB_OF: { [kind: string]: Tab } = {
  breaks: 'more',
  frames: 'more',
  fallbacks: 'more',
  numerics: 'more',
  guards: 'guards',
  calls: 'guards',
  forecast: 'guards',
  recompiles: 'guards',
  graphs: 'graph',
  pairs: 'graph',
  kernels: 'code',
  partitions: 'speed',
  memory: 'speed',
  speed: 'speed',
  profiles: 'profile'
};

/** Share of a graph's work from which on a comparison with eager, which does it, says nothing of speed. */
const LEAST_UNUSED = 0.1;

let serial = 0;

/**
 * Draws a report (the JSON as saved) into `host`. Never rejects: what cannot be read is said in the element.
 * `wanted` is asked when the JSON is decoded: false where the host has been given another report meanwhile.
 */
export async function renderReport(
  host: HTMLElement,
  json: any,
  wanted: () => boolean = () => true,
  options: RenderOptions = {}
): Promise<Rendered> {
  const nothing: Rendered = { go: () => undefined, select: () => undefined, dispose: () => undefined };
  const id = `tc-${serial++}`;
  host.classList.add('tc-report');
  host.addEventListener('keydown', keepKeys);
  try {
    const report = await decodeReport(json);
    return wanted() ? draw(host, new Model(report), json, id, options) : nothing;
  } catch (error) {
    if (!wanted()) {
      return nothing;
    }
    clear(host);
    host.append(
      h(
        'p.tc-error',
        { role: 'alert' },
        t('tcompile: the report cannot be shown: {0}', error instanceof Error ? error.message : error)
      )
    );
    return { ...nothing, dispose: () => clear(host) };
  }
}

/** A key that a slider or a list takes is no command of the notebook around it: there arrows move from cell to cell. */
function keepKeys(event: KeyboardEvent): void {
  const control = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
  if (control && !event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey) {
    event.stopPropagation();
  }
}

function draw(host: HTMLElement, model: Model, raw: any, id: string, options: RenderOptions): Rendered {
  const { report } = model;
  const key = report.id || id;
  // A cell that runs again opens as its last report was left.
  const last = memories.get(report.previous.report);
  const several = !!report.ranks?.rows?.length;
  const fresh: Memory = {
    opened: last?.opened ?? !!options.opened,
    tab: last?.tab ?? (several ? 'ranks' : 'overview')
  };
  const memory: Memory = options.only ? { opened: true, tab: options.only } : (memories.get(key) ?? fresh);
  if (!options.only) {
    memories.set(key, memory);
  }
  memory.raw = raw;
  const views = new Map<Tab, View>();

  const panels = h('div.tc-panels');
  const tabs = h('div.tc-tabs', { role: 'tablist', 'aria-label': t('Report') });
  const body = h('div.tc-body', { id: `${id}-body` }, tabs, panels);
  // (the same report may be drawn twice: what this one shows counts)
  const head = closedLine(report, () => setOpened(body.hidden), `${id}-body`);
  clear(host);
  host.append(...(options.only ? [body] : [head, body]));
  tabs.hidden = !!options.only;

  const replace = (json: any) => void renderReport(host, json, () => host.isConnected, options);
  const context: ViewContext = { model, go: ref => go(ref), memory, replace };
  const make: { [tab in Tab]: () => View } = {
    ranks: () => ranksView(context),
    overview: () => overview(context),
    code: () => codeView(context),
    graph: () => {
      memory.graph ??= graphState(model);
      return new GraphView(model, memory.graph, kernel => {
        model.selectKernel(kernel);
        show('code');
      });
    },
    profile: () => timelineView(context),
    guards: () => guardsView(context),
    speed: () => speedView(context),
    more: () => moreView(context)
  };
  const figures: { [tab in Tab]?: number } = {
    guards: report.guards.reduce((n, g) => n + g.count, 0),
    more: report.graph_breaks.filter(b => !b.harmless).length
  };

  const show = (tab: Tab): View => {
    memory.tab = tab;
    let view = views.get(tab);
    if (!view) {
      view = made(make[tab]);
      view.element.setAttribute('role', 'tabpanel');
      view.element.id = `${id}-${tab}`;
      view.element.setAttribute('aria-labelledby', `${id}-tab-${tab}`);
      view.element.classList.add('tc-panel-root');
      views.set(tab, view);
      panels.append(view.element);
    }
    for (const [name, other] of views) {
      other.element.hidden = name !== tab;
    }
    for (const element of tabs.children) {
      const chosen = element.id === `${id}-tab-${tab}`;
      element.setAttribute('aria-selected', String(chosen));
      (element as HTMLElement).tabIndex = chosen ? 0 : -1;
    }
    view.shown?.();
    return view;
  };

  for (const tab of TABS.filter(tab => tab !== 'ranks' || several)) {
    const figure = figures[tab];
    tabs.append(
      h(
        'button.tc-tab',
        {
          type: 'button',
          role: 'tab',
          id: `${id}-tab-${tab}`,
          'aria-controls': `${id}-${tab}`,
          onclick: () => show(tab)
        },
        TAB_WORDS[tab],
        figure
          ? h(
              'span.tc-count',
              { title: tab === 'more' ? plural(figure, 'graph break') : plural(figure, 'guard') },
              count(figure)
            )
          : null
      )
    );
  }
  tabs.addEventListener('keydown', event => {
    const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (step) {
      event.preventDefault();
      event.stopPropagation();
      const next = TABS[(TABS.indexOf(memory.tab as Tab) + step + TABS.length) % TABS.length];
      show(next);
      (tabs.querySelector(`#${id}-tab-${next}`) as HTMLElement).focus();
    }
  });

  const setOpened = (opened: boolean) => {
    memory.opened = opened;
    host.classList.toggle('tc-open', opened);
    head.setAttribute('aria-expanded', String(opened));
    body.hidden = !opened;
    if (opened) {
      show(TABS.includes(memory.tab as Tab) ? (memory.tab as Tab) : 'overview');
    }
  };

  const go = (ref: string) => {
    const [kind, index, ...names] = ref.split('/');
    setOpened(true);
    const number = Number(index ?? 0);
    if (kind === 'kernels') {
      model.selectKernel(number);
    } else if (kind === 'graphs') {
      model.select({ graph: number });
    } else if (kind === 'pairs') {
      model.selectPair(number, names);
    }
    const tab = TAB_OF[kind] ?? (TABS.includes(kind as Tab) ? (kind as Tab) : 'overview');
    show(tab).reveal?.(kind, number);
  };

  setOpened(memory.opened);
  const unfollow = options.onSelect ? model.onSelect(options.onSelect) : () => undefined;
  return {
    go,
    select: place => model.select(place, 'elsewhere'),
    dispose: () => {
      unfollow();
      views.forEach(view => view.dispose());
      views.clear();
      clear(host);
    }
  };
}

/** A note that begins with the words of the status beside it. */
function withoutStatus(note: string, status: keyof typeof STATUS_WORDS): string {
  const words = `${STATUS_WORDS[status]}: `;
  return note.startsWith(words) ? note.slice(words.length) : note;
}

/** A view; in the place of one that fails its error, so that the others stay usable. */
function made(make: () => View): View {
  try {
    return make();
  } catch (error) {
    return {
      element: h(
        'div',
        null,
        h('p.tc-error', { role: 'alert' }, t('tcompile: this view cannot be drawn: {0}', String(error)))
      ),
      dispose: () => undefined
    };
  }
}

/**
 * Did it compile, was it faster: one line, drawn from figures so that it wraps well, the same words as the plain text.
 */
function closedLine(report: Report, toggle: () => void, controls: string): HTMLElement {
  const { summary, speedups } = report;
  const status = summary.status in STATUS_WORDS ? summary.status : 'nothing';
  const told = report.graph_breaks.filter(b => !b.harmless);
  const rest = summary.breaks - told.length;
  const where = [
    told.length ? ` (${place(told[0].file, told[0].line, report.source.file)}${told.length > 1 ? ', …' : ''})` : '',
    rest ? (told.length ? t(' + {0} harmless', rest) : t(' (no change needed)')) : ''
  ].join('');
  const facts: Child[] = [];
  if (summary.graphs || summary.kernels) {
    const stock = report.options.engine === 'torch.compile';
    facts.push(
      stock ? t('under torch.compile: ') : '',
      plural(summary.graphs, 'graph'),
      ' · ',
      plural(summary.breaks - rest || rest, 'break'),
      h('span.tc-muted', null, where),
      stock ? '' : ` · ${plural(summary.kernels, 'kernel')}`
    );
  }
  if (summary.externs) {
    facts.push(` · ${plural(summary.externs, 'library call')}`);
  }
  if (summary.recompiles) {
    facts.push(facts.length ? ' · ' : '', t('recompiled {0}×', summary.recompiles));
  }
  const ranks = report.ranks?.rows.length ?? 0;
  if (ranks) {
    facts.push(facts.length ? ' · ' : '', plural(ranks, 'rank'));
  }
  const over = speedups.overall.filter(x => x.engine === 'tcompile' && ['eager', 'torch'].includes(x.over));
  const single = over.filter(s => s.lo === s.hi).map(s => engineName(s.over));
  const gains = over.filter(s => s.lo !== s.hi).map(s => h('span.tc-gain', null, comparison(s, compared(s, s.over))));
  if (single.length) {
    gains.push(h('span.tc-gain', null, t('one sample of each: too few to compare with {0}', single.join(t(' and ')))));
  }
  if (gains.length && speedups.of) {
    const little = typeof speedups.share === 'number' && speedups.share < 0.5;
    gains.push(
      h(
        'span.tc-muted',
        null,
        t('in'),
        ' ',
        ...prose(speedups.of),
        little ? ` ${t('({0} % of the run)', speedups.share! < 0.01 ? '< 1' : Math.round(100 * speedups.share!))}` : ''
      )
    );
  }
  const [least] = [...report.graphs].sort((a, b) => (b.unused ?? 0) - (a.unused ?? 0));
  const unused = Math.round(100 * (least?.unused ?? 0));
  if (unused >= 100 * LEAST_UNUSED) {
    gains.push(
      h(
        'span.tc-muted',
        { title: speedups.reason },
        report.graphs.length === 1
          ? t('{0} % of the work left out: nobody reads its results', unused)
          : t('{0} % of {1}’s work left out: nobody reads its results', unused, least.name)
      )
    );
  }
  if (gains.length && speedups.note) {
    gains.push(h('span.tc-muted', { title: speedups.note }, t('busy machine')));
  }
  const paid = mainCall(report)?.break_even_calls;
  const cost = [
    summary.compile_seconds && status !== 'nothing' ? t('{0} to compile', seconds(summary.compile_seconds)) : '',
    paid ? t('pays off after {0}', plural(paid, 'call')) : ''
  ]
    .filter(Boolean)
    .join(' · ');
  const line = button(
    [
      h('span.tc-caret', { 'aria-hidden': 'true' }),
      h(
        `span.tc-status.tc-status-${status}`,
        null,
        h('span.tc-symbol', { 'aria-hidden': 'true' }, summary.symbol),
        ` ${STATUS_WORDS[status]}`
      ),
      facts.length ? h('span.tc-facts-line', null, facts) : null,
      gains,
      cost ? h('span.tc-muted', null, cost) : null,
      summary.note ? h('span.tc-note', null, withoutStatus(summary.note, status)) : null
    ],
    { class: 'tc-head', 'aria-controls': controls, title: summary.line },
    toggle
  );
  return line;
}
