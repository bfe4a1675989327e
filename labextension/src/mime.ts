/** The MIME renderer: a saved report becomes the views, with or without a kernel. */

import { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

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

const extension: IRenderMime.IExtension = {
  id: 'tcompile-lab:report',
  description: 'Draws tcompile reports.',
  rendererFactory: { safe: true, mimeTypes: [MIME], createRenderer: () => new ReportRenderer(), defaultRank: 10 },
  dataType: 'json'
};

export default extension;
