/** Small figures made of plain elements: they take the theme, stack on narrow pages and read as text. */

import { h } from './dom';
import { direction, engineLabel, GAIN_CLASS, seconds, speedup } from './format';
import { EngineTime, Speedup, Stage } from './schema';
import { t, words } from './texts';

/** A comparison: its figure in bold where it says faster or slower, else in words with the figure beside them. */
export function comparison(s: { ratio: number; lo: number; hi: number }, tail?: string): HTMLElement[] {
  const [figure, interval, word] = speedup(s);
  const way = direction(s);
  const said = `${figure} ${interval}`.trim();
  return way === 'even' || !figure
    ? [h('span', null, said ? (tail ?? word) : word), said ? h('span.tc-muted', null, ` (${said})`) : h('span')]
    : [
        h(`strong${GAIN_CLASS[way]}`, null, figure),
        h('span.tc-muted', null, ` ${interval} `),
        h('span', null, tail ?? word)
      ];
}

/** Time per call of each engine: a bar to the median, a whisker over its 95 % interval. */
export function engineBars(engines: EngineTime[], speedups: Speedup[]): HTMLElement {
  const own = engineLabel(engines.find(e => e.engine === 'tcompile') ?? { engine: 'tcompile' });
  const longest = Math.max(...engines.map(e => e.hi ?? e.median ?? 0), 1e-12);
  return h(
    'div.tc-bars',
    { role: 'list', 'aria-label': t('Time per call of each engine') },
    engines.map(e => {
      const gain = speedups.find(s => s.engine === 'tcompile' && s.over === e.engine);
      const row = (content: (HTMLElement | string)[]) =>
        h('div.tc-bar-row', { role: 'listitem' }, h('span.tc-bar-name', null, engineLabel(e)), ...content);
      if (e.median === null) {
        return row([h('span.tc-bar-none', null, t('not measured: {0}', e.reason || e.status))]);
      }
      const share = (v: number) => `${((v / longest) * 100).toFixed(2)}%`;
      const lo = e.lo ?? e.median;
      const hi = e.hi ?? e.median;
      return row([
        h(
          'span.tc-bar-track',
          { 'aria-hidden': 'true' },
          h(`span.tc-bar.tc-engine-${e.engine}`, { style: { width: share(e.median) } }),
          h('span.tc-whisker', { style: { left: share(lo), width: share(Math.max(0, hi - lo)) } })
        ),
        h(
          'span.tc-bar-value',
          {
            title: t(
              'median of {0} samples of {1} calls; 95 % interval {2} to {3}',
              e.n,
              e.inner,
              seconds(lo),
              seconds(hi)
            )
          },
          seconds(e.median),
          gain
            ? h(
                'span.tc-bar-gain',
                null,
                ` ${t('{0}: {1}', own, direction(gain) === 'even' ? speedup(gain)[2] : `${speedup(gain)[0]} ${speedup(gain)[2]}`.trim())}`
              )
            : null
        )
      ]);
    })
  );
}

const STAGE_HUES: { [name: string]: number } = {
  capture: 212,
  guards: 188,
  graph: 160,
  autograd: 140,
  lowering: 95,
  fusion: 55,
  codegen: 35,
  compile_c: 12,
  build: 12,
  runtime: 12,
  load: 285,
  verify: 320,
  entry: 250
};

const STAGE_WORDS: { [name: string]: string } = words({
  compile_c: 'C++ compiler',
  build: 'C++ compiler',
  runtime: 'kernels compiled and loaded'
});

export function stageColour(name: string, index: number): string {
  return `hsl(${STAGE_HUES[name] ?? (index * 47) % 360}, 46%, 52%)`;
}

/** One bar, a segment per part, each part named beneath with its figure. */
export function stackedBar(
  parts: { name: string; value: number; colour: string; note?: string }[],
  label: string
): HTMLElement {
  const total = parts.reduce((sum, p) => sum + p.value, 0) || 1;
  const shown = parts.filter(p => p.value > 0);
  return h(
    'div.tc-stacked',
    { role: 'group', 'aria-label': label },
    h(
      'div.tc-stacked-bar',
      { 'aria-hidden': 'true' },
      shown.map(p =>
        h('span', {
          title: `${p.name}: ${seconds(p.value)}`,
          style: { 'flex-grow': p.value / total, background: p.colour }
        })
      )
    ),
    h(
      'ul.tc-stacked-list',
      null,
      shown.map(p =>
        h(
          'li',
          null,
          h('span.tc-swatch', { style: { background: p.colour } }),
          h('span', null, p.name, p.note ? h('span.tc-muted', null, ` ${p.note}`) : null),
          h('span.tc-figure', null, seconds(p.value))
        )
      )
    )
  );
}

export function stageBar(stages: Stage[]): HTMLElement {
  return stackedBar(
    stages.map((s, i) => ({
      name: STAGE_WORDS[s.name] ?? s.name.replace(/_/g, ' '),
      value: s.self_seconds,
      colour: stageColour(s.name, i),
      note: [
        s.by ? t('by {0}', s.by) : '',
        s.declined ? t('declined {0} of {1}', s.declined, s.count) : s.count > 1 ? `${s.count}×` : ''
      ]
        .filter(Boolean)
        .join(' · ')
    })),
    t('Where the compile time went')
  );
}

/** A proportion as a thin bar with its words. */
export function meter(share: number, words: string): HTMLElement {
  return h(
    'span.tc-meter',
    { title: words },
    h('span', { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } })
  );
}
