/* Making guard programs from what compiler/guards/guard_code.py hands over, and their Python type. */
#include "program.h"

static int parse_dims(PyObject *dims, Dim *out, Py_ssize_t n)
{
    for (Py_ssize_t k = 0; k < n; k++) {
        long long value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(dims, k), "iL", &out[k].mode, &value))
            return -1;
        out[k].value = value;
    }
    return 0;
}

/* (type, dtype and device word, keys, keys in inference mode, requires_grad, dims, storage offset | None, data_ptr |
   None) */
static TensorCheck *tensor_new(PyObject *spec)
{
    PyObject *type, *dims, *offset, *data_ptr;
    unsigned long long word, keys, inference;
    int requires_grad;
    if (!PyArg_ParseTuple(spec, "OKKKpO!OO", &type, &word, &keys, &inference, &requires_grad, &PyTuple_Type, &dims,
                          &offset, &data_ptr))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(dims);
    TensorCheck *c = PyMem_Calloc(1, sizeof *c + (size_t)n * sizeof(Dim));
    if (c == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    c->type = (PyTypeObject *)type;
    c->dtype_device = word;
    c->keys = keys;
    c->inference_keys = inference;
    c->requires_grad = requires_grad;
    c->ndim = n / 2;
    c->dims = (Dim *)(c + 1);
    if (offset != Py_None) {
        c->has_offset = 1;
        c->storage_offset = PyLong_AsLongLong(offset);
    }
    if (data_ptr != Py_None) {
        c->has_data_ptr = 1;
        c->data_ptr = PyLong_AsUnsignedLongLong(data_ptr);
    }
    if (parse_dims(dims, c->dims, n) < 0 || PyErr_Occurred()) {
        PyMem_Free(c);
        return NULL;
    }
    return c;
}

static void ins_clear(Ins *i)
{
    if (i->op == C_STATE) {
        tc_state_free(i->data);
    } else if (i->op == C_SIZES) {
        for (Py_ssize_t k = 0; i->data && k < i->n; k++)
            tc_expr_free(((SizeCheck *)i->data)[k].program);
        PyMem_Free(i->data);
    } else if (i->op == L_BUILTIN) {
        Py_XDECREF((PyObject *)i->data);
    } else if (i->op == C_FUNCTION) {
        FunctionCheck *c = i->data;
        if (c) {
            Py_XDECREF(c->globals);
            Py_XDECREF(c->equal);
            PyMem_Free(c);
        }
    } else {
        PyMem_Free(i->data);
    }
    i->data = NULL;
    Py_CLEAR(i->obj);
    Py_CLEAR(i->ask);
}

static int slots_new(Ins *i, PyObject *slots)
{
    if (!PyTuple_Check(slots)) {
        PyErr_SetString(PyExc_TypeError, "slots must be a tuple");
        return -1;
    }
    i->n = PyTuple_GET_SIZE(slots);
    int32_t *out = i->data = PyMem_Calloc((size_t)i->n + 1, sizeof *out);
    if (out == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t k = 0; k < i->n; k++)
        out[k] = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(slots, k));
    return PyErr_Occurred() ? -1 : 0;
}

static int sizes_new(Ins *i, PyObject *sizes)
{
    Py_ssize_t n = PyTuple_GET_SIZE(sizes);
    SizeCheck *out = i->data = PyMem_Calloc((size_t)n + 1, sizeof *out);
    if (out == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    i->n = n;
    for (Py_ssize_t k = 0; k < n; k++) {
        PyObject *code;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(sizes, k), "iiO", &out[k].what, &out[k].dim, &code) ||
            (out[k].program = tc_expr_new(code, INT32_MAX)) == NULL)
            return -1;
    }
    return 0;
}

static int facts_new(Ins *i, PyObject *facts)
{
    i->n = PyTuple_Check(facts) ? PyTuple_GET_SIZE(facts) : 0;
    FloatFact *out = i->data = PyMem_Calloc((size_t)i->n + 1, sizeof *out);
    if (out == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t k = 0; k < i->n; k++) {
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(facts, k), "idp", &out[k].comparison, &out[k].constant, &out[k].outcome))
            return -1;
        if (out[k].comparison < 0 || out[k].comparison > 5) {
            PyErr_SetString(PyExc_ValueError, "there are six comparisons");
            return -1;
        }
    }
    return 0;
}

/* (op, slot, base, guard, object, number, hash, flag, data, ask) */
static int ins_init(Ins *i, PyObject *tuple)
{
    int op, flag;
    PyObject *obj, *data, *ask;
    Py_ssize_t n, hash;
    if (!PyArg_ParseTuple(tuple, "iiiiOnnpOO", &op, &i->slot, &i->base, &i->guard, &obj, &n, &hash, &flag, &data, &ask))
        return -1;
    i->op = (uint8_t)op;
    i->flag = (uint8_t)flag;
    i->n = n;
    i->hash = hash;
    i->obj = Py_NewRef(obj);
    i->ask = Py_NewRef(ask);
    if ((op == C_WEAK_ID || op == C_TYPE || op == C_CODE || op == L_WEAK) && !PyWeakref_CheckRef(obj)) {
        PyErr_SetString(PyExc_TypeError, "a weak reference was expected");
        return -1;
    }
    switch (op) {
    case L_ATTR: case L_METHOD: case L_GLOBAL: case L_BUILTIN: case C_HASATTR: {
        PyObject *name = Py_NewRef(obj);
        if (!PyUnicode_CheckExact(name)) {
            Py_DECREF(name);
            PyErr_SetString(PyExc_TypeError, "a name must be a str");
            return -1;
        }
        PyUnicode_InternInPlace(&name);
        i->hash = PyObject_Hash(name);
        Py_SETREF(i->obj, name);
        if (op == L_BUILTIN) {
            if (!PyDict_Check(data)) {
                PyErr_SetString(PyExc_TypeError, "the dict of builtins was expected");
                return -1;
            }
            i->data = Py_NewRef(data);
        }
        return 0;
    }
    case C_TENSOR:
        return (i->data = tensor_new(data)) ? 0 : -1;
    case C_STATE:
        return (i->data = tc_state_new(data)) ? 0 : -1;
    case C_EXPR:
        return data == Py_None || (i->data = tc_expr_new(data, INT32_MAX)) ? 0 : -1;
    case C_SIZES:
        return sizes_new(i, data);
    case C_FLOAT:
        return facts_new(i, data);
    case C_ALIAS: case C_NO_ALIAS: case C_NO_OVERLAP:
        return slots_new(i, data);
    case C_FUNCTION: {
        FunctionCheck *c = i->data = PyMem_Calloc(1, sizeof *c);
        if (c == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        PyObject *globals, *code; /* obj: code that is equal to that of the function, and no function's */
        if (!PyArg_ParseTuple(data, "OO", &globals, &code) || (c->equal = PyWeakref_NewRef(code, NULL)) == NULL)
            return -1;
        c->globals = globals == Py_None ? NULL : Py_NewRef(globals);
        return 0;
    }
    case C_CLASS:
        if (!PyTuple_Check(obj) || PyTuple_GET_SIZE(obj) % 2) {
            PyErr_SetString(PyExc_TypeError, "a tuple of names and what they give was expected");
            return -1;
        }
        return 0;
    }
    return 0;
}

static int part_init(Part *part, PyObject *list)
{
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "a list of instructions was expected");
        return -1;
    }
    Py_ssize_t n = PyList_GET_SIZE(list);
    part->ins = PyMem_Calloc((size_t)n + 1, sizeof *part->ins);
    if (part->ins == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; part->n < n; part->n++) {
        if (ins_init(&part->ins[part->n], PyList_GET_ITEM(list, part->n)) < 0) {
            ins_clear(&part->ins[part->n]);
            return -1;
        }
    }
    return 0;
}

static int watching = 1;            /* whether programs may skip what has not changed: guards/watch_probe.py */

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *guards, *symbols, *first, *watched, *last;
    int n_wslots, n_cslots, n_locals;
    if ((kwargs && PyDict_GET_SIZE(kwargs)) ||
        !PyArg_ParseTuple(args, "O!O!OOOiii", &PyList_Type, &guards, &PyTuple_Type, &symbols, &first, &watched, &last,
                          &n_wslots, &n_cslots, &n_locals))
        return NULL;
    Program *p = (Program *)type->tp_alloc(type, 0);
    if (p == NULL)
        return NULL;
    p->guards = Py_NewRef(guards);
    p->symbols = Py_NewRef(symbols);
    p->n_wslots = n_wslots;
    p->n_cslots = n_cslots;
    p->n_locals = n_locals;
    p->n_symbols = (int32_t)PyTuple_GET_SIZE(symbols);
    p->can_watch = watching ? 16 : 0;
    p->wslots = PyMem_Calloc((size_t)n_wslots + 1, sizeof *p->wslots);
    p->wdemoted = PyMem_Calloc((size_t)n_wslots + 1, 1);
    p->values = PyMem_Calloc((size_t)p->n_symbols + 1, sizeof *p->values);
    p->bound = PyMem_Calloc((size_t)p->n_symbols + 1, 1);
    if (!p->wslots || !p->wdemoted || !p->values || !p->bound) {
        Py_DECREF(p);
        return PyErr_NoMemory();
    }
    if (part_init(&p->first, first) < 0 || part_init(&p->watched, watched) < 0 || part_init(&p->last, last) < 0) {
        Py_DECREF(p);
        return NULL;
    }
    p->credit = 8;
    p->demoted = PyMem_Calloc((size_t)p->watched.n + 1, sizeof *p->demoted);
    p->pins = PyMem_Calloc((size_t)p->watched.n + 1, sizeof *p->pins);
    p->wspare = PyMem_Calloc((size_t)n_wslots + 1, sizeof *p->wspare);
    if (p->demoted == NULL || p->pins == NULL || p->wspare == NULL) {
        Py_DECREF(p);
        return PyErr_NoMemory();
    }
    return (PyObject *)p;
}

static int program_traverse(Program *p, visitproc visit, void *arg)
{
    Part *parts[] = {&p->first, &p->watched, &p->last};
    Py_VISIT(p->guards);
    Py_VISIT(p->rec.held);
    for (int k = 0; k < 3; k++) {
        for (int32_t n = 0; n < parts[k]->n; n++) {
            Py_VISIT(parts[k]->ins[n].obj);
            Py_VISIT(parts[k]->ins[n].ask);
            if (parts[k]->ins[n].op == C_FUNCTION && parts[k]->ins[n].data)
                Py_VISIT(((FunctionCheck *)parts[k]->ins[n].data)->globals);
        }
    }
    return 0;
}

static int program_clear(Program *p)
{
    Part *parts[] = {&p->first, &p->watched, &p->last};
    p->armed = 0;
    rec_clear(&p->rec);
    for (int k = 0; k < 3; k++) {
        Ins *ins = parts[k]->ins;
        int32_t n = parts[k]->n;
        *parts[k] = (Part){NULL, 0};
        for (int32_t m = 0; m < n; m++)
            ins_clear(&ins[m]);
        PyMem_Free(ins);
    }
    Py_CLEAR(p->guards);
    return 0;
}

static void program_dealloc(Program *p)
{
    PyObject_GC_UnTrack(p);
    program_clear(p);
    Py_XDECREF(p->symbols);
    PyMem_Free(p->demoted);
    PyMem_Free(p->pins);
    PyMem_Free(p->wspare);
    PyMem_Free(p->wslots);
    PyMem_Free(p->wdemoted);
    PyMem_Free(p->values);
    PyMem_Free(p->bound);
    Py_TYPE(p)->tp_free((PyObject *)p);
}

static PyObject *program_check_method(Program *p, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !(PyTuple_Check(args[1]) || PyList_Check(args[1]))) {
        PyErr_SetString(PyExc_TypeError, "check(func, args): args is the tuple of the frame's parameters");
        return NULL;
    }
    PyObject *seq = PySequence_Tuple(args[1]);
    if (seq == NULL)
        return NULL;
    int failed = tc_program_check(p, args[0], ((PyTupleObject *)seq)->ob_item, PyTuple_GET_SIZE(seq));
    Py_DECREF(seq);
    return failed == -2 ? NULL : PyLong_FromLong(failed);
}

static PyObject *program_profile(Program *p, PyObject *args)
{
    PyObject *func, *tuple;
    int n;
    if (!PyArg_ParseTuple(args, "OO!i:profile", &func, &PyTuple_Type, &tuple, &n))
        return NULL;
    if (n < 1) {
        PyErr_SetString(PyExc_ValueError, "profile: at least one run");
        return NULL;
    }
    return tc_program_profile(p, func, ((PyTupleObject *)tuple)->ob_item, PyTuple_GET_SIZE(tuple), n);
}

static PyObject *program_bindings(Program *p, void *closure)
{
    (void)closure;
    return tc_bindings_dict(p->symbols, p->values, p->bound);
}

static PyObject *program_watch_info(Program *p, void *closure)
{
    (void)closure;
    return Py_BuildValue("{s:O,s:n,s:n,s:i,s:i,s:i}", "armed", p->armed ? Py_True : Py_False, "words", p->rec.n_words,
                         "dicts", p->rec.n_dicts, "demoted", (int)p->n_demoted,
                         "steps", (int)p->watched.n, "armings", p->rearmed);
}

static PyObject *program_native(Program *p, void *closure)
{
    (void)p;
    (void)closure;
    Py_RETURN_TRUE;
}

static PyObject *program_get_guards(Program *p, void *closure)
{
    (void)closure;
    return Py_NewRef(p->guards ? p->guards : Py_None);
}

static PyMethodDef program_methods[] = {
    {"check", (PyCFunction)(void (*)(void))program_check_method, METH_FASTCALL,
     "check(func, args) -> int: -1 where all guards hold, else the index of the first that does not."},
    {"profile", (PyCFunction)program_profile, METH_VARARGS,
     "profile(func, args, n): (ns of a whole check, ns of the watched part, {guard index: ns of its steps at each "
     "call}), timed\n"
     "over n runs; None where the guards do not hold for this call."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef program_getset[] = {
    {"bindings", (getter)program_bindings, NULL, "size symbol -> int, of the last check that passed", NULL},
    {"guards", (getter)program_get_guards, NULL, "the guards the program was made from", NULL},
    {"native", (getter)program_native, NULL, "True", NULL},
    {"watch_info", (getter)program_watch_info, NULL, "how the watched part stands: for tests and the report", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject tc_GuardProgram_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.GuardProgram",
    .tp_doc = "A compiled list of guards. Made by tcompile.compiler.guards.compile_guards.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = program_new,
    .tp_dealloc = (destructor)program_dealloc,
    .tp_traverse = (traverseproc)program_traverse,
    .tp_clear = (inquiry)program_clear,
    .tp_methods = program_methods,
    .tp_getset = program_getset,
};

/* set_torch(TensorBase, Tensor, Parameter, Size, device, nn.Module.__getattr__, TensorBase.requires_grad,
   the type of a named tuple's fields, guards.weak.Weak) */
static PyObject *set_torch(PyObject *self, PyObject *args)
{
    PyObject *o[9];
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOOO!OO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &PyGetSetDescr_Type, &o[6],
                          &o[7], &o[8]))
        return NULL;
    for (int i = 0; i < 9; i++)
        Py_INCREF(o[i]);                            /* for the life of the process, as torch itself */
    tc_torch = (TorchNames){(PyTypeObject *)o[0],
                            (PyTypeObject *)o[1],
                            (PyTypeObject *)o[2],
                            (PyTypeObject *)o[3],
                            (PyTypeObject *)o[4],
                            (PyTypeObject *)o[7],
                            (PyTypeObject *)o[8],
                            o[5],
                            ((PyGetSetDescrObject *)o[6])->d_getset};
    Py_RETURN_NONE;
}

static PyObject *set_watching(PyObject *self, PyObject *on)
{
    (void)self;
    watching = PyObject_IsTrue(on) > 0;
    Py_RETURN_NONE;
}

static PyObject *const_equal(PyObject *self, PyObject *args)
{
    PyObject *a, *b;
    (void)self;
    return PyArg_ParseTuple(args, "OO", &a, &b) ? PyBool_FromLong(tc_const_equal(a, b)) : NULL;
}

static PyMethodDef functions[] = {
    {"set_torch", set_torch, METH_VARARGS, "torch's types, once in a process."},
    {"set_watching", set_watching, METH_O,
     "Whether programs made from now on may skip watched guards while nothing changed."},
    {"const_equal", const_equal, METH_VARARGS, "const_equal(a, b): same type and equal, for immutable constants."},
    {NULL, NULL, 0, NULL},
};

static int add_numbers(PyObject *module)
{
    static const struct { const char *name; int number; } table[] = {
#define L_ENTRY(n) {"L_" #n, L_##n},
#define C_ENTRY(n) {"C_" #n, C_##n},
#define E_ENTRY(n) {"E_" #n, E_##n},
        LOADS(L_ENTRY) CHECKS(C_ENTRY) EXPRS(E_ENTRY)
    };
    PyObject *numbers = PyDict_New();
    for (size_t k = 0; numbers && k < sizeof table / sizeof *table; k++) {
        PyObject *n = PyLong_FromLong(table[k].number);
        if (n == NULL || PyDict_SetItemString(numbers, table[k].name, n) < 0)
            Py_CLEAR(numbers);
        Py_XDECREF(n);
    }
    if (numbers == NULL)
        return -1;
    int failed = PyModule_AddObjectRef(module, "OPCODES", numbers);
    Py_DECREF(numbers);
    return failed;
}

int tc_init_guards(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0 || add_numbers(module) < 0)
        return -1;
    return PyModule_AddType(module, &tc_GuardProgram_Type);
}
