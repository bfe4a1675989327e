/* The GPU's launcher: kernels as Python callables that launch through CUDA's driver, and tensors on the device.

   CudaKernel   one generated kernel on one device: kernel(*tensors, *sizes, *scalars) enqueues it on torch's current stream.
   CudaEmpty    an allocation whose shape is fixed: empty() -> tensor.
   CudaStatic   the inputs and outputs of a CUDA graph: checks addresses, copies in and out.

   Nothing is linked: the driver is found by dlopen when cuda_setup() is called, torch's C functions (aoti_torch_*) in the
   libraries that torch has loaded. Where something is missing, cuda_setup() says what, and the module works without a GPU. */
#include "launcher.h"

#include <dlfcn.h>
#include <stdlib.h>

typedef int CUresult;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;
typedef void *AtenTensor;

enum { CUDA_DEVICE_TYPE = 1, UINT8_CODE = 0, MAX_FUNCTIONS = 16, MAX_ARGS = 512 };
enum { ATTR_LOCAL_BYTES = 3, ATTR_REGISTERS = 4, ATTR_MAX_DYNAMIC_SHARED = 8 };

static struct {
    int ready;
    CUresult (*module_load)(CUmodule *, const void *);
    CUresult (*module_function)(CUfunction *, CUmodule, const char *);
    CUresult (*function_set)(CUfunction, int, int);
    CUresult (*function_get)(int *, int, CUfunction);
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
    CUresult (*error_string)(CUresult, const char **);
    CUresult (*context)(CUcontext *);
    CUresult (*push)(CUcontext);
    CUresult (*pop)(CUcontext *);
    CUresult (*copy)(uint64_t, uint64_t, size_t, CUstream);
    int (*data_ptr)(AtenTensor, void **);
    int (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, AtenTensor *);
    int (*delete_tensor)(AtenTensor);
    int (*stream)(int32_t, void **);
    int (*reinterpret)(AtenTensor, int64_t, const int64_t *, const int64_t *, int64_t, AtenTensor *);
    int (*mm)(AtenTensor, AtenTensor, AtenTensor);
    int (*bmm)(AtenTensor, AtenTensor, AtenTensor);
    int (*addmm)(AtenTensor, AtenTensor, AtenTensor, AtenTensor, double, double);
    int (*baddbmm)(AtenTensor, AtenTensor, AtenTensor, AtenTensor, double, double);
} cu;

static int failed(CUresult rc, const char *what)
{
    if (LIKELY(rc == 0))
        return 0;
    const char *text = NULL;
    if (cu.error_string(rc, &text) || !text)
        text = "unknown error";
    PyErr_Format(PyExc_RuntimeError, "CUDA error: %s (%d) in %s", text, rc, what);
    return 1;
}

/* ---- device memory */
static AtenTensor new_device_tensor(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, int device)
{
    AtenTensor t;
    if (UNLIKELY(cu.empty_strided(ndim, shape, stride, dtype, CUDA_DEVICE_TYPE, device, &t)))
        return NULL;
    return t;
}

/* torch's own function raises what torch raises (OutOfMemoryError with its long message) */
static PyObject *raise_as_torch(PyObject *raise, int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, int device)
{
    PyObject *s = PyTuple_New(ndim), *st = PyTuple_New(ndim);
    for (int64_t i = 0; s && st && i < ndim; i++) {
        PyTuple_SET_ITEM(s, i, PyLong_FromLongLong(shape[i]));
        PyTuple_SET_ITEM(st, i, PyLong_FromLongLong(stride[i]));
    }
    PyObject *o = s && st ? PyObject_CallFunction(raise, "OOii", s, st, dtype, device) : NULL;
    Py_XDECREF(s);
    Py_XDECREF(st);
    return o;                              /* a tensor where the second try succeeds */
}

static PyObject *allocate_again;           /* (shape, stride, dtype code, device) -> tensor, by torch.empty_strided */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int ndim, dtype, device;
    int64_t *dims;                         /* shape, then stride */
} EmptyObject;

static PyObject *device_tensor(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, int device)
{
    AtenTensor t = new_device_tensor(ndim, shape, stride, dtype, device);
    if (UNLIKELY(!t))
        return raise_as_torch(allocate_again, ndim, shape, stride, dtype, device);
    return tc_launcher_wrap(t);
}

static PyObject *empty_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    EmptyObject *e = (EmptyObject *)self;
    if (UNLIKELY(PyVectorcall_NARGS(nargsf) || (kwnames && PyTuple_GET_SIZE(kwnames)))) {
        PyErr_SetString(PyExc_TypeError, "an allocation takes no arguments");
        return NULL;
    }
    return device_tensor(e->ndim, e->dims, e->dims + e->ndim, e->dtype, e->device);
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

static PyObject *empty_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"shape", "stride", "dtype", "device", NULL};
    PyObject *shape, *stride;
    int dtype, device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!ii", names, &PyTuple_Type, &shape, &PyTuple_Type, &stride, &dtype, &device))
        return NULL;
    if (!cu.ready) {
        PyErr_SetString(PyExc_RuntimeError, "cuda_setup() was not called, or failed");
        return NULL;
    }
    EmptyObject *e = (EmptyObject *)type->tp_alloc(type, 0);
    if (!e)
        return NULL;
    e->vectorcall = empty_call;
    e->ndim = (int)PyTuple_GET_SIZE(shape);
    e->dtype = dtype;
    e->device = device;
    e->dims = calloc(2 * e->ndim + 1, sizeof(int64_t));
    if (!e->dims || read_dims(shape, stride, e->dims) < 0) {
        if (!PyErr_Occurred())
            PyErr_NoMemory();
        Py_DECREF(e);
        return NULL;
    }
    return (PyObject *)e;
}

static void empty_dealloc(PyObject *self)
{
    free(((EmptyObject *)self)->dims);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject Empty_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.CudaEmpty",
    .tp_doc = "CudaEmpty(shape, stride, dtype code, device index): calling it allocates such a tensor.",
    .tp_basicsize = sizeof(EmptyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = empty_new,
    .tp_dealloc = empty_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(EmptyObject, vectorcall),
};

/* ---- kernels */
typedef struct {
    CUfunction function;
    unsigned threads, shared;
    int64_t grid;                          /* fixed number of programs */
} Part;

typedef union { void *p; int64_t l; int32_t i; double d; float f; } Arg;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name;
    PyObject *grid;                        /* callable(*sizes) -> grids, scratch offsets, scratch bytes; or None where fixed */
    PyObject *unaligned;                   /* called instead where a pointer is not a multiple of 16, or None */
    PyObject *wide;                        /* called instead where grid(...) gives None, or None */
    CUcontext context;
    int device, n_functions, n_buffers, n_scratch, n_sizes, n_params;
    char *kinds;                           /* of sizes and params: 'i' 32 bits, 'l' 64 bits, 'f' float, 'd' double */
    int64_t *offsets;                      /* of scratch, then the bytes of all, where fixed */
    Part parts[MAX_FUNCTIONS];
} CudaKernelObject;

static int fill(PyObject *o, char kind, Arg *out)
{
    out->l = 0;
    if (kind == 'f' || kind == 'd') {
        double d = PyFloat_CheckExact(o) ? PyFloat_AS_DOUBLE(o) : PyFloat_AsDouble(o);
        if (kind == 'd')
            out->d = d;
        else
            out->f = (float)d;
        return d == -1.0 && PyErr_Occurred() ? -1 : 0;
    }
    int64_t l = PyLong_AsLongLong(o);
    if (kind == 'i')
        out->i = (int32_t)l;
    else
        out->l = l;
    return l == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *cuda_kernel_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    int n_scalars = k->n_sizes + k->n_params;
    if (UNLIKELY(n != k->n_buffers + n_scalars || (kwnames && PyTuple_GET_SIZE(kwnames)))) {
        PyErr_Format(PyExc_TypeError, "%U takes %d tensors, %d sizes and %d scalars, got %zd arguments", k->name, k->n_buffers, k->n_sizes,
                     k->n_params, n);
        return NULL;
    }
    int total = k->n_buffers + k->n_scratch + n_scalars + 2;
    Arg *arg = alloca(sizeof(Arg) * total);
    void **pointer = alloca(sizeof(void *) * total);
    uintptr_t low = 0;
    for (int i = 0; i < k->n_buffers; i++) {
        AtenTensor t = tc_launcher_tensor(args[i]);
        if (UNLIKELY(!t))
            return NULL;
        if (UNLIKELY(cu.data_ptr(t, &arg[i].p))) {
            PyErr_SetString(PyExc_RuntimeError, "compiled code was given a tensor without memory");
            return NULL;
        }
        low |= (uintptr_t)arg[i].p;
    }
    if (UNLIKELY(low & 15) && k->unaligned != Py_None)
        return PyObject_Vectorcall(k->unaligned, args, n, NULL);
    PyObject *const *scalar = args + k->n_buffers;
    for (int i = 0; i < n_scalars; i++)
        if (UNLIKELY(fill(scalar[i], k->kinds[i], &arg[k->n_buffers + k->n_scratch + i])))
            return NULL;
    arg[total - 2].p = arg[total - 1].p = NULL;          /* Triton's scratch for descriptors and for profiles: unused */

    int64_t grids[MAX_FUNCTIONS], *offset = k->offsets;
    int64_t *varying = NULL;
    if (k->grid != Py_None) {
        PyObject *r = PyObject_Vectorcall(k->grid, scalar, k->n_sizes, NULL);
        if (UNLIKELY(!r))
            return NULL;
        if (UNLIKELY(r == Py_None)) {
            Py_DECREF(r);
            return PyObject_Vectorcall(k->wide, args, n, NULL);
        }
        int want = k->n_functions + k->n_scratch + 1;
        if (UNLIKELY(!PyTuple_CheckExact(r) || PyTuple_GET_SIZE(r) != want)) {
            Py_DECREF(r);
            PyErr_SetString(PyExc_TypeError, "a kernel's grid is a tuple of grids, scratch offsets and scratch bytes");
            return NULL;
        }
        varying = alloca(sizeof(int64_t) * want);
        for (int i = 0; i < want; i++)
            varying[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(r, i));
        Py_DECREF(r);
        if (UNLIKELY(PyErr_Occurred() != NULL))
            return NULL;
        offset = varying + k->n_functions;
    }
    for (int i = 0; i < k->n_functions; i++)
        grids[i] = varying ? varying[i] : k->parts[i].grid;

    CUcontext current = NULL, popped;
    int pushed = 0;
    if (UNLIKELY(cu.context(&current) || current != k->context)) {
        if (failed(cu.push(k->context), "cuCtxPushCurrent"))
            return NULL;
        pushed = 1;
    }
    AtenTensor scratch = NULL;
    CUstream stream = NULL;
    PyObject *result = NULL;
    if (UNLIKELY(cu.stream(k->device, &stream))) {
        PyErr_SetString(PyExc_RuntimeError, "torch gave no current CUDA stream");
        goto done;
    }
    if (k->n_scratch) {
        int64_t bytes = offset[k->n_scratch], one = 1;
        char *base = NULL;
        scratch = new_device_tensor(1, &bytes, &one, UINT8_CODE, k->device);
        if (UNLIKELY(!scratch || cu.data_ptr(scratch, (void **)&base))) {
            PyErr_SetString(PyExc_MemoryError, "no device memory for partial results");
            goto done;
        }
        for (int i = 0; i < k->n_scratch; i++)
            arg[k->n_buffers + i].p = base + offset[i];
    }
    for (int i = 0; i < total; i++)
        pointer[i] = &arg[i];
    for (int i = 0; i < k->n_functions; i++) {
        Part *p = &k->parts[i];
        if (grids[i] <= 0)
            continue;
        if (UNLIKELY(grids[i] > 0x7fffffff)) {
            PyErr_Format(PyExc_RuntimeError, "%U needs %lld programs, and a launch holds 2^31 - 1", k->name, (long long)grids[i]);
            goto done;
        }
        CUresult rc = cu.launch(p->function, (unsigned)grids[i], 1, 1, p->threads, 1, 1, p->shared, stream, pointer, NULL);
        if (UNLIKELY(failed(rc, PyUnicode_AsUTF8(k->name))))
            goto done;
    }
    result = Py_NewRef(Py_None);
done:
    if (scratch)
        cu.delete_tensor(scratch);
    if (UNLIKELY(pushed))
        cu.pop(&popped);
    return result;
}

static PyObject *cuda_kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "device", "functions", "n_buffers", "n_sizes", "kinds", "offsets", "grid", "unaligned", "wide", NULL};
    PyObject *name, *functions, *offsets, *grid, *unaligned, *wide;
    int device, n_buffers, n_sizes;
    const char *kinds;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UiO!iisO!OOO", names, &name, &device, &PyTuple_Type, &functions, &n_buffers, &n_sizes, &kinds,
                                     &PyTuple_Type, &offsets, &grid, &unaligned, &wide))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(functions), n_offsets = PyTuple_GET_SIZE(offsets);
    if (!cu.ready) {
        PyErr_SetString(PyExc_RuntimeError, "cuda_setup() was not called, or failed");
        return NULL;
    }
    if (n < 1 || n > MAX_FUNCTIONS || n_offsets < 1 || n_sizes > (int)strlen(kinds) || n_buffers + n_offsets + (int)strlen(kinds) + 2 > MAX_ARGS) {
        PyErr_SetString(PyExc_ValueError, "a kernel's description is not consistent");
        return NULL;
    }
    CudaKernelObject *k = (CudaKernelObject *)type->tp_alloc(type, 0);
    if (!k)
        return NULL;
    k->vectorcall = cuda_kernel_call;
    k->name = Py_NewRef(name);
    k->grid = Py_NewRef(grid);
    k->unaligned = Py_NewRef(unaligned);
    k->wide = Py_NewRef(wide);
    k->device = device;
    k->n_functions = (int)n;
    k->n_buffers = n_buffers;
    k->n_sizes = n_sizes;
    k->n_params = (int)strlen(kinds) - n_sizes;
    k->n_scratch = (int)n_offsets - 1;
    k->kinds = strdup(kinds);
    k->offsets = calloc(n_offsets, sizeof(int64_t));
    if (!k->kinds || !k->offsets) {
        PyErr_NoMemory();
        goto fail;
    }
    for (Py_ssize_t i = 0; i < n_offsets; i++)
        k->offsets[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(offsets, i));
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned long long function;
        long long count;
        unsigned threads, shared;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(functions, i), "KIIL", &function, &threads, &shared, &count))
            goto fail;
        k->parts[i] = (Part){(CUfunction)(uintptr_t)function, threads, shared, count};
    }
    if (PyErr_Occurred() || failed(cu.context(&k->context), "cuCtxGetCurrent"))
        goto fail;
    if (!k->context) {
        PyErr_SetString(PyExc_RuntimeError, "there is no current CUDA context");
        goto fail;
    }
    return (PyObject *)k;
fail:
    Py_DECREF(k);
    return NULL;
}

static int cuda_kernel_traverse(PyObject *self, visitproc visit, void *arg)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    Py_VISIT(k->grid);
    Py_VISIT(k->unaligned);
    Py_VISIT(k->wide);
    return 0;
}

static int cuda_kernel_clear(PyObject *self)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    Py_XSETREF(k->grid, Py_NewRef(Py_None));
    Py_XSETREF(k->unaligned, Py_NewRef(Py_None));
    Py_XSETREF(k->wide, Py_NewRef(Py_None));
    return 0;
}

static void cuda_kernel_dealloc(PyObject *self)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    PyObject_GC_UnTrack(self);
    Py_CLEAR(k->grid);
    Py_CLEAR(k->unaligned);
    Py_CLEAR(k->wide);
    Py_CLEAR(k->name);
    free(k->kinds);
    free(k->offsets);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *cuda_kernel_repr(PyObject *self)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    return PyUnicode_FromFormat("<kernel %U on cuda:%d: %d tensors, %d sizes, %d launches>", k->name, k->device, k->n_buffers, k->n_sizes,
                                k->n_functions);
}

static PyTypeObject CudaKernel_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.CudaKernel",
    .tp_doc = "CudaKernel(name, device, functions, n_buffers, n_sizes, kinds, offsets, grid, unaligned, wide)\n\n"
              "A generated kernel in the current context; functions are (handle, threads, shared bytes, programs), one launch each.\n"
              "kernel(*tensors, *sizes, *scalars) enqueues it. See compiler/runtime/gpu/kernels.py.",
    .tp_basicsize = sizeof(CudaKernelObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = cuda_kernel_new,
    .tp_dealloc = cuda_kernel_dealloc,
    .tp_traverse = cuda_kernel_traverse,
    .tp_clear = cuda_kernel_clear,
    .tp_repr = cuda_kernel_repr,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(CudaKernelObject, vectorcall),
};

/* ---- inputs and outputs of a CUDA graph */
typedef struct {
    int index;                             /* of the input */
    uint64_t address;
    int64_t bytes;                         /* to copy to the address; -1: the input must be there already */
} StaticInput;

typedef struct {
    int kind, index;                       /* OUT_COPY: of dims; OUT_INPUT: of the input; OUT_OBJECT: of the object */
    uint64_t address;
    int64_t bytes;
    int ndim, dtype;
} StaticOutput;

enum { OUT_COPY, OUT_INPUT, OUT_OBJECT };

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
        AtenTensor t = in->index < PyTuple_GET_SIZE(inputs) ? tc_launcher_tensor(PyTuple_GET_ITEM(inputs, in->index)) : NULL;
        void *p = NULL;
        if (UNLIKELY(!t || cu.data_ptr(t, &p))) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_RuntimeError, "compiled code was given a tensor without memory");
            return NULL;
        }
        from[i] = (uint64_t)(uintptr_t)p;
        if (UNLIKELY(in->bytes < 0 && from[i] != in->address))
            return PyLong_FromLong(in->index);
    }
    CUstream stream = NULL;
    if (UNLIKELY(cu.stream(s->device, &stream))) {
        PyErr_SetString(PyExc_RuntimeError, "torch gave no current CUDA stream");
        return NULL;
    }
    for (int i = 0; i < s->n_inputs; i++) {
        StaticInput *in = &s->inputs[i];
        if (in->bytes > 0 && from[i] != in->address && failed(cu.copy(in->address, from[i], (size_t)in->bytes, stream), "cuMemcpyDtoDAsync"))
            return NULL;
    }
    return PyLong_FromLong(-1);
}

/* results(inputs) -> tuple of new tensors with what the graph left */
static PyObject *static_results(PyObject *self, PyObject *inputs)
{
    StaticObject *s = (StaticObject *)self;
    CUstream stream = NULL;
    if (UNLIKELY(!PyTuple_CheckExact(inputs) || cu.stream(s->device, &stream))) {
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
            if (value && o->bytes > 0 && (!t || cu.data_ptr(t, &p) || failed(cu.copy((uint64_t)(uintptr_t)p, o->address, (size_t)o->bytes, stream), "cuMemcpyDtoDAsync")))
                Py_CLEAR(value);
        } else if (o->kind == OUT_INPUT) {
            value = Py_XNewRef(PyTuple_GetItem(inputs, o->index));
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
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!O!O!", names, &device, &PyTuple_Type, &inputs, &PyTuple_Type, &outputs, &PyTuple_Type, &objects))
        return NULL;
    if (!cu.ready) {
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
        PyObject *shape = PyTuple_GET_SIZE(PyTuple_GET_ITEM(outputs, i)) == 6 ? PyTuple_GET_ITEM(PyTuple_GET_ITEM(outputs, i), 3) : NULL;
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
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(outputs, s->n_outputs), "iLKO!O!i", &o->kind, &bytes, &address, &PyTuple_Type, &shape, &PyTuple_Type,
                              &stride, &o->dtype))
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
            if (o->index < 0 || (o->kind == OUT_OBJECT && o->index >= PyTuple_GET_SIZE(objects))) {
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
    {"load", static_load, METH_O, "load(inputs) -> -1 after copying what has to be copied, or the number of an input that is at another address."},
    {"results", static_results, METH_O, "results(inputs) -> tuple: copies of the graph's results."},
    {NULL},
};

static PyTypeObject Static_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.CudaStatic",
    .tp_doc = "CudaStatic(device, inputs, outputs, objects)\n\n"
              "inputs: (index, address, bytes to copy there, or -1 where the input must be there); outputs: (0, bytes, address, shape, stride,\n"
              "dtype code) for a copy, (1, input, 0, (), (), 0), (2, object, 0, (), (), 0). See compiler/runtime/gpu/graphs.py.",
    .tp_basicsize = sizeof(StaticObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = static_new,
    .tp_dealloc = static_dealloc,
    .tp_methods = static_methods,
};

/* ---- functions of the module */
#define FIND(lib, field, name)                                              \
    do {                                                                    \
        *(void **)&cu.field = dlsym(lib, name);                             \
        if (!cu.field)                                                      \
            return PyUnicode_FromString("there is no function " name);      \
    } while (0)

/* cuda_setup(allocate) -> None, or why kernels can't be launched here. launcher_setup() comes first. */
static PyObject *cuda_setup(PyObject *module, PyObject *allocate)
{
    if (!tc_launcher_ready())
        return PyUnicode_FromString("the launcher does not know this torch");
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!driver)
        return PyUnicode_FromString("libcuda.so.1 is not there: no NVIDIA driver");
    void *cpu = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY), *gpu = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!cpu || !gpu)
        return PyUnicode_FromString("libtorch_cpu.so and libtorch_cuda.so are not loaded under these names");
    FIND(driver, module_load, "cuModuleLoadData");
    FIND(driver, module_function, "cuModuleGetFunction");
    FIND(driver, function_set, "cuFuncSetAttribute");
    FIND(driver, function_get, "cuFuncGetAttribute");
    FIND(driver, launch, "cuLaunchKernel");
    FIND(driver, error_string, "cuGetErrorString");
    FIND(driver, context, "cuCtxGetCurrent");
    FIND(driver, push, "cuCtxPushCurrent_v2");
    FIND(driver, pop, "cuCtxPopCurrent_v2");
    FIND(driver, copy, "cuMemcpyDtoDAsync_v2");
    FIND(cpu, data_ptr, "aoti_torch_get_data_ptr");
    FIND(cpu, empty_strided, "aoti_torch_empty_strided");
    FIND(cpu, delete_tensor, "aoti_torch_delete_tensor_object");
    FIND(gpu, stream, "aoti_torch_get_current_cuda_stream");
    FIND(cpu, reinterpret, "aoti_torch__reinterpret_tensor");
    FIND(gpu, mm, "aoti_torch_cuda_mm_out");
    FIND(gpu, bmm, "aoti_torch_cuda_bmm_out");
    FIND(gpu, addmm, "aoti_torch_cuda_addmm_out");
    FIND(gpu, baddbmm, "aoti_torch_cuda_baddbmm_out");
    Py_XSETREF(allocate_again, Py_NewRef(allocate));
    cu.ready = 1;
    Py_RETURN_NONE;
}

/* cuda_load(binary, ((name, shared bytes), ...)) -> ((handle, registers, local bytes), ...), in the current context. The module
   stays loaded: work that uses it may be in flight, or captured in a graph. */
static PyObject *cuda_load(PyObject *module, PyObject *args)
{
    Py_buffer binary;
    PyObject *wanted;
    if (!PyArg_ParseTuple(args, "y*O!", &binary, &PyTuple_Type, &wanted))
        return NULL;
    PyObject *out = NULL;
    CUmodule m;
    if (!cu.ready)
        PyErr_SetString(PyExc_RuntimeError, "cuda_setup() was not called, or failed");
    else if (!failed(cu.module_load(&m, binary.buf), "cuModuleLoadData"))
        out = PyTuple_New(PyTuple_GET_SIZE(wanted));
    for (Py_ssize_t i = 0; out && i < PyTuple_GET_SIZE(wanted); i++) {
        const char *name;
        int shared, registers = 0, local = 0;
        CUfunction f;
        PyObject *item = NULL;
        if (PyArg_ParseTuple(PyTuple_GET_ITEM(wanted, i), "si", &name, &shared) && !failed(cu.module_function(&f, m, name), name) &&
            !(shared > 48 * 1024 && failed(cu.function_set(f, ATTR_MAX_DYNAMIC_SHARED, shared), "cuFuncSetAttribute")) &&
            !failed(cu.function_get(&registers, ATTR_REGISTERS, f), "cuFuncGetAttribute") &&
            !failed(cu.function_get(&local, ATTR_LOCAL_BYTES, f), "cuFuncGetAttribute"))
            item = Py_BuildValue("Kii", (unsigned long long)(uintptr_t)f, registers, local);
        if (!item)
            Py_CLEAR(out);
        else
            PyTuple_SET_ITEM(out, i, item);
    }
    PyBuffer_Release(&binary);
    return out;
}

static PyObject *cuda_empty_strided(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    if (n != 4 || !PyTuple_CheckExact(args[0]) || !PyTuple_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "cuda_empty_strided(shape tuple, stride tuple, dtype code, device index)");
        return NULL;
    }
    if (!cu.ready) {
        PyErr_SetString(PyExc_RuntimeError, "cuda_setup() was not called, or failed");
        return NULL;
    }
    Py_ssize_t ndim = PyTuple_GET_SIZE(args[0]);
    int64_t *dims = alloca(sizeof(int64_t) * (2 * ndim + 1));
    if (read_dims(args[0], args[1], dims) < 0)
        return NULL;
    int dtype = (int)PyLong_AsLong(args[2]), device = (int)PyLong_AsLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    return device_tensor(ndim, dims, dims + ndim, dtype, device);
}

/* cuda_view(base, shape, stride, offset) -> tensor in the memory of base; the offset, in elements, counts from where base begins */
static PyObject *cuda_view(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    if (n != 4 || !PyTuple_CheckExact(args[1]) || !PyTuple_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "cuda_view(base, shape tuple, stride tuple, offset)");
        return NULL;
    }
    AtenTensor base = tc_launcher_tensor(args[0]), t;
    if (!base)
        return NULL;
    Py_ssize_t ndim = PyTuple_GET_SIZE(args[1]);
    int64_t *dims = alloca(sizeof(int64_t) * (2 * ndim + 1)), offset = PyLong_AsLongLong(args[3]);
    if (read_dims(args[1], args[2], dims) < 0)
        return NULL;
    if (cu.reinterpret(base, ndim, dims, dims + ndim, offset, &t)) {
        PyErr_SetString(PyExc_RuntimeError, "torch made no view of a tensor");
        return NULL;
    }
    return tc_launcher_wrap(t);
}

/* What the C functions of torch throw is printed by them and lost: the caller calls torch's own function for the message. */
static PyObject *product_result(int rc)
{
    return PyBool_FromLong(rc == 0);
}

static PyObject *product(PyObject *const *args, Py_ssize_t n, int (*f)(AtenTensor, AtenTensor, AtenTensor))
{
    AtenTensor t[3];
    if (n != 3) {
        PyErr_SetString(PyExc_TypeError, "a product takes (out, a, b)");
        return NULL;
    }
    for (int i = 0; i < 3; i++)
        if (!(t[i] = tc_launcher_tensor(args[i])))
            return NULL;
    return product_result(f(t[0], t[1], t[2]));
}

static PyObject *sum_product(PyObject *const *args, Py_ssize_t n, int (*f)(AtenTensor, AtenTensor, AtenTensor, AtenTensor, double, double))
{
    AtenTensor t[4];
    if (n != 6) {
        PyErr_SetString(PyExc_TypeError, "a product and a sum take (out, c, a, b, beta, alpha)");
        return NULL;
    }
    for (int i = 0; i < 4; i++)
        if (!(t[i] = tc_launcher_tensor(args[i])))
            return NULL;
    double beta = PyFloat_AsDouble(args[4]), alpha = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred())
        return NULL;
    return product_result(f(t[0], t[1], t[2], t[3], beta, alpha));
}

static PyObject *cuda_mm(PyObject *module, PyObject *const *args, Py_ssize_t n) { return product(args, n, cu.mm); }
static PyObject *cuda_bmm(PyObject *module, PyObject *const *args, Py_ssize_t n) { return product(args, n, cu.bmm); }
static PyObject *cuda_addmm(PyObject *module, PyObject *const *args, Py_ssize_t n) { return sum_product(args, n, cu.addmm); }
static PyObject *cuda_baddbmm(PyObject *module, PyObject *const *args, Py_ssize_t n) { return sum_product(args, n, cu.baddbmm); }

static PyMethodDef methods[] = {
    {"cuda_view", (PyCFunction)(void (*)(void))cuda_view, METH_FASTCALL, "cuda_view(base, shape, stride, offset) -> tensor in base's memory."},
    {"cuda_mm", (PyCFunction)(void (*)(void))cuda_mm, METH_FASTCALL, "cuda_mm(out, a, b) -> whether it was done."},
    {"cuda_bmm", (PyCFunction)(void (*)(void))cuda_bmm, METH_FASTCALL, "cuda_bmm(out, a, b) -> whether it was done."},
    {"cuda_addmm", (PyCFunction)(void (*)(void))cuda_addmm, METH_FASTCALL, "cuda_addmm(out, c, a, b, beta, alpha) -> whether it was done."},
    {"cuda_baddbmm", (PyCFunction)(void (*)(void))cuda_baddbmm, METH_FASTCALL, "cuda_baddbmm(out, c, a, b, beta, alpha) -> whether it was done."},
    {"cuda_setup", cuda_setup, METH_O,
     "cuda_setup(allocate) -> None, or why kernels can't be launched. allocate(shape, stride, dtype code, device) is torch's allocation, "
     "asked where the fast one failed."},
    {"cuda_load", cuda_load, METH_VARARGS, "cuda_load(binary, ((name, shared bytes), ...)) -> ((handle, registers, local bytes), ...)."},
    {"cuda_empty_strided", (PyCFunction)(void (*)(void))cuda_empty_strided, METH_FASTCALL,
     "cuda_empty_strided(shape, stride, dtype code, device index) -> tensor."},
    {NULL},
};

int tc_init_cuda(PyObject *module)
{
    if (PyModule_AddFunctions(module, methods) < 0 || PyModule_AddType(module, &CudaKernel_Type) < 0 ||
        PyModule_AddType(module, &Empty_Type) < 0 || PyModule_AddType(module, &Static_Type) < 0)
        return -1;
    return 0;
}
