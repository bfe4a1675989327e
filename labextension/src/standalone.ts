/**
 * The report without JupyterLab, as one file: an anywidget for VS Code, Colab and dashboards (the default export), and
 * the script of an exported page (`page`). Bundled by esbuild (package.json, build:standalone) from the same views as
 * the MIME renderer; plots are drawn with SVG.
 */

import figuresStyle from '../style/figures.css';
import graphStyle from '../style/graph.css';
import marksStyle from '../style/gutter.css';
import listingsStyle from '../style/listings.css';
import ranksStyle from '../style/ranks.css';
import reportStyle from '../style/report.css';
import viewsStyle from '../style/views.css';

import { Host, HOST_EVENT, HostRequest } from './host';
import { renderReport, Rendered } from './report';
import { Place } from './selection';

function addStyle(element: HTMLElement): void {
  const root = element.getRootNode();
  const home: ParentNode & Node = root instanceof ShadowRoot ? root : document.head;
  if (!home.querySelector('style[data-tcompile]')) {
    const style = document.createElement('style');
    style.dataset.tcompile = '';
    style.textContent = [reportStyle, listingsStyle, figuresStyle, viewsStyle, graphStyle, ranksStyle, marksStyle].join(
      '\n'
    );
    home.appendChild(style);
  }
}

/** What a widget's model offers here (the anywidget protocol). */
interface WidgetModel {
  get: (name: string) => any;
  set: (name: string, value: any) => void;
  save_changes: () => void;
  on: (event: string, f: (...args: any[]) => void) => void;
  off: (event: string, f: (...args: any[]) => void) => void;
  send: (message: any) => void;
}

function kernelOf(model: WidgetModel): Host {
  const waiting = new Map<number, { done: (v: any) => void; failed: (e: Error) => void; say?: (t: string) => void }>();
  let serial = 0;
  model.on('msg:custom', message => {
    const asked = waiting.get(message.id);
    if (message.progress !== undefined) {
      asked?.say?.(message.progress);
      return;
    }
    waiting.delete(message.id);
    if (message.error !== undefined) {
      asked?.failed(new Error(message.error));
    } else {
      asked?.done(message.ok);
    }
  });
  return {
    ask: (question, facts, say) =>
      new Promise((done, failed) => {
        const id = ++serial;
        waiting.set(id, { done, failed, say });
        model.send({ ...facts, id, ask: question });
      }) // no `stop`: a widget cannot interrupt its kernel; the frontend's own button can
  };
}

async function render({ model, el }: { model: WidgetModel; el: HTMLElement }): Promise<() => void> {
  const host = document.createElement('div');
  el.appendChild(host);
  requestAnimationFrame(() => addStyle(host));
  const kernel = kernelOf(model);
  host.addEventListener(HOST_EVENT, event => {
    (event as CustomEvent<HostRequest>).detail.host = kernel;
    event.stopPropagation();
  });
  let rendered: Rendered | null = null;
  const follow = () => rendered?.select(model.get('selection') as Place);
  const draw = async () => {
    rendered?.dispose();
    rendered = await renderReport(host, model.get('report'), () => host.isConnected, {
      only: model.get('view') || undefined,
      onSelect: place => {
        if (JSON.stringify(place) !== JSON.stringify(model.get('selection'))) {
          model.set('selection', place);
          model.save_changes();
        }
      }
    });
  };
  model.on('change:report', draw);
  model.on('change:selection', follow);
  await draw();
  return () => {
    model.off('change:report', draw);
    model.off('change:selection', follow);
    rendered?.dispose();
  };
}

/** Draws the report that a page carries: `<script type="application/json" id="tcompile-report">`. */
export function page(): void {
  const data = document.getElementById('tcompile-report');
  const host = document.getElementById('tcompile');
  if (data && host) {
    addStyle(host);
    void renderReport(host, JSON.parse(data.textContent ?? 'null'), () => true, { opened: true });
  }
}

export { setTranslator } from './texts';

export default { render };
