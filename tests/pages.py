"""Pages of text, upright and turned, as the model doc_orientation of the zoo is fed them: made on the spot, always the
same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "pack")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, by which the model's input is normalised."""


def page(seed: int) -> np.ndarray:
    """A page of float32 [1, 3, 224, 224], turned by ``seed`` quarters."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    paper = tuple(int(value) for value in rng.integers(200, 256, 3))
    image = Image.new("RGB", (448, 448), paper)
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=int(rng.integers(16, 30)))
    for top in range(20, 420, int(rng.integers(28, 40))):
        pen.text((24, top), " ".join(rng.choice(WORDS, 6)), fill=(30, 30, 40), font=font)
    turned = image.rotate(90 * (seed % 4)).resize((224, 224), Image.Resampling.BILINEAR)
    pixels = np.asarray(turned, np.float32) / 255 + rng.normal(0, 0.01, (224, 224, 3))
    return np.ascontiguousarray(((pixels - MEAN) / DEVIATION).transpose(2, 0, 1)[None].astype(np.float32))


def save_pages(folder: Path, count: int) -> str:
    """Write ``count`` pages as .npz files; a glob of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        np.savez(folder / f"{seed}.npz", x=page(seed))
    return str(folder / "*.npz")
