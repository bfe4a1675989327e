/* A tensor's metadata, read from where torch keeps it. The offsets are found and verified by experiment when the guard
   compiler is first used (compiler/guards/probe.py); without them TENSOR guards are evaluated in Python. */
#ifndef TCOMPILE_TENSOR_H
#define TCOMPILE_TENSOR_H
#include "native.h"

typedef struct {
    int known;
    int impl;                /* in the Python object: pointer to the TensorImpl */
    int storage;             /* in the TensorImpl: pointer to the StorageImpl */
    int autograd;            /* pointer to the AutogradMeta, or null */
    int sizes;               /* number of dimensions; then the inline sizes and strides, or a pointer to them */
    int inline_dims;         /* how many dimensions fit inline */
    int storage_offset;      /* in elements */
    int numel;
    int dtype;               /* 16 bits of dtype and 24 bits of device */
    int keys;                /* dispatch key set */
    int requires_grad;       /* in the AutogradMeta: a byte */
    int grad_fn;             /* a pointer, set for a tensor that has a grad_fn */
    int fw_grad;             /* a pointer, set once the tensor had a forward-mode tangent */
    int is_view;             /* a byte, set for views: they also require a gradient where their base does */
    int storage_data;        /* in the StorageImpl: the data pointer */
} TensorLayout;
HIDDEN extern TensorLayout tc_layout;

#define DTYPE_DEVICE_MASK 0xFFFFFFFFFFull
enum { DIM_ANY = 0, DIM_CONST = 1, DIM_SYMBOL = 2, DIM_UNBACKED = 3 };  /* UNBACKED: one that may be 0 or 1 */
typedef struct { int mode; int64_t value; } Dim;            /* value: the size, or the number of a symbol */

typedef struct {
    PyTypeObject *type;                                     /* owned by the program through `spec` */
    uint64_t dtype_device, keys, inference_keys;
    int requires_grad, has_offset, has_data_ptr, all_const;
    int64_t ndim, storage_offset;
    uint64_t data_ptr;
    Dim *dims;                                              /* ndim sizes, then ndim strides */
} TensorCheck;

enum { TENSOR_OK = 0, TENSOR_DIFFERS = 1, TENSOR_ASK = 2 };  /* ASK: only Python can tell */

HIDDEN extern unsigned char tc_itemsizes[256];              /* bytes per element, by dtype number */

static inline char *tc_impl(PyObject *o) { return *(char **)((char *)o + tc_layout.impl); }
#define AT(type, base, offset) (*(type *)((base) + (offset)))

static inline int64_t tc_ndim(const char *impl) { return AT(int64_t, impl, tc_layout.sizes); }
static inline const int64_t *tc_sizes(const char *impl)
{
    const char *p = impl + tc_layout.sizes + 8;
    return tc_ndim(impl) <= tc_layout.inline_dims ? (const int64_t *)p : *(const int64_t *const *)p;
}
static inline const int64_t *tc_strides(const char *impl)
{
    int64_t n = tc_ndim(impl);
    return tc_sizes(impl) + (n <= tc_layout.inline_dims ? tc_layout.inline_dims : n);
}

static inline int64_t tc_itemsize(PyObject *o)
{
    return tc_itemsizes[AT(unsigned char, tc_impl(o), tc_layout.dtype)];
}

/* requires_grad as torch says it. The getter of torch.Tensor.requires_grad is asked where a view's base decides. */
HIDDEN int tc_ask_requires_grad(PyObject *o);
static inline int tc_requires_grad(PyObject *o, const char *impl)
{
    const char *meta = AT(const char *, impl, tc_layout.autograd);
    if (meta == NULL)
        return 0;
    if (AT(unsigned char, meta, tc_layout.requires_grad) || AT(uint64_t, meta, tc_layout.grad_fn))
        return 1;
    return AT(unsigned char, meta, tc_layout.is_view) ? tc_ask_requires_grad(o) : 0;
}

/* Bare symbols are bound in `values` (with the bit in `bound` set) or compared with what is bound. */
HIDDEN int tc_tensor_check(PyObject *o, const TensorCheck *c, int64_t *values, char *bound);
/* First byte and one past the last that the elements touch. */
HIDDEN void tc_memory_range(PyObject *o, int64_t itemsize, uint64_t *lo, uint64_t *hi);
HIDDEN int tc_init_tensor(PyObject *module);

#endif
