/**
 * Follows the outputs of one notebook: marks in the gutters and badges on the cells are taken from the reports among
 * them.
 *
 * The outputs are the only source, so that both are there again when a notebook is reopened without a kernel.
 */

import { ICodeCellModel } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';

import { Outline, outlineOf } from '../payload';
import { MIME } from '../schema';
import { BadgeFacts, setBadge } from './badge';
import { PlacedMark, store } from './gutter';
import { openPlace } from './host';

export interface Shown {
  marks: boolean;
  badges: boolean;
}

export class Outputs {
  private known = new WeakMap<object, Promise<Outline>>();
  private watched = new WeakSet<object>();
  private badges = new Map<ICodeCellModel, BadgeFacts>();
  private pending = false;

  constructor(
    private panel: NotebookPanel,
    private shown: Shown
  ) {
    void panel.context.ready.then(() => {
      panel.content.model?.cells.changed.connect(() => this.schedule());
      this.schedule();
    });
  }

  /** The settings changed. */
  show(shown: Shown): void {
    this.shown = shown;
    this.schedule();
  }

  private schedule(): void {
    if (!this.pending) {
      this.pending = true;
      setTimeout(() => {
        this.pending = false;
        void this.refresh();
      }, 50);
    }
  }

  private codeCells(): ICodeCellModel[] {
    const cells = this.panel.content?.model?.cells;
    return cells ? (Array.from(cells).filter(c => c.type === 'code') as ICodeCellModel[]) : [];
  }

  private async refresh(): Promise<void> {
    const cells = this.codeCells();
    const placed = new Map<ICodeCellModel, PlacedMark[]>(cells.map(c => [c, []]));
    this.badges.clear();
    for (const cell of cells) {
      if (!this.watched.has(cell)) {
        this.watched.add(cell);
        cell.outputs.changed.connect(() => this.schedule());
      }
      const reports: any[] = Array.from(
        { length: cell.outputs.length },
        (_, i) => cell.outputs.get(i).data[MIME] as any
      ).filter(raw => raw && typeof raw === 'object');
      const ours = reports.filter(raw => !raw.options?.engine); // beside them stands what stock makes of the same cell
      for (const raw of ours.length ? ours : reports) {
        let outline = this.known.get(raw);
        if (!outline) {
          outline = outlineOf(raw);
          this.known.set(raw, outline);
        }
        const { marks, id, lines, first, cell: own, file, summary, gain } = await outline;
        if (summary) {
          this.badges.set(cell, { report: id, summary, gain });
        }
        for (const mark of this.shown.marks ? marks : []) {
          // A function of a module has lines of its own file: those are no cell's.
          const mine =
            mark.cell === null
              ? (!mark.file || mark.file === file) && cell.sharedModel.getSource().startsWith(lines[0] ?? '')
              : mark.cell === own;
          const home = mine ? cell : cells.find(c => c.executionCount === mark.cell);
          if (home) {
            placed.get(home)?.push({ ...mark, report: id, code: home === cell ? lines[mark.line - first] : undefined });
          }
        }
      }
    }
    placed.forEach((marks, cell) => store.set(cell, marks));
    for (const widget of this.panel.content.widgets) {
      const facts = this.shown.badges ? (this.badges.get(widget.model as ICodeCellModel) ?? null) : null;
      void widget.ready.then(() => {
        if (!widget.isDisposed) {
          setBadge(widget, facts, target => openPlace(target, facts?.report ?? '', 'overview'));
        }
      });
    }
  }
}
