/* The GPU's launcher: kernels as Python callables that launch through CUDA's driver, and tensors on the device.

   CudaKernel   one generated kernel on one device: kernel(*tensors, *sizes, *scalars) enqueues it on torch's current stream.
   CudaStatic   the inputs and outputs of a CUDA graph: checks addresses, copies in and out.

   Nothing is linked: the driver is found by dlopen when cuda_setup() is called, torch's C functions (aoti_torch_*) in the
   libraries that torch has loaded. Where something is missing, cuda_setup() says what, and the module works without a GPU. */
#include "launcher.h"

#include "expressions.h"

#include <dlfcn.h>
#include <stdlib.h>

typedef int CUresult;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;

enum { CUDA_DEVICE_TYPE = 1, UINT8_CODE = 0, MAX_FUNCTIONS = 16, MAX_ARGS = 512 };
enum { INT32_LIMIT = 0x7ff00000 };          /* what 32-bit indices are asked to hold stays below it: blocks reach beyond the end */
enum { ATTR_LOCAL_BYTES = 3, ATTR_REGISTERS = 4, ATTR_MAX_DYNAMIC_SHARED = 8 };

static struct {
    int ready;
    CUresult (*module_load)(CUmodule *, const void *);
    CUresult (*module_function)(CUfunction *, CUmodule, const char *);
    CUresult (*function_set)(CUfunction, int, int);
    CUresult (*function_get)(int *, int, CUfunction);
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
    CUresult (*launch_with)(const void *, CUfunction, void **, void **);      /* NULL: this driver has none */
    CUresult (*error_string)(CUresult, const char **);
    CUresult (*context)(CUcontext *);
    CUresult (*push)(CUcontext);
    CUresult (*pop)(CUcontext *);
    CUresult (*is_capturing)(CUstream, int *);
    CUresult (*copy)(uint64_t, uint64_t, size_t, CUstream);
    CUresult (*tile_map)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int, int, int, int);
    int (*stream)(int32_t, void **);
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
AtenTensor tc_cuda_new(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, int device)
{
    AtenTensor t;
    if (UNLIKELY(tc_torch_api.empty_strided(ndim, shape, stride, dtype, CUDA_DEVICE_TYPE, device, &t)))
        return NULL;
    return t;
}

static PyObject *allocate_again;           /* (shape, stride, dtype code, device) -> tensor, by torch.empty_strided */

PyObject *tc_cuda_new_by_torch(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, int device)
{
    PyObject *s = PyTuple_New(ndim), *st = PyTuple_New(ndim);
    for (int64_t i = 0; s && st && i < ndim; i++) {
        PyTuple_SET_ITEM(s, i, PyLong_FromLongLong(shape[i]));
        PyTuple_SET_ITEM(st, i, PyLong_FromLongLong(stride[i]));
    }
    PyObject *o = s && st ? PyObject_CallFunction(allocate_again, "OOii", s, st, dtype, device) : NULL;
    Py_XDECREF(s);
    Py_XDECREF(st);
    return o;                              /* a tensor where the second try succeeds */
}

int tc_cuda_block(int64_t bytes, int device, AtenTensor *tensor, PyObject **object, void **data)
{
    int64_t one = 1;
    *object = NULL;
    *tensor = tc_cuda_new(1, &bytes, &one, UINT8_CODE, device);
    if (UNLIKELY(!*tensor)) {
        *object = tc_cuda_new_by_torch(1, &bytes, &one, UINT8_CODE, device);
        *tensor = *object ? tc_launcher_tensor(*object) : NULL;
    }
    if (UNLIKELY(!*tensor || tc_torch_api.data_ptr(*tensor, data))) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "a new tensor has no memory");
        if (*tensor && !*object)
            tc_torch_api.delete_tensor(*tensor);
        *tensor = NULL;
        Py_CLEAR(*object);
        return -1;
    }
    return 0;
}

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

/* ---- kernels */
typedef struct {
    CUfunction function;
    unsigned threads, shared;
    int64_t grid;                          /* fixed number of programs */
    int waits;                             /* for the kernel before: it may start while that one ends */
} Part;

typedef union { void *p; int64_t l; int32_t i; double d; float f; } Arg;

/* How the copy engine walks through a buffer (CUtensorMap): an argument of the kernel, made anew when the buffer's address changes. */
typedef struct {
    _Alignas(64) char map[128];
    int buffer, type;
    int64_t offset;                        /* bytes */
    uint64_t length, lines, stride;        /* elements of a line, lines, bytes from one to the next */
    uint32_t box[2];                       /* what one copy takes */
    char *address;                         /* that `map` is of */
} Walk;

enum { MAX_WALKS = 4, SWIZZLE_128B = 3, PROMOTE_128B = 2 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name;
    int n_limits;
    ExprProgram **limits, **grid;          /* over the sizes, where there are any: what 32-bit indices must hold; grids, scratch offsets, scratch bytes */
    PyObject *unaligned;                   /* makes the kernel that serves where a pointer is not a multiple of 16, or None */
    PyObject *wide;                        /* makes the kernel that serves where a limit is passed, or None */
    PyObject *made[2];                     /* those two, once made */
    CUcontext context;
    int device, n_functions, n_buffers, n_scratch, n_sizes, n_params;
    char *kinds;                           /* of sizes and params: 'i' 32 bits, 'l' 64 bits, 'f' float, 'd' double */
    int64_t *offsets;                      /* of scratch, then the bytes of all, where fixed */
    int n_walks;
    Walk *walks;                           /* last arguments of the kernel, in place of Triton's own */
    void *walks_memory;
    Part parts[MAX_FUNCTIONS];
} CudaKernelObject;

static int launch(PyObject *self, void *const *buffer, const int64_t *size, const Scalar *param);

/* Launch the kernel that serves instead; `which`: 0 for pointers of any alignment, 1 for 64-bit indices. */
static int launch_other(CudaKernelObject *k, int which, void *const *buffer, const int64_t *size, const Scalar *param)
{
    if (!k->made[which]) {
        PyObject *other = PyObject_CallNoArgs(which ? k->wide : k->unaligned);
        if (!other)
            return -1;
        if (Py_TYPE(other) != Py_TYPE(k)) {
            PyErr_SetString(PyExc_TypeError, "a kernel was expected");
            Py_DECREF(other);
            return -1;
        }
        if (k->made[which])
            Py_DECREF(other);              /* another thread made it meanwhile, and may be launching it */
        else
            k->made[which] = other;
    }
    return launch(k->made[which], buffer, size, param);
}

/* grids and scratch offsets of these sizes; 1 where a limit is passed */
static int compute_grid(CudaKernelObject *k, const int64_t *size, int64_t *out)
{
    int64_t v;
    for (int i = 0; i < k->n_limits; i++)
        if (!tc_expr_run(k->limits[i], size, &v) || v >= INT32_LIMIT)
            return 1;
    for (int i = 0; i < k->n_functions + k->n_scratch + 1; i++)
        if (!tc_expr_run(k->grid[i], size, &out[i])) {
            PyErr_SetString(PyExc_OverflowError, "sizes of a compiled graph do not fit 64 bits");
            return -1;
        }
    return 0;
}

static int make_walks(CudaKernelObject *k, void *const *buffer)
{
    static const uint32_t one[2] = {1, 1};
    for (int i = 0; i < k->n_walks; i++) {
        Walk *w = &k->walks[i];
        char *address = (char *)buffer[w->buffer] + w->offset;
        if (LIKELY(address == w->address))
            continue;
        uint64_t dims[2] = {w->length, w->lines};
        w->address = NULL;
        if (failed(cu.tile_map(w->map, w->type, 2, address, dims, &w->stride, w->box, one, 0, SWIZZLE_128B, PROMOTE_128B, 0), "cuTensorMapEncodeTiled"))
            return -1;
        w->address = address;
    }
    return 0;
}

static int launch(PyObject *self, void *const *buffer, const int64_t *size, const Scalar *param)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    int n_arrays = k->n_buffers + k->n_scratch, total = n_arrays + k->n_sizes + k->n_params + MAX_WALKS;
    Arg *arg = alloca(sizeof(Arg) * total), *scalar = arg + n_arrays;
    void **pointer = alloca(sizeof(void *) * total);
    uintptr_t low = 0;
    for (int i = 0; i < k->n_buffers; i++) {
        arg[i].p = buffer[i];
        low |= (uintptr_t)buffer[i];
    }
    if (UNLIKELY(low & 15) && k->unaligned != Py_None)
        return launch_other(k, 0, buffer, size, param);
    for (int i = 0; i < k->n_sizes + k->n_params; i++) {
        char kind = k->kinds[i];
        if (kind == 'd')
            scalar[i].d = param[i - k->n_sizes].f;
        else if (kind == 'f')
            scalar[i].f = (float)param[i - k->n_sizes].f;
        else
            scalar[i].l = i < k->n_sizes ? size[i] : param[i - k->n_sizes].i;      /* (32 bits are the first of the 64) */
    }
    for (int i = total - MAX_WALKS; i < total; i++)
        arg[i].p = NULL;                                 /* Triton's scratch for descriptors and for profiles: unused */

    int64_t *varying = NULL, *offset = k->offsets;
    if (k->grid) {
        varying = alloca(sizeof(int64_t) * (k->n_functions + k->n_scratch + 1));
        int rc = compute_grid(k, size, varying);
        if (UNLIKELY(rc))
            return rc < 0 ? -1 : launch_other(k, 1, buffer, size, param);
        offset = varying + k->n_functions;
    }
    CUcontext current = NULL, popped;
    int pushed = 0, rc = -1;
    if (UNLIKELY(cu.context(&current) || current != k->context)) {
        if (failed(cu.push(k->context), "cuCtxPushCurrent"))
            return -1;
        pushed = 1;
    }
    AtenTensor scratch = NULL;
    PyObject *scratch_object = NULL;
    CUstream stream = NULL;
    if (UNLIKELY(cu.stream(k->device, &stream))) {
        PyErr_SetString(PyExc_RuntimeError, "torch gave no current CUDA stream");
        goto done;
    }
    if (k->n_scratch) {
        void *base;
        if (UNLIKELY(tc_cuda_block(offset[k->n_scratch], k->device, &scratch, &scratch_object, &base)))
            goto done;
        for (int i = 0; i < k->n_scratch; i++)
            arg[k->n_buffers + i].p = (char *)base + offset[i];
    }
    if (UNLIKELY(k->n_walks && make_walks(k, buffer)))   /* last: what allocates may let another thread in, whose walks these are then */
        goto done;
    for (int i = 0; i < total; i++)
        pointer[i] = &arg[i];
    for (int i = 0; i < k->n_walks; i++)
        pointer[total - MAX_WALKS + i] = k->walks[i].map;
    for (int i = 0; i < k->n_functions; i++) {
        Part *p = &k->parts[i];
        int64_t grid = varying ? varying[i] : p->grid;
        if (grid <= 0)
            continue;
        if (UNLIKELY(grid > 0x7fffffff)) {
            PyErr_Format(PyExc_RuntimeError, "%U needs %lld programs, and a launch holds 2^31 - 1", k->name, (long long)grid);
            goto done;
        }
        LaunchAttribute early = {STARTS_EARLY, 0, 1, {0}};
        LaunchConfig config = {{(unsigned)grid, 1, 1}, {p->threads, 1, 1}, p->shared, stream, &early, 1};
        CUresult status = p->waits && cu.launch_with ? cu.launch_with(&config, p->function, pointer, NULL) :
                          cu.launch(p->function, (unsigned)grid, 1, 1, p->threads, 1, 1, p->shared, stream, pointer, NULL);
        if (UNLIKELY(failed(status, PyUnicode_AsUTF8(k->name))))
            goto done;
    }
    rc = 0;
done:
    if (scratch && !scratch_object)
        tc_torch_api.delete_tensor(scratch);
    Py_XDECREF(scratch_object);
    if (UNLIKELY(pushed))
        cu.pop(&popped);
    return rc;
}

static inline KernelFacts facts_of(const CudaKernelObject *k)
{
    return (KernelFacts){k->n_buffers, k->n_sizes, k->n_params, k->kinds + k->n_sizes, launch};
}

static PyObject *cuda_kernel_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    KernelFacts facts = facts_of((CudaKernelObject *)self);
    return tc_kernel_call(self, ((CudaKernelObject *)self)->name, &facts, args, nargsf, kwnames);
}

static int read_expressions(PyObject *codes, int n_sizes, int want, ExprProgram ***out)
{
    *out = calloc((size_t)want + 1, sizeof **out);
    if (!*out) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < want; i++)
        if (!((*out)[i] = tc_expr_new(PyTuple_GET_ITEM(codes, i), n_sizes)))
            return -1;
    return 0;
}

static int read_walks(CudaKernelObject *k, PyObject *walks)
{
    Py_ssize_t n = PyTuple_GET_SIZE(walks);
    if (!cu.tile_map) {
        PyErr_SetString(PyExc_RuntimeError, "this driver has no cuTensorMapEncodeTiled");
        return -1;
    }
    k->walks_memory = calloc(1, (n + 1) * sizeof(Walk));
    if (!k->walks_memory) {
        PyErr_NoMemory();
        return -1;
    }
    k->walks = (Walk *)(((uintptr_t)k->walks_memory + 63) & ~(uintptr_t)63);
    for (Py_ssize_t i = 0; i < n; i++) {
        Walk *w = &k->walks[i];
        unsigned long long length, lines, stride;
        long long offset;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(walks, i), "iiLKKKII", &w->buffer, &w->type, &offset, &length, &lines, &stride, &w->box[0], &w->box[1]))
            return -1;
        if (w->buffer < 0 || w->buffer >= k->n_buffers) {
            PyErr_SetString(PyExc_ValueError, "a walk goes through a buffer that is not there");
            return -1;
        }
        w->offset = offset, w->length = length, w->lines = lines, w->stride = stride;
    }
    k->n_walks = (int)n;
    return 0;
}

static PyObject *cuda_kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "device", "functions", "n_buffers", "n_sizes", "kinds", "offsets", "grid", "limits", "unaligned", "wide", "walks", NULL};
    PyObject *name, *functions, *offsets, *grid, *limits, *unaligned, *wide, *walks;
    int device, n_buffers, n_sizes;
    const char *kinds;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UiO!iisO!O!O!OOO!", names, &name, &device, &PyTuple_Type, &functions, &n_buffers, &n_sizes,
                                     &kinds, &PyTuple_Type, &offsets, &PyTuple_Type, &grid, &PyTuple_Type, &limits, &unaligned, &wide, &PyTuple_Type, &walks))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(functions), n_offsets = PyTuple_GET_SIZE(offsets);
    if (!cu.ready) {
        PyErr_SetString(PyExc_RuntimeError, "cuda_setup() was not called, or failed");
        return NULL;
    }
    if (n < 1 || n > MAX_FUNCTIONS || n_offsets < 1 || n_sizes > (int)strlen(kinds) || (PyTuple_GET_SIZE(grid) && PyTuple_GET_SIZE(grid) != n + n_offsets) ||
         n_buffers + n_offsets + (int)strlen(kinds) + MAX_WALKS > MAX_ARGS || PyTuple_GET_SIZE(walks) > MAX_WALKS) {
        PyErr_SetString(PyExc_ValueError, "a kernel's description is not consistent");
        return NULL;
    }
    CudaKernelObject *k = (CudaKernelObject *)type->tp_alloc(type, 0);
    if (!k)
        return NULL;
    k->vectorcall = cuda_kernel_call;
    k->name = Py_NewRef(name);
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
        int waits = 0;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(functions, i), "KIIL|p", &function, &threads, &shared, &count, &waits))
            goto fail;
        k->parts[i] = (Part){(CUfunction)(uintptr_t)function, threads, shared, count, waits};
    }
    if (PyTuple_GET_SIZE(walks) && read_walks(k, walks) < 0)
        goto fail;
    if (PyTuple_GET_SIZE(grid)) {
        if (read_expressions(limits, n_sizes, (int)PyTuple_GET_SIZE(limits), &k->limits) < 0 || read_expressions(grid, n_sizes, (int)PyTuple_GET_SIZE(grid), &k->grid) < 0)
            goto fail;
        k->n_limits = (int)PyTuple_GET_SIZE(limits);
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
    Py_VISIT(k->unaligned);
    Py_VISIT(k->wide);
    Py_VISIT(k->made[0]);
    Py_VISIT(k->made[1]);
    return 0;
}

static int cuda_kernel_clear(PyObject *self)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    Py_XSETREF(k->unaligned, Py_NewRef(Py_None));
    Py_XSETREF(k->wide, Py_NewRef(Py_None));
    Py_CLEAR(k->made[0]);
    Py_CLEAR(k->made[1]);
    return 0;
}

static void cuda_kernel_dealloc(PyObject *self)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    PyObject_GC_UnTrack(self);
    Py_CLEAR(k->unaligned);
    Py_CLEAR(k->wide);
    Py_CLEAR(k->made[0]);
    Py_CLEAR(k->made[1]);
    Py_CLEAR(k->name);
    for (int i = 0; k->limits && k->limits[i]; i++)
        tc_expr_free(k->limits[i]);
    for (int i = 0; k->grid && k->grid[i]; i++)
        tc_expr_free(k->grid[i]);
    free(k->walks_memory);
    free(k->limits);
    free(k->grid);
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
    .tp_doc = "CudaKernel(name, device, functions, n_buffers, n_sizes, kinds, offsets, grid, limits, unaligned, wide, walks)\n\n"
              "A generated kernel in the current context; functions are (handle, threads, shared bytes, programs, whether it waits for the kernel before), one launch each.\n"
              "kernel(*tensors, *sizes, *scalars) enqueues it. See compiler/runtime/gpu/gpu_kernels.py.",
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

int tc_cuda_kernel_facts(PyObject *kernel, KernelFacts *out)
{
    if (Py_TYPE(kernel) != &CudaKernel_Type) {
        PyErr_SetString(PyExc_TypeError, "a kernel was expected");
        return -1;
    }
    *out = facts_of((CudaKernelObject *)kernel);
    return 0;
}

/* ---- inputs and outputs of a CUDA graph */
typedef struct {
    int index;                             /* of the input */
    uint64_t address;
    int64_t bytes;                         /* to copy to the address; -1: the input must be there already */
} StaticInput;

typedef struct {
    int kind, index;                       /* OUT_COPY: of dims; OUT_INPUT: of the input; OUT_OBJECT, OUT_VIEW: of the object */
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
        AtenTensor t = in->index < PyTuple_GET_SIZE(inputs) ? tc_launcher_tensor(PyTuple_GET_ITEM(inputs, in->index)) : NULL;
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

/* A new tensor over the memory of `like`, which lies there as `like` does. */
static PyObject *view_of(PyObject *like)
{
    AtenTensor t = tc_launcher_tensor(like), view;
    int64_t ndim, *shape, *stride;
    if (UNLIKELY(!t || tc_torch_api.ndim(t, &ndim) || tc_torch_api.sizes(t, &shape) || tc_torch_api.strides(t, &stride) ||
                 tc_torch_api.reinterpret(t, ndim, shape, stride, 0, &view)))
        return NULL;
    return tc_launcher_wrap(view);
}

/* results(inputs) -> tuple: new tensors with what the graph left, and views of what stays there */
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
            if (value && o->bytes > 0 && (!t || tc_torch_api.data_ptr(t, &p) || failed(cu.copy((uint64_t)(uintptr_t)p, o->address, (size_t)o->bytes, stream), "cuMemcpyDtoDAsync")))
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
    {"load", static_load, METH_O, "load(inputs) -> -1 after copying what has to be copied, or the number of an input that is at another address."},
    {"results", static_results, METH_O, "results(inputs) -> tuple: copies of the graph's results, and views of those that stay."},
    {NULL},
};

static PyTypeObject Static_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.CudaStatic",
    .tp_doc = "CudaStatic(device, inputs, outputs, objects)\n\n"
              "inputs: (index, address, bytes to copy there, or -1 where the input must be there); outputs: (0, bytes, address, shape, stride,\n"
              "dtype code) for a copy (0 bytes: only the memory is made), (1, input, 0, (), (), 0), (2, object, 0, (), (), 0), and (3, object, 0, (), (), 0)\n"
              "for a view of a tensor. See compiler/runtime/gpu/cuda_graphs.py.",
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
    void *gpu = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!gpu)
        return PyUnicode_FromString("libtorch_cuda.so is not loaded under this name");
    FIND(driver, module_load, "cuModuleLoadData");
    FIND(driver, module_function, "cuModuleGetFunction");
    FIND(driver, function_set, "cuFuncSetAttribute");
    FIND(driver, function_get, "cuFuncGetAttribute");
    FIND(driver, launch, "cuLaunchKernel");
    *(void **)&cu.launch_with = dlsym(driver, "cuLaunchKernelEx");
    FIND(driver, error_string, "cuGetErrorString");
    FIND(driver, context, "cuCtxGetCurrent");
    FIND(driver, push, "cuCtxPushCurrent_v2");
    FIND(driver, pop, "cuCtxPopCurrent_v2");
    FIND(driver, is_capturing, "cuStreamIsCapturing");
    FIND(driver, copy, "cuMemcpyDtoDAsync_v2");
    *(void **)&cu.tile_map = dlsym(driver, "cuTensorMapEncodeTiled");
    FIND(gpu, stream, "aoti_torch_get_current_cuda_stream");
    tc_torch_api.products[1][PRODUCT_MM] = dlsym(gpu, "aoti_torch_cuda_mm_out");
    tc_torch_api.products[1][PRODUCT_BMM] = dlsym(gpu, "aoti_torch_cuda_bmm_out");
    tc_torch_api.products[1][PRODUCT_ADDMM] = dlsym(gpu, "aoti_torch_cuda_addmm_out");
    tc_torch_api.products[1][PRODUCT_BADDBMM] = dlsym(gpu, "aoti_torch_cuda_baddbmm_out");
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

static PyMethodDef methods[] = {
    {"cuda_setup", cuda_setup, METH_O,
     "cuda_setup(allocate) -> None, or why kernels can't be launched. allocate(shape, stride, dtype code, device) is torch's allocation, "
     "asked where the fast one failed."},
    {"cuda_load", cuda_load, METH_VARARGS, "cuda_load(binary, ((name, shared bytes), ...)) -> ((handle, registers, local bytes), ...)."},
    {NULL},
};

int tc_cuda_ready(void) { return cu.ready; }
int tc_cuda_stream(int device, void **stream) { return cu.stream(device, stream); }
int tc_cuda_capturing(void *stream)
{
    int status = 0;
    return cu.is_capturing(stream, &status) || status;
}

void *tc_cuda_context(void)
{
    CUcontext c = NULL;
    return cu.context(&c) ? NULL : c;
}

int tc_init_cuda(PyObject *module)
{
    if (PyModule_AddFunctions(module, methods) < 0 || PyModule_AddType(module, &CudaKernel_Type) < 0 ||
        PyModule_AddType(module, &Static_Type) < 0)
        return -1;
    return 0;
}
