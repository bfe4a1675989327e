/** What the labextension adds to JupyterLab besides the renderer (mime.ts): marks in the gutter of a cell's editor. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IEditorExtensionRegistry } from '@jupyterlab/codemirror';
import { INotebookTracker } from '@jupyterlab/notebook';

import { CellMarks, marksExtension } from './gutter';

const gutter: JupyterFrontEndPlugin<void> = {
  id: 'tcompile-lab:gutter',
  description: 'Marks the lines of a cell: compiled, eager, graph break, pinned a guard.',
  autoStart: true,
  requires: [IEditorExtensionRegistry, INotebookTracker],
  activate: (app: JupyterFrontEnd, editors: IEditorExtensionRegistry, notebooks: INotebookTracker) => {
    editors.addExtension(marksExtension());
    notebooks.widgetAdded.connect((_, panel) => new CellMarks(panel));
    notebooks.forEach(panel => new CellMarks(panel));
  }
};

export default [gutter];
