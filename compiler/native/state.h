/* STATE guards: torch's global and thread-local state. */
#ifndef TCOMPILE_STATE_H
#define TCOMPILE_STATE_H
#include "native.h"

/* callable(*given) must give `expected`. `function` and `self` are set where it is called without its object. */
typedef struct { PyCFunction function; PyObject *self, *callable, *given, *expected; } StateCall;
typedef struct StateCheck StateCheck;
/* From (autograd mask, autograd bits, calls, by_keys, slow): see compiler/guards/guard_code.py. NULL with an exception
   set. */
HIDDEN StateCheck *tc_state_new(PyObject *spec);
HIDDEN void tc_state_free(StateCheck *s);
/* 1 holds, 0 does not, -1 an exception is set. */
HIDDEN int tc_state_check(StateCheck *s);
/* From here on this thread's calls of torch pass autograd by; what tc_heed_autograd() takes. */
HIDDEN uint64_t tc_pass_autograd(void);
HIDDEN void tc_heed_autograd(uint64_t before);
HIDDEN int tc_init_state(PyObject *module);

#endif
