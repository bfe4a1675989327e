/** Cell, graph, loop IR and kernel side by side; choosing in one lights up the others. */

import { append, button, clear, empty, h } from '../dom';
import { frameWords, plural, tensorType } from '../format';
import { Language } from '../highlight';
import { hostOf } from '../host';
import { heatOf, Listing, marksByLine, SUFFIX } from '../listing';
import { GraphNode, Kernel, Report } from '../schema';
import { mainGraph, Place } from '../selection';
import { kernelColour } from '../theme';
import { VirtualList } from '../virtual';
import { View, ViewContext } from './view';
import { t, words } from '../texts';

const COLUMNS = ['cell', 'bytecode', 'graph', 'loop IR', 'kernel', 'assembly', 'entry'] as const;
type Name = (typeof COLUMNS)[number];
/** Generated source has the longest lines. */
const GROW: { [name in Name]: number } = {
  cell: 3,
  bytecode: 3,
  graph: 3.2,
  'loop IR': 3,
  kernel: 4.2,
  assembly: 3.2,
  entry: 3
};
const TITLES: { [name in Name]: string } = words({
  cell: 'Cell',
  bytecode: 'Bytecode',
  graph: 'Graph',
  'loop IR': 'Loop IR',
  kernel: 'Kernel',
  assembly: 'PTX',
  entry: 'Entry (Python)'
});

export function codeView({ model, memory }: ViewContext): View {
  const { report } = model;
  const columnsHere = COLUMNS.filter(name => name !== 'assembly' || report.kernels.some(k => k.assembly));
  const known = report.frames.flatMap((f, i) => (f.bytecode ? [i] : []));
  const state: { closed: Name[]; kernel: number; graph: number; entry: number; frame: number } = (memory.code ??= {
    closed: [
      'bytecode',
      'assembly',
      'entry',
      ...(report.source.text ? [] : ['cell' as Name]),
      ...(report.kernels.length && !report.kernels.some(k => k.ir) ? ['loop IR' as Name] : []) // (left out to save)
    ],
    frame: known[known.length - 1] ?? -1,
    entry: 0,
    kernel: model.place.kernel ?? firstWithText(report, report.graphs[mainGraph(model)]?.kernels ?? []),
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
  let assembly: Listing | null = null;
  let nodes: GraphNode[] = [];
  let list: VirtualList | null = null;

  const copy = (text: string) =>
    button(t('copy'), { class: 'tc-link', title: t('Copy the text') }, event => {
      const target = event.currentTarget as HTMLElement;
      navigator.clipboard.writeText(text).then(
        () => (target.textContent = t('copied')),
        () => (target.textContent = t('could not copy'))
      );
    });

  const chooser = (label: string, names: string[], chosen: number, act: (index: number) => void): HTMLElement => {
    const select = h(
      'select.tc-select',
      { 'aria-label': label },
      names.map((n, i) => h('option', { value: i, selected: i === chosen }, n))
    ) as HTMLSelectElement;
    select.onchange = () => act(Number(select.value));
    return select;
  };

  const fillCell = (body: HTMLElement) => {
    if (!report.source.text) {
      body.append(empty(t('The code was not kept in this report.')));
      return;
    }
    cell = new Listing(report.source.text, {
      label: t('The code of the cell'),
      language: 'python',
      firstLine: report.source.first_line,
      marks: marksByLine(report.marks.filter(m => model.isHere(m.file))),
      heat: heatOf(report, f => model.isHere(f)),
      onLine: line => model.selectLine(report.source.file, line, 'cell')
    });
    body.append(cell.element);
  };

  const fillGraph = (body: HTMLElement) => {
    const levels = model.levels(state.graph);
    if (!levels.length) {
      body.append(
        empty(
          report.graphs.length
            ? t('This graph was left out to keep the report small.')
            : t('No graph: nothing was captured.')
        )
      );
      return;
    }
    const graph = state.graph;
    nodes = model.graphNodes(graph, levels.includes('lowered') ? 'lowered' : 'captured');
    list = new VirtualList({
      label: t('Operations'),
      rowHeight: 20,
      count: nodes.length,
      row: (i, element) => {
        const n = nodes[i];
        element.classList.add('tc-graph-line');
        element.append(
          h('span.tc-kernel-bar', {
            style: { background: n.kernel === null ? 'transparent' : kernelColour(n.kernel) }
          }),
          h(
            'code',
            { title: `${n.module}\n${tensorType(n)}` },
            h('span.tc-t-atom', null, `%${n.name}`),
            ' = ',
            h('span.tc-t-call', null, n.op.replace(/\.default$/, '')),
            n.args ? `(${n.args.replace(/%(\d+)/g, (_, k) => `%${nodes[n.inputs[Number(k)]]?.name ?? '?'}`)})` : '',
            h('span.tc-muted', null, `  ${tensorType(n)}`)
          )
        );
      },
      onRow: i => model.selectNode(graph, nodes[i], 'graph')
    });
    // What a graph is given says little: it begins at what it does.
    list.startAt(
      Math.max(
        0,
        nodes.findIndex(n => n.op !== 'input' && n.op !== 'parameter')
      )
    );
    body.append(list.element);
  };

  const fillText = (
    body: HTMLElement,
    text: string,
    language: Language,
    label: string,
    missing: string,
    onLine?: (line: number) => void
  ): Listing | null => {
    if (!text) {
      body.append(empty(missing));
      return null;
    }
    const listing = new Listing(text, { label, language, onLine });
    body.append(listing.element);
    return listing;
  };

  /** A line of generated text was chosen: the first operation that it computes is, everywhere; else the kernel. */
  const chooseNamed = (names: string[], origin: Name) => {
    const graph = report.kernels[state.kernel]?.graph ?? state.graph;
    const node = names.map(name => model.nodeNamed(graph, name)).find(n => n);
    if (node) {
      model.selectNode(graph, node, origin);
    } else {
      model.selectKernel(state.kernel, origin);
    }
  };

  const fillBytecode = (body: HTMLElement) => {
    const text = report.frames[state.frame]?.bytecode ?? '';
    if (!text) {
      bytecode = null;
      body.append(
        empty(
          report.frames.length ? t('The bytecode of these functions was not kept.') : t('No function was captured.')
        )
      );
      return;
    }
    const rows = text.split('\n');
    bytecode = new Listing(text, {
      label: t('Bytecode'),
      language: 'ir',
      onLine: row => {
        const line = sourceLine(rows[row - 1]);
        if (line) {
          model.selectLine(report.frames[state.frame].file || report.source.file, line, 'bytecode');
        }
      }
    });
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
      head.append(
        chooser(
          t('Graph'),
          report.graphs.map(g => g.name),
          state.graph,
          i => model.select({ graph: i }, 'chooser')
        )
      );
    }
    if (name === 'kernel' && report.kernels.length) {
      append(head, [
        report.kernels.length > 1
          ? chooser(
              t('Kernel'),
              report.kernels.map(x => x.name),
              state.kernel,
              i => model.selectKernel(i, 'chooser')
            )
          : h('span', null, k.name),
        k?.source ? copy(k.source) : null
      ]);
    }
    if (name === 'bytecode' && known.length > 1) {
      head.append(
        chooser(
          t('Function'),
          known.map(i => frameWords(report.frames[i].name)),
          known.indexOf(state.frame),
          k => {
            state.frame = known[k];
            build('bytecode');
            follow(model.place, null);
          }
        )
      );
    }
    if (name === 'entry' && report.entries.length > 1) {
      head.append(
        chooser(
          t('Entry'),
          report.entries.map((e, i) => `${frameWords(report.frames[e.frame]?.name ?? t('frame'))} #${i}`),
          state.entry,
          i => {
            state.entry = i;
            build('entry');
          }
        )
      );
    }
    append(head, [
      button(
        '×',
        { class: 'tc-close', title: t('Close {0}', TITLES[name]), 'aria-label': t('Close {0}', TITLES[name]) },
        () => toggle(name)
      )
    ]);
    const theirs = (report.options.backend ?? 'tcompile') !== 'tcompile';
    const left = t('This text was left out to keep the report small enough to save.');
    if (name === 'cell') {
      fillCell(body);
    } else if (name === 'bytecode') {
      fillBytecode(body);
    } else if (name === 'graph') {
      fillGraph(body);
    } else if (name === 'loop IR') {
      const lines = (k?.ir ?? '').split('\n');
      ir = fillText(
        body,
        k?.ir ?? '',
        'ir',
        t('Loop IR of the kernel'),
        !k
          ? t('No kernel was generated.')
          : theirs
            ? t('Another compiler wrote this kernel: it has no loop IR.')
            : left,
        line => chooseNamed(lines[line - 1].split('  # ')[1]?.split(', ') ?? [], name)
      );
    } else if (name === 'kernel') {
      const [before, own] = preamble(k);
      kernel = fillText(
        body,
        own,
        k?.language === 'triton' ? 'triton' : 'cpp',
        t('Source of the kernel'),
        k ? left : t('No kernel was generated.'),
        line => chooseNamed(computedAt(k, line + before.length), name)
      );
      kernel?.scrollTo(/(?!)/);
      if (before.length) {
        body.prepend(
          h(
            'details.tc-fold.tc-preamble',
            null,
            h('summary', null, t('Types and helpers before it: {0}', plural(before.length, 'line'))),
            new Listing(before.join('\n'), { label: t('What every kernel begins with'), language: 'cpp' }).element
          )
        );
      }
    } else if (name === 'assembly') {
      const source = ptxLines(k?.assembly ?? '');
      assembly = fillText(
        body,
        k?.assembly ?? '',
        'ir',
        t('PTX of the kernel'),
        k ? left : t('No kernel was generated.'),
        line => chooseNamed(computedAt(k, source[line - 1]), name)
      );
      assembly?.scrollTo(/\.entry/);
    } else {
      fillText(
        body,
        report.entries[state.entry]?.source ?? '',
        'python',
        t('Python text of the entry'),
        report.entries.length ? left : t('No entry: nothing was compiled.')
      );
    }
  };

  const shape = () => {
    const opened = columnsHere.filter(n => !state.closed.includes(n));
    for (const name of columnsHere) {
      const pane = panes.get(name)!;
      pane.hidden = !opened.includes(name);
      if (pane.previousElementSibling instanceof HTMLElement) {
        pane.previousElementSibling.hidden = pane.hidden || name === opened[0];
        pane.previousElementSibling.classList.toggle('tc-row-start', opened.indexOf(name) % 2 === 0);
      }
    }
    clear(toggles);
    append(
      toggles,
      columnsHere.map(name =>
        button(TITLES[name], { class: 'tc-segment', 'aria-pressed': String(opened.includes(name)) }, () => toggle(name))
      )
    );
  };

  const toggle = (name: Name) => {
    const at = state.closed.indexOf(name);
    if (at >= 0) {
      state.closed.splice(at, 1);
      build(name);
      shape();
      follow(model.place, null);
    } else if (columnsHere.filter(n => !state.closed.includes(n)).length > 1) {
      state.closed.push(name);
      shape();
    }
  };

  /** A text was left out of what is saved: whoever compiled it has it still. */
  const asked = new Set<number>();
  const fetch = () => {
    const i = state.kernel;
    const k = report.kernels[i];
    const host = !k || k.source || asked.has(i) ? null : hostOf(columns);
    if (!host) {
      return;
    }
    asked.add(i);
    host.ask('text', { report: report.id, kernel: i }).then(
      answer => {
        Object.assign(k, answer);
        if (state.kernel === i) {
          buildKernel();
          follow(model.place, null);
        }
      },
      () => undefined // (the pane says already that the text was left out)
    );
  };

  const buildKernel = () => {
    build('loop IR');
    build('kernel');
    if (panes.has('assembly')) {
      build('assembly');
    }
  };

  const follow = (p: Place, origin: unknown) => {
    if (p.graph !== undefined && p.graph !== null && p.graph !== state.graph) {
      state.graph = p.graph;
      build('graph');
    }
    if (p.kernel !== undefined && p.kernel !== null && p.kernel !== state.kernel && report.kernels[p.kernel]) {
      state.kernel = p.kernel;
      buildKernel();
      fetch();
    }
    cell?.highlight(p.line && model.isHere(p.file) ? [p.line] : [], origin !== 'cell');
    if (bytecode && p.line) {
      const rows = report.frames[state.frame].bytecode.split('\n');
      const here = (p.file ?? report.source.file) === (report.frames[state.frame].file || report.source.file);
      bytecode.highlight(
        here ? rows.flatMap((row, i) => (sourceLine(row) === p.line ? [i + 1] : [])) : [],
        origin !== 'bytecode'
      );
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
    const names = namesInKernel(report.kernels[state.kernel], state.kernel, nodes, chosen);
    ir?.highlight(ir.linesWith(names), origin !== 'loop IR');
    const k = report.kernels[state.kernel];
    const variables = Object.entries(k?.names ?? {})
      .filter(([, node]) => names.includes(node))
      .map(([variable]) => variable);
    const lines = kernel
      ? k?.names && Object.keys(k.names).length
        ? kernel.linesThatSet(variables)
        : kernel.linesWith(names)
      : [];
    kernel?.highlight(lines, origin !== 'kernel');
    if (assembly) {
      const skipped = preamble(k)[0].length;
      assembly.highlight(
        ptxLines(k?.assembly ?? '').flatMap((line, i) => (lines.includes(line - skipped) ? [i + 1] : [])),
        origin !== 'assembly'
      );
    }
  };

  for (const name of columnsHere) {
    const body = h('div.tc-pane-body');
    const pane = h(
      'div.tc-pane',
      { role: 'region', 'aria-label': TITLES[name], style: { '--tc-grow': GROW[name] } },
      h('div.tc-pane-head'),
      body
    );
    bodies.set(name, body);
    panes.set(name, pane);
    if (columns.childElementCount) {
      columns.append(splitter(pane));
    }
    columns.append(pane);
    if (!state.closed.includes(name)) {
      build(name);
    }
  }
  shape();
  follow(model.place, null);
  const stop = model.onSelect(follow);
  return { element: h('div', null, toggles, columns), dispose: stop, shown: fetch };
}

/** The first of these kernels whose text was kept. */
function firstWithText(report: Report, kernels: number[]): number {
  return kernels.find(i => report.kernels[i]?.source) ?? kernels[0] ?? 0;
}

/**
 * A bar before a pane: dragged, or moved by the arrow keys, it parts the width between the pane and the one before it.
 */
function splitter(pane: HTMLElement): HTMLElement {
  const bar = h('div.tc-split', {
    role: 'separator',
    tabindex: 0,
    'aria-orientation': 'vertical',
    'aria-label': t('Width of {0}', pane.getAttribute('aria-label'))
  });
  const move = (pixels: number) => {
    let before = bar.previousElementSibling as HTMLElement | null;
    while (before && (before.hidden || !before.classList.contains('tc-pane'))) {
      before = before.previousElementSibling as HTMLElement | null;
    }
    if (!before) {
      return;
    }
    const grow = (e: HTMLElement) => Number(e.style.getPropertyValue('--tc-grow')) || 1;
    const [a, b] = [before.offsetWidth, pane.offsetWidth];
    const least = Math.min(80, a, b);
    const left = Math.max(least, Math.min(a + b - least, a + pixels));
    const all = grow(before) + grow(pane);
    before.style.setProperty('--tc-grow', String((all * left) / (a + b)));
    pane.style.setProperty('--tc-grow', String((all * (a + b - left)) / (a + b)));
  };
  bar.addEventListener('pointerdown', event => {
    let x = event.clientX;
    bar.setPointerCapture(event.pointerId);
    bar.onpointermove = next => {
      move(next.clientX - x);
      x = next.clientX;
    };
    bar.onpointerup = bar.onpointercancel = () => (bar.onpointermove = null);
  });
  bar.addEventListener('keydown', event => {
    const step = event.key === 'ArrowLeft' ? -24 : event.key === 'ArrowRight' ? 24 : 0;
    if (step) {
      event.preventDefault();
      event.stopPropagation();
      move(step);
    }
  });
  return bar;
}

/** A kernel's source parted at its first line of meaning: what every kernel begins with, and its own text. */
function preamble(k: Kernel | undefined): [string[], string] {
  const lines = (k?.source ?? '').split('\n');
  let at = lines.findIndex(line =>
    k?.language === 'triton' ? line.startsWith(`def ${k.name}`) : /extern "C"/.test(line)
  );
  while (at > 0 && /^(@|\/\/|#(?!include|define|pragma|if|end))/.test(lines[at - 1])) {
    at--; // its decorators and comments
  }
  return at > 0 ? [lines.slice(0, at), lines.slice(at).join('\n')] : [[], k?.source ?? ''];
}

/** The operations whose results a line of a kernel's source sets, or else reads. */
function computedAt(k: Kernel | undefined, line: number): string[] {
  const names = k?.names ?? {};
  const words = ((k?.source ?? '').split('\n')[line - 1]?.match(/[A-Za-z_]\w*/g) ?? []).map(w =>
    w in names ? w : w.replace(SUFFIX, '')
  );
  return words.flatMap(word => names[word] ?? []);
}

/** For each row of PTX the line of the kernel's source that it came from; 0 before the first. */
function ptxLines(assembly: string): number[] {
  let at = 0;
  return assembly.split('\n').map(row => (at = Number(/^\t\/\/ line (\d+)$/.exec(row)?.[1] ?? at)));
}

/**
 * What the chosen operations are called in a kernel's text. A kernel that serves repeated layers names the operations
 * of the first: those of another layer stand where the first layer's do.
 */
function namesInKernel(k: Kernel | undefined, index: number, nodes: GraphNode[], chosen: number[]): string[] {
  const inside = nodes.filter(n => n.kernel === index);
  const first = inside.filter(n => k?.origins.includes(n.name)).length;
  const repeats = first > 0 && inside.length % first === 0;
  return chosen.map(i => {
    const at = repeats && !k!.origins.includes(nodes[i].name) ? inside.indexOf(nodes[i]) : -1;
    return (at >= 0 ? inside[at % first] : nodes[i]).name;
  });
}

/** The source line that a row of bytecode begins with. */
function sourceLine(row: string | undefined): number | null {
  const found = /^\s*(\d+)\s/.exec(row ?? '');
  return found ? Number(found[1]) : null;
}
