#ifndef TCOMPILE_DISPATCHER_H
#define TCOMPILE_DISPATCHER_H
#include "native.h"

/* callback(first, func, (args)), with compiled code switched off meanwhile. */
HIDDEN PyObject *tc_call_miss(PyObject *callback, PyObject *first, PyObject *func, PyObject *const *args,
                              Py_ssize_t nargs);
HIDDEN int tc_init_dispatcher(PyObject *module);

#endif
