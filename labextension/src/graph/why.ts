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

/** What the compiler decided about the two, in a sentence, and whether they share a kernel. */
function decision(
  report: Report,
  graph: number,
  a: GraphNode,
  b: GraphNode
): { together: boolean; possible: boolean; words: string } {
  const kernel = (n: GraphNode) => (n.kernel === null ? null : report.kernels[n.kernel]);
  const names = [a.name, b.name];
  const refusal = report.graphs[graph]?.unfused.find(([x, y]) => names.includes(x) && names.includes(y) && x !== y);
  if (a.home && a.home.graph !== b.home?.graph) {
    return {
      together: false,
      possible: false,
      words: t('One belongs to forward, the other to backward: these are two graphs, and the caller runs between them.')
    };
  }
  if (a.kernel !== null && a.kernel === b.kernel) {
    const why = kernel(a)?.fused_because ?? [];
    return {
      together: true,
      possible: true,
      words: t(
        'They are in one kernel, {0}{1}.',
        kernel(a)?.name,
        why.length ? `: ${[...new Set(why)].join('; ')}` : ''
      )
    };
  }
  if (a.kernel === null || b.kernel === null) {
    const outside = a.kernel === null ? a : b;
    return {
      together: false,
      possible: false,
      words: t(
        '{0} is not in a generated kernel: {1} is an input, a view or a call of torch’s own kernel.',
        outside.name,
        outside.op
      )
    };
  }
  if (refusal) {
    return { together: false, possible: true, words: t('Not in one kernel: {0}.', refusal[2]) };
  }
  const words =
    a.inputs.includes(b.index) || b.inputs.includes(a.index)
      ? t('One reads the other, and no reason against fusing them was recorded.')
      : t(
          'Neither reads the other and they share no input that was worth reading once, so they were never candidates.'
        );
  return { together: false, possible: true, words };
}

/**
 * The answer, and the button that tries the opposite. `place`: an element in the document, through which the kernel is
 * found.
 */
export function whyElement(report: Report, graph: number, a: GraphNode, b: GraphNode, place: Element): HTMLElement {
  const { together, possible, words } = decision(report, graph, a, b);
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
    return [
      h('p', null, ...prose(outcome(answer, a.name, b.name, together))),
      timesTable(together ? t('apart') : t('in one kernel'), answer),
      h('p.tc-muted', null, t('To keep it: {0}', `%%tcompile ${option}=${pair}`))
    ];
  });
  return h('div', null, go, out);
}

function outcome(
  answer: { kernels: [string, string[]][]; unfused: [string, string, string][] },
  a: string,
  b: string,
  together: boolean
): string {
  const shared = answer.kernels.find(([, names]) => names.includes(a) && names.includes(b));
  const all = plural(answer.kernels.length, 'kernel');
  if (shared) {
    return t('They share `{0}` now, one of {1}.', shared[0], all);
  }
  const why = answer.unfused.find(([x, y]) => (x === a && y === b) || (x === b && y === a));
  return together
    ? t('They are in two kernels now, of {0}.', all)
    : t('They can’t be in one kernel: {0}.', why ? why[2] : t('one is needed in memory before the other begins'));
}
