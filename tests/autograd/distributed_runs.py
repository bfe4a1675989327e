"""Two processes that train a small model with DistributedDataParallel and FSDP, eager and compiled: what
tests/autograd/test_distributed.py and tests/gpu/test_distributed.py compare.

    python -m tests.autograd.distributed_runs gloo|nccl        prints one line of JSON per case: differences from eager,
                                                               kernels, breaks
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .two_processes import start

STEPS = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, last: bool = True) -> torch.Tensor:
        h = self.b(F.gelu(self.a(x)))
        return self.c(h) if last else h


def batch(k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Of this process: gradients are right only where they were averaged."""
    g = torch.Generator().manual_seed(10 * k + dist.get_rank())
    return torch.randn(4, 8, generator=g).to(device), torch.randn(4, 8, generator=g).to(device)


def train(
    model: Any,
    parameters: Any,
    device: torch.device,
    call: Callable | None = None,
    waits: Callable[[int], bool] = lambda k: False,
) -> list:
    """Losses, gradients and what is left of the parameters. waits(k): step k only adds to gradients, without exchanging
    them.
    """
    parameters = list(parameters)
    mixed = len({hasattr(p, "full_tensor") for p in parameters}) > 1  # torch's foreach operators take no such lists
    optimizer = torch.optim.AdamW(parameters, 1e-2, foreach=False if mixed else None)
    out: list[torch.Tensor] = []
    for k in range(STEPS):
        x, y = batch(k, device)
        with model.no_sync() if waits(k) else contextlib.nullcontext():
            loss = F.mse_loss(call(k, x) if call else model(x), y)
            loss.backward()
        out.append(loss.detach())
        if not waits(k):
            out += [p.grad.clone() for p in parameters if p.grad is not None]
            optimizer.step()
            optimizer.zero_grad()
    return [
        t.full_tensor() if hasattr(t, "full_tensor") else t.clone() for t in (*out, *(p.detach() for p in parameters))
    ]


def ddp_around(wrap: Callable, net: Net, device: torch.device) -> list:
    return train(wrap(DistributedDataParallel(net)), net.parameters(), device)


def ddp_inside(wrap: Callable, net: Net, device: torch.device) -> list:
    return train(DistributedDataParallel(wrap(net)), net.parameters(), device)


def ddp_unused(wrap: Callable, net: Net, device: torch.device) -> list:
    d = wrap(DistributedDataParallel(net, find_unused_parameters=True))
    return train(d, net.parameters(), device, lambda k, x: d(x, last=k % 2 == 0))


def ddp_no_sync(wrap: Callable, net: Net, device: torch.device) -> list:
    return train(wrap(DistributedDataParallel(net)), net.parameters(), device, waits=lambda k: k % 2 == 0)


def ddp_hook(wrap: Callable, net: Net, device: torch.device) -> list:
    """A hook for gradient buckets runs as often as in eager."""
    d = DistributedDataParallel(net, bucket_cap_mb=1)
    calls: list[int] = []

    def half(state, bucket):  # DistributedDataParallel refuses annotations that are text
        calls.append(1)
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / 2)

    d.register_comm_hook(None, half)
    return [*train(wrap(d), net.parameters(), device), torch.tensor(float(len(calls)))]


def ddp_step(wrap: Callable, net: Net, device: torch.device) -> list:
    """The whole step is one function."""
    d, optimizer = DistributedDataParallel(net), torch.optim.AdamW(net.parameters(), 1e-2)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(d(x), y)
        loss.backward()
        optimizer.step()
        return loss

    f = wrap(step)
    return [*(f(*batch(k, device)).detach() for k in range(STEPS)), *(p.detach().clone() for p in net.parameters())]


class Deep(nn.Module):
    """Layers of more bytes than a bucket, with random numbers, a parameter that is used twice and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.norm, self.unused = nn.LayerNorm(16), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, depth: int = 4) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers[:depth]:
            x = x + F.gelu(layer(self.norm(x)))
        return self.last(x)


def staged(wrap: Callable, device: torch.device, waits: Callable = lambda k: False, **options: Any) -> list:
    """Gradients leave in several buckets while backward runs: in which order is part of what comes out."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook

    from tcompile.compiler.autograd.staged_backward import _Run

    torch.manual_seed(0)
    net, log = Deep().to(device), []
    half, depths = options.pop("half", False), options.pop("depths", (4,))
    if not options.get("find_unused_parameters") and not options.get("static_graph"):
        del net.unused
    d = DistributedDataParallel(net, bucket_cap_mb=0.001, **options)

    def hook(state, bucket):  # DistributedDataParallel refuses annotations that are text
        log.append("bucket")
        return (bf16_compress_hook if half else allreduce_hook)(dist.group.WORLD, bucket)

    run_stage = _Run.stage

    def stage(self: Any, k: int) -> list:
        log.append("last" if k == len(self.graph.stages) - 1 else "stage" if k else "first")
        return run_stage(self, k)

    d.register_comm_hook(None, hook)
    f = wrap(d)
    _Run.stage = stage  # type: ignore[method-assign]
    try:
        out = train(f, net.parameters(), device, lambda k, x: f(x, depths[k % len(depths)]), waits)
    finally:
        _Run.stage = run_stage  # type: ignore[method-assign]
    if f is not d:
        passes = [p.split("last")[0] for p in " ".join(log).split("first")[1:]]
        exchanged = [p for k, p in enumerate(passes) if not waits(k)]
        assert len(passes) == STEPS and log.count("last") == STEPS, log
        if not options.get("find_unused_parameters"):
            # (then buckets have the order of parameters, and the first one waits for the last gradient in eager, too.)
            # Buckets are under way before the last piece of backward is launched. Their order is found in the first
            # pass, or two, where the graph is said to be static.
            assert all("bucket" in p for p in exchanged[1 + options.get("static_graph", False) :]), log
    return [*out, torch.tensor(float(log.count("bucket")))]


def ddp_stages(wrap: Callable, net: Net, device: torch.device) -> list:
    return staged(wrap, device)


def ddp_stages_no_sync(wrap: Callable, net: Net, device: torch.device) -> list:
    return staged(wrap, device, waits=lambda k: k % 2 == 0)


def ddp_stages_unused(wrap: Callable, net: Net, device: torch.device) -> list:
    return staged(wrap, device, find_unused_parameters=True, depths=(4, 2))


def ddp_stages_static(wrap: Callable, net: Net, device: torch.device) -> list:
    return staged(wrap, device, static_graph=True)


def ddp_stages_views(wrap: Callable, net: Net, device: torch.device) -> list:
    return staged(wrap, device, gradient_as_bucket_view=True)


def ddp_stages_half(wrap: Callable, net: Net, device: torch.device) -> list:
    """Gradients travel in bfloat16, where the last bit of a float32 decides how some are rounded."""
    return staged(wrap, device, half=True)


ddp_stages_half.within = 2e-3  # type: ignore[attr-defined]


def ddp_stages_asked(wrap: Callable, net: Net, device: torch.device) -> list:
    """Gradients that are asked for in other ways: of some parameters, twice, and gradients of gradients."""
    torch.manual_seed(0)
    net_ = Deep().to(device)
    d = wrap(DistributedDataParallel(net_, bucket_cap_mb=0.001, find_unused_parameters=True))
    out: list[torch.Tensor] = []
    for k in range(3):
        x, y = batch(k, device)
        with torch.no_grad():
            dist.all_reduce(x)
        ps = [net_.first.weight, net_.layers[3].weight, net_.last.bias]
        loss = F.mse_loss(d(x), y)
        for _ in range(2):
            out += torch.autograd.grad(loss, ps[::-1], retain_graph=True)
        out += torch.autograd.grad(loss, ps[:1], retain_graph=True)
        (g,) = torch.autograd.grad(loss, ps[1:2], create_graph=True)
        out += torch.autograd.grad(g.square().sum(), ps[:2])
    return [t.detach().clone() for t in out]


def fsdp(wrap: Callable, net: Net, device: torch.device) -> list:
    from torch.distributed.fsdp import FullyShardedDataParallel

    d = FullyShardedDataParallel(net, device_id=device, use_orig_params=True)
    return train(wrap(d), d.parameters(), device)


def fully_shard(wrap: Callable, net: Net, device: torch.device) -> list:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))  # (by default that of a GPU, where there is one)
    fully_shard(net.a, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return train(wrap(net), net.parameters(), device)


def sharded_product(wrap: Callable, net: Net, device: torch.device) -> list:
    """DTensors as arguments: the graph has the local tensors."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    f = wrap(lambda x, w: torch.relu(x @ w) + 1)
    out = []
    for k in range(STEPS):
        whole = (torch.randn(4 + k, 8, device=device), torch.randn(8, 6, device=device))
        x, w = (
            distribute_tensor(t, mesh, [place]).requires_grad_() for t, place in zip(whole, (Replicate(), Shard(1)))
        )
        y = f(x, w)
        y.sum().full_tensor().backward()
        out += [y.detach(), x.grad, w.grad]
    return [t.full_tensor() for t in out]


def tensor_parallel(wrap: Callable, net: Net, device: torch.device) -> list:
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    parallelize_module(net, mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
    return train(wrap(net), net.parameters(), device)


def moved_after_calls(wrap: Callable, net: Net, device: torch.device) -> list:
    """Tensor parallel, loaded and brought to another dtype between calls."""
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    parallelize_module(net, mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
    model = wrap(net)
    out = train(model, net.parameters(), device)
    net.load_state_dict({key: t.clone() * 2 for key, t in net.state_dict().items()})
    out.append(model(batch(0, device)[0]).detach())
    net.load_state_dict({key: t.clone() * 0.3 for key, t in net.state_dict().items()}, assign=True)
    out.append(model(batch(0, device)[0]).detach())
    net.double()
    return [*out, model(batch(0, device)[0].double()).detach()]


def views_of_parts(wrap: Callable, net: Net, device: torch.device) -> list:
    """A view of a DTensor that is parted along its last dimension has strided parts."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    f = wrap(lambda x: (x.view(-1) * 2, x + 1))
    out = []
    for k in range(STEPS):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(k)).to(device)
        try:
            out += [t.to_local() for t in f(distribute_tensor(x, mesh, [Shard(1)]))]
        except RuntimeError as refused:  # (by torch before 2.14)
            if "Attempted to flatten" not in str(refused):
                raise
            out.append(torch.zeros(1))
    return out


class Rows(nn.Module):
    """A block over (batch, sequence, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def sequence_parallel(wrap: Callable, net: Net, device: torch.device) -> list:
    """Each process has a part of the sequence between the products."""
    from torch.distributed.tensor import Replicate, Shard, init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    model, mesh = Rows().to(device), init_device_mesh(device.type, (dist.get_world_size(),))
    parts = {"input_layouts": Shard(1)}
    plan = {
        "norm": SequenceParallel(),
        "gate": ColwiseParallel(**parts),
        "up": ColwiseParallel(**parts),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, mesh, plan)
    given = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True)
    parallelize_module(model, mesh, given)
    f = wrap(model)
    out = []
    for k in range(STEPS):
        x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(k)).to(device).requires_grad_()
        y = f(x)
        loss = (y.full_tensor() if hasattr(y, "full_tensor") else y).square().mean()
        loss.backward()
        grads = [p.grad.clone() for p in model.parameters()]
        out += [loss.detach(), x.grad, *(g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads)]
        model.zero_grad()
    return out


def placed_by_hand(wrap: Callable, net: Net, device: torch.device) -> list:
    """from_local, redistribute, to_local and full_tensor in the function itself, with gradients."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
        cut = DTensor.from_local(w, mesh, [Shard(-1)], run_check=False)
        product = torch.tanh(whole @ cut)
        rows = product.redistribute(placements=[Shard(0)]).to_local(grad_placements=[Shard(0)])
        total = DTensor.from_local(rows.sum(0), mesh, [Partial()]).full_tensor()
        return rows * 2, total + product.to_local().mean()

    g, out = wrap(f), []
    for k in range(STEPS):
        seed = torch.Generator().manual_seed(10 * k + dist.get_rank())
        x, w = (torch.randn(3, 8, generator=seed).to(device), torch.randn(8, 5, generator=seed).to(device))
        x.requires_grad_(), w.requires_grad_()
        a, b = g(x, w)
        (a.square().mean() + b.sum()).backward()
        out += [a.detach(), b.detach(), x.grad, w.grad]
    return out


class Words(nn.Module):
    """An embedding, a block over its rows, and scores of all words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rows, self.norm, self.scores = nn.Embedding(10, 8), Rows(), nn.LayerNorm(8), nn.Linear(8, 10)

    def forward(self, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.scores(self.norm(self.rows(self.words(i)))).flatten(0, 1), y.flatten())


def parted_words(wrap: Callable, net: Net, device: torch.device) -> list:
    """Rows of the embedding are parted, where torch computes all of its gradient, and the sequence is: gradients of
    norms are yet to be added. AdamW steps over all of them."""
    from torch.distributed.tensor import Replicate, Shard, init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    model, mesh = Words().to(device), init_device_mesh(device.type, (dist.get_world_size(),))
    parts = {"input_layouts": Shard(1)}
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "rows.norm": SequenceParallel(),
        "rows.gate": ColwiseParallel(**parts),
        "rows.up": ColwiseParallel(**parts),
        "rows.down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "scores": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    f, optimizer, out = wrap(model), torch.optim.AdamW(model.parameters(), 0.1), []
    for k in range(STEPS):
        seed = torch.Generator().manual_seed(k)
        i, y = (torch.randint(0, 10, (2, 4), generator=seed).to(device) for _ in range(2))
        loss = f(i, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        out.append(loss.detach())
    return out + [p.detach().full_tensor() for p in model.parameters()]


CASES = (
    ddp_around,
    ddp_inside,
    ddp_unused,
    ddp_no_sync,
    ddp_hook,
    ddp_step,
    ddp_stages,
    ddp_stages_no_sync,
    ddp_stages_unused,
    ddp_stages_static,
    ddp_stages_views,
    ddp_stages_half,
    ddp_stages_asked,
    fsdp,
    fully_shard,
    sharded_product,
    tensor_parallel,
    moved_after_calls,
    views_of_parts,
    sequence_parallel,
    placed_by_hand,
    parted_words,
)


def compare(case: Callable, device: torch.device) -> dict[str, Any]:
    """One case in this process, eager and compiled."""
    import tcompile
    from tcompile.compiler import events

    def run(wrap: Callable) -> list:
        torch.manual_seed(0)
        return case(wrap, Net().to(device), device)

    want = run(lambda f: f)
    tcompile.reset()
    kernels, breaks, captures, fallbacks = [], [], [], []

    def hear(e: events.Event) -> None:
        if e.kind == "kernel":
            kernels.append(e.facts["name"])
        if e.kind == "capture_begin":
            captures.append(e.facts["frame"])
        if e.kind == "break":
            breaks.append(e.facts["brk"].reason)
        if e.kind == "fallback":
            fallbacks.append(e.facts["reason"])

    events.subscribe(hear)
    try:
        got = run(tcompile.compile)
    finally:
        events.unsubscribe(hear)
    # (a shard may be empty)
    worst = max((float((a - b).abs().max()) for a, b in zip(want, got) if a.numel()), default=0.0)
    return {
        "case": case.__name__,
        "same": len(want) == len(got) and worst < getattr(case, "within", 1e-4),
        "worst": worst,
        "kernels": kernels,
        "breaks": breaks,
        "captures": captures,
        "fallbacks": fallbacks,
    }


if __name__ == "__main__":
    start(f"{__package__}.distributed_runs", *sys.argv[1:])
