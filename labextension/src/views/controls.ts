/**
 * What can be asked of the kernel that made the report: time again, try other options, sweep a size. Absent without a
 * kernel.
 */

import { append, button, Child, clear, empty, h, section, table } from '../dom';
import { comparison } from '../figures';
import { count, engineName, plural, seconds, tick } from '../format';
import { Host, hostOf } from '../host';
import { plot } from '../plot';
import { kernelColour } from '../theme';
import { ViewContext } from './view';
import { t, words } from '../texts';

interface Argument {
  call: string;
  argument: number | string;
  name: string;
  shape: number[];
  dtype: string;
}

interface Known {
  calls: string[];
  /** Those that can be timed: where no call can be made again, some by their graphs alone. */
  timed: string[];
  arguments: Argument[];
  modes: string[];
  mode: string;
  switches: string[];
}

interface SweepPoint {
  size: number;
  entry: number | null;
  compiled: boolean;
  compile_seconds: number | null;
  seconds: number | null;
  eager_seconds: number | null;
  reason: string;
  error: string;
}

const SWITCH_WORDS: { [name: string]: string } = words({
  disable_fusion: 'every operation its own kernel',
  emulate_precision: 'round where eager rounds',
  pattern_matcher: 'without pattern rewrites'
});

export interface Controls {
  element: HTMLElement;
  /** To be called once the element is in the document: only then can the kernel be found. */
  shown: () => void;
  dispose: () => void;
}

export function controls(context: ViewContext): Controls {
  const { report } = context.model;
  const element = h('div.tc-controls');
  const disposers: (() => void)[] = [];
  let asked = false;
  const shown = () => {
    const host = hostOf(element);
    if (!host || asked) {
      return;
    }
    asked = true;
    host.ask('controls', { report: report.id }).then(
      (known: Known) => {
        append(element, [
          section(
            t('Ask the kernel'),
            known.timed.length
              ? [
                  timeAgain(context, host),
                  tryOptions(context, host, known),
                  known.arguments.length ? sweep(context, host, known, disposers) : null
                ]
              : empty(t('No call of this report can be run again: each has effects.'))
          )
        ]);
      },
      () => {
        asked = false; // a reopened notebook, or an earlier kernel: the report is complete without
      }
    );
  };
  return { element, shown, dispose: () => disposers.forEach(f => f()) };
}

/** A button that asks, shows that it waits, can be stopped, and shows the answer or the sentence why there is none. */
export function question(
  host: Host,
  label: string,
  ask: (say: (text: string) => void) => Promise<Child>
): [HTMLElement, HTMLElement] {
  const out = h('div.tc-answer', { 'aria-live': 'polite' });
  const go = button(label, {}, async () => {
    go.disabled = true;
    const status = h('span.tc-muted', null, t(' asking the kernel …'));
    const stop = host.stop ? button(t('stop'), { class: 'tc-link' }, () => host.stop?.()) : '';
    out.replaceChildren(status, ' ', stop);
    try {
      const answer = await ask(text => (status.textContent = ` ${text} …`));
      clear(out);
      append(out, [answer]);
    } catch (error) {
      out.replaceChildren(h('p.tc-error', { role: 'alert' }, error instanceof Error ? error.message : String(error)));
    } finally {
      go.disabled = false;
    }
  });
  return [go, out];
}

function secondsInput(value: number): HTMLInputElement {
  return h('input.tc-input.tc-short-input', {
    type: 'number',
    min: 0.1,
    max: 600,
    step: 0.1,
    value,
    'aria-label': t('Seconds of timing')
  }) as HTMLInputElement;
}

function timeAgain({ model, replace }: ViewContext, host: Host): HTMLElement {
  const budget = secondsInput(1);
  const stock = h('input', {
    type: 'checkbox',
    checked: model.report.speedups.engines.includes('torch')
  }) as HTMLInputElement;
  const [go, out] = question(host, t('time again'), async say => {
    const compare = stock.checked ? ['eager', 'torch'] : ['eager'];
    const { report } = await host.ask(
      'retime',
      { report: model.report.id, seconds: Number(budget.value), compare },
      say
    );
    replace(report);
    return null;
  });
  return h(
    'div.tc-control',
    null,
    h('span.tc-label', null, t('The same again')),
    h('div.tc-toolbar', null, h('label', null, budget, ' s'), h('label', null, stock, t(' torch.compile too')), go),
    out
  );
}

function tryOptions({ model }: ViewContext, host: Host, known: Known): HTMLElement {
  const mode = h(
    'select.tc-select',
    { 'aria-label': t('Mode to try') },
    known.modes.map(m => h('option', { value: m, selected: m === known.mode }, m))
  ) as HTMLSelectElement;
  const switches = known.switches.map(name => ({ name, box: h('input', { type: 'checkbox' }) as HTMLInputElement }));
  const budget = secondsInput(1);
  const [go, out] = question(host, t('compile and time'), async say => {
    const settings: { [name: string]: any } = mode.value === known.mode ? {} : { mode: mode.value };
    for (const { name, box } of switches) {
      if (box.checked) {
        settings[name] = name !== 'pattern_matcher';
      }
    }
    if (!Object.keys(settings).length) {
      throw new Error(t('choose another mode or switch: this choice was timed already'));
    }
    const words = Object.entries(settings)
      .map(([k, v]) => `${k}=${v}`)
      .join(' ');
    const answer = await host.ask('try', { report: model.report.id, settings, seconds: Number(budget.value) }, say);
    const set = button(t('set {0} in the cell and time again', words), {}, () => {
      if (host.set?.(settings, model.report.source.cell)) {
        host.runAgain?.(model.report.source.cell);
      }
    });
    return [timesTable(words, answer), host.set ? set : null];
  });
  return h(
    'div.tc-control',
    null,
    h('span.tc-label', null, t('What if')),
    h(
      'div.tc-toolbar',
      null,
      mode,
      switches.map(({ name, box }) => h('label', { title: name }, box, ` ${SWITCH_WORDS[name] ?? name}`)),
      h('label', null, budget, ' s'),
      go
    ),
    out
  );
}

/** Eager, the calls as they were, and as tried (`words` says how), side by side. */
export function timesTable(words: string, answer: { calls: any[] }): HTMLElement {
  return table<any>(
    [
      { title: t('call'), cell: c => h('code', null, c.name) },
      ...['eager', 'as it was', 'tried'].map(name => ({
        title: name === 'tried' ? words : name === 'eager' ? engineName('eager') : t('as it was'),
        number: true,
        cell: (c: any) => {
          const e = c.engines.find((x: any) => x.engine === name);
          return e?.median ? seconds(e.median) : h('span.tc-muted', null, e?.reason || '–');
        }
      })),
      { title: t('tried, against before'), number: true, cell: c => verdict(c.ratios.tried) }
    ],
    answer.calls,
    { label: t('Times under other options') }
  );
}

/** `ratio` is how many times as fast the tried options are. */
function verdict(ratio: [number, number, number] | undefined): Child {
  if (!ratio) {
    return '–';
  }
  const s = { ratio: ratio[0], lo: ratio[1], hi: ratio[2] };
  return comparison(s);
}

function sweep({ model }: ViewContext, host: Host, known: Known, disposers: (() => void)[]): HTMLElement {
  const which = h(
    'select.tc-select',
    { 'aria-label': t('Tensor and dimension') },
    known.arguments.flatMap((a, i) =>
      a.shape.map((n, dim) => h('option', { value: `${i}/${dim}` }, `${a.name}.shape[${dim}] = ${n}`))
    )
  ) as HTMLSelectElement;
  const sizes = h('input.tc-input', {
    type: 'text',
    'aria-label': t('Sizes, separated by commas'),
    title: t('sizes, separated by commas')
  }) as HTMLInputElement;
  const propose = () => {
    const [i, dim] = which.value.split('/').map(Number);
    const n = known.arguments[i].shape[dim];
    sizes.value = [...new Set([1, 2, Math.max(1, n >> 1), n, n + 1, 2 * n, 4 * n])].sort((a, b) => a - b).join(', ');
  };
  which.onchange = propose;
  propose();
  const dynamic = h(
    'select.tc-select',
    { 'aria-label': t('Dynamic sizes') },
    [
      ['auto', t('dynamic: when it changes')],
      ['true', t('dynamic: from the start')],
      ['false', t('dynamic: never')]
    ].map(([v, t]) => h('option', { value: v }, t))
  ) as HTMLSelectElement;
  const [go, out] = question(host, t('sweep'), async say => {
    const wanted = sizes.value
      .split(/[\s,;]+/)
      .filter(t => t)
      .map(Number);
    if (!wanted.length || !wanted.every(n => Number.isInteger(n) && n >= 0)) {
      throw new Error(t('sizes are whole numbers, separated by commas: 1, 2, 4, 8'));
    }
    const [i, dim] = which.value.split('/').map(Number);
    const a = known.arguments[i];
    const facts = {
      report: model.report.id,
      call: a.call,
      argument: a.argument,
      dim,
      sizes: wanted,
      dynamic: dynamic.value === 'auto' ? null : dynamic.value === 'true'
    };
    const { points } = await host.ask('sweep', facts, say);
    return recompileMap(points, `${a.name}.shape[${dim}]`, disposers);
  });
  return h(
    'div.tc-control',
    null,
    h('span.tc-label', null, t('Sweep a size')),
    h('div.tc-toolbar', null, which, sizes, dynamic, go),
    out
  );
}

/** One column per size, coloured by the entry that served it; a mark where it was compiled. */
function recompileMap(points: SweepPoint[], what: string, disposers: (() => void)[]): Child {
  const compiled = points.filter(p => p.compiled).length;
  const timed = points.filter(p => p.seconds !== null && p.eager_seconds !== null).sort((a, b) => a.size - b.size);
  const strip = h(
    'div.tc-map',
    { role: 'list', 'aria-label': t('Which entry served each {0}', what) },
    points.map(p => {
      const words = p.error
        ? t('size {0}: {1}', p.size, p.error)
        : t(
            'size {0}: {1}{2}{3}',
            p.size,
            p.entry === null ? t('runs eager') : t('entry {0}', p.entry),
            p.compiled ? t(', compiled in {0}', seconds(p.compile_seconds)) : '',
            p.reason ? ` (${p.reason})` : ''
          );
      return h(
        'div.tc-map-cell',
        { role: 'listitem', title: words, 'aria-label': words },
        h(
          p.error ? 'span.tc-map-entry.tc-error' : 'span.tc-map-entry',
          {
            style: {
              background: p.error ? 'transparent' : p.entry === null ? 'var(--tc-raised)' : kernelColour(p.entry, 0.75)
            }
          },
          p.error ? '✕' : p.compiled ? '◆' : ''
        ),
        h('span', null, count(p.size))
      );
    })
  );
  const lines =
    timed.length > 1
      ? plot(
          [
            {
              name: engineName('eager'),
              colour: '--tc-engine-eager',
              x: timed.map(p => p.size),
              y: timed.map(p => p.eager_seconds!)
            },
            {
              name: engineName('tcompile'),
              colour: '--tc-engine-tcompile',
              x: timed.map(p => p.size),
              y: timed.map(p => p.seconds!)
            }
          ],
          {
            label: t('Time per call over {0}', what),
            xTitle: what,
            yTitle: t('time per call'),
            xFormat: v => count(Math.round(v)),
            yFormat: tick,
            logX: true,
            logY: true
          }
        )
      : null;
  if (lines) {
    disposers.push(lines.dispose);
  }
  return [
    h('p', null, t('{0}, {1} (◆)', plural(points.length, 'size'), plural(compiled, 'compilation'))),
    strip,
    lines?.element ?? null,
    table<SweepPoint>(
      [
        { title: what, number: true, cell: p => count(p.size) },
        { title: t('entry'), number: true, cell: p => (p.entry === null ? '–' : String(p.entry)) },
        { title: t('compiled'), number: true, cell: p => (p.compiled ? seconds(p.compile_seconds) : '') },
        { title: engineName('eager'), number: true, cell: p => seconds(p.eager_seconds) },
        { title: engineName('tcompile'), number: true, cell: p => seconds(p.seconds) },
        { title: t('why'), cell: p => p.error || p.reason }
      ],
      points,
      { label: t('Sweep over {0}', what) }
    )
  ];
}
