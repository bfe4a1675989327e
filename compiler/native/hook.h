#ifndef TCOMPILE_HOOK_H
#define TCOMPILE_HOOK_H
#include "native.h"

/* Be the interpreter's evaluator, and ask `f` about frames; `first`: in a cell that begins, so that frames without
   tensor work are counted anew. */
HIDDEN void tc_hook_install(PyObject *f, int first);
HIDDEN void tc_hook_uninstall(void);
HIDDEN int tc_init_hook(PyObject *module);

#endif
