/* Making programs (plan.h) from what compiler/runtime/native_program.py hands over, and their Python type. */
#include "plan.h"
#include <structmember.h>

#include <stdlib.h>

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
            int limit = a->kind == ARG_SLOT    ? p->n_slots
                        : a->kind == ARG_VALUE ? p->n_values
                        : a->kind == ARG_INPUT ? p->n_inputs
                                               : 0;
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
    if (!c || !PyTuple_Check(tuple) ||
        !PyArg_ParseTuple(tuple, "OO!O!O!p", &function, &PyTuple_Type, &args, &PyTuple_Type, &names, &PyTuple_Type,
                          &outs, &c->single)) {
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

static int read_torch(ProgramObject *p, Step *st, PyObject *tuple)
{
    unsigned long long address;
    PyObject *words, *reals, *call;
    TorchCall *c = st->torch = calloc(1, sizeof *c);
    if (!c ||
        !PyArg_ParseTuple(tuple, "iKO!O!O", &st->kind, &address, &PyTuple_Type, &words, &PyTuple_Type, &reals, &call) ||
        !(st->call = read_call(p, call)))
        return c ? -1 : bad();
    p->calls_torch = 1;
    c->function = (int (*)())(uintptr_t)address;
    c->n_words = (int)PyTuple_GET_SIZE(words);
    c->n_reals = (int)PyTuple_GET_SIZE(reals);
    if (!address || !tc_torch_api.undefined || c->n_words > MOST_WORDS || c->n_reals > MOST_REALS ||
        st->call->n_outs > MOST_RESULTS)
        return bad();
    for (int i = 0; i < c->n_words; i++) {
        Word *w = &c->words[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(words, i), "ii", &w->kind, &w->index))
            return -1;
        int limit = w->kind <= WORD_LIST        ? p->n_values
                    : w->kind <= WORD_OPTIONAL  ? p->n_slots
                    : w->kind == WORD_UNDEFINED ? 1
                                                : st->call->n_outs;
        if (w->kind < 0 || w->kind > WORD_NUMBER || w->index < 0 || w->index >= limit)
            return bad();
    }
    int *at = read_ints(reals, c->n_reals, 0, p->n_values);
    if (at)
        memcpy(c->reals, at, sizeof(int) * c->n_reals);
    free(at);
    return at ? 0 : -1;
}

/* Whether BLAS may compute a product: 0, or 1 + the number of its dtype. What is written to an input, torch counts. */
static int blas_kind(const ProgramObject *p, const Step *st)
{
    int n = st->product == PRODUCT_MM ? 3 : st->product == PRODUCT_ADDMM ? 4 : 0,
        dtype = n ? blas_dtype(p->slots[st->slots[0]].dtype) : -1;
    for (int i = 0; i < n; i++) {
        const Slot *s = &p->slots[st->slots[i]];
        int is_bias = n == 4 && i == 1;
        if (dtype < 0 || blas_dtype(s->dtype) != dtype || (!i && s->kind == SLOT_INPUT) ||
            (s->ndim != 2 && !(is_bias && s->ndim == 1)))
            return 0;
    }
    return tc_torch_api.blas.gemm[0] ? 1 + dtype : 0;
}

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
        return (st->slots = read_ints(b, st->facts.n_buffers, 0, p->n_slots)) &&
                       (st->sizes = read_ints(c, st->facts.n_sizes, 0, p->n_values)) &&
                       (st->params = read_ints(d, st->facts.n_params, 0, p->n_inputs))
                   ? 0
                   : -1;
    case STEP_MAKE: case STEP_FREE:        /* (kind, slot) */
        if (!PyArg_ParseTuple(tuple, "li", &kind, &st->slot))
            return -1;
        return st->slot < 0 || st->slot >= p->n_slots || (kind == STEP_MAKE && p->slots[st->slot].kind != SLOT_OWN)
                   ? bad()
                   : 0;
    case STEP_GONE:                        /* (kind, input) */
        if (!PyArg_ParseTuple(tuple, "li", &kind, &st->slot))
            return -1;
        return st->slot < 0 || st->slot >= p->n_inputs ? bad() : 0;
    case STEP_PRODUCT: { /* (kind, which (and N_PRODUCTS more where it widens), slots, beta, alpha, call, gemm: the
                            fields of a GemmSpec, or (), algorithm: (bytes, workspace), or ()) */
        GemmSpec g;
        p->calls_torch = 1;
        if (!PyArg_ParseTuple(tuple, "liOddOO!O!", &kind, &st->product, &a, &st->beta, &st->alpha, &b, &PyTuple_Type,
                              &c, &PyTuple_Type, &d))
            return -1;
        if (PyTuple_GET_SIZE(c)) {
            Algorithm algorithm;
            const char *bytes = NULL;
            Py_ssize_t n_bytes = 0, workspace = 0;
            if (tc_gemm_spec(c, &g) < 0 ||
                (PyTuple_GET_SIZE(d) && !PyArg_ParseTuple(d, "y#n", &bytes, &n_bytes, &workspace)))
                return -1;
            if (bytes && n_bytes != sizeof algorithm)
                return bad();
            if (bytes)
                memcpy(&algorithm, bytes, sizeof algorithm);
            if (p->device >= 0 && !(st->gemm = tc_gemm_new(&g, bytes ? &algorithm : NULL, (size_t)workspace))) {
                PyErr_NoMemory();
                return -1;
            }
        }
        st->widens = st->product >= N_PRODUCTS;
        st->product -= st->widens ? N_PRODUCTS : 0;
        if (st->product < 0 || st->product >= N_PRODUCTS || !tc_torch_api.products[p->device >= 0][st->product])
            return bad();
        if (!(st->slots = read_ints(a, st->product >= PRODUCT_ADDMM ? 4 : 3, 0, p->n_slots)) ||
            !(st->call = read_call(p, b)))
            return -1;
        st->blas = p->device < 0 && !st->widens ? blas_kind(p, st) : 0;
        p->calls_blas |= st->blas;
        return 0;
    }
    case STEP_TORCH:                       /* (kind, address, words: (kind, index) each, reals, call) */
        return read_torch(p, st, tuple);
    case STEP_WRITING:                     /* (kind,) */
        return 0;
    case STEP_CALL:                        /* (kind, call) */
        p->calls_torch = 1;
        return PyArg_ParseTuple(tuple, "lO", &kind, &a) && (st->call = read_call(p, a)) ? 0 : -1;
    }
    return bad();
}

static int read_slot(ProgramObject *p, int at, PyObject *tuple)
{
    Slot *s = &p->slots[at];
    if (!PyTuple_Check(tuple) || !PyArg_ParseTuple(tuple, "iiiiiii", &s->kind, &s->index, &s->dtype, &s->itemsize,
                                                   &s->ndim, &s->dims, &s->offset))
        return bad();
    int limit = s->kind == SLOT_INPUT      ? p->n_inputs
                : s->kind == SLOT_CONSTANT ? (int)PyTuple_GET_SIZE(p->constants)
                : s->kind == SLOT_ALIAS    ? at
                                           : 2;
    if (s->kind < 0 || s->kind >= N_SLOT_KINDS || s->index < 0 || s->index >= limit || s->itemsize < 1 || s->ndim < 0 ||
        s->dims < 0 || s->dims + 2 * s->ndim > p->n_values ||
        ((s->kind == SLOT_SCRATCH || s->kind == SLOT_ALIAS) && (s->offset < 0 || s->offset >= p->n_values)) ||
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
    int limit = o->kind == OUT_SLOT       ? p->n_slots
                : o->kind == OUT_INPUT    ? p->n_inputs
                : o->kind == OUT_VALUE    ? p->n_values
                : o->kind == OUT_CONSTANT ? (int)PyTuple_GET_SIZE(p->constants)
                                          : 0;
    return o->index < 0 || o->index >= limit ? bad() : 0;
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"n_inputs", "device",  "symbols",   "values",        "computed",   "sources", "slots",
                            "steps",    "outputs", "constants", "scratch_value", "as_planned", NULL};
    int n_inputs, device, scratch_value;
    PyObject *symbols, *values, *computed, *sources, *slots, *steps, *outputs, *constants, *as_planned;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiO!O!O!O!O!O!O!O!iO", names, &n_inputs, &device, &PyTuple_Type,
                                     &symbols, &PyTuple_Type, &values, &PyTuple_Type, &computed, &PyTuple_Type,
                                     &sources, &PyTuple_Type, &slots, &PyTuple_Type, &steps, &PyTuple_Type, &outputs,
                                     &PyTuple_Type, &constants, &scratch_value, &as_planned))
        return NULL;
    if (!tc_launcher_ready() || (device >= 0 && !tc_cuda_ready())) {
        PyErr_SetString(PyExc_RuntimeError, "the launcher was not set up");
        return NULL;
    }
    ProgramObject *p = (ProgramObject *)type->tp_alloc(type, 0);
    if (!p)
        return NULL;
    int n_steps = (int)PyTuple_GET_SIZE(steps), n_outputs = (int)PyTuple_GET_SIZE(outputs),
        n_computed = (int)PyTuple_GET_SIZE(computed);
    p->vectorcall = tc_program_call;
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
    Py_VISIT(p->labels);
    Py_VISIT(p->instead);
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
        free(st->torch);
    }
    for (int i = 0; i < n_outputs; i++)
        free_call(p->outputs[i].call);
    return 0;
}

void tc_plan_forget(Kept *kept, int n)
{
    for (int i = 0; kept && i < n; i++)
        if (kept[i].tensor)
            tc_torch_api.delete_tensor(kept[i].tensor);
}

static void program_dealloc(PyObject *self)
{
    ProgramObject *p = (ProgramObject *)self;
    PyObject_GC_UnTrack(self);
    program_clear(self);
    Py_CLEAR(p->constants);
    Py_CLEAR(p->labels);
    Py_CLEAR(p->as_planned);
    Py_CLEAR(p->instead);
    tc_plan_forget(p->kept, p->n_slots);
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

static PyMethodDef program_methods[] = {
    {"consume", tc_program_consume, METH_O,
     "consume(list) -> tuple: a call with the items as inputs, which leave the list; each is let go after its last "
     "use."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef program_members[] = {
    {"labels", T_OBJECT, offsetof(ProgramObject, labels), 0,
     "what the steps are: (schedule, place in its steps of each); runtime/trace.py reads it"},
    {"instead", T_OBJECT, offsetof(ProgramObject, instead), 0,
     "instead(inputs, why) -> tuple, where the GPU's driver rejects a kernel: `why`, then None; `inputs`: a tuple, or "
     "None where some are gone"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject Program_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.Program",
    .tp_doc = "Program(n_inputs, device, symbols, values, computed, sources, slots, steps, outputs, constants, "
              "scratch_value, as_planned)\n\n"
              "A plan that runs without Python in between. See compiler/runtime/native_program.py.",
    .tp_basicsize = sizeof(ProgramObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = program_new,
    .tp_dealloc = program_dealloc,
    .tp_traverse = program_traverse,
    .tp_clear = program_clear,
    .tp_call = PyVectorcall_Call,
    .tp_methods = program_methods,
    .tp_members = program_members,
    .tp_vectorcall_offset = offsetof(ProgramObject, vectorcall),
};

int tc_plan_outputs(PyObject *plan)
{
    return Py_TYPE(plan) == &Program_Type ? ((ProgramObject *)plan)->n_outputs : -1;
}

int tc_init_plan(PyObject *module)
{
    return PyModule_AddType(module, &Program_Type);
}
