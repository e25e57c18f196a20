"""Where things lie: the cache directory and the user's settings file, found without importing more than needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ort_metainfer.settings import Settings

__all__ = ["cache_directory", "cache_place", "config_place"]

APPLICATION = "ort_metainfer"
PREFIX = "ORT_METAINFER_"


def cache_directory(settings: Settings) -> Path:
    """The cache directory of resolved settings: ``cache_dir``, or ours in the platform's. It is not created here."""
    return _default("cache") if settings.cache_dir is None else Path(os.fspath(settings.cache_dir))


def config_place(environment: Mapping[str, str] = os.environ) -> Path:
    """The user's settings file, whether it exists or not."""
    named = environment.get(f"{PREFIX}CONFIG")
    return Path(named) if named else _default("config") / "config.toml"


def cache_place(keyword: Settings | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The cache directory of settings that are not resolved yet; None where only the settings file could say."""
    if keyword is not None and keyword.cache_dir is not None:
        return Path(os.fspath(keyword.cache_dir))
    named = environment.get(f"{PREFIX}CACHE_DIR")
    if named:
        return Path(os.path.abspath(os.path.expanduser(named)))
    return None if config_place(environment).exists() else _default("cache")


def _default(kind: str) -> Path:
    """The platform's directory of a kind, ``cache`` or ``config``, for this application.

    On Linux by the XDG Base Directory Specification, as platformdirs has it (a test holds the two together): importing
    that brings tempfile, shutil and random along, some 4 ms of every start.
    """
    if sys.platform == "linux":
        base = os.environ.get(f"XDG_{kind.upper()}_HOME", "").strip()
        return Path(base or os.path.expanduser(f"~/.{kind}")) / APPLICATION
    import platformdirs

    find = platformdirs.user_cache_dir if kind == "cache" else platformdirs.user_config_dir
    return Path(find(APPLICATION, appauthor=False))
