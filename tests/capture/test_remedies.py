"""The table of causes: each break names its line, says what to write instead in the user's names, and mechanical fixes
do remove it.
"""

import itertools
import linecache
import math
import random

import numpy as np
import pytest
import torch

from tcompile.compiler.capture.breaks.causes import CAUSES

from ..fuzz.oracle import same
from .runner import Runner

X = torch.linspace(-1, 2, 9).reshape(3, 3)
_numbers = itertools.count()


def function(source):
    """The function `f` of a text whose lines are known to tracebacks."""
    name = f"/tmp/user_code_{next(_numbers)}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace = {
        "torch": torch,
        "np": np,
        "math": math,
        "random": random,
        "weights": torch.nn.Parameter(torch.ones(3, 3)),
        "__name__": "user",
    }
    exec(compile(source, name, "exec"), namespace)
    return namespace["f"], name


def first_break(source, x=X):
    f, file = function(source)
    run = Runner()
    try:
        run(f, x)
    except Exception:
        assert run.breaks or run.skips
    breaks = run.breaks + [b for s in run.skips for b in s.breaks]
    assert breaks, "it does not break"
    assert breaks[0].file == file and breaks[0].code
    return breaks[0]


# body of f(x) -> what the fix makes of the lines it changes; None: another result on purpose (a tensor for a number)
FIXES = {
    "y = x * 2\nif y.sum() > 0:\n    y = y + 1\nelse:\n    y = y - 1\nreturn y": "    y = torch.where(y.sum() > 0, y + 1, y - 1)",
    "y = x * 2\nif (y > 9).any():\n    y += 1\nreturn y": "    y = torch.where((y > 9).any(), y + 1, y)",
    "y = x * 2\nif bool(y.sum() > 0):\n    y *= x + 1\nreturn y": "    y = torch.where(y.sum() > 0, y * (x + 1), y)",
    "a = b = x\nif x.mean().item() > 0.1:\n    a = x + 1\n    b = x - 1\nreturn a, b": "    a = torch.where(x.mean() > 0.1, x + 1, a)\n    b = torch.where(x.mean() > 0.1, x - 1, b)",
    "y = x\nif float(x.mean()) > 0.1:\n    y = x + 1\nreturn y": "    y = torch.where(x.mean() > 0.1, x + 1, y)",
    "y = x\nif int(x.sum() + 1) > 2:\n    y = x + 1\nreturn y": "    y = torch.where((x.sum() + 1).int() > 2, x + 1, y)",
    "y = x\nif torch.equal(x, x * 2):\n    y = x * 3\nreturn y": "    y = torch.where((x == x * 2).all(), x * 3, y)",
    "y = x\nif x.allclose(x + 1e-9, rtol=1e-3):\n    y = x * 3\nreturn y": "    y = torch.where(torch.isclose(x, x + 1e-09, rtol=0.001).all(), x * 3, y)",
    "if x.sum() > 0:\n    return x + 1\nreturn x - 1": "    return torch.where(x.sum() > 0, x + 1, x - 1)",
    "if x.sum() > 0:\n    return x + 1\nelse:\n    return x * 2": "    return torch.where(x.sum() > 0, x + 1, x * 2)",
    "y = x + 1 if x.mean() > 0 else x - 1\nreturn y": "    y = torch.where(x.mean() > 0, x + 1, x - 1)",
    "for i in range(2):\n    v = x.sum().item()\n    x = x * v\nreturn x": "        v = x.sum()",
    "t = 0.0\nfor i in range(2):\n    t += (x * 2).sum().item()\nreturn x * t": "        t += (x * 2).sum().detach()",
    "k = int(x.sum())\nreturn x + k": "    k = x.sum().int()",
    "return x + math.sqrt(x.abs().sum())": "    return x + torch.sqrt(x.abs().sum())",
    "return x + max(x.sum(), x.double().mean())": "    return x + torch.maximum(x.sum(), x.double().mean())",
    "return x[x > 0].sum()": "    return torch.where(x > 0, x, 0).sum()",
    "return torch.masked_select(x, x > 0).mean() + x": "    return (torch.where(x > 0, x, 0).sum() / (x > 0).sum()) + x",
    "return torch.from_numpy(np.argsort(x.numpy())) + 1": "    return torch.argsort(x) + 1",
    "weights.data = weights.data * 2\nreturn x + weights": "    weights.detach().copy_(weights.data * 2)",
    "x = x[None].unbind()[0]\nx.t_()\nreturn x + 1": "    x = x.t()",
    "return (x * i for i in range(3)), x + 1": None,
    "return x * random.randint(1, 3)": None,
}


@pytest.mark.parametrize("body", FIXES, ids=lambda b: b.replace("\n", ";")[:40])
def test_fixes_remove_the_break(body):
    source = "def f(x):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    brk = first_break(source)
    fix = brk.fix
    assert fix is not None, (brk.reason, brk.remedy)
    lines = source.split("\n")
    assert "\n".join(lines[fix.start - 1 : fix.end]) == fix.old
    assert fix.diff().startswith("- ") and "+ " in fix.diff()
    if FIXES[body] is not None:
        assert fix.new == FIXES[body]
    fixed, _ = function("\n".join([*lines[: fix.start - 1], fix.new, *lines[fix.end :]]))
    run = Runner()
    got = run(fixed, X.clone())
    assert not run.breaks and not run.skips, run.breaks
    if FIXES[body] is not None:
        same(function(source)[0](X.clone()), got)


# body -> (kind, words of the reason, words of the remedy)
TABLE = {
    "for i in range(3):\n    x = x + 1\n    if x.sum() > 99:\n        break\nreturn x": (
        "data_dependent_branch",
        "branch depends",
        "`if i % 100 == 0 and ...`",
    ),
    "if x.sum() > 0 and len(x) > 2:\n    x = x + 1\nreturn x": (
        "data_dependent_branch",
        "branch depends",
        "torch.where((x.sum() > 0) & (len(x) > 2), x + 1, x)",
    ),
    "a, b = x, x * 2\nif a.sum() > 0:\n    a, b = b, a\nreturn a": (
        "data_dependent_branch",
        "branch depends",
        "torch.cond(a.sum() > 0, f, g, (a, b,))",
    ),
    "while x.sum() < 100:\n    x = x + 1\nreturn x": (
        "data_dependent_branch",
        "loop goes on depends on the value",
        "torch.while_loop(lambda x: x.sum() < 100, body, (x,))",
    ),
    "return x + sorted([x.sum(), x.mean()])[0]": ("data_dependent_branch", "compares the values", "torch.sort"),
    "print(x.sum())\nreturn x + 1": ("print", "printed", "x.shape"),
    "z = f'{x.sum()}'\nreturn x + 1, z": ("print", "made into text", "return the tensor"),
    "import logging\nlogging.getLogger('a').warning('v %s', x)\nreturn x + 1": ("print", "logged", "log shapes"),
    "return torch.unique(x).numel() + x": ("data_dependent_shape", "torch.unique()", "neighbours"),
    "return torch.nonzero(x).sum() + x": ("data_dependent_shape", "torch.nonzero()", "torch.where(mask"),
    "return x[0].repeat_interleave((x[0] > 0).long()) + 1": ("item", "tensor of counts", "output_size="),
    "return torch.bincount((x > 0).long()[0]) + 1": ("item", "torch.bincount()", "torch.zeros(bins).index_add"),
    "return torch.complex(x, x).tolist(), x + 1": ("tolist", "read into Python", "keep them in a tensor"),
    "import time\nt = time.time()\nreturn x + 1": ("time", "clock", "around"),
    "with open('/dev/null') as h: h.read()\nreturn x + 1": ("unsupported", "file is opened", "read before"),
    "import io\nb = io.BytesIO()\nreturn x + 1": ("c_call", "stream in memory", "outside"),
    "import threading\nl = threading.Lock()\nreturn x + 1": ("c_call", "threading.Lock()", "threads"),
    "torch.manual_seed(0)\nreturn x + torch.rand(3)": ("rng_state", "seeded", "seed before"),
    "import copy\ny = copy.deepcopy(x)\nreturn y + 1": ("unsupported", "copy.deepcopy()", "clone()"),
    "return x.to_sparse().to_dense() + 1": ("unsupported", "x.to_sparse() gives a sparse", "tensor dense"),
    "x.data_ptr()\nreturn x + 1": ("tensor_metadata", "address", "is"),
    "return x.apply_(lambda v: v + 1)": ("unsupported", "x.apply_", "torch operators"),
    "return x + len(str(x))": ("print", "made into text", "shape"),
    "return x.numpy(force=True) + 1": ("numpy", "handed to numpy", "stay in torch"),
    "y = x + 1\nraise ValueError('no')": ("exception", "raises ValueError: no", "no change is needed"),
}


@pytest.mark.parametrize("body", TABLE, ids=lambda b: b.replace("\n", ";")[:40])
def test_reasons_and_remedies(body):
    kind, reason, remedy = TABLE[body]
    brk = first_break("def f(x):\n" + "".join(f"    {line}\n" for line in body.split("\n")), X.clone())
    assert brk.kind == kind and reason in brk.reason and remedy in brk.remedy, brk
    assert brk.reason.endswith(".") and not any(
        vague in brk.reason for vague in ("this operation", "left no value", "{")
    )


def test_the_table_is_complete():
    """A row without a pattern for each kind, behind the others of the kind; every row says what to do."""
    seen = {}
    for cause in CAUSES:
        assert cause.remedy and (cause.reason or cause.where)
        assert not seen.get(cause.kind), f"{cause} is never reached"
        seen[cause.kind] = not cause.where
    assert all(seen.values()), [k for k, v in seen.items() if not v]


def test_one_break_for_one_exception():
    source = "def deep(x):\n    y = x + 1\n    raise ValueError('no')\n\ndef middle(x):\n    return deep(x * 2) + 1\n\ndef f(x):\n    return middle(x + 1) * 2\n"
    f, file = function(source)
    run = Runner()
    with pytest.raises(ValueError):
        run(f, X)
    assert {(b.file, b.line) for b in run.breaks} == {(file, 3)}
    assert [c[0] for c in run.breaks[0].call_chain] == ["f", "middle", "deep"]
