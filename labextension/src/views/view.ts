/** What a tab is: made when it is first opened, told when it is thrown away. */

import { Model } from '../selection';

export interface ViewContext {
  model: Model;
  /** Opens the place that a ref names: "breaks/0", "kernels/2", "speed". */
  go: (ref: string) => void;
  /** What survives closing and reopening, and JupyterLab's re-attaching of a cell. */
  memory: { [key: string]: any };
}

export interface View {
  element: HTMLElement;
  dispose: () => void;
  /** Bring one of its things into view. */
  reveal?: (kind: string, index: number) => void;
}
