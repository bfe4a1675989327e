/* The guard program's data. guards.c runs it, program.c makes it. */
#ifndef TCOMPILE_PROGRAM_H
#define TCOMPILE_PROGRAM_H
#include "expressions.h"
#include "guards.h"
#include "opcodes.h"
#include "state.h"
#include "tensor.h"
#include "watch.h"

typedef struct { int what, dim; ExprProgram *program; } SizeCheck;
typedef struct { int comparison, outcome; double constant; } FloatFact;  /* comparisons: values.py's COMPARISONS */
/* globals: owned, NULL stands for the frame's own; equal: weak reference to the code, or to the last that was found
   equal */
typedef struct { PyObject *globals, *equal; } FunctionCheck;

typedef struct {
    uint8_t op, demoted, flag;
    int32_t slot, base, guard;
    Py_ssize_t n;                   /* index, length, number of slots */
    Py_hash_t hash;
    PyObject *obj;                  /* owned; what it is depends on op */
    void *data;                     /* owned */
    PyObject *ask;                  /* owned: the Python function that decides what C cannot */
} Ins;

typedef struct { Ins *ins; int32_t n; } Part;
typedef struct { int32_t base; PyObject *obj; } Pin;        /* obj: compared only */

typedef struct {
    PyObject_HEAD
    PyObject *guards, *symbols;
    Py_ssize_t n_locals;
    Part first, watched, last;
    int32_t *demoted, n_demoted;
    int32_t n_wslots, n_cslots, n_symbols;
    PyObject **wslots;              /* borrowed; of the watched part, kept between calls */
    char *wdemoted;
    Recorder rec;
    int armed, busy;                /* busy: runs in progress */
    Pin *pins;                      /* the parameters that the watched part was recorded for */
    int32_t n_pins;
    PyObject **wspare;              /* slots for a run with other parameters than those */
    uint64_t candidate;             /* hash of the parameters of the last such run; two in a row are recorded anew */
    int credit, waited;             /* limits how often a structure that changes at each call is recorded */
    int can_watch;                  /* attempts to arm that are left */
    int rearmed;
    PyObject *armed_globals;        /* borrowed, compared only */
    int64_t *values;                /* of the size symbols, at the last check that passed */
    char *bound;
} Program;


HIDDEN int tc_program_check(Program *p, PyObject *func, PyObject *const *args, Py_ssize_t nargs);
HIDDEN PyObject *tc_program_profile(Program *p, PyObject *func, PyObject *const *args, Py_ssize_t nargs, int n);
HIDDEN PyObject *tc_bindings_dict(PyObject *symbols, const int64_t *values, const char *bound);

#endif
