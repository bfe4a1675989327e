/* Entries, the cache of one code object, and the dispatcher. */
#ifndef TCOMPILE_DISPATCH_H
#define TCOMPILE_DISPATCH_H
#include "native.h"

typedef struct {
    PyObject_HEAD
    PyObject *program, *fn, *meta, *dict;
    unsigned long long hits, switches;      /* switches: calls on which it took over from another entry */
} Entry;

typedef struct CodeCache {
    PyObject_HEAD
    struct CodeCache *next;     /* of the same code object, for another set of options */
    unsigned long long owner;   /* number of the set of options that compiled the entries */
    Entry **entries;
    Py_ssize_t n, cap;
    unsigned int version;       /* changes when entries come, go or change places */
    char skip,
        skip_all; /* the hook passes frames of this code over; for all sets of options (in the first of the list) */
    unsigned int rest;          /* frames without entries that the hook passes on before it asks about the next */
    PyObject *last_failures;    /* list of (entry, guard index) of the last miss */
    PyObject *dict, *weakrefs;
} CodeCache;

HIDDEN extern PyTypeObject tc_Entry_Type, tc_CodeCache_Type;
HIDDEN extern PyObject *tc_run_original;

/* Whether a quarter of the recursion limit is used up. Compiled code takes several Python frames where the original
   takes one: from there on originals run, so that a program may recurse about as deep as it could. */
static inline int tc_recurses_deeply(PyThreadState *ts)
{
#if PY_VERSION_HEX >= 0x030C0000
    return ts->py_recursion_remaining < ts->py_recursion_limit - (ts->py_recursion_limit >> 2);
#else
    return ts->recursion_remaining < ts->recursion_limit - (ts->recursion_limit >> 2);
#endif
}

#if PY_VERSION_HEX >= 0x030C0000
HIDDEN extern PyObject *
    *tc_monitoring_tools; /* the names of the tools of sys.monitoring, NULL where there is none (hook.c) */
#endif

/* Whether a trace function, a debugger, coverage or a profile function of Python's watches this thread: frames run
   plainly then, so that it sees their lines and calls. Profilers in C do not count (cProfile, the profiler of
   sys.monitoring): they may see compiled code. */
static inline int tc_is_watched(PyThreadState *ts)
{
    if (UNLIKELY(ts->c_tracefunc != NULL || (ts->c_profileobj != NULL && PyCallable_Check(ts->c_profileobj))))
        return 1;
#if PY_VERSION_HEX >= 0x030C0000
    PyObject **tools = tc_monitoring_tools; /* PROFILER_ID is 2, those of sys.setprofile and sys.settrace are 6 and 7 */
    return UNLIKELY((uintptr_t)tools[0] | (uintptr_t)tools[1] | (uintptr_t)tools[3] | (uintptr_t)tools[4] |
                    (uintptr_t)tools[5]);
#else
    return 0;
#endif
}

/* > 0: this thread is compiling, or compiled code is switched off: dispatchers and the hook run originals. */
HIDDEN extern __thread int tc_disabled __attribute__((tls_model("initial-exec")));

/* New reference to the first entry whose guards hold, which moves to the front; NULL without exception on a miss. */
HIDDEN Entry *tc_cache_lookup(CodeCache *cache, PyObject *func, PyObject *const *args, Py_ssize_t nargs);
/* entry.fn(func, *args). `args[-2]` and `args[-1]` must be writable: they are used, and restored. */
HIDDEN PyObject *tc_entry_call(Entry *entry, PyObject *func, PyObject **args, Py_ssize_t nargs);
HIDDEN int tc_init_dispatch(PyObject *module);

#endif
