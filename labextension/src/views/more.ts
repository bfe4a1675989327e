/** What is left: breaks in full, functions, fallbacks, sizes, numerics, cache, environment, the report as a file. */

import { button, Child, download, empty, h, prose, section, table } from '../dom';
import { bound, count, frameWords, place, plural, rate, seconds } from '../format';
import { Break, CacheLookup, CellSource, Frame } from '../schema';
import { fixElement } from './fix';
import { hostOf } from '../host';
import { flash } from './guards';
import { numericsView } from './numerics';
import { omissions } from './overview';
import { reproduceView } from './reproduce';
import { View, ViewContext } from './view';
import { t, words } from '../texts';

const FRAME_WORDS: { [status: string]: string } = words({
  compiled: '● compiled',
  partly: '▲ partly',
  skipped: '○ skipped',
  limit: '○ not compiled: limit reached',
  error: '✕ error'
});

export function moreView(context: ViewContext): View {
  const { model, memory } = context;
  const { report } = model;
  const here = report.source.file;
  const breaks = report.graph_breaks.map(b =>
    breakCard(b, report.source, () => model.selectLine(b.file || here, b.line, 'break'))
  );
  const frames = report.frames.length
    ? table(
        [
          { title: t('function'), cell: f => h('code', null, frameWords(f.name)) },
          { title: t('where'), short: true, cell: f => place(f.file, lineOf(f), here) },
          { title: t('result'), short: true, cell: f => FRAME_WORDS[f.status] ?? f.status },
          { title: t('entries'), number: true, cell: f => f.entries.length },
          { title: t('compiled in'), number: true, cell: f => (f.seconds ? seconds(f.seconds) : '–') },
          { title: t('why'), cell: f => prose(f.reason) }
        ],
        report.frames,
        {
          label: t('Functions'),
          onRow: f => model.selectLine(f.file || here, f.line, 'frames'),
          rowAttributes: (_, i) => ({ 'data-frame': i })
        }
      )
    : empty(t('No function was looked at.'));
  const eager = (report.wall?.parts ?? []).filter(p => p.kind === 'torch').reduce((sum, p) => sum + p.seconds, 0);
  const fallbacks = report.fallbacks.length
    ? table(
        [
          { title: t('what'), cell: f => h('code', null, f.what) },
          { title: t('why'), cell: f => prose(f.reason) },
          { title: t('times'), number: true, cell: f => count(f.count) }
        ],
        report.fallbacks,
        { label: t('Fallbacks'), rowAttributes: (_, i) => ({ 'data-fallback': i, tabindex: -1 }) }
      )
    : empty(
        eager > 0
          ? t(
              'None of what was captured: all of it was compiled. Outside of it torch’s operators took {0}: Overview names them.',
              seconds(eager)
            )
          : t('None: whatever was captured was compiled.')
      );
  const numbers = numericsView(context);
  const file = reproduceView(context);
  const exports = h('span');
  let asked = false;
  const offerPage = () => {
    const host = asked ? null : hostOf(element);
    if (host) {
      asked = true;
      const name = `tcompile-${report.id || 'report'}.html`;
      exports.append(
        button(
          t('download as HTML'),
          { class: 'tc-button', title: t('One page that needs nothing else') },
          async event => {
            const target = event.currentTarget as HTMLButtonElement;
            try {
              download(name, (await host.ask('page', { report: report.id })).html, 'text/html');
            } catch (error) {
              target.replaceWith(
                h('span.tc-error', { role: 'alert' }, error instanceof Error ? error.message : String(error))
              );
            }
          }
        )
      );
    }
  };
  const symbols = report.graphs.flatMap(g => g.symbols.map(s => ({ graph: g.name, ...s })));
  // What needs no change stands behind one line, unless it is all there is to say and short.
  const told = breaks.filter((_, i) => !report.graph_breaks[i].harmless);
  const quiet = breaks.filter((_, i) => report.graph_breaks[i].harmless);
  const element = h(
    'div',
    null,
    section(
      t('Graph breaks {0}', breaks.length || ''),
      breaks.length ? told : empty(t('None: every function that was captured is one graph.')),
      quiet.length > 1
        ? h('details.tc-fold', null, h('summary', null, t('{0} that need no change', quiet.length)), quiet)
        : quiet
    ),
    section(t('Functions'), frames),
    section(t('Ran as eager code in the place of a graph'), fallbacks),
    symbols.length
      ? section(
          t('Dynamic sizes'),
          table(
            [
              { title: t('size'), cell: s => h('code', null, s.name) },
              { title: t('graph'), cell: s => s.graph },
              { title: t('of'), cell: s => prose(sourceWords(s.source)) },
              { title: t('range'), cell: s => `${bound(s.lo, '−∞')} … ${bound(s.hi, '∞')}` },
              { title: t('first call'), number: true, cell: s => s.hint ?? '–' },
              {
                title: t('why'),
                cell: s => [s.why, s.line ? h('span.tc-muted', null, ` ${place(s.file, s.line, here)}`) : null]
              }
            ],
            symbols,
            { label: t('Dynamic sizes') }
          )
        )
      : null,
    numbers.element,
    file.element,
    section(
      t('Cache'),
      report.cache.length ? cacheTable(report.cache) : empty(t('No kernel was looked for: nothing new was compiled.'))
    ),
    section(t('Options'), facts(report.options, t('None were given.'))),
    section(t('Environment'), facts(report.environment, t('It was not noted.'))),
    section(
      t('This report'),
      omissions(report),
      h(
        'div.tc-toolbar',
        null,
        button(t('download as JSON'), { class: 'tc-button' }, () =>
          download(`tcompile-${report.id || 'report'}.json`, JSON.stringify(memory.raw ?? report), 'application/json')
        ),
        exports,
        h(
          'span.tc-muted',
          null,
          [report.created ? t('made {0}', report.created.replace('T', ' ').replace('Z', ' UTC')) : '', report.id]
            .filter(Boolean)
            .join(' · ')
        )
      )
    )
  );
  return {
    element,
    shown: () => {
      numbers.shown();
      file.shown();
      offerPage();
    },
    dispose: numbers.dispose,
    reveal: (kind, index) =>
      flash(
        kind === 'numerics'
          ? numbers.element
          : kind === 'breaks'
            ? breaks[index]
            : element.querySelector<HTMLElement>(
                kind === 'frames' ? `[data-frame="${index}"]` : `[data-fallback="${index}"]`
              )
      )
  };
}

/** The line that a frame begins at; a loop's stands in its name. */
function lineOf(f: Frame): number {
  return Number(/<loop at line (\d+)>$/.exec(f.name)?.[1] ?? f.line);
}

/** The reason of a lookup that nothing could have served: no miss to look into. */
const NEW = /^no kernel of this name was compiled before/;

/** What was looked up for one reason is one row; misses first. */
function cacheTable(lookups: CacheLookup[]): HTMLElement {
  const rows = new Map<string, CacheLookup[]>();
  for (const c of lookups) {
    const key = `${c.hit} ${c.reason}`;
    rows.set(key, [...(rows.get(key) ?? []), c]);
  }
  const sorted = [...rows.values()].sort(([a], [b]) => Number(a.hit) - Number(b.hit));
  return table(
    [
      {
        title: t('result'),
        short: true,
        cell: r => (r[0].hit ? t('● hit') : NEW.test(r[0].reason) ? t('○ new') : t('○ miss'))
      },
      { title: t('times'), number: true, cell: r => count(r.reduce((n, c) => n + c.count, 0)) },
      {
        title: t('what'),
        cell: r =>
          h(
            'span',
            { title: r.map(c => `${c.what}  ${c.key}`).join('\n') },
            r
              .slice(0, 3)
              .map(c => c.what)
              .join(', ') + (r.length > 3 ? ` ${t('and {0} more', r.length - 3)}` : '')
          )
      },
      { title: t('why'), cell: r => prose(r[0].reason) },
      {
        title: t('key'),
        short: true,
        cell: r => (r.length === 1 ? h('code.tc-muted', null, r[0].key.slice(0, 10)) : '')
      }
    ],
    sorted,
    { label: t('Cache') }
  );
}

/** What the environment's entries are called, and how their figures read. */
const FACT_WORDS: { [name: string]: string } = words({
  copy_bytes_per_second: 'copy bandwidth',
  matmul_flops_per_second: 'peak matmul in float32',
  bfloat16_flops_per_second: 'peak in bfloat16',
  os: 'system',
  simd: 'vector unit',
  cores: 'cores',
  threads: 'threads',
  compiler: 'C++ compiler',
  cpu: 'processor',
  gpu: 'GPU',
  python: 'Python',
  torch: 'torch',
  tcompile: 'tcompile'
});

function factValue(name: string, value: any): string {
  const unit = name.endsWith('_bytes_per_second') ? 'B' : name.endsWith('_flops_per_second') ? 'FLOP' : '';
  return unit ? rate(Number(value), unit) : typeof value === 'object' ? JSON.stringify(value) : String(value);
}

function facts(values: { [name: string]: any }, none: string): Child {
  const names = Object.keys(values);
  return names.length
    ? h(
        'dl.tc-facts.tc-facts-wide',
        null,
        names.map(name =>
          h('div.tc-fact', null, h('dt', null, FACT_WORDS[name] ?? name), h('dd', null, factValue(name, values[name])))
        )
      )
    : empty(none);
}

/** The break at its line, the very expression underlined, and what to write instead. */
export function breakCard(b: Break, source: CellSource, act: () => void): HTMLElement {
  const here = source.file;
  // Columns count in the whole line; the break may carry it without its indentation.
  const own = b.file === here ? (source.text.split('\n')[b.line - source.first_line] ?? '') : '';
  const line = own.trim() === b.code.trim() ? own : b.code;
  const whole = line === own || /^\s/.test(line) || b.col === 0;
  const single =
    !b.harmless && whole && b.col !== null && b.end_col !== null && (b.end_line === null || b.end_line === b.line);
  const code = single
    ? [
        line.slice(0, b.col!).trimStart(),
        h('u.tc-culprit', null, line.slice(b.col!, b.end_col!)),
        line.slice(b.end_col!)
      ]
    : [line.trim()];
  return h(
    b.harmless ? 'article.tc-card.tc-card-quiet' : 'article.tc-card.tc-card-break',
    { tabindex: -1 },
    h(
      'h4',
      null,
      b.harmless ? null : [h('span.tc-mark.tc-mark-break', { 'aria-hidden': 'true' }), ' '],
      place(b.file, b.line, here),
      h('span.tc-muted', null, t(' in {0}', frameWords(b.function))),
      b.count > 1 ? h('span.tc-muted', null, `, ${plural(b.count, 'time')}`) : null
    ),
    b.code
      ? h(
          'button.tc-code-link',
          { type: 'button', onclick: act, 'aria-label': t('Line {0}: {1}', b.line, b.code.trim()) },
          h('code', null, ...code)
        )
      : null,
    h('p', null, ...prose(b.reason)),
    b.seconds
      ? h(
          'p.tc-muted',
          null,
          t('Costs {0} a call, {1} % of it, from graph to graph.', seconds(b.seconds), Math.round(100 * (b.share ?? 0)))
        )
      : null,
    b.remedy && b.harmless
      ? h('p.tc-muted', null, ...prose(b.remedy))
      : b.remedy
        ? h('div.tc-remedy', null, h('span.tc-label', null, t('what to change')), h('span', null, ...prose(b.remedy)))
        : null,
    b.fix ? fixElement(b.fix, b.fix.file === here ? source.cell : null) : null,
    b.call_chain.length > 1
      ? h(
          'details',
          null,
          h('summary', null, t('how the code got here')),
          h(
            'ol',
            null,
            b.call_chain.map(f => h('li', null, h('code', null, f.function), t(' {0} line {1}', f.file, f.line)))
          )
        )
      : null
  );
}

/** Where a size comes from: a name is code; what has none is told in words: `shape[0]` of an intermediate value. */
function sourceWords(source: string): string {
  const unnamed = /^([^.]* [^.]*)\.(.+)$/.exec(source);
  return unnamed ? t('`{0}` of {1}', unnamed[2], unnamed[1]) : `\`${source}\``;
}
