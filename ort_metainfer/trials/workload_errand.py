"""The errand ``workload``: what one run of the model does, node by node, worked out in a child: it imports onnx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ort_metainfer.trials.bench import Speaker
from ort_metainfer.trials.channel import setup_from

__all__ = ["serve"]


def serve(request: Mapping[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """The work of every node at the shapes of ``request``.

    Returns:
        ``work``: a table for each node.

    Raises:
        ModelError: the model cannot be parsed.
        InputsError: the shapes do not fit it.
    """
    from ort_metainfer.model.workload import workload

    channel.say("describing", session="workload")
    shapes = {name: tuple(shape) for name, shape in request["shapes"].items()}
    work = workload(setup_from(request["setup"]).model_file, shapes)
    return {"work": [node.as_dict() for node in work]}
