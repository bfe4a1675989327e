"""What runs compiled code.

In: `Generated` (codegen/generated.py). Out: `CompiledGraph` (build.py), a callable on the graph's inputs. `toolchain` runs the C++
compiler, `cache` keeps its results on disk, `kernels` loads them, `program` turns plans into C, `autotune` searches; `dispatch`
and `hook` hold the entries of compiled frames and call them.
"""
