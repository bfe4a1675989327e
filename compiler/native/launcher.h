/* Kernels as Python callables, and whole plans of kernels that run without Python between them. */
#ifndef TCOMPILE_LAUNCHER_H
#define TCOMPILE_LAUNCHER_H

#include "native.h"

/* The ABI of generated code (compiler/codegen/cpp/printer.py). */
typedef union { double f; int64_t i; } Scalar;
typedef int (*KernelFn)(void *const *buffer, const int64_t *size, const Scalar *param, char *scratch, int64_t begin, int64_t end);
typedef void (*PlanFn)(const int64_t *size, int64_t *out);

#define MAX_PHASES 16

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name;
    PyObject *library;             /* keeps the code loaded */
    PyObject *checks;              /* tuple of messages: see ir.check_index */
    PyObject *make_error;          /* callable(message) -> exception */
    int n_buffers, n_sizes, n_params, n_phases;
    char *param_kinds;             /* 'f' or 'i' per parameter */
    KernelFn phases[MAX_PHASES];
    PlanFn plan;
    int threads;                   /* most threads; 0: as many as torch uses */
    int64_t fixed[1 + 2 * MAX_PHASES];   /* what plan() says, where there are no sizes */
} KernelObject;

/* What the GPU's launcher (cuda.c) shares; both need a launcher_setup() that succeeded. */
HIDDEN void *tc_launcher_tensor(PyObject *o);          /* the at::Tensor* in a Python tensor; NULL with an exception set */
HIDDEN int tc_launcher_ready(void);
HIDDEN PyObject *tc_launcher_wrap(void *tensor);       /* a new Python tensor of an at::Tensor*, which it deletes */

#endif
