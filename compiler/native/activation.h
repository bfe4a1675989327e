/* Who is active: the threads and contexts whose frames the hook looks at. */
#ifndef TCOMPILE_ACTIVATION_H
#define TCOMPILE_ACTIVATION_H
#include "native.h"

HIDDEN extern unsigned int tc_epoch; /* moves with each (de)activation: a thread's decision is good for one epoch */

/* `work` is borrowed: an activation outlives its epoch's decisions, since ending it starts another epoch. */
typedef struct {
    PyThreadState *ts;
    uint64_t context;
    unsigned int epoch;
    int active;
    PyObject *work;
    unsigned long long owner;
} Decision;
HIDDEN extern __thread Decision tc_decision __attribute__((tls_model("initial-exec")));

/* Decide anew, in tc_decision. */
HIDDEN int tc_decide(PyThreadState *ts);

static inline int tc_is_active(PyThreadState *ts)
{
    if (LIKELY(tc_decision.context == ts->context_ver && tc_decision.epoch == tc_epoch && tc_decision.ts == ts))
        return tc_decision.active;
    return tc_decide(ts);
}

/* Whom to ask about a frame: the callback of the activation in force, else `otherwise`. */
HIDDEN PyObject *tc_present_callback(PyObject *otherwise);
HIDDEN int tc_init_activation(PyObject *module);

#endif
