"""The smallest model of each of timm's modules, forward and a training step, compiled against eager.

    python -m tests.oracles.timm_models [--device cuda] [MODULE ...]

One line of JSON for each: graphs, breaks that matter, fallbacks, and how far results and gradients are from eager's.
"noise" is how far eager's own gradients move where the image changes by 1e-7 of itself: batch norms over two images
multiply rounding. timm and a torchvision for the installed torch have to be installed.
"""

from __future__ import annotations

from typing import Any

import torch

import tcompile

from .transformers_models import distance, tell, whole

__all__ = ["check", "modules", "smallest"]

CLASSES = 10
SIDE = 128  # of an image, for models that take any size


def modules() -> list[str]:
    import timm

    return timm.list_modules()


def smallest(module: str) -> str:
    """The name of the model with the fewest parameters. Raises ValueError where there is none."""
    import timm

    sizes = {}
    for name in timm.list_models(module=module):
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False, num_classes=CLASSES)
        sizes[name] = sum(p.numel() for p in model.parameters())
    if not sizes:
        raise ValueError("it has no models")
    return min(sizes, key=sizes.__getitem__)


def _image(model: Any) -> torch.Tensor:
    """A small one where the model takes it, else one of the model's own size."""
    channels, *size = model.default_cfg["input_size"]
    small = torch.randn(2, channels, SIDE, SIDE)
    try:
        with torch.no_grad():
            model.eval()(small)
    except Exception:
        return torch.randn(2, channels, *size)
    return small


def _step(call: Any, model: torch.nn.Module, state: dict, image: torch.Tensor) -> tuple[list, list]:
    """Results, and gradients of the sum of their squares in training mode, from a state that statistics move."""
    model.load_state_dict(state)
    torch.manual_seed(1)
    results = call(image)
    results = [t for t in (results if isinstance(results, (tuple, list)) else [results]) if isinstance(t, torch.Tensor)]
    sum(t.float().square().mean() for t in results).backward()  # type: ignore[union-attr]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return [t.detach() for t in results], gradients


def check(module: str, device: str = "cpu") -> dict[str, Any]:
    import timm

    try:
        name = smallest(module)
        torch.manual_seed(0)
        model = timm.create_model(name, pretrained=False, num_classes=CLASSES)
        image = _image(model).to(device)
        model.to(device)
        state = {k: v.clone() for k, v in model.state_dict().items()}
        eager = {mode: _step(model.train(mode), model, state, image) for mode in (False, True)}
    except Exception as e:
        return {"module": module, "skipped": f"{type(e).__name__}: {str(e)[:120]}"}
    row: dict[str, Any] = {"module": module, "model": name, "graphs": 0, "breaks": [], "fallbacks": []}
    for mode, (want, gradients) in eager.items():
        model.train(mode)
        with tcompile.record() as record:
            got, ours = _step(tcompile.compile(model), model, state, image)
        report = record.report()
        row["graphs"] += len(report.graphs)
        row["breaks"] += [
            f"{b.file.rpartition('/')[2]}:{b.line} {b.reason}" for b in report.graph_breaks if not b.harmless
        ]
        row["fallbacks"] += [f"{f.what}: {f.reason}" for f in report.fallbacks]
        row["training" if mode else "inference"] = [distance(got, want), distance(whole(ours), whole(gradients))]
    row["noise"] = distance(whole(_step(model, model, state, image * (1 + 1e-7))[1]), whole(eager[True][1]))
    tcompile.reset()
    return row


if __name__ == "__main__":
    tell(check, modules)
