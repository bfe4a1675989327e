/* Memory that somebody else owns, as a tensor: the owner lives as long as the tensor's storage does, whoever holds it.
   torch's own way in is DLPack, a plain C structure: torch.from_dlpack(blob(...)) is a tensor of bytes. And how often
   storages are held, many at once. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

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
    b->managed = (Managed){
        {(void *)(uintptr_t)address, {type, index}, 1, {DLPACK_UNSIGNED, 8, 1}, &b->shape, &b->stride, 0},
        Py_NewRef(owner),
        let_go};
    PyObject *capsule = PyCapsule_New(&b->managed, "dltensor", capsule_gone);
    if (!capsule)
        let_go(&b->managed);
    return capsule;
}

/* storage_uses(addresses as int64) -> int: the sum of what torch._C._storage_Use_Count says of each. A storage is an
   intrusive_ptr_target: behind the pointer to its virtual functions lies the count of references, in 32 bits. (The
   caller has tried that this torch has it there.) */
static PyObject *storage_uses(PyObject *module, PyObject *arg)
{
    Py_buffer view;
    if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    unsigned long long sum = 0;
    for (Py_ssize_t i = 0; i < view.len / (Py_ssize_t)sizeof(uint64_t); ++i) {
        uint64_t address;
        memcpy(&address, (char *)view.buf + i * sizeof address, sizeof address);
        sum += __atomic_load_n((uint32_t *)(uintptr_t)(address + sizeof(void *)), __ATOMIC_ACQUIRE);
    }
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(sum);
}

static PyMethodDef methods[] = {
    {"storage_uses", storage_uses, METH_O,
     "storage_uses(array of int64) -> how often the storages at these addresses are held, in sum."},
    {"blob", blob, METH_VARARGS,
     "blob(address, bytes, device type, index, owner) -> DLPack capsule of a tensor of bytes over memory that `owner` "
     "keeps. Device types: 1 CPU, 2 CUDA."},
    {NULL},
};

int tc_init_blob(PyObject *module) { return PyModule_AddFunctions(module, methods); }
