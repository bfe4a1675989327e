"""A process in which Triton interprets kernels on the CPU (numpy). Run as a script; see interpreter.py.

TRITON_INTERPRET has to be set before triton is imported, and stays set: hence a process of its own.
"""

import linecache
import pickle
import sys
import traceback

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

_files: dict = {}
_patch_tensor = interpreter._patch_lang_tensor


def _patched(tensor, scope):
    """Scalars are arrays of one element to the interpreter, which numpy >= 2.5 takes for no number."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(np.asarray(self.handle.data).reshape(-1)[0]))


def _dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    """The interpreter holds bfloat16 as 16 bits of an integer, which numpy multiplies as integers."""
    a, b = (_widened(x) if x.dtype == tl.bfloat16 else x.data for x in (a, b))
    return TensorHandle(np.matmul(a, b, dtype=d.data.dtype) + d.data, d.dtype.scalar)


def _widened(x):
    return (x.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _rounded(data, source, to, mode):
    """As devices convert float32 to bfloat16: to the nearest, where the interpreter cuts off."""
    if source != tl.float32 or to != tl.bfloat16:
        return _convert_float(data, source, to, mode)
    x = np.ascontiguousarray(data, dtype=np.float32)
    bits = x.view(np.uint32)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), nearest).astype(np.uint16).reshape(x.shape)


MARGIN = 1 << 16  # bytes around each tensor that belong to nobody
_inside: list = []  # (first address, first address behind) of each tensor of a job


def _apart(t):
    """A copy of a tensor (one dimension, dense) with nobody's memory around it; its addresses are noted."""
    n = t.numel() * t.element_size()
    around = torch.full((n + 2 * MARGIN,), 0x7B, dtype=torch.uint8)
    begin = MARGIN - around.data_ptr() % 16
    out = around[begin : begin + n].view(t.dtype)
    out.copy_(t)
    _inside.append((out.data_ptr(), out.data_ptr() + n))
    return out


def _checked(ptrs, mask):
    """Lanes that are not masked lie in one of the job's tensors."""
    mask = np.broadcast_to(mask.data.astype(bool), ptrs.data.shape)
    at = ptrs.data[mask].astype(np.uint64)
    size = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
    known = np.zeros(at.shape, bool)
    for begin, end in _inside:
        known |= (at >= begin) & (at + np.uint64(size) <= end)
    if not known.all():
        raise IndexError(f"{(~known).sum()} of {known.size} lanes are outside of their tensors")


def _load(self, ptrs, mask, *args):
    _checked(ptrs, mask)
    return _masked_load(self, ptrs, mask, *args)


def _store(self, ptrs, value, mask, *args):
    _checked(ptrs, mask)
    return _masked_store(self, ptrs, value, mask, *args)


class _Stays:
    """A patched language that is left as it is: nothing else runs in this process."""

    def restore(self):
        pass


_modules: dict = {}  # the globals of functions for which the language is patched, by id


def _patch_once(fn):
    """The language is patched once for the functions of a module; to patch it anew for each call took a seventh of the
    time."""
    if id(fn.__globals__) not in _modules:
        _modules[id(fn.__globals__)] = fn.__globals__
        _patch_lang(fn)
    return _Stays()


_patch_lang, interpreter._patch_lang = interpreter._patch_lang, _patch_once
_masked_load, interpreter.InterpreterBuilder.create_masked_load = (
    interpreter.InterpreterBuilder.create_masked_load,
    _load,
)
_masked_store, interpreter.InterpreterBuilder.create_masked_store = (
    interpreter.InterpreterBuilder.create_masked_store,
    _store,
)
_convert_float = interpreter._convert_float
interpreter._convert_float = _rounded
interpreter.InterpreterBuilder.create_dot = _dot
interpreter._patch_lang_tensor = _patched
# device_assert
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(debug=True, sanitize_overflow=False)


class Libdevice:
    """The functions of libdevice, by torch's on the CPU."""

    _named = {"nearbyint": torch.round, "fmod": torch.fmod, "signbit": lambda x: torch.signbit(x).to(torch.int32)}

    def __getattr__(self, name):
        f = self._named.get(name) or getattr(torch, name)

        def call(*args):
            like = next(a for a in args if isinstance(a, tl.tensor))
            values = [
                torch.from_numpy(np.array(a.handle.data)) if isinstance(a, tl.tensor) else torch.tensor(a) for a in args
            ]
            out = np.asarray(f(*values).numpy())
            if name == "signbit":
                return tl.tensor(
                    TensorHandle(out, tl.int32),
                    tl.int32 if not like.type.is_block() else tl.block_type(tl.int32, like.type.shape),
                )
            shape = np.broadcast_shapes(*(v.shape for v in values))
            block = next((a.type for a in args if isinstance(a, tl.tensor) and tuple(a.shape) == tuple(shape)), None)
            kind = block or tl.block_type(like.type.scalar, list(shape))
            return tl.tensor(TensorHandle(out, like.type.scalar), kind)

        return call


# what is written as one instruction of the GPU
SHORT = {
    "_exp2": lambda x: tl.math.exp2(x),
    "_reciprocal": lambda x: 1.0 / x,
    "_wait": lambda: None,
    "_round_bfloat16": lambda x: x.to(tl.bfloat16).to(tl.float32),
    "_product": lambda x, y: (tl.umulhi(x, y), x * y),
    "_kept": lambda x, word, byte: tl.where((word >> (8 * byte + 7)) & 1 != 0, x, 0.0),
    "_kept_16": lambda x, word, byte: tl.where((word >> (8 * byte + 7)) & 1 != 0, x, 0.0),
    **{f"_sum_{n}": lambda *tiles: tuple(tl.sum(t, 1)[:, None] for t in tiles) for n in (2, 3, 4)},
}


def functions(text: str) -> dict:
    if text not in _files:
        name = f"<interpreted {len(_files)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        namespace = {"__name__": name}
        exec(compile(text, name, "exec"), namespace)
        namespace["libdevice"] = Libdevice()
        namespace |= {name: f for name, f in SHORT.items() if name in namespace}
        _files[text] = namespace
    return _files[text]


def run(job: dict) -> list:
    namespace = functions(job["text"])
    _inside.clear()
    memory = [_apart(t) for t in job["memory"]]
    for name, grid, pointers, scalars, constants in job["launches"]:
        if grid > 0:
            namespace[name][(grid,)](*[memory[i] for i in pointers], *scalars, **constants)
    return [memory[i].clone() for i in job["written"]]


def main() -> None:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            job = pickle.load(stdin)
        except EOFError:
            return
        try:
            answer = ("ok", run(job))
        except BaseException as e:
            answer = ("error", f"{type(e).__name__}: {e}\n{traceback.format_exc()[-3000:]}")
        pickle.dump(answer, stdout)
        stdout.flush()


if __name__ == "__main__":
    main()
