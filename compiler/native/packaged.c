/* PackageCall: one call of a packaged program (compiler/export/load_package.py) that fits: arguments to parameters, the
   guards, the plan, the result. What does not fit goes the slow way, which says why. */
#include "guards.h"
#include "plan.h"

#include <structmember.h>

/* path: the keys from a parameter to a tensor or number in it; dim: of whose size is the input, -1: that itself */
typedef struct { int input, argument, dim; PyObject *path; } Reader;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *names;           /* tuple: the parameters */
    PyObject *defaults;        /* tuple: a tuple of one, or None where there is none */
    int n_positional;          /* how many of them may come by place; they are the first */
    int rest, named;           /* the parameters *args and **kwargs, -1: there is none */
    PyObject *guards, *frame;  /* guards(frame, arguments) */
    PyObject *plan;            /* a Program */
    PyObject *inputs;          /* tuple: the plan's inputs, None where a reader gives them */
    int n_readers;
    Reader *readers;
    int result;                /* the output that is the result, -1: `build` makes it */
    PyObject *build, *slow;    /* build(outputs), build(outputs, arguments) where `with_arguments` */
    int with_arguments;
} PackageCall;

static int place_of(PyObject *names, PyObject *name)
{
    Py_ssize_t n = PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < n; i++)
        if (PyTuple_GET_ITEM(names, i) == name)
            return (int)i;
    for (Py_ssize_t i = 0; i < n; i++)
        if (PyUnicode_Compare(PyTuple_GET_ITEM(names, i), name) == 0)
            return (int)i;
    return -1;
}

static PyObject *tuple_of(PyObject *const *items, Py_ssize_t n)
{
    PyObject *t = PyTuple_New(n);
    for (Py_ssize_t i = 0; t && i < n; i++)
        PyTuple_SET_ITEM(t, i, Py_NewRef(items[i]));
    return t;
}

/* Arguments by parameter, borrowed but for those of *args and **kwargs, which the call owns. 0; 1: they do not bind; -1
   with an exception set. */
static int bind(const PackageCall *p, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, PyObject **bound)
{
    Py_ssize_t n_names = PyTuple_GET_SIZE(p->names), n_kw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0,
               by_place = n < p->n_positional ? n : p->n_positional;
    memcpy(bound, args, sizeof(PyObject *) * (size_t)by_place);
    memset(bound + by_place, 0, sizeof(PyObject *) * (size_t)(n_names - by_place));
    if (p->rest >= 0 && !(bound[p->rest] = tuple_of(args + by_place, n - by_place)))
        return -1;
    if (p->named >= 0 && !(bound[p->named] = PyDict_New()))
        return -1;
    if (p->rest < 0 && n > by_place)
        return 1;
    for (Py_ssize_t i = 0; i < n_kw; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        int at = place_of(p->names, name);
        if (at >= 0 && !bound[at])
            bound[at] = args[n + i];
        else if (at >= 0 || p->named < 0)
            return 1;
        else if (PyDict_SetItem(bound[p->named], name, args[n + i]) < 0)
            return -1;
    }
    for (Py_ssize_t i = 0; i < n_names; i++) {
        PyObject *otherwise = PyTuple_GET_ITEM(p->defaults, i);
        if (bound[i])
            continue;
        if (otherwise == Py_None)
            return 1;
        bound[i] = PyTuple_GET_ITEM(otherwise, 0);
    }
    return 0;
}

/* What a path leads to; a new reference. The guards have gone the same way. */
static PyObject *follow(PyObject *value, PyObject *path)
{
    Py_INCREF(value);
    for (Py_ssize_t i = 0; value && i < PyTuple_GET_SIZE(path); i++) {
        PyObject *step = PyTuple_GET_ITEM(path, i), *key = PyTuple_GET_ITEM(step, 1), *next;
        if (PyTuple_GET_ITEM(step, 0) == Py_True)
            next = PyObject_GetAttr(value, key);
        else if (PyDict_CheckExact(value))
            next = Py_XNewRef(PyDict_GetItemWithError(value, key));
        else
            next = PyObject_GetItem(value, key);
        Py_SETREF(value, next);
    }
    return value;
}

/* The plan's inputs that the arguments give; `made`: new references among them. 0, or -1 with an exception set. */
static int read_inputs(const PackageCall *p, PyObject *const *bound, PyObject **inputs, PyObject **made, int *n_made)
{
    for (int i = 0; i < p->n_readers; i++) {
        const Reader *r = &p->readers[i];
        PyObject *value = bound[r->argument];
        if (PyTuple_GET_SIZE(r->path)) {
            if (!(value = follow(value, r->path)))
                return -1;
            made[(*n_made)++] = value;
        }
        if (r->dim >= 0) {
            AtenTensor t = tc_launcher_tensor(value);    /* (the guards found a tensor of as many dimensions) */
            int64_t *sizes;
            if (!t || tc_torch_api.sizes(t, &sizes) || !(value = PyLong_FromLongLong(sizes[r->dim])))
                return -1;
            made[(*n_made)++] = value;
        }
        inputs[r->input] = value;
    }
    return 0;
}

static PyObject *result_of(const PackageCall *p, PyObject *const *bound, PyObject *outputs)
{
    if (p->result >= 0)
        return Py_NewRef(PyTuple_GET_ITEM(outputs, p->result));
    PyObject *arguments = p->with_arguments ? tuple_of(bound, PyTuple_GET_SIZE(p->names)) : NULL, *result = NULL;
    if (!p->with_arguments || arguments)
        result = PyObject_CallFunctionObjArgs(p->build, outputs, arguments, NULL);
    Py_XDECREF(arguments);
    return result;
}

static PyObject *package_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PackageCall *p = (PackageCall *)self;
    Py_ssize_t n = PyTuple_GET_SIZE(p->names), n_inputs = PyTuple_GET_SIZE(p->inputs);
    PyObject **bound = alloca(sizeof(PyObject *) * (size_t)(n + 1)),
             **inputs = alloca(sizeof(PyObject *) * (size_t)(n_inputs + 1)),
             **made = alloca(sizeof(PyObject *) * (size_t)(2 * p->n_readers + 1)), *result = NULL, *outputs;
    int n_made = 0, unbound = bind(p, args, PyVectorcall_NARGS(nargsf), kwnames, bound),
        failed = unbound ? 0 : tc_check(p->guards, p->frame, bound, n);
    if (UNLIKELY(unbound < 0 || failed == -2)) {
        ;
    } else if (UNLIKELY(failed != -1)) {
        result = PyObject_Vectorcall(p->slow, args, nargsf, kwnames);
    } else {
        for (Py_ssize_t i = 0; i < n_inputs; i++)
            inputs[i] = PyTuple_GET_ITEM(p->inputs, i);
        outputs = read_inputs(p, bound, inputs, made, &n_made) ? NULL : tc_plan_run(p->plan, inputs, n_inputs);
        if (LIKELY(outputs != NULL)) {
            result = result_of(p, bound, outputs);
            Py_DECREF(outputs);
        }
    }
    if (UNLIKELY(!result && !PyErr_Occurred()))
        PyErr_SetString(PyExc_RuntimeError, "a packaged program could not read its sizes");
    while (n_made)
        Py_DECREF(made[--n_made]);
    if (p->rest >= 0)
        Py_XDECREF(bound[p->rest]);
    if (p->named >= 0)
        Py_XDECREF(bound[p->named]);
    return result;
}

static PyObject *inconsistent(void)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a packaged call's description is not consistent");
    return NULL;
}

/* (input, parameter, path: (whether by attribute, key) each, dimension) each */
static int read_readers(PackageCall *p, PyObject *tuple)
{
    int n = (int)PyTuple_GET_SIZE(tuple);
    if (!(p->readers = PyMem_Calloc((size_t)n + 1, sizeof *p->readers)))
        return inconsistent() ? 0 : -1;
    for (; p->n_readers < n; p->n_readers++) {
        Reader *r = &p->readers[p->n_readers];
        PyObject *path;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, p->n_readers), "iiO!i", &r->input, &r->argument, &PyTuple_Type,
                              &path, &r->dim) ||
            r->input < 0 || r->input >= PyTuple_GET_SIZE(p->inputs) || r->argument < 0 ||
            r->argument >= PyTuple_GET_SIZE(p->names))
            return inconsistent() ? 0 : -1;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(path); i++)
            if (!PyTuple_Check(PyTuple_GET_ITEM(path, i)) || PyTuple_GET_SIZE(PyTuple_GET_ITEM(path, i)) != 2)
                return inconsistent() ? 0 : -1;
        r->path = Py_NewRef(path);
    }
    return 0;
}

static PyObject *package_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keys[] = {"names", "defaults", "n_positional", "rest", "named", "guards", "frame", "plan", "inputs",
                           "readers", "result", "build", "with_arguments", "slow", NULL};
    PyObject *names, *defaults, *guards, *frame, *plan, *inputs, *readers, *build, *slow;
    int n_positional, rest, named, result, with_arguments;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!iiiOOOO!O!iOpO", keys, &PyTuple_Type, &names, &PyTuple_Type,
                                     &defaults, &n_positional, &rest, &named, &guards, &frame, &plan, &PyTuple_Type,
                                     &inputs, &PyTuple_Type, &readers, &result, &build, &with_arguments, &slow))
        return NULL;
    int n = (int)PyTuple_GET_SIZE(names);
    if (PyTuple_GET_SIZE(defaults) != n || n_positional > n || rest >= n || named >= n || n_positional < 0 ||
        result >= tc_plan_outputs(plan))
        return inconsistent();
    PackageCall *p = (PackageCall *)type->tp_alloc(type, 0);
    if (!p)
        return NULL;
    p->vectorcall = package_call;
    p->names = Py_NewRef(names);
    p->defaults = Py_NewRef(defaults);
    p->n_positional = n_positional;
    p->rest = rest;
    p->named = named;
    p->guards = Py_NewRef(guards);
    p->frame = Py_NewRef(frame);
    p->plan = Py_NewRef(plan);
    p->inputs = Py_NewRef(inputs);
    p->result = result;
    p->build = Py_NewRef(build);
    p->with_arguments = with_arguments;
    p->slow = Py_NewRef(slow);
    if (read_readers(p, readers) < 0)
        Py_CLEAR(p);
    return (PyObject *)p;
}

static int package_traverse(PyObject *self, visitproc visit, void *arg)
{
    PackageCall *p = (PackageCall *)self;
    Py_VISIT(p->guards);
    Py_VISIT(p->frame);
    Py_VISIT(p->plan);
    Py_VISIT(p->inputs);
    Py_VISIT(p->build);
    Py_VISIT(p->slow);
    return 0;
}

static int package_clear(PyObject *self)
{
    PackageCall *p = (PackageCall *)self;
    Py_CLEAR(p->build);
    Py_CLEAR(p->slow);
    return 0;
}

static void package_dealloc(PyObject *self)
{
    PackageCall *p = (PackageCall *)self;
    PyObject_GC_UnTrack(self);
    package_clear(self);
    Py_CLEAR(p->names);
    Py_CLEAR(p->defaults);
    Py_CLEAR(p->guards);
    Py_CLEAR(p->frame);
    Py_CLEAR(p->plan);
    Py_CLEAR(p->inputs);
    for (int i = 0; i < p->n_readers; i++)
        Py_XDECREF(p->readers[i].path);
    PyMem_Free(p->readers);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject PackageCall_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.PackageCall",
    .tp_doc = "PackageCall(names, defaults, n_positional, rest, named, guards, frame, plan, inputs, readers, result, "
              "build, with_arguments, slow)\n\n"
              "A packaged program as a callable. See compiler/export/package_guards.py.",
    .tp_basicsize = sizeof(PackageCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = package_new,
    .tp_dealloc = package_dealloc,
    .tp_traverse = package_traverse,
    .tp_clear = package_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(PackageCall, vectorcall),
};

int tc_init_packaged(PyObject *module) { return PyModule_AddType(module, &PackageCall_Type); }
