"""The rules, by family: each says what one aten operator computes, as values over index symbols. Importing registers them."""
from . import bits, convolutions, creation, grids, grouped, indexing, joins, keep_bits, norms, pointwise, pooling, products, random, reductions, resample, scans, scatters, searching, special, views, windows

__all__ = ["bits", "convolutions", "creation", "grids", "grouped", "indexing", "joins", "keep_bits", "norms", "pointwise", "pooling", "products", "random", "reductions", "resample", "scans", "scatters", "searching", "special", "views", "windows"]
