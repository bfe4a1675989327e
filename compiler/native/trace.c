/* The clock over compiled calls (compiler/runtime/trace.py): rows of what ran, from when to when, on which thread. */
#include "trace.h"

#include <pythread.h>
#include <time.h>

typedef struct {
    PyObject *what;                 /* an entry, a program, or NULL */
    int kind, index;
    int64_t begin, end;             /* nanoseconds of CLOCK_MONOTONIC, which time.perf_counter_ns reads */
    unsigned long thread;
} Row;

int tc_tracing;
static Row *rows;
static Py_ssize_t n_rows, room, most_rows, lost;

#define FIRST_ROOM 1024           /* rows; it doubles where they are full */

int64_t tc_trace_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Room for twice as many rows, as far as they are allowed and there is memory. */
static int more_room(void)
{
    Py_ssize_t wanted = room > most_rows / 2 ? most_rows : 2 * room;
    Row *larger = wanted > room ? PyMem_Realloc(rows, (size_t)wanted * sizeof *rows) : NULL;
    if (larger == NULL)
        return 0;
    rows = larger;
    room = wanted;
    return 1;
}

void tc_trace_add(int kind, PyObject *what, int index, int64_t begin)
{
    if (!tc_tracing || (n_rows == room && !more_room())) {
        lost += tc_tracing;
        return;
    }
    rows[n_rows++] = (Row){Py_XNewRef(what), kind, index, begin, tc_trace_now(), PyThread_get_thread_ident()};
}

static void forget(void)
{
    tc_tracing = 0;
    Row *old = rows;
    Py_ssize_t n = n_rows;
    rows = NULL;
    n_rows = room = most_rows = lost = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        Py_XDECREF(old[i].what);
    PyMem_Free(old);
}

static PyObject *trace_start(PyObject *module, PyObject *arg)
{
    (void)module;
    Py_ssize_t most = PyLong_AsSsize_t(arg);
    if (most == -1 && PyErr_Occurred())
        return NULL;
    if (most < 1 || most > 1 << 24) {
        PyErr_Format(PyExc_ValueError, "trace_start: the number of rows lies between 1 and %d, got %zd", 1 << 24, most);
        return NULL;
    }
    if (tc_tracing) {
        PyErr_SetString(PyExc_RuntimeError, "trace_start: compiled calls are being traced already");
        return NULL;
    }
    forget();
    room = most < FIRST_ROOM ? most : FIRST_ROOM;
    if ((rows = PyMem_Malloc((size_t)room * sizeof *rows)) == NULL) {
        room = 0;
        return PyErr_NoMemory();
    }
    most_rows = most;
    tc_tracing = 1;
    Py_RETURN_NONE;
}

/* ([(kind, what, index, begin, end, thread)] in the order in which they ended, rows that found no room) */
static PyObject *trace_stop(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    tc_tracing = 0;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list && i < n_rows; i++) {
        const Row *r = &rows[i];
        PyObject *row = Py_BuildValue("iOiLLk", r->kind, r->what ? r->what : Py_None, r->index, (long long)r->begin,
                                      (long long)r->end, r->thread);
        if (row == NULL || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    PyObject *result = list ? Py_BuildValue("On", list, lost) : NULL;
    Py_XDECREF(list);
    forget();
    return result;
}

static PyMethodDef trace_methods[] = {
    {"trace_start", trace_start, METH_O,
     "trace_start(rows): from now on what compiled calls do is written down, up to so many rows."},
    {"trace_stop", trace_stop, METH_NOARGS,
     "trace_stop() -> (list of (kind, what, index, begin ns, end ns, thread), rows without room)."},
    {NULL, NULL, 0, NULL},
};

int tc_init_trace(PyObject *module)
{
    return PyModule_AddFunctions(module, trace_methods);
}
