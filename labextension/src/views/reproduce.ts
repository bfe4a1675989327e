/**
 * A file that shows one part of the report by itself: a graph, a kernel's operations, a wrong number. The kernel writes
 * it.
 */

import { button, download, h, section } from '../dom';
import { hostOf } from '../host';
import { t } from '../texts';
import { ViewContext } from './view';

export interface Reproduce {
  element: HTMLElement;
  shown: () => void;
}

export function reproduceView({ model }: ViewContext): Reproduce {
  const { report } = model;
  const wrong = report.numerics.flatMap((n, i) =>
    n.verdict === 'diverges' ? [{ what: `numerics/${i}`, name: t('wrong number: {0}', n.name) }] : []
  );
  const parts = [
    ...wrong,
    ...report.graphs.map((g, i) => ({ what: `graphs/${i}`, name: g.name })),
    ...report.kernels.map((k, i) => ({ what: `kernels/${i}`, name: k.name }))
  ];
  const element = section(
    t('A file that shows it'),
    h(
      'p.tc-muted',
      null,
      t(
        'One Python file with these operations, and inputs of the same layout: it runs by itself, and compares with eager.'
      )
    )
  );
  element.hidden = true;
  let asked = false;
  const offer = (ask: (what: string) => Promise<{ file: string }>) => {
    const select = h(
      'select.tc-select',
      { 'aria-label': t('A file of') },
      parts.map(p => h('option', { value: p.what }, p.name))
    ) as HTMLSelectElement;
    const said = h('span', { 'aria-live': 'polite' });
    const go = button(t('download as Python'), { class: 'tc-button' }, async () => {
      said.replaceChildren();
      try {
        download(`${select.value.replace('/', '_')}.py`, (await ask(select.value)).file, 'text/x-python');
      } catch (error) {
        said.append(
          h('span.tc-error', { role: 'alert' }, ` ${error instanceof Error ? error.message : String(error)}`)
        );
      }
    });
    element.append(h('div.tc-toolbar', null, select, go, said));
    element.hidden = false;
  };
  return {
    element,
    shown: () => {
      const host = asked || !parts.length ? null : hostOf(element);
      if (host) {
        asked = true;
        offer(what => host.ask('reproducer', { report: report.id, what }));
      }
    }
  };
}
