/* CudaKernel: one generated kernel on one device. kernel(*tensors, *sizes, *scalars) enqueues it on torch's current
   stream. */
#include "cuda_driver.h"

#include "expressions.h"

#include <stdlib.h>

enum { MAX_FUNCTIONS = 16, MAX_ARGS = 512 };
enum {
    INT32_LIMIT = 0x7ff00000
};          /* what 32-bit indices are asked to hold stays below it: blocks reach beyond the end */

typedef struct {
    CUfunction function;
    unsigned threads, shared;
    int64_t grid;                          /* fixed number of programs */
    int waits;                             /* for the kernel before: it may start while that one ends */
} Part;

typedef union { void *p; int64_t l; int32_t i; double d; float f; } Arg;

/* How the copy engine walks through a buffer (CUtensorMap): an argument of the kernel, made anew when the buffer's
   address changes. */
typedef struct {
    _Alignas(64) char map[128];
    int buffer, type;
    int64_t offset;                        /* bytes */
    uint64_t length, lines, stride;        /* elements of a line, lines, bytes from one to the next */
    uint32_t box[2];                       /* what one copy takes */
    char *address;                         /* that `map` is of */
} Walk;

/* Kernels that serve instead: where a pointer is not a multiple of 16, where sizes pass what 32-bit indices hold, where
   the driver rejects this one. */
enum { UNALIGNED, WIDE, OTHERWISE, N_OTHERS };

enum { MAX_WALKS = 4, SWIZZLE_128B = 3, PROMOTE_128B = 2 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name;
    int n_limits;
    ExprProgram **limits, **grid; /* over the sizes, where there are any: what 32-bit indices must hold; grids, scratch
                                     offsets, scratch bytes */
    PyObject *maker[N_OTHERS], *made[N_OTHERS]; /* what makes each (or None), and what it made */
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

/* Launch a kernel that serves instead. `why`: the exception that rejected this one, or NULL; it is this function's. */
static int launch_other(CudaKernelObject *k, int which, PyObject *why, void *const *buffer, const int64_t *size,
                        const Scalar *param)
{
    if (!k->made[which]) {
        PyObject *other = why ? PyObject_CallOneArg(k->maker[which], why) : PyObject_CallNoArgs(k->maker[which]);
        Py_XDECREF(why);
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
        if (tc_cu_kernel_failed(tc_cu.tile_map(w->map, w->type, 2, address, dims, &w->stride, w->box, one, 0,
                                              SWIZZLE_128B, PROMOTE_128B, 0),
                         "cuTensorMapEncodeTiled"))
            return -1;
        w->address = address;
    }
    return 0;
}

static int launch(PyObject *self, void *const *buffer, const int64_t *size, const Scalar *param)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    if (UNLIKELY(k->made[OTHERWISE] != NULL))
        return launch(k->made[OTHERWISE], buffer, size, param);
    int n_arrays = k->n_buffers + k->n_scratch, total = n_arrays + k->n_sizes + k->n_params + MAX_WALKS;
    Arg *arg = alloca(sizeof(Arg) * total), *scalar = arg + n_arrays;
    void **pointer = alloca(sizeof(void *) * total);
    uintptr_t low = 0;
    for (int i = 0; i < k->n_buffers; i++) {
        arg[i].p = buffer[i];
        low |= (uintptr_t)buffer[i];
    }
    if (UNLIKELY(low & 15) && k->maker[UNALIGNED] != Py_None)
        return launch_other(k, UNALIGNED, NULL, buffer, size, param);
    for (int i = 0; i < k->n_sizes + k->n_params; i++) {
        char kind = k->kinds[i];
        if (kind == 'd')
            scalar[i].d = param[i - k->n_sizes].f;
        else if (kind == 'f')
            scalar[i].f = (float)param[i - k->n_sizes].f;
        else scalar[i].l = i < k->n_sizes ? size[i] : param[i - k->n_sizes].i; /* (32 bits are the first of the 64) */
    }
    for (int i = total - MAX_WALKS; i < total; i++)
        arg[i].p = NULL;                                 /* Triton's scratch for descriptors and for profiles: unused */

    int64_t *varying = NULL, *offset = k->offsets;
    if (k->grid) {
        varying = alloca(sizeof(int64_t) * (k->n_functions + k->n_scratch + 1));
        int rc = compute_grid(k, size, varying);
        if (UNLIKELY(rc))
            return rc < 0 ? -1 : launch_other(k, WIDE, NULL, buffer, size, param);
        offset = varying + k->n_functions;
    }
    CUcontext current = NULL, popped;
    int pushed = 0, enqueued = 0, rc = -1;
    if (UNLIKELY(tc_cu.context(&current) || current != k->context)) {
        if (tc_cu_failed(tc_cu.push(k->context), "cuCtxPushCurrent"))
            return -1;
        pushed = 1;
    }
    AtenTensor scratch = NULL;
    PyObject *scratch_object = NULL;
    CUstream stream = NULL;
    if (UNLIKELY(tc_cu.stream(k->device, &stream))) {
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
    if (UNLIKELY(
            k->n_walks &&
            make_walks(k, buffer))) /* last: what allocates may let another thread in, whose walks these are then */
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
            PyErr_Format(PyExc_RuntimeError, "%U needs %lld programs, and a launch holds 2^31 - 1", k->name,
                         (long long)grid);
            goto done;
        }
        LaunchAttribute early = {STARTS_EARLY, 0, 1, {0}};
        LaunchConfig config = {{(unsigned)grid, 1, 1}, {p->threads, 1, 1}, p->shared, stream, &early, 1};
        CUresult status = p->waits && tc_cu.launch_with ? tc_cu.launch_with(&config, p->function, pointer, NULL)
                                                        : tc_cu.launch(p->function, (unsigned)grid, 1, 1, p->threads, 1,
                                                                       1, p->shared, stream, pointer, NULL);
        if (UNLIKELY(tc_cu_kernel_failed(status, PyUnicode_AsUTF8(k->name))))
            goto done;
        enqueued = 1;
    }
    rc = 0;
done:
    if (scratch && !scratch_object)
        tc_torch_api.delete_tensor(scratch);
    Py_XDECREF(scratch_object);
    if (UNLIKELY(pushed))
        tc_cu.pop(&popped);
    PyObject *why = UNLIKELY(rc) && !enqueued && k->maker[OTHERWISE] != Py_None ? tc_cu_rejection() : NULL;
    return why ? launch_other(k, OTHERWISE, why, buffer, size, param) : rc;
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
    if (!tc_cu.tile_map) {
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
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(walks, i), "iiLKKKII", &w->buffer, &w->type, &offset, &length, &lines,
                              &stride, &w->box[0], &w->box[1]))
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
    static char *names[] = {"name", "device", "functions", "n_buffers", "n_sizes", "kinds", "offsets",
                            "grid", "limits", "unaligned", "wide",      "walks",   "otherwise", NULL};
    PyObject *name, *functions, *offsets, *grid, *limits, *walks, *maker[N_OTHERS] = {Py_None, Py_None, Py_None};
    int device, n_buffers, n_sizes;
    const char *kinds;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UiO!iisO!O!O!OOO!|O", names, &name, &device, &PyTuple_Type,
                                     &functions, &n_buffers, &n_sizes, &kinds, &PyTuple_Type, &offsets, &PyTuple_Type,
                                     &grid, &PyTuple_Type, &limits, &maker[UNALIGNED], &maker[WIDE], &PyTuple_Type,
                                     &walks, &maker[OTHERWISE]))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(functions), n_offsets = PyTuple_GET_SIZE(offsets);
    if (!tc_cu.ready) {
        PyErr_SetString(PyExc_RuntimeError, "cuda_setup() was not called, or failed");
        return NULL;
    }
    if (n < 1 || n > MAX_FUNCTIONS || n_offsets < 1 || n_sizes > (int)strlen(kinds) ||
        (PyTuple_GET_SIZE(grid) && PyTuple_GET_SIZE(grid) != n + n_offsets) ||
        n_buffers + n_offsets + (int)strlen(kinds) + MAX_WALKS > MAX_ARGS || PyTuple_GET_SIZE(walks) > MAX_WALKS) {
        PyErr_SetString(PyExc_ValueError, "a kernel's description is not consistent");
        return NULL;
    }
    CudaKernelObject *k = (CudaKernelObject *)type->tp_alloc(type, 0);
    if (!k)
        return NULL;
    k->vectorcall = cuda_kernel_call;
    k->name = Py_NewRef(name);
    for (int i = 0; i < N_OTHERS; i++)
        k->maker[i] = Py_NewRef(maker[i]);
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
        if (read_expressions(limits, n_sizes, (int)PyTuple_GET_SIZE(limits), &k->limits) < 0 ||
            read_expressions(grid, n_sizes, (int)PyTuple_GET_SIZE(grid), &k->grid) < 0)
            goto fail;
        k->n_limits = (int)PyTuple_GET_SIZE(limits);
    }
    if (PyErr_Occurred() || tc_cu_failed(tc_cu.context(&k->context), "cuCtxGetCurrent"))
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
    for (int i = 0; i < N_OTHERS; i++) {
        Py_VISIT(k->maker[i]);
        Py_VISIT(k->made[i]);
    }
    return 0;
}

static int cuda_kernel_clear(PyObject *self)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    for (int i = 0; i < N_OTHERS; i++) {
        Py_XSETREF(k->maker[i], Py_NewRef(Py_None));
        Py_CLEAR(k->made[i]);
    }
    return 0;
}

static void cuda_kernel_dealloc(PyObject *self)
{
    CudaKernelObject *k = (CudaKernelObject *)self;
    PyObject_GC_UnTrack(self);
    for (int i = 0; i < N_OTHERS; i++) {
        Py_CLEAR(k->maker[i]);
        Py_CLEAR(k->made[i]);
    }
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
    return PyUnicode_FromFormat("<kernel %U on cuda:%d: %d tensors, %d sizes, %d launches>", k->name, k->device,
                                k->n_buffers, k->n_sizes, k->n_functions);
}

static PyTypeObject CudaKernel_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.CudaKernel",
    .tp_doc = "CudaKernel(name, device, functions, n_buffers, n_sizes, kinds, offsets, grid, limits, unaligned, wide, "
              "walks, otherwise)\n\n"
              "A generated kernel in the current context; functions are (handle, threads, shared bytes, programs, "
              "whether it waits for the kernel before), one launch each.\n"
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

int tc_init_cuda_kernel(PyObject *module)
{
    return PyModule_AddType(module, &CudaKernel_Type);
}
