import assert from 'node:assert/strict';
import { test } from 'node:test';

import { heatOf, lineShares, wholeShare } from '../src/listing';
import { Recompile, Report } from '../src/schema';
import { callRows, callWords, isCondition, varyingNames, waitWords } from '../src/views/calls';
import { fixedParts } from '../src/views/glance';

const entry = (seconds: number) => ({ frame: 0, graph: 0, hits: 3, seconds, inlined: [], goes_on: null });
const wait = (of: number, text: string, seconds: number) => ({ kind: 'compile', entry: of, text, seconds });
const guard = (of: number, kind: string, source: string, text = '') => ({ entry: of, kind, source, text, count: 1 });

test('each wait is in a row, those for backward passes too', () => {
  const report = {
    entries: [entry(0.5), entry(0)],
    frames: [{ name: 'step' }],
    recompiles: [],
    partitions: [],
    timeline: [
      { kind: 'entry', entry: 0, text: '' },
      wait(0, 'compiling', 0.5),
      wait(0, 'compiling what follows entry 0, a backward pass', 0.2),
      wait(0, 'compiling what follows entry 0, a backward pass', 0.1)
    ],
    guards: [guard(0, 'FLOAT', 'scale'), guard(1, 'EQUALS', 'scale', '`scale` is 1.0'), guard(1, 'EQUALS', 'n')]
  } as unknown as Report;
  const rows = callRows(report);
  assert.deepEqual(
    rows.map(r => [r.entry, r.backward, r.waits]),
    [
      [0, false, 1],
      [0, true, 2],
      [1, false, 0]
    ]
  );
  assert.ok(Math.abs(rows[1].waited - 0.3) < 1e-9);
  assert.deepEqual(rows[0].varying, ['scale']);
  assert.deepEqual(rows[2].fixed, ['`scale` is 1.0'], 'what another entry takes at any value, and this one does not');
  assert.deepEqual([...varyingNames(report)], ['scale']);
});

test('a recompile names the call and the line that made it', () => {
  const recompile = { frame_name: 'f', at_call: 2, called: 12 } as Recompile;
  assert.equal(callWords(recompile), 'call 2 of `f` (from line 12)');
  assert.equal(callWords({ ...recompile, frame_name: '<module>' }), 'call 2 of the cell');
  const loop = { ...recompile, frame_name: '<module>.<loop at line 9>', called: 9 };
  assert.equal(callWords(loop), 'turn 2 of the loop at line 9');
});

test('what a called function takes stands at the line of the call, and backward at its own', () => {
  const kernels = [
    { graph: 0, lines: [['In[2]', 7]] },
    { graph: 1, lines: [['In[2]', 7]] }
  ];
  const part = (index: number) => ({
    kind: 'kernels',
    name: `k${index}`,
    seconds: 1,
    line: 7,
    ref: `kernels/${index}`
  });
  const report = {
    source: { file: 'In[3]' },
    profiles: [],
    kernels,
    graphs: [{ callers: [['In[2]', 7, 'In[3]', 3]] }, { called_at: ['In[3]', 10] }],
    wall: { how: 'sampled', parts: [part(0), part(1)] }
  } as unknown as Report;
  const shares = lineShares(report, file => file === 'In[3]');
  assert.deepEqual([...shares].sort(), [
    ['In[3]:10', 0.5],
    ['In[3]:3', 0.5]
  ]);
});

test('a wait is said by its call of this run', () => {
  const report = {
    entries: [entry(0.5), entry(1), { ...entry(0.1), goes_on: 7 }],
    frames: [{ name: 'step', entries: [0, 1, 2] }],
    recompiles: [{ frame_name: 'step', at_call: 4, source: 'x', detail: 'shape[0]', expected: '8', got: '6' }],
    partitions: [],
    timeline: [
      { kind: 'entry', entry: 0, text: '' },
      wait(0, 'compiling what follows entry 0, a backward pass', 0.2),
      { kind: 'recompile', entry: 1, text: '' },
      { kind: 'entry', entry: 1, text: '' },
      { kind: 'entry', entry: 2, text: '' }
    ],
    guards: []
  } as unknown as Report;
  const [first, backward, again, rest] = callRows(report).map(row => waitWords(report, row));
  assert.equal(first, 'call 1 of `step`');
  assert.equal(backward, 'backward of a call of `step`');
  assert.equal(again, 'call 4 of `step`');
  assert.equal(rest, 'the first of step to go on from line 7');
});

test('what would compile again is told of the entry that asks for least, and not of what is made inside', () => {
  const given = (of: number, kind: string, source: string, fixed: string) => ({ ...guard(of, kind, source), fixed });
  const report = {
    entries: [entry(0), entry(0), { ...entry(0), goes_on: 9 }, { ...entry(0), frame: 1 }],
    frames: [{ name: 'step' }, { name: 'f.<loop at line 5>' }],
    guards: [
      given(0, 'TENSOR', 'tokens', 'shape or dtype'),
      given(1, 'TENSOR', 'tokens', 'number of dimensions or dtype'),
      given(1, 'TENSOR', 'mask', 'second size or dtype'),
      given(0, 'EQUALS', 'scale', 'value'),
      guard(1, 'FLOAT', 'scale'),
      given(0, 'LEN', 'batches', 'length'),
      given(2, 'TENSOR', 'loss', 'shape or dtype'),
      given(3, 'TENSOR', 'table', 'shape or dtype'),
      { ...given(0, 'EQUALS', 'dropped', 'value'), cls: 'dropped' }
    ]
  } as unknown as Report;
  assert.deepEqual(
    [...fixedParts(report)],
    [
      [' tokens', 'number of dimensions or dtype'],
      [' mask', 'second size or dtype'],
      ['LEN batches', 'length']
    ]
  );
});

test('what goes on at a line that is not known is told without one', () => {
  const report = {
    entries: [entry(0), { ...entry(0.1), goes_on: 0 }],
    frames: [{ name: 'step', entries: [0, 1] }],
    recompiles: [],
    partitions: [],
    timeline: [{ kind: 'entry', entry: 1, text: '' }],
    guards: []
  } as unknown as Report;
  assert.equal(waitWords(report, callRows(report)[1]), 'the first of step to go on after a break');
});

test('a condition that held is no value that changed', () => {
  assert.ok(isCondition({ source: '', detail: 'n % 2 == 0', expected: 'n % 2 == 0', got: 'n = 3' } as Recompile));
  assert.ok(!isCondition({ source: 'n', detail: '', expected: '2', got: '3' } as Recompile));
});

test('the magic of a cell is no line that costs, and kernels are little of a run that was mostly Python', () => {
  const part = (kind: string, seconds: number, line: number | null) => ({ kind, name: kind, seconds, line, ref: '' });
  const report = {
    source: { file: 'In[3]', first_line: 1, text: '%%tcompile\ny = f(x)' },
    profiles: [],
    kernels: [{ seconds: 1, launches: 1, lines: [['In[3]', 2]] }],
    graphs: [],
    marks: [{ kind: 'eager', line: 2 }],
    wall: {
      how: 'sampled',
      parts: [part('compiled', 3, 1), part('python', 1, 2)].map(p => ({ ...p, file: 'In[3]' }))
    }
  } as unknown as Report;
  const here = (file: string) => file === 'In[3]';
  assert.deepEqual([...lineShares(report, here)], [['In[3]:2', 0.25]]);
  const short = { ...report, wall: { how: 'counted', parts: [part('kernels', 1, 2), part('rest', 3, null)] } };
  assert.equal(wholeShare(short as unknown as Report), 0.25);
  assert.deepEqual([...heatOf(short as unknown as Report, here)], [[2, 0.25]]);
});
