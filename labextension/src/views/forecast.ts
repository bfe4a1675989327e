/**
 * "Would this recompile?": sizes, dtypes and values against the guards of the entries in the kernel, without running
 * anything.
 */

import { append, button, clear, h, prose, section } from '../dom';
import { plural } from '../format';
import { Host, hostOf } from '../host';
import { Report } from '../schema';
import { toldRecompile } from './glance';
import { ViewContext } from './view';
import { t } from '../texts';

interface Row {
  name: string;
  /** The name as the program has it: a loop's item has one of its own in the entry. */
  shown: string;
  kind: 'tensor' | 'value';
  shape?: string[];
  dtype?: string;
  value?: string;
  /** It lies within an object, such as a model, or is one more item of a list: asked for on demand. */
  inner?: boolean;
}

interface Askable {
  name: string;
  /** The name in words. */
  function: string;
  line: number;
  entries: number;
  rows: Row[];
}

interface Answer {
  recompiles: boolean;
  entry: number | null;
  entries: number;
  assumed: number;
  failures: { source: string; expected: string; got: string; suggestion: string }[];
}

export function forecastForm({ model }: ViewContext): { element: HTMLElement; shown: () => void } {
  const element = h('div');
  let asked = false;
  return {
    element,
    shown: () => {
      const host = asked ? null : hostOf(element);
      if (host) {
        asked = true;
        host.ask('forecast', { report: model.report.id }).then(
          ({ functions, dtypes }) => {
            if (functions.length) {
              element.append(section(t('Would this recompile?'), form(host, model.report, functions, dtypes)));
            }
          },
          () => (asked = false)
        );
      }
    }
  };
}

function form(host: Host, report: Report, functions: Askable[], dtypes: string[]): HTMLElement {
  const out = h('div.tc-answer', { 'aria-live': 'polite' });
  const fields = h('div');
  const entries = h('span.tc-muted');
  let readers: (() => [string, any])[] = [];
  // What checks nothing that a form could change is not asked about, unless there is nothing else.
  const asked = functions.map((_, i) => i).filter(i => functions[i].rows.length);
  const offered = asked.length ? asked : functions.map((_, i) => i);
  let which = askedFirst(report, functions, offered);
  const show = (index: number) => {
    which = index;
    clear(fields);
    const top = h('div.tc-form');
    fields.append(top);
    clear(out);
    const folded = h('div.tc-form');
    const { rows } = functions[index];
    const several = rows.some(r => !r.inner);
    entries.textContent = plural(functions[index].entries, 'entry', 'entries');
    readers = rows.map(row => {
      const fields = several && row.inner ? folded : top;
      if (row.kind === 'value') {
        const value = h('input.tc-input', {
          type: 'text',
          value: row.value,
          'aria-label': t('Value of {0}', row.shown)
        }) as HTMLInputElement;
        fields.append(h('label', null, h('code', null, row.shown)), value);
        return () => [row.name, value.value];
      }
      const shape = h('input.tc-input', {
        type: 'text',
        value: row.shape!.join(', '),
        'aria-label': t('Shape of {0}', row.shown),
        title: t('sizes, separated by commas')
      }) as HTMLInputElement;
      const dtype = h(
        'select.tc-select',
        { 'aria-label': t('Dtype of {0}', row.shown) },
        [...new Set([row.dtype!, ...dtypes])].map(d => h('option', { value: d }, d))
      ) as HTMLSelectElement;
      fields.append(h('label', null, h('code', null, row.shown)), h('span.tc-form-pair', null, shape, dtype));
      return () => {
        const words = shape.value.split(/[\s,×x]+/).filter(t => t);
        // A symbol left as it stands means: any size that the entry takes.
        const sizes = words.map(Number);
        return [
          row.name,
          {
            shape: sizes.every(Number.isInteger) ? sizes : words.join() === row.shape!.join() ? null : sizes,
            dtype: dtype.value
          }
        ];
      };
    });
    if (folded.childElementCount) {
      const inner = rows.filter(r => r.inner).length;
      fields.append(
        h(
          'details.tc-fold',
          null,
          h('summary', null, t('within objects and lists: {0}', plural(inner, 'more value'))),
          folded
        )
      );
    }
    ask.hidden = !readers.length;
    if (!readers.length) {
      fields.append(h('p.tc-empty', null, t('Its entries check nothing that a form could change.')));
    }
  };
  const ask = button(t('ask'), {}, async () => {
    try {
      const answer: Answer = await host.ask('forecast', {
        report: report.id,
        function: which,
        given: Object.fromEntries(readers.map(read => read()))
      });
      out.replaceChildren();
      append(out, [verdict(answer)]);
    } catch (error) {
      out.replaceChildren(h('p.tc-error', { role: 'alert' }, error instanceof Error ? error.message : String(error)));
    }
  });
  show(which);
  const select =
    offered.length > 1
      ? (h(
          'select.tc-select',
          { 'aria-label': t('Function') },
          offered.map(i => h('option', { value: i, selected: i === which }, functions[i].function))
        ) as HTMLSelectElement)
      : null;
  if (select) {
    select.onchange = () => show(Number(select.value));
  }
  return h(
    'div',
    null,
    h('div.tc-toolbar', null, select ?? h('code', null, functions[which].function), entries),
    fields,
    h('div', null, ask),
    out
  );
}

/** The function that was compiled again, or else the one with the most entries: that one is asked about. */
function askedFirst(report: Report, functions: Askable[], offered: number[]): number {
  const frame = report.frames[report.recompiles[toldRecompile(report)]?.frame ?? -1];
  const again = offered.find(i => functions[i].name === frame?.name && functions[i].line === frame.line);
  return again ?? [...offered].sort((a, b) => functions[b].entries - functions[a].entries)[0];
}

function verdict(a: Answer): HTMLElement {
  if (!a.recompiles) {
    return h(
      'p',
      null,
      h('strong.tc-gain-up', null, t('● no')),
      t(': entry {0} serves it', a.entry),
      h('span.tc-muted', null, a.assumed ? t(', if {0} still hold', plural(a.assumed, 'further guard')) : '')
    );
  }
  const f = a.failures[a.failures.length - 1];
  return h(
    'div',
    null,
    h(
      'p',
      null,
      h('strong.tc-gain-down', null, t('▲ yes')),
      a.entries === 1 ? t(': its one entry does not fit') : t(': none of its {0} entries fits', a.entries)
    ),
    f
      ? h(
          'dl.tc-versus',
          null,
          h('div', null, h('dt', null, t('expected')), h('dd', null, ...prose(f.expected))),
          h('div', null, h('dt', null, t('got')), h('dd.tc-got', null, ...prose(f.got)))
        )
      : null,
    f?.suggestion
      ? h('div.tc-remedy', null, h('span.tc-label', null, t('what to change')), h('span', null, ...prose(f.suggestion)))
      : null
  );
}
