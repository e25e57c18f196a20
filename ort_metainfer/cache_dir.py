"""Where strategies are kept."""

from __future__ import annotations

import os
from pathlib import Path

from ort_metainfer.settings import Settings

__all__ = ["cache_directory"]


def cache_directory(settings: Settings) -> Path:
    """The cache directory of these settings: ``cache_dir``, or ``ort_metainfer`` in the platform's cache directory.

    It is not created here.
    """
    if settings.cache_dir is not None:
        return Path(os.fspath(settings.cache_dir))
    import platformdirs

    return Path(platformdirs.user_cache_dir("ort_metainfer", appauthor=False))
