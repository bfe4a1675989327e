/** When was what compiled, which guard failed and why, and what every entry relies on. */

import { append, Child, clear, Column, empty, h, prose, section, table } from '../dom';
import { changedCode, count, frameWords, place, plural, seconds } from '../format';
import { GuardRow, Recompile, Report, TimelineEvent } from '../schema';
import { callsView, callWords, isCondition } from './calls';
import { forecastForm } from './forecast';
import { View, ViewContext } from './view';
import { t, words } from '../texts';

const CLASS_WORDS: { [name: string]: string } = words({
  watched: 'one flag for all of them, cleared when something changes',
  checked: 'looked at on each call',
  once: 'constant for the process'
});

const KIND_WORDS: { [kind: string]: string } = words({
  TENSOR: 'dtype, shape and device of tensors',
  EQUALS: 'values',
  ID: 'the same object',
  TYPE: 'classes',
  STATE: 'settings of torch',
  LEN: 'lengths',
  CLASS: 'methods of a class',
  DICT_KEYS: 'keys of a dict',
  ALIAS: 'one object at two places',
  NO_ALIAS: 'different objects',
  NO_OVERLAP: 'memory that tensors do not share',
  WEAK_ID: 'the same object, held weakly',
  HASATTR: 'that an attribute is there',
  LACKS: 'that a name is not there',
  FUNCTION: 'code of functions',
  CODE: 'code of functions',
  PREDICATE: 'relations of sizes',
  FLOAT: 'numbers that may vary',
  INT_SYMBOL: 'whole numbers that may vary'
});
const CLASS_NAMES: { [name: string]: string } = words({ watched: 'watched', checked: 'checked', once: 'once' });
const EVENT_WORDS: { [name: string]: string } = words({
  recompile: 'recompile',
  break: 'break',
  skip: 'skip',
  limit: 'limit',
  error: 'error'
});

/** Of a mark in a lane, in pixels, and what part of a lane of usual width it takes. */
const MARK_WIDTH = 13;
const MARK_ROOM = 0.015;
/** What has a place in the lane, and no mark. */
const QUIET = ['capture', 'compile', 'entry'];

const LEGEND_WORDS: { [name: string]: string } = words({
  capture: 'a call waits for the compiler',
  entry: 'an entry serves',
  recompile: 'compiled again',
  break: 'graph break',
  harmless: 'no change needed',
  skip: 'runs as Python',
  limit: 'given up',
  error: 'error'
});
/** From so many rows on, those of one kind are one until it is opened. */
const FOLD_FROM = 24;
const LEAST_FOLDED = 3;
const LONGEST = 70;
/** A guard on many places names the first of them. */
const LONGEST_TEXT = 160;

const isBenign = (r: Recompile | undefined) => !!r && /^no change is needed/.test(r.suggestion);

export function guardsView(context: ViewContext): View {
  const { model, go } = context;
  const { report } = model;
  const forecast = forecastForm(context);
  const cards = report.recompiles.map(r =>
    recompileCard(r, report.source.file, () => model.selectLine(r.file || report.source.file, r.line ?? 0, 'recompile'))
  );
  const parts = guardTable(
    report.guards,
    report.source.file,
    row => {
      if (row.line) {
        model.selectLine(row.file || report.source.file, row.line, 'guards');
      }
    },
    report.entries.map(e => frameWords(report.frames[e.frame]?.name ?? 'frame'))
  );
  const calls = callsView(report, go);
  const relies = section(t('What the entries rely on'), costs(report), parts.element);
  relies.tabIndex = -1;
  const element = h(
    'div',
    null,
    calls,
    section(
      t('Entries over time'),
      timeline(
        report,
        report.frames.map(f => frameWords(f.name)),
        go
      )
    ),
    section(
      cards.length ? t('Recompiled {0}', plural(report.summary.recompiles || cards.length, 'time')) : t('Recompiles'),
      cards.length
        ? cards
        : empty(
            report.frames.some(f => f.entries.length > 1)
              ? t('None in this run: for each call there was an entry whose guards held.')
              : t('None: each function was compiled once, and its guards have held since.')
          )
    ),
    forecast.element,
    relies
  );
  return {
    element,
    shown: forecast.shown,
    dispose: () => undefined,
    reveal: (kind, index) => {
      const target =
        kind === 'recompiles'
          ? cards[index]
          : kind === 'calls'
            ? calls
            : kind === 'forecast'
              ? forecast.element.childElementCount
                ? forecast.element
                : relies
              : parts.row(index);
      flash(target);
    }
  };
}

/** What one check of all guards costs, against what the call takes. */
function costs(report: Report): HTMLElement | null {
  const measured = report.entries.flatMap((e, i) =>
    e.guard_seconds === null ? [] : [`${t('entry {0}', i)}: ${seconds(e.guard_seconds)}`]
  );
  return measured.length
    ? h(
        'p.tc-muted',
        null,
        t(
          'All guards of an entry together, per call: {0}{1}',
          measured.slice(0, 12).join(', '),
          measured.length > 12 ? ', …' : ''
        )
      )
    : null;
}

/** The words of a guard; of a list that is long its beginning, and the rest as a hint. */
function guardWords(text: string): Child {
  const cut = text.length > LONGEST_TEXT ? text.lastIndexOf(', ', LONGEST_TEXT) : -1;
  return cut < 0
    ? prose(text)
    : h(
        'span',
        { title: text },
        ...prose(text.slice(0, cut)),
        h('span.tc-muted', null, t(' and {0} more', text.slice(cut).split(', ').length - 1))
      );
}

export function flash(target: HTMLElement | null | undefined): void {
  if (target) {
    const fold = target.closest('details');
    if (fold) {
      fold.open = true;
    }
    target.scrollIntoView({ block: 'nearest' });
    target.classList.add('tc-selected');
    target.focus?.({ preventScroll: true });
  }
}

/** A bare value is code; a sentence with names in it is prose. */
function value(text: string): Child {
  return text.includes('`') ? prose(text) : h('code', null, text || '–');
}

function recompileCard(r: Recompile, here: string, act: () => void): HTMLElement {
  return h(
    isBenign(r) ? 'article.tc-card.tc-card-quiet' : 'article.tc-card',
    { tabindex: -1 },
    h(
      'h4',
      null,
      ...prose(changedCode(r)),
      isCondition(r) ? t(' holds no more ') : t(' changed '),
      h('span.tc-muted', null, ...prose(callWords(r)))
    ),
    h(
      'dl.tc-versus',
      null,
      h('div', null, h('dt', null, t('expected')), h('dd', null, value(r.expected))),
      h('div', null, h('dt', null, t('got')), h('dd.tc-got', null, value(r.got)))
    ),
    r.line
      ? h(
          'div.tc-labelled',
          null,
          h('span.tc-label', null, t('your line')),
          h(
            'button.tc-code-link',
            { type: 'button', onclick: act },
            h('span.tc-muted', null, place(r.file, r.line, here)),
            ' ',
            h('code', null, r.code.trim())
          )
        )
      : null,
    r.why.includes(' ')
      ? h('div.tc-labelled', null, h('span.tc-label', null, t('why it matters')), h('span', null, ...prose(r.why)))
      : null,
    isBenign(r)
      ? h('p.tc-muted', null, ...prose(r.suggestion))
      : r.suggestion
        ? h(
            'div.tc-remedy',
            null,
            h('span.tc-label', null, t('what to change')),
            h('span', null, ...prose(r.suggestion))
          )
        : null,
    r.others
      ? h(
          'p.tc-muted',
          null,
          t('{0} of the function failed as well', plural(r.others, 'further entry', 'further entries'))
        )
      : null
  );
}

/** Marks that would cover each other stand side by side: how many stand before each. */
function apart<T>(marks: T[], at: (mark: T) => number): [T, number][] {
  let last = -1;
  let before = 0;
  return marks.map(mark => {
    before = at(mark) - last < MARK_ROOM ? before + 1 : 0;
    last = before ? last : at(mark);
    return [mark, before];
  });
}

/** One lane per frame: a block per entry, from when it was compiled until the next one, marks for what went wrong. */
function timeline(report: Report, frames: string[], go: (ref: string) => void): HTMLElement {
  const events: TimelineEvent[] = report.timeline;
  if (!events.length) {
    return empty(t('Nothing happened that has a time: no compilation, no failed guard.'));
  }
  // Reports of earlier versions tell of captures alone, at their end.
  const compiled = events.some(e => e.kind === 'compile') ? 'compile' : 'capture';
  const begin = (e: TimelineEvent) => (e.kind === 'compile' ? e.time : Math.max(0, e.time - e.seconds));
  const last = Math.max(...events.map(e => begin(e) + (e.seconds || 0)), ...events.map(e => e.time)) || 1;
  const end = last * 1.08; // the last entry needs room to be seen
  const share = (t: number) => `${((t / end) * 100).toFixed(2)}%`;
  const lanes = [...new Set(events.map(e => e.frame))];
  const serial = { recompile: 0, break: 0 };
  const numbered = events.map(e => ({
    event: e,
    ref:
      e.kind === 'recompile' ? `recompiles/${serial.recompile++}` : e.kind === 'break' ? `breaks/${serial.break++}` : ''
  }));
  // What needs no change has no mark of a warning.
  const benign = (ref: string) => {
    const [kind, index] = ref.split('/');
    return kind === 'breaks'
      ? !!report.graph_breaks[Number(index)]?.harmless
      : kind === 'recompiles' && isBenign(report.recompiles[Number(index)]);
  };
  const kinds = new Set(numbered.map(n => (n.ref && benign(n.ref) ? 'harmless' : n.event.kind)));
  const lane = (frame: number | null) => {
    const here = numbered.filter(n => n.event.frame === frame);
    const entries = here.filter(n => n.event.kind === 'entry');
    return h(
      'div.tc-lane',
      { role: 'listitem' },
      h(
        'span.tc-lane-name',
        { title: frame === null ? '' : frames[frame] },
        frame === null ? t('cell') : (frames[frame] ?? t('frame {0}', frame))
      ),
      h(
        'span.tc-lane-track',
        null,
        entries.map(({ event }, i) => {
          const length = Math.max(0, (entries[i + 1]?.event.time ?? end) - event.time);
          // A name that has no room, or that a mark would cover, is in the hint alone.
          const covers = (e: TimelineEvent) =>
            e.kind === 'compile' ? e.time + e.seconds > event.time : !QUIET.includes(e.kind) && e.time >= event.time;
          const covered = (part: number) =>
            length < part * end || here.some(n => covers(n.event) && n.event.time < event.time + part * end);
          return h(
            'span.tc-entry-block',
            {
              title: t('entry {0} from {1} on: {2}', event.entry ?? i, seconds(event.time), event.text),
              style: { left: share(event.time), width: share(length) }
            },
            covered(0.12)
              ? length > 0.04 * end && !covered(0.04)
                ? `#${event.entry ?? i}`
                : ''
              : t('entry {0}', event.entry ?? i)
          );
        }),
        here
          .filter(n => n.event.kind === compiled)
          .map(({ event }) =>
            h('span.tc-compiling', {
              tabindex: 0,
              role: 'img',
              title: t('{0}: this call waited {1}', event.text, seconds(event.seconds)),
              'aria-label': t('{0}: this call waited {1}', event.text, seconds(event.seconds)),
              style: { left: share(begin(event)), width: share(event.seconds) }
            })
          ),
        apart(
          here.filter(n => !QUIET.includes(n.event.kind)),
          n => n.event.time / end
        ).map(([{ event, ref }, beside]) =>
          h(`button.tc-event.tc-event-${ref && benign(ref) ? 'harmless' : event.kind}`, {
            type: 'button',
            title: t('{0} at {1}: {2}', EVENT_WORDS[event.kind] ?? event.kind, seconds(event.time), event.text),
            'aria-label': t('{0} at {1}: {2}', EVENT_WORDS[event.kind] ?? event.kind, seconds(event.time), event.text),
            style: { left: share(event.time), 'margin-left': `${beside * MARK_WIDTH}px` },
            onclick: () => ref && go(ref)
          })
        )
      )
    );
  };
  const legend = h(
    'div.tc-legend',
    null,
    [compiled, 'entry', 'recompile', 'break', 'harmless', 'skip', 'limit', 'error']
      .filter(kind => kinds.has(kind))
      .map(kind =>
        h(
          'span',
          null,
          h(
            kind === compiled
              ? 'span.tc-key.tc-compiling'
              : kind === 'entry'
                ? 'span.tc-key.tc-entry-block'
                : `span.tc-key.tc-event.tc-event-${kind}`,
            { 'aria-hidden': 'true' }
          ),
          LEGEND_WORDS[kind === compiled ? 'capture' : kind]
        )
      )
  );
  return h(
    'div',
    null,
    h(
      'div.tc-timeline',
      { role: 'list', 'aria-label': t('Entries over time, a lane per function') },
      lanes.map(lane),
      h(
        'div.tc-lane.tc-axis',
        { 'aria-hidden': 'true' },
        h('span'),
        h(
          'span.tc-lane-track',
          null,
          h('span', null, '0'),
          h(
            'span',
            { style: { position: 'absolute', right: `${(100 * (1 - last / end)).toFixed(2)}%` } },
            seconds(last)
          )
        )
      )
    ),
    legend
  );
}

function guardTable(
  guards: GuardRow[],
  here: string,
  onRow: (row: GuardRow) => void,
  frames: string[]
): { element: HTMLElement; row: (index: number) => HTMLElement | null } {
  if (!guards.length) {
    return { element: empty(t('No guards: nothing was compiled.')), row: () => null };
  }
  // What failed comes first, then the entries in order.
  const ordered = guards.map((guard, index) => ({ guard, index }));
  ordered.sort((a, b) => b.guard.failed - a.guard.failed || a.index - b.index);
  const body = h('div');
  const note = h('span.tc-muted', { role: 'status' });
  const draw = (filter: string) => {
    const wanted = filter.trim().toLowerCase();
    const rows = ordered.filter(
      ({ guard: g }) =>
        !wanted || `${g.text} ${g.source} ${g.kind} ${g.expected} ${g.cls}`.toLowerCase().includes(wanted)
    );
    const held = rows.reduce((sum, r) => sum + r.guard.count, 0);
    note.textContent =
      held === rows.length ? plural(held, 'guard') : t('{0} in {1}', plural(held, 'guard'), plural(rows.length, 'row'));
    clear(body);
    const all = [
      {
        title: t('guard'),
        cell: r => [
          r.guard.failed
            ? h(
                'span.tc-failed',
                { title: t('failed first {0}', plural(r.guard.failed, 'time')) },
                `✕ ${r.guard.failed}`
              )
            : null,
          guardWords(r.guard.text || r.guard.source),
          r.guard.count > 1 && !r.guard.text.startsWith(String(r.guard.count))
            ? h('span.tc-muted', null, ` (${count(r.guard.count)})`)
            : null
        ]
      },
      {
        title: t('expected'),
        roomy: true,
        cell: r =>
          h(
            'code',
            { title: r.guard.expected.length > LONGEST ? r.guard.expected : null },
            r.guard.expected.length > LONGEST ? `${r.guard.expected.slice(0, LONGEST)}…` : r.guard.expected
          )
      },
      {
        title: t('because'),
        cell: r => [
          r.guard.why,
          r.guard.line ? h('span.tc-muted', null, ` ${place(r.guard.file, r.guard.line, here)}`) : null
        ]
      },
      {
        title: t('cost'),
        number: true,
        cell: r => (r.guard.ns === null || r.guard.ns === undefined ? '' : seconds(r.guard.ns * 1e-9)),
        hint: t('measured, per call; watched guards share one proof')
      },
      {
        title: t('how'),
        short: true,
        cell: r => h('span', { title: CLASS_WORDS[r.guard.cls] }, CLASS_NAMES[r.guard.cls] ?? r.guard.cls)
      },
      { title: t('entry'), cell: r => `${frames[r.guard.entry] ?? ''} #${r.guard.entry}` }
    ] as Column<{ guard: GuardRow; index: number }>[];
    // Stock's guards come as text alone.
    const has = [
      true,
      guards.some(g => g.expected),
      guards.some(g => g.why || g.line),
      guards.some(g => typeof g.ns === 'number')
    ];
    const draws = (some: typeof rows, label: string) =>
      table(
        all.filter((_, i) => has[i] ?? true),
        some,
        {
          label,
          limit: 60,
          onRow: r => onRow(r.guard),
          rowAttributes: r => ({
            'data-guard': r.index,
            class: r.guard.failed ? 'tc-clickable tc-row-failed' : 'tc-clickable'
          })
        }
      );
    const kinds = new Map<string, typeof rows>();
    const fold = !wanted && rows.length >= FOLD_FROM;
    const plain = rows.filter(r => {
      if (fold && !r.guard.failed) {
        kinds.set(r.guard.kind, [...(kinds.get(r.guard.kind) ?? []), r]);
        return false;
      }
      return true;
    });
    for (const [kind, some] of kinds) {
      if (some.length < LEAST_FOLDED) {
        plain.push(...some);
        kinds.delete(kind);
      }
    }
    if (plain.length) {
      body.append(draws(plain, t('Guards')));
    }
    const took = (some: typeof rows) => some.reduce((sum, r) => sum + (r.guard.ns ?? 0), 0);
    append(
      body,
      [...kinds]
        .sort((a, b) => took(b[1]) - took(a[1]))
        .map(([kind, some]) => {
          const guards = some.reduce((sum, r) => sum + r.guard.count, 0);
          const more = h(
            'details.tc-fold.tc-guard-kind',
            null,
            h(
              'summary',
              null,
              h('code', null, kind),
              ` ${KIND_WORDS[kind] ?? ''} `,
              h(
                'span.tc-muted',
                null,
                [plural(guards, 'guard'), took(some) ? t('{0} a call', seconds(took(some) * 1e-9)) : '']
                  .filter(Boolean)
                  .join(' · ')
              )
            )
          );
          let drawn = false;
          more.addEventListener('toggle', () => {
            if (!drawn) {
              drawn = true;
              more.append(draws(some, kind));
            }
          });
          return more;
        })
    );
  };
  const filter = h('input.tc-input', {
    type: 'search',
    placeholder: t('filter'),
    'aria-label': t('Filter the guards')
  }) as HTMLInputElement;
  filter.oninput = () => draw(filter.value);
  filter.onkeydown = event => event.stopPropagation();
  draw('');
  const element = h('div');
  append(element, [guards.length > 12 ? h('div.tc-toolbar', null, filter, note) : null, body]);
  return {
    element,
    row: index => {
      const find = () => body.querySelector<HTMLElement>(`[data-guard="${index}"]`);
      if (!find()) {
        filter.value = '';
        draw('');
        body.querySelectorAll('details').forEach(fold => {
          fold.open = true;
          fold.dispatchEvent(new Event('toggle'));
        });
        body.querySelectorAll<HTMLButtonElement>('button.tc-button').forEach(more => !find() && more.click());
        find()?.closest('details')?.scrollIntoView({ block: 'nearest' });
        body.querySelectorAll('details').forEach(fold => (fold.open = fold.contains(find())));
      }
      return find();
    }
  };
}
