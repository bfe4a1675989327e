/** Source text with line numbers, marks and a selection; lines can be walked with the arrow keys. */

import { h } from './dom';
import { shareBounds, TOLD_APART } from './format';
import { highlightInto, Language } from './highlight';
import { costsOf } from './profile/spans';
import { Mark, MarkKind, Report, WallPart } from './schema';
import { t, words } from './texts';

export const MARK_WORDS: { [kind in MarkKind]: string } = words({
  captured: 'compiled',
  eager: 'runs eager',
  break: 'graph break',
  guard: 'a guard relies on it'
});
/** What an accumulator's name is followed by in its parts: one for each copy of the loop's body. */
export const SUFFIX = /_(?:v\d+|sum|max|min)$/;
/** Where a line has several marks, the first of these is drawn, and the hover tells all. */
const PRIORITY: MarkKind[] = ['break', 'eager', 'captured', 'guard']; // as in compiler/report/finish.py

/** The marks that cover a line, most important first. */
export function marksByLine(marks: Mark[]): Map<number, Mark[]> {
  const lines = new Map<number, Mark[]>();
  for (const mark of marks) {
    for (let line = mark.line; line <= (mark.end_line ?? mark.line); line++) {
      const list = lines.get(line) ?? [];
      list.push(mark);
      lines.set(line, list);
    }
  }
  for (const list of lines.values()) {
    list.sort((a, b) => PRIORITY.indexOf(a.kind) - PRIORITY.indexOf(b.kind));
  }
  return lines;
}

export function markElement(marks: Mark[]): HTMLElement {
  const sentence = marks.map(m => `${MARK_WORDS[m.kind] ?? m.kind}: ${m.text}`).join('\n');
  const ring = marks[0].kind === 'captured' && marks.some(m => m.kind === 'guard') ? '.tc-mark-ringed' : '';
  return h(`span.tc-mark.tc-mark-${marks[0].kind}${ring}`, { title: sentence, role: 'img', 'aria-label': sentence });
}

/** The line's share of the time, as words and as a colour behind them. */
function heatElement(share: number | undefined): HTMLElement | null {
  return share === undefined || share < 0.005
    ? null
    : h(
        'span.tc-heat',
        {
          title: t('{0} % of the time, with what the line calls', Math.round(share * 100)),
          style: { '--tc-heat': `${Math.round(8 + share * 30)}%` }
        },
        `${Math.round(share * 100)} %`
      );
}

/** What no line of the cell is the reason for. */
const AROUND = ['compiling', 'starved'];
/** The part of Python's time that the next run does not pay. */
export const IMPORTING = 'importing modules';

/** Under which key a line counts: its own, or that of the line here that calls it; null: a call of the whole cell. */
function lineKeys(report: Report, here: (file: string) => boolean): (file: string, line: number) => string | null {
  const callers = new Map(report.profiles.length ? costsOf(report).callers : []);
  report.graphs.forEach(g =>
    g.callers?.forEach(([file, line, cell, at]) => here(cell) && callers.set(`${file}:${line}`, at))
  );
  const { first_line: first, file: own, text } = report.source;
  const magic = text?.startsWith('%%') ? `${own}:${first || 1}` : '';
  return (file, line) => {
    const key = `${file}:${line}`;
    const caller = here(file) ? undefined : callers.get(key);
    const counted = caller === undefined ? `${here(file) ? own : file}:${line}` : `${own}:${caller}`;
    return key === magic ? null : counted;
  };
}

/**
 * What each line took, by `file:line`, as a share of the program's own time (or of the kernels', where the run itself
 * was not looked at). A kernel's time goes in equal parts to the lines whose operations it holds, all else to its line,
 * as in the table of what took the run's time. What lies in other code counts for the line here that calls it.
 */
export function lineShares(report: Report, here: (file: string) => boolean): Map<string, number> {
  const shares = new Map<string, number>();
  const keyOf = lineKeys(report, here);
  const add = (file: string, line: number, time: number) => {
    const key = keyOf(file, line);
    if (key) {
      shares.set(key, (shares.get(key) ?? 0) + time);
    }
  };
  const spread = (lines: [string, number][], time: number) =>
    lines.forEach(([file, line]) => add(file, line, time / lines.length));
  const { wall } = report;
  let total = 0;
  if (wall?.how === 'sampled' && wall.parts.some(p => p.line && !AROUND.includes(p.kind))) {
    for (const p of wall.parts.filter(isOwnTime)) {
      total += p.seconds;
      const [kind, index] = p.ref.split('/');
      const kernel = kind === 'kernels' ? report.kernels[Number(index)] : undefined;
      const called: [string, number] | [] = report.graphs[kernel?.graph ?? -1]?.called_at ?? [];
      const lines = called.length ? [called] : (kernel?.lines ?? []);
      spread(lines.length ? lines : p.line ? [[p.file, p.line]] : [], p.seconds);
    }
  } else if (report.profiles.length) {
    for (const [key, time] of costsOf(report).lines) {
      const at = key.lastIndexOf(':');
      total += time;
      add(key.slice(0, at), Number(key.slice(at + 1)), time);
    }
  } else {
    for (const k of report.kernels) {
      const time = (k.seconds ?? 0) * k.launches;
      total += time;
      spread(k.lines, time);
    }
  }
  return new Map([...shares].map(([line, time]) => [line, total ? time / total : 0]));
}

/**
 * Between which shares lies what a line took, where few looks at the program's stack know of it (95 %); null where
 * clocks know it, or looks are many.
 */
export function lineBounds(
  report: Report,
  here: (file: string) => boolean,
  key: string,
  share: number
): [number, number] | null {
  const { wall } = report;
  const keyOf = lineKeys(report, here);
  const own = wall?.how === 'sampled' ? wall.parts.filter(isOwnTime) : [];
  const looked = own.filter(p => p.looks && p.line && keyOf(p.file, p.line) === key);
  const looks = looked.reduce((sum, p) => sum + p.looks!, 0);
  if (!looks || !wall.looks) {
    return null;
  }
  const total = own.reduce((sum, p) => sum + p.seconds, 0);
  const part = looked.reduce((sum, p) => sum + p.seconds, 0) / total;
  const [lo, hi] = shareBounds(looks, wall.looks).map(b => share - part + (b * part) / (looks / wall.looks!));
  return hi - lo > TOLD_APART ? [Math.max(0, lo), Math.min(1, hi)] : null;
}

/**
 * The part of the program's own time that the shares of lines are of. A run that was not looked at has those of kernels
 * alone; beside code that ran as plain Python they say little of the lines.
 */
export function wholeShare(report: Report): number {
  const parts = (report.wall?.parts ?? []).filter(isOwnTime);
  const own = parts.reduce((sum, p) => sum + p.seconds, 0);
  const rest = parts.filter(p => p.kind === 'rest').reduce((sum, p) => sum + p.seconds, 0);
  return report.wall?.how === 'counted' && own ? 1 - rest / own : 1;
}

/** Whether a part is the program's own: what the next run does not pay, and what others took, is not. */
export function isOwnTime(p: WallPart): boolean {
  return !AROUND.includes(p.kind) && p.name !== IMPORTING;
}

/** The shares of the lines of the code that is shown. */
export function heatOf(report: Report, here: (file: string) => boolean): Map<number, number> {
  const heat = new Map<number, number>();
  const whole = report.marks.some(m => m.kind === 'eager') ? wholeShare(report) : 1;
  for (const [key, share] of lineShares(report, here)) {
    const at = key.lastIndexOf(':');
    if (here(key.slice(0, at)) || key.slice(0, at) === report.source.file) {
      heat.set(Number(key.slice(at + 1)), share * whole);
    }
  }
  return heat;
}

export interface ListingOptions {
  label: string;
  language: Language;
  firstLine?: number;
  marks?: Map<number, Mark[]>;
  /** Share of the kernels' time that a line's operations take, 0 to 1. */
  heat?: Map<number, number>;
  onLine?: (line: number) => void;
}

export class Listing {
  readonly element: HTMLElement;
  private rows = new Map<number, HTMLElement>();
  private lines: string[];
  private active: number;
  private static serial = 0;

  constructor(
    text: string,
    private options: ListingOptions
  ) {
    const first = options.firstLine ?? 1;
    const prefix = `tc-listing-${Listing.serial++}`;
    this.lines = text.replace(/\n$/, '').split('\n');
    this.active = first - 1;
    const digits = String(first + this.lines.length).length;
    this.element = h('div.tc-listing', {
      role: options.onLine ? 'listbox' : 'region',
      tabindex: 0,
      'aria-label': options.label,
      style: { '--tc-digits': digits }
    });
    this.lines.forEach((line, i) => {
      const number = first + i;
      const marks = options.marks?.get(number);
      const code = h('code.tc-code-text');
      highlightInto(code, line || ' ', options.language);
      const row = h(
        'div.tc-line',
        { id: `${prefix}-${number}`, role: options.onLine ? 'option' : null, 'data-line': number },
        options.marks ? h('span.tc-gutter', null, marks ? markElement(marks) : null) : null,
        h('span.tc-lineno', { 'aria-hidden': 'true' }, number),
        options.heat?.size ? (heatElement(options.heat.get(number)) ?? h('span.tc-heat-none')) : null,
        code
      );
      this.rows.set(number, row);
      this.element.appendChild(row);
    });
    if (options.onLine) {
      this.element.addEventListener('click', event => {
        const row = (event.target as Element).closest<HTMLElement>('[data-line]');
        if (row && !String(window.getSelection() ?? '')) {
          this.activate(Number(row.dataset.line));
        }
      });
      this.element.addEventListener('keydown', event => this.key(event));
    }
  }

  private key(event: KeyboardEvent): void {
    const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
    if (step) {
      event.preventDefault();
      event.stopPropagation();
      const first = this.options.firstLine ?? 1;
      this.activate(Math.max(first, Math.min(first + this.lines.length - 1, this.active + step)));
    }
  }

  private activate(line: number): void {
    this.active = line;
    this.options.onLine?.(line);
    const row = this.rows.get(line);
    if (row) {
      this.element.setAttribute('aria-activedescendant', row.id);
    }
  }

  /** Light up lines; `scroll` brings the first into view without moving the page. */
  highlight(lines: number[], scroll = true): void {
    for (const row of this.element.querySelectorAll('.tc-selected')) {
      row.classList.remove('tc-selected');
      row.removeAttribute('aria-selected');
    }
    for (const line of lines) {
      this.rows.get(line)?.classList.add('tc-selected');
      this.rows.get(line)?.setAttribute('aria-selected', 'true');
    }
    const first = lines.length ? this.rows.get(lines[0]) : undefined;
    if (first && scroll) {
      const { offsetTop, offsetHeight } = first;
      if (
        offsetTop < this.element.scrollTop ||
        offsetTop + offsetHeight > this.element.scrollTop + this.element.clientHeight
      ) {
        this.element.scrollTop = Math.max(0, offsetTop - this.element.clientHeight / 3);
      }
    }
  }

  /**
   * Once the listing is in the document, bring what is selected into sight, or else the first line that matches to the
   * top.
   */
  scrollTo(expression: RegExp): void {
    const at = this.lines.findIndex(line => expression.test(line));
    const row = at > 0 ? this.rows.get((this.options.firstLine ?? 1) + at) : undefined;
    requestAnimationFrame(() => {
      const chosen = this.element.querySelector<HTMLElement>('.tc-selected');
      if (chosen) {
        this.element.scrollTop = Math.max(0, chosen.offsetTop - this.element.clientHeight / 3);
      } else if (row) {
        this.element.scrollTop = row.offsetTop - 4;
      }
    });
  }

  /** Lines that set one of the variables. */
  linesThatSet(variables: string[]): number[] {
    if (!variables.length) {
      return [];
    }
    const expression = new RegExp(
      `(?:^|[\\s(*&])(?:${variables.join('|')})(?:${SUFFIX.source.slice(0, -1)})?\\s*=(?!=)`
    );
    const first = this.options.firstLine ?? 1;
    return this.lines.flatMap((line, i) => (expression.test(line) ? [first + i] : []));
  }

  /** Lines that hold one of the words: how an operation is found again in generated text. */
  linesWith(words: string[]): number[] {
    const names = words.filter(w => w).map(w => w.replace(/[^\w]/g, '\\$&'));
    if (!names.length) {
      return [];
    }
    const expression = new RegExp(`\\b(?:${names.join('|')})\\b`);
    const first = this.options.firstLine ?? 1;
    return this.lines.flatMap((line, i) => (expression.test(line) ? [first + i] : []));
  }
}
