/* Memory that somebody else owns, as a tensor: the owner lives as long as the tensor's storage does, whoever holds it. torch's own way in is
   DLPack, a plain C structure: torch.from_dlpack(blob(...)) is a tensor of bytes. */
#include "native.h"

#include <stdlib.h>

/* DLPack's structures before version 1, which every torch takes. */
typedef struct { int32_t type, index; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } DataType;
typedef struct {
    void *data;
    Device device;
    int32_t ndim;
    DataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct Managed {
    DLTensor tensor;
    void *owner;
    void (*deleter)(struct Managed *);
} Managed;

enum { DLPACK_UNSIGNED = 1 };

typedef struct { Managed managed; int64_t shape, stride; } Blob;

/* From whatever thread lets go of the last reference. */
static void let_go(Managed *m)
{
    if (Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF((PyObject *)m->owner);
        PyGILState_Release(state);
    }
    free(m);
}

static void capsule_gone(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {            /* torch renames what it has taken */
        Managed *m = PyCapsule_GetPointer(capsule, "dltensor");
        m->deleter(m);
    }
}

/* blob(address, bytes, device type, index, owner) -> capsule; device types: 1 CPU, 2 CUDA */
static PyObject *blob(PyObject *module, PyObject *args)
{
    unsigned long long address;
    long long bytes;
    int type, index;
    PyObject *owner;
    if (!PyArg_ParseTuple(args, "KLiiO", &address, &bytes, &type, &index, &owner))
        return NULL;
    Blob *b = calloc(1, sizeof *b);
    if (!b)
        return PyErr_NoMemory();
    b->shape = bytes;
    b->stride = 1;
    b->managed = (Managed){{(void *)(uintptr_t)address, {type, index}, 1, {DLPACK_UNSIGNED, 8, 1}, &b->shape, &b->stride, 0}, Py_NewRef(owner), let_go};
    PyObject *capsule = PyCapsule_New(&b->managed, "dltensor", capsule_gone);
    if (!capsule)
        let_go(&b->managed);
    return capsule;
}

static PyMethodDef methods[] = {
    {"blob", blob, METH_VARARGS,
     "blob(address, bytes, device type, index, owner) -> DLPack capsule of a tensor of bytes over memory that `owner` keeps. Device types: 1 CPU, 2 CUDA."},
    {NULL},
};

int tc_init_blob(PyObject *module) { return PyModule_AddFunctions(module, methods); }
