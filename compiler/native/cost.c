/* What guards cost: the steps of a guard program, timed one by one for a call that they hold for
   (compiler/guards/guard_cost.py). */
#include "run.h"
#include <time.h>

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Nanoseconds of one step: the best of three runs of `n`. It leaves the run as the step alone would. */
static double time_step(Run *r, const Ins *i, int n, int *failed)
{
    double best = 1e30;
    Py_ssize_t owned = r->n_owned;
    int32_t held = r->held;
    for (int round = 0; round < 3; round++) {
        double start = now_ns();
        for (int k = 0; k < n; k++) {
            while (r->n_owned > owned)
                Py_DECREF(r->owned[--r->n_owned]);
            r->held = held;
            if ((*failed = tc_run_step(r, i)) != -1)
                return 0;
        }
        double each = (now_ns() - start) / n;
        best = each < best ? each : best;
    }
    return best;
}

static int add_cost(PyObject *costs, int guard, double ns)
{
    PyObject *key = PyLong_FromLong(guard), *known = key ? PyDict_GetItemWithError(costs, key) : NULL;
    PyObject *sum = PyErr_Occurred() ? NULL : PyFloat_FromDouble(ns + (known ? PyFloat_AS_DOUBLE(known) : 0));
    int r = sum ? PyDict_SetItem(costs, key, sum) : -1;
    Py_XDECREF(key);
    Py_XDECREF(sum);
    return r;
}

/* (ns of a whole check, ns of proving the watched part unchanged, {guard index: ns of its own steps at each call});
   None where the guards do not hold for this call. */
PyObject *tc_program_profile(Program *p, PyObject *func, PyObject *const *args, Py_ssize_t nargs, int n)
{
    double whole = 1e30, watched = 0;
    for (int k = 0; k < 3; k++) {
        int failed = tc_program_check(p, func, args, nargs);
        if (failed != -1) {
            if (failed == -2)
                return NULL;
            Py_RETURN_NONE;
        }
    }
    for (int round = 0; round < 3; round++) {
        double start = now_ns();
        for (int k = 0; k < n; k++)
            tc_program_check(p, func, args, nargs);
        double each = (now_ns() - start) / n;
        whole = each < whole ? each : whole;
    }
    if (PyErr_Occurred())
        return NULL;
    PyObject *costs = PyDict_New();
    size_t nc = (size_t)p->n_cslots, nw = (size_t)p->n_wslots, ns = (size_t)p->n_symbols;
    char *heap = PyMem_Calloc(1, (nc + nw + 1) * sizeof(PyObject *) + ns * (sizeof(int64_t) + 1));
    if (costs == NULL || heap == NULL) {
        Py_XDECREF(costs);
        PyMem_Free(heap);
        return PyErr_NoMemory();
    }
    Run r = {.p = p, .func = func, .args = args, .nargs = nargs, .c = (PyObject **)heap, .cap_owned = 12};
    r.owned = r.owned_inline;
    r.w = p->armed ? p->wslots : r.c + nc;
    r.watched = p->armed;
    r.values = (int64_t *)(r.c + nc + nw);
    r.bound = (char *)(r.values + ns);
    p->busy++;
    Py_INCREF(p);
    int failed = -1;
    const Part *parts[3] = {&p->first, &p->watched, &p->last};
    for (int k = 0; k < 3 && failed == -1; k++) {
        for (int32_t m = 0; m < parts[k]->n && failed == -1; m++) {
            const Ins *i = &parts[k]->ins[m];
            if (k == 1 && p->armed && !i->demoted)
                continue;
            double each = time_step(&r, i, n, &failed);
            if (failed == -1 && add_cost(costs, i->guard, each) < 0)
                failed = -2;
        }
        if (k == 1 && p->armed) {
            double start = now_ns();
            for (int j = 0; j < n; j++)
                rec_valid(&p->rec);
            watched = (now_ns() - start) / n;
        }
    }
    p->busy--;
    run_release(&r);
    PyMem_Free(heap);
    Py_DECREF(p);
    if (failed == -2) {
        Py_DECREF(costs);
        return NULL;
    }
    return Py_BuildValue("ddN", whole, watched, costs);
}
