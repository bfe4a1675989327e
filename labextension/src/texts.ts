/**
 * Every text that a reader sees, through one door. The English text is its own key, as in gettext: `t('{0} of {1}', 2,
 * 3)`.
 *
 * `texts/tcompile.pot` lists all of them (`jlpm texts` writes it, a test holds it): that file is what a translator
 * translates. In JupyterLab the translations come from the language pack's domain `tcompile` (index.ts); a page or a
 * widget calls `setTranslator`. What users wrote, and sentences that the kernel put into the report, pass through as
 * they are.
 */

/** Gives the translation of an English text, or the text itself. `many` and `n` choose among plural forms. */
export type Translator = (text: string, many?: string, n?: number) => string;

const english: Translator = (text, many, n) => (many !== undefined && n !== 1 ? many : text);

let translate: Translator = english;

/** From now on texts are looked up with `translator`; null: English. What is drawn already stays as it is. */
export function setTranslator(translator: Translator | null): void {
  translate = translator ?? english;
}

function fill(text: string, values: unknown[]): string {
  return text.replace(/\{(\d+)\}/g, (whole, i) => (Number(i) < values.length ? String(values[Number(i)]) : whole));
}

/**
 * The text in the reader's language (no text holds `%%` or `%1`, which gettext takes for its own), with `{0}`, `{1}`,
 * ... replaced. Spaces around it are the sentence's, not the translator's.
 */
export function t(text: string, ...values: unknown[]): string {
  const [, before, inner, after] = /^(\s*)([\s\S]*?)(\s*)$/.exec(text)!;
  return before + fill(translate(inner), values) + after;
}

/**
 * As `t` for a text with a number in it, `{0}`: `tn('{0} kernel', '{0} kernels', 3)`. `shown` is the number as written.
 */
export function tn(one: string, many: string, n: number, shown: string = String(n)): string {
  return fill(translate(one, many, n), [shown]);
}

/** A table of words, translated whenever one is looked up: tables are made before the language is known. */
export function words<T extends { [name: string]: any }>(table: T): T {
  return new Proxy(table, {
    get: (target, name) =>
      typeof target[name as string] === 'string' ? t(target[name as string]) : target[name as string]
  });
}
