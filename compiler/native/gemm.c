/* Matrix products of static sizes by cuBLASLt, the library behind torch's own: what torch does anew at each call
   (descriptors, the library's choice of an algorithm) is done once here. out[m, n] = a[m, k] b[k, n] (+ a bias of n).

   The library counts by columns, so it computes the transposed product: its A is our b, its B our a. The sums are
   accumulated in float32, and parts of a split sum are never rounded to 16 bits; operands of 16 bits may have a result
   in float32. Which of its algorithms runs is the library's guess, or was measured
   (compiler/runtime/gpu/algorithms.py). Nothing is linked: torch has the library loaded. Where it is missing, or has no
   algorithm, torch's function runs the product. */
#include "launcher.h"

#include <dlfcn.h>
#include <stdlib.h>

typedef struct { Algorithm algorithm; size_t workspace; int status; float waves; int reserved[4]; } Found;

/* numbers of cublasLt.h, the same in every version */
enum { OPERATION_T = 1, FLOAT32 = 0, COMPUTE_FLOAT32 = 68, COMPUTE_TF32 = 77 };
enum { DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7, DESC_BIAS = 8, EPILOGUE_BIAS = 4 };
enum { PREFER_WORKSPACE = 1, PREFER_REDUCTIONS = 3, PREFER_ALIGNMENT = 5, REDUCE_IN_COMPUTE_TYPE = 2 };
enum { CONFIG_SPLITS = 2 };
enum { MOST_WORKSPACE = 32 << 20, MOST_DEVICES = 64, MOST_FOUND = 32, ALIGNED = 16 };

static struct {
    int looked, ready;
    void *handles[MOST_DEVICES];
    int (*create)(void **);
    int (*desc_create)(void **, int, int);
    int (*desc_destroy)(void *);
    int (*desc_set)(void *, int, const void *, size_t);
    int (*layout_create)(void **, int, uint64_t, uint64_t, int64_t);
    int (*layout_destroy)(void *);
    int (*preference_create)(void **);
    int (*preference_destroy)(void *);
    int (*preference_set)(void *, int, const void *, size_t);
    int (*config)(const Algorithm *, int, void *, size_t, size_t *);
    size_t (*version)(void);
    int (*choose)(void *, void *, void *, void *, void *, void *, void *, int, Found *, int *);
    int (*matmul)(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *,
                  void *, void *, void *, const Algorithm *, void *, size_t, void *);
} lt;

typedef struct {
    int failed, given;                     /* given: the algorithm was measured, for pointers that are ALIGNED */
    void *context;                         /* that the algorithm was chosen in; NULL: none was chosen yet */
    void *desc, *a, *b, *d;                /* those of the library's: b, a and out of ours */
    uint32_t alignment[4];                 /* of A, B, C and D, that the algorithm was chosen for */
    Algorithm algorithm;
    size_t workspace;
} Choice;

/* Workspaces for products that a CUDA graph records in this thread, one each (compiler/runtime/gpu/counters.py). */
static _Thread_local struct { char *memory; size_t size; int left, used; } slots;

struct Gemm {
    GemmSpec spec;
    Choice choices[2]; /* [1]: float32 in TF32, which a flag of torch's allows or not, call by call */
};

static int look(void)
{
    static const char *names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    void *lib = NULL;
    for (size_t i = 0; !lib && i < sizeof names / sizeof *names; i++)
        lib = dlopen(names[i], RTLD_NOLOAD | RTLD_LAZY);
    const struct {
        void *field;
        const char *name;
    } wanted[] = {{&lt.create, "cublasLtCreate"},
                  {&lt.desc_create, "cublasLtMatmulDescCreate"},
                  {&lt.desc_destroy, "cublasLtMatmulDescDestroy"},
                  {&lt.desc_set, "cublasLtMatmulDescSetAttribute"},
                  {&lt.layout_create, "cublasLtMatrixLayoutCreate"},
                  {&lt.layout_destroy, "cublasLtMatrixLayoutDestroy"},
                  {&lt.preference_create, "cublasLtMatmulPreferenceCreate"},
                  {&lt.preference_destroy, "cublasLtMatmulPreferenceDestroy"},
                  {&lt.preference_set, "cublasLtMatmulPreferenceSetAttribute"},
                  {&lt.config, "cublasLtMatmulAlgoConfigGetAttribute"},
                  {&lt.version, "cublasLtGetVersion"},
                  {&lt.choose, "cublasLtMatmulAlgoGetHeuristic"},
                  {&lt.matmul, "cublasLtMatmul"}};
    lt.looked = 1;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!lib || !(*(void **)wanted[i].field = dlsym(lib, wanted[i].name)))
            return 0;
    return lt.ready = 1;
}

Gemm *tc_gemm_new(const GemmSpec *spec, const Algorithm *algorithm, size_t workspace)
{
    Gemm *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->spec = *spec;
    if (algorithm) {
        g->choices[0].given = 1;
        g->choices[0].algorithm = *algorithm;
        g->choices[0].workspace = workspace;
    }
    return g;
}

static void forget(Choice *c)
{
    void *layouts[] = {c->a, c->b, c->d};
    if (c->desc)
        lt.desc_destroy(c->desc);
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            lt.layout_destroy(layouts[i]);
}

void tc_gemm_free(Gemm *g)
{
    for (int k = 0; g && k < 2; k++)
        forget(&g->choices[k]);
    free(g);
}

/* Whether float32 may be multiplied in TF32 now: 0, 1, or -1 where torch does not tell. */
static int tf32_allowed(void)
{
    static PyObject *ask;
    if (!ask) {
        PyObject *torch = PyImport_ImportModule("torch._C");
        ask = torch ? PyObject_GetAttrString(torch, "_get_cublas_allow_tf32") : NULL;
        Py_XDECREF(torch);
    }
    PyObject *answer = ask ? PyObject_CallNoArgs(ask) : NULL;
    if (!answer)
        PyErr_Clear();
    Py_XDECREF(answer);
    return answer ? answer == Py_True : -1;
}

static uint32_t alignment_of(const void *p)
{
    uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
    return low == 0 || low > 256 ? 256 : (uint32_t)low;
}

/* The library's descriptions of a product, made once. */
static int describe(Choice *g, const GemmSpec *s, int compute)
{
    int32_t t = OPERATION_T, epilogue = EPILOGUE_BIAS;
    if (g->desc)
        return 0;
    return lt.desc_create(&g->desc, compute, FLOAT32) ||
           (s->transposed_b && lt.desc_set(g->desc, DESC_TRANSA, &t, sizeof t)) ||
           (s->transposed_a && lt.desc_set(g->desc, DESC_TRANSB, &t, sizeof t)) ||
           (s->bias && lt.desc_set(g->desc, DESC_EPILOGUE, &epilogue, sizeof epilogue)) ||
           lt.layout_create(&g->a, s->dtype, s->transposed_b ? s->k : s->n, s->transposed_b ? s->n : s->k, s->ldb) ||
           lt.layout_create(&g->b, s->dtype, s->transposed_a ? s->m : s->k, s->transposed_a ? s->k : s->m, s->lda) ||
           lt.layout_create(&g->d, s->out, s->n, s->m, s->ldd);
}

/* The algorithms that the library takes for pointers of the given alignments to be the fastest, the best first; how
   many. */
static int ask(const Choice *g, void *handle, const uint32_t *alignment, uint64_t workspace, Found *found, int most)
{
    void *preference = NULL;
    /* in place, parts meet through counters in the workspace, which nobody clears here */
    uint32_t reductions = REDUCE_IN_COMPUTE_TYPE;
    int n = 0, rc = lt.preference_create(&preference);
    rc = rc || lt.preference_set(preference, PREFER_WORKSPACE, &workspace, sizeof workspace) ||
         lt.preference_set(preference, PREFER_REDUCTIONS, &reductions, sizeof reductions);
    for (int i = 0; i < 4 && !rc; i++)
        rc = lt.preference_set(preference, PREFER_ALIGNMENT + i, &alignment[i], sizeof alignment[i]);
    rc = rc || lt.choose(handle, g->desc, g->a, g->b, g->d, g->d, preference, most, found, &n);
    if (preference)
        lt.preference_destroy(preference);
    int fit = 0;
    for (int i = 0; !rc && i < n; i++)
        if (!found[i].status)
            found[fit++] = found[i];
    return fit;
}

/* An algorithm for pointers aligned like these. */
static int prepare(Choice *g, const GemmSpec *s, int compute, void *handle, void *const *pointer, const void *bias)
{
    if (describe(g, s, compute) || (s->bias && lt.desc_set(g->desc, DESC_BIAS, &bias, sizeof bias)))
        return -1;
    int aligned = 1;
    for (int i = 0; i < 4; i++) {
        g->alignment[i] = alignment_of(pointer[i]);
        aligned &= g->alignment[i] >= ALIGNED;
    }
    if (g->given && aligned) {
        for (int i = 0; i < 4; i++)
            g->alignment[i] = ALIGNED;
        return 0;
    }
    g->given = 0;
    Found found;
    if (!ask(g, handle, g->alignment, MOST_WORKSPACE, &found, 1))
        return -1;
    g->algorithm = found.algorithm;
    g->workspace = found.workspace;
    return 0;
}

static void *handle_of(int device)
{
    if (!lt.handles[device] && lt.create(&lt.handles[device]))
        lt.handles[device] = NULL;
    return lt.handles[device];
}

int tc_gemm_run(Gemm *gemm, int device, void *out, const void *a, const void *b, const void *bias)
{
    int tf32 = gemm->spec.dtype == FLOAT32 ? tf32_allowed() : 0;
    if (tf32 < 0)
        return -1;
    Choice *g = &gemm->choices[tf32];
    if (g->failed || (!lt.looked && !look()) || !lt.ready || device >= MOST_DEVICES)
        return -1;
    void *context = tc_cuda_context(), *stream;
    if (!context || (g->context && context != g->context) || tc_cuda_stream(device, &stream))
        return -1;                         /* another device is current: torch's function switches */
    void *pointer[4] = {(void *)b, (void *)a, out, out};
    int chosen = g->context != NULL;
    for (int i = 0; i < 4 && chosen; i++)
        chosen = ((uintptr_t)pointer[i] & (g->alignment[i] - 1)) == 0;
    if (!chosen && tc_cuda_capturing(stream))
        return -1;                         /* a new handle of the library's may allocate, which ends the recording */
    if (!handle_of(device) || (!chosen && prepare(g, &gemm->spec, tf32 ? COMPUTE_TF32 : COMPUTE_FLOAT32,
                                                  lt.handles[device], pointer, bias))) {
        g->failed = 1;
        return -1;
    }
    g->context = context;
    /* what allocates may let another thread in, which chooses for other pointers, and sets its own bias */
    const Algorithm algorithm = g->algorithm;
    const size_t size = g->workspace;
    AtenTensor block = NULL;
    PyObject *object = NULL;
    void *workspace = NULL;
    if (size && slots.left && size <= slots.size) {
        workspace = slots.memory + slots.used++ * slots.size;
        slots.left--;
    }
    else if (size && tc_cuda_block((int64_t)size, device, &block, &object, &workspace)) {
        PyErr_Clear();                     /* torch's function needs memory, too, and says so in torch's words */
        return -1;
    }
    const float one = 1, zero = 0;
    int rc = gemm->spec.bias && lt.desc_set(g->desc, DESC_BIAS, &bias, sizeof bias);
    rc = rc || lt.matmul(lt.handles[device], g->desc, &one, b, g->a, a, g->b, &zero, out, g->d, out, g->d, &algorithm,
                         workspace, size, stream);
    if (block && !object)
        tc_torch_api.delete_tensor(block);
    Py_XDECREF(object);
    if (rc)
        g->failed = 1;
    return rc ? -1 : 0;
}

int tc_gemm_spec(PyObject *fields, GemmSpec *out)
{
    long long n[6];
    if (!PyArg_ParseTuple(fields, "iiiiLLLLLLi", &out->dtype, &out->bias, &out->transposed_a, &out->transposed_b, &n[0],
                          &n[1], &n[2], &n[3], &n[4], &n[5], &out->out))
        return -1;
    out->m = n[0], out->n = n[1], out->k = n[2], out->lda = n[3], out->ldb = n[4], out->ldd = n[5];
    return 0;
}

static PyObject *gemm_algorithms(PyObject *module, PyObject *args)
{
    PyObject *fields;
    GemmSpec spec;
    Choice g = {0};
    int device, most, n = 0;
    if (!PyArg_ParseTuple(args, "iO!i", &device, &PyTuple_Type, &fields, &most) || tc_gemm_spec(fields, &spec) < 0)
        return NULL;
    if ((!lt.looked && !look()) || !lt.ready || device < 0 || device >= MOST_DEVICES || !handle_of(device))
        return PyTuple_New(0);
    Found found[MOST_FOUND];
    const uint32_t alignment[4] = {ALIGNED, ALIGNED, ALIGNED, ALIGNED};
    if (!describe(&g, &spec, COMPUTE_FLOAT32)) {
        n = ask(&g, lt.handles[device], alignment, MOST_WORKSPACE, found,
                most < MOST_FOUND / 2 ? most : MOST_FOUND / 2);
        int all = n + ask(&g, lt.handles[device], alignment, 0, found + n,
                          most < MOST_FOUND / 2 ? (most + 1) / 2 : MOST_FOUND / 2);
        for (int i = n; i < all; i++) { /* few rows: the library splits sums though one kernel alone is faster */
            int known = 0;
            for (int j = 0; j < n && !known; j++)
                known = !memcmp(&found[i].algorithm, &found[j].algorithm, sizeof found[i].algorithm);
            if (!known)
                found[n++] = found[i];
        }
    }
    forget(&g);
    PyObject *out = PyTuple_New(n);
    for (int i = 0; out && i < n; i++) {
        uint32_t splits = 0;
        size_t written;
        lt.config(&found[i].algorithm, CONFIG_SPLITS, &splits, sizeof splits, &written);
        PyObject *row = Py_BuildValue("y#nI", (char *)&found[i].algorithm, (Py_ssize_t)sizeof found[i].algorithm,
                                      (Py_ssize_t)found[i].workspace, splits);
        if (!row)
            Py_CLEAR(out);
        else
            PyTuple_SET_ITEM(out, i, row);
    }
    return out;
}

static PyObject *gemm_workspaces(PyObject *module, PyObject *args)
{
    unsigned long long address, size;
    int n, used = slots.used;
    if (!PyArg_ParseTuple(args, "KKi", &address, &size, &n))
        return NULL;
    slots.memory = (char *)(uintptr_t)address;
    slots.size = (size_t)size;
    slots.left = n;
    slots.used = 0;
    return PyLong_FromLong(used);
}

static PyObject *gemm_library(PyObject *module, PyObject *unused)
{
    return PyLong_FromSize_t((lt.looked || look()) && lt.ready ? lt.version() : 0);
}

static PyMethodDef methods[] = {
    {"gemm_algorithms", gemm_algorithms, METH_VARARGS,
     "gemm_algorithms(device, fields of a GemmSpec, most) -> ((algorithm, bytes of workspace, parts of the sum), ...): "
     "what cuBLASLt expects to be fast, the best first; behind those, what else it expects to be fast without a "
     "workspace."},
    {"gemm_workspaces", gemm_workspaces, METH_VARARGS,
     "gemm_workspaces(address, size, n) -> how many were taken since the last call: workspaces of up to `size` bytes "
     "for the next n products of this thread, one each."},
    {"gemm_library", gemm_library, METH_NOARGS,
     "The version of cuBLASLt, 0 where there is none: an algorithm's bytes mean something to that version alone."},
    {NULL, NULL, 0, NULL},
};

int tc_init_gemm(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
