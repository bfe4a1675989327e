/* The GPU through CUDA's driver: finding it, device memory, loading modules.

   Nothing is linked: the driver is found by dlopen when cuda_setup() is called, torch's C functions (aoti_torch_*) in
   the libraries that torch has loaded. Where something is missing, cuda_setup() says what, and the module works without
   a GPU. */
#include "cuda_driver.h"

#include <dlfcn.h>

enum { CUDA_DEVICE_TYPE = 1, UINT8_CODE = 0 };
enum { ATTR_MOST_THREADS = 0, ATTR_LOCAL_BYTES = 3, ATTR_REGISTERS = 4, ATTR_MAX_DYNAMIC_SHARED = 8 };

CudaDriver tc_cu;

static int failed(CUresult rc, const char *what, PyObject *type, const char *more)
{
    const char *text = NULL;
    if (tc_cu.error_string(rc, &text) || !text)
        text = "unknown error";
    PyErr_Format(type, "CUDA error: %s (%d) in %s%s", text, rc, what, more);
    return 1;
}

int tc_cu_failed(CUresult rc, const char *what)
{
    return LIKELY(rc == 0) ? 0 : failed(rc, what, PyExc_RuntimeError, "");
}

int tc_cu_kernel_failed(CUresult rc, const char *what)
{
    if (LIKELY(rc == 0))
        return 0;
    switch (rc) {
    case 1: case 200: case 209: case 218: case 222: case 701: case 801:
        /* an invalid value, image, PTX or binary of another device; too many resources; not supported: nothing ran */
        return failed(rc, what, tc_cu.rejected, "");
    case 700: case 702: case 710: case 714: case 715: case 716: case 717: case 718: case 719:
        return failed(rc, what, PyExc_RuntimeError,
                      ". A kernel of this process, this one or one before it, failed on the GPU. CUDA takes no more "
                      "work from the process: start it anew, with CUDA_LAUNCH_BLOCKING=1 to hear of the kernel itself");
    }
    return failed(rc, what, PyExc_RuntimeError, "");
}

PyObject *tc_cu_rejection(void)
{
    if (!tc_cu.rejected || !PyErr_ExceptionMatches(tc_cu.rejected))
        return NULL;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* ---- device memory */
AtenTensor tc_cuda_new(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, int device)
{
    AtenTensor t;
    if (UNLIKELY(tc_torch_api.empty_strided(ndim, shape, stride, dtype, CUDA_DEVICE_TYPE, device, &t)))
        return NULL;
    return t;
}

static PyObject *allocate_again;           /* (shape, stride, dtype code, device) -> tensor, by torch.empty_strided */

PyObject *tc_cuda_new_by_torch(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, int device)
{
    PyObject *s = PyTuple_New(ndim), *st = PyTuple_New(ndim);
    for (int64_t i = 0; s && st && i < ndim; i++) {
        PyTuple_SET_ITEM(s, i, PyLong_FromLongLong(shape[i]));
        PyTuple_SET_ITEM(st, i, PyLong_FromLongLong(stride[i]));
    }
    PyObject *o = s && st ? PyObject_CallFunction(allocate_again, "OOii", s, st, dtype, device) : NULL;
    Py_XDECREF(s);
    Py_XDECREF(st);
    return o;                              /* a tensor where the second try succeeds */
}

int tc_cuda_block(int64_t bytes, int device, AtenTensor *tensor, PyObject **object, void **data)
{
    int64_t one = 1;
    *object = NULL;
    *tensor = tc_cuda_new(1, &bytes, &one, UINT8_CODE, device);
    if (UNLIKELY(!*tensor)) {
        *object = tc_cuda_new_by_torch(1, &bytes, &one, UINT8_CODE, device);
        *tensor = *object ? tc_launcher_tensor(*object) : NULL;
    }
    if (UNLIKELY(!*tensor || tc_torch_api.data_ptr(*tensor, data))) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "a new tensor has no memory");
        if (*tensor && !*object)
            tc_torch_api.delete_tensor(*tensor);
        *tensor = NULL;
        Py_CLEAR(*object);
        return -1;
    }
    return 0;
}

/* ---- functions of the module */
#define FIND(lib, field, name)                                              \
    do {                                                                    \
        *(void **)&tc_cu.field = dlsym(lib, name);                             \
        if (!tc_cu.field)                                                      \
            return PyUnicode_FromString("there is no function " name);      \
    } while (0)

/* cuda_setup(allocate, rejected, driver, torch) -> None, or why kernels can't be launched here. launcher_setup() comes
   first. */
static PyObject *cuda_setup(PyObject *module, PyObject *args)
{
    PyObject *allocate, *rejected;
    const char *driver_name = "libcuda.so.1", *torch_name = "libtorch_cuda.so";
    if (!PyArg_ParseTuple(args, "OO|ss", &allocate, &rejected, &driver_name, &torch_name))
        return NULL;
    if (!tc_launcher_ready())
        return PyUnicode_FromString("the launcher does not know this torch");
    void *driver = dlopen(driver_name, RTLD_LAZY | RTLD_LOCAL);
    if (!driver)
        return PyUnicode_FromFormat("%s is not there: no NVIDIA driver", driver_name);
    void *gpu = dlopen(torch_name, RTLD_NOLOAD | RTLD_LAZY);
    if (!gpu)
        return PyUnicode_FromFormat("%s is not loaded under this name", torch_name);
    FIND(driver, module_load, "cuModuleLoadData");
    FIND(driver, module_function, "cuModuleGetFunction");
    FIND(driver, function_set, "cuFuncSetAttribute");
    FIND(driver, function_get, "cuFuncGetAttribute");
    FIND(driver, launch, "cuLaunchKernel");
    *(void **)&tc_cu.launch_with = dlsym(driver, "cuLaunchKernelEx");
    FIND(driver, error_string, "cuGetErrorString");
    FIND(driver, context, "cuCtxGetCurrent");
    FIND(driver, push, "cuCtxPushCurrent_v2");
    FIND(driver, pop, "cuCtxPopCurrent_v2");
    FIND(driver, is_capturing, "cuStreamIsCapturing");
    FIND(driver, copy, "cuMemcpyDtoDAsync_v2");
    *(void **)&tc_cu.tile_map = dlsym(driver, "cuTensorMapEncodeTiled");
    FIND(gpu, stream, "aoti_torch_get_current_cuda_stream");
    tc_torch_api.products[1][PRODUCT_MM] = dlsym(gpu, "aoti_torch_cuda_mm_out");
    tc_torch_api.products[1][PRODUCT_BMM] = dlsym(gpu, "aoti_torch_cuda_bmm_out");
    tc_torch_api.products[1][PRODUCT_ADDMM] = dlsym(gpu, "aoti_torch_cuda_addmm_out");
    tc_torch_api.products[1][PRODUCT_BADDBMM] = dlsym(gpu, "aoti_torch_cuda_baddbmm_out");
    Py_XSETREF(allocate_again, Py_NewRef(allocate));
    Py_XSETREF(tc_cu.rejected, Py_NewRef(rejected));
    tc_cu.ready = 1;
    Py_RETURN_NONE;
}

/* cuda_load(binary, ((name, shared bytes), ...)) -> ((handle, registers, local bytes, most threads), ...), in the
   current context. The module stays loaded: work that uses it may be in flight, or captured in a graph. */
static PyObject *cuda_load(PyObject *module, PyObject *args)
{
    Py_buffer binary;
    PyObject *wanted;
    if (!PyArg_ParseTuple(args, "y*O!", &binary, &PyTuple_Type, &wanted))
        return NULL;
    PyObject *out = NULL;
    CUmodule m;
    if (!tc_cu.ready)
        PyErr_SetString(PyExc_RuntimeError, "cuda_setup() was not called, or failed");
    else if (!tc_cu_kernel_failed(tc_cu.module_load(&m, binary.buf), "cuModuleLoadData"))
        out = PyTuple_New(PyTuple_GET_SIZE(wanted));
    for (Py_ssize_t i = 0; out && i < PyTuple_GET_SIZE(wanted); i++) {
        const char *name;
        int shared, registers = 0, local = 0, threads = 0;
        CUfunction f;
        PyObject *item = NULL;
        if (PyArg_ParseTuple(PyTuple_GET_ITEM(wanted, i), "si", &name, &shared) &&
            !tc_cu_failed(tc_cu.module_function(&f, m, name), name) &&
            !(shared > 48 * 1024 &&
              tc_cu_kernel_failed(tc_cu.function_set(f, ATTR_MAX_DYNAMIC_SHARED, shared), "cuFuncSetAttribute")) &&
            !tc_cu_failed(tc_cu.function_get(&registers, ATTR_REGISTERS, f), "cuFuncGetAttribute") &&
            !tc_cu_failed(tc_cu.function_get(&local, ATTR_LOCAL_BYTES, f), "cuFuncGetAttribute") &&
            !tc_cu_failed(tc_cu.function_get(&threads, ATTR_MOST_THREADS, f), "cuFuncGetAttribute"))
            item = Py_BuildValue("Kiii", (unsigned long long)(uintptr_t)f, registers, local, threads);
        if (!item)
            Py_CLEAR(out);
        else
            PyTuple_SET_ITEM(out, i, item);
    }
    PyBuffer_Release(&binary);
    return out;
}

static PyMethodDef methods[] = {
    {"cuda_setup", cuda_setup, METH_VARARGS,
     "cuda_setup(allocate, rejected, driver, torch) -> None, or why kernels can't be launched. allocate(shape, stride, "
     "dtype code, device) is torch's allocation, asked where the fast one failed; rejected: the exception where the "
     "driver refuses a kernel that it might take in another form; driver, torch: names of libraries."},
    {"cuda_load", cuda_load, METH_VARARGS,
     "cuda_load(binary, ((name, shared bytes), ...)) -> ((handle, registers, local bytes, most threads), ...)."},
    {NULL},
};

int tc_cuda_ready(void) { return tc_cu.ready; }
int tc_cuda_stream(int device, void **stream) { return tc_cu.stream(device, stream); }
int tc_cuda_capturing(void *stream)
{
    int status = 0;
    return tc_cu.is_capturing(stream, &status) || status;
}

void *tc_cuda_context(void)
{
    CUcontext c = NULL;
    return tc_cu.context(&c) ? NULL : c;
}

int tc_init_cuda(PyObject *module)
{
    if (PyModule_AddFunctions(module, methods) < 0 || tc_init_cuda_kernel(module) < 0 ||
        tc_init_cuda_static(module) < 0)
        return -1;
    return 0;
}
