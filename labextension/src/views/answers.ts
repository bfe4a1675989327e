/** The ranked answer on top of a report: where the run's time went, what would change it, and a button that does it. */

import { button, h, prose, section } from '../dom';
import { ratioText } from '../format';
import { hostOf } from '../host';
import { Answer, Break, Report } from '../schema';
import { changeWords, fixLines } from './fix';
import { t } from '../texts';

export function answersView(report: Report, go: (ref: string) => void): HTMLElement | null {
  if (!report.answers.length) {
    return null;
  }
  const gains = report.answers.some(a => a.gain !== null);
  return section(
    gains ? t('What would make it faster') : t('In short'),
    h(
      'ol.tc-answers',
      null,
      report.answers.map(a => answer(report, a, go))
    )
  );
}

function answer(report: Report, a: Answer, go: (ref: string) => void): HTMLElement {
  const gain = gainWords(a);
  return h(
    'li.tc-answer-row',
    null,
    h(
      'div.tc-answer-text',
      null,
      h('span', null, ...prose(a.text)),
      gain
        ? h(a.how === 'measured' ? 'strong.tc-answer-gain.tc-gain-up' : 'span.tc-answer-gain.tc-muted', null, gain)
        : null
    ),
    a.action ? h('div.tc-answer-action', null, ...prose(a.action)) : null,
    h(
      'div.tc-answer-buttons',
      null,
      change(report, a),
      a.ref && a.ref !== 'overview'
        ? h('button.tc-link', { type: 'button', onclick: () => go(a.ref) }, t('details'))
        : null
    )
  );
}

/** `1.3× [1.2–1.4], measured`, `at most 1.5×`; empty where no gain is told. */
export function gainWords(a: Answer): string {
  if (a.gain === null || a.gain === undefined) {
    return '';
  }
  return a.how === 'measured'
    ? a.lo && a.hi && a.lo !== a.hi
      ? t('{0}× [{1}–{2}], measured', ratioText(a.gain), ratioText(a.lo), ratioText(a.hi))
      : t('{0}×, measured', ratioText(a.gain))
    : t('at most {0}×', ratioText(a.gain));
}

/** Changes the cell and runs it again; absent where nothing can be changed, or by nobody. */
function change(report: Report, a: Answer): HTMLElement | null {
  const [kind, index] = a.ref.split('/');
  const fix = kind === 'breaks' ? (report.graph_breaks[Number(index)] as Break | undefined)?.fix : null;
  const settings = Object.entries(a.settings ?? {});
  if (!fix && !settings.length) {
    return null;
  }
  const said = h('span.tc-muted', { role: 'status' });
  const words = settings.map(([name, value]) => `${name}=${value}`).join(' ');
  const act = button(
    fix ? t('change the lines and time again') : t('set {0} and time again', words),
    { class: 'tc-button' },
    () => {
      const host = hostOf(element);
      const cell = report.source.cell;
      const done = fix
        ? host?.apply?.(fix, report.source.file === fix.file ? cell : null)
        : host?.set?.(a.settings, cell);
      if (done && host?.runAgain) {
        said.textContent = t(' done: the cell runs again');
        host.runAgain(cell);
      } else {
        said.textContent = changeWords(done);
      }
      act.disabled = done === true;
    }
  );
  const element = h(
    'span.tc-answer-change',
    null,
    fix ? h('details.tc-fix-details', null, h('summary', null, t('as a change of lines')), fixLines(fix)) : null,
    act,
    said
  );
  return element;
}
