"""What the caller's word forbids: pinned options, providers not allowed, accuracy; above every proposal."""

from __future__ import annotations

from collections.abc import Callable

from ort_metainfer.deciders.rule import Rule
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy

__all__ = ["IsLossy", "policy_rules"]

IsLossy = Callable[[Strategy], bool]
"""Whether a strategy may compute float32 models in less than float32."""

POLICY_PRIORITY = 100

THREADS = frozenset({"intra_op_num_threads", "session.intra_op_thread_affinities"})
SPINNING = frozenset(
    {
        "session.intra_op.allow_spinning",
        "session.intra_op.spin_duration_us",
        "session.intra_op.spin_backoff_max",
        "session.force_spinning_stop",
    }
)
PINNED_TOGETHER = (THREADS, SPINNING)
"""Options that say the same thing in several words: the caller's use of one pins all of them."""

LOSSY_CONFIG = frozenset(
    {
        "optimization.enable_gelu_approximation",
        "mlas.enable_gemm_fastmath_arm64_bfloat16",
        "session.qdq_matmulnbits_accuracy_level",
    }
)
"""Session config keys that let onnxruntime's own kernels compute in less (own measurement: 2e-4 for the first)."""


def _changes_a_pin(problem: Problem, strategy: Strategy) -> bool:
    pinned = set(problem.policy.pinned)
    for together in PINNED_TOGETHER:
        if together & pinned:
            pinned |= together
    if pinned & {*strategy.session_options, *strategy.session_config}:
        return True
    return any(name.startswith(f"{strategy.provider}.") for name in pinned)  # it would be made with other options


def _has_pinned_dimensions(problem: Problem) -> bool:
    return any(name.startswith("dim:") for name in problem.policy.pinned)


def _changes_a_pinned_dimension(problem: Problem, strategy: Strategy) -> bool:
    return any(f"dim:{name}" in problem.policy.pinned for name in strategy.static_shapes)


def _provider_not_allowed(problem: Problem, strategy: Strategy) -> bool:
    return strategy.provider is not None and strategy.provider not in problem.policy.providers


def _provider_absent(problem: Problem, strategy: Strategy) -> bool:
    if strategy.provider is None:
        return False
    devices = [device for device in problem.devices if device.provider == strategy.provider]
    if strategy.device is None:
        return not devices
    return strategy.device not in [device.provider_device for device in devices]


def _cannot_be_saved(problem: Problem, strategy: Strategy) -> bool:
    return strategy.provider not in (None, "CPUExecutionProvider")


def _rewrites_lossily(strategy: Strategy) -> bool:
    if not strategy.transforms:
        return False
    from ort_metainfer.rewrites.rewriting import promise_of

    return promise_of(strategy.transforms) == "lossy"


def _is_illegal_there(problem: Problem, strategy: Strategy) -> bool:
    """Whether a rewrite makes operators that the strategy's provider (the CPU's where it names none) may not have."""
    from ort_metainfer.rewrites.registry import get_rewrite

    provider = strategy.provider or "CPUExecutionProvider"
    limits = [get_rewrite(transform.name).providers for transform in strategy.transforms]
    return any(limit and provider not in limit for limit in limits)


def _is_strict(problem: Problem) -> bool:
    return problem.policy.accuracy == "strict"


def _may_lose(problem: Problem) -> bool:
    return problem.policy.accuracy != "strict"


def _inputs_are_made_up(problem: Problem) -> bool:
    return not problem.inputs_are_real


def policy_rules(is_lossy: IsLossy) -> tuple[Rule, ...]:
    """The family, with the accuracy vetoes resting on ``is_lossy``."""
    return (*CALLERS_RULES, *_accuracy_rules(is_lossy))


def _accuracy_rules(is_lossy: IsLossy) -> tuple[Rule, ...]:
    def lossy(problem: Problem, strategy: Strategy) -> bool:
        return bool(LOSSY_CONFIG & {*strategy.session_config}) or _rewrites_lossily(strategy) or is_lossy(strategy)

    return (
        Rule(
            "lossy_under_strict",
            POLICY_PRIORITY,
            "precision",
            "accuracy policy strict keeps float32 results; policy balanced or fast, with real inputs, would allow it",
            "design: promise 2, never silently less accurate",
            when=(_is_strict,),
            forbids=lossy,
        ),
        Rule(
            "lossy_on_synthetic_inputs",
            POLICY_PRIORITY,
            "precision",
            "synthetic inputs say nothing about what reduced precision costs; give real inputs to allow it",
            "own measurement: the same text detector showed an error of 0.86 on noise and 1.6e-6 on a page with text",
            when=(_may_lose, _inputs_are_made_up),
            forbids=lossy,
        ),
    )


CALLERS_RULES = (
    Rule(
        "pinned_option",
        POLICY_PRIORITY,
        "scheduling",
        "the caller set this option, or one that says the same, or set up this provider, and it stays as set",
        "design: options of the caller stay",
        when=(lambda problem: bool(problem.policy.pinned),),
        forbids=_changes_a_pin,
    ),
    Rule(
        "pinned_dimension",
        POLICY_PRIORITY,
        "shapes",
        "the caller fixed this dimension, and it stays as fixed",
        "design: options of the caller stay",
        when=(_has_pinned_dimensions,),
        forbids=_changes_a_pinned_dimension,
    ),
    Rule(
        "provider_not_allowed",
        POLICY_PRIORITY,
        "provider",
        "this provider is not among those that the caller or the settings allow",
        "design: a caller's list of providers narrows the choice",
        forbids=_provider_not_allowed,
    ),
    Rule(
        "provider_absent",
        POLICY_PRIORITY,
        "provider",
        "this provider, or this device of it, is not usable on this machine",
        "onnxruntime: microsoft/onnxruntime#23372 (a provider that cannot run is replaced by the CPU in silence)",
        forbids=_provider_absent,
    ),
    Rule(
        "compiled_graph_cannot_be_saved",
        POLICY_PRIORITY,
        "provider",
        "the caller saves the optimised model, which onnxruntime cannot do with nodes another provider compiled",
        "microsoft/onnxruntime#6080, #12804: unable to serialize model as it contains compiled nodes",
        when=(lambda problem: problem.is_pinned("optimized_model_filepath"),),
        forbids=_cannot_be_saved,
    ),
    Rule(
        "rewrite_not_legal_for_provider",
        POLICY_PRIORITY,
        "operators",
        "the rewrite makes operators that this provider does not have",
        "microsoft/onnxruntime#10905: com.microsoft operators in a model meant for TensorRT",
        forbids=_is_illegal_there,
    ),
)
