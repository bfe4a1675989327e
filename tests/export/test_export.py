"""tcompile.export: programs that run, save, load in a fresh process, and refuse what they were not made for."""

from __future__ import annotations

import collections
import dataclasses
import json
import subprocess
import sys
import zipfile

import pytest
import tcompile
import torch
import torch.nn as nn
import torch.nn.functional as F
from tcompile import ExportError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "program.tcx"


def roundtrip(program, file):
    program.save(file)
    return tcompile.load_exported(file)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))
        self.head = nn.Linear(8, 2)
        self.register_buffer("scale", torch.tensor(2.0))
        self.tied = self.head.weight
        self.extra = torch.arange(2.0)

    def forward(self, x, flag=True):
        y = self.head(self.body(x)) * self.scale + self.extra
        return y + self.tied.sum() if flag else y


def test_module_saved_and_loaded(file):
    net, x = Net(), torch.randn(3, 4)
    program = tcompile.export(net, (x,))
    loaded = roundtrip(program, file)
    for p in (program, loaded):
        close(p(x), net(x))
        close(p.module()(x), net(x))
        assert set(net.state_dict()) <= set(p.state)
    assert loaded.state["tied"] is loaded.state["head.weight"]
    assert isinstance(loaded.state["head.weight"], nn.Parameter)


def test_loaded_in_a_process_without_the_source(file):
    net, x = Net(), torch.ones(3, 4)
    tcompile.export(net, (x,), dynamic={"x": [0]}).save(file)
    code = (
        "import sys, torch, tcompile\n"
        f"p = tcompile.load_exported({str(file)!r})\n"
        "print([round(v, 4) for v in p(torch.ones(3, 4))[0].tolist()], tuple(p(torch.ones(5, 4)).shape), 'torch._dynamo' in sys.modules)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stdout.strip() == f"{[round(v, 4) for v in net(x)[0].tolist()]} (5, 2) False"


def test_shapes_dtypes_and_constants_are_checked(file):
    program = roundtrip(tcompile.export(Net(), (torch.randn(3, 4), True)), file)
    for args, words in [
        ((torch.randn(2, 4), True), "argument `x`: expected size 3 in dimension 0, got 2"),
        ((torch.randn(3, 4).double(), True), "argument `x`: expected torch.float32, got torch.float64"),
        ((torch.randn(3, 4, 1), True), "argument `x`: expected 2 dimensions, got 3"),
        (("x", True), "argument `x`: expected a tensor, got str"),
        ((torch.randn(3, 4), False), "argument `flag`: expected True, got False"),
        ((), "missing a required argument: 'x'"),
    ]:
        with pytest.raises(ExportError) as info:
            program(*args)
        assert words in str(info.value)


def test_dynamic_sizes(file):
    def f(x, y):
        return torch.cat([x, y]).sum(1) / x.shape[0], x.shape[0] * 2

    x, y = torch.randn(3, 4), torch.randn(5, 4)
    program = roundtrip(tcompile.export(f, (x, y), dynamic={"x": [0], "y": {0: "rows"}}), file)
    for n, m in ((3, 5), (7, 2), (4, 4)):
        x, y = torch.randn(n, 4), torch.randn(m, 4)
        got, want = program(x, y), f(x, y)
        close(got[0], want[0])
        assert got[1] == want[1]
    with pytest.raises(ExportError, match="size of 2 or more in dimension 0"):
        program(torch.randn(1, 4), y)
    with pytest.raises(ExportError, match="expected size 4 in dimension 1, got 5"):
        program(torch.randn(3, 5), y)


def test_sizes_that_must_agree():
    def f(x, y):
        return x + y

    program = tcompile.export(f, (torch.ones(3, 4), torch.ones(3, 4)), dynamic=True)
    close(program(torch.ones(5, 2), torch.ones(5, 2)), torch.full((5, 2), 2.0))
    with pytest.raises(ExportError, match="expected"):
        program(torch.ones(5, 2), torch.ones(6, 2))


@pytest.mark.parametrize("given", [{}, {"alpha": 0.25}, {"alpha": 0.25, "times": 5}])
def test_floats_stay_the_examples_where_sizes_and_ints_vary(given, file):
    def f(x, alpha=0.5, *, times=3):
        return x * alpha + times

    program = roundtrip(tcompile.export(f, (torch.ones(3, 4),), given, dynamic=True), file)
    for other in (given, {**given, "times": 7}):
        close(program(torch.ones(5, 2), **other), f(torch.ones(5, 2), **other))
    with pytest.raises(ExportError, match="`alpha`: expected .*, got 0.75"):
        program(torch.ones(3, 4), alpha=0.75)


def test_a_size_that_the_code_fixes_is_refused():
    def f(x):
        assert x.shape[0] == 3
        return x * 2

    with pytest.raises(
        ExportError, match=r"dimension 0 of `x` cannot vary: the code fixes it to 3 at .*test_export.py:\d+"
    ):
        tcompile.export(f, (torch.ones(3, 4),), dynamic={"x": [0]})
    with pytest.raises(ExportError, match="'z', which is not a parameter; there are x"):
        tcompile.export(f, (torch.ones(3),), dynamic={"z": [0]})


def test_branch_on_a_size_is_a_check(file):
    def f(x):
        return x * 2 if x.shape[0] > 4 else x - 1

    program = roundtrip(tcompile.export(f, (torch.ones(8),), dynamic=True), file)
    close(program(torch.ones(5)), torch.full((5,), 2.0))
    with pytest.raises(ExportError, match=r"test_export.py:\d+ relies on it"):
        program(torch.ones(3))


def test_nested_arguments_and_keywords(file):
    def f(batch, pair, *rest, scale=2.0, **more):
        return {
            "a": batch["x"] + batch["y"][0],
            "b": [pair[0] * scale, rest[0]],
            "c": more["z"],
            "n": None,
            "t": ("s", 1.5),
        }

    args = ({"x": torch.ones(2), "y": [torch.ones(2)]}, (torch.ones(3), torch.zeros(3)), torch.ones(1))
    program = tcompile.export(f, args, {"scale": 3.0, "z": torch.ones(4)})
    loaded = roundtrip(program, file)
    want = f(*args, scale=3.0, z=torch.ones(4))
    for p in (program, loaded):
        got = p(*args, scale=3.0, z=torch.ones(4))
        close([got["a"], *got["b"], got["c"]], [want["a"], *want["b"], want["c"]])
        assert (got["n"], got["t"], list(got)) == (None, ("s", 1.5), list(want))
    with pytest.raises(ExportError, match=r"argument `scale`: expected 3.0, got 4.0"):
        loaded(*args, scale=4.0, z=torch.ones(4))
    with pytest.raises(ExportError, match=r"`batch\['y'\]\[0\]`"):
        loaded({"x": torch.ones(2), "y": [torch.ones(3)]}, *args[1:], scale=3.0, z=torch.ones(4))
    with pytest.raises(ExportError, match=r"`batch\['x'\]`: expected to be there, got nothing"):
        loaded({"y": [torch.ones(2)]}, *args[1:], scale=3.0, z=torch.ones(4))


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    note: str


def test_results_of_classes(file):
    def f(x):
        return Point(x + 1, x * 2), Result(x - 1, "hello")

    x = torch.ones(2)
    program = tcompile.export(f, (x,))
    point, result = program(x)
    assert type(point) is Point and type(result) is Result
    point, result = roundtrip(program, file)(x)
    assert (
        point.y.tolist() == [2, 2]
        and result.value.tolist() == [0, 0]
        and result.note == "hello"
        and result[1] == "hello"
    )


def test_closures_globals_and_constants(file):
    weight = nn.Parameter(torch.full((3,), 2.0))
    table = {"bias": torch.ones(3)}

    def f(x):
        return x * weight + table["bias"] + torch.tensor([1.0, 2.0, 3.0])

    program = roundtrip(tcompile.export(f, (torch.ones(3),)), file)
    close(program(torch.ones(3)), f(torch.ones(3)))
    with torch.no_grad():
        weight.zero_()  # the program has its own
    close(program(torch.ones(3)), torch.tensor([4.0, 5.0, 6.0]))


def test_input_and_alias_results():
    def f(x):
        return x, x + 1, x

    x = torch.ones(3)
    a, b, c = tcompile.export(f, (x,))(x)
    assert a is x and c is x and b.tolist() == [2] * 3


def test_changed_buffers_and_arguments(file):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    program = roundtrip(tcompile.export(norm, (x,)), file)
    close(program(x), norm(x))
    close(program.state["running_mean"], norm.running_mean)
    assert int(program.state["num_batches_tracked"]) == 1
    with pytest.raises(ExportError, match="exported in training mode"):
        program.module().eval()

    def grow(x, y):
        x.add_(1)
        return x * y

    program = tcompile.export(grow, (torch.ones(3), torch.ones(3)))
    a = torch.ones(3)
    assert program(a, torch.ones(3)).tolist() == [2] * 3 and a.tolist() == [2] * 3
    with pytest.raises(ExportError, match="shared memory"):
        program(a, a)


def test_trained_as_a_module(file):
    net, x = Net(), torch.randn(6, 4)
    program = roundtrip(tcompile.export(net, (x,)), file)
    module = program.module()
    module(x).sum().backward()
    net(x).sum().backward()
    mine, theirs = dict(module.named_parameters()), dict(net.named_parameters())
    assert set(mine) == set(theirs)
    for name in mine:
        close(mine[name].grad, theirs[name].grad)
    program(x).sum().backward()
    close(mine["head.bias"].grad, theirs["head.bias"].grad * 2)


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, grad):
        return grad * 10 * ctx.k, None


def test_custom_gradient_cond_and_loops(file):
    from torch._higher_order_ops.while_loop import while_loop

    def f(x, n):
        y = Wrong.apply(x, 3.0)
        z = torch.cond(n > 2, lambda a: a.sin(), lambda a: a.cos(), (x.detach(),))
        i, w = while_loop(lambda i, w: i < n, lambda i, w: (i + 1, w * 2), (torch.tensor(0), z))
        return y, w

    x = torch.ones(3, requires_grad=True)
    program = roundtrip(tcompile.export(f, (x, torch.tensor(3))), file)
    for n in (1, 3):
        y, w = program(x, torch.tensor(n))
        close(w, (x.sin() if n > 2 else x.cos()).detach() * 2**n)
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [30.0] * 3
    with pytest.raises(ExportError, match="requires_grad=True, got requires_grad=False"):
        program(torch.ones(3), torch.tensor(1))


def test_what_cannot_be_exported_says_why():
    def branches(x):
        return x + 1 if x.sum() > 0 else x

    counter = []

    def effects(x):
        counter.append(1)
        return x + 1

    with pytest.raises(ExportError, match=r"test_export.py:\d+: return x \+ 1 if(.|\n)*torch.where"):
        tcompile.export(branches, (torch.ones(2),))
    with pytest.raises(ExportError, match="side effects that a graph cannot hold: list.append"):
        tcompile.export(effects, (torch.ones(2),))
    with pytest.raises(ExportError, match="example arguments as a tuple"):
        tcompile.export(branches, torch.ones(2))
    with pytest.raises(ExportError, match="do not fit branches|do not fit .*branches"):
        tcompile.export(branches, ())
    with pytest.raises(ExportError, match="function or nn.Module, got int"):
        tcompile.export(3, ())
    with pytest.raises(ExportError, match="cannot be saved"):
        tcompile.export(lambda x: torch.func.grad(lambda v: (v * v).sum())(x), (torch.ones(2),)).save("unused")


# --- files that somebody else wrote
def rewritten(file, change):
    """The program file with its text changed."""
    with zipfile.ZipFile(file) as z:
        entries = {n: z.read(n) for n in z.namelist()}
    text = json.loads(entries["program.json"])
    change(text)
    entries["program.json"] = json.dumps(text).encode()
    with zipfile.ZipFile(file, "w") as z:
        for n, data in entries.items():
            z.writestr(n, data)


def set_target(op, target, args=None):
    def change(text):
        row = next(r for r in text["graph"] if r[0].startswith("call"))
        row[0], row[2] = op, target
        if args is not None:
            row[3] = args

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_target("call_function", "torch:load"),
        set_target("call_function", "torch:from_file"),
        set_target("call_function", "operator:attrgetter"),
        set_target("call_function", "torch.nn.functional:os"),
        set_target("call_function", "os:system"),
        set_target("call_function", "ops:aten::save"),
        set_target("call_function", "ops:aten::from_file"),
        set_target("call_function", "torch.functional:__builtins__"),
        set_target("call_function", "torch.nn.functional:importlib"),
        set_target("call_method", "__reduce_ex__"),
        set_target("call_method", "_make_subclass"),
        set_target("call_method", "map_"),
        set_target("call_function", "getattr", {"tuple": [{"node": "x"}, "__class__"]}),
        lambda t: t["graph"][2].__setitem__(1, "x = __import__('os')"),
        lambda t: t["graph"][2].__setitem__(1, "class"),
        lambda t: t["graph"][2].__setitem__(4, {"a=1)\n__import__('os'": 1}),
        lambda t: t["graph"][2].__setitem__(3, {"tuple": [{"node": "later"}]}),
        lambda t: t["checks"].append(["sizes", [], {"tuple": ["__import__", 1]}, ""]),
        lambda t: t.update(version=99),
        lambda t: t.update(format="x"),
        lambda t: t.pop("inputs"),
        lambda t: t["tensors"][0].update(shape=[10**9]),
        lambda t: t["tensors"][0].update(dtype="torch.load"),
        lambda t: t["inputs"].pop(),
    ],
    ids=range(24),
)
def test_files_are_not_trusted(file, change):
    x = torch.ones(3)
    weight = torch.ones(3)
    tcompile.export(lambda x: torch.sin(x) + weight, (x,)).save(file)
    rewritten(file, change)
    with pytest.raises(ExportError):
        tcompile.load_exported(file)(x)


def calls_eval(t):
    """An input that is no tensor but Python's eval, reached from the argument's class, and a call of it."""
    steps = [
        ["attr", "__class__"],
        ["attr", "__repr__"],
        ["attr", "__globals__"],
        ["item", "__builtins__"],
        ["item", "eval"],
    ]
    t["inputs"].append(["bad", "argument", ["x", *({"tuple": s} for s in steps)], ""])
    last = max(k for k, row in enumerate(t["graph"]) if row[0] == "placeholder")
    t["graph"][last + 1 : last + 1] = [
        ["placeholder", "bad", None, None, {}],
        ["call_method", "called", "__call__", {"tuple": [{"node": "bad"}, "1/0"]}, {}],
    ]


def reads_eval(t):
    """The same, where a method of tensors is called of it."""
    calls_eval(t)
    row = next(r for r in t["graph"] if r[1] == "called")
    row[2], row[3] = "sum", {"tuple": [{"node": "bad"}]}


@pytest.mark.parametrize(
    "change",
    [
        calls_eval,
        reads_eval,
        set_target("call_method", "__subclasses__"),
        set_target("call_function", "method:mro"),
        lambda t: t["graph"][2].__setitem__(4, {"cdata": 64}),
        lambda t: t["graph"][2].__setitem__(3, [{"node": "x"}]),
        lambda t: t["graph"].insert(0, ["placeholder", "self", None, None, {}]),
        lambda t: t.update(tensors=3),
        lambda t: t["tensors"][0].pop("stride"),
        lambda t: t["tensors"][0].update(device="nowhere"),
        lambda t: t["tensors"][0].update(shape="x"),
        lambda t: t["inputs"][0].__setitem__(2, {"tuple": []}),
        lambda t: t["signature"][0].__setitem__(1, "UPSIDE_DOWN"),
        lambda t: t["inputs"][0].__setitem__(1, "tea"),
        lambda t: t["state"][0].__setitem__(1, 7),
        lambda t: t["state"][0].__setitem__(1, -1),
    ],
    ids=range(16),
)
def test_what_a_hostile_file_may_hold(file, change):
    weight = torch.ones(3)
    tcompile.export(lambda x: torch.sin(x) + weight, (torch.ones(3),)).save(file)
    rewritten(file, change)
    with pytest.raises(ExportError):
        tcompile.load_exported(file, backend="eager").module()(torch.ones(3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a device that is not there")
def test_a_device_that_is_not_there(file):
    tcompile.export(torch.nn.Linear(3, 3), (torch.ones(1, 3),)).save(file)
    with pytest.raises(ExportError, match=r'cannot be put on cuda.*device="cpu"'):
        tcompile.load_exported(file, device="cuda")


def test_damaged_and_missing_files(file):
    with pytest.raises(FileNotFoundError):
        tcompile.load_exported(file)
    file.write_bytes(b"PK not really")
    with pytest.raises(ExportError, match="no exported program, or is damaged"):
        tcompile.load_exported(file)
    tcompile.export(torch.nn.Linear(3, 3), (torch.ones(1, 3),)).save(file)
    data = bytearray(file.read_bytes())
    data[-200 if len(data) > 400 else 60] ^= 0xFF
    file.write_bytes(data)
    data2 = file.read_bytes()
    file.write_bytes(data2[: len(data2) // 2])
    with pytest.raises(ExportError):
        tcompile.load_exported(file)


def test_a_file_holds_no_pickle(file):
    tcompile.export(Net(), (torch.randn(3, 4),)).save(file)
    with zipfile.ZipFile(file) as z:
        assert sorted(n.split("/")[0] for n in z.namelist())[0] == "program.json"
        assert not any(z.read(n).startswith(b"\x80") and z.read(n).endswith(b".") for n in z.namelist())


def test_a_transformer(file):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=64
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    ids = torch.randint(3, 64, (2, 9))
    with torch.no_grad():
        program = tcompile.export(
            model,
            (),
            {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
            dynamic={"input_ids": [1], "attention_mask": [1]},
        )
        loaded = roundtrip(program, file)
        with pytest.raises(ExportError, match="argument `input_ids`: expected size 2 in dimension 0, got 3"):
            loaded(input_ids=ids[[0, 0, 0]], attention_mask=torch.ones(3, 9))
        ids = torch.randint(3, 64, (2, 12))
        want = model(input_ids=ids, attention_mask=torch.ones_like(ids))
        for p in (program, loaded):
            got = p(input_ids=ids, attention_mask=torch.ones_like(ids))
            close(got["last_hidden_state"], want.last_hidden_state)
            close(got.pooler_output, want.pooler_output)


def test_convolutions_and_backends(file):
    torch.manual_seed(0)
    net = (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        .to(memory_format=torch.channels_last)
        .eval()
    )
    x = torch.randn(2, 3, 8, 8)
    tcompile.export(net, (x,)).save(file)
    loaded = tcompile.load_exported(file, backend="eager")
    close(loaded(x), net(x))
    assert loaded.state["0.weight"].stride() == net[0].weight.stride()


_ = F


def test_buffer_changed_by_an_operator_of_python(file):
    """`self.seen += x` puts the very tensor back where it was."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen += x
            return self.seen * 2

    net, x = Counting(), torch.randn(3)
    program = tcompile.export(net, (x,))
    assert torch.equal(net.seen, torch.zeros(3))
    close(program(x), 2 * x)
    close(program(x), 4 * x)
    close(net.seen, 2 * x)
    close(roundtrip(program, file)(x), 6 * x)
