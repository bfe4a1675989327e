"""What runs compiled code.

In: `Generated` (codegen/generated.py). Out: `CompiledGraph` (compiled_graph.py), a callable on the graph's inputs.
`toolchain` runs the C++ compiler, `cache` keeps its results on disk, `cpu_kernels` loads them, `native_program` turns
plans into C, `autotune` searches. `dispatch` and `frame_hook` hold the entries of compiled frames and call them.
"""
