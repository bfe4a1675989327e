/* Kernels as Python callables, and whole plans of kernels that run without Python between them. */
#ifndef TCOMPILE_LAUNCHER_H
#define TCOMPILE_LAUNCHER_H

#include "blas.h"
#include "native.h"

/* The ABI of generated code (compiler/codegen/cpp/printer.py). */
typedef union { double f; int64_t i; } Scalar;
typedef int (*KernelFn)(void *const *buffer, const int64_t *size, const Scalar *param, char *scratch, int64_t begin,
                        int64_t end);
typedef void (*PlanFn)(const int64_t *size, int64_t *out);

#define MAX_PHASES 16

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name;
    PyObject *library;             /* keeps the code loaded */
    PyObject *checks;              /* tuple of messages: see ir.check_index */
    PyObject *make_error;          /* callable(message) -> exception */
    int n_buffers, n_sizes, n_params, n_phases;
    char *param_kinds;             /* 'f' or 'i' per parameter */
    KernelFn phases[MAX_PHASES];
    PlanFn plan;
    int threads;                   /* most threads; 0: as many as torch uses */
    int64_t fixed[1 + 2 * MAX_PHASES];   /* what plan() says, where there are no sizes */
} KernelObject;

typedef void *AtenTensor;              /* at::Tensor* */

enum { PRODUCT_MM, PRODUCT_BMM, PRODUCT_ADDMM, PRODUCT_BADDBMM, N_PRODUCTS };

/* torch's C functions, found by launcher_setup() and cuda_setup(). Those that return int give 0 where they
   succeeded. */
typedef struct {
    int ready;
    Py_ssize_t tensor_offset;          /* of the at::Tensor in a Python tensor object */
    PyTypeObject *tensor_type;
    int (*data_ptr)(AtenTensor, void **);
    int (*ndim)(AtenTensor, int64_t *);
    int (*layout)(AtenTensor, int32_t *);     /* 0: strided */
    int (*sizes)(AtenTensor, int64_t **);
    int (*strides)(AtenTensor, int64_t **);
    int (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, AtenTensor *);
    int (*from_blob)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t,
                     AtenTensor *);
    int (*reinterpret)(AtenTensor, int64_t, const int64_t *, const int64_t *, int64_t, AtenTensor *);
    int (*delete_tensor)(AtenTensor);
    AtenTensor undefined;              /* what torch takes and gives for no tensor */
    uint8_t (*grad_enabled)(void);
    void (*set_grad_enabled)(uint8_t);
    PyObject *(*wrap)(const void *);
    void *products[2][N_PRODUCTS];     /* into given memory; [0] on the CPU, [1] on a GPU */
    BlasApi blas;
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int (*max_threads)(void);
    int (*in_parallel)(void);
} TorchApi;
HIDDEN extern TorchApi tc_torch_api;

/* Memory for one call, at least `bytes`, which is set to what there is; NULL with MemoryError set. And back again. */
HIDDEN char *tc_take_scratch(int64_t *bytes);
HIDDEN void tc_leave_scratch(char *data, int64_t bytes);

HIDDEN AtenTensor tc_launcher_tensor(PyObject *o);     /* in a Python tensor; NULL with an exception set */
HIDDEN int tc_launcher_ready(void);
HIDDEN PyObject *tc_launcher_wrap(AtenTensor t);       /* a new Python tensor of `t`, which it deletes */
HIDDEN int tc_fill_scalar(PyObject *o, char kind, Scalar *out);

/* What there is to know of a kernel of either device. run() gives 0, or -1 with an exception set. */
typedef struct {
    int n_buffers, n_sizes, n_params;
    const char *param_kinds;
    int (*run)(PyObject *kernel, void *const *buffer, const int64_t *size, const Scalar *param);
} KernelFacts;
HIDDEN int tc_kernel_facts(PyObject *kernel, KernelFacts *out);          /* -1: it is no kernel */
HIDDEN int tc_cuda_kernel_facts(PyObject *kernel, KernelFacts *out);
HIDDEN PyObject *tc_kernel_call(PyObject *self, PyObject *name, const KernelFacts *k, PyObject *const *args,
                                size_t nargsf, PyObject *kwnames);

/* A product of static sizes by cuBLASLt (gemm.c). dtype: the library's number, of the operands; out: of the result;
   ld*: strides of the rows, or of the columns where transposed, in elements. */
typedef struct { int dtype, bias, transposed_a, transposed_b; int64_t m, n, k, lda, ldb, ldd; int out; } GemmSpec;
typedef struct {
    uint64_t data[8];
} Algorithm;        /* of the library's; its bytes may be kept for the same version */
typedef struct Gemm Gemm;
HIDDEN int tc_gemm_spec(PyObject *fields, GemmSpec *out);
HIDDEN Gemm *tc_gemm_new(const GemmSpec *spec, const Algorithm *algorithm,
                         size_t workspace);     /* algorithm: NULL, the library's guess */
HIDDEN void tc_gemm_free(Gemm *g);
HIDDEN int tc_gemm_run(Gemm *g, int device, void *out, const void *a, const void *b,
                       const void *bias);   /* -1: torch has to run it */

/* CUlaunchConfig and its one attribute, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
typedef struct { int id, pad, allowed, more[15]; } LaunchAttribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    LaunchAttribute *attributes;
    unsigned n_attributes;
} LaunchConfig;
enum { STARTS_EARLY = 6 };

HIDDEN int tc_cuda_ready(void);
HIDDEN void *tc_cuda_context(void);                    /* the current one, or NULL */
HIDDEN int tc_cuda_capturing(void *stream);            /* whether it records a graph */
HIDDEN int tc_cuda_stream(int device, void **stream);  /* torch's current one */
HIDDEN AtenTensor tc_cuda_new(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype,
                              int device);     /* NULL: no memory */
/* by torch's own function, which raises what torch raises */
HIDDEN PyObject *tc_cuda_new_by_torch(int64_t ndim, const int64_t *shape, const int64_t *stride, int dtype, int device);
/* bytes of device memory: in *tensor, or in *object where only torch's own function had them */
HIDDEN int tc_cuda_block(int64_t bytes, int device, AtenTensor *tensor, PyObject **object, void **data);

#endif
