"""Kernels printed as self-contained C++ (no headers): SIMD by GCC's vector extensions, work items for the launcher's
threads.

In: an `ir.Kernel`. Out: a `KernelSource` (text, symbols of its phases). `layout` decides the shape of the loops,
`printer` writes the function, `values` its statements. `prims` says what each primitive is in C++. `vecmath` and
`support` are the text that a kernel's file begins with, cut down to what it uses.
"""
