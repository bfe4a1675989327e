/* The extension module `_native`: puts its parts together. */
#include "native.h"

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "_native",
    "C parts of tcompile: guards, dispatch, the frame hook and the launcher.", -1, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&module_def);
    if (module == NULL)
        return NULL;
    if (tcompile_init_launcher && tcompile_init_launcher(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
