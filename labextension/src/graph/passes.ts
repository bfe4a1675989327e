/** What each graph pass changed: a slider through the passes, and the nodes before and after. */

import { append, clear, h } from '../dom';
import { count, plural, seconds } from '../format';
import { GraphNode, GraphPass } from '../schema';
import { diffLines } from '../views/fix';
import { t, words } from '../texts';

const POINTS: { [point: string]: string } = words({
  recorded: 'before decomposition',
  decomposed: 'after decomposition'
});

/** The names of nodes in lines of text: `mul_3 = aten.mul.Tensor(...)`. */
const named = (lines: string[]) => lines.map(line => line.split(' = ', 1)[0]);

const wordsOf = (text: string): string[] => text.match(/[A-Za-z_]\w*/g) ?? [];
const DEEPEST = 6;

function firstOf<X, Y>(items: X[], make: (item: X) => Y | undefined): Y | undefined {
  for (const item of items) {
    const made = make(item);
    if (made !== undefined) {
      return made;
    }
  }
  return undefined;
}

/**
 * The nodes that are there when pass number `at` begins and not in the end, as far as the passes tell: those that it
 * takes away, and those that later ones do. They follow `nodes`.
 */
export function removedNodes(nodes: GraphNode[], passes: GraphPass[], at: number): GraphNode[] {
  const known = new Map(nodes.map(n => [n.name, n]));
  const last = new Map(known);
  /** The node of the graph that the pass has kept from reading this one, at first or second hand. */
  const reader = (name: string, lines: string[], depth = 0): GraphNode | undefined =>
    firstOf(lines, line => {
      const [other, text] = line.split(' = ', 2);
      const reads = depth < DEEPEST && text !== undefined && wordsOf(text).includes(name);
      return reads ? (last.get(other) ?? reader(other, lines, depth + 1)) : undefined;
    });
  const later = new Set<string>();
  const out: GraphNode[] = [];
  passes.slice(at).forEach((p, i) => {
    if (p.point !== passes[at].point) {
      return; // (before and after decomposition names may mean other things)
    }
    for (const line of p.removed) {
      const [name, text] = [line.split(' = ', 1)[0], line.slice(line.indexOf(' = ') + 3)];
      if (name === line || known.has(name) || later.has(name)) {
        continue;
      }
      const [op, args] = [text.split('(', 1)[0], text.slice(text.indexOf('(') + 1, -1)];
      const inputs = [...new Set(wordsOf(args))].flatMap(word => known.get(word) ?? []);
      const beside = inputs[inputs.length - 1];
      if (!beside) {
        continue; // no place is known for it
      }
      const node: GraphNode = {
        index: nodes.length + out.length,
        name,
        op,
        inputs: inputs.map(n => n.index),
        args,
        shape: null,
        dtype: '',
        file: beside.file,
        line: beside.line,
        module: inputs.find(n => n.module)?.module ?? '',
        kernel: null,
        gone: { now: i === 0, after: Math.max(0, ...inputs.map(n => n.gone?.after ?? n.index)) }
      };
      const into = node.module ? undefined : reader(name, p.removed);
      if (into) {
        node.module = into.module;
        node.gone!.after = Math.max(node.gone!.after, into.index - 0.5);
      }
      known.set(name, node);
      out.push(node);
    }
    if (i > 0) {
      named(p.added).forEach(name => later.add(name));
    }
  });
  return out;
}

/**
 * `onPass`: number of the chosen pass, the nodes that it has made, and those that only later ones make; null: none is
 * chosen any more.
 */
export function passesElement(
  passes: GraphPass[] | undefined,
  onPass: (at: number, made: Set<string> | null, later: Set<string>) => void
): HTMLElement | null {
  if (!passes?.length) {
    return null;
  }
  const changed = passes.filter(p => p.removed.length || p.added.length);
  const out = h('div', { 'aria-live': 'polite' });
  const slider = h('input', {
    type: 'range',
    min: 0,
    max: passes.length - 1,
    value: passes.indexOf(changed[0] ?? passes[0]),
    'aria-label': t('Graph pass')
  }) as HTMLInputElement;
  const show = () => {
    const p = passes[Number(slider.value)];
    slider.setAttribute('aria-valuetext', p.name);
    clear(out);
    append(out, [
      h(
        'p',
        null,
        h('code', null, p.name),
        h(
          'span.tc-muted',
          null,
          t(' {0}, {1} of {2}: ', POINTS[p.point] ?? p.point, Number(slider.value) + 1, passes.length)
        ),
        p.before === p.after ? plural(p.after, 'operation') : `${count(p.before)} → ${plural(p.after, 'operation')}`,
        h('span.tc-muted', null, `, ${seconds(p.seconds)}`)
      ),
      p.removed.length || p.added.length
        ? diffLines([
            ...p.removed.map((t): [string, string] => ['-', t]),
            ...p.added.map((t): [string, string] => ['+', t])
          ])
        : h('p.tc-empty', null, t('It changed nothing here.')),
      p.more ? h('p.tc-muted', null, t('and {0}', plural(p.more, 'more line'))) : null
    ]);
  };
  const tell = () => {
    const at = Number(slider.value);
    const p = passes[at];
    const later = new Set<string>();
    for (const next of passes.slice(at + 1).filter(q => q.point === 'decomposed')) {
      const before = new Set(named(next.removed));
      named(next.added)
        .filter(name => !before.has(name))
        .forEach(name => later.add(name));
    }
    onPass(at, p.point === 'decomposed' ? new Set(named(p.added)) : new Set(), later);
  };
  slider.oninput = () => {
    show();
    tell();
  };
  show();
  return h(
    'details.tc-passes',
    { ontoggle: (event: Event) => ((event.target as HTMLDetailsElement).open ? tell() : onPass(0, null, new Set())) },
    h('summary', null, t('What the graph passes changed ({0} of {1} did)', changed.length, passes.length)),
    slider,
    h(
      'p.tc-muted',
      null,
      t(
        'In the graph: dashed what this pass takes away or a later one does, outlined what it makes, faded what comes later.'
      )
    ),
    out
  );
}
