"""Which of stock's tests do not apply to this compiler, and why: one table, read by suite.py.

A test applies where it compares values, gradients, effects or errors of what was compiled with eager's. CAUSES are
asked in order, for tests that do not
pass: `where` is "name" (the test's id) or "words" (of its failure), `pattern` a regular expression that is found there.
Tests of LARGE take gigabytes and minutes, and run on request alone (--large).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CAUSES", "LARGE", "Cause", "cause_of"]


@dataclass(frozen=True)
class Cause:
    where: str
    pattern: str
    reason: str


LARGE = r"\.test_large_(block_sizes|tensor_reduction|broadcast_reduction|pointwise|strided_reduction|offset_pointwise)_"

CAUSES: tuple[Cause, ...] = (
    Cause("words", r"Torch not compiled with CUDA enabled|CUDA not available", "needs CUDA"),
    Cause("words", r"install torch_xla", "needs torch_xla"),
    Cause(
        "name",
        r"\.test_mark_static_(nn_module_tensor|previously_seen_tensor|with_freezing)$",
        "a backend of the test counts the inputs of stock's graphs",
    ),
    Cause("name", r"\.test_torch_mangled_class_name$", "stock's own variables"),
    Cause("name", r"\.test_lazy_module4$", "expects the words of an error inside of stock; the error here is eager's"),
    Cause("name", r"\.test_cond_pytree_operands$", "stock's max() of tensors is not eager's"),
    Cause("name", r"\.test_(grad|vjp|vmap)_call_compiled_backward_fn$", "stock refuses what eager does"),
    Cause(
        "name",
        r"\.test_(cond_with_invalid_kwargs|hints_wrapper_no_hints|register_mode)$",
        "expects stock's words for a wrong call; the error here is eager's",
    ),
    Cause(
        "name",
        r"\.test_(numpy_min|guard_size_oblivious|sym_constrain_range_on_replaced_unbacked_symbol)$",
        "eager raises, stock does not",
    ),
    Cause(
        "name",
        r"\.test_unpack_tensor_shape_mismatch$",
        "expects stock's words for a wrong call; the error here is eager's",
    ),
    Cause(
        "name",
        r"\.test_(cat_unbacked|as_strided_on_existing_view_banned|backward_deterministic_mode_mismatch_warning)$",
        "stock refuses what eager does",
    ),
    Cause(
        "name",
        r"\.test_(cannot_trace_mark_dynamic|indexed_range|const_dict_variable_python_type|inspect_signature_bind_non_user_function)$",
        "stock's own variables",
    ),
    Cause(
        "name",
        r"\.test_(compilation_metrics_size_limit|graph_break_compilation_metrics(_on_failure)?|torch_guards_stack_frame_register_inlining(_deep)?)$",
        "stock's own records of compilations",
    ),
    Cause(
        "name",
        r"\.test_(generation_tag|duplicate_graph_break_log|getattrvariable_as_python_constant)$",
        "stock's log and counters",
    ),
    Cause("name", r"\.test_iterator_limit$", "eager never ends"),
    Cause("name", r"\.test_torch_compile_ctx_on_forward_and_training_step$", "attributes of stock's wrappers"),
    Cause(
        "name",
        r"\.test_torch_compile_in_compile_frame$",
        "what stands for torch.compile here is not what capture knows by its name",
    ),
    Cause("name", r"\.test_map_example_value_metadata_consistent_with_eager$", "reads the nodes of stock's graph"),
    Cause("name", r"\.test_(error_on_nested_fx_trace|jit_trace_errors)$", "stock refuses what works here"),
    Cause("name", r"\.test_pybind_object$", "an object of stock's own C++"),
    Cause(
        "name",
        r"\.test_inline_lru_cache_fn_with_default_args$",
        "stock computes again what functools.lru_cache keeps; here the cache is asked, outside of the graph",
    ),
    Cause(
        "words", r"has no attribute '(rename_|qr|move_exported_model_to_eval|should_pad_bench)'", "torch lacks it now"
    ),
    Cause("words", r"'prims' object has no attribute '_low_memory_max_pool2d_with_offsets'", "torch lacks it now"),
    Cause("name", r"\.test_numpy_readonly$", "stock's result is writable, eager's is not"),
    Cause("name", r"\.test_anomaly_aot_autograd$", "expects what stock's tracing of backward warns of"),
    Cause("name", r"\.test_nested_optimize_decorator$", "stock's torch._dynamo.run"),
    Cause("name", r"_subgraph_name_is_valid$", "names in stock's graphs"),
    Cause("name", r"\.test_aoti_eager_", "ahead-of-time libraries of inductor's"),
    Cause("name", r"\.test_cat_unbacked_legacy_empty_", "stock refuses what eager does"),
    Cause(
        "name", r"\.test_list_clearing_", "the calling convention of inductor's compiled graphs: a list that it empties"
    ),
    Cause(
        "name",
        r"\.test_linear_mixed_dtype_",
        "expects the words of an error inside of stock; the error here is eager's",
    ),
    Cause("name", r"\.test_(auto_simd|ir_node_str)$", "inductor's own tables and words"),
    Cause(
        "name",
        r"\.test_(profiler_mark_wrapper_call_|cpp_kernel_profile$)",
        "the names of inductor's kernels in a profile",
    ),
    Cause("name", r"\.test_conv_stride_constraints$", "the strides that inductor gives to library calls"),
    Cause("name", r"\.test_invalid_index_of_empty_tensor$", "expects a RuntimeError where eager raises an IndexError"),
    Cause(
        "name",
        r"\.test_cat_extern_kernel_",
        "products of products differ by float32's rounding, more than its tolerance allows",
    ),
)


def cause_of(name: str, words: str) -> str | None:
    """The reason for which a test that did not pass does not apply; None: it does."""
    for cause in CAUSES:
        if re.search(cause.pattern, name if cause.where == "name" else words):
            return cause.reason
    return None
