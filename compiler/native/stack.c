/* The stack of another thread, for who looks at where time goes (kernel_magics/sampling.py). In C and in one piece:
   3.11 collects garbage where a frame object is made, finalizers give the other thread its turn, and the frame that was
   to be made is gone: `f_back` then gives whatever lies in its place. */
#include "native.h"

#include <frameobject.h>

/* stack_of(thread, most) -> ((code, position), ...), innermost first */
static PyObject *stack_of(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long thread;
    int most;
    if (!PyArg_ParseTuple(args, "ki:stack_of", &thread, &most))
        return NULL;
    int before = tc_quiet();
    PyThreadState *ts = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    while (ts && ts->thread_id != thread)
        ts = PyThreadState_Next(ts);
    PyObject *rows = PyList_New(0), *out = NULL;
    PyFrameObject *frame = ts && rows ? PyThreadState_GetFrame(ts) : NULL;
    while (frame && PyList_GET_SIZE(rows) < most) {
        PyObject *row = Py_BuildValue("Ni", PyFrame_GetCode(frame), PyFrame_GetLasti(frame));
        int failed = row == NULL || PyList_Append(rows, row) < 0;
        Py_XDECREF(row);
        if (failed)
            goto done;
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    out = rows ? PyList_AsTuple(rows) : NULL;
done:
    Py_XDECREF(frame);
    Py_XDECREF(rows);
    tc_loud(before);
    return out;
}

static PyMethodDef functions[] = {
    {"stack_of", stack_of, METH_VARARGS,
     "stack_of(thread, most): code and position of a thread's frames, innermost first; empty where there is none."},
    {NULL, NULL, 0, NULL},
};

int tc_init_stack(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
