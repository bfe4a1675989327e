/** The graph tab: canvas, search, minimap, details of the chosen node, and a table with the same facts. */

import { append, button, Child, clear, empty, h } from '../dom';
import { bound, bytes, count, frameWords, nodeBytes, place, plural, seconds, tensorType } from '../format';
import { Level, mainGraph, Model, Place } from '../selection';
import { GraphNode } from '../schema';
import { kernelColour, onThemeChange } from '../theme';
import { VirtualList } from '../virtual';
import { compare, offer, Other, others } from './compare';
import { passesElement, removedNodes } from './passes';
import { GraphCanvas } from './canvas';
import { Cost } from './drawing';
import { Box, Layout, layout } from './layout';
import { Minimap } from './minimap';
import { measure } from './shapes';
import { buildTree, Group, initiallyOpen, isOperation, Item, size, Tree } from './tree';
import { costsOf } from '../profile/spans';
import { MARK_WORDS, valueFacts, Values } from './values';
import { whyElement } from './why';
import { hostOf } from '../host';
import { question } from '../views/controls';
import { t, words } from '../texts';

/** Of the nodes that a pass takes away so many are brought to sight. */
const MOST_OPENED = 8;

export interface GraphState {
  graph: number;
  level: Level;
  opened: { [key: string]: string[] };
  table: boolean;
}

export function graphState(model: Model): GraphState {
  const graph = mainGraph(model);
  return { graph, level: model.levels(graph).includes('lowered') ? 'lowered' : 'captured', opened: {}, table: false };
}

const LEVEL_WORDS: { [level in Level]: string } = words({
  captured: 'as captured',
  lowered: 'core aten',
  joint: 'with backward'
});

const RAN_WORDS: { [ran: string]: string } = words({
  eager: 'It was captured, and ran with torch’s own kernels one by one.',
  partial: 'Captured up to the break that ended it, and never run: what would follow is missing.'
});

/** The function that a graph is of, in words. */
const ofFrame = (model: Model, frame: number | null | undefined) =>
  typeof frame === 'number' && model.report.frames[frame] ? frameWords(model.report.frames[frame].name) : '';

const levelsOf = (model: Model, graph: number) => model.levels(graph);

export class GraphView {
  readonly element: HTMLElement;
  private canvas: GraphCanvas;
  private tree: Tree | null = null;
  private layout: Layout | null = null;
  private nodes: GraphNode[] = [];
  private chosen: GraphNode[] = [];
  private toolbar = h('div.tc-toolbar');
  private passes = h('div');
  private stage = h('div.tc-graph-stage');
  private details = h('div.tc-graph-details', { 'aria-live': 'polite' });
  private tip = h('div.tc-tip', { role: 'tooltip' });
  private minimap: Minimap;
  private list: VirtualList;
  private searchCount = h('span.tc-muted', { role: 'status' });
  private hits: GraphNode[] = [];
  private hit = -1;
  private stop: (() => void)[] = [];
  private known = new Map<Item, number>();
  private values = new Map<string, Values>();
  private kernelParts = new Map<number, number>();

  constructor(
    private model: Model,
    private state: GraphState,
    private openKernel: (kernel: number) => void
  ) {
    this.canvas = new GraphCanvas(
      model.report.kernels.map(k => k.name),
      {
        choose: (box, extend) => this.choose(box, extend),
        toggle: group => this.toggle(group),
        hover: (text, x, y) => this.hover(text, x, y)
      },
      item => this.costOf(item)
    );
    this.minimap = new Minimap(this.canvas);
    this.canvas.onDraw = () => this.minimap.draw();
    this.list = new VirtualList({
      label: t('Operations of the graph'),
      rowHeight: 24,
      count: 0,
      row: (i, element) => this.row(this.nodes[i], element),
      onRow: i => this.model.selectNode(this.state.graph, this.nodes[i], this)
    });
    this.stage.append(this.canvas.element, this.minimap.element, this.tip);
    this.element = h(
      'div.tc-graph',
      null,
      this.toolbar,
      h(
        'div.tc-graph-body',
        null,
        this.stage,
        h(
          'div.tc-graph-table',
          null,
          h(
            'div.tc-row.tc-row-head',
            { 'aria-hidden': 'true' },
            [t('name'), t('operation'), t('type'), t('kernel'), t('line')].map(title => h('span', null, title))
          ),
          this.list.element
        ),
        this.details
      ),
      this.passes
    );
    offer(model);
    this.buildToolbar();
    this.load(false);
    this.stop.push(
      onThemeChange(() =>
        requestAnimationFrame(() => {
          this.minimap.repaint();
          this.canvas.retheme();
        })
      )
    );
    this.stop.push(model.onSelect((p, origin) => this.follow(p, origin)));
    this.follow(model.place, null);
  }

  /** It is in the document now: what needs a kernel can be offered, and what is chosen can be brought into sight. */
  shown(): void {
    if (!this.chosen.length) {
      this.showDetails();
    } else {
      requestAnimationFrame(() => this.canvas.select(this.boxesOf(this.chosen), true));
    }
  }

  dispose(): void {
    this.stop.forEach(f => f());
    this.canvas.dispose();
  }

  /**
   * What the profiled calls spend in a node's library call or kernel, or in the operations of a group: a kernel's time
   * in equal parts.
   */
  private costOf(item: Item): ReturnType<Cost> {
    const costs = costsOf(this.model.report);
    if (!costs.total || this.state.level === 'captured') {
      return null;
    }
    if (!this.kernelParts.size) {
      this.nodes.forEach(
        n => n.kernel !== null && this.kernelParts.set(n.kernel, (this.kernelParts.get(n.kernel) ?? 0) + 1)
      );
    }
    let cost = this.known.get(item);
    if (cost === undefined) {
      const of = (n: GraphNode) =>
        n.kernel !== null
          ? (costs.kernels.get(n.kernel) ?? 0) / this.kernelParts.get(n.kernel)!
          : (costs.nodes.get(`${n.home?.graph ?? this.state.graph}/${n.name}`) ?? 0);
      cost =
        item.kind === 'leaf'
          ? of(item.node)
          : this.tree!.order.slice(item.first, item.last + 1).reduce((sum, i) => sum + of(this.nodes[i]), 0);
      this.known.set(item, cost);
    }
    if (!(cost > 0)) {
      return null;
    }
    const kernel = item.kind === 'leaf' ? item.node.kernel : null;
    const parts = kernel === null ? 1 : this.kernelParts.get(kernel)!;
    const of =
      parts > 1
        ? t(
            'one of {0} of a kernel that takes {1}, {2} % of what was profiled',
            plural(parts, 'operation'),
            seconds(cost * parts),
            Math.round((100 * cost * parts) / costs.total)
          )
        : undefined;
    return { seconds: cost, share: cost / costs.total, of };
  }

  // ---------------------------------------------------------------------------------------------- toolbar

  private buildToolbar(): void {
    const { model, state } = this;
    clear(this.toolbar);
    clear(this.passes);
    append(this.passes, [
      passesElement(model.report.graphs[state.graph]?.passes, (at, made, later) => this.atPass(at, made, later))
    ]);
    const graphs = model.report.graphs;
    if (graphs.length > 1) {
      const chooser = h(
        'select.tc-select',
        { 'aria-label': t('Graph') },
        graphs.map((g, i) =>
          h(
            'option',
            { value: i, selected: i === state.graph },
            [g.name, ofFrame(model, g.frame), plural(g.ops, 'op')].filter(Boolean).join(' · ')
          )
        )
      ) as HTMLSelectElement;
      chooser.onchange = () => {
        state.graph = Number(chooser.value);
        const levels = model.levels(state.graph);
        state.level = levels.includes(state.level) ? state.level : (levels[0] ?? 'lowered');
        this.buildToolbar();
        this.load(false);
      };
      this.toolbar.append(chooser);
    }
    const levels = model.levels(state.graph);
    if (levels.length > 1) {
      this.toolbar.append(
        h(
          'div.tc-segments',
          { role: 'group', 'aria-label': t('Stage of the graph') },
          levels.map(level =>
            button(LEVEL_WORDS[level], { class: 'tc-segment', 'aria-pressed': String(level === state.level) }, () => {
              state.level = level;
              this.buildToolbar();
              this.load(false);
            })
          )
        )
      );
    }
    const against = others(model, state.graph, state.level);
    if (against.length && this.nodes.length) {
      const chooser = h(
        'select.tc-select.tc-compare',
        { 'aria-label': t('Compare with') },
        h('option', { value: '' }, t('compare with …')),
        against.map((o, i) => h('option', { value: i }, o.name))
      ) as HTMLSelectElement;
      chooser.onchange = () =>
        this.compareWith(against[Number(chooser.value)] && chooser.value ? against[Number(chooser.value)] : null);
      this.toolbar.append(chooser);
    }
    this.search('');
    const search = h('input.tc-input', {
      type: 'search',
      placeholder: t('find in the graph'),
      title: t('An operation, a module, a shape'),
      'aria-label': t('Search the graph')
    }) as HTMLInputElement;
    search.oninput = () => this.search(search.value);
    search.onkeydown = event => {
      event.stopPropagation();
      if (event.key === 'Enter') {
        event.preventDefault();
        this.nextHit(event.shiftKey ? -1 : 1);
      } else if (event.key === 'Escape') {
        search.value = '';
        this.search('');
      }
    };
    const tool = (label: string, title: string, act: () => void) =>
      button(label, { class: 'tc-button tc-tool', title, 'aria-label': title }, act);
    append(this.toolbar, [
      h('span.tc-search', null, search, this.searchCount),
      h(
        'span.tc-tools',
        null,
        tool('−', t('Zoom out'), () => this.canvas.zoom(0.8)),
        tool('+', t('Zoom in'), () => this.canvas.zoom(1.25)),
        tool('⤢', t('Show all'), () => this.canvas.fit()),
        this.tree?.groups.length ? tool(t('▾ all'), t('Open all modules'), () => this.openAll(true)) : null,
        this.tree?.groups.length ? tool(t('▸ all'), t('Close all modules'), () => this.openAll(false)) : null,
        button(
          t('table'),
          { class: 'tc-button tc-tool', 'aria-pressed': String(state.table), title: t('The same graph as a table') },
          event => {
            state.table = !state.table;
            (event.currentTarget as Element).setAttribute('aria-pressed', String(state.table));
            this.element.classList.toggle('tc-show-table', state.table);
            this.list.resize(this.nodes.length);
          }
        )
      )
    ]);
    this.element?.classList.toggle('tc-show-table', state.table);
  }

  // ---------------------------------------------------------------------------------------------- the graph

  private compareWith(other: Other | null): void {
    this.chosen = [];
    this.canvas.select([], false);
    if (!other) {
      this.canvas.highlight(null);
      this.showDetails();
      return;
    }
    const { element, only } = compare(this.nodes, other.nodes(), other.name);
    clear(this.details);
    this.details.append(element);
    this.canvas.highlight(only.length ? new Set(this.boxesOf(only)) : null);
  }

  /** A pass was chosen: what it takes away is there, what it made is marked, and what later passes make is faded. */
  private atPass(at: number, made: Set<string> | null, later: Set<string>): void {
    const { model, state } = this;
    const nodes = model.graphNodes(state.graph, state.level);
    const passes = model.report.graphs[state.graph]?.passes ?? [];
    const gone = made && state.level === 'lowered' ? removedNodes(nodes, passes, at) : [];
    if (gone.length || this.nodes.length !== nodes.length) {
      this.nodes = [...nodes, ...gone];
      this.tree = buildTree(this.nodes);
      this.chosen = this.chosen.filter(n => !n.gone);
      this.arrange(true);
      this.list.resize(this.nodes.length);
      gone
        .filter(n => n.gone!.now)
        .slice(0, MOST_OPENED)
        .forEach(n => this.openTo(n));
    }
    const there = new Set(this.boxesOf(this.nodes.filter(n => !later.has(n.name)))); // a group fades as a whole
    const faded = this.boxesOf(this.nodes.filter(n => later.has(n.name))).filter(b => !there.has(b));
    this.canvas.fade(faded.length ? new Set(faded) : null);
    this.canvas.highlight(made?.size ? new Set(this.boxesOf(this.nodes.filter(n => made.has(n.name)))) : null);
  }

  private key(): string {
    return `${this.state.graph}/${this.state.level}`;
  }

  private load(keep: boolean): void {
    const { model, state } = this;
    this.nodes = model.graphNodes(state.graph, state.level);
    this.stage.querySelector('.tc-empty')?.remove();
    this.canvas.element.hidden = !this.nodes.length;
    if (!this.nodes.length) {
      this.stage.append(
        empty(
          model.report.graphs.length
            ? t(
                'This graph was left out to keep the report small enough to save. Run the cell again and look at `r.graphs`.'
              )
            : t('No graph: nothing was captured.')
        )
      );
    }
    this.tree = buildTree(this.nodes);
    this.known.clear();
    this.values.clear();
    this.canvas.mark(new Map());
    this.kernelParts.clear();
    if (!state.opened[this.key()]) {
      state.opened[this.key()] = [...initiallyOpen(this.tree)];
    }
    this.buildToolbar();
    this.arrange(keep);
    this.list.resize(this.nodes.length);
    this.showDetails();
  }

  private arrange(keep: boolean): void {
    this.layout = layout(this.tree!, new Set(this.state.opened[this.key()]), measure);
    this.canvas.show(this.layout, keep);
    this.minimap.show(this.layout);
    this.canvas.select(this.boxesOf(this.chosen), false);
  }

  private boxesOf(nodes: GraphNode[]): Box[] {
    return [...new Set(nodes.map(n => this.layout?.boxOf[n.index]).filter((b): b is Box => !!b))];
  }

  private toggle(group: Group): void {
    const opened = new Set(this.state.opened[this.key()]);
    if (!opened.delete(group.id)) {
      opened.add(group.id);
    }
    this.state.opened[this.key()] = [...opened];
    this.arrange(true);
    const box = this.layout!.boxes.find(b => b.item === group) ?? this.layout!.boxOf[this.tree!.order[group.first]];
    if (box) {
      this.canvas.reveal(box);
    }
  }

  private openAll(open: boolean): void {
    this.state.opened[this.key()] = open ? this.tree!.groups.map(g => g.id) : [];
    this.arrange(false);
  }

  private openTo(node: GraphNode): void {
    const opened = new Set(this.state.opened[this.key()]);
    const before = opened.size;
    for (let group: Group | null = this.tree!.leaves[node.index].parent; group && group.parent; group = group.parent) {
      opened.add(group.id);
    }
    if (opened.size !== before) {
      this.state.opened[this.key()] = [...opened];
      this.arrange(true);
    }
  }

  private choose(box: Box | null, extend: boolean): void {
    if (!box) {
      this.chosen = [];
      this.canvas.select([], false);
      this.showDetails();
      return;
    }
    if (box.item.kind === 'group') {
      this.chosen = [];
      this.canvas.select([box], false);
      this.showGroup(box.item);
      return;
    }
    const { node } = box.item;
    this.chosen = extend && this.chosen.length ? [this.chosen[0], node] : [node];
    this.canvas.select(this.boxesOf(this.chosen), false);
    this.showDetails();
    this.list.mark(
      this.chosen.map(n => n.index),
      true
    );
    this.tell(node);
  }

  /** The other views follow; they know nothing of what a pass took away. */
  private tell(node: GraphNode): void {
    if (!node.gone) {
      this.model.selectNode(this.state.graph, node, this);
    }
  }

  /** Whether the graph that is shown is that one, or put together of it. */
  private holds(graph: number): boolean {
    return this.state.level === 'joint' ? this.nodes.some(n => n.home!.graph === graph) : graph === this.state.graph;
  }

  private nodeAt(p: Place): GraphNode | undefined {
    return this.state.level === 'joint'
      ? this.nodes.find(n => n.home!.graph === p.graph && n.home!.index === p.node)
      : this.nodes[p.node!];
  }

  /** Another view selected something: show it here too, if it is in this graph. */
  private follow(p: Place, origin: unknown): void {
    if (origin === this && p.node !== undefined && p.node !== null) {
      this.list.mark(
        this.chosen.map(n => n.index),
        true
      );
      const node = this.nodeAt(p);
      if (node && !this.chosen.includes(node)) {
        this.chosen = [node];
        this.openTo(node);
        this.canvas.select(this.boxesOf(this.chosen), true);
        this.list.mark([node.index], false);
        this.showDetails();
      }
      return;
    }
    if (p.graph !== undefined && p.graph !== null && !this.holds(p.graph) && this.model.levels(p.graph).length) {
      this.state.graph = p.graph;
      const levels = this.model.levels(p.graph);
      this.state.level = levels.includes(this.state.level) ? this.state.level : levels[0];
      this.load(false);
    }
    if (p.beside !== undefined && this.state.level === 'captured') {
      this.state.level = 'lowered'; // the pair is of that graph
      this.load(false);
    }
    let found: GraphNode[] = [];
    if (p.node !== undefined && p.node !== null) {
      const pair = [this.nodeAt(p), p.beside === undefined ? undefined : this.nodeAt({ ...p, node: p.beside })];
      found = pair.filter((n): n is GraphNode => !!n);
    } else if (p.kernel !== undefined && p.kernel !== null) {
      found = this.nodes.filter(n => n.kernel === p.kernel);
    } else if (p.line) {
      found = this.nodes.filter(n => n.line === p.line && n.file === p.file);
    }
    if (!found.length) {
      return;
    }
    this.chosen = found;
    found.slice(0, p.beside === undefined ? 1 : 2).forEach(n => this.openTo(n));
    this.canvas.select(this.boxesOf(found), true);
    this.list.mark(
      found.map(n => n.index),
      true
    );
    this.showDetails();
  }

  /** A second operation is chosen beside the first: both are to be seen as chosen. */
  private choosePair(a: GraphNode, b: GraphNode): void {
    this.chosen = [a, b];
    this.chosen.forEach(n => this.openTo(n));
    this.canvas.select(this.boxesOf(this.chosen), true);
    this.list.mark([a.index, b.index], true);
    this.showDetails();
  }

  // ---------------------------------------------------------------------------------------------- search

  private search(text: string): void {
    const wanted = text.trim().toLowerCase();
    this.hit = -1;
    this.hits = wanted
      ? this.nodes.filter(n =>
          `${n.name} ${n.op} ${n.module} ${tensorType(n)} ${n.dtype}`.toLowerCase().includes(wanted)
        )
      : [];
    this.searchCount.textContent = wanted ? plural(this.hits.length, 'match', 'matches') : '';
    this.canvas.highlight(wanted ? new Set(this.boxesOf(this.hits)) : null);
  }

  private nextHit(step: number): void {
    if (!this.hits.length) {
      return;
    }
    this.hit = (this.hit + step + this.hits.length) % this.hits.length;
    const node = this.hits[this.hit];
    this.searchCount.textContent = t('{0} of {1}', this.hit + 1, this.hits.length);
    this.openTo(node);
    this.canvas.highlight(new Set(this.boxesOf(this.hits)));
    this.chosen = [node];
    this.canvas.select(this.boxesOf([node]), true);
    this.showDetails();
    this.tell(node);
  }

  // ---------------------------------------------------------------------------------------------- details, table

  private row(node: GraphNode, element: HTMLElement): void {
    const kernel = node.kernel === null ? null : this.model.report.kernels[node.kernel];
    element.append(
      h('span', { title: node.name }, `%${node.name}`),
      h('span', { title: `${node.op}(${node.args})` }, node.op),
      h('span', null, tensorType(node)),
      h(
        'span',
        null,
        kernel ? h('span.tc-chip', { style: { '--tc-chip': kernelColour(node.kernel!) } }, kernel.name) : ''
      ),
      h('span', null, node.line ? place(node.file, node.line, this.model.report.source.file) : '')
    );
  }

  /**
   * With a kernel at hand: what values the nodes have, so that what is no number, or nearly too large, can be found.
   */
  private offerValues(): void {
    const host = this.state.level === 'captured' || this.state.level === 'joint' ? null : hostOf(this.element);
    if (!host || !this.nodes.length) {
      return;
    }
    const [go, out] = question(host, t('look at the values'), async say => {
      const { values } = await host.ask('values', { report: this.model.report.id, graph: this.state.graph }, say);
      this.values = new Map((values as Values[]).map(v => [v.node, v]));
      const marked = (values as Values[]).filter(v => v.mark);
      const operations = this.nodes.filter(isOperation).length;
      const more = values.length < operations ? ` ${t('As many as fit, of {0} operations.', count(operations))}` : '';
      this.canvas.mark(new Map(marked.map(v => [v.node, v.mark])));
      return [
        h(
          'p',
          null,
          marked.length
            ? `${t('{0} of {1} values are marked; the first is where to look:', marked.length, values.length)}${more}`
            : t('{0} values: none is NaN, infinite or near overflow.', values.length) + more
        ),
        h(
          'p.tc-links',
          null,
          marked.slice(0, 12).map(v => {
            const node = this.nodes.find(n => n.name === v.node);
            return node ? [this.link(node), h('span.tc-muted', null, ` ${MARK_WORDS[v.mark]} `)] : null;
          })
        )
      ];
    });
    this.details.append(h('div', null, go, out));
  }

  private fact(name: string, value: Child): HTMLElement {
    return h('div.tc-fact', null, h('dt', null, name), h('dd', null, value));
  }

  private link(node: GraphNode): HTMLElement {
    return button(node.name, { class: 'tc-link' }, () => {
      this.chosen = [node];
      this.openTo(node);
      this.canvas.select(this.boxesOf([node]), true);
      this.showDetails();
      this.model.selectNode(this.state.graph, node, this);
    });
  }

  private showGroup(group: Group): void {
    clear(this.details);
    const inside = this.tree!.order.slice(group.first, group.last + 1).map(i => this.nodes[i]);
    const kernels = new Set(inside.map(n => n.kernel).filter(k => k !== null));
    this.details.append(
      h('h4', null, group.path),
      h(
        'dl.tc-facts',
        null,
        this.fact(t('operations'), count(size(group))),
        this.fact(t('kernels'), kernels.size || '–')
      ),
      button(t('open'), { class: 'tc-button' }, () => this.toggle(group))
    );
  }

  private showDetails(): void {
    clear(this.details);
    const { report } = this.model;
    const graph = report.graphs[this.state.graph];
    if (!this.chosen.length) {
      const operations = this.nodes.filter(n => !n.gone && isOperation(n));
      const outside = operations.filter(n => n.kernel === null).length;
      this.details.append(
        h('h4', null, graph?.name ?? t('no graph')),
        h(
          'dl.tc-facts',
          null,
          this.fact(
            t('operations'),
            graph &&
              this.state.level === 'lowered' &&
              graph.ops !== operations.length &&
              levelsOf(this.model, this.state.graph).includes('captured')
              ? t('{0}, from {1} as captured', count(operations.length), count(graph.ops))
              : count(operations.length)
          ),
          graph?.ran === 'partial' ? null : this.fact(t('kernels'), count(graph?.kernels.length ?? 0)),
          this.state.level === 'lowered' && outside ? this.fact(t('views, library calls'), count(outside)) : null,
          graph?.symbols.map(s =>
            this.fact(
              t('size {0}', s.name),
              t('{0}, {1} … {2}, now {3}', s.source || '', bound(s.lo, '−∞'), bound(s.hi, '∞'), s.hint ?? '?')
            )
          )
        ),
        ...(RAN_WORDS[graph?.ran ?? ''] ? [h('p', null, RAN_WORDS[graph!.ran!])] : []),
        h(
          'p.tc-muted',
          null,
          t(
            'Choose an operation to see its type, its line and its kernel; a second one with shift to learn why the two are one kernel or two. Arrow keys walk along the edges, with shift to a second one.'
          )
        )
      );
      this.offerValues();
      return;
    }
    if (this.chosen.length === 2 && !this.chosen.some(n => n.gone)) {
      const home = this.chosen[0].home?.graph ?? this.state.graph;
      const [first] = this.chosen;
      this.details.append(
        h('p.tc-links', null, t('back to'), ' ', this.link(first)),
        whyElement(report, home, this.nodes, this.chosen, this.element)
      );
      return;
    }
    if (this.chosen.length > 1) {
      this.details.append(
        h('h4', null, plural(this.chosen.length, 'operation')),
        h(
          'p.tc-links',
          null,
          this.chosen.slice(0, 60).map(n => [this.link(n), ' '])
        )
      );
      return;
    }
    const node = this.chosen[0];
    const users = this.nodes.filter(n => n.inputs.includes(node.index));
    const size = nodeBytes(node);
    const cost = this.costOf(this.tree!.leaves[node.index]);
    this.details.append(
      h('h4', null, node.name),
      h(
        'code.tc-signature',
        null,
        `${node.op}(${node.args.replace(/%(\d+)/g, (_, i) => this.nodes[node.inputs[Number(i)]]?.name ?? '?')})`
      ),
      h(
        'dl.tc-facts',
        null,
        tensorType(node) ? this.fact(t('type'), tensorType(node)) : null,
        size !== null ? this.fact(t('result'), bytes(size)) : null,
        ...valueFacts(this.values.get(node.name)).map(([name, value]) => this.fact(name, value)),
        node.stride ? this.fact(t('strides'), node.stride.join(', ')) : null,
        cost ? this.fact(t('time'), cost.of ?? `${seconds(cost.seconds)}, ${Math.round(100 * cost.share)} %`) : null,
        node.module ? this.fact(t('module'), node.module) : null,
        node.line ? this.fact(t('from'), place(node.file, node.line, report.source.file)) : null,
        node.kernel !== null && report.kernels[node.kernel]
          ? this.fact(
              t('kernel'),
              button(report.kernels[node.kernel].name, { class: 'tc-link' }, () => this.openKernel(node.kernel!))
            )
          : null,
        node.inputs.length
          ? this.fact(
              t('reads'),
              node.inputs.map(i => [this.link(this.nodes[i]), ' '])
            )
          : null,
        users.length
          ? this.fact(
              t('read by'),
              users.slice(0, 12).map(n => [this.link(n), ' '])
            )
          : null
      )
    );
    this.showNeighbours(node, users);
  }

  /** Whom the operation could share a kernel with: each is a question that can be asked. */
  private showNeighbours(node: GraphNode, users: GraphNode[]): void {
    const refused = (this.model.report.graphs[this.state.graph]?.unfused ?? [])
      .filter(pair => pair.slice(0, 2).includes(node.name))
      .map(([a, b]) => this.nodes.find(n => n.name === (a === node.name ? b : a)));
    const around = [...node.inputs.map(i => this.nodes[i]), ...users, ...refused].filter(
      (n): n is GraphNode => !!n && n.kernel !== null
    );
    if (node.kernel === null || !around.length) {
      return;
    }
    append(this.details, [
      h('h5', null, t('One kernel with …')),
      h(
        'p.tc-links',
        null,
        [...new Set(around)].slice(0, 8).map(other => [
          button(
            `${other.name} ${other.kernel === node.kernel ? '●' : '○'}`,
            {
              class: 'tc-link',
              title:
                other.kernel === node.kernel
                  ? t('In the same kernel: why, and what if not?')
                  : t('In another kernel: why, and what if not?')
            },
            () => this.choosePair(node, other)
          ),
          ' '
        ])
      ),
      h('p.tc-muted', null, t('● in the same kernel, ○ in another; choose one to learn why.'))
    ]);
  }

  private hover(text: string, x: number, y: number): void {
    this.tip.textContent = text;
    this.tip.classList.toggle('tc-visible', !!text);
    const flip = x > this.stage.clientWidth - 220;
    this.tip.style.left = flip ? '' : `${x + 14}px`;
    this.tip.style.right = flip ? `${this.stage.clientWidth - x + 10}px` : '';
    this.tip.style.top = `${y + 14}px`;
  }
}
