"""Symbolic sizes: integer expressions, the environment of their symbols, and the node behind torch.SymInt.

In: hints of sizes, branches taken on them. Out: expressions (`expr`: the algebra, with `terms`, `division`,
`predicates` and `walk` behind it), simplified by ranges (`simplify`), printed (`expr_text`), the guards recorded on the
way (`env`), and floats that vary (`floats`). Nothing here knows tensors or graphs.
"""

from . import expr  # noqa: F401  (it gives expressions their operators)
