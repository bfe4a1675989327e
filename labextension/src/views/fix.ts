/** A remedy as a change of lines, and the button that makes it in the cell. */

import { button, h } from '../dom';
import { hostOf } from '../host';
import { Fix } from '../schema';
import { t } from '../texts';

const SIGNS: { [sign: string]: string } = { '+': 'tc-diff-new', '-': 'tc-diff-gone' };

/** Rows of a unified diff: what they are is said by the sign, and repeated by colour. */
export function diffLines(rows: [string, string][]): HTMLElement {
  return h(
    'pre.tc-diff',
    null,
    rows.map(([sign, line]) => h('span', { class: SIGNS[sign] ?? '' }, `${sign} ${line}\n`))
  );
}

/** The lines as they are and as they should be. */
export function fixLines(fix: Fix): HTMLElement {
  return diffLines([
    ...fix.old.split('\n').map((line): [string, string] => ['-', line]),
    ...fix.new.split('\n').map((line): [string, string] => ['+', line])
  ]);
}

/** What became of a change of the cell; undefined: nobody here can change it. */
export function changeWords(done: boolean | undefined): string {
  return done === undefined
    ? t(' the cell can be changed in JupyterLab only')
    : done
      ? t(' done: run the cell again')
      : t(' the cell does not read like that any more');
}

/** The lines of a remedy, and the button that changes them. `cell`: execution count of the cell that holds them. */
export function fixElement(fix: Fix, cell: number | null): HTMLElement {
  const said = h('span.tc-muted', { role: 'status' });
  const apply = button(
    t('apply to the cell'),
    { title: t('Changes these lines in the cell; run it again to see what became of it') },
    () => {
      const done = hostOf(element)?.apply?.(fix, cell);
      said.textContent = changeWords(done);
      apply.disabled = done === true;
    }
  );
  const element = h(
    'div.tc-fix',
    null,
    fixLines(fix),
    fix.note ? h('p.tc-muted', null, fix.note) : null,
    h('div', null, apply, said)
  );
  return element;
}
