# lab: 10
# name: triton
# minutes: 85

# %% text: story

# %% given: imports
import torch

import tcompile
from tcompile.labs.triton_gpu import on_gpu
from tcompile.labs.triton_plugs import places, tl, triton, watch

torch.manual_seed(0)


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


# %% show: copy_picture
x = torch.randn(40)
with watch() as seen:
    copy_kernel[(3,)](x, torch.empty(40), 40, BLOCK=16)
places(seen, "x_ptr")


# %% exercise: programs
def programs(n, block):
    """How many programs it takes, if each does `block` of `n` elements."""
    # BEGIN SOLUTION
    return (n + block - 1) // block
    # END SOLUTION


# %% exercise: blend_kernel
@triton.jit
def blend_kernel(x_ptr, y_ptr, out_ptr, n, by, BLOCK: tl.constexpr):
    """out = relu(x * by + y), element by element."""
    # BEGIN SOLUTION
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    y = tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, tl.maximum(x * by + y, 0.0), mask=inside)
    # END SOLUTION


# %% exercise: softmax_kernel
@triton.jit
def softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, columns, BLOCK: tl.constexpr):
    """Program r makes row r of softmax(x, -1). BLOCK is a power of 2, and at least `columns`."""
    # BEGIN SOLUTION
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * out_stride + at, e / tl.sum(e, 0), mask=at < columns)
    # END SOLUTION


# %% exercise: softmax
def softmax(x):
    """softmax(x, -1) of a matrix by softmax_kernel; its rows may lie anywhere, its columns lie side by side."""
    # BEGIN SOLUTION
    out = torch.empty((x.shape[0], x.shape[1]), dtype=x.dtype)
    block = triton.next_power_of_2(x.shape[1])
    softmax_kernel[(x.shape[0],)](x, out, x.stride(0), out.stride(0), x.shape[1], BLOCK=block)
    return out
    # END SOLUTION


# %% show: a_node
report = tcompile.explain(lambda x: softmax(x * 2) + 1)(torch.randn(4, 10))
print(report.summary.line)
print(report.graphs[0].captured.tables["ops"])


# %% exercise: matmul_kernel
@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Program (i, j) makes the tile of c = a @ b with rows from i * BM and columns from j * BN. All are contiguous."""
    # BEGIN SOLUTION
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    steps = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + steps
        a = tl.load(a_ptr + rows[:, None] * K + k[None, :], mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(
            b_ptr + k[:, None] * N + columns[None, :], mask=(k[:, None] < K) & (columns[None, :] < N), other=0.0
        )
        total += tl.dot(a, b)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total, mask=inside)
    # END SOLUTION


# %% text: challenge-story


# %% exercise: tiles challenge
def tiles(M, N, K, most):
    """(BM, BN, BK): powers of 2 from 16 up, for fewest loads. BM * BN, BM * BK and BK * BN are `most` elements at most."""
    # BEGIN SOLUTION
    sizes = [16, 32, 64, 128, 256]
    fit = [(bm, bn, bk) for bm in sizes for bn in sizes for bk in sizes if max(bm * bn, bm * bk, bk * bn) <= most]
    return min(fit, key=lambda t: (-(-N // t[1]) * M * K + -(-M // t[0]) * N * K, t))
    # END SOLUTION


# %% given: product
def product(a, b, tile):
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N)
    grid = triton.cdiv(M, tile[0]), triton.cdiv(N, tile[1])
    matmul_kernel[grid](a, b, c, M, N, K, BM=tile[0], BN=tile[1], BK=tile[2])
    return c


# %% show: tiles_picture
def loads(tile):
    with watch() as seen:
        product(torch.ones(64, 64), torch.ones(64, 64), tile)
    return {"elements loaded": seen.loaded}


course.bars({"16 x 16": loads((16, 16, 16)), "yours": loads(tiles(64, 64, 64, 1024))}, "elements")

# %% text: gpu


# %% given: gpu
def differences(device):
    """Each kernel against torch: the largest difference."""
    x, y, wide = torch.randn(1000, device=device), torch.randn(1000, device=device), torch.randn(30, 200, device=device)
    a, b = torch.randn(100, 64, device=device), torch.randn(64, 90, device=device)
    blended, rows, product = torch.empty_like(x), torch.empty_like(wide), torch.empty(100, 90, device=device)
    blend_kernel[(triton.cdiv(1000, 128),)](x, y, blended, 1000, 2.0, BLOCK=128)
    softmax_kernel[(30,)](wide, rows, 200, 200, 200, BLOCK=256)
    matmul_kernel[triton.cdiv(100, 32), triton.cdiv(90, 32)](a, b, product, 100, 90, 64, BM=32, BN=32, BK=16)
    pairs = {
        "blend_kernel": (blended, torch.relu(x * 2 + y)),
        "softmax_kernel": (rows, torch.softmax(wide, -1)),
        "matmul_kernel": (product, a @ b),
    }
    return {name: (got - want).abs().max().item() for name, (got, want) in pairs.items()}


# %% show: gpu
on_gpu(differences, blend_kernel, softmax_kernel, matmul_kernel)


# %% tests
import torch

import tcompile
from tcompile.labs.testing import at_most, holds, same, tensors_close
from tcompile.labs.triton_plugs import triton, watch


def blended(lab, n, by, block):
    x, y, out = torch.randn(n), torch.randn(n), torch.full((n,), 99.0)
    with watch() as seen:
        lab.blend_kernel[(triton.cdiv(n, block),)](x, y, out, n, by, BLOCK=block)
    tensors_close(out, torch.relu(x * by + y), what=f"out of blend_kernel, n = {n}, BLOCK = {block}", look="blend")
    same(seen.loaded, 2 * n, what=f"elements loaded by blend_kernel for n = {n}", look="once")
    same(seen.stored, n, what=f"elements stored by blend_kernel for n = {n}", look="once")


def rows(lab, x):
    out = torch.full(tuple(x.shape), 99.0)
    with watch() as seen:
        lab.softmax_kernel[(x.shape[0],)](
            x, out, x.stride(0), out.stride(0), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1])
        )
    tensors_close(out, torch.softmax(x, -1), what=f"softmax_kernel of {tuple(x.shape)}", look="softmax")
    same(seen.loaded, x.numel(), what="elements loaded by softmax_kernel", look="once")


def matrix(lab, m, n, k, tile):
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.full((m, n), 99.0)
    grid = triton.cdiv(m, tile[0]), triton.cdiv(n, tile[1])
    with watch():
        lab.matmul_kernel[grid](a, b, c, m, n, k, BM=tile[0], BN=tile[1], BK=tile[2])
    tensors_close(c, a @ b, what=f"matmul_kernel of ({m}, {k}) @ ({k}, {n}), tile {tile}", look="matmul", atol=1e-4)


def tiled(lab, m, n, k, most):
    """The student's tile, checked, and the elements that a kernel loads with it, by its definition."""
    tile = lab.tiles(m, n, k, most)
    holds(isinstance(tile, tuple) and len(tile) == 3, what=f"tiles({m}, {n}, {k}, {most}) is three sizes", look="tiles")
    for size in tile:
        holds(size >= 16 and size & (size - 1) == 0, what=f"{size} is a power of 2 from 16 up", look="tiles")
    bm, bn, bk = tile
    at_most(max(bm * bn, bm * bk, bk * bn), most, what=f"elements of a block of the tile {tile}", look="tiles")
    return tile, triton.cdiv(n, bn) * m * k + triton.cdiv(m, bm) * n * k


def fewest(lab, m, n, k, most):
    sizes = [16 << i for i in range(8)]
    best = min(
        triton.cdiv(n, bn) * m * k + triton.cdiv(m, bm) * n * k
        for bm in sizes
        for bn in sizes
        if max(bm * bn, 16 * bm, 16 * bn) <= most
    )
    at_most(tiled(lab, m, n, k, most)[1], best, what=f"loads with tiles({m}, {n}, {k}, {most})", look="loads")


# %% test: programs points=1
def test_programs_of_even_and_odd_sizes(lab):
    same(lab.programs(64, 16), 4, what="programs(64, 16)", look="programs")
    same(lab.programs(65, 16), 5, what="programs(65, 16)", look="programs")


# %% hidden: programs points=1
def test_programs_at_the_ends(lab):
    for n, block, want in ((0, 16, 0), (1, 16, 1), (15, 16, 1), (1000, 128, 8)):
        same(lab.programs(n, block), want, what=f"programs({n}, {block})", look="programs")


# %% test: blend_kernel points=3
def test_blend_of_whole_blocks(lab):
    blended(lab, 64, 2.0, 16)


def test_blend_at_an_edge(lab):
    blended(lab, 50, -1.5, 16)


# %% hidden: blend_kernel points=3
def test_blend_of_other_sizes(lab):
    for n, block in ((1, 16), (100, 64), (33, 32)):
        blended(lab, n, 0.5, block)


# %% test: softmax_kernel points=3
def test_softmax_of_a_power_of_two(lab):
    rows(lab, torch.randn(4, 16))


def test_softmax_of_padded_rows(lab):
    rows(lab, torch.randn(3, 11) - 5)


# %% hidden: softmax_kernel points=3
def test_softmax_of_large_numbers(lab):
    rows(lab, torch.randn(3, 20) * 50 + 500)
    rows(lab, torch.randn(5, 9) - 300)


def test_softmax_of_part_of_a_matrix(lab):
    rows(lab, torch.randn(4, 32)[:, :13])


# %% test: softmax points=3
def test_softmax_launched(lab):
    x = torch.randn(5, 12)
    with watch():
        tensors_close(lab.softmax(x), torch.softmax(x, -1), what="softmax(x)", look="launch")


def test_a_launch_is_a_node_of_the_graph(lab):
    def program(x):
        return lab.softmax(x * 2) + 1

    x = torch.randn(4, 10)
    with watch():
        report = tcompile.explain(program)(x)
        tensors_close(report.result, torch.softmax(x * 2, -1) + 1, what="softmax(x * 2) + 1, compiled", look="launch")
    same(len(report.graph_breaks), 0, what="graph breaks around your launch", look="node")
    same(len(report.graphs), 1, what="graphs around your launch", look="node")
    calls = [op for op in report.graphs[0].captured.tables["ops"] if "softmax_kernel" in op]
    same(len(calls), 1, what="launches of softmax_kernel in the graph", look="node")


# %% hidden: softmax points=3
def test_softmax_of_many_shapes(lab):
    for shape in ((1, 1), (7, 33), (2, 100)):
        x = torch.randn(shape) - 4
        with watch():
            tensors_close(lab.softmax(x), torch.softmax(x, -1), what=f"softmax of {shape}", look="launch")


def test_softmax_of_rows_apart(lab):
    x = torch.randn(12, 32)[::2, 3:20]
    with watch():
        tensors_close(lab.softmax(x), torch.softmax(x, -1), what="softmax(x[::2, 3:20])", look="launch")


# %% test: matmul_kernel points=4
def test_one_tile(lab):
    matrix(lab, 16, 16, 16, (16, 16, 16))


def test_tiles_and_steps(lab):
    matrix(lab, 32, 64, 48, (16, 32, 16))


# %% hidden: matmul_kernel points=4
def test_edges_of_tiles(lab):
    matrix(lab, 20, 33, 16, (16, 16, 16))


def test_edges_of_steps(lab):
    matrix(lab, 17, 18, 19, (16, 16, 16))
    matrix(lab, 5, 40, 70, (16, 32, 64))


# %% test: tiles points=3
def test_tiles_fit(lab):
    tiled(lab, 64, 64, 64, 1024)


def test_tiles_of_a_square(lab):
    fewest(lab, 64, 64, 64, 1024)


# %% hidden: tiles points=3
def test_tiles_of_long_matrices(lab):
    fewest(lab, 16, 512, 64, 2048)
    fewest(lab, 512, 32, 64, 4096)


def test_tiles_when_little_fits(lab):
    fewest(lab, 128, 128, 32, 256)
    fewest(lab, 128, 128, 32, 512)


# %% score
def score(lab):
    cases = ((64, 64, 64, 1024), (16, 512, 64, 2048), (512, 32, 64, 4096))
    return {"elements loaded": sum(tiled(lab, *case)[1] for case in cases)}
