"""Execution providers: one adapter a file, found by name; third parties add theirs through an entry point.

::

    [project.entry-points."ort_metainfer.providers"]
    mine = "my_package.adapter:MyProvider"       # a subclass of ort_metainfer.providers.base.Provider
"""

from __future__ import annotations

from ort_metainfer.providers.base import Availability, Option, Provider
from ort_metainfer.providers.registry import (
    all_providers,
    get_provider,
    usable_providers,
    without_adapter,
)

__all__ = [
    "Availability",
    "Option",
    "Provider",
    "all_providers",
    "get_provider",
    "usable_providers",
    "without_adapter",
]
