"""Two processes that train modules parted by FSDP2: what tests/autograd/test_sharded_modules.py compares with eager.

python -m tests.autograd.sharded_runs gloo      prints one line of JSON per case: whether it is as eager, graphs,
                                                breaks, collectives in graphs, how often FSDP2's hooks gathered
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from .two_processes import WORLD, start

STEPS = 4
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.up.weight
        if (
            not isinstance(weight, nn.Parameter)
            or not weight.is_leaf
            or dict(self.named_parameters())["up.weight"] is not weight
        ):
            raise TypeError("the program sees gathered parameters as they are in eager")
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 7, blocks: int = 2) -> None:  # (two processes hold unequal parts of 7 rows)
        super().__init__()
        self.first = nn.Linear(5, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.last = nn.Linear(width, 3)
        self.ways = {"again": False, "print": False, "skip": False, "twice": False}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for block in self.blocks[1:] if self.ways["skip"] else self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.ways["again"] else block(h)
            if self.ways["twice"]:
                h = block(h)
            if self.ways["print"]:
                print("", end="", file=sys.stderr)
                torch.save(h.detach().float().sum(), os.devnull)
        return self.last(h)


def part(net: Net, each: bool = True, **how: Any) -> Net:
    how = {"mesh": init_device_mesh("cpu", (WORLD,)), **how}
    if each:
        for block in net.blocks:
            fully_shard(block, **how)
    return fully_shard(net, **how)


def batch(k: int) -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * k + dist.get_rank()))


def whole(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    return (t.full_tensor() if hasattr(t, "full_tensor") else t).clone().float()


def train(
    net: Net,
    model: Any,
    parts: int = 1,
    waits: bool = False,
    before_step: Callable[[], Any] = lambda: None,
    between: Callable[[int], Any] = lambda k: None,
    make: Callable = lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
) -> list[torch.Tensor]:
    """Losses, gradients, and what is left of the parameters. `waits`: of a step's parts the last one exchanges."""
    optimizer = make(net.parameters())
    out = []
    for k in range(STEPS):
        for i in range(parts):
            if waits:
                net.set_requires_gradient_sync(i == parts - 1)
            loss = model(batch(parts * k + i)).float().square().mean()
            loss.backward()
            out.append(loss)
        got = before_step()
        out += [p.grad for p in net.parameters() if p.grad is not None]
        out += [got] if isinstance(got, torch.Tensor) else []
        optimizer.step()
        optimizer.zero_grad()
        out += [t for t in [between(k)] if t is not None]
    state = [t for of in optimizer.state.values() for t in of.values()]
    out.append(
        torch.tensor(
            [float(hasattr(t, "full_tensor")) for t in state] + [float(p._version > 0) for p in net.parameters()]
        )
    )
    return [whole(t) for t in (*out, *state, *net.parameters())]


def per_block(wrap: Callable, net: Net) -> list:
    return train(part(net), wrap(net))


def as_a_whole(wrap: Callable, net: Net) -> list:
    return train(part(net, each=False), wrap(net))


def kept_after_forward(wrap: Callable, net: Net) -> list:
    return train(part(net, reshard_after_forward=False), wrap(net))


def mixed_precision(wrap: Callable, net: Net) -> list:
    return train(part(net, mp_policy=BF16), wrap(net))


def output_dtype(wrap: Callable, net: Net) -> list:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    return train(part(net, each=False, mp_policy=policy), wrap(net))


def accumulated(wrap: Callable, net: Net) -> list:
    """Gradients of three passes, each of them exchanged."""
    return train(part(net), wrap(net), parts=3)


def accumulated_unsynced(wrap: Callable, net: Net) -> list:
    return train(part(net), wrap(net), parts=3, waits=True)


def accumulated_mixed(wrap: Callable, net: Net) -> list:
    """Sums of 16-bit gradients are kept in another dtype, of blocks that are computed again, between processes that
    hold the same. A pass without gradients comes while they wait."""
    net.ways["again"] = True
    mesh = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("alike", "parted"))
    model, passes = wrap(part(net, mp_policy=BF16, mesh=mesh)), []

    def call(x: torch.Tensor) -> torch.Tensor:
        passes.append(x)
        if len(passes) == 3:
            with torch.no_grad():
                model(x)
            net.reshard()
        return model(x)

    return train(net, call, parts=3, waits=True)


def waits_while_called_twice(wrap: Callable, net: Net) -> list:
    net.ways["twice"] = True
    return train(part(net), wrap(net), parts=2, waits=True)


def late_sum(wrap: Callable, net: Net) -> list:
    """Both forwards come before both backwards: what is to be exchanged comes after the forward that exchanges it. The
    last pass skips a block, whose gradients of the first are exchanged all the same."""
    model, out = wrap(part(net)), []
    for k in range(STEPS):
        losses = []
        for i in range(2):
            net.ways["skip"] = i == 1 and k == 2
            net.set_requires_gradient_sync(i == 1)
            losses.append(model(batch(2 * k + i)).float().square().mean())
        for i, loss in enumerate(losses):
            net.set_requires_gradient_sync(i == 1)
            loss.backward()
        out += [loss.detach() for loss in losses]
        out += [whole(p.grad) for p in net.parameters() if p.grad is not None]
        net.zero_grad()
    return out


def clipped(wrap: Callable, net: Net) -> list:
    return train(part(net), wrap(net), before_step=lambda: nn.utils.clip_grad_norm_(net.parameters(), 0.1))


def checkpointed(wrap: Callable, net: Net) -> list:
    net.ways["again"] = True
    return train(part(net), wrap(net))


def stepped_by_adamw(wrap: Callable, net: Net) -> list:
    schedules = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.AdamW(parameters, 1e-3, amsgrad=True)
        schedules.append(torch.optim.lr_scheduler.StepLR(made, 1, 0.5))
        return made

    return train(part(net), wrap(net), make=make, between=lambda k: schedules[0].step())


def stepped_by_a_graph(wrap: Callable, net: Net) -> list:
    """The program compiles the step as well: it is a graph of the parts."""

    def make(parameters: Any) -> Any:
        made = torch.optim.AdamW(parameters, 1e-3)
        return SimpleNamespace(step=wrap(made.step), zero_grad=made.zero_grad, state=made.state)

    return train(part(net), wrap(net), make=make)


def stepped_with_a_hook(wrap: Callable, net: Net) -> list:
    """What an optimizer's hooks do with gradients comes before the step."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.AdamW(parameters, 1e-3)
        made.register_step_pre_hook(
            lambda o, a, k: [p.grad.mul_(-2) for g in o.param_groups for p in g["params"]] and None
        )
        return made

    return train(part(net), wrap(net), make=make)


def frozen(wrap: Callable, net: Net) -> list:
    net.first.requires_grad_(False)
    net.blocks[0].up.requires_grad_(False)
    return train(part(net), wrap(net))


def unused(wrap: Callable, net: Net) -> list:
    net.ways["skip"] = True
    return train(part(net), wrap(net))


def called_twice(wrap: Callable, net: Net) -> list:
    net.ways["twice"] = True
    return train(part(net), wrap(net))


def hooked_gradients(wrap: Callable, net: Net) -> list:
    """What the program registered runs once for each gradient."""
    model, calls = wrap(part(net)), []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.to_local().numel()))
    return [*train(net, model), torch.tensor(calls)]


def evaluated(wrap: Callable, net: Net) -> list:
    model = wrap(part(net))

    def between(k: int) -> torch.Tensor:
        with torch.no_grad():
            got = model(batch(50 + k))
        net.reshard()  # (the outermost module keeps its parameters gathered, where the hooks run)
        return got

    return train(net, model, between=between)


def both_modes(wrap: Callable, net: Net) -> list:
    """One function calls the module with and without gradients, in whatever mode it is called itself."""
    part(net)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            aim = net(x + 1).tanh()
        net.reshard()
        with torch.enable_grad():
            return net(x) - aim

    model = wrap(step)
    return train(net, lambda x: torch.no_grad()(model)(x))


def met_by_eager(wrap: Callable, net: Net) -> list:
    """From the third step on one process runs FSDP2's hooks: both exchange the same in the same order."""
    model, steps = wrap(part(net)), []

    def call(x: torch.Tensor) -> torch.Tensor:
        steps.append(1)
        return (net if len(steps) > 2 and dist.get_rank() else model)(x)

    return train(net, call)


def saving_and_loading(model: Any) -> Callable[[int], None]:
    """torch.distributed.checkpoint of the compiled module, between the steps."""
    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)

    def between(k: int) -> None:
        if k == 1:
            dcp.save(model.state_dict(), checkpoint_id=folder[0])
        if k == 2:
            state = model.state_dict()
            dcp.load(state, checkpoint_id=folder[0])
            model.load_state_dict(state)

    return between


def saved_and_loaded(wrap: Callable, net: Net) -> list:
    model = wrap(part(net))
    return train(net, model, between=saving_and_loading(model))


def everything_of_the_whole(wrap: Callable, net: Net) -> list:
    """One group of all parameters: computed again, in 16 bits, added up, clipped, saved and loaded."""
    net.ways["again"] = True
    model = wrap(part(net, each=False, mp_policy=BF16, reshard_after_forward=WORLD))
    clip = lambda: nn.utils.clip_grad_norm_(net.parameters(), 0.1)  # noqa: E731
    return train(net, model, parts=2, waits=True, before_step=clip, between=saving_and_loading(model))


def given_back_to_all(wrap: Callable, net: Net) -> list:
    """The number of processes that parameters are parted among after forward: all of them."""
    return train(part(net, reshard_after_forward=WORLD), wrap(net))


def broken(wrap: Callable, net: Net) -> list:
    """What no graph can hold lies within the parted module."""
    net.ways["print"] = True
    return train(part(net), wrap(net))


def hybrid(wrap: Callable, net: Net) -> list:
    """Parted in one dimension of a mesh, which has one process in the other."""
    mesh = init_device_mesh("cpu", (1, WORLD), mesh_dim_names=("alike", "parted"))
    return train(part(net, mesh=mesh), wrap(net))


def held_alike(wrap: Callable, net: Net) -> list:
    """Each process holds all of a parameter: what another one has of it is added up."""
    mesh = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("alike", "parted"))
    return train(part(net, mesh=mesh), wrap(net))


def tensor_parallel(wrap: Callable, net: Net, processes: int = 1, run: Callable | None = None) -> list:
    """Products are parted in one dimension of a mesh, and FSDP2 parts what each process has of them in the other."""
    shape = (WORLD // processes, processes)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("parted", "products"))
    products = mesh["products"]
    for block in net.blocks:
        parallelize_module(block, products, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model = wrap(part(net, mesh=mesh["parted"]))
    return run(model) if run is not None else train(net, model)


def products_of_all(wrap: Callable, net: Net) -> list:
    """FSDP2 has one process, and products are parted."""
    return tensor_parallel(wrap, net, WORLD)


def parallel_unsynced(wrap: Callable, net: Net, processes: int = 1) -> list:
    """Whole gradients of parameters that are DTensors are added up before they are exchanged."""

    def waiting(model: Any) -> list:
        return train(net, model, parts=3, waits=True)

    return tensor_parallel(wrap, net, processes, waiting)


def products_of_all_unsynced(wrap: Callable, net: Net) -> list:
    return parallel_unsynced(wrap, net, WORLD)


def parallel_met_by_hooks(wrap: Callable, net: Net) -> list:
    """What a graph has kept, FSDP2's hooks add to and exchange; and the other way round."""

    def waiting(model: Any) -> list:
        calls: list[int] = []

        def call(x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return (net if len(calls) in (2, 4) else model)(x)

        return train(net, call, parts=2, waits=True)

    return tensor_parallel(wrap, net, 1, waiting)


def parallel_forwards(wrap: Callable, net: Net) -> list:
    """The blocks' forwards are compiled. They ask parameters that are DTensors whether they are leaves."""

    def waiting(model: Any) -> list:
        for block in net.blocks:
            block.forward = wrap(block.forward)
        return train(net, net, parts=2, waits=True)

    return tensor_parallel(lambda f: f, net, 1, waiting)


def one_block_of_others(wrap: Callable, net: Net) -> list:
    """Each block is compiled by itself, and the module around them is not."""
    part(net)
    for i, block in enumerate(net.blocks):
        net.blocks[i] = wrap(block)
    return train(net, net)


def forwards_of_others(wrap: Callable, net: Net) -> list:
    """The blocks' forwards are compiled, and FSDP2's hooks run around them."""
    for block in part(net).blocks:
        block.forward = wrap(block.forward)
    return train(net, net)


def forwards_of_two_models(wrap: Callable, net: Net) -> list:
    """Blocks of another model are equal, too: its steps are taken on local parts as well."""
    return [*forwards_of_others(wrap, Net()), *forwards_of_others(wrap, net)]


IN_GRAPH = (
    per_block,
    as_a_whole,
    kept_after_forward,
    mixed_precision,
    output_dtype,
    accumulated,
    clipped,
    checkpointed,
    stepped_by_adamw,
    stepped_with_a_hook,
    frozen,
    unused,
    called_twice,
    hooked_gradients,
    evaluated,
    saved_and_loaded,
    everything_of_the_whole,
    given_back_to_all,
    accumulated_unsynced,
    accumulated_mixed,
    hybrid,
    held_alike,
    tensor_parallel,
    products_of_all,
    parallel_unsynced,
    products_of_all_unsynced,
)
CASES = (
    *IN_GRAPH,
    stepped_by_a_graph,
    both_modes,
    met_by_eager,
    late_sum,
    waits_while_called_twice,
    broken,
    one_block_of_others,
    forwards_of_others,
    forwards_of_two_models,
    parallel_met_by_hooks,
    parallel_forwards,
)


@contextlib.contextmanager
def counting(owner: Any, name: str) -> Iterator[list[int]]:
    """How often a function is called."""
    calls, function = [], getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return function(*args, **kwargs)

    setattr(owner, name, counted)
    try:
        yield calls
    finally:
        setattr(owner, name, function)


def compare(case: Callable, device: torch.device) -> dict[str, Any]:
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups

    import tcompile
    from tcompile.compiler import events
    from tcompile.compiler.frontend import sharded_steps

    def run(wrap: Callable) -> list:
        torch.manual_seed(0)
        return case(wrap, Net())

    want = run(lambda f: f)
    tcompile.reset()
    breaks, fallbacks, orders, graphs = [], [], [], []

    def hear(e: events.Event) -> None:
        if e.kind == "break":
            breaks.append(e.facts["brk"].reason)
        if e.kind == "fallback":
            fallbacks.append(e.facts["reason"])
        if e.kind == "graph":
            graphs.append(1)
        if e.kind == "schedule":
            orders.append([_kind(s) for s in e.facts["schedule"].steps if (_kind(s))])

    events.subscribe(hear)
    try:
        with counting(groups, "foreach_all_gather") as gathered, counting(sharded_steps, "_on_parts") as on_parts:
            got = run(tcompile.compile)
    finally:
        events.unsubscribe(hear)
    far = 2e-2 if case in (mixed_precision, output_dtype, accumulated_mixed, everything_of_the_whole) else 1e-5
    worst = max((float((a - b).abs().max()) for a, b in zip(want, got) if a.numel()), default=0.0)
    return {
        "case": case.__name__,
        "same": len(want) == len(got) and worst < far,
        "worst": worst,
        "results": [len(want), len(got)],
        "graphs": len(graphs),
        "by_hooks": len(gathered),
        "steps_on_parts": len(on_parts),
        "breaks": breaks,
        "fallbacks": fallbacks,
        "orders": orders,
    }


def _kind(step: Any) -> str:
    op = getattr(step, "op", None)
    name = "" if op is None else op._schema.name.partition("::")[2]
    short = {
        "all_gather_into_tensor": "gather",
        "reduce_scatter_tensor": "reduce",
        "wait_tensor": "wait",
        "all_reduce": "reduce",
    }
    return short.get(name, "compute" if op is not None or hasattr(step, "kernel") else "")


if __name__ == "__main__":
    start(f"{__package__}.sharded_runs", *sys.argv[1:])
