/** The first tab: did it compile, was it faster, which line, what to change. */

import { Child, empty, h, prose, section, table } from '../dom';
import { engineBars, stackedBar, stageBar } from '../figures';
import { count, place, plural, seconds } from '../format';
import { heatOf, Listing, markElement, marksByLine, MARK_WORDS } from '../listing';
import { CallTiming, Change, Finding, Mark, MarkKind, Report } from '../schema';
import { answersView } from './answers';
import { diffLines, fixElement } from './fix';
import { glanceView } from './glance';
import { flash } from './guards';
import { View, ViewContext } from './view';
import { decisionsView, whereView } from './where';
import { t } from '../texts';

export function overview(context: ViewContext): View {
  const { model, go } = context;
  const { report } = model;
  const { source } = report;
  const stops: (() => void)[] = [];

  let code: HTMLElement;
  if (source.text) {
    const here = report.marks.filter(m => model.isHere(m.file));
    const listing = new Listing(source.text, {
      label: t('The code of the cell, with marks'),
      language: 'python',
      firstLine: source.first_line,
      marks: marksByLine(here),
      heat: heatOf(report, f => model.isHere(f)),
      onLine: line => model.selectLine(source.file, line, code)
    });
    const follow = () => {
      const { file, line } = model.place;
      listing.highlight(line && model.isHere(file) ? [line] : []);
    };
    stops.push(model.onSelect(follow));
    follow();
    code = h('div.tc-panel', null, listing.element, h('div.tc-legend', null, legend(here)));
  } else {
    code = empty(t('The code was not kept in this report.'));
  }

  const where = whereView(report, go);
  const answers = answersView(context);
  const changed = previous(report);
  return {
    element: h(
      'div',
      null,
      report.errors.length
        ? section(
            t('Errors'),
            report.errors.map(e => h('p.tc-error', null, e))
          )
        : null,
      answers.element,
      where?.bar,
      h(
        'div.tc-columns',
        null,
        h(
          'div',
          null,
          section(source.cell ? t('Cell {0}', source.cell) : report.title || t('Code'), code),
          findings(report, go),
          changed
        ),
        h('div', null, glanceView(context), timeFigure(report), compileFigure(report), where ? null : runFigure(report))
      ),
      where?.names,
      decisionsView(report, go)
    ),
    shown: answers.shown,
    reveal: kind => kind === 'previous' && flash(changed),
    dispose: () => stops.forEach(f => f())
  };
}

/** The marks as they are drawn, each with its words. */
function legend(marks: Mark[]): HTMLElement[] {
  const drawn = new Map<string, string>();
  for (const ofLine of marksByLine(marks).values()) {
    const { className } = markElement(ofLine);
    const kinds = className.includes('ringed') ? ['captured', 'guard'] : [ofLine[0].kind];
    drawn.set(className, kinds.map(kind => MARK_WORDS[kind as MarkKind] ?? kind).join(', '));
  }
  return [...drawn].map(([className, text]) =>
    h('span', null, h('span', { class: className, 'aria-hidden': 'true' }), text)
  );
}

/**
 * The call that a reader asks about: the whole cell where it was timed, else the longest. Graphs alone stand for
 * nothing.
 */
export function mainCall(report: Report): CallTiming | undefined {
  const calls = report.speedups.calls.filter(c => c.measured !== 'graphs' && c.engines.some(e => e.median !== null));
  return calls.find(c => c.measured === 'cell') ?? [...calls].sort((a, b) => eagerSeconds(b) - eagerSeconds(a))[0];
}

/** Whether no engine could run a call again: a figure of others is not that of the cell. */
const untimed = (c: CallTiming) => c.engines.length > 0 && c.engines.every(e => e.median === null);

/** Of the run: a call below that stands for nothing where graphs that took longer were timed. */
const LITTLE = 0.05;

function eagerSeconds(c?: CallTiming): number {
  return (c?.engines ?? []).find(e => e.engine === 'eager')?.median ?? 0;
}

function timeFigure(report: Report): HTMLElement {
  const call = mainCall(report);
  const graphs = report.speedups.calls
    .filter(c => c.measured === 'graphs' && c.engines.some(e => e.median !== null))
    .sort((a, b) => eagerSeconds(b) - eagerSeconds(a))[0];
  const little = call && (report.speedups.share ?? 1) < LITTLE && eagerSeconds(graphs) > eagerSeconds(call);
  if (graphs && (!call || little)) {
    return section(
      graphs.backward
        ? t('Time of the graphs of {0} alone, forward and backward, without the code around them', graphs.name)
        : report.partitions.length
          ? t('Time of the graphs of {0} alone, forward, without the code around them', graphs.name)
          : t('Time of the graphs of {0} alone, without the code around them', graphs.name),
      engineBars(graphs.engines, graphs.speedups),
      h(
        'details.tc-fold',
        { open: report.speedups.calls.some(untimed) },
        h('summary', null, t('why nothing was timed as a whole')),
        h('p.tc-muted', null, report.speedups.reason)
      ),
      report.speedups.note ? h('p.tc-muted', null, report.speedups.note) : null
    );
  }
  if (!call) {
    return section(
      t('Time per call'),
      empty(t('Not measured: {0}.', report.speedups.reason || t('nothing could be timed again')))
    );
  }
  const what = call.measured === 'cell' ? t(', the whole cell') : '';
  const more = report.speedups.calls.length - 1;
  return section(
    t('Time per call of {0}{1}', call.name, what),
    engineBars(call.engines, call.speedups),
    more > 0 ? h('p.tc-muted', null, t('and {0} under Speed', plural(more, 'more call'))) : null,
    report.speedups.note ? h('p.tc-muted', null, report.speedups.note) : null
  );
}

function compileFigure(report: Report): HTMLElement {
  const total = report.summary.compile_seconds;
  if (!report.stages.length) {
    return section(
      t('Compile time'),
      empty(total ? t('{0}, not broken down.', seconds(total)) : t('Nothing was compiled: earlier entries served.'))
    );
  }
  const hits = report.cache.filter(c => c.hit).reduce((sum, c) => sum + c.count, 0);
  return section(
    t('Compile time {0}', seconds(total)),
    stageBar(report.stages),
    hits ? h('p.tc-muted', null, t('{0} came from the disk cache', plural(hits, 'kernel'))) : null
  );
}

/** Guards and kernels as measured; what is between them and the whole call is the host's part. */
function runFigure(report: Report): HTMLElement {
  const call = mainCall(report);
  const ours = call?.engines.find(e => e.engine === 'tcompile')?.median ?? null;
  const guards =
    report.entries.reduce((sum, e) => sum + (e.guard_seconds ?? 0), 0) /
    Math.max(1, report.frames.filter(f => f.entries.length).length);
  const timed = report.kernels.filter(k => k.seconds !== null);
  const kernels = timed.reduce((sum, k) => sum + k.seconds! * k.launches, 0);
  const externs = report.externs.reduce((sum, e) => sum + e.count, 0);
  const facts: Child[] = [
    h(
      'p.tc-muted',
      null,
      [
        plural(report.kernels.length, 'generated kernel'),
        externs ? t('{0} of torch’s own kernels', plural(externs, 'call')) : '',
        report.fallbacks.length
          ? plural(
              report.fallbacks.reduce((sum, f) => sum + f.count, 0),
              'fallback to eager',
              'fallbacks to eager'
            )
          : ''
      ]
        .filter(Boolean)
        .join(' · ')
    )
  ];
  if (ours === null || !timed.length) {
    return section(t('Run time'), facts, report.kernels.length ? empty(t('Kernels were not timed one by one.')) : null);
  }
  const rest = Math.max(0, ours - guards - kernels);
  return section(
    t('Run time'),
    stackedBar(
      [
        { name: t('guards'), value: guards, colour: 'hsl(188, 46%, 52%)' },
        {
          name: t('kernels'),
          value: kernels,
          colour: 'hsl(212, 46%, 52%)',
          note: timed.length < report.kernels.length ? t('those timed') : ''
        },
        {
          name: externs ? t('library calls, and the time between kernels') : t('rest of the call'),
          value: rest,
          colour: 'hsl(0, 0%, 58%)'
        }
      ],
      t('Where the run time goes')
    ),
    facts
  );
}

function findings(report: Report, go: (ref: string) => void): HTMLElement {
  const rows: Finding[] = report.findings.slice(0, 3);
  if (!rows.length) {
    const { breaks, recompiles } = report.summary;
    return section(
      t('Findings'),
      empty(
        breaks || recompiles
          ? t('Nothing that costs enough to mention.')
          : t('Nothing to change: no break, no recompile, nothing ran eager that could have been compiled.')
      )
    );
  }
  // (what to change, and the change as lines, stands once: in the ranked answer where it has one)
  const ranked = new Set(report.answers.filter(a => a.action).map(a => `${a.ref} ${a.action}`));
  return section(
    t('Findings'),
    h(
      'ol.tc-findings',
      null,
      rows.map(f =>
        h(
          `li.tc-finding.tc-${f.severity}`,
          null,
          h(
            'div.tc-finding-text',
            null,
            prose(f.text),
            f.cost_seconds ? h('span.tc-muted', null, t(' costs {0}', seconds(f.cost_seconds))) : null
          ),
          ranked.has(`${f.ref} ${f.action}`)
            ? h('div.tc-muted', null, t('see above for what to change'))
            : f.action
              ? h(
                  'div.tc-remedy',
                  null,
                  h('span.tc-label', null, t('what to change')),
                  h('span', null, ...prose(f.action))
                )
              : null,
          ranked.has(`${f.ref} ${f.action}`) ? null : fixOf(report, f),
          f.ref
            ? h(
                'button.tc-link',
                { type: 'button', onclick: () => go(f.ref) },
                f.line ? t('{0}, details', place('', f.line, '')) : t('details')
              )
            : null
        )
      )
    )
  );
}

/** What changed since the last run of the cell: figures, options, lines of code. */
function previous(report: Report): HTMLElement | null {
  const { previous: p } = report;
  if (!p.report || !(p.changes.length || p.source.length)) {
    return null;
  }
  const element = section(
    t('Since the last run of this cell'),
    p.changes.length
      ? table<Change>(
          [
            { title: t('what'), cell: c => c.what },
            { title: t('before'), cell: c => c.before || '–' },
            {
              title: t('now'),
              cell: c => [
                c.after || '–',
                c.better === null
                  ? null
                  : h(c.better ? 'span.tc-gain-up' : 'span.tc-gain-down', null, c.better ? t(' better') : t(' worse'))
              ]
            },
            { title: t('why'), cell: c => prose(c.why ?? '') }
          ],
          p.changes,
          { label: t('Changes since the last run'), limit: 12 }
        )
      : null,
    p.source.length ? diffLines(p.source) : null
  );
  element.classList.add('tc-previous');
  element.tabIndex = -1;
  return element;
}

/** A finding about a break whose remedy is a change of lines. */
function fixOf(report: Report, f: Finding): HTMLElement | null {
  const [kind, index] = f.ref.split('/');
  const fix = kind === 'breaks' ? report.graph_breaks[Number(index)]?.fix : null;
  return fix
    ? h(
        'details.tc-fix-details',
        null,
        h('summary', null, t('as a change of lines')),
        fixElement(fix, report.source.file === fix.file ? report.source.cell : null)
      )
    : null;
}

/** Words for an empty corner of a report, used by several views. */
export function omissions(report: Report): HTMLElement | null {
  // What is left out in several steps is told once.
  const left = new Map<string, number>();
  report.omitted.forEach(o => left.set(o.what, (left.get(o.what) ?? 0) + o.count));
  const whys = new Set(report.omitted.map(o => o.why));
  return report.omitted.length
    ? h(
        'p.tc-muted',
        null,
        t('Left out {0}: {1}.', [...whys].join(', '), [...left].map(([what, n]) => `${what} (${count(n)})`).join(', '))
      )
    : null;
}
