"""What is known of OpenVINO: its properties by device, what it wants of a graph, what it keeps, how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ort_metainfer.providers.base import INT_MAX, Option, option_table
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Failing, Preferences

__all__ = ["BUILT_IN", "CAPABILITIES", "OPTIONS", "OWNERS"]

BUILT_IN = "onnxruntime-openvino"
"""The distribution of an onnxruntime with OpenVINO compiled in."""

PROPERTIES = "OpenVINO documentation, properties of the CPU device (ov::hint, ov::streams)"
GPU_PROPERTIES = "OpenVINO documentation, group Intel GPU specific properties; not run on hardware"
NPU_PROPERTIES = "OpenVINO documentation, group Intel NPU specific properties; not run on hardware"
SEEN = "seen with onnxruntime-ep-openvino 1.8.1 on x86-64 Linux"
YES_NO = ("YES", "NO")
LEVELS = ("LOW", "MEDIUM", "HIGH")

OWNERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"GPU": ("GPU",), "NPU": ("NPU",)}
    | dict.fromkeys(("ENABLE_CPU_PINNING", "ENABLE_HYPER_THREADING", "SCHEDULING_CORE_TYPE"), ("CPU",))
)
"""First word of a property, or its whole name -> devices that have it; the others are common to all."""


OPTIONS: Mapping[str, Option] = option_table(
    Option(
        name="INFERENCE_PRECISION_HINT",
        values=("f32", "bf16", "f16"),
        default="",
        meaning="type that float32 models are computed in; unset, the device's fastest",
        lossy_values=("bf16", "f16"),
        source=f"{PROPERTIES}; relative error 6e-9 with f32, 2.5e-4 with bf16 and f16 (ResNet-50, own measurement)",
    ),
    Option(
        name="EXECUTION_MODE_HINT",
        values=("PERFORMANCE", "ACCURACY"),
        default="PERFORMANCE",
        meaning="whether the device may choose a smaller type; a precision hint wins over it",
        lossy_values=("PERFORMANCE",),
        source=f"{PROPERTIES}; ACCURACY gives the results of f32, with a bf16 hint those of bf16 (own measurement)",
    ),
    Option(
        name="PERFORMANCE_HINT",
        values=("LATENCY", "THROUGHPUT"),
        default="LATENCY",
        meaning="one request with all cores, or several side by side",
        source=PROPERTIES,
    ),
    Option(
        name="NUM_STREAMS",
        values=(),
        default="1",
        meaning="requests computed side by side",
        source=f"{PROPERTIES}; it takes 0 and any number of threads without a word (own measurement)",
        numbers=(1, INT_MAX),
    ),
    Option(
        name="INFERENCE_NUM_THREADS",
        values=(),
        default="",
        meaning="threads; OpenVINO does not heed intra_op_num_threads",
        source=PROPERTIES,
        numbers=(1, INT_MAX),
    ),
    Option("ENABLE_CPU_PINNING", YES_NO, "YES", "whether threads stay on their core", source=PROPERTIES),
    Option("ENABLE_HYPER_THREADING", YES_NO, "", "whether to use both threads of a core", source=PROPERTIES),
    Option(
        name="SCHEDULING_CORE_TYPE",
        values=("ANY_CORE", "PCORE_ONLY", "ECORE_ONLY"),
        default="ANY_CORE",
        meaning="which cores of a hybrid CPU to use",
        source=PROPERTIES,
    ),
    Option("GPU_QUEUE_PRIORITY", LEVELS, "MEDIUM", "priority of the OpenCL queue", source=GPU_PROPERTIES),
    Option(
        name="GPU_QUEUE_THROTTLE",
        values=LEVELS,
        default="MEDIUM",
        meaning="how a CPU thread waits for the GPU: LOW without holding a core",
        source=GPU_PROPERTIES,
    ),
    Option("GPU_HOST_TASK_PRIORITY", LEVELS, "MEDIUM", "priority of its threads", source=GPU_PROPERTIES),
    Option("GPU_DISABLE_WINOGRAD_CONVOLUTION", YES_NO, "NO", "leave Winograd out", source=GPU_PROPERTIES),
    Option("GPU_ENABLE_LOOP_UNROLLING", YES_NO, "YES", "unroll loops of fixed length", source=GPU_PROPERTIES),
    Option("NPU_TURBO", YES_NO, "NO", "ask the system for the highest NPU clock", source=NPU_PROPERTIES),
    Option(
        name="NPU_COMPILATION_MODE_PARAMS",
        values=(),
        default="",
        meaning="for the NPU's compiler: optimization-level=2 performance-hint-override=latency",
        source=f"{NPU_PROPERTIES}; OpenVINO documentation, NPU Device",
    ),
    Option(
        name="NPU_QDQ_OPTIMIZATION",
        values=YES_NO,
        default="NO",
        meaning="compute more of a QDQ graph in integers",
        source="name in the plug-in's library 1.8.1; not run on hardware",
    ),
)

CAPABILITIES = Capabilities(
    constraints=Constraints(
        dtypes=("float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "int4", "uint4", "bool"),
        notes=(
            "some graphs with open shapes raise at creation; the NPU wants fixed shapes",
            "QDQ graphs of 8 bits are computed in integers on every device",
        ),
        source=f"OpenVINO documentation, CPU, GPU and NPU Device; {SEEN}",
    ),
    preferences=Preferences(
        layouts=("NCHW",),
        precisions=("int8", "bfloat16", "float16", "float32"),
        source="OPTIMIZATION_CAPABILITIES of the devices' metadata",
    ),
    compiled=CompiledModel(
        form="EPContext",
        options={"ep.context_enable": "1", "ep.context_file_path": "{folder}/model_ctx.onnx"},
        invalidated_by=("model", "provider", "device", "options"),
        notes=(
            "not with the device AUTO",
            "with the blob embedded (ep.context_embed_mode=1) a model of 200 MB loaded more slowly than it compiled",
            "its compatibility text holds OpenVINO's version and the CPU's instruction set",
            "the property CACHE_DIR writes blobs, too, and gained next to nothing on the CPU",
        ),
        source=SEEN,
    ),
    failings=(
        Failing("runs on the CPU provider, without a word", "asked for by name", "attach it by its devices", SEEN),
        Failing("offers no device", "the plug-in accepts Intel's vendor id only", f"the package {BUILT_IN}", SEEN),
        Failing(
            symptom="creation raises EPFail: OpConversionFailure",
            cause="an operator or an open shape that OpenVINO cannot convert (silero_vad)",
            remedy="fix the shapes, or leave the model to the CPU provider",
            source=SEEN,
        ),
        Failing(
            symptom="creation raises EPFail: Input names mismatch between OpenVINO and ONNX",
            cause="a Concat with a constant of no elements; onnxruntime makes some where sizes are fixed by name",
            remedy="for fixed sizes onnxruntime computes no constants here; else leave the model to another provider",
            source="own observation: plug-in 1.8.1, a U-Net that pads to a multiple, and the smallest such graph",
        ),
        Failing("creation raises EPFail", "a property that the device does not have", "drop it", SEEN),
        Failing(
            symptom="results differ in the third digit",
            cause="float32 is computed in bf16 (CPU with AMX or AVX512-BF16) or f16 (GPU, NPU) by default",
            remedy="INFERENCE_PRECISION_HINT=f32",
            source="own measurement",
        ),
    ),
    driver="GPU: the compute runtime's version is in no file; NPU: NPU_DRIVER_VERSION of the device's metadata",
    sources=(PROPERTIES, GPU_PROPERTIES, NPU_PROPERTIES, SEEN),
)
