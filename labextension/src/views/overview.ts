/** The first tab: did it compile, was it faster, which line, what to change. */

import { Child, empty, h, prose, section, table } from '../dom';
import { engineBars, stackedBar, stageBar } from '../figures';
import { count, place, plural, seconds } from '../format';
import { heatOf, Listing, marksByLine, MARK_WORDS } from '../listing';
import { CallTiming, Change, Finding, MarkKind, Report } from '../schema';
import { diffLines, fixElement } from './fix';
import { View, ViewContext } from './view';

export function overview(context: ViewContext): View {
  const { model, go } = context;
  const { report } = model;
  const { source } = report;
  const stops: (() => void)[] = [];

  let code: HTMLElement;
  if (source.text) {
    const here = report.marks.filter(m => model.isHere(m.file));
    const listing = new Listing(source.text, {
      label: 'The code of the cell, with marks', language: 'python', firstLine: source.first_line,
      marks: marksByLine(here), heat: heatOf(report, f => model.isHere(f)), onLine: line => model.selectLine(source.file, line, code)
    });
    const follow = () => {
      const { file, line } = model.place;
      listing.highlight(line && model.isHere(file) ? [line] : []);
    };
    stops.push(model.onSelect(follow));
    follow();
    const kinds = [...new Set(here.map(m => m.kind))] as MarkKind[];
    code = h('div.tc-panel', null, listing.element, h('div.tc-legend', null, kinds.map(kind =>
      h('span', null, h(`span.tc-mark.tc-mark-${kind}`, { 'aria-hidden': 'true' }), MARK_WORDS[kind] ?? kind))));
  } else {
    code = empty('The code was not kept in this report.');
  }

  return {
    element: h('div', null,
      report.errors.length ? section('Errors', report.errors.map(e => h('p.tc-error', null, e))) : null,
      h('div.tc-columns', null,
        h('div', null, section(source.cell ? `Cell ${source.cell}` : report.title || 'Code', code), findings(report, go), previous(report)),
        h('div', null, timeFigure(report), compileFigure(report), runFigure(report)))),
    dispose: () => stops.forEach(f => f())
  };
}

/** The call that a reader asks about: the whole cell where it was timed, else the longest. */
export function mainCall(report: Report): CallTiming | undefined {
  const calls = report.speedups.calls.filter(c => c.engines.some(e => e.median !== null));
  const weight = (c: CallTiming) => c.engines.find(e => e.engine === 'eager')?.median ?? 0;
  return calls.find(c => c.measured === 'cell') ?? [...calls].sort((a, b) => weight(b) - weight(a))[0];
}

function timeFigure(report: Report): HTMLElement {
  const call = mainCall(report);
  if (!call) {
    return section('Time per call', empty(`Not measured: ${report.speedups.reason || 'nothing could be timed again'}.`));
  }
  const what = call.measured === 'graphs' ? ', its graphs alone' : call.measured === 'cell' ? ', the whole cell' : '';
  const more = report.speedups.calls.length - 1;
  return section(`Time per call of ${call.name}${what}`, engineBars(call.engines, call.speedups),
    more > 0 ? h('p.tc-muted', null, `and ${plural(more, 'more call')} under Speed`) : null);
}

function compileFigure(report: Report): HTMLElement {
  const total = report.summary.compile_seconds;
  if (!report.stages.length) {
    return section('Compile time', empty(total ? `${seconds(total)}, not broken down.` : 'Nothing was compiled: earlier entries served.'));
  }
  const hits = report.cache.filter(c => c.hit).reduce((sum, c) => sum + c.count, 0);
  return section(`Compile time ${seconds(total)}`, stageBar(report.stages),
    hits ? h('p.tc-muted', null, `${plural(hits, 'kernel')} came from the disk cache`) : null);
}

/** Guards and kernels as measured; what is between them and the whole call is the host's part. */
function runFigure(report: Report): HTMLElement {
  const call = mainCall(report);
  const ours = call?.engines.find(e => e.engine === 'tcompile')?.median ?? null;
  const guards = report.entries.reduce((sum, e) => sum + (e.guard_seconds ?? 0), 0) / Math.max(1, report.frames.filter(f => f.entries.length).length);
  const timed = report.kernels.filter(k => k.seconds !== null);
  const kernels = timed.reduce((sum, k) => sum + k.seconds! * k.launches, 0);
  const externs = report.externs.reduce((sum, e) => sum + e.count, 0);
  const facts: Child[] = [
    h('p.tc-muted', null, [plural(report.kernels.length, 'generated kernel'), externs ? `${plural(externs, 'call')} of torch’s own kernels` : '',
      report.fallbacks.length ? plural(report.fallbacks.reduce((sum, f) => sum + f.count, 0), 'fallback to eager', 'fallbacks to eager') : ''].filter(t => t).join(' · '))
  ];
  if (ours === null || !timed.length) {
    return section('Run time', facts, report.kernels.length ? empty('Kernels were not timed one by one.') : null);
  }
  const rest = Math.max(0, ours - guards - kernels);
  return section('Run time', stackedBar([
    { name: 'guards', value: guards, colour: 'hsl(188, 46%, 52%)' },
    { name: 'kernels', value: kernels, colour: 'hsl(212, 46%, 52%)', note: timed.length < report.kernels.length ? 'those timed' : '' },
    { name: 'rest of the call', value: rest, colour: 'hsl(0, 0%, 58%)' }
  ], 'Where the run time goes'), facts);
}

function findings(report: Report, go: (ref: string) => void): HTMLElement {
  const rows: Finding[] = report.findings.slice(0, 3);
  if (!rows.length) {
    const { breaks, recompiles } = report.summary;
    return section('Findings', empty(breaks || recompiles ? 'Nothing that costs enough to mention.' :
      'Nothing to change: no break, no recompile, nothing ran eager that could have been compiled.'));
  }
  return section('Findings', h('ol.tc-findings', null, rows.map(f => h(`li.tc-finding.tc-${f.severity}`, null,
    h('div.tc-finding-text', null, prose(f.text),
      f.cost_seconds ? h('span.tc-muted', null, ` costs ${seconds(f.cost_seconds)}`) : null),
    f.action ? h('div.tc-remedy', null, h('span.tc-label', null, 'what to change'), h('span', null, ...prose(f.action))) : null,
    fixOf(report, f),
    f.ref ? h('button.tc-link', { type: 'button', onclick: () => go(f.ref) }, f.line ? `${place('', f.line, '')}, details` : 'details') : null))));
}

/** What changed since the last run of the cell: figures, options, lines of code. */
function previous(report: Report): HTMLElement | null {
  const { previous: p } = report;
  if (!p.report || !(p.changes.length || p.source.length)) {
    return null;
  }
  return section('Since the last run of this cell',
    p.changes.length ? table<Change>([
      { title: 'what', cell: c => c.what }, { title: 'before', cell: c => c.before || '–' },
      { title: 'now', cell: c => [c.after || '–', c.better === null ? null : h(c.better ? 'span.tc-gain-up' : 'span.tc-gain-down', null, c.better ? ' better' : ' worse')] }
    ], p.changes, { label: 'Changes since the last run', limit: 12 }) : null,
    p.source.length ? diffLines(p.source) : null);
}

/** A finding about a break whose remedy is a change of lines. */
function fixOf(report: Report, f: Finding): HTMLElement | null {
  const [kind, index] = f.ref.split('/');
  const fix = kind === 'breaks' ? report.graph_breaks[Number(index)]?.fix : null;
  return fix ? h('details.tc-fix-details', null, h('summary', null, 'as a change of lines'), fixElement(fix, report.source.file === fix.file ? report.source.cell : null)) : null;
}

/** Words for an empty corner of a report, used by several views. */
export function omissions(report: Report): HTMLElement | null {
  return report.omitted.length
    ? h('p.tc-muted', null, 'Left out: ' + report.omitted.map(o => `${count(o.count)} ${o.what} (${o.why})`).join('; ') + '.')
    : null;
}
