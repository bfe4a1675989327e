/** From the saved JSON to a Report: packed values inflated, text indices replaced, absent lists made empty. */

import { GraphData, GraphNode, Mark, Report, Speedup, Summary } from './schema';
import { t } from './texts';

const SCHEMA = 'tcompile.report';
const SUPPORTED_VERSION = 1;
/** A packed value that claims more than this is refused: a notebook from elsewhere must not fill the memory. */
const UNPACK_LIMIT = 64 << 20;

/** A call that took less of the run than that says nothing of the cell: its figure is no badge. */
const LEAST_SHARE = 0.5;

type Packed = { $z: string; n: number };

function isPacked(value: any): value is Packed {
  return typeof value === 'object' && value !== null && typeof value.$z === 'string';
}

async function inflate(packed: Packed): Promise<any> {
  if (packed.n > UNPACK_LIMIT) {
    throw new Error(t('a packed value claims {0} bytes', packed.n));
  }
  const binary = atob(packed.$z);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) {
    bytes[i] = binary.charCodeAt(i);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      break;
    }
    text += decoder.decode(value, { stream: true });
    if (text.length > UNPACK_LIMIT) {
      await reader.cancel();
      throw new Error(t('a packed value is larger than it may be'));
    }
  }
  return JSON.parse(text + decoder.decode());
}

async function unpack(value: any): Promise<any> {
  if (Array.isArray(value)) {
    return Promise.all(value.map(unpack));
  }
  if (isPacked(value)) {
    return unpack(await inflate(value));
  }
  if (typeof value === 'object' && value !== null) {
    const keys = Object.keys(value);
    const values = await Promise.all(keys.map(k => unpack(value[k])));
    return Object.fromEntries(keys.map((k, i) => [k, values[i]]));
  }
  return value;
}

const LISTS = [
  'frames',
  'entries',
  'graphs',
  'partitions',
  'graph_breaks',
  'guards',
  'recompiles',
  'kernels',
  'externs',
  'autotune',
  'memory',
  'stages',
  'cache',
  'fallbacks',
  'numerics',
  'timeline',
  'marks',
  'findings',
  'errors',
  'omitted',
  'decisions',
  'answers',
  'profiles'
];

/** What stands beside the code: marks at its lines, the closed line, the speedup against eager. */
export interface Outline {
  marks: Mark[];
  id: string;
  /** The code that the report is about, and the number of its first line. */
  lines: string[];
  first: number;
  cell: number | null;
  file: string;
  summary: Summary | null;
  gain: Speedup | null;
}

/** A report's outline, without inflating the rest. Nothing for what is not a report that we read. */
export async function outlineOf(raw: any): Promise<Outline> {
  const nothing: Outline = { marks: [], id: '', lines: [], first: 1, cell: null, file: '', summary: null, gain: null };
  if (raw.schema !== SCHEMA || raw.version !== SUPPORTED_VERSION) {
    return nothing;
  }
  try {
    const source = (await unpack(raw.source)) ?? {};
    const lines = typeof source.text === 'string' ? source.text.split('\n') : [];
    const { overall = [], share = null }: { overall?: Speedup[]; share?: number | null } =
      (await unpack(raw.speedups)) ?? {};
    return {
      marks: (await unpack(raw.marks)) ?? [],
      id: raw.id ?? '',
      lines,
      first: source.first_line ?? 1,
      cell: source.cell ?? null,
      file: source.file ?? '',
      summary: (await unpack(raw.summary)) ?? null,
      gain:
        share === null || share >= LEAST_SHARE
          ? (overall.find(s => s.engine === 'tcompile' && s.over === 'eager') ?? null)
          : null
    };
  } catch {
    return nothing; // the renderer says what is wrong with the report
  }
}

/** Throws an Error in words for what is not a report, or is one of a later version. */
export async function decodeReport(raw: any): Promise<Report> {
  if (typeof raw !== 'object' || raw === null || raw.schema !== SCHEMA) {
    throw new Error(t('this output does not hold a tcompile report'));
  }
  if (raw.version !== SUPPORTED_VERSION) {
    throw new Error(
      t('this report has version {0}, this viewer reads version {1}: update tcompile', raw.version, SUPPORTED_VERSION)
    );
  }
  const report = await unpack(raw);
  for (const name of LISTS) {
    report[name] = report[name] ?? [];
  }
  report.speedups = { status: 'off', reason: '', calls: [], overall: [], engines: [], ...report.speedups };
  report.wall = { seconds: 0, how: '', samples: 0, parts: [], ...report.wall };
  report.previous = { report: '', created: '', changes: [], source: [], ...report.previous };
  report.options = report.options ?? {};
  report.environment = report.environment ?? {};
  report.source = { text: '', file: '', first_line: 1, cell: null, ...report.source };
  const texts: string[] = report.texts ?? [];
  const textOf = (index: any) => (typeof index === 'number' ? (texts[index] ?? '') : (index ?? ''));
  for (const kernel of report.kernels) {
    kernel.source = textOf(kernel.source);
    kernel.ir = textOf(kernel.ir);
    kernel.assembly = textOf(kernel.assembly);
  }
  for (const entry of report.entries) {
    entry.source = textOf(entry.source);
  }
  for (const frame of report.frames) {
    frame.bytecode = textOf(frame.bytecode);
  }
  return report as Report;
}

/** The nodes of a graph's columns, in topological order; repeated layers are written out again. */
export function expandGraph(data: GraphData | null | undefined): GraphNode[] {
  if (!data || !data.count) {
    return [];
  }
  const { columns: c, tables } = data;
  const order: [number, string, string][] = []; // stored row, module prefix in it, the prefix to show instead
  const blocks = new Map(data.repeats.map(r => [r.start, r]));
  for (let row = 0; row < c.op.length;) {
    const block = blocks.get(row);
    if (!block) {
      order.push([row++, '', '']);
      continue;
    }
    for (const prefix of block.modules) {
      for (let k = 0; k < block.length; k++) {
        order.push([row + k, block.modules[0], prefix]);
      }
    }
    row += block.length;
  }
  if (order.length !== data.count || c.name.length !== data.count) {
    throw new Error(t('graph payload: {0} rows and {1} names for {2} nodes', order.length, c.name.length, data.count));
  }
  return order.map(([row, old, now], index) => {
    const [file, line] = tables.lines[c.line[row]];
    const module: string = tables.modules[c.module[row]];
    return {
      index,
      name: c.name[index],
      op: tables.ops[c.op[row]],
      inputs: c.inputs[row].map((v: number) => (v > 0 ? index - v : -1 - v)),
      args: tables.args[c.args[row]],
      shape: tables.shapes[c.shape[row]],
      dtype: tables.dtypes[c.dtype[row]],
      file,
      line,
      module: old === now ? module : now + module.slice(old.length),
      kernel: c.kernel[index] < 0 ? null : c.kernel[index],
      stride: c.stride && tables.strides ? tables.strides[c.stride[row]] : null
    };
  });
}
