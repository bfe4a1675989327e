import assert from 'node:assert/strict';
import { test } from 'node:test';

import * as format from '../src/format';

test('seconds take the unit that gives a readable number', () => {
  const cases: [number | null, string][] = [
    [null, '–'],
    [Infinity, '–'],
    [NaN, '–'],
    [0, '0 s'],
    [2.5e-9, '2.50 ns'],
    [1e-6, '1.00 µs'],
    [12.34e-6, '12.3 µs'],
    [0.0456, '45.6 ms'],
    [1, '1.00 s'],
    [123.4, '123 s'],
    [-0.002, '-2.00 ms']
  ];
  for (const [value, text] of cases) {
    assert.equal(format.seconds(value), text);
  }
  assert.equal(format.tick(0.002), '2 ms');
  assert.equal(format.tick(0.0025), '2.5 ms');
});

test('bytes and rates are decimal, as in the text of a report', () => {
  assert.equal(format.bytes(999), '999 B');
  assert.equal(format.bytes(1024), '1.0 KB');
  assert.equal(format.bytes(5e15), '5000 TB');
  assert.equal(format.bytes(undefined), '–');
  assert.equal(format.rate(1000, 'B'), '1.00 kB/s');
  assert.equal(format.rate(2.5e18, 'FLOP'), '2500 PFLOP/s');
});

test('thousands are parted by a thin space', () => {
  assert.equal(format.count(999), '999');
  assert.equal(format.count(1234567), '1\u202f234\u202f567');
  assert.equal(format.plural(1, 'kernel'), '1 kernel');
  assert.equal(format.plural(2000, 'entry', 'entries'), '2\u202f000 entries');
});

test('a size without an end is said so', () => {
  assert.equal(format.bound(7, '∞'), '7');
  assert.equal(format.bound(2 ** 62, '∞'), '∞');
  assert.equal(format.bound(-(2 ** 62), '−∞'), '−∞');
});

test('an interval around 1, or one sample, is no clear difference', () => {
  assert.deepEqual(format.speedup({ ratio: 2.87, lo: 2.8, hi: 3.0 }), ['2.9×', '[2.8–3.0]', 'faster']);
  assert.deepEqual(format.speedup({ ratio: 0.5, lo: 0.4, hi: 0.6 }), ['2.0×', '[1.7–2.5]', 'slower']);
  assert.equal(format.frameWords('f.<loop at line 3>.<loop at line 4>'), 'the loop at line 4 in f');
  assert.equal(format.frameWords('<module>.<loop at line 3>.<loop at line 4>'), 'the loop at line 4');
  assert.deepEqual(format.speedup({ ratio: 5, lo: 2.5, hi: 8.4 }), ['2.5–8.4×', '', 'faster']);
  assert.deepEqual(format.speedup({ ratio: 69, lo: 2.5, hi: 83.9 }), ['', '2.5–83.9×', 'faster']);
  assert.equal(format.speedup({ ratio: 1.02, lo: 0.97, hi: 1.06 })[2], 'no clear difference');
  assert.deepEqual(format.speedup({ ratio: 3, lo: 3, hi: 3 }), ['', '', 'one sample of each: too few to compare']);
  assert.equal(format.compared({ ratio: 2, lo: 1.5, hi: 3 }, 'torch'), 'faster than torch.compile');
  assert.equal(format.compared({ ratio: 1, lo: 0.5, hi: 3 }, 'eager'), 'no clear difference from eager');
});

test('types and bytes of results', () => {
  assert.equal(format.tensorType({ shape: [8, 64], dtype: 'float32' }), 'f32 8×64');
  assert.equal(format.tensorType({ shape: [], dtype: 'torch.int64' }), 'i64 ()');
  assert.equal(format.tensorType({ shape: [[2], null, ['s0', 4]], dtype: 'bfloat16' }), 'bf16 2, s0×4');
  assert.equal(format.nodeBytes({ shape: [8, 64], dtype: 'float16' }), 1024);
  assert.equal(format.nodeBytes({ shape: ['s0', 64], dtype: 'float16' }), null);
  assert.equal(format.nodeBytes({ shape: [8], dtype: 'unknown' }), null);
});

test('operators by the name that people say', () => {
  assert.equal(format.shortOp('aten.add.Tensor'), 'add');
  assert.equal(format.shortOp('torch.nn.functional.gelu'), 'gelu');
  assert.equal(format.shortOp('tensor.sum'), 'sum');
  assert.equal(format.shortOp('input'), 'input');
});
