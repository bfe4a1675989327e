/** Making elements. User text goes in as text nodes only: no function here takes markup. */

import { t } from './texts';

export type Child = Node | string | number | null | undefined | false | Child[];
export type Attributes = { [name: string]: any };

const SVG = 'http://www.w3.org/2000/svg';

function fill(element: Element, attributes: Attributes, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) {
      continue;
    }
    if (name.startsWith('on') && typeof value === 'function') {
      element.addEventListener(name.slice(2), value);
    } else if (name === 'style' && typeof value === 'object') {
      for (const [key, text] of Object.entries(value)) {
        (element as HTMLElement).style.setProperty(key, String(text));
      }
    } else {
      element.setAttribute(name, value === true && !name.startsWith('aria-') ? '' : String(value));
    }
  }
  append(element, children);
}

export function append(element: Element, children: Child[]): void {
  for (const child of children) {
    if (Array.isArray(child)) {
      append(element, child);
    } else if (child instanceof Node) {
      element.appendChild(child);
    } else if (child !== null && child !== undefined && child !== false) {
      element.appendChild(document.createTextNode(String(child)));
    }
  }
}

/** `h('div.tc-a.tc-b', {title: ''}, child, ...)` */
export function h(selector: string, attributes?: Attributes | null, ...children: Child[]): HTMLElement {
  const [tag, ...classes] = selector.split('.');
  const element = document.createElement(tag);
  if (classes.length) {
    element.className = classes.join(' ');
  }
  fill(element, attributes ?? {}, children);
  return element;
}

export function svg(selector: string, attributes?: Attributes | null, ...children: Child[]): SVGElement {
  const [tag, ...classes] = selector.split('.');
  const element = document.createElementNS(SVG, tag);
  if (classes.length) {
    element.setAttribute('class', classes.join(' '));
  }
  fill(element, attributes ?? {}, children);
  return element;
}

export function clear(element: Element): void {
  element.replaceChildren();
}

/** `code` spans where text holds `backticks`; everything else as it is. */
export function prose(text: string): Child[] {
  return text
    .split(/(`[^`]+`)/)
    .map(part =>
      part.length > 2 && part.startsWith('`') && part.endsWith('`') ? h('code', null, part.slice(1, -1)) : part
    );
}

export function section(title: Child, ...children: Child[]): HTMLElement {
  return h('section.tc-section', null, h('h3.tc-heading', null, title), ...children);
}

/** An empty state says why there is nothing and, where it helps, what would bring something. */
export function empty(text: string): HTMLElement {
  return h('p.tc-empty', null, ...prose(text));
}

export function button(label: Child, attributes: Attributes, act: (event: Event) => void): HTMLButtonElement {
  return h('button.tc-button', { type: 'button', ...attributes, onclick: act }, label) as HTMLButtonElement;
}

export interface Column<T> {
  title: string;
  cell: (row: T) => Child;
  /** Numbers align right. */
  number?: boolean;
  /** A word or two that must not wrap. */
  short?: boolean;
  /** Left out where there is little room: other columns say the most of it. */
  roomy?: boolean;
  hint?: string;
}

export interface TableOptions<T> {
  label: string;
  onRow?: (row: T, index: number) => void;
  rowAttributes?: (row: T, index: number) => Attributes;
  /** Rows shown before "show all". */
  limit?: number;
}

function cell(tag: string, column: Column<any>): string {
  return tag + (column.number ? '.tc-number' : column.short ? '.tc-short' : '') + (column.roomy ? '.tc-roomy' : '');
}

/** Long names may break behind their dots and underscores, as words do: not in the middle of one. */
function breakable(element: HTMLElement): HTMLElement {
  for (const code of element.querySelectorAll('code')) {
    const text = code.childNodes.length === 1 && code.firstChild instanceof Text ? code.firstChild.data : '';
    const parts = text.split(/(?<=[_.])(?=[^_.])/);
    if (parts.length > 1) {
      code.replaceChildren(...parts.flatMap((part, i) => (i ? [document.createElement('wbr'), part] : [part])));
    }
  }
  return element;
}

/** A table with a header; rows can be activated by pointer and keyboard where `onRow` is given. */
export function table<T>(columns: Column<T>[], rows: T[], options: TableOptions<T>): HTMLElement {
  const limit = options.limit ?? 200;
  const body = h('tbody');
  const add = (from: number, to: number) => {
    for (let i = from; i < Math.min(to, rows.length); i++) {
      const row = rows[i];
      const attributes: Attributes = { ...options.rowAttributes?.(row, i) };
      if (options.onRow) {
        const act = () => options.onRow!(row, i);
        attributes.tabindex = 0;
        attributes.onclick = act;
        attributes.onkeydown = (event: KeyboardEvent) => {
          if (event.key === 'Enter' || event.key === ' ') {
            event.preventDefault();
            act();
          }
        };
      }
      body.appendChild(
        h(
          options.onRow ? 'tr.tc-clickable' : 'tr',
          attributes,
          columns.map(c => breakable(h(cell('td', c), null, c.cell(row))))
        )
      );
    }
  };
  add(0, limit);
  const head = h(
    'tr',
    null,
    columns.map(c => h(cell('th', c), { scope: 'col', title: c.hint }, c.title))
  );
  const wrap = h(
    'div.tc-table-wrap',
    { tabindex: 0, role: 'region', 'aria-label': options.label },
    h('table.tc-table', { 'aria-label': options.label }, h('thead', null, head), body)
  );
  if (rows.length <= limit) {
    return wrap;
  }
  const more = button(t('show all {0}', rows.length), { class: 'tc-button' }, () => {
    add(limit, rows.length);
    more.remove();
  });
  return h('div', null, wrap, more);
}

/** Save a text as a file of the reader's. */
export function download(name: string, text: string, type: string): void {
  const link = h('a', { href: URL.createObjectURL(new Blob([text], { type })), download: name }) as HTMLAnchorElement;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
