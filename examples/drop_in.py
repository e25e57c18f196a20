#!/usr/bin/env python3
"""One changed import: usage: drop_in.py MODEL INPUTS.npz

The .npz file holds one array for each input of the model, by name; the same arrays serve to tune with.
"""

from __future__ import annotations

import sys

import numpy as np

import ort_metainfer as ort  # was: import onnxruntime as ort


def main(model: str, inputs: str) -> None:
    with np.load(inputs) as arrays:
        feeds = {name: arrays[name] for name in arrays.files}
    session = ort.InferenceSession(model, metainfer=ort.Settings(inputs=feeds))
    for output, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        print(output.name, getattr(value, "shape", type(value).__name__))
    if session.adaptation is not None:
        print(session.adaptation.strategy.describe())
        print(session.adaptation.reason)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
