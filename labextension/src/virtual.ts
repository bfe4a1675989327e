/** A list of equal rows of which only the visible ones exist in the document: 10,000 rows scroll as ten do. */

import { clear, h } from './dom';

export interface VirtualOptions {
  label: string;
  rowHeight: number;
  count: number;
  /** Fills a row's element. */
  row: (index: number, element: HTMLElement) => void;
  onRow: (index: number) => void;
}

export class VirtualList {
  readonly element: HTMLElement;
  private inner: HTMLElement;
  private active = -1;
  private marked = new Set<number>();
  private shown: [number, number] = [0, 0];
  /** The row to begin at once the list is in the document: before that it cannot scroll. */
  private first: number | null = null;
  private static serial = 0;
  private prefix = `tc-virtual-${VirtualList.serial++}`;

  constructor(private options: VirtualOptions) {
    this.inner = h('div.tc-virtual-inner', { role: 'presentation' });
    this.element = h('div.tc-virtual', { tabindex: 0, role: 'listbox', 'aria-label': options.label }, this.inner);
    this.element.addEventListener('scroll', () => this.draw(false), { passive: true });
    this.element.addEventListener('keydown', event => this.key(event));
    this.element.addEventListener('click', event => {
      const row = (event.target as Element).closest<HTMLElement>('[data-row]');
      if (row) {
        this.activate(Number(row.dataset.row));
      }
    });
    new ResizeObserver(() => {
      if (this.first !== null && this.element.clientHeight) {
        this.element.scrollTop = this.first * this.options.rowHeight;
        this.first = null;
      }
      this.draw(true);
    }).observe(this.element);
    this.resize(options.count);
  }

  resize(count: number): void {
    this.options.count = count;
    this.inner.style.height = `${count * this.options.rowHeight}px`;
    this.draw(true);
  }

  /** Mark rows and bring the first of them into view. */
  mark(rows: number[], scroll: boolean): void {
    this.marked = new Set(rows);
    if (rows.length) {
      this.active = rows[0];
      if (scroll) {
        this.reveal(rows[0]);
      }
    }
    this.draw(true);
  }

  /** Begin at a row, where nothing is chosen. */
  startAt(row: number): void {
    this.first = row;
  }

  private reveal(row: number): void {
    const { rowHeight } = this.options;
    if (!this.element.clientHeight) {
      this.first = Math.max(0, row - 3);
      return;
    }
    const top = row * rowHeight;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop || top + rowHeight > scrollTop + clientHeight) {
      this.element.scrollTop = Math.max(0, top - clientHeight / 3);
    }
  }

  private activate(row: number): void {
    this.active = row;
    this.reveal(row);
    this.options.onRow(row);
    this.draw(true);
  }

  private key(event: KeyboardEvent): void {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.options.rowHeight) - 1);
    const steps: { [key: string]: number } = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -Infinity,
      End: Infinity
    };
    if (event.key in steps) {
      event.preventDefault();
      event.stopPropagation();
      this.activate(Math.max(0, Math.min(this.options.count - 1, this.active + steps[event.key])));
    }
  }

  private draw(force: boolean): void {
    const { rowHeight, count } = this.options;
    const from = Math.max(0, Math.floor(this.element.scrollTop / rowHeight) - 8);
    const to = Math.min(
      count,
      Math.ceil((this.element.scrollTop + (this.element.clientHeight || 400)) / rowHeight) + 8
    );
    if (!force && from === this.shown[0] && to === this.shown[1]) {
      return;
    }
    this.shown = [from, to];
    clear(this.inner);
    for (let i = from; i < to; i++) {
      const row = h(this.marked.has(i) ? 'div.tc-row.tc-selected' : 'div.tc-row', {
        role: 'option',
        id: `${this.prefix}-${i}`,
        'data-row': i,
        'aria-selected': this.marked.has(i),
        style: { top: `${i * rowHeight}px`, height: `${rowHeight}px` }
      });
      this.options.row(i, row);
      this.inner.appendChild(row);
    }
    if (this.active >= from && this.active < to) {
      this.element.setAttribute('aria-activedescendant', `${this.prefix}-${this.active}`);
    } else {
      this.element.removeAttribute('aria-activedescendant');
    }
  }
}
