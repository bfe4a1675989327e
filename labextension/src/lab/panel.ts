/**
 * The side panel: every compiled function of the current notebook's kernel, the switch for all cells, the disk cache.
 */

import { NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { Widget } from '@lumino/widgets';

import { append, button, Child, clear, h, section } from '../dom';
import { comparison } from '../figures';
import { bytes, count, plural, seconds } from '../format';
import { openPlace } from './host';
import { compilerIcon } from './icon';
import { CompiledFunction, KernelLink } from './kernel';
import { t, words } from '../texts';

const SYMBOLS: { [status in CompiledFunction['status']]: string } = { compiled: '●', limit: '○', skipped: '·' };
const STATUS_WORDS: { [status in CompiledFunction['status']]: string } = words({
  compiled: 'compiled',
  limit: 'eager',
  skipped: 'eager'
});

export class CompilerPanel extends Widget {
  private panel: NotebookPanel | null = null;
  private link: KernelLink | null = null;
  private filter = '';
  private error = '';
  private readonly head = h('div.tc-side-head');
  private readonly list = h('div.tc-side-list', { role: 'list', 'aria-label': t('Compiled functions') });
  private readonly foot = h('div.tc-side-foot');
  private readonly search = h('input.tc-input', {
    type: 'search',
    placeholder: t('filter by name or file'),
    'aria-label': t('Filter functions')
  }) as HTMLInputElement;

  constructor() {
    super();
    this.id = 'tcompile-compiler';
    this.title.icon = compilerIcon;
    this.title.caption = t('Compiler: what is compiled in this kernel');
    this.addClass('tc-report');
    this.addClass('tc-side');
    this.search.addEventListener('input', () => {
      this.filter = this.search.value.toLowerCase();
      this.drawList();
    });
    this.node.append(this.head, this.search, this.list, this.foot);
    // The kernel tells of a run before the cell has its number.
    NotebookActions.executed.connect(this.onExecuted, this);
    this.draw();
  }

  dispose(): void {
    NotebookActions.executed.disconnect(this.onExecuted, this);
    super.dispose();
  }

  private onExecuted(): void {
    if (this.link?.state) {
      this.drawList();
    }
  }

  /** The notebook whose kernel is shown; null where none is open. */
  follow(panel: NotebookPanel | null, link: KernelLink | null): void {
    this.link?.changed.disconnect(this.draw, this);
    this.panel = panel;
    this.link = link;
    this.error = '';
    link?.changed.connect(this.draw, this);
    this.draw();
  }

  private async act(question: string, facts: { [name: string]: any } = {}): Promise<void> {
    this.error = '';
    try {
      await this.link?.ask(question, facts);
    } catch (error) {
      this.error = error instanceof Error ? error.message : String(error);
    }
    this.draw();
  }

  private draw(): void {
    const { link } = this;
    clear(this.head);
    clear(this.foot);
    const name = this.panel?.title.label ?? '';
    append(this.head, [h('h3.tc-heading', null, t('Compiler')), name ? h('span.tc-muted', null, name) : null]);
    const ready = link?.status === 'ready' && link.state;
    this.search.hidden = !ready;
    if (!ready) {
      clear(this.list);
      append(this.list, [this.waiting()]);
      return;
    }
    const state = link!.state!;
    const mode = h(
      'select.tc-select',
      { 'aria-label': t('Mode for every cell') },
      state.modes.map(m => h('option', { value: m, selected: (state.on?.mode ?? 'default') === m }, m))
    ) as HTMLSelectElement;
    mode.onchange = () => state.on && void this.act('on', { line: `mode=${mode.value}` });
    const box = h('input', { type: 'checkbox', checked: state.on !== null }) as HTMLInputElement;
    box.onchange = () => void this.act(box.checked ? 'on' : 'off', { line: `mode=${mode.value}` });
    append(this.head, [
      h('div.tc-side-switch', null, h('label', null, box, t(' compile every cell')), mode),
      this.error ? h('p.tc-error', { role: 'alert' }, this.error) : null
    ]);
    this.drawList();
    const { cache } = state;
    const changed = Object.entries(state.changed);
    append(this.foot, [
      cache
        ? section(
            t('Disk cache'),
            h(
              'div.tc-side-cache',
              { title: cache.folder },
              h(
                'span.tc-side-meter',
                { role: 'img', 'aria-label': t('{0} of {1}', bytes(cache.bytes), bytes(cache.limit_bytes)) },
                h('span', {
                  style: { width: `${Math.min(100, (100 * cache.bytes) / Math.max(1, cache.limit_bytes))}%` }
                })
              ),
              h(
                'span',
                null,
                t(
                  '{0}, {1} of {2}{3}',
                  plural(cache.kernels, 'kernel'),
                  bytes(cache.bytes),
                  bytes(cache.limit_bytes),
                  cache.on ? '' : t(' (off)')
                )
              )
            ),
            button(t('clear'), { title: t('Delete the compiled kernels on disk') }, () => void this.act('clear_cache'))
          )
        : null,
      changed.length
        ? section(t('Options that were changed'), h('code', null, changed.map(([k, v]) => `${k}=${v}`).join('  ')))
        : null,
      section(
        t('This kernel'),
        h('p', null, t('{0} ran through the compiler', plural(state.cells, 'cell'))),
        button(
          t('forget all entries'),
          { title: t('What is compiled in this kernel is compiled anew at its next call') },
          () => void this.act('reset')
        )
      )
    ]);
  }

  private waiting(): Child {
    const { link } = this;
    if (!link || link.status === 'no kernel') {
      return h('p.tc-empty', null, link ? t('No kernel is running.') : t('No notebook is open.'));
    }
    if (link.status === 'unknown') {
      return h('p.tc-empty', null, t('Waiting for the kernel …'));
    }
    return h(
      'div',
      null,
      h(
        'p.tc-empty',
        null,
        t('tcompile is not loaded in this kernel. Write '),
        h('code', null, '%load_ext tcompile'),
        t(' in a cell, or')
      ),
      button(t('load it now'), {}, () =>
        link.load().catch(error => {
          this.error = error.message;
          clear(this.list);
          append(this.list, [this.waiting(), h('p.tc-error', { role: 'alert' }, this.error)]);
        })
      )
    );
  }

  private drawList(): void {
    const all = this.link?.state?.functions ?? [];
    const rows = all.filter(f => !this.filter || `${f.name} ${f.file}`.toLowerCase().includes(this.filter));
    const replaced = new Set(rows.filter(f => this.wasReplaced(f)));
    const current = rows.filter(f => !replaced.has(f));
    clear(this.list);
    append(this.list, [
      section(
        t('Functions {0}', all.length ? count(all.length - replaced.size) : ''),
        current.map(f => this.row(f))
      ),
      replaced.size
        ? h(
            'details.tc-side-replaced',
            null,
            h('summary', null, t('{0} of cells that ran again, or are gone', count(replaced.size))),
            [...replaced].map(f => this.row(f))
          )
        : null,
      all.length
        ? rows.length
          ? null
          : h('p.tc-empty', null, t('None matches the filter.'))
        : h(
            'p.tc-empty',
            null,
            t('Nothing is compiled yet: put {0} on top of a cell, or switch on “compile every cell”.', '%%tcompile')
          )
    ]);
  }

  private row(f: CompiledFunction): HTMLElement {
    const facts = [
      f.entries ? plural(f.entries, 'entry', 'entries') : '',
      plural(f.calls, 'call'),
      f.breaks ? plural(f.breaks, 'break') : '',
      f.recompiles ? t('recompiled {0}×', f.recompiles) : '',
      f.mode !== 'default' ? f.mode : '',
      f.backend !== 'tcompile' ? f.backend : ''
    ]
      .filter(Boolean)
      .join(' · ');
    const saved = f.saved_seconds;
    const gain = f.ratio ? comparison({ ratio: f.ratio, lo: f.lo ?? f.ratio, hi: f.hi ?? f.ratio }) : null;
    return h(
      'div.tc-side-row',
      { role: 'listitem' },
      h(
        'div',
        null,
        h(
          `span.tc-status-${f.status === 'compiled' ? 'compiled' : 'eager'}`,
          { title: STATUS_WORDS[f.status] },
          h('span.tc-symbol', null, SYMBOLS[f.status] ?? '·')
        ),
        ' ',
        h(
          'button.tc-link',
          { type: 'button', title: t('Show the cell and its report'), onclick: () => this.reveal(f) },
          f.name
        ),
        ' ',
        gain
      ),
      h('div.tc-muted', null, `${f.file}:${f.line}`, this.beginning(f)),
      h('div.tc-muted', null, facts),
      saved !== null
        ? h(
            'div.tc-muted',
            null,
            saved >= 0 ? t('saved {0} so far', seconds(saved)) : t('cost {0} so far', seconds(-saved)),
            f.compile_seconds ? t(', {0} to compile', seconds(f.compile_seconds)) : ''
          )
        : null,
      f.reason ? h('div.tc-side-reason', null, f.reason) : null
    );
  }

  /** How a function's cell begins: by that its reader knows it. */
  private beginning(f: CompiledFunction): Child {
    const cell = this.cellOf(f);
    const line = cell?.model.sharedModel
      .getSource()
      .split('\n')
      .find(l => l.trim() && !/^(%|# tcompile:)/.test(l));
    return line ? [' · ', h('code', null, line.trim())] : null;
  }

  /**
   * Whether a function's cell has run again since, or is gone. A cell that has just run may not have its number yet.
   */
  private wasReplaced(f: CompiledFunction): boolean {
    if (f.cell === null || !this.panel || this.cellOf(f)) {
      return false;
    }
    const counts = this.panel.content.widgets.map(w => Number((w.model as any).executionCount) || 0);
    return f.cell <= Math.max(0, ...counts);
  }

  private cellOf(f: CompiledFunction) {
    return f.cell === null
      ? undefined
      : this.panel?.content.widgets.find(w => w.model.type === 'code' && (w.model as any).executionCount === f.cell);
  }

  private reveal(f: CompiledFunction): void {
    const { panel } = this;
    if (!panel) {
      return;
    }
    if (f.report && openPlace(panel.content.node, f.report, 'overview')) {
      return;
    }
    const cell = this.cellOf(f);
    if (cell) {
      panel.content.activeCellIndex = panel.content.widgets.indexOf(cell);
      void panel.content.scrollToItem(panel.content.activeCellIndex);
    }
  }
}
