/**
 * What the labextension adds to JupyterLab besides the renderer (mime.ts): marks in the gutter, a badge on each cell, help on options,
 * the switch in the toolbar, the side panel, commands and settings.
 */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { IEditorExtensionRegistry } from '@jupyterlab/codemirror';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';

import { marksExtension } from './lab/gutter';
import { helpExtension } from './lab/hover';
import { hostReports, openPlace } from './lab/host';
import { KernelLink } from './lab/kernel';
import { Outputs } from './lab/outputs';
import { CompilerPanel } from './lab/panel';
import { CellSwitch } from './lab/toolbar';

const ID = 'tcompile-lab:plugin';

interface Attached {
  link: KernelLink;
  outputs: Outputs;
  toggle: CellSwitch;
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'Marks, badges, the side panel and commands of tcompile.',
  autoStart: true,
  requires: [IEditorExtensionRegistry, INotebookTracker],
  optional: [ICommandPalette, ISettingRegistry],
  activate: (
    app: JupyterFrontEnd, editors: IEditorExtensionRegistry, notebooks: INotebookTracker,
    palette: ICommandPalette | null, registry: ISettingRegistry | null
  ) => {
    const attached = new Map<NotebookPanel, Attached>();
    const settings = { marks: true, badges: true, mode: 'default' };
    const side = new CompilerPanel();

    editors.addExtension(marksExtension());
    editors.addExtension(helpExtension());

    const ensureLoaded = async (link: KernelLink) => {
      if (link.status === 'absent') {
        await link.load().then(
          () => Notification.info('tcompile was loaded into this kernel. Keep “%load_ext tcompile” in a cell to have it at the next start.', { autoClose: 6000 }),
          error => Notification.warning(`tcompile: ${error.message}`)
        );
      }
    };

    const attach = (panel: NotebookPanel) => {
      const link = new KernelLink(panel.sessionContext);
      const outputs = new Outputs(panel, settings);
      const toggle = new CellSwitch(panel, () => settings.mode, () => void ensureLoaded(link));
      hostReports(panel, link);
      panel.toolbar.insertBefore('spacer', 'tcompile', toggle);
      attached.set(panel, { link, outputs, toggle });
      panel.disposed.connect(() => attached.delete(panel));
      follow();
    };
    const follow = () => side.follow(notebooks.currentWidget, attached.get(notebooks.currentWidget!)?.link ?? null);
    notebooks.widgetAdded.connect((_, panel) => attach(panel));
    notebooks.forEach(attach);
    notebooks.currentChanged.connect(follow);
    // A cell may have loaded the extension: only then is it worth asking again.
    NotebookActions.executed.connect((_, { notebook }) => {
      for (const [panel, { link }] of attached) {
        if (panel.content === notebook && link.status === 'absent') {
          link.open();
        }
      }
    });
    app.shell.add(side, 'right', { rank: 900, type: 'Compiler' });

    const current = () => attached.get(notebooks.currentWidget!);
    const ask = (question: string, facts: { [name: string]: any } = {}) => () =>
      current()?.link.ask(question, facts).catch(error => Notification.warning(`tcompile: ${error.message}`));
    const add = (name: string, label: string, execute: () => any, enabled: () => boolean = () => current() !== undefined) => {
      app.commands.addCommand(`tcompile:${name}`, { label, execute, isEnabled: enabled, describedBy: { args: { type: 'object', properties: {} } } });
      palette?.addItem({ command: `tcompile:${name}`, category: 'tcompile' });
    };
    const loaded = () => current()?.link.status === 'ready';
    add('toggle-cell', 'Compile This Cell (Toggle)', () => current()?.toggle.flip());
    add('compile-all-cells', 'Compile Every Cell', async () => {
      const { link } = current()!;
      await ensureLoaded(link);
      return ask('on', { line: `mode=${settings.mode}` })();
    });
    add('compile-no-cells', 'Stop Compiling Every Cell', ask('off'), loaded);
    add('show-panel', 'Show the Compiler Panel', () => app.shell.activateById(side.id), () => true);
    add('forget', 'Forget All Compiled Entries', ask('reset'), loaded);
    add('clear-cache', 'Clear the Disk Cache', ask('clear_cache'), loaded);
    add('open-report', 'Open the Report of This Cell', () => {
      const cell = notebooks.activeCell;
      const output = cell?.node.querySelector<HTMLElement>('.tc-output');
      return cell && output && openPlace(cell.node, output.dataset.report ?? '', 'overview');
    });
    add('next-break', 'Go to the Next Graph Break', () => {
      const notebook = notebooks.currentWidget!.content;
      const marks = [...notebook.node.querySelectorAll<HTMLElement>('.tc-cm-gutter .tc-mark-break')];
      const below = marks.find(m => m.getBoundingClientRect().top > notebook.node.getBoundingClientRect().top + 60) ?? marks[0];
      below?.scrollIntoView({ block: 'center' });
      below?.click();
    });

    const apply = (composite: any) => {
      Object.assign(settings, composite);
      attached.forEach(({ outputs }) => outputs.show(settings));
    };
    registry?.load(ID).then(
      loadedSettings => {
        apply(loadedSettings.composite);
        loadedSettings.changed.connect(() => apply(loadedSettings.composite));
      },
      error => console.warn('tcompile: settings could not be read, the defaults hold', error)
    );
  }
};

export default [plugin];
