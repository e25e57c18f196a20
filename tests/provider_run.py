"""Run one model on one provider in a process of its own and print what came of it, as one line of JSON.

``PYTHONPATH=. python tests/provider_run.py MODEL STRATEGY_JSON``: the strategy, through its adapter, against the CPU
provider. It runs twice, the second time with a small part of each float input changed: what a provider keeps from one
run to the next must not show.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import onnxruntime

from ort_metainfer.errors import MetainferError
from ort_metainfer.providers import get_provider
from ort_metainfer.strategy import Strategy


def main(model: str, strategy_text: str) -> None:
    strategy = Strategy.from_dict(json.loads(strategy_text))
    try:
        print(json.dumps(run(model, strategy)))
    except MetainferError as error:
        print(json.dumps({"refused": f"{type(error).__name__}: {error}"}))


def run(model: str, strategy: Strategy) -> dict[str, Any]:
    provider = get_provider(str(strategy.provider))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for dimension, size in strategy.static_shapes.items():
        options.add_free_dimension_override_by_name(dimension, size)
    providers = provider.attach(options, strategy)
    session = onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)
    reference = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {spec.name: feed(spec.name, spec.type, spec.shape) for spec in reference.get_inputs()}
    errors = [worst_error(session, reference, given) for given in (feeds, changed(feeds))]
    assigned = session.get_provider_graph_assignment_info()
    taken = {graph.ep_name: 0 for graph in assigned}
    for graph in assigned:
        taken[graph.ep_name] += len(graph.get_nodes())
    return {
        "error": errors[0],
        "error_after_a_change": errors[1],
        "nodes": taken,
        "providers": session.get_providers(),
        "devices": [device.provider_device for device in provider.devices()],
        "kinds": [device.kind for device in provider.devices()],
        "emulated": [device.emulated for device in provider.devices()],
        "lossy": provider.is_lossy(strategy),
        "how": provider.availability().how,
        "registrations": [device.ep_name for device in onnxruntime.get_ep_devices()],
    }


def worst_error(session: Any, reference: Any, feeds: dict[str, Any]) -> float:
    """Relative error of the worst output."""
    pairs = zip(session.run(None, feeds), reference.run(None, feeds), strict=True)
    return max(float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)) for ours, theirs in pairs)


def changed(feeds: dict[str, Any]) -> dict[str, Any]:
    """The same feeds, with a few values in the middle of each float input moved far."""
    others = {name: array.copy() for name, array in feeds.items()}
    for array in others.values():
        if array.dtype == np.float32 and array.size:
            middle = array.size // 3
            array.reshape(-1)[middle : middle + 3] += 20
    return others


def feed(name: str, kind: str, shape: list[int | str | None]) -> Any:
    """Something no model answers with zeros: noise for floats, token ids for integers, masks of ones."""
    sizes = [size if isinstance(size, int) else 1 if axis == 0 else 32 for axis, size in enumerate(shape)]
    rng = np.random.default_rng(0)
    if kind == "tensor(float)":
        return rng.standard_normal(sizes).astype(np.float32)
    return np.ones(sizes, np.int64) if "mask" in name else rng.integers(1, 1000, sizes)


if __name__ == "__main__":
    main(*sys.argv[1:])
