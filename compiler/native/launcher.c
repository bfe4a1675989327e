/* The CPU launcher.

   Kernel    one generated kernel: kernel(*tensors, *sizes, *scalars) runs it.
   Program   a plan that consists of kernels and allocations alone: program(*inputs) -> tuple, without Python in between.
   Empty     allocates one tensor of fixed dtype: empty(*shape and strides where they vary) -> tensor.

   Threads are those of the OpenMP runtime that torch itself uses: it is found through libtorch_cpu's own dependencies, so
   there is never a second pool of threads. After a fork the child runs serially, because OpenMP's threads do not survive it.
   Tensors are read and made through the C functions that libtorch exports for ahead-of-time compiled code (aoti_torch_*), which
   keep their form between versions; the address of the C++ tensor in a Python tensor is looked up on a sample at setup.
   Where anything of that is missing, setup() says so and the Python launcher serves. */
#include "launcher.h"

#include "expressions.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define RELEASE_GIL_PS 20000000LL      /* release the GIL around work of more than 20 us */
#define SERIAL_PS 12000000LL           /* no second thread below 12 us */
#define PER_THREAD_PS 5000000LL        /* at least 5 us of work for each thread */

typedef void *AtenTensor;              /* at::Tensor* */

static struct {
    int ready;
    Py_ssize_t tensor_offset;          /* of the at::Tensor in a Python tensor object */
    PyTypeObject *tensor_type;
    int (*data_ptr)(AtenTensor, void **);
    int (*sizes)(AtenTensor, int64_t **);
    int (*strides)(AtenTensor, int64_t **);
    int (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, AtenTensor *);
    int (*delete_tensor)(AtenTensor);
    PyObject *(*wrap)(const void *);
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int (*max_threads)(void);
    int (*in_parallel)(void);
} torch_api;

static int forked;                     /* this process is the child of a fork */

static void after_fork(void) { forked = 1; }

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
    if (items > 1 && total > SERIAL_PS && torch_api.parallel && !forked) {
        int threads = torch_api.max_threads();
        if (limit > 0 && threads > limit)
            threads = limit;
        double useful = total / PER_THREAD_PS;
        if (useful < threads)
            threads = (int)useful;
        if (items < threads)
            threads = (int)items;
        if (threads > 1 && !torch_api.in_parallel()) {
            /* each thread takes ranges in turn: the last ones level out uneven speed */
            int64_t grain = items / (threads * 4);
            Job job = {fn, buffer, size, param, scratch, items, grain > 0 ? grain : 1, 0, 0};
            torch_api.parallel(work, &job, (unsigned)threads, 0);
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
    if (plan[0] > 0) {
        scratch = malloc((size_t)plan[0]);
        if (!scratch) {
            PyErr_NoMemory();
            return -1;
        }
    }
    double total = 0;
    for (int i = 0; i < k->n_phases; i++)
        total += (double)plan[1 + 2 * i] * (double)plan[2 + 2 * i];
    int rc = 0;
    PyThreadState *saved = total > RELEASE_GIL_PS ? PyEval_SaveThread() : NULL;
    for (int i = 0; i < k->n_phases && !rc; i++)
        rc = run_phase(k->phases[i], buffer, size, param, scratch, plan[1 + 2 * i], plan[2 + 2 * i], k->threads);
    if (saved)
        PyEval_RestoreThread(saved);
    free(scratch);
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
static inline AtenTensor tensor_of(PyObject *o)
{
    if (UNLIKELY(!PyObject_TypeCheck(o, torch_api.tensor_type))) {
        PyErr_Format(PyExc_TypeError, "compiled code expected a tensor, got %s", Py_TYPE(o)->tp_name);
        return NULL;
    }
    return (char *)o + torch_api.tensor_offset;
}

static inline int tensor_data(PyObject *o, void **out)
{
    AtenTensor t = tensor_of(o);
    if (UNLIKELY(!t))
        return -1;
    if (UNLIKELY(torch_api.data_ptr(t, out))) {
        PyErr_SetString(PyExc_RuntimeError, "compiled code was given a tensor without memory");
        return -1;
    }
    return 0;
}

static PyObject *new_tensor(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, void **data)
{
    AtenTensor t;
    if (UNLIKELY(torch_api.empty_strided(ndim, shape, stride, dtype, 0, 0, &t))) {
        PyErr_NoMemory();
        return NULL;
    }
    if (data && UNLIKELY(torch_api.data_ptr(t, data))) {
        torch_api.delete_tensor(t);
        PyErr_SetString(PyExc_RuntimeError, "a new tensor has no memory");
        return NULL;
    }
    PyObject *o = torch_api.wrap(t);
    torch_api.delete_tensor(t);
    return o;
}

void *tc_launcher_tensor(PyObject *o) { return tensor_of(o); }
int tc_launcher_ready(void) { return torch_api.ready; }
PyObject *tc_launcher_wrap(void *t)
{
    PyObject *o = torch_api.wrap(t);
    torch_api.delete_tensor(t);
    return o;
}

/* ---- Kernel */
static int fill_scalar(PyObject *o, char kind, Scalar *out)
{
    if (kind == 'f')
        out->f = PyFloat_CheckExact(o) ? PyFloat_AS_DOUBLE(o) : PyFloat_AsDouble(o);
    else
        out->i = PyLong_AsLongLong(o);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *kernel_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    KernelObject *k = (KernelObject *)self;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (UNLIKELY(n != k->n_buffers + k->n_sizes + k->n_params || (kwnames && PyTuple_GET_SIZE(kwnames)))) {
        PyErr_Format(PyExc_TypeError, "%U takes %d tensors, %d sizes and %d scalars, got %zd arguments", k->name, k->n_buffers, k->n_sizes,
                     k->n_params, n);
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
        if (UNLIKELY(fill_scalar(args[i], k->param_kinds[i], &param[i])))
            return NULL;
    int rc = run_kernel(k, buffer, size, param);
    if (UNLIKELY(rc)) {
        raise_check(k, rc);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "library", "phases", "plan", "n_buffers", "n_sizes", "param_kinds", "checks", "make_error", "threads", NULL};
    PyObject *name, *library, *phases, *checks, *make_error;
    unsigned long long plan;
    int n_buffers, n_sizes, threads = 0;
    const char *param_kinds;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UOO!KiisO!O|i", names, &name, &library, &PyTuple_Type, &phases, &plan, &n_buffers, &n_sizes,
                                     &param_kinds, &PyTuple_Type, &checks, &make_error, &threads))
        return NULL;
    if (!torch_api.ready) {
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
    return PyUnicode_FromFormat("<kernel %U: %d tensors, %d sizes, %d scalars>", k->name, k->n_buffers, k->n_sizes, k->n_params);
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
              "A generated kernel; phases and plan are addresses of its functions. kernel(*tensors, *sizes, *scalars) runs it.",
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

/* ---- Program: slots are buffers, values are integers (sizes, strides, bytes), both by number */
enum { SLOT_INPUT, SLOT_CONSTANT, SLOT_TENSOR, SLOT_SCRATCH, SLOT_VIEW };      /* as in compiler/runtime/program.py */
enum { OUT_SLOT, OUT_INPUT, OUT_VALUE, OUT_CONSTANT };
enum { SYM_SIZE, SYM_STRIDE, SYM_VALUE };

typedef struct {
    int kind;
    int input;             /* SLOT_INPUT: which; SLOT_CONSTANT: index of the constant; SLOT_VIEW: slot of the base, an earlier one */
    int dtype, ndim;       /* SLOT_TENSOR */
    int shape;             /* SLOT_TENSOR: first of ndim values, strides follow; SLOT_SCRATCH, SLOT_VIEW: value that holds its offset in bytes */
} Slot;

typedef struct {
    KernelObject *kernel;
    int *slots, *sizes, *params;       /* params: inputs */
} Step;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int n_inputs, n_symbols, n_values, n_slots, n_steps, n_outputs, scratch_value;
    int *symbols;                      /* (input, kind, dim) each */
    int64_t *fixed;                    /* values where they do not vary */
    int n_computed;                    /* expressions over the symbols */
    ExprProgram **computed;
    int *source;                       /* of each value: the expression that gives it, or -1: fixed */
    Slot *slots;
    Step *steps;
    int *outputs;                      /* (kind, index) each */
    PyObject *constants;               /* tuple */
    int *refs;                         /* the integers behind the steps */
} ProgramObject;

static int bind_symbols(ProgramObject *p, PyObject *const *args, int64_t *symbols)
{
    for (int i = 0; i < p->n_symbols; i++) {
        const int *s = &p->symbols[3 * i];
        PyObject *o = args[s[0]];
        if (s[1] == SYM_VALUE) {
            symbols[i] = PyLong_AsLongLong(o);
            if (UNLIKELY(symbols[i] == -1 && PyErr_Occurred()))
                return -1;
            continue;
        }
        AtenTensor t = tensor_of(o);
        int64_t *dims;
        if (UNLIKELY(!t))
            return -1;
        if (UNLIKELY((s[1] == SYM_SIZE ? torch_api.sizes : torch_api.strides)(t, &dims))) {
            PyErr_SetString(PyExc_RuntimeError, "compiled code was given a tensor without sizes");
            return -1;
        }
        symbols[i] = dims[s[2]];
    }
    return 0;
}

/* The values of one call, from the sizes of its inputs. */
static int compute_values(ProgramObject *p, PyObject *const *args, int64_t *values)
{
    int64_t *symbols = alloca(sizeof(int64_t) * (p->n_symbols + 1));
    int64_t *results = alloca(sizeof(int64_t) * p->n_computed);
    if (UNLIKELY(bind_symbols(p, args, symbols)))
        return -1;
    for (int i = 0; i < p->n_computed; i++) {
        const ExprProgram *e = p->computed[i];
        if (e->n == 1 && e->code[0].op == E_SYMBOL) {
            results[i] = symbols[e->code[0].arg];
        } else if (UNLIKELY(!tc_expr_run(e, symbols, &results[i]))) {
            PyErr_SetString(PyExc_OverflowError, "sizes of a compiled graph do not fit 64 bits");
            return -1;
        }
    }
    for (int i = 0; i < p->n_values; i++)
        values[i] = p->source[i] >= 0 ? results[p->source[i]] : p->fixed[i];
    return 0;
}

static PyObject *program_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    ProgramObject *p = (ProgramObject *)self;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (UNLIKELY(n != p->n_inputs || (kwnames && PyTuple_GET_SIZE(kwnames)))) {
        PyErr_Format(PyExc_TypeError, "compiled graph takes %d inputs, got %zd", p->n_inputs, n);
        return NULL;
    }
    const int64_t *value = p->fixed;
    if (p->n_computed) {
        int64_t *values = alloca(sizeof(int64_t) * (p->n_values + 1));
        if (UNLIKELY(compute_values(p, args, values)))
            return NULL;
        value = values;
    }
    void **data = alloca(sizeof(void *) * (p->n_slots + 1));
    PyObject **made = alloca(sizeof(PyObject *) * (p->n_slots + 1));
    memset(made, 0, sizeof(PyObject *) * (p->n_slots + 1));
    char *scratch = NULL;
    PyObject *result = NULL;
    int64_t scratch_bytes = p->scratch_value >= 0 ? value[p->scratch_value] : 0;
    if (scratch_bytes > 0 && posix_memalign((void **)&scratch, 64, (size_t)scratch_bytes)) {
        PyErr_NoMemory();
        return NULL;
    }
    for (int i = 0; i < p->n_slots; i++) {
        const Slot *s = &p->slots[i];
        switch (s->kind) {
        case SLOT_INPUT:
            if (UNLIKELY(tensor_data(args[s->input], &data[i])))
                goto done;
            break;
        case SLOT_CONSTANT:
            if (UNLIKELY(tensor_data(PyTuple_GET_ITEM(p->constants, s->input), &data[i])))
                goto done;
            break;
        case SLOT_TENSOR:
            made[i] = new_tensor(s->ndim, &value[s->shape], &value[s->shape + s->ndim], s->dtype, &data[i]);
            if (UNLIKELY(!made[i]))
                goto done;
            break;
        case SLOT_VIEW:
            data[i] = (char *)data[s->input] + value[s->shape];
            break;
        default:
            data[i] = scratch + value[s->shape];
        }
    }
    for (int i = 0; i < p->n_steps; i++) {
        const Step *st = &p->steps[i];
        KernelObject *k = st->kernel;
        void **buffer = alloca(sizeof(void *) * (k->n_buffers + 1));
        int64_t *size = alloca(sizeof(int64_t) * (k->n_sizes + 1));
        Scalar *param = alloca(sizeof(Scalar) * (k->n_params + 1));
        for (int j = 0; j < k->n_buffers; j++)
            buffer[j] = data[st->slots[j]];
        for (int j = 0; j < k->n_sizes; j++)
            size[j] = value[st->sizes[j]];
        for (int j = 0; j < k->n_params; j++)
            if (UNLIKELY(fill_scalar(args[st->params[j]], k->param_kinds[j], &param[j])))
                goto done;
        int rc = run_kernel(k, buffer, size, param);
        if (UNLIKELY(rc)) {
            raise_check(k, rc);
            goto done;
        }
    }
    result = PyTuple_New(p->n_outputs);
    for (int i = 0; result && i < p->n_outputs; i++) {
        int kind = p->outputs[2 * i], index = p->outputs[2 * i + 1];
        PyObject *o;
        if (kind == OUT_SLOT)
            o = Py_NewRef(made[index]);
        else if (kind == OUT_INPUT)
            o = Py_NewRef(args[index]);
        else if (kind == OUT_VALUE)
            o = PyLong_FromLongLong(value[index]);
        else
            o = Py_NewRef(PyTuple_GET_ITEM(p->constants, index));
        if (UNLIKELY(!o))
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, o);
    }
done:
    for (int i = 0; i < p->n_slots; i++)
        Py_XDECREF(made[i]);
    free(scratch);
    return result;
}

/* Integers of a sequence into `out` (room for them given); returns their number or -1. */
static Py_ssize_t read_ints(PyObject *seq, int *out, Py_ssize_t room)
{
    PyObject *fast = PySequence_Fast(seq, "expected a sequence of integers");
    if (!fast)
        return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    if (n > room) {
        PyErr_SetString(PyExc_ValueError, "too many integers in a program's description");
        n = -1;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = (int)PyLong_AsLong(PySequence_Fast_GET_ITEM(fast, i));
    Py_DECREF(fast);
    return PyErr_Occurred() ? -1 : n;
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"n_inputs", "symbols", "values", "computed", "sources", "slots", "steps", "outputs", "constants", "scratch_value", NULL};
    int n_inputs, scratch_value;
    PyObject *symbols, *values, *computed, *sources, *slots, *steps, *outputs, *constants;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!O!O!O!O!O!O!O!i", names, &n_inputs, &PyTuple_Type, &symbols, &PyTuple_Type, &values,
                                     &PyTuple_Type, &computed, &PyTuple_Type, &sources, &PyTuple_Type, &slots, &PyTuple_Type, &steps,
                                     &PyTuple_Type, &outputs, &PyTuple_Type, &constants, &scratch_value))
        return NULL;
    ProgramObject *p = (ProgramObject *)type->tp_alloc(type, 0);
    if (!p)
        return NULL;
    p->vectorcall = program_call;
    p->n_inputs = n_inputs;
    p->scratch_value = scratch_value;
    p->constants = Py_NewRef(constants);
    p->n_symbols = (int)PyTuple_GET_SIZE(symbols);
    p->n_values = (int)PyTuple_GET_SIZE(values);
    p->n_slots = (int)PyTuple_GET_SIZE(slots);
    p->n_steps = (int)PyTuple_GET_SIZE(steps);
    p->n_outputs = (int)PyTuple_GET_SIZE(outputs);
    Py_ssize_t total = 0;
    for (int i = 0; i < p->n_steps; i++) {
        PyObject *st = PyTuple_GET_ITEM(steps, i);
        if (!PyTuple_Check(st) || PyTuple_GET_SIZE(st) != 4 || Py_TYPE(PyTuple_GET_ITEM(st, 0)) != &Kernel_Type) {
            PyErr_SetString(PyExc_TypeError, "a step is (Kernel, slots, sizes, params)");
            goto fail;
        }
        KernelObject *k = (KernelObject *)PyTuple_GET_ITEM(st, 0);
        total += k->n_buffers + k->n_sizes + k->n_params;
    }
    p->symbols = calloc(3 * p->n_symbols + 1, sizeof(int));
    p->fixed = calloc(p->n_values + 1, sizeof(int64_t));
    p->slots = calloc(p->n_slots + 1, sizeof(Slot));
    p->steps = calloc(p->n_steps + 1, sizeof(Step));
    p->outputs = calloc(2 * p->n_outputs + 1, sizeof(int));
    p->refs = calloc(total + 1, sizeof(int));
    p->source = calloc(p->n_values + 1, sizeof(int));
    p->computed = calloc(PyTuple_GET_SIZE(computed) + 1, sizeof *p->computed);
    if (!p->source || !p->computed || !p->symbols || !p->fixed || !p->slots || !p->steps || !p->outputs || !p->refs) {
        PyErr_NoMemory();
        goto fail;
    }
    for (int i = 0; i < p->n_symbols; i++) {
        if (read_ints(PyTuple_GET_ITEM(symbols, i), &p->symbols[3 * i], 3) != 3)
            goto bad;
        if (p->symbols[3 * i] < 0 || p->symbols[3 * i] >= n_inputs)
            goto bad;
    }
    for (int i = 0; i < p->n_values; i++)
        p->fixed[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(values, i));
    for (; p->n_computed < PyTuple_GET_SIZE(computed); p->n_computed++)
        if ((p->computed[p->n_computed] = tc_expr_new(PyTuple_GET_ITEM(computed, p->n_computed), p->n_symbols)) == NULL)
            goto fail;
    if (read_ints(sources, p->source, p->n_values) != p->n_values)
        goto bad;
    for (int i = 0; i < p->n_values; i++)
        if (p->source[i] >= p->n_computed)
            goto bad;
    for (int i = 0; i < p->n_slots; i++) {
        int f[5];
        if (read_ints(PyTuple_GET_ITEM(slots, i), f, 5) != 5)
            goto bad;
        p->slots[i] = (Slot){f[0], f[1], f[2], f[3], f[4]};
        if ((f[0] == SLOT_INPUT && (f[1] < 0 || f[1] >= n_inputs)) || (f[0] == SLOT_CONSTANT && f[1] >= PyTuple_GET_SIZE(constants)) ||
            (f[0] == SLOT_TENSOR && f[4] + 2 * f[3] > p->n_values) || (f[0] >= SLOT_SCRATCH && f[4] >= p->n_values) ||
            (f[0] == SLOT_VIEW && f[1] >= i) || f[0] < 0 || f[0] > SLOT_VIEW)
            goto bad;
    }
    int *at = p->refs;
    for (int i = 0; i < p->n_steps; i++) {
        PyObject *st = PyTuple_GET_ITEM(steps, i);
        KernelObject *k = (KernelObject *)PyTuple_GET_ITEM(st, 0);
        int want[3] = {k->n_buffers, k->n_sizes, k->n_params};
        int limit[3] = {p->n_slots, p->n_values, n_inputs};
        int *parts[3];
        for (int j = 0; j < 3; j++) {
            if (read_ints(PyTuple_GET_ITEM(st, j + 1), at, want[j]) != want[j])
                goto bad;
            for (int m = 0; m < want[j]; m++)
                if (at[m] < 0 || at[m] >= limit[j])
                    goto bad;
            parts[j] = at;
            at += want[j];
        }
        p->steps[i] = (Step){(KernelObject *)Py_NewRef(k), parts[0], parts[1], parts[2]};
    }
    for (int i = 0; i < p->n_outputs; i++) {
        if (read_ints(PyTuple_GET_ITEM(outputs, i), &p->outputs[2 * i], 2) != 2)
            goto bad;
        int kind = p->outputs[2 * i], index = p->outputs[2 * i + 1];
        int limit = kind == OUT_SLOT ? p->n_slots : kind == OUT_INPUT ? n_inputs : kind == OUT_VALUE ? p->n_values : (int)PyTuple_GET_SIZE(constants);
        if (index < 0 || index >= limit || (kind == OUT_SLOT && p->slots[index].kind != SLOT_TENSOR))
            goto bad;
    }
    if (PyErr_Occurred())
        goto fail;
    return (PyObject *)p;
bad:
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a program's description is not consistent");
fail:
    Py_DECREF(p);
    return NULL;
}

static int program_traverse(PyObject *self, visitproc visit, void *arg)
{
    ProgramObject *p = (ProgramObject *)self;
    Py_VISIT(p->constants);
    for (int i = 0; p->steps && i < p->n_steps; i++)
        Py_VISIT(p->steps[i].kernel);
    return 0;
}

static int program_clear(PyObject *self)
{
    ProgramObject *p = (ProgramObject *)self;
    for (int i = 0; p->steps && i < p->n_steps; i++)
        Py_CLEAR(p->steps[i].kernel);
    p->n_steps = 0;
    return 0;
}

static void program_dealloc(PyObject *self)
{
    ProgramObject *p = (ProgramObject *)self;
    PyObject_GC_UnTrack(self);
    program_clear(self);
    Py_CLEAR(p->constants);
    free(p->symbols);
    free(p->fixed);
    free(p->slots);
    free(p->steps);
    free(p->outputs);
    free(p->refs);
    free(p->source);
    for (int i = 0; p->computed && i < p->n_computed; i++)
        tc_expr_free(p->computed[i]);
    free(p->computed);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject Program_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.Program",
    .tp_doc = "Program(n_inputs, symbols, values, computed, sources, slots, steps, outputs, constants, scratch_value)\n\n"
              "A plan of kernels and allocations that runs without Python in between. See compiler/runtime/program.py.",
    .tp_basicsize = sizeof(ProgramObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = program_new,
    .tp_dealloc = program_dealloc,
    .tp_traverse = program_traverse,
    .tp_clear = program_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(ProgramObject, vectorcall),
};

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
        *(void **)&torch_api.field = dlsym(lib, name);                 \
        if (!torch_api.field)                                          \
            return PyUnicode_FromString("libtorch does not export " name); \
    } while (0)

/* Returns None, or a string that says why the launcher can't be used with this torch. */
static PyObject *launcher_setup(PyObject *module, PyObject *args)
{
    PyObject *sample, *tensor_type, *none = Py_None;
    unsigned long long cdata, data_ptr;
    if (!PyArg_ParseTuple(args, "OO!KK", &sample, &PyType_Type, &tensor_type, &cdata, &data_ptr))
        return NULL;
    torch_api.ready = 0;
    void *cpu = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY), *python = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!cpu || !python)
        return PyUnicode_FromString("libtorch_cpu.so and libtorch_python.so are not loaded under these names");
    FIND(cpu, data_ptr, "aoti_torch_get_data_ptr");
    FIND(cpu, sizes, "aoti_torch_get_sizes");
    FIND(cpu, strides, "aoti_torch_get_strides");
    FIND(cpu, empty_strided, "aoti_torch_empty_strided");
    FIND(cpu, delete_tensor, "aoti_torch_delete_tensor_object");
    FIND(python, wrap, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
    torch_api.tensor_offset = 0;
    for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(void *) <= Py_TYPE(sample)->tp_basicsize && at < 80; at += sizeof(void *))
        if (*(uintptr_t *)((char *)sample + at) == (uintptr_t)cdata) {
            torch_api.tensor_offset = at;
            break;
        }
    if (!torch_api.tensor_offset)
        return PyUnicode_FromString("the C++ tensor is not where it was expected in a Python tensor");
    void *found = NULL;
    if (torch_api.data_ptr((char *)sample + torch_api.tensor_offset, &found) || (uintptr_t)found != (uintptr_t)data_ptr)
        return PyUnicode_FromString("the C++ tensor in a Python tensor does not give its address");
    /* dlsym searches the library's own dependencies: this is the OpenMP runtime that torch uses, whatever it is called */
    *(void **)&torch_api.parallel = dlsym(cpu, "GOMP_parallel");
    *(void **)&torch_api.max_threads = dlsym(cpu, "omp_get_max_threads");
    *(void **)&torch_api.in_parallel = dlsym(cpu, "omp_in_parallel");
    if (!torch_api.max_threads || !torch_api.in_parallel)
        torch_api.parallel = NULL;
    Py_XSETREF(*(PyObject **)&torch_api.tensor_type, Py_NewRef(tensor_type));
    torch_api.ready = 1;
    return Py_NewRef(none);
}

static PyObject *launcher_threads(PyObject *module, PyObject *unused)
{
    return PyLong_FromLong(torch_api.parallel && !forked ? torch_api.max_threads() : 1);
}

static PyMethodDef methods[] = {
    {"empty_strided", (PyCFunction)(void (*)(void))empty_strided, METH_FASTCALL,
     "empty_strided(shape, stride, dtype_code) -> CPU tensor; the code is that of c10::ScalarType."},
    {"launcher_setup", launcher_setup, METH_VARARGS,
     "launcher_setup(sample, torch.Tensor, sample._cdata, sample.data_ptr()) -> None, or why this torch can't be served."},
    {"launcher_threads", launcher_threads, METH_NOARGS, "Threads that a large kernel would use now."},
    {NULL},
};

int tcompile_init_launcher(PyObject *module)
{
    pthread_atfork(NULL, NULL, after_fork);
    if (PyModule_AddFunctions(module, methods) < 0 || PyModule_AddType(module, &Kernel_Type) < 0 || PyModule_AddType(module, &Program_Type) < 0)
        return -1;
    return 0;
}
