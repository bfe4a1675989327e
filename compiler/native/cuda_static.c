/* CudaStatic: the inputs and outputs of a CUDA graph, which have fixed addresses: checks them, copies in and out. */
#include "cuda_driver.h"

#include <stdlib.h>

static PyObject *device_tensor(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, int device)
{
    AtenTensor t = tc_cuda_new(ndim, shape, stride, dtype, device);
    if (UNLIKELY(!t))
        return tc_cuda_new_by_torch(ndim, shape, stride, dtype, device);
    return tc_launcher_wrap(t);
}

static int read_dims(PyObject *shape, PyObject *stride, int64_t *out)
{
    Py_ssize_t n = PyTuple_GET_SIZE(shape);
    if (PyTuple_GET_SIZE(stride) != n) {
        PyErr_SetString(PyExc_ValueError, "shape and stride have different lengths");
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
        out[n + i] = PyLong_AsLongLong(PyTuple_GET_ITEM(stride, i));
    }
    return PyErr_Occurred() ? -1 : 0;
}

typedef struct {
    int index;                             /* of the input */
    uint64_t address;
    int64_t bytes;                         /* to copy to the address; -1: the input must be there already */
} StaticInput;

typedef struct {
    int kind, index; /* OUT_COPY: of dims; OUT_INPUT: of the input; OUT_OBJECT, OUT_VIEW: of the object */
    uint64_t address;
    int64_t bytes;
    int ndim, dtype;
} StaticOutput;

enum { OUT_COPY, OUT_INPUT, OUT_OBJECT, OUT_VIEW };

typedef struct {
    PyObject_HEAD
    int device, n_inputs, n_outputs;
    StaticInput *inputs;
    StaticOutput *outputs;
    int64_t *dims;                         /* shapes and strides of the outputs that are copied */
    PyObject *objects;                     /* tuple */
} StaticObject;

/* load(inputs) -> -1, or the number of the first input that is not where the graph reads it; copies nothing then. */
static PyObject *static_load(PyObject *self, PyObject *inputs)
{
    StaticObject *s = (StaticObject *)self;
    uint64_t *from = alloca(sizeof(uint64_t) * (s->n_inputs + 1));
    if (!PyTuple_CheckExact(inputs)) {
        PyErr_SetString(PyExc_TypeError, "load(inputs) takes a tuple");
        return NULL;
    }
    for (int i = 0; i < s->n_inputs; i++) {
        StaticInput *in = &s->inputs[i];
        AtenTensor t = in->index < PyTuple_GET_SIZE(inputs) ? tc_launcher_tensor(PyTuple_GET_ITEM(inputs, in->index))
                                                            : NULL;
        void *p = NULL;
        if (UNLIKELY(!t || tc_torch_api.data_ptr(t, &p))) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_RuntimeError, "compiled code was given a tensor without memory");
            return NULL;
        }
        from[i] = (uint64_t)(uintptr_t)p;
        if (UNLIKELY(in->bytes < 0 && from[i] != in->address))
            return PyLong_FromLong(in->index);
    }
    CUstream stream = NULL;
    if (UNLIKELY(tc_cu.stream(s->device, &stream))) {
        PyErr_SetString(PyExc_RuntimeError, "torch gave no current CUDA stream");
        return NULL;
    }
    for (int i = 0; i < s->n_inputs; i++) {
        StaticInput *in = &s->inputs[i];
        if (in->bytes > 0 && from[i] != in->address &&
            tc_cu_failed(tc_cu.copy(in->address, from[i], (size_t)in->bytes, stream), "cuMemcpyDtoDAsync"))
            return NULL;
    }
    return PyLong_FromLong(-1);
}

/* A new tensor over the memory of `like`, which lies there as `like` does. */
static PyObject *view_of(PyObject *like)
{
    AtenTensor t = tc_launcher_tensor(like), view;
    int64_t ndim, *shape, *stride;
    if (UNLIKELY(!t || tc_torch_api.ndim(t, &ndim) || tc_torch_api.sizes(t, &shape) ||
                 tc_torch_api.strides(t, &stride) || tc_torch_api.reinterpret(t, ndim, shape, stride, 0, &view)))
        return NULL;
    return tc_launcher_wrap(view);
}

/* results(inputs) -> tuple: new tensors with what the graph left, and views of what stays there */
static PyObject *static_results(PyObject *self, PyObject *inputs)
{
    StaticObject *s = (StaticObject *)self;
    CUstream stream = NULL;
    if (UNLIKELY(!PyTuple_CheckExact(inputs) || tc_cu.stream(s->device, &stream))) {
        PyErr_SetString(PyExc_RuntimeError, "results(inputs) takes the tuple of inputs, and a current CUDA stream");
        return NULL;
    }
    PyObject *out = PyTuple_New(s->n_outputs);
    for (int i = 0; out && i < s->n_outputs; i++) {
        StaticOutput *o = &s->outputs[i];
        PyObject *value = NULL;
        if (o->kind == OUT_COPY) {
            const int64_t *dims = s->dims + o->index;
            void *p = NULL;
            value = device_tensor(o->ndim, dims, dims + o->ndim, o->dtype, s->device);
            AtenTensor t = value ? tc_launcher_tensor(value) : NULL;
            if (value && o->bytes > 0 &&
                (!t || tc_torch_api.data_ptr(t, &p) ||
                 tc_cu_failed(tc_cu.copy((uint64_t)(uintptr_t)p, o->address, (size_t)o->bytes, stream),
                              "cuMemcpyDtoDAsync")))
                Py_CLEAR(value);
        } else if (o->kind == OUT_INPUT) {
            value = Py_XNewRef(PyTuple_GetItem(inputs, o->index));
        } else if (o->kind == OUT_VIEW) {
            value = view_of(PyTuple_GET_ITEM(s->objects, o->index));
        } else {
            value = Py_NewRef(PyTuple_GET_ITEM(s->objects, o->index));
        }
        if (UNLIKELY(!value)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_RuntimeError, "a result of a CUDA graph can't be made");
            Py_CLEAR(out);
        } else {
            PyTuple_SET_ITEM(out, i, value);
        }
    }
    return out;
}

static PyObject *static_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"device", "inputs", "outputs", "objects", NULL};
    PyObject *inputs, *outputs, *objects;
    int device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!O!O!", names, &device, &PyTuple_Type, &inputs, &PyTuple_Type,
                                     &outputs, &PyTuple_Type, &objects))
        return NULL;
    if (!tc_cu.ready) {
        PyErr_SetString(PyExc_RuntimeError, "cuda_setup() was not called, or failed");
        return NULL;
    }
    StaticObject *s = (StaticObject *)type->tp_alloc(type, 0);
    if (!s)
        return NULL;
    s->device = device;
    s->objects = Py_NewRef(objects);
    s->inputs = calloc(PyTuple_GET_SIZE(inputs) + 1, sizeof(StaticInput));
    s->outputs = calloc(PyTuple_GET_SIZE(outputs) + 1, sizeof(StaticOutput));
    Py_ssize_t room = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); i++) {
        PyObject *shape = PyTuple_GET_SIZE(PyTuple_GET_ITEM(outputs, i)) == 6
                              ? PyTuple_GET_ITEM(PyTuple_GET_ITEM(outputs, i), 3)
                              : NULL;
        room += shape && PyTuple_CheckExact(shape) ? 2 * PyTuple_GET_SIZE(shape) : 0;
    }
    s->dims = calloc(room + 1, sizeof(int64_t));
    if (!s->inputs || !s->outputs || !s->dims) {
        PyErr_NoMemory();
        goto fail;
    }
    for (; s->n_inputs < PyTuple_GET_SIZE(inputs); s->n_inputs++) {
        StaticInput *in = &s->inputs[s->n_inputs];
        unsigned long long address;
        long long bytes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(inputs, s->n_inputs), "iKL", &in->index, &address, &bytes))
            goto fail;
        in->address = address;
        in->bytes = bytes;
    }
    int at = 0;
    for (; s->n_outputs < PyTuple_GET_SIZE(outputs); s->n_outputs++) {
        StaticOutput *o = &s->outputs[s->n_outputs];
        PyObject *shape, *stride;
        unsigned long long address;
        long long bytes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(outputs, s->n_outputs), "iLKO!O!i", &o->kind, &bytes, &address,
                              &PyTuple_Type, &shape, &PyTuple_Type, &stride, &o->dtype))
            goto fail;
        o->address = address;
        if (o->kind == OUT_COPY) {
            o->bytes = bytes;
            o->index = at;
            o->ndim = (int)PyTuple_GET_SIZE(shape);
            if (read_dims(shape, stride, s->dims + at) < 0)
                goto fail;
            at += 2 * o->ndim;
        } else {
            o->index = (int)bytes;
            if (o->index < 0 || (o->kind != OUT_INPUT && o->index >= PyTuple_GET_SIZE(objects))) {
                PyErr_SetString(PyExc_ValueError, "an output names nothing");
                goto fail;
            }
        }
    }
    return (PyObject *)s;
fail:
    Py_DECREF(s);
    return NULL;
}

static void static_dealloc(PyObject *self)
{
    StaticObject *s = (StaticObject *)self;
    free(s->inputs);
    free(s->outputs);
    free(s->dims);
    Py_CLEAR(s->objects);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef static_methods[] = {
    {"load", static_load, METH_O,
     "load(inputs) -> -1 after copying what has to be copied, or the number of an input that is at another address."},
    {"results", static_results, METH_O,
     "results(inputs) -> tuple: copies of the graph's results, and views of those that stay."},
    {NULL},
};

static PyTypeObject Static_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.CudaStatic",
    .tp_doc = "CudaStatic(device, inputs, outputs, objects)\n\n"
              "inputs: (index, address, bytes to copy there, or -1 where the input must be there); outputs: (0, bytes, "
              "address, shape, stride,\n"
              "dtype code) for a copy (0 bytes: only the memory is made), (1, input, 0, (), (), 0), (2, object, 0, (), "
              "(), 0), and (3, object, 0, (), (), 0)\n"
              "for a view of a tensor. See compiler/runtime/gpu/cuda_graphs.py.",
    .tp_basicsize = sizeof(StaticObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = static_new,
    .tp_dealloc = static_dealloc,
    .tp_methods = static_methods,
};

int tc_init_cuda_static(PyObject *module)
{
    return PyModule_AddType(module, &Static_Type);
}
