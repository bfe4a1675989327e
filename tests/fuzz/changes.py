"""Random changes between calls: the second oracle. Nothing stale may ever be served.

`World` holds a model, functions, globals and inputs; `CHANGES` is a table of things that a user may do to it between
two calls. Two equal worlds get the same changes, one runs eager and one compiled.
"""

from __future__ import annotations

import copy
import types
from typing import Any, Callable

import torch
import torch.nn as nn
import torch.nn.utils.parametrize

from . import objects

SOURCE = """
import torch, math
import torch.nn as nn, torch.nn.functional as F
SCALE = 2.0
FLAGS = {"bias": True, "power": 1}
LIST = [1, 2]
TENSOR = torch.full((3,), 0.5)
class Settings:
    gain = 3
    def factor(self): return self.gain
SETTINGS = Settings()
def helper(x): return x * SCALE
class Block(nn.Module):
    kind = "block"
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("shift", torch.zeros(3))
        self.alpha = 0.5
        self.mode = "a"
        self.extra = None
        self.table = {"k": 1.0}
    def act(self, x): return torch.relu(x)
    def forward(self, x):
        y = self.lin(x)
        if self.training: y = y + 1
        if self.mode == "a": y = self.act(y)
        else: y = torch.tanh(y)
        if self.extra is not None: y = y + self.extra
        return self.drop(self.norm(y)) * self.alpha + self.shift * self.table["k"]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    def forward(self, x, n=1, flag=None):
        for b in self.blocks: x = b(x)
        if flag: x = x * 3
        y = helper(x) * n + math.pi
        if FLAGS["bias"]: y = y + len(LIST) ** FLAGS["power"]
        y = y * SETTINGS.factor() + TENSOR
        return self.head(y)
def make(k):
    c = [k]
    def g(x, n=1, flag=None):
        return torch.sin(x) * c[0] + k + n + (0 if flag is None else 1)
    def set_cell(v):
        nonlocal k
        k = v
    return g, set_cell, c
"""


_CODE = compile(SOURCE + objects.SOURCE, "<fuzzworld>", "exec")


class World:
    def __init__(self, wrap: Callable[[Any], Any]):
        module = types.ModuleType("fuzzworld")
        self.ns = module.__dict__
        exec(_CODE, self.ns)
        torch.manual_seed(7)
        self.net = self.ns["Net"]()
        self.g, self.set_cell, self.cell_list = self.ns["make"](2)
        self.grad, self.requires_grad, self.shape, self.dtype = False, False, (4, 3), torch.float32
        self.layout, self.n, self.flag = "plain", 1, None
        self.autocast, self.inference, self.vmap, self.offset = False, False, False, 0
        self.probe, self.real = self.ns["probe"], objects.REAL
        self.call_net, self.call_g, self.call_probe = wrap(self.net), wrap(self.g), wrap(self.probe)
        self.handles: list[Any] = []

    def input(self, seed: int) -> torch.Tensor:
        x = torch.randn(self.shape, generator=torch.Generator().manual_seed(seed)).to(self.dtype)
        if self.layout == "t":
            x = x.flip(-1).t().contiguous().t()
        elif self.layout == "slice":
            x = torch.cat([x, x], -1)[..., ::2]
        return x.requires_grad_(self.requires_grad)

    def rounding(self) -> float:
        """How far two correct orders of rounding may be apart, relative to the largest number of a result. Fused
        kernels keep what lies between two operators in float32 where eager rounds to bfloat16 after each, and the sums
        of the net cancel: so four units of the coarsest type in play, of which autocast shows nothing in the types of
        inputs and results."""
        used = {self.dtype, *(p.dtype for p in self.net.parameters()), *([torch.bfloat16] if self.autocast else [])}
        return max([1e-4, *(4 * torch.finfo(d).eps for d in used if d.is_floating_point)])

    def run(self, seed: int) -> list[Any]:
        """Outputs or exceptions of both callables, and gradients where asked for."""
        out: list[Any] = []
        for call in (self.call_net, self.call_g, self.call_probe):
            try:
                x = self.input(seed)  # inside: layouts of two dimensions refuse three, integers refuse gradients
                if self.offset and not self.requires_grad:
                    x = torch.cat([x.new_zeros(self.offset), x.reshape(-1)])[self.offset :].view(x.shape)
                with torch.set_grad_enabled(self.grad), objects.contexts(self):
                    y = objects.mapped(self, call)(x, self.n, flag=self.flag)
                    out.append(y.detach().clone())
                    out.append(y.requires_grad)
                    if self.grad and y.requires_grad:
                        self.net.zero_grad()
                        y.float().pow(2).sum().backward()
                        out += [
                            None if x.grad is None else x.grad.clone(),
                            [None if p.grad is None else p.grad.clone() for p in self.net.parameters()],
                        ]
            except Exception as e:
                out.append(type(e).__name__)
        return out


def _block(w: World) -> Any:
    return w.net.blocks[0]


def _hook(w: World) -> None:
    w.handles.append(_block(w).register_forward_hook(lambda m, a, o: o * 2))


def _pre_hook(w: World) -> None:
    w.handles.append(w.net.register_forward_pre_hook(lambda m, a: (a[0] + 1, *a[1:])))


def _unhook(w: World) -> None:
    while w.handles:
        w.handles.pop().remove()


def _set(path: str, value: Any) -> Callable[[World], None]:
    def change(w: World) -> None:
        *front, last = path.split(".")
        o: Any = w
        for p in front:
            o = o[int(p)] if p.isdigit() else getattr(o, p)
        setattr(o, last, value() if callable(value) and not isinstance(value, type) else value)

    change.__name__ = f"set {path}"
    return change


def _ns(name: str, value: Any) -> Callable[[World], None]:
    def change(w: World) -> None:
        w.ns[name] = value(w) if callable(value) else value

    change.__name__ = f"global {name}"
    return change


def _do(text: str) -> Callable[[World], None]:
    def change(w: World) -> None:
        exec(text, {"w": w, "torch": torch, "nn": nn, "b": _block(w), "copy": copy})

    change.__name__ = text
    return change


CHANGES: list[Callable[[World], None]] = [
    _set("shape", (4, 3)),
    _set("shape", (6, 3)),
    _set("shape", (1, 3)),
    _set("shape", (0, 3)),
    _set("shape", (2, 5, 3)),
    _set("shape", (3,)),
    _set("shape", (4, 4)),
    _set("dtype", lambda: torch.float32),
    _set("dtype", lambda: torch.float64),
    _set("dtype", lambda: torch.float32),
    _set("layout", "plain"),
    _set("layout", "t"),
    _set("layout", "slice"),
    _set("n", 1),
    _set("n", 2),
    _set("n", 3),
    _set("n", True),
    _set("n", 1.5),
    _set("flag", None),
    _set("flag", True),
    _set("flag", 0),
    _set("flag", "yes"),
    _set("grad", True),
    _set("grad", False),
    _set("requires_grad", True),
    _set("requires_grad", False),
    _do("w.net.train()"),
    _do("w.net.eval()"),
    _do("b.train()"),
    _do("b.eval()"),
    _do("b.drop.p = 0.0"),
    _ns("SCALE", 3.0),
    _ns("SCALE", 2.0),
    _ns("SCALE", 2),
    _ns("SCALE", float("nan")),
    _ns("SCALE", -0.0),
    _ns("helper", lambda w: lambda x: x - 1),
    _do("w.ns['helper'].__defaults__ = None"),
    _do("w.ns['FLAGS']['bias'] = not w.ns['FLAGS']['bias']"),
    _do("w.ns['FLAGS']['power'] += 1"),
    _do("w.ns['LIST'].append(3)"),
    _do("w.ns['LIST'].clear()"),
    _do("w.ns['TENSOR'].add_(1)"),
    _ns("TENSOR", lambda w: torch.full((3,), 2.0)),
    _do("w.ns['SETTINGS'].gain = 5"),
    _do("w.ns['Settings'].gain = 7"),
    _do("w.ns['Settings'].factor = lambda self: 11"),
    _do("w.ns['SETTINGS'].__dict__ = {'gain': 13}"),
    _do("b.alpha = 0.25"),
    _do("b.alpha = 1"),
    _do("b.mode = 'b'"),
    _do("b.mode = 'a'"),
    _do("b.extra = torch.ones(3)"),
    _do("b.extra = None"),
    _do("b.table['k'] = 4.0"),
    _do("b.table = {'k': 2.0}"),
    _do("b.lin.weight.data = b.lin.weight.data * 2"),
    _do("b.lin.weight.data.mul_(0.5)"),
    _do("b.lin.weight = nn.Parameter(torch.eye(3, dtype=b.lin.weight.dtype))"),
    _do("b.lin = nn.Linear(3, 3).to(b.shift.dtype)"),
    _do("b.lin.bias = None"),
    _do("b.norm = nn.Identity()"),
    _do("b.act = lambda x: x.abs()"),
    _do("type(b).act = lambda self, x: x.sin()"),
    _do("b.shift = torch.ones(3)"),
    _do("b.shift.add_(1)"),
    _do("b.lin.weight.requires_grad_(False)"),
    _do("b.lin.weight.requires_grad_(True)"),
    _do("w.net.double()"),
    _do("w.net.float()"),
    _do("w.net.requires_grad_(False)"),
    _do("w.net.requires_grad_(True)"),
    _do("w.net.blocks.append(type(b)().to(b.shift.dtype))"),
    _do("del w.net.blocks[-1]"),
    _do("w.net.head[1] = nn.Tanh()"),
    _do("w.net.load_state_dict({k: v * 1.5 for k, v in w.net.state_dict().items()})"),
    _do("w.net.__class__ = type('Other', (type(w.net),), {'forward': lambda self, x, n=1, flag=None: x * 2})"),
    _do("w.net.forward = lambda x, n=1, flag=None: x - 5"),
    _do("w.net.__dict__.pop('forward', None)"),
    _hook,
    _pre_hook,
    _unhook,
    _do("w.set_cell(5)"),
    _do("w.cell_list[0] = 9"),
    _do("w.g.__defaults__ = (4, None)"),
    _do("w.g.__code__ = (lambda x, n=1, flag=None: x * 0).__code__ if False else w.g.__code__"),
    _do("w.net.half()"),
    _do("w.net.bfloat16()"),
    _set("dtype", lambda: torch.bfloat16),
    _set("dtype", lambda: torch.int64),
    _set("n", lambda: torch.tensor(2)),
    _set("n", 0),
    _set("n", -1),
    _set("n", 7),
    _do("w.net.blocks[-1].lin.weight = b.lin.weight"),
    _do("w.net.blocks[0] = copy.deepcopy(b)"),
    _do("w.net.blocks.insert(0, w.net.blocks[-1])"),
    _do("del b.mode"),
    _do("b.__dict__['alpha'] = 3.0"),
    _do("b.register_buffer('shift', torch.full((3,), 2.0))"),
    _do("b.register_parameter('alpha2', nn.Parameter(torch.ones(3)))"),
    _do("type(b).alpha = property(lambda s: 8.0)"),
    _do("del type(b).alpha"),
    _do("w.ns['len'] = lambda l: 7"),
    _do("w.ns.pop('len', None)"),
    _ns("math", lambda w: types.SimpleNamespace(pi=3.0)),
    _do("w.ns['SETTINGS'] = w.ns['Settings']()"),
    _do("w.ns['FLAGS'].clear()"),
    _do("w.ns['LIST'] = (1, 2, 3)"),
    _do("w.ns['Settings'].__getattribute__ = lambda s, k: 2 if k == 'gain' else object.__getattribute__(s, k)"),
    _do("w.ns['SETTINGS'].factor = lambda: 1.5"),
    _do("type(b).__call__ = lambda s, x: nn.Module.__call__(s, x) * 2"),
    _do("type(b).forward = lambda s, x: x * s.alpha"),
    _do("type(b).__bases__ = (nn.Identity,)"),
    _do("b._modules['lin'] = nn.Identity()"),
    _do("b._parameters.clear()"),
    _do("b._buffers['shift'] = torch.full((3,), -1.0)"),
    _do("b.lin.weight.grad = torch.ones_like(b.lin.weight)"),
    _do("b.lin.weight.data.t_()"),
    _do("b.lin.weight.data = torch.randn(3, 6)[:, ::2]"),
    _do("b.norm.eps = 0.1"),
    _do("b.norm.weight = None"),
    _do("b.norm.normalized_shape = (3, 1)"),
    _do("w.net.head.append(nn.Sigmoid())"),
    _do("w.net.head.forward = lambda x: x.sum(-1)"),
    _do("w.net.eval().train(False)"),
    _do("b.lin.weight.register_hook(lambda g: g * 2)"),
    _do("nn.init.ones_(b.lin.weight)"),
    _do("torch.nn.utils.parametrize.register_parametrization(b.lin, 'weight', nn.Tanh())"),
    _do("torch.nn.utils.parametrize.remove_parametrizations(b.lin, 'weight')"),
    _do("torch.set_default_dtype(torch.float64)"),
    _do("torch.set_default_dtype(torch.float32)"),
]
CHANGES += [_do(text) for text in objects.texts]
