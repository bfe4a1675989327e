/** Call by call: which entry served, which calls had to wait for the compiler, and why the others had not. */

import { Child, h, prose, section, table } from '../dom';
import { changed, changedCode, count, frameWords, plural, seconds } from '../format';
import { Recompile, Report } from '../schema';
import { t } from '../texts';

export interface Row {
  entry: number;
  name: string;
  /** The backward passes of the entry, which are compiled when the first of each is called for. */
  backward: boolean;
  /** Compiled in this run. */
  made: boolean;
  /** Seconds for which calls waited, and how many did. */
  waited: number;
  waits: number;
  causes: Recompile[];
  /** Numbers or other values that may be another at each call. */
  varying: string[];
  /** Of those that vary for other entries: the values that this one was compiled for. */
  fixed: string[];
}

/** How the text of a wait ends that no entry came of (compiler/report/conclusions/waits.py). */
const BACKWARD = 'a backward pass';
const VARYING = ['FLOAT', 'INT_SYMBOL'];
const MOST_VARYING = 3;
const ROWS = 24;

/** What entries take at any value, by name. */
export function varyingNames(report: Report, entry?: number): Set<string> {
  const of = report.guards.filter(g => VARYING.includes(g.kind) && (entry === undefined || g.entry === entry));
  return new Set(of.map(g => g.source).filter(name => name));
}

/** One row an entry, in the order in which they were made, each followed by backward passes that were waited for. */
export function callRows(report: Report): Row[] {
  const made = new Set(report.timeline.filter(e => e.kind === 'entry').map(e => e.entry));
  const led = report.timeline.filter(e => e.kind === 'recompile').map(e => e.entry);
  const all = varyingNames(report);
  return report.entries.flatMap((e, entry): Row[] => {
    const row = { entry, name: frameWords(report.frames[e.frame]?.name ?? ''), made: made.has(entry) };
    const waited = row.made ? e.seconds : 0;
    const own = varyingNames(report, entry);
    const passes = report.timeline.filter(x => x.kind === 'compile' && x.entry === entry && x.text.endsWith(BACKWARD));
    return [
      {
        ...row,
        backward: false,
        waited,
        waits: waited ? 1 : 0,
        causes: report.recompiles.filter((_, i) => led[i] === entry),
        varying: [...own],
        fixed: report.guards
          .filter(g => g.entry === entry && g.kind === 'EQUALS' && all.has(g.source) && !own.has(g.source))
          .map(g => g.text)
      },
      ...(passes.length
        ? [
            {
              ...row,
              backward: true,
              waited: passes.reduce((sum, x) => sum + x.seconds, 0),
              waits: passes.length,
              causes: [],
              varying: [],
              fixed: []
            }
          ]
        : [])
    ];
  });
}

/** How often a backward graph of the entry ran in this run. */
function backwardRuns(report: Report, entry: number): number | null {
  const partition = report.partitions.find(p => p.graph !== null && p.graph === report.entries[entry].graph);
  const runs = (partition?.backward ?? []).map(b => report.graphs[b]?.runs ?? null);
  return runs.some(n => n === null) ? null : runs.reduce((sum: number, n) => sum + n!, 0);
}

export function callsView(report: Report, go: (ref: string) => void): HTMLElement | null {
  if (!report.entries.length) {
    return null;
  }
  const rows = callRows(report);
  const element = section(
    t('Call by call: what served, what compiled, and why'),
    table<Row>(
      [
        {
          title: t('function'),
          cell: r => {
            const { goes_on: on, inlined } = report.entries[r.entry];
            const also = report.frames.map(f => f.name).filter(name => inlined.includes(name) && name !== '<module>');
            return [
              r.name,
              r.backward ? h('div.tc-muted', null, t('its backward passes')) : null,
              r.backward || on === null || on === undefined
                ? null
                : h('div.tc-muted', null, on ? t('from line {0} on, after the break', on) : t('what follows a break')),
              !r.backward && also.length
                ? h('div.tc-muted', null, t('with its calls of {0}', also.map(frameWords).join(', ')))
                : null
            ];
          }
        },
        { title: t('entry'), number: true, cell: r => `#${r.entry}` },
        {
          title: t('calls'),
          number: true,
          cell: r => count(r.backward ? backwardRuns(report, r.entry) : report.entries[r.entry].hits),
          hint: t('that this entry served, with the one that compiled it')
        },
        {
          title: t('waited'),
          number: true,
          cell: r =>
            r.waits > 1
              ? t('{0}, in {1}', seconds(r.waited), plural(r.waits, 'wait'))
              : r.waits
                ? seconds(r.waited)
                : '–',
          hint: t('for the compiler, in the call that compiled it')
        },
        { title: t('why it compiled, and why other calls did not'), cell: r => why(report, r) }
      ],
      rows,
      {
        label: t('Calls and the entries that served them'),
        limit: ROWS,
        onRow: r => {
          const recompile = report.recompiles.indexOf(r.causes[0]);
          const guard = report.guards.findIndex(g => g.entry === r.entry);
          if (recompile >= 0) {
            go(`recompiles/${recompile}`);
          } else if (guard >= 0) {
            go(`guards/${guard}`);
          }
        }
      }
    )
  );
  element.tabIndex = -1;
  return element;
}

function why(report: Report, r: Row): Child[] {
  if (r.backward) {
    return [t('compiled when backward() first came there; what is computed depends on which gradients are asked for')];
  }
  const { hits, goes_on } = report.entries[r.entry];
  const others = hits === null ? 0 : hits - (r.made ? 1 : 0);
  const first = !r.made
    ? [t('compiled by an earlier run of the cell, or by another cell')]
    : r.causes.length
      ? [
          ...prose(callWords(r.causes[0])),
          t(' compiled again: '),
          ...r.causes.flatMap((c, i) => [i ? '; ' : '', ...changeWords(c)])
        ]
      : [
          typeof goes_on === 'number'
            ? t('the first call that came here: there was no entry yet')
            : t('the first call: there was no entry yet')
        ];
  return [
    ...first,
    others > 0
      ? r.made
        ? t('. {0} did not compile: all that its guards check held', plural(others, 'later call'))
        : t('. No call compiled: all that its guards check held')
      : '',
    ...(r.varying.length
      ? [
          t('; any value serves of '),
          ...r.varying.slice(0, MOST_VARYING).flatMap((name, i): Child[] => [i ? ', ' : '', h('code', null, name)])
        ]
      : []),
    ...(r.fixed.length
      ? [t('; another value would compile anew: '), ...prose(r.fixed.slice(0, MOST_VARYING).join(', '))]
      : [])
  ];
}

/** `x.shape[0]` changed from `8` to `16`; of a condition: `n % 2 == 0` holds no more, as `n = 3`. */
export function changeWords(r: Recompile): Child[] {
  return isCondition(r)
    ? [...prose(changedCode(r)), t(' holds no more, as '), ...prose(quoted(r.got))]
    : [...prose(changedCode(r)), t(' changed from '), ...prose(quoted(r.expected)), t(' to '), ...prose(quoted(r.got))];
}

/** Whether what changed says itself what was expected. */
export const isCondition = (r: Recompile) => changed(r) === r.expected;

/** `call 2 of `f` (from line 12)`: calls that became part of another compiled function are not counted. */
export function callWords(r: Recompile): string {
  const which = numbered(frameWords(r.frame_name), r.at_call);
  const told = r.frame_name === '<module>' || ofLoop(frameWords(r.frame_name)); // its words say where it stands
  return r.called && !told ? t('{0} (from line {1})', which, r.called) : which;
}

const ofLoop = (words: string) => /^the loop at line/.test(words);

function numbered(words: string, call?: number | null): string {
  const name = words.startsWith('the ') ? words : `\`${words}\``;
  return ofLoop(words)
    ? call
      ? t('turn {0} of {1}', call, name)
      : t('a turn of {0}', name)
    : call
      ? t('call {0} of {1}', call, name)
      : t('a call of {0}', name);
}

/** Which call it was that waited in a row: of a function's first entry it was the first, of others the causes tell. */
export function waitWords(report: Report, row: Row): string {
  const entry = report.entries[row.entry];
  const first = report.frames[entry.frame]?.entries[0] === row.entry && !row.causes.length;
  const call = numbered(row.name, row.causes[0]?.at_call ?? (first ? 1 : null));
  if (row.backward) {
    return t('backward of {0}', numbered(row.name));
  }
  if (typeof entry.goes_on !== 'number') {
    return call;
  }
  const from = entry.goes_on ? t('from line {0}', entry.goes_on) : t('after a break'); // 0: not known
  return row.causes.length ? `${call}, ${from}` : t('the first of {0} to go on {1}', row.name, from);
}

/** A value as code; a sentence, or a few words, as they are. */
export const quoted = (text: string) => (/`|^\w+(?: \w+){2,}$/.test(text) ? text : `\`${text}\``);
