/**
 * Numbers and names as people read them: a unit with each figure, three significant digits, thin spaces in thousands.
 */

import { GraphNode, Shape, Status } from './schema';
import { t, tn, words } from './texts';

const NONE = '–';

function significant(value: number): string {
  const abs = Math.abs(value);
  return abs >= 100 ? value.toFixed(0) : abs >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function seconds(s: number | null | undefined): string {
  if (s === null || s === undefined || !isFinite(s)) {
    return NONE;
  }
  const abs = Math.abs(s);
  if (abs === 0) {
    return '0 s';
  }
  if (abs < 1e-6) {
    return `${significant(s * 1e9)} ns`;
  }
  if (abs < 1e-3) {
    return `${significant(s * 1e6)} µs`;
  }
  return abs < 1 ? `${significant(s * 1e3)} ms` : `${significant(s)} s`;
}

/** The least of 1, 2 or 5 times a power of ten from `rough` on: steps of an axis that can be read. */
export function roundStep(rough: number): number {
  const unit = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map(m => m * unit).find(s => s >= rough) ?? unit * 10;
}

/** An axis label: as `seconds`, without digits that say nothing. */
export function tick(s: number): string {
  return seconds(s)
    .replace(/(\.\d*?)0+ /, '$1 ')
    .replace('. ', ' ');
}

/** As `compiler/base/figures.py` writes them: decimal units, two digits. */
export function bytes(b: number | null | undefined): string {
  if (b === null || b === undefined) {
    return NONE;
  }
  const unit = UNITS.find(([, factor]) => Math.abs(b) >= factor);
  if (!unit) {
    return `${b} B`;
  }
  const value = b / unit[1];
  const size = Math.abs(value);
  return `${value.toFixed(size >= 9.95 ? 0 : 1)} ${unit[0]}`;
}

const UNITS: [string, number][] = [
  ['TB', 1e12],
  ['GB', 1e9],
  ['MB', 1e6],
  ['KB', 1e3]
];

/** A rate in decimal units, as bandwidths and flop rates are quoted. */
export function rate(perSecond: number | null | undefined, unit: string): string {
  if (perSecond === null || perSecond === undefined || !isFinite(perSecond)) {
    return NONE;
  }
  const prefixes = ['', 'k', 'M', 'G', 'T', 'P'];
  let i = 0;
  let value = perSecond;
  while (value >= 1000 && i < prefixes.length - 1) {
    value /= 1000;
    i++;
  }
  return `${significant(value)} ${prefixes[i]}${unit}/s`;
}

export function count(n: number | null | undefined): string {
  return n === null || n === undefined ? NONE : String(n).replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f');
}

/** Of a whole number of 64 bits nothing is known. */
const UNBOUNDED = 2 ** 61;

/** The end of a range of sizes; `none` where it has no end. */
export function bound(n: number | null, none: string): string {
  return n === null || Math.abs(n) >= UNBOUNDED ? none : String(n);
}

export function plural(n: number, one: string, many?: string): string {
  return tn(`{0} ${one}`, `{0} ${many ?? one + 's'}`, n, count(n));
}

/** Instead of an interval, where there was no second sample. */
export const oneSample = () => t('one sample');

type Ratio = { ratio: number; lo: number; hi: number };

/** Which way a comparison goes: `even` where the interval holds 1, or there was one sample, and neither is known. */
export function direction(s: Ratio): 'faster' | 'slower' | 'even' {
  return s.lo === s.hi || (s.lo <= 1 && s.hi >= 1) ? 'even' : s.ratio >= 1 ? 'faster' : 'slower';
}

const DIRECTION_WORDS: { [way: string]: string } = words({
  faster: 'faster',
  slower: 'slower',
  even: 'no clear difference'
});

/** A ratio with the digits that it bears. */
export function ratioText(ratio: number): string {
  return ratio >= 99.5 ? ratio.toFixed(0) : ratio >= 1.095 ? ratio.toFixed(1) : ratio.toFixed(2);
}

/** An interval that many times as long as its lower end: what lies in its middle is chance. */
const WIDE = 3;
/** As wide as that it says which is faster, and not by how much. */
const UNCLEAR = 10;

/**
 * A comparison in figures and a word, all with as many digits as the interval bears, as in the plain text: `2.9×`,
 * `[2.8–3.0]`, `faster`. What is slower is told by the inverse: `1.4×`, `[1.3–1.5]`, `slower`. A wide interval stands
 * alone: `2.5–8.4×`, ``, `faster`. One that says little is no figure: ``, `2.5–84×`, `faster`.
 */
export function speedup(s: Ratio): [string, string, string] {
  if (s.lo === s.hi) {
    return ['', '', t('one sample of each: too few to compare')];
  }
  const way = direction(s);
  const { ratio, lo, hi } = way === 'slower' ? { ratio: 1 / s.ratio, lo: 1 / s.hi, hi: 1 / s.lo } : s;
  if (hi > WIDE * lo) {
    const ends = `${ratioText(lo)}–${ratioText(hi)}×`;
    return way !== 'even' && hi > UNCLEAR * lo ? ['', ends, DIRECTION_WORDS[way]] : [ends, '', DIRECTION_WORDS[way]];
  }
  const digits = ratio >= 99.5 ? 0 : (ratio >= 1.095 && hi - lo >= 0.1) || ratio >= 9.95 ? 1 : 2;
  return [`${ratio.toFixed(digits)}×`, `[${lo.toFixed(digits)}–${hi.toFixed(digits)}]`, DIRECTION_WORDS[way]];
}

/** `faster than eager`, `slower than torch.compile`, `no clear difference from eager`. */
export function compared(s: Ratio, over: string): string {
  const way = direction(s);
  return way === 'even'
    ? t('no clear difference from {0}', engineName(over))
    : way === 'faster'
      ? t('faster than {0}', engineName(over))
      : t('slower than {0}', engineName(over));
}

/** The class that colours a comparison. */
export const GAIN_CLASS = { faster: '.tc-gain-up', slower: '.tc-gain-down', even: '' };

const DTYPES: { [name: string]: string } = {
  float32: 'f32',
  float64: 'f64',
  float16: 'f16',
  bfloat16: 'bf16',
  int64: 'i64',
  int32: 'i32',
  int16: 'i16',
  int8: 'i8',
  uint8: 'u8',
  bool: 'bool',
  complex64: 'c64',
  complex128: 'c128'
};

export function dtype(name: string): string {
  return DTYPES[name.replace('torch.', '')] ?? name;
}

function oneShape(shape: Shape): string {
  return shape.length ? shape.join('×') : '()';
}

/** `f32 8×64`; several results separated by commas. */
export function tensorType(node: Pick<GraphNode, 'shape' | 'dtype'>): string {
  if (!node.shape) {
    return node.dtype ? dtype(node.dtype) : '';
  }
  const several = node.shape.some(size => size === null || Array.isArray(size)); // null: a result that nobody reads
  const shape = several
    ? (node.shape as (Shape | null)[])
        .filter(s => s !== null)
        .map(oneShape)
        .join(', ')
    : oneShape(node.shape as Shape);
  return `${dtype(node.dtype)} ${shape}`.trim();
}

const ITEM_BYTES: { [name: string]: number } = {
  float64: 8,
  int64: 8,
  complex64: 8,
  complex128: 16,
  float32: 4,
  int32: 4,
  float16: 2,
  bfloat16: 2,
  int16: 2,
  int8: 1,
  uint8: 1,
  bool: 1
};

/** Bytes of a node's result, or null where a size is symbolic or unknown. */
export function nodeBytes(node: Pick<GraphNode, 'shape' | 'dtype'>): number | null {
  const item = ITEM_BYTES[node.dtype];
  if (!node.shape || !item) {
    return null;
  }
  let n = item;
  for (const size of node.shape) {
    if (typeof size !== 'number') {
      return null;
    }
    n *= size;
  }
  return n;
}

/** `aten.add.Tensor` and `torch.add` as people say them: `add`. */
export function shortOp(op: string): string {
  const parts = op.replace(/^(aten|prims|torch\.nn\.functional|torch|operator|[Tt]ensor)\./, '').split('.');
  return parts[0] === 'nn' || parts[0] === 'functional' ? parts[parts.length - 1] : parts[0] || op;
}

/** What became of a cell, in a word. */
export const STATUS_WORDS: { [status in Status]: string } = words({
  compiled: 'compiled',
  partly: 'partly',
  eager: 'eager',
  nothing: 'nothing to compile',
  error: 'error'
});

export const ENGINE_NAMES: { [engine: string]: string } = words({
  eager: 'eager',
  tcompile: 'tcompile',
  torch: 'torch.compile'
});

export function engineName(engine: string): string {
  return ENGINE_NAMES[engine] ?? engine;
}

/** The name beside an engine's figure: `backend=inductor` where tcompile captured and another's backend compiled. */
/** What changed: `x.shape[0]`, `n`, or a relation of sizes. */
export function changed(r: { source: string; detail: string; kind: string }): string {
  if (r.source.includes(' ') && r.detail && !r.source.endsWith(r.detail)) {
    return t('{0} of {1}', r.detail, r.source);
  }
  return r.source && r.detail && !r.source.endsWith(r.detail)
    ? `${r.source}.${r.detail}`.replace('.[', '[')
    : r.source || r.detail || r.kind;
}

/** What changed as prose: names and relations are code, a description is not. */
export function changedCode(r: { source: string; detail: string; kind: string }): string {
  const what = changed(r);
  return !what.includes(' ') || /[<>=]/.test(what) ? `\`${what}\`` : what;
}

export function engineLabel(e: { engine: string; detail?: string }): string {
  return e.engine === 'tcompile' && e.detail ? e.detail : engineName(e.engine);
}

/** What a person calls a frame: `<module>.<loop at line 7>` is the loop at line 7. */
export function frameWords(name: string): string {
  // Of loops in loops the line of the innermost tells which.
  const loop = /^(.*?)(?:\.<loop at line \d+>)*\.<loop at line (\d+)>$/.exec(name);
  if (loop) {
    return loop[1] === '<module>'
      ? t('the loop at line {0}', loop[2])
      : t('the loop at line {0} in {1}', loop[2], loop[1]);
  }
  return name === '<module>' ? t('the cell') : name;
}

/** Where a line is, for people: `line 7` in the reported cell, `In[2] line 3` elsewhere. */
export function place(file: string, line: number | null | undefined, here: string): string {
  if (!line) {
    return file === here ? '' : file;
  }
  return file === here || !file ? t('line {0}', line) : t('{0} line {1}', file, line);
}

/** Bounds of a share that lie further apart are told. */
export const TOLD_APART = 0.1;

/** Between which shares a part lies that `seen` of `of` looks saw, with 95 % confidence (Wilson's score). */
export function shareBounds(seen: number, of: number): [number, number] {
  const z = 1.96;
  const [p, room] = [seen / of, (z * z) / of];
  const half = z * Math.sqrt((p * (1 - p)) / of + room / (4 * of));
  return [(p + room / 2 - half) / (1 + room), (p + room / 2 + half) / (1 + room)];
}
