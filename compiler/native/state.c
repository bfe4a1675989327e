#include "state.h"
#include "values.h"
#include <dlfcn.h>

/* Two pieces of c10's thread-local state: a byte that holds grad mode and inference mode, and the two words of
   dispatch keys that are included and excluded (autocast, functorch and dispatch modes show there). The names are
   exported by libc10; guards/probe.py verifies that they move as torch's own functions say before it hands them
      here. */
typedef unsigned char *(*AutogradState)(void);
static AutogradState autograd_state;
static int autograd_byte;               /* where in the state the byte lies */
static void *c10;
static char keys_symbol[128];
static __thread const uint64_t *thread_keys;
static __thread const unsigned char *thread_autograd;    /* thread-local state stays where it is */

struct StateCheck {
    unsigned char mask, bits;           /* the autograd byte under `mask` must be `bits` */
    int n_calls;
    StateCall *calls;                   /* C functions without arguments, and what they must give */
    PyObject *by_keys;                  /* Python predicate that depends on the key words alone, or NULL */
    PyObject *slow;                     /* Python predicate asked at each call, or NULL */
    uint64_t good[2], bad[2];           /* key words for which by_keys said yes, no */
    int has_good, has_bad;
};

static const uint64_t *key_words(void)
{
    if (thread_keys == NULL && c10 != NULL)
        thread_keys = dlsym(c10, keys_symbol);
    return thread_keys;
}

/* ---- calls of torch's kernels that nothing is to be recorded for: past the layers of its dispatcher that record.
   Grad mode alone leaves them in the way: they make views that are tracked, and shared counters, for temporaries. */
static uint64_t autograd_keys;          /* the bits of the excluded word, 0: they are not known */

uint64_t tc_pass_autograd(void)
{
    uint64_t *k = autograd_keys ? (uint64_t *)key_words() : NULL;
    uint64_t before = k ? k[1] : 0;
    if (k)
        k[1] |= autograd_keys;
    return before;
}

void tc_heed_autograd(uint64_t before)
{
    uint64_t *k = autograd_keys ? (uint64_t *)key_words() : NULL;
    if (k)
        k[1] = before;
}

static PyObject *set_autograd_keys(PyObject *self, PyObject *bits)
{
    (void)self;
    autograd_keys = PyLong_AsUnsignedLongLong(bits);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

StateCheck *tc_state_new(PyObject *spec)
{
    int mask, bits;
    PyObject *calls, *by_keys, *slow;
    if (!PyArg_ParseTuple(spec, "iiO!OO", &mask, &bits, &PyTuple_Type, &calls, &by_keys, &slow))
        return NULL;
    StateCheck *s = PyMem_Calloc(1, sizeof *s);
    Py_ssize_t n = PyTuple_GET_SIZE(calls);
    if (s)
        s->calls = PyMem_Calloc((size_t)n + 1, sizeof *s->calls);
    if (s == NULL || s->calls == NULL) {
        PyMem_Free(s);
        PyErr_NoMemory();
        return NULL;
    }
    s->mask = (unsigned char)mask;
    s->bits = (unsigned char)bits;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *f, *given, *expected;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(calls, i), "O!O!O", &PyCFunction_Type, &f, &PyTuple_Type, &given,
                              &expected)) {
            tc_state_free(s);
            return NULL;
        }
        int direct = PyTuple_GET_SIZE(given) == 0 && PyCFunction_GET_FLAGS(f) & METH_NOARGS;
        s->calls[s->n_calls++] = (StateCall){direct ? PyCFunction_GET_FUNCTION(f) : NULL, PyCFunction_GET_SELF(f),
                                             Py_NewRef(f), Py_NewRef(given), Py_NewRef(expected)};
    }
    s->by_keys = by_keys == Py_None ? NULL : Py_NewRef(by_keys);
    s->slow = slow == Py_None ? NULL : Py_NewRef(slow);
    return s;
}

void tc_state_free(StateCheck *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < s->n_calls; i++) {
        Py_DECREF(s->calls[i].callable);
        Py_DECREF(s->calls[i].given);
        Py_DECREF(s->calls[i].expected);
    }
    PyMem_Free(s->calls);
    Py_XDECREF(s->by_keys);
    Py_XDECREF(s->slow);
    PyMem_Free(s);
}

static int ask(PyObject *predicate)
{
    PyObject *r = PyObject_CallNoArgs(predicate);
    int yes = r ? PyObject_IsTrue(r) : -1;
    Py_XDECREF(r);
    return yes;
}

int tc_state_check(StateCheck *s)
{
    if (s->mask) {
        if (UNLIKELY(thread_autograd == NULL))
            thread_autograd = autograd_state();
        if ((thread_autograd[autograd_byte] & s->mask) != s->bits)
            return 0;
    }
    if (s->by_keys) {
        const uint64_t *k = key_words();
        if (k && s->has_good && k[0] == s->good[0] && k[1] == s->good[1]) {
            /* verified for these very key words */
        } else if (k && s->has_bad && k[0] == s->bad[0] && k[1] == s->bad[1]) {
            return 0;
        } else {
            uint64_t now[2] = {k ? k[0] : 0, k ? k[1] : 0};
            int yes = ask(s->by_keys);
            if (yes < 0)
                return -1;
            if (k && yes) {
                memcpy(s->good, now, sizeof now);
                s->has_good = 1;
            } else if (k) {
                memcpy(s->bad, now, sizeof now);
                s->has_bad = 1;
            }
            if (!yes)
                return 0;
        }
    }
    for (int i = 0; i < s->n_calls; i++) {
        const StateCall *c = &s->calls[i];
        PyObject *r = c->function ? c->function(c->self, NULL)
                                  : PyObject_Vectorcall(c->callable, ((PyTupleObject *)c->given)->ob_item,
                                                        (size_t)PyTuple_GET_SIZE(c->given), NULL);
        if (r == NULL)
            return -1;
        int same = r == s->calls[i].expected || tc_const_equal(r, s->calls[i].expected);
        Py_DECREF(r);
        if (!same)
            return 0;
    }
    return s->slow ? ask(s->slow) : 1;
}

/* set_thread_state(path of libc10, symbol of the autograd state's getter, symbol of the key words, byte in the
   state) */
static PyObject *set_thread_state(PyObject *self, PyObject *args)
{
    const char *path, *getter, *keys;
    (void)self;
    int byte;
    if (!PyArg_ParseTuple(args, "sssi", &path, &getter, &keys, &byte))
        return NULL;
    void *lib = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    void *f = lib ? dlsym(lib, getter) : NULL;
    if (f == NULL || dlsym(lib, keys) == NULL || strlen(keys) >= sizeof keys_symbol)
        Py_RETURN_FALSE;
    strcpy(keys_symbol, keys);
    autograd_state = (AutogradState)f;
    autograd_byte = byte;
    c10 = lib;
    Py_RETURN_TRUE;
}

static PyObject *read_thread_state(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    const uint64_t *k = key_words();
    if (k == NULL || autograd_state == NULL)
        Py_RETURN_NONE;
    return Py_BuildValue("y#KK", (const char *)autograd_state(), (Py_ssize_t)48, (unsigned long long)k[0],
                         (unsigned long long)k[1]);
}

static PyMethodDef methods[] = {
    {"set_thread_state", set_thread_state, METH_VARARGS,
     "Where c10 keeps its thread-local state. False where it is not there."},
    {"set_autograd_keys", set_autograd_keys, METH_O, "Which bits of the excluded keys word pass autograd by."},
    {"read_thread_state", read_thread_state, METH_NOARGS,
     "(first bytes of the autograd state, included keys word, excluded keys word), or None."},
    {NULL, NULL, 0, NULL},
};

int tc_init_state(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
