#!/usr/bin/env python3
"""No changed import: code that you may not edit makes the session. usage: patched.py MODEL"""

from __future__ import annotations

import sys

import onnxruntime

import ort_metainfer


def somebody_elses_code(model: str) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def main(model: str) -> None:
    with ort_metainfer.patch():
        session = somebody_elses_code(model)
    print(session.get_providers(), session.adaptation.strategy.describe())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
