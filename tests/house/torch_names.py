"""The private names of torch that the sources use. test_torch_names.py holds the sources and the installed torch
against this table.

A row: where the names lie, the names, what they are used for. A home with "()" is an object of OBJECTS, any other a
path to import. `name(a, b)` is called with these parameters, which must be there in this order; others must have
defaults. For operators these are the schema's arguments. `since` and `until` say from which version of torch on a name
is there, or gone; `instead` says what stands in its place. `cuda` names are there in builds for CUDA alone. What is
`optional` may be missing: the reason says what happens then.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from typing import Any, Callable

import torch

__all__ = ["Row", "ROWS", "OBJECTS", "NOT_TORCH"]


@dataclass(frozen=True)
class Row:
    home: str
    names: str
    use: str
    since: str = ""
    until: str = ""
    instead: str = ""
    cuda: bool = False
    optional: str = ""


@functools.cache
def _library() -> Any:
    """libtorch's C++ symbols, under their mangled names."""
    lib = os.path.join(os.path.dirname(torch.__file__), "lib")
    names = [n for n in ("libc10.so", "libtorch_cpu.so", "libtorch_cuda.so") if os.path.exists(os.path.join(lib, n))]
    libraries = [ctypes.CDLL(os.path.join(lib, n)) for n in names]

    class Symbols:
        def __getattr__(self, name: str) -> Any:
            found = [library for library in libraries if hasattr(library, name)]
            if not found:
                raise AttributeError(name)
            return getattr(found[0], name)

    return Symbols()


def _optimizer() -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    return optimizer


def _jagged() -> Any:
    """A nested tensor."""
    return torch.nested.nested_tensor_from_jagged(torch.ones(3, 2), torch.tensor([0, 1, 3]))


def _product() -> Any:
    """A node of autograd's graph that saved its operands."""
    x = torch.ones(1, requires_grad=True)
    return (x * x).grad_fn


@functools.cache
def _sharded() -> Any:
    """The state of a module that FSDP2 has parted, in a group of this process alone."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        module = fully_shard(torch.nn.Linear(2, 2), mesh=init_device_mesh("cpu", (1,)))
        module(torch.ones(1, 2))
        return module._get_fsdp_state()
    finally:
        dist.destroy_process_group()


OBJECTS: dict[str, Callable[[], Any]] = {
    "Tensor()": lambda: torch.ones(1),
    "Module()": lambda: torch.nn.Linear(1, 1),
    "LazyModule()": lambda: torch.nn.LazyLinear(1),
    "Optimizer()": _optimizer,
    "Node()": _product,
    "OpOverload()": lambda: torch.ops.aten.add.Tensor,
    "OpOverloadPacket()": lambda: torch.ops.aten.add,
    "Storage()": lambda: torch.ones(1).untyped_storage(),
    "FSDPState()": _sharded,
    "FSDPParamGroup()": lambda: _sharded()._fsdp_param_group,
    "NestedTensor()": _jagged,
    "FSDPParam()": lambda: _sharded()._fsdp_param_group.fsdp_params[0],
    "libtorch()": _library,
    "CustomOpDef()": lambda: torch.library.custom_op(
        "tcompile_names::made", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor"
    ),
}

ROWS = (
    # --- switches that are guarded, or turned while something runs
    Row(
        "torch._C",
        "_set_grad_enabled _get_tracing_state _get_function_stack_at _get_float32_matmul_precision _get_deterministic_algorithms "
        "_get_deterministic_algorithms_warn_only _get_deterministic_fill_uninitialized_memory _get_cublas_allow_tf32 _get_cudnn_allow_tf32 "
        "_get_cublas_allow_fp16_reduced_precision_reduction _get_cublas_allow_bf16_reduced_precision_reduction _get_cudnn_enabled "
        "is_grad_enabled is_autocast_enabled is_inference_mode_enabled _get_flash_sdp_enabled _get_mem_efficient_sdp_enabled _get_math_sdp_enabled "
        "_get_cudnn_sdp_enabled _get_overrideable_sdp_enabled _set_sdp_use_flash _set_sdp_use_mem_efficient _set_sdp_use_math "
        "_set_sdp_use_cudnn _set_sdp_use_overrideable",
        "state that guards compare and graphs switch",
    ),
    Row(
        "torch._C",
        "_are_functorch_transforms_active _is_torch_function_enabled _len_torch_function_stack _len_torch_dispatch_stack "
        "_functorch.is_functorch_wrapped_tensor _functorch.maybe_current_level _dispatch_tls_local_include_set _dispatch_tls_local_exclude_set",
        "modes and transforms under which a call runs as it is",
    ),
    Row(
        "torch._C",
        "_dispatch_keys _dispatch_key_parse _dispatch_has_kernel _dispatch_has_kernel_for_dispatch_key _dispatch_get_all_op_names "
        "_dispatch_kernel_for_dispatch_key_is_fallthrough "
        "DispatchKey.AutocastCPU DispatchKey.AutocastCUDA DispatchKey.CompositeExplicitAutograd DispatchKey.CompositeImplicitAutograd DispatchKeySet "
        "_get_privateuse1_backend_name",
        "which kernels an operator has, which tensors are plain",
    ),
    Row(
        "torch._C",
        "DisableTorchFunction DisableTorchFunctionSubclass _DisableTorchDispatch _AutoDispatchBelowAutograd "
        "_AutoDispatchBelowADInplaceOrView _ExcludeDispatchKeyGuard "
        "_SetExcludeDispatchKeyGuard _InferenceMode",
        "guards that are entered around torch's kernels",
    ),
    Row(
        "torch._C",
        "_has_torch_function _has_torch_function_unary _has_torch_function_variadic _disabled_torch_function_impl "
        "_disabled_torch_dispatch_impl",
        "how tensors of other classes are told",
    ),
    Row(
        "torch._C",
        "TensorBase TensorBase.__basicsize__ TensorBase.requires_grad _has_storage",
        "the layout of tensors that guards read",
    ),
    Row(
        "torch._C",
        "_FunctionBase",
        "Function.apply without its Python part",
        instead="autograd/bridge.py applies Functions by it",
    ),
    Row("torch._C._FunctionBase", "maybe_clear_saved_tensors", "what backward was given is freed after its last use"),
    Row(
        "torch.autograd.function", "Function._backward_cls", "a loss whose backward pass has run is printed as in eager"
    ),
    Row(
        "torch.autograd.function",
        "Function.apply",
        "custom autograd functions are captured instead of called",
        instead="capture/library/autograd_functions.py registers a handler for a Python function (to 2.13) and for a native class method (from 2.14)",
    ),
    Row(
        "torch._C._autograd",
        "_push_saved_tensors_default_hooks(pack_hook, unpack_hook) _pop_saved_tensors_default_hooks _top_saved_tensors_default_hooks "
        "_saved_tensors_hooks_disable _saved_tensors_hooks_enable _saved_tensors_hooks_get_disabled_error_message _unsafe_set_version_counter",
        "hooks on saved tensors, versions of tensors",
    ),
    Row(
        "torch._C",
        "_enter_dual_level _exit_dual_level _set_fwd_grad_enabled _is_fwd_grad_enabled",
        "forward-mode derivatives in graphs",
    ),
    Row("torch._VF", "_make_dual _unpack_dual", "forward-mode derivatives in graphs"),
    Row("torch.autograd.forward_ad", "_current_level", "forward-mode derivatives in graphs"),
    Row("torch._C", "_log_api_usage_once _show_config", "calls that capture leaves out, or makes"),
    Row("torch._C", "_current_autograd_node", "the module that a backward operation belongs to"),
    Row("torch._C", "_set_conj _set_neg", "how a traced view is read"),
    Row("torch", "_conj _neg_view", "views that turn how memory is read"),
    Row("torch._C", "_is_any_autocast_enabled", "whether autocast is on", optional="the public functions are asked"),
    Row(
        "torch._C",
        "_VariableFunctions _nn.elu _nn.hardtanh _nn.huber_loss _nn.leaky_relu _nn.linear _nn.one_hot _nn.pad _nn.pad_sequence _nn.smooth_l1_loss "
        "_nn.softplus _nn.softshrink _nn.scaled_dot_product_attention _special _linalg _fft",
        "torch's native functions by name",
    ),
    Row(
        "torch._C",
        "_cuda_getCurrentRawStream _cuda_isCurrentStreamCapturing _cuda_setDevice _cuda_getDevice",
        "streams and CUDA graphs",
        cuda=True,
    ),
    Row(
        "torch._C",
        "_storage_Use_Count",
        "whether somebody else holds a memory",
        optional="results of CUDA graphs are copied",
    ),
    Row("torch.cuda", "_sleep", "measures kernels with a full queue"),
    # --- Python parts of torch
    Row("torch._ops", "OpOverload OpOverloadPacket HigherOrderOperator", "what a node of a graph calls"),
    Row("OpOverload()", "_op_dk _overloadname _schema", "which operator a node calls"),
    Row("OpOverloadPacket()", "_qualified_op_name", "the name of an operator in exported files"),
    Row("torch", "_GLOBAL_DEVICE_CONTEXT", "torch.set_default_device"),
    Row("torch.utils._device", "DeviceContext _device_constructors", "with torch.device(...)"),
    Row(
        "torch",
        "_assert_async _check_is_size(i, message) _check_index _check_value _check_type _check_not_implemented _foreach_add_ _foreach_copy_ "
        "_safe_softmax _grouped_mm",
        "functions that programs call",
    ),
    Row("torch._utils", "is_compiling", "a function that is true in captured code"),
    Row("torch._jit_internal", "is_scripting", "a function that is false in captured code"),
    Row(
        "torch.utils._pytree",
        "tree_flatten(tree) tree_unflatten(leaves, treespec) tree_map(func, tree) tree_leaves(tree) tree_structure(tree)",
        "nested arguments and results",
    ),
    Row("torch.utils._python_dispatch", "TorchDispatchMode", "whether a mode watches a call; wrappers' factories"),
    Row("torch.utils._python_dispatch", "is_traceable_wrapper_subclass", "wrapper subclasses, which are captured"),
    Row("torch._functorch.vmap", "_broadcast_to_and_flatten(tree, treespec)", "the in_dims of vmap"),
    Row("torch._decomp", "decomposition_table", "operators without a rule of ours"),
    Row("torch._library.custom_ops", "OPDEFS CustomOpDef.register_autograd", "what a registered backward reads"),
    Row("CustomOpDef()", "_backward_fn _setup_context_fn", "what a registered backward reads"),
    Row("CustomOpDef()", "_abstract_fn _torch_dispatch_fns", "the function that an operator of triton_op was made of"),
    Row("torch.fx.node", "_get_qualified_name(func)", "the name under which a node's function is printed"),
    Row("torch.fx.node", "Node._rename", "a placeholder called self"),
    Row("torch.fx._symbolic_trace", "is_fx_symbolic_tracing", "whether somebody traces"),
    Row("torch._C", "_CudaDeviceProperties", "attributes of a device, which never change", cuda=True),
    Row("torch._C", "_jit_resolve_packet", "the overload that a call of a packet means"),
    Row("torch", "_weight_norm", "operators of exported files"),
    Row("torch.autograd.forward_ad", "_maybe_load_decompositions", "levels of forward gradients"),
    Row("Tensor()", "_typed_storage", "asking for a tensor's memory breaks"),
    Row("torch._guards", "DuplicateInputs StorageOverlap", "what backends of other people's relied on"),
    Row(
        "torch._C._dynamo.guards",
        "compute_overlapping_tensors",
        "views that share memory, for backends of other people's",
    ),
    Row(
        "torch._functorch._aot_autograd.input_output_analysis",
        "compute_overlapping_tensors",
        "views that share memory, for backends of other people's",
    ),
    Row(
        "torch.fx.experimental.symbolic_shapes",
        "ShapeEnv._suppress_guards_tls",
        "sizes that backends of other people's look at",
    ),
    Row(
        "torch._library.simple_registry",
        "singleton singleton._data SimpleOperatorEntry GenericTorchDispatchRuleHolder",
        "custom operators are told of TraceTensor",
    ),
    Row(
        "torch._library.simple_registry",
        "find_torch_dispatch_rule(op, torch_dispatch_class)",
        "what torch.library has of an operator on a class",
    ),
    Row("torch._numpy", "ndarray fft linalg", "numpy's functions in graphs"),
    Row(
        "torch.masked._ops",
        "_input_mask _reduction_identity _where is_masked_tensor _combine_input_and_mask",
        "torch.masked in graphs",
    ),
    Row("torch.Tensor", "_make_subclass _make_wrapper_subclass", "TraceTensor, tensors of the program's own classes"),
    Row(
        "Tensor()",
        "_backward_hooks _post_accumulate_grad_hooks _is_view _is_zerotensor _version _base _cdata _grad",
        "what capture knows of a tensor",
    ),
    Row(
        "Tensor()",
        "_is_param",
        "a wrapper subclass that counts as a parameter",
        optional="torch.nn.Parameter sets it on tensors",
    ),
    Row("Storage()", "_cdata", "where the memory's address lies"),
    Row("Node()", "_raw_saved_self _saved_self", "what eager keeps for backward"),
    Row("torch.nn.Module", "_call_impl _compiled_call_impl", "calls of modules are interpreted"),
    Row(
        "Module()",
        "_parameters _buffers _modules _forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks "
        "_forward_hooks_with_kwargs _forward_pre_hooks_with_kwargs _forward_hooks_always_called",
        "the tables of a module",
    ),
    Row("LazyModule()", "_initialize_hook", "a lazy module's first call runs as it is"),
    Row(
        "torch.nn.modules.module",
        "_global_backward_hooks _global_backward_pre_hooks _global_forward_hooks _global_forward_pre_hooks "
        "_global_buffer_registration_hooks _global_module_registration_hooks _global_parameter_registration_hooks",
        "hooks on all modules",
    ),
    Row(
        "torch.optim.optimizer",
        "_global_optimizer_pre_hooks _global_optimizer_post_hooks _get_value(x) _default_to_fused_or_foreach",
        "steps of optimizers in graphs",
    ),
    Row(
        "Optimizer()",
        "_optimizer_step_pre_hooks _optimizer_step_post_hooks _optimizer_step_code",
        "steps of optimizers in graphs",
    ),
    Row(
        "Optimizer()",
        "_cuda_graph_capture_health_check",
        "a check that capture leaves out",
        optional="older torch has no such check to leave out",
    ),
    Row("torch.distributions", "Distribution._validate_args", "checks that capture leaves to eager"),
    Row("torch.fx._symbolic_trace", "_is_fx_tracing_flag", "stock refuses to run while it is set", until="2.14"),
    Row("torch.fx._symbolic_trace", "Tracer.trace", "whether somebody traces"),
    Row("torch.fx.graph_module", "_loader.eval_cache", "source lines of graphs that are gone"),
    Row(
        "torch.fx._lazy_graph_module",
        "_LazyGraphModule _LazyGraphModule._lazy_forward",
        "source of graphs when it is read",
    ),
    Row(
        "libtorch()",
        "_ZN3c1013AutogradState13get_tls_stateEv _ZN3c104impl26raw_local_dispatch_key_setE",
        "guards in C read the state of the thread",
        optional="guards call torch's Python functions instead, slower",
    ),
    Row("libtorch()", "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm", "random numbers in CUDA graphs", cuda=True),
    # --- torch.compile's own parts, which the two adapters use
    Row("torch._dynamo", "list_backends optimize reset", "backends of other people's"),
    Row("torch._dynamo.backends.registry", "lookup_backend _COMPILER_FNS", "torch.compile(backend='tcompile')"),
    Row(
        "torch._dynamo.exc",
        "SkipFrame exceptions_allowed_to_be_fallback",
        "what backends of other people's may raise to give a frame up",
    ),
    Row("torch._dynamo.source", "LocalSource", "graphs with symbolic sizes for backends of other people's"),
    Row("torch._dynamo.utils", "counters get_compilation_metrics", "the report beside stock's"),
    Row("torch._dynamo.utils", "_get_error_on_graph_break _set_error_on_graph_break", "error_on_graph_break"),
    Row("torch.autograd", "_is_checkpoint_valid", "reentrant checkpoints"),
    Row("torch.autograd.graph", "_engine_run_backward", "gradients of tangents that fit"),
    Row("torch._dynamo.trace_rules", "_allowed_callable_ids", "torch.compiler.allow_in_graph"),
    Row("torch.distributed.distributed_c10d", "_get_default_store", "ranks take rank 0's decision"),
    Row("torch.distributed.distributed_c10d", "_world _world.pg_names.items", "the process groups of a rank"),
    Row(
        "torch._C._distributed_c10d",
        "_dump_fr_trace_json _dump_nccl_trace_json",
        "what ranks' collectives were, and when",
        optional="reports of ranks have no collectives then",
    ),
    Row("torch._C._distributed_c10d", "_register_work", "who waits for a message waits for what it began"),
    Row("torch.distributed.ProcessGroup", "_get_backend", "ends what NCCL waits for, where a cell is to end"),
    Row(
        "torch.distributed.distributed_c10d",
        "_rank_not_in_group _resolve_process_group _get_group_size_by_name _canonicalize_group_rank",
        "which group a collective is of, and its size",
    ),
    Row(
        "torch.distributed._functional_collectives",
        "_resolve_group_name REDUCE_OP_TO_STR.get",
        "collectives in a graph name their group and operation",
    ),
    Row(
        "torch.ops._c10d_functional",
        "all_reduce.default all_gather_into_tensor.default reduce_scatter_tensor.default all_to_all_single.default "
        "broadcast.default wait_tensor.default",
        "collectives are operators of the graph",
    ),
    Row(
        "torch.distributed.fsdp._fully_shard._fsdp_state",
        "FSDPState._pre_forward(self, module, args, kwargs) FSDPState._post_forward(self, module, input, output)",
        "FSDP2's hooks, in whose place the graph gathers parameters",
    ),
    Row(
        "torch._C",
        "DispatchKey DispatchKey.AutogradFunctionality DispatchKey.AutogradOther DispatchKey.AutogradNestedTensor"
        " DispatchKey.ADInplaceOrView DispatchKey.CompositeImplicitAutogradNestedTensor _EnableTorchFunction"
        " _dispatch_tls_is_dispatch_key_excluded _dispatch_tls_set_dispatch_key_excluded",
        "autograd sees the values of nested tensors alone",
    ),
    Row("torch._C", "_current_graph_task_id", "which backward pass a stage belongs to"),
    Row("torch.distributed", "_DEFAULT_FIRST_BUCKET_BYTES", "when the first bucket of gradients is full"),
    Row(
        "torch.nn.parallel.distributed.DistributedDataParallel",
        "_get_active_ddp_module",
        "whether gradients are waited for bucket by bucket",
    ),
    Row("torch.nested._internal.nested_int", "NestedIntNode", "sizes of ragged dimensions"),
    Row(
        "torch.nested._internal.nested_tensor",
        "NestedTensor _nt_view_dummy _store_val_in_tensor _tensor_symint_registry get_tensor_symint"
        " nested_view_from_values_offsets_lengths",
        "nested tensors are taken apart and put together",
    ),
    Row("torch.nested._internal.ops", "jagged_torch_function lookup_jagged", "what operators do with nested tensors"),
    Row("torch.nested._internal.sdpa", "jagged_scaled_dot_product_attention", "attention over dense dimensions"),
    Row(
        "torch.ops.aten",
        "_nested_get_values _nested_view_from_jagged _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward",
        "done by us instead: torch has no gradients of them over values",
    ),
    Row(
        "NestedTensor()",
        "_values _offsets _lengths _ragged_idx _size _metadata_cache _maybe_max_seqlen _maybe_min_seqlen"
        " _get_max_seqlen _get_min_seqlen _max_seqlen _min_seqlen _max_seqlen_tensor _min_seqlen_tensor"
        " _is_contiguous_or_false",
        "what is inside of a nested tensor",
    ),
    Row("torch.distributed.tensor._api", "_FromTorchTensor", "a gathered parameter that was a DTensor before"),
    Row(
        "FSDPParam()",
        "_unsharded_dtensor_spec _tp_spec",
        "how a parameter was placed before it was parted",
        optional="one of both names is there",
    ),
    Row("torch.distributed._composable_state", "_module_state_mapping", "which modules are parted"),
    Row(
        "FSDPState()",
        "_state_ctx.all_states _state_ctx.iter_forward_root _state_ctx.post_optim_event _training_state _is_root _lazy_init _modules "
        "_mp_policy _device _fsdp_param_group",
        "which modules are parted, and what their hooks would do",
    ),
    Row(
        "FSDPState()",
        "_fsdp_param_groups",
        "what is gathered together",
        optional="a module has one group then",
    ),
    Row(
        "FSDPParamGroup()",
        "fsdp_params mesh_info post_forward_mesh_info reduce_grads reshard_after_backward gradient_divide_factor "
        "force_sum_reduction_for_comms _sharded_state _training_state _all_reduce_hook _all_gather_result "
        "_partial_reduce_output _all_gather_comm _reduce_scatter_comm _module_fqn _reduce_dtype",
        "what is gathered and reduced together, and how",
    ),
    Row(
        "FSDPParamGroup()",
        "_all_gather_output_fn _prepare_reduce_scatter_inputs",
        "whether the program says how what is exchanged is laid out",
        optional="the program can't say it then",
    ),
    Row(
        "FSDPParam()",
        "_has_sharded_grad_dtype_override",
        "whether the program gave a gradient's dtype",
        optional="the program can't give it then",
    ),
    Row(
        "FSDPParam()",
        "sharded_param sharded_param._local_tensor sharded_param._spec.placements fsdp_placement mesh_info param_dtype "
        "orig_dtype padded_sharded_param_size sharded_size contiguous_sharded_stride to_sharded_dtensor offload_to_cpu "
        "is_dtensor unsharded_accumulated_grad _sharded_param_data _orig_size _module_info _unsharded_param",
        "one parameter that is parted, its part and its gradient",
    ),
    Row(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives",
        "DefaultAllGather DefaultReduceScatter",
        "whether the program says how parameters are exchanged",
    ),
    Row(
        "torch.distributed.fsdp._fully_shard._fsdp_common",
        "FSDPMeshInfo HSDPMeshInfo _cast_fp_tensor",
        "how parameters are parted; dtypes of a module's arguments and results",
    ),
    Row("torch.distributed.utils", "_apply_to_tensors", "dtypes of a module's arguments and results"),
    Row("torch._dynamo.eval_frame", "_stance", "torch.compiler.set_stance"),
    Row(
        "torch._C",
        "_dynamo.eval_frame _dynamo.eval_frame._FrameExecStrategy _dynamo.eval_frame._FrameAction",
        "stock's frame hook passes our frames over",
    ),
    Row(
        "torch._guards",
        "CompileContext CompileContext.current_compile_id TracingContext tracing",
        "graphs with symbolic sizes for backends of other people's",
    ),
    Row("torch._subclasses.fake_tensor", "FakeTensorMode", "graphs with symbolic sizes for backends of other people's"),
    Row(
        "torch._inductor.graph",
        "GraphLowering GraphLowering.save_output_code",
        "the report shows the code that inductor makes",
    ),
    # --- operators
    Row(
        "torch.ops.aten",
        "_local_scalar_dense.default _to_copy.default(self, dtype, layout, device, pin_memory, non_blocking, memory_format) _unsafe_view _unsafe_view.default "
        "_unsafe_index.Tensor _reshape_alias.default _assert_tensor_metadata.default _amp_foreach_non_finite_check_and_unscale_.default "
        "_amp_update_scale_.default",
        "what functional graphs are made of",
    ),
    Row(
        "torch.ops.aten",
        "_softmax.default(self, dim, half_to_float) _softmax_backward_data.default(grad_output, output, dim, input_dtype) "
        "_log_softmax.default(self, dim, half_to_float) _log_softmax_backward_data.default(grad_output, output, dim, input_dtype) _safe_softmax.default",
        "softmax and its gradient",
    ),
    Row(
        "torch.ops.aten",
        "_native_batch_norm_legit.default _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional.default "
        "_native_batch_norm_legit_no_training.default _fused_rms_norm.default(input, normalized_shape, weight, eps) "
        "_fused_rms_norm_backward.default(grad_out, input, normalized_shape, rstd, weight, output_mask)",
        "norms",
    ),
    Row("torch.ops.aten", "_conj.default _neg_view.default", "conjugate and negative views"),
    Row(
        "torch.ops.aten",
        "_cdist_backward.default _cdist_forward.default _euclidean_dist.default _is_all_true.default _is_any_true.default "
        "_weight_norm_interface.default _weight_norm_interface_backward.default _embedding_bag.default _prelu_kernel.default _prelu_kernel_backward.default _use_cudnn_ctc_loss.Tensor "
        "_use_cudnn_ctc_loss.default _use_miopen_ctc_loss.default mkldnn_rnn_layer.default._schema",
        "operators of torch.nn",
    ),
    Row(
        "torch.ops.aten",
        "_use_miopen_ctc_loss.Tensor",
        "operators of torch.nn",
        optional="nothing: there is no such operator to refuse",
    ),
    Row(
        "torch.ops.aten",
        "_scaled_dot_product_flash_attention.default(query, key, value, dropout_p, is_causal) _scaled_dot_product_flash_attention_backward.default "
        "_scaled_dot_product_efficient_attention.default _scaled_dot_product_efficient_attention_backward.default "
        "_scaled_dot_product_cudnn_attention.default _scaled_dot_product_cudnn_attention_backward.default _scaled_dot_product_flash_attention_for_cpu "
        "_fused_sdp_choice",
        "attention by the library's kernels",
    ),
    Row(
        "torch.ops.mkldnn",
        "_convolution_pointwise.default _linear_pointwise.default _reorder_convolution_weight.default _reorder_linear_weight.default "
        "_is_mkldnn_bf16_supported",
        "products and convolutions by oneDNN",
    ),
)

# Private names that the sources read and that are not torch's.
NOT_TORCH = frozenset(
    (
        "_DummyThread",
        "_SubParsersAction",
        "_abc_init",
        "_autograd",
        "_current_frames",
        "_fields",
        "_filters_mutated",
        "_get_dump",
        "_getframe",
        "_inline_cache_entries",
        "_inst",
        "_nb_ops",
        "_rand",
        "_render_traceback_",
        "_is_protocol",
        "_to",
        "_member_map_",
        "_member_names_",
        "_value2member_map_",
        "_at_fork_reinit",
        "_is_owned",
        "_module_locks",
        "_param_name_to_source",
    )
)
