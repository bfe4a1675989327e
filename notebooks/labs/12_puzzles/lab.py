# lab: 12
# name: puzzles
# minutes: 60

# %% text: story

# %% given: cases
import torch

from tcompile.labs.puzzles import Case, arange


def table(*shape):
    """The numbers from 0 up, so that a value says where it stood."""
    count = 1
    for n in shape:
        count *= n
    return torch.arange(float(count)).reshape(shape)


def rows_case(n, m):
    x = table(n, m)
    return Case(n, {"x": x}, {"out": x * 2})


def blocks_case(n, block):
    x = table(n)
    return Case(-(-n // block), {"x": x}, {"out": x + 1}, {"block": block})


def view_case(n, m):
    """A matrix (n, m) in memory, and its transpose as a view: shape (m, n), strides (1, m)."""
    memory = table(n * m)
    view = memory.reshape(n, m).T
    return Case(m, {"memory": memory}, {"out": view}, {"strides": view.stride()})


def sums_case(n, m):
    x = table(n, m) % 7
    return Case(n, {"x": x}, {"out": x.sum(1)})


def tiles_case(n, m, tile):
    x = table(n, m)
    return Case((-(-n // tile), -(-m // tile)), {"x": x}, {"out": x.T}, {"tile": tile})


def softmax_case(n, m):
    x = (table(n, m) * 5) % 4
    return Case(n, {"x": x}, {"out": torch.softmax(x, -1)})


def window_case(n, block):
    x = table(n)
    inner = torch.nn.functional.pad(x, (1, 1))
    want = inner[:-2] + inner[1:-1] + inner[2:]
    return Case(-(-n // block), {"x": x}, {"out": want}, {"block": block}, reads={"x": 1 if block >= n else 2})


def product_case(m, n, k, tile):
    a, b = table(m, k) % 5, table(k, n) % 3
    programs = (-(-m // tile), -(-n // tile))
    return Case(programs, {"a": a, "b": b}, {"c": a @ b}, {"tile": tile}, reads={"a": programs[1], "b": programs[0]})


# %% exercise: double_rows
def double_rows(p, x, out):
    """Program p doubles row p of x."""
    # BEGIN SOLUTION
    for j in range(x.shape[1]):
        out[p, j] = x[p, j] * 2
    # STUDENT
    # out[p, 0] = x[p, 0] * 2
    # END SOLUTION


# %% show: double_rows_puzzle
course.puzzle(double_rows, rows_case, n=4, m=6)


# %% exercise: add_blocks
def add_blocks(p, x, out, block):
    """Program p adds 1 to its block of x; the last block may be shorter."""
    # BEGIN SOLUTION
    for i in range(p * block, min((p + 1) * block, x.shape[0])):
        out[i] = x[i] + 1
    # STUDENT
    # for i in range(p, p + block):
    #     out[i] = x[i] + 1
    # END SOLUTION


# %% show: add_blocks_puzzle
course.puzzle(add_blocks, blocks_case, n=9, block=4)


# %% exercise: read_view
def read_view(p, memory, out, strides):
    """Program p copies row p of a view: its element (p, j) lies in memory where the strides say."""
    # BEGIN SOLUTION
    for j in range(out.shape[1]):
        out[p, j] = memory[p * strides[0] + j * strides[1]]
    # STUDENT
    # for j in range(out.shape[1]):
    #     out[p, j] = memory[p * out.shape[1] + j]
    # END SOLUTION


# %% show: read_view_puzzle
course.puzzle(read_view, view_case, n=3, m=4)


# %% exercise: sum_rows
def sum_rows(p, x, out):
    """Program p adds up row p of x. Each element is read once, and out[p] is written once."""
    # BEGIN SOLUTION
    total = 0.0
    for j in range(x.shape[1]):
        total += x[p, j]
    out[p] = total
    # STUDENT
    # out[p] = 0
    # for j in range(x.shape[1]):
    #     out[p] = out[p] + x[p, j]
    # END SOLUTION


# %% show: sum_rows_puzzle
course.puzzle(sum_rows, sums_case, n=4, m=5)


# %% exercise: transpose_tiles
def transpose_tiles(p, q, x, out, tile):
    """Program (p, q) writes tile (p, q) of x into out, transposed: a block load and a block store with masks."""
    rows, columns = p * tile + arange(tile), q * tile + arange(tile)
    # BEGIN SOLUTION
    inside = (rows[:, None] < x.shape[0]) & (columns[None, :] < x.shape[1])
    block = x.load(rows[:, None], columns[None, :], mask=inside)
    out.store(columns[None, :], rows[:, None], value=block, mask=inside)
    # STUDENT
    # block = x.load(rows[:, None], columns[None, :])
    # out.store(rows[:, None], columns[None, :], value=block)
    # END SOLUTION


# %% show: transpose_tiles_puzzle
course.puzzle(transpose_tiles, tiles_case, n=3, m=5, tile=2)


# %% exercise: softmax_row
def softmax_row(p, x, out):
    """Program p writes softmax of row p. Each element of x is read once: keep the row."""
    # BEGIN SOLUTION
    row = x.load(p, arange(x.shape[1]))
    e = torch.exp(row - row.max())
    out.store(p, arange(x.shape[1]), value=e / e.sum())
    # END SOLUTION


# %% show: softmax_row_puzzle
course.puzzle(softmax_row, softmax_case, n=3, m=5)


# %% exercise: windows
def windows(p, x, out, block):
    """out[i] = x[i - 1] + x[i] + x[i + 1], with 0 beyond the ends. A program reads each of its elements once."""
    # BEGIN SOLUTION
    start = p * block
    at = start - 1 + arange(block + 2)
    row = x.load(at, mask=(at >= 0) & (at < x.shape[0]))
    middle = start + arange(block)
    out.store(middle, value=row[:-2] + row[1:-1] + row[2:], mask=middle < x.shape[0])
    # STUDENT
    # for i in range(p * block, (p + 1) * block):
    #     out[i] = x[i - 1] + x[i] + x[i + 1]
    # END SOLUTION


# %% show: windows_puzzle
course.puzzle(windows, window_case, n=8, block=4)


# %% exercise: product_tile
def product_tile(p, q, a, b, c, tile):
    """Program (p, q) makes tile (p, q) of c = a @ b, and reads each element of its rows and columns once."""
    rows, columns, steps = p * tile + arange(tile), q * tile + arange(tile), arange(a.shape[1])
    # BEGIN SOLUTION
    left = a.load(rows[:, None], steps[None, :], mask=rows[:, None] < a.shape[0])
    right = b.load(steps[:, None], columns[None, :], mask=columns[None, :] < b.shape[1])
    inside = (rows[:, None] < c.shape[0]) & (columns[None, :] < c.shape[1])
    c.store(rows[:, None], columns[None, :], value=left @ right, mask=inside)
    # STUDENT
    # for i in rows:
    #     for j in columns:
    #         c[i, j] = sum(a[i, k] * b[k, j] for k in steps)
    # END SOLUTION


# %% show: product_tile_puzzle
course.puzzle(product_tile, product_case, m=4, n=4, k=3, tile=2)


# %% tests
import torch

from tcompile.labs.testing import plays


def solves(lab, name, case, look, *every):
    """The program solves the puzzle at these sizes."""
    for sizes in every:
        plays(getattr(lab, name), getattr(lab, case)(*sizes), what=f"{name}, sizes {sizes}", look=look)


# %% test: double_rows points=1
def test_rows(lab):
    solves(lab, "double_rows", "rows_case", "rows", (4, 6))


# %% hidden: double_rows points=1
def test_rows_of_other_sizes(lab):
    solves(lab, "double_rows", "rows_case", "rows", (1, 1), (3, 2), (2, 9))


# %% test: add_blocks points=1
def test_blocks_that_fit(lab):
    solves(lab, "add_blocks", "blocks_case", "blocks", (8, 4))


def test_a_block_that_is_short(lab):
    solves(lab, "add_blocks", "blocks_case", "blocks", (9, 4))


# %% hidden: add_blocks points=1
def test_blocks_of_other_sizes(lab):
    solves(lab, "add_blocks", "blocks_case", "blocks", (1, 4), (7, 1), (10, 16))


# %% test: read_view points=2
def test_a_view(lab):
    solves(lab, "read_view", "view_case", "view", (3, 4))


# %% hidden: read_view points=2
def test_other_views(lab):
    solves(lab, "read_view", "view_case", "view", (1, 5), (5, 1), (4, 4))


# %% test: sum_rows points=2
def test_sums(lab):
    solves(lab, "sum_rows", "sums_case", "sums", (4, 5))


# %% hidden: sum_rows points=2
def test_sums_of_other_sizes(lab):
    solves(lab, "sum_rows", "sums_case", "sums", (1, 1), (5, 2), (2, 9))


# %% test: transpose_tiles points=2
def test_tiles_that_fit(lab):
    solves(lab, "transpose_tiles", "tiles_case", "tiles", (4, 4, 2))


def test_tiles_at_edges(lab):
    solves(lab, "transpose_tiles", "tiles_case", "tiles", (3, 5, 2))


# %% hidden: transpose_tiles points=2
def test_other_tiles(lab):
    solves(lab, "transpose_tiles", "tiles_case", "tiles", (1, 7, 4), (5, 5, 3), (2, 2, 4))


# %% test: softmax_row points=3
def test_softmax(lab):
    solves(lab, "softmax_row", "softmax_case", "softmax", (3, 5))


# %% hidden: softmax_row points=3
def test_softmax_of_other_sizes(lab):
    solves(lab, "softmax_row", "softmax_case", "softmax", (1, 1), (4, 8))


def test_softmax_of_large_numbers(lab):
    x = torch.tensor([[500.0, 501.0, 499.0], [-800.0, -800.0, -790.0]])
    plays(lab.softmax_row, lab.Case(2, {"x": x}, {"out": torch.softmax(x, -1)}), what="softmax_row", look="softmax")


# %% test: windows points=2
def test_windows(lab):
    solves(lab, "windows", "window_case", "windows", (8, 4))


# %% hidden: windows points=2
def test_windows_of_other_sizes(lab):
    solves(lab, "windows", "window_case", "windows", (9, 4), (3, 8), (12, 3))


# %% test: product_tile points=3
def test_product(lab):
    solves(lab, "product_tile", "product_case", "product", (4, 4, 3, 2))


# %% hidden: product_tile points=3
def test_product_at_edges(lab):
    solves(lab, "product_tile", "product_case", "product", (3, 5, 2, 2), (1, 1, 4, 2), (5, 3, 1, 4))
