"""Products with few rows: a small batch, a step of decoding.

Each column of B is used a handful of times only, so that packing it (see product.py) would cost more than the product. Where both operands
lie along k, the sums are taken as they lie: vectors run along k, ROWS x COLUMNS sums stay in registers, and the lanes are added up at the end.
"""
from __future__ import annotations

__all__ = ["FEW_ROWS", "few_rows_text", "few_rows_tile"]

FEW_ROWS = 4                  # with five, packing pays

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
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int c = 0; c < COLUMNS; c++)
        out[r * NR + c] = fold(sum[r][c], [](float p, float q) { return p + q; });
}
"""


def few_rows_text() -> str:
    return _DOTS


def few_rows_tile(row: list[str], row_address: str, column_address: str, rows_at_once: int) -> list[str]:
    """Statements that fill `tile` for the `used` rows of a panel. `row`: what finds the row's axes from `row`; the addresses
    are those of element k = 0 of the row, and of column `j` of the strip (a C++ expression in `j`)."""
    return ["const i64 top = panel * MR;",
            f"enum {{ ROWS = {rows_at_once}, COLUMNS = 4 }};",
            "const float *row_at[MR + ROWS], *column_at[COLUMNS];       // past the end: the last one once more",
            "for (int i = 0; i < used + ROWS; i++) {", "    const i64 row = top + (i < used ? i : used - 1);", *(f"    {t}" for t in row),
            f"    row_at[i] = {row_address};", "}",
            "float sums[ROWS * NR];",
            "for (int i = 0; i < used; i += ROWS)", "    for (int j0 = 0; j0 < NR && first + j0 < columns; j0 += COLUMNS) {",
            "        for (int c = 0; c < COLUMNS; c++) {",
            "            const i64 j = first + j0 + c < columns ? first + j0 + c : columns - 1;",
            f"            column_at[c] = {column_address};", "        }",
            "        tc::dots<ROWS, COLUMNS>(row_at + i, column_at, depth, sums);",
            "        for (int r = 0; r < ROWS && i + r < used; r++)",
            "            for (int c = 0; c < COLUMNS; c++) tile[(i + r) * NR + j0 + c] = sums[r * NR + c];", "    }"]
