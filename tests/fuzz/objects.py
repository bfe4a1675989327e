"""More of what a program can rely on, for the fuzzer of changes: classes with special methods, descriptors and slots;
defaults, partials and enums; torch's flags; and the contexts that a call runs in (autocast, inference mode, vmap).
`changes.World` holds it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Callable

import torch

__all__ = ["SOURCE", "REAL", "contexts", "mapped", "restore", "texts"]

SOURCE = """
import functools, enum, collections
def helper2(x, by=2, *, off=0): return x * by + off
class Unit:
    value = 2.0
    def __get__(self, obj, cls): return self.value
class Base:
    k = 2
    def twist(self, x): return x + self.k
class Mid(Base): pass
class Obj(Mid):
    __slots__ = ("slot",)
    unit = Unit()
    def __init__(self):
        self.slot, self.items, self.table, self.scale = 1, [1, 2], {"a": 1}, 0.5
    def twist(self, x, by=1, *, times=1): return super().twist(x) * by * times
    @property
    def rate(self): return self.slot + 1
    def __len__(self): return len(self.items)
    @staticmethod
    def still(x): return x * 2
    @classmethod
    def of(cls, x): return x + cls.k
class Mode(enum.Enum):
    A = 1
    B = 2
OBJ, MODE, QUEUE, FACTOR = Obj(), Mode.A, collections.deque([1.0, 2.0]), 1.0
PART = functools.partial(helper2, by=3)
PICK = {helper2: 1.0}
def probe(x, n=1, flag=None):
    y = OBJ.twist(x) * OBJ.rate * OBJ.unit + len(OBJ)
    if OBJ: y = y + 1
    if hasattr(OBJ, "extra"): y = y * OBJ.extra
    y = OBJ.still(y) + Obj.of(x) + PART(x) + helper2(x) * PICK.get(helper2, 3.0)
    if MODE is Mode.A: y = y - MODE.value
    if torch.is_grad_enabled(): y = y + 2
    if torch.backends.mkldnn.enabled: y = y + 3
    if torch.backends.cuda.flash_sdp_enabled(): y = y + 4
    if torch.are_deterministic_algorithms_enabled(): y = y * 5
    if torch.is_inference_mode_enabled(): y = y - 6
    if torch.get_float32_matmul_precision() == "high": y = y - 7
    y = y + float(torch.is_autocast_enabled("cpu")) + torch.zeros(()).element_size()
    if "zz" in OBJ.table: y = y * 2
    y = y * OBJ.table.get("b", 1) + sum(OBJ.items) + sum(QUEUE)
    if isinstance(OBJ, Mid): y = y + 1
    if OBJ == 3: y = y * 0
    y = y + x.storage_offset() + int(x.is_contiguous())
    return y * FACTOR * OBJ.scale
"""

# Each is done to both worlds; flags of the process are set, never toggled.
texts = [
    "w.ns['OBJ'].slot = 4",
    "del w.ns['OBJ'].slot",
    "w.ns['OBJ'].items.append(7)",
    "w.ns['OBJ'].items = (5,)",
    "w.ns['OBJ'].table['zz'] = 1",
    "w.ns['OBJ'].table['b'] = 3",
    "w.ns['OBJ'].table.pop('a', None)",
    "w.ns['OBJ'].extra = 3",
    "w.ns['OBJ'].__dict__.pop('extra', None)",
    "w.ns['Obj'].extra = 2.5",
    "w.ns['Mid'].extra = property(lambda s: 4)",
    "w.ns['Obj'].__bool__ = lambda s: False",
    "del w.ns['Obj'].__bool__",
    "w.ns['Obj'].__len__ = lambda s: 0",
    "w.ns['Mid'].__bool__ = lambda s: True",
    "w.ns['Obj'].__eq__ = lambda s, o: o == 3",
    "w.ns['Obj'].twist.__defaults__ = (4,)",
    "w.ns['Obj'].twist.__kwdefaults__ = {'times': 3}",
    "w.ns['Obj'].twist.__kwdefaults__['times'] = 2",
    "w.ns['Base'].twist = lambda self, x: x * self.k",
    "w.ns['Mid'].twist = lambda self, x: x - 1",
    "w.ns['Base'].k = 5",
    "w.ns['Mid'].k = 6",
    "w.ns['OBJ'].k = 7",
    "w.ns['Obj'].__dict__['unit'].value = 9.0",
    "w.ns['Unit'].__get__ = lambda s, o, c: 11.0",
    "w.ns['Obj'].unit = 13.0",
    "w.ns['OBJ'].unit = 1.0",
    "w.ns['Unit'].__set__ = lambda s, o, v: None",
    "w.ns['Obj'].rate = property(lambda s: 8)",
    "w.ns['Obj'].rate = 2",
    "w.ns['Obj'].still = staticmethod(lambda x: x * 9)",
    "w.ns['Obj'].of = classmethod(lambda cls, x: x * cls.k)",
    "w.ns['OBJ'].still = lambda x: x",
    "w.ns['OBJ'].twist = lambda x: x * 6",
    "w.ns['Obj'].__getattr__ = lambda s, n: 5 if n == 'extra' else object.__getattribute__(s, n)",
    "w.ns['Obj'].__bases__ = (w.ns['Base'],)",
    "w.ns['Obj'].__bases__ = (type('New', (w.ns['Mid'],), {'twist': lambda s, x: x * 0.25}),)",
    "w.ns['OBJ'].__class__ = type('Sub', (w.ns['Obj'],), {'__slots__': ()})",
    "w.ns['OBJ'].__dict__ = {'items': [9], 'table': {}, 'scale': 2.0}",
    "w.ns['OBJ'].__dict__.update(scale=1.5)",
    "w.ns['OBJ'].scale = 0.125",
    "w.ns['OBJ'].scale = 0.75",
    "w.ns['OBJ'] = w.ns['Obj']()",
    "w.ns['helper2'].__defaults__ = (7,)",
    "w.ns['helper2'].__kwdefaults__ = {'off': 1}",
    "w.ns['helper2'].__code__ = (lambda x, by=2, *, off=0: x - by).__code__",
    "exec('def helper2(x, by=2, *, off=0): return x * by + off', w.ns)",
    "exec('def helper2(x, by=2, *, off=5): return x * by + off', w.ns)",
    "w.ns['PICK'][w.ns['helper2']] = 2.0",
    "w.ns['PART'].keywords['by'] = 5",
    "w.ns['PART'] = __import__('functools').partial(w.ns['helper2'], off=2)",
    "w.ns['MODE'] = w.ns['Mode'].B",
    "w.ns['MODE'] = w.ns['Mode'].A",
    "w.ns['QUEUE'].append(3.0)",
    "w.ns['QUEUE'].popleft()",
    "w.ns['FACTOR'] = 2.0",
    "w.ns['FACTOR'] = 0.5",
    "w.ns['FACTOR'] = float('inf')",
    "w.ns['FACTOR'] = 3",
    "w.ns['FACTOR'] = torch.tensor(2.0)",
    "w.ns['sum'] = lambda v: 1",
    "w.ns.pop('sum', None)",
    "w.probe.__defaults__ = (2, None)",
    "w.probe.__globals__['OBJ'].items.reverse()",
    "torch._C._set_mkldnn_enabled(False)",
    "torch._C._set_mkldnn_enabled(True)",
    "torch.backends.cuda.enable_flash_sdp(False)",
    "torch.backends.cuda.enable_flash_sdp(True)",
    "torch.use_deterministic_algorithms(True)",
    "torch.use_deterministic_algorithms(False)",
    "torch.set_float32_matmul_precision('high')",
    "torch.set_float32_matmul_precision('highest')",
    "w.autocast = True",
    "w.autocast = False",
    "w.inference = True",
    "w.inference = False",
    "w.vmap = True",
    "w.vmap = False",
    "w.offset = 3",
    "w.offset = 0",
    "torch.nn.functional.layer_norm = lambda x, *args: x * 2",
    "torch.nn.functional.layer_norm = w.real['layer_norm']",
    "nn.Linear.forward = lambda s, x: w.real['linear_forward'](s, x) + 1",
    "nn.Linear.forward = w.real['linear_forward']",
]

REAL: dict[str, Any] = {"layer_norm": torch.nn.functional.layer_norm, "linear_forward": torch.nn.Linear.forward}


def contexts(w: Any) -> ExitStack:
    """The contexts that the world's calls run in."""
    stack = ExitStack()
    if w.inference:
        stack.enter_context(torch.inference_mode())
    if w.autocast:
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
    return stack


def mapped(w: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call itself, or the call inside torch.vmap over the rows of its first argument."""
    if not w.vmap:
        return call
    return lambda x, *args, **kwargs: torch.vmap(lambda row: call(row, *args, **kwargs))(x)


def restore() -> None:
    """The process as it was: flags, defaults, patched functions."""
    torch._C._set_mkldnn_enabled(True)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.set_default_dtype(torch.float32)
    torch.nn.functional.layer_norm = REAL["layer_norm"]
    torch.nn.Linear.forward = REAL["linear_forward"]
