/* Program: a whole plan that runs without Python in between: allocations, kernels, products, and calls of torch's other
   kernels.

   Buffers are slots by number, integers (sizes, strides, bytes) are values by number. A slot is an input, a constant, a
   tensor of its own (made and freed by steps), a place in one block of scratch memory, a place inside of another slot,
   or what a call gave. Most slots are an address alone. Where a product needs a tensor, one is made over the address
   and kept for the next call, which mostly gets the same memory from the allocator; it owns nothing, so only functions
   that keep no reference are handed it. Calls of Python get tensors that own their memory. A call that begins while
   another one of the same program runs (on another thread, or inside of an operator that Python implements) keeps
   tensors of its own, so that it deletes none that the other one computes with. */
#include "plan.h"
#include "cuda_driver.h"
#include "state.h"
#include "trace.h"

#include <stdlib.h>

/* What a slot is during one call. `tensor`: owned where `owned`. */
typedef struct { void *data; PyObject *object; AtenTensor tensor; int owned; } Live;

typedef struct {
    ProgramObject *p;
    PyObject *const *args;
    PyObject **given; /* the same, where they are the call's own: inputs leave after their last use; NULL: the caller
                         keeps them */
    const int64_t *value;
    Live *live;
    Kept *kept;                    /* by slot; the program's, or this call's where the program is in use */
    int writing;                   /* whether inputs may have been written */
    int by_blas;                   /* whether BLAS computes products: torch's settings may ask for fewer bits */
} Frame;

/* ---- slots */
static int address_of(PyObject *o, Live *l)
{
    l->tensor = tc_launcher_tensor(o);
    if (UNLIKELY(!l->tensor))
        return -1;
    if (UNLIKELY(tc_torch_api.data_ptr(l->tensor, &l->data))) {
        PyErr_SetString(PyExc_RuntimeError, "compiled code was given a tensor without memory");
        return -1;
    }
    return 0;
}

static int make(Frame *f, int at)
{
    const Slot *s = &f->p->slots[at];
    Live *l = &f->live[at];
    const int64_t *dims = &f->value[s->dims];
    if (f->p->device < 0) {
        if (UNLIKELY(tc_torch_api.empty_strided(s->ndim, dims, dims + s->ndim, s->dtype, 0, 0, &l->tensor))) {
            PyErr_NoMemory();
            return -1;
        }
    } else if (UNLIKELY(!(l->tensor = tc_cuda_new(s->ndim, dims, dims + s->ndim, s->dtype, f->p->device)))) {
        l->object = tc_cuda_new_by_torch(s->ndim, dims, dims + s->ndim, s->dtype, f->p->device);
        return l->object ? address_of(l->object, l) : -1;
    }
    l->owned = 1;
    if (UNLIKELY(tc_torch_api.data_ptr(l->tensor, &l->data))) {
        PyErr_SetString(PyExc_RuntimeError, "a new tensor has no memory");
        return -1;
    }
    return 0;
}

static void release(Live *l)
{
    if (l->owned)
        tc_torch_api.delete_tensor(l->tensor);
    l->owned = 0;
    l->tensor = NULL;
    Py_CLEAR(l->object);
}

static inline void *data_of(const Frame *f, int at)
{
    const Slot *s = &f->p->slots[at];
    return s->kind == SLOT_ALIAS ? (char *)f->live[s->index].data + f->value[s->offset] : f->live[at].data;
}

static inline int is_undefined(AtenTensor t)
{
    return tc_torch_api.undefined &&
           *(void **)t == *(void **)tc_torch_api.undefined; /* (one object stands for every tensor that is none) */
}

static int lies_as_planned(const Frame *f, int at, AtenTensor t)
{
    const Slot *s = &f->p->slots[at];
    const int64_t *dims = &f->value[s->dims];
    int64_t *shape, *stride, ndim;
    return !tc_torch_api.ndim(t, &ndim) && ndim == s->ndim && !tc_torch_api.sizes(t, &shape) &&
           !tc_torch_api.strides(t, &stride) && !memcmp(shape, dims, sizeof(int64_t) * ndim) &&
           !memcmp(stride, dims + ndim, sizeof(int64_t) * ndim);
}

/* A tensor to compute with, which must not be kept by whom it is given to. A step that names a slot twice gets the same
   one twice. */
static AtenTensor tensor_of(Frame *f, int at)
{
    const Slot *s = &f->p->slots[at];
    Live *l = &f->live[at];
    if (l->tensor)
        return l->tensor;
    if (s->kind == SLOT_RESULT)                  /* an operator left it out */
        return tc_torch_api.undefined;
    Kept *k = &f->kept[at];
    void *data = data_of(f, at);
    if (k->tensor && k->address == data && (s->fixed || lies_as_planned(f, at, k->tensor)))
        return k->tensor;
    if (k->tensor)
        tc_torch_api.delete_tensor(k->tensor);
    k->tensor = NULL;
    const int64_t *dims = &f->value[s->dims];
    if (UNLIKELY(tc_torch_api.from_blob(data, s->ndim, dims, dims + s->ndim, 0, s->dtype, f->p->device >= 0,
                                        f->p->device >= 0 ? f->p->device : 0, &k->tensor))) {
        k->tensor = NULL;
        PyErr_SetString(PyExc_RuntimeError, "torch made no tensor over a plan's memory");
        return NULL;
    }
    k->address = data;
    return k->tensor;
}

/* A Python tensor that keeps its memory alive; borrowed. */
static PyObject *object_of(Frame *f, int at)
{
    const Slot *s = &f->p->slots[at];
    Live *l = &f->live[at];
    if (l->object)
        return l->object;
    if (s->kind == SLOT_INPUT)
        return f->args[s->index];
    if (s->kind == SLOT_CONSTANT)
        return PyTuple_GET_ITEM(f->p->constants, s->index);
    if ((s->kind == SLOT_OWN || s->kind == SLOT_RESULT) && l->tensor)
        return l->object = tc_torch_api.wrap(l->tensor);
    if (s->kind == SLOT_ALIAS && f->live[s->index].tensor) {
        const int64_t *dims = &f->value[s->dims];
        AtenTensor view;
        if (!tc_torch_api.reinterpret(f->live[s->index].tensor, s->ndim, dims, dims + s->ndim,
                                      f->value[s->offset] / s->itemsize, &view))
            return l->object = tc_launcher_wrap(view);
    } else if (s->kind == SLOT_SCRATCH || s->kind == SLOT_ALIAS) {
        AtenTensor t = tensor_of(f, at);         /* only for a product that failed: its second try keeps nothing */
        return t ? l->object = tc_torch_api.wrap(t) : NULL;
    }
    PyErr_SetString(PyExc_RuntimeError, "a buffer of a plan is no tensor");
    return NULL;
}

/* ---- calls */
static PyObject *argument(Frame *f, const Arg *a)
{
    PyObject *o;
    switch (a->kind) {
    case ARG_OBJECT:
        return Py_NewRef(a->object);
    case ARG_SLOT:
        return Py_XNewRef(object_of(f, a->index));
    case ARG_VALUE:
        return PyLong_FromLongLong(f->value[a->index]);
    case ARG_INPUT:
        return Py_NewRef(f->args[a->index]);
    }
    o = a->kind == ARG_LIST ? PyList_New(a->n) : PyTuple_New(a->n);
    for (int i = 0; o && i < a->n; i++) {
        PyObject *item = argument(f, &a->items[i]);
        if (!item)
            Py_CLEAR(o);
        else if (a->kind == ARG_LIST)
            PyList_SET_ITEM(o, i, item);
        else
            PyTuple_SET_ITEM(o, i, item);
    }
    return o;
}

static PyObject *call(Frame *f, const CallSpec *c)
{
    PyObject **args = alloca(sizeof(PyObject *) * (c->n_args + 1));
    int n = 0;
    for (; n < c->n_args && (args[n] = argument(f, &c->args[n])); n++)
        ;
    PyObject *r = NULL;
    if (n == c->n_args)
        r = PyObject_Vectorcall(c->function, args, n - (c->names ? PyTuple_GET_SIZE(c->names) : 0), c->names);
    while (n--)
        Py_DECREF(args[n]);
    return r;
}

static PyObject *dims_tuple(const int64_t *dims, int n)
{
    PyObject *t = PyTuple_New(n);
    for (int i = 0; t && i < n; i++) {
        PyObject *d = PyLong_FromLongLong(dims[i]);
        if (!d)
            Py_CLEAR(t);
        else
            PyTuple_SET_ITEM(t, i, d);
    }
    return t;
}

/* What a call gave for a slot. Kernels address memory by the strides that were planned, and torch's kernels may choose
   others. */
static int accept(Frame *f, int at, PyObject *o)
{
    const Slot *s = &f->p->slots[at];
    Live *l = &f->live[at];
    const int64_t *dims = &f->value[s->dims];
    if (o == Py_None) {                                     /* an operator leaves out a result that is not needed */
        l->object = Py_NewRef(o);
        return 0;
    }
    l->object = Py_NewRef(o);
    int32_t layout = 0;
    if (!s->index && ((l->tensor = tc_launcher_tensor(o)) == NULL || tc_torch_api.layout(l->tensor, &layout) || layout))
        return l->tensor ? 0 : -1;                          /* a sparse tensor, which only Python sees */
    if (address_of(o, l) < 0)
        return -1;
    if (LIKELY(lies_as_planned(f, at, l->tensor)))
        return 0;
    PyObject *sizes = dims_tuple(dims, s->ndim), *strides = dims_tuple(dims + s->ndim, s->ndim);
    PyObject *copy = sizes && strides ? PyObject_CallFunctionObjArgs(f->p->as_planned, o, sizes, strides, NULL) : NULL;
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    if (!copy)
        return -1;
    Py_SETREF(l->object, copy);
    return address_of(copy, l);
}

static int run_call(Frame *f, const CallSpec *c)
{
    PyObject *r = call(f, c);
    if (UNLIKELY(!r))
        return -1;
    int rc = 0;
    if (!c->n_outs) {
        ;
    } else if (c->single) {
        rc = c->outs[0] >= 0 ? accept(f, c->outs[0], r) : 0;
    } else {
        PyObject *items = PySequence_Fast(r, "an operator gave no sequence of results");
        if (!items) {
            rc = -1;
        } else if (PySequence_Fast_GET_SIZE(items) != c->n_outs) {
            PyErr_Format(PyExc_RuntimeError, "an operator gave %zd results where %d were planned",
                         PySequence_Fast_GET_SIZE(items), c->n_outs);
            rc = -1;
        }
        for (int i = 0; !rc && i < c->n_outs; i++)
            if (c->outs[i] >= 0)
                rc = accept(f, c->outs[i], PySequence_Fast_GET_ITEM(items, i));
        Py_XDECREF(items);
    }
    Py_DECREF(r);
    return rc;
}

static inline BlasMatrix matrix_of(const Frame *f, int at)
{
    return (BlasMatrix){data_of(f, at), &f->value[f->p->slots[at].dims]};
}

static int run_blas(const Frame *f, const Step *st, int sum)
{
    const int *s = st->slots;
    BlasMatrix c = sum ? matrix_of(f, s[1]) : (BlasMatrix){NULL, NULL};
    return blas_product(&tc_torch_api.blas, st->blas - 1, matrix_of(f, s[0]), matrix_of(f, s[sum + 1]),
                        matrix_of(f, s[sum + 2]), c, sum ? f->p->slots[s[1]].ndim : 0, st->beta, st->alpha);
}

static int run_product(Frame *f, const Step *st)
{
    int sum = st->product >= PRODUCT_ADDMM, n = sum ? 4 : 3;
    AtenTensor t[4];
    if (st->blas && f->by_blas && LIKELY(!run_blas(f, st, sum)))
        return 0;
    if (st->gemm && LIKELY(!tc_gemm_run(st->gemm, f->p->device, data_of(f, st->slots[0]), data_of(f, st->slots[n - 2]),
                                        data_of(f, st->slots[n - 1]), sum ? data_of(f, st->slots[1]) : NULL)))
        return 0;
    for (int i = 0; i < n && !st->widens; i++)
        if (UNLIKELY(!(t[i] = tensor_of(f, st->slots[i]))))
            return -1;
    void *function = tc_torch_api.products[f->p->device >= 0][st->product];
    int counted = f->p->slots[st->slots[0]].kind == SLOT_INPUT; /* (autograd counts what is written to an input) */
    uint64_t keys = counted ? 0 : tc_pass_autograd();
    int rc = st->widens ? -1
             : sum      ? ((int (*)(AtenTensor, AtenTensor, AtenTensor, AtenTensor, double, double))function)(
                              t[0], t[1], t[2], t[3], st->beta, st->alpha)
                        : ((int (*)(AtenTensor, AtenTensor, AtenTensor))function)(t[0], t[1], t[2]);
    if (!counted)
        tc_heed_autograd(keys);
    if (LIKELY(!rc))
        return 0;
    /* torch's C functions print what they threw and lose it: torch's own function raises it, or succeeds in a second
       try */
    int grad = tc_torch_api.grad_enabled();
    tc_torch_api.set_grad_enabled(0);
    PyObject *r = call(f, st->call);
    tc_torch_api.set_grad_enabled(grad);
    Py_XDECREF(r);
    return r ? 0 : -1;
}

/* What torch's C function gave for a slot: `t`, which the slot owns from now on. Python sees it only where something
   asks for its object. */
static int accept_tensor(Frame *f, int at, AtenTensor t)
{
    Live *l = &f->live[at];
    if (is_undefined(t)) {
        tc_torch_api.delete_tensor(t);
        l->object = Py_NewRef(Py_None);
        return 0;
    }
    if (LIKELY(lies_as_planned(f, at, t) && !tc_torch_api.data_ptr(t, &l->data))) {
        l->tensor = t;
        l->owned = 1;
        return 0;
    }
    PyObject *o = tc_launcher_wrap(t);
    int rc = o ? accept(f, at, o) : -1;
    Py_XDECREF(o);
    return rc;
}

static int call_function(int (*function)(), const int64_t *w, const double *d)
{
    typedef int64_t W;
    typedef int (*Function)(W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W,
                            W, double, double);
    _Static_assert(MOST_WORDS == 32 && MOST_REALS == 2, "the call below");
    return ((Function)function)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13],
                                w[14], w[15], w[16], w[17], w[18], w[19], w[20], w[21], w[22], w[23], w[24], w[25],
                                w[26], w[27], w[28], w[29], w[30], w[31], d[0], d[1]);
}

static int run_torch(Frame *f, const Step *st)
{
    const TorchCall *c = st->torch;
    int64_t words[MOST_WORDS] = {0}, numbers[MOST_RESULTS];
    double reals[MOST_REALS] = {0};
    AtenTensor given[MOST_WORDS], results[MOST_RESULTS] = {NULL};
    for (int i = 0; i < c->n_words; i++) {
        const Word w = c->words[i];
        switch (w.kind) {
        case WORD_VALUE:
            words[i] = f->value[w.index];
            break;
        case WORD_ADDRESS:
            words[i] = (intptr_t)&f->value[w.index];
            break;
        case WORD_LIST:                            /* that might have been None: where its address is */
            given[i] = (void *)&f->value[w.index];
            words[i] = (intptr_t)&given[i];
            break;
        case WORD_TENSOR: case WORD_OPTIONAL:
            if (UNLIKELY(!(given[i] = tensor_of(f, w.index))))
                return -1;
            words[i] = w.kind == WORD_TENSOR ? (intptr_t)given[i] : is_undefined(given[i]) ? 0 : (intptr_t)&given[i];
            break;
        case WORD_UNDEFINED:
            words[i] = (intptr_t)tc_torch_api.undefined;
            break;
        default:
            words[i] = w.kind == WORD_RESULT ? (intptr_t)&results[w.index] : (intptr_t)&numbers[w.index];
        }
    }
    for (int i = 0; i < c->n_reals; i++)
        memcpy(&reals[i], &f->value[c->reals[i]], sizeof *reals);
    PyThreadState *saved = f->p->device < 0 ? PyEval_SaveThread() : NULL; /* (a GPU's functions launch, and return) */
    uint64_t keys = tc_pass_autograd();
    int failed = call_function(c->function, words, reals);
    tc_heed_autograd(keys);
    if (saved)
        PyEval_RestoreThread(saved);
    if (UNLIKELY(failed))
        return run_call(f, st->call); /* as with products: it raises what torch raised, or succeeds in a second try */
    int rc = 0;
    for (int i = 0; i < st->call->n_outs; i++) {
        if (!results[i])
            continue;
        if (rc || st->call->outs[i] < 0)
            tc_torch_api.delete_tensor(results[i]);
        else
            rc = accept_tensor(f, st->call->outs[i], results[i]);
    }
    return rc;
}

/* ---- one call of the program */
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
        AtenTensor t = tc_launcher_tensor(o);
        int64_t *dims;
        if (UNLIKELY(!t))
            return -1;
        if (UNLIKELY((s[1] == SYM_SIZE ? tc_torch_api.sizes : tc_torch_api.strides)(t, &dims))) {
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

static int run_steps(Frame *f)
{
    ProgramObject *p = f->p;
    void **buffer = alloca(sizeof(void *) * (p->most_slots + 1));
    int64_t *size = alloca(sizeof(int64_t) * (p->most_sizes + 1));
    Scalar *param = alloca(sizeof(Scalar) * (p->most_params + 1));
    for (int i = 0; i < p->n_steps; i++) {
        const Step *st = &p->steps[i];
        int rc = 0;
        /* Ctrl-C is heard between steps, as eager hears it between operators; not once inputs are being written. */
        if (i > 0 && p->device < 0 && !f->writing && UNLIKELY(PyErr_CheckSignals()))
            return -1;
        int64_t began = tc_trace_begin();
        switch (st->kind) {
        case STEP_KERNEL: {
            const KernelFacts *k = &st->facts;
            for (int j = 0; j < k->n_buffers; j++)
                buffer[j] = data_of(f, st->slots[j]);
            for (int j = 0; j < k->n_sizes; j++)
                size[j] = f->value[st->sizes[j]];
            for (int j = 0; j < k->n_params; j++)
                if (UNLIKELY(tc_fill_scalar(f->args[st->params[j]], k->param_kinds[j], &param[j])))
                    return -1;
            rc = k->run(st->kernel, buffer, size, param);
            break;
        }
        case STEP_MAKE:
            rc = make(f, st->slot);
            break;
        case STEP_FREE:
            release(&f->live[st->slot]);
            break;
        case STEP_GONE:
            if (f->given)
                Py_CLEAR(f->given[st->slot]);
            break;
        case STEP_PRODUCT:
            rc = run_product(f, st);
            break;
        case STEP_TORCH:
            rc = run_torch(f, st);
            break;
        case STEP_WRITING:
            f->writing = 1;
            break;
        default:
            rc = run_call(f, st->call);
        }
        tc_trace_end(TRACE_STEP, (PyObject *)p, i, began);
        if (UNLIKELY(rc))
            return -1;
    }
    return 0;
}

static PyObject *results_of(Frame *f)
{
    ProgramObject *p = f->p;
    PyObject *result = PyTuple_New(p->n_outputs);
    for (int i = 0; result && i < p->n_outputs; i++) {
        const Output *out = &p->outputs[i];
        PyObject *o;
        if (out->kind == OUT_SLOT)
            o = Py_XNewRef(object_of(f, out->index));
        else if (out->kind == OUT_INPUT)
            o = Py_NewRef(f->args[out->index]);
        else if (out->kind == OUT_VALUE)
            o = PyLong_FromLongLong(f->value[out->index]);
        else if (out->kind == OUT_CONSTANT)
            o = Py_NewRef(PyTuple_GET_ITEM(p->constants, out->index));
        else
            o = call(f, out->call);
        if (UNLIKELY(!o))
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, o);
    }
    return result;
}

/* What stands for a plan of which the driver rejects a kernel. `why`: the exception, NULL in later calls. */
static PyObject *run_instead(ProgramObject *p, PyObject *const *args, Py_ssize_t n, PyObject *why)
{
    PyObject *inputs = PyTuple_New(n), *result = NULL;
    for (Py_ssize_t i = 0; inputs && i < n; i++) {
        if (!args[i]) {                /* it was the call's own, and has had its last use */
            Py_SETREF(inputs, Py_NewRef(Py_None));
            break;
        }
        PyTuple_SET_ITEM(inputs, i, Py_NewRef(args[i]));
    }
    p->rejected = 1;
    if (inputs)
        result = PyObject_CallFunctionObjArgs(p->instead, inputs, why ? why : Py_None, NULL);
    Py_XDECREF(inputs);
    return result;
}

static PyObject *run_program(ProgramObject *p, PyObject *const *args, Py_ssize_t n, PyObject **given)
{
    if (UNLIKELY(p->rejected))
        return run_instead(p, args, n, NULL);
    if (UNLIKELY(n != p->n_inputs)) {
        PyErr_Format(PyExc_TypeError, "compiled graph takes %d inputs, got %zd", p->n_inputs, n);
        return NULL;
    }
    int64_t began = tc_trace_begin();
    Frame f = {p, args, given, p->fixed, alloca(sizeof(Live) * (p->n_slots + 1)), p->kept};
    if (p->n_computed) {
        int64_t *values = alloca(sizeof(int64_t) * (p->n_values + 1));
        if (UNLIKELY(compute_values(p, args, values)))
            return NULL;
        f.value = values;
    }
    memset(f.live, 0, sizeof(Live) * (p->n_slots + 1));
    Live block = {NULL, NULL, NULL, 0};
    char *scratch = NULL;
    int64_t scratch_bytes = p->scratch_value >= 0 ? f.value[p->scratch_value] : 0;
    if (scratch_bytes > 0 && p->device < 0) {
        if (!(scratch = tc_take_scratch(&scratch_bytes)))
            return NULL;
    } else if (scratch_bytes > 0) {
        if (UNLIKELY(tc_cuda_block(scratch_bytes, p->device, &block.tensor, &block.object, &block.data)))
            return NULL;
        block.owned = !block.object;
        scratch = block.data;
    }
    int alone = !p->in_use;
    if (UNLIKELY(!alone)) {
        f.kept = alloca(sizeof(Kept) * (p->n_slots + 1));
        memset(f.kept, 0, sizeof(Kept) * (p->n_slots + 1));
    }
    p->in_use = 1;
    f.by_blas = p->calls_blas && blas_allowed(&tc_torch_api.blas);
    PyObject *result = NULL;
    int grad = 0, rc = 0;
    for (int i = 0; i < p->n_slots && !rc; i++) {
        const Slot *s = &p->slots[i];
        if (s->kind == SLOT_INPUT)
            rc = address_of(args[s->index], &f.live[i]);
        else if (s->kind == SLOT_CONSTANT)
            rc = address_of(PyTuple_GET_ITEM(p->constants, s->index), &f.live[i]);
        else if (s->kind == SLOT_SCRATCH)
            f.live[i].data = scratch + f.value[s->offset];
    }
    if (LIKELY(!rc)) {
        if (p->calls_torch && tc_torch_api.grad_enabled && (grad = tc_torch_api.grad_enabled()))
            tc_torch_api.set_grad_enabled(0);
        rc = run_steps(&f);
        if (grad)
            tc_torch_api.set_grad_enabled(1);
    }
    if (LIKELY(!rc))
        result = results_of(&f);
    if (UNLIKELY(!result) && f.writing)
        tc_mark_final();
    PyObject *why = UNLIKELY(!result) && p->instead && !f.writing ? tc_cu_rejection() : NULL;
    for (int i = 0; i < p->n_slots; i++)
        release(&f.live[i]);
    if (LIKELY(alone))
        p->in_use = 0;
    else
        tc_plan_forget(f.kept, p->n_slots);
    release(&block);
    if (scratch && p->device < 0)
        tc_leave_scratch(scratch, scratch_bytes);
    tc_trace_end(TRACE_PLAN, (PyObject *)p, 0, began);
    if (UNLIKELY(why != NULL)) {
        result = run_instead(p, args, n, why);
        Py_DECREF(why);
    }
    return result;
}

PyObject *tc_program_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (UNLIKELY(kwnames && PyTuple_GET_SIZE(kwnames))) {
        PyErr_SetString(PyExc_TypeError, "compiled graph takes no keyword arguments");
        return NULL;
    }
    return run_program((ProgramObject *)self, args, PyVectorcall_NARGS(nargsf), NULL);
}

PyObject *tc_plan_run(PyObject *plan, PyObject *const *args, Py_ssize_t n)
{
    return run_program((ProgramObject *)plan, args, n, NULL);
}

PyObject *tc_program_consume(PyObject *self, PyObject *inputs)
{
    if (UNLIKELY(!PyList_CheckExact(inputs))) {
        PyErr_Format(PyExc_TypeError, "inputs that are given away come as a list, got %.100s",
                     Py_TYPE(inputs)->tp_name);
        return NULL;
    }
    Py_ssize_t n = PyList_GET_SIZE(inputs);
    PyObject **given = alloca(sizeof(PyObject *) * (size_t)(n + 1));
    for (Py_ssize_t i = 0; i < n; i++)
        given[i] = Py_NewRef(PyList_GET_ITEM(inputs, i));
    PyObject *result = PyList_SetSlice(inputs, 0, n, NULL) < 0 ? NULL
                                                               : run_program((ProgramObject *)self, given, n, given);
    for (Py_ssize_t i = 0; i < n; i++)
        Py_XDECREF(given[i]);
    return result;
}
