"""Triton code for GPUs: a Kernel of the loop IR goes in, readable Triton source and how to launch it come out.

dtypes.py how dtypes are held; indices.py index expressions as text; prims.py the primitives; layout.py which loops
become tiles of which size; values.py statements for values; printer.py the kernel's file. Nothing here imports triton:
text is all that is made, and compiler/runtime/gpu compiles it.
"""
