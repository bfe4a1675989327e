/**
 * The switch in a notebook's toolbar: compile the active cell or not, and in which mode. It writes a comment on top of
 * the cell.
 */

import { NotebookPanel } from '@jupyterlab/notebook';
import { Widget } from '@lumino/widgets';

import { h } from '../dom';
import { modeOf, requestOf, withRequest } from './cells';
import { t } from '../texts';

const MODES = ['default', 'reduce-overhead', 'max-autotune', 'max-autotune-no-cudagraphs'];

export class CellSwitch extends Widget {
  private readonly toggle = h('button.tc-cell-switch-button', { type: 'button' }) as HTMLButtonElement;
  private readonly mode = h(
    'select.tc-cell-switch-mode',
    { 'aria-label': t('Mode of the compiled cell'), title: t('Mode of the compiled cell') },
    MODES.map(m => h('option', { value: m }, m))
  ) as HTMLSelectElement;
  private watched: any = null;

  constructor(
    private panel: NotebookPanel,
    private preferred: () => string,
    private onUse: () => void
  ) {
    super();
    this.addClass('tc-cell-switch');
    this.node.append(this.toggle, this.mode);
    this.toggle.addEventListener('click', () => this.flip());
    this.mode.addEventListener('change', () => this.write(this.mode.value));
    panel.content.activeCellChanged.connect(() => this.watch());
    this.watch();
  }

  /** Switches the active cell: compiled in the preferred mode, or as it was. */
  flip(): void {
    this.write(requestOf(this.source()) ? null : this.preferred());
  }

  private source(): string {
    const cell = this.panel.content.activeCell;
    return cell?.model.type === 'code' ? cell.model.sharedModel.getSource() : '';
  }

  private write(mode: string | null): void {
    const cell = this.panel.content.activeCell;
    if (cell?.model.type !== 'code') {
      return;
    }
    const before = cell.model.sharedModel.getSource();
    const after = withRequest(before, mode);
    if (after !== before) {
      // One change at the top keeps the cursor where it is.
      let same = 0;
      while (
        same < Math.min(before.length, after.length) &&
        before[before.length - 1 - same] === after[after.length - 1 - same]
      ) {
        same++;
      }
      cell.model.sharedModel.updateSource(0, before.length - same, after.slice(0, after.length - same));
    }
    this.draw();
    if (mode !== null) {
      this.onUse();
    }
  }

  private watch(): void {
    const model = this.panel.content.activeCell?.model ?? null;
    if (this.watched !== model) {
      this.watched?.contentChanged?.disconnect(this.draw, this);
      this.watched = model;
      model?.contentChanged.connect(this.draw, this);
    }
    this.draw();
  }

  private draw(): void {
    const code = this.panel.content.activeCell?.model.type === 'code';
    const request = requestOf(this.source());
    this.toggle.disabled = !code;
    this.toggle.setAttribute('aria-pressed', String(request !== null));
    this.toggle.textContent = request ? t('● compiled') : t('○ compile cell');
    this.toggle.title = request
      ? t('This cell is compiled. Click to take the request away')
      : t('Compile this cell: writes # tcompile: on top of it');
    this.mode.hidden = !request;
    this.mode.value = request ? modeOf(request.options) : 'default';
  }

  dispose(): void {
    this.watched?.contentChanged?.disconnect(this.draw, this);
    super.dispose();
  }
}
