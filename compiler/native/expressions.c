/* Size expressions of guards and of plans. */
#include "expressions.h"

ExprProgram *tc_expr_new(PyObject *code, Py_ssize_t n_symbols)
{
    if (!PyTuple_Check(code)) {
        PyErr_SetString(PyExc_TypeError, "an expression's code must be a tuple");
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(code);
    ExprProgram *e = PyMem_Malloc(sizeof *e + (size_t)n * sizeof *e->code);
    if (e == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    e->n = (int)n;
    for (Py_ssize_t k = 0; k < n; k++) {
        long long arg;
        int op;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(code, k), "iL", &op, &arg)) {
            tc_expr_free(e);
            return NULL;
        }
        if (op == E_SYMBOL && (arg < 0 || arg >= n_symbols)) {
            PyErr_SetString(PyExc_ValueError, "an expression names a symbol that is not there");
            tc_expr_free(e);
            return NULL;
        }
        e->code[k] = (ExprOp){op, arg};
    }
    return e;
}

void tc_expr_free(ExprProgram *e)
{
    PyMem_Free(e);
}

static int64_t floordiv(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}

int tc_expr_run(const ExprProgram *e, const int64_t *values, int64_t *out)
{
    int64_t stack[64];
    int sp = 0;
    for (int k = 0; k < e->n; k++) {
        int64_t arg = e->code[k].arg, a, b;
        if (e->code[k].op == E_CONST || e->code[k].op == E_SYMBOL) {
            stack[sp++] = e->code[k].op == E_CONST ? arg : values[arg];
            continue;
        }
        if (e->code[k].op == E_ITE) {
            sp -= 2;
            stack[sp - 1] = stack[sp - 1] ? stack[sp] : stack[sp + 1];
            continue;
        }
        b = stack[--sp];
        a = stack[sp - 1];
        switch (e->code[k].op) {
        case E_ADD: if (__builtin_add_overflow(a, b, &a)) return 0; break;
        case E_MUL: if (__builtin_mul_overflow(a, b, &a)) return 0; break;
        case E_FLOORDIV: if (b == 0 || (b == -1 && a == INT64_MIN)) return 0; a = floordiv(a, b); break;
        case E_MOD: if (b == 0 || b == -1) { if (b == 0) return 0; a = 0; } else a = a - floordiv(a, b) * b; break;
        case E_LSHIFT: if (b < 0 || b > 62 || __builtin_mul_overflow(a, (int64_t)1 << b, &a)) return 0; break;
        case E_BITAND: a &= b; break;
        case E_MIN: a = a < b ? a : b; break;
        case E_MAX: a = a > b ? a : b; break;
        case E_EQ: a = a == b; break;
        case E_NE: a = a != b; break;
        case E_LE: a = a <= b; break;
        case E_AND: a = a && b; break;
        case E_OR: a = a || b; break;
        }
        stack[sp - 1] = a;
    }
    *out = stack[0];
    return 1;
}
