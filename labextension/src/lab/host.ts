/** A notebook as the host of the reports in it: their questions go to its kernel, their remedies into its cells. */

import { ICodeCellModel } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';

import { Host, HOST_EVENT, HostRequest } from '../host';
import { KernelLink } from './kernel';

/** Opens a place in a report of the same notebook as `near`: "breaks/0", "overview". False where the report is not shown. */
export function openPlace(near: Element, report: string, ref: string): boolean {
  for (const output of near.closest('.jp-Notebook')?.querySelectorAll<HTMLElement>('.tc-output') ?? []) {
    if (output.dataset.report === report) {
      output.dispatchEvent(new CustomEvent('tcompile-go', { detail: ref }));
      output.scrollIntoView({ block: 'nearest', behavior: 'smooth' });
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
      apply: (place, before, after) => replaceLine(panel, output, place, before, after)
    };
    event.stopPropagation();
  });
}

type Place = Parameters<NonNullable<Host['apply']>>[0];

/** The cell that a report names: by its execution count, or the one above the report. */
function replaceLine(panel: NotebookPanel, output: Element | null, place: Place, before: string, after: string): boolean {
  const widgets = panel.content.widgets;
  const own = widgets.find(w => w.node === output);
  const numbered = place.cell === null ? own : widgets.find(w => (w.model as ICodeCellModel).executionCount === place.cell) ?? own;
  for (const cell of new Set([own, numbered])) {
    const model = cell?.model.sharedModel;
    const lines = model?.getSource().split('\n') ?? [];
    const at = [place.line - 1, ...lines.keys()].find(i => lines[i]?.trim() === before.trim());
    if (model && at !== undefined) {
      const indent = /^\s*/.exec(lines[at])![0];
      const start = lines.slice(0, at).reduce((n, line) => n + line.length + 1, 0);
      const fresh = after.split('\n').map(line => indent + line).join('\n');
      model.updateSource(start, start + lines[at].length, fresh);
      panel.content.activeCellIndex = widgets.indexOf(cell!);
      return true;
    }
  }
  return false;
}
