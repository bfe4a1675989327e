/** Cell, graph, loop IR and kernel side by side; choosing in one lights up the others. */

import { append, button, clear, empty, h } from '../dom';
import { frameWords, tensorType } from '../format';
import { Language } from '../highlight';
import { heatOf, Listing, marksByLine } from '../listing';
import { GraphNode } from '../schema';
import { mainGraph, Place } from '../selection';
import { kernelColour } from '../theme';
import { VirtualList } from '../virtual';
import { View, ViewContext } from './view';
import { t, words } from '../texts';

const COLUMNS = ['cell', 'bytecode', 'graph', 'loop IR', 'kernel', 'entry'] as const;
type Name = (typeof COLUMNS)[number];
/** Generated source has the longest lines. */
const GROW: { [name in Name]: number } = { cell: 3, bytecode: 3, graph: 3.2, 'loop IR': 3, kernel: 4.2, entry: 3 };
const TITLES: { [name in Name]: string } = words({
  cell: 'Cell', bytecode: 'Bytecode', graph: 'Graph', 'loop IR': 'Loop IR', kernel: 'Kernel', entry: 'Entry (Python)'
});

export function codeView({ model, memory }: ViewContext): View {
  const { report } = model;
  const known = report.frames.flatMap((f, i) => (f.bytecode ? [i] : []));
  const state: { closed: Name[]; kernel: number; graph: number; entry: number; frame: number } = (memory.code ??= {
    closed: ['bytecode', 'entry'], frame: known[known.length - 1] ?? -1, entry: 0,
    kernel: model.place.kernel ?? report.graphs[mainGraph(model)]?.kernels[0] ?? 0,
    graph: model.place.graph ?? report.kernels[model.place.kernel ?? -1]?.graph ?? mainGraph(model)
  });
  const bodies = new Map<Name, HTMLElement>();
  const panes = new Map<Name, HTMLElement>();
  const columns = h('div.tc-code-columns');
  const toggles = h('div.tc-toolbar', { role: 'group', 'aria-label': t('Columns') });

  let cell: Listing | null = null;
  let ir: Listing | null = null;
  let kernel: Listing | null = null;
  let bytecode: Listing | null = null;
  let nodes: GraphNode[] = [];
  let list: VirtualList | null = null;

  const copy = (text: string) => button(t('copy'), { class: 'tc-link', title: t('Copy the text') }, event => {
    const target = event.currentTarget as HTMLElement;
    navigator.clipboard.writeText(text).then(() => (target.textContent = t('copied')), () => (target.textContent = t('could not copy')));
  });

  const chooser = (label: string, names: string[], chosen: number, act: (index: number) => void): HTMLElement => {
    const select = h('select.tc-select', { 'aria-label': label }, names.map((n, i) =>
      h('option', { value: i, selected: i === chosen }, n))) as HTMLSelectElement;
    select.onchange = () => act(Number(select.value));
    return select;
  };

  const fillCell = (body: HTMLElement) => {
    if (!report.source.text) {
      body.append(empty(t('The code was not kept in this report.')));
      return;
    }
    cell = new Listing(report.source.text, {
      label: t('The code of the cell'), language: 'python', firstLine: report.source.first_line,
      marks: marksByLine(report.marks.filter(m => model.isHere(m.file))), heat: heatOf(report, f => model.isHere(f)),
      onLine: line => model.selectLine(report.source.file, line, 'cell')
    });
    body.append(cell.element);
  };

  const fillGraph = (body: HTMLElement) => {
    const levels = model.levels(state.graph);
    if (!levels.length) {
      body.append(empty(report.graphs.length ? t('This graph was left out to keep the report small.') : t('No graph: nothing was captured.')));
      return;
    }
    const graph = state.graph;
    nodes = model.graphNodes(graph, levels.includes('lowered') ? 'lowered' : 'captured');
    list = new VirtualList({
      label: t('Operations'), rowHeight: 20, count: nodes.length,
      row: (i, element) => {
        const n = nodes[i];
        element.classList.add('tc-graph-line');
        element.append(
          h('span.tc-kernel-bar', { style: { background: n.kernel === null ? 'transparent' : kernelColour(n.kernel) } }),
          h('code', { title: `${n.module}\n${tensorType(n)}` }, h('span.tc-t-atom', null, `%${n.name}`), ' = ',
            h('span.tc-t-call', null, n.op.replace(/\.default$/, '')),
            n.args ? `(${n.args.replace(/%(\d+)/g, (_, k) => `%${nodes[n.inputs[Number(k)]]?.name ?? '?'}`)})` : '',
            h('span.tc-muted', null, `  ${tensorType(n)}`)));
      },
      onRow: i => model.selectNode(graph, nodes[i], 'graph')
    });
    body.append(list.element);
  };

  const fillText = (body: HTMLElement, text: string, language: Language, label: string, missing: string): Listing | null => {
    if (!text) {
      body.append(empty(missing));
      return null;
    }
    const listing = new Listing(text, { label, language });
    body.append(listing.element);
    return listing;
  };

  const fillBytecode = (body: HTMLElement) => {
    const text = report.frames[state.frame]?.bytecode ?? '';
    if (!text) {
      bytecode = null;
      body.append(empty(report.frames.length ? t('The bytecode of these functions was not kept.') : t('No function was captured.')));
      return;
    }
    const rows = text.split('\n');
    bytecode = new Listing(text, { label: t('Bytecode'), language: 'ir', onLine: row => {
      const line = sourceLine(rows[row - 1]);
      if (line) {
        model.selectLine(report.frames[state.frame].file || report.source.file, line, 'bytecode');
      }
    } });
    body.append(bytecode.element);
  };

  const build = (name: Name) => {
    const body = bodies.get(name)!;
    const head = panes.get(name)!.querySelector('.tc-pane-head')!;
    clear(body);
    clear(head);
    const k = report.kernels[state.kernel];
    append(head, [h('strong', null, TITLES[name])]);
    if (name === 'graph' && report.graphs.length > 1) {
      head.append(chooser(t('Graph'), report.graphs.map(g => g.name), state.graph, i => model.select({ graph: i }, 'chooser')));
    }
    if (name === 'kernel' && report.kernels.length) {
      append(head, [report.kernels.length > 1
        ? chooser(t('Kernel'), report.kernels.map(x => x.name), state.kernel, i => model.selectKernel(i, 'chooser')) : h('span', null, k.name),
      k?.source ? copy(k.source) : null]);
    }
    if (name === 'bytecode' && known.length > 1) {
      head.append(chooser(t('Function'), known.map(i => frameWords(report.frames[i].name)), known.indexOf(state.frame), k => {
        state.frame = known[k];
        build('bytecode');
        follow(model.place, null);
      }));
    }
    if (name === 'entry' && report.entries.length > 1) {
      head.append(chooser(t('Entry'), report.entries.map((e, i) => `${frameWords(report.frames[e.frame]?.name ?? t('frame'))} #${i}`), state.entry, i => {
        state.entry = i;
        build('entry');
      }));
    }
    append(head, [button('×', { class: 'tc-close', title: t('Close {0}', TITLES[name]), 'aria-label': t('Close {0}', TITLES[name]) }, () => toggle(name))]);
    const left = t('This text was left out to keep the report small enough to save.');
    if (name === 'cell') {
      fillCell(body);
    } else if (name === 'bytecode') {
      fillBytecode(body);
    } else if (name === 'graph') {
      fillGraph(body);
    } else if (name === 'loop IR') {
      ir = fillText(body, k?.ir ?? '', 'ir', t('Loop IR of the kernel'), k ? left : t('No kernel was generated.'));
    } else if (name === 'kernel') {
      kernel = fillText(body, k?.source ?? '', k?.language === 'triton' ? 'triton' : 'cpp', t('Source of the kernel'),
        k ? left : t('No kernel was generated.'));
      // Past the types and helpers that every kernel begins with.
      kernel?.scrollTo(/extern "C"|^def /);
    } else {
      fillText(body, report.entries[state.entry]?.source ?? '', 'python', t('Python text of the entry'),
        report.entries.length ? left : t('No entry: nothing was compiled.'));
    }
  };

  const shape = () => {
    const opened = COLUMNS.filter(n => !state.closed.includes(n));
    for (const name of COLUMNS) {
      panes.get(name)!.hidden = !opened.includes(name);
    }
    clear(toggles);
    append(toggles, COLUMNS.map(name => button(TITLES[name], { class: 'tc-segment', 'aria-pressed': String(opened.includes(name)) }, () => toggle(name))));
  };

  const toggle = (name: Name) => {
    const at = state.closed.indexOf(name);
    if (at >= 0) {
      state.closed.splice(at, 1);
      build(name);
      follow(model.place, null);
    } else if (state.closed.length < COLUMNS.length - 1) {
      state.closed.push(name);
    }
    shape();
  };

  const follow = (p: Place, origin: unknown) => {
    if (p.graph !== undefined && p.graph !== null && p.graph !== state.graph) {
      state.graph = p.graph;
      build('graph');
    }
    if (p.kernel !== undefined && p.kernel !== null && p.kernel !== state.kernel && report.kernels[p.kernel]) {
      state.kernel = p.kernel;
      build('loop IR');
      build('kernel');
    }
    cell?.highlight(p.line && model.isHere(p.file) ? [p.line] : [], origin !== 'cell');
    if (bytecode && p.line) {
      const rows = report.frames[state.frame].bytecode.split('\n');
      const here = (p.file ?? report.source.file) === (report.frames[state.frame].file || report.source.file);
      bytecode.highlight(here ? rows.flatMap((row, i) => (sourceLine(row) === p.line ? [i + 1] : [])) : [], origin !== 'bytecode');
    }
    let chosen: number[] = [];
    if (p.node !== undefined && p.node !== null) {
      chosen = nodes[p.node] ? [p.node] : [];
    } else if (p.line) {
      chosen = nodes.filter(n => n.line === p.line && n.file === p.file).map(n => n.index);
    }
    if (!chosen.length && p.kernel !== undefined && p.kernel !== null) {
      chosen = nodes.filter(n => n.kernel === p.kernel).map(n => n.index);
    }
    list?.mark(chosen, origin !== 'graph');
    const names = chosen.map(i => nodes[i].name);
    ir?.highlight(ir.linesWith(names));
    kernel?.highlight(kernel.linesWith(names));
  };

  for (const name of COLUMNS) {
    const body = h('div.tc-pane-body');
    const pane = h('div.tc-pane', { role: 'region', 'aria-label': TITLES[name], style: { '--tc-grow': GROW[name] } }, h('div.tc-pane-head'), body);
    bodies.set(name, body);
    panes.set(name, pane);
    columns.append(pane);
    if (!state.closed.includes(name)) {
      build(name);
    }
  }
  shape();
  follow(model.place, null);
  const stop = model.onSelect(follow);
  return { element: h('div', null, toggles, columns), dispose: stop };
}

/** The source line that a row of bytecode begins with. */
function sourceLine(row: string | undefined): number | null {
  const found = /^\s*(\d+)\s/.exec(row ?? '');
  return found ? Number(found[1]) : null;
}
