"""What an optimizer's inputs are called: by the model, where capture reaches it."""

from __future__ import annotations

import torch
import tcompile
from tcompile.compiler.capture.entry.model_names import ParameterNames


def test_parameters_gradients_and_state_have_the_names_of_the_model():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(net.parameters())

    @tcompile.compile
    def step(x):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    with tcompile.record() as builder:
        for _ in range(2):
            step(torch.ones(3, 4))
    names = {n.name for g in builder.report().graphs for n in g.lowered.nodes()}
    assert {"net_0_weight", "net_2_bias"} <= names
    assert any(name.startswith("net_0_weight_exp_avg") for name in names), names
    assert not any("param_groups_0_params" in name for name in names), names


def test_what_holds_the_model_is_named_first_and_what_is_not_known_keeps_its_source():
    class Trainer:
        def __init__(self):
            self.model = torch.nn.Linear(2, 2)

    def fit(self):
        return None

    trainer, other = Trainer(), torch.nn.Parameter(torch.ones(2))
    names = ParameterNames({}, fit, (trainer,))
    weight = trainer.model.weight
    weight.grad = torch.zeros_like(weight)
    source = "self.opt.param_groups[0]['params'][0]"
    assert names.of(f"self.opt.state[{source}]['step']", torch.ones(())) == f"self.opt.state[{source}]['step']"
    assert names.of(source, weight) == "self.model.weight"
    assert names.of(f"{source}.grad", weight.grad) == "self.model.weight.grad"
    assert names.of(f"self.opt.state[{source}]['step']", torch.ones(())) == "self.model.weight.step"
    unknown = "self.opt.param_groups[1]['params'][0]"
    assert names.of(unknown, other) == unknown
    assert names.of("self.x", weight) == "self.x"
