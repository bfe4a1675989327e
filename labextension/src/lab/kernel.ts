/**
 * The comm between one notebook and its kernel (kernel_magics/live.py answers): questions, answers, and the state after
 * each cell.
 */

import { ISessionContext } from '@jupyterlab/apputils';
import { Kernel } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';
import { t } from '../texts';

const TARGET = 'tcompile';

export interface CompiledFunction {
  name: string;
  file: string;
  line: number;
  cell: number | null;
  mode: string;
  backend: string;
  entries: number;
  calls: number;
  guards: number;
  status: 'compiled' | 'limit' | 'skipped';
  reason: string;
  report: string;
  recompiles: number;
  breaks: number;
  saved_seconds: number | null;
  compile_seconds: number | null;
  ratio: number | null;
  /** Interval of the ratio. */
  lo?: number | null;
  hi?: number | null;
}

export interface KernelState {
  on: { [name: string]: string } | null;
  cells: number;
  changed: { [name: string]: string };
  modes: string[];
  functions: CompiledFunction[];
  cache: { on: boolean; folder: string; kernels: number; bytes: number; limit_bytes: number } | null;
  last: string;
}

/** `unknown`: not asked yet; `absent`: the kernel runs, tcompile is not loaded in it. */
export type LinkStatus = 'no kernel' | 'unknown' | 'absent' | 'ready';

interface Waiting {
  done: (value: any) => void;
  failed: (error: Error) => void;
  say?: (text: string) => void;
}

export class KernelLink {
  state: KernelState | null = null;
  status: LinkStatus = 'unknown';
  private comm: Kernel.IComm | null = null;
  private waiting = new Map<number, Waiting>();
  private serial = 0;
  private signal = new Signal<this, void>(this);

  constructor(private context: ISessionContext) {
    context.kernelChanged.connect(() => this.open());
    context.statusChanged.connect((_, status) => {
      if (status === 'restarting' || status === 'autorestarting' || status === 'dead' || status === 'terminating') {
        this.lost(status === 'dead' || status === 'terminating' ? 'no kernel' : 'absent');
      }
    });
    void context.ready.then(() => this.open());
  }

  get changed(): ISignal<this, void> {
    return this.signal;
  }

  /** Try again to reach tcompile: after a cell ran, which may have loaded it. */
  open(): void {
    const kernel = this.context.session?.kernel;
    if (!kernel) {
      this.lost('no kernel');
      return;
    }
    if (this.comm && !this.comm.isDisposed) {
      return;
    }
    const comm = kernel.createComm(TARGET);
    this.comm = comm;
    comm.onMsg = message => this.receive(message.content.data as any);
    comm.onClose = () => {
      if (this.comm === comm) {
        this.lost('absent');
      }
    };
    try {
      comm.open({});
    } catch (error) {
      this.lost('absent');
    }
  }

  /** Loads tcompile into the kernel, as `%load_ext tcompile` in a cell does. */
  async load(): Promise<void> {
    const kernel = this.context.session?.kernel;
    if (!kernel) {
      throw new Error(t('no kernel is running'));
    }
    const reply = await kernel.requestExecute({ code: '%load_ext tcompile', silent: true, store_history: false }).done;
    if (reply.content.status !== 'ok') {
      throw new Error(t('tcompile is not installed in this kernel'));
    }
    this.open();
  }

  ask(question: string, facts: { [name: string]: any } = {}, say?: (text: string) => void): Promise<any> {
    const { comm } = this;
    if (!comm || comm.isDisposed || this.status !== 'ready') {
      return Promise.reject(
        new Error(
          t('tcompile is not loaded in this kernel: run the cell with {0}, then this one', '%load_ext tcompile')
        )
      );
    }
    const id = ++this.serial;
    return new Promise((done, failed) => {
      this.waiting.set(id, { done, failed, say });
      comm.send({ ...facts, id, ask: question });
    });
  }

  stop(): void {
    void this.context.session?.kernel?.interrupt();
  }

  private receive(data: any): void {
    if (data.event === 'state') {
      this.status = 'ready';
      this.state = data.state;
      this.signal.emit();
      return;
    }
    const waiting = this.waiting.get(data.id);
    if (!waiting) {
      return;
    }
    if (data.progress !== undefined) {
      waiting.say?.(data.progress);
      return;
    }
    this.waiting.delete(data.id);
    if (data.error !== undefined) {
      waiting.failed(new Error(data.error));
    } else {
      waiting.done(data.ok);
    }
  }

  private lost(status: LinkStatus): void {
    this.comm = null;
    this.state = null;
    this.status = status;
    for (const { failed } of this.waiting.values()) {
      failed(new Error(t('the kernel went away')));
    }
    this.waiting.clear();
    this.signal.emit();
  }
}
