/* CUDA's driver, found at run time (cuda_driver.c), for the kernels (cuda_kernel.c) and CUDA graphs (cuda_static.c)
   that use it. */
#ifndef TCOMPILE_CUDA_DRIVER_H
#define TCOMPILE_CUDA_DRIVER_H
#include "launcher.h"

typedef int CUresult;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;

typedef struct {
    int ready;
    PyObject *rejected;                    /* what is raised where the driver takes a kernel in no form like this */
    CUresult (*module_load)(CUmodule *, const void *);
    CUresult (*module_function)(CUfunction *, CUmodule, const char *);
    CUresult (*function_set)(CUfunction, int, int);
    CUresult (*function_get)(int *, int, CUfunction);
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                       void **, void **);
    CUresult (*launch_with)(const void *, CUfunction, void **, void **);      /* NULL: this driver has none */
    CUresult (*error_string)(CUresult, const char **);
    CUresult (*context)(CUcontext *);
    CUresult (*push)(CUcontext);
    CUresult (*pop)(CUcontext *);
    CUresult (*is_capturing)(CUstream, int *);
    CUresult (*copy)(uint64_t, uint64_t, size_t, CUstream);
    CUresult (*tile_map)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                         const uint32_t *, int, int, int, int);
    int (*stream)(int32_t, void **);
} CudaDriver;
HIDDEN extern CudaDriver tc_cu;

/* Whether a call of the driver failed; an exception is set then. */
HIDDEN int tc_cu_failed(CUresult rc, const char *what);
/* The same of what loads and launches kernels: where another form of the kernel may do, the exception is
   `tc_cu.rejected`. */
HIDDEN int tc_cu_kernel_failed(CUresult rc, const char *what);
/* That exception, taken over from where it is set; NULL: another one is, or none. */
HIDDEN PyObject *tc_cu_rejection(void);
HIDDEN int tc_init_cuda_kernel(PyObject *module);
HIDDEN int tc_init_cuda_static(PyObject *module);

#endif
