/** Error of every node against eager and against float64: where results begin to differ. */

import { button, clear, empty, h, prose, section, table } from '../dom';
import { place } from '../format';
import { Host, hostOf } from '../host';
import { plot } from '../plot';
import { NumericError } from '../schema';
import { ViewContext } from './view';
import { t, words } from '../texts';

const VERDICTS: { [verdict: string]: string } = words({
  same: '● the same',
  close: '● rounding',
  diverges: '✕ differs',
  random: '· not compared'
});

export interface NumericsView {
  element: HTMLElement;
  shown: () => void;
  dispose: () => void;
}

export function numericsView({ model, go, replace }: ViewContext): NumericsView {
  const { report } = model;
  const rows = report.numerics;
  const ask = h('div.tc-answer', { 'aria-live': 'polite' });
  let stop: () => void = () => undefined;
  const parts: (HTMLElement | null)[] = [];
  const linked = (r: NumericError) =>
    h(
      'button.tc-link',
      {
        type: 'button',
        onclick: () => {
          const node = r.graph === null ? undefined : model.nodeNamed(r.graph, r.node);
          if (node) {
            model.selectNode(r.graph!, node, 'numerics');
          } else if (r.line) {
            model.selectLine(r.file || report.source.file, r.line, 'numerics');
          }
          go(node ? 'graph' : 'code');
        }
      },
      [r.name, r.line ? place(r.file, r.line, report.source.file) : ''].filter(Boolean).join(', ')
    );
  const named = (r: NumericError) => h('span', null, linked(r), t(' (by {0})', exponent(r.rms_vs_float64)));
  if (rows.length) {
    const measured = rows.map((row, i) => ({ row, i })).filter(({ row }) => row.rms_vs_float64 !== null);
    const bad = rows.filter(r => r.verdict === 'diverges').length;
    const compared = rows.filter(r => r.verdict !== 'random').length;
    const skipped = rows.length - compared;
    parts.push(
      h(
        'p',
        null,
        bad
          ? t(
              '{0} of {1} compared values differ from eager’s beyond rounding; the first of them is where to look.',
              bad,
              compared
            )
          : compared
            ? t('{0} values were compared: none differs from eager’s beyond rounding.', compared)
            : t('No value could be compared.'),
        compared && skipped ? h('span.tc-muted', null, t(' Not compared: {0}; the table says why.', skipped)) : null
      )
    );
    const first = measured.find(({ row }) => row.rms_vs_float64! > 0)?.row;
    const most = measured.length
      ? measured.map(m => m.row).reduce((a, b) => (b.rms_vs_float64! > a.rms_vs_float64! ? b : a))
      : undefined;
    if (first && most) {
      parts.push(
        h('p', null, t('Results first differ from float64 at '), named(first), t(', and most at '), named(most), '.')
      );
    }
    const lost = rows.find(r => r.cause);
    if (lost) {
      parts.push(h('p', null, t('Digits are lost at '), linked(lost), ': ', ...prose(lost.why), '.'));
    }
    const nan = rows.find(r => r.nan);
    const infinite = rows.find(r => r.inf);
    const strange = [
      infinite
        ? [t('Infinity first at '), linked(infinite), t(' ({0} of {1} values)', infinite.inf, infinite.count)]
        : null,
      nan ? [t('NaN first at '), linked(nan), t(' ({0} of {1} values)', nan.nan, nan.count)] : null
    ].filter(s => s !== null);
    if (strange.length) {
      parts.push(h('p', null, strange[0]!, strange[1] ? ['; ', strange[1]] : null, '.'));
    }
    if (measured.length > 1) {
      // Zero has no logarithm: exact values are drawn below the smallest error there is.
      const errors = measured
        .flatMap(({ row }) => [row.rms_vs_float64!, row.eager_rms_vs_float64 ?? 0])
        .filter(e => e > 0);
      const floor = 10 ** Math.floor(Math.log10((errors.length ? Math.min(...errors) : 1e-16) / 10));
      const points = (name: string, colour: string, value: (r: NumericError) => number) => ({
        name,
        colour,
        points: true,
        x: measured.map(({ i }) => i),
        y: measured.map(({ row }) => Math.max(floor, value(row))),
        text: measured.map(({ row }) => `${row.node} (${row.op}): ${name} ${exponent(value(row))}`)
      });
      const drawn = plot(
        [
          points('eager', '--tc-engine-eager', r => r.eager_rms_vs_float64 ?? 0),
          points('tcompile', '--tc-engine-tcompile', r => r.rms_vs_float64 ?? 0)
        ],
        {
          label: t('RMS error against float64 of each node'),
          xTitle: t('node, in the order of the graph'),
          yTitle: t('RMS error / RMS'),
          xFormat: String,
          yFormat: v => (v <= floor ? t('exact') : exponent(v)),
          logY: true
        }
      );
      stop = drawn.dispose;
      parts.push(drawn.element);
    }
    parts.push(
      table<NumericError>(
        [
          { title: t('node'), cell: r => h('code', null, r.name) },
          { title: t('operator'), cell: r => h('code', null, r.op) },
          { title: t('line'), short: true, cell: r => (r.line ? place(r.file, r.line, report.source.file) : '') },
          { title: t('dtype'), short: true, roomy: true, cell: r => r.dtype },
          { title: t('largest difference from eager'), number: true, roomy: true, cell: r => exponent(r.max_abs) },
          {
            title: t('RMS error'),
            number: true,
            cell: r => exponent(r.rms_vs_float64),
            hint: t('against float64, relative to the RMS of the values')
          },
          { title: t('eager’s'), number: true, cell: r => exponent(r.eager_rms_vs_float64) },
          {
            title: t('verdict'),
            cell: r => [
              VERDICTS[r.verdict] ?? r.verdict,
              r.nan ? t(', {0} NaN', r.nan) : '',
              r.inf ? t(', {0} infinite', r.inf) : '',
              r.why ? h('span.tc-muted', null, ' ', ...prose(r.why)) : null
            ]
          }
        ],
        rows,
        {
          label: t('Numerics'),
          limit: 14,
          onRow: r => r.line && model.selectLine(r.file || report.source.file, r.line, 'numerics'),
          rowAttributes: r => ({ class: r.verdict === 'diverges' ? 'tc-clickable tc-bad-row' : 'tc-clickable' })
        }
      )
    );
  } else {
    parts.push(
      empty(
        report.options.check
          ? t('Not compared: entries of an earlier run served, and that run was without --check.')
          : t(
              'Not measured in this run: write {0}, or {1}.',
              '`%%tcompile --check`',
              '`tcompile.explain(f, check=True)`'
            )
      )
    );
  }
  const offer = (host: Host) => {
    const go = button(
      rows.length ? t('compare again') : t('compare every node with eager and float64'),
      {},
      async () => {
        go.disabled = true;
        ask.append(h('span.tc-muted', null, t(' asking the kernel …')));
        try {
          const { report: fresh } = await host.ask('check', { report: report.id });
          replace(fresh);
        } catch (error) {
          clear(ask);
          ask.append(go, h('p.tc-error', { role: 'alert' }, error instanceof Error ? error.message : String(error)));
          go.disabled = false;
        }
      }
    );
    ask.append(go);
  };
  const element = section(t('Numerics'), parts, ask);
  element.tabIndex = -1;
  let asked = false;
  return {
    element,
    shown: () => {
      const host = asked ? null : hostOf(element);
      if (host) {
        asked = true;
        host.ask('controls', { report: report.id }).then(
          () => offer(host),
          () => (asked = false)
        );
      }
    },
    dispose: () => stop()
  };
}

export function exponent(value: number | null): string {
  return value === null ? '–' : value === 0 ? '0' : value.toExponential(1);
}
