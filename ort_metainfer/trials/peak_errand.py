"""In the child: one session by itself, created and run, and the peak of this process's memory over that.

Within a process that holds other sessions the peak of one cannot be told: freed memory is used again, arenas stay.
"""

from __future__ import annotations

import gc
from typing import Any

from ort_metainfer.errors import TrialError
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials import memory
from ort_metainfer.trials.bench import Bench
from ort_metainfer.trials.channel import Channel, setup_from

__all__ = ["PASSES", "serve"]

PASSES = 2
"""Times that every input is run: an arena grows at the first."""

UNTOLD = "this system does not tell the peak of a process's memory"


def serve(request: dict[str, Any], channel: Channel, until: float) -> dict[str, Any]:
    """Peak memory in MB of 2**20 bytes, above what the process took before the session was created.

    Raises:
        Refused: onnxruntime does not create the session or does not run it.
        TrialError: the system does not tell.
    """
    from ort_metainfer.model.inputs import load_feeds

    setup, strategy = setup_from(request["setup"]), Strategy.from_dict(request["strategy"])
    bench = Bench(setup, load_feeds(setup.feeds), channel, until)
    if strategy.transforms:  # what it takes to rewrite is not the session's
        from ort_metainfer.trials.rewritten import rewritten_model

        channel.say("rewriting", session=request["name"])
        rewritten_model(setup, strategy.transforms, bench.feeds, until)
    gc.collect()
    memory.reset_peak()
    before = memory.resident_mb()
    opened = bench.open(request["name"], strategy)
    bench.announce("checking", request["name"])
    for turn in range(PASSES):
        for number, feed in enumerate(bench.feeds):
            if turn + number and bench.left_s() <= 0:
                break
            opened.run(feed)
    after = memory.peak_resident_mb()
    if before is None or after is None:
        raise TrialError(UNTOLD)
    return {"peak_mb": max(0.0, after - before)}
