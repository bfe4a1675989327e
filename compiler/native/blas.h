/* Products of matrices by the BLAS inside of torch's library: what torch's own addmm does for float32 and float64, less
   its tensors, checks and copies, which take 2 us of a small product's 2.3. For C, and for packages in C++. */
#ifndef TCOMPILE_BLAS_H
#define TCOMPILE_BLAS_H

#include <limits.h>
#include <stdint.h>
#include <string.h>

typedef void (*BlasGemm)(const char *, const char *, const int64_t *, const int64_t *, const int64_t *, const void *,
                         const void *, const int64_t *, const void *, const int64_t *, const void *, void *,
                         const int64_t *);

/* What torch's library exports; NULL where it does not. */
typedef struct {
    BlasGemm gemm[2];                      /* float32, float64 */
    int (*precision)(const void *, int, int); /* at::Context::float32Precision(backend, operator) */
    const void *context;
} BlasApi;

/* A matrix by its sizes and strides in elements: rows, columns, row, column. */
typedef struct { void *data; const int64_t *dims; } BlasMatrix;

enum { BLAS_MKLDNN = 2, BLAS_MATMUL = 3, BLAS_IEEE = 1, BLAS_MOST_COPIED = 32768 };

static inline int blas_dtype(int scalar_type) { return scalar_type == 6 ? 0 : scalar_type == 7 ? 1 : -1; }

#define BLAS_FIND(api, find)                                                                                    \
    do {                                                                                                        \
        const void *(*context)(void);                                                                           \
        *(void **)&context = find("_ZN2at13globalContextEv");                                                   \
        *(void **)&(api)->precision = find("_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE"); \
        *(void **)&(api)->gemm[0] = find("sgemm_");                                                             \
        *(void **)&(api)->gemm[1] = find("dgemm_");                                                             \
        (api)->context = context ? context() : NULL;                                                            \
        blas_check(api);                                                                                        \
    } while (0)

/* On other processors torch multiplies otherwise. Numbers are handed over in 64 bits, of which the first 32 hold them
   for a library that reads those: a product that comes out wrong tells of a library of another form. */
static inline void blas_check(BlasApi *api)
{
#if defined(__x86_64__)
    const int64_t two = 2;
    float a[4] = {1, 2, 3, 4}, c[4] = {0}, one = 1, zero = 0;
    double b[4] = {1, 2, 3, 4}, d[4] = {0}, one_d = 1, zero_d = 0;
    if (api->gemm[0] && api->gemm[1] && api->precision && api->context) {
        api->gemm[0]("N", "N", &two, &two, &two, &one, a, &two, a, &two, &zero, c, &two);
        api->gemm[1]("N", "N", &two, &two, &two, &one_d, b, &two, b, &two, &zero_d, d, &two);
        if (c[0] == 7 && c[1] == 10 && c[2] == 15 && c[3] == 22 && d[0] == 7 && d[1] == 10 && d[2] == 15 && d[3] == 22)
            return;
    }
#endif
    api->gemm[0] = api->gemm[1] = NULL;
}

/* Whether float32 is to be multiplied as float32 now, and not in fewer bits. */
static inline int blas_allowed(const BlasApi *api)
{
    return api->gemm[0] && api->precision(api->context, BLAS_MKLDNN, BLAS_MATMUL) <= BLAS_IEEE;
}

/* How BLAS calls a matrix: 0 where it lies by rows, 1 by columns, -1 otherwise; *lead: the elements from one to the
   next. The stride of a dimension of one element says nothing. */
static inline int blas_layout(const int64_t *d, int64_t *lead)
{
    int64_t rows = d[0], columns = d[1], row = d[2], column = d[3];
    if (rows < 1 || columns < 1 || rows > INT_MAX || columns > INT_MAX)
        return -1;
    if (columns == 1 || column == 1) {
        *lead = rows == 1 ? columns : row;
        if (*lead >= columns && *lead <= INT_MAX)
            return 0;
    }
    if (rows == 1 || row == 1) {
        *lead = columns == 1 ? rows : column;
        if (*lead >= rows && *lead <= INT_MAX)
            return 1;
    }
    return -1;
}

static inline void blas_spread(char *out, const int64_t *d, const char *c, int64_t row, int64_t column, int64_t size)
{
    for (int64_t i = 0; i < d[0]; i++) {
        char *to = out + i * d[2] * size;
        const char *from = c + i * row * size;
        if (column == 1 && (d[3] == 1 || d[1] == 1))
            memcpy(to, from, (size_t)(d[1] * size));
        else
            for (int64_t j = 0; j < d[1]; j++)
                memcpy(to + j * d[3] * size, from + j * column * size, (size_t)size);
    }
}

/* out = beta * c + alpha * a @ b. `c` of `c_ndim` dimensions, 0: there is none. 0, or -1: torch has to do it. */
static inline int blas_product(const BlasApi *api, int dtype, BlasMatrix out, BlasMatrix a, BlasMatrix b, BlasMatrix c,
                               int c_ndim, double beta, double alpha)
{
    int64_t ldo, lda, ldb, k = a.dims[1];
    int by_columns = blas_layout(out.dims, &ldo), a_columns = blas_layout(a.dims, &lda),
        b_columns = blas_layout(b.dims, &ldb);
    if ((by_columns | a_columns | b_columns) < 0 || a.dims[0] != out.dims[0] || b.dims[1] != out.dims[1] ||
        b.dims[0] != k || !out.data || !a.data || !b.data)
        return -1;
    if (!c_ndim)
        beta = 0;
    if (beta != 0) {
        const int64_t *d = c.dims;
        int64_t row = c_ndim == 2 && d[0] != 1 ? d[2] : 0, column = d[c_ndim - 1] != 1 ? d[2 * c_ndim - 1] : 0;
        if (!c.data || c_ndim > 2 || out.dims[0] * out.dims[1] > BLAS_MOST_COPIED ||
            (d[c_ndim - 1] != 1 && d[c_ndim - 1] != out.dims[1]) || (c_ndim == 2 && d[0] != 1 && d[0] != out.dims[0]))
            return -1;
        if (c.data != out.data)
            blas_spread((char *)out.data, out.dims, (const char *)c.data, row, column, dtype ? 8 : 4);
        else if ((out.dims[0] != 1 && row != out.dims[2]) || (out.dims[1] != 1 && column != out.dims[3]))
            return -1;
    }
    float alpha_f = (float)alpha, beta_f = (float)beta;
    const void *scale = dtype ? (const void *)&alpha : (const void *)&alpha_f;
    const void *keep = dtype ? (const void *)&beta : (const void *)&beta_f;
    const char *plain = "N", *turned = "T";
    if (by_columns)
        api->gemm[dtype](a_columns ? plain : turned, b_columns ? plain : turned, &out.dims[0], &out.dims[1], &k, scale,
                         a.data, &lda, b.data, &ldb, keep, out.data, &ldo);
    else /* (BLAS counts by columns: it computes the transposed product) */
        api->gemm[dtype](b_columns ? turned : plain, a_columns ? turned : plain, &out.dims[1], &out.dims[0], &k, scale,
                         b.data, &ldb, a.data, &lda, keep, out.data, &ldo);
    return 0;
}

#endif
