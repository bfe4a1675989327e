import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Box, layout } from '../src/graph/layout';
import { placeNodes } from '../src/graph/parts';
import { removedNodes } from '../src/graph/passes';
import { along, label } from '../src/graph/shapes';
import { decision } from '../src/graph/why';
import { buildTree, initiallyOpen, isOperation, size, Tree } from '../src/graph/tree';
import { GraphNode, GraphPass, Partition, Report } from '../src/schema';
import { Model } from '../src/selection';
import { readers } from '../src/views/memory';

/** Numbers that are the same in every run. */
function random(seed: number): () => number {
  return () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed / 2 ** 32;
  };
}

function node(index: number, op: string, inputs: number[], module: string): GraphNode {
  const what = { args: '', shape: [4], dtype: 'float32', file: 'a.py', line: 1, kernel: null };
  return { index, name: `n${index}`, op, inputs, module, ...what };
}

/** A directed graph of `n` nodes, in topological order, in modules three deep; with a backward pass if asked for. */
function graphOf(n: number, seed: number, backward = false): GraphNode[] {
  const next = random(seed);
  return Array.from({ length: n }, (_, i) => {
    const source = i < 2 || next() < 0.1;
    const reach = Math.min(i, 12);
    const inputs = source ? [] : [i - 1 - Math.floor(next() * reach), i - 1 - Math.floor(next() * reach)];
    const part = backward && i > n / 2 ? 'backward.' : '';
    const depth = Math.floor((i / n) * 6);
    const op = source ? (next() < 0.5 ? 'input' : 'parameter') : 'aten.add.Tensor';
    return node(i, op, [...new Set(inputs)], `${part}layers.${depth}${next() < 0.5 ? '.mlp' : ''}`);
  });
}

const all = (tree: Tree) => new Set(tree.groups.map(g => g.id));
const measure = () => ({ w: 90, h: 30 });
const within = (inner: Box, outer: Box) =>
  inner.x >= outer.x - 1e-6 &&
  inner.y >= outer.y - 1e-6 &&
  inner.x + inner.w <= outer.x + outer.w + 1e-6 &&
  inner.y + inner.h <= outer.y + outer.h + 1e-6;
const apart = (a: Box, b: Box) =>
  a.x + a.w <= b.x + 1e-6 || b.x + b.w <= a.x + 1e-6 || a.y + a.h <= b.y + 1e-6 || b.y + b.h <= a.y + 1e-6;

for (const backward of [false, true]) {
  test(`a group is one run of nodes, and the order stays topological${backward ? ', with a backward pass' : ''}`, () => {
    for (let seed = 1; seed <= 40; seed++) {
      const nodes = graphOf(10 + seed * 3, seed, backward);
      const tree = buildTree(nodes);
      assert.deepEqual(
        [...tree.order].sort((a, b) => a - b),
        nodes.map(n => n.index)
      );
      const at = new Map(tree.order.map((index, place) => [index, place]));
      for (const n of nodes) {
        for (const input of n.inputs) {
          assert.ok(at.get(input)! < at.get(n.index)!, `seed ${seed}: n${n.index} stands before what it reads`);
        }
      }
      for (const group of tree.groups) {
        const inside = tree.order.slice(group.first, group.last + 1).map(index => nodes[index]);
        assert.equal(size(group), inside.filter(isOperation).length, `seed ${seed}: ${group.id}`);
      }
    }
  });
}

test('boxes lie within their frame and apart from each other', () => {
  for (let seed = 1; seed <= 30; seed++) {
    const tree = buildTree(graphOf(20 + seed * 4, seed, seed % 2 === 0));
    for (const opened of [new Set<string>(), initiallyOpen(tree), all(tree)]) {
      const { frames, boxOf } = layout(tree, opened, measure);
      assert.ok(tree.leaves.every(leaf => boxOf[leaf.node.index]));
      for (const frame of frames) {
        frame.children.forEach((a, i) => {
          assert.ok(within(a, frame), `seed ${seed}: a box leaves its frame`);
          assert.ok(
            frame.children.slice(i + 1).every(b => apart(a, b)),
            `seed ${seed}: two boxes overlap`
          );
        });
      }
    }
  }
});

test('edges of collapsed groups are one, with a count', () => {
  const nodes = [node(0, 'input', [], ''), ...[1, 2, 3].map(i => node(i, 'aten.add.Tensor', [0], 'block'))];
  const closed = layout(buildTree(nodes), new Set(), measure);
  assert.deepEqual(
    closed.edges.map(e => e.count),
    [3]
  );
  const tree = buildTree(nodes);
  assert.equal(layout(tree, all(tree), measure).edges.length, 3);
});

test('a graph without nodes, and one of a single node', () => {
  assert.equal(layout(buildTree([]), new Set(), measure).boxes.length, 0);
  assert.equal(layout(buildTree([node(0, 'input', [], '')]), new Set(), measure).boxes.length, 1);
});

test('hundreds of groups beside each other become rows, each below what it reads', () => {
  const parts = Array.from({ length: 300 }, (_, i) => [i, i, i, i]).flat();
  const source = node(0, 'input', [], '');
  const nodes = [source, ...parts.map((p, i) => node(i + 1, 'aten.add.Tensor', [i % 4 ? i : 0], `updates.p${p}`))];
  const tree = buildTree(nodes);
  for (const opened of [all(tree), new Set(tree.groups.filter(g => g.label === 'updates').map(g => g.id))]) {
    const { root, edges } = layout(tree, opened, measure);
    assert.ok(root.w < 4 * root.h && root.h < 4 * root.w, `${root.w} by ${root.h}`);
    assert.ok(edges.every(e => e.to.y > e.from.y));
  }
});

test('a graph of 6,000 nodes is laid out while nobody waits', () => {
  const tree = buildTree(graphOf(6000, 5));
  const start = performance.now();
  layout(tree, all(tree), measure);
  assert.ok(performance.now() - start < 5000); // some 50 ms on a quiet machine
});

test('beside other parts an optimizer’s step is closed at first', () => {
  const parts = [...Array(60).fill('net.0'), ...Array(40).fill('backward.net.0'), ...Array(200).fill('optimizer')];
  const nodes = parts.map((module, i) => node(i, 'aten.add.Tensor', i ? [i - 1] : [], module));
  const tree = buildTree(nodes);
  const opened = initiallyOpen(tree);
  assert.ok(tree.groups.some(g => g.path === 'optimizer') && ![...opened].some(id => id.startsWith('optimizer')));
});

test('what passes take away stands beside what it reads, until the pass that takes it', () => {
  const nodes = [0, 1, 2].map(i => node(i, i ? 'aten.add.Tensor' : 'input', i ? [i - 1] : [], 'net'));
  const pass = (removed: string[], added: string[], point = 'decomposed'): GraphPass => {
    return { name: 'p', point, seconds: 0, before: 3, after: 3, removed, added, more: 0 };
  };
  const passes = [
    pass(['gone = aten.mul(n0, 2)', 'n2 = aten.add(gone, 1)'], ['n2 = aten.add.Tensor(n1, 1)']),
    pass([], ['between = aten.neg(n1)']),
    pass(['last = aten.exp(n1)', 'between = aten.neg(n1)', 'old = aten.sin(last)'], [])
  ];
  const at = (i: number) => removedNodes(nodes, passes, i).map(n => [n.name, n.gone!.now, n.inputs, n.gone!.after]);
  assert.deepEqual(at(0), [
    ['gone', true, [0], 0],
    ['last', false, [1], 1],
    ['old', false, [4], 1]
  ]);
  assert.deepEqual(at(2), [
    ['last', true, [1], 1],
    ['between', true, [1], 1],
    ['old', true, [3], 1]
  ]);
  const recorded = [pass(['x = aten.mul(n0)', 'nowhere = aten.full(2)'], [], 'recorded'), ...passes];
  assert.deepEqual(
    removedNodes(nodes, recorded, 0).map(n => n.name),
    ['x']
  );
  assert.ok(removedNodes(nodes, recorded, 1).every(n => n.name !== 'x'));
  // what reads no node of a module stands where it was read
  const inOptimizer = [
    node(0, 'input', [], ''),
    node(1, 'aten.add', [0], 'net'),
    node(2, 'aten.mul', [1], 'optimizer')
  ];
  const rate = pass(
    ['minus = aten.neg(n0)', 'wide = aten.to(minus)', 'n2 = aten.mul(n1, wide)'],
    ['n2 = aten.mul(n1, 1)']
  );
  assert.deepEqual(
    removedNodes(inOptimizer, [rate], 0).map(n => [n.module, n.gone!.after]),
    [
      ['optimizer', 1.5],
      ['optimizer', 1.5]
    ]
  );
  const tree = buildTree([...nodes, ...removedNodes(nodes, passes, 0)]);
  assert.deepEqual(
    tree.groups.map(g => g.path),
    ['net']
  ); // in one piece
  assert.deepEqual(tree.order, [0, 3, 1, 4, 5, 2]);
});

test('a part is one group where the order allows it', () => {
  const nodes = [
    node(0, 'input', [], ''),
    node(1, 'aten.mm.default', [0], 'net'),
    node(2, 'aten.mm.default', [1], 'backward.net'),
    node(3, 'aten.norm', [2], 'gradients'),
    node(4, 'aten.full', [], ''), // a constant between them is the program's own
    node(5, 'aten.mul', [3, 4], 'gradients'),
    node(6, 'aten.mm.default', [1], 'backward.net'),
    node(7, 'aten.mul', [5, 6], 'gradients'),
    node(8, 'aten.add', [7], 'optimizer'),
    node(9, 'output', [8], '')
  ];
  const runs = () => {
    const { order, paths } = placeNodes(nodes);
    const parts = order.map(i => paths[i][0]).filter(Boolean);
    return parts.filter((p, i) => p !== parts[i - 1]);
  };
  assert.deepEqual(runs(), ['forward', 'backward', 'gradients', 'optimizer']);
  nodes[6].inputs = [5]; // backward goes on after what was done with the first gradients: two groups, as it is
  assert.deepEqual(runs(), ['forward', 'backward', 'gradients', 'backward', 'gradients', 'optimizer']);
});

test('any two operations have a reason for being one kernel or two', () => {
  // x -> a -> mm -> b -> c; y is read by d alone; v is a view of x
  const [x, a, mm, b, c, d, v] = [
    { ...node(0, 'input', [], ''), name: 'x' },
    { ...node(1, 'aten.exp.default', [0], ''), name: 'a', kernel: 0 },
    { ...node(2, 'aten.mm.default', [1], ''), name: 'mm', kernel: 1 },
    { ...node(3, 'aten.add.Tensor', [2, 0], ''), name: 'b', kernel: 2 },
    { ...node(4, 'aten.mul.Tensor', [3, 1], ''), name: 'c', kernel: 2 },
    { ...node(5, 'aten.sin.default', [0], ''), name: 'd', kernel: 3 },
    { ...node(6, 'aten.view.default', [0], ''), name: 'v' }
  ];
  const kernels = [['a'], ['mm'], ['b', 'c'], ['d', 'sin_1']].map((origins, i) => ({
    name: `k${i}`,
    origins,
    fused_because: ['reads what the kernel makes']
  }));
  const unfused = [
    ['a', 'mm', 'mm is a matrix product'],
    ['mm', 'b', 'it needs more than single elements']
  ];
  const report = { kernels, externs: [], graphs: [{ unfused }] } as unknown as Report;
  const words = (one: GraphNode, other: GraphNode) => decision(report, 0, [x, a, mm, b, c, d, v], one, other).words;
  assert.match(words(a, mm), /mm is a matrix product/);
  assert.match(words(mm, a), /mm is a matrix product/);
  assert.match(words(b, c), /one kernel, k2: reads what the kernel makes/);
  assert.match(words(mm, c), /because of `mm` and `b`: it needs more/, 'what was noted of the same two kernels');
  assert.match(words(a, c), /mm of kernel k1 comes between/);
  assert.match(words(a, d), /Both read x/);
  assert.match(words(c, d), /Neither reads the other, nor the same value/);
  assert.match(words(x, a), /comes from outside of the graph/);
  assert.match(words(v, d), /memory that is there/);
  kernels[2].origins.push('a');
  assert.match(words(a, b), /k2 computes both/);
});

test('what reads a kept value is told through its views', () => {
  const nodes = [
    { ...node(0, 'input', [], ''), name: 'saved_mm' },
    node(1, 'aten.view.default', [0], ''),
    node(2, 'aten.permute.default', [1], ''),
    node(3, 'aten.mul.Tensor', [2], ''),
    node(4, 'aten.exp.default', [0], ''),
    node(5, 'output', [2, 3, 4], '')
  ];
  const model = { levels: () => ['lowered'], graphNodes: () => nodes } as unknown as Model;
  const partition = { backward: [1], saved: [{ name: 'mm' }] } as unknown as Partition;
  assert.deepEqual([...readers(partition, model)], [['mm', 'mul, exp']]);
});

test('a chain of eighty operations is laid out about as wide as a view, so that all of it can be read', () => {
  const chain = Array.from({ length: 80 }, (_, i) => node(i, i ? 'aten.add.Tensor' : 'input', i ? [i - 1] : [], ''));
  const { root } = layout(buildTree(chain), new Set(), measure);
  const scale = Math.min(865 / root.w, 480 / root.h);
  assert.ok(scale > 0.35, `${root.w} x ${root.h}`);
});

test('a box says the name that other views use', () => {
  const named = (name: string, op: string) => label({ ...node(0, op, [0], ''), name });
  assert.equal(named('add_3', 'aten.add.Tensor'), 'add_3');
  assert.equal(named('sum_1', 'aten.sum.dim_IntList'), 'sum_1');
  assert.equal(named('h', 'aten.relu.default'), 'relu');
  assert.equal(named('adder_3', 'aten.add.Tensor'), 'add');
});

test('a label lies on its edge', () => {
  const box = (x: number, y: number) => ({ x, y, w: 10, h: 10 }) as Box;
  const edge = { from: box(0, 0), to: box(100, 200) } as Parameters<typeof along>[0];
  assert.deepEqual(
    [along(edge, 0), along(edge, 1)],
    [
      { x: 5, y: 10 },
      { x: 105, y: 200 }
    ]
  );
  assert.deepEqual(along(edge, 0.5), { x: 55, y: 105 });
});
