"""The words for a guard that did not hold: what was expected, what was found, what to write instead.

Evaluates the guard's parts once more, in Python, on the miss path only. What it returns keeps no tensor and no user
object alive.
"""

from __future__ import annotations

import types
import weakref
from typing import Any, Callable, Sequence

import torch

from ..base.figures import plural, with_article
from ..base.labels import REST
from ..base.unbound import UNBOUND
from ..symbolic.env import INT_LIMIT
from ..symbolic.expr import is_signed
from .guard import Guard, GuardFailure
from .python_program import PythonGuardProgram, evaluate_source
from .source import Source
from .state import SubclassAnswers, read_field
from .tensors import is_symbol, tensor_mismatch
from .source_values import Unreachable, class_holds, const_equal, float_holds, dict_keys, length, same_code
from .weak import present
from .wrapper_check import WrapperCheck

__all__ = [
    "TO_TENSOR",
    "brief",
    "explain_failure",
    "nearest_first",
    "plain_failure",
    "predicate_failure",
    "tensor_failure",
]

_MAX = 80
_STATE_WORDS = {
    "grad_mode": "grad mode",
    "inference_mode": "inference mode",
    "autocast": "autocast",
    "deterministic": "deterministic mode",
    "default_dtype": "the default dtype",
    "default_device": "the default device",
    "torch_function": "torch function modes",
    "functorch": "functorch transforms",
    "num_threads": "the number of threads",
    "matmul_precision": "matmul precision",
    "anomaly": "anomaly mode",
    "saved_tensor_hooks": "hooks for saved tensors",
    "decimal": "the context of decimal arithmetic",
    "break_errors": "error_on_graph_break",
    "abstract_classes": "which classes abstract classes count as their own",
}
_STATE_ADVICE = {
    "grad_mode": "call it under the same grad mode each time (torch.no_grad(), or not); each mode has its own entry",
    "inference_mode": "call it inside inference mode each time, or never",
    "autocast": "enter torch.autocast inside the function, or around every call",
    "default_dtype": "set the default dtype before the first call",
    "default_device": "set the default device before the first call",
    "num_threads": "set the number of threads before the first call",
    "abstract_classes": "register classes with abstract ones before the first call",
}


def brief(value: Any, depth: int = 0) -> str:
    """A short text of a value that runs no code of the user's. Containers may hold themselves: what lies deep is only
    named.
    """
    value = present(value)
    cls = type(value)
    if cls in (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size, torch.layout):
        text = repr(value)
    elif cls in (tuple, list) and len(value) <= 8 and depth < 3:
        inner = ", ".join(brief(item, depth + 1) for item in value)
        text = f"({inner}{',' if len(value) == 1 else ''})" if cls is tuple else f"[{inner}]"
    elif issubclass(cls, type):
        text = _name(value)
    elif issubclass(cls, types.ModuleType):
        # past its __getattr__
        text = str(vars(types.ModuleType)["__dict__"].__get__(value).get("__name__", "a module"))
    elif cls in (types.FunctionType, types.BuiltinFunctionType):
        text = value.__qualname__
    elif value is UNBOUND:
        text = "not set"
    elif issubclass(cls, torch.Tensor):
        text = with_article(_name(cls).rpartition(".")[2])
    else:
        text = f"{with_article(_name(cls))} object"
    return text if len(text) <= _MAX else text[: _MAX - 3] + "..."


def _name(cls: type) -> str:
    """A class's name, past what its metaclass says."""
    return vars(type)["__qualname__"].__get__(cls)


def explain_failure(
    guard: Guard,
    func: Callable,
    args: Sequence[Any],
    guards: Sequence[Guard] | None = None,
) -> GuardFailure:
    """Why `guard` does not hold for this call. The values of size symbols are found by evaluating
    `guards`, the whole list that `guard` is one of; without it, messages name the symbols alone."""
    bindings: dict[str, int] | None = None
    name = guard.source.name() if guard.source is not None else ""
    if guards is not None and any(map(_symbols, guards)):
        program = PythonGuardProgram(guards, len(args))
        program.check(func, args)
        bindings = program.bindings
        if guard.kind == "TENSOR":  # this guard binds its own symbols anew
            own = {e.name for e in (*guard.expected.shape, *guard.expected.stride) if is_symbol(e)}
            bound = {e.name for g in guards if g is not guard for e in _symbols(g)}
            bindings = {key: binding for key, binding in bindings.items() if key not in own or key in bound}
    bindings = dict(bindings or {})
    if guard.kind == "STATE":
        return _state(guard)
    if guard.kind == "PREDICATE":
        return predicate_failure(guard, bindings)
    if guard.kind in ("ALIAS", "NO_ALIAS", "NO_OVERLAP"):
        return _relation(guard, func, args)
    try:
        if guard.source.kind == "asked" and isinstance(guard.source.key, WrapperCheck):
            return _wrapper(guard, evaluate_source(guard.source.base, func, args))
        value = evaluate_source(guard.source, func, args)
    except Unreachable:
        return GuardFailure(
            guard,
            None,
            "missing",
            f"`{name}` is there",
            f"`{name}` is not there any more",
            _missing_advice(guard.source),
        )
    if guard.kind == "TENSOR":
        return _tensor(guard, name, value, bindings)
    return plain_failure(guard, name, value)


def _wrapper(guard: Guard, value: Any) -> GuardFailure:
    """Outer properties of a wrapper subclass, and its flatten context."""
    name, what = guard.source.base.name(), guard.source.key.difference(value)  # type: ignore[union-attr]
    return GuardFailure(
        guard,
        None,
        what,
        f"{what} of `{name}` as before",
        f"another {what.removeprefix('the ')} of the {type(value).__name__} `{name}`",
        "each flatten context has an entry of its own; keep numbers that change often in a tensor inside"
        if "context" in what
        else "pass tensors that are alike at every call",
    )


def _symbols(guard: Guard) -> list[Any]:
    """The size symbols that the guard binds."""
    spec = guard.expected
    if guard.kind == "TENSOR":
        return [e for e in (*spec.shape, *spec.stride) if is_symbol(e)]
    return [spec] if guard.kind == "INT_SYMBOL" else []


def nearest_first(misses: Sequence[tuple[Any, int]], func: Callable, args: Sequence[Any]) -> list[tuple[Any, int]]:
    """The entries that did not serve a call, each with its first guard that failed: first the one of which fewest
    guards fail, and of those the one that takes most sizes and numbers at any value. What ended it is the reason to
    tell: where that had held, it would have served, or come nearest.
    """
    if len(misses) < 2:
        return list(misses)

    def distance(miss: tuple[Any, int]) -> tuple[int, int, int]:
        guards = miss[0].program.guards
        varying = sum(len(_symbols(g)) + (g.kind == "FLOAT") for g in guards)
        return len(PythonGuardProgram(guards, len(args)).unmet(func, args)), -varying, -miss[1]

    return sorted(misses, key=distance)


def _missing_advice(source: Source | None) -> str:
    kind = source.kind if source is not None else ""
    if kind in ("item", "dict"):
        return "keep the container's keys and length the same between calls"
    return "give the object the same attributes at every call"


def _tensor(guard: Guard, name: str, value: Any, bindings: dict[str, int]) -> GuardFailure:
    spec = guard.expected
    found = tensor_mismatch(value, spec, bindings)
    if found is None:  # one of the size expressions
        for what, sizes, got in (("shape", spec.shape, value.shape), ("stride", spec.stride, value.stride())):
            for dim, size in enumerate(sizes):
                if size is None or isinstance(size, int) or is_symbol(size) or not hasattr(size, "eval"):
                    continue
                wanted = size.eval(bindings) if size.symbol_names() <= bindings.keys() else None
                if wanted != got[dim]:
                    found = (f"{what}[{dim}]", size.py() if wanted is None else wanted, got[dim])
                    break
            if found:
                break
    if found is None:
        return GuardFailure(guard, None, "", f"`{name}` as before", f"`{name}` fits again", "")
    return tensor_failure(guard, name, *found)


def tensor_failure(guard: Guard, name: str, detail: str, wanted: Any, got: Any) -> GuardFailure:
    """The words for a tensor whose `detail` ("dtype", "shape[0]", ...) is `got` where `wanted` was expected."""
    failure = GuardFailure(guard, _plain_value(got), detail)
    if detail in ("dispatch keys", "tangent"):
        failure.expected_text, failure.got_text = f"`{name}` is a plain dense tensor", f"`{name}` is {got}"
    elif detail == "type":
        failure.expected_text = f"`{name}` is {with_article(brief(wanted))}"
        failure.got_text = f"`{name}` is {with_article(brief(got))}"
    elif detail == "ndim":
        failure.expected_text, failure.got_text = (f"`{name}` has {plural(n, 'dimension')}" for n in (wanted, got))
    else:
        failure.expected_text, failure.got_text = (
            f"`{name}` had {detail} = {brief(wanted)}",
            f"`{name}` has {detail} = {brief(got)}",
        )
    failure.suggestion = _tensor_advice(name, detail, wanted, got)
    return failure


def _tensor_advice(name: str, detail: str, wanted: Any, got: Any) -> str:
    if detail.startswith("shape["):
        dim = detail[6:-1]
        if got in (0, 1):
            return f"sizes 0 and 1 are always compiled apart; pad dimension {dim} of {name}, or accept one more entry"
        return f"compile with dynamic=True, or tcompile.mark_dynamic({name}, {dim}) before the call"
    if detail.startswith("stride["):
        return f"pass {name}.contiguous(), or tensors of the same layout at every call"
    return {
        "dtype": f"convert before the call: {name}.to({brief(wanted)})",
        "device": f"move before the call: {name}.to({str(wanted)!r})",
        "requires_grad": f"{name}.requires_grad_({bool(wanted)}) before the call, or {name}.detach()",
        "ndim": "reshape to one number of dimensions before the call",
        "type": "pass one kind of tensor at every call",
        "layout": f"convert before the call: {name}.to_dense()",
        "conj": f"pass {name}.resolve_conj()",
        "neg": f"pass {name}.resolve_neg()",
        "storage_offset": f"pass {name}.clone(), or views at one offset",
        "tangent": "call the function outside forward-mode differentiation, or accept that it runs as it is",
        "dispatch keys": "pass a plain dense tensor; tensors inside vmap, grad or a mode are compiled apart",
        "data_ptr": "copy new values into the same tensor (copy_) instead of passing another",
    }.get(detail, "")


def _plain_value(value: Any) -> Any:
    return value if type(value) in (int, float, bool, str, type(None), torch.dtype, torch.device) else brief(value)


TO_TENSOR = "make it a 0-dim tensor:"  # how the remedy begins of a number that varies
_OTHER_WAY = (
    "no change is needed: each way on after a break has its own entry, and without the break there is one graph for all"
)
DEFINED_AGAIN = "no change is needed: the {0} was defined again when the cell ran, and now differs"


def _module_of(definition: Any) -> str | None:
    """Where it was defined, as it says; a class made by type() may not say it."""
    return getattr(definition, "__module__", None)


def _defined_again(old: Any, new: Any) -> bool:
    """Whether two classes, or two functions, are definitions of one name."""
    return (
        old is not new
        and type(old) is type(new)
        and (isinstance(old, type) or isinstance(old, types.FunctionType))
        and (_module_of(old), old.__qualname__) == (_module_of(new), new.__qualname__)
    )


def _is_rerun(old: types.CodeType, new: types.CodeType) -> bool:
    """Whether two codes are definitions of one function in two texts: an edited cell is a text of its own."""
    named = old.co_qualname == new.co_qualname and "<" not in old.co_qualname
    return named and old.co_filename != new.co_filename


def plain_failure(guard: Guard, name: str, value: Any) -> GuardFailure:
    """The words for a value that is no tensor and does not fit."""
    f = GuardFailure(guard, _plain_value(value), guard.kind.lower())
    words = _WORDS.get(guard.kind)
    if words is not None:
        f.expected_text, f.got_text, f.suggestion = words(f, name, value, guard.expected)
    return f


Words = tuple[str, str, str]  # expected, got, suggestion


_ALONE = (0, 1)  # compiled as constants, also where numbers vary
_NUMBERS_ALONE = "no change is needed: 0 and 1 are compiled apart from larger numbers, which share what follows"
_NEGATIVE_ALONE = "no change is needed: negative ints are compiled apart from those of 2 or more"
_TENSORS_APART = "begin with a tensor, such as torch.tensor({0}): a number and a tensor have an entry each"
_FIRST_TURN = "no change is needed: the first turn of the loop sets it, and all others share what follows"
_FIRST_BACKWARD = (
    "no change is needed: the first backward pass makes the gradients, and all later ones share what follows"
)


def _object_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    weak = failure.guard.kind == "WEAK_ID" and isinstance(expected, weakref.ref)
    wanted = expected() if weak else present(expected)
    if wanted is None and expected is not None:
        return (
            f"`{name}` was an object that is gone",
            f"`{name}` is {brief(value)}",
            "keep one object and change its contents, instead of making a new one for each call",
        )
    was = f"`{name}` was {brief(wanted)}"
    if wanted is UNBOUND:
        return was, f"`{name}` is {brief(value)}", _FIRST_TURN
    if wanted is None and name.endswith(".grad") and isinstance(value, torch.Tensor):
        return was, f"`{name}` is {brief(value)}", _FIRST_BACKWARD
    if type(wanted) in (bool, type(None)) or type(value) in (bool, type(None)):
        hint = "each value has its own entry; pass it as a tensor if it changes often"
        return was, f"`{name}` is {brief(value)}", hint
    same = type(wanted) is type(value)
    if _defined_again(wanted, value):
        hint = DEFINED_AGAIN.format("function" if callable(value) and not isinstance(value, type) else "class")
    elif same:
        hint = "compile the object's own method, or pass what differs as arguments"
    else:
        hint = "do not rebind it between calls"
    got = f"`{name}` is another {type(value).__qualname__} object" if same else f"`{name}` is {brief(value)}"
    return was, got, hint


def _type_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    was, got = (f"`{name}` {verb} {with_article(brief(cls))}" for verb, cls in (("was", expected), ("is", type(value))))
    if _defined_again(present(expected), type(value)):
        return was, f"{got} of a later definition", DEFINED_AGAIN.format("class")
    return was, got, "pass one type at every call"


def _constant_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    if isinstance(value, torch.Tensor) and type(expected) in (int, float):
        hint = f"begin with torch.tensor({expected!r}): a number and a tensor have an entry each"
    elif type(value) is not type(expected):
        hint = "pass one type at every call"
    elif type(expected) is int and (expected in _ALONE or value in _ALONE):
        hint = _NUMBERS_ALONE
    elif type(expected) is int:
        hint = f"make it a tensor (torch.tensor({name})), or compile with dynamic=True"
    elif type(expected) is float:
        hint = f"{TO_TENSOR} torch.tensor({name})"
    else:
        hint = "each value has its own entry; keep it constant, or compute with tensors"
    return f"`{name}` was {brief(expected)}", f"`{name}` is {brief(value)}", hint


def _length_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    failure.got = _length(value)
    hint = "keep the length the same, or stack the items into one tensor"
    return f"len(`{name}`) was {expected}", f"len(`{name}`) is {failure.got}", hint


def _keys_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    try:
        keys: Any = dict_keys(value)
    except Unreachable:
        keys = None
    had, has = f"`{name}` had the keys {brief(tuple(expected))}", f"`{name}` has the keys {brief(keys)}"
    return had, has, "keep the same keys in the same order"


def _lacks_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    had, has = f"`{name}` had no {brief(expected)}", f"`{name}` has {brief(expected)}"
    return had, has, "set attributes before the first call"


def _attribute_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    had, has = ("had", "has no") if expected[1] else ("had no", "has")
    which = f"attribute {expected[0]!r}"
    return f"`{name}` {had} {which}", f"`{name}` {has} {which}", "set attributes before the first call"


def _least(symbol: Any) -> str:
    return "" if is_signed(symbol.name) else " of 2 or more"


def _int_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    was, got = f"`{name}` was an int{_least(expected)}", f"`{name}` is {brief(value)}"
    if isinstance(value, torch.Tensor):
        return was, got, _TENSORS_APART.format("0")
    if type(value) is not int:
        whole = type(value) is not float or value.is_integer()
        return was, got, f"pass int({name})" if whole else "pass one type at every call"
    if not -INT_LIMIT <= value < INT_LIMIT:
        return f"`{name}` was an int of at most 62 bits", got, "no change is needed: each longer int has its own entry"
    return was, got, _NEGATIVE_ALONE if value < 0 else _NUMBERS_ALONE


def _float_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    got = f"`{name}` is {brief(value)}"
    if type(value) is not float:
        hint = _TENSORS_APART.format("0.0") if isinstance(value, torch.Tensor) else f"pass float({name})"
        return f"`{name}` was a float", got, hint
    op, c, outcome = next((fact for fact in expected or () if not float_holds(value, (fact,))), ("", 0.0, True))
    sign = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.get(op, "")
    hint = "no change is needed: a branch of the code depends on this number, and each side has its own entry"
    return f"`{name} {sign} {c}` was {outcome}", got, hint


def _function_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    if name.startswith(REST):  # a call chose another way on: nobody defined anything anew
        return "one way on", "another", _OTHER_WAY
    hint = "define the function once; each body that it gets has its own entry"
    if not isinstance(value, types.FunctionType):
        return f"`{name}` was a function", f"`{name}` is {brief(value)}", hint
    if same_code(value.__code__, expected.code):
        was = f"`{name}` was a function of the same module as before"
        return was, f"`{name}` has the same code and other globals", hint
    was = f"`{name}` was {expected.code.co_qualname}, line {expected.code.co_firstlineno}"
    if _is_rerun(expected.code, value.__code__):
        return was, f"`{name}` is {brief(value)} of a later definition", DEFINED_AGAIN.format("function")
    return was, f"`{name}` is {brief(value)}, line {value.__code__.co_firstlineno}, of other code", hint


def _class_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    other = next((n for n, wanted in expected if not class_holds(value, ((n, wanted),))), "")
    failure.got, failure.detail = None, other
    was, got = f"`{name}.{other}` was as captured", f"`{name}.{other}` was replaced or deleted"
    return was, got, "complete the class before the first call"


def _code_words(failure: GuardFailure, name: str, value: Any, expected: Any) -> Words:
    was, got = f"the code of `{name}` was as captured", f"the code of `{name}` has changed"
    return was, got, "define the function once; redefining it compiles anew"


_WORDS: dict[str, Callable[[GuardFailure, str, Any, Any], Words]] = {
    "ID": _object_words,
    "WEAK_ID": _object_words,
    "TYPE": _type_words,
    "EQUALS": _constant_words,
    "LEN": _length_words,
    "DICT_KEYS": _keys_words,
    "LACKS": _lacks_words,
    "HASATTR": _attribute_words,
    "INT_SYMBOL": _int_words,
    "FLOAT": _float_words,
    "FUNCTION": _function_words,
    "CLASS": _class_words,
    "CODE": _code_words,
}


def _length(value: Any) -> int | None:
    try:
        return length(value)
    except Unreachable:
        return None


def predicate_failure(guard: Guard, bindings: dict[str, int]) -> GuardFailure:
    """The words for a predicate over sizes that does not hold for these."""
    expected = guard.expected
    names = sorted(expected.symbol_names()) if hasattr(expected, "symbol_names") else []
    known = {name: bindings[name] for name in names if name in bindings}
    text = expected.py() if hasattr(expected, "py") else repr(expected)
    got = ", ".join(f"{key} = {value}" for key, value in known.items())
    return GuardFailure(
        guard,
        got or None,
        text,
        f"{text} held",
        f"{got or 'the sizes now'} breaks {text}",
        "no change is needed: a branch of the code depends on it, and each side has its own entry",
    )


def _relation(guard: Guard, func: Callable, args: Sequence[Any]) -> GuardFailure:
    sources = (guard.source, guard.expected) if guard.kind == "ALIAS" else tuple(guard.expected)
    names = [source.name() for source in sources]
    if guard.kind == "ALIAS":
        return GuardFailure(
            guard,
            None,
            "alias",
            f"`{names[0]}` and `{names[1]}` were one object",
            f"`{names[0]}` and `{names[1]}` are two objects",
            "pass the same object in both places, or never",
        )
    shared = _first_pair(guard, sources, func, args)
    what = "are one object" if guard.kind == "NO_ALIAS" else "share memory"
    pair = f"`{shared[0]}` and `{shared[1]}` {what}" if shared else f"some of {', '.join(names[:6])} {what}"
    return GuardFailure(
        guard,
        pair,
        guard.kind.lower(),
        "the arguments were different objects" if guard.kind == "NO_ALIAS" else "the tensors did not overlap",
        pair,
        "pass separate tensors (x.clone()) where one of them is written to",
    )


def _first_pair(guard: Guard, sources: tuple, func: Callable, args: Sequence[Any]) -> tuple[str, str] | None:
    from .python_program import no_overlap

    found = []
    for source in sources:
        try:
            found.append((source.name(), evaluate_source(source, func, args)))
        except Unreachable:
            return None
    written = len(found) if guard.written is None else guard.written
    for i, (n, v) in enumerate(found):
        for m, w in found[: min(i, written)]:
            if v is w or (guard.kind == "NO_OVERLAP" and not no_overlap([v, w])):
                return m, n
    return None


def _state(guard: Guard) -> GuardFailure:
    for name, wanted in guard.expected.items():
        got = read_field(name)
        if isinstance(wanted, SubclassAnswers) and (changed := wanted.changed()) is not None:
            cls, abstract, answer = changed
            words = f"issubclass({cls.__name__}, {abstract.__name__})"
            return GuardFailure(
                guard, not answer, name, f"{words} was {answer}", f"{words} is {not answer}", _STATE_ADVICE[name]
            )
        if got != wanted and not const_equal(got, wanted):
            words = _STATE_WORDS.get(name) or f"{name.partition(':')[0]}({name.partition(':')[2]!r})".replace(
                "('')", "()"
            )
            return GuardFailure(
                guard,
                _plain_value(got),
                name,
                f"{words} was {_state_text(wanted)}",
                f"{words} is {_state_text(got)}",
                _STATE_ADVICE.get(name, f"keep {words} the same at every call"),
            )
    return GuardFailure(guard, None, "state", "global state as before", "global state fits again", "")


def _state_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "off" if value in ((), None) else brief(value)
