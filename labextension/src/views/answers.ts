/** The ranked answer on top of a report: where the run's time went, what would change it, and a button that does it. */

import { append, button, h, prose, section } from '../dom';
import { ratioText } from '../format';
import { Host, hostOf } from '../host';
import { Answer, Break, Report } from '../schema';
import { question } from './controls';
import { changeWords, fixLines } from './fix';
import { ViewContext } from './view';
import { t } from '../texts';

export interface Answers {
  element: HTMLElement | null;
  /** To be called once the element is in the document: only then can the kernel be found. */
  shown: () => void;
}

export function answersView({ model, go, replace }: ViewContext): Answers {
  const { report } = model;
  let waiting: ((host: Host) => void)[] = [];
  const element = ranked(
    report,
    go,
    a => measure(report, a, replace, waiting),
    a => change(report, a, waiting)
  );
  const shown = () => {
    const host = element && waiting.length ? hostOf(element) : null;
    if (host) {
      waiting.forEach(f => f(host));
      waiting = [];
    }
  };
  // (what is open from the start is drawn before it is in the document)
  return { element, shown: () => (shown(), void requestAnimationFrame(shown)) };
}

/** Where no answer has a gain: whether there is something to change at all. */
function nothingKnown(report: Report): string {
  const open = report.findings.some(f => f.action && !/^(no change is needed|nothing to change)/.test(f.action));
  return open
    ? t('What the changes below would gain is not known.')
    : t('No change is known that would make it faster.');
}

type Measure = (a: Answer) => HTMLElement | null;

function ranked(report: Report, go: (ref: string) => void, measured: Measure, changes: Measure): HTMLElement | null {
  if (!report.answers.length) {
    return null;
  }
  // What is no part of the run, and nothing to change, stands below the ranks.
  const isNote = (a: Answer) => a.gain === null && a.share === null && !a.action;
  const ranks = report.answers.filter(a => !isNote(a));
  const gains = ranks.some(a => a.gain !== null || a.action);
  return section(
    gains ? t('What would make it faster') : t('In short'),
    ranks.length
      ? h(
          'ol.tc-answers',
          null,
          ranks.map(a => answer(a, go, measured, changes))
        )
      : null,
    gains ? null : h('p.tc-muted', null, nothingKnown(report)),
    report.answers.filter(isNote).map(a => note(a, go))
  );
}

/**
 * Times the call as it is and under the answer's settings, in turn: the report comes back with the gain measured. The
 * cell stays as it is.
 */
function measure(
  report: Report,
  a: Answer,
  replace: (json: any) => void,
  waiting: ((host: Host) => void)[]
): HTMLElement | null {
  const settings = Object.keys(a.settings ?? {}).length;
  // (what is not compiled again is seen in a run of the cell alone)
  if (a.how === 'measured' || !settings || 'dynamic' in a.settings || !report.speedups.calls.some(c => c.measured)) {
    return null;
  }
  const element = h('span.tc-answer-measure');
  waiting.push(host =>
    append(
      element,
      question(host, t('measure what it wins'), async say => {
        const asked = { report: report.id, settings: a.settings, seconds: 1 };
        replace((await host.ask('try', asked, say)).report);
        return null;
      })
    )
  );
  return element;
}

function answer(a: Answer, go: (ref: string) => void, measured: Measure, changes: Measure): HTMLElement {
  const gain = gainWords(a);
  const more = details(a, go);
  const buttons = [measured(a), changes(a)].filter(e => e !== null);
  return h(
    'li.tc-answer-row',
    null,
    h(
      'div.tc-answer-text',
      null,
      h('span', null, ...prose(a.text), more && !a.action ? [' ', more] : null),
      gain ? h(a.how === 'measured' ? 'strong.tc-answer-gain.tc-gain-up' : 'strong.tc-answer-gain', null, gain) : null
    ),
    a.action ? h('div.tc-answer-action', null, ...prose(a.action), more && !buttons.length ? [' ', more] : null) : null,
    buttons.length ? h('div.tc-answer-buttons', null, buttons, a.action ? more : null) : null
  );
}

function note(a: Answer, go: (ref: string) => void): HTMLElement {
  const more = details(a, go);
  return h('p.tc-answer-note.tc-muted', null, ...prose(a.text), more ? [' ', more] : null);
}

function details(a: Answer, go: (ref: string) => void): HTMLElement | null {
  return a.ref && a.ref !== 'overview'
    ? h(
        'button.tc-link',
        { type: 'button', 'aria-label': t('details: {0}', a.text), onclick: () => go(a.ref) },
        t('details')
      )
    : null;
}

/** `1.3× [1.2–1.4], measured`, `at most 1.5×`, `about 1.6×`; empty where no gain is told. */
export function gainWords(a: Answer): string {
  if (a.gain === null || a.gain === undefined) {
    return '';
  }
  return a.how === 'measured'
    ? a.lo && a.hi && a.lo !== a.hi
      ? t('{0}× [{1}–{2}], measured', ratioText(a.gain), ratioText(a.lo), ratioText(a.hi))
      : t('{0}×, measured', ratioText(a.gain))
    : a.how === 'about'
      ? t('about {0}×', ratioText(a.gain))
      : t('at most {0}×', ratioText(a.gain));
}

/** Changes the cell and runs it again; absent where nothing can be changed, or by nobody. */
function change(report: Report, a: Answer, waiting: ((host: Host) => void)[]): HTMLElement | null {
  const [kind, index] = a.ref.split('/');
  const fix = kind === 'breaks' ? (report.graph_breaks[Number(index)] as Break | undefined)?.fix : null;
  const { cell } = report.source;
  // (options stand on top of a cell: a report of what a program recorded is about none)
  const settings = cell === null ? [] : Object.entries(a.settings ?? {});
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
    act,
    said,
    fix ? h('details.tc-fix-details', null, h('summary', null, t('as a change of lines')), fixLines(fix)) : null
  );
  if (!fix) {
    element.hidden = true; // on a page alone there is no cell to change
    waiting.push(host => (element.hidden = !host.set));
  }
  return element;
}
