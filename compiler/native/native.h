/* What the parts of the extension share. Each part has one init function that adds its types and functions to the
   module; it returns 0, or -1 with an exception set. No part includes a header of torch. */
#ifndef TCOMPILE_NATIVE_H
#define TCOMPILE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "tcompile's extension is written for CPython 3.11, 3.12 and 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "tcompile's extension needs the GIL: the pure-Python path serves free-threaded builds"
#endif

/* What Python expects of the built extension; compiler/native/__init__.py has the same number. Raise both when the two
   sides must change together: an extension built from older sources then counts as missing. */
#define TCOMPILE_NATIVE_API 32

#define HIDDEN __attribute__((visibility("hidden")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* launcher.c: the runtime's kernel launcher. Weak, so that the module builds without it. */
extern __attribute__((weak)) int tcompile_init_launcher(PyObject *module);
/* bridge.c: calls with gradients. */
HIDDEN int tc_init_bridge(PyObject *module);
/* Say of the exception that is set that the call is not to be run again as it is. */
HIDDEN void tc_mark_final(void);
/* plan.c: whole plans. */
HIDDEN int tc_init_plan(PyObject *module);
/* cuda.c: the GPU's launcher. */
HIDDEN int tc_init_cuda(PyObject *module);
HIDDEN int tc_init_gemm(PyObject *module);
/* blob.c: memory of somebody else's as a tensor. */
HIDDEN int tc_init_blob(PyObject *module);

#endif
