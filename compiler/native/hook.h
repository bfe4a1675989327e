#ifndef TCOMPILE_HOOK_H
#define TCOMPILE_HOOK_H
#include "native.h"

HIDDEN int tc_init_hook(PyObject *module);

#endif
