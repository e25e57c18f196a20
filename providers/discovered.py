"""Plug-in packages that no adapter speaks for: found among what is installed, described, and used where named.

A package is one of these where its name begins with ``onnxruntime_ep_``, or where the name fits and its source defines
``get_library_path`` and states a provider's name. (onnxruntime-extensions has the first, and is none.) It is read,
never imported, until somebody names it. Looking for them lists the folders that Python imports from, so it is done for
who asks for all providers or for one that nobody else knows, and not for a session that starts from the cache.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ort_metainfer.errors import ProviderError
from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.problem import Device
from ort_metainfer.providers.base import Availability
from ort_metainfer.providers.plugin import PlugIn
from ort_metainfer.providers.plugin_provider import ONE_DEVICE, PlugInProvider, hardware_name, memory_mb, told

__all__ = ["DiscoveredProvider", "discover"]

PREFIX = "onnxruntime_ep_"
NAME = re.compile(r"^onnxruntime_\w+$|^\w+_onnxruntime$|(^|_)ep(_|$)")
"""Top-level packages that may hold a provider; whether one does, its source says."""

LOOKS_LIKE_ONE = re.compile(r"^def (get_library_path|library_path)\(", re.MULTILINE)
EP_NAME = re.compile(
    r"""^\w*EP_NAME\w*\s*(?::\s*\w+\s*)?=\s*["']([^"'\n]+)["']"""
    r"""|def\s+get_ep_name\([^)]*\)[^:]*:(?:\s*(?:\"{3}.*?\"{3}|\#[^\n]*))*\s*return\s+["']([^"'\n]+)["']""",
    re.MULTILINE | re.DOTALL,
)
"""The provider's name as such packages state it: a constant, or what ``get_ep_name`` returns."""

READ_LIMIT_BYTES = 200_000


class FoundPlugIn(PlugIn):
    """A package whose provider may call itself otherwise than its source states: its devices name its library, too."""

    def _offered(self) -> list[Any]:
        import onnxruntime

        by_name = super()._offered()
        library = os.path.realpath(self._library())
        return by_name or [
            device
            for device in onnxruntime.get_ep_devices()
            if os.path.realpath(told(device).get("library_path", "")) == library
        ]


class DiscoveredProvider(PlugInProvider):
    """A provider of which nothing is known but its package. It is given no options, and taken to be lossy."""

    name = ""
    kinds = ("cpu", "gpu", "npu")
    default_is_lossy: ClassVar[bool] = True
    opt_in: ClassVar[bool] = True
    proven: ClassVar[str] = ""

    def __init__(self, name: str, plug_in: PlugIn, is_complete: bool) -> None:
        """``is_complete``: whether its source defines what a plug-in package must."""
        self.name = name  # type: ignore[misc]  # each has its own
        self.plug_in = plug_in  # type: ignore[misc]
        self.is_complete = is_complete

    def _found_here(self, package: str, version: str) -> Availability:
        if not self.is_complete:
            reason = f"{package} brings no provider that could be registered (no get_library_path); remove it"
            return Availability(False, "plug-in", reason, version)
        reason = (
            f"{package} is installed; no adapter knows it: its defaults are used, where named: providers={self.name}"
        )
        return Availability(True, "plug-in", reason, version)

    def _offered(self) -> dict[str, list[Any]]:
        """As ever; whatever a stranger's package raises becomes an error that names it."""
        try:
            return super()._offered()
        except ProviderError:
            raise
        except (Exception, SystemExit) as error:  # a stranger's code may raise anything; doctor shows it
            raise ProviderError(
                f"{self.plug_in.distribution} {self.plug_in.version} does not load: {type(error).__name__}: {error}; "
                "reinstall or remove it"
            ) from error

    def _named(self, offered: Sequence[Any]) -> Mapping[str, list[Any]]:
        """Each device by its class and number; one alone needs no name."""
        if len(offered) == 1:
            return {ONE_DEVICE: list(offered)}
        return {f"{device.device.type.name.lower()}:{index}": [device] for index, device in enumerate(offered)}

    def _device(self, name: str, offered: Any) -> Device:
        kind = offered.device.type.name.lower()
        if kind == "cpu":
            return super()._device(name, offered)
        return Device(
            provider=self.name,
            kind=kind,
            name=hardware_name(offered),
            vendor=offered.device.vendor,
            provider_device=name or None,
            driver=told(offered).get("version"),
            memory_mb=memory_mb(offered),
        )

    def _no_device(self) -> str:
        return f"{self.plug_in.distribution} {self.plug_in.version} offers no device here, on {cpu_device().name}"


def discover(known_modules: Collection[str], known_names: Collection[str]) -> tuple[DiscoveredProvider, ...]:
    """Providers in installed packages that are not among ``known_modules``, sorted by name; nothing is imported.

    One whose own name is among ``known_names`` is passed over: somebody speaks for it already.
    """
    found: dict[str, DiscoveredProvider] = {}
    for folder in dict.fromkeys(sys.path):
        for module, source in _candidates(folder or os.getcwd()):
            if module not in known_modules:
                provider = _described(module, source)
                if provider is not None and provider.name not in known_names:
                    found.setdefault(provider.name, provider)
    return tuple(found[name] for name in sorted(found))


def _candidates(folder: str) -> Iterator[tuple[str, Path]]:
    """Packages in a folder of sys.path whose names fit, each with its ``__init__.py``."""
    try:
        names = os.listdir(folder)
    except OSError:  # a folder that is not there, or a zip archive
        return
    for name in names:
        source = Path(folder, name, "__init__.py")
        if NAME.search(name) and name != "onnxruntime" and source.is_file():
            yield name, source


def _described(module: str, source: Path) -> DiscoveredProvider | None:
    """A provider for the package, or None where its source does not look like a plug-in's."""
    text = _text(source)
    is_complete, stated = LOOKS_LIKE_ONE.search(text) is not None, EP_NAME.search(text)
    if not module.startswith(PREFIX) and not (is_complete and stated):
        return None
    distribution = module.replace("_", "-")
    name = (stated[1] or stated[2]) if stated else distribution
    plug_in = FoundPlugIn(distribution, module, name, offers=lambda ep_name: ep_name.partition(".")[0] == name)
    return DiscoveredProvider(name, plug_in, is_complete)


def _text(source: Path) -> str:
    try:
        with source.open("rb") as file:
            return file.read(READ_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
