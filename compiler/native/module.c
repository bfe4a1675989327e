/* The extension module `_native`: puts its parts together. */
#include "activation.h"
#include "code_state.h"
#include "dispatch.h"
#include "dispatcher.h"
#include "guards.h"
#include "hook.h"
#include "state.h"
#include "tensor.h"
#include "values.h"

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "_native",
    "C parts of tcompile: guards, dispatch, the frame hook and the launcher.", -1, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&module_def);
    if (module == NULL)
        return NULL;
    int (*const parts[])(PyObject *) = {
        tc_init_values, tc_init_tensor, tc_init_state, tc_init_guards,
        tc_init_dispatch, tc_init_dispatcher, tc_init_code_state, tc_init_activation, tc_init_hook,
        tcompile_init_launcher, tc_init_plan, tc_init_packaged, tc_init_cuda, tc_init_gemm, tc_init_blob,
        tc_init_bridge, tc_init_trace, tc_init_stack,
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i] && parts[i](module) < 0) {
            Py_DECREF(module);
            return NULL;
        }
    }
    if (PyModule_AddIntConstant(module, "API", TCOMPILE_NATIVE_API) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
