/**
 * What the labextension adds to JupyterLab besides the renderer (mime.ts): marks in the gutter, a badge on each cell,
 * help on options, the switch in the toolbar, the side panel, commands and settings.
 */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { IEditorExtensionRegistry } from '@jupyterlab/codemirror';
import { INotebookTracker, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator } from '@jupyterlab/translation';

import { marksExtension } from './lab/gutter';
import { helpExtension } from './lab/hover';
import { hostReports, openPlace } from './lab/host';
import { KernelLink } from './lab/kernel';
import { Outputs } from './lab/outputs';
import { CompilerPanel } from './lab/panel';
import { CellSwitch } from './lab/toolbar';
import { setTranslator, t } from './texts';

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
  optional: [ICommandPalette, ISettingRegistry, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    editors: IEditorExtensionRegistry,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    registry: ISettingRegistry | null,
    languages: ITranslator | null
  ) => {
    if (languages) {
      const bundle = languages.load('tcompile');
      setTranslator((text, many, n) =>
        many === undefined ? bundle.gettext(text) : bundle.ngettext(text, many, n ?? 1)
      );
    }
    const attached = new Map<NotebookPanel, Attached>();
    const settings = { marks: true, badges: true, mode: 'default' };
    const side = new CompilerPanel();

    editors.addExtension(marksExtension());
    editors.addExtension(helpExtension());

    const ensureLoaded = async (link: KernelLink) => {
      if (link.status === 'absent') {
        await link.load().then(
          () =>
            Notification.info(
              t(
                'tcompile was loaded into this kernel. Keep “%load_ext tcompile” in a cell to have it at the next start.'
              ),
              { autoClose: 6000 }
            ),
          error => Notification.warning(`tcompile: ${error.message}`)
        );
      }
    };

    const attach = (panel: NotebookPanel) => {
      const link = new KernelLink(panel.sessionContext);
      const outputs = new Outputs(panel, settings);
      const toggle = new CellSwitch(
        panel,
        () => settings.mode,
        () => void ensureLoaded(link)
      );
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
    const ask =
      (question: string, facts: { [name: string]: any } = {}) =>
      () =>
        current()
          ?.link.ask(question, facts)
          .catch(error => Notification.warning(`tcompile: ${error.message}`));
    const add = (
      name: string,
      label: string,
      execute: () => any,
      enabled: () => boolean = () => current() !== undefined
    ) => {
      app.commands.addCommand(`tcompile:${name}`, {
        label,
        execute,
        isEnabled: enabled,
        describedBy: { args: { type: 'object', properties: {} } }
      });
      palette?.addItem({ command: `tcompile:${name}`, category: 'tcompile' });
    };
    const loaded = () => current()?.link.status === 'ready';
    add('toggle-cell', t('Compile This Cell (Toggle)'), () => current()?.toggle.flip());
    add('compile-all-cells', t('Compile Every Cell'), async () => {
      const { link } = current()!;
      await ensureLoaded(link);
      return ask('on', { line: `mode=${settings.mode}` })();
    });
    add('compile-no-cells', t('Stop Compiling Every Cell'), ask('off'), loaded);
    add(
      'show-panel',
      t('Show the Compiler Panel'),
      () => app.shell.activateById(side.id),
      () => true
    );
    add('forget', t('Forget All Compiled Entries'), ask('reset'), loaded);
    add('clear-cache', t('Clear the Disk Cache'), ask('clear_cache'), loaded);
    add('open-report', t('Open the Report of This Cell'), () => {
      const cell = notebooks.activeCell;
      const output = cell?.node.querySelector<HTMLElement>('.tc-output');
      return cell && output && openPlace(cell.node, output.dataset.report ?? '', 'overview');
    });
    add('next-break', t('Go to the Next Graph Break'), () => {
      const notebook = notebooks.currentWidget!.content;
      const marks = [...notebook.node.querySelectorAll<HTMLElement>('.tc-cm-gutter .tc-mark-break')];
      const below =
        marks.find(m => m.getBoundingClientRect().top > notebook.node.getBoundingClientRect().top + 60) ?? marks[0];
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
