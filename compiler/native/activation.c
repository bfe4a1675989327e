/* Who is active: a cell, or tcompile.enable(), in the thread and context where it began and in contexts copied from
   it. */
#include "activation.h"
#include "dispatch.h"
#include "hook.h"

unsigned int tc_epoch = 1;
__thread Decision tc_decision __attribute__((tls_model("initial-exec")));
static PyObject *active_var;                /* the context variable that holds the Activation, or None */

/* ---- who is active */
typedef struct {
    PyObject_HEAD unsigned long thread;
    int alive;
    unsigned long long owner;
    PyObject *token, *callback, *work;
} Activation;
static PyTypeObject Activation_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.Activation",
    .tp_basicsize = sizeof(Activation),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
};

static void activation_dealloc(Activation *a)
{
    Py_XDECREF(a->token);
    Py_XDECREF(a->callback);
    Py_XDECREF(a->work);
    tc_epoch++;
    PyObject_Free(a);
}

int tc_decide(PyThreadState *ts)
{
    PyObject *a = NULL, *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    int active = 0;
    PyObject *work = NULL;
    unsigned long long owner = 0;
    if (active_var && PyContextVar_Get(active_var, Py_None, &a) == 0) {
        active = Py_TYPE(a) == &Activation_Type && ((Activation *)a)->alive &&
                 ((Activation *)a)->thread == PyThread_get_thread_ident();
        work = active ? ((Activation *)a)->work : NULL;
        owner = active ? ((Activation *)a)->owner : 0;
        Py_XDECREF(a);
    }
    PyErr_Restore(type, value, tb);
    tc_decision = (Decision){ts, ts->context_ver, tc_epoch, active, work, owner};
    return active;
}

PyObject *tc_present_callback(PyObject *otherwise)
{
    PyObject *a = NULL, *f = otherwise;
    if (PyContextVar_Get(active_var, Py_None, &a) == 0 && a && Py_TYPE(a) == &Activation_Type &&
        ((Activation *)a)->callback)
        f = ((Activation *)a)->callback;
    Py_XINCREF(f);
    Py_XDECREF(a);
    return f;
}

/* Whose entries serve the frames shown to a callback: the `number` of the object whose method it is; 0 for other
   callables. */
static unsigned long long owner_of(PyObject *f)
{
    PyObject *number = PyMethod_Check(f) ? PyObject_GetAttrString(PyMethod_GET_SELF(f), "number") : NULL;
    unsigned long long n = number && PyLong_Check(number) ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        n = 0;
    }
    return n;
}

static Activation *activate(PyObject *f, PyObject *work)
{
    Activation *a = PyObject_New(Activation, &Activation_Type);
    if (a == NULL)
        return NULL;
    a->token = NULL;
    a->thread = PyThread_get_thread_ident();
    a->alive = 1;
    a->owner = owner_of(f);
    a->callback = Py_NewRef(f);
    a->work = Py_XNewRef(work);
    a->token = PyContextVar_Set(active_var, (PyObject *)a);
    if (a->token == NULL)
        Py_CLEAR(a);
    tc_epoch++;
    return a;
}

static void deactivate(Activation *a)
{
    a->alive = 0;                                   /* also for tasks that copied the context */
    tc_epoch++;
    PyObject *token = a->token;
    a->token = NULL;
    Py_CLEAR(a->callback);
    if (token) {
        PyObject *type, *value, *tb;
        PyErr_Fetch(&type, &value, &tb);
        if (PyContextVar_Reset(active_var, token) < 0)
            PyErr_Clear();                          /* ended in another context than it began in: `alive` says enough */
        PyErr_Restore(type, value, tb);
        Py_DECREF(token);
    }
}

/* Capturing: the context manager that installs and activates. In C, so that no interrupt comes in the middle of either
   end. */
typedef struct { PyObject_HEAD PyObject *callback, *work; Activation *activation; } Capturing;
static PyObject *callbacks;                         /* list of those in force, innermost last */

static PyObject *capturing_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *f, *work = Py_None;
    if ((kwargs && PyDict_GET_SIZE(kwargs)) || !PyArg_ParseTuple(args, "O|O:Capturing", &f, &work))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "Capturing takes no keywords");
    if (!PyCallable_Check(f)) {
        PyErr_SetString(PyExc_TypeError, "Capturing: a callable(code, func, args) was expected");
        return NULL;
    }
    if (work != Py_None) {
        int right = PyTuple_CheckExact(work);
        for (Py_ssize_t i = 0; right && i < PyTuple_GET_SIZE(work); i++)
            right = PyType_Check(PyTuple_GET_ITEM(work, i));
        if (!right) {
            PyErr_SetString(PyExc_TypeError, "Capturing: a tuple of types, or None, was expected");
            return NULL;
        }
    }
    Capturing *c = (Capturing *)type->tp_alloc(type, 0);
    if (c) {
        c->callback = Py_NewRef(f);
        c->work = work == Py_None ? NULL : Py_NewRef(work);
    }
    return (PyObject *)c;
}

static PyObject *capturing_enter(Capturing *c, PyObject *unused)
{
    (void)unused;
    if (c->activation) {
        PyErr_SetString(PyExc_RuntimeError, "this Capturing is in use; make another");
        return NULL;
    }
    if (PyList_Append(callbacks, c->callback) < 0)
        return NULL;
    if ((c->activation = activate(c->callback, c->work)) == NULL) {
        PyList_SetSlice(callbacks, PyList_GET_SIZE(callbacks) - 1, PyList_GET_SIZE(callbacks), NULL);
        return NULL;
    }
    tc_hook_install(c->callback, PyList_GET_SIZE(callbacks) == 1);
    Py_RETURN_NONE;
}

static void capturing_end(Capturing *c)
{
    Activation *a = c->activation;
    if (a == NULL)
        return;
    c->activation = NULL;
    deactivate(a);
    Py_DECREF(a);
    Py_ssize_t i = PyList_GET_SIZE(callbacks);
    while (--i >= 0 && PyList_GET_ITEM(callbacks, i) != c->callback)
        ;
    if (i >= 0)
        PyList_SetSlice(callbacks, i, i + 1, NULL);
    Py_ssize_t n = PyList_GET_SIZE(callbacks);
    if (n)
        tc_hook_install(PyList_GET_ITEM(callbacks, n - 1), 0);
    else
        tc_hook_uninstall();
}

static PyObject *capturing_exit(Capturing *c, PyObject *args)
{
    (void)args;
    capturing_end(c);
    Py_RETURN_FALSE;
}

static void capturing_dealloc(Capturing *c)
{
    capturing_end(c);
    Py_XDECREF(c->callback);
    Py_XDECREF(c->work);
    Py_TYPE(c)->tp_free((PyObject *)c);
}

static PyMethodDef capturing_methods[] = {
    {"__enter__", (PyCFunction)capturing_enter, METH_NOARGS, "Install the hook and act in this thread and context."},
    {"__exit__", (PyCFunction)capturing_exit, METH_VARARGS, "End it, wherever the context was copied to."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject Capturing_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.Capturing",
    .tp_doc = "Capturing(callback, types=None): a context manager, in whose block this thread and context (and "
              "contexts copied from it) show their frames. callback(code, func, args) is asked where no entry serves a "
              "frame; it gives an Entry to run, RUN_ORIGINAL, or the frame's result. With `types`, only about frames "
              "that have one of them among their parameters, or that have entries.",
    .tp_basicsize = sizeof(Capturing),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = capturing_new,
    .tp_dealloc = (destructor)capturing_dealloc,
    .tp_methods = capturing_methods,
};

static PyObject *hook_asks(PyObject *self, PyObject *f)
{
    (void)self;
    Py_ssize_t n = PyList_GET_SIZE(callbacks);
    int same = n ? PyObject_RichCompareBool(PyList_GET_ITEM(callbacks, n - 1), f, Py_EQ) : 0;
    return same < 0 ? NULL : PyBool_FromLong(same);
}

static PyObject *hook_active(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyBool_FromLong(!tc_disabled && tc_is_active(PyThreadState_Get()));
}

static PyMethodDef functions[] = {
    {"hook_asks", hook_asks, METH_O, "Whether this callback is the innermost one in force."},
    {"hook_active", hook_active, METH_NOARGS, "Whether frames started here and now would be looked at."},
    {NULL, NULL, 0, NULL},
};

int tc_init_activation(PyObject *module)
{
    Activation_Type.tp_dealloc = (destructor)activation_dealloc;
    active_var = PyContextVar_New("tcompile_active", Py_None);
    callbacks = PyList_New(0);
    if (active_var == NULL || callbacks == NULL || PyType_Ready(&Activation_Type) < 0 ||
        PyModule_AddType(module, &Capturing_Type) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
