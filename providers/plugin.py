"""Plug-in packages: found without importing them, their library registered with onnxruntime once per process.

A registration is never undone: onnxruntime demands that no session of it is left, which nobody can know here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ort_metainfer.errors import ProviderError

__all__ = ["PlugIn", "distribution_version"]

_lock = threading.RLock()
_registered: set[str] = set()


@lru_cache(maxsize=64)
def distribution_version(distribution: str, module: str) -> str | None:
    """Version of the distribution that brought ``module``, or None; looked up once per process.

    Read from the name of the ``.dist-info`` folder beside the module (binary distribution format, PyPA):
    importlib.metadata would bring the e-mail parser along, a cost that every cached start would pay.
    """
    folder = _folder(module)
    if folder is None:
        return None
    for entry in os.listdir(folder) if os.path.isdir(folder) else ():
        name, _, version = entry.removesuffix(".dist-info").partition("-")
        if entry.endswith(".dist-info") and name.lower().replace("_", "-").replace(".", "-") == distribution:
            return version or None
    return _version_from_metadata(distribution)


def _version_from_metadata(distribution: str) -> str | None:
    """For what is not installed beside its ``.dist-info`` (an editable install)."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=64)
def _folder(module: str) -> str | None:
    """The folder that holds a top-level package; None where it is not installed. Imports nothing.

    What pip leaves behind (a folder with nothing but byte code) has no origin and counts as not installed.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return os.path.dirname(next(iter(spec.submodule_search_locations)))


@dataclass(frozen=True)
class PlugIn:
    """A package that brings an execution provider as a library.

    Attributes:
        distribution: what pip calls it.
        module: what Python calls it; it has ``get_library_path()`` or ``library_path()``.
        registration: name to register the library under; the provider's own, because some plug-ins take it over.
        offers: whether an OrtEpDevice, by its ``ep_name``, is this provider's.
    """

    distribution: str
    module: str
    registration: str
    offers: Callable[[str], bool]

    @property
    def version(self) -> str | None:
        """The installed version, or None where the package is missing; imports nothing."""
        if _folder(self.module) is None:
            return None
        return distribution_version(self.distribution, self.module) or "unknown"

    def devices(self) -> list[Any]:
        """This provider's OrtEpDevices, in onnxruntime's order, its library registered first if need be.

        A library that the caller registered himself, under whatever name, is left as it is.

        Raises:
            ProviderError: the package is missing or broken, or its library does not load.
        """
        with _lock:
            found = self._offered()
            if not found and self.registration not in _registered:
                self._register()
                found = self._offered()
            return found

    def _offered(self) -> list[Any]:
        import onnxruntime

        if not hasattr(onnxruntime, "get_ep_devices"):
            raise ProviderError(
                f"onnxruntime {onnxruntime.__version__} takes no plug-in providers, so {self.distribution} cannot be "
                "used; upgrade onnxruntime to 1.23 or later"
            )
        return [device for device in onnxruntime.get_ep_devices() if self.offers(device.ep_name)]

    def _register(self) -> None:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as binding

        library = self._library()
        try:
            onnxruntime.register_execution_provider_library(self.registration, library)
        except (binding.Fail, binding.EPFail, binding.InvalidArgument, binding.RuntimeException) as error:
            if "already registered" not in str(error):
                raise ProviderError(
                    f"{self.distribution} {self.version}: its library {library} does not load: {error}; "
                    f"reinstall it, or install a version made for onnxruntime {onnxruntime.__version__}"
                ) from error
        _registered.add(self.registration)

    def _library(self) -> str:
        try:
            package = importlib.import_module(self.module)
            path = getattr(package, "get_library_path", None) or package.library_path
            return str(path())
        except (ImportError, OSError, AttributeError) as error:
            raise ProviderError(
                f"the package {self.distribution} is missing or broken ({error}); run: pip install {self.distribution}"
            ) from error
