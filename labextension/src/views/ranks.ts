/**
 * The ranks of a run beside each other: a timeline with a row a rank, who waits for whom, where they compiled different
 * graphs.
 */

import { h, section, svg, table } from '../dom';
import { bytes, count, place, plural, roundStep, seconds, tick } from '../format';
import { RankRow, RankSpan, Ranks } from '../schema';
import { View, ViewContext } from './view';
import { t, words } from '../texts';

const PARTS: { [part: string]: string } = words({
  own: 'its own work',
  compiling: 'compiling',
  waiting: 'waiting for the last rank',
  communicating: 'communicating'
});
const CLOCKS: { [clock: string]: string } = words({
  call: 'Communication lasts from a rank’s call to its end. A rank waits until the last one has come.',
  arrival: 'This torch doesn’t say when a collective on the CPU ends: it is shown until the last rank came.',
  device: 'Communication is as long as its kernel on the GPU, from its launch on. The rank with the shortest came last.'
});
const STATUS: { [status: string]: string } = words({
  done: '',
  raised: 'raised',
  interrupted: 'interrupted',
  ended: 'its process ended'
});
const ROW = 22;
const NAME = 60;
const WIDTH = 900;
const LEAST_WIDTH = 320;
const MOST_WIDTH = 1100;
const TICKS = 5;

export function ranksView({ model }: ViewContext): View {
  const ranks = model.report.ranks!;
  const failed = ranks.rows.filter(ending);
  const more = ranks.rows.reduce((n, r) => n + r.more, 0);
  return {
    element: h(
      'div',
      null,
      failed.length
        ? section(
            t('Ranks that did not finish'),
            h(
              'ul.tc-list',
              null,
              failed.map(r => h('li', null, h('strong', null, t('rank {0}', r.rank)), ` ${ending(r)}`))
            )
          )
        : null,
      section(
        t('Who waits for whom'),
        ranks.waits.length
          ? h(
              'ul.tc-list',
              null,
              ranks.waits
                .slice(0, 8)
                .map(w =>
                  h(
                    'li',
                    null,
                    t(
                      'Rank {0} was {1} ahead of rank {2} at {3}, at most {4} ({5}).',
                      w.rank,
                      seconds(w.seconds),
                      w.other,
                      plural(w.count, 'collective'),
                      seconds(w.longest),
                      w.name
                    )
                  )
                )
            )
          : h('p.tc-muted', null, t('No rank was ahead of another by more than 0.1 ms.'))
      ),
      section(
        t('Timeline'),
        timeline(ranks),
        legend(),
        CLOCKS[ranks.clock] ? h('p.tc-muted', null, CLOCKS[ranks.clock]) : null,
        more ? h('p.tc-muted', null, t('Not drawn: {0}.', plural(more, 'short span'))) : null,
        ranks.remarks.map(note => h('p', null, note))
      ),
      section(t('Each rank'), rankTable(ranks.rows)),
      section(t('Different graphs'), differences(ranks, model.report.source.file))
    ),
    dispose: () => undefined
  };
}

/** Drawn for the room that it has: letters keep their size. */
function timeline(ranks: Ranks): HTMLElement {
  const panel = h('div.tc-panel', null, pictureOf(ranks, WIDTH));
  let drawn = WIDTH;
  new ResizeObserver(() => {
    const width = Math.max(LEAST_WIDTH, Math.min(MOST_WIDTH, panel.clientWidth));
    if (panel.clientWidth && Math.abs(width - drawn) > 4) {
      drawn = width;
      panel.replaceChildren(pictureOf(ranks, width));
    }
  }).observe(panel);
  return panel;
}

function pictureOf(ranks: Ranks, wide: number): SVGElement {
  const height = ranks.rows.length * ROW + 20;
  const scale = (wide - NAME - 10) / (ranks.seconds || 1);
  const bar = (part: string, row: number, begin: number, length: number, title: string) =>
    length > 0
      ? svg(
          `rect.tc-rank-${part}`,
          {
            x: NAME + begin * scale,
            y: row * ROW + 3,
            width: Math.max(0.7, length * scale),
            height: ROW - 6
          },
          svg('title', null, title)
        )
      : null;
  const rows = ranks.rows.flatMap((row, i) => [
    svg('text.tc-rank-name', { x: 0, y: i * ROW + ROW / 2 + 4 }, t('rank {0}', row.rank)),
    bar('own', i, row.begin, row.seconds, t('rank {0}: {1}', row.rank, seconds(row.seconds))),
    ...row.spans.flatMap(span =>
      span.kind === 'compile'
        ? [bar('compiling', i, span.begin, span.seconds, spanWords(row, span))]
        : [
            bar('waiting', i, span.begin, span.early, spanWords(row, span)),
            bar('communicating', i, span.begin + span.early, span.seconds - span.early, spanWords(row, span))
          ]
    )
  ]);
  const step = roundStep((ranks.seconds || 1) / Math.max(2, Math.min(TICKS, wide / 100)));
  const ticks = Array.from({ length: Math.floor(ranks.seconds / step) + 1 }, (_, k) => k * step).map((at, k) =>
    svg(
      'text.tc-rank-tick',
      {
        x: NAME + at * scale,
        y: height - 4,
        'text-anchor': k === 0 ? 'start' : at > 0.95 * ranks.seconds ? 'end' : 'middle'
      },
      tick(at)
    )
  );
  return svg(
    'svg.tc-ranks',
    {
      viewBox: `0 0 ${wide} ${height}`,
      role: 'img',
      'aria-label': t('What each rank did over time; the table below has the sums')
    },
    rows,
    ticks
  );
}

function spanWords(row: RankRow, span: RankSpan): string {
  const head = t('rank {0}: {1}, {2}', row.rank, span.name, seconds(span.seconds));
  return [
    head,
    span.last !== null ? t('{0} of it before rank {1} came', seconds(span.early), span.last) : '',
    span.bytes ? bytes(span.bytes) : ''
  ]
    .filter(Boolean)
    .join(' · ');
}

function legend(): HTMLElement {
  return h(
    'div.tc-legend',
    null,
    Object.keys(PARTS).map(part => h('span', null, h(`span.tc-swatch.tc-rank-${part}`), PARTS[part]))
  );
}

/** How a rank ended, where it did not as it should. */
function ending(r: RankRow): string {
  return [STATUS[r.status] ?? r.status, r.error].filter(Boolean).join(': ');
}

function rankTable(rows: RankRow[]): HTMLElement {
  const number = (title: string, cell: (r: RankRow) => string) => ({ title, cell, number: true });
  const columns = [
    { title: t('rank'), cell: (r: RankRow) => String(r.rank), short: true },
    { title: t('device'), cell: (r: RankRow) => (r.host ? `${r.device}, ${r.host}` : r.device), short: true },
    number(t('time'), r => seconds(r.seconds)),
    number(t('compiling'), r => seconds(r.compile_seconds)),
    number(t('communicating'), r => seconds(r.communication_seconds)),
    number(t('of it waiting'), r => seconds(r.early_seconds)),
    number(t('collectives'), r => count(r.collectives)),
    number(t('calls'), r => count(r.calls)),
    number(t('graphs'), r => count(r.graphs)),
    number(t('breaks'), r => count(r.breaks)),
    number(t('recompiles'), r => count(r.recompiles)),
    number(t('peak memory'), r => bytes(r.peak_bytes))
  ];
  return table(columns, rows, { label: t('Each rank') });
}

function differences(ranks: Ranks, here: string): HTMLElement {
  if (!ranks.differences.length) {
    return h('p.tc-muted', null, t('All ranks compiled the same graphs.'));
  }
  return h(
    'div',
    null,
    ranks.differences.map(d =>
      h(
        'div.tc-panel',
        null,
        h(
          'p',
          null,
          d.graph ? t('graph {0} of {1}', d.graph + 1, d.function) : d.function,
          d.more ? h('span.tc-muted', null, ` ${t('and {0} of it', plural(d.more, 'further graph'))}`) : null,
          d.file && d.line ? h('span.tc-muted', null, ` ${place(d.file, d.line, here)}`) : null
        ),
        d.ranks.map((group, i) =>
          h(
            'div',
            null,
            h(
              'span.tc-muted',
              null,
              `${group.length > 1 ? t('ranks {0}', group.join(', ')) : t('rank {0}', group[0])}: `
            ),
            h('code', null, d.texts[i] ?? '')
          )
        )
      )
    )
  );
}
