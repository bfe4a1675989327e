/**
 * What a report may ask of the place that it is shown in: the kernel's answers, and the cell's text.
 *
 * The views know no JupyterLab. A report's element raises `tcompile-host`; whoever can answer (lab/host.ts, a widget)
 * gives a Host. Without one the controls that need a kernel are not there, and nothing else is missing.
 */

import { Fix } from './schema';

export interface Host {
  /** The kernel's answer; rejects with one sentence. `say` gets words of progress. */
  ask: (question: string, facts: { [name: string]: any }, say?: (text: string) => void) => Promise<any>;
  /** Interrupts what the kernel does; absent where the frontend's own button has to. */
  stop?: () => void;
  /** Whether the cell that the element belongs to is running. */
  busy?: () => boolean;
  /** Changes lines of a cell where they still read as expected; false where they do not. */
  apply?: (fix: Fix, cell: number | null) => boolean;
  /** Gives options to a cell, on its first line; false where there is no such cell. */
  set?: (settings: { [name: string]: any }, cell: number | null) => boolean;
  /** Runs the cell. */
  runAgain?: (cell: number | null) => void;
}

export const HOST_EVENT = 'tcompile-host';

export interface HostRequest {
  host: Host | null;
}

/** The host of an element that is in the document, or null. */
export function hostOf(element: Element): Host | null {
  const detail: HostRequest = { host: null };
  element.dispatchEvent(new CustomEvent(HOST_EVENT, { bubbles: true, detail }));
  return detail.host;
}
