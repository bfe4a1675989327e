/** What a tab is: made when it is first opened, told when it is thrown away. */

import { Model } from '../selection';

export interface ViewContext {
  model: Model;
  /** Opens the place that a ref names: "breaks/0", "kernels/2", "speed". */
  go: (ref: string) => void;
  /** What survives closing and reopening, and JupyterLab's re-attaching of a cell. */
  memory: { [key: string]: any };
  /** Draws another report, as JSON, in the place of this one; what was open stays open. */
  replace: (json: any) => void;
}

export interface View {
  element: HTMLElement;
  dispose: () => void;
  /** It is in the document now: called each time its tab is opened. */
  shown?: () => void;
  /** Bring one of its things into view. */
  reveal?: (kind: string, index: number) => void;
}
