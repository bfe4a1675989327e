"""`ExportedProgram.package` and `load_package`: programs that run without a compiler and without their source."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import textwrap

import pytest
import tcompile
import torch
import torch.nn as nn
from tcompile import CacheFileError, ExportError
from tcompile.compiler.export import load_package as loading
from tcompile.compiler.export import package_plan
from tcompile.compiler.runtime import plan_parts

from .packaged import PROGRAMS, leaves, mlp


def packed(made, args, path, dynamic=None, **more):
    tcompile.export(made, args, dynamic=dynamic).package(path, **more)
    return tcompile.load_package(path, trusted=True)


def same(got, want):
    got, want = leaves(got), leaves(want)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        if isinstance(w, torch.Tensor):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
            assert g.stride() == w.stride()
        else:
            assert g == w and type(g) is type(w)


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name, tmp_path):
    p = PROGRAMS[name]
    torch.manual_seed(0)
    made = p.make()
    eager = copy.deepcopy(made)
    first = p.args()
    loaded = packed(made, copy.deepcopy(first), tmp_path / "p", p.dynamic, options=p.options)
    for args in [first, first, *p.others()]:
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        torch.manual_seed(3)
        with torch.no_grad():
            want = eager(*theirs)
        torch.manual_seed(3)
        with torch.no_grad():
            same(loaded(*mine), want)
        same(mine, theirs)
    if isinstance(eager, nn.Module):
        for key, value in eager.state_dict().items():
            same(loaded.state[key], value)


def test_without_compiler_and_source(tmp_path):
    """A fresh process with no program on its PATH and an empty cache runs the package, and imports no capture."""
    module = tmp_path / "secret.py"
    module.write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.Linear(8, 8)\n    def forward(self, x):\n        return torch.relu(self.a(x)) * 2\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        net = __import__("secret").Net()
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("secret")
    x = torch.randn(3, 8)
    tcompile.export(net, (x,)).package(tmp_path / "p")
    module.unlink()
    torch.save((x, net(x)), tmp_path / "io.pt")
    code = f"""
        import sys, time, torch
        import tcompile
        from tcompile.compiler import events
        said = []
        events.subscribe(said.append)
        tcompile.load_package
        x, y = torch.load({str(tmp_path / "io.pt")!r}, weights_only=True)
        began = time.perf_counter()
        with torch.no_grad():
            torch.testing.assert_close(tcompile.load_package({str(tmp_path / "p")!r}, trusted=True)(x), y)
        print(time.perf_counter() - began)
        assert not [e for e in said if e.kind in ("compile_c", "fallback", "cache")], said
        started = ("capture", "lowering.rules", "stages", "frontend")
        assert not [m for m in sys.modules if m.startswith(tuple("tcompile.compiler." + s for s in started))]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PATH": str(tmp_path / "empty"), "TCOMPILE_CACHE_DIR": str(tmp_path / "cache"), "CXX": ""},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]


class TestArguments:
    @pytest.fixture
    def program(self, tmp_path_factory):
        return packed(mlp(), (torch.randn(4, 16),), tmp_path_factory.mktemp("p") / "p", {"input": [0]})

    @pytest.mark.parametrize(
        "x, words",
        [
            (torch.randn(4, 17), "argument `input`: expected size 16 in dimension 1, got 17"),
            (torch.randn(4, 16).double(), "argument `input`: expected torch.float32, got torch.float64"),
            (torch.randn(16), "argument `input`: expected 2 dimensions, got 1"),
            (torch.randn(1, 16), "argument `input`: expected a size of 2 or more in dimension 0, got 1"),
            (3, "argument `input`: expected a tensor, got int"),
            (torch.randn(4, 16).to_sparse(), "argument `input`: expected layout"),
            (torch.randn(4, 16, requires_grad=True), "argument `input` requires a gradient.*no_grad"),
        ],
    )
    def test_refused(self, program, x, words):
        with pytest.raises(ExportError, match=words):
            program(x)

    def test_call_that_does_not_bind(self, program):
        with pytest.raises(ExportError, match="was exported as Sequential.input.: .*missing"):
            program()

    def test_other_strides_and_keywords(self, program, tmp_path):
        net, x = mlp(), torch.randn(16, 6)
        net.load_state_dict(program.state)
        same(program(x.t()), net(x.t()))
        same(program(input=x.t().contiguous()), net(x.t()))

    def test_gradients_are_not_recorded(self, program):
        x = torch.randn(4, 16, requires_grad=True)
        with torch.no_grad():
            assert not program(x).requires_grad
        assert not program(x.detach()).requires_grad

    def test_autocast_around_it_changes_nothing(self, program):
        x = torch.randn(4, 16)
        want = program(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(program(x), want)

    def test_vmap_is_refused(self, program):
        with pytest.raises(ExportError, match="argument `input`: expected dispatch keys"):
            torch.func.vmap(program)(torch.randn(3, 4, 16))

    def test_what_is_written_must_lie_as_planned(self, tmp_path):
        def f(x):
            x.add_(1)
            return x.sum()

        program = packed(f, (torch.randn(3, 4),), tmp_path / "p")
        with pytest.raises(ExportError, match="argument `x`: expected stride.*since the program writes to it"):
            program(torch.randn(4, 3).t())

    def test_sizes_that_hang_together(self, tmp_path):
        def f(x, y):
            return x.view(-1, 2) + y

        program = packed(f, (torch.randn(8), torch.randn(4, 2)), tmp_path / "p", {"x": [0], "y": [0]})
        x, y = torch.randn(12), torch.randn(6, 2)
        same(program(x, y), f(x, y))
        with pytest.raises(ExportError, match="expected"):
            program(x, torch.randn(5, 2))

    def test_strides_of_the_example_are_kept(self, tmp_path):
        net = nn.Conv2d(3, 4, 3)
        x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
        program = packed(net, (x,), tmp_path / "p")
        same(program(x), net(x))
        assert json.loads((tmp_path / "p" / "manifest.json").read_text())["arguments"][0]["stride"] == list(x.stride())


class TestFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        tcompile.export(mlp(), (torch.randn(4, 16),)).package(tmp_path / "p")
        return tmp_path / "p"

    def test_loading_warns_that_it_is_code(self, folder):
        with pytest.warns(UserWarning, match="machine code.*only from someone you trust"):
            tcompile.load_package(folder)

    @pytest.mark.parametrize("name", ["manifest.json", "weights.bin", "a kernel"])
    def test_damage_is_found(self, folder, name):
        file = next((folder / "kernels").iterdir()) if name == "a kernel" else folder / name
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.raises(CacheFileError, match="damaged"):
            tcompile.load_package(folder, trusted=True)

    @pytest.mark.parametrize("name", ["manifest.json", "checksum", "weights.bin"])
    def test_what_is_missing_is_named(self, folder, name):
        (folder / name).unlink()
        with pytest.raises(CacheFileError, match=name.replace(".", "[.]")):
            tcompile.load_package(folder, trusted=True)

    def test_other_machines_are_refused(self, folder, monkeypatch):
        monkeypatch.setattr(loading, "cpu_features", lambda: frozenset())
        with pytest.raises(CacheFileError, match="made for a processor with"):
            tcompile.load_package(folder, trusted=True)

    def test_another_form_of_an_operator_is_refused(self, tmp_path):
        program = tcompile.export(lambda x: torch.sort(x)[0], (torch.randn(4),))
        program.package(tmp_path / "p")
        m = json.loads((tmp_path / "p" / "manifest.json").read_text())
        m["plan"]["operators"] = [[n, s.replace("(", "(int more, ")] for n, s in m["plan"]["operators"]]
        rewrite(tmp_path / "p", m)
        with pytest.raises(CacheFileError, match="calls the operator aten::sort"):
            tcompile.load_package(tmp_path / "p", trusted=True)

    def test_another_format_is_refused(self, folder):
        rewrite(folder, {**json.loads((folder / "manifest.json").read_text()), "format": 0})
        with pytest.raises(CacheFileError, match="has format 0; this tcompile reads format"):
            tcompile.load_package(folder, trusted=True)

    def test_a_package_is_replaced_and_nothing_else(self, folder, tmp_path):
        program = tcompile.export(lambda x: x + 1, (torch.randn(4),))
        program.package(folder)
        same(tcompile.load_package(folder, trusted=True)(torch.zeros(4)), torch.ones(4))
        (tmp_path / "mine").mkdir()
        with pytest.raises(ExportError, match="exists already and is not a package"):
            program.package(tmp_path / "mine")
        with pytest.raises(CacheFileError, match="is not a package: it lacks"):
            tcompile.load_package(tmp_path / "mine", trusted=True)

    def test_weights_beside_it(self, tmp_path):
        net, x = mlp(), torch.randn(4, 16)
        file = tmp_path / "net.weights"
        tcompile.export(net, (x,)).package(tmp_path / "p", weights=file)
        assert not (tmp_path / "p" / "weights.bin").exists()
        same(tcompile.load_package(tmp_path / "p", trusted=True)(x), net(x))
        file.rename(tmp_path / "moved")
        with pytest.raises(CacheFileError, match="weights are not there"):
            tcompile.load_package(tmp_path / "p", trusted=True)
        same(tcompile.load_package(tmp_path / "p", trusted=True, weights=tmp_path / "moved")(x), net(x))

    def test_changes_of_state_stay_in_the_process(self, tmp_path):
        p = PROGRAMS["buffers"]
        loaded = packed(p.make(), p.args(), tmp_path / "p")
        before = (tmp_path / "p" / "weights.bin").read_bytes()
        loaded(*p.args())
        assert loaded.state["seen"].abs().sum() > 0
        assert (tmp_path / "p" / "weights.bin").read_bytes() == before

    @pytest.mark.parametrize("there", [True, False])
    def test_operators_are_called_by_torchs_c_functions(self, there, tmp_path, monkeypatch):
        """Where this torch exports none of that name, the operator is called."""
        p, native, asked = PROGRAMS["library attention"], package_plan.native, []
        find = native.torch_function
        net, args = p.make(), p.args()
        tcompile.export(net, args).package(tmp_path / "p", options=p.options)
        plan = json.loads((tmp_path / "p" / "manifest.json").read_text())["plan"]
        assert plan_parts.STEP_TORCH in [step[0] for step in plan["steps"]]
        assert plan_parts.STEP_CALL not in [step[0] for step in plan["steps"]]
        monkeypatch.setattr(native, "torch_function", lambda name: (asked.append(name), find(name) * there)[1])
        loaded = tcompile.load_package(tmp_path / "p", trusted=True)
        assert asked == ["aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu"]
        with torch.no_grad():
            same(loaded(*args), net(*args))

    def test_the_numbers_of_its_format(self):
        """A plan's numbers are in files: a change of them is another format (FORMAT in package.py)."""
        from tcompile.compiler.export.package import FORMAT
        from tcompile.compiler.runtime import plan_parts as P

        assert FORMAT == loading.FORMAT == 1
        assert (P.SLOT_RESULT, P.STEP_GONE, P.OUT_CALL, P.ARG_TUPLE) == (5, 7, 4, 5)


def rewrite(folder, manifest):
    import hashlib

    text = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(text)
    (folder / "checksum").write_text(hashlib.sha256(text).hexdigest())


class TestRefused:
    def test_operators_in_python(self, tmp_path):
        @torch.library.custom_op("tcompile_package_test::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @twice.register_fake
        def _(x):
            return torch.empty_like(x)

        with pytest.raises(
            ExportError, match="calls tcompile_package_test::twice, which is not an operator of torch's own"
        ):
            tcompile.export(lambda x: twice(x) + 1, (torch.randn(3),)).package(tmp_path / "p")
        assert not (tmp_path / "p").exists()

    def test_other_backends(self, tmp_path):
        with pytest.raises(ExportError, match="backend of packages is 'tcompile', not 'eager'"):
            tcompile.export(lambda x: x + 1, (torch.randn(3),), backend="eager").package(tmp_path / "p")

    def test_a_loaded_program_of_unknown_sizes(self, tmp_path):
        tcompile.export(mlp(), (torch.randn(4, 16),), dynamic={"input": [0]}).save(tmp_path / "s")
        program = tcompile.load_exported(tmp_path / "s")
        with pytest.raises(ExportError, match="call the program once before"):
            program.package(tmp_path / "p")
        x = torch.randn(5, 16)
        want = program(x)
        program.package(tmp_path / "p")
        same(tcompile.load_package(tmp_path / "p", trusted=True)(x), want)


def test_a_transformer(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=100
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()

    def inputs(batch, length):
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, -2:] = 0
        return {"input_ids": torch.randint(0, 100, (batch, length)), "attention_mask": mask}

    program = tcompile.export(model, (), inputs(3, 12), dynamic={"input_ids": [0], "attention_mask": [0]})
    program.package(tmp_path / "p")
    loaded = tcompile.load_package(tmp_path / "p", trusted=True)
    for batch in (3, 3, 5):
        args = inputs(batch, 12)
        with torch.no_grad():
            want, got = model(**args), loaded(**args)
        torch.testing.assert_close(got.last_hidden_state, want.last_hidden_state, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(got["pooler_output"], want.pooler_output, rtol=1e-3, atol=1e-4)
