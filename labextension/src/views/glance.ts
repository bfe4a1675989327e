/** What a reader of a report asks first, each with its answer in a few words and the way to the rest. */

import { Child, h, prose, section } from '../dom';
import { bytes, place, plural, seconds, shortOp } from '../format';
import { lineBounds, lineShares, wholeShare } from '../listing';
import { NumericError, PartitionValue, Report } from '../schema';
import { mainGraph, Model } from '../selection';
import { t, words } from '../texts';
import { keptInside } from './kept';
import { KEPT_WORDS, readers } from './memory';
import { callRows, callWords, changeWords, varyingNames, waitWords } from './calls';
import { exponent } from './numerics';
import { ViewContext } from './view';

interface Row {
  question: string;
  answer: Child;
  /** What shows more: the ref of a place, or what to do. */
  more?: string | (() => void);
}

const CHANGES = 2;
/** Shares of lines that are told as one number. */
const ALIKE = 0.005;
const per = (share: number) => (share < 0.01 ? t('under 1 %') : `${Math.round(100 * share)} %`);
const NAMES = 3;

export function glanceView({ model, go }: ViewContext): HTMLElement | null {
  const { report } = model;
  const known = report.graphs.length > 0;
  const rows = [
    known || report.wall?.how === 'sampled'
      ? costliestLine(
          report,
          f => model.isHere(f),
          (file, line) => model.selectLine(file, line, 'glance')
        )
      : null,
    different(report, go),
    ...(known
      ? [peak(report), kept(model), ...[waited, again, next, accuracy].map(row => row(report)), apart(model)]
      : [])
  ].filter((row): row is Row => row !== null);
  if (!rows.length) {
    return null;
  }
  return section(
    t('At a glance'),
    h(
      'dl.tc-glance',
      null,
      rows.map(({ question, answer, more }) =>
        h(
          'div',
          null,
          h('dt', null, question),
          h(
            'dd',
            null,
            answer,
            more
              ? [
                  ' ',
                  h(
                    'button.tc-link',
                    {
                      type: 'button',
                      'aria-label': t('{0}: show more', question),
                      onclick: typeof more === 'string' ? () => go(more) : more
                    },
                    t('show')
                  )
                ]
              : null
          )
        )
      )
    )
  );
}

function costliestLine(
  report: Report,
  here: (file: string) => boolean,
  select: (file: string, line: number) => void
): Row | null {
  const shares = [...lineShares(report, here)].sort((a, b) => b[1] - a[1]);
  const [key, share] = shares[0] ?? ['', 0];
  if (!share) {
    return null;
  }
  const alike = shares.filter(([, s]) => share - s < ALIKE).length - 1;
  const question = t('Which line costs most?');
  const at = key.lastIndexOf(':');
  const [file, line] = [key.slice(0, at), Number(key.slice(at + 1))];
  const codeOf = (n: number) => report.source.text.split('\n')[n - (report.source.first_line || 1)]?.trim() ?? '';
  const code = file === report.source.file ? codeOf(line) : '';
  const sampled = report.wall?.how === 'sampled';
  const whole = sampled ? 1 : wholeShare(report);
  const nowhere = 1 - shares.reduce((sum, [, s]) => sum + s, 0) * whole; // what no line is known to have taken
  const little = nowhere > share * whole;
  const plain = report.marks.find(m => m.kind === 'eager' && here(m.file));
  if (little && !sampled && plain) {
    return {
      question,
      answer: [
        t('not known: the run was too short to look at; line {0} ran as plain Python: ', plain.line),
        h('code', null, codeOf(plain.line))
      ],
      more: () => select(plain.file, plain.line)
    };
  }
  const bounds = lineBounds(report, here, key, share);
  const few = bounds ? t(' (few looks: {0} to {1} %)', ...bounds.map(b => Math.round(100 * b))) : '';
  const each = per(share) + few;
  return {
    question,
    answer: [
      little && sampled
        ? t('none: {0} is guards, launches and the rest of compiled calls; of the lines ', per(nowhere))
        : '',
      alike
        ? t('{0} and {1} more alike, {2} each', place(file, line, report.source.file), alike, each)
        : `${place(file, line, report.source.file)}, ${each}`,
      little && !sampled ? t(' of what kernels took') : '',
      code ? [': ', h('code', null, code)] : ''
    ],
    more: () => select(file, line)
  };
}

/** What changed since the last run of the cell: in words what comes first, the rest in a section of its own. */
function different(report: Report, go: (ref: string) => void): Row | null {
  const { previous } = report;
  if (!previous.report) {
    return null;
  }
  const lines = previous.source.filter(([sign]) => sign === '+' || sign === '-').length;
  // What was given otherwise comes first: the figures follow from it.
  const causes = previous.changes.filter(c => c.what === 'recompiles' && c.why);
  const options = previous.changes.filter(c => c.what.startsWith('option '));
  const rest = previous.changes.filter(c => !causes.includes(c) && !options.includes(c));
  const figures = [...options, ...causes, ...rest]
    .slice(0, CHANGES + causes.length)
    .map(c => (causes.includes(c) ? c.why! : [c.what, c.before, '→', c.after].filter(Boolean).join(' ')));
  const more = previous.changes.length - figures.length;
  const told = [lines ? plural(lines, 'changed line') : '', ...figures, more > 0 ? t('{0} more', more) : ''].filter(
    Boolean
  );
  return {
    question: t('What is different from its last run?'),
    answer: told.length ? prose(told.join('; ')) : t('nothing: the same lines, options and figures'),
    more: told.length ? () => go('previous') : undefined
  };
}

function peak(report: Report): Row | null {
  const [most] = [...report.memory].sort((a, b) => (b.peak_bytes ?? 0) - (a.peak_bytes ?? 0));
  if (!most?.peak_bytes) {
    return null;
  }
  const [file, line] = most.peak_line ?? [];
  return {
    question: t('Where is the peak of memory?'),
    answer: [
      bytes(most.peak_bytes),
      most.peak_at ? [t(', while '), h('code', null, shortOp(most.peak_at)), t(' runs')] : '',
      line ? ` (${place(file ?? '', line, report.source.file)})` : '',
      most.eager_peak_bytes ? t('; eager {0}', bytes(most.eager_peak_bytes)) : ''
    ],
    more: 'memory'
  };
}

function kept(model: Model): Row | null {
  const { report } = model;
  const index = report.partitions.reduce(
    (best, p, i) => (best < 0 || p.saved_bytes > report.partitions[best].saved_bytes ? i : best),
    -1
  );
  const p = report.partitions[index];
  const question = t('What is kept for backward, and why?');
  const [inside] = keptInside(model);
  if (p && p.saved_bytes >= (inside?.bytes ?? 0)) {
    return {
      question,
      answer: [
        t('{0} in {1}', bytes(p.saved_bytes), plural(p.saved.length, 'value')),
        largest(p.saved[0], readers(p, model)),
        p.eager_bytes !== null ? t('; eager keeps {0}', bytes(p.eager_bytes)) : ''
      ],
      more: `partitions/${index}`
    };
  }
  return inside
    ? {
        question,
        answer: [
          t('{0} in {1}', bytes(inside.bytes), plural(inside.values.length, 'value')),
          largest(inside.values[0], inside.readers)
        ],
        more: `partitions/${report.partitions.length}`
      }
    : null;
}

/** The value that takes most, and what of backward reads it. */
function largest(v: PartitionValue | undefined, read: Map<string, string>): Child {
  return v
    ? [
        t('; the largest, '),
        h('code', null, v.name),
        t(' ({0})', bytes(v.bytes)),
        read.get(v.name) ? [t(', is read by '), h('code', null, read.get(v.name)!)] : '',
        KEPT_WORDS[v.kind] ? t(': {0}', KEPT_WORDS[v.kind]) : ''
      ]
    : '';
}

function waited(report: Report): Row {
  const rows = callRows(report).filter(r => r.waits);
  const longest = [...rows].sort((a, b) => b.waited - a.waited)[0];
  const waits = (some: typeof rows) => some.reduce((sum, r) => sum + r.waits, 0);
  const passes = waits(rows.filter(r => r.backward));
  const total = rows.reduce((sum, r) => sum + r.waited, 0);
  return {
    question: t('Which call waited for the compiler?'),
    answer: longest
      ? [
          ...prose(waitWords(report, longest)),
          t(', for {0}', seconds(longest.waited)),
          waits(rows) > 2
            ? t('; all {0} waits took {1}', waits(rows), seconds(total))
            : waits(rows) > 1
              ? t('; both waits took {0}', seconds(total))
              : t('; no other did'),
          passes && passes < waits(rows) ? t(', {0} of them in backward()', passes) : ''
        ]
      : report.summary.compile_seconds
        ? seconds(report.summary.compile_seconds)
        : t('none: earlier entries served'),
    more: 'calls'
  };
}

/**
 * The recompile that a reader is told of: the first that asks for a change, or else the first. What follows a break is
 * a function of its own, which is compiled again for the same reason.
 */
export function toldRecompile(report: Report): number {
  return Math.max(
    0,
    report.recompiles.findIndex(r => !/^no change is needed/.test(r.suggestion))
  );
}

function again(report: Report): Row | null {
  const told = toldRecompile(report);
  const first = report.recompiles[told];
  if (!first) {
    return null;
  }
  const more = report.recompiles.length - 1;
  return {
    question: t('Why did it compile again?'),
    answer: [...prose(callWords(first)), ': ', ...changeWords(first), more ? t('; {0} more', more) : ''],
    more: `recompiles/${told}`
  };
}

/**
 * What of the values that a call is given may not change, by name: of the entry that asks for least. What follows a
 * break, and a loop in a function, are given what was made before, which nobody changes.
 */
export function fixedParts(report: Report): Map<string, string> {
  const any = varyingNames(report);
  const least = new Map<string, string>();
  for (const g of report.guards) {
    const entry = report.entries[g.entry];
    const made = typeof entry?.goes_on === 'number' || INNER_LOOP.test(report.frames[entry?.frame]?.name ?? '');
    if (g.fixed && g.cls !== 'dropped' && !made && !any.has(g.source)) {
      const key = `${g.kind === 'TENSOR' ? '' : g.kind} ${g.source}`;
      const known = least.get(key);
      const sizes = (fixed: string) => (fixed.startsWith('shape') ? Infinity : fixed.split(' size').length - 1);
      least.set(key, known === undefined || sizes(g.fixed) < sizes(known) ? g.fixed : known);
    }
  }
  return least;
}

const INNER_LOOP = /^(?!<module>).*<loop at line/;

function next(report: Report): Row {
  const parts = new Map<string, string[]>();
  for (const [key, fixed] of fixedParts(report)) {
    parts.set(fixed, [...(parts.get(fixed) ?? []), key.slice(key.indexOf(' ') + 1)]);
  }
  const some = (all: string[]): Child[] => [
    ...all.slice(0, NAMES).flatMap((name, i) => [i ? ', ' : '', h('code', null, name)]),
    all.length > NAMES ? t(' and {0} more', all.length - NAMES) : ''
  ];
  const guards = plural(
    report.guards.reduce((n, g) => n + g.count, 0),
    'guard'
  );
  return {
    question: t('What would compile it again?'),
    answer: [
      ...[...parts].flatMap(([fixed, names]): Child[] => [t('another {0} of ', fixed), ...some(names), '; ']),
      [...parts.keys()].some(fixed => / size|^number/.test(fixed)) ? t('a size below 2 where sizes vary; ') : '',
      t('all that its {0} check', guards)
    ],
    more: 'forecast'
  };
}

/** How an operation loses the digits of its values. */
const LOST: { [cause: string]: string } = words({
  overflow: 'beyond the largest number',
  underflow: 'rounded to 0, or nearly',
  cancellation: 'digits cancel'
});

function accuracy(report: Report): Row {
  const { numerics } = report;
  const named = (n: NumericError): Child => [
    h('code', null, n.node),
    n.line ? t(', {0}', place(n.file, n.line, report.source.file)) : ''
  ];
  const worst = numerics.find(n => n.verdict === 'diverges');
  const first = numerics.find(n => (n.rms_vs_float64 ?? 0) > 0);
  const nan = numerics.find(n => n.nan);
  const lost = numerics.find(n => n.cause);
  return {
    question: t('Where do results first differ from float64?'),
    answer: [
      worst
        ? [t('at '), named(worst), t(', and from eager’s there')]
        : first
          ? [t('at '), named(first), t(' by {0}, as eager’s do', exponent(first.rms_vs_float64))]
          : numerics.length
            ? t('nowhere, of {0}', plural(numerics.length, 'value'))
            : report.options.check
              ? t('not compared: earlier entries served, and the run that made them was without --check')
              : t('not compared: ask, or run with --check'),
      lost ? [t('; {0} at ', LOST[lost.cause!] ?? lost.cause!), named(lost), t(' in {0}', lost.dtype)] : '',
      nan ? [t('; NaN first at '), named(nan)] : ''
    ],
    more: 'numerics'
  };
}

/** The first pair that the compiler tried to put into one kernel, and what kept them two; it is chosen in the graph. */
function apart(model: Model): Row | null {
  const { report } = model;
  const graph = mainGraph(model);
  const others = report.graphs.map((_, i) => i).filter(i => i !== graph);
  const at = [graph, ...others].find(i => report.graphs[i]?.unfused.some(isPair));
  const found = report.graphs[at ?? -1]?.unfused.filter(isPair) ?? [];
  const plain = found.filter(([, , why]) => !UNREADABLE.test(why));
  const refusal = plain[0] ?? found[0];
  return report.kernels.length > 1
    ? {
        question: t('Why are two operations two kernels?'),
        answer: refusal
          ? [
              h('code', null, refusal[0]),
              t(' and '),
              h('code', null, refusal[1]),
              `: ${refusal[2].replace(/^(\w+?)(_\d+)? is a library call \(\1\)$/, '$1$2 is a library call')}; `,
              t('choose any two in the graph')
            ]
          : t('{0}: choose two operations in the graph', plural(report.kernels.length, 'kernel')),
        more: refusal ? `pairs/${at}/${refusal[0]}/${refusal[1]}` : 'graph'
      }
    : null;
}

/** Reasons that say little at a glance: of library calls, and of sizes of loops. */
const UNREADABLE = / is a library call |run over different sizes/;
const isPair = ([one, other]: string[]) => one !== other;
