/* The guard program: what dispatch and the hook call. */
#ifndef TCOMPILE_GUARDS_H
#define TCOMPILE_GUARDS_H
#include "native.h"

HIDDEN extern PyTypeObject tc_GuardProgram_Type;
/* -1: all guards hold; >= 0: index of the first that does not; -2: an exception is set. `program` is a GuardProgram, or
   any object with check(func, args). */
HIDDEN int tc_check(PyObject *program, PyObject *func, PyObject *const *args, Py_ssize_t nargs);
HIDDEN int tc_init_guards(PyObject *module);

#endif
