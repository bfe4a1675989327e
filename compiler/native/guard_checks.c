/* The checks of a guard program: what has to hold of the values that its loads reached. */
#include "run.h"

#define INT_LIMIT (INT64_C(1) << 62)     /* as in compiler/symbolic/env.py */
enum { FAILED = 0, HOLDS = 1, ERROR = -1 };

/* Whether an immutable value refers to nothing that the collector of cycles knows: what the record may hold. */
static int is_closed(PyObject *o)
{
    if (PyTuple_Check(o)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++) {
            if (!is_closed(PyTuple_GET_ITEM(o, i)))
                return 0;
        }
        return 1;
    }
    if (PyFrozenSet_CheckExact(o)) {
        PySetObject *set = (PySetObject *)o;
        for (setentry *e = set->table; e <= set->table + set->mask; e++) {
            if (e->key && e->hash != -1 && !is_closed(e->key))
                return 0;
        }
        return 1;
    }
    if (PySlice_Check(o)) {
        PySliceObject *s = (PySliceObject *)o;
        return is_closed(s->start) && is_closed(s->stop) && is_closed(s->step);
    }
    return !PyType_IS_GC(Py_TYPE(o));
}

/* Record that `o`, which is equal to `expected`, stays it: it is held, or, where the guard holds parts of it weakly,
   its parts are watched. */
static void rec_equal(Recorder *rec, PyObject *o, PyObject *expected)
{
    if (Py_TYPE(expected) == tc_torch.weak) {
        rec_word(rec, &REFERENT(expected));
    } else if (is_closed(o)) {
        rec_hold(rec, o);
    } else if (PyTuple_CheckExact(o)) {
        rec_word(rec, &o->ob_type);
        rec_tuple_item(rec, o, -1);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++) {
            rec_tuple_item(rec, o, i);
            rec_equal(rec, PyTuple_GET_ITEM(o, i), PyTuple_GET_ITEM(expected, i));
        }
    } else {
        rec->unwatchable = 1;
    }
}

PyObject *tc_bindings_dict(PyObject *symbols, const int64_t *values, const char *bound)
{
    PyObject *d = PyDict_New();
    for (Py_ssize_t i = 0; d && i < PyTuple_GET_SIZE(symbols); i++) {
        if (!bound[i])
            continue;
        PyObject *v = PyLong_FromLongLong(values[i]);
        if (v == NULL || PyDict_SetItem(d, PyTuple_GET_ITEM(symbols, i), v) < 0)
            Py_CLEAR(d);
        Py_XDECREF(v);
    }
    return d;
}

/* Ask Python about a tensor: ask(value, bindings) -> bool; it may bind further symbols. */
static int ask_tensor(Run *r, const Ins *i, PyObject *value)
{
    PyObject *d = run_hold(r, i) < 0 ? NULL : tc_bindings_dict(r->p->symbols, r->values, r->bound), *answer;
    if (d == NULL)
        return ERROR;
    answer = PyObject_CallFunctionObjArgs(i->ask, value, d, NULL);
    int yes = answer ? PyObject_IsTrue(answer) : ERROR;
    Py_XDECREF(answer);
    for (int32_t s = 0; yes > 0 && s < r->p->n_symbols; s++) {
        PyObject *v = PyDict_GetItemWithError(d, PyTuple_GET_ITEM(r->p->symbols, s));
        if (v) {
            r->values[s] = PyLong_AsLongLong(v);
            r->bound[s] = 1;
        }
    }
    Py_DECREF(d);
    return PyErr_Occurred() ? ERROR : yes;
}

/* ask(bindings[, wanted]) -> bool */
static int ask_expr(Run *r, const Ins *i, PyObject *wanted)
{
    PyObject *d = run_hold(r, i) < 0 ? NULL : tc_bindings_dict(r->p->symbols, r->values, r->bound);
    PyObject *answer = d ? PyObject_CallFunctionObjArgs(i->ask, d, wanted, NULL) : NULL;
    int yes = answer ? PyObject_IsTrue(answer) : ERROR;
    Py_XDECREF(answer);
    Py_XDECREF(d);
    return yes;
}

static int check_sizes(Run *r, const Ins *i, PyObject *tensor)
{
    const SizeCheck *s = i->data;
    for (Py_ssize_t k = 0; k < i->n; k++) {
        int ok;
        int64_t got = tc_tensor_number(tensor, s[k].what, s[k].dim, &ok), wanted;
        if (ok < 0)
            return FAILED;
        if (ok && tc_expr_run(s[k].program, r->values, &wanted)) {
            if (got != wanted)
                return FAILED;
            continue;
        }
        return ask_expr(r, i, tensor);              /* decides all of them */
    }
    return HOLDS;
}

typedef struct { uint64_t lo, hi; int32_t slot; } Span;

/* A slot of C_NO_OVERLAP is stored as its complement where the tensor in it is only read. */
#define IS_READ(slot) ((slot) < 0)
#define PLACE(slot) (IS_READ(slot) ? ~(slot) : (slot))

static int by_start(const void *a, const void *b)
{
    uint64_t x = ((const Span *)a)->lo, y = ((const Span *)b)->lo;
    return (x > y) - (x < y);
}

/* Whether no two of the spans meet, but for two that are only read; an empty one meets none. They are sorted, and
   the instruction's slots with them: the next call, whose tensors mostly lie as this one's, finds them in order. (A
   training step has thousands.) */
static int check_apart(Run *r, const Ins *i, void (*span)(PyObject *, Span *))
{
    int32_t *slots = i->data;
    Span few[32], *spans = i->n <= 32 ? few : PyMem_Malloc((size_t)i->n * sizeof *spans);
    if (spans == NULL) {
        PyErr_NoMemory();
        return ERROR;
    }
    int sorted = 1, yes = HOLDS;
    for (Py_ssize_t k = 0; k < i->n; k++) {
        span(SLOT(r, PLACE(slots[k])), &spans[k]);
        spans[k].slot = slots[k];
        sorted &= k == 0 || spans[k - 1].lo <= spans[k].lo;
    }
    if (!sorted) {
        qsort(spans, (size_t)i->n, sizeof *spans, by_start);
        for (Py_ssize_t k = 0; k < i->n; k++)
            slots[k] = spans[k].slot;
    }
    uint64_t end_of_all = 0, end_of_written = 0;
    for (Py_ssize_t k = 0; k < i->n && yes == HOLDS; k++) {
        const Span *s = &spans[k];
        if (s->lo == s->hi)
            continue;
        if (s->lo < (IS_READ(s->slot) ? end_of_written : end_of_all))
            yes = FAILED;
        if (s->hi > end_of_all)
            end_of_all = s->hi;
        if (!IS_READ(s->slot) && s->hi > end_of_written)
            end_of_written = s->hi;
    }
    if (spans != few)
        PyMem_Free(spans);
    return yes;
}

static void span_of_object(PyObject *o, Span *s)
{
    s->lo = (uint64_t)(uintptr_t)o;
    s->hi = s->lo + 1;
}

static void span_of_memory(PyObject *o, Span *s)
{
    tc_memory_range(o, tc_itemsize(o), &s->lo, &s->hi);
}

static int check_no_overlap(Run *r, const Ins *i)
{
    const int32_t *slots = i->data;
    int known = tc_layout.known;
    for (Py_ssize_t a = 0; known && a < i->n; a++) {
        PyObject *o = SLOT(r, PLACE(slots[a]));
        PyTypeObject *t = Py_TYPE(o);
        known = (t == tc_torch.tensor || t == tc_torch.parameter) && tc_impl(o) &&
                AT(char *, tc_impl(o), tc_layout.storage) && tc_itemsize(o);
    }
    if (known)
        return check_apart(r, i, span_of_memory);
    Py_ssize_t written = 0, read = 0;
    for (Py_ssize_t a = 0; a < i->n; a++)
        written += !IS_READ(slots[a]);
    PyObject *all = run_hold(r, i) < 0 ? NULL : PyTuple_New(i->n);
    for (Py_ssize_t a = 0, first = 0; all && a < i->n; a++) {
        Py_ssize_t at = IS_READ(slots[a]) ? written + read++ : first++;
        PyTuple_SET_ITEM(all, at, Py_NewRef(SLOT(r, PLACE(slots[a]))));
    }
    PyObject *answer = all ? PyObject_CallFunction(i->ask, "On", all, written) : NULL;
    int yes = answer ? PyObject_IsTrue(answer) : ERROR;
    Py_XDECREF(all);
    Py_XDECREF(answer);
    return yes;
}

static int ask_about(Run *r, const Ins *i, PyObject *found, PyObject *expected)
{
    Py_INCREF(found);
    PyObject *answer = run_hold(r, i) < 0 ? NULL : PyObject_CallFunctionObjArgs(i->ask, found, expected, NULL);
    int yes = answer ? PyObject_IsTrue(answer) : ERROR;
    Py_XDECREF(answer);
    Py_DECREF(found);
    return yes;
}

/* The code that the guard names, or an equal one of the same file (a cell that ran again), with the globals it had. */
static int check_function(Run *r, const Ins *i, PyObject *v)
{
    if (Py_TYPE(v) != &PyFunction_Type)
        return FAILED;
    PyFunctionObject *f = (PyFunctionObject *)v;
    FunctionCheck *c = i->data;
    if (r->rec) {
        rec_object(r->rec, v);
        rec_word(r->rec, &f->func_code);
        rec_word(r->rec, &f->func_globals);
    }
    PyObject *globals = c->globals ? c->globals : PyFunction_Check(r->func) ? PyFunction_GET_GLOBALS(r->func) : NULL;
    if (f->func_globals != globals)
        return FAILED;
    if (REFERENT(c->equal) == f->func_code)
        return HOLDS;
    PyObject *code = Py_NewRef(f->func_code);       /* Python may give the function another one meanwhile */
    int yes = ask_about(r, i, code, i->obj);
    if (yes > 0) {
        PyObject *ref = PyWeakref_NewRef(code, NULL);
        if (ref == NULL)
            yes = ERROR;
        else
            Py_XSETREF(c->equal, ref);
    }
    Py_DECREF(code);
    return yes;
}

/* What the names give in the class and its bases: obj is (name, expected, name, expected, ...); expected is the object,
   a weak reference to it, a tuple that Python compares with it (values.same_found), or Ellipsis for none. */
/* Descriptors of C, which take no weak reference: known by type, class and name. -1: of another kind, which Python
   knows. */
static int same_descriptor(PyObject *found, PyObject *expected)
{
    PyTypeObject *t = Py_TYPE(found);
    if ((t != &PyGetSetDescr_Type && t != &PyMemberDescr_Type) || PyTuple_GET_SIZE(expected) != 3)
        return -1;
    PyDescrObject *d = (PyDescrObject *)found;
    PyObject *of = PyTuple_GET_ITEM(expected, 1), *type = PyTuple_GET_ITEM(expected, 0);
    if (Py_TYPE(of) == tc_torch.weak)
        of = REFERENT(of);
    return type == (PyObject *)t && of == (PyObject *)d->d_type && PyTuple_GET_ITEM(expected, 2) == d->d_name;
}

static int check_class(Run *r, const Ins *i, PyObject *v)
{
    if (!PyType_Check(v))
        return FAILED;
    if (r->rec) {
        rec_object(r->rec, v);
        rec_type(r->rec, (PyTypeObject *)v);
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(i->obj); k += 2) {
        PyObject *found = _PyType_Lookup((PyTypeObject *)v, PyTuple_GET_ITEM(i->obj, k));
        PyObject *expected = PyTuple_GET_ITEM(i->obj, k + 1);
        if (PyWeakref_CheckRef(expected)) {
            expected = REFERENT(expected);
            if (expected == Py_None)
                return FAILED;
        } else if (expected == Py_Ellipsis) {
            expected = NULL;
        } else if (PyTuple_CheckExact(expected)) {
            int yes = found ? same_descriptor(found, expected) : FAILED;
            if (yes < 0)
                yes = ask_about(r, i, found, expected);
            if (yes != HOLDS)
                return yes;
            continue;
        }
        if (found != expected)
            return FAILED;
    }
    return HOLDS;
}

int tc_guard_check(Run *r, const Ins *i)
{
    PyObject *v = i->base >= 0 ? SLOT(r, i->base) : NULL;
    Recorder *rec = r->rec;
    switch (i->op) {
    case C_ID:
        return v == i->obj;
    case C_WEAK_ID:
        if (rec)
            rec_word(rec, &((PyWeakReference *)i->obj)->wr_object);
        return v == REFERENT(i->obj) && v != Py_None;
    case C_TYPE:
        if (rec)
            rec_object(rec, v);
        return (PyObject *)Py_TYPE(v) == REFERENT(i->obj);
    case C_EQUALS:
        if (!tc_const_equal(v, i->obj))
            return FAILED;
        if (rec)
            rec_equal(rec, v, i->obj);
        return HOLDS;
    case C_LEN: {
        int frozen;
        Py_ssize_t n = tc_length(v, &frozen);
        if (rec) {
            rec_container(rec, v);
            if (PyTuple_Check(v))
                rec_tuple_item(rec, v, -1);
            else if (frozen)
                rec_hold(rec, v);
            else if (PyDict_Check(v))
                rec_whole_dict(rec, v);
            else
                rec->unwatchable = 1;
        }
        return n == i->n;
    }
    case C_DICT_KEYS:
        if (rec) {
            rec_container(rec, v);
            if (PyDict_CheckExact(v))
                rec_whole_dict(rec, v);
            else
                rec->unwatchable = 1;
        }
        return tc_dict_keys_equal(v, i->obj);
    case C_LACKS:
        if (rec)
            rec_container(rec, v);
        return PyDict_Check(v) && tc_dict_get(v, i->obj, i->hash, rec) == NULL;
    case C_HASATTR: {
        int owned = 0, why = TC_FOUND;
        PyObject *found = tc_attr(v, i->obj, &owned, &why, rec);
        if (found && owned)
            Py_DECREF(found);
        return found ? i->flag : !i->flag && why == TC_ABSENT;
    }
    case C_TENSOR: {
        int answer = tc_tensor_check(v, i->data, r->values, r->bound);
        return answer == TENSOR_OK ? HOLDS : answer == TENSOR_DIFFERS ? FAILED : ask_tensor(r, i, v);
    }
    case C_TENSOR_ASK:
        return ask_tensor(r, i, v);
    case C_SIZES:
        return check_sizes(r, i, v);
    case C_INT: {
        if (!PyLong_CheckExact(v))
            return FAILED;
        int overflow;
        int64_t n = PyLong_AsLongLongAndOverflow(v, &overflow);
        if (overflow)
            return FAILED;
        if (r->bound[i->n])
            return r->values[i->n] == n;
        r->values[i->n] = n;
        r->bound[i->n] = 1;
        return n >= (i->flag ? -INT_LIMIT : 2) && n < INT_LIMIT;
    }
    case C_FLOAT: {
        if (!PyFloat_CheckExact(v))
            return FAILED;
        double x = PyFloat_AS_DOUBLE(v);
        const FloatFact *fact = i->data;
        for (Py_ssize_t k = 0; k < i->n; k++, fact++) {
            double c = fact->constant;
            int outcome[6] = {x < c, x <= c, x > c, x >= c, x == c, x != c};
            if (outcome[fact->comparison] != fact->outcome)
                return FAILED;
        }
        return HOLDS;
    }
    case C_EXPR: {
        int64_t yes;
        if (i->data && tc_expr_run(i->data, r->values, &yes))
            return yes != 0;
        return ask_expr(r, i, NULL);
    }
    case C_ALIAS:
        return SLOT(r, ((int32_t *)i->data)[0]) == SLOT(r, ((int32_t *)i->data)[1]);
    case C_NO_ALIAS:
        return check_apart(r, i, span_of_object);
    case C_NO_OVERLAP:
        return check_no_overlap(r, i);
    case C_STATE:
        return UNLIKELY(i != r->p->first.ins) && run_hold(r, i) < 0 ? ERROR : tc_state_check(i->data);
    case C_CODE:
        if (rec) {
            rec_object(rec, v);
            if (PyFunction_Check(v))
                rec_word(rec, &((PyFunctionObject *)v)->func_code);
        }
        return PyFunction_Check(v) && ((PyFunctionObject *)v)->func_code == REFERENT(i->obj);
    case C_FUNCTION:
        return check_function(r, i, v);
    case C_CLASS:
        return check_class(r, i, v);
    }
    return FAILED;
}
