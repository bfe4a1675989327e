/** Engines side by side, when compiling has paid off, what each kernel does, memory over one call, what was tried. */

import { append, Child, clear, empty, h, section, table } from '../dom';
import { comparison, engineBars, meter } from '../figures';
import { bytes, count, engineLabel, oneSample, place, plural, rate, seconds, tick } from '../format';
import { plot, Series } from '../plot';
import { CallTiming, Extern, Kernel, Report, Trial } from '../schema';
import { kernelColour } from '../theme';
import { accessesView } from './accesses';
import { controls } from './controls';
import { flash } from './guards';
import { memoryView } from './memory';
import { mainCall } from './overview';
import { View, ViewContext } from './view';
import { t, words } from '../texts';

const STATUS_WORDS: { [status: string]: string } = words({
  skipped: 'skipped',
  failed: 'failed',
  stopped: 'stopped',
  unavailable: 'not available'
});
/** What reads that much faster than a copy of memory reads caches. */
const CACHED = 1.3;
/** Kernels whose names fit beside their points. */
const MOST_NAMED = 6;
/** Rows of the kernels' table until all are asked for. */
const MOST_KERNELS = 14;
const MEASURED_WORDS: { [measured: string]: string } = words({
  call: 'timed end to end',
  graphs: 'its graphs alone, without the code around them: the call has side effects',
  forward: 'its graphs alone, forward, without the code around them: the call has side effects',
  backward: 'its graphs alone, forward and backward, without the code around them: the call has side effects',
  followed: 'timed end to end, without the backward pass that follows it',
  cell: 'the whole cell was repeated'
});

export function speedView(context: ViewContext): View {
  const { model } = context;
  const { report } = model;
  const asking = controls(context);
  const disposers: (() => void)[] = [];
  const own = (p: { element: HTMLElement; dispose: () => void }) => {
    disposers.push(p.dispose);
    return p.element;
  };
  const memory = memoryView(context);
  const accesses = accessesView(context);
  const kernels = kernelTable(report, index => model.selectKernel(index, 'speed'));
  const element = h(
    'div',
    null,
    engines(report, own),
    asking.element,
    section(t('Kernels'), kernels, roofline(report, own)),
    report.externs.length
      ? section(
          t('Torch’s own kernels, called from the plan'),
          table(
            [
              { title: t('operator'), cell: e => h('code', null, e.op) },
              { title: t('calls'), number: true, cell: e => count(e.count) },
              {
                title: t('time'),
                number: true,
                cell: e => seconds(e.seconds),
                hint: t('of all of them, in one call of each graph')
              },
              { title: t('why'), cell: e => e.reason },
              { title: t('lines'), cell: e => e.lines.map(([f, l]) => place(f, l, report.source.file)).join(', ') }
            ],
            joined(report.externs),
            { label: t('Calls of torch kernels') }
          )
        )
      : null,
    memory.element,
    accesses.element,
    report.autotune.length
      ? section(
          t('What autotuning tried'),
          report.autotune.map(a => autotune(a.kernel, a.trials))
        )
      : null
  );
  return {
    element,
    shown: () => {
      asking.shown();
      accesses.shown();
    },
    dispose: () => {
      disposers.forEach(f => f());
      asking.dispose();
      memory.dispose();
    },
    reveal: (kind, index) => {
      if (kind === 'kernels') {
        const row = () => kernels.querySelector<HTMLElement>(`[data-kernel="${index}"]`);
        if (!row()) {
          kernels.querySelector<HTMLButtonElement>('button.tc-button')?.click();
        }
        flash(row());
      } else if (kind === 'partitions') {
        flash(memory.partition(index));
      } else if (kind === 'memory') {
        flash(memory.element);
      }
    }
  };
}

function engines(report: Report, own: (p: { element: HTMLElement; dispose: () => void }) => HTMLElement): HTMLElement {
  const { speedups } = report;
  if (!speedups.calls.length) {
    return section(
      t('Engines'),
      empty(
        t(
          'Nothing was measured: {0}. Write {1} to compare.',
          speedups.reason || t('timing was off'),
          '`%%tcompile compare=eager,torch`'
        )
      )
    );
  }
  const body = h('div');
  const foot = h('p.tc-muted');
  const show = (index: number) => {
    clear(body);
    append(body, callFigures(report, speedups.calls[index], own));
    foot.textContent = speedups.calls.some(c => c.measured) ? spentWords(report, speedups.calls[index]) : '';
  };
  const main = mainCall(report);
  const longest = speedups.calls.reduce((best, c, i) => (weight(c) > weight(speedups.calls[best]) ? i : best), 0);
  const first = main ? speedups.calls.indexOf(main) : longest;
  let chooser: Child = null;
  if (speedups.calls.length > 1) {
    const select = h(
      'select.tc-select',
      { 'aria-label': t('Call') },
      speedups.calls.map((c, i) =>
        h('option', { value: i, selected: i === first }, `${c.name}${whereOf(c, line => t(' · line {0}', line))}`)
      )
    ) as HTMLSelectElement;
    select.onchange = () => show(Number(select.value));
    chooser = h('div.tc-toolbar', null, select);
  }
  show(first);
  return section(
    t('Engines'),
    chooser,
    speedups.status !== 'measured' && speedups.reason && !speedups.calls.some(c => c.measured || c.why_not)
      ? h('p.tc-muted', null, speedups.reason)
      : null,
    speedups.note ? h('p.tc-muted', null, speedups.note) : null,
    body,
    foot
  );
}

/** For how long was measured, and how certain the figures of the call that is shown are. */
function spentWords({ speedups }: Report, call: CallTiming): string {
  const { budget_seconds: budget, spent_seconds: spent } = speedups;
  const over = budget !== null && spent > 1.5 * budget;
  const allowed = !budget
    ? ''
    : over && speedups.engines.includes('torch')
      ? t(' with stock’s compile time, which does not count towards the {0} allowed', seconds(budget))
      : over
        ? t(', more than the {0} allowed: each engine runs a few times at least', seconds(budget))
        : t(' of the {0} allowed', seconds(budget));
  const timed = call.engines.filter(e => e.lo !== null && e.hi !== null);
  const certain = !timed.length
    ? '.'
    : timed.some(e => e.lo !== e.hi)
      ? t('; intervals hold with 95 % confidence.')
      : t('; one sample does not say how certain it is.');
  return t('Measured in turn for {0}', seconds(spent)) + allowed + certain;
}

/** The machine's peak of products: as measured once, perhaps while others were at work, or what a kernel reached. */
function peakOf(report: Report): number {
  const measured = Number(report.environment.matmul_flops_per_second) || 0;
  return measured && Math.max(measured, ...report.kernels.map(k => (k.flops && k.seconds ? k.flops / k.seconds : 0)));
}

/** Seconds of a call, as far as it was timed. */
function weight(call: CallTiming): number {
  return Math.max(0, ...call.engines.map(e => e.median ?? 0));
}

/** Where a function begins; the name of a cell's own code says it already. */
function whereOf(call: CallTiming, words: (line: number) => string): string {
  return call.line && !call.name.startsWith('the ') ? words(call.line) : '';
}

/** What was timed: as the profile of the same call tells it, so that nobody compares what is not the same. */
function measuredOf(call: CallTiming, report: Report): string {
  const followed = report.profiles.some(p => p.name === call.name && p.how === 'call' && p.backward);
  if (call.measured === 'graphs') {
    return call.backward ? 'backward' : report.partitions.length ? 'forward' : 'graphs';
  }
  return call.measured === 'call' && followed ? 'followed' : call.measured;
}

function callFigures(
  report: Report,
  call: CallTiming,
  own: (p: { element: HTMLElement; dispose: () => void }) => HTMLElement
): Child[] {
  const timed = call.engines.filter(e => e.median !== null);
  const heading = h(
    'p',
    null,
    h('code', null, call.name),
    whereOf(call, line => t(' at line {0}', line)),
    ', ',
    MEASURED_WORDS[measuredOf(call, report)] ?? t('not run again: {0}', call.why_not || t('not safe to repeat')),
    call.earlier ? t('; timed by the run that compiled it') : '',
    call.measured === 'graphs' && call.why_not ? h('span.tc-muted', null, ` (${call.why_not})`) : null
  );
  if (!timed.length) {
    return [
      heading,
      call.engines.length === 0
        ? null
        : table(
            [
              { title: t('engine'), cell: e => engineLabel(e) },
              { title: t('why there is no figure'), cell: e => e.reason || e.status }
            ],
            call.engines,
            { label: t('Engines that were not measured') }
          )
    ];
  }
  const cells = table(
    [
      {
        title: t('engine'),
        cell: e => [
          h('span.tc-short', null, h(`span.tc-swatch.tc-engine-${e.engine}`), engineLabel(e)),
          e.detail && e.engine !== 'tcompile' ? h('div.tc-muted', null, e.detail) : null
        ]
      },
      { title: t('first call'), number: true, cell: e => seconds(e.cold), hint: t('cold: compilation included') },
      { title: t('second'), number: true, roomy: true, cell: e => seconds(e.warm), hint: t('warm') },
      {
        title: t('steady'),
        number: true,
        cell: e =>
          e.median === null
            ? h('span.tc-muted', null, STATUS_WORDS[e.status] ?? e.status, e.reason ? `: ${e.reason}` : '')
            : seconds(e.median),
        hint: t('median')
      },
      {
        title: t('95 % interval'),
        number: true,
        cell: e =>
          e.lo !== null && e.lo === e.hi
            ? oneSample()
            : e.lo !== null && e.hi !== null
              ? `${seconds(e.lo)} – ${seconds(e.hi)}`
              : ''
      },
      { title: t('samples'), number: true, roomy: true, cell: e => (e.n ? `${count(e.n)} × ${count(e.inner)}` : '') },
      {
        title: t('tcompile is'),
        number: true,
        cell: e => {
          const s = call.speedups.find(x => x.engine === 'tcompile' && x.over === e.engine);
          return s ? comparison(s) : '';
        }
      }
    ],
    call.engines,
    { label: t('Times of each engine') }
  );
  const sampled = timed.filter(e => e.samples.length > 1);
  const figures: HTMLElement[] = [];
  if (sampled.length) {
    // A few samples that the machine disturbed would flatten all others: they are counted in words.
    const cap = Math.max(
      ...sampled.map(e => {
        const [low, high] = [quantile(e.samples, 0.25), quantile(e.samples, 0.75)];
        return Math.max(high + 6 * (high - low), 1.1 * high);
      })
    );
    const slow = sampled.flatMap(e => e.samples.filter(v => v > cap));
    const points: Series[] = sampled.map((e, i) => {
      const shown = e.samples.filter(v => v <= cap);
      return {
        name: engineLabel(e),
        colour: `--tc-engine-${e.engine}`,
        points: true,
        y: shown,
        // A fixed spread sideways, so that the same report is always drawn the same.
        x: shown.map((_, k) => i + (((k * 0.618034) % 1) - 0.5) * 0.5),
        text: shown.map(v => `${engineLabel(e)}: ${seconds(v)}`)
      };
    });
    const beyond = slow.length
      ? t('; {0}, up to {1}, not shown', plural(slow.length, 'slower one'), seconds(Math.max(...slow)))
      : '';
    figures.push(
      h(
        'figure.tc-figure-box',
        null,
        h('figcaption', null, t('Each sample: time per call{0}', beyond)),
        own(
          plot(points, {
            label: t('Distribution of the time per call of each engine'),
            xTitle: '',
            yTitle: '',
            xFormat: String,
            yFormat: tick,
            xNames: sampled.map(e => engineLabel(e))
          })
        )
      )
    );
  }
  const curve = breakEven(call);
  figures.push(
    h(
      'figure.tc-figure-box',
      null,
      h(
        'figcaption',
        null,
        call.break_even_calls !== null
          ? t('Compiling has paid off after {0}', plural(call.break_even_calls, 'call'))
          : t('Break-even: {0}', call.break_even_reason || t('not known'))
      ),
      curve
        ? own(
            plot(curve, {
              label: t('Total time over the number of calls'),
              xTitle: t('calls'),
              yTitle: t('total time'),
              xFormat: thousands,
              yFormat: tick,
              logX: true,
              logY: true
            })
          )
        : null
    )
  );
  return [heading, engineBars(call.engines, call.speedups), cells, h('div.tc-figures', null, figures)];
}

/** `10 k`: short enough for a tick. */
function thousands(n: number): string {
  const value = Math.round(n);
  return value >= 1e6 ? `${value / 1e6} M` : value >= 1e4 ? `${value / 1e3} k` : count(value);
}

function quantile(values: number[], q: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
}

/** Total time after n calls of each engine; the lines cross where compiling has paid off. */
function breakEven(call: CallTiming): Series[] | null {
  const timed = call.engines.filter(e => e.median !== null);
  if (timed.length < 2 || call.measured === 'graphs') {
    return null;
  }
  const most = Math.max(100, (call.break_even_calls ?? 1000) * 10);
  const x: number[] = [];
  for (let n = 1; n <= most * 1.0001; n *= 10 ** 0.125) {
    x.push(n);
  }
  return timed.map(e => {
    // The same terms as in the words: what compiling took, and steady calls.
    const start =
      e.engine === 'tcompile'
        ? (call.compile_seconds ?? 0)
        : e.engine === 'eager'
          ? 0
          : Math.max(0, (e.cold ?? 0) - e.median!);
    return { name: engineLabel(e), colour: `--tc-engine-${e.engine}`, x, y: x.map(n => start + n * e.median!) };
  });
}

/** One row per operator and reason; the graphs' calls are added up. */
function joined(externs: Extern[]): Extern[] {
  const rows = new Map<string, Extern>();
  for (const e of externs) {
    const key = `${e.op} ${e.reason}`;
    const row = rows.get(key);
    if (row) {
      row.count += e.count;
      row.seconds = row.seconds === null || e.seconds === null ? null : (row.seconds ?? 0) + (e.seconds ?? 0);
      row.lines.push(...e.lines.filter(([f, l]) => !row.lines.some(([g, m]) => f === g && l === m)));
    } else {
      rows.set(key, { ...e, lines: [...e.lines] });
    }
  }
  return [...rows.values()].sort((a, b) => b.count - a.count);
}

/** A copy is no bound: what is read alone, or was written just before, is faster. */
const asFastAs = (share: number) =>
  share > 1 ? t('as fast as a copy') : t('{0} % of a copy', Math.round(100 * share));

/** `shape=vector unroll=[4]` */
function choicesOf(k: Kernel): string {
  return Object.entries(k.choices)
    .filter(([, v]) => v !== null && v !== false)
    .map(([n, v]) => `${n}=${typeof v === 'object' ? JSON.stringify(v) : v}`)
    .join(' ');
}

function kernelTable(report: Report, onKernel: (index: number) => void): HTMLElement {
  if (!report.kernels.length) {
    return empty(t('No kernel was generated.'));
  }
  const copy = Number(report.environment.copy_bytes_per_second) || 0;
  const peak = peakOf(report);
  const best = copy || Math.max(...report.kernels.map(k => (k.bytes && k.seconds ? k.bytes / k.seconds : 0)));
  const against = copy ? t('compared with a copy on this machine') : t('compared with the fastest kernel here');
  // The one that takes most comes first.
  const took = (k: Kernel) => (k.seconds ?? -1) * k.launches;
  const ordered = report.kernels.map((_, i) => i).sort((a, b) => took(report.kernels[b]) - took(report.kernels[a]));
  const again = new Set(report.kernels.map(k => k.name)).size < report.kernels.length;
  return table(
    [
      {
        title: again ? t('kernel, of graph') : t('kernel'),
        cell: k => [
          h('span.tc-chip', { style: { '--tc-chip': kernelColour(report.kernels.indexOf(k)) } }, k.name),
          again && k.graph !== null ? h('div.tc-muted', null, report.graphs[k.graph]?.name ?? '') : null
        ]
      },
      {
        title: t('operations, and how they are computed'),
        roomy: true,
        cell: k => [
          h(
            'span',
            { title: k.fused_because.join('\n') },
            k.origins.slice(0, 6).join(', ') + (k.origins.length > 6 ? ` + ${k.origins.length - 6}` : '')
          ),
          h('div.tc-muted', null, choicesOf(k))
        ]
      },
      {
        title: t('time'),
        number: true,
        cell: k => (k.seconds === null ? '–' : seconds(k.seconds)),
        hint: t('one launch')
      },
      { title: t('launches'), number: true, roomy: true, cell: k => count(k.launches), hint: t('per call') },
      { title: t('bytes'), number: true, cell: k => bytes(k.bytes), hint: t('read and written by one launch') },
      {
        title: t('bandwidth'),
        number: true,
        cell: k =>
          k.bytes && k.seconds
            ? [
                meter(k.bytes / k.seconds / best, against),
                ` ${rate(k.bytes / k.seconds, 'B')}`,
                copy
                  ? h(
                      'div.tc-muted',
                      null,
                      k.bytes / k.seconds > CACHED * copy
                        ? t('from caches')
                        : peak && (k.flops ?? 0) / peak > k.bytes / copy
                          ? t('arithmetic: {0} % of the peak', Math.round((100 * k.flops!) / k.seconds / peak))
                          : asFastAs(k.bytes / k.seconds / copy)
                    )
                  : null
              ]
            : '–',
        hint: against
      },
      ...(report.kernels.some(k => k.registers)
        ? [
            {
              title: t('registers'),
              number: true,
              cell: (k: Kernel) =>
                k.registers
                  ? [
                      String(k.registers),
                      k.spills ? h('div.tc-gain-down', null, t('{0} spilled', bytes(k.spills))) : null
                    ]
                  : '–',
              hint: t('of a thread; what did not fit lies in slow memory')
            },
            {
              title: t('shared'),
              number: true,
              cell: (k: Kernel) => bytes(k.shared ?? null),
              hint: t('memory that the threads of a program share')
            },
            {
              title: t('occupancy'),
              number: true,
              cell: (k: Kernel) =>
                k.occupancy
                  ? [
                      meter(k.occupancy, t('share of the threads that can be at work at once')),
                      ` ${Math.round(100 * k.occupancy)} %`
                    ]
                  : '–',
              hint: t('share of the threads that can be at work at once')
            }
          ]
        : [{ title: t('compiled in'), number: true, roomy: true, cell: (k: Kernel) => seconds(k.compile_seconds) }])
    ],
    ordered.map(i => report.kernels[i]),
    {
      label: t('Kernels'),
      onRow: (_, i) => onKernel(ordered[i]),
      rowAttributes: (_, i) => ({ 'data-kernel': ordered[i] }),
      limit: MOST_KERNELS
    }
  );
}

/**
 * Arithmetic over traffic: how far each kernel is from what the machine can do. The roof is measured in the same kernel
 * process: a copy, and a float32 matrix product.
 */
function roofline(
  report: Report,
  own: (p: { element: HTMLElement; dispose: () => void }) => HTMLElement
): HTMLElement | null {
  const bandwidth = Number(report.environment.copy_bytes_per_second);
  const measured = Number(report.environment.matmul_flops_per_second);
  const shown = report.kernels.filter(k => k.seconds && k.bytes && k.flops);
  if (!(bandwidth > 0 && measured > 0) || !shown.length) {
    return null;
  }
  const peak = peakOf(report);
  const intensity = shown.map(k => k.flops! / k.bytes!);
  const ridge = peak / bandwidth;
  const lo = Math.min(...intensity, ridge) / 3;
  const hi = Math.max(...intensity, ridge) * 3;
  const roof = [lo, ridge, hi];
  const flops = (v: number) => rate(v, 'FLOP');
  return h(
    'figure.tc-figure-box',
    null,
    h(
      'figcaption',
      null,
      t('Against the machine: copy bandwidth {0}, peak matmul in float32 {1}', rate(bandwidth, 'B'), flops(measured)),
      peak > 1.01 * measured ? t('; a kernel here reached {0}, which is drawn as the roof', flops(peak)) : '',
      shown.some(k => k.bytes! / k.seconds! > CACHED * bandwidth)
        ? t('; what lies above the slope reads from caches')
        : ''
    ),
    own(
      plot(
        [
          { name: t('the machine'), colour: '--tc-muted', x: roof, y: roof.map(i => Math.min(peak, i * bandwidth)) },
          {
            name: t('kernels'),
            colour: '--tc-engine-tcompile',
            points: true,
            x: intensity,
            y: shown.map(k => k.flops! / k.seconds!),
            labels: shown.length <= MOST_NAMED ? shown.map(k => k.name) : undefined,
            text: shown.map(k =>
              t(
                '{0}: {1}, {2}, {3} % of the roof',
                k.name,
                flops(k.flops! / k.seconds!),
                rate(k.bytes! / k.seconds!, 'B'),
                Math.round((100 * (k.flops! / k.seconds!)) / Math.min(peak, (k.flops! / k.bytes!) * bandwidth))
              )
            )
          }
        ],
        {
          label: t('Roofline'),
          xTitle: t('operations per byte'),
          yTitle: '',
          xFormat: v => String(Number(v.toPrecision(2))),
          yFormat: flops,
          logX: true,
          logY: true
        }
      )
    )
  );
}

function autotune(name: string, trials: Trial[]): HTMLElement {
  const done = trials.filter(x => x.seconds !== null).sort((a, b) => a.seconds! - b.seconds!);
  const slowest = Math.max(...done.map(x => x.seconds!), 1e-12);
  const failed = trials.filter(x => x.seconds === null);
  const config = (x: Trial) =>
    x.config.default === true
      ? t('as planned')
      : Object.entries(x.config)
          .map(([n, v]) => `${n}=${v}`)
          .join(' ');
  return h(
    'div.tc-autotune',
    null,
    h('p', null, h('code', null, name), ` · ${plural(trials.length, 'candidate')}`),
    h(
      'div.tc-bars.tc-bars-long',
      { role: 'list' },
      done.slice(0, 24).map(x =>
        h(
          'div.tc-bar-row',
          { role: 'listitem' },
          h('span.tc-bar-name', { title: config(x) }, x.chosen ? '● ' : '', config(x)),
          h(
            'span.tc-bar-track',
            null,
            h(x.chosen ? 'span.tc-bar.tc-engine-tcompile' : 'span.tc-bar.tc-engine-eager', {
              style: { width: `${(x.seconds! / slowest) * 100}%` }
            })
          ),
          h('span.tc-bar-value', null, seconds(x.seconds), x.chosen ? h('span.tc-bar-gain', null, t(' chosen')) : null)
        )
      )
    ),
    failed.length
      ? h('p.tc-muted', null, t('{0} did not run: {1}', plural(failed.length, 'candidate'), failed[0].error))
      : null
  );
}
