/* Size expressions as stack code (compiler/symbolic/stack_code.py writes it), computed in 64 bits. */
#ifndef TCOMPILE_EXPRESSIONS_H
#define TCOMPILE_EXPRESSIONS_H
#include "native.h"
#include "opcodes.h"

typedef struct { int32_t op; int64_t arg; } ExprOp;
typedef struct { int n; ExprOp code[]; } ExprProgram;

/* From a tuple of (op, arg) whose symbols are below n_symbols; NULL with an exception set. */
HIDDEN ExprProgram *tc_expr_new(PyObject *code, Py_ssize_t n_symbols);
HIDDEN void tc_expr_free(ExprProgram *e);
/* 1 with the value in *out; 0 where 64 bits do not hold it, or on a division by zero. */
HIDDEN int tc_expr_run(const ExprProgram *e, const int64_t *values, int64_t *out);

#endif
