/* Whole plans as data. plan.c runs them, plan_make.c makes them of what native_program.py hands over. */
#ifndef TCOMPILE_PLAN_H
#define TCOMPILE_PLAN_H
#include "launcher.h"

#include "expressions.h"

#include "plan_numbers.h"

typedef struct {
    int kind;
    int index; /* SLOT_INPUT: which; SLOT_CONSTANT: which constant; SLOT_ALIAS: slot of the base, which is no
                  alias; SLOT_RESULT: whether its address is used */
    int dtype, itemsize, ndim;
    int dims;              /* first of ndim values, strides follow */
    int offset;            /* SLOT_SCRATCH, SLOT_ALIAS: value that holds it, in bytes */
    int fixed;             /* whether its dims are the same in every call */
} Slot;

typedef struct Arg {
    int kind, index, n;    /* n: of items */
    PyObject *object;
    struct Arg *items;
} Arg;

/* function(*args, **kwargs), the last of args under the names of `names`; results go to slots (-1: dropped) */
typedef struct {
    PyObject *function, *names;        /* names: tuple or NULL */
    int n_args, n_outs, single;        /* single: the result is one object, not a sequence */
    Arg *args;
    int *outs;
} CallSpec;

/* One of torch's C functions. Its arguments are words (integers and pointers) and reals, which the calling conventions
   of x86-64 and AArch64 hand over apart from each other, each in their order: so all are called as one function of
   MOST_WORDS words and MOST_REALS reals. */
enum { MOST_WORDS = 32, MOST_REALS = 2, MOST_RESULTS = 10 };
typedef struct { int kind, index; } Word;      /* index: of a value, a slot, a result */
typedef struct {
    int (*function)();
    int n_words, n_reals;
    Word words[MOST_WORDS];
    int reals[MOST_REALS];             /* values that hold their bits */
} TorchCall;

typedef struct {
    int kind, slot; /* slot: of STEP_MAKE and STEP_FREE; of STEP_GONE: an input that no later step uses */
    PyObject *kernel;
    KernelFacts facts;
    int *slots, *sizes, *params;       /* of a kernel; params: inputs. slots of a product: out, [c], a, b */
    int product;                       /* which */
    int widens; /* whether a product is written in another dtype than it reads: torch has no C function for that */
    int blas; /* 1 + the number of the dtype where BLAS may compute a product of matrices (blas.h) */
    double beta, alpha;
    Gemm *gemm;                        /* or NULL */
    TorchCall *torch;                  /* of STEP_TORCH */
    CallSpec *call;                    /* of STEP_CALL; of STEP_PRODUCT and STEP_TORCH: what raises torch's error */
} Step;

typedef struct { int kind, index; CallSpec *call; } Output;
typedef struct { void *address; AtenTensor tensor; } Kept;       /* a tensor that owns nothing, over an address */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int device;                        /* index of the GPU, -1: the CPU */
    int n_inputs, n_symbols, n_values, n_slots, n_steps, n_outputs, scratch_value;
    int calls_blas;                    /* whether a step of the CPU's is such a product */
    int calls_torch; /* whether operators of torch run, which autograd would record (addmm_out copies its bias) */
    int most_slots, most_sizes, most_params;
    int *symbols;                      /* (input, kind, dim) each */
    int64_t *fixed;                    /* values where they do not vary */
    int n_computed;                    /* expressions over the symbols */
    ExprProgram **computed;
    int *source;                       /* of each value: the expression that gives it, or -1: fixed */
    Slot *slots;
    Step *steps;
    Output *outputs;
    Kept *kept;                        /* by slot; of the call that set in_use */
    int in_use;
    PyObject *constants;               /* tuple */
    PyObject *labels;                  /* what the steps are, for whoever traces them; or NULL */
    PyObject *as_planned;              /* as_planned(tensor, shape, stride) -> tensor that lies so */
    PyObject *instead;                 /* instead(inputs, why) -> tuple, where the driver rejects a kernel; or NULL */
    int rejected;                      /* whether it did: no call runs this plan any more */
} ProgramObject;

HIDDEN PyObject *tc_program_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);
HIDDEN PyObject *tc_program_consume(PyObject *self, PyObject *inputs);
/* The same without a call of Python's; and how many results it gives, -1 where `plan` is no Program. */
HIDDEN PyObject *tc_plan_run(PyObject *plan, PyObject *const *args, Py_ssize_t n);
HIDDEN int tc_plan_outputs(PyObject *plan);
HIDDEN void tc_plan_forget(Kept *kept, int n);

#endif
