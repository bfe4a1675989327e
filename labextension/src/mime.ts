/**
 * The MIME renderers: a saved report becomes the views, with or without a kernel; before that, the line of progress.
 */

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

import { Progress, PROGRESS_MIME, ProgressLine } from './progress';
import { Rendered, renderReport } from './report';
import { MIME } from './schema';

class ReportRenderer extends Widget implements IRenderMime.IRenderer {
  private rendered: Rendered | null = null;
  private turn = 0;

  constructor() {
    super();
    this.addClass('tc-output');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.rendered?.dispose();
    this.rendered = null;
    const turn = ++this.turn;
    const json = model.data[MIME] as any;
    this.node.dataset.report = json?.id ?? '';
    const rendered = await renderReport(this.node, json, () => turn === this.turn && !this.isDisposed);
    if (turn === this.turn) {
      this.rendered = rendered;
    }
  }

  /** The gutter's marks open their place by this. */
  readonly onGo = (event: Event) => this.rendered?.go((event as CustomEvent<string>).detail);

  protected onAfterAttach(): void {
    this.node.addEventListener('tcompile-go', this.onGo);
  }

  protected onBeforeDetach(): void {
    this.node.removeEventListener('tcompile-go', this.onGo);
  }

  dispose(): void {
    this.rendered?.dispose();
    super.dispose();
  }
}

/**
 * The line of progress; where nothing is at work any more (a kernel that ended, a notebook that was saved meanwhile),
 * the report as far as it got.
 */
class ProgressRenderer extends Widget implements IRenderMime.IRenderer {
  private line = new ProgressLine(this.node);
  private model: IRenderMime.IMimeModel | null = null;
  private rendered: Rendered | null = null;

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.model = model;
    this.line.show(model.data[PROGRESS_MIME] as unknown as Progress);
  }

  protected onAfterAttach(): void {
    const json = this.model?.data[MIME];
    if (!this.line.shown() && json) {
      void renderReport(this.node, json, () => !this.isDisposed).then(rendered => (this.rendered = rendered));
    }
  }

  dispose(): void {
    this.rendered?.dispose();
    super.dispose();
  }
}

const report: IRenderMime.IExtension = {
  id: 'tcompile-lab:report',
  description: 'Draws tcompile reports.',
  rendererFactory: { safe: true, mimeTypes: [MIME], createRenderer: () => new ReportRenderer(), defaultRank: 10 },
  dataType: 'json'
};

const progress: IRenderMime.IExtension = {
  id: 'tcompile-lab:progress',
  description: 'Draws the line of progress of a cell that compiles.',
  rendererFactory: {
    safe: true,
    mimeTypes: [PROGRESS_MIME],
    createRenderer: () => new ProgressRenderer(),
    defaultRank: 5
  },
  dataType: 'json'
};

export default [report, progress];
