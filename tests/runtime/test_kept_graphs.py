"""Generated code of whole graphs on disk: what a later session takes from there is what its stages would have made."""

import io

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler import events, stages
from tcompile.compiler.codegen.triton.layout import GpuTarget
from tcompile.compiler.config import Options
from tcompile.compiler.lowering import rule_table
from tcompile.compiler.runtime import cache, cache_file, kept_graphs
from tcompile.compiler.runtime.kept_graphs import KeptGraph

from ..codegen.triton.as_gpu import as_gpu, train_as_gpu

pytestmark = pytest.mark.usefixtures("own_cache")
OFF = {"verify": False}  # (stages whose outputs are verified have to run)


def fresh(fn, *args, listen=True, **options):
    """A first call: (its result, the stages that ran, the other events)."""
    tcompile.reset()
    heard = []
    compiled = tcompile.compile(fn, options={**OFF, **options})
    if not listen:
        return compiled(*args), [], []
    with events.listen(heard.append):
        out = compiled(*args)
    ran = [e.name for e in heard if e.kind == "stage" and e.phase == "begin"]
    return out, ran, [e for e in heard if e.kind != "stage"]


def known(ran):
    return not {"lowering", "fusion", "codegen"} & set(ran)


def as_text(generated):
    launches = [
        (generated.of(s).name, s.kernel.key(), s.kernel.origins, s.kernel.lines, str(s.inputs), str(s.outputs))
        for s in generated.schedule.steps
        if type(s).__name__ == "Launch"
    ]
    return [
        [(k.name, k.source.text, k.bytes, k.flops, k.source.choices) for k in generated.kernels],
        generated.host.source,
        sorted(generated.host.names),
        [str(s) for s in generated.schedule.steps if type(s).__name__ != "Launch"],
        launches,
        (generated.schedule.peak_bytes, generated.schedule.unfused, str(generated.schedule.outputs)),
    ]


def read_again(generated, constants):
    file = io.BytesIO()
    kept_graphs._Writer(file, constants, [__file__]).dump(generated)
    assert __file__.encode() not in file.getvalue()
    return kept_graphs._Reader(io.BytesIO(file.getvalue()), constants, [__file__]).load()


table = torch.randn(50, 16)
steady = torch.arange(12.0).view(3, 4)


def embedding(ids, x):
    return F.embedding(ids, table * 2).softmax(-1) + x.cumsum(-1), table[ids, ids % 16]


def products(x, y):
    return F.gelu(x @ y).layer_norm((8,)) if hasattr(x, "layer_norm") else F.layer_norm(F.gelu(x @ y), (8,))


def in_place(x, y):
    x.add_(y.mean(0))
    return x[:2], (x * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum(), 7, None


def several(x, y):
    a, b = x.sort(-1)
    return a.var(), b, torch.cat([x, y])[1:].flip(0), x.argmax(), (x > 0).any(), F.max_pool1d(x[None], 2)


IDS = torch.tensor([[1, 4], [49, 0]])
PROGRAMS = [
    (embedding, lambda: (IDS, torch.randn(2, 2, 16))),
    (products, lambda: (torch.randn(5, 6), torch.randn(6, 8))),
    (in_place, lambda: (steady.clone(), torch.ones(5, 4))),
    (several, lambda: (torch.randn(3, 4), torch.randn(3, 4))),
]


@pytest.mark.parametrize("fn, inputs", PROGRAMS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_known_graph_is_what_its_stages_make(fn, inputs, monkeypatch):
    made = []
    keep, find = KeptGraph.keep, KeptGraph.find
    monkeypatch.setattr(KeptGraph, "keep", lambda self, g, told: (made.append(as_text(g)), keep(self, g, told))[1])
    args = inputs()
    first, ran, said = fresh(fn, *[a.clone() for a in args])
    assert not known(ran) and len(made) == 1
    found = []
    monkeypatch.setattr(KeptGraph, "find", lambda self: (g := find(self), found.append(as_text(g)))[0])
    again, ran, said_again = fresh(fn, *[a.clone() for a in args])
    assert known(ran) and found == made
    plain = fn(*[a.clone() for a in args])
    torch.testing.assert_close(first, plain)
    torch.testing.assert_close(again, plain)
    machine = ("cache", "compile_c", "progress")
    kinds = [e.kind for e in said if e.kind not in machine]
    assert [e.kind for e in said_again if e.kind not in machine] == kinds
    assert [(e.hit, e.what) for e in said_again if e.kind == "cache" and e.what == "graph"] == [(True, "graph")]


def test_a_report_says_the_same():
    args = PROGRAMS[0][1]()

    def report():
        tcompile.reset()
        with tcompile.record() as r:
            tcompile.compile(embedding, options=OFF)(*args)
        return r.report()

    first, again = report(), report()
    assert [k.name for k in again.kernels] == [k.name for k in first.kernels] != []
    for a, b in zip(first.kernels, again.kernels):
        assert (a.source, a.bytes, a.flops, a.origins) == (b.source, b.bytes, b.flops, b.origins)
    assert str(again.graphs[0].captured) == str(first.graphs[0].captured)
    assert embedding.__name__ in str(again)


def test_who_listens_later_hears_what_nobody_heard():
    x = torch.randn(9)

    def fn(x):
        return (x * 3).exp()

    fresh(fn, x, listen=False)
    _, ran, said = fresh(fn, x)
    assert known(ran) and [e.language for e in said if e.kind == "kernel"] == ["c++"]


def test_a_file_may_lie_elsewhere(tmp_path):
    def called(folder, text="x.sin() + 1", name="cell.py"):
        file = tmp_path / folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"def fn(x):\n    return {text}\n")
        names = {}
        exec(compile(file.read_text(), str(file), "exec"), names)
        _, ran, said = fresh(names["fn"], torch.randn(5))
        (kernel,) = (e.kernel for e in said if e.kind == "kernel")
        assert {line[:2] for line in kernel.lines} == {(str(file), 2)}
        return known(ran)

    assert [called("one"), called("two"), called("two", name="other.py"), called("one")] == [False, True, False, True]


def test_training_and_draws():
    torch.manual_seed(0)
    m = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(12, 3))
    x = torch.randn(7, 6)

    def step():
        tcompile.reset()
        for p in m.parameters():
            p.grad = None
        torch.manual_seed(3)
        heard = []
        with events.listen(heard.append):
            loss = tcompile.compile(m, options=OFF)(x).square().mean()
            loss.backward()
        return [loss.detach(), *(p.grad for p in m.parameters())], [
            e.name for e in heard if e.kind == "stage" and e.phase == "begin"
        ]

    first, ran = step()
    assert ran.count("codegen") == 2
    again, ran = step()
    assert known(ran)
    assert all(a.equal(b) for a, b in zip(first, again))


def test_no_fact_about_a_node_is_another_node():
    """Passes drop nodes: a key could not name them."""

    def fn(x, w, y):
        return F.nll_loss((x @ w).tanh(), y) + F.nll_loss(x @ w, y)

    made, *_ = train_as_gpu(fn, torch.randn(8, 4), torch.randn(4, 50, requires_grad=True), torch.randint(50, (8,)))
    facts = [value for node in made.backward.graph.nodes for value in node.meta.values()]
    assert not [x for x in torch.utils._pytree.tree_leaves(facts) if isinstance(x, torch.fx.Node)]


def test_sizes_that_vary():
    def fn(x):
        return x.softmax(0) / x.shape[0]

    def call(n):
        return tcompile.compile(fn, dynamic=True, options=OFF)(torch.ones(n))

    for n, there in ((5, False), (5, True), (9, False), (9, True), (5, True)):  # (another hint may decide otherwise)
        tcompile.reset()
        with events.listen((heard := []).append):
            assert call(n).equal(fn(torch.ones(n)))
        assert known([e.name for e in heard if e.kind == "stage"]) == there


def scaled(by, dtype=torch.float32, stride=False):
    def fn(x):
        return (x * by).cumsum(0)

    x = torch.arange(24, dtype=dtype).view(4, 6)
    return fn, x.t() if stride else x


def test_each_difference_is_another_graph():
    seen = []

    def differs(fn, x, **options):
        ran = fresh(fn, x, **options)[1]
        seen.append(known(ran))
        return not seen[-1]

    fn, x = scaled(2.0)
    assert differs(fn, x) and not differs(fn, x)
    assert differs(scaled(2.5)[0], x) and differs(scaled(-0.0)[0], x) and differs(scaled(0.0)[0], x)
    assert differs(*scaled(2.0, torch.float64)) and differs(*scaled(2.0, stride=True))
    assert differs(fn, x, emulate_precision=True) and differs(fn, x, simd="none")
    assert differs(lambda x: (x * 2.0).cumsum(0), x)  # (its lines are others)
    assert not differs(fn, x)
    torch.set_default_dtype(torch.float64)
    try:
        assert differs(fn, x)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert differs(fn, x)
    finally:
        torch.use_deterministic_algorithms(False)


def test_constants_are_part_of_the_key():
    def fn(x, values):
        return x + torch.tensor(values)

    x = torch.zeros(3)
    for values in ((1.0, 2.0, 3.0), (1.0, 2.0, 4.0), (1.0, 2.0, 3.0)):
        out, ran, _ = fresh(lambda x: fn(x, values), x)
        assert out.tolist() == list(values)
    assert known(ran)


def test_what_is_not_kept(own_cache, monkeypatch):
    x = torch.randn(5)

    def fn(x):
        return x.sin() + 1

    for options in ({"verify": True}, {"cache": False}):
        fresh(fn, x, **options)
        assert not known(fresh(fn, x, **options)[1])
    with stages.replace("fusion", stages.original("fusion")):
        fresh(fn, x)
        assert not known(fresh(fn, x)[1])
    monkeypatch.setitem(rule_table.RULES, torch.ops.aten.sin.default, lambda lo, node, x: None)
    assert kept_graphs._rules_of_others()
    monkeypatch.undo()
    assert not (own_cache / "v1" / "graphs").exists()

    @torch.library.custom_op("kept_graphs::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    fresh(lambda x: twice(x) + 1, x)
    assert not known(fresh(lambda x: twice(x) + 1, x)[1])


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:], lambda b: b""])
def test_a_damaged_graph_is_made_again(own_cache, damage):
    x = torch.randn(5)

    def fn(x):
        return x.sin() + 1

    fresh(fn, x)
    (file,) = (own_cache / "v1" / "graphs").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    out, ran, said = fresh(fn, x)
    torch.testing.assert_close(out, fn(x))
    assert not known(ran) and [e.reason for e in said if e.kind == "cache" and e.what == "graph"] == [
        "checksum does not match"
    ]
    assert known(fresh(fn, x)[1])


def test_only_objects_of_the_compiler_and_of_torch_are_read():
    import pickle

    for x in (io.StringIO, eval, pytest.raises):
        with pytest.raises(pickle.UnpicklingError):
            kept_graphs._Reader(io.BytesIO(pickle.dumps(x)), {}, []).load()


def test_the_folder_stays_within_its_limit(own_cache):
    fresh(lambda x: x.sin() + 1, torch.randn(5))
    kept = cache.open_cache(Options.make())
    assert len(list(kept.graphs())) == 1
    limit, kept.limit = kept.limit, 0
    kept.evict()
    kept.limit = limit
    assert not list(kept.graphs()) and not list(kept.entries())
    fresh(lambda x: x.sin() + 1, torch.randn(5))
    assert len(list(kept.graphs())) == 1
    cache.clear(Options.make())
    assert not list(kept.graphs())


def test_a_file_of_kernels_carries_them(tmp_path, monkeypatch):
    for name in ("used_kernels", "used_notes", "used_graphs"):
        monkeypatch.setattr(cache, name, type(getattr(cache, name))())
        monkeypatch.setattr(cache_file, name, getattr(cache, name))
    x = torch.randn(5)

    def fn(x):
        return x.sin() + 1

    fresh(fn, x)
    tcompile.save_cache(tmp_path / "file.tcc")
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path / "elsewhere"))
    tcompile.load_cache(tmp_path / "file.tcc", trusted=True)
    _, ran, said = fresh(fn, x)
    assert known(ran) and not [e for e in said if e.kind == "compile_c"]


def test_graphs_of_a_gpu():
    hopper = GpuTarget("cuda", 90, 32, 132)

    def attention(q, k, v, ids):
        return F.scaled_dot_product_attention(q, k, v).sum(-1) + table[ids].mean()

    q = torch.randn(2, 4, 64, 32)
    both = [as_gpu(attention, q, q, q, IDS, target=hopper)]
    w = torch.nn.Linear(64, 64)
    both += train_as_gpu(lambda x: F.gelu(w(x)).square().mean(), torch.randn(256, 64), target=hopper)[1:]
    for generated in both:
        constants = {k: t for k, t in generated.schedule.constants.items()}
        again = read_again(generated, constants)
        assert as_text(again) == as_text(generated)
        for a, b in zip(generated.kernels, again.kernels):
            assert [f.name for f in a.source.functions] == [f.name for f in b.source.functions]
            assert (a.source.limits, a.source.numbers, a.source.shared) == (
                b.source.limits,
                b.source.numbers,
                b.source.shared,
            )
