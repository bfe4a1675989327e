/** A badge on each cell that was compiled: the closed line's symbol and speedup, at the corner of the cell's editor. */

import { Cell } from '@jupyterlab/cells';

import { h } from '../dom';
import { direction, speedup, STATUS_WORDS } from '../format';
import { Speedup, Status, Summary } from '../schema';
import { t } from '../texts';

export interface BadgeFacts {
  report: string;
  summary: Summary;
  /** Against eager, where it was measured. */
  gain: Speedup | null;
}

const CLASS = 'tc-cell-badge';

/** Shows, changes or takes away a cell's badge. */
export function setBadge(cell: Cell, facts: BadgeFacts | null, open: (target: HTMLElement) => void): void {
  const place = cell.inputArea?.node;
  if (!place) {
    return;
  }
  place.querySelector(`:scope > .${CLASS}`)?.remove();
  if (!facts) {
    return;
  }
  const { summary, gain } = facts;
  const status: Status = summary.status;
  const way = gain ? direction(gain) : 'even';
  const words =
    gain && way !== 'even'
      ? `${speedup(gain)[0]}${way === 'slower' ? ` ${speedup(gain)[2]}` : ''}`.trim()
      : status === 'compiled'
        ? ''
        : STATUS_WORDS[status];
  const badge = h(
    `button.${CLASS}.tc-status-${way === 'slower' && status === 'compiled' ? 'partly' : status}`,
    {
      type: 'button',
      title: `${summary.line}\n${t('(click: the report)')}`,
      'aria-label': `tcompile: ${summary.line}`,
      'data-report': facts.report
    },
    h('span', { 'aria-hidden': 'true' }, summary.symbol),
    words ? h('span.tc-cell-badge-gain', null, words) : null
  );
  badge.addEventListener('mousedown', event => event.stopPropagation());
  badge.addEventListener('click', event => {
    event.stopPropagation();
    open(badge);
  });
  place.append(badge);
}
