/**
 * Two operations: why they are, or are not, one kernel; and with a kernel at hand, what it would cost to have it the
 * other way.
 */

import { h, prose } from '../dom';
import { plural } from '../format';
import { Host, hostOf } from '../host';
import { GraphNode, Report } from '../schema';
import { t } from '../texts';
import { question, timesTable } from '../views/controls';

/** Whether the two share a kernel, whether that can be tried the other way, and what was decided in words. */
interface Decision {
  together: boolean;
  possible: boolean;
  words: string;
}

/** Why a pair is two kernels, as the compiler noted it: who makes a value, who reads it, and the reason. */
export type Apart = [string, string, string];

/** What the compiler decided about two operations of a graph with these nodes. */
export function decision(report: Report, graph: number, nodes: GraphNode[], a: GraphNode, b: GraphNode): Decision {
  if (a.home && a.home.graph !== b.home?.graph) {
    return {
      together: false,
      possible: false,
      words: t('One belongs to forward, the other to backward: these are two graphs, and the caller runs between them.')
    };
  }
  const made = sharedKernel(report, a, b);
  if (made) {
    return { together: true, possible: true, words: made };
  }
  const notes = report.graphs[graph]?.unfused ?? [];
  const exact = notes.find(([x, y]) => (x === a.name && y === b.name) || (x === b.name && y === a.name));
  if (a.kernel === null || b.kernel === null) {
    const words = exact
      ? t('Not in one kernel: {0}.', exact[2])
      : outsideWords(report, graph, a.kernel === null ? a : b);
    return { together: false, possible: false, words };
  }
  if (exact) {
    return { together: false, possible: true, words: t('Not in one kernel: {0}.', exact[2]) };
  }
  const words = betweenWords(report, nodes, a, b) ?? kernelWords(report, notes, a, b) ?? unrelatedWords(nodes, a, b);
  return { together: false, possible: true, words };
}

/** In one kernel, and why: the same one, or one that computes the other's value again. */
function sharedKernel(report: Report, a: GraphNode, b: GraphNode): string | null {
  const [one, other] = [a, b].map(n => (n.kernel === null ? null : report.kernels[n.kernel]));
  if (!one || !other) {
    return null;
  }
  if (a.kernel === b.kernel) {
    const why = [...new Set(one.fused_because)].join('; ');
    return t('They are in one kernel, {0}{1}.', one.name, why ? `: ${why}` : '');
  }
  // (what is cheap is computed again where it is read: then a node is of the first kernel that computes it)
  const both = report.kernels.find(
    k => k.graph === one.graph && k.origins.includes(a.name) && k.origins.includes(b.name)
  );
  return both
    ? t('{0} computes both: what costs less to compute again than to read is in several kernels.', both.name)
    : null;
}

/** An operation that no generated kernel holds. */
function outsideWords(report: Report, graph: number, node: GraphNode): string {
  if (['input', 'parameter'].includes(node.op)) {
    return t('{0} comes from outside of the graph: it is in memory, and no kernel makes it.', node.name);
  }
  if (node.op === 'output') {
    return t('{0} is what the graph returns: no kernel makes it.', node.name);
  }
  const short = node.op.replace(/^aten\./, '').replace(/\.\w+$/, '');
  const call = report.externs.find(x => x.graph === graph && [node.op, short].includes(x.op));
  return call
    ? t('{0} is a library call{1}.', node.name, call.reason ? ` (${call.reason})` : '')
    : t('{0} is a view of memory that is there already: no kernel makes it.', node.name);
}

/** What has to run between the two, after the one and before the other. */
function betweenWords(report: Report, nodes: GraphNode[], a: GraphNode, b: GraphNode): string | null {
  const [first, last] = a.index < b.index ? [a, b] : [b, a];
  const own = [first.kernel, last.kernel];
  const after = new Set([first.index]);
  const through = new Map<number, GraphNode>(); // node -> the operation of another kernel on the way to it
  for (const n of nodes) {
    if (n.index <= first.index || n.gone) {
      continue;
    }
    for (const i of n.inputs.filter(i => after.has(i))) {
      after.add(n.index);
      const outside = n.kernel !== null && !own.includes(n.kernel) ? n : through.get(i);
      outside && through.set(n.index, outside);
    }
  }
  const between = after.has(last.index) ? through.get(last.index) : undefined;
  return between
    ? t(
        'Not in one kernel: {0} of kernel {1} comes between; it needs the one and is needed by the other.',
        between.name,
        report.kernels[between.kernel!].name
      )
    : null;
}

/** What was noted of two other operations that the same two kernels compute: best one that reads the same or is it. */
function kernelWords(report: Report, notes: Apart[], a: GraphNode, b: GraphNode): string | null {
  const [one, other] = [report.kernels[a.kernel!], report.kernels[b.kernel!]];
  const between = notes.filter(
    ([x, y]) =>
      (one.origins.includes(x) && other.origins.includes(y)) || (one.origins.includes(y) && other.origins.includes(x))
  );
  const found = between.find(note => note.includes(a.name) || note.includes(b.name)) ?? between[0];
  return found
    ? t('Their kernels {0} and {1} are two because of `{2}` and `{3}`: {4}.', one.name, other.name, ...found)
    : null;
}

function unrelatedWords(nodes: GraphNode[], a: GraphNode, b: GraphNode): string {
  const shared = a.inputs.find(i => b.inputs.includes(i));
  return shared === undefined
    ? t('Neither reads the other, nor the same value: in one kernel they would save no memory traffic.')
    : t(
        'Neither reads the other. Both read {0}, but of the kernels that read the same memory only the latest are tried.',
        nodes[shared].name
      );
}

/**
 * The answer, and the button that tries the opposite. `place`: an element in the document, through which the kernel is
 * found.
 */
export function whyElement(
  report: Report,
  graph: number,
  nodes: GraphNode[],
  [a, b]: GraphNode[],
  place: Element
): HTMLElement {
  const { together, possible, words } = decision(report, graph, nodes, a, b);
  const host = possible ? hostOf(place) : null;
  return h(
    'div',
    null,
    h('h4', null, t('{0} and {1}', a.name, b.name)),
    h('p', null, ...prose(words)),
    host ? tryOther(report, a, b, together, host) : null
  );
}

function tryOther(report: Report, a: GraphNode, b: GraphNode, together: boolean, host: Host): HTMLElement {
  const option = together ? 'force_split' : 'force_fuse';
  const label = together ? t('keep them apart, and time it') : t('force them into one kernel, and time it');
  const [go, out] = question(host, label, async say => {
    const pair = `${a.name}:${b.name}`;
    const answer = await host.ask('try', { report: report.id, settings: { [option]: pair }, seconds: 1 }, say);
    const { words, changed } = outcome(answer, a.name, b.name, together);
    // (the times of what is as it was would tell of nothing, and to keep it would change nothing)
    return [
      h('p', null, ...prose(words)),
      changed ? timesTable(together ? t('apart') : t('in one kernel'), answer) : null,
      changed ? h('p.tc-muted', null, t('To keep it: {0}', `%%tcompile ${option}=${pair}`)) : null
    ].filter((e): e is HTMLElement => e !== null);
  });
  return h('div', null, go, out);
}

function outcome(
  answer: { kernels: [string, string[]][]; unfused: [string, string, string][] },
  a: string,
  b: string,
  together: boolean
): { words: string; changed: boolean } {
  const shared = answer.kernels.find(([, names]) => names.includes(a) && names.includes(b));
  const all = plural(answer.kernels.length, 'kernel');
  if (shared) {
    const words = together
      ? t('They stay in `{0}`: what costs less to compute again than to read is in several kernels.', shared[0])
      : t('They share `{0}` now, one of {1}.', shared[0], all);
    return { words, changed: !together };
  }
  const why = answer.unfused.find(([x, y]) => (x === a && y === b) || (x === b && y === a));
  const words = together
    ? t('They are in two kernels now, of {0}.', all)
    : t('They can’t be in one kernel: {0}.', why ? why[2] : t('one is needed in memory before the other begins'));
  return { words, changed: together };
}
