/* What hangs on a code object, in one of its extra slots: nothing yet, SKIP, or the first of its CodeCaches. */
#ifndef TCOMPILE_CODE_STATE_H
#define TCOMPILE_CODE_STATE_H
#include "dispatch.h"

#if PY_VERSION_HEX >= 0x030C0000
#define GetExtra PyUnstable_Code_GetExtra
#define SetExtra PyUnstable_Code_SetExtra
#define RequestExtraIndex PyUnstable_Eval_RequestCodeExtraIndex
#else
#define GetExtra _PyCode_GetExtra
#define SetExtra _PyCode_SetExtra
#define RequestExtraIndex _PyEval_RequestCodeExtraIndex
#endif

/* This odd number says that the code's frames are passed over. */
#define SKIP ((void *)(uintptr_t)1)
#define IS_CACHE(state) ((state) != NULL && ((uintptr_t)(state) & 1) == 0)

HIDDEN extern Py_ssize_t tc_extra_index;

/* The cache of one owner in the list that hangs on a code object. Borrowed; NULL where there is none. */
static inline CodeCache *cache_of(void *state, unsigned long long owner)
{
    CodeCache *c = IS_CACHE(state) ? state : NULL;
    while (c && c->owner != owner)
        c = c->next;
    return c;
}

/* Whether the hook looks at frames of this code, which it never met before: not where its file is to be skipped. */
HIDDEN int tc_first_seen(PyCodeObject *code);
HIDDEN int tc_init_code_state(PyObject *module);

#endif
