/* The CPU launcher.

   Kernel    one generated kernel: kernel(*tensors, *sizes, *scalars) runs it.
   Empty     allocates one tensor of fixed dtype: empty(*shape and strides where they vary) -> tensor.

   Threads are those of the OpenMP runtime that torch itself uses: it is found through libtorch_cpu's own dependencies,
   so there is never a second pool of threads. After a fork the child runs serially, because OpenMP's threads do not
   survive it. Tensors are read and made through the C functions that libtorch exports for ahead-of-time compiled code
   (aoti_torch_*), which keep their form between versions; the address of the C++ tensor in a Python tensor is looked up
   on a sample at setup. Where anything of that is missing, setup() says so and the Python launcher serves. */
#include "launcher.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define RELEASE_GIL_PS 20000000LL      /* release the GIL around work of more than 20 us */
#define SERIAL_PS 12000000LL           /* no second thread below 12 us */
#define PER_THREAD_PS 5000000LL        /* at least 5 us of work for each thread */
#define MOST_LEFT (64LL << 20)         /* bytes of scratch memory that stay between calls */

TorchApi tc_torch_api;

static int forked;                     /* this process is the child of a fork */

static void after_fork(void) { forked = 1; }

/* ---- scratch memory
   A block that goes back to the system after each call comes again page by page: 2,300 faults of 4 KB took 4 of a small
   UNet's 14 ms. The largest of those that were given back stays for the next call. Whoever calls holds the GIL. */
static struct {
    char *data;
    int64_t bytes;
} left;

char *tc_take_scratch(int64_t *bytes)
{
    char *data = NULL;
    if (left.bytes >= *bytes) {
        data = left.data;
        *bytes = left.bytes;
        left.data = NULL;
        left.bytes = 0;
    } else if (posix_memalign((void **)&data, 64, (size_t)*bytes)) {
        PyErr_NoMemory();
        return NULL;
    }
    return data;
}

void tc_leave_scratch(char *data, int64_t bytes)
{
    if (bytes > left.bytes && bytes <= MOST_LEFT) {
        free(left.data);
        left.data = data;
        left.bytes = bytes;
    } else {
        free(data);
    }
}

/* ---- running one phase on several threads */
typedef struct {
    KernelFn fn;
    void *const *buffer;
    const int64_t *size;
    const Scalar *param;
    char *scratch;
    int64_t items, grain;
    int64_t next;
    int failed;
} Job;

static void work(void *p)
{
    Job *job = p;
    for (;;) {
        int64_t begin = __atomic_fetch_add(&job->next, job->grain, __ATOMIC_RELAXED);
        if (begin >= job->items)
            return;
        int64_t end = begin + job->grain < job->items ? begin + job->grain : job->items;
        int rc = job->fn(job->buffer, job->size, job->param, job->scratch, begin, end);
        if (UNLIKELY(rc))
            __atomic_store_n(&job->failed, rc, __ATOMIC_RELAXED);
    }
}

static int run_phase(KernelFn fn, void *const *buffer, const int64_t *size, const Scalar *param, char *scratch,
                     int64_t items, int64_t item_ps, int limit)
{
    if (items <= 0)
        return 0;
    double total = (double)items * (double)item_ps;
    if (items > 1 && total > SERIAL_PS && tc_torch_api.parallel && !forked) {
        int threads = tc_torch_api.max_threads();
        if (limit > 0 && threads > limit)
            threads = limit;
        double useful = total / PER_THREAD_PS;
        if (useful < threads)
            threads = (int)useful;
        if (items < threads)
            threads = (int)items;
        if (threads > 1 && !tc_torch_api.in_parallel()) {
            /* each thread takes ranges in turn: the last ones level out uneven speed */
            int64_t grain = items / (threads * 4);
            Job job = {fn, buffer, size, param, scratch, items, grain > 0 ? grain : 1, 0, 0};
            tc_torch_api.parallel(work, &job, (unsigned)threads, 0);
            return job.failed;
        }
    }
    return fn(buffer, size, param, scratch, 0, items);
}

/* Runs a kernel; returns 0, 1 + the position of a failed check, or -1 with MemoryError set. */
static int run_kernel(KernelObject *k, void *const *buffer, const int64_t *size, const Scalar *param)
{
    int64_t local[1 + 2 * MAX_PHASES];
    const int64_t *plan = k->fixed;
    if (k->n_sizes) {
        k->plan(size, local);
        plan = local;
    }
    char *scratch = NULL;
    int64_t bytes = plan[0];
    if (bytes > 0 && !(scratch = tc_take_scratch(&bytes)))
        return -1;
    double total = 0;
    for (int i = 0; i < k->n_phases; i++)
        total += (double)plan[1 + 2 * i] * (double)plan[2 + 2 * i];
    int rc = 0;
    PyThreadState *saved = total > RELEASE_GIL_PS ? PyEval_SaveThread() : NULL;
    for (int i = 0; i < k->n_phases && !rc; i++)
        rc = run_phase(k->phases[i], buffer, size, param, scratch, plan[1 + 2 * i], plan[2 + 2 * i], k->threads);
    if (saved)
        PyEval_RestoreThread(saved);
    if (scratch)
        tc_leave_scratch(scratch, bytes);
    return rc;
}

static void raise_check(KernelObject *k, int rc)
{
    if (rc < 0)
        return;
    PyObject *message = PyTuple_GetItem(k->checks, rc - 1);
    if (!message)
        return;
    PyObject *error = PyObject_CallOneArg(k->make_error, message);
    if (error) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
}

/* ---- tensors */
AtenTensor tc_launcher_tensor(PyObject *o)
{
    if (UNLIKELY(!PyObject_TypeCheck(o, tc_torch_api.tensor_type))) {
        PyErr_Format(PyExc_TypeError, "compiled code expected a tensor, got %s", Py_TYPE(o)->tp_name);
        return NULL;
    }
    return (char *)o + tc_torch_api.tensor_offset;
}

static inline int tensor_data(PyObject *o, void **out)
{
    AtenTensor t = tc_launcher_tensor(o);
    if (UNLIKELY(!t))
        return -1;
    if (UNLIKELY(tc_torch_api.data_ptr(t, out))) {
        PyErr_SetString(PyExc_RuntimeError, "compiled code was given a tensor without memory");
        return -1;
    }
    return 0;
}

static PyObject *new_tensor(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, void **data)
{
    AtenTensor t;
    if (UNLIKELY(tc_torch_api.empty_strided(ndim, shape, stride, dtype, 0, 0, &t))) {
        PyErr_NoMemory();
        return NULL;
    }
    if (data && UNLIKELY(tc_torch_api.data_ptr(t, data))) {
        tc_torch_api.delete_tensor(t);
        PyErr_SetString(PyExc_RuntimeError, "a new tensor has no memory");
        return NULL;
    }
    PyObject *o = tc_torch_api.wrap(t);
    tc_torch_api.delete_tensor(t);
    return o;
}

int tc_launcher_ready(void) { return tc_torch_api.ready; }
PyObject *tc_launcher_wrap(AtenTensor t)
{
    PyObject *o = tc_torch_api.wrap(t);
    tc_torch_api.delete_tensor(t);
    return o;
}

/* ---- Kernel */
int tc_fill_scalar(PyObject *o, char kind, Scalar *out)
{
    if (kind == 'f' || kind == 'd')
        out->f = PyFloat_CheckExact(o) ? PyFloat_AS_DOUBLE(o) : PyFloat_AsDouble(o);
    else
        out->i = PyLong_AsLongLong(o);
    return PyErr_Occurred() ? -1 : 0;
}

static int run_checked(PyObject *self, void *const *buffer, const int64_t *size, const Scalar *param)
{
    int rc = run_kernel((KernelObject *)self, buffer, size, param);
    if (LIKELY(!rc))
        return 0;
    raise_check((KernelObject *)self, rc);
    return -1;
}

PyObject *tc_kernel_call(PyObject *self, PyObject *name, const KernelFacts *k, PyObject *const *args, size_t nargsf,
                         PyObject *kwnames)
{
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (UNLIKELY(n != k->n_buffers + k->n_sizes + k->n_params || (kwnames && PyTuple_GET_SIZE(kwnames)))) {
        PyErr_Format(PyExc_TypeError, "%U takes %d tensors, %d sizes and %d scalars, got %zd arguments", name,
                     k->n_buffers, k->n_sizes, k->n_params, n);
        return NULL;
    }
    void **buffer = alloca(sizeof(void *) * (k->n_buffers + 1));
    int64_t *size = alloca(sizeof(int64_t) * (k->n_sizes + 1));
    Scalar *param = alloca(sizeof(Scalar) * (k->n_params + 1));
    int i;
    for (i = 0; i < k->n_buffers; i++)
        if (UNLIKELY(tensor_data(args[i], &buffer[i])))
            return NULL;
    args += k->n_buffers;
    for (i = 0; i < k->n_sizes; i++) {
        size[i] = PyLong_AsLongLong(args[i]);
        if (UNLIKELY(size[i] == -1 && PyErr_Occurred()))
            return NULL;
    }
    args += k->n_sizes;
    for (i = 0; i < k->n_params; i++)
        if (UNLIKELY(tc_fill_scalar(args[i], k->param_kinds[i], &param[i])))
            return NULL;
    if (UNLIKELY(k->run(self, buffer, size, param)))
        return NULL;
    Py_RETURN_NONE;
}

static inline KernelFacts facts_of(const KernelObject *k)
{
    return (KernelFacts){k->n_buffers, k->n_sizes, k->n_params, k->param_kinds, run_checked};
}

static PyObject *kernel_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    KernelFacts facts = facts_of((KernelObject *)self);
    return tc_kernel_call(self, ((KernelObject *)self)->name, &facts, args, nargsf, kwnames);
}

static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name",        "library", "phases",     "plan",    "n_buffers", "n_sizes",
                            "param_kinds", "checks",  "make_error", "threads", NULL};
    PyObject *name, *library, *phases, *checks, *make_error;
    unsigned long long plan;
    int n_buffers, n_sizes, threads = 0;
    const char *param_kinds;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UOO!KiisO!O|i", names, &name, &library, &PyTuple_Type, &phases,
                                     &plan, &n_buffers, &n_sizes, &param_kinds, &PyTuple_Type, &checks, &make_error,
                                     &threads))
        return NULL;
    if (!tc_torch_api.ready) {
        PyErr_SetString(PyExc_RuntimeError, "launcher_setup() was not called, or failed");
        return NULL;
    }
    if (PyTuple_GET_SIZE(phases) > MAX_PHASES || PyTuple_GET_SIZE(phases) < 1) {
        PyErr_Format(PyExc_ValueError, "a kernel has 1 to %d phases, got %zd", MAX_PHASES, PyTuple_GET_SIZE(phases));
        return NULL;
    }
    KernelObject *k = (KernelObject *)type->tp_alloc(type, 0);
    if (!k)
        return NULL;
    k->vectorcall = kernel_call;
    k->name = Py_NewRef(name);
    k->library = Py_NewRef(library);
    k->checks = Py_NewRef(checks);
    k->make_error = Py_NewRef(make_error);
    k->n_buffers = n_buffers;
    k->n_sizes = n_sizes;
    k->n_params = (int)strlen(param_kinds);
    k->threads = threads;
    k->param_kinds = strdup(param_kinds);
    k->n_phases = (int)PyTuple_GET_SIZE(phases);
    k->plan = (PlanFn)(uintptr_t)plan;
    for (int i = 0; i < k->n_phases; i++)
        k->phases[i] = (KernelFn)(uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(phases, i));
    if (PyErr_Occurred() || !k->param_kinds) {
        Py_DECREF(k);
        return NULL;
    }
    if (!n_sizes)
        k->plan(NULL, k->fixed);
    return (PyObject *)k;
}

static int kernel_traverse(PyObject *self, visitproc visit, void *arg)
{
    KernelObject *k = (KernelObject *)self;
    Py_VISIT(k->library);
    Py_VISIT(k->make_error);
    return 0;
}

static int kernel_clear(PyObject *self)
{
    KernelObject *k = (KernelObject *)self;
    Py_CLEAR(k->library);
    Py_CLEAR(k->make_error);
    return 0;
}

static void kernel_dealloc(PyObject *self)
{
    KernelObject *k = (KernelObject *)self;
    PyObject_GC_UnTrack(self);
    kernel_clear(self);
    Py_CLEAR(k->name);
    Py_CLEAR(k->checks);
    free(k->param_kinds);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *kernel_repr(PyObject *self)
{
    KernelObject *k = (KernelObject *)self;
    return PyUnicode_FromFormat("<kernel %U: %d tensors, %d sizes, %d scalars>", k->name, k->n_buffers, k->n_sizes,
                                k->n_params);
}

static PyObject *kernel_get_threads(PyObject *self, void *unused)
{
    return PyLong_FromLong(((KernelObject *)self)->threads);
}

static int kernel_set_threads(PyObject *self, PyObject *value, void *unused)
{
    long n = value ? PyLong_AsLong(value) : 0;
    if (n == -1 && PyErr_Occurred())
        return -1;
    ((KernelObject *)self)->threads = (int)n;
    return 0;
}

static PyGetSetDef kernel_getset[] = {
    {"threads", kernel_get_threads, kernel_set_threads, "Most threads it may use; 0: as many as torch.", NULL},
    {NULL},
};

static PyTypeObject Kernel_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.Kernel",
    .tp_doc = "Kernel(name, library, phases, plan, n_buffers, n_sizes, param_kinds, checks, make_error, threads=0)\n\n"
              "A generated kernel; phases and plan are addresses of its functions. kernel(*tensors, *sizes, *scalars) "
              "runs it.",
    .tp_basicsize = sizeof(KernelObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = kernel_new,
    .tp_dealloc = kernel_dealloc,
    .tp_traverse = kernel_traverse,
    .tp_clear = kernel_clear,
    .tp_repr = kernel_repr,
    .tp_getset = kernel_getset,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(KernelObject, vectorcall),
};

int tc_kernel_facts(PyObject *kernel, KernelFacts *out)
{
    if (Py_TYPE(kernel) != &Kernel_Type)
        return tc_cuda_kernel_facts(kernel, out);
    *out = facts_of((KernelObject *)kernel);
    return 0;
}

/* ---- functions of the module */
static PyObject *empty_strided(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    if (n != 3 || !PyTuple_CheckExact(args[0]) || !PyTuple_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "empty_strided(shape tuple, stride tuple, dtype code)");
        return NULL;
    }
    Py_ssize_t ndim = PyTuple_GET_SIZE(args[0]);
    if (PyTuple_GET_SIZE(args[1]) != ndim) {
        PyErr_SetString(PyExc_ValueError, "shape and stride have different lengths");
        return NULL;
    }
    int64_t *dims = alloca(sizeof(int64_t) * (2 * ndim + 1));
    for (Py_ssize_t i = 0; i < ndim; i++) {
        dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(args[0], i));
        dims[ndim + i] = PyLong_AsLongLong(PyTuple_GET_ITEM(args[1], i));
    }
    int dtype = (int)PyLong_AsLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    return new_tensor(ndim, dims, dims + ndim, dtype, NULL);
}

#define FIND(lib, field, name)                                         \
    do {                                                               \
        *(void **)&tc_torch_api.field = dlsym(lib, name);                 \
        if (!tc_torch_api.field)                                          \
            return PyUnicode_FromString("libtorch does not export " name); \
    } while (0)

/* Returns None, or a string that says why the launcher can't be used with this torch. */
static PyObject *launcher_setup(PyObject *module, PyObject *args)
{
    PyObject *sample, *tensor_type, *none = Py_None;
    unsigned long long cdata, data_ptr;
    if (!PyArg_ParseTuple(args, "OO!KK", &sample, &PyType_Type, &tensor_type, &cdata, &data_ptr))
        return NULL;
    tc_torch_api.ready = 0;
    void *cpu = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY),
         *python = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!cpu || !python)
        return PyUnicode_FromString("libtorch_cpu.so and libtorch_python.so are not loaded under these names");
    FIND(cpu, data_ptr, "aoti_torch_get_data_ptr");
    FIND(cpu, sizes, "aoti_torch_get_sizes");
    FIND(cpu, strides, "aoti_torch_get_strides");
    FIND(cpu, ndim, "aoti_torch_get_dim");
    FIND(cpu, layout, "aoti_torch_get_layout");
    FIND(cpu, empty_strided, "aoti_torch_empty_strided");
    FIND(cpu, from_blob, "aoti_torch_create_tensor_from_blob");
    FIND(cpu, reinterpret, "aoti_torch__reinterpret_tensor");
    FIND(cpu, grad_enabled, "aoti_torch_grad_mode_is_enabled");
    FIND(cpu, set_grad_enabled, "aoti_torch_grad_mode_set_enabled");
    tc_torch_api.products[0][PRODUCT_MM] = dlsym(cpu, "aoti_torch_cpu_mm_out");
    tc_torch_api.products[0][PRODUCT_BMM] = dlsym(cpu, "aoti_torch_cpu_bmm_out");
    tc_torch_api.products[0][PRODUCT_ADDMM] = dlsym(cpu, "aoti_torch_cpu_addmm_out");
    tc_torch_api.products[0][PRODUCT_BADDBMM] = dlsym(cpu, "aoti_torch_cpu_baddbmm_out");
#define FIND_IN_TORCH(name) dlsym(cpu, name)
    BLAS_FIND(&tc_torch_api.blas, FIND_IN_TORCH);
    FIND(cpu, delete_tensor, "aoti_torch_delete_tensor_object");
    int (*new_undefined)(AtenTensor *);
    *(void **)&new_undefined = dlsym(cpu, "aoti_torch_new_uninitialized_tensor");
    if (!tc_torch_api.undefined && new_undefined && new_undefined(&tc_torch_api.undefined))
        tc_torch_api.undefined = NULL;
    FIND(python, wrap, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
    tc_torch_api.tensor_offset = 0;
    for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(void *) <= Py_TYPE(sample)->tp_basicsize && at < 80;
         at += sizeof(void *))
        if (*(uintptr_t *)((char *)sample + at) == (uintptr_t)cdata) {
            tc_torch_api.tensor_offset = at;
            break;
        }
    if (!tc_torch_api.tensor_offset)
        return PyUnicode_FromString("the C++ tensor is not where it was expected in a Python tensor");
    void *found = NULL;
    if (tc_torch_api.data_ptr((char *)sample + tc_torch_api.tensor_offset, &found) ||
        (uintptr_t)found != (uintptr_t)data_ptr)
        return PyUnicode_FromString("the C++ tensor in a Python tensor does not give its address");
    /* dlsym searches the library's own dependencies: this is the OpenMP runtime that torch uses, whatever it is
       called */
    *(void **)&tc_torch_api.parallel = dlsym(cpu, "GOMP_parallel");
    *(void **)&tc_torch_api.max_threads = dlsym(cpu, "omp_get_max_threads");
    *(void **)&tc_torch_api.in_parallel = dlsym(cpu, "omp_in_parallel");
    if (!tc_torch_api.max_threads || !tc_torch_api.in_parallel)
        tc_torch_api.parallel = NULL;
    Py_XSETREF(*(PyObject **)&tc_torch_api.tensor_type, Py_NewRef(tensor_type));
    tc_torch_api.ready = 1;
    return Py_NewRef(none);
}

/* The address of a C function of libtorch, 0 where it has none of that name, or no tensor that stands for none. */
static PyObject *torch_function(PyObject *module, PyObject *name)
{
    static const char *names[] = {"libtorch_cpu.so", "libtorch_cuda.so"};
    const char *wanted = PyUnicode_AsUTF8(name);
    void *found = NULL;
    if (!wanted)
        return NULL;
    for (size_t i = 0; tc_torch_api.undefined && !found && i < sizeof names / sizeof *names; i++) {
        void *lib = dlopen(names[i], RTLD_NOLOAD | RTLD_LAZY);
        found = lib ? dlsym(lib, wanted) : NULL;
    }
    return PyLong_FromVoidPtr(found);
}

static PyObject *launcher_threads(PyObject *module, PyObject *unused)
{
    return PyLong_FromLong(tc_torch_api.parallel && !forked ? tc_torch_api.max_threads() : 1);
}

static PyMethodDef methods[] = {
    {"empty_strided", (PyCFunction)(void (*)(void))empty_strided, METH_FASTCALL,
     "empty_strided(shape, stride, dtype_code) -> CPU tensor; the code is that of c10::ScalarType."},
    {"launcher_setup", launcher_setup, METH_VARARGS,
     "launcher_setup(sample, torch.Tensor, sample._cdata, sample.data_ptr()) -> None, or why this torch can't be "
     "served."},
    {"torch_function", torch_function, METH_O,
     "torch_function(name) -> the address of a C function of libtorch, 0: there is none."},
    {"launcher_threads", launcher_threads, METH_NOARGS, "Threads that a large kernel would use now."},
    {NULL},
};

int tcompile_init_launcher(PyObject *module)
{
    pthread_atfork(NULL, NULL, after_fork);
    if (PyModule_AddFunctions(module, methods) < 0 || PyModule_AddType(module, &Kernel_Type) < 0)
        return -1;
    return 0;
}
