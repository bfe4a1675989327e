/** What is left: breaks in full, functions, fallbacks, sizes, numerics, cache, environment, the report as a file. */

import { button, Child, empty, h, prose, section, table } from '../dom';
import { count, frameWords, place, plural, seconds } from '../format';
import { Break, CellSource } from '../schema';
import { fixElement } from './fix';
import { flash } from './guards';
import { numericsView } from './numerics';
import { omissions } from './overview';
import { View, ViewContext } from './view';
import { t, words } from '../texts';

const FRAME_WORDS: { [status: string]: string } = words({
  compiled: '● compiled', partly: '▲ partly', skipped: '○ skipped', limit: '○ not compiled: limit reached', error: '✕ error'
});

export function moreView(context: ViewContext): View {
  const { model, memory } = context;
  const { report } = model;
  const here = report.source.file;
  const breaks = report.graph_breaks.map(b => breakCard(b, report.source, () => model.selectLine(b.file || here, b.line, 'break')));
  const frames = report.frames.length ? table([
    { title: t('function'), cell: f => h('code', null, frameWords(f.name)) }, { title: t('where'), short: true, cell: f => place(f.file, f.line, here) },
    { title: t('result'), short: true, cell: f => FRAME_WORDS[f.status] ?? f.status }, { title: t('entries'), number: true, cell: f => f.entries.length },
    { title: t('compiled in'), number: true, cell: f => (f.seconds ? seconds(f.seconds) : '–') }, { title: t('why'), cell: f => prose(f.reason) }
  ], report.frames, { label: t('Functions'), onRow: f => model.selectLine(f.file || here, f.line, 'frames'), rowAttributes: (_, i) => ({ 'data-frame': i }) })
    : empty(t('No function was looked at.'));
  const fallbacks = report.fallbacks.length ? table([
    { title: t('what'), cell: f => h('code', null, f.what) }, { title: t('why'), cell: f => prose(f.reason) }, { title: t('times'), number: true, cell: f => count(f.count) }
  ], report.fallbacks, { label: t('Fallbacks'), rowAttributes: (_, i) => ({ 'data-fallback': i, tabindex: -1 }) })
    : empty(t('None: whatever was captured was compiled.'));
  const numbers = numericsView(context);
  const symbols = report.graphs.flatMap(g => g.symbols.map(s => ({ graph: g.name, ...s })));
  const element = h('div', null,
    section(t('Graph breaks {0}', breaks.length || ''), breaks.length ? breaks : empty(t('None: every function that was captured is one graph.'))),
    section(t('Functions'), frames),
    section(t('Ran as eager code'), fallbacks),
    symbols.length ? section(t('Dynamic sizes'), table([
      { title: t('size'), cell: s => h('code', null, s.name) }, { title: t('graph'), cell: s => s.graph }, { title: t('of'), cell: s => h('code', null, s.source) },
      { title: t('range'), cell: s => `${s.lo ?? 0} … ${s.hi ?? '∞'}` }, { title: t('first call'), number: true, cell: s => s.hint ?? '–' },
      { title: t('why'), cell: s => [s.why, s.line ? h('span.tc-muted', null, ` ${place(s.file, s.line, here)}`) : null] }
    ], symbols, { label: t('Dynamic sizes') })) : null,
    numbers.element,
    section(t('Cache'), report.cache.length ? table([
      { title: t('what'), short: true, cell: c => c.what }, { title: t('result'), short: true, cell: c => (c.hit ? t('● hit') : t('○ miss')) }, { title: t('times'), number: true, cell: c => count(c.count) },
      { title: t('why'), cell: c => prose(c.reason) }, { title: t('key'), cell: c => h('code.tc-muted', null, c.key.slice(0, 16)) }
    ], report.cache, { label: t('Cache') }) : empty(t('The cache was not asked.'))),
    section(t('Options'), facts(report.options, t('None were given.'))),
    section(t('Environment'), facts(report.environment, t('It was not noted.'))),
    section(t('This report'), omissions(report), h('div.tc-toolbar', null,
      button(t('download as JSON'), { class: 'tc-button' }, () => download(`tcompile-${report.id || 'report'}.json`, JSON.stringify(memory.raw ?? report))),
      h('span.tc-muted', null, [report.created ? t('made {0}', report.created.replace('T', ' ').replace('Z', ' UTC')) : '', report.id].filter(Boolean).join(' · ')))));
  return {
    element,
    shown: numbers.shown,
    dispose: numbers.dispose,
    reveal: (kind, index) => flash(kind === 'numerics' ? numbers.element : kind === 'breaks' ? breaks[index]
      : element.querySelector<HTMLElement>(kind === 'frames' ? `[data-frame="${index}"]` : `[data-fallback="${index}"]`))
  };
}

function facts(values: { [name: string]: any }, none: string): Child {
  const names = Object.keys(values);
  return names.length ? h('dl.tc-facts.tc-facts-wide', null, names.map(name => h('div.tc-fact', null, h('dt', null, name),
    h('dd', null, typeof values[name] === 'object' ? JSON.stringify(values[name]) : String(values[name]))))) : empty(none);
}

function download(name: string, text: string): void {
  const link = h('a', { href: URL.createObjectURL(new Blob([text], { type: 'application/json' })), download: name }) as HTMLAnchorElement;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The break at its line, the very expression underlined, and what to write instead. */
export function breakCard(b: Break, source: CellSource, act: () => void): HTMLElement {
  const here = source.file;
  // Columns count in the whole line; the break may carry it without its indentation.
  const own = b.file === here ? source.text.split('\n')[b.line - source.first_line] ?? '' : '';
  const line = own.trim() === b.code.trim() ? own : b.code;
  const whole = line === own || /^\s/.test(line) || b.col === 0;
  const single = whole && b.col !== null && b.end_col !== null && (b.end_line === null || b.end_line === b.line);
  const code = single
    ? [line.slice(0, b.col!).trimStart(), h('u.tc-culprit', null, line.slice(b.col!, b.end_col!)), line.slice(b.end_col!)]
    : [line.trim()];
  return h('article.tc-card.tc-card-break', { tabindex: -1 },
    h('h4', null, h('span.tc-mark.tc-mark-break', { 'aria-hidden': 'true' }), ' ', place(b.file, b.line, here), h('span.tc-muted', null, t(' in {0}', b.function)),
      b.count > 1 ? h('span.tc-muted', null, `, ${plural(b.count, 'time')}`) : null),
    b.code ? h('button.tc-code-link', { type: 'button', onclick: act, 'aria-label': t('Line {0}: {1}', b.line, b.code.trim()) }, h('code', null, ...code)) : null,
    h('p', null, ...prose(b.reason)),
    b.remedy ? h('div.tc-remedy', null, h('span.tc-label', null, t('what to change')), h('span', null, ...prose(b.remedy))) : null,
    b.fix ? fixElement(b.fix, b.fix.file === here ? source.cell : null) : null,
    b.call_chain.length > 1 ? h('details', null, h('summary', null, t('how the code got here')), h('ol', null, b.call_chain.map(f =>
      h('li', null, h('code', null, f.function), t(' {0} line {1}', f.file, f.line))))) : null);
}
