"""Which part of a training step an operation is of, in nodes of a report and in profiles."""

import torch
from tcompile.compiler.report.graph_nodes import modules_of


def test_what_is_done_with_gradients_is_no_forward():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")

    def put(fn, *inputs, module=""):
        n = graph.call_function(fn, inputs)
        n.meta["module"] = module
        return n

    loss = put(torch.sin, put(torch.cos, x, module="net"))
    grad = put(torch.mul, loss, x, module="backward.net")
    norm = put(torch.sum, put(torch.square, grad))
    new = put(torch.sub, x, put(torch.mul, grad, norm), module="optimizer")
    after = put(torch.add, new, 1)
    out = graph.output((loss, grad, new, after))
    found = modules_of(graph)
    assert found[loss] == "" and found[norm] == "gradients" and found[grad] == "backward.net"
    assert found[new] == "optimizer" and found[after] == "" and found[out] == ""
