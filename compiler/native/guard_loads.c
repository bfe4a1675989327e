/* The loads of a guard program: each reaches one value from the frame, or from a value that was reached before. */
#include "run.h"

int64_t tc_tensor_number(PyObject *o, int what, Py_ssize_t dim, int *ok)
{
    PyTypeObject *t = Py_TYPE(o);
    *ok = 0;
    if (!tc_layout.known || (t != tc_torch.tensor && t != tc_torch.parameter))
        return 0;
    const char *impl = tc_impl(o);
    if (impl == NULL)
        return 0;
    int64_t n = tc_ndim(impl);
    if (what == L_OFFSET) {
        *ok = 1;
        return AT(int64_t, impl, tc_layout.storage_offset);
    }
    if (dim < 0)
        dim += (Py_ssize_t)n;
    if (dim < 0 || dim >= n) {
        *ok = -1;
        return 0;
    }
    *ok = 1;
    return what == L_SIZE ? tc_sizes(impl)[dim] : tc_strides(impl)[dim];
}

static PyObject *ask_value(Run *r, const Ins *i, PyObject *base)
{
    PyObject *v = run_hold(r, i) < 0 ? NULL : PyObject_CallOneArg(i->ask, base);
    if (v == NULL) {
        PyErr_Clear();
        return NULL;
    }
    return run_own(r, v) < 0 ? NULL : v;
}

/* fields["state"][fields["param_groups"][group]["params"][index]]; a tensor's hash is its address. */
static PyObject *optimizer_state(PyObject *fields, Py_ssize_t group, Py_ssize_t index)
{
    static PyObject *s_groups, *s_state, *s_params;
    if (!s_params &&
        (!(s_groups = PyUnicode_InternFromString("param_groups")) || !(s_state = PyUnicode_InternFromString("state")) ||
         !(s_params = PyUnicode_InternFromString("params")))) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *groups = PyDict_Check(fields) ? PyDict_GetItem(fields, s_groups) : NULL,
             *state = groups ? PyDict_GetItem(fields, s_state) : NULL;
    if (!state || !PyDict_Check(state) || !PyList_CheckExact(groups) || group >= PyList_GET_SIZE(groups))
        return NULL;
    PyObject *one = PyList_GET_ITEM(groups, group), *params = PyDict_Check(one) ? PyDict_GetItem(one, s_params) : NULL;
    if (!params || !PyList_CheckExact(params) || index >= PyList_GET_SIZE(params))
        return NULL;
    PyObject *p = PyList_GET_ITEM(params, index), *found = _PyDict_GetItem_KnownHash(state, p, (Py_hash_t)(size_t)p);
    if (!found)
        PyErr_Clear();
    return found;
}

PyObject *tc_guard_load(Run *r, const Ins *i)
{
    PyObject *base = i->base >= 0 ? SLOT(r, i->base) : NULL, *v;
    Recorder *rec = r->rec;
    int owned = 0, why;
    switch (i->op) {
    case L_LOCAL:
        return i->n < r->nargs ? r->args[i->n] : NULL;
    case L_CONST:
        return i->obj;
    case L_WEAK:
        v = REFERENT(i->obj);
        if (rec)
            rec_word(rec, &((PyWeakReference *)i->obj)->wr_object);
        return v == Py_None || Py_REFCNT(v) <= 0 ? NULL : v;
    case L_PIN:
        if (rec) {
            if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(base))) {
                rec->unwatchable = 1;
                return base;
            }
            /* The same address is the same object only while that object lives. */
            int gc = tc_quiet();
            PyObject *ref = PyWeakref_NewRef(base, NULL);
            tc_loud(gc);
            if (ref == NULL) {
                PyErr_Clear();
                rec->failed = 1;
                return base;
            }
            rec_hold(rec, ref);
            rec_word(rec, &((PyWeakReference *)ref)->wr_object);
            Py_DECREF(ref);
            r->p->pins[r->p->n_pins++] = (Pin){i->base, base};
        }
        return base;
    case L_FUNCTION:
        return r->func;
    case L_CLOSURE: {
        PyObject *cells = PyFunction_Check(r->func) ? PyFunction_GET_CLOSURE(r->func) : NULL;
        if (cells == NULL || i->n >= PyTuple_GET_SIZE(cells))
            return NULL;
        return PyCell_GET(PyTuple_GET_ITEM(cells, i->n));
    }
    case L_GLOBAL:
        return PyFunction_Check(r->func) ? tc_dict_get(PyFunction_GET_GLOBALS(r->func), i->obj, i->hash, rec) : NULL;
    case L_BUILTIN:
        if (!PyFunction_Check(r->func) || tc_dict_get(PyFunction_GET_GLOBALS(r->func), i->obj, i->hash, rec))
            return NULL;
        return tc_dict_get(i->data, i->obj, i->hash, rec);
    case L_ATTR:
        v = tc_attr(base, i->obj, &owned, &why, rec);
        if (v && owned && run_own(r, v) < 0)
            return NULL;
        return v;
    case L_METHOD:
        v = tc_method_function(base, i->obj, &owned, rec);
        if (v && owned && run_own(r, v) < 0)
            return NULL;
        return v;
    case L_ITEM:
        return tc_item(base, i->obj, i->n, i->flag, i->hash, rec);
    case L_DICT:
        if (rec)
            rec_container(rec, base);
        return PyDict_Check(base) ? tc_dict_get(base, i->obj, i->hash, rec) : NULL;
    case L_OPTIMIZED:
        if (rec)
            rec->unwatchable = 1;
        return optimizer_state(base, i->n, i->hash);
    case L_ASKED:
        if (rec)
            rec->unwatchable = 1;
        return ask_value(r, i, base);
    case L_TYPE:
        if (rec)
            rec_object(rec, base);
        return (PyObject *)Py_TYPE(base);
    case L_CELL:
        if (Py_TYPE(base) != &PyCell_Type)
            return NULL;
        if (rec) {
            rec_object(rec, base);
            rec_word(rec, &((PyCellObject *)base)->ob_ref);
        }
        return PyCell_GET(base);
    case L_DEFAULT: {
        if (!PyFunction_Check(base))
            return NULL;
        PyObject *defaults = ((PyFunctionObject *)base)->func_defaults;
        if (rec) {
            rec_object(rec, base);
            rec_word(rec, &((PyFunctionObject *)base)->func_defaults);
            if (defaults)
                rec_tuple_item(rec, defaults, i->n);
        }
        return defaults && i->n >= 0 && i->n < PyTuple_GET_SIZE(defaults) ? PyTuple_GET_ITEM(defaults, i->n) : NULL;
    }
    case L_KWDEFAULT: {
        if (!PyFunction_Check(base))
            return NULL;
        PyObject *defaults = ((PyFunctionObject *)base)->func_kwdefaults;
        if (rec) {
            rec_object(rec, base);
            rec_word(rec, &((PyFunctionObject *)base)->func_kwdefaults);
        }
        return defaults ? tc_dict_get(defaults, i->obj, i->hash, rec) : NULL;
    }
    case L_SIZE: case L_STRIDE: case L_OFFSET: {
        int ok;
        int64_t number = tc_tensor_number(base, i->op, i->n, &ok);
        if (ok == 0)
            return ask_value(r, i, base);
        if (ok < 0)
            return NULL;
        v = PyLong_FromLongLong(number);
        return v && run_own(r, v) == 0 ? v : NULL;
    }
    }
    return NULL;
}
