/** What the values of a node are, as the kernel tells it when it is asked. */

import { Child, h } from '../dom';
import { count } from '../format';
import { t, words } from '../texts';

/** What the kernel says of a node's values (compiler/report/node_values.py). */
export interface Values {
  node: string;
  dtype: string;
  count: number;
  sample: (number | string)[];
  min: number | null;
  max: number | null;
  mean: number | null;
  nan: number;
  inf: number;
  zero: number;
  mark: 'nan' | 'inf' | 'large' | '';
}

export const MARK_WORDS: { [mark: string]: string } = words({ nan: 'NaN', inf: 'infinite', large: 'near overflow' });

/** Facts of a node's values, each with its name; none where they were not looked at. */
export function valueFacts(v: Values | undefined): [string, Child][] {
  if (!v) {
    return [];
  }
  const short = (x: number | string | null) => (typeof x === 'number' ? String(Number(x.toPrecision(4))) : (x ?? '–'));
  const facts: [string, Child][] = [[t('range'), t('{0} … {1}, mean {2}', short(v.min), short(v.max), short(v.mean))]];
  if (v.mark) {
    const [nan, inf] = [v.nan ? `, ${count(v.nan)} NaN` : '', v.inf ? `, ${count(v.inf)} ∞` : ''];
    facts.push([t('marked'), h('span.tc-gain-down', null, `${MARK_WORDS[v.mark]}${nan}${inf}`)]);
  }
  if (v.zero) {
    facts.push([t('zeros'), t('{0} of {1}', count(v.zero), count(v.count))]);
  }
  return [...facts, [t('first values'), h('code', null, v.sample.map(short).join('  '))]];
}
