/* A call of a compiled graph with gradients: what compiler/autograd/bridge.py describes, for graphs whose results need nothing but to be put in
   order after the autograd.Function has run.

   GradForward is the `forward` of the Function's class: it runs the compiled forward graph and gives torch what is to be saved. GradCall is what
   the entry calls: it applies the Function and puts the results in order. What does not require grad does not go through torch at all: the
   forward leaves it with the call that is going on in this thread. */
#include "native.h"

enum { GIVE_RESULT, GIVE_DIFF, GIVE_INPUT };           /* as in compiler/autograd/bridge.py */

typedef struct Call {
    PyObject *forward;                                  /* the GradForward that this call is of */
    PyObject *results;                                  /* what the forward graph returned, once it has */
    struct Call *outer;
} Call;

static _Thread_local Call *current;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *graph;               /* the compiled forward graph: callable(*inputs) -> tuple */
    PyObject *rest;                /* None, or callable(*inputs) -> what backward gets besides tensors */
    int n_outputs, n_at, n_saved, n_remembered;
    int *at;                       /* positions of the differentiable outputs */
    int *saved;                    /* inputs that are kept */
    int *remembered;               /* inputs that double backward would ask for: 2 * input, + 1 where the reference is not weak */
} ForwardObject;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *apply;               /* torch._C._FunctionBase.apply of the Function's class */
    ForwardObject *forward;
    int n_results;
    int *recipe;                   /* (kind, index) each */
} CallObject;

static PyObject *s_to_save, *s_materialize, *s_rest, *s_remembered, *s_version, *s_final;
static PyTypeObject Forward_Type, Call_Type;

static int *read_ints(PyObject *tuple, int *n)
{
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of integers was expected");
        return NULL;
    }
    *n = (int)PyTuple_GET_SIZE(tuple);
    int *out = PyMem_Calloc((size_t)*n + 1, sizeof *out);
    for (int i = 0; out && i < *n; i++)
        out[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
    if (!out)
        PyErr_NoMemory();
    else if (PyErr_Occurred()) {
        PyMem_Free(out);
        return NULL;
    }
    return out;
}

/* ---- GradForward */

/* For double backward: (reference, version) of a tensor, anything else as it is. */
static PyObject *remember(PyObject *input, int strong)
{
    PyObject *version = PyObject_GetAttr(input, s_version);
    if (!version) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return NULL;
        PyErr_Clear();
        return Py_NewRef(input);
    }
    PyObject *ref = strong ? Py_NewRef(input) : PyWeakref_NewRef(input, NULL), *pair = ref ? PyTuple_Pack(2, ref, version) : NULL;
    Py_XDECREF(ref);
    Py_DECREF(version);
    return pair;
}

static int save(ForwardObject *f, PyObject *ctx, PyObject *const *inputs, Py_ssize_t n, PyObject *results)
{
    Py_ssize_t n_kept = PyTuple_GET_SIZE(results) - f->n_outputs;
    PyObject *kept = PyTuple_New(f->n_saved + n_kept);
    if (!kept)
        return -1;
    for (int i = 0; i < f->n_saved; i++)
        PyTuple_SET_ITEM(kept, i, Py_NewRef(inputs[f->saved[i]]));
    for (Py_ssize_t i = 0; i < n_kept; i++)
        PyTuple_SET_ITEM(kept, f->n_saved + i, Py_NewRef(PyTuple_GET_ITEM(results, f->n_outputs + i)));
    /* a lone result has a tangent whenever backward is called; of several, those without one stay None */
    int failed = PyObject_SetAttr(ctx, s_to_save, kept) < 0 || (f->n_at > 1 && PyObject_SetAttr(ctx, s_materialize, Py_False) < 0);
    Py_DECREF(kept);
    if (!failed && f->n_remembered) {
        PyObject *list = PyTuple_New(f->n_remembered);
        for (int i = 0; list && i < f->n_remembered; i++) {
            PyObject *item = remember(inputs[f->remembered[i] >> 1], f->remembered[i] & 1);
            if (item)
                PyTuple_SET_ITEM(list, i, item);
            else
                Py_CLEAR(list);
        }
        failed = !list || PyObject_SetAttr(ctx, s_remembered, list) < 0;
        Py_XDECREF(list);
    }
    if (!failed && f->rest != Py_None) {
        PyObject *rest = PyObject_Vectorcall(f->rest, inputs, n, NULL);
        failed = !rest || PyObject_SetAttr(ctx, s_rest, rest) < 0;
        Py_XDECREF(rest);
    }
    return failed ? -1 : 0;
}

static PyObject *forward_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    ForwardObject *f = (ForwardObject *)self;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf) - 1;
    Call *call = current;
    if (n < 0 || !call || call->forward != self) {
        PyErr_SetString(PyExc_RuntimeError, "the forward of a compiled graph with gradients was called from outside");
        return NULL;
    }
    PyObject *results = PyObject_Vectorcall(f->graph, args + 1, n, NULL);
    if (!results)
        return NULL;
    if (!PyTuple_CheckExact(results) || PyTuple_GET_SIZE(results) < f->n_outputs) {
        Py_DECREF(results);
        PyErr_SetString(PyExc_RuntimeError, "a compiled graph did not return what it was planned to");
        return NULL;
    }
    call->results = results;
    if (save(f, args[0], args + 1, n, results) < 0)
        return NULL;
    if (f->n_at == 1)
        return Py_NewRef(PyTuple_GET_ITEM(results, f->at[0]));
    PyObject *out = PyTuple_New(f->n_at);
    for (int i = 0; out && i < f->n_at; i++)
        PyTuple_SET_ITEM(out, i, Py_NewRef(PyTuple_GET_ITEM(results, f->at[i])));
    return out;
}

static PyObject *forward_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *graph, *rest, *at, *saved, *remembered;
    int n_outputs;
    if ((kwargs && PyDict_GET_SIZE(kwargs)) || !PyArg_ParseTuple(args, "OOiOOO", &graph, &rest, &n_outputs, &at, &saved, &remembered))
        return NULL;
    ForwardObject *f = (ForwardObject *)type->tp_alloc(type, 0);
    if (!f)
        return NULL;
    f->vectorcall = forward_call;
    f->graph = Py_NewRef(graph);
    f->rest = Py_NewRef(rest);
    f->n_outputs = n_outputs;
    f->at = read_ints(at, &f->n_at);
    f->saved = f->at ? read_ints(saved, &f->n_saved) : NULL;
    f->remembered = f->saved ? read_ints(remembered, &f->n_remembered) : NULL;
    for (int i = 0; f->remembered && i < f->n_at; i++)
        if (f->at[i] < 0 || f->at[i] >= n_outputs)
            PyErr_SetString(PyExc_ValueError, "a differentiable output is not among the outputs");
    if (PyErr_Occurred()) {
        Py_DECREF(f);
        return NULL;
    }
    return (PyObject *)f;
}

static int forward_traverse(PyObject *self, visitproc visit, void *arg)
{
    ForwardObject *f = (ForwardObject *)self;
    Py_VISIT(f->graph);
    Py_VISIT(f->rest);
    return 0;
}

static int forward_clear(PyObject *self)
{
    ForwardObject *f = (ForwardObject *)self;
    Py_CLEAR(f->graph);
    Py_CLEAR(f->rest);
    return 0;
}

static void forward_dealloc(PyObject *self)
{
    ForwardObject *f = (ForwardObject *)self;
    PyObject_GC_UnTrack(self);
    forward_clear(self);
    PyMem_Free(f->at);
    PyMem_Free(f->saved);
    PyMem_Free(f->remembered);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject Forward_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.GradForward",
    .tp_doc = "GradForward(graph, rest, n_outputs, at, saved_inputs, remembered_inputs): the forward of an autograd.Function.",
    .tp_basicsize = sizeof(ForwardObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = forward_new,
    .tp_dealloc = forward_dealloc,
    .tp_traverse = forward_traverse,
    .tp_clear = forward_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(ForwardObject, vectorcall),
};

/* ---- GradCall */

/* The error came after the graph had run: from a hook of the user's for saved tensors. The call is not to be run again as it is. */
static void mark_final(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && PyObject_SetAttr(value, s_final, Py_True) < 0)
        PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

static PyObject *call_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    CallObject *c = (CallObject *)self;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    Call call = {(PyObject *)c->forward, NULL, current};
    current = &call;
    PyObject *diff = PyObject_Vectorcall(c->apply, args, n, NULL);
    current = call.outer;
    PyObject *out = NULL;
    if (!diff) {
        if (call.results)
            mark_final();
        goto done;
    }
    if (!call.results) {
        PyErr_SetString(PyExc_RuntimeError, "torch did not run the forward of a compiled graph");
        goto done;
    }
    int several = c->forward->n_at != 1;
    if (several && (!PyTuple_Check(diff) || PyTuple_GET_SIZE(diff) != c->forward->n_at)) {
        PyErr_SetString(PyExc_RuntimeError, "torch did not return what the forward of a compiled graph gave");
        goto done;
    }
    out = PyTuple_New(c->n_results);
    for (int i = 0; out && i < c->n_results; i++) {
        int kind = c->recipe[2 * i], at = c->recipe[2 * i + 1];
        PyObject *o = kind == GIVE_DIFF ? (several ? PyTuple_GET_ITEM(diff, at) : diff)
                      : kind == GIVE_INPUT ? args[at] : PyTuple_GET_ITEM(call.results, at);
        PyTuple_SET_ITEM(out, i, Py_NewRef(o));
    }
done:
    Py_XDECREF(diff);
    Py_XDECREF(call.results);
    return out;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *apply, *forward, *recipe;
    int n_inputs;
    if ((kwargs && PyDict_GET_SIZE(kwargs)) || !PyArg_ParseTuple(args, "OO!iO", &apply, &Forward_Type, &forward, &n_inputs, &recipe))
        return NULL;
    CallObject *c = (CallObject *)type->tp_alloc(type, 0);
    if (!c)
        return NULL;
    int n = 0;
    c->vectorcall = call_call;
    c->apply = Py_NewRef(apply);
    c->forward = (ForwardObject *)Py_NewRef(forward);
    c->recipe = read_ints(recipe, &n);
    c->n_results = n / 2;
    for (int i = 0; c->recipe && i < c->n_results; i++) {
        int kind = c->recipe[2 * i], at = c->recipe[2 * i + 1];
        int limit = kind == GIVE_DIFF ? c->forward->n_at : kind == GIVE_INPUT ? n_inputs : c->forward->n_outputs;
        if (kind < GIVE_RESULT || kind > GIVE_INPUT || at < 0 || at >= limit)
            PyErr_SetString(PyExc_ValueError, "a recipe names what is not there");
    }
    if (PyErr_Occurred()) {
        Py_DECREF(c);
        return NULL;
    }
    return (PyObject *)c;
}

static int call_traverse(PyObject *self, visitproc visit, void *arg)
{
    CallObject *c = (CallObject *)self;
    Py_VISIT(c->apply);
    Py_VISIT(c->forward);
    return 0;
}

static int call_clear(PyObject *self)
{
    CallObject *c = (CallObject *)self;
    Py_CLEAR(c->apply);
    return 0;                                          /* the forward stays: a call that is going on reads it */
}

static void call_dealloc(PyObject *self)
{
    CallObject *c = (CallObject *)self;
    PyObject_GC_UnTrack(self);
    Py_XDECREF(c->apply);
    Py_XDECREF(c->forward);
    PyMem_Free(c->recipe);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject Call_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.GradCall",
    .tp_doc = "GradCall(apply, forward, n_inputs, recipe): a compiled graph with gradients; call(*inputs) -> tuple.",
    .tp_basicsize = sizeof(CallObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = call_new,
    .tp_dealloc = call_dealloc,
    .tp_traverse = call_traverse,
    .tp_clear = call_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(CallObject, vectorcall),
};

int tc_init_bridge(PyObject *module)
{
    const struct { PyObject **where; const char *text; } names[] = {
        {&s_to_save, "to_save"}, {&s_materialize, "materialize_grads"}, {&s_rest, "rest"}, {&s_remembered, "remembered"},
        {&s_version, "_version"}, {&s_final, "_tcompile_final"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!*names[i].where && !(*names[i].where = PyUnicode_InternFromString(names[i].text)))
            return -1;
    return PyModule_AddType(module, &Forward_Type) < 0 || PyModule_AddType(module, &Call_Type) < 0 ? -1 : 0;
}
