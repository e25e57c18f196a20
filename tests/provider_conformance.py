"""What every adapter must do, ours and third parties': ``check_adapter(provider)`` fails with what it does not.

A third party's test suite calls it with an instance of its adapter, and ``check_refuses_unusable`` with one whose
provider is missing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import onnxruntime
import pytest

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.providers import Availability, Option, Provider
from ort_metainfer.strategy import Strategy

KINDS = {"cpu", "gpu", "npu", "dsp", "fpga"}


def check_adapter(provider: Provider) -> None:
    """Every check that needs no hardware."""
    check_identity(provider)
    check_options(provider)
    check_availability(provider)
    check_versions(provider)
    check_lossiness(provider)
    check_devices(provider)
    if not provider.availability().usable:
        check_refuses_unusable(provider)


def check_identity(provider: Provider) -> None:
    assert provider.name and provider.name == provider.name.strip()
    assert set(provider.kinds) <= KINDS, f"kinds must be among {sorted(KINDS)}, got {provider.kinds}"
    assert isinstance(provider.opt_in, bool) and isinstance(provider.run_on_hardware, bool)


def check_options(provider: Provider) -> None:
    """Options are described in full, and a strategy may hold those and no others."""
    assert isinstance(provider.options, Mapping)
    for name, option in provider.options.items():
        assert isinstance(option, Option) and option.name == name
        assert option.meaning and option.source, f"{name} must say what it means and on what that rests"
        assert not option.values or option.default in ("", *option.values), f"{name}: default outside its values"
        assert set(option.lossy_values) <= set(option.values or option.lossy_values)
        for value in option.values:
            assert provider.check(using(provider, name, value)) == {name: value}
        if option.values:
            with pytest.raises(StrategyError, match=name):
                provider.check(using(provider, name, "no such value"))
    with pytest.raises(StrategyError, match="NO_SUCH_OPTION"):
        provider.check(using(provider, "NO_SUCH_OPTION", "1"))
    with pytest.raises(StrategyError, match="NO_SUCH_OPTION"):
        provider.attach(onnxruntime.SessionOptions(), using(provider, "NO_SUCH_OPTION", "1"))


def check_availability(provider: Provider) -> None:
    found = provider.availability()
    assert isinstance(found, Availability)
    assert found.reason, "doctor shows the reason, also of a usable provider"
    assert found.how in ("built-in", "plug-in", None)
    assert found.how is not None or not found.usable
    assert provider.availability() == found


def check_versions(provider: Provider) -> None:
    versions = provider.versions()
    assert all(isinstance(word, str) and word for pair in versions.items() for word in pair)
    if provider.availability().usable:
        assert versions, "results rest on some version"


def check_lossiness(provider: Provider) -> None:
    """A lossy value is lossy alone; without any, the default decides."""
    assert provider.is_lossy(Strategy(provider=provider.name)) is provider.default_is_lossy
    for name, option in provider.options.items():
        for value in option.values:
            lossy = provider.is_lossy(using(provider, name, value))
            if value in option.lossy_values:
                assert lossy, f"{name}={value} is declared lossy"
            elif option.lossy_values:
                assert not lossy, f"{name}={value} is not declared lossy"
            else:
                assert lossy is provider.default_is_lossy, f"{name}={value} says nothing of precision"


def check_devices(provider: Provider) -> None:
    """Devices where usable, and an unknown one is refused by name."""
    if not provider.availability().usable:
        return
    offered = provider.devices()
    assert offered, "a usable provider offers a device or raises ProviderError"
    assert all(device.provider == provider.name and device.kind in provider.kinds for device in offered)
    assert all(device.name for device in offered)
    names = [device.provider_device for device in offered]
    assert len(set(names)) == len(names), f"a strategy could not tell these apart: {names}"
    with pytest.raises(ProviderError, match="no such device"):
        unknown = Strategy(provider=provider.name, device="no such device")
        provider.attach(onnxruntime.SessionOptions(), unknown)


def check_refuses_unusable(provider: Provider) -> None:
    """Where it is not usable, its own reason is what the error says."""
    reason = provider.availability().reason
    for act in (
        provider.devices,
        lambda: provider.attach(onnxruntime.SessionOptions(), Strategy(provider=provider.name)),
    ):
        with pytest.raises(ProviderError) as caught:
            act()
        assert str(caught.value) == reason


def check_cheap_questions_import_nothing(provider: Provider, module: str, root: Path) -> None:
    """In a fresh process, ``availability()`` and ``versions()`` do not import the plug-in's package."""
    home = type(provider)
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); import ort_metainfer\n"
        f"from {home.__module__} import {home.__name__} as Adapter\n"
        "adapter = Adapter(); adapter.availability(); adapter.versions()\n"
        f"assert {module!r} not in sys.modules, 'imported'\n"
        f"assert {module!r} not in ' '.join(open('/proc/self/maps')) if sys.platform == 'linux' else True, 'loaded'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def using(provider: Provider, option: str, value: str) -> Strategy:
    return Strategy(provider=provider.name, provider_options={option: value})
