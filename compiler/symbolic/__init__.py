"""Symbolic sizes: integer expressions, the environment of their symbols, and the node behind torch.SymInt.

In: hints of sizes, branches taken on them. Out: expressions (`expr`), simplified by ranges (`simplify`), printed
(`text`), and the guards recorded on the way (`env`). Nothing here knows tensors or graphs.
"""
