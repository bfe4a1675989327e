/* Running a guard program: a flat list of loads (guard_loads.c) and checks (guard_checks.c) over slots, in three parts
   (guard_plan.py). The middle part, `watched`, is skipped while everything that its last full run depended on is
   unchanged (watch.h). */
#include "run.h"

int run_own(Run *r, PyObject *o)
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

int run_hold(Run *r, const Ins *asking)
{
    const Part *parts[3] = {&r->p->first, &r->p->watched, &r->p->last};
    int32_t before = 0;
    for (int k = 0; k < 3; before += parts[k++]->n) {
        const Ins *ins = parts[k]->ins;
        Py_ssize_t at = ((intptr_t)asking - (intptr_t)ins) / (Py_ssize_t)sizeof *ins;
        int here = at >= 0 && at < parts[k]->n;
        for (int32_t m = r->held > before ? r->held - before : 0; m < parts[k]->n; m++) {
            int filled = !here || m < at || (k == 1 && r->watched && !ins[m].demoted);
            if (filled && ins[m].op < FIRST_CHECK && run_own(r, Py_NewRef(SLOT(r, ins[m].slot))) < 0) {
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

/* One step: -1 goes on, >= 0 the guard that failed, -2 an exception. */
static inline int step(Run *r, const Ins *i)
{
    if (i->op < FIRST_CHECK) {
        PyObject *v = tc_guard_load(r, i);
        if (UNLIKELY(v == NULL))
            return i->guard;
        if (i->slot < r->p->n_wslots)
            r->w[i->slot] = v;
        else
            r->c[i->slot - r->p->n_wslots] = v;
        return -1;
    }
    int yes = tc_guard_check(r, i);
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
