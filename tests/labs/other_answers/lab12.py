"""Lab 12, answered by another than its author: hidden tests must ask for no more than the lab says."""

# ruff: noqa: F821


# %% double_rows
def double_rows(p, x, out):
    at = arange(x.shape[1])
    out.store(p, at, value=x.load(p, at) * 2)


# %% add_blocks
def add_blocks(p, x, out, block):
    at = p * block + arange(block)
    ok = at < x.shape[0]
    out.store(at, value=x.load(at, mask=ok) + 1, mask=ok)


# %% read_view
def read_view(p, memory, out, strides):
    at = arange(out.shape[1])
    out.store(p, at, value=memory.load(p * strides[0] + at * strides[1]))


# %% sum_rows
def sum_rows(p, x, out):
    out[p] = sum(x[p, j] for j in range(x.shape[1]))


# %% transpose_tiles
def transpose_tiles(p, q, x, out, tile):
    for i in range(p * tile, min(p * tile + tile, x.shape[0])):
        for j in range(q * tile, min(q * tile + tile, x.shape[1])):
            out[j, i] = x[i, j]


# %% softmax_row
def softmax_row(p, x, out):
    import math

    row = [x[p, j] for j in range(x.shape[1])]
    top = max(row)
    es = [math.exp(v - top) for v in row]
    for j, e in enumerate(es):
        out[p, j] = e / sum(es)


# %% windows
def windows(p, x, out, block):
    n = x.shape[0]
    have = {i: x[i] for i in range(max(0, p * block - 1), min(n, (p + 1) * block + 1))}
    for i in range(p * block, min(n, (p + 1) * block)):
        out[i] = sum(have.get(k, 0.0) for k in (i - 1, i, i + 1))


# %% product_tile
def product_tile(p, q, a, b, c, tile):
    rows = range(p * tile, min(c.shape[0], (p + 1) * tile))
    cols = range(q * tile, min(c.shape[1], (q + 1) * tile))
    A = {(i, k): a[i, k] for i in rows for k in range(a.shape[1])}
    B = {(k, j): b[k, j] for j in cols for k in range(a.shape[1])}
    for i in rows:
        for j in cols:
            c[i, j] = sum(A[i, k] * B[k, j] for k in range(a.shape[1]))
