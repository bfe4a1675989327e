"""Cut a joint graph into forward and backward: what forward keeps is the cheapest cut, in bytes, between the two.

Values that are cheap to compute again (element-wise operators, views, casts, expansions) may be recomputed in backward;
products, reductions, convolutions, random numbers and calls of eager kernels may not; nor, on a GPU, may what
convolutions read from memory in both passes: making it again takes as long as all of its own operator; nor sums of sums
(the residual stream), as backward would begin with making all of them. Keeping an input of the graph costs nothing: it
is alive anyway. Chains of recomputation end at what is kept, so backward never runs a forward operator that is not in
the cut's shadow. Weights that autocast converts are kept as converted, as eager keeps them, on a GPU while that is
little beside the rest.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Iterable

import torch
import torch.fx

from ..base.fx_nodes import is_call, is_constant, is_input
from ..ops.closed_set import gives_views
from ..ops.collectives import communicates
from ..ops.mask_bits import UNPACK
from ..graph.aten import AtenGraph, GraphOutput
from ..graph.meta.core import TensorMeta, order_in_memory
from ..graph.meta.views_meta import contiguous_strides
from ..symbolic.expr import Expr
from .forward_backward import after_forward, ancestors, backward_graph, forward_graph, slot_of
from .saved_masks import packable, packed_nodes, with_comparisons
from .mincut import INF, min_node_cut

__all__ = ["Cut", "Partition", "Value", "bytes_of", "partition"]

_FREE = 0  # weight of a value that lives anyway
_WEIGHTS = 8  # converted weights are kept up to this part of what is kept anyway
_PADDING = 8  # images are padded again where padding is more than this part of what is padded


@dataclass
class Partition:
    """forward: AtenGraph returning outputs + saved; backward: AtenGraph of saved + symbols + tangents.

    saved_inputs   forward input index for each saved value that is an input itself (kept as it is, not returned)
    saved          what forward returns for backward, inputs apart
    symbols        names of the size symbols that backward takes as ints
    recomputed     forward values that backward computes again
    read_bytes     what would be kept if nothing were computed again: all that backward's operators read of forward,
                   inputs apart
    eager_kept     what eager autograd keeps for backward after each operator of forward, inputs apart; None where
                   nobody asked
    budget         activation_memory_budget that the cut was made for
    """

    forward: AtenGraph
    backward: AtenGraph
    saved_inputs: list[int]
    saved: list[Value]
    symbols: list[str]
    recomputed: list[Value]
    read_bytes: int
    budget: float
    eager_kept: list[int] | None = None

    @property
    def eager_bytes(self) -> int | None:
        """What eager autograd keeps when forward has run, inputs apart."""
        return None if self.eager_kept is None else max(self.eager_kept, default=0)

    @property
    def saved_bytes(self) -> int:
        """At the hints, without inputs."""
        return sum(value.bytes for value in self.saved)


@dataclass
class Value:
    """A value of the forward graph that backward needs. kind: "result" (the caller gets it as well), "copy" (of an
    input that the caller may change before backward), "weight" (in the type that products take it in), "random" (drawn,
    so that it cannot be computed again), "dear" (its operator would take as long again), "activation" (where the rest
    is computed again from).
    """

    name: str
    op: str
    kind: str
    shape: tuple
    dtype: str
    bytes: int  # at the hints
    module: str
    stack: list

    @classmethod
    def of(cls, node: torch.fx.Node, kind: str, hints: dict[str, int]) -> Value:
        meta = node.meta["val"]
        return cls(
            node.name,
            _op_name(node),
            kind,
            meta.shape,
            str(meta.dtype).removeprefix("torch."),
            _bytes(node, hints),
            node.meta.get("module", ""),
            node.meta.get("stack") or [],
        )


def partition(
    joint: AtenGraph,
    n_inputs: int,
    n_outputs: int,
    written: Iterable[int] = (),
    fragile: Iterable[int] = (),
    opts: Any = None,
) -> Partition:
    """Part `joint`, whose first `n_inputs` placeholders are forward's inputs and the rest tangents.

    written    inputs that the call changes in place: what they held is gone by backward
    fragile    inputs that the caller may change between forward and backward and eager would not mind, as its backward
               does not read them: where recomputation wants one, a copy is kept
    """
    places = joint.placeholders
    primals, tangents = places[:n_inputs], places[n_inputs:]
    hints = joint.env.hints if joint.env is not None else {}
    with_comparisons(joint.graph, after_forward(joint, n_inputs), hints)
    results = joint.results
    needs_tangent = after_forward(joint, n_inputs)
    grad_slots = _slots(joint.plan[n_outputs:])
    forward_slots = sorted({*_slots(joint.plan[:n_outputs]), *(s for _, s in joint.mutation_slots)})
    backward_nodes = {node for node in joint.graph.nodes if node in needs_tangent and is_call(node)}
    # (other processes wait, whoever reads the result)
    exchanged = [node for node in backward_nodes if communicates(node.target)]
    needed = ancestors([*(results[slot] for slot in grad_slots), *exchanged])
    readers = (backward_nodes & needed) | {results[slot] for slot in grad_slots if results[slot] not in needs_tangent}

    written, fragile = {i for i, _ in joint.mutation_slots} | set(written), set(fragile)
    dear = _in_memory_twice(joint, readers) | _residual_sums(joint, needs_tangent) | _dropped(joint, readers)
    given = {results[slot] for slot in forward_slots}
    bits = packable(joint.graph, given, _recomputable, gives_views, hints, opts)
    cut = Cut(joint, primals, readers, needs_tangent, needed, written, fragile, dear, bits, given)
    budget = float(opts.get("activation_memory_budget", 1.0)) if opts is not None else 1.0
    saved = within_budget(cut, budget, joint, dear, bits)
    lent = _given_inputs(joint, n_outputs).difference(saved)
    saved = [*saved, *(primal for primal in primals if primal in lent)]
    weights, operands = set(), set()
    if budget >= 1:
        again = _recomputed(readers, saved, needs_tangent)
        steady = {primal for i, primal in enumerate(primals) if i not in fragile | written}
        weights = _converted_weights(joint, readers, saved, again, steady)
        operands = (
            _operands(joint, readers, saved, again, given) if opts is not None and opts.get("max_autotune") else set()
        )
    copies = _copies(joint, [node for node in saved if is_input(node) and primals.index(node) in fragile | written])
    kept = weights.union(saved, operands)
    saved = [copies.get(node, node) for node in joint.graph.nodes if node in kept]
    recomputed = _recomputed(readers, saved, needs_tangent)
    read = readers.union(_given_inputs(joint, n_outputs), *(n.all_input_nodes for n in (*readers, *recomputed)))
    # (as in eager, what backward does not read may change before it)
    saved = [node for node in saved if not is_input(node) or node in read]
    sizes = sorted(
        {name for n in (*recomputed, *readers, *saved, *tangents) for name in _symbols(n)}
        | {name for spec in joint.plan[n_outputs:] if spec.meta is not None for name in _symbols_of(spec.meta)}
    )
    packed = packed_nodes(joint.graph, [node for node in saved if node in bits])
    mask_of = {value: key for key, value in packed.items()}
    saved = [packed.get(node, node) for node in saved]

    forward = forward_graph(joint, n_inputs, n_outputs, forward_slots, [node for node in saved if not is_input(node)])
    backward = backward_graph(
        joint,
        saved,
        tangents,
        sizes,
        readers,
        recomputed,
        n_outputs,
        {copy: key for key, copy in copies.items()},
        mask_of,
    )
    index = {primal: i for i, primal in enumerate(primals)}

    made = set(copies.values())

    def kind(node: torch.fx.Node) -> str:
        known = (("copy", made), ("result", given), ("weight", weights))
        named = next((name for name, nodes in known if node in nodes), "")
        return named or ("random" if _random(node) else "activation" if _recomputable(node) else "dear")

    values = [
        replace(Value.of(m := mask_of.get(node, node), kind(m), hints), bytes=_bytes(node, hints))
        for node in saved
        if not is_input(node)
    ]
    again = [Value.of(n, "activation", hints) for n in recomputed if isinstance(n.meta.get("val"), TensorMeta)]
    direct = {
        i for reader in readers for i in (reader.all_input_nodes if reader in needs_tangent else [reader])
    } - needs_tangent
    read_bytes = sum(_bytes(n, hints) for n in {_owner(n) for n in direct} if is_call(n))
    return Partition(
        forward, backward, [index[node] for node in saved if is_input(node)], values, sizes, again, read_bytes, budget
    )


def _random(node: Any) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """The value whose memory a view looks at."""
    while is_call(node) and gives_views(node.target):
        node = node.all_input_nodes[0]
    return node


def _op_name(node: Any) -> str:
    while node.target is operator.getitem:
        node = node.args[0]
    return str(node.target)


def _slots(outputs: list[GraphOutput]) -> list[int]:
    """The results that these outputs are made of."""
    return sorted({slot for output in outputs if (slot := slot_of(output)) is not None})


def _given_inputs(joint: AtenGraph, n_outputs: int) -> set[torch.fx.Node]:
    """Inputs that gradients are, or are views of."""
    return {
        joint.placeholders[spec.value if spec.kind == "input" else spec.value[1]]
        for spec in joint.plan[n_outputs:]
        if spec.kind == "input" or spec.kind == "view" and spec.value[0] == "input"
    }


def _bytes(node: torch.fx.Node, hints: dict[str, int]) -> int:
    meta = node.meta.get("val")
    return bytes_of(meta, hints) if isinstance(meta, TensorMeta) else 0


def _kept_bytes(node: torch.fx.Node, hints: dict[str, int], bits: set[torch.fx.Node]) -> int:
    return _bytes(node, hints) // 8 if node in bits else _bytes(node, hints)


def bytes_of(meta: TensorMeta, hints: dict[str, int]) -> int:
    total = meta.dtype.itemsize
    for size in meta.shape:
        total *= size if isinstance(size, int) else size.eval(hints)
    return total


def _recomputable(node: torch.fx.Node) -> bool:
    """Cheap and free of side effects, on the fused path: element-wise operators, views, casts, creation of
    constants.
    """
    if not is_call(node):
        return False
    target = node.target
    if (
        target is operator.getitem
        or not isinstance(target, torch._ops.OpOverload)
        or not isinstance(node.meta.get("val"), TensorMeta)
    ):
        return False
    if target is torch.ops.aten._to_copy.default and node.meta["val"].on_gpu != node.args[0].meta["val"].on_gpu:
        return False  # (a copy between devices takes longer than all that is made of it)
    return (
        torch.Tag.pointwise in target.tags
        and torch.Tag.nondeterministic_seeded not in target.tags
        or target.namespace == "prims"
        or gives_views(target)
        or target._schema.name
        in (
            "aten::_to_copy",
            "aten::constant_pad_nd",
            "aten::clone",
            "aten::full",
            "aten::expand",
            "aten::where",
            "aten::scalar_tensor",
            "aten::arange",
            "tcompile::unpack_bits",
        )
    )


def _is_last(node: torch.fx.Node) -> bool:
    """Whether a value made of gathered parts has memory of its own, and no other such value is made of it."""

    def made_of_it(reader: torch.fx.Node) -> bool:
        return any(
            "unshard" in user.meta and (not gives_views(user.target) or made_of_it(user)) for user in reader.users
        )

    return not gives_views(node.target) and not made_of_it(node)


def _dense(meta: TensorMeta) -> bool:
    """Whether the elements fill their memory, each once."""
    return order_in_memory(meta) is not None


def _copies(joint: AtenGraph, inputs: list[torch.fx.Node]) -> dict[torch.fx.Node, torch.fx.Node]:
    """A copy of each of these inputs, made before anything is computed."""
    out = {}
    for given in inputs:
        with joint.graph.inserting_after(joint.placeholders[-1]):
            copy = joint.graph.call_function(
                torch.ops.aten.clone.default, (given,), {"memory_format": torch.contiguous_format}
            )
        meta = given.meta["val"]
        stride = meta.stride if _dense(meta) else contiguous_strides(meta.shape)
        copy.meta.update(val=TensorMeta(meta.shape, stride, meta.dtype, meta.device), stack=[], module="")
        out[given] = copy
    return out


def within_budget(
    cut: Callable[..., list], budget: float, joint: AtenGraph, dear: set[torch.fx.Node], bits: set[torch.fx.Node]
) -> list[torch.fx.Node]:
    """What `cut(released)` keeps, with as few operators released (computed again, however dear; those that give most
    bytes for their effort first) as bring the bytes to `budget` of what the cut without them keeps. 0 keeps inputs and
    random numbers alone.
    """
    saved = cut(frozenset())
    if budget >= 1:
        return saved
    hints = joint.env.hints if joint.env is not None else {}

    def total(nodes: list) -> int:
        return sum(_kept_bytes(node, hints, bits) for node in nodes if not is_input(node))

    limit = max(budget, 0.0) * total(saved)
    order = sorted(
        (node for node in joint.graph.nodes if may_recompute(node) and (node in dear or not _recomputable(node))),
        key=lambda n: _effort(n, hints) / max(1, _bytes(n, hints)),
    )
    low, high, best = 0, len(order), None
    while low < high:  # the fewest that are enough
        k = (low + high) // 2
        tried = cut(frozenset(order[:k]))
        if total(tried) <= limit:
            best, high = tried, k
        else:
            low = k + 1
    return best or cut(frozenset(order))


def may_recompute(node: Any) -> bool:
    """Whether running the operator again gives the same and does nothing else."""
    if not is_call(node):
        return False
    return (
        node.target is operator.getitem
        and may_recompute(node.args[0])
        or isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded not in node.target.tags
        and not node.target._schema.is_mutable
        and not communicates(node.target)
    )


def _effort(n: Any, hints: dict[str, int]) -> float:
    """Roughly the arithmetic of one operator."""
    if n.target is operator.getitem:
        return _effort(n.args[0], hints)
    name = n.target._schema.name.partition("::")[2]
    sizes = [
        _bytes(node, hints) // node.meta["val"].dtype.itemsize
        for node in n.all_input_nodes
        if isinstance(node.meta.get("val"), TensorMeta)
    ]
    val = n.meta.get("val")
    out = max(
        (
            bytes_of(v, hints) // v.dtype.itemsize
            for v in (val if isinstance(val, tuple) else (val,))
            if isinstance(v, TensorMeta)
        ),
        default=1,
    )
    if name in ("mm", "bmm", "addmm", "baddbmm") or "convolution" in name or "attention" in name:
        a, b = (sorted(sizes)[-2:] + [1, 1])[:2] if len(sizes) > 1 else (out, out)
        return 2.0 * (float(a) * float(b) * out) ** 0.5  # m*k x k*n -> m*n: the root of the product is m*k*n
    return float(max([out, *sizes]))


def _in_memory_twice(joint: AtenGraph, readers: set) -> set[torch.fx.Node]:
    """Values on a GPU that convolutions of forward and of backward read, which are most of what such a step moves; not
    weights in another dtype, nor images with much padding, which eager keeps without. (What products read is a smaller
    part of theirs: there memory counts for more.)"""
    hints = joint.env.hints if joint.env is not None else {}

    def much_padded(node: torch.fx.Node) -> bool:
        if node.target is not torch.ops.aten.constant_pad_nd.default:
            return False
        inner = _bytes(node.args[0], hints)
        return (_bytes(node, hints) - inner) * _PADDING > inner

    def of_a_weight(node: torch.fx.Node) -> bool:
        return node.target is torch.ops.aten._to_copy.default and is_input(_owner(node.all_input_nodes[0]))

    return {
        node
        for node in joint.calls()
        if _recomputable(node)
        and not gives_views(node.target)
        and node.meta["val"].on_gpu
        and not of_a_weight(node)
        and not much_padded(node)
        and len(_calls(node, readers, _is_convolution)) == 2
    }


def _residual_sums(joint: AtenGraph, needs_tangent: set) -> set[torch.fx.Node]:
    """Values on a GPU in which an earlier one that could be made again is joined by one that took a product or a
    reduction more: the links of x + f(x) in a residual network. Made again, the last takes all those before it, which
    backward reads after it: they would be written at its beginning, and lie about."""
    hints = joint.env.hints if joint.env is not None else {}
    era: dict[torch.fx.Node, int] = {}  # products, reductions and the like on the longest way to a value
    out = set()
    for n in joint.calls():
        if n in needs_tangent:
            continue
        again = _recomputable(n)
        era[n] = max((era.get(node, 0) for node in n.all_input_nodes), default=0) + (
            not again and n.target is not operator.getitem
        )
        if n.target is not torch.ops.aten.add.Tensor or not n.meta["val"].on_gpu:
            continue
        count = _bytes(n, hints) // n.meta["val"].dtype.itemsize
        whole = [
            node
            for node in n.all_input_nodes
            if isinstance(m := node.meta.get("val"), TensorMeta) and _bytes(node, hints) == count * m.dtype.itemsize
        ]
        if any(era.get(i, 0) == era[n] for i in whole) and any(
            _recomputable(i) and is_call(_owner(i)) and era[i] < era[n] for i in whole
        ):
            out.add(n)
    return out


def _dropped(joint: AtenGraph, readers: set) -> set[torch.fx.Node]:
    """Values on a GPU that a dropout by bits gives to products of both passes: forward has them in memory, and keeps
    those of other dropouts, which cannot be made again."""

    def is_dropped(n: Any) -> bool:
        while n.target is torch.ops.aten._to_copy.default:
            n = n.args[0]
        return n.target is torch.ops.aten.mul.Tensor and any(
            node.target is torch.ops.aten.where.self and node.args[0].target is UNPACK for node in n.all_input_nodes
        )

    return {
        node
        for node in joint.graph.nodes
        if is_call(node)
        and is_dropped(node)
        and node.meta["val"].on_gpu
        and len(_calls(node, readers, _is_product)) == 2
    }


def _converted_weights(
    joint: AtenGraph, readers: set, saved: list, recomputed: list, steady: set
) -> set[torch.fx.Node]:
    """Of what backward would compute again, the weights in a narrower type that products of both passes read: each
    would be read in its own type, and written, once more. On a GPU those that backward reads first (they are freed
    first), while they are a small part of all that is kept, and not what convolutions read: weights are the most of
    what some networks of those would keep. On a CPU all, as eager keeps them: with few rows converting them is much of
    a step, and memory is not short. `steady`: inputs that hold in backward what they held in forward."""
    hints = joint.env.hints if joint.env is not None else {}
    room = sum(_bytes(node, hints) for node in saved if not is_input(node)) // _WEIGHTS
    products = partial(_calls, readers=readers, wanted=_is_product)
    convolutions = partial(_calls, readers=readers, wanted=_is_convolution)
    out = set()
    for n in reversed(recomputed):
        if (
            n.target is torch.ops.aten._to_copy.default
            and "checkpoint" not in n.meta
            and n.meta["val"].dtype.itemsize < n.args[0].meta["val"].dtype.itemsize
            and _owner(n.args[0]) in steady
        ):
            if n.meta["val"].device.type == "cpu":
                if len(products(n) | convolutions(n)) == 2:
                    out.add(n)
            elif _bytes(n, hints) <= room and len(products(n)) == 2:
                room -= _bytes(n, hints)
                out.add(n)
    return out


def _operands(joint: AtenGraph, readers: set, saved: list, recomputed: list, given: set) -> set[torch.fx.Node]:
    """Of what backward would compute again, what products of both passes read as it lies, so that it is in memory
    anyway (a norm's result, an activation): as far as it is a small part of all that is kept. For callers who ask for
    time (max-autotune): it takes more memory than it gives time. `given`: what the caller gets."""
    hints = joint.env.hints if joint.env is not None else {}
    room = sum(_bytes(node, hints) for node in saved if not is_input(node)) // _WEIGHTS

    def is_turned(node: torch.fx.Node) -> bool:
        """Whether a product reads another order of rows: a copy, which both passes would make."""
        return any(
            gives_views(user.target)
            and (is_turned(user) or user.target is torch.ops.aten.permute.default and len(user.args[1]) > 2)
            for user in node.users
        )

    out = set()
    for n in reversed(recomputed):
        if (
            n.meta["val"].on_gpu
            and "checkpoint" not in n.meta
            and "unshard" not in n.meta
            and not gives_views(n.target)
            and n.all_input_nodes
            and not is_input(_owner(n.all_input_nodes[0]))
            and _bytes(n, hints) <= room
            and len(_calls(n, readers, _is_product)) == 2
            and not is_turned(n)
        ):
            room -= _bytes(n, hints)
            out.add(n)
            meta = n.meta["val"]
            views = [user.meta["val"] for user in n.users if gives_views(user.target)]
            if (
                meta.stride != contiguous_strides(meta.shape)
                and n not in given
                and _dense(meta)
                and views
                and all(view.stride == contiguous_strides(view.shape) for view in views)
            ):
                # (else each pass would copy it for the product)
                n.meta["val"] = TensorMeta(meta.shape, contiguous_strides(meta.shape), meta.dtype, meta.device)
    return out


def _calls(node: torch.fx.Node, readers: set, wanted: Callable[[Any], bool]) -> set[bool]:
    """Whether they are backward's, for each of the operators wanted that read a value or a view of it."""
    return {
        late
        for user in node.users
        for late in (
            _calls(user, readers, wanted)
            if gives_views(user.target)
            else {user in readers}
            if wanted(user.target)
            else ()
        )
    }


def _is_product(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in (
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
    )


def _is_convolution(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and "convolution" in target._schema.name


@dataclass
class Cut:
    """cut(released): the forward values to keep, in graph order. Those `released` may be computed again although they
    are dear.

    readers           backward's operators that are needed; results that are none of backward's are among them
    needs_tangent     what depends on tangents
    needed            what gradients depend on
    written, fragile  inputs: of `partition`
    dear              values that are not computed again although they are cheap
    bits              masks that are kept as bits
    given             what the caller gets
    """

    joint: AtenGraph
    primals: list
    readers: set
    needs_tangent: set
    needed: set
    written: set
    fragile: set
    dear: set
    bits: set
    given: set

    def __post_init__(self) -> None:
        self.hints = self.joint.env.hints if self.joint.env is not None else {}
        self.copied = {primal for i, primal in enumerate(self.primals) if i in self.fragile or i in self.written}
        self.forward = [
            node
            for node in self.joint.graph.nodes
            if node in self.needed
            and node not in self.needs_tangent
            and node.op in ("call_function", "placeholder", "get_attr")
        ]
        self.inside = set(self.forward)

    def __call__(self, released: frozenset = frozenset()) -> list[torch.fx.Node]:
        weights, edges, sources, sinks = {}, [], [], []
        for node in self.forward:
            if is_constant(node):
                continue  # constants are in both graphs
            if is_input(node):
                if not isinstance(node.meta.get("val"), TensorMeta):
                    continue  # sizes and scalars are passed apart
                weights[node] = self.weight_of_input(node)
                sources.append(node)
            else:
                weights[node], begins = self.weight_of_result(node, node in released)
                if begins:
                    sources.append(node)
            if node in self.readers or any(user in self.needs_tangent for user in node.users):
                sinks.append(node)
        for node in weights:
            edges += [(node, user) for user in node.users if user in weights]
        cut = min_node_cut(weights, edges, sources, sinks)
        return [node for node in self.forward if node in cut]

    def weight_of_input(self, node: torch.fx.Node) -> int:
        if node not in self.copied:
            return _FREE
        by_strides = any(user.target is torch.ops.aten.as_strided.default for user in node.users)
        return INF if by_strides and not _dense(node.meta["val"]) else _bytes(node, self.hints) + 64

    def weight_of_result(self, node: torch.fx.Node, released: bool) -> tuple[int, bool]:
        """(weight, whether backward cannot compute it again)."""
        if "unshard" in node.meta:  # gathered again, or kept as it was gathered: the last of what was made of it
            kept = not node.meta["unshard"] and _is_last(node)
            return (_bytes(node, self.hints) + 64 if kept else INF), kept
        weight = self._weight(node)
        asked = "checkpoint" in node.meta  # the user asks to compute it again, unless another region reads it
        leaves = asked and any(
            user in self.inside and user.meta.get("checkpoint") != node.meta["checkpoint"] and "apart" not in user.meta
            for user in node.users
        )
        if asked and not leaves and may_recompute(node):
            return weight << 20 if weight < INF else weight, False
        return weight, leaves or not released and (node in self.dear or not _recomputable(node))

    def _weight(self, node: torch.fx.Node) -> int:
        """Of keeping a result: its bytes, INF for what is never kept itself."""
        cheap = _recomputable(node)
        made_here = cheap and not node.all_input_nodes  # constants are made again rather than kept
        if not isinstance(node.meta.get("val"), TensorMeta) or gives_views(node.target) or made_here:
            return INF
        kept = _kept_bytes(node, self.hints, self.bits)
        weight = kept + 64
        if cheap and node not in self.dear and weight < INF:  # (of two alike, the one that is in memory anyway)
            copied = node in self.given and node.target is torch.ops.aten.clone.default
            weight += -1 if copied else kept >> 5
        return weight


def _recomputed(readers: set, saved: list, needs_tangent: set) -> list[torch.fx.Node]:
    """Forward values that backward computes again from what is saved, in graph order."""
    keep = set(saved)
    seen: set[torch.fx.Node] = set()
    todo = [i for reader in readers for i in (reader.all_input_nodes if reader in needs_tangent else [reader])]
    while todo:
        node = todo.pop()
        if node in keep or node in seen or node in needs_tangent or not is_call(node):
            continue
        seen.add(node)
        todo += node.all_input_nodes
    return [node for node in (next(iter(seen)).graph.nodes if seen else ()) if node in seen]


def _symbols(node: torch.fx.Node) -> set[str]:
    return _symbols_of((node.meta.get("val"), tuple(node.args), tuple(node.kwargs.values())))


def _symbols_of(what: Any) -> set[str]:
    """Names of the size symbols in metadata and arguments."""
    names: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, Expr):
            names.update(value.symbol_names())
        elif isinstance(value, TensorMeta):
            look(value.shape), look(value.stride), look(value.storage_offset)
        elif isinstance(value, (tuple, list)):
            for item in value:
                look(item)

    look(what)
    return names
