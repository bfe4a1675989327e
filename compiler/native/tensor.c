#include "tensor.h"
#include "values.h"

TensorLayout tc_layout;
unsigned char tc_itemsizes[256];

/* torch._C.DisableTorchFunctionSubclass(), entered; NULL with no error set where that fails */
static PyObject *enter_functions_off(void)
{
    PyObject *module = PyImport_ImportModule("torch._C"), *off = NULL, *entered = NULL;
    if (module && (off = PyObject_CallMethod(module, "DisableTorchFunctionSubclass", NULL)))
        entered = PyObject_CallMethod(off, "__enter__", NULL);
    if (entered == NULL) {
        PyErr_Clear();
        Py_CLEAR(off);
    }
    Py_XDECREF(entered);
    Py_XDECREF(module);
    return off;
}

int tc_ask_requires_grad(PyObject *o)
{
    PyGetSetDef *g = tc_torch.requires_grad;
    /* a class of the program's must not hear of it by its __torch_function__ */
    PyObject *off = Py_TYPE(o) == tc_torch.tensor || Py_TYPE(o) == tc_torch.parameter ? NULL : enter_functions_off();
    PyObject *answer = g->get(o, g->closure);
    if (answer == NULL)
        PyErr_Clear();
    if (off) {
        PyObject *left = PyObject_CallMethod(off, "__exit__", "OOO", Py_None, Py_None, Py_None);
        if (left == NULL)
            PyErr_Clear();
        Py_XDECREF(left);
        Py_DECREF(off);
    }
    Py_XDECREF(answer);
    return answer == Py_True;
}

static inline int dims_check(const Dim *d, const int64_t *got, int64_t n, int64_t least, int64_t *values, char *bound)
{
    for (int64_t i = 0; i < n; i++) {
        if (d[i].mode == DIM_CONST) {
            if (d[i].value != got[i])
                return 0;
        } else if (d[i].mode != DIM_ANY) {
            int64_t s = d[i].value;
            if (bound[s]) {
                if (values[s] != got[i])
                    return 0;
            } else if (got[i] < least && d[i].mode == DIM_SYMBOL) {
                return 0;
            } else {
                bound[s] = 1;
                values[s] = got[i];
            }
        }
    }
    return 1;
}

int tc_tensor_check(PyObject *o, const TensorCheck *c, int64_t *values, char *bound)
{
    if (UNLIKELY(Py_TYPE(o) != c->type))
        return TENSOR_DIFFERS;
    const char *impl = tc_impl(o);
    if (UNLIKELY(impl == NULL))
        return TENSOR_DIFFERS;
    uint64_t keys = AT(uint64_t, impl, tc_layout.keys);
    if ((AT(uint64_t, impl, tc_layout.dtype) & DTYPE_DEVICE_MASK) != c->dtype_device ||
        (keys != c->keys && keys != c->inference_keys))
        return TENSOR_DIFFERS;
    const char *meta = AT(const char *, impl, tc_layout.autograd);
    if (meta && UNLIKELY(AT(uint64_t, meta, tc_layout.fw_grad)))
        return TENSOR_ASK;
    if (tc_requires_grad(o, impl) != c->requires_grad || tc_ndim(impl) != c->ndim)
        return TENSOR_DIFFERS;
    if (!dims_check(c->dims, tc_sizes(impl), c->ndim, 2, values, bound) ||
        !dims_check(c->dims + c->ndim, tc_strides(impl), c->ndim, INT64_MIN, values, bound))
        return TENSOR_DIFFERS;
    if (c->has_offset && AT(int64_t, impl, tc_layout.storage_offset) != c->storage_offset)
        return TENSOR_DIFFERS;
    if (c->has_data_ptr) {
        if (tc_itemsize(o) == 0)
            return TENSOR_ASK;
        const char *storage = AT(const char *, impl, tc_layout.storage);
        uint64_t data = AT(uint64_t, storage, tc_layout.storage_data);
        if (data + (uint64_t)(AT(int64_t, impl, tc_layout.storage_offset) * tc_itemsize(o)) != c->data_ptr)
            return TENSOR_DIFFERS;
    }
    return TENSOR_OK;
}

void tc_memory_range(PyObject *o, int64_t itemsize, uint64_t *lo, uint64_t *hi)
{
    const char *impl = tc_impl(o), *storage = AT(const char *, impl, tc_layout.storage);
    uint64_t data = AT(uint64_t, storage, tc_layout.storage_data);
    int64_t n = tc_ndim(impl), span = 0;
    const int64_t *sizes = tc_sizes(impl), *strides = tc_strides(impl);
    *lo = *hi = data + (uint64_t)(AT(int64_t, impl, tc_layout.storage_offset) * itemsize);
    for (int64_t i = 0; i < n; i++) {
        if (sizes[i] == 0)
            return;
        span += (sizes[i] - 1) * strides[i];
    }
    *hi += (uint64_t)((span + 1) * itemsize);
}

static PyObject *set_tensor_layout(PyObject *self, PyObject *args)
{
    TensorLayout l = {.known = 1};
    Py_buffer itemsizes;
    (void)self;
    if (!PyArg_ParseTuple(args, "iiiiiiiiiiiiiiy*", &l.impl, &l.storage, &l.autograd, &l.sizes, &l.inline_dims,
                          &l.storage_offset, &l.numel, &l.dtype, &l.keys, &l.requires_grad, &l.grad_fn, &l.fw_grad,
                          &l.is_view, &l.storage_data, &itemsizes))
        return NULL;
    memcpy(tc_itemsizes, itemsizes.buf, itemsizes.len < 256 ? (size_t)itemsizes.len : 256);
    PyBuffer_Release(&itemsizes);
    tc_layout = l;
    Py_RETURN_NONE;
}

/* What the layout says of one tensor; the probe compares it with what torch says. */
static PyObject *read_tensor(PyObject *self, PyObject *o)
{
    (void)self;
    if (!tc_layout.known) {
        PyErr_SetString(PyExc_RuntimeError, "the tensor layout is not known");
        return NULL;
    }
    const char *impl = tc_impl(o), *meta = AT(const char *, impl, tc_layout.autograd);
    const char *storage = AT(const char *, impl, tc_layout.storage);
    Py_ssize_t n = (Py_ssize_t)tc_ndim(impl);
    PyObject *sizes = PyTuple_New(n), *strides = PyTuple_New(n);
    for (Py_ssize_t i = 0; sizes && strides && i < n; i++) {
        PyTuple_SET_ITEM(sizes, i, PyLong_FromLongLong(tc_sizes(impl)[i]));
        PyTuple_SET_ITEM(strides, i, PyLong_FromLongLong(tc_strides(impl)[i]));
    }
    return Py_BuildValue("NNLLKKNNK", sizes, strides, (long long)AT(int64_t, impl, tc_layout.storage_offset),
                         (long long)AT(int64_t, impl, tc_layout.numel),
                         (unsigned long long)(AT(uint64_t, impl, tc_layout.dtype) & DTYPE_DEVICE_MASK),
                         (unsigned long long)AT(uint64_t, impl, tc_layout.keys),
                         PyBool_FromLong(tc_requires_grad(o, impl)),
                         PyBool_FromLong(meta && AT(uint64_t, meta, tc_layout.fw_grad)),
                         (unsigned long long)(storage ? AT(uint64_t, storage, tc_layout.storage_data) : 0));
}

static PyObject *forget_tensor_layout(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    tc_layout.known = 0;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"forget_tensor_layout", forget_tensor_layout, METH_NOARGS, "Evaluate TENSOR guards in Python from now on."},
    {"set_tensor_layout", set_tensor_layout, METH_VARARGS,
     "Offsets of a tensor's metadata, and bytes per element by dtype number, as found by the probe."},
    {"read_tensor", read_tensor, METH_O,
     "(sizes, strides, storage offset, numel, dtype and device word, key set, requires_grad, had a tangent, storage "
     "data)"},
    {NULL, NULL, 0, NULL},
};

int tc_init_tensor(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
