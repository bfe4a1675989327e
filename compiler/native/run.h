/* One evaluation of a guard program (guards.c); cost.c makes one to time its steps. */
#ifndef TCOMPILE_RUN_H
#define TCOMPILE_RUN_H
#include "program.h"

typedef struct {
    Program *p;
    PyObject *func, *const *args;
    Py_ssize_t nargs;
    PyObject **w, **c;
    int64_t *values;
    char *bound;
    PyObject **owned;
    Py_ssize_t n_owned, cap_owned;
    int32_t held;                   /* instructions, counted through the three parts, up to which slots are held (guards.c: hold) */
    int watched;                    /* the watched part was skipped: its slots are filled by an earlier run, but for demoted steps */
    PyObject *owned_inline[12];
    Recorder *rec;
} Run;

/* -1: the step holds; >= 0: the guard that does not; -2: an exception is set. */
HIDDEN int tc_run_step(Run *r, const Ins *i);

/* What the steps made for the time of the run. */
static inline void run_release(Run *r)
{
    for (Py_ssize_t k = 0; k < r->n_owned; k++)
        Py_DECREF(r->owned[k]);
    if (r->owned != r->owned_inline)
        PyMem_Free(r->owned);
}

#endif
