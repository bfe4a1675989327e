/* The frame hook (PEP 523): sees each Python frame before it runs, and may run a compiled entry in its place.

   It is installed while a cell or tcompile.enable() runs, and acts in the thread and context that were activated, and
   in the contexts that were copied from it (activation.c). Everything else is passed on to the evaluator that was there
   before. What is known of a code object hangs on it (code_state.h). Only ordinary function frames that are about to
   start are looked at: no generators or coroutines, no module or class bodies, nothing in mid-flight.

   Stock torch.compile has a hook of its own, which it puts on top while code that it compiled runs, and takes off by
   putting back what was there. Meanwhile frames are its own: ours passes them on. It never passes frames on to stock's,
   since the two would then call each other for ever. After an internal error of stock's its hook stays for good,
   without anything to do.

   Where no frame has done tensor work for long, the hook rests: it is taken out, so that Python runs at its own speed,
   until torch runs an operator (node.cpp says so; without it the hook never rests).

   A debugger or a tracer must see what it sees without us: in a thread with a trace function, frames are passed on, and
   what they call runs without the hook, since the interpreter reports generators in another way where there is one. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#define Py_BUILD_CORE
#include "native.h"
#include <opcode.h>
#include <pthread.h>
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#endif
#if PY_VERSION_HEX >= 0x030C0000
#include <internal/pycore_interp.h>
#endif
#include <structmember.h>
#undef Py_BUILD_CORE
#include "activation.h"
#include "code_state.h"
#include "dispatch.h"
#include "dispatcher.h"
#include "hook.h"

#define INLINE_LOCALS 24

static _PyFrameEvalFunction previous;       /* whom we pass frames on to */
static PyObject *callback;                  /* callback(code, func, args) */
#if PY_VERSION_HEX >= 0x030C0000
_Static_assert(PY_MONITORING_PROFILER_ID == 2 && PY_MONITORING_SYS_PROFILE_ID == 6, "which tools there are");
PyObject **tc_monitoring_tools;
#endif

/* ---- the frame */
#if PY_VERSION_HEX >= 0x030E0000 /* references with a tag, which says whether the frame owns them */
typedef _PyStackRef Local;
#define local_object(local) PyStackRef_AsPyObjectBorrow(local)
#define frame_code(f) _PyFrame_GetCode(f)
#define at_start(f, code) ((f)->instr_ptr == _PyCode_CODE(code))
#elif PY_VERSION_HEX >= 0x030D0000
#define frame_code(f) ((PyCodeObject *)(f)->f_executable)
#define at_start(f, code) ((f)->instr_ptr == _PyCode_CODE(code))
#else
#define frame_code(f) ((f)->f_code)
#define at_start(f, code) ((f)->prev_instr == _PyCode_CODE(code) - 1)
#endif
#if PY_VERSION_HEX < 0x030E0000
typedef PyObject *Local;
#define local_object(local) (local)
#endif
#if PY_VERSION_HEX >= 0x030E0000
#define frame_func(f) PyStackRef_AsPyObjectBorrow((f)->f_funcobj)
#elif PY_VERSION_HEX >= 0x030C0000
#define frame_func(f) ((f)->f_funcobj)
#else
#define frame_func(f) ((PyObject *)(f)->f_func)
#endif

/* End a frame that has not started, with `result` (stolen) or, where that is NULL, with the exception that is set. */
static PyObject *leave(PyThreadState *ts, _PyInterpreterFrame *frame, PyObject *result)
{
#if PY_VERSION_HEX >= 0x030C0000
    /* The evaluator owns the frame from here: it must clear and pop it. An exception: have it thrown in, at the first
       instruction, where no handler is in force and no traceback entry is made. A value: push it on the frame's stack
       and have the evaluator run one RETURN_VALUE. */
    static _Py_CODEUNIT stub[4];
    if (result == NULL) {
#if PY_VERSION_HEX >= 0x030D0000
        frame->instr_ptr--; /* before the start: 3.13 takes the first instruction for one that ran */
#endif
        return _PyEval_EvalFrameDefault(ts, frame, 1);
    }
    if (stub[1].op.code == 0) {
        for (int i = 0; i < 4; i++)
            stub[i].op.code = RETURN_VALUE;
    }
#if PY_VERSION_HEX >= 0x030E0000
    *frame->stackpointer++ = PyStackRef_FromPyObjectSteal(result);
#else
    frame->localsplus[frame->stacktop++] = result;
#endif
#if PY_VERSION_HEX >= 0x030D0000
    frame->instr_ptr = &stub[1];
#else
    frame->prev_instr = &stub[0];
#endif
    return _PyEval_EvalFrameDefault(ts, frame, 0);
#else
    (void)ts;
    (void)frame;
    return result;                                  /* 3.11: the caller clears and pops the frame */
#endif
}

/* ---- deep recursion
   With an evaluator installed, CPython runs each call of a Python function as a call in C: Python that recurses deeply
   needs C stack (and, on 3.12+, C recursion depth) that it does not need otherwise. Where half of either is used up,
   the interpreter gets the evaluator back that it had, until this frame returns: nothing below is looked at, and it
   recurses as it would without us. */
static __thread char *stack_half __attribute__((tls_model("initial-exec")));

static char *find_stack_half(void)
{
    size_t size = 512 * 1024;
    char *low = (char *)&size - 2 * size;           /* where nothing can be asked: as if a little were left */
#if defined(__linux__)
    pthread_attr_t attributes;
    void *address;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        if (pthread_attr_getstack(&attributes, &address, &size) == 0)
            low = address;
        pthread_attr_destroy(&attributes);
    }
#elif defined(__APPLE__)
    size = pthread_get_stacksize_np(pthread_self());
    low = (char *)pthread_get_stackaddr_np(pthread_self()) - size;
#endif
    return stack_half = low + size / 2;
}

#if PY_VERSION_HEX >= 0x030E0000                        /* 3.14 asks how much C stack there is, as we do */
#elif PY_VERSION_HEX >= 0x030D0000
#define C_CALLS_HALF (Py_C_RECURSION_LIMIT / 2)
#elif PY_VERSION_HEX >= 0x030C0000
#define C_CALLS_HALF (C_RECURSION_LIMIT / 2)
#endif

static inline int is_deep(PyThreadState *ts)
{
    char here;
    char *half = stack_half;
    if (UNLIKELY(half == NULL))
        half = find_stack_half();
#ifdef C_CALLS_HALF
    if (UNLIKELY(ts->c_recursion_remaining < C_CALLS_HALF))
        return 1;
#endif
    (void)ts;
    return UNLIKELY(&here < half);
}

static PyObject *evaluate(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag);

/* ---- rest */
#define REST_AFTER 20000 /* frames, from the beginning of a cell, that did no tensor work: 0.3 ms of looking at them
   \ */
static void (*arm)(void (*)(void)), (*disarm)(void);    /* node.cpp's */
static unsigned int idle; /* frames without tensor work so far; REST_AFTER: it does not rest any more */
static int resting;

static void end_rest(void)
{
    if (resting)
        disarm();
    resting = 0;
    idle = REST_AFTER;
}

static int wake(void *unused)
{
    (void)unused;
    if (!resting)
        return 0;
    end_rest();
    PyInterpreterState *interp = PyInterpreterState_Get();
    if (callback && _PyInterpreterState_GetEvalFrameFunc(interp) == previous)
        _PyInterpreterState_SetEvalFrameFunc(interp, evaluate);
    return 0;
}

static void operator_begins(void)                   /* in any thread, maybe without the GIL */
{
    Py_AddPendingCall(wake, NULL);
}

/* Pass on a frame that did no tensor work. */
static inline PyObject *pass_idle(PyThreadState *ts, _PyInterpreterFrame *frame)
{
    if (idle < REST_AFTER && UNLIKELY(++idle == REST_AFTER) && arm) {
        resting = 1;
        arm(operator_begins);
        _PyInterpreterState_SetEvalFrameFunc(PyThreadState_GetInterpreter(ts), previous);
    }
    return previous(ts, frame, 0);
}

static PyObject *pass_without_hook(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag)
{
    PyInterpreterState *interp = PyThreadState_GetInterpreter(ts);
    if (_PyInterpreterState_GetEvalFrameFunc(interp) != evaluate)
        return previous(ts, frame, throwflag);
    _PyInterpreterState_SetEvalFrameFunc(interp, previous);
    PyObject *result = previous(ts, frame, throwflag);
    if (callback && _PyInterpreterState_GetEvalFrameFunc(interp) == previous)
        _PyInterpreterState_SetEvalFrameFunc(interp, evaluate);
    return result;
}

/* ---- which frames may do tensor work */
#define LOOK 16                                     /* elements of a container that are looked at */

static inline int is_work(PyObject *o, PyObject *types)
{
    PyTypeObject *t = Py_TYPE(o);
    if (t == &PyLong_Type || t == &PyUnicode_Type || t == &PyFloat_Type || t == Py_TYPE(Py_None) || t == &PyBool_Type)
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); i++) {
        PyTypeObject *wanted = (PyTypeObject *)PyTuple_GET_ITEM(types, i);
        if (t == wanted || PyType_IsSubtype(t, wanted))
            return 1;
    }
    return 0;
}

/* Whether one of a frame's parameters, or of the first elements of a list, tuple or dict among them, is of one of
   `types`. */
static int has_work(Local const *locals, Py_ssize_t n, PyObject *types)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *o = local_object(locals[i]);
        if (o == NULL)
            continue;
        if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) {
            Py_ssize_t length = PySequence_Fast_GET_SIZE(o);
            for (Py_ssize_t k = 0; k < length && k < LOOK; k++) {
                if (is_work(PySequence_Fast_GET_ITEM(o, k), types))
                    return 1;
            }
        } else if (PyDict_CheckExact(o)) {
            PyObject *value;
            Py_ssize_t at = 0, k = 0;
            while (k++ < LOOK && PyDict_Next(o, &at, NULL, &value)) {
                if (is_work(value, types))
                    return 1;
            }
        } else if (is_work(o, types)) {
            return 1;
        }
    }
    return 0;
}

static inline Py_ssize_t n_parameters(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
           ((code->co_flags & CO_VARKEYWORDS) != 0);
}

static PyObject *run_compiled(PyThreadState *ts, _PyInterpreterFrame *frame, PyCodeObject *code, CodeCache *cache,
                              int *ran)
{
    Py_ssize_t n = n_parameters(code);
    PyObject *inline_locals[INLINE_LOCALS + 2], **buffer = inline_locals, *result = NULL, *func = frame_func(frame);
    *ran = 1;
    if (n > INLINE_LOCALS && (buffer = PyMem_Malloc((size_t)(n + 2) * sizeof *buffer)) == NULL)
        return PyErr_NoMemory();
    PyObject **locals = buffer + 2;
    for (Py_ssize_t i = 0; i < n; i++) {
        locals[i] = local_object(frame->localsplus[i]);
        if (UNLIKELY(locals[i] == NULL)) {          /* not a frame that a call has filled */
            *ran = 0;
            goto done;
        }
    }
    Py_INCREF(func);
    Entry *entry = NULL;
    if (cache) {
        Py_INCREF(cache);
        entry = tc_cache_lookup(cache, func, locals, n);
        Py_DECREF(cache);
    }
    if (entry == NULL && !PyErr_Occurred()) {
        PyObject *f = tc_present_callback(callback), *c = Py_NewRef((PyObject *)code);
        result = f ? tc_call_miss(f, c, func, locals, n) : Py_NewRef(tc_run_original);
        Py_XDECREF(f);
        Py_DECREF(c);
        if (result == tc_run_original) {
            Py_CLEAR(result);
            *ran = 0;
        } else if (result && PyObject_TypeCheck(result, &tc_Entry_Type)) {
            entry = (Entry *)result;
        }
    }
    if (entry) {
        result = tc_entry_call(entry, func, locals, n);
        Py_DECREF(entry);
    }
    Py_DECREF(func);
done:
    if (buffer != inline_locals)
        PyMem_Free(buffer);
    (void)ts;
    return result;
}

static PyObject *evaluate(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag)
{
    if (is_deep(ts) || tc_is_watched(ts))
        return pass_without_hook(ts, frame, throwflag);
    if (tc_disabled && !(frame_code(frame)->co_flags & CO_OPTIMIZED))
        return pass_without_hook(ts, frame, throwflag); /* a cell that runs plain */
    if (throwflag || tc_disabled || !tc_is_active(ts) || UNLIKELY(tc_recurses_deeply(ts)))
        return previous(ts, frame, throwflag);
    if (_PyInterpreterState_GetEvalFrameFunc(PyThreadState_GetInterpreter(ts)) != evaluate)
        return previous(ts, frame, throwflag);          /* another hook sits on top: the frame is its own */
    PyCodeObject *code = frame_code(frame);
    void *state = NULL;
    if (!(code->co_flags & CO_OPTIMIZED) || (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)))
        return previous(ts, frame, throwflag);
    GetExtra((PyObject *)code, tc_extra_index, &state);
    if (state == SKIP || (IS_CACHE(state) && ((CodeCache *)state)->skip_all))
        return pass_idle(ts, frame);
    if (!at_start(frame, code) || callback == NULL || Py_TYPE(frame_func(frame)) != &PyFunction_Type)
        return previous(ts, frame, throwflag);
    CodeCache *cache = cache_of(state, tc_decision.owner);
    if (cache && cache->skip)
        return pass_idle(ts, frame);
    if (cache && cache->rest && !cache->n) {
        cache->rest--;
        return previous(ts, frame, 0);
    }
    if (tc_decision.work && !(cache && cache->n) &&
        !has_work((Local const *)frame->localsplus, n_parameters(code), tc_decision.work))
        return pass_idle(ts, frame);
    if (!cache && !IS_CACHE(state) && !tc_first_seen(code))
        return pass_idle(ts, frame);
    idle = REST_AFTER;
    if (Py_EnterRecursiveCall(" while calling a compiled Python function"))
        return leave(ts, frame, NULL);
    int ran;
    PyObject *result = run_compiled(ts, frame, code, cache, &ran);
    Py_LeaveRecursiveCall();
    return ran ? leave(ts, frame, result) : previous(ts, frame, 0);
}

/* ---- installing */
/* Whether a frame evaluator is stock torch.compile's. */
static int is_stock(_PyFrameEvalFunction f)
{
    Dl_info info;
    return f != _PyEval_EvalFrameDefault && dladdr((void *)(uintptr_t)f, &info) && info.dli_fname &&
           strstr(info.dli_fname, "libtorch") != NULL;
}

/* Whether stock torch.compile, whose evaluator is the interpreter's, compiles nothing in this thread. */
static int stock_is_idle(void)
{
    PyObject *module = Py_XNewRef(PyDict_GetItemString(PyImport_GetModuleDict(), "torch._C._dynamo.eval_frame"));
    PyObject *asked = module ? PyObject_CallMethod(module, "get_eval_frame_callback", NULL) : NULL;
    int idle = asked == Py_None;
    if (!asked)
        PyErr_Clear();
    Py_XDECREF(asked);
    Py_XDECREF(module);
    return idle;
}

void tc_hook_install(PyObject *f, int first)
{
    Py_XSETREF(callback, Py_NewRef(f));
    if (resting)
        end_rest();
    PyInterpreterState *interp = PyInterpreterState_Get();
    _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interp);
    if (now != evaluate && (!is_stock(now) || stock_is_idle())) {
        if (!is_stock(now))
            previous = now;
        else if (!previous)
            previous = _PyEval_EvalFrameDefault;
        _PyInterpreterState_SetEvalFrameFunc(interp, evaluate);
    }
    if (first)
        idle = 0;
    tc_epoch++;
}

void tc_hook_uninstall(void)
{
    if (resting)
        end_rest();
    PyInterpreterState *interp = PyInterpreterState_Get();
    if (_PyInterpreterState_GetEvalFrameFunc(interp) == evaluate)
        _PyInterpreterState_SetEvalFrameFunc(interp, previous);
    Py_CLEAR(callback); /* where another hook sits on ours we stay, and pass everything on */
    tc_epoch++;
}

static PyObject *hook_installed(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyBool_FromLong(callback != NULL &&
                           _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == evaluate);
}

/* set_alarm(arm, disarm): node.cpp's functions that call once when torch runs its next operator */
static PyObject *set_alarm(PyObject *self, PyObject *args)
{
    PyObject *a, *d;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO:set_alarm", &a, &d))
        return NULL;
    void *on = PyCapsule_GetPointer(a, "tcompile.arm"), *off = on ? PyCapsule_GetPointer(d, "tcompile.disarm") : NULL;
    if (off == NULL)
        return NULL;
    *(void **)&arm = on;
    *(void **)&disarm = off;
    Py_RETURN_NONE;
}

static PyObject *hook_rests(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyBool_FromLong(resting);
}

static PyMethodDef functions[] = {
    {"set_alarm", set_alarm, METH_VARARGS,
     "set_alarm(arm, disarm): what the hook needs to rest where no tensor work is done."},
    {"hook_rests", hook_rests, METH_NOARGS, "Whether the hook is taken out until torch runs an operator."},
    {"hook_installed", hook_installed, METH_NOARGS, "Whether the hook is the interpreter's evaluator now."},
    {NULL, NULL, 0, NULL},
};

int tc_init_hook(PyObject *module)
{
#if PY_VERSION_HEX >= 0x030C0000
    tc_monitoring_tools = PyInterpreterState_Get()->monitoring_tool_names;
#endif
    return PyModule_AddFunctions(module, functions);
}
