"""What a graph relies on of FSDP2's own objects: how the parameters below a module are sharded, and in which state.

FSDP2 keeps one state object for each module that `fully_shard` was called on, and one group object for the parameters
that are gathered together. Its hooks decide by these what they do. One check covers all of them below a module.
"""

from __future__ import annotations

import enum
import operator
import weakref
from typing import Any

__all__ = [
    "ShardedCheck",
    "groups_of",
    "states_of",
    "parameters_of",
    "has_gradient",
    "keeps_apart",
    "kept_of",
    "placed_before",
    "LAYOUTS",
    "WANTED",
]

# Of a group: an attribute, its value where the hooks do what a graph can do, and what it means where it has another.
WANTED: tuple[tuple[str, Any, str], ...] = (
    ("_sharded_state", "SHARDED", "its parameters are gathered already"),
    ("_training_state", "IDLE", "a pass over it is under way"),
    ("reshard_after_backward", True, "parameters stay gathered after backward"),
    ("gradient_divide_factor", None, "the program says by what gradients are divided"),
    ("reduce_scatter_unused_params", False, "parameters without a gradient are exchanged as well"),
    ("force_sum_reduction_for_comms", False, "gradients are added and not averaged"),
    ("_all_reduce_hook", None, "the program has a hook for reduced gradients"),
    ("_all_gather_result", None, "an all-gather of it is under way"),
    ("_partial_reduce_output", None, "gradients of an earlier pass are kept"),
)


def states_of(root: Any) -> list[Any]:
    return root._state_ctx.all_states


def groups_of(state: Any) -> list[Any]:
    """The groups of one state: one at most, before torch had several."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        return [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    return groups


def parameters_of(root: Any) -> list[Any]:
    """The parameters below an outermost module, in the order of its states."""
    return [param for state in states_of(root) for group in groups_of(state) for param in group.fsdp_params]


def has_gradient(param: Any) -> bool:
    """Whether the hooks have left a gradient of a whole parameter, which is to be exchanged later."""
    whole = getattr(param, "_unsharded_param", None)
    return whole is not None and whole.grad is not None


def keeps_apart(param: Any) -> bool:
    """Whether FSDP2 keeps gradients that it exchanges later apart from the parameter's own (until torch 2.14)."""
    return not isinstance(getattr(type(param), "unsharded_accumulated_grad", None), property)


def kept_of(param: Any) -> Any:
    """The whole gradient that FSDP2 keeps of a parameter, to be exchanged later: of a DTensor its local tensor."""
    return None if param.unsharded_accumulated_grad is None else param.unsharded_accumulated_grad_data


def placed_before(param: Any) -> Any:
    """How a parameter was placed as a DTensor when FSDP2 sharded its local tensor."""
    # (of an older torch)
    return param._unsharded_dtensor_spec if hasattr(param, "_unsharded_dtensor_spec") else param._tp_spec


_SIMPLE = (bool, type(None), enum.Enum)
_GROUP = ("reduce_grads", "all_reduce_grads", *(name for name, _, _ in WANTED), "post_forward_mesh_info", "mesh_info")
# From torch 2.15 on the program may say how gathered and reduced tensors are laid out: by which functions, and torch's.
LAYOUTS = (
    ("_all_gather_output_fn", "_default_all_gather_output_fn"),
    ("_prepare_reduce_scatter_inputs", "_default_reduce_scatter_input_fn"),
)
_COMMUNICATION = ("_all_gather_comm", "_reduce_scatter_comm")


class ShardedCheck:
    """Whether FSDP2 has the parameters below an outermost module as it had them when the graph was made."""

    __name__ = "how its parameters are sharded"

    def __init__(self, root: Any):
        self.states = [weakref.ref(s) for s in states_of(root)]
        groups = [g for s in states_of(root) for g in groups_of(s)]
        names = [n for n in _GROUP if groups and hasattr(groups[0], n)]
        self.read = operator.attrgetter(*names) if names else lambda group: ()
        self.facts = self._facts(root)

    def _facts(self, root: Any) -> list[Any]:
        context = root._state_ctx
        facts: list[Any] = [context.iter_forward_root is None, context.post_optim_event is None]
        for state in states_of(root):
            facts.append(state._training_state)
            for group in groups_of(state):
                facts += [v if isinstance(v, _SIMPLE) else id(v) for v in self.read(group)]
                facts += [type(getattr(group, name)) for name in _COMMUNICATION]
                facts += [getattr(group, name, None) for name, _ in LAYOUTS]
                for param in group.fsdp_params:
                    waits = group.reduce_grads and param.unsharded_accumulated_grad is not None
                    facts += (param.sharded_param.requires_grad, waits, has_gradient(param))
        return facts

    def __call__(self, root: Any) -> bool:
        states = states_of(root)
        return (
            len(states) == len(self.states)
            and all(known() is state for known, state in zip(self.states, states))
            and self._facts(root) == self.facts
        )
