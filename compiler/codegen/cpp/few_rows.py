"""Products with few rows: a small batch, a step of decoding.

Each column of B is used a handful of times only, so that packing it (see product.py) would cost more than the product.
Where both operands lie along k, the sums are taken as they lie: vectors run along k, ROWS x COLUMNS sums stay in
registers, and the lanes of all are added up together at the end.
"""

from __future__ import annotations

__all__ = ["DEEP", "FEW_ROWS", "few_rows_text", "few_rows_tile"]

FEW_ROWS = 8  # with more, packing pays
# steps of k from which packing waits for memory: its rows are far apart, and what comes next has to be asked for
DEEP = 2048

_DOTS = """\
// out[r * NR + c] = a[r] . b[c] of `depth` elements each
template <int ROWS, int COLUMNS> INLINE void dots(const float *const *a, const float *const *b, i64 depth, float *out) {
    vf32 sum[ROWS][COLUMNS];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = vf32{};
    auto step = [&](i64 k, auto lanes) __attribute__((always_inline)) {
        vf32 x[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) x[r] = load<vf32>(a[r] + k, lanes);
        UNROLL for (int c = 0; c < COLUMNS; c++) {
            const vf32 y = load<vf32>(b[c] + k, lanes);
            UNROLL for (int r = 0; r < ROWS; r++) sum[r][c] = fma(x[r], y, sum[r][c]);
        }
    };
    i64 k = 0;
    for (; k + L <= depth; k += L) step(k, All{});
    if (k < depth) step(k, First{depth - k});
    const vf32 total = fold_all((vf32 (&)[L])sum);
    UNROLL for (int r = 0; r < ROWS; r++)
        __builtin_memcpy(out + r * NR, (const float *)&total + r * COLUMNS, COLUMNS * sizeof(float));
}
"""


def _fold_all_text(lanes: int) -> str:
    """L vectors' sums as one vector: in each of log2(L) rounds two vectors become one, whose lanes are pairs of lanes
    added up.
    """
    rounds = []
    s = lanes // 2
    while s:
        # of the first vector where the bit is clear, else of the second
        low = [i if not i & s else lanes + (i ^ s) for i in range(lanes)]
        high = [i + s if not i & s else lanes + i for i in range(lanes)]
        rounds.append(
            f"    UNROLL for (int i = 0; i < {s}; i++) r[i] = SHUFFLE(r[i], r[i + {s}], {', '.join(map(str, low))})"
            f" + SHUFFLE(r[i], r[i + {s}], {', '.join(map(str, high))});"
        )
        s //= 2
    return "\n".join(
        [
            "// Lane i of the result: the sum over the lanes of r[i].",
            "INLINE vf32 fold_all(vf32 (&r)[L]) {",
            *rounds,
            "    return r[0];",
            "}",
            "",
        ]
    )


def few_rows_text(lanes: int) -> str:
    return _fold_all_text(lanes) + _DOTS


def few_rows_tile(row: list[str], row_address: str, column_address: str, rows_at_once: int) -> list[str]:
    """Statements that fill `tile` for the `used` rows of a panel. `row`: what finds the row's axes from `row`. The
    addresses are those of element k = 0 of the row, and of column `j` of the strip (a C++ expression in `j`)."""
    return [
        "const i64 top = panel * MR;",
        f"enum {{ ROWS = {rows_at_once}, COLUMNS = 4 }};",
        "const float *row_at[MR + ROWS], *column_at[COLUMNS];       // past the end: the last one once more",
        "for (int i = 0; i < used + ROWS; i++) {",
        "    const i64 row = top + (i < used ? i : used - 1);",
        *(f"    {t}" for t in row),
        f"    row_at[i] = {row_address};",
        "}",
        "float sums[ROWS * NR];",
        "for (int j0 = 0; j0 < NR && first + j0 < columns; j0 += COLUMNS) {",
        "    for (int c = 0; c < COLUMNS; c++) {",
        "        const i64 j = first + j0 + c < columns ? first + j0 + c : columns - 1;",
        f"        column_at[c] = {column_address};",
        "    }",
        "    for (int i = 0; i < used; i += ROWS) {",
        "        tc::dots<ROWS, COLUMNS>(row_at + i, column_at, depth, sums);",
        "        for (int r = 0; r < ROWS && i + r < used; r++)",
        "            for (int c = 0; c < COLUMNS; c++) tile[(i + r) * NR + j0 + c] = sums[r * NR + c];",
        "    }",
        "}",
    ]
