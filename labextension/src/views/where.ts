/** Where the wall time of the run went: one bar, one table; and what became of each function. */

import { empty, h, prose, section, table } from '../dom';
import { stackedBar } from '../figures';
import { count, place, plural, seconds, shareBounds, TOLD_APART, shortOp } from '../format';
import { isOwnTime } from '../listing';
import { Decision, Report, WallPart } from '../schema';
import { t, words } from '../texts';

/** In the order of the bar. */
export const KIND_WORDS: { [kind: string]: string } = words({
  kernels: 'compiled kernels',
  library: 'torch’s kernels, in compiled calls',
  compiled: 'the rest of compiled calls',
  torch: 'torch outside of compiled code',
  python: 'Python',
  data: 'data loading',
  waiting: 'waiting',
  starved: 'waiting for a core',
  compiling: 'in the compiler',
  rest: 'Python and the rest'
});

const COLOURS: { [kind: string]: string } = {
  kernels: 'hsl(212, 60%, 52%)',
  library: 'hsl(188, 46%, 48%)',
  compiled: 'hsl(212, 30%, 72%)',
  torch: 'hsl(32, 62%, 54%)',
  python: 'hsl(48, 58%, 52%)',
  data: 'hsl(95, 36%, 48%)',
  waiting: 'hsl(0, 0%, 66%)',
  starved: 'hsl(0, 0%, 50%)',
  compiling: 'hsl(285, 34%, 58%)',
  rest: 'hsl(48, 30%, 62%)'
};
const KINDS = ['kernels', 'library', 'compiled', 'torch', 'python', 'data', 'waiting', 'starved', 'compiling', 'rest'];
const ROWS = 8;
/** What stands for several small parts, or for what has no name in the program. */
const JOINED = /^(\d+ others?|importing modules|loading data)$/;

export interface Where {
  /** Kinds of time, at a glance. */
  bar: HTMLElement;
  /** What took it, by name. */
  names: HTMLElement | null;
}

/** Null where the wall time is not known: a report of an earlier version, or of a program. */
export function whereView(report: Report, go: (ref: string) => void): Where | null {
  const { wall } = report;
  if (!wall?.seconds) {
    return null;
  }
  const parts = KINDS.map(kind => ({
    name: KIND_WORDS[kind],
    colour: COLOURS[kind],
    value: wall.parts.filter(p => p.kind === kind).reduce((sum, p) => sum + p.seconds, 0)
  }));
  // What the next run does not pay, and what others took, would make all else look like nothing.
  const own = wall.parts.filter(isOwnTime).reduce((s, p) => s + p.seconds, 0);
  const share = (p: WallPart) => {
    const part = p.seconds / own;
    if (!isOwnTime(p)) {
      return '';
    }
    const [lo, hi] =
      p.looks && wall.looks
        ? shareBounds(p.looks, wall.looks).map(b => (b * part) / (p.looks! / wall.looks!))
        : [part, part];
    return hi - lo > TOLD_APART
      ? t('{0}–{1} %', Math.round(100 * lo), Math.round(100 * Math.min(1, hi)))
      : part >= 0.005
        ? t('{0} %', Math.round(100 * part))
        : t('< 1 %');
  };
  const rows = wall.parts.filter(p => p.kind !== 'compiling' && p.kind !== 'starved' && p.kind !== 'rest');
  const names = rows.length
    ? table<WallPart>(
        [
          {
            title: t('what'),
            cell: p => [
              h('span.tc-swatch', { style: { background: COLOURS[p.kind] } }),
              p.kind === 'compiled' || JOINED.test(p.name) ? p.name : h('code', { title: p.name }, shortOp(p.name))
            ]
          },
          { title: t('kind of time'), cell: p => KIND_WORDS[p.kind] ?? p.kind },
          { title: t('time'), number: true, cell: p => seconds(p.seconds) },
          {
            title: own < 0.98 * wall.seconds ? t('share of the program’s own time') : t('share'),
            number: true,
            cell: share
          },
          { title: t('calls'), number: true, cell: p => (p.count ? count(p.count) : '') },
          { title: t('line'), short: true, cell: p => (p.line ? place(p.file, p.line, report.source.file) : '') }
        ],
        rows,
        { label: t('Where the wall time went, by name'), limit: ROWS, onRow: p => p.ref && go(p.ref) }
      )
    : null;
  const how = h(
    'p.tc-muted',
    null,
    wall.how === 'sampled'
      ? t(
          'From {0} at the program’s stack. Compiling, and kernels in compiled calls, are timed by the clock.',
          plural(wall.samples, 'look')
        ) + (rows.some(p => share(p).includes('–')) ? t(' A share of few looks is given with its bounds (95 %).') : '')
      : t('Too short to be looked at: compiling is timed by the clock, kernels by their time and calls.')
  );
  return {
    bar: section(
      t('Where the {0} of the run went', seconds(wall.seconds)),
      stackedBar(parts, t('Where the wall time went')),
      names ? null : how
    ),
    names: names && section(t('What took the time, by name'), names, how)
  };
}

const DECISION_WORDS: { [decision: string]: string } = words({
  compiled: 'compiled',
  'left alone': 'left alone',
  'not followed': 'not followed',
  skipped: 'runs as Python',
  limit: 'given up',
  'switched off': 'switched off',
  'taken over': 'compiled here'
});

export function decisionsView(report: Report, go: (ref: string) => void): HTMLElement | null {
  if (!report.decisions.length) {
    return null;
  }
  const compiled = report.decisions.filter(d => d.decision === 'compiled');
  const alone = report.decisions.filter(d => d.decision !== 'compiled');
  // (what the calls of functions waited for does not hold it)
  const backward = report.timeline.filter(e => e.kind === 'compile' && /backward pass$/.test(e.text));
  const besides = backward.reduce((sum, e) => sum + e.seconds, 0);
  const where = (d: Decision) =>
    h(
      d.file.includes('/') ? 'span.tc-path' : 'span',
      null,
      d.line ? place(d.file, d.line, report.source.file) : d.file
    );
  return h(
    'div',
    null,
    section(
      t('What was compiled, and why it pays'),
      compiled.length
        ? table<Decision>(
            [
              { title: t('function'), cell: d => h('code', null, d.what) },
              { title: t('compiled in'), number: true, cell: d => (d.seconds ? seconds(d.seconds) : '–') },
              {
                title: t('calls'),
                number: true,
                cell: d => (d.calls ? count(d.calls) : '–'),
                hint: t('served by compiled code')
              },
              { title: t('why'), cell: d => prose(d.why) },
              { title: t('line'), short: true, cell: where }
            ],
            compiled,
            { label: t('What was compiled'), limit: ROWS, onRow: d => d.ref && go(d.ref) }
          )
        : empty(t('Nothing.')),
      besides > 0.05 * report.summary.compile_seconds
        ? h(
            'p.tc-muted',
            null,
            t('Backward passes, compiled when they first ran, took the other {0}.', seconds(besides))
          )
        : null
    ),
    alone.length
      ? h(
          'details.tc-fold',
          null,
          h('summary', null, t('What was left alone, and why: {0}', plural(alone.length, 'function'))),
          table<Decision>(
            [
              { title: t('function'), cell: d => h('code', null, d.what) },
              { title: '', short: true, cell: d => DECISION_WORDS[d.decision] ?? d.decision },
              { title: t('why'), cell: d => prose(d.why) },
              { title: t('line'), short: true, cell: where }
            ],
            alone,
            { label: t('What was left alone'), limit: 40 }
          )
        )
      : null
  );
}
