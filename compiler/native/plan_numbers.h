/* The numbers of plans: of compiler/runtime/plan_parts.py, and of packages in files (compiler/export/cpp reads them
   without Python). A change needs a new number for the format of packages (compiler/export/package.py). */
#ifndef TCOMPILE_PLAN_NUMBERS_H
#define TCOMPILE_PLAN_NUMBERS_H

enum { SLOT_INPUT, SLOT_CONSTANT, SLOT_OWN, SLOT_SCRATCH, SLOT_ALIAS, SLOT_RESULT, N_SLOT_KINDS };
/* STEP_WRITING: from here on inputs are written, and an error is final */
enum { STEP_KERNEL, STEP_MAKE, STEP_FREE, STEP_PRODUCT, STEP_CALL, STEP_TORCH, STEP_WRITING, STEP_GONE };
enum { OUT_SLOT, OUT_INPUT, OUT_VALUE, OUT_CONSTANT, OUT_CALL };
enum { ARG_OBJECT, ARG_SLOT, ARG_VALUE, ARG_INPUT, ARG_LIST, ARG_TUPLE };
enum { WORD_VALUE, WORD_ADDRESS, WORD_LIST, WORD_TENSOR, WORD_OPTIONAL, WORD_UNDEFINED, WORD_RESULT, WORD_NUMBER };
enum { SYM_SIZE, SYM_STRIDE, SYM_VALUE };

#endif
