/* A clock over compiled calls: what ran when, while it is on. Off, it costs one test of a flag a step. */
#ifndef TCOMPILE_TRACE_H
#define TCOMPILE_TRACE_H
#include "native.h"

/* the numbers of compiler/runtime/trace.py */
enum { TRACE_ENTRY, TRACE_GUARDS, TRACE_PLAN, TRACE_STEP };

HIDDEN extern int tc_tracing;
HIDDEN int64_t tc_trace_now(void);
/* `what` ran from `begin` until now; `index`: of a step. With the GIL held. */
HIDDEN void tc_trace_add(int kind, PyObject *what, int index, int64_t begin);

static inline int64_t tc_trace_begin(void)
{
    return UNLIKELY(tc_tracing) ? tc_trace_now() : 0;
}

static inline void tc_trace_end(int kind, PyObject *what, int index, int64_t begin)
{
    if (UNLIKELY(begin != 0))
        tc_trace_add(kind, what, index, begin);
}

#endif
