/** What a reader of a report asks first, each with its answer in a few words and the way to the rest. */

import { Child, h, prose, section } from '../dom';
import { bytes, frameWords, place, plural, seconds } from '../format';
import { heatOf } from '../listing';
import { Report } from '../schema';
import { t } from '../texts';
import { ViewContext } from './view';

interface Row {
  question: string;
  answer: Child;
  /** What shows more: the ref of a place, or what to do. */
  more?: string | (() => void);
}

const CHANGES = 2;
const NAMES = 3;

export function glanceView({ model, go }: ViewContext): HTMLElement | null {
  const { report } = model;
  const known = report.graphs.length > 0;
  const rows = [
    known
      ? costliestLine(
          report,
          f => model.isHere(f),
          line => model.selectLine(report.source.file, line, 'glance')
        )
      : null,
    different(report, go),
    ...(known ? [peak, kept, waited, again, next, accuracy, apart].map(row => row(report)) : [])
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

function costliestLine(report: Report, here: (file: string) => boolean, select: (line: number) => void): Row | null {
  const [line, share] = [...heatOf(report, here)].sort((a, b) => b[1] - a[1])[0] ?? [0, 0];
  if (!share) {
    return null;
  }
  const code = report.source.text.split('\n')[line - (report.source.first_line || 1)]?.trim() ?? '';
  return {
    question: t('Which line costs most?'),
    answer: [t('line {0}, {1} %: ', line, Math.round(100 * share)), h('code', null, code)],
    more: () => select(line)
  };
}

/** What changed since the last run of the cell: in words what comes first, the rest in a section of its own. */
function different(report: Report, go: (ref: string) => void): Row | null {
  const { previous } = report;
  if (!previous.report) {
    return null;
  }
  const lines = previous.source.filter(([sign]) => sign === '+' || sign === '-').length;
  const figures = previous.changes
    .slice(0, CHANGES)
    .map(c => [c.what, c.before, '→', c.after].filter(Boolean).join(' '));
  const more = previous.changes.length - figures.length;
  const told = [lines ? plural(lines, 'changed line') : '', ...figures, more > 0 ? t('{0} more', more) : ''].filter(
    Boolean
  );
  return {
    question: t('What is different from its last run?'),
    answer: told.length ? told.join('; ') : t('nothing: the same lines, options and figures'),
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
      t('{0}, ', bytes(most.peak_bytes)),
      most.peak_at ? [t('while '), h('code', null, most.peak_at), t(' runs')] : '',
      line ? ` (${place(file ?? '', line, report.source.file)})` : '',
      most.eager_peak_bytes ? t('; eager {0}', bytes(most.eager_peak_bytes)) : ''
    ],
    more: 'memory'
  };
}

function kept(report: Report): Row | null {
  const index = report.partitions.reduce(
    (best, p, i) => (best < 0 || p.saved_bytes > report.partitions[best].saved_bytes ? i : best),
    -1
  );
  const p = report.partitions[index];
  return p
    ? {
        question: t('What is kept for backward, and why?'),
        answer: [
          t('{0} in {1}', bytes(p.saved_bytes), plural(p.saved.length, 'value')),
          p.eager_bytes !== null ? t('; eager keeps {0}', bytes(p.eager_bytes)) : ''
        ],
        more: `partitions/${index}`
      }
    : null;
}

function waited(report: Report): Row {
  const waits = report.timeline.filter(e => e.kind === 'compile');
  const longest = [...waits].sort((a, b) => b.seconds - a.seconds)[0];
  const name = longest && longest.frame !== null ? frameWords(report.frames[longest.frame]?.name ?? '') : '';
  return {
    question: t('Which call waited for the compiler?'),
    answer: longest
      ? t('{0} waited, the longest for {1}: {2}', plural(waits.length, 'call'), seconds(longest.seconds), name)
      : report.summary.compile_seconds
        ? seconds(report.summary.compile_seconds)
        : t('none: earlier entries served'),
    more: 'guards'
  };
}

function again(report: Report): Row | null {
  const last = report.recompiles[report.recompiles.length - 1];
  const what = last
    ? last.detail && !last.source.endsWith(last.detail)
      ? `${last.source}.${last.detail}`
      : last.source
    : '';
  return last
    ? {
        question: t('Why did it compile again?'),
        answer: [
          ...prose(t('`{0}` changed from ', what || last.kind)),
          ...prose(last.expected.includes('`') ? last.expected : `\`${last.expected}\``),
          t(' to '),
          ...prose(last.got.includes('`') ? last.got : `\`${last.got}\``)
        ],
        more: `recompiles/${report.recompiles.length - 1}`
      }
    : null;
}

/** What is given to a call, as far as its guards know it: tensors by their shapes, other values as they are. */
function next(report: Report): Row {
  const given = report.guards.filter(g => g.cls !== 'dropped' && /^\w+$/.test(g.source));
  const names = (kinds: string[]) => [...new Set(given.filter(g => kinds.includes(g.kind)).map(g => g.source))];
  const some = (all: string[]): Child[] => [
    ...all.slice(0, NAMES).flatMap((name, i) => [i ? ', ' : '', h('code', null, name)]),
    all.length > NAMES ? t(' and {0} more', all.length - NAMES) : ''
  ];
  const [tensors, values] = [names(['TENSOR']), names(['EQUALS', 'LEN', 'DICT_KEYS'])];
  const guards = plural(
    report.guards.reduce((n, g) => n + g.count, 0),
    'guard'
  );
  return {
    question: t('What would compile it again?'),
    answer: [
      tensors.length ? [t('another shape or dtype of '), ...some(tensors), '; '] : '',
      values.length ? [t('another value of '), ...some(values), '; '] : '',
      t('all that its {0} check', guards)
    ],
    more: 'guards'
  };
}

function accuracy(report: Report): Row {
  const worst = report.numerics.find(n => n.verdict === 'diverges');
  return {
    question: t('Where do results differ from float64?'),
    answer: worst
      ? [h('code', null, worst.node), worst.line ? t(', line {0}', worst.line) : '']
      : report.numerics.length
        ? t('nowhere beyond rounding, of {0}', plural(report.numerics.length, 'value'))
        : t('not compared: ask, or run with --check'),
    more: 'numerics'
  };
}

function apart(report: Report): Row | null {
  const refusal = report.graphs.flatMap(g => g.unfused)[0];
  return report.kernels.length > 1
    ? {
        question: t('Why are two operations two kernels?'),
        answer: refusal
          ? [
              h('code', null, refusal[0]),
              t(' and '),
              h('code', null, refusal[1]),
              `: ${refusal[2]}; `,
              t('choose any two in the graph')
            ]
          : t('{0}: choose two operations in the graph', plural(report.kernels.length, 'kernel')),
        more: 'graph'
      }
    : null;
}
