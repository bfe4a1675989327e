"""Generated code of whole graphs in the disk cache: where a graph is known, lowering, fusion and codegen have nothing
to do.

    kept = KeptGraph.of(aten, opts)    None: a graph like this is not kept
    kept.find()                        what was generated for it, by an earlier session
    kept.keep(generated, told)         for later ones; `told`: the events that the three stages stated

The key is a digest of all that these stages read: the graph with its metadata and the user's lines, options, the
machine, torch, and the sources of this compiler. What has no text of its own in `_Digest` ends in None: a class of the
program's, an operator of its own, a large constant. So a key never stands for two graphs.

Files of the user's lines are known by their last name: notebooks give a cell another folder in each session. What is
read back names this session's.

What is kept is code, as the libraries beside it are. Reading it back makes objects of this package and of torch alone.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import operator
import pickle
import sys
import zlib
from pathlib import Path
from typing import Any, Sequence

import torch

from .. import events
from ..base.fx_nodes import is_call
from ..base.processor import cpu_name
from ..base.source_text import source_line
from ..codegen.generated import Generated
from ..codegen.target import host_target
from ..lowering.ir import indirect_symbol, indirect_values
from ..symbolic.expr import Expr
from .cache import KernelCache, key_parts, open_cache

__all__ = ["KeptGraph", "same_for_all"]

_PACKAGE = __package__.rpartition(".")[0]
_READ_BY_STAGES = ("base", "codegen", "fusion", "graph", "lowering", "ops", "rewrite", "runtime", "symbolic")
_NAMESPACES = ("aten", "prims", "tcompile")  # whose operators are the same in every process
_MOST_BYTES = 1 << 16  # of a constant: its values are part of the key
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)
_BUILTINS = frozenset(("getattr", "set", "frozenset", "slice", "complex", "range", "bytearray", "object"))


class _NotKept(Exception):
    """A graph holds what has no text, or no name, that another process would know."""


class KeptGraph:
    """One graph's place in the cache."""

    def __init__(self, cache: KernelCache, key: str, files: list[str], aten: Any):
        self.cache, self.key, self.files, self.aten = cache, key, files, aten
        self.decided = _decisions(aten)

    @classmethod
    def of(cls, aten: Any, opts: Any) -> KeptGraph | None:
        """None: it is not kept. Nor is any where the stages' outputs are to be seen: verified, or written out."""
        if not opts.get("cache") or opts.get("verify") or opts.get("debug") or _rules_of_others():
            return None
        try:
            return cls(open_cache(opts), *_key(aten, opts), aten)
        except _NotKept:
            return None

    def find(self) -> Generated | None:
        """What was generated for it, with the events of then; None where that is not there."""
        data = self.cache.get_graph(self.key)
        if data is None:
            return None
        try:
            generated, told = _Reader(io.BytesIO(zlib.decompress(data)), self.aten.constants, self.files).load()
        except Exception as e:  # (what another state of the machine wrote: the stages make it anew)
            events.emit("cache", key=self.key, hit=False, reason=f"{type(e).__name__}: {e}", what="graph")
            return None
        events.emit("cache", key=self.key, hit=True, reason="", what="graph")
        events.tell([events.Event(kind, facts) for kind, facts in told])
        return generated

    def keep(self, generated: Generated, told: Sequence[events.Event]) -> None:
        if _decisions(self.aten) != self.decided:  # (the stages decided about sizes: that is a guard of this process)
            return
        file = io.BytesIO()
        try:
            _Writer(file, self.aten.constants, self.files).dump(
                (generated, [(event.kind, event.facts) for event in told])
            )
        except (_NotKept, pickle.PicklingError, TypeError, AttributeError, RecursionError):
            return
        self.cache.put_graph(self.key, zlib.compress(file.getvalue(), 1))


def _decisions(aten: Any) -> Any:
    env = aten.env
    return None if env is None else (len(env.guards), dict(env.replacements), dict(env.ranges), dict(env.hints))


def _rules_of_others() -> bool:
    """Whether somebody else said how an operator is lowered."""
    table = sys.modules.get(f"{_PACKAGE}.lowering.rule_table")
    return table is not None and any(
        not rule.__module__.startswith(_PACKAGE + ".") for rule in set(table.RULES.values())
    )


# --- the key
def _key(aten: Any, opts: Any) -> tuple[str, list[str]]:
    """The digest, and the files that the graph's lines are in."""
    d = _Digest()
    d.put(opts.of_code())
    d.graph(aten)
    d.put(list(same_for_all().values()))
    d.put(
        [
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
            repr(host_target(opts).width),
            sorted(host_target(opts).features),
            *(_gpu(i) for i in sorted(d.gpus)),
        ]
    )
    if d.gpus:  # (the text of a kernel for one shows the user's lines)
        d.put([source_line(file, line) for file, line in d.lines])
    return hashlib.sha256("\0".join(d.parts).encode("utf-8", "surrogatepass")).hexdigest()[:40], list(d.files)


@functools.cache
def same_for_all() -> dict[str, str]:
    """What is the same for all graphs of this process, as part of their keys."""
    h = hashlib.sha256()
    root = Path(__file__).parent.parent
    for folder in _READ_BY_STAGES:
        for file in sorted((root / folder).rglob("*.py")):
            h.update(f"{file.relative_to(root)}\0".encode())
            h.update(file.read_bytes())
    return {
        **key_parts((), ""),
        "processor": cpu_name(),
        "sources": h.hexdigest(),
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "python": f"{sys.implementation.name} {sys.version_info[:2]}",
    }


@functools.cache
def _gpu(index: int) -> str:
    return f"{torch.cuda.get_device_properties(index)} {torch.version.cuda} {torch.version.hip}"


class _Digest:
    """A text for each value, by its exact type: equal texts mean equal values."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.numbers: dict[torch.fx.Node, int] = {}
        self.files: dict[str, str] = {}  # file -> its text here
        self.lines: dict[tuple[str, int], str] = {}
        self.gpus: set[int] = set()

    def put(self, x: Any) -> None:
        self.parts.append(self.text(x))

    def graph(self, a: Any) -> None:
        if a.whole is not None or a.own_writes:
            raise _NotKept
        for node in a.graph.nodes:
            self.numbers[node] = len(self.numbers)
            target = self.target(node.target) if is_call(node) else self.text(node.target)
            self.parts += (node.op, node.name, target, self.text(node.args), self.text(node.kwargs))
            for name, value in node.meta.items():
                self.parts += (name, self.line(value) if name == "stack" else self.text(value))
        self.put([(i.name, i.kind, i.static, i.given) for i in a.inputs])
        for spec in a.plan:
            if spec.kind == "const" and type(spec.value) not in _ATOMS:
                raise _NotKept
            self.put((spec.kind, spec.value, spec.meta, spec.changes, spec.detached))
        self.put((a.mutation_slots, a.no_overlap, a.name, sorted(a.generated_products), a.writes))
        for name, constant in a.constants.items():
            self.parts += (name, self.tensor(constant))
        env = a.env
        if env is not None and (env.hints or env.guards):
            guards = [guard[0] for guard in env.guards]
            self.put((env.prefix, env.hints, env.ranges, guards, env.replacements, env.has_unbacked, sorted(env._ints)))

    def line(self, stack: Any) -> str:
        """The innermost line, which is all that lowering reads (`lines` in lowering/context.py)."""
        if not stack:
            return ""
        file, line = stack[-1][:2]
        known = self.lines.get((file, line))
        if known is None:
            name = self.files.setdefault(file, f"{len(self.files)} {file.rpartition('/')[2]!r}")
            known = self.lines[file, line] = f"{name} {line}"
        return known

    def text(self, x: Any) -> str:
        kind = type(x)
        if kind in _ATOMS:
            if kind is torch.device and x.type == "cuda":
                self.gpus.add(x.index or 0)
            return repr(x)
        if kind in (tuple, list):
            return f"{'(' if kind is tuple else '['}{', '.join(map(self.text, x))})"
        if kind is torch.fx.Node:
            if x not in self.numbers:
                raise _NotKept
            return f"%{self.numbers[x]}"
        if kind is dict or kind is _FX_DICT:
            return f"{{{', '.join(f'{self.text(key)}: {self.text(value)}' for key, value in x.items())}}}"
        if kind is _FX_LIST:
            return f"[{', '.join(map(self.text, x))}]"
        if kind is Expr:
            return f"<{x.py()}>"
        if kind is slice:
            return f"slice{self.text((x.start, x.stop, x.step))}"
        if kind is torch.memory_format:
            return str(x)
        if kind.__name__ == "TensorMeta" and kind.__module__ == f"{_PACKAGE}.graph.meta.core":
            return f"T{self.text(x.key())}"
        raise _NotKept

    def target(self, f: Any) -> str:
        if type(f) is torch._ops.OpOverload:
            if f.namespace in _NAMESPACES:
                return f"{f.name()} {f._schema}"
        elif getattr(f, "__module__", "") == "_operator" and getattr(operator, f.__name__, None) is f:
            return f.__name__
        raise _NotKept

    def tensor(self, t: torch.Tensor) -> str:
        plain = type(t) is torch.Tensor and t.layout is torch.strided and t.device.type in ("cpu", "cuda")
        if not plain or t.numel() * t.element_size() > _MOST_BYTES or t.is_conj() or t.is_neg() or t._is_zerotensor():
            raise _NotKept
        data = t.contiguous().view(-1).view(torch.uint8).tolist()
        return (
            f"{self.text(t.device)} {t.dtype} {tuple(t.shape)} {t.stride()} {hashlib.sha256(bytes(data)).hexdigest()}"
        )


_FX_LIST = torch.fx.immutable_collections.immutable_list
_FX_DICT = torch.fx.immutable_collections.immutable_dict


# --- what is kept
class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, constants: dict[str, torch.Tensor], files: list[str]):
        super().__init__(file, 5)
        self.constants = {id(constant): name for name, constant in constants.items()}
        self.files = {name: number for number, name in enumerate(files)}

    def persistent_id(self, x: Any) -> int | None:
        """A file's number."""
        return self.files.get(x) if type(x) is str else None

    def reducer_override(self, x: Any) -> Any:
        kind = type(x)
        if kind is torch._ops.OpOverload:
            if x.namespace not in _NAMESPACES:
                raise _NotKept
            return _operator, (x.namespace, x.name().split("::")[1].partition(".")[0], x._overloadname)
        if kind is Expr:
            value = indirect_values().get(x.name) if x.is_symbol else None
            return NotImplemented if value is None else (indirect_symbol, (value,))
        if kind is Generated:
            kernel_of = [(step, x.kernel_of[id(step)]) for step in x.schedule.steps if id(step) in x.kernel_of]
            if len(kernel_of) != len(x.kernel_of):
                raise _NotKept
            return _generated, (x.schedule, x.kernels, kernel_of, x.host, x.target, x.threads, x.cuda)
        if isinstance(x, torch.Tensor):
            name = self.constants.get(id(x))
            if name is None:
                raise _NotKept
            return _constant, (name,)
        if callable(x) and hasattr(x, "__module__") and hasattr(x, "__qualname__") and not _is_allowed(x.__module__):
            if not hasattr(x, "__objclass__"):  # (a method of a class, by that class)
                raise _NotKept
        if isinstance(x, (torch.fx.Node, torch.fx.Graph)) or not _is_allowed(kind.__module__):
            raise _NotKept
        return NotImplemented


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, constants: dict[str, torch.Tensor], files: list[str]):
        super().__init__(file)
        self.constants, self.files = constants, files

    def persistent_load(self, number: int) -> str:
        return self.files[number]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, "_constant"):
            return self.constants.__getitem__
        if module == "builtins" and name not in _BUILTINS or not _is_allowed(module):
            raise pickle.UnpicklingError(f"{module}.{name} is not kept with graphs")
        return super().find_class(module, name)


def _is_allowed(module: str | None) -> bool:
    root = (module or "").partition(".")[0]
    return root in ("torch", "builtins", "_operator", "collections", "functools") or str(module).startswith(_PACKAGE)


def _operator(namespace: str, name: str, overload: str) -> torch._ops.OpOverload:
    if namespace == "tcompile":  # (defined where this package's `ops` are imported)
        importlib.import_module(f"{_PACKAGE}.ops.closed_set")
    found = getattr(getattr(torch.ops, namespace), name)
    return getattr(found, overload or "default")


def _constant(name: str) -> torch.Tensor:
    """Stands in the file for a constant of the graph: `_Reader` knows them."""
    raise LookupError(name)


def _generated(
    schedule: Any, kernels: list, kernel_of: list, host: Any, target: Any, threads: dict, cuda: int | None
) -> Generated:
    return Generated(schedule, kernels, {id(s): at for s, at in kernel_of}, host, target, threads, cuda)
