/* Dispatcher: a compiled function, called like the function it wraps. Binds the arguments to the parameters, looks the
   entry up and calls it; a miss goes to Python. */
#include "dispatch.h"
#include "dispatcher.h"
#include <structmember.h>

#define INLINE_LOCALS 24

typedef struct {
    PyObject_HEAD
    PyObject *func;             /* the wrapped PyFunction */
    CodeCache *cache;
    PyObject *miss;             /* miss(dispatcher, func, args) -> result, Entry or RUN_ORIGINAL */
    PyObject *dict, *weakrefs;
    PyCodeObject *code;
    PyObject *names;            /* co_varnames */
    int n_pos, n_posonly, n_kwonly, has_varargs, has_varkw;
    Py_ssize_t n_locals;
    vectorcallfunc vectorcall;
} Dispatcher;

static int same_name(PyObject *a, PyObject *b)
{
    return a == b || (PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b) && PyUnicode_Compare(a, b) == 0);
}

/* Fill `locals` (borrowed references) as CPython fills a frame's parameters. What the caller does not hold goes to
   `held`, new references: the *args tuple, the **kwargs dict, and defaults, which a guard may let others exchange.
   Returns 0: bound; 1: these arguments do not fit, let the function itself say so; -1: an exception is set. */
static int bind(Dispatcher *d, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **locals,
                PyObject **held, Py_ssize_t *n_held)
{
    Py_ssize_t n_named = d->n_pos + d->n_kwonly, given = nargs < d->n_pos ? nargs : d->n_pos;
    memcpy(locals, args, (size_t)given * sizeof *locals);
    memset(locals + given, 0, (size_t)(d->n_locals - given) * sizeof *locals);
    if (nargs > d->n_pos && !d->has_varargs)
        return 1;
    PyObject **varargs = d->has_varargs ? &locals[n_named] : NULL;
    PyObject **varkw = d->has_varkw ? &locals[n_named + d->has_varargs] : NULL;
    if (varkw) {
        if ((*varkw = PyDict_New()) == NULL)
            return -1;
        held[(*n_held)++] = *varkw;
    }
    Py_ssize_t nkw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t k = 0; k < nkw; k++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, k), *value = args[nargs + k];
        Py_ssize_t i = d->n_posonly;
        while (i < n_named && PyTuple_GET_ITEM(d->names, i) != name)
            i++;
        if (i == n_named) {
            i = d->n_posonly;
            while (i < n_named && !same_name(PyTuple_GET_ITEM(d->names, i), name))
                i++;
        }
        if (i < n_named) {
            if (locals[i])
                return 1;
            locals[i] = value;
        } else if (varkw == NULL) {
            return 1;
        } else if (PyDict_SetItem(*varkw, name, value) < 0) {
            return -1;
        }
    }
    if (given < d->n_pos) {
        PyObject *defaults = ((PyFunctionObject *)d->func)->func_defaults;
        Py_ssize_t n = defaults ? PyTuple_GET_SIZE(defaults) : 0;
        if (defaults)
            held[(*n_held)++] = Py_NewRef(defaults);
        for (Py_ssize_t i = given; i < d->n_pos; i++) {
            if (locals[i])
                continue;
            Py_ssize_t k = i - (d->n_pos - n);
            if (k < 0 || k >= n)
                return 1;
            locals[i] = PyTuple_GET_ITEM(defaults, k);
        }
    }
    for (Py_ssize_t i = d->n_pos; i < n_named; i++) {
        if (locals[i])
            continue;
        PyObject *defaults = ((PyFunctionObject *)d->func)->func_kwdefaults;
        locals[i] = defaults ? PyDict_GetItemWithError(defaults, PyTuple_GET_ITEM(d->names, i)) : NULL;
        if (locals[i] == NULL)
            return PyErr_Occurred() ? -1 : 1;
        held[(*n_held)++] = Py_NewRef(locals[i]);
    }
    if (varargs) {
        Py_ssize_t extra = nargs > d->n_pos ? nargs - d->n_pos : 0;
        if ((*varargs = PyTuple_New(extra)) == NULL)
            return -1;
        held[(*n_held)++] = *varargs;
        for (Py_ssize_t i = 0; i < extra; i++)
            PyTuple_SET_ITEM(*varargs, i, Py_NewRef(args[d->n_pos + i]));
    }
    return 0;
}

PyObject *tc_call_miss(PyObject *callback, PyObject *first, PyObject *func, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *tuple = PyTuple_New(nargs);
    if (tuple == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < nargs; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
    tc_disabled++;                                  /* what the compiler itself runs is not compiled */
    PyObject *result = PyObject_CallFunctionObjArgs(callback, first, func, tuple, NULL);
    tc_disabled--;
    Py_DECREF(tuple);
    return result;
}

static PyObject *dispatch(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Dispatcher *d = (Dispatcher *)self;
    PyThreadState *ts = PyThreadState_Get();
    if (UNLIKELY(tc_disabled || tc_recurses_deeply(ts) || tc_is_watched(ts)))
        return PyObject_Vectorcall(d->func, args, nargsf, kwnames);
    if (UNLIKELY(((PyFunctionObject *)d->func)->func_code != (PyObject *)d->code))
        return PyObject_Vectorcall(d->func, args, nargsf, kwnames);
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    PyObject *inline_locals[2 * INLINE_LOCALS + 3], **buffer = inline_locals,
                                                    *result = NULL; /* and as many to hold, and the tuple of defaults */
    if (d->n_locals > INLINE_LOCALS &&
        (buffer = PyMem_Malloc((size_t)(2 * d->n_locals + 3) * sizeof *buffer)) == NULL)
        return PyErr_NoMemory();
    PyObject **locals = buffer + 2, **held = locals + d->n_locals;
    Py_ssize_t n_held = 0;
    int bound = 0;
    Py_INCREF(d);
    if (LIKELY(kwnames == NULL && nargs == d->n_pos && d->n_locals == nargs))
        memcpy(locals, args, (size_t)nargs * sizeof *locals);
    else
        bound = bind(d, args, nargs, kwnames, locals, held, &n_held);
    if (UNLIKELY(bound != 0)) {
        if (bound > 0)
            result = PyObject_Vectorcall(d->func, args, nargsf, kwnames);
        goto done;
    }
    Entry *entry = tc_cache_lookup(d->cache, d->func, locals, d->n_locals);
    if (LIKELY(entry != NULL)) {
        result = tc_entry_call(entry, d->func, locals, d->n_locals);
        Py_DECREF(entry);
    } else if (!PyErr_Occurred()) {
        result = tc_call_miss(d->miss, self, d->func, locals, d->n_locals);
        if (result == tc_run_original) {
            Py_SETREF(result, PyObject_Vectorcall(d->func, args, nargsf, kwnames));
        } else if (result && PyObject_TypeCheck(result, &tc_Entry_Type)) {
            Py_SETREF(result, tc_entry_call((Entry *)result, d->func, locals, d->n_locals));
        }
    }
done:
    while (UNLIKELY(n_held))
        Py_DECREF(held[--n_held]);
    if (buffer != inline_locals)
        PyMem_Free(buffer);
    Py_DECREF(d);
    return result;
}

static PyObject *dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"func", "cache", "miss", NULL};
    PyObject *func, *cache, *miss;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O:Dispatcher", names, &PyFunction_Type, &func,
                                     &tc_CodeCache_Type, &cache, &miss))
        return NULL;
    PyObject *varnames = PyObject_GetAttrString(PyFunction_GET_CODE(func), "co_varnames");
    if (varnames == NULL)
        return NULL;
    Dispatcher *d = (Dispatcher *)type->tp_alloc(type, 0);
    if (d == NULL) {
        Py_DECREF(varnames);
        return NULL;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(func);
    d->names = varnames;
    d->func = Py_NewRef(func);
    d->cache = (CodeCache *)Py_NewRef(cache);
    d->miss = Py_NewRef(miss);
    d->code = (PyCodeObject *)Py_NewRef((PyObject *)code);
    d->n_pos = code->co_argcount;
    d->n_posonly = code->co_posonlyargcount;
    d->n_kwonly = code->co_kwonlyargcount;
    d->has_varargs = (code->co_flags & CO_VARARGS) != 0;
    d->has_varkw = (code->co_flags & CO_VARKEYWORDS) != 0;
    d->n_locals = d->n_pos + d->n_kwonly + d->has_varargs + d->has_varkw;
    d->vectorcall = dispatch;
    return (PyObject *)d;
}

static int dispatcher_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    (void)self;
    (void)args;
    (void)kwargs;
    return 0;
}

static int dispatcher_traverse(Dispatcher *d, visitproc visit, void *arg)
{
    Py_VISIT(d->func);
    Py_VISIT(d->cache);
    Py_VISIT(d->miss);
    Py_VISIT(d->dict);
    return 0;
}

/* The function and the code stay until the end: a dispatcher that is being collected may still be called. */
static int dispatcher_clear(Dispatcher *d)
{
    Py_CLEAR(d->dict);
    return 0;
}

static void dispatcher_dealloc(Dispatcher *d)
{
    PyObject_GC_UnTrack(d);
    if (d->weakrefs)
        PyObject_ClearWeakRefs((PyObject *)d);
    dispatcher_clear(d);
    Py_CLEAR(d->func);
    Py_CLEAR(d->cache);
    Py_CLEAR(d->miss);
    Py_CLEAR(d->code);
    Py_CLEAR(d->names);
    Py_TYPE(d)->tp_free((PyObject *)d);
}

static PyObject *dispatcher_descr_get(PyObject *self, PyObject *obj, PyObject *type)
{
    (void)type;
    return obj == NULL || obj == Py_None ? Py_NewRef(self) : PyMethod_New(self, obj);
}

/* What the dispatcher does not have itself is read from the function: __name__, __code__, the user's own attributes. */
static PyObject *dispatcher_getattro(PyObject *self, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        value = PyObject_GetAttr(((Dispatcher *)self)->func, name);
    }
    return value;
}

static PyObject *dispatcher_doc(Dispatcher *d, void *name)
{
    return PyObject_GetAttrString(d->func, name);
}

/* torch.fx.symbolic_trace takes nothing but functions and modules: while it traces, a compiled function says that it is
   a function. */
static PyObject *dispatcher_class(Dispatcher *d, void *unused)
{
    (void)unused;
    PyObject *fx = PyDict_GetItemString(PyImport_GetModuleDict(), "torch.fx._symbolic_trace");
    PyObject *answer = fx ? PyObject_CallMethod(fx, "is_fx_symbolic_tracing", NULL) : Py_NewRef(Py_False);
    if (answer == NULL)
        return NULL;
    PyTypeObject *cls = answer == Py_True ? &PyFunction_Type : Py_TYPE(d);
    Py_DECREF(answer);
    return Py_NewRef((PyObject *)cls);
}

static PyObject *dispatcher_repr(Dispatcher *d)
{
    return PyUnicode_FromFormat("<compiled %R>", d->func);
}

static PyMemberDef dispatcher_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Dispatcher, func), READONLY, "the function as it was"},
    {"cache", T_OBJECT, offsetof(Dispatcher, cache), READONLY, "the CodeCache of the function's code"},
    {"miss", T_OBJECT, offsetof(Dispatcher, miss), READONLY, "miss(dispatcher, func, args)"},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef dispatcher_getset[] = {
    {"__doc__", (getter)dispatcher_doc, NULL, NULL, "__doc__"},
    {"__module__", (getter)dispatcher_doc, NULL, NULL, "__module__"},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"__class__", (getter)dispatcher_class, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject tc_Dispatcher_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.Dispatcher",
    .tp_basicsize = sizeof(Dispatcher),
    .tp_dictoffset = offsetof(Dispatcher, dict),
    .tp_weaklistoffset = offsetof(Dispatcher, weakrefs),
    .tp_vectorcall_offset = offsetof(Dispatcher, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = dispatcher_new,
    .tp_init = dispatcher_init,
    .tp_dealloc = (destructor)dispatcher_dealloc,
    .tp_traverse = (traverseproc)dispatcher_traverse,
    .tp_clear = (inquiry)dispatcher_clear,
    .tp_descr_get = dispatcher_descr_get,
    .tp_getattro = dispatcher_getattro,
    .tp_setattro = PyObject_GenericSetAttr,
    .tp_repr = (reprfunc)dispatcher_repr,
    .tp_members = dispatcher_members,
    .tp_getset = dispatcher_getset,
};

int tc_init_dispatcher(PyObject *module)
{
    return PyModule_AddType(module, &tc_Dispatcher_Type);
}
