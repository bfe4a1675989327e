/** Call by call: which entry served, which calls had to wait for the compiler, and why the others had not. */

import { Child, h, prose, section, table } from '../dom';
import { changed, count, frameWords, plural, seconds } from '../format';
import { Recompile, Report } from '../schema';
import { t } from '../texts';

interface Row {
  entry: number;
  name: string;
  /** Compiled in this run. */
  made: boolean;
  causes: Recompile[];
  /** Numbers or other values that may be another at each call. */
  varying: string[];
}

const VARYING = ['FLOAT', 'INT_SYMBOL'];
const MOST_VARYING = 3;
const ROWS = 24;

/** One row an entry, in the order in which they were made; null where there is none. */
export function callsView(report: Report, go: (ref: string) => void): HTMLElement | null {
  if (!report.entries.length) {
    return null;
  }
  const made = new Set(report.timeline.filter(e => e.kind === 'entry').map(e => e.entry));
  const led = report.timeline.filter(e => e.kind === 'recompile').map(e => e.entry);
  const rows = report.entries.map((e, entry): Row => ({
    entry,
    name: frameWords(report.frames[e.frame]?.name ?? ''),
    made: made.has(entry),
    causes: report.recompiles.filter((_, i) => led[i] === entry),
    varying: [
      ...new Set(
        report.guards.filter(g => g.entry === entry && VARYING.includes(g.kind) && g.source).map(g => g.source)
      )
    ]
  }));
  const element = section(
    t('Call by call: what served, what compiled, and why'),
    table<Row>(
      [
        {
          title: t('function'),
          cell: r => {
            const on = report.entries[r.entry].goes_on;
            return [
              r.name,
              on === null || on === undefined
                ? ''
                : h('div.tc-muted', null, on ? t('from line {0} on, after the break', on) : t('what follows a break'))
            ];
          }
        },
        { title: t('entry'), number: true, cell: r => `#${r.entry}` },
        {
          title: t('calls'),
          number: true,
          cell: r => count(report.entries[r.entry].hits),
          hint: t('that this entry served, with the one that compiled it')
        },
        {
          title: t('waited'),
          number: true,
          cell: r => (r.made && report.entries[r.entry].seconds ? seconds(report.entries[r.entry].seconds) : '–'),
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
  const { hits, goes_on } = report.entries[r.entry];
  const others = hits === null ? 0 : hits - (r.made ? 1 : 0);
  const first = !r.made
    ? [t('compiled by an earlier run of the cell, or by another cell')]
    : r.causes.length
      ? [
          r.causes[0].at_call ? t('call {0} compiled again: ', r.causes[0].at_call) : t('compiled again: '),
          ...r.causes.flatMap((c, i) => [
            i ? '; ' : '',
            ...prose(`\`${changed(c)}\``),
            t(' was '),
            ...prose(quoted(c.expected)),
            t(', is now '),
            ...prose(quoted(c.got))
          ])
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
      : [])
  ];
}

const quoted = (text: string) => (text.includes('`') ? text : `\`${text}\``);
