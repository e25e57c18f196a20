"""For every rule: a problem in which it speaks, and one in which it has nothing to say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ort_metainfer.problem import TensorSpec
from ort_metainfer.strategy import Strategy, Transform
from tests.made_problems import (
    CANN_NPU,
    COREML_NPU,
    CPU,
    CUDA,
    CUDA_GPU,
    DIRECTML_GPU,
    DYNAMIC_IMAGE,
    GATED,
    LSTM,
    MIGRAPHX_GPU,
    NAMELESS_IMAGE,
    NXRT_CPU,
    OPENVINO,
    OPENVINO_AUTO,
    OPENVINO_CPU,
    QNN,
    QNN_NPU,
    RESNET,
    SMALL_MLP,
    SQUEEZENET,
    TENSORRT_GPU,
    TRANSFORMER,
    VITISAI_NPU,
    WEBGPU_GPU,
    XNNPACK_CPU,
    chip,
    cpu_profile,
    device,
    product,
)

THREADS = Strategy(session_options={"intra_op_num_threads": 1})
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
ON_OPENVINO = Strategy(provider=OPENVINO, provider_options=EXACT)
IN_BF16 = Strategy(provider=OPENVINO, provider_options={"INFERENCE_PRECISION_HINT": "bf16"})
PARALLEL = Strategy(session_options={"execution_mode": "parallel", "inter_op_num_threads": 2})
ON_GPU = Strategy(provider=CUDA, provider_options={"use_tf32": "0"})
REWRITTEN = Strategy(transforms=(Transform("gelu-to-contributed"),))
QUANTISED = Strategy(transforms=(Transform("int8-dynamic"),))
HEAVY = {"macs": 2_000_000_000, "others": (OPENVINO_CPU, OPENVINO_AUTO)}
WITH_OPENVINO = {"others": (OPENVINO_CPU,)}
REAL = {"accuracy": "fast", "inputs_are_real": True}
VNNI = {**REAL, "features": ("avx512_vnni",)}
IMAGE_SIZES = {"inputs": DYNAMIC_IMAGE, "shapes": {"x": (1, 3, 320, 640)}}
MODERATE = {"macs": 154_000_000}
SPELLED_GELU = {"operators": {"MatMul": 8, "Erf": 2}, "opset": 20, "others": (device("ggml", "cpu"),)}
ON_CUDA = {"others": (CUDA_GPU,)}
ON_NPU = Strategy(provider=QNN, provider_options={"enable_htp_fp16_precision": "0"})
ON_CHIP = Strategy(provider="SimulatedExecutionProvider")
LINE = (TensorSpec("x", "float32", (1, 12, 4096)),)
WAITS_FOR_MEMORY = {"profiles": cpu_profile(1e11, 1e10), "work": (product(1, 1024, 1024),)}

PROPOSING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # rule: (a problem it proposes for, one it has nothing to propose for)
    "gelu_stays_composed": (SPELLED_GELU, {**SPELLED_GELU, "opset": 17}),
    "pipeline_spinning": ({"objective": "pipeline"}, {"objective": "latency"}),
    "throughput_threads_per_caller": ({"objective": "throughput", "callers": 2}, {"objective": "latency"}),
    "throughput_without_spinning": (
        {"objective": "throughput", "callers": 2},
        {"objective": "throughput", "callers": 2, "cores": 1.0},
    ),
    "tail_within_the_quota": (
        {"objective": "tail", "cores": 2.5, "lasting_limit": True},
        {"objective": "tail", "cores": 2.0},
    ),
    "tail_of_one_thread": ({"objective": "tail"}, {"objective": "pipeline"}),
    "memory_pattern_off": ({"objective": "memory"}, {}),
    "memory_of_one_layout": ({"objective": "memory"}, {"objective": "tail"}),
    "memory_arena_off": ({"objective": "memory"}, {"objective": "throughput", "callers": 2}),
    "memory_of_weights_held_once": ({"objective": "memory"}, {}),
    "threads_of_the_limit": ({"cores": 2.0, "lasting_limit": True}, {"cores": 2.0}),
    "no_spinning_under_fractional_quota": (
        {"cores": 2.5, "lasting_limit": True},
        {"cores": 2.0, "lasting_limit": True},
    ),
    "one_thread_for_tiny_models": ({"operators": SMALL_MLP, "macs": 4_000}, {"macs": 154_000_000}),
    "one_thread_for_recurrent_at_batch_1": (
        {"operators": LSTM},
        {"operators": LSTM, "inputs": (TensorSpec("x", "float32", (16, 512)),)},
    ),
    "parallel_for_wide_graphs": ({"operators": SQUEEZENET}, {"operators": SQUEEZENET, "cores": 2.0}),
    "static_shapes_as_given": (IMAGE_SIZES, {"inputs": DYNAMIC_IMAGE}),
    "extended_level_without_convolutions": ({"operators": TRANSFORMER}, {"operators": RESNET}),
    "openvino_reduced_precision": (WITH_OPENVINO, {"others": (device(OPENVINO),)}),
    "openvino_float32_convolutions": (HEAVY, {**HEAVY, "macs": 154_000_000}),
    "openvino_float32_matrix_products": ({**HEAVY, "operators": TRANSFORMER}, {**HEAVY, "operators": RESNET}),
    "openvino_static_quantised": ({**HEAVY, "quantisation": "qdq"}, HEAVY),
    "openvino_static_shapes": ({**HEAVY, **IMAGE_SIZES}, HEAVY),
    "openvino_unoptimised_graph": (HEAVY, {**HEAVY, "allowed": (CPU,)}),
    "openvino_auto_device": (HEAVY, {**HEAVY, **WITH_OPENVINO}),
    "accelerator": ({"others": (CUDA_GPU,)}, {"others": (CUDA_GPU,), "macs": 1_000_000}),
    "int8_convolutions": (VNNI, {**VNNI, "inputs_are_real": False}),
    "int8_products": ({**VNNI, "operators": TRANSFORMER}, {**VNNI, "operators": RESNET}),
    "openvino_int8_convolutions": ({**REAL, **WITH_OPENVINO}, {**REAL, **WITH_OPENVINO, "quantisation": "qdq"}),
    "float16_on_accelerators": ({**REAL, "others": (CUDA_GPU,)}, {"others": (CUDA_GPU,)}),
    "int8_on_accelerators": ({**REAL, "others": (QNN_NPU,)}, {**REAL, "others": (CUDA_GPU,)}),
    "a16w8_on_accelerators": ({**REAL, "others": (QNN_NPU,)}, {**REAL, "others": (CUDA_GPU,)}),
    "openvino_fixed_shapes": (
        {**WITH_OPENVINO, **IMAGE_SIZES, "macs": 154_000_000},
        {**WITH_OPENVINO, "inputs": DYNAMIC_IMAGE, "macs": 154_000_000},
    ),
    "gelu_as_one_operator": ({"operators": {**TRANSFORMER, "Erf": 6}}, {"operators": TRANSFORMER}),
    "shapes_as_constants": ({"operators": {**RESNET, "Shape": 4}}, {"operators": RESNET}),
    "fixed_shapes_by_input": (
        {"inputs": NAMELESS_IMAGE, "shapes": {"x": (1, 3, 224, 224)}},
        {"inputs": DYNAMIC_IMAGE, "shapes": {"x": (1, 3, 224, 224)}},
    ),
    "openvino_float32_moderate": ({**MODERATE, **WITH_OPENVINO}, HEAVY),
    "coreml_program": ({**REAL, "others": (COREML_NPU,)}, {"others": (COREML_NPU,)}),
    "cuda_heuristic_search": ({**ON_CUDA, "inputs": DYNAMIC_IMAGE}, ON_CUDA),
    "qnn_burst": ({**REAL, "others": (QNN_NPU,)}, {"others": (QNN_NPU,)}),
    "cuda_padded_lines": ({**ON_CUDA, "inputs": LINE}, ON_CUDA),
    "cuda_fused_bias": (ON_CUDA, {**ON_CUDA, "operators": TRANSFORMER}),
    "cuda_channels_last": ({**ON_CUDA, **REAL}, ON_CUDA),
    "channels_padded_for_matrix_units": (
        {**REAL, "others": (chip("nvidia-t4"),), "work": (product(64, 510, 1000),)},
        {**REAL, "others": (chip("nvidia-t4"),), "work": (product(64, 512, 1024),)},
    ),
    "transposes_placed_for_channels_last": (
        {"operators": {**RESNET, "Transpose": 8}, "others": (QNN_NPU,)},
        {"operators": {**RESNET, "Transpose": 8}, "others": (TENSORRT_GPU,)},
    ),
    "attention_fused_on_gpu": ({**ON_CUDA, "operators": TRANSFORMER}, ON_CUDA),
    "fuse_first_where_memory_is_the_limit": (
        {**WAITS_FOR_MEMORY, "operators": TRANSFORMER},
        {**WAITS_FOR_MEMORY, "operators": TRANSFORMER, "profiles": cpu_profile(1e9, 1e11)},
    ),
    "weights_in_fewer_bits": (
        {**REAL, **WAITS_FOR_MEMORY, "operators": TRANSFORMER},
        {**REAL, **WAITS_FOR_MEMORY, "operators": TRANSFORMER, "work": ()},
    ),
    "gelu_approximation": (
        {**REAL, "operators": {**TRANSFORMER, "Erf": 6}},
        {"operators": {**TRANSFORMER, "Erf": 6}},
    ),
    "arm_bfloat16_products": (
        {**REAL, "operators": TRANSFORMER, "features": ("asimd", "bf16")},
        {**REAL, "operators": TRANSFORMER, "features": ("asimd",)},
    ),
    "tensorrt_float16": ({**REAL, "others": (TENSORRT_GPU,)}, {"others": (TENSORRT_GPU,)}),
    "migraphx_float16": ({**REAL, "others": (MIGRAPHX_GPU,)}, {"others": (MIGRAPHX_GPU,)}),
    "bfloat16_on_accelerators": ({**ON_CUDA, **REAL}, ON_CUDA),
    "described_chip_in_its_type": (
        {**REAL, "others": (chip("google-coral-edge-tpu"),)},
        {"others": (chip("google-coral-edge-tpu"),)},
    ),
    "directml_fixed_shapes": (
        {**IMAGE_SIZES, "others": (DIRECTML_GPU,)},
        {"inputs": DYNAMIC_IMAGE, "others": (DIRECTML_GPU,)},
    ),
    "composed_where_lacking": (
        {"operators": {**RESNET, "HardSigmoid": 4}, "others": (device("NnapiExecutionProvider", "npu"),)},
        {"operators": {**RESNET, "HardSigmoid": 4}, "others": (CUDA_GPU,)},
    ),
    "two_dimensions_where_one_is_lacking": (
        {"inputs": LINE, "others": (CANN_NPU,)},
        {"others": (CANN_NPU,)},
    ),
    "vitisai_opset": ({"opset": 11, "others": (VITISAI_NPU,)}, {"others": (VITISAI_NPU,)}),
    "other_cpu_provider": ({"others": (NXRT_CPU,)}, {"others": (NXRT_CPU,), "macs": 1_000_000}),
}

FORBIDDING: dict[str, tuple[dict[str, Any], Strategy, dict[str, Any], Strategy]] = {
    # rule: (a problem, a strategy vetoed there; a problem, a strategy that passes there)
    "pinned_option": ({"pinned": {"intra_op_num_threads": "2"}}, THREADS, {}, THREADS),
    "pinned_dimension": ({"pinned": {"dim:N": "1"}}, Strategy(static_shapes={"N": 1}), {}, THREADS),
    "provider_not_allowed": ({**WITH_OPENVINO, "allowed": (CPU,)}, ON_OPENVINO, WITH_OPENVINO, ON_OPENVINO),
    "provider_absent": ({"allowed": (CPU, OPENVINO)}, ON_OPENVINO, WITH_OPENVINO, ON_OPENVINO),
    "compiled_graph_cannot_be_saved": (
        {**WITH_OPENVINO, "pinned": {"optimized_model_filepath": "/tmp/o.onnx"}},
        ON_OPENVINO,
        {"pinned": {"optimized_model_filepath": "/tmp/o.onnx"}},
        THREADS,
    ),
    "rewrite_not_legal_for_provider": (
        WITH_OPENVINO,
        replace(ON_OPENVINO, transforms=REWRITTEN.transforms),
        {},
        REWRITTEN,
    ),
    "lossy_under_strict": (WITH_OPENVINO, IN_BF16, WITH_OPENVINO, ON_OPENVINO),
    "lossy_on_synthetic_inputs": (
        {**WITH_OPENVINO, "accuracy": "fast"},
        IN_BF16,
        {**WITH_OPENVINO, "accuracy": "fast", "inputs_are_real": True},
        IN_BF16,
    ),
    "machine_busy": ({"others_cpu": 1.0}, THREADS, {"others_cpu": 1.0, "lasting_limit": True}, THREADS),
    "global_thread_pool": ({"pinned": {"use_per_session_threads": "False"}}, THREADS, {}, THREADS),
    "parallel_only_for_wide_graphs": ({"operators": RESNET}, PARALLEL, {"operators": SQUEEZENET}, PARALLEL),
    "no_more_threads_than_cores": (
        {"cores": 2.0},
        Strategy(session_options={"intra_op_num_threads": 4}),
        {"cores": 4.0},
        Strategy(session_options={"intra_op_num_threads": 4}),
    ),
    "layout_level_for_convolutions": (
        {"operators": RESNET},
        Strategy(session_options={"graph_optimization_level": "extended"}),
        {"operators": TRANSFORMER},
        Strategy(session_options={"graph_optimization_level": "extended"}),
    ),
    "only_sizes_given": (
        IMAGE_SIZES,
        Strategy(static_shapes={"H": 640}),
        IMAGE_SIZES,
        Strategy(static_shapes={"H": 320}),
    ),
    "memory_arena_stays": (
        {},
        Strategy(session_options={"enable_cpu_mem_arena": False}),
        {},
        Strategy(session_options={"enable_mem_pattern": False}),
    ),
    "blocked_rewrites": ({"blockers": ("training",)}, REWRITTEN, {}, REWRITTEN),
    "compiled_model_stays": ({**WITH_OPENVINO, "blockers": ("EPContext",)}, ON_OPENVINO, WITH_OPENVINO, ON_OPENVINO),
    "weights_exceed_device_memory": (
        {"others": (device(CUDA, "gpu", memory_mb=16.0),)},
        ON_GPU,
        {"others": (device(CUDA, "gpu", memory_mb=16_000.0),)},
        ON_GPU,
    ),
    "webgpu_not_for_recurrent": (
        {"operators": LSTM, "others": (WEBGPU_GPU,)},
        Strategy(provider=WEBGPU_GPU.provider),
        {"others": (WEBGPU_GPU,)},
        Strategy(provider=WEBGPU_GPU.provider),
    ),
    "no_gpu_for_many_small_nodes": (
        {**ON_CUDA, "operators": {"Add": 4000, "MatMul": 8}, "macs": 100_000_000},
        ON_GPU,
        {**ON_CUDA, "operators": {"Add": 4000, "MatMul": 8}, "macs": 10_000_000_000},
        ON_GPU,
    ),
    "no_device_for_few_operators": (
        {"operators": {"Conv": 2, "LSTM": 1, "Softmax": 9}, "others": (chip("amd-zcu102-b4096"),)},
        ON_CHIP,
        {"others": (chip("amd-zcu102-b4096"),)},
        ON_CHIP,
    ),
    "no_gpu_for_light_control_flow": (
        {**ON_CUDA, "operators": GATED, "macs": 100_000_000},
        ON_GPU,
        {**ON_CUDA, "operators": GATED, "macs": 10_000_000_000},
        ON_GPU,
    ),
    "no_fixed_function_for_loops": (
        {"operators": {**RESNET, "Loop": 1}, "others": (QNN_NPU,)},
        ON_NPU,
        {"operators": {**RESNET, "If": 1}, "others": (QNN_NPU,)},
        ON_NPU,
    ),
    "no_fixed_function_for_dynamic_int8": (
        {"quantisation": "dynamic", "others": (chip("cadence-vision-c5"),)},
        ON_CHIP,
        {"quantisation": "dynamic", "others": (chip("nvidia-t4"),)},
        ON_CHIP,
    ),
    "no_fixed_function_for_float64": (
        {"inputs": (TensorSpec("x", "float64", (1, 3, 224, 224)),), "others": (QNN_NPU,)},
        ON_NPU,
        {"others": (QNN_NPU,)},
        ON_NPU,
    ),
    "no_channels_last_twice": (
        {},
        Strategy(transforms=(Transform("quantised-channels-last"),)),
        {},
        Strategy(
            transforms=(Transform("quantised-channels-last"),),
            session_options={"graph_optimization_level": "basic"},
        ),
    ),
    "no_padding_where_memory_is_the_limit": (
        WAITS_FOR_MEMORY,
        Strategy(transforms=(Transform("channels-padded"),)),
        {},
        Strategy(transforms=(Transform("channels-padded"),)),
    ),
    "no_gelu_without_division": (
        {"operators": {**TRANSFORMER, "Erf": 6}},
        Strategy(transforms=(Transform("div-to-mul"),)),
        {"operators": TRANSFORMER},
        Strategy(transforms=(Transform("div-to-mul"),)),
    ),
    "native_operators_stay": (
        {"operators": TRANSFORMER},
        Strategy(transforms=(Transform("layer-norm-to-composed"),)),
        {"operators": TRANSFORMER, "others": (chip("hailo-8"),)},
        replace(ON_CHIP, transforms=(Transform("layer-norm-to-composed"),)),
    ),
    "convolutions_stay_on_cpu": (
        {},
        Strategy(transforms=(Transform("conv-to-matmul"),)),
        ON_CUDA,
        replace(ON_GPU, transforms=(Transform("conv-to-matmul"),)),
    ),
    "no_signed_activations_on_x86": (
        {"features": ("avx512_vnni",)},
        Strategy(transforms=(Transform("int8-static", parameters={"scheme": "s8s8"}),)),
        {"features": ("asimd", "dotprod")},
        Strategy(transforms=(Transform("int8-static", parameters={"scheme": "s8s8"}),)),
    ),
    "no_int8_convolutions_without_units": (
        {"features": ("avx2",)},
        Strategy(transforms=(Transform("int8-static"),)),
        {"features": ("avx2", "avx_vnni")},
        Strategy(transforms=(Transform("int8-static"),)),
    ),
    "no_half_precision_on_cpu": (
        {},
        Strategy(transforms=(Transform("float16"),)),
        ON_CUDA,
        replace(ON_GPU, transforms=(Transform("float16"),)),
    ),
    "no_second_reduction": ({"quantisation": "qdq"}, QUANTISED, {}, QUANTISED),
    "no_unsigned_weights": (
        {"features": ("avx2",)},
        Strategy(session_config={"session.x64quantprecision": "1"}),
        {"features": ("asimd",)},
        Strategy(session_config={"session.x64quantprecision": "1"}),
    ),
    "openvino_not_for_dynamic_int8": (
        {**WITH_OPENVINO, "quantisation": "dynamic"},
        ON_OPENVINO,
        {**WITH_OPENVINO, "quantisation": "qdq"},
        ON_OPENVINO,
    ),
    "openvino_not_for_control_flow": ({**WITH_OPENVINO, "operators": GATED}, ON_OPENVINO, WITH_OPENVINO, ON_OPENVINO),
    "openvino_not_for_tiny_models": ({**WITH_OPENVINO, "macs": 16_000_000}, ON_OPENVINO, WITH_OPENVINO, ON_OPENVINO),
    "no_accelerator_below_transfer_cost": (
        {"others": (CUDA_GPU,), "macs": 1_000_000},
        ON_GPU,
        {"others": (CUDA_GPU,)},
        ON_GPU,
    ),
}


REQUIRING: dict[str, tuple[dict[str, Any], Strategy, Strategy | None, dict[str, Any], Strategy]] = {
    # rule: (a problem, a strategy there, what it becomes (None: it cannot be had); a problem, one that stays there)
    "gelu_stays_composed": (
        SPELLED_GELU,
        Strategy(provider="ggml"),
        Strategy(provider="ggml", session_config={"optimization.disable_specified_optimizers": "GeluFusionL1"}),
        {**SPELLED_GELU, "opset": 17},
        Strategy(provider="ggml"),
    ),
    "device_needs_fixed_shapes": (
        {**IMAGE_SIZES, "others": (QNN_NPU,)},
        ON_NPU,
        replace(ON_NPU, static_shapes={"N": 1, "H": 320, "W": 640}),
        {**IMAGE_SIZES, "others": (CUDA_GPU,)},
        ON_GPU,
    ),
    "device_needs_quantised": (
        {"others": (chip("google-coral-edge-tpu"),)},
        ON_CHIP,
        replace(ON_CHIP, provider_options={"precision": "int8"}),
        {"others": (chip("intel-npu-4"),)},
        ON_CHIP,
    ),
    "tensorrt_int8_for_quantised": (
        {"quantisation": "qdq", "others": (TENSORRT_GPU,)},
        Strategy(provider=TENSORRT_GPU.provider),
        Strategy(provider=TENSORRT_GPU.provider, provider_options={"trt_int8_enable": "True"}),
        {"others": (TENSORRT_GPU,)},
        Strategy(provider=TENSORRT_GPU.provider),
    ),
    "xnnpack_threads": (
        {"others": (XNNPACK_CPU,)},
        Strategy(provider=XNNPACK_CPU.provider),
        Strategy(
            provider=XNNPACK_CPU.provider,
            provider_options={"intra_op_num_threads": "4"},
            session_options={"intra_op_num_threads": 1},
            session_config={"session.intra_op.allow_spinning": "0"},
        ),
        {"others": (XNNPACK_CPU,), "cores": 1.0},
        Strategy(provider=XNNPACK_CPU.provider),
    ),
}
