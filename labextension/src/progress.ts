/**
 * The line that lives while a cell compiles and is timed, with a button that stops it. It becomes the report's closed
 * line.
 */

import { button, h } from './dom';
import { hostOf } from './host';
import { t } from './texts';

export const PROGRESS_MIME = 'application/vnd.tcompile.progress.v1+json';

/** `timing`: the cell itself is done, and stopping keeps its result. */
export interface Progress {
  text: string;
  phase: 'running' | 'timing' | string;
  /** The closed line, as far as it is known. */
  line: string;
}

/** Draws progress into `host`; called again, it changes the words and leaves the button where it is. */
export class ProgressLine {
  private known = h('span');
  private words = h('span.tc-progress-words');
  private stop: HTMLButtonElement;
  private said = h('span.tc-muted', { role: 'status' });
  private timing = false;

  constructor(private host: HTMLElement) {
    host.classList.add('tc-report', 'tc-progress');
    this.stop = button(t('stop'), {}, () => this.interrupt());
    this.stop.hidden = true;
    host.replaceChildren(h('span.tc-spinner', { 'aria-hidden': 'true' }), this.known, this.words, this.stop, this.said);
  }

  show(progress: Progress): void {
    this.timing = progress.phase === 'timing';
    this.known.textContent = progress.line;
    this.words.textContent = `${progress.text} …`;
    this.stop.title = this.timing
      ? t('Ends the timing: the cell is done, and its result stays')
      : t('Interrupts the cell, as Ctrl-C does');
  }

  /**
   * To be called when the element is in the document: only then is its kernel to be found. False where nothing is at
   * work any more.
   */
  shown(): boolean {
    const host = hostOf(this.host);
    const works = !!host?.stop && !!host.busy?.();
    this.stop.hidden = !works;
    this.host.classList.toggle('tc-stale', !works);
    this.said.textContent = works ? '' : t('It was not finished when this was saved: run the cell again.');
    return works;
  }

  /** Never more than one interrupt, and none once this cell is done: it would hit another one. */
  private interrupt(): void {
    const host = hostOf(this.host);
    this.stop.disabled = true;
    if (this.host.isConnected && host?.stop && host.busy?.()) {
      host.stop();
      this.said.textContent = this.timing ? t('stopping the timing …') : t('stopping …');
    }
  }
}
