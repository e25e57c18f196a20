"""The fixed list of strategies that the reference networks are timed under.

Fixed, because a figure is worth something only beside the same figure of other machines: a name here never changes
what it means; what is to mean something else gets another name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from ort_metainfer.strategy import Strategy

__all__ = ["BASELINE", "REFERENCE_STRATEGIES", "available_strategies", "emulated_strategies"]

BASELINE = "cpu"
"""The strategy whose latency is also kept as it is, and whose outputs the others' are held against."""

CPU = "CPUExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
SPINNING = "session.intra_op.allow_spinning"

REFERENCE_STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        BASELINE: Strategy(provider=CPU),
        "cpu-1-thread": Strategy(provider=CPU, session_options={"intra_op_num_threads": 1}),
        "cpu-no-spinning": Strategy(provider=CPU, session_config={SPINNING: "0"}),
        "cpu-basic": Strategy(provider=CPU, session_options={"graph_optimization_level": "basic"}),
        "cpu-parallel": Strategy(provider=CPU, session_options={"execution_mode": "parallel"}),
        "openvino-default": Strategy(provider=OPENVINO),
        "openvino-f32": Strategy(provider=OPENVINO, provider_options={"INFERENCE_PRECISION_HINT": "f32"}),
        "openvino-auto-f32": Strategy(
            provider=OPENVINO, device="AUTO", provider_options={"INFERENCE_PRECISION_HINT": "f32"}
        ),
        "openvino-gpu": Strategy(provider=OPENVINO, device="GPU"),
        "openvino-npu": Strategy(provider=OPENVINO, device="NPU"),
        "cuda": Strategy(provider=CUDA),
        "cuda-f32": Strategy(provider=CUDA, provider_options={"use_tf32": "0"}),
        "tensorrt": Strategy(provider=TENSORRT),
        "tensorrt-fp16": Strategy(provider=TENSORRT, provider_options={"trt_fp16_enable": "True"}),
        "tensorrt-rtx": Strategy(provider="NvTensorRTRTXExecutionProvider"),
        "migraphx": Strategy(provider="MIGraphXExecutionProvider"),
        "migraphx-fp16": Strategy(
            provider="MIGraphXExecutionProvider", provider_options={"migraphx_fp16_enable": "True"}
        ),
        "directml": Strategy(provider="DmlExecutionProvider"),
        "coreml": Strategy(provider="CoreMLExecutionProvider"),
        "xnnpack": Strategy(provider="XnnpackExecutionProvider"),
        "acl": Strategy(provider="ACLExecutionProvider"),
        "nnapi": Strategy(provider="NnapiExecutionProvider"),
        "dnnl": Strategy(provider="DnnlExecutionProvider"),
        "vitisai": Strategy(provider="VitisAIExecutionProvider"),
        "cann": Strategy(provider="CANNExecutionProvider"),
        "webgpu": Strategy(provider="WebGpuExecutionProvider"),
        "qnn-htp": Strategy(provider="QNNExecutionProvider", provider_options={"backend_type": "htp"}),
        "ggml": Strategy(provider="ggml"),
        "nxrt": Strategy(provider="cpu_ep"),
    }
)
"""Name -> strategy, in the order in which sessions are created. About ten of them are available on any one machine."""


def available_strategies(providers: Collection[str] | None = None) -> Mapping[str, Strategy]:
    """Those whose provider can be used here, in the list's order; a provider without an entry has one under its name.

    Args:
        providers: those allowed, by name; None: all but opt-in and emulated ones. The CPU's are always there.
    """
    from ort_metainfer.providers import usable_providers

    usable = [provider.name for provider in usable_providers(providers)]
    found = {name: strategy for name, strategy in REFERENCE_STRATEGIES.items() if strategy.provider in usable}
    listed = {strategy.provider for strategy in found.values()}
    return found | {name: Strategy(provider=name) for name in usable if name not in listed}


def emulated_strategies(strategies: Mapping[str, Strategy]) -> frozenset[str]:
    """Names of those whose provider only imitates its hardware here: their timing says nothing."""
    from ort_metainfer.providers import get_provider

    providers = {strategy.provider for strategy in strategies.values() if strategy.provider is not None}
    emulated = {name for name in providers if get_provider(name).availability().emulated}
    return frozenset(name for name, strategy in strategies.items() if strategy.provider in emulated)
