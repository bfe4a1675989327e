/* A call of a compiled graph with gradients: what compiler/autograd/bridge.py describes, for graphs whose results need
   nothing but to be put in order after the autograd.Function has run.

   GradForward is the `forward` of the Function's class: it runs the compiled forward graph and gives torch what is to
   be saved. GradCall is what the entry calls: it applies the Function and puts the results in order. What does not
   require grad does not go through torch at all: the forward leaves it with the call that is going on in this thread.
   Where the results are of several independent parts (compiler/autograd/independent_parts.py), the call runs the graph
   and applies the Function of each part, whose GradForward finds the results there. */
#include "native.h"

enum { GIVE_RESULT, GIVE_DIFF, GIVE_INPUT };           /* as in compiler/autograd/bridge.py */

typedef struct Call {
    PyObject *forward;                                  /* the GradForward that this call is of */
    PyObject *results;                                  /* what the forward graph returned, once it has */
    PyObject *const *inputs;                            /* of the graph */
    Py_ssize_t n_inputs;
    struct Call *outer;
} Call;

static _Thread_local Call *current;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *graph;               /* the compiled forward graph: callable(*inputs) -> tuple */
    PyObject *rest;                /* None, or callable(*inputs) -> what backward gets besides tensors */
    int n_outputs, n_at, n_saved, n_kept, n_hidden, n_remembered;
    int *at;                       /* positions of the differentiable outputs */
    int *saved;                    /* inputs that are kept */
    int *kept;                     /* results that are kept */
    int *hidden;                   /* results that are views of memory nobody else can reach: to autograd no views */
    int *remembered; /* inputs that double backward would ask for: 2 * input, + 1 where the reference is not weak */
} ForwardObject;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    struct PartCall {
        PyObject *apply;           /* torch._C._FunctionBase.apply of the Function's class */
        ForwardObject *forward;
        int n_inputs, n_outputs;
        int *inputs;               /* the graph's inputs that it takes, where these are not all */
        int *outputs;              /* which differentiable outputs it gives */
    } *parts;
    int n_parts, n_diff, n_results;
    int *recipe;                   /* (kind, index) each */
    PyObject *views;               /* what makes each result a view of its differentiable output, or None */
} CallObject;

static PyObject *s_to_save, *s_materialize, *s_rest, *s_remembered, *s_version, *s_final, *s_detach;
static PyObject *grad_enabled, *set_grad_enabled;                /* torch's functions */
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
    PyObject *ref = strong ? Py_NewRef(input) : PyWeakref_NewRef(input, NULL),
             *pair = ref ? PyTuple_Pack(2, ref, version) : NULL;
    Py_XDECREF(ref);
    Py_DECREF(version);
    return pair;
}

static int save(ForwardObject *f, PyObject *ctx, const Call *call)
{
    PyObject *const *inputs = call->inputs, *kept = PyTuple_New(f->n_saved + f->n_kept);
    if (!kept)
        return -1;
    for (int i = 0; i < f->n_saved; i++)
        PyTuple_SET_ITEM(kept, i, Py_NewRef(inputs[f->saved[i]]));
    for (int i = 0; i < f->n_kept; i++)
        PyTuple_SET_ITEM(kept, f->n_saved + i, Py_NewRef(PyTuple_GET_ITEM(call->results, f->kept[i])));
    /* a lone result has a tangent whenever backward is called; of several, those without one stay None */
    int failed = PyObject_SetAttr(ctx, s_to_save, kept) < 0 ||
                 (f->n_at > 1 && PyObject_SetAttr(ctx, s_materialize, Py_False) < 0);
    Py_DECREF(kept);
    if (!failed && f->n_remembered) {
        PyObject *list = PyTuple_New(f->n_remembered);
        for (int i = 0; list && i < f->n_remembered; i++) {
            Py_ssize_t at = f->remembered[i] >> 1;         /* an input, or from the number of inputs on an output */
            PyObject *of = at < call->n_inputs ? inputs[at] : PyTuple_GET_ITEM(call->results, at - call->n_inputs);
            PyObject *item = remember(of, f->remembered[i] & 1);
            if (item)
                PyTuple_SET_ITEM(list, i, item);
            else
                Py_CLEAR(list);
        }
        failed = !list || PyObject_SetAttr(ctx, s_remembered, list) < 0;
        Py_XDECREF(list);
    }
    if (!failed && f->rest != Py_None) {
        PyObject *rest = PyObject_Vectorcall(f->rest, inputs, call->n_inputs, NULL);
        failed = !rest || PyObject_SetAttr(ctx, s_rest, rest) < 0;
        Py_XDECREF(rest);
    }
    return failed ? -1 : 0;
}

/* The results of the graph: with those that are to be no views detached. */
static PyObject *run_graph(ForwardObject *f, PyObject *const *inputs, Py_ssize_t n)
{
    PyObject *results = PyObject_Vectorcall(f->graph, inputs, n, NULL);
    if (!results)
        return NULL;
    Py_ssize_t needed = f->n_outputs;
    for (int i = 0; i < f->n_kept; i++)
        needed = f->kept[i] >= needed ? f->kept[i] + 1 : needed;
    if (!PyTuple_CheckExact(results) || PyTuple_GET_SIZE(results) < needed) {
        Py_DECREF(results);
        PyErr_SetString(PyExc_RuntimeError, "a compiled graph did not return what it was planned to");
        return NULL;
    }
    if (!f->n_hidden)
        return results;
    PyObject *own = PyTuple_New(PyTuple_GET_SIZE(results));
    for (Py_ssize_t i = 0; own && i < PyTuple_GET_SIZE(results); i++)
        PyTuple_SET_ITEM(own, i, Py_NewRef(PyTuple_GET_ITEM(results, i)));
    Py_DECREF(results);
    for (int i = 0; own && i < f->n_hidden; i++) {
        PyObject *view = PyTuple_GET_ITEM(own, f->hidden[i]), *plain = PyObject_CallMethodNoArgs(view, s_detach);
        if (!plain) {
            Py_CLEAR(own);
            break;
        }
        PyTuple_SET_ITEM(own, f->hidden[i], plain);
        Py_DECREF(view);
    }
    return own;
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
    if (!call->results && !(call->results = run_graph(f, call->inputs, call->n_inputs)))
        return NULL;
    PyObject *results = call->results;
    if (save(f, args[0], call) < 0)
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
    PyObject *graph, *rest, *at, *saved, *kept, *hidden, *remembered;
    int n_outputs;
    if ((kwargs && PyDict_GET_SIZE(kwargs)) ||
        !PyArg_ParseTuple(args, "OOiOOOOO", &graph, &rest, &n_outputs, &at, &saved, &kept, &hidden, &remembered))
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
    f->kept = f->saved ? read_ints(kept, &f->n_kept) : NULL;
    f->hidden = f->kept ? read_ints(hidden, &f->n_hidden) : NULL;
    f->remembered = f->hidden ? read_ints(remembered, &f->n_remembered) : NULL;
    for (int i = 0; f->remembered && i < f->n_at; i++)
        if (f->at[i] < 0 || f->at[i] >= n_outputs)
            PyErr_SetString(PyExc_ValueError, "a differentiable output is not among the outputs");
    for (int i = 0; f->remembered && i < f->n_hidden; i++)
        if (f->hidden[i] < 0 || f->hidden[i] >= n_outputs)
            PyErr_SetString(PyExc_ValueError, "a hidden view is not among the outputs");
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
    PyMem_Free(f->kept);
    PyMem_Free(f->hidden);
    PyMem_Free(f->remembered);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject Forward_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.GradForward",
    .tp_doc = "GradForward(graph, rest, n_outputs, at, saved_inputs, kept_results, hidden_views, remembered): the "
              "forward of an autograd.Function.",
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

void tc_mark_final(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && PyObject_SetAttr(value, s_final, Py_True) < 0)
        PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

/* One part's differentiable outputs, into `diff`. */
static int apply_part(const struct PartCall *p, Call *call, PyObject **diff)
{
    PyObject *few[16], **given = few, *const *args = call->inputs;
    Py_ssize_t n = call->n_inputs;
    if (p->inputs) {
        n = p->n_inputs;
        if (n > 16 && !(given = PyMem_Malloc(n * sizeof *given))) {
            PyErr_NoMemory();
            return -1;
        }
        for (Py_ssize_t i = 0; i < n; i++)
            given[i] = call->inputs[p->inputs[i]];
        args = given;
    }
    call->forward = (PyObject *)p->forward;
    PyObject *out = PyObject_Vectorcall(p->apply, args, n, NULL);
    if (given != few)
        PyMem_Free(given);
    if (!out)
        return -1;
    if (p->n_outputs == 1) {
        diff[p->outputs[0]] = out;
        return 0;
    }
    int fits = PyTuple_Check(out) && PyTuple_GET_SIZE(out) == p->n_outputs;
    for (int i = 0; fits && i < p->n_outputs; i++)
        diff[p->outputs[i]] = Py_NewRef(PyTuple_GET_ITEM(out, i));
    Py_DECREF(out);
    if (!fits)
        PyErr_SetString(PyExc_RuntimeError, "torch did not return what the forward of a compiled graph gave");
    return fits ? 0 : -1;
}

/* Run the graph without gradients: of several parts, each is differentiable by its own Function. */
static int run_for_parts(CallObject *c, Call *call)
{
    PyObject *outer = PyObject_CallNoArgs(grad_enabled),
             *off = outer ? PyObject_CallOneArg(set_grad_enabled, Py_False) : NULL;
    if (!off) {
        Py_XDECREF(outer);
        return -1;
    }
    Py_DECREF(off);
    call->results = run_graph(c->parts[0].forward, call->inputs, call->n_inputs);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *back = PyObject_CallOneArg(set_grad_enabled, outer);
    Py_DECREF(outer);
    if (!back) {
        Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
        return -1;
    }
    Py_DECREF(back);
    PyErr_Restore(type, value, trace);
    return call->results ? 0 : -1;
}

/* Result i, a new reference: what is given for it, or a view of that. Results are one object where their recipes
   are. */
static PyObject *result_of(CallObject *c, int i, PyObject *given, PyObject *out)
{
    PyObject *view = PyTuple_GET_ITEM(c->views, i);
    if (view == Py_None)
        return Py_NewRef(given);
    for (int j = 0; j < i; j++)
        if (c->recipe[2 * j] == c->recipe[2 * i] && c->recipe[2 * j + 1] == c->recipe[2 * i + 1])
            return Py_NewRef(PyTuple_GET_ITEM(out, j));
    return PyObject_CallOneArg(view, given);
}

static PyObject *call_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    CallObject *c = (CallObject *)self;
    Call call = {NULL, NULL, args, PyVectorcall_NARGS(nargsf), current};
    PyObject *few[16] = {NULL}, **diff = c->n_diff > 16 ? PyMem_Calloc(c->n_diff, sizeof *diff) : few, *out = NULL;
    if (!diff)
        return PyErr_NoMemory();
    current = &call;
    int failed = c->n_parts > 1 && run_for_parts(c, &call) < 0;
    for (int i = 0; !failed && i < c->n_parts; i++)
        failed = apply_part(&c->parts[i], &call, diff) < 0;
    current = call.outer;
    if (failed) {
        if (call.results)
            tc_mark_final();                 /* the graph had run: a hook of the user's for saved tensors raised */
        goto done;
    }
    if (!call.results) {
        PyErr_SetString(PyExc_RuntimeError, "torch did not run the forward of a compiled graph");
        goto done;
    }
    out = PyTuple_New(c->n_results);
    for (int i = 0; out && i < c->n_results; i++) {
        int kind = c->recipe[2 * i], at = c->recipe[2 * i + 1];
        PyObject *given = kind == GIVE_DIFF    ? diff[at]
                          : kind == GIVE_INPUT ? args[at]
                                               : PyTuple_GET_ITEM(call.results, at);
        PyObject *item = result_of(c, i, given, out);
        if (item)
            PyTuple_SET_ITEM(out, i, item);
        else
            Py_CLEAR(out);
    }
    if (!out)
        tc_mark_final();
done:
    for (int i = 0; i < c->n_diff; i++)
        Py_XDECREF(diff[i]);
    if (diff != few)
        PyMem_Free(diff);
    Py_XDECREF(call.results);
    return out;
}

/* (apply, forward, inputs or None, outputs) */
static int read_part(struct PartCall *p, PyObject *item, int n_inputs, int n_diff)
{
    PyObject *apply, *forward, *inputs, *outputs;
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "OO!OO", &apply, &Forward_Type, &forward, &inputs, &outputs))
        return -1;
    p->apply = Py_NewRef(apply);
    p->forward = (ForwardObject *)Py_NewRef(forward);
    if ((inputs != Py_None && !(p->inputs = read_ints(inputs, &p->n_inputs))) ||
        !(p->outputs = read_ints(outputs, &p->n_outputs)))
        return -1;
    for (int i = 0; i < p->n_inputs; i++)
        if (p->inputs[i] < 0 || p->inputs[i] >= n_inputs)
            PyErr_SetString(PyExc_ValueError, "a part takes an input that is not there");
    for (int i = 0; i < p->n_outputs; i++)
        if (p->outputs[i] < 0 || p->outputs[i] >= n_diff)
            PyErr_SetString(PyExc_ValueError, "a part gives an output that is not there");
    if (p->n_outputs != p->forward->n_at)
        PyErr_SetString(PyExc_ValueError, "a part gives other outputs than its forward");
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *parts, *recipe, *views;
    int n_inputs, n_diff;
    if ((kwargs && PyDict_GET_SIZE(kwargs)) ||
        !PyArg_ParseTuple(args, "O!iiOO!", &PyTuple_Type, &parts, &n_inputs, &n_diff, &recipe, &PyTuple_Type, &views))
        return NULL;
    CallObject *c = (CallObject *)type->tp_alloc(type, 0);
    if (!c)
        return NULL;
    int n = 0, covered = 0;
    c->vectorcall = call_call;
    c->n_diff = n_diff;
    c->views = Py_NewRef(views);
    c->parts = PyMem_Calloc((size_t)PyTuple_GET_SIZE(parts) + 1, sizeof *c->parts);
    for (Py_ssize_t i = 0; c->parts && i < PyTuple_GET_SIZE(parts); i++) {
        c->n_parts++;
        if (read_part(&c->parts[i], PyTuple_GET_ITEM(parts, i), n_inputs, n_diff) < 0)
            break;
        covered += c->parts[i].n_outputs;
    }
    if (!PyErr_Occurred() && (!c->n_parts || covered != n_diff || (c->n_parts > 1 && !c->parts[0].inputs)))
        PyErr_SetString(PyExc_ValueError, "the parts of a call do not give its outputs");
    c->recipe = PyErr_Occurred() ? NULL : read_ints(recipe, &n);
    c->n_results = n / 2;
    for (int i = 0; c->recipe && i < c->n_results; i++) {
        int kind = c->recipe[2 * i], at = c->recipe[2 * i + 1];
        int limit = kind == GIVE_DIFF ? n_diff : kind == GIVE_INPUT ? n_inputs : c->parts[0].forward->n_outputs;
        if (kind < GIVE_RESULT || kind > GIVE_INPUT || at < 0 || at >= limit)
            PyErr_SetString(PyExc_ValueError, "a recipe names what is not there");
    }
    if (c->recipe && PyTuple_GET_SIZE(views) != c->n_results)
        PyErr_SetString(PyExc_ValueError, "a call has other views than results");
    if (PyErr_Occurred()) {
        Py_DECREF(c);
        return NULL;
    }
    return (PyObject *)c;
}

static int call_traverse(PyObject *self, visitproc visit, void *arg)
{
    CallObject *c = (CallObject *)self;
    for (int i = 0; i < c->n_parts; i++) {
        Py_VISIT(c->parts[i].apply);
        Py_VISIT(c->parts[i].forward);
    }
    Py_VISIT(c->views);
    return 0;
}

static int call_clear(PyObject *self)
{
    CallObject *c = (CallObject *)self;
    for (int i = 0; i < c->n_parts; i++)
        Py_CLEAR(c->parts[i].apply);
    return 0;                                          /* the forwards stay: a call that is going on reads them */
}

static void call_dealloc(PyObject *self)
{
    CallObject *c = (CallObject *)self;
    PyObject_GC_UnTrack(self);
    for (int i = 0; i < c->n_parts; i++) {
        Py_XDECREF(c->parts[i].apply);
        Py_XDECREF(c->parts[i].forward);
        PyMem_Free(c->parts[i].inputs);
        PyMem_Free(c->parts[i].outputs);
    }
    PyMem_Free(c->parts);
    PyMem_Free(c->recipe);
    Py_XDECREF(c->views);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject Call_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.GradCall",
    .tp_doc = "GradCall(parts, n_inputs, n_differentiable, recipe, views): a compiled graph with gradients; "
              "call(*inputs) -> tuple. parts: (apply, forward, inputs or None, outputs) each.",
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
    const struct { PyObject **where; const char *text;
    } names[] = {{&s_to_save, "to_save"},  {&s_materialize, "materialize_grads"},
                 {&s_rest, "rest"},        {&s_remembered, "remembered"},
                 {&s_version, "_version"}, {&s_final, "_tcompile_final"},
                 {&s_detach, "detach"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!*names[i].where && !(*names[i].where = PyUnicode_InternFromString(names[i].text)))
            return -1;
    if (!grad_enabled) {
        PyObject *torch = PyImport_ImportModule("torch._C");
        grad_enabled = torch ? PyObject_GetAttrString(torch, "is_grad_enabled") : NULL;
        set_grad_enabled = grad_enabled ? PyObject_GetAttrString(torch, "_set_grad_enabled") : NULL;
        Py_XDECREF(torch);
        if (!set_grad_enabled)
            return -1;
    }
    return PyModule_AddType(module, &Forward_Type) < 0 || PyModule_AddType(module, &Call_Type) < 0 ? -1 : 0;
}
