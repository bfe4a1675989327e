"""In: an AtenGraph, a functional graph of operators on tensors. Out: a LoweredGraph, loop nests over named buffers with
symbolic sizes, and calls of torch's kernels where a library does better or no rule exists.

ir.py declares the loop IR on one screen, primitives.py its element-wise primitives, templates.py what a kernel computes
as a whole. lower.py walks the graph; rules/ says what each operator computes; ref.py makes views index arithmetic;
promote.py holds eager's type promotion; rewrite.py substitutes; print_loops.py shows; verify_loops.py checks.
"""

from . import print_loops  # noqa: F401  (gives kernels and graphs their text)
