/* One evaluation of a guard program (guards.c), as its loads and checks see it; cost.c makes one to time its steps. */
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
    int32_t held; /* instructions, counted through the three parts, up to which slots are held (run_hold) */
    int watched; /* the watched part was skipped: its slots are filled by an earlier run, but for demoted steps */
    PyObject *owned_inline[12];
    Recorder *rec;
} Run;

#define SLOT(r, i) ((i) < (r)->p->n_wslots ? (r)->w[i] : (r)->c[(i) - (r)->p->n_wslots])
/* What a weak reference refers to, borrowed; None where that is gone. */
#define REFERENT(ref) (((PyWeakReference *)(ref))->wr_object)

/* Keep `o` until the end of the run, which takes the reference. 0, or -1 where there is no memory. */
HIDDEN int run_own(Run *r, PyObject *o);
/* Slots are borrowed references. Before instruction `asking` runs Python, which may run anything and lets other threads
   in, what the run has loaded so far is held until its end. 0, or -1 with an exception set. */
HIDDEN int run_hold(Run *r, const Ins *asking) __attribute__((cold));
/* The value that a load reaches, borrowed; NULL without exception where there is none. */
HIDDEN PyObject *tc_guard_load(Run *r, const Ins *i);
/* 1: the check holds; 0: it does not; -1: an exception is set. */
HIDDEN int tc_guard_check(Run *r, const Ins *i);
/* A size, a stride or the offset of a tensor. *ok: 1; 0 where only Python can tell; -1 where it has no such
   dimension. */
HIDDEN int64_t tc_tensor_number(PyObject *o, int what, Py_ssize_t dim, int *ok);
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
