/* What torch's autograd.Function.apply does for a compiled graph with gradients, and nothing else: a node of autograd's
   graph in C++.

   Apply(forward, backward) stands where bridge.py would otherwise put a Function's `apply`: apply(*inputs) calls
   forward(ctx, *inputs) without gradients, forward (bridge.c: GradForward) says on ctx what is kept, and backward(ctx,
   *tangents) runs when autograd asks. Function.apply makes a Python object with a dict, and reads a class's attributes,
   at each call: 1.6 us of the 2.7 that a small graph takes, against 0.3 here.

   It includes torch's headers, so what is built of it serves the torch that it was built for alone (build.py); without
   it Function.apply does. */
#include <Python.h>
#include <structmember.h>

#include <atomic>

#include <ATen/record_function.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace {

constexpr int NODE_API = 5;                                     /* compiler/native/__init__.py has the same number */

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
/* a shared or an intrusive pointer, depending on torch's version */
using NodePtr = decltype(torch::autograd::Edge::function);

struct CompiledNode;

/* What forward and backward see of a call. */
struct Context {
    PyObject_HEAD
    PyObject *to_save, *remembered, *rest, *needs_input_grad;
    char materialize_grads; /* asked for or not: a tangent that is not there is None */
    CompiledNode *node;                                         /* not owned: it owns this */
};

struct Apply {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *forward, *backward;
};

struct CompiledNode : Node {
    PyObject *backward;
    Context *context;
    std::vector<Py_ssize_t> inputs;                             /* per edge: which input it leads to */
    std::vector<SavedVariable> saved;
    bool freed = false;
    std::atomic<int> unpacking{0}; /* hooks for saved tensors run: what they free goes after them */

    CompiledNode(torch::autograd::edge_list &&edges, std::vector<Py_ssize_t> &&inputs, PyObject *backward,
                 Context *context)
        : Node(std::move(edges)), backward(Py_NewRef(backward)), context((Context *)Py_NewRef((PyObject *)context)),
          inputs(std::move(inputs))
    {
    }
    ~CompiledNode() { let_go(); }

    std::string name() const override { return "TCompiledBackward"; }
    variable_list apply(variable_list &&tangents) override;
    void release_variables() override
    {
        if (!unpacking)
            saved.clear();
        freed = true;
    }
    [[maybe_unused]] void release_resources(); /* in newer torch an override: nothing is left but weak references */

    void let_go()
    {
        saved.clear();
        if (!context || !Py_IsInitialized())
            return;
        pybind11::gil_scoped_acquire gil;
        context->node = nullptr;
        Py_CLEAR(backward);
        Py_CLEAR(context);
    }
};

template <class N> void release_base(N *node)
{
    if constexpr (requires { node->N::release_resources(); })
        node->N::release_resources();
}

void CompiledNode::release_resources()
{
    let_go();
    release_base<Node>(this);
}

template <class N> void delete_without_recursion(N *node) { deleteNode(node); }

template <class P, class... Args> P make_node(Args &&...args)
{
    if constexpr (std::is_same_v<P, std::shared_ptr<Node>>)
        return P(new CompiledNode(std::forward<Args>(args)...), delete_without_recursion<Node>);
    else
        return c10::make_intrusive<CompiledNode>(std::forward<Args>(args)...);
}

/* A new reference to a tuple of tensors, None where there is none. */
PyObject *wrap(const variable_list &tensors)
{
    PyObject *out = PyTuple_New((Py_ssize_t)tensors.size());
    for (size_t i = 0; out && i < tensors.size(); i++) {
        PyObject *t = THPVariable_Wrap(tensors[i]);
        if (!t)
            Py_CLEAR(out);
        else
            PyTuple_SET_ITEM(out, (Py_ssize_t)i, t);
    }
    return out;
}

void raise_python_error()
{
    python_error error;
    error.persist();
    throw std::move(error);
}

variable_list CompiledNode::apply(variable_list &&tangents)
{
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr given(wrap(tangents));
    if (!given)
        raise_python_error();
    std::vector<PyObject *> args{(PyObject *)context};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given.get()); i++)
        args.push_back(PyTuple_GET_ITEM(given.get(), i));
    tangents.clear();
    THPObjectPtr grads(PyObject_Vectorcall(backward, args.data(), args.size(), nullptr));
    if (grads && !PyTuple_Check(grads.get()))
        PyErr_SetString(PyExc_TypeError, "the backward of a compiled graph gives a tuple");
    variable_list out(inputs.size());
    for (size_t i = 0; i < inputs.size() && !PyErr_Occurred(); i++) {
        PyObject *g = inputs[i] < PyTuple_GET_SIZE(grads.get()) ? PyTuple_GET_ITEM(grads.get(), inputs[i]) : nullptr;
        if (g && THPVariable_Check(g))
            out[i] = THPVariable_Unpack(g);
        else if (g != Py_None)
            PyErr_SetString(PyExc_TypeError, "the backward of a compiled graph gives a tensor or None for each input");
    }
    if (PyErr_Occurred())
        raise_python_error();
    return out;
}

/* ---- Context */

PyObject *context_saved_tensors(PyObject *self, void *)
{
    CompiledNode *node = ((Context *)self)->node;
    try {
        TORCH_CHECK(node && !node->freed, torch::autograd::ERR_BACKWARD_TWICE);
        const auto alive = node->getptr();
        struct Unpacking {
            CompiledNode *node;
            explicit Unpacking(CompiledNode *n) : node(n) { node->unpacking++; }
            ~Unpacking()
            {
                if (!--node->unpacking && node->freed)
                    node->saved.clear();
            }
        } unpacking(node);
        variable_list tensors;
        for (const SavedVariable &s : node->saved)
            tensors.push_back(s.unpack(alive));
        if (!torch::autograd::get_current_graph_task_keep_graph())
            node->release_variables(); /* whoever runs backward has them alone, and lets each go after its last use */
        return wrap(tensors);
    } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

int context_traverse(PyObject *self, visitproc visit, void *arg)
{
    Context *c = (Context *)self;
    Py_VISIT(c->to_save);
    Py_VISIT(c->remembered);
    Py_VISIT(c->rest);
    Py_VISIT(c->needs_input_grad);
    return 0;
}

int context_clear(PyObject *self)
{
    Context *c = (Context *)self;
    Py_CLEAR(c->to_save);
    Py_CLEAR(c->remembered);
    Py_CLEAR(c->rest);
    Py_CLEAR(c->needs_input_grad);
    return 0;
}

void context_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    context_clear(self);
    PyObject_GC_Del(self);
}

PyMemberDef context_members[] = {
    {"to_save", T_OBJECT_EX, offsetof(Context, to_save), 0, "tensors to keep for backward"},
    {"remembered", T_OBJECT_EX, offsetof(Context, remembered), 0, "inputs for double backward"},
    {"rest", T_OBJECT_EX, offsetof(Context, rest), 0, "sizes and numbers for backward"},
    {"materialize_grads", T_BOOL, offsetof(Context, materialize_grads), 0, nullptr},
    {"needs_input_grad", T_OBJECT_EX, offsetof(Context, needs_input_grad), READONLY,
     "per input, whether it requires grad"},
    {nullptr}};

PyObject *context_hooked(PyObject *self, void *)
{
    CompiledNode *node = ((Context *)self)->node;
    return PyBool_FromLong(node && !(node->pre_hooks().empty() && node->tensor_pre_hooks().empty() &&
                                     node->retains_grad_hooks().empty()));
}

PyGetSetDef context_getset[] = {{"saved_tensors", context_saved_tensors, nullptr, "the kept tensors", nullptr},
                                {"hooked", context_hooked, nullptr, "hooks are told the gradients of results", nullptr},
                                {nullptr}};

PyTypeObject Context_Type = {PyVarObject_HEAD_INIT(nullptr, 0)};

/* ---- Apply */

PyObject *needs_of(PyObject *const *args, Py_ssize_t n, torch::autograd::edge_list &edges,
                   std::vector<Py_ssize_t> &inputs)
{
    PyObject *needs = PyTuple_New(n);
    for (Py_ssize_t i = 0; needs && i < n; i++) {
        bool need = false;
        if (THPVariable_Check(args[i])) {
            const at::Tensor &t = THPVariable_Unpack(args[i]);
            if ((need = t.requires_grad())) {
                edges.push_back(torch::autograd::impl::gradient_edge(t));
                inputs.push_back(i);
            }
        }
        PyTuple_SET_ITEM(needs, i, Py_NewRef(need ? Py_True : Py_False));
    }
    return needs;
}

/* One result of forward as an output of the node: itself, or a tensor without what would tie it to another history. */
PyObject *output(PyObject *result, const NodePtr &node)
{
    if (!THPVariable_Check(result)) {
        PyErr_SetString(PyExc_TypeError, "a differentiable output is a tensor");
        return nullptr;
    }
    at::Tensor t = THPVariable_Unpack(result);
    if (t.requires_grad() || t.is_view()) {
        t = t.detach();
        result = THPVariable_Wrap(t);
    } else
        Py_INCREF(result);
    torch::autograd::set_history(t, node);
    return result;
}

PyObject *apply_call_(Apply *a, PyObject *const *args, Py_ssize_t n)
{
    const bool recording = at::GradMode::is_enabled();
    at::AutoGradMode no_grad(false);
    at::AutoFwGradMode no_fw_grad(false);
    torch::autograd::edge_list edges;
    std::vector<Py_ssize_t> inputs;
    THPObjectPtr context(Context_Type.tp_alloc(&Context_Type, 0));
    if (!context)
        return nullptr;
    Context *c = (Context *)context.get();
    if (!(c->needs_input_grad = needs_of(args, n, edges, inputs)))
        return nullptr;
    PyObject *few[17], **given = few;
    std::vector<PyObject *> many;
    if (n > 16) {
        many.resize(n + 1);
        given = many.data();
    }
    given[0] = context.get();
    std::copy(args, args + n, given + 1);
    THPObjectPtr results(PyObject_Vectorcall(a->forward, given, n + 1, nullptr));
    if (!results || !recording || edges.empty())
        return results.release();
    NodePtr node = make_node<NodePtr>(std::move(edges), std::move(inputs), a->backward, c);
    auto *compiled = static_cast<CompiledNode *>(node.get());
    c->node = compiled;
    THPObjectPtr out;
    if (PyTuple_Check(results.get())) {
        out = PyTuple_New(PyTuple_GET_SIZE(results.get()));
        for (Py_ssize_t i = 0; out && i < PyTuple_GET_SIZE(results.get()); i++) {
            PyObject *one = output(PyTuple_GET_ITEM(results.get(), i), node);
            if (!one)
                return nullptr;
            PyTuple_SET_ITEM(out.get(), i, one);
        }
    } else
        out = output(results.get(), node);
    if (!out || !c->to_save)
        return out.release();
    THPObjectPtr to_save(Py_NewRef(c->to_save));                /* hooks for saved tensors run */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(to_save.get()); i++) {
        PyObject *kept = PyTuple_GET_ITEM(to_save.get(), i);
        if (!THPVariable_Check(kept)) {
            PyErr_SetString(PyExc_TypeError, "tensors alone are kept for backward");
            return nullptr;
        }
        const at::Tensor &t = THPVariable_Unpack(kept);
        compiled->saved.emplace_back(t, t.grad_fn().get() == compiled);
    }
    Py_CLEAR(c->to_save);
    return out.release();
}

PyObject *apply_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *)
{
    try {
        return apply_call_((Apply *)self, args, PyVectorcall_NARGS(nargsf));
    } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

PyObject *apply_new(PyTypeObject *type, PyObject *args, PyObject *)
{
    PyObject *forward, *backward;
    if (!PyArg_ParseTuple(args, "OO", &forward, &backward))
        return nullptr;
    Apply *a = (Apply *)type->tp_alloc(type, 0);
    if (a) {
        a->vectorcall = apply_call;
        a->forward = Py_NewRef(forward);
        a->backward = Py_NewRef(backward);
    }
    return (PyObject *)a;
}

int apply_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Apply *)self)->forward);
    Py_VISIT(((Apply *)self)->backward);
    return 0;
}

int apply_clear(PyObject *self)
{
    Py_CLEAR(((Apply *)self)->forward);
    Py_CLEAR(((Apply *)self)->backward);
    return 0;
}

void apply_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    apply_clear(self);
    PyObject_GC_Del(self);
}

PyTypeObject Apply_Type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject Node_Type = {PyVarObject_HEAD_INIT(nullptr, 0)};

/* ---- the next operator, for the hook that rests (hook.c): one call of `alarm`, from whatever thread runs it, maybe
   without the GIL */
std::atomic<void (*)(void)> alarm{nullptr};
at::CallbackHandle alarm_handle = at::INVALID_CALLBACK_HANDLE;

std::unique_ptr<at::ObserverContext> operator_begins(const at::RecordFunction &)
{
    if (auto f = alarm.exchange(nullptr))
        f();
    return nullptr;
}

void arm(void (*f)(void))                                       /* with the GIL */
{
    alarm = f;
    if (alarm_handle == at::INVALID_CALLBACK_HANDLE)
        alarm_handle = at::addGlobalCallback(
            at::RecordFunctionCallback(operator_begins).scopes({at::RecordScope::FUNCTION}));
}

void disarm(void)                                               /* with the GIL */
{
    alarm = nullptr;
    if (alarm_handle != at::INVALID_CALLBACK_HANDLE)
        at::removeCallback(alarm_handle);
    alarm_handle = at::INVALID_CALLBACK_HANDLE;
}

/* Whether hooks run where a leaf's gradient is accumulated (on the node, which no attribute of the tensor tells). */
PyObject *is_hooked(PyObject *, PyObject *tensor)
{
    if (!THPVariable_Check(tensor)) {
        PyErr_SetString(PyExc_TypeError, "is_hooked(tensor)");
        return nullptr;
    }
    auto node = torch::autograd::impl::try_get_grad_accumulator(THPVariable_Unpack(tensor));
    return PyBool_FromLong(node && (!node->pre_hooks().empty() || !node->post_hooks().empty()));
}

PyMethodDef methods[] = {{"is_hooked", is_hooked, METH_O, "Whether hooks run where a leaf's gradient is accumulated."},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "_node", "The node that a compiled graph is in autograd's graph.", -1,
                          methods};

}  // namespace

PyMODINIT_FUNC PyInit__node(void)
{
    Context_Type.tp_name = "tcompile.compiler.native._node.Context";
    Context_Type.tp_doc = "What the forward and backward of a compiled graph see of one call.";
    Context_Type.tp_basicsize = sizeof(Context);
    Context_Type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    Context_Type.tp_members = context_members;
    Context_Type.tp_getset = context_getset;
    Context_Type.tp_traverse = context_traverse;
    Context_Type.tp_clear = context_clear;
    Context_Type.tp_dealloc = context_dealloc;
    Apply_Type.tp_name = "tcompile.compiler.native._node.Apply";
    Apply_Type.tp_doc =
        "Apply(forward, backward): apply(*inputs) is what autograd.Function.apply is for a Function of these.";
    Apply_Type.tp_basicsize = sizeof(Apply);
    Apply_Type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
    Apply_Type.tp_new = apply_new;
    Apply_Type.tp_call = PyVectorcall_Call;
    Apply_Type.tp_vectorcall_offset = offsetof(Apply, vectorcall);
    Apply_Type.tp_traverse = apply_traverse;
    Apply_Type.tp_clear = apply_clear;
    Apply_Type.tp_dealloc = apply_dealloc;
    THPObjectPtr module(PyModule_Create(&module_def));
    if (!module || PyType_Ready(&Context_Type) < 0 || PyModule_AddType(module, &Apply_Type) < 0)
        return nullptr;
    torch::autograd::_initFunctionPyTypeObject(Node_Type, "TCompiledBackward", nullptr, nullptr);
    torch::autograd::registerCppFunction(typeid(CompiledNode), &Node_Type);
    PyObject *arms = Py_BuildValue("(NN)", PyCapsule_New((void *)arm, "tcompile.arm", nullptr),
                                   PyCapsule_New((void *)disarm, "tcompile.disarm", nullptr));
    if (!arms || PyModule_AddObject(module, "alarm", arms) < 0) {
        Py_XDECREF(arms);
        return nullptr;
    }
    if (PyModule_AddIntConstant(module, "API", NODE_API) < 0 ||
        PyModule_AddObjectRef(module, "Node", (PyObject *)&Node_Type) < 0)
        return nullptr;
    return module.release();
}
