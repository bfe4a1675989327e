/* The guard program: a flat list of loads and checks over slots, in three parts (guard_plan.py). The middle
   part, `watched`, is skipped while everything that its last full run depended on is unchanged (watch.h). */
#include "run.h"

#define SLOT(r, i) ((i) < (r)->p->n_wslots ? (r)->w[i] : (r)->c[(i) - (r)->p->n_wslots])
#define INT_LIMIT (INT64_C(1) << 62)     /* as in compiler/symbolic/env.py */
enum { FAILED = 0, HOLDS = 1, ERROR = -1 };

static int own(Run *r, PyObject *o)
{
    if (r->n_owned == r->cap_owned) {
        Py_ssize_t cap = r->cap_owned * 4;
        PyObject **p = PyMem_Malloc((size_t)cap * sizeof *p);
        if (p == NULL) {
            Py_DECREF(o);
            return -1;
        }
        memcpy(p, r->owned, (size_t)r->n_owned * sizeof *p);
        if (r->owned != r->owned_inline)
            PyMem_Free(r->owned);
        r->owned = p;
        r->cap_owned = cap;
    }
    r->owned[r->n_owned++] = o;
    return 0;
}

/* Slots are borrowed references. Before instruction `asking` runs Python, which may run anything and lets other threads in, what
   the run has loaded so far is held until its end. 0, or -1 with an exception set. */
static __attribute__((noinline, cold)) int hold(Run *r, const Ins *asking)
{
    const Part *parts[3] = {&r->p->first, &r->p->watched, &r->p->last};
    int32_t before = 0;
    for (int k = 0; k < 3; before += parts[k++]->n) {
        const Ins *ins = parts[k]->ins;
        Py_ssize_t at = ((intptr_t)asking - (intptr_t)ins) / (Py_ssize_t)sizeof *ins;
        int here = at >= 0 && at < parts[k]->n;
        for (int32_t m = r->held > before ? r->held - before : 0; m < parts[k]->n; m++) {
            int filled = !here || m < at || (k == 1 && r->watched && !ins[m].demoted);
            if (filled && ins[m].op < FIRST_CHECK && own(r, Py_NewRef(SLOT(r, ins[m].slot))) < 0) {
                PyErr_NoMemory();
                return -1;
            }
        }
        if (here) {
            r->held = before + (int32_t)at;
            return 0;
        }
    }
    return 0;
}

/* What a weak reference refers to, borrowed; None where that is gone. */
#define REFERENT(ref) (((PyWeakReference *)(ref))->wr_object)

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

/* Record that `o`, which is equal to `expected`, stays it: it is held, or, where the guard holds parts of it weakly, its parts are watched. */
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

/* ---- loads */
static inline int64_t tensor_number(PyObject *o, int what, Py_ssize_t dim, int *ok)
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
    PyObject *v = hold(r, i) < 0 ? NULL : PyObject_CallOneArg(i->ask, base);
    if (v == NULL) {
        PyErr_Clear();
        return NULL;
    }
    return own(r, v) < 0 ? NULL : v;
}

/* fields["state"][fields["param_groups"][group]["params"][index]]; a tensor's hash is its address. */
static PyObject *optimizer_state(PyObject *fields, Py_ssize_t group, Py_ssize_t index)
{
    static PyObject *s_groups, *s_state, *s_params;
    if (!s_params && (!(s_groups = PyUnicode_InternFromString("param_groups")) || !(s_state = PyUnicode_InternFromString("state")) ||
                      !(s_params = PyUnicode_InternFromString("params")))) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *groups = PyDict_Check(fields) ? PyDict_GetItem(fields, s_groups) : NULL, *state = groups ? PyDict_GetItem(fields, s_state) : NULL;
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

static PyObject *load(Run *r, const Ins *i)
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
        if (v && owned && own(r, v) < 0)
            return NULL;
        return v;
    case L_METHOD:
        v = tc_method_function(base, i->obj, &owned, rec);
        if (v && owned && own(r, v) < 0)
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
        int64_t number = tensor_number(base, i->op, i->n, &ok);
        if (ok == 0)
            return ask_value(r, i, base);
        if (ok < 0)
            return NULL;
        v = PyLong_FromLongLong(number);
        return v && own(r, v) == 0 ? v : NULL;
    }
    }
    return NULL;
}

/* ---- checks */
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
    PyObject *d = hold(r, i) < 0 ? NULL : tc_bindings_dict(r->p->symbols, r->values, r->bound), *answer;
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
    PyObject *d = hold(r, i) < 0 ? NULL : tc_bindings_dict(r->p->symbols, r->values, r->bound);
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
        int64_t got = tensor_number(tensor, s[k].what, s[k].dim, &ok), wanted;
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

static int by_start(const void *a, const void *b)
{
    uint64_t x = ((const Span *)a)->lo, y = ((const Span *)b)->lo;
    return (x > y) - (x < y);
}

/* Whether no two of the spans meet; an empty one meets none. They are sorted, and the instruction's slots with them: the next call, whose tensors
   mostly lie as this one's, finds them in order. (A training step has thousands.) */
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
        span(SLOT(r, slots[k]), &spans[k]);
        spans[k].slot = slots[k];
        sorted &= k == 0 || spans[k - 1].lo <= spans[k].lo;
    }
    if (!sorted) {
        qsort(spans, (size_t)i->n, sizeof *spans, by_start);
        for (Py_ssize_t k = 0; k < i->n; k++)
            slots[k] = spans[k].slot;
    }
    uint64_t end = 0;
    for (Py_ssize_t k = 0; k < i->n && yes == HOLDS; k++) {
        if (spans[k].lo == spans[k].hi)
            continue;
        if (spans[k].lo < end)
            yes = FAILED;
        end = spans[k].hi;
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
        PyTypeObject *t = Py_TYPE(SLOT(r, slots[a]));
        known = (t == tc_torch.tensor || t == tc_torch.parameter) && tc_impl(SLOT(r, slots[a])) &&
                AT(char *, tc_impl(SLOT(r, slots[a])), tc_layout.storage) && tc_itemsize(SLOT(r, slots[a]));
    }
    if (known)
        return check_apart(r, i, span_of_memory);
    PyObject *all = hold(r, i) < 0 ? NULL : PyTuple_New(i->n);
    for (Py_ssize_t a = 0; all && a < i->n; a++)
        PyTuple_SET_ITEM(all, a, Py_NewRef(SLOT(r, slots[a])));
    PyObject *answer = all ? PyObject_CallOneArg(i->ask, all) : NULL;
    int yes = answer ? PyObject_IsTrue(answer) : ERROR;
    Py_XDECREF(all);
    Py_XDECREF(answer);
    return yes;
}

static int ask_about(Run *r, const Ins *i, PyObject *found, PyObject *expected)
{
    Py_INCREF(found);
    PyObject *answer = hold(r, i) < 0 ? NULL : PyObject_CallFunctionObjArgs(i->ask, found, expected, NULL);
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

/* What the names give in the class and its bases: obj is (name, expected, name, expected, ...); expected is the object, a
   weak reference to it, a tuple that Python compares with it (values.same_found), or Ellipsis for none. */
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
            int yes = found ? ask_about(r, i, found, expected) : FAILED;
            if (yes != HOLDS)
                return yes;
            continue;
        }
        if (found != expected)
            return FAILED;
    }
    return HOLDS;
}

static int check(Run *r, const Ins *i)
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
        return UNLIKELY(i != r->p->first.ins) && hold(r, i) < 0 ? ERROR : tc_state_check(i->data);
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

/* ---- running */
/* One step: -1 goes on, >= 0 the guard that failed, -2 an exception. */
static inline int step(Run *r, const Ins *i)
{
    if (i->op < FIRST_CHECK) {
        PyObject *v = load(r, i);
        if (UNLIKELY(v == NULL))
            return i->guard;
        if (i->slot < r->p->n_wslots)
            r->w[i->slot] = v;
        else
            r->c[i->slot - r->p->n_wslots] = v;
        return -1;
    }
    int yes = check(r, i);
    return LIKELY(yes > 0) ? -1 : yes == 0 ? i->guard : -2;
}

int tc_run_step(Run *r, const Ins *i)
{
    return step(r, i);
}

static int run_part(Run *r, const Part *part)
{
    for (const Ins *i = part->ins, *end = i + part->n; i < end; i++) {
        int failed = step(r, i);
        if (UNLIKELY(failed != -1))
            return failed;
    }
    return -1;
}

static int uses_demoted(Program *p, const Ins *i)
{
    if (i->base >= 0)
        return i->base < p->n_wslots && p->wdemoted[i->base];
    if (i->op == C_ALIAS || i->op == C_NO_ALIAS) {
        for (Py_ssize_t k = 0; k < i->n; k++) {
            int32_t s = ((int32_t *)i->data)[k];
            if (s < p->n_wslots && p->wdemoted[s])
                return 1;
        }
    }
    return 0;
}

/* The watched part held: run it once more with the recorder on. What cannot be watched is demoted to each call. */
static void arm(Run *r)
{
    Program *p = r->p;
    Recorder *rec = &p->rec;
    p->armed = 0;
    rec_clear(rec);
    p->n_demoted = p->n_pins = 0;
    r->w = p->wslots;
    r->held = r->held < p->first.n ? r->held : p->first.n;       /* the slots of this part are filled anew */
    memset(p->wdemoted, 0, (size_t)p->n_wslots);
    int held = -1;
    for (int32_t n = 0; n < p->watched.n && held == -1 && !rec->failed; n++) {
        Ins *i = &p->watched.ins[n];
        i->demoted = (uint8_t)uses_demoted(p, i);
        r->rec = i->demoted ? NULL : rec;
        rec->unwatchable = 0;
        held = step(r, i);
        i->demoted |= (uint8_t)rec->unwatchable;
        if (i->demoted) {
            p->demoted[p->n_demoted++] = n;
            if (i->op < FIRST_CHECK)
                p->wdemoted[i->slot] = 1;
        }
    }
    r->rec = NULL;
    if (held == -1)
        rec_finish(rec);
    if (held != -1 || rec->failed) {
        if (PyErr_Occurred())
            PyErr_Clear();
        rec_clear(rec);
        p->n_demoted = 0;
        p->can_watch--;
        return;
    }
    p->armed_globals = PyFunction_Check(r->func) ? PyFunction_GET_GLOBALS(r->func) : NULL;
    p->armed = 1;
    p->rearmed++;
}

static uint64_t same_parameters(const Run *r, int *same)
{
    const Program *p = r->p;
    PyObject *globals = PyFunction_Check(r->func) ? PyFunction_GET_GLOBALS(r->func) : NULL;
    uint64_t hash = (uint64_t)(uintptr_t)globals;
    *same = p->armed_globals == globals;
    for (int32_t k = 0; k < p->n_pins; k++) {
        PyObject *o = SLOT(r, p->pins[k].base);
        *same &= o == p->pins[k].obj;
        hash = hash * 0x9E3779B97F4A7C15ull + (uint64_t)(uintptr_t)o;
    }
    return hash;
}

static int run_watched(Run *r)
{
    Program *p = r->p;
    if (r->w != p->wslots)
        return run_part(r, &p->watched);            /* inside another run */
    int same = 0, failed;
    if (p->armed) {
        uint64_t hash = same_parameters(r, &same);
        if (LIKELY(same && rec_valid(&p->rec))) {
            p->candidate = 0;
            p->credit += p->credit < 8;
            r->watched = 1;
            for (int32_t k = 0; k < p->n_demoted; k++) {
                if ((failed = step(r, &p->watched.ins[p->demoted[k]])) != -1)
                    return failed;
            }
            return -1;
        }
        if (!same) {
            /* Several objects share the entry: the record stays with the first until another comes twice in a row. */
            int again = hash == p->candidate;
            p->candidate = hash;
            r->w = p->wspare;
            failed = run_part(r, &p->watched);
            if (failed == -1 && again && p->can_watch > 0) {
                memcpy(p->wslots, p->wspare, (size_t)p->n_wslots * sizeof *p->wslots);
                arm(r);
            }
            return failed;
        }
    }
    p->armed = 0;
    failed = run_part(r, &p->watched);
    if (failed != -1 || p->can_watch <= 0)
        return failed;
    if (p->credit > 0) {
        p->credit--;
        arm(r);
    } else if (++p->waited == 64) {
        p->waited = 0;
        p->credit = 1;
    }
    return failed;
}

int tc_program_check(Program *p, PyObject *func, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *c_inline[64], *w_inline[64];
    int64_t values_inline[32];
    char bound_inline[32];
    Run r = {.p = p, .func = func, .args = args, .nargs = nargs, .w = p->wslots, .c = c_inline, .values = values_inline,
             .bound = bound_inline, .cap_owned = 12};
    r.owned = r.owned_inline;
    void *heap = NULL;
    int nested = p->busy, failed;
    /* A guard that asks Python may let another thread in, or this program again: that run keeps slots of its own. */
    size_t need = 0, nc = (size_t)p->n_cslots, nw = nested ? (size_t)p->n_wslots : 0, ns = (size_t)p->n_symbols;
    if (nc > 64 || nw > 64 || ns > 32)
        need = (nc + nw) * sizeof(PyObject *) + ns * (sizeof(int64_t) + 1);
    if (need) {
        heap = PyMem_Malloc(need);
        if (heap == NULL) {
            PyErr_NoMemory();
            return -2;
        }
        r.c = heap;
        r.values = (int64_t *)(r.c + nc + nw);
        r.bound = (char *)(r.values + ns);
        if (nested)
            r.w = r.c + nc;
    } else if (nested) {
        r.w = w_inline;
    }
    memset(r.bound, 0, ns);
    p->busy++;
    Py_INCREF(p);
    failed = run_part(&r, &p->first);
    if (failed == -1 && p->watched.n)
        failed = run_watched(&r);
    if (failed == -1)
        failed = run_part(&r, &p->last);
    p->busy--;
    if (failed == -1 && ns) {
        memcpy(p->values, r.values, ns * sizeof(int64_t));
        memcpy(p->bound, r.bound, ns);
    }
    run_release(&r);
    PyMem_Free(heap);
    Py_DECREF(p);
    return failed;
}

int tc_check(PyObject *program, PyObject *func, PyObject *const *args, Py_ssize_t nargs)
{
    if (LIKELY(Py_TYPE(program) == &tc_GuardProgram_Type))
        return tc_program_check((Program *)program, func, args, nargs);
    PyObject *tuple = PyTuple_New(nargs), *answer = NULL;
    for (Py_ssize_t i = 0; tuple && i < nargs; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
    if (tuple)
        answer = PyObject_CallMethod(program, "check", "OO", func, tuple);
    Py_XDECREF(tuple);
    long failed = answer ? PyLong_AsLong(answer) : -1;
    Py_XDECREF(answer);
    return PyErr_Occurred() ? -2 : (int)failed;
}

