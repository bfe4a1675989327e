#include "watch.h"

TorchNames tc_torch;
static PyObject *str_func, *str_class, *str_dict, *str_getattr, *str_getattribute, *str_tables[3], *str_fields[5];
static PyTypeObject *local_type;      /* threading.local */
static PyObject *type_getattribute, *str_mro, *type_mro;

static inline Py_hash_t name_hash(PyObject *name)
{
    return ((PyASCIIObject *)name)->hash;
}

PyObject *tc_dict_get(PyObject *dict, PyObject *key, Py_hash_t hash, Recorder *rec)
{
    PyObject *value = NULL;
    if (hash != -1) {
        value = _PyDict_GetItem_KnownHash(dict, key, hash);
        if (value == NULL && PyErr_Occurred())
            PyErr_Clear();
    } else {
        Py_ssize_t pos = 0;
        PyObject *k, *v;
        while (PyDict_Next(dict, &pos, &k, &v)) {
            if (k == key) {
                value = v;
                break;
            }
        }
    }
    if (rec)
        rec_lookup(rec, dict, key, hash, value);
    return value;
}

static PyObject *instance_dict(PyObject *o, Recorder *rec)
{
    PyObject **where = _PyObject_GetDictPtr(o);
    if (where == NULL)
        return NULL;
    if (rec)
        rec_word(rec, where);
    return *where;
}

/* o's own attribute `name`; whether o can have any in *has. */
static PyObject *own_attr(PyObject *o, PyObject *name, int *has, Recorder *rec)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *value;
    *has = 1;
    if (rec_inline_attr(rec, o, name, &value))
        return value;
#endif
    PyObject *dict = instance_dict(o, rec);
    *has = dict != NULL;
    return dict ? tc_dict_get(dict, name, name_hash(name), rec) : NULL;
}

static int plain_slot(void *getattro)
{
    return getattro == (void *)PyObject_GenericGetAttr || getattro == (void *)PyModule_Type.tp_getattro ||
           getattro == (void *)PyMethod_Type.tp_getattro;
}

/* Whether attribute access of this type starts in C code that is known, not in a __getattribute__ of the user's. */
static int plain_getattr(PyTypeObject *tp)
{
    if (plain_slot((void *)tp->tp_getattro))
        return 1;
    /* A class with a __getattr__ of its own starts in the interpreter's slot function, which calls __getattribute__
       first. */
    PyObject *f = tp->tp_flags & Py_TPFLAGS_HEAPTYPE ? _PyType_Lookup(tp, str_getattribute) : NULL;
    return f && Py_TYPE(f) == &PyWrapperDescr_Type && plain_slot(((PyWrapperDescrObject *)f)->d_wrapped);
}

/* Descriptors written in C whose reading runs no code of the user's. */
static int plain_data_descriptor(PyObject *descr)
{
    PyTypeObject *t = Py_TYPE(descr);
    return t == &PyGetSetDescr_Type || t == &PyMemberDescr_Type || (t == tc_torch.tuplegetter && t != NULL);
}

/* What a class attribute gives when reached through instance `o` of `tp`. */
static PyObject *bind(PyObject *descr, PyObject *o, PyTypeObject *tp, int *owned, int *why, Recorder *rec)
{
    PyTypeObject *dt = Py_TYPE(descr);
    if (dt == &PyStaticMethod_Type) {
        PyObject *inner = dt->tp_descr_get(descr, o, (PyObject *)tp);
        Py_XDECREF(inner);                         /* the staticmethod, and so the type, keeps it alive */
        return inner;
    }
    if (dt->tp_descr_get == NULL || PyType_Check(descr) || dt == &PyCFunction_Type)
        return descr;
    if (dt == &PyFunction_Type || dt == &PyMethodDescr_Type || dt == &PyWrapperDescr_Type ||
        dt == &PyClassMethod_Type || dt == &PyClassMethodDescr_Type) {
        int gc = tc_quiet();
        PyObject *bound = dt->tp_descr_get(descr, o, (PyObject *)tp);
        tc_loud(gc);
        if (bound == NULL) {
            PyErr_Clear();
            *why = TC_REFUSED;
            return NULL;
        }
        *owned = 1;
        if (rec)
            rec->unwatchable = 1;
        return bound;
    }
    *why = TC_REFUSED;
    return NULL;
}

static PyObject *class_attr(PyTypeObject *cls, PyObject *name, int *owned, int *why, Recorder *rec)
{
    PyTypeObject *meta = Py_TYPE(cls);
    if (meta->tp_getattro != PyType_Type.tp_getattro && _PyType_Lookup(meta, str_getattribute) != type_getattribute) {
        *why = TC_REFUSED;
        return NULL;
    }
    PyObject *meta_attr = _PyType_Lookup(meta, name);
    if (name == str_mro && meta_attr == type_mro) {
        if (rec) {
            rec_object(rec, (PyObject *)cls);
            rec_type(rec, cls);
        }
        return cls->tp_mro;
    }
    if (meta_attr && Py_TYPE(meta_attr)->tp_descr_set) {
        PyTypeObject *dt = Py_TYPE(meta_attr);
        PyObject *value = NULL;
        *why = TC_REFUSED;
        if (dt == &PyGetSetDescr_Type || dt == &PyMemberDescr_Type) {
            int gc = tc_quiet();
            value = dt->tp_descr_get(meta_attr, (PyObject *)cls, (PyObject *)meta);
            tc_loud(gc);
            if (value == NULL)
                PyErr_Clear();
            else
                *owned = 1;
            if (rec)
                rec->unwatchable = 1;
        }
        return value;
    }
    PyObject *descr = _PyType_Lookup(cls, name);
    if (rec) {
        rec_object(rec, (PyObject *)cls);
        rec_type(rec, cls);
        rec_type(rec, meta);
    }
    if (descr == NULL) {
        if (meta_attr)
            return bind(meta_attr, (PyObject *)cls, meta, owned, why, rec);
        *why = _PyType_Lookup(meta, str_getattr) ? TC_REFUSED : TC_ABSENT;
        return NULL;
    }
    PyTypeObject *dt = Py_TYPE(descr);
    if (dt == &PyStaticMethod_Type || dt == &PyClassMethod_Type || dt == &PyClassMethodDescr_Type)
        return bind(descr, NULL, cls, owned, why, rec);
    if (dt->tp_descr_get == NULL || PyType_Check(descr) || dt == &PyFunction_Type || dt == &PyMethodDescr_Type ||
        dt == &PyWrapperDescr_Type || dt == &PyGetSetDescr_Type || dt == &PyMemberDescr_Type ||
        dt == &PyProperty_Type || dt == &PyCFunction_Type)
        return descr;
    *why = TC_REFUSED;
    return NULL;
}

/* Attributes of a function that are plain fields of it. */
static PyObject **function_field(PyFunctionObject *f, PyObject *name)
{
    return name == str_fields[0] ? &f->func_closure : name == str_fields[1] ? &f->func_globals :
           name == str_fields[2] ? &f->func_defaults : name == str_fields[3] ? &f->func_kwdefaults :
           name == str_fields[4] ? &f->func_code : NULL;
}

PyObject *tc_attr(PyObject *o, PyObject *name, int *owned, int *why, Recorder *rec)
{
    PyTypeObject *tp = Py_TYPE(o);
    *owned = 0;
    if (name == str_class) {
        if (rec)
            rec_object(rec, o);
        return (PyObject *)tp;
    }
    if (PyType_Check(o)) {
        *why = TC_REFUSED;
        return name == str_dict ? NULL : class_attr((PyTypeObject *)o, name, owned, why, rec);
    }
    if (rec)
        rec_object(rec, o);
    if (name == str_dict) {
        PyObject **where = _PyObject_GetDictPtr(o);
        if (where && !*where) { /* nobody has asked yet: reading it makes one, here as in Python */
            int gc = tc_quiet();
            PyObject *made = PyObject_GenericGetDict(o, NULL);
            tc_loud(gc);
            if (!made)
                PyErr_Clear();
            Py_XDECREF(made);
        }
        PyObject *d = instance_dict(o, rec);
        *why = TC_REFUSED;
        return d;
    }
    if (tp == local_type) {                            /* this thread's, which nothing that is watched tells */
        if (rec)
            rec->unwatchable = 1;
        int gc = tc_quiet();
        PyObject *value = PyObject_GetAttr(o, name);
        tc_loud(gc);
        *owned = value != NULL;
        if (!value) {
            PyErr_Clear();
            *why = TC_ABSENT;
        }
        return value;
    }
    if (tp == &PyFunction_Type) {
        PyObject **field = function_field((PyFunctionObject *)o, name);
        if (field) {
            if (rec)
                rec_word(rec, field);
            return *field ? *field : Py_None;
        }
    }
    if (!plain_getattr(tp)) {
        *why = TC_REFUSED;
        return NULL;
    }
    PyObject *descr = _PyType_Lookup(tp, name);
    if (rec)
        rec_type(rec, tp);
    if (descr && Py_TYPE(descr)->tp_descr_set) {
        PyTypeObject *dt = Py_TYPE(descr);
        if (!plain_data_descriptor(descr) ||
            (tc_torch.tensor_base && tp != tc_torch.tensor && tp != tc_torch.parameter &&
             PyType_IsSubtype(tp, tc_torch.tensor_base))) {
            *why = TC_REFUSED;
            return NULL;
        }
        if (rec)
            rec->unwatchable = 1;
        int gc = tc_quiet();
        PyObject *value = dt->tp_descr_get(descr, o, (PyObject *)tp);
        tc_loud(gc);
        if (value == NULL) {
            PyErr_Clear();
            *why = TC_ABSENT;
            return NULL;
        }
        *owned = 1;
        return value;
    }
    int has;
    PyObject *value = own_attr(o, name, &has, rec);
    if (value)
        return value;
    if (descr)
        return bind(descr, o, tp, owned, why, rec);
    PyObject *custom = _PyType_Lookup(tp, str_getattr);
    if (has && custom && custom == tc_torch.module_getattr) {
        for (int i = 0; i < 3; i++) {
            PyObject *table = own_attr(o, str_tables[i], &has, rec);
            if (table == NULL || !PyDict_Check(table))
                continue;
            if (rec)
                rec_container(rec, table);
            value = tc_dict_get(table, name, name_hash(name), rec);
            if (value)
                return value;
        }
        *why = TC_ABSENT;
        return NULL;
    }
    *why = TC_ABSENT;
    if (custom || tp == &PyMethod_Type)
        *why = TC_REFUSED;
    else if (PyModule_Check(o) && own_attr(o, str_getattr, &has, rec))
        *why = TC_REFUSED;
    return NULL;
}

PyObject *tc_method_function(PyObject *o, PyObject *name, int *owned, Recorder *rec)
{
    PyTypeObject *tp = Py_TYPE(o);
    int why, method_owned;
    *owned = 0;
    if (!PyType_Check(o) && plain_getattr(tp)) {
        PyObject *descr = _PyType_Lookup(tp, name);
        if (descr && Py_TYPE(descr) == &PyFunction_Type) {
            if (rec)
                rec_object(rec, o);
            int has;
            if (own_attr(o, name, &has, rec) == NULL)
                return descr;
        }
    }
    PyObject *method = tc_attr(o, name, &method_owned, &why, rec), *function = NULL;
    if (method == NULL)
        return NULL;
    function = tc_attr(method, str_func, owned, &why,
                       method_owned ? NULL : rec); /* (one made for this step alone is not watched) */
    if (method_owned) {
        if (function && !*owned)
            Py_INCREF(function);
        *owned = function != NULL;
        Py_DECREF(method);
    }
    return function;
}

static PyTypeObject *deque;

/* The content of a builtin container, past what a subclass overrides: no code of the user's runs. */
PyObject *tc_item(PyObject *o, PyObject *key, Py_ssize_t index, int is_index, Py_hash_t hash, Recorder *rec)
{
    if (rec)
        rec_object(rec, o);
    if (PyList_Check(o)) {
        if (rec)
            rec->unwatchable = 1;
        Py_ssize_t n = PyList_GET_SIZE(o);
        Py_ssize_t i = index < 0 ? index + n : index;
        return is_index && i >= 0 && i < n ? PyList_GET_ITEM(o, i) : NULL;
    }
    if (PyTuple_Check(o)) {
        Py_ssize_t n = PyTuple_GET_SIZE(o);
        Py_ssize_t i = index < 0 ? index + n : index;
        if (rec)
            rec_tuple_item(rec, o, i);
        return is_index && i >= 0 && i < n ? PyTuple_GET_ITEM(o, i) : NULL;
    }
    if (deque && PyObject_TypeCheck(o, deque)) {
        if (rec)
            rec->unwatchable = 1;
        Py_ssize_t n = deque->tp_as_sequence->sq_length(o);
        Py_ssize_t i = index < 0 ? index + n : index;
        PyObject *item = is_index && i >= 0 && i < n ? deque->tp_as_sequence->sq_item(o, i) : NULL;
        Py_XDECREF(item);                               /* the deque holds it */
        return item;
    }
    return PyDict_Check(o) ? tc_dict_get(o, key, hash, rec) : NULL;
}

/* As the builtin base class counts, past what a subclass overrides. */
Py_ssize_t tc_length(PyObject *o, int *frozen)
{
    PyTypeObject *tp = Py_TYPE(o);
    *frozen = 0;
    if (PyDict_Check(o))
        return ((PyDictObject *)o)->ma_used;
    if (PyList_Check(o))
        return PyList_GET_SIZE(o);
    if (PyAnySet_Check(o)) {
        *frozen = PyFrozenSet_Check(o);
        return PySet_GET_SIZE(o);
    }
    if (deque && PyObject_TypeCheck(o, deque))
        return deque->tp_as_sequence->sq_length(o);
    *frozen = 1;
    if (PyTuple_Check(o))
        return PyTuple_GET_SIZE(o);
    if (PyUnicode_Check(o))
        return PyUnicode_GET_LENGTH(o);
    if (PyBytes_Check(o))
        return PyBytes_GET_SIZE(o);
    if (tp == &PyRange_Type) {
        Py_ssize_t n = tp->tp_as_sequence->sq_length(o);
        if (n < 0)
            PyErr_Clear();
        return n;
    }
    return -1;
}

static inline int key_equal(PyObject *a, PyObject *b)
{
    return a == b || tc_const_equal(a, b);
}

int tc_dict_keys_equal(PyObject *o, PyObject *keys)
{
    Py_ssize_t n = PyTuple_GET_SIZE(keys), i = 0, pos = 0;
    PyObject *k, *v;
    if (PyAnySet_Check(
            o)) { /* in the order of its table, in which it iterates; entries that were removed have hash -1 */
        PySetObject *set = (PySetObject *)o;
        for (setentry *e = set->table; e <= set->table + set->mask; e++) {
            if (e->key && e->hash != -1 && (i >= n || !key_equal(e->key, PyTuple_GET_ITEM(keys, i++))))
                return 0;
        }
        return i == n;
    }
    if (!PyDict_Check(o) || ((PyDictObject *)o)->ma_used != n)
        return 0;
    if (!PyODict_Check(o)) {
        while (PyDict_Next(o, &pos, &k, &v)) {
            if (i >= n || !key_equal(k, PyTuple_GET_ITEM(keys, i++)))
                return 0;
        }
        return i == n;
    }
    int gc = tc_quiet();
    PyObject *it = PyODict_Type.tp_iter(o);
    tc_loud(gc);
    int same = it != NULL;
    while (same && (k = PyIter_Next(it))) {
        same = i < n && key_equal(k, PyTuple_GET_ITEM(keys, i++));
        Py_DECREF(k);
    }
    Py_XDECREF(it);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return same && i == n;
}

static int float_equal(double a, double b)
{
    if (a != a)
        return b != b;
    return memcmp(&a, &b, sizeof a) == 0;
}

static int slots_equal(PyObject *a, PyObject *b)
{
    static const char *const names[3] = {"start", "stop", "step"};
    for (int i = 0; i < 3; i++) {
        PyObject *x = PyObject_GetAttrString(a, names[i]), *y = x ? PyObject_GetAttrString(b, names[i]) : NULL;
        int same = x && y && tc_const_equal(x, y);
        Py_XDECREF(x);
        Py_XDECREF(y);
        if (!same) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

/* Every element of `items` has an equal in the frozenset `other`, or, where `x` is given, that one has. */
static int set_covers(PyObject *items, PyObject *other, PyObject *x)
{
    int gc = tc_quiet();
    PyObject *it = PyObject_GetIter(x ? other : items), *y;
    tc_loud(gc);
    int holds = x == NULL;
    while (it && holds == (x == NULL) && (y = PyIter_Next(it))) {
        holds = x ? tc_const_equal(x, y) : set_covers(NULL, other, y);
        Py_DECREF(y);
    }
    Py_XDECREF(it);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return holds;
}

static int sets_equal(PyObject *a, PyObject *b)
{
    return PySet_GET_SIZE(a) == PySet_GET_SIZE(b) && set_covers(a, b, NULL);
}

/* In the same order. */
static int dicts_equal(PyObject *a, PyObject *b)
{
    Py_ssize_t i = 0, j = 0;
    PyObject *k, *l, *v, *w;
    if (PyDict_GET_SIZE(a) != PyDict_GET_SIZE(b))
        return 0;
    while (PyDict_Next(a, &i, &k, &v)) {
        if (!PyDict_Next(b, &j, &l, &w) || !tc_const_equal(k, l) || !tc_const_equal(v, w))
            return 0;
    }
    return 1;
}

int tc_const_equal(PyObject *a, PyObject *b)
{
    if (a == b)
        return 1;
    PyTypeObject *t = Py_TYPE(a);
    if (Py_TYPE(b) == tc_torch.weak)                /* stands for its object */
        return ((PyWeakReference *)b)->wr_object == a;
    if (t != Py_TYPE(b))
        return 0;
    if (t == &PyLong_Type || t == &PyUnicode_Type || t == &PyBytes_Type || (t == tc_torch.device && t != NULL)) {
        int r = PyObject_RichCompareBool(a, b, Py_EQ);
        if (r < 0)
            PyErr_Clear();
        return r > 0;
    }
    if (t == &PyFloat_Type)
        return float_equal(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
    if (t == &PyComplex_Type) {
        Py_complex x = ((PyComplexObject *)a)->cval, y = ((PyComplexObject *)b)->cval;
        return float_equal(x.real, y.real) && float_equal(x.imag, y.imag);
    }
    if (t == &PyTuple_Type || (t == tc_torch.size && t != NULL)) {
        Py_ssize_t n = PyTuple_GET_SIZE(a);
        if (PyTuple_GET_SIZE(b) != n)
            return 0;
        for (Py_ssize_t i = 0; i < n; i++) {
            if (!tc_const_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i)))
                return 0;
        }
        return 1;
    }
    if (t == &PyList_Type) {
        Py_ssize_t n = PyList_GET_SIZE(a);
        for (Py_ssize_t i = 0; i < n && PyList_GET_SIZE(b) == n; i++) {
            if (!tc_const_equal(PyList_GET_ITEM(a, i), PyList_GET_ITEM(b, i)))
                return 0;
        }
        return PyList_GET_SIZE(b) == n;
    }
    if (t == &PyDict_Type)
        return dicts_equal(a, b);
    if (t == &PyFrozenSet_Type)
        return sets_equal(a, b);
    if (t == &PySlice_Type || t == &PyRange_Type)
        return slots_equal(a, b);
    return 0;
}

int tc_init_values(PyObject *module)
{
    (void)module;
    PyObject *collections = PyImport_ImportModule("collections");
    deque = collections ? (PyTypeObject *)PyObject_GetAttrString(collections, "deque") : NULL;
    Py_XDECREF(collections);
    PyObject *threads = PyImport_ImportModule("_thread");
    local_type = threads ? (PyTypeObject *)PyObject_GetAttrString(threads, "_local") : NULL;
    Py_XDECREF(threads);
    if (!deque || !local_type)
        return -1;
    str_func = PyUnicode_InternFromString("__func__");
    str_class = PyUnicode_InternFromString("__class__");
    str_dict = PyUnicode_InternFromString("__dict__");
    str_getattr = PyUnicode_InternFromString("__getattr__");
    str_getattribute = PyUnicode_InternFromString("__getattribute__");
    str_tables[0] = PyUnicode_InternFromString("_parameters");
    str_tables[1] = PyUnicode_InternFromString("_buffers");
    str_tables[2] = PyUnicode_InternFromString("_modules");
    if (!str_func || !str_class || !str_dict || !str_getattr || !str_getattribute || !str_tables[0] || !str_tables[1] ||
        !str_tables[2])
        return -1;
    PyObject *names[] = {str_func,         str_class,     str_dict,      str_getattr,
                         str_getattribute, str_tables[0], str_tables[1], str_tables[2]};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        PyObject_Hash(names[i]);
    static const char *const fields[5] = {"__closure__", "__globals__", "__defaults__", "__kwdefaults__", "__code__"};
    for (int i = 0; i < 5; i++) {
        if ((str_fields[i] = PyUnicode_InternFromString(fields[i])) == NULL)
            return -1;
    }
    type_getattribute = _PyType_Lookup(&PyType_Type, str_getattribute);
    if ((str_mro = PyUnicode_InternFromString("__mro__")) == NULL)
        return -1;
    type_mro = _PyType_Lookup(&PyType_Type, str_mro);
    return 0;
}
