/* The frame hook (PEP 523): sees each Python frame before it runs, and may run a compiled entry in its place.

   It is installed while a cell or tcompile.enable() runs, and acts in the thread and context that were activated, and
   in the contexts that were copied from it (tasks that the cell starts). Everything else is passed on to the evaluator
   that was there before. What is known of a code object lies in one of its extra slots: nothing yet, "skip", or its
   CodeCache. Only ordinary function frames that are about to start are looked at: no generators or coroutines, no
   module or class bodies, nothing in mid-flight.

   Stock torch.compile has a hook of its own, which it puts on top while code that it compiled runs, and takes off by
   putting back what was there. Meanwhile frames are its own: ours passes them on. It never passes frames on to stock's, since the
   two would then call each other for ever. After an internal error of stock's its hook stays for good, without anything to do.

   Where no frame has done tensor work for long, the hook rests: it is taken out, so that Python runs at its own speed, until torch runs
   an operator (node.cpp says so; without it the hook never rests).

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
#include "dispatch.h"
#include "dispatcher.h"
#include "hook.h"

#if PY_VERSION_HEX >= 0x030C0000
#define GetExtra PyUnstable_Code_GetExtra
#define SetExtra PyUnstable_Code_SetExtra
#define RequestExtraIndex PyUnstable_Eval_RequestCodeExtraIndex
#else
#define GetExtra _PyCode_GetExtra
#define SetExtra _PyCode_SetExtra
#define RequestExtraIndex _PyEval_RequestCodeExtraIndex
#endif

/* What hangs on a code object: nothing, a CodeCache, or this odd number, which says that its frames are passed over. */
#define SKIP ((void *)(uintptr_t)1)
#define IS_CACHE(state) ((state) != NULL && ((uintptr_t)(state) & 1) == 0)
#define INLINE_LOCALS 24

static Py_ssize_t extra_index = -1;
static _PyFrameEvalFunction previous;       /* whom we pass frames on to */
static PyObject *callback;                  /* callback(code, func, args) */
static PyObject *skip_prefixes;             /* tuple of str: folders whose code is never looked at */
static PyObject *active_var;                /* the context variable that holds the Activation, or None */
#if PY_VERSION_HEX >= 0x030C0000
_Static_assert(PY_MONITORING_PROFILER_ID == 2 && PY_MONITORING_SYS_PROFILE_ID == 6, "which tools there are");
PyObject **tc_monitoring_tools;
#endif
static unsigned int epoch = 1;              /* moves with each (de)activation: a thread's decision is good for one epoch */

/* ---- who is active */
typedef struct { PyObject_HEAD unsigned long thread; int alive; unsigned long long owner; PyObject *token, *callback, *work; } Activation;
static PyTypeObject Activation_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.Activation",
    .tp_basicsize = sizeof(Activation),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
};

static void activation_dealloc(Activation *a)
{
    Py_XDECREF(a->token);
    Py_XDECREF(a->callback);
    Py_XDECREF(a->work);
    epoch++;
    PyObject_Free(a);
}

/* `work` is borrowed: an activation outlives its epoch's decisions, since ending it starts another epoch. */
typedef struct { PyThreadState *ts; uint64_t context; unsigned int epoch; int active; PyObject *work; unsigned long long owner; } Decision;
static __thread Decision decision __attribute__((tls_model("initial-exec")));

static int decide(PyThreadState *ts)
{
    PyObject *a = NULL, *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    int active = 0;
    PyObject *work = NULL;
    unsigned long long owner = 0;
    if (active_var && PyContextVar_Get(active_var, Py_None, &a) == 0) {
        active = Py_TYPE(a) == &Activation_Type && ((Activation *)a)->alive &&
                 ((Activation *)a)->thread == PyThread_get_thread_ident();
        work = active ? ((Activation *)a)->work : NULL;
        owner = active ? ((Activation *)a)->owner : 0;
        Py_XDECREF(a);
    }
    PyErr_Restore(type, value, tb);
    decision = (Decision){ts, ts->context_ver, epoch, active, work, owner};
    return active;
}

/* Whom to ask about a frame: the callback of the activation in force, else the one the hook was installed with. */
static PyObject *present_callback(void)
{
    PyObject *a = NULL, *f = callback;
    if (PyContextVar_Get(active_var, Py_None, &a) == 0 && a && Py_TYPE(a) == &Activation_Type && ((Activation *)a)->callback)
        f = ((Activation *)a)->callback;
    Py_XINCREF(f);
    Py_XDECREF(a);
    return f;
}

static inline int is_active(PyThreadState *ts)
{
    if (LIKELY(decision.context == ts->context_ver && decision.epoch == epoch && decision.ts == ts))
        return decision.active;
    return decide(ts);
}

/* ---- the frame */
#if PY_VERSION_HEX >= 0x030E0000                        /* references with a tag, which says whether the frame owns them */
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
        frame->instr_ptr--;                         /* before the start: 3.13 takes the first instruction for one that ran */
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
   With an evaluator installed, CPython runs each call of a Python function as a call in C: Python that recurses deeply needs C
   stack (and, on 3.12+, C recursion depth) that it does not need otherwise. Where half of either is used up, the interpreter gets the
   evaluator back that it had, until this frame returns: nothing below is looked at, and it recurses as it would without us. */
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

/* The cache of one owner in the list that hangs on a code object. Borrowed; NULL where there is none. */
static CodeCache *cache_of(void *state, unsigned long long owner)
{
    CodeCache *c = IS_CACHE(state) ? state : NULL;
    while (c && c->owner != owner)
        c = c->next;
    return c;
}

static PyObject *evaluate(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag);

/* ---- rest */
#define REST_AFTER 20000                            /* frames, from the beginning of a cell, that did no tensor work: 0.3 ms of looking at them */
static void (*arm)(void (*)(void)), (*disarm)(void);    /* node.cpp's */
static unsigned int idle;                           /* frames without tensor work so far; REST_AFTER: it does not rest any more */
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

/* Whether one of a frame's parameters, or of the first elements of a list, tuple or dict among them, is of one of `types`. */
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

static int first_seen(PyCodeObject *code)
{
    PyObject *name = code->co_filename;
    Py_ssize_t n = skip_prefixes ? PyTuple_GET_SIZE(skip_prefixes) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *prefix = PyTuple_GET_ITEM(skip_prefixes, i);
        if (PyUnicode_Tailmatch(name, prefix, 0, PyUnicode_GET_LENGTH(name), -1) == 1) {
            SetExtra((PyObject *)code, extra_index, SKIP);
            return 0;
        }
    }
    if (PyErr_Occurred())
        PyErr_Clear();
    return 1;
}

static PyObject *run_compiled(PyThreadState *ts, _PyInterpreterFrame *frame, PyCodeObject *code, CodeCache *cache, int *ran)
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
        PyObject *f = present_callback(), *c = Py_NewRef((PyObject *)code);
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
    if (throwflag || tc_disabled || !is_active(ts) || UNLIKELY(tc_recurses_deeply(ts)))
        return previous(ts, frame, throwflag);
    if (_PyInterpreterState_GetEvalFrameFunc(PyThreadState_GetInterpreter(ts)) != evaluate)
        return previous(ts, frame, throwflag);          /* another hook sits on top: the frame is its own */
    PyCodeObject *code = frame_code(frame);
    void *state = NULL;
    if (!(code->co_flags & CO_OPTIMIZED) || (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)))
        return previous(ts, frame, throwflag);
    GetExtra((PyObject *)code, extra_index, &state);
    if (state == SKIP || (IS_CACHE(state) && ((CodeCache *)state)->skip_all))
        return pass_idle(ts, frame);
    if (!at_start(frame, code) || callback == NULL || Py_TYPE(frame_func(frame)) != &PyFunction_Type)
        return previous(ts, frame, throwflag);
    CodeCache *cache = cache_of(state, decision.owner);
    if (cache && cache->skip)
        return pass_idle(ts, frame);
    if (cache && cache->rest && !cache->n) {
        cache->rest--;
        return previous(ts, frame, 0);
    }
    if (decision.work && !(cache && cache->n) &&
        !has_work((Local const *)frame->localsplus, n_parameters(code), decision.work))
        return pass_idle(ts, frame);
    if (!cache && !IS_CACHE(state) && !first_seen(code))
        return pass_idle(ts, frame);
    idle = REST_AFTER;
    if (Py_EnterRecursiveCall(" while calling a compiled Python function"))
        return leave(ts, frame, NULL);
    int ran;
    PyObject *result = run_compiled(ts, frame, code, cache, &ran);
    Py_LeaveRecursiveCall();
    return ran ? leave(ts, frame, result) : previous(ts, frame, 0);
}

/* ---- for Python */
static void free_extra(void *p)
{
    if (IS_CACHE(p))
        Py_DECREF((PyObject *)p);
}

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

static void install(PyObject *f)
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
    epoch++;
}

static void uninstall(void)
{
    if (resting)
        end_rest();
    PyInterpreterState *interp = PyInterpreterState_Get();
    if (_PyInterpreterState_GetEvalFrameFunc(interp) == evaluate)
        _PyInterpreterState_SetEvalFrameFunc(interp, previous);
    Py_CLEAR(callback);                             /* where another hook sits on ours we stay, and pass everything on */
    epoch++;
}

static PyObject *hook_installed(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyBool_FromLong(callback != NULL && _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == evaluate);
}

/* Whose entries serve the frames shown to a callback: the `number` of the object whose method it is; 0 for other callables. */
static unsigned long long owner_of(PyObject *f)
{
    PyObject *number = PyMethod_Check(f) ? PyObject_GetAttrString(PyMethod_GET_SELF(f), "number") : NULL;
    unsigned long long n = number && PyLong_Check(number) ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        n = 0;
    }
    return n;
}

static Activation *activate(PyObject *f, PyObject *work)
{
    Activation *a = PyObject_New(Activation, &Activation_Type);
    if (a == NULL)
        return NULL;
    a->token = NULL;
    a->thread = PyThread_get_thread_ident();
    a->alive = 1;
    a->owner = owner_of(f);
    a->callback = Py_NewRef(f);
    a->work = Py_XNewRef(work);
    a->token = PyContextVar_Set(active_var, (PyObject *)a);
    if (a->token == NULL)
        Py_CLEAR(a);
    epoch++;
    return a;
}

static void deactivate(Activation *a)
{
    a->alive = 0;                                   /* also for tasks that copied the context */
    epoch++;
    PyObject *token = a->token;
    a->token = NULL;
    Py_CLEAR(a->callback);
    if (token) {
        PyObject *type, *value, *tb;
        PyErr_Fetch(&type, &value, &tb);
        if (PyContextVar_Reset(active_var, token) < 0)
            PyErr_Clear();                          /* ended in another context than it began in: `alive` says enough */
        PyErr_Restore(type, value, tb);
        Py_DECREF(token);
    }
}

/* Capturing: the context manager that installs and activates. In C, so that no interrupt comes in the middle of either end. */
typedef struct { PyObject_HEAD PyObject *callback, *work; Activation *activation; } Capturing;
static PyObject *callbacks;                         /* list of those in force, innermost last */

static PyObject *capturing_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *f, *work = Py_None;
    if ((kwargs && PyDict_GET_SIZE(kwargs)) || !PyArg_ParseTuple(args, "O|O:Capturing", &f, &work))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "Capturing takes no keywords");
    if (!PyCallable_Check(f)) {
        PyErr_SetString(PyExc_TypeError, "Capturing: a callable(code, func, args) was expected");
        return NULL;
    }
    if (work != Py_None) {
        int right = PyTuple_CheckExact(work);
        for (Py_ssize_t i = 0; right && i < PyTuple_GET_SIZE(work); i++)
            right = PyType_Check(PyTuple_GET_ITEM(work, i));
        if (!right) {
            PyErr_SetString(PyExc_TypeError, "Capturing: a tuple of types, or None, was expected");
            return NULL;
        }
    }
    Capturing *c = (Capturing *)type->tp_alloc(type, 0);
    if (c) {
        c->callback = Py_NewRef(f);
        c->work = work == Py_None ? NULL : Py_NewRef(work);
    }
    return (PyObject *)c;
}

static PyObject *capturing_enter(Capturing *c, PyObject *unused)
{
    (void)unused;
    if (c->activation) {
        PyErr_SetString(PyExc_RuntimeError, "this Capturing is in use; make another");
        return NULL;
    }
    if (PyList_Append(callbacks, c->callback) < 0)
        return NULL;
    if ((c->activation = activate(c->callback, c->work)) == NULL) {
        PyList_SetSlice(callbacks, PyList_GET_SIZE(callbacks) - 1, PyList_GET_SIZE(callbacks), NULL);
        return NULL;
    }
    install(c->callback);
    if (PyList_GET_SIZE(callbacks) == 1)
        idle = 0;
    Py_RETURN_NONE;
}

static void capturing_end(Capturing *c)
{
    Activation *a = c->activation;
    if (a == NULL)
        return;
    c->activation = NULL;
    deactivate(a);
    Py_DECREF(a);
    Py_ssize_t i = PyList_GET_SIZE(callbacks);
    while (--i >= 0 && PyList_GET_ITEM(callbacks, i) != c->callback)
        ;
    if (i >= 0)
        PyList_SetSlice(callbacks, i, i + 1, NULL);
    Py_ssize_t n = PyList_GET_SIZE(callbacks);
    if (n)
        install(PyList_GET_ITEM(callbacks, n - 1));
    else
        uninstall();
}

static PyObject *capturing_exit(Capturing *c, PyObject *args)
{
    (void)args;
    capturing_end(c);
    Py_RETURN_FALSE;
}

static void capturing_dealloc(Capturing *c)
{
    capturing_end(c);
    Py_XDECREF(c->callback);
    Py_XDECREF(c->work);
    Py_TYPE(c)->tp_free((PyObject *)c);
}

static PyMethodDef capturing_methods[] = {
    {"__enter__", (PyCFunction)capturing_enter, METH_NOARGS, "Install the hook and act in this thread and context."},
    {"__exit__", (PyCFunction)capturing_exit, METH_VARARGS, "End it, wherever the context was copied to."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject Capturing_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tcompile.compiler.native._native.Capturing",
    .tp_doc = "Capturing(callback, types=None): a context manager, in whose block this thread and context (and contexts copied from it) "
              "show their frames. callback(code, func, args) is asked where no entry serves a frame; it gives an Entry to run, RUN_ORIGINAL, "
              "or the frame's result. With `types`, only about frames that have one of them among their parameters, or that have entries.",
    .tp_basicsize = sizeof(Capturing),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = capturing_new,
    .tp_dealloc = (destructor)capturing_dealloc,
    .tp_methods = capturing_methods,
};

static PyObject *hook_asks(PyObject *self, PyObject *f)
{
    (void)self;
    Py_ssize_t n = PyList_GET_SIZE(callbacks);
    int same = n ? PyObject_RichCompareBool(PyList_GET_ITEM(callbacks, n - 1), f, Py_EQ) : 0;
    return same < 0 ? NULL : PyBool_FromLong(same);
}

static PyObject *hook_active(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyBool_FromLong(!tc_disabled && is_active(PyThreadState_Get()));
}

static PyObject *set_skip_prefixes(PyObject *self, PyObject *prefixes)
{
    (void)self;
    if (!PyTuple_CheckExact(prefixes)) {
        PyErr_SetString(PyExc_TypeError, "set_skip_prefixes: a tuple of str was expected");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(prefixes); i++) {
        if (!PyUnicode_Check(PyTuple_GET_ITEM(prefixes, i))) {
            PyErr_SetString(PyExc_TypeError, "set_skip_prefixes: a tuple of str was expected");
            return NULL;
        }
    }
    Py_XSETREF(skip_prefixes, Py_NewRef(prefixes));
    Py_RETURN_NONE;
}

static int is_code(PyObject *code)
{
    if (PyCode_Check(code))
        return 1;
    PyErr_Format(PyExc_TypeError, "a code object was expected, not %s", Py_TYPE(code)->tp_name);
    return 0;
}

static PyObject *skip_code(PyObject *self, PyObject *code)
{
    void *state = NULL;
    (void)self;
    if (!is_code(code) || GetExtra(code, extra_index, &state) < 0)
        return NULL;
    if (!IS_CACHE(state) && SetExtra(code, extra_index, SKIP) < 0)
        return NULL;
    if (IS_CACHE(state))
        ((CodeCache *)state)->skip_all = 1;
    Py_RETURN_NONE;
}

static PyObject *unskip_code(PyObject *self, PyObject *code)
{
    void *state = NULL;
    (void)self;
    if (!is_code(code) || GetExtra(code, extra_index, &state) < 0)
        return NULL;
    if (state == SKIP && SetExtra(code, extra_index, NULL) < 0)
        return NULL;
    if (IS_CACHE(state))
        ((CodeCache *)state)->skip_all = 0;
    for (CodeCache *c = IS_CACHE(state) ? state : NULL; c; c = c->next)
        c->skip = 0;
    Py_RETURN_NONE;
}

static PyObject *is_skipped(PyObject *self, PyObject *code)
{
    void *state = NULL;
    (void)self;
    if (!is_code(code) || GetExtra(code, extra_index, &state) < 0)
        return NULL;
    return PyBool_FromLong(IS_CACHE(state) ? ((CodeCache *)state)->skip_all : state == SKIP);
}

/* code_cache(code, create=True, owner=0): the CodeCache of a set of options, which lives as long as the code object does */
static PyObject *code_cache(PyObject *self, PyObject *args)
{
    PyObject *code;
    int create = 1;
    unsigned long long owner = 0;
    void *state = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "O|pK:code_cache", &code, &create, &owner) || !is_code(code) ||
        GetExtra(code, extra_index, &state) < 0)
        return NULL;
    CodeCache *found = cache_of(state, owner);
    if (found)
        return Py_NewRef((PyObject *)found);
    if (!create)
        Py_RETURN_NONE;
    PyObject *cache = PyObject_CallNoArgs((PyObject *)&tc_CodeCache_Type);
    if (cache == NULL)
        return NULL;
    /* what was collected meanwhile may have run code that made or dropped caches of this code */
    if (GetExtra(code, extra_index, &state) < 0 || (found = cache_of(state, owner))) {
        PyObject *other = Py_XNewRef((PyObject *)found);
        Py_DECREF(cache);
        return other;
    }
    ((CodeCache *)cache)->owner = owner;
    if (IS_CACHE(state)) {                          /* behind the first, which says whether all are passed over */
        ((CodeCache *)cache)->next = ((CodeCache *)state)->next;
        ((CodeCache *)state)->next = (CodeCache *)Py_NewRef(cache);
        return cache;
    }
    ((CodeCache *)cache)->skip_all = state == SKIP;
    if (SetExtra(code, extra_index, Py_NewRef(cache)) < 0) {
        Py_DECREF(cache);
        Py_CLEAR(cache);
    }
    return cache;
}

/* Drop what a cache has; 0, or -1 with an exception set. */
static int cache_forget(CodeCache *c)
{
    PyObject *done = PyObject_CallMethod((PyObject *)c, "clear", NULL);
    Py_XDECREF(done);
    c->skip = 0;
    return done ? 0 : -1;
}

/* forget_code(code, owner=-1): of all sets of options, or of one, whose cache goes */
static PyObject *forget_code(PyObject *self, PyObject *args)
{
    PyObject *code;
    long long owner = -1;
    void *state = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "O|L:forget_code", &code, &owner) || !is_code(code) || GetExtra(code, extra_index, &state) < 0)
        return NULL;
    if (state == SKIP && owner < 0 && SetExtra(code, extra_index, NULL) < 0)
        return NULL;
    if (!IS_CACHE(state))
        Py_RETURN_NONE;
    if (owner < 0) {
        ((CodeCache *)state)->skip_all = 0;
        int failed = 0;
        for (CodeCache *c = (CodeCache *)Py_NewRef(state), *next; c; c = next) {
            failed |= cache_forget(c);              /* may run code that drops caches of this code */
            next = (CodeCache *)Py_XNewRef((PyObject *)c->next);
            Py_DECREF(c);
        }
        if (failed)
            return NULL;
        Py_RETURN_NONE;
    }
    CodeCache *found = cache_of(state, (unsigned long long)owner), *before = state;
    if (found == NULL)
        Py_RETURN_NONE;
    Py_INCREF(found);
    if (found == state) {
        CodeCache *next = found->next;
        if (next)
            next->skip_all = found->skip_all;
        if (SetExtra(code, extra_index, next ? Py_NewRef(next) : found->skip_all ? SKIP : NULL) < 0) {
            Py_DECREF(found);
            return NULL;
        }
    } else {
        while (before->next != found)
            before = before->next;
        Py_XINCREF(found->next);
        Py_SETREF(before->next, found->next);
    }
    int failed = cache_forget(found);               /* somebody may hold it */
    Py_DECREF(found);
    if (failed < 0)
        return NULL;
    Py_RETURN_NONE;
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
    {"set_alarm", set_alarm, METH_VARARGS, "set_alarm(arm, disarm): what the hook needs to rest where no tensor work is done."},
    {"hook_rests", hook_rests, METH_NOARGS, "Whether the hook is taken out until torch runs an operator."},
    {"hook_installed", hook_installed, METH_NOARGS, "Whether the hook is the interpreter's evaluator now."},
    {"hook_asks", hook_asks, METH_O, "Whether this callback is the innermost one in force."},
    {"hook_active", hook_active, METH_NOARGS, "Whether frames started here and now would be looked at."},
    {"set_skip_prefixes", set_skip_prefixes, METH_O, "Never look at code whose filename starts with one of these."},
    {"skip_code", skip_code, METH_O, "Pass frames of this code over from now on."},
    {"unskip_code", unskip_code, METH_O, "Undo skip_code."},
    {"is_skipped", is_skipped, METH_O, "Whether frames of this code are passed over."},
    {"code_cache", code_cache, METH_VARARGS, "code_cache(code, create=True, owner=0): the CodeCache of a code object for one set of options, or None."},
    {"forget_code", forget_code, METH_VARARGS, "forget_code(code, owner=-1): drop the entries of a code object, and its skip mark; those of one set of options, or of all."},
    {NULL, NULL, 0, NULL},
};

int tc_init_hook(PyObject *module)
{
#if PY_VERSION_HEX >= 0x030C0000
    tc_monitoring_tools = PyInterpreterState_Get()->monitoring_tool_names;
#endif
    Activation_Type.tp_dealloc = (destructor)activation_dealloc;
    active_var = PyContextVar_New("tcompile_active", Py_None);
    callbacks = PyList_New(0);
    extra_index = RequestExtraIndex(free_extra);
    if (active_var == NULL || callbacks == NULL || extra_index < 0 || PyType_Ready(&Activation_Type) < 0 ||
        PyModule_AddType(module, &Capturing_Type) < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ImportError, "no code extra slot is left");
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
