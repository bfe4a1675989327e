/* Program: a whole plan that runs without Python in between: allocations, kernels, products, and calls of torch's other kernels.

   Buffers are slots by number, integers (sizes, strides, bytes) are values by number. A slot is an input, a constant, a tensor of its
   own (made and freed by steps), a place in one block of scratch memory, a place inside of another slot, or what a call gave. Most
   slots are an address alone. Where a product needs a tensor, one is made over the address and kept for the next call, which mostly
   gets the same memory from the allocator; it owns nothing, so only functions that keep no reference are handed it. Calls of Python
   get tensors that own their memory. */
#include "launcher.h"

#include "expressions.h"

#include <stdlib.h>

/* the numbers of compiler/runtime/program.py */
enum { SLOT_INPUT, SLOT_CONSTANT, SLOT_OWN, SLOT_SCRATCH, SLOT_ALIAS, SLOT_RESULT, N_SLOT_KINDS };
enum { STEP_KERNEL, STEP_MAKE, STEP_FREE, STEP_PRODUCT, STEP_CALL, STEP_ATTENTION };
enum { OUT_SLOT, OUT_INPUT, OUT_VALUE, OUT_CONSTANT, OUT_CALL };
enum { ARG_OBJECT, ARG_SLOT, ARG_VALUE, ARG_INPUT, ARG_LIST, ARG_TUPLE };
enum { SYM_SIZE, SYM_STRIDE, SYM_VALUE };

typedef struct {
    int kind;
    int index;             /* SLOT_INPUT: which; SLOT_CONSTANT: which constant; SLOT_ALIAS: slot of the base, which is no
                              alias; SLOT_RESULT: whether its address is used */
    int dtype, itemsize, ndim;
    int dims;              /* first of ndim values, strides follow */
    int offset;            /* SLOT_SCRATCH, SLOT_ALIAS: value that holds it, in bytes */
    int fixed;             /* whether its dims are the same in every call */
} Slot;

typedef struct Arg {
    int kind, index, n;    /* n: of items */
    PyObject *object;
    struct Arg *items;
} Arg;

/* function(*args, **kwargs), the last of args under the names of `names`; results go to slots (-1: dropped) */
typedef struct {
    PyObject *function, *names;        /* names: tuple or NULL */
    int n_args, n_outs, single;        /* single: the result is one object, not a sequence */
    Arg *args;
    int *outs;
} CallSpec;

typedef struct {
    int kind, slot;                    /* slot: of STEP_MAKE and STEP_FREE */
    PyObject *kernel;
    KernelFacts facts;
    int *slots, *sizes, *params;       /* of a kernel; params: inputs. slots of a product: out, [c], a, b */
    int product;                       /* which; of an attention, too: ATTENTION_... */
    double beta, alpha;
    double dropout, scale;             /* of an attention */
    int has_scale, causal, with_sums;  /* with_sums: the logarithms of the sums are asked for */
    Gemm *gemm;                        /* or NULL */
    CallSpec *call;                    /* of STEP_CALL; of STEP_PRODUCT: what raises torch's error */
} Step;

typedef struct { int kind, index; CallSpec *call; } Output;
typedef struct { void *address; AtenTensor tensor; } Kept;       /* a tensor that owns nothing, over an address */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int device;                        /* index of the GPU, -1: the CPU */
    int n_inputs, n_symbols, n_values, n_slots, n_steps, n_outputs, scratch_value;
    int calls;                         /* whether Python is called: gradient mode is off meanwhile */
    int most_slots, most_sizes, most_params;
    int *symbols;                      /* (input, kind, dim) each */
    int64_t *fixed;                    /* values where they do not vary */
    int n_computed;                    /* expressions over the symbols */
    ExprProgram **computed;
    int *source;                       /* of each value: the expression that gives it, or -1: fixed */
    Slot *slots;
    Step *steps;
    Output *outputs;
    Kept *kept;                        /* by slot */
    PyObject *constants;               /* tuple */
    PyObject *as_planned;              /* as_planned(tensor, shape, stride) -> tensor that lies so */
} ProgramObject;

/* What a slot is during one call. `tensor`: owned where `owned`. */
typedef struct { void *data; PyObject *object; AtenTensor tensor; int owned; } Live;

typedef struct {
    ProgramObject *p;
    PyObject *const *args;
    const int64_t *value;
    Live *live;
    char *scratch;
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

/* A tensor to compute with, which must not be kept by whom it is given to. */
static AtenTensor tensor_of(Frame *f, int at)
{
    const Slot *s = &f->p->slots[at];
    Live *l = &f->live[at];
    if (l->tensor)
        return l->tensor;
    Kept *k = &f->p->kept[at];
    void *data = data_of(f, at);
    if (k->tensor && k->address == data && s->fixed)
        return k->tensor;
    if (k->tensor)
        tc_torch_api.delete_tensor(k->tensor);
    k->tensor = NULL;
    const int64_t *dims = &f->value[s->dims];
    if (UNLIKELY(tc_torch_api.from_blob(data, s->ndim, dims, dims + s->ndim, 0, s->dtype, f->p->device >= 0, f->p->device >= 0 ? f->p->device : 0, &k->tensor))) {
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
    if (s->kind == SLOT_OWN && l->tensor)
        return l->object = tc_torch_api.wrap(l->tensor);
    if (s->kind == SLOT_ALIAS && f->live[s->index].tensor) {
        const int64_t *dims = &f->value[s->dims];
        AtenTensor view;
        if (!tc_torch_api.reinterpret(f->live[s->index].tensor, s->ndim, dims, dims + s->ndim, f->value[s->offset] / s->itemsize, &view))
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

/* What a call gave for a slot. Kernels address memory by the strides that were planned, and torch's kernels may choose others. */
static int accept(Frame *f, int at, PyObject *o)
{
    const Slot *s = &f->p->slots[at];
    Live *l = &f->live[at];
    const int64_t *dims = &f->value[s->dims];
    int64_t *shape, *stride, ndim;
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
    if (LIKELY(!tc_torch_api.ndim(l->tensor, &ndim) && ndim == s->ndim && !tc_torch_api.sizes(l->tensor, &shape) &&
               !tc_torch_api.strides(l->tensor, &stride) && !memcmp(shape, dims, sizeof(int64_t) * ndim) &&
               !memcmp(stride, dims + ndim, sizeof(int64_t) * ndim)))
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
            PyErr_Format(PyExc_RuntimeError, "an operator gave %zd results where %d were planned", PySequence_Fast_GET_SIZE(items), c->n_outs);
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

static int run_product(Frame *f, const Step *st)
{
    int sum = st->product >= PRODUCT_ADDMM, n = sum ? 4 : 3;
    AtenTensor t[4];
    if (st->gemm && LIKELY(!tc_gemm_run(st->gemm, f->p->device, data_of(f, st->slots[0]), data_of(f, st->slots[n - 2]), data_of(f, st->slots[n - 1]),
                                        sum ? data_of(f, st->slots[1]) : NULL)))
        return 0;
    for (int i = 0; i < n; i++)
        if (UNLIKELY(!(t[i] = tensor_of(f, st->slots[i]))))
            return -1;
    void *function = tc_torch_api.products[f->p->device >= 0][st->product];
    int rc = sum ? ((int (*)(AtenTensor, AtenTensor, AtenTensor, AtenTensor, double, double))function)(t[0], t[1], t[2], t[3], st->beta, st->alpha)
                 : ((int (*)(AtenTensor, AtenTensor, AtenTensor))function)(t[0], t[1], t[2]);
    if (LIKELY(!rc))
        return 0;
    /* torch's C functions print what they threw and lose it: torch's own function raises it, or succeeds in a second try */
    int grad = tc_torch_api.grad_enabled();
    tc_torch_api.set_grad_enabled(0);
    PyObject *r = call(f, st->call);
    tc_torch_api.set_grad_enabled(grad);
    Py_XDECREF(r);
    return r ? 0 : -1;
}

/* What torch's C function gave for a slot: `t`, which the slot owns from now on. */
static int accept_handle(Frame *f, int at, AtenTensor t)
{
    PyObject *o = tc_launcher_wrap(t);
    int rc = o ? accept(f, at, o) : -1;
    Py_XDECREF(o);
    return rc;
}

static int run_attention(Frame *f, const Step *st)
{
    AtenTensor t[4] = {NULL}, r[9] = {NULL}, *bias = NULL;
    int64_t sizes[2];
    double scale = st->scale, *given = st->has_scale ? &scale : NULL;
    for (int i = 0; i < 4; i++)
        if (st->slots[i] >= 0 && UNLIKELY(!(t[i] = tensor_of(f, st->slots[i]))))
            return -1;
    bias = st->slots[3] >= 0 ? &t[3] : NULL;
    int rc, n = st->product == ATTENTION_EFFICIENT ? 4 : 9;
    void *function = tc_torch_api.attention[st->product];
    if (st->product == ATTENTION_FLASH)
        rc = ((int (*)(AtenTensor, AtenTensor, AtenTensor, double, int32_t, int32_t, double *, AtenTensor *, AtenTensor *, AtenTensor *, AtenTensor *, int64_t *,
                       int64_t *, AtenTensor *, AtenTensor *, AtenTensor *))function)(t[0], t[1], t[2], st->dropout, st->causal, 0, given, &r[0], &r[1], &r[2],
                                                                                      &r[3], &sizes[0], &sizes[1], &r[6], &r[7], &r[8]);
    else if (st->product == ATTENTION_CUDNN)
        rc = ((int (*)(AtenTensor, AtenTensor, AtenTensor, AtenTensor *, int32_t, double, int32_t, int32_t, double *, AtenTensor *, AtenTensor *, AtenTensor *,
                       AtenTensor *, int64_t *, int64_t *, AtenTensor *, AtenTensor *, AtenTensor *))function)(
            t[0], t[1], t[2], bias, st->with_sums, st->dropout, st->causal, 0, given, &r[0], &r[1], &r[2], &r[3], &sizes[0], &sizes[1], &r[6], &r[7], &r[8]);
    else
        rc = ((int (*)(AtenTensor, AtenTensor, AtenTensor, AtenTensor *, int32_t, double, int32_t, double *, AtenTensor *, AtenTensor *, AtenTensor *,
                       AtenTensor *))function)(t[0], t[1], t[2], bias, st->with_sums, st->dropout, st->causal, given, &r[0], &r[1], &r[2], &r[3]);
    if (UNLIKELY(rc))
        return run_call(f, st->call);
    for (int i = 0; i < n; i++) {
        if (!r[i])
            continue;
        if (rc || i >= st->call->n_outs || st->call->outs[i] < 0)
            tc_torch_api.delete_tensor(r[i]);
        else
            rc = accept_handle(f, st->call->outs[i], r[i]);
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
        case STEP_PRODUCT:
            rc = run_product(f, st);
            break;
        case STEP_ATTENTION:
            rc = run_attention(f, st);
            break;
        default:
            rc = run_call(f, st->call);
        }
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

static PyObject *program_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    ProgramObject *p = (ProgramObject *)self;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (UNLIKELY(n != p->n_inputs || (kwnames && PyTuple_GET_SIZE(kwnames)))) {
        PyErr_Format(PyExc_TypeError, "compiled graph takes %d inputs, got %zd", p->n_inputs, n);
        return NULL;
    }
    Frame f = {p, args, p->fixed, alloca(sizeof(Live) * (p->n_slots + 1))};
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
        if (posix_memalign((void **)&scratch, 64, (size_t)scratch_bytes))
            return PyErr_NoMemory();
    } else if (scratch_bytes > 0) {
        if (UNLIKELY(tc_cuda_block(scratch_bytes, p->device, &block.tensor, &block.object, &block.data)))
            return NULL;
        block.owned = !block.object;
        scratch = block.data;
    }
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
        if (p->calls && (grad = tc_torch_api.grad_enabled()))
            tc_torch_api.set_grad_enabled(0);
        rc = run_steps(&f);
        if (grad)
            tc_torch_api.set_grad_enabled(1);
    }
    if (LIKELY(!rc))
        result = results_of(&f);
    for (int i = 0; i < p->n_slots; i++)
        release(&f.live[i]);
    release(&block);
    if (p->device < 0)
        free(scratch);
    return result;
}

/* ---- making one */
static int bad(void)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a program's description is not consistent");
    return -1;
}

/* Exactly `want` integers of a tuple, each below `limit`. NULL with an exception set. */
static int *read_ints(PyObject *tuple, int want, int least, int limit)
{
    int *out = calloc((size_t)want + 1, sizeof *out);
    if (!out) {
        PyErr_NoMemory();
        return NULL;
    }
    int fits = PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) == want;
    for (int i = 0; fits && i < want; i++) {
        out[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        fits = out[i] >= least && out[i] < limit;
    }
    if (!fits || PyErr_Occurred()) {
        bad();
        free(out);
        return NULL;
    }
    return out;
}

static void free_args(Arg *args, int n)
{
    for (int i = 0; args && i < n; i++) {
        Py_XDECREF(args[i].object);
        free_args(args[i].items, args[i].n);
    }
    free(args);
}

static void free_call(CallSpec *c)
{
    if (!c)
        return;
    Py_XDECREF(c->function);
    Py_XDECREF(c->names);
    free_args(c->args, c->n_args);
    free(c->outs);
    free(c);
}

/* (kind, object) each: a number where the kind names something, a tuple of the same for lists and tuples */
static Arg *read_args(ProgramObject *p, PyObject *tuple, int *n)
{
    *n = 0;
    if (!PyTuple_Check(tuple)) {
        bad();
        return NULL;
    }
    Arg *out = calloc((size_t)PyTuple_GET_SIZE(tuple) + 1, sizeof *out);
    if (!out) {
        PyErr_NoMemory();
        return NULL;
    }
    for (; *n < PyTuple_GET_SIZE(tuple); ++*n) {
        Arg *a = &out[*n];
        PyObject *what;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, *n), "iO", &a->kind, &what))
            goto fail;
        if (a->kind == ARG_OBJECT) {
            a->object = Py_NewRef(what);
        } else if (a->kind == ARG_LIST || a->kind == ARG_TUPLE) {
            if (!(a->items = read_args(p, what, &a->n)))
                goto fail;
        } else {
            int limit = a->kind == ARG_SLOT ? p->n_slots : a->kind == ARG_VALUE ? p->n_values : a->kind == ARG_INPUT ? p->n_inputs : 0;
            a->index = (int)PyLong_AsLong(what);
            if (a->index < 0 || a->index >= limit) {
                bad();
                goto fail;
            }
        }
    }
    return out;
fail:
    free_args(out, *n + 1);
    return NULL;
}

/* (function, args, names of the last of them, outs, single) */
static CallSpec *read_call(ProgramObject *p, PyObject *tuple)
{
    PyObject *function, *args, *names, *outs;
    CallSpec *c = calloc(1, sizeof *c);
    if (!c || !PyTuple_Check(tuple) || !PyArg_ParseTuple(tuple, "OO!O!O!p", &function, &PyTuple_Type, &args, &PyTuple_Type, &names, &PyTuple_Type, &outs, &c->single)) {
        free(c);
        bad();
        return NULL;
    }
    c->function = Py_NewRef(function);
    c->names = PyTuple_GET_SIZE(names) ? Py_NewRef(names) : NULL;
    c->n_outs = (int)PyTuple_GET_SIZE(outs);
    if (!(c->args = read_args(p, args, &c->n_args)) || !(c->outs = read_ints(outs, c->n_outs, -1, p->n_slots)) ||
        PyTuple_GET_SIZE(names) > c->n_args || (c->single && c->n_outs != 1)) {
        bad();
        free_call(c);
        return NULL;
    }
    return c;
}

static int most(int a, int b) { return a > b ? a : b; }

static int read_step(ProgramObject *p, Step *st, PyObject *tuple)
{
    if (!PyTuple_Check(tuple) || !PyTuple_GET_SIZE(tuple))
        return bad();
    PyObject *a, *b, *c, *d;
    long kind = PyLong_AsLong(PyTuple_GET_ITEM(tuple, 0));
    st->kind = (int)kind;
    switch (kind) {
    case STEP_KERNEL:                      /* (kind, kernel, slots, sizes, params) */
        if (!PyArg_ParseTuple(tuple, "lOOOO", &kind, &a, &b, &c, &d) || tc_kernel_facts(a, &st->facts) < 0)
            return -1;
        st->kernel = Py_NewRef(a);
        p->most_slots = most(p->most_slots, st->facts.n_buffers);
        p->most_sizes = most(p->most_sizes, st->facts.n_sizes);
        p->most_params = most(p->most_params, st->facts.n_params);
        return (st->slots = read_ints(b, st->facts.n_buffers, 0, p->n_slots)) && (st->sizes = read_ints(c, st->facts.n_sizes, 0, p->n_values)) &&
               (st->params = read_ints(d, st->facts.n_params, 0, p->n_inputs)) ? 0 : -1;
    case STEP_MAKE: case STEP_FREE:        /* (kind, slot) */
        if (!PyArg_ParseTuple(tuple, "li", &kind, &st->slot))
            return -1;
        return st->slot < 0 || st->slot >= p->n_slots || (kind == STEP_MAKE && p->slots[st->slot].kind != SLOT_OWN) ? bad() : 0;
    case STEP_PRODUCT: {                   /* (kind, which, slots, beta, alpha, call, gemm: the fields of a GemmSpec, or ()) */
        GemmSpec g;
        if (!PyArg_ParseTuple(tuple, "liOddOO!", &kind, &st->product, &a, &st->beta, &st->alpha, &b, &PyTuple_Type, &c))
            return -1;
        if (PyTuple_GET_SIZE(c)) {
            long long n[6];
            if (!PyArg_ParseTuple(c, "iiiiLLLLLL", &g.dtype, &g.bias, &g.transposed_a, &g.transposed_b, &n[0], &n[1], &n[2], &n[3], &n[4], &n[5]))
                return -1;
            g.m = n[0], g.n = n[1], g.k = n[2], g.lda = n[3], g.ldb = n[4], g.ldd = n[5];
            if (p->device >= 0 && !(st->gemm = tc_gemm_new(&g))) {
                PyErr_NoMemory();
                return -1;
            }
        }
        if (st->product < 0 || st->product >= N_PRODUCTS || !tc_torch_api.products[p->device >= 0][st->product])
            return bad();
        return (st->slots = read_ints(a, st->product >= PRODUCT_ADDMM ? 4 : 3, 0, p->n_slots)) && (st->call = read_call(p, b)) ? 0 : -1;
    }
    case STEP_ATTENTION: {                 /* (kind, which, slots of q, k, v and the bias or -1, dropout, causal, with sums, scale or None, call) */
        PyObject *scale;
        if (!PyArg_ParseTuple(tuple, "liOdiiOO", &kind, &st->product, &a, &st->dropout, &st->causal, &st->with_sums, &scale, &b))
            return -1;
        p->calls = 1;
        st->has_scale = scale != Py_None;
        st->scale = st->has_scale ? PyFloat_AsDouble(scale) : 0;
        if (PyErr_Occurred() || p->device < 0 || st->product < 0 || st->product >= N_ATTENTIONS || !tc_torch_api.attention[st->product])
            return bad();
        return (st->slots = read_ints(a, 4, -1, p->n_slots)) && (st->call = read_call(p, b)) ? 0 : -1;
    }
    case STEP_CALL:                        /* (kind, call) */
        p->calls = 1;
        return PyArg_ParseTuple(tuple, "lO", &kind, &a) && (st->call = read_call(p, a)) ? 0 : -1;
    }
    return bad();
}

static int read_slot(ProgramObject *p, int at, PyObject *tuple)
{
    Slot *s = &p->slots[at];
    if (!PyTuple_Check(tuple) || !PyArg_ParseTuple(tuple, "iiiiiii", &s->kind, &s->index, &s->dtype, &s->itemsize, &s->ndim, &s->dims, &s->offset))
        return bad();
    int limit = s->kind == SLOT_INPUT ? p->n_inputs : s->kind == SLOT_CONSTANT ? (int)PyTuple_GET_SIZE(p->constants) : s->kind == SLOT_ALIAS ? at : 2;
    if (s->kind < 0 || s->kind >= N_SLOT_KINDS || s->index < 0 || s->index >= limit || s->itemsize < 1 || s->ndim < 0 || s->dims < 0 ||
        s->dims + 2 * s->ndim > p->n_values || ((s->kind == SLOT_SCRATCH || s->kind == SLOT_ALIAS) && (s->offset < 0 || s->offset >= p->n_values)) ||
        (s->kind == SLOT_ALIAS && p->slots[s->index].kind == SLOT_ALIAS))
        return bad();
    s->fixed = 1;
    for (int i = 0; i < 2 * s->ndim; i++)
        s->fixed &= p->source[s->dims + i] < 0;
    return 0;
}

static int read_output(ProgramObject *p, Output *o, PyObject *tuple)
{
    PyObject *what;
    if (!PyTuple_Check(tuple) || !PyArg_ParseTuple(tuple, "iO", &o->kind, &what))
        return bad();
    if (o->kind == OUT_CALL)
        return (o->call = read_call(p, what)) ? 0 : -1;
    o->index = (int)PyLong_AsLong(what);
    int limit = o->kind == OUT_SLOT ? p->n_slots : o->kind == OUT_INPUT ? p->n_inputs : o->kind == OUT_VALUE ? p->n_values :
                o->kind == OUT_CONSTANT ? (int)PyTuple_GET_SIZE(p->constants) : 0;
    return o->index < 0 || o->index >= limit ? bad() : 0;
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"n_inputs", "device", "symbols", "values", "computed", "sources", "slots", "steps", "outputs", "constants",
                            "scratch_value", "as_planned", NULL};
    int n_inputs, device, scratch_value;
    PyObject *symbols, *values, *computed, *sources, *slots, *steps, *outputs, *constants, *as_planned;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiO!O!O!O!O!O!O!O!iO", names, &n_inputs, &device, &PyTuple_Type, &symbols, &PyTuple_Type, &values,
                                     &PyTuple_Type, &computed, &PyTuple_Type, &sources, &PyTuple_Type, &slots, &PyTuple_Type, &steps,
                                     &PyTuple_Type, &outputs, &PyTuple_Type, &constants, &scratch_value, &as_planned))
        return NULL;
    if (!tc_launcher_ready() || (device >= 0 && !tc_cuda_ready())) {
        PyErr_SetString(PyExc_RuntimeError, "the launcher was not set up");
        return NULL;
    }
    ProgramObject *p = (ProgramObject *)type->tp_alloc(type, 0);
    if (!p)
        return NULL;
    int n_steps = (int)PyTuple_GET_SIZE(steps), n_outputs = (int)PyTuple_GET_SIZE(outputs), n_computed = (int)PyTuple_GET_SIZE(computed);
    p->vectorcall = program_call;
    p->n_inputs = n_inputs;
    p->device = device;
    p->scratch_value = scratch_value;
    p->constants = Py_NewRef(constants);
    p->as_planned = Py_NewRef(as_planned);
    p->n_symbols = (int)PyTuple_GET_SIZE(symbols);
    p->n_values = (int)PyTuple_GET_SIZE(values);
    p->n_slots = (int)PyTuple_GET_SIZE(slots);
    p->symbols = calloc(3 * p->n_symbols + 1, sizeof(int));
    p->fixed = calloc(p->n_values + 1, sizeof(int64_t));
    p->computed = calloc(n_computed + 1, sizeof *p->computed);
    p->slots = calloc(p->n_slots + 1, sizeof(Slot));
    p->kept = calloc(p->n_slots + 1, sizeof(Kept));
    p->steps = calloc(n_steps + 1, sizeof(Step));
    p->outputs = calloc(n_outputs + 1, sizeof(Output));
    if (!p->symbols || !p->fixed || !p->computed || !p->slots || !p->kept || !p->steps || !p->outputs) {
        PyErr_NoMemory();
        goto fail;
    }
    for (int i = 0; i < p->n_symbols; i++) {
        int *s = read_ints(PyTuple_GET_ITEM(symbols, i), 3, 0, 1 << 30);
        if (!s)
            goto fail;
        memcpy(&p->symbols[3 * i], s, 3 * sizeof(int));
        free(s);
        if (p->symbols[3 * i] >= n_inputs) {
            bad();
            goto fail;
        }
    }
    for (int i = 0; i < p->n_values; i++)
        p->fixed[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(values, i));
    for (; p->n_computed < n_computed; p->n_computed++)
        if (!(p->computed[p->n_computed] = tc_expr_new(PyTuple_GET_ITEM(computed, p->n_computed), p->n_symbols)))
            goto fail;
    if (!(p->source = read_ints(sources, p->n_values, -1, n_computed)))
        goto fail;
    for (int i = 0; i < p->n_slots; i++)
        if (read_slot(p, i, PyTuple_GET_ITEM(slots, i)) < 0)
            goto fail;
    while (p->n_steps < n_steps) {
        Step *st = &p->steps[p->n_steps];
        if (read_step(p, st, PyTuple_GET_ITEM(steps, p->n_steps++)) < 0)
            goto fail;
    }
    while (p->n_outputs < n_outputs) {
        Output *o = &p->outputs[p->n_outputs];
        if (read_output(p, o, PyTuple_GET_ITEM(outputs, p->n_outputs++)) < 0)
            goto fail;
    }
    if (scratch_value >= p->n_values)
        bad();
    if (PyErr_Occurred())
        goto fail;
    return (PyObject *)p;
fail:
    Py_DECREF(p);
    return NULL;
}

static int visit_args(const Arg *args, int n, visitproc visit, void *arg)
{
    for (int i = 0; args && i < n; i++) {
        Py_VISIT(args[i].object);
        int rc = visit_args(args[i].items, args[i].n, visit, arg);
        if (rc)
            return rc;
    }
    return 0;
}

static int visit_call(const CallSpec *c, visitproc visit, void *arg)
{
    if (!c)
        return 0;
    Py_VISIT(c->function);
    return visit_args(c->args, c->n_args, visit, arg);
}

static int program_traverse(PyObject *self, visitproc visit, void *arg)
{
    ProgramObject *p = (ProgramObject *)self;
    int rc = 0;
    Py_VISIT(p->constants);
    for (int i = 0; i < p->n_steps; i++) {
        Py_VISIT(p->steps[i].kernel);
        if ((rc = visit_call(p->steps[i].call, visit, arg)))
            return rc;
    }
    for (int i = 0; i < p->n_outputs && !rc; i++)
        rc = visit_call(p->outputs[i].call, visit, arg);
    return rc;
}

static int program_clear(PyObject *self)
{
    ProgramObject *p = (ProgramObject *)self;
    int n_steps = p->n_steps, n_outputs = p->n_outputs;
    p->n_steps = p->n_outputs = 0;
    for (int i = 0; i < n_steps; i++) {
        Step *st = &p->steps[i];
        Py_XDECREF(st->kernel);
        free(st->slots);
        free(st->sizes);
        free(st->params);
        free_call(st->call);
        tc_gemm_free(st->gemm);
    }
    for (int i = 0; i < n_outputs; i++)
        free_call(p->outputs[i].call);
    return 0;
}

static void program_dealloc(PyObject *self)
{
    ProgramObject *p = (ProgramObject *)self;
    PyObject_GC_UnTrack(self);
    program_clear(self);
    Py_CLEAR(p->constants);
    Py_CLEAR(p->as_planned);
    for (int i = 0; p->kept && i < p->n_slots; i++)
        if (p->kept[i].tensor)
            tc_torch_api.delete_tensor(p->kept[i].tensor);
    free(p->kept);
    free(p->symbols);
    free(p->fixed);
    free(p->slots);
    free(p->steps);
    free(p->outputs);
    free(p->source);
    for (int i = 0; p->computed && i < p->n_computed; i++)
        tc_expr_free(p->computed[i]);
    free(p->computed);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject Program_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.Program",
    .tp_doc = "Program(n_inputs, device, symbols, values, computed, sources, slots, steps, outputs, constants, scratch_value, as_planned)\n\n"
              "A plan that runs without Python in between. See compiler/runtime/program.py.",
    .tp_basicsize = sizeof(ProgramObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = program_new,
    .tp_dealloc = program_dealloc,
    .tp_traverse = program_traverse,
    .tp_clear = program_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(ProgramObject, vectorcall),
};

int tc_init_plan(PyObject *module)
{
    return PyModule_AddType(module, &Program_Type);
}
