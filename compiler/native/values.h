/* Reaching and comparing values without running user code; the C side of compiler/guards/source_values.py. */
#ifndef TCOMPILE_VALUES_H
#define TCOMPILE_VALUES_H
#include "native.h"

typedef struct Recorder Recorder;       /* watch.h: what a result depends on; NULL where nobody asks */

/* Why a value is not there. */
enum { TC_FOUND = 0, TC_ABSENT = 1, TC_REFUSED = 2 };

/* getattr(o, name). Gives a borrowed reference, or an owned one with *owned set; NULL with *why set and no
   exception. */
HIDDEN PyObject *tc_attr(PyObject *o, PyObject *name, int *owned, int *why, Recorder *rec);
/* getattr(o, name).__func__, without making the bound method where `name` is a function of o's class. */
HIDDEN PyObject *tc_method_function(PyObject *o, PyObject *name, int *owned, Recorder *rec);
/* o[key]: sequences take `index` (is_index), dicts take `key`, whose hash is `hash` (-1: find the key by identity). */
HIDDEN PyObject *tc_item(PyObject *o, PyObject *key, Py_ssize_t index, int is_index, Py_hash_t hash, Recorder *rec);
/* Plain dict lookup; borrowed, NULL where absent. */
HIDDEN PyObject *tc_dict_get(PyObject *dict, PyObject *key, Py_hash_t hash, Recorder *rec);
/* len(o) of builtin containers, -1 for any other object. *frozen is set where the length cannot change. */
HIDDEN Py_ssize_t tc_length(PyObject *o, int *frozen);
/* Same keys in the same order as the tuple `keys`. */
HIDDEN int tc_dict_keys_equal(PyObject *o, PyObject *keys);
/* Same type and equal, for immutable constants. */
HIDDEN int tc_const_equal(PyObject *a, PyObject *b);

/* Set by Python once: torch's types and nn.Module.__getattr__. */
typedef struct {
    PyTypeObject *tensor_base, *tensor, *parameter, *size, *device, *tuplegetter, *weak;
    PyObject *module_getattr;
    PyGetSetDef *requires_grad;     /* of TensorBase */
} TorchNames;
HIDDEN extern TorchNames tc_torch;
HIDDEN int tc_init_values(PyObject *module);

#endif
