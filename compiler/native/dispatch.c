#include "dispatch.h"
#include "guards.h"
#include "trace.h"
#include <structmember.h>

__thread int tc_disabled __attribute__((tls_model("initial-exec")));
static PyObject *str_stance;
PyObject *tc_run_original;

/* ---- Entry */
static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"program", "fn", "meta", NULL};
    PyObject *program, *fn, *meta = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:Entry", names, &program, &fn, &meta))
        return NULL;
    if (!PyCallable_Check(fn)) {
        PyErr_SetString(PyExc_TypeError, "Entry: fn must be callable");
        return NULL;
    }
    Entry *e = (Entry *)type->tp_alloc(type, 0);
    if (e) {
        e->program = Py_NewRef(program);
        e->fn = Py_NewRef(fn);
        e->meta = Py_NewRef(meta);
    }
    return (PyObject *)e;
}

static int entry_traverse(Entry *e, visitproc visit, void *arg)
{
    Py_VISIT(e->program);
    Py_VISIT(e->fn);
    Py_VISIT(e->meta);
    Py_VISIT(e->dict);
    return 0;
}

static int entry_clear(Entry *e)
{
    Py_CLEAR(e->program);
    Py_CLEAR(e->fn);
    Py_CLEAR(e->meta);
    Py_CLEAR(e->dict);
    return 0;
}

static void entry_dealloc(Entry *e)
{
    PyObject_GC_UnTrack(e);
    entry_clear(e);
    Py_TYPE(e)->tp_free((PyObject *)e);
}


static PyMemberDef entry_members[] = {
    {"program", T_OBJECT, offsetof(Entry, program), READONLY, "the guard program"},
    {"meta", T_OBJECT, offsetof(Entry, meta), 0, "whatever the compiler keeps with it"},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), 0, "calls it served"},
    {"switches", T_ULONGLONG, offsetof(Entry, switches), 0, "calls on which it took over from another entry"},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *entry_get_fn(Entry *e, void *closure)
{
    (void)closure;
    return Py_NewRef(e->fn);
}

static int entry_set_fn(Entry *e, PyObject *fn, void *closure)
{
    (void)closure;
    if (fn == NULL || !PyCallable_Check(fn)) {
        PyErr_SetString(PyExc_TypeError, "Entry: fn must be callable");
        return -1;
    }
    Py_XSETREF(e->fn, Py_NewRef(fn));
    return 0;
}

static PyGetSetDef entry_getset[] = {
    {"fn", (getter)entry_get_fn, (setter)entry_set_fn, "called as fn(func, *parameters)", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject tc_Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.Entry",
    .tp_doc = "Entry(program, fn, meta=None): compiled code and the guards under which it may serve a call.",
    .tp_basicsize = sizeof(Entry),
    .tp_dictoffset = offsetof(Entry, dict),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = entry_new,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_members = entry_members,
    .tp_getset = entry_getset,
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
};

PyObject *tc_entry_call(Entry *entry, PyObject *func, PyObject **args, Py_ssize_t nargs)
{
    PyObject *saved = args[-1];
    args[-1] = func;
    entry->hits++;
    int64_t began = tc_trace_begin();
    PyObject *fn = Py_NewRef(entry->fn);      /* the call may exchange it */
    PyObject *result = PyObject_Vectorcall(fn, args - 1, (size_t)(nargs + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(fn);
    args[-1] = saved;
    tc_trace_end(TRACE_ENTRY, (PyObject *)entry, 0, began);
    return result;
}

/* ---- CodeCache */
static PyObject *cache_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) || (kwargs && PyDict_GET_SIZE(kwargs))) {
        PyErr_SetString(PyExc_TypeError, "CodeCache takes no arguments");
        return NULL;
    }
    CodeCache *c = (CodeCache *)type->tp_alloc(type, 0);
    if (c && (c->last_failures = PyList_New(0)) == NULL)
        Py_CLEAR(c);
    return (PyObject *)c;
}

static int cache_traverse(CodeCache *c, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < c->n; i++)
        Py_VISIT(c->entries[i]);
    Py_VISIT(c->last_failures);
    Py_VISIT(c->dict);
    Py_VISIT(c->next);
    return 0;
}

static void cache_drop_entries(CodeCache *c)
{
    Entry **old = c->entries;
    Py_ssize_t n = c->n;
    c->entries = NULL;
    c->n = c->cap = 0;
    c->version++;
    for (Py_ssize_t i = 0; i < n; i++)
        Py_DECREF(old[i]);
    PyMem_Free(old);
}

static int cache_clear(CodeCache *c)
{
    cache_drop_entries(c);
    Py_CLEAR(c->last_failures);
    Py_CLEAR(c->dict);
    Py_CLEAR(c->next);
    return 0;
}

static void cache_dealloc(CodeCache *c)
{
    PyObject_GC_UnTrack(c);
    if (c->weakrefs)
        PyObject_ClearWeakRefs((PyObject *)c);
    cache_clear(c);
    Py_TYPE(c)->tp_free((PyObject *)c);
}

static Entry *lookup(CodeCache *c, PyObject *func, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *failures = NULL;
    for (int attempt = 0; attempt < 3; attempt++) {
        unsigned int version = c->version;
        for (Py_ssize_t i = 0; i < c->n; i++) {
            Entry *e = (Entry *)Py_NewRef(c->entries[i]);
            int failed = tc_check(e->program, func, args, nargs);
            if (LIKELY(failed == -1)) {
                if (i > 0 && version == c->version) {
                    memmove(c->entries + 1, c->entries, (size_t)i * sizeof *c->entries);
                    c->entries[0] = e;
                    c->version++;
                    e->switches++;
                }
                Py_XDECREF(failures);
                return e;
            }
            PyObject *pair = failed == -2 ? NULL : Py_BuildValue("Oi", e, failed);
            Py_DECREF(e);
            if (pair && failures == NULL)
                failures = PyList_New(0);
            if (pair == NULL || failures == NULL || PyList_Append(failures, pair) < 0) {
                Py_XDECREF(pair);
                Py_XDECREF(failures);
                return NULL;
            }
            Py_DECREF(pair);
            if (version != c->version)
                break;                              /* a guard let other code in that changed the cache */
        }
        if (version == c->version)
            break;
        Py_CLEAR(failures);
    }
    if (failures == NULL && (failures = PyList_New(0)) == NULL)
        return NULL;
    Py_XSETREF(c->last_failures, failures);
    return NULL;
}

/* Whether torch.compiler.set_stance("force_eager") holds: then no entry serves. The module that knows is looked for
   where modules were imported since the last call; what it says is asked where it says it by another object. */
static int forced_eager(void)
{
    static Py_ssize_t n_modules;
    static PyObject *stock, *asked;                 /* the module's names; a stance that lets entries serve */
    PyObject *modules = PyImport_GetModuleDict();
    if (UNLIKELY(!stock && PyDict_GET_SIZE(modules) != n_modules)) {
        n_modules = PyDict_GET_SIZE(modules);
        PyObject *module = PyDict_GetItemString(modules, "torch._dynamo.eval_frame");
        if (module && PyModule_Check(module))
            stock = Py_NewRef(PyModule_GetDict(module));
    }
    PyObject *stance = stock ? PyDict_GetItem(stock, str_stance) : NULL;
    if (LIKELY(!stance || stance == asked))
        return 0;
    Py_INCREF(stance);
    PyObject *name = PyObject_GetAttrString(stance, "stance");
    int forced = name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "force_eager") == 0;
    Py_XDECREF(name);
    PyErr_Clear();
    if (!forced)
        Py_XSETREF(asked, Py_NewRef(stance));
    Py_DECREF(stance);
    return forced;
}

Entry *tc_cache_lookup(CodeCache *cache, PyObject *func, PyObject *const *args, Py_ssize_t nargs)
{
    if (UNLIKELY(forced_eager()))
        return NULL;
    int64_t began = tc_trace_begin();
    tc_disabled++;                                  /* what guards ask Python is not compiled */
    Entry *entry = lookup(cache, func, args, nargs);
    tc_disabled--;
    tc_trace_end(TRACE_GUARDS, (PyObject *)entry, 0, began);
    return entry;
}

static PyObject *cache_lookup(CodeCache *c, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "lookup(func, args)");
        return NULL;
    }
    PyObject *seq = PySequence_Tuple(args[1]);      /* a list could change meanwhile */
    if (seq == NULL)
        return NULL;
    Entry *e = tc_cache_lookup(c, args[0], ((PyTupleObject *)seq)->ob_item, PyTuple_GET_SIZE(seq));
    Py_DECREF(seq);
    if (e == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return (PyObject *)e;
}

static PyObject *cache_add(CodeCache *c, PyObject *entry)
{
    if (!PyObject_TypeCheck(entry, &tc_Entry_Type)) {
        PyErr_Format(PyExc_TypeError, "add: an Entry was expected, not %s", Py_TYPE(entry)->tp_name);
        return NULL;
    }
    if (c->n == c->cap) {
        Py_ssize_t cap = c->cap ? c->cap * 2 : 4;
        Entry **p = PyMem_Realloc(c->entries, (size_t)cap * sizeof *p);
        if (p == NULL)
            return PyErr_NoMemory();
        c->entries = p;
        c->cap = cap;
    }
    memmove(c->entries + 1, c->entries, (size_t)c->n * sizeof *c->entries);
    c->entries[0] = (Entry *)Py_NewRef(entry);
    c->n++;
    c->version++;
    Py_RETURN_NONE;
}

static PyObject *cache_remove(CodeCache *c, PyObject *entry)
{
    for (Py_ssize_t i = 0; i < c->n; i++) {
        if ((PyObject *)c->entries[i] == entry) {
            memmove(c->entries + i, c->entries + i + 1, (size_t)(c->n - i - 1) * sizeof *c->entries);
            c->n--;
            c->version++;
            PyObject *none = PyList_New(0);         /* what it failed by is held there */
            Py_DECREF(entry);
            if (none == NULL)
                return NULL;
            Py_SETREF(c->last_failures, none);
            Py_RETURN_NONE;
        }
    }
    PyErr_SetString(PyExc_ValueError, "remove: the entry is not in this cache");
    return NULL;
}

static PyObject *cache_clear_method(CodeCache *c, PyObject *unused)
{
    (void)unused;
    cache_drop_entries(c);
    Py_XSETREF(c->last_failures, PyList_New(0));
    if (c->last_failures == NULL)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *cache_entries(CodeCache *c, void *closure)
{
    (void)closure;
    PyObject *t = PyTuple_New(c->n);
    for (Py_ssize_t i = 0; t && i < c->n; i++)
        PyTuple_SET_ITEM(t, i, Py_NewRef(c->entries[i]));
    return t;
}

static Py_ssize_t cache_length(CodeCache *c)
{
    return c->n;
}

static PyMethodDef cache_methods[] = {
    {"lookup", (PyCFunction)(void (*)(void))cache_lookup, METH_FASTCALL,
     "lookup(func, args) -> Entry | None: the entry whose guards hold; after a miss `last_failures` says which did "
     "not."},
    {"add", (PyCFunction)cache_add, METH_O, "Put an entry in front."},
    {"remove", (PyCFunction)cache_remove, METH_O, "Take an entry out. Raises ValueError where it is not there."},
    {"clear", (PyCFunction)cache_clear_method, METH_NOARGS, "Drop all entries."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef cache_members[] = {
    {"last_failures", T_OBJECT, offsetof(CodeCache, last_failures), READONLY,
     "[(entry, index of its first guard that failed)] of the last miss"},
    {"skip", T_BOOL, offsetof(CodeCache, skip), 0, "the frame hook passes frames of this code over"},
    {"rest", T_UINT, offsetof(CodeCache, rest), 0,
     "frames that the frame hook passes on, where there is no entry, before it asks again"},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef cache_getset[] = {
    {"entries", (getter)cache_entries, NULL, "tuple of the entries, last hit first", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PySequenceMethods cache_sequence = {.sq_length = (lenfunc)cache_length};

PyTypeObject tc_CodeCache_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.CodeCache",
    .tp_doc = "The compiled entries of one code object, last hit first.",
    .tp_basicsize = sizeof(CodeCache),
    .tp_dictoffset = offsetof(CodeCache, dict),
    .tp_weaklistoffset = offsetof(CodeCache, weakrefs),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = cache_new,
    .tp_dealloc = (destructor)cache_dealloc,
    .tp_traverse = (traverseproc)cache_traverse,
    .tp_clear = (inquiry)cache_clear,
    .tp_methods = cache_methods,
    .tp_members = cache_members,
    .tp_getset = cache_getset,
    .tp_as_sequence = &cache_sequence,
};

/* ---- switching compiled code off for a thread */
static PyObject *disable(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyLong_FromLong(++tc_disabled);
}

static PyObject *enable(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    if (tc_disabled == 0) {
        PyErr_SetString(PyExc_RuntimeError, "enable() without disable()");
        return NULL;
    }
    return PyLong_FromLong(--tc_disabled);
}

static PyObject *disabled_depth(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyLong_FromLong(tc_disabled);
}

static PyMethodDef functions[] = {
    {"disable", disable, METH_NOARGS, "Run originals in this thread until enable(); nests."},
    {"enable", enable, METH_NOARGS, "Undo one disable()."},
    {"disabled_depth", disabled_depth, METH_NOARGS, "How many disable() are in force in this thread."},
    {NULL, NULL, 0, NULL},
};

int tc_init_dispatch(PyObject *module)
{
    if (!(str_stance = PyUnicode_InternFromString("_stance")))
        return -1;
    tc_run_original = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    if (tc_run_original == NULL || PyModule_AddObjectRef(module, "RUN_ORIGINAL", tc_run_original) < 0 ||
        PyModule_AddFunctions(module, functions) < 0 || PyModule_AddType(module, &tc_Entry_Type) < 0)
        return -1;
    return PyModule_AddType(module, &tc_CodeCache_Type);
}
