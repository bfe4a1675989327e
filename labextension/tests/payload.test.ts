import assert from 'node:assert/strict';
import { test } from 'node:test';
import { deflateSync } from 'node:zlib';

import { decodeReport, expandGraph, outlineOf } from '../src/payload';
import { GraphData } from '../src/schema';

const pack = (value: unknown, n?: number) => {
  const text = JSON.stringify(value);
  return { $z: deflateSync(Buffer.from(text)).toString('base64'), n: n ?? text.length };
};

const report = (more: object = {}) => ({ schema: 'tcompile.report', version: 1, ...more });

test('packed values are unpacked at any depth, and texts stand where their index stood', async () => {
  const decoded = await decodeReport(
    report({
      kernels: pack([{ source: 1, ir: 0, assembly: null, lines: [] }]),
      texts: pack(['loop ir', pack('packed twice')]),
      entries: [{ source: 7 }]
    })
  );
  assert.equal(decoded.kernels[0].source, 'packed twice');
  assert.equal(decoded.kernels[0].ir, 'loop ir');
  assert.equal(decoded.kernels[0].assembly, '');
  assert.equal(decoded.entries[0].source, ''); // an index without a text
  assert.deepEqual(decoded.graph_breaks, []);
  assert.equal(decoded.speedups.status, 'off');
});

test('what is no report is refused in words', async () => {
  for (const raw of [null, 3, 'text', [], {}, { schema: 'another' }]) {
    await assert.rejects(decodeReport(raw), /does not hold a tcompile report/);
  }
  await assert.rejects(decodeReport(report({ version: 2 })), /version 2.*update tcompile/);
});

test('a value that claims, or has, more bytes than it may is refused', async () => {
  await assert.rejects(decodeReport(report({ kernels: pack([], 2 ** 40) })), /claims/);
  const bomb = { $z: deflateSync(Buffer.alloc(80 << 20, ' ')).toString('base64'), n: 10 };
  await assert.rejects(decodeReport(report({ kernels: bomb })), /larger than it may be/);
});

test('an outline reads what stands beside the code, and nothing else', async () => {
  const overall = [{ engine: 'tcompile', over: 'eager', ratio: 2, lo: 1.9, hi: 2.1 }];
  const raw = report({ id: 'r', source: pack({ text: 'a\nb', cell: 3 }), marks: pack([]), kernels: { $z: '!', n: 1 } });
  const outline = await outlineOf({ ...raw, speedups: { overall, share: 0.9 } });
  assert.deepEqual(outline.lines, ['a', 'b']);
  assert.equal(outline.cell, 3);
  assert.equal(outline.gain?.ratio, 2);
  assert.equal((await outlineOf({ ...raw, speedups: { overall, share: 0.1 } })).gain, null); // a small part of the cell
  assert.equal((await outlineOf({ schema: 'another' })).id, '');
  assert.equal((await outlineOf(report({ source: { $z: '!', n: 1 } }))).id, ''); // damaged
});

const graph = (repeats: GraphData['repeats'], count: number): GraphData => ({
  count,
  repeats,
  tables: {
    ops: ['input', 'aten.mul.Tensor'],
    lines: [['a.py', 1]],
    modules: ['', 'layers.0', 'layers.0.mlp'],
    args: [''],
    shapes: [[4]],
    dtypes: ['float32']
  },
  columns: {
    name: Array.from({ length: count }, (_, i) => `n${i}`),
    kernel: Array.from({ length: count }, (_, i) => i - 1),
    op: [0, 1, 1],
    line: [0, 0, 0],
    module: [0, 1, 2],
    args: [0, 0, 0],
    shape: [0, 0, 0],
    dtype: [0, 0, 0],
    inputs: [[], [1], [1, -1]]
  }
});

test('repeated layers are written out, each under its own module', () => {
  const nodes = expandGraph(graph([{ start: 1, length: 2, times: 2, modules: ['layers.0', 'layers.1'] }], 5));
  assert.deepEqual(
    nodes.map(n => n.module),
    ['', 'layers.0', 'layers.0.mlp', 'layers.1', 'layers.1.mlp']
  );
  assert.deepEqual(
    nodes.map(n => n.inputs),
    [[], [0], [1, 0], [2], [3, 0]]
  ); // positive: so many nodes before; else the node itself
  assert.equal(nodes[0].kernel, null);
  assert.equal(nodes[4].kernel, 3);
});

test('a graph whose columns do not agree is refused', () => {
  assert.deepEqual(expandGraph(null), []);
  assert.throws(() => expandGraph(graph([], 5)), /3 rows and 5 names for 5 nodes/);
});
