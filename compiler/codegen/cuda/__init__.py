"""CUDA C++ for what Triton has no form for: matrix products of the Hopper generation's own instructions."""
