/* What is known of a code object: that its frames are passed over, or the entries that serve them. */
#include "code_state.h"

Py_ssize_t tc_extra_index = -1;
static PyObject *skip_prefixes;             /* tuple of str: folders whose code is never looked at */

int tc_first_seen(PyCodeObject *code)
{
    PyObject *name = code->co_filename;
    Py_ssize_t n = skip_prefixes ? PyTuple_GET_SIZE(skip_prefixes) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *prefix = PyTuple_GET_ITEM(skip_prefixes, i);
        if (PyUnicode_Tailmatch(name, prefix, 0, PyUnicode_GET_LENGTH(name), -1) == 1) {
            SetExtra((PyObject *)code, tc_extra_index, SKIP);
            return 0;
        }
    }
    if (PyErr_Occurred())
        PyErr_Clear();
    return 1;
}

static void free_extra(void *p)
{
    if (IS_CACHE(p))
        Py_DECREF((PyObject *)p);
}

static PyObject *set_skip_prefixes(PyObject *self, PyObject *prefixes)
{
    (void)self;
    if (!PyTuple_CheckExact(prefixes)) {
        PyErr_SetString(PyExc_TypeError, "set_skip_prefixes: a tuple of str was expected");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(prefixes); i++) {
        if (!PyUnicode_Check(PyTuple_GET_ITEM(prefixes, i))) {
            PyErr_SetString(PyExc_TypeError, "set_skip_prefixes: a tuple of str was expected");
            return NULL;
        }
    }
    Py_XSETREF(skip_prefixes, Py_NewRef(prefixes));
    Py_RETURN_NONE;
}

static int is_code(PyObject *code)
{
    if (PyCode_Check(code))
        return 1;
    PyErr_Format(PyExc_TypeError, "a code object was expected, not %s", Py_TYPE(code)->tp_name);
    return 0;
}

static PyObject *skip_code(PyObject *self, PyObject *code)
{
    void *state = NULL;
    (void)self;
    if (!is_code(code) || GetExtra(code, tc_extra_index, &state) < 0)
        return NULL;
    if (!IS_CACHE(state) && SetExtra(code, tc_extra_index, SKIP) < 0)
        return NULL;
    if (IS_CACHE(state))
        ((CodeCache *)state)->skip_all = 1;
    Py_RETURN_NONE;
}

static PyObject *unskip_code(PyObject *self, PyObject *code)
{
    void *state = NULL;
    (void)self;
    if (!is_code(code) || GetExtra(code, tc_extra_index, &state) < 0)
        return NULL;
    if (state == SKIP && SetExtra(code, tc_extra_index, NULL) < 0)
        return NULL;
    if (IS_CACHE(state))
        ((CodeCache *)state)->skip_all = 0;
    for (CodeCache *c = IS_CACHE(state) ? state : NULL; c; c = c->next)
        c->skip = 0;
    Py_RETURN_NONE;
}

static PyObject *is_skipped(PyObject *self, PyObject *code)
{
    void *state = NULL;
    (void)self;
    if (!is_code(code) || GetExtra(code, tc_extra_index, &state) < 0)
        return NULL;
    return PyBool_FromLong(IS_CACHE(state) ? ((CodeCache *)state)->skip_all : state == SKIP);
}

/* code_cache(code, create=True, owner=0): the CodeCache of a set of options, which lives as long as the code object
   does */
static PyObject *code_cache(PyObject *self, PyObject *args)
{
    PyObject *code;
    int create = 1;
    unsigned long long owner = 0;
    void *state = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "O|pK:code_cache", &code, &create, &owner) || !is_code(code) ||
        GetExtra(code, tc_extra_index, &state) < 0)
        return NULL;
    CodeCache *found = cache_of(state, owner);
    if (found)
        return Py_NewRef((PyObject *)found);
    if (!create)
        Py_RETURN_NONE;
    PyObject *cache = PyObject_CallNoArgs((PyObject *)&tc_CodeCache_Type);
    if (cache == NULL)
        return NULL;
    /* what was collected meanwhile may have run code that made or dropped caches of this code */
    if (GetExtra(code, tc_extra_index, &state) < 0 || (found = cache_of(state, owner))) {
        PyObject *other = Py_XNewRef((PyObject *)found);
        Py_DECREF(cache);
        return other;
    }
    ((CodeCache *)cache)->owner = owner;
    if (IS_CACHE(state)) {                          /* behind the first, which says whether all are passed over */
        ((CodeCache *)cache)->next = ((CodeCache *)state)->next;
        ((CodeCache *)state)->next = (CodeCache *)Py_NewRef(cache);
        return cache;
    }
    ((CodeCache *)cache)->skip_all = state == SKIP;
    if (SetExtra(code, tc_extra_index, Py_NewRef(cache)) < 0) {
        Py_DECREF(cache);
        Py_CLEAR(cache);
    }
    return cache;
}

/* Drop what a cache has; 0, or -1 with an exception set. */
static int cache_forget(CodeCache *c)
{
    PyObject *done = PyObject_CallMethod((PyObject *)c, "clear", NULL);
    Py_XDECREF(done);
    c->skip = 0;
    return done ? 0 : -1;
}

/* forget_code(code, owner=-1): of all sets of options, or of one, whose cache goes */
static PyObject *forget_code(PyObject *self, PyObject *args)
{
    PyObject *code;
    long long owner = -1;
    void *state = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "O|L:forget_code", &code, &owner) || !is_code(code) ||
        GetExtra(code, tc_extra_index, &state) < 0)
        return NULL;
    if (state == SKIP && owner < 0 && SetExtra(code, tc_extra_index, NULL) < 0)
        return NULL;
    if (!IS_CACHE(state))
        Py_RETURN_NONE;
    if (owner < 0) {
        ((CodeCache *)state)->skip_all = 0;
        int failed = 0;
        for (CodeCache *c = (CodeCache *)Py_NewRef(state), *next; c; c = next) {
            failed |= cache_forget(c);              /* may run code that drops caches of this code */
            next = (CodeCache *)Py_XNewRef((PyObject *)c->next);
            Py_DECREF(c);
        }
        if (failed)
            return NULL;
        Py_RETURN_NONE;
    }
    CodeCache *found = cache_of(state, (unsigned long long)owner), *before = state;
    if (found == NULL)
        Py_RETURN_NONE;
    Py_INCREF(found);
    if (found == state) {
        CodeCache *next = found->next;
        if (next)
            next->skip_all = found->skip_all;
        if (SetExtra(code, tc_extra_index, next ? Py_NewRef(next) : found->skip_all ? SKIP : NULL) < 0) {
            Py_DECREF(found);
            return NULL;
        }
    } else {
        while (before->next != found)
            before = before->next;
        Py_XINCREF(found->next);
        Py_SETREF(before->next, found->next);
    }
    int failed = cache_forget(found);               /* somebody may hold it */
    Py_DECREF(found);
    if (failed < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_skip_prefixes", set_skip_prefixes, METH_O, "Never look at code whose filename starts with one of these."},
    {"skip_code", skip_code, METH_O, "Pass frames of this code over from now on."},
    {"unskip_code", unskip_code, METH_O, "Undo skip_code."},
    {"is_skipped", is_skipped, METH_O, "Whether frames of this code are passed over."},
    {"code_cache", code_cache, METH_VARARGS,
     "code_cache(code, create=True, owner=0): the CodeCache of a code object for one set of options, or None."},
    {"forget_code", forget_code, METH_VARARGS,
     "forget_code(code, owner=-1): drop the entries of a code object, and its skip mark; those of one set of options, "
     "or of all."},
    {NULL, NULL, 0, NULL},
};

int tc_init_code_state(PyObject *module)
{
    tc_extra_index = RequestExtraIndex(free_extra);
    if (tc_extra_index < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ImportError, "no code extra slot is left");
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
