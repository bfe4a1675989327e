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

export function glanceView({ model, go }: ViewContext): HTMLElement | null {
  const { report } = model;
  if (!report.graphs.length) {
    return null;
  }
  const rows = [
    costliestLine(
      report,
      f => model.isHere(f),
      line => model.selectLine(report.source.file, line, 'glance')
    ),
    peak(report),
    kept(report),
    waited(report),
    again(report),
    accuracy(report),
    apart(report)
  ].filter((row): row is Row => row !== null);
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

function again(report: Report): Row {
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
    : {
        question: t('What would compile it again?'),
        answer: t(
          'another value of what its {0} check',
          plural(
            report.guards.reduce((n, g) => n + g.count, 0),
            'guard'
          )
        ),
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
  return report.kernels.length > 1
    ? {
        question: t('Why are two operations two kernels?'),
        answer: t('{0}: choose two operations in the graph', plural(report.kernels.length, 'kernel')),
        more: 'graph'
      }
    : null;
}
