"""Which operators a provider really takes, found by trying: the child's side of the errand ``operators``.

Each case is announced, tried, and said::

    {"event": "operator", "case": "Conv/depthwise", "taken": true, "refusal": null}

It counts as taken where a session of it can be created, none of its work is left to another provider, and it runs: ggml
takes a 1x1 convolution of one channel and then fails to run it (own observation).
"""

from __future__ import annotations

import time
from typing import Any

from ort_metainfer.hardware.opening import is_taken
from ort_metainfer.hardware.operator_cases import case_named
from ort_metainfer.hardware.operator_models import OperatorCase
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import faults
from ort_metainfer.trials.bench import CPU, Speaker, complaint
from ort_metainfer.trials.placement import RECORD_ASSIGNMENT

__all__ = ["serve", "try_operator"]

STEP_S = 5.0
"""One case of a few hundred numbers may take this long to create, compilers included; past it, it counts as refused."""

WARM_UP = "Identity"

QUIET = {"log_severity_level": 4}
"""A provider that lacks an operator says so at length."""


def try_operator(case: OperatorCase, strategy: Strategy) -> tuple[bool | None, str | None]:
    """Whether the strategy's provider takes the case, None where onnxruntime does not say; and its words if it refuses.

    What it leaves to another provider is not run.

    Raises:
        ProviderError: the provider cannot be used here.
    """
    from ort_metainfer.errors import MetainferError
    from ort_metainfer.options import open_session

    micro = case.build()
    try:
        session = open_session(micro.model, SessionSpec(QUIET), strategy, {RECORD_ASSIGNMENT: "1"})
        taken = True if strategy.provider == CPU else is_taken(session, strategy.provider or CPU)
        if taken is not False:
            session.run(None, dict(micro.feeds))
    except MetainferError:
        raise
    except Exception as error:  # noqa: BLE001 (onnxruntime and providers raise what they like; that is the answer)
        return False, complaint(error)
    return taken, None


def serve(request: dict[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """The errand ``operators``.

    Args:
        request: ``provider``, ``device`` (the provider's own name for it), ``cases`` (names, in the order to try).
        channel: where events go.
        until: time.monotonic() value to end by.

    Raises:
        ProviderError: the provider cannot be used here.
    """
    channel.say("discovering", session=request["provider"])
    strategy = Strategy(provider=request["provider"], device=request["device"])
    try_operator(case_named(WARM_UP), strategy)  # loads the library, wakes the device: no case is to blame for that
    for name in request["cases"]:
        if time.monotonic() >= until:
            break
        channel.say("opening", session=name, limit_s=STEP_S)
        faults.strike("opening", name)
        taken, refusal = try_operator(case_named(name), strategy)
        channel.say("operator", case=name, taken=taken, refusal=refusal)
    return {}
