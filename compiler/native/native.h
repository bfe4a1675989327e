/* What the parts of the extension share. Each part has one init function that adds its types and functions to the
   module; it returns 0, or -1 with an exception set. No part includes a header of torch. */
#ifndef TCOMPILE_NATIVE_H
#define TCOMPILE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "tcompile's extension is written for CPython 3.11 to 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "tcompile's extension needs the GIL: the pure-Python path serves free-threaded builds"
#endif

/* What Python expects of the built extension; compiler/native/__init__.py has the same number. Raise both when the two
   sides must change together: an extension built from older sources then counts as missing. */
#define TCOMPILE_NATIVE_API 38

#define HIDDEN __attribute__((visibility("hidden")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Around what makes objects in C while borrowed references are held: 3.11 collects garbage in the middle of that, and
   runs finalizers; newer versions do between two instructions of Python. */
#if PY_VERSION_HEX < 0x030C0000
static inline int tc_quiet(void) { return PyGC_Disable(); }
static inline void tc_loud(int before) { if (before) PyGC_Enable(); }
#else
static inline int tc_quiet(void) { return 0; }
static inline void tc_loud(int before) { (void)before; }
#endif

/* launcher.c: the runtime's kernel launcher. Weak, so that the module builds without it. */
extern __attribute__((weak)) int tcompile_init_launcher(PyObject *module);
/* bridge.c: calls with gradients. */
HIDDEN int tc_init_bridge(PyObject *module);
/* Say of the exception that is set that the call is not to be run again as it is. */
HIDDEN void tc_mark_final(void);
/* plan.c: whole plans. */
HIDDEN int tc_init_plan(PyObject *module);
/* packaged.c: calls of packages. */
HIDDEN int tc_init_packaged(PyObject *module);
/* cuda_driver.c: the GPU's launcher. */
HIDDEN int tc_init_cuda(PyObject *module);
HIDDEN int tc_init_gemm(PyObject *module);
/* trace.c: what ran when. */
HIDDEN int tc_init_trace(PyObject *module);
/* stack.c: where another thread is. */
HIDDEN int tc_init_stack(PyObject *module);
/* blob.c: memory of somebody else's as a tensor. */
HIDDEN int tc_init_blob(PyObject *module);

#endif
