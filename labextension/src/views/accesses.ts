/**
 * Every read and write of a plan's kernels against its buffer, and which buffers share memory: asked of the kernel that
 * holds the plan.
 */

import { append, Child, h, section, table } from '../dom';
import { count, plural } from '../format';
import { hostOf } from '../host';
import { ViewContext } from './view';
import { question } from './controls';
import { t, words } from '../texts';

/** One row of compiler/report/facts/memory_checks.py. */
interface Access {
  kernel: string;
  way: string;
  buffer: string;
  index: string;
  range: [number, number] | null;
  elements: number;
  how: string;
}

interface Shared {
  buffer: string;
  of: string;
  how: string;
  after: string;
}

const WAY_WORDS: { [way: string]: string } = words({ reads: 'reads', writes: 'writes' });
/** In the order in which a reader wants them: what is no proof first. */
const HOW_WORDS: { [how: string]: string } = words({
  outside: 'outside of its buffer',
  unknown: 'no range is known',
  'by values': 'the index comes from data; where torch raises, so does the kernel',
  tiled: 'tile by tile, the edges masked',
  masked: 'only where its condition holds',
  proved: 'inside'
});
const ORDER = ['outside', 'unknown', 'by values', 'tiled', 'masked', 'proved'];

export interface Accesses {
  element: HTMLElement;
  /** To be called once the element is in the document: only then can the kernel be found. */
  shown: () => void;
}

export function accessesView({ model }: ViewContext): Accesses {
  const { report } = model;
  const graphs = report.graphs.flatMap((g, i) => (g.kernels.length ? [i] : []));
  const element = h('div');
  let asked = false;
  return {
    element,
    shown: () => {
      const host = asked || !graphs.length ? null : hostOf(element);
      if (!host) {
        return;
      }
      asked = true;
      const select = h(
        'select.tc-select',
        { 'aria-label': t('Graph whose memory is checked') },
        graphs.map(i => h('option', { value: i }, report.graphs[i].name))
      ) as HTMLSelectElement;
      const [go, out] = question(host, t('check every read and write'), async say => {
        const answer = await host.ask('memory', { report: report.id, graph: Number(select.value) }, say);
        return answerOf(answer.accesses, answer.shared);
      });
      append(element, [
        section(
          t('Reads and writes inside of their buffers?'),
          h('div.tc-toolbar', null, graphs.length > 1 ? select : null, go),
          out
        )
      ]);
    }
  };
}

function answerOf(accesses: Access[], shared: Shared[]): Child[] {
  const number = (how: string) => accesses.filter(a => a.how === how).length;
  const rest = ORDER.filter(how => how !== 'proved' && how !== 'outside' && number(how));
  const told = [
    t(
      '{0}, {1} inside at the sizes of the first call',
      plural(accesses.length, 'read or write', 'reads and writes'),
      count(number('proved'))
    ),
    ...rest.map(how => `${count(number(how))}: ${HOW_WORDS[how]}`)
  ].join('; ');
  const ordered = [...accesses].sort((a, b) => ORDER.indexOf(a.how) - ORDER.indexOf(b.how));
  return [
    h(
      'p',
      null,
      number('outside')
        ? h('strong.tc-gain-down', null, t('{0} outside of a buffer. ', count(number('outside'))))
        : t('None is outside of its buffer. '),
      told,
      '.'
    ),
    table<Access>(
      [
        { title: t('kernel'), cell: a => h('code', null, a.kernel) },
        { title: '', short: true, cell: a => WAY_WORDS[a.way] ?? a.way },
        { title: t('buffer'), cell: a => h('code', null, a.buffer) },
        { title: t('index'), cell: a => h('code', null, a.index) },
        { title: t('range'), number: true, cell: a => (a.range ? `${a.range[0]} … ${a.range[1]}` : '–') },
        { title: t('elements'), number: true, cell: a => count(a.elements) },
        {
          title: t('inside?'),
          cell: a =>
            a.how === 'outside' ? h('span.tc-gain-down', null, HOW_WORDS.outside) : (HOW_WORDS[a.how] ?? a.how)
        }
      ],
      ordered,
      { label: t('Reads and writes of the kernels'), limit: 12 }
    ),
    shared.length
      ? table<Shared>(
          [
            { title: t('buffer'), cell: s => h('code', null, s.buffer) },
            { title: t('lies in the memory of'), cell: s => h('code', null, s.of) },
            { title: t('why that is right'), cell: sharedWords }
          ],
          shared,
          { label: t('Buffers that share memory'), limit: 12 }
        )
      : h('p.tc-muted', null, t('No buffer lies in the memory of another.'))
  ];
}

function sharedWords(s: Shared): Child {
  const after = h('code', null, s.after);
  return s.how === 'view'
    ? t('it is a view')
    : s.how === 'in place'
      ? [after, t(' reads each element before it writes it there')]
      : s.after
        ? [t('nobody reads it after '), after]
        : t('nobody reads it any more');
}
