"""Ahead-of-time autograd: one trace of forward and backward, its partition, and the bridge to torch's autograd engine.

in: CapturedGraph whose inputs require grad. out: callable(*inputs) -> tuple that torch.autograd differentiates by the
compiled backward graph.
    joint.py      run the graph and torch.autograd.grad on TraceTensors with the recorder on: one functional graph of
                  both
    partition.py  what forward keeps for backward (minimum cut over bytes), and the two graphs
    mincut.py     the cut itself
    bridge.py     a torch.autograd.Function per graph; what can't be traced runs with eager kernels, counted
"""
