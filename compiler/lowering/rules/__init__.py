"""The rules, by family: each says what one aten operator computes, as values over index symbols. Importing registers
them; where several rules serve one operator, the order here is the order in which they are registered.
"""

from . import packed_masks
from .products import convolutions
from . import creation, grids
from .products import grouped_products
from . import indexing, joins, dropout_bits, pointwise, pooling
from .products import products
from . import random, reductions, resample, scans, scatters, searching, special_functions, views, windows, written
from . import exchanges
