import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Language, tokenize } from '../src/highlight';

const LINES = [
  '',
  'def f(x): return x.sum() + 0x1F  # a comment',
  '%%tcompile mode=max-autotune',
  '@decorator',
  "s = rb'never closed",
  '"""a text """ + \'\\\'\'',
  '    #pragma omp parallel for',
  'vf32 a = load<vf32>(p + 1e-3f); /* not closed',
  'for i0 in 64: %buf[i0] = sum(f32)',
  'ünïcode = "→ × µ"; 一 = 二',
  '\t\0\u2028\ud800'
];

test('the tokens of a line are the line', () => {
  for (const language of ['python', 'cpp', 'triton', 'ir'] as Language[]) {
    for (const line of LINES) {
      const text = tokenize(line, language)
        .map(([, part]) => part)
        .join('');
      assert.equal(text, line, language);
    }
  }
});

test('words of the language, calls, numbers and comments are told apart', () => {
  const kinds = Object.fromEntries(tokenize(LINES[1], 'python').map(([kind, text]) => [text, kind]));
  assert.equal(kinds['def'], 'keyword');
  assert.equal(kinds['f'], 'call');
  assert.equal(kinds['0x1F'], 'number');
  assert.equal(kinds['# a comment'], 'comment');
  assert.deepEqual(tokenize('define', 'python'), [['', 'define']]);
  assert.equal(tokenize('    #include <a>', 'cpp')[0][0], 'meta');
});

test('a hostile line takes no longer than its length', () => {
  for (const line of ['"'.repeat(20000), "'''".repeat(7000), '/*'.repeat(10000), 'a('.repeat(10000)]) {
    const start = performance.now();
    tokenize(line, 'python');
    tokenize(line, 'cpp');
    assert.ok(performance.now() - start < 2000, line.slice(0, 4));
  }
});
