"""Conditions that several rules share, by name: what a rule's ``when`` is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ort_metainfer.deciders.traits import (
    exact_options,
    has_convolutions,
    input_bytes,
    is_tiny,
    named_device,
    other_devices,
    runs_on_cpu,
    whole_cores,
)
from ort_metainfer.deciders.traits_devices import usable
from ort_metainfer.errors import StrategyError
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy, Transform

__all__ = [
    "accelerators",
    "accelerators_pay",
    "by_default",
    "has_attention",
    "has_control_flow",
    "has_gelu",
    "has_int8_units",
    "has_products",
    "is_compiled",
    "is_float",
    "is_legal",
    "is_not_tiny",
    "is_x86",
    "made",
    "may_lose",
    "may_quantise",
    "on_cpu",
    "on_device",
    "on_provider",
    "transfer_costs_more",
]

MIN_PRODUCTS = 6
"""Fewer matrix products than that are hardly where a model's time goes."""

INT8_UNITS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "dotprod", "i8mm"})
"""Instruction sets that multiply 8-bit integers and add them up in one step (Intel and Arm architecture manuals)."""

CORE_MACS_PER_S = 20e9
"""Sustained float32 multiply-accumulates of one core. Own measurement: 100e9 in a ResNet-50 with AVX-512, a tenth of
that in small networks; a low figure vetoes less."""

BUS_BYTES_PER_S = 12e9
"""PCIe 3.0 x16 in practice: 16 lanes of 985 MB/s, three quarters of it used."""

LAUNCH_MS = 0.1
"""Fixed cost of one run on another device: two copies started, kernels launched, one wait. Own measurement on WebGPU
(software adapter): 3.1 ms for four small layers that took 0.02 ms on the CPU; a discrete GPU is far nearer to this."""


def on_cpu(problem: Problem) -> bool:
    """Whether a strategy that names no provider runs on the CPU provider."""
    return runs_on_cpu(problem, Strategy())


def is_compiled(problem: Problem) -> bool:
    """Whether the model was compiled for one provider."""
    return "EPContext" in problem.graph.blockers


def is_not_tiny(problem: Problem) -> bool:
    """Whether a run is more than overhead."""
    return not is_tiny(problem)


def is_float(problem: Problem) -> bool:
    """Whether it is a float model of some size that may be rewritten."""
    return problem.graph.quantisation == "none" and not is_tiny(problem) and not is_compiled(problem)


def may_lose(problem: Problem) -> bool:
    """Whether the policy allows a loss, and real inputs can judge it."""
    return problem.policy.accuracy != "strict" and problem.inputs_are_real


def may_quantise(problem: Problem) -> bool:
    """Whether it is a float model whose precision may be reduced."""
    return is_float(problem) and may_lose(problem)


def has_products(problem: Problem) -> bool:
    """Whether matrix products are where the time may go."""
    return problem.graph.count("MatMul", "Gemm") >= MIN_PRODUCTS


def has_attention(problem: Problem) -> bool:
    """Whether the graph spells attention out: products on both sides of a Softmax, several layers of it."""
    return problem.graph.count("Softmax") >= 2 and has_products(problem) and not has_convolutions(problem)


def has_control_flow(problem: Problem) -> bool:
    """Whether it holds If, Loop or Scan."""
    return problem.graph.has_control_flow


def has_gelu(problem: Problem) -> bool:
    """Whether a GELU may be spelled out in small operators."""
    return problem.graph.count("Erf", "Tanh") > 0


def has_int8_units(problem: Problem) -> bool:
    """Whether the CPU multiplies 8-bit integers faster than floats."""
    return not INT8_UNITS.isdisjoint(problem.cpu.features)


def is_x86(problem: Problem) -> bool:
    """Whether the CPU reports an x86 vector extension."""
    return not {"avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "amx_bf16"}.isdisjoint(problem.cpu.features)


def accelerators(problem: Problem) -> Iterator[Device]:
    """Usable devices that are no CPU."""
    return (device for device in usable(problem) if device.kind != "cpu")


def transfer_costs_more(problem: Problem) -> bool:
    """Whether the CPU is done before another device has got its inputs (see the constants above)."""
    macs = problem.graph.macs
    if macs is None:
        return is_tiny(problem)
    on_cpu_ms = 1e3 * macs / (CORE_MACS_PER_S * whole_cores(problem))
    return on_cpu_ms <= LAUNCH_MS + 1e3 * input_bytes(problem) / BUS_BYTES_PER_S


def accelerators_pay(problem: Problem) -> bool:
    """Whether there is an accelerator, and the model is worth the way to it."""
    return any(accelerators(problem)) and not is_compiled(problem) and not transfer_costs_more(problem)


def made(name: str, **parameters: Any) -> Transform:
    """A strategy's entry for the rewrite of that name."""
    from ort_metainfer.rewrites.registry import get_rewrite

    return get_rewrite(name).transform(**parameters)


def is_legal(name: str, provider: str) -> bool:
    """Whether the provider takes what the rewrite makes."""
    from ort_metainfer.rewrites.registry import get_rewrite

    limits = get_rewrite(name).providers
    return not limits or provider in limits


def by_default(problem: Problem, name: str) -> Iterator[Transform]:
    """A rewrite that is on by default, where it may have something to do."""
    from ort_metainfer.rewrites.registry import get_rewrite

    rewrite = get_rewrite(name)
    if rewrite.on_by_default and rewrite.objection(problem.graph) is None:
        try:
            yield rewrite.transform()
        except StrategyError:  # a third party's whose defaults do not hold its own bounds
            return


def on_device(problem: Problem, device: Device, exact: bool = True, **more: Any) -> Strategy:
    """A strategy on ``device``, with the options that keep float32 unless something less was asked for."""
    options = {**(exact_options(device.provider) if exact else {}), **more.pop("provider_options", {})}
    return Strategy(provider=device.provider, device=named_device(problem, device), provider_options=options, **more)


def on_provider(problem: Problem, provider: str) -> Device | None:
    """The first accelerator of ``provider`` that may be used; None where there is none."""
    found = (device for device in other_devices(problem) if device.provider == provider and device.kind != "cpu")
    return next(found, None)
