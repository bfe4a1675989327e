/** A notebook as the host of the reports in it: their questions go to its kernel, their remedies into its cells. */

import { Cell, ICodeCellModel } from '@jupyterlab/cells';
import { NotebookActions, NotebookPanel } from '@jupyterlab/notebook';

import { HOST_EVENT, HostRequest } from '../host';
import { Fix } from '../schema';
import { withSettings } from './cells';
import { KernelLink } from './kernel';

/**
 * Opens a place in a report of the same notebook as `near`: "breaks/0", "overview". False where the report is not
 * shown.
 */
export function openPlace(near: Element, report: string, ref: string): boolean {
  for (const output of near.closest('.jp-Notebook')?.querySelectorAll<HTMLElement>('.tc-output') ?? []) {
    if (output.dataset.report === report) {
      output.dispatchEvent(new CustomEvent('tcompile-go', { detail: ref }));
      output.scrollIntoView({
        block: 'nearest',
        behavior: matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth'
      });
      return true;
    }
  }
  return false;
}

export function hostReports(panel: NotebookPanel, link: KernelLink): void {
  panel.node.addEventListener(HOST_EVENT, event => {
    const request = (event as CustomEvent<HostRequest>).detail;
    const output = (event.target as Element).closest('.jp-Cell');
    request.host = {
      ask: (question, facts, say) => link.ask(question, facts, say),
      stop: () => link.stop(),
      busy: () => {
        // The cell's own state: the kernel's status is idle at times while a cell runs, and busy for another cell at
        // others.
        const cell = panel.content.widgets.find(w => w.node === output);
        return (cell?.model as ICodeCellModel | undefined)?.executionState === 'running';
      },
      apply: (fix, cell) => applyFix(panel, output, fix, cell),
      set: (settings, count) => {
        const cell = reported(panel, output, count);
        cell?.model.sharedModel.setSource(withSettings(cell.model.sharedModel.getSource(), settings));
        return !!cell;
      },
      runAgain: count => {
        const cell = reported(panel, output, count);
        if (cell) {
          panel.content.activeCellIndex = panel.content.widgets.indexOf(cell);
          void NotebookActions.run(panel.content, panel.sessionContext);
        }
      }
    };
    event.stopPropagation();
  });
}

/** The cell that holds the report. */
function ownCell(panel: NotebookPanel, output: Element | null): Cell | undefined {
  return panel.content.widgets.find(w => w.node === output);
}

/** The cell that a report is about: by its execution count, or the one that holds the report. */
function reported(panel: NotebookPanel, output: Element | null, count: number | null): Cell | undefined {
  const numbered = panel.content.widgets.find(
    w => count !== null && (w.model as ICodeCellModel).executionCount === count
  );
  return numbered ?? ownCell(panel, output);
}

/** Changes the cell that a report names: by its execution count, or the one above the report. */
function applyFix(panel: NotebookPanel, output: Element | null, fix: Fix, count: number | null): boolean {
  const widgets = panel.content.widgets;
  const own = ownCell(panel, output);
  const numbered = reported(panel, output, count);
  const old = fix.old.split('\n').map(line => line.trimEnd());
  for (const cell of new Set([numbered, own])) {
    const model = cell?.model.sharedModel;
    const lines = model?.getSource().split('\n') ?? [];
    const reads = (i: number) => old.every((line, k) => lines[i + k]?.trimEnd() === line);
    const at = [fix.start - 1, ...lines.keys()].find(reads);
    if (model && at !== undefined) {
      const start = lines.slice(0, at).reduce((n, line) => n + line.length + 1, 0);
      const length = lines.slice(at, at + old.length).join('\n').length;
      model.updateSource(start, start + length, fix.new);
      panel.content.activeCellIndex = widgets.indexOf(cell!);
      return true;
    }
  }
  return false;
}
