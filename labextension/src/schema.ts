/**
 * The report's JSON, version 1, after unpacking (payload.ts). It mirrors docs/report-schema.md field by field.
 * Seconds, bytes, floating point operations; lines count from 1, columns from 0.
 */

export const MIME = 'application/vnd.tcompile.report.v1+json';

export type MarkKind = 'captured' | 'eager' | 'break' | 'guard';
export type Status = 'compiled' | 'partly' | 'eager' | 'nothing' | 'error';

export interface CellSource {
  text: string;
  file: string;
  first_line: number;
  cell: number | null;
}

/** One mark beside a line of code; `ref` opens the place in the report: "breaks/0", "guards/3", "frames/1". */
export interface Mark {
  line: number;
  kind: MarkKind;
  text: string;
  file: string;
  cell: number | null;
  end_line: number | null;
  ref: string;
}

export interface Frame {
  name: string;
  file: string;
  line: number;
  status: 'compiled' | 'partly' | 'skipped' | 'limit' | 'error';
  reason: string;
  entries: number[];
  captures: number;
  seconds: number;
  /** A row per instruction, the source line first; empty where it was not kept. */
  bytecode: string;
}

export interface Entry {
  frame: number;
  graph: number | null;
  guards: number;
  breaks: number[];
  effects: string[];
  source: string;
  hits: number | null;
  seconds: number;
  inlined: string[];
  guard_seconds: number | null;
  switches?: number | null;
  goes_on?: number | null;
}

export interface GraphData {
  count: number;
  tables: { [name: string]: any[] };
  columns: { [name: string]: any[] };
  repeats: { start: number; length: number; times: number; modules: string[] }[];
}

/** Sizes: numbers, or expressions over size symbols. A node with several results has a list of shapes. */
export type Shape = (number | string)[];

/** One operation of a graph, decoded from the columns. `inputs` are indices of earlier nodes. */
export interface GraphNode {
  index: number;
  name: string;
  op: string;
  inputs: number[];
  args: string;
  shape: Shape | (Shape | null)[] | null;
  dtype: string;
  file: string;
  line: number | null;
  module: string;
  kernel: number | null;
  /** Where its elements lie, if that is not in rows one after the other. */
  stride?: Shape | null;
  /** Where it is at home, in a graph that was put together of several (graph/joint.ts). */
  home?: { graph: number; index: number };
  /** Not in the graph any more: the pass that is looked at, or a later one, takes it away; drawn after that node. */
  gone?: { now: boolean; after: number };
}

export interface SizeSymbol {
  name: string;
  hint: number | null;
  lo: number | null;
  hi: number | null;
  source: string;
  why: string;
  file: string;
  line: number | null;
}

/** What one graph pass changed; texts of nodes. */
export interface GraphPass {
  name: string;
  point: string;
  seconds: number;
  before: number;
  after: number;
  removed: string[];
  added: string[];
  more: number;
}

export interface Graph {
  name: string;
  frame: number | null;
  entry: number | null;
  inputs: string[];
  outputs: number;
  ops: number;
  captured: GraphData;
  lowered: GraphData;
  symbols: SizeSymbol[];
  unfused: [string, string, string][];
  kernels: number[];
  passes?: GraphPass[];
  ran?: 'compiled' | 'eager' | 'partial' | string;
  /** Share of its work whose results nobody reads. */
  unused?: number;
  /** Of a backward graph: how often it ran in this run, and the file and line that called it. */
  runs?: number | null;
  called_at?: [string, number] | [];
  /** Of lines outside of the cell: file, line, the cell, and its line that led there. */
  callers?: [string, number, string, number][];
}

/** A value of a forward graph that backward needs: kept, or computed again. */
export interface PartitionValue {
  name: string;
  op: string;
  kind: 'activation' | 'dear' | 'result' | 'random' | 'copy' | 'weight' | string;
  shape: Shape | null;
  dtype: string;
  bytes: number;
  module: string;
  file: string;
  line: number | null;
}

/** What a forward graph keeps for its backward graphs; bytes without the graph's inputs. */
export interface Partition {
  graph: number | null;
  backward: number[];
  saved_bytes: number;
  read_bytes: number;
  eager_bytes: number | null;
  budget: number;
  saved: PartitionValue[];
  recomputed: PartitionValue[];
  inputs: string[];
}

export interface FrameRef {
  function: string;
  file: string;
  line: number;
}

/** A change of lines that removes a break: `new` in the place of the lines start..end, which read `old`. */
export interface Fix {
  file: string;
  start: number;
  end: number;
  old: string;
  new: string;
  note: string;
}

export interface Break {
  kind: string;
  reason: string;
  file: string;
  line: number;
  col: number | null;
  end_line: number | null;
  end_col: number | null;
  code: string;
  function: string;
  remedy: string;
  frame: number | null;
  entry: number | null;
  count: number;
  call_chain: FrameRef[];
  /** Nothing to change: what stands around it is compiled. */
  harmless?: boolean;
  fix: Fix | null;
  /**
   * What it costs each time, from the end of one graph to the begin of the next, and of the call in which that was
   * measured.
   */
  seconds?: number | null;
  share?: number | null;
}

export interface GuardRow {
  entry: number;
  source: string;
  kind: string;
  text: string;
  expected: string;
  file: string;
  line: number | null;
  why: string;
  cls: 'watched' | 'checked' | 'once' | string;
  failed: number;
  count: number;
  ns?: number | null;
  /** Of a value that a call is given: what of it may not change (`shape or dtype`). */
  fixed?: string;
}

export interface Recompile {
  frame: number | null;
  frame_name: string;
  source: string;
  kind: string;
  detail: string;
  expected: string;
  got: string;
  file: string;
  line: number | null;
  code: string;
  suggestion: string;
  why: string;
  others: number;
  /** Which call of the function it was, from 1. */
  at_call?: number | null;
  /** The line of the cell that made that call. */
  called?: number | null;
  time: number;
}

export interface Trial {
  config: { [name: string]: any };
  seconds: number | null;
  chosen: boolean;
  error: string;
}

export interface Kernel {
  name: string;
  language: string;
  source: string;
  ir: string;
  graph: number | null;
  bytes: number | null;
  flops: number | null;
  launches: number;
  seconds: number | null;
  compile_seconds: number | null;
  /** Of a thread, on a GPU. */
  registers: number | null;
  /** Bytes of a thread. */
  spills: number | null;
  shared?: number | null;
  /** Share of a multiprocessor's threads that can be at work, 0 to 1. */
  occupancy?: number | null;
  /** PTX; `// line N` stands before what line N of `source` became. */
  assembly?: string;
  /** Variable of `source` -> name of the lowered node that it computes. */
  names?: { [variable: string]: string };
  origins: string[];
  lines: [string, number][];
  fused_because: string[];
  choices: { [name: string]: any };
  trials: Trial[];
}

export interface Extern {
  op: string;
  count: number;
  reason: string;
  graph: number | null;
  lines: [string, number][];
  /** Of all of them in one call of the graph. */
  seconds?: number | null;
}

export interface MemoryBuffer {
  name: string;
  bytes: number;
  start: number;
  end: number;
  reuse: string;
  kind: string;
}

export interface Memory {
  graph: number | null;
  peak_bytes: number | null;
  without_reuse_bytes: number | null;
  eager_peak_bytes: number | null;
  steps: number;
  /** Bytes alive over the plan's steps, and over eager's operators. */
  plan_live?: number[];
  eager_live?: number[];
  /** The kernel or library call that runs where most is alive, and its line. */
  peak_at?: string;
  peak_line?: [string, number] | [];
  buffers: MemoryBuffer[];
}

export interface Stage {
  name: string;
  seconds: number;
  self_seconds: number;
  count: number;
  parent: string;
  by?: string;
  declined?: number;
}

export interface CacheLookup {
  what: string;
  key: string;
  hit: boolean;
  reason: string;
  count: number;
}

export interface Fallback {
  what: string;
  reason: string;
  count: number;
  frame: number | null;
}

export interface NumericError {
  name: string;
  max_abs: number | null;
  rms_vs_float64: number | null;
  eager_rms_vs_float64: number | null;
  node: string;
  graph: number | null;
  op: string;
  dtype: string;
  file: string;
  line: number | null;
  verdict: 'same' | 'close' | 'diverges' | 'random' | string;
  why: string;
  /** How many of its `count` values are NaN, or infinite; absent in reports of earlier versions. */
  nan?: number;
  inf?: number;
  count?: number;
  /** Where the operation itself loses digits. */
  cause?: '' | 'overflow' | 'underflow' | 'cancellation' | string;
}

/** Seconds per call of one engine; `lo` and `hi` bound the median with 95 % confidence. */
export interface EngineTime {
  engine: string;
  status: 'ok' | 'skipped' | 'failed' | 'stopped' | 'unavailable' | string;
  reason: string;
  median: number | null;
  lo: number | null;
  hi: number | null;
  n: number;
  inner: number;
  cold: number | null;
  warm: number | null;
  samples: number[];
  /** What the engine says of itself. */
  detail?: string;
}

export interface Speedup {
  engine: string;
  over: string;
  ratio: number;
  lo: number;
  hi: number;
}

export interface CallTiming {
  name: string;
  line: number | null;
  safe: boolean;
  why_not: string;
  measured: 'call' | 'graphs' | 'cell' | '' | string;
  engines: EngineTime[];
  speedups: Speedup[];
  compile_seconds: number | null;
  break_even_calls: number | null;
  break_even_reason: string;
  /** The graphs' backward passes are in the times. */
  backward?: boolean;
  /** Timed by the earlier run that compiled it. */
  earlier?: boolean;
}

export interface Speedups {
  status: 'measured' | 'partial' | 'off' | 'unavailable' | string;
  reason: string;
  budget_seconds: number | null;
  spent_seconds: number;
  engines: string[];
  calls: CallTiming[];
  overall: Speedup[];
  note?: string;
  /** What `overall` is of; empty: the whole cell. */
  of?: string;
  /** Of the run, what the timed calls took. */
  share?: number | null;
}

export interface TimelineEvent {
  time: number;
  kind: 'capture' | 'entry' | 'recompile' | 'break' | 'skip' | 'limit' | 'error' | string;
  frame: number | null;
  entry: number | null;
  text: string;
  seconds: number;
}

export interface Finding {
  severity: 'warning' | 'info' | string;
  text: string;
  action: string;
  ref: string;
  line: number | null;
  cost_seconds: number | null;
}

/** One figure that differs from the run before; `better` is null where neither is. */
export interface Change {
  what: string;
  before: string;
  after: string;
  better: boolean | null;
  /** The cause, where the report knows it. */
  why?: string;
}

/** The run of the same cell before this one; `report` is empty where there was none. */
export interface RunDiff {
  report: string;
  created: string;
  changes: Change[];
  source: [string, string][];
}

export interface Summary {
  status: Status;
  symbol: string;
  graphs: number;
  breaks: number;
  kernels: number;
  externs: number;
  recompiles: number;
  compile_seconds: number;
  note: string;
  line: string;
}

/** A part of the run's wall time. */
export interface WallPart {
  kind:
    | 'kernels'
    | 'library'
    | 'compiled'
    | 'torch'
    | 'python'
    | 'data'
    | 'waiting'
    | 'starved'
    | 'compiling'
    | 'rest'
    | string;
  name: string;
  seconds: number;
  count: number | null;
  file: string;
  line: number | null;
  ref: string;
  /** Looks at the stack that saw it; 0: known by a clock. */
  looks?: number;
}

export interface Wall {
  /** 0: not known. */
  seconds: number;
  how: 'sampled' | 'counted' | string;
  samples: number;
  /** Of the samples those that saw the program at work. */
  looks?: number;
  parts: WallPart[];
}

/** What became of a function. */
export interface Decision {
  what: string;
  decision: 'compiled' | 'taken over' | 'switched off' | 'left alone' | 'not followed' | 'skipped' | 'limit' | string;
  why: string;
  seconds: number | null;
  calls: number | null;
  file: string;
  line: number | null;
  ref: string;
}

/** Where time went and what would change it; `gain` is how many times as fast the run would be. */
export interface Answer {
  text: string;
  gain: number | null;
  how: 'measured' | 'at most' | 'about' | '' | string;
  lo: number | null;
  hi: number | null;
  share: number | null;
  action: string;
  settings: { [name: string]: any };
  /** By how much results differ under the settings, relative to their RMS. */
  error?: number | null;
  ref: string;
  line: number | null;
}

/** A call with a clock around each step; spans in columns (profile/spans.ts). */
export interface CallProfile {
  name: string;
  file: string;
  line: number | null;
  how: 'call' | 'graphs' | string;
  device: 'cpu' | 'cuda' | string;
  seconds: number;
  plain_seconds: number | null;
  backward: boolean;
  lost: number;
  /** An earlier run of the cell, or an earlier cell, made the call. */
  earlier: boolean;
  tables: { [name: string]: any[] };
  columns: { [name: string]: number[] };
}

export interface RankSpan {
  kind: 'compile' | 'communication';
  name: string;
  begin: number;
  seconds: number;
  /** Of a collective: seconds until the last rank came, and that rank. */
  early: number;
  last: number | null;
  bytes: number | null;
  sync: boolean | null;
}

export interface RankRow {
  rank: number;
  device: string;
  host: string;
  status: 'done' | 'raised' | 'interrupted' | 'ended';
  error: string;
  begin: number;
  seconds: number;
  compile_seconds: number;
  communication_seconds: number;
  early_seconds: number;
  collectives: number;
  calls: number;
  graphs: number;
  breaks: number;
  recompiles: number;
  peak_bytes: number | null;
  kept_bytes: number | null;
  spans: RankSpan[];
  more: number;
}

/** The processes of a run beside each other; no rows where there was one. */
export interface Ranks {
  seconds: number;
  clock: string;
  rows: RankRow[];
  waits: { rank: number; other: number; seconds: number; count: number; name: string; longest: number }[];
  differences: {
    function: string;
    graph: number;
    ranks: number[][];
    texts: string[];
    file: string;
    line: number | null;
    more: number;
  }[];
  remarks: string[];
}

export interface Report {
  schema: string;
  version: number;
  title: string;
  created: string;
  id: string;
  options: { [name: string]: any };
  environment: { [name: string]: any };
  source: CellSource;
  summary: Summary;
  frames: Frame[];
  entries: Entry[];
  graphs: Graph[];
  partitions: Partition[];
  graph_breaks: Break[];
  guards: GuardRow[];
  recompiles: Recompile[];
  kernels: Kernel[];
  externs: Extern[];
  autotune: { kernel: string; trials: Trial[] }[];
  memory: Memory[];
  stages: Stage[];
  cache: CacheLookup[];
  fallbacks: Fallback[];
  numerics: NumericError[];
  speedups: Speedups;
  timeline: TimelineEvent[];
  marks: Mark[];
  findings: Finding[];
  wall: Wall;
  decisions: Decision[];
  answers: Answer[];
  profiles: CallProfile[];
  ranks?: Ranks;
  errors: string[];
  omitted: { what: string; count: number; why: string }[];
  previous: RunDiff;
}
