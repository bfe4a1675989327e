"""Functions over vectors and single numbers that C++ kernels carry with them."""
