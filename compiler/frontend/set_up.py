"""Cells that only set up: they import, define, build models and draw data.

Capturing such a cell gains nothing. It breaks at each seed and each constructor, and costs some 20 ms a break. So the
text of a cell is read first. A cell runs as it is, under the frame hook, where nothing in it can be tensor work of its
own: no operator of Python on what may be a tensor, no call of what computes. What it calls in libraries, and functions
that are given tensors, the hook meets as always.

A few operators on small data that the cell itself draws are preparation: labels of random inputs, a mask, a scale. A
cell that defines functions or classes may have PREPARED of them, outside of loops, and not in the value that it shows.
Small is what has MOST_ELEMENTS at most, by the numbers that are written there.

Whatever this does not know counts as work.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import sys
import textwrap
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.bytecode.memo import CodeMemo
from ..capture.entry.locations import is_library_file

__all__ = ["only_sets_up"]

_MAKES = frozenset(
    """
    manual_seed seed initial_seed get_rng_state set_rng_state from_numpy is_tensor is_grad_enabled get_default_dtype
    set_default_dtype set_num_threads get_num_threads set_printoptions set_float32_matmul_precision
    use_deterministic_algorithms load save compile no_grad enable_grad inference_mode
    """.split()
)  # functions of torch that set something, or make tensors from plain values
_DRAWS = frozenset(
    """
    randn rand randint randperm zeros ones empty full tensor as_tensor arange linspace logspace eye zeros_like ones_like
    full_like rand_like randn_like empty_like randint_like
    """.split()
)  # those that make tensors: data that the cell draws
_NUMPY_DRAWS = frozenset("normal uniform integers standard_normal random exponential".split())  # of a generator
_PREPARES = frozenset(
    """
    abs argmax astype clamp clip clone contiguous cos cat cumsum detach exp expand flatten float bool int long
    double half log max mean min norm permute pow relu repeat requires_grad_ reshape round sigmoid sign sin
    softmax sqrt square squeeze stack std sum tanh t to tolist transpose type type_as unsqueeze view where
    """.split()
)  # functions of torch, and methods of tensors, that prepare data
PREPARED, MOST_ELEMENTS = 12, 1 << 18
_PLACES = tuple("nn.init utils random serialization hub cuda backends version distributed".split())
_COMPUTES = frozenset("sum max min abs pow round sorted divmod eval exec map filter all any __build_class__".split())
_METHODS = frozenset(
    """
    eval train manual_seed to append detach clone save_pretrained extend add insert update items keys values
    parameters named_parameters modules requires_grad_ setLevel format join strip lower upper startswith endswith read
    write close from_pretrained cuda cpu half bfloat16 float double long int bool type to_empty apply state_dict
    load_state_dict zero_grad children buffers named_children named_modules named_buffers gradient_checkpointing_enable
    enable_input_require_grads
    numel size dim normal uniform integers standard_normal permutation shuffle choice astype
    """.split()
)  # that set something up, count, draw numpy's numbers, copy or cast, whatever they are called on
_GIVE_TEXT = frozenset("format join strip lower upper replace title capitalize removeprefix removesuffix".split())
_COUNTS = frozenset(("numel", "size", "dim"))  # methods, and functions below, that give whole numbers
_TO_NUMBERS = frozenset(("len", "int", "float"))
_NUMBERS = (int, float, complex, bool)
_ALWAYS = (ast.Await, ast.Yield, ast.YieldFrom, ast.Match, ast.Delete)


def only_sets_up(code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether a cell's code has no tensor work of its own, by its text."""
    tree = _parsed("".join(linecache.getlines(code.co_filename)))
    if tree is None:
        return False
    defines = any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in ast.walk(tree))
    scope, body, shown = _Scope(namespace, set(), prepared=_Prepared(defines)), tree.body, []
    if body and isinstance(body[-1], ast.Expr):
        body, shown = body[:-1], body[-1:]
    if scope.any_works(body):
        return False
    scope.prepared.may = False
    return not scope.any_works(shown)


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text) if text.strip() else None
    except (SyntaxError, ValueError):
        return None


_trees: CodeMemo[ast.Module | None] = CodeMemo()


def _tree_of(function: types.FunctionType) -> ast.Module | None:
    """The text of a function; each run of a cell asks."""
    code = function.__code__
    if code not in _trees:
        try:
            _trees[code] = _parsed(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError):
            return None
    return _trees[code]


class _Scope:
    """The names of a function's body, or of a cell."""

    def __init__(
        self,
        namespace: dict[str, Any],
        running: set[Any],
        outer: "_Scope | None" = None,
        *,
        prepared: "_Prepared",
    ) -> None:
        self.namespace, self.running, self.outer, self.prepared = namespace, running, outer, prepared
        self.bound: dict[str, Any] = {}  # name -> the node that binds it, or None: a value that nothing is known of

    def _inner(self, namespace: dict[str, Any], running: set[Any], outer: "_Scope | None") -> "_Scope":
        return _Scope(namespace, running, outer, prepared=self.prepared)

    def any_works(self, nodes: Iterable[ast.AST]) -> bool:
        return any(map(self.works, nodes))

    def works(self, node: ast.AST) -> bool:
        """Whether running a node may be tensor work. Notes what it binds."""
        if isinstance(node, _ALWAYS):
            return True
        rule = _RULES.get(type(node))
        if isinstance(node, _OPERATORS) and self.prepared.takes(self._steps(node)):
            return False
        return self.any_works(ast.iter_child_nodes(node)) if rule is None else rule(self, node)

    def _nothing(self, node: ast.AST) -> bool:
        return False

    def _import(self, node: Any) -> bool:
        for a in node.names:
            self.bound[a.asname or a.name.partition(".")[0]] = (node, a)
        return False

    def _name(self, node: Any) -> bool:
        if isinstance(node.ctx, ast.Store):
            self.bound[node.id] = None
        return False

    def _assign(self, node: Any) -> bool:
        (target, *others), value = node.targets, node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and not others:
            if len(target.elts) == len(value.elts):
                return any(self._assign(ast.Assign([t], v)) for t, v in zip(target.elts, value.elts))
        if others or not isinstance(target, ast.Name):
            return self.any_works([value, *node.targets])
        if isinstance(value, ast.Lambda):
            self.bound[target.id] = value
            return False
        if (texts := self._are_texts(value)) or self._is_text(value):
            works = self.works(value)
            self.bound[target.id] = _Made(_Texts if texts else str)
            return works
        if self.works(value):
            return True
        if self.prepared.may and self._steps(value) is not None:
            self.bound[target.id] = _DATA
            return False
        made = self._found(value.func) if isinstance(value, ast.Call) else None
        if self._is_number(value):
            made = int
        number = value.value if isinstance(value, ast.Constant) else None
        self.bound[target.id] = _Made(made, number) if isinstance(made, (type, ast.ClassDef)) else None
        return False

    def _loop(self, node: Any) -> bool:
        self.prepared.loops += 1
        works = self.any_works(ast.iter_child_nodes(node))
        self.prepared.loops -= 1
        return works

    def _comprehension(self, node: Any) -> bool:
        """What is made of each item, which is known when the places that items come from are."""
        self.prepared.loops += 1
        works = self.any_works(node.generators)
        for generator in node.generators:
            source, name = generator.iter, getattr(generator.target, "id", None)
            ranges = isinstance(source, ast.Call) and self._found(source.func) is range
            if name is not None and (ranges or self._is_text(source) or self._are_texts(source)):
                self.bound[name] = _Made(int if ranges else str)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        works = works or any(self.works(part) for part in parts)
        self.prepared.loops -= 1
        return works

    # ---- data that the cell draws and prepares
    def _steps(self, node: ast.AST) -> int | None:
        """How many operators prepare data that were drawn; None where something else is computed."""
        if isinstance(node, ast.Name):
            return 0 if self._found(node) is _DATA else None
        if isinstance(node, ast.Call):
            return self._steps_of_call(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return None
        if isinstance(node, (ast.List, ast.Tuple, ast.Subscript, ast.Attribute, *_OPERATORS)):
            if isinstance(node, ast.Attribute) and node.attr not in ("T", "mT"):
                return None
            parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
            return self._all_steps(parts, isinstance(node, _OPERATORS))
        return None

    def _steps_of_call(self, node: ast.Call) -> int | None:
        found, name = self._found(node.func), getattr(node.func, "attr", "")
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if found is _UNKNOWN and name in _NUMPY_DRAWS:
            return 0 if self._is_small(given) and not self.any_works(given) else None
        if isinstance(found, (types.BuiltinFunctionType, types.FunctionType)) or _is_numpys(found):
            if (getattr(found, "__module__", None) or "torch").partition(".")[0] not in ("torch", "numpy"):
                return None
            if found.__name__ in _DRAWS:
                return 0 if self._is_small(node.args) and not self.any_works(given) else None
            name, owner = found.__name__, []
        elif isinstance(node.func, ast.Attribute):
            owner = [node.func.value]
        else:
            return None
        if name not in _PREPARES or not self.prepared.may:
            return None
        return self._all_steps([*owner, *given], True)

    def _all_steps(self, parts: Iterable[ast.AST], one: bool) -> int | None:
        """Those of all parts, of which one is data and others may be numbers, and of `one` operator."""
        steps = [self._steps(part) for part in parts if not self._is_setting(part)]
        return None if not steps or None in steps else sum(filter(None, steps)) + one

    def _is_small(self, sizes: Iterable[ast.expr]) -> bool:
        """Whether data of these sizes are small; what else a function that draws is given makes them look larger."""
        elements = 1
        for size in (n for node in sizes for n in (node.elts if isinstance(node, (ast.Tuple, ast.List)) else (node,))):
            size = size.operand if isinstance(size, ast.UnaryOp) else size
            value = size.value if isinstance(size, ast.Constant) else self._found(size)
            value = value.value if isinstance(value, _Made) else value
            if value is not _DATA and type(value) not in _NUMBERS and not isinstance(size, (ast.Tuple, ast.List)):
                return False
            elements *= max(value, 1) if type(value) is int else 1
        return elements <= MOST_ELEMENTS

    def _is_setting(self, node: ast.AST) -> bool:
        """A number, a part of a sequence, a dtype."""
        if isinstance(node, (ast.Tuple, ast.List, ast.Slice)):
            return all(map(self._is_setting, (n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr))))
        return self._is_number(node) or isinstance(node, ast.expr) and type(self._found(node)) is torch.dtype

    def _augmented(self, node: Any) -> bool:
        """A list that grows, or a number."""
        grows = isinstance(node.value, (ast.List, ast.ListComp))
        return not (grows or self._is_number(node.target) and self._is_number(node.value)) or self.works(node.value)

    def _function(self, node: Any) -> bool:
        self.bound[node.name] = node
        return self.any_works(node.args.defaults) or any(map(self._call, node.decorator_list))

    def _class(self, node: Any) -> bool:
        self.bound[node.name] = None if node.decorator_list else node
        body = [n for n in node.body if not isinstance(n, ast.FunctionDef)]
        return bool(node.decorator_list) or self._inner(self.namespace, self.running, self).any_works(body)

    def _called(self, node: Any) -> bool:
        given = [*node.args, *(k.value for k in node.keywords)]
        plain = self._sums_counts(node) or self._are_texts(node)
        return not plain and self._call(node.func) or self.any_works(given)

    def _sums_counts(self, node: Any) -> bool:
        """How many parameters a model has."""
        item = node.args[0] if len(node.args) == 1 else None
        return (
            isinstance(node.func, ast.Name)
            and node.func.id == "sum"
            and isinstance(item, (ast.GeneratorExp, ast.ListComp))
            and self._is_number(item.elt)
        )

    def _operator(self, node: ast.AST) -> bool:
        parts = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
        lists = (ast.List, ast.ListComp)
        written = any(isinstance(part, lists) or self._is_text(part) or self._are_texts(part) for part in parts)
        plain = _tests_identity(node) or written or all(map(self._is_number, parts))
        return not plain or self.any_works(parts)

    def _is_text(self, node: ast.AST) -> bool:
        """Whether the value is a text, by what is written there and by what names stand for."""
        if isinstance(node, ast.BinOp):
            return self._is_text(node.left) or self._is_text(node.right)
        if isinstance(node, ast.Call):
            called, function = node.func, self._found(node.func)
            method = isinstance(called, ast.Attribute) and called.attr in _GIVE_TEXT and self._is_text(called.value)
            return method or isinstance(called, ast.Name) and function in (chr, str, repr)
        if isinstance(node, ast.Name):
            found = self._found(node)
            return (found.cls if type(found) is _Made else type(found)) is str
        return _is_text(node)

    def _are_texts(self, node: ast.AST) -> bool:
        """Whether the value is a list of texts: words, letters, names."""
        if isinstance(node, ast.List):
            return bool(node.elts) and all(map(self._is_text, node.elts))
        if isinstance(node, ast.BinOp):
            return self._are_texts(node.left)
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Slice) and self._are_texts(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return node.func.attr in ("split", "splitlines") and self._is_text(node.func.value)
        if isinstance(node, ast.Call):  # `sorted(set(text))`
            item = node.args[0] if len(node.args) == 1 and not node.keywords else None
            makes = isinstance(node.func, ast.Name) and self._found(node.func) in (sorted, set, list)
            return makes and item is not None and (self._is_text(item) or self._are_texts(item))
        return isinstance(node, ast.Name) and self._found(node) == _Made(_Texts)

    def _sign(self, node: Any) -> bool:
        return not isinstance(node.op, ast.Not) and not self._is_number(node.operand) or self.works(node.operand)

    def _is_number(self, node: ast.AST) -> bool:
        """Whether the value is a number, by what is written there and by what names stand for."""
        if isinstance(node, ast.BinOp):
            return self._is_number(node.left) and self._is_number(node.right)
        if isinstance(node, ast.UnaryOp):
            return self._is_number(node.operand)
        if isinstance(node, ast.Call):
            f = node.func
            named = (
                isinstance(f, ast.Name) and f.id in _TO_NUMBERS or isinstance(f, ast.Attribute) and f.attr in _COUNTS
            )
            return named or self._sums_counts(node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            found = self._found(node)
            return (found.cls if type(found) is _Made else type(found)) in _NUMBERS
        return isinstance(node, ast.Constant)

    def _item(self, node: Any) -> bool:
        plain = self._is_text(node.slice) or self._are_texts(node.value)
        return not plain or self.any_works([node.value, node.slice])

    def _attribute(self, node: Any) -> bool:
        return node.attr in ("T", "mT", "H", "mH") or self.works(node.value)

    def _call(self, func: ast.expr) -> bool:
        """Whether calling what `func` is may be tensor work."""
        if isinstance(func, ast.Call):  # a decorator with arguments
            return self.works(func) or self._call(func.func)
        found = self._found(func)
        if found is not _UNKNOWN:
            return self._is_work(found)
        known = isinstance(func, ast.Attribute) and (func.attr in _METHODS or self._is_text(func.value))
        return not known or self.works(func.value)  # type: ignore[attr-defined]

    def _found(self, node: ast.expr) -> Any:
        """What a name or a dotted name stands for, without running anything."""
        if isinstance(node, ast.Attribute):
            owner = self._found(node.value)
            if isinstance(owner, _Library):
                return owner
            if isinstance(owner, types.ModuleType):
                return inspect.getattr_static(owner, node.attr, _LAZY)
            if owner is _UNKNOWN or isinstance(owner, (ast.FunctionDef, ast.ClassDef, types.FunctionType)):
                return _UNKNOWN
            return _of_class(owner, node.attr)
        if not isinstance(node, ast.Name):
            return _UNKNOWN
        scope: _Scope | None = self
        while scope is not None:
            if node.id in scope.bound:
                return scope._bound(scope.bound[node.id])
            scope = scope.outer
        return self.namespace.get(node.id, getattr(builtins, node.id, _UNKNOWN))

    def _bound(self, binding: Any) -> Any:
        if isinstance(binding, (ast.FunctionDef, ast.Lambda, ast.ClassDef, _Made)) or binding is _DATA:
            return binding
        if binding is None:
            return _UNKNOWN
        statement, alias = binding
        if isinstance(statement, ast.Import):
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            return sys.modules.get(name, _LAZY)
        module = sys.modules.get(statement.module or "") if not statement.level else None
        return vars(module).get(alias.name, _LAZY) if module is not None else _LAZY

    def _is_work(self, found: Any) -> bool:
        if isinstance(found, (staticmethod, classmethod)) or _is_of_python(found):
            found = found.__func__
        if isinstance(found, (ast.FunctionDef, ast.Lambda)):
            return self._runs(found, found, self.namespace, self)
        if isinstance(found, (_Library, type, ast.ClassDef)):
            return False
        module = getattr(found, "__module__", None) or ""
        if module == "numpy.random":
            return False
        if isinstance(found, (types.BuiltinFunctionType, types.FunctionType)):
            if module == "builtins":
                return found.__name__ in _COMPUTES
            if module.partition(".")[0] == "torch" or isinstance(found, types.BuiltinFunctionType) and not module:
                return found.__name__ not in _MAKES | _DRAWS and not module.removeprefix("torch.").startswith(_PLACES)
            if module.partition(".")[0] == "numpy":
                return True
        if not isinstance(found, types.FunctionType):
            return not isinstance(found, types.BuiltinFunctionType)
        if is_library_file(found.__code__.co_filename):
            return False
        inner = inspect.unwrap(found)
        tree = _tree_of(inner) if isinstance(inner, types.FunctionType) else None
        body = tree.body[0] if tree is not None and tree.body else None
        return not isinstance(body, ast.FunctionDef) or self._runs(found.__code__, body, found.__globals__, None)

    def _runs(
        self, key: Any, function: ast.FunctionDef | ast.Lambda, namespace: dict[str, Any], outer: "_Scope | None"
    ) -> bool:
        """Whether the body of a function of the program's is work; a function that calls itself is."""
        if key in self.running or len(self.running) > 8:
            return True
        inner = self._inner(namespace, {*self.running, key}, outer)
        parameters = function.args
        for a in (
            *parameters.posonlyargs,
            *parameters.args,
            *parameters.kwonlyargs,
            parameters.vararg,
            parameters.kwarg,
        ):
            if a is not None:
                inner.bound[a.arg] = None
        return inner.any_works([function.body] if isinstance(function, ast.Lambda) else function.body)


_OPERATORS = (ast.BinOp, ast.Compare, ast.UnaryOp, ast.Subscript, ast.Call)
_RULES: dict[type, Callable[[_Scope, Any], bool]] = {
    **dict.fromkeys((ast.Lambda, ast.Pass, ast.Global, ast.Nonlocal, ast.Constant), _Scope._nothing),
    **dict.fromkeys((ast.Import, ast.ImportFrom), _Scope._import),
    **dict.fromkeys((ast.BinOp, ast.Compare), _Scope._operator),
    ast.Name: _Scope._name,
    ast.Assign: _Scope._assign,
    ast.AugAssign: _Scope._augmented,
    ast.FunctionDef: _Scope._function,
    ast.ClassDef: _Scope._class,
    ast.Call: _Scope._called,
    ast.UnaryOp: _Scope._sign,
    ast.Subscript: _Scope._item,
    ast.Attribute: _Scope._attribute,
    **dict.fromkeys((ast.For, ast.While), _Scope._loop),
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), _Scope._comprehension),
}


class _Texts:
    """A list of texts."""


class _Library:
    """A module that is not imported yet, or what it has."""


@dataclass(frozen=True)
class _Made:
    """An instance of a class that the text makes."""

    cls: Any  # the class, or the node that defines it
    value: Any = None  # of a number that is written there


@dataclass
class _Prepared:
    """How many operators on data that it draws a cell has had so far."""

    may: bool  # the cell defines something
    steps: int = 0
    loops: int = 0  # that the walk is inside of

    def takes(self, steps: int | None) -> bool:
        """Whether an expression of so many operators is still preparation."""
        if steps is None or self.loops or not self.may or steps > PREPARED - self.steps:
            return False
        self.steps += steps
        return True


_LAZY, _UNKNOWN, _DATA = _Library(), object(), object()


def _of_class(owner: Any, name: str) -> Any:
    """A class's attribute, or what a method of an object is by its class. Methods whose names say that they set
    something up are known by their names, unless the program defines them."""
    cls = owner.cls if isinstance(owner, _Made) else owner if isinstance(owner, (type, ast.ClassDef)) else type(owner)
    if isinstance(cls, ast.ClassDef):
        methods = (n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == name)
        return next(methods, _UNKNOWN)
    found = inspect.getattr_static(cls, name, _UNKNOWN)
    inner = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    known = isinstance(inner, types.FunctionType) and not (inner.__module__ or "torch").startswith("torch")
    return inner if known else _UNKNOWN


def _is_of_python(found: Any) -> bool:
    """`random.seed` and its like: a method of an object of the standard library's."""
    return type(found) is types.MethodType and found.__func__.__module__ in sys.stdlib_module_names


def _is_numpys(found: Any) -> bool:
    """Whether something is a function of numpy's on arrays, of a class of its own."""
    return type(found).__module__ == "numpy" and type(getattr(found, "__name__", None)) is str


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _tests_identity(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) and all(
        isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops
    )
