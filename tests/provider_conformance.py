"""What every adapter must do, ours and third parties': ``check_adapter(provider)`` fails with what it does not.

A third party's test suite calls it with an instance of its adapter, and ``check_refuses_unusable`` with one whose
provider is missing. It needs no hardware and no provider: where there is none, only the devices go unchecked.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnxruntime
import pytest
from packaging.version import Version

from ort_metainfer.errors import ProviderError, StrategyError
from ort_metainfer.hardware.files import SystemFiles
from ort_metainfer.providers import Availability, Option, Provider
from ort_metainfer.providers.capabilities import Capabilities, CompiledModel, Constraints, Preferences
from ort_metainfer.strategy import Strategy

KINDS = {"cpu", "gpu", "npu", "dsp", "fpga"}
INVALIDATORS = {"model", "onnxruntime", "provider", "driver", "device", "options", "shapes"}
LAYOUTS = {"NCHW", "NHWC"}
PRECISIONS = {"float32", "tf32", "bfloat16", "float16", "int8", "a16w8", "int4-weights"}


def check_adapter(provider: Provider) -> None:
    """Every check that needs no hardware."""
    check_identity(provider)
    check_says_what_it_ran_on(provider)
    check_options(provider)
    check_capabilities(provider)
    check_availability(provider)
    check_versions(provider)
    check_driver(provider)
    check_lossiness(provider)
    check_devices(provider)
    if not provider.availability().usable:
        check_refuses_unusable(provider)


def check_identity(provider: Provider) -> None:
    assert provider.name and provider.name == provider.name.strip()
    assert set(provider.kinds) <= KINDS, f"kinds must be among {sorted(KINDS)}, got {provider.kinds}"
    assert isinstance(provider.opt_in, bool) and isinstance(provider.run_on_hardware, bool)


def check_says_what_it_ran_on(provider: Provider) -> None:
    """An adapter that never ran on hardware of its class says so where it is described, or what it did run on."""
    assert isinstance(provider.proven, str)
    if provider.run_on_hardware or provider.proven or not provider.kinds:
        return
    home = sys.modules[type(provider).__module__]
    described = " ".join(f"{home.__doc__} {type(provider).__doc__}".lower().split())
    assert "not run on hardware" in described, f"{type(provider).__name__}'s docstring must say 'not run on hardware'"


def check_options(provider: Provider) -> None:
    """Options are described in full, and a strategy may hold those and no others."""
    assert isinstance(provider.options, Mapping)
    for name, option in provider.options.items():
        assert isinstance(option, Option) and option.name == name
        assert option.meaning and option.source, f"{name} must say what it means and on what that rests"
        assert not option.values or option.default in ("", *option.values), f"{name}: default outside its values"
        assert len(set(option.values)) == len(option.values), f"{name} has a value twice"
        assert set(option.lossy_values) <= set(option.values or option.lossy_values)
        check_numbers(option)
        check_lifetime(option)
        for value in examples(option):
            check_value(provider, option, value)
        for value in outsiders(option):
            assert option.objection(value, None), f"{name} must refuse {value!r}"
            with pytest.raises(StrategyError, match=name):
                provider.check(using(provider, name, value))
    with pytest.raises(StrategyError, match="NO_SUCH_OPTION"):
        provider.check(using(provider, "NO_SUCH_OPTION", "1"))
    with pytest.raises(StrategyError, match="NO_SUCH_OPTION"):
        provider.attach(onnxruntime.SessionOptions(), using(provider, "NO_SUCH_OPTION", "1"))


def check_value(provider: Provider, option: Option, value: str) -> None:
    """A value of the domain is taken, unless the installed version is too old or too new for the option."""
    assert option.objection(value, None) is None, f"{option.name} must take {value!r}"
    strategy = using(provider, option.name, value)
    if option.objection(value, provider.option_version()) is None:
        assert provider.check(strategy) == {option.name: value}
    else:
        with pytest.raises(StrategyError, match=option.name):
            provider.check(strategy)


def check_numbers(option: Option) -> None:
    """A range has two ends in order, excludes a list of values, and holds the default."""
    if option.numbers is None:
        return
    lowest, highest = option.numbers
    assert isinstance(lowest, int) and isinstance(highest, int) and lowest <= highest, (
        f"{option.name}: {option.numbers}"
    )
    assert not option.values, f"{option.name} has both values and a range"
    assert not option.default or lowest <= int(option.default) <= highest, f"{option.name}: default outside its range"


def check_lifetime(option: Option) -> None:
    """The first and the last version, where stated, are versions and in order."""
    ends = [Version(text) for text in (option.since, option.until) if text]
    assert ends == sorted(set(ends)), f"{option.name} ends before it begins"


def check_capabilities(provider: Provider) -> None:
    """What is stated names its source; words with a meaning are of those that have one."""
    stated = provider.capabilities
    assert isinstance(stated, Capabilities)
    for part, nothing in (
        (stated.constraints, Constraints()),
        (stated.preferences, Preferences()),
        (stated.compiled, CompiledModel()),
    ):
        assert part == nothing or part.source, f"{type(part).__name__} is stated without a source"
    lowest, highest = stated.constraints.opsets
    assert lowest is None or highest is None or lowest <= highest
    assert stated.constraints.operators.isdisjoint(stated.constraints.missing)
    assert set(stated.preferences.layouts) <= LAYOUTS and set(stated.preferences.precisions) <= PRECISIONS
    for failing in stated.failings:
        assert failing.symptom and failing.cause and failing.remedy and failing.source, f"incomplete: {failing}"
    assert all(stated.sources)
    if type(provider).driver_version is not Provider.driver_version:
        assert stated.driver, "it reads a driver's version and does not say from where"
    check_compiled(provider)


def check_compiled(provider: Provider) -> None:
    """Who keeps a compiled model says what it does not survive, and its switches are options that may be set."""
    compiled = provider.capabilities.compiled
    assert set(compiled.invalidated_by) <= INVALIDATORS
    if compiled.form != "none":
        assert "model" in compiled.invalidated_by, "a compiled model is at least no other model's"
        assert len(compiled.invalidated_by) > 1, "it rests on some version, device or option too"
    for name, value in compiled.options.items():
        option = provider.options.get(name)
        if option is not None and "{" not in value and option.values:
            assert value in option.values, f"compiled models: {name} has no value {value!r}"
        assert option is not None or "." in name or hasattr(onnxruntime.SessionOptions, name), (
            f"compiled models: {name} is no option of the provider, no session option and no session config entry"
        )


def check_driver(provider: Provider) -> None:
    """Its version is text or nothing, also on a machine without any file, where it is nothing."""
    assert isinstance(provider.driver_version(), str | None)
    if isinstance(getattr(provider, "files", None), SystemFiles):
        with tempfile.TemporaryDirectory() as folder:
            elsewhere = copy.copy(provider)
            elsewhere.files = SystemFiles(Path(folder))  # type: ignore[attr-defined]
            assert isinstance(elsewhere.driver_version(), str | None)


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
    """A value declared lossy is lossy alone. Any other may be only where the default is: it need not undo all of it."""
    assert provider.is_lossy(Strategy(provider=provider.name)) is provider.default_is_lossy
    for name, option in provider.options.items():
        for value in option.values:
            if option.objection(value, provider.option_version()) is not None:
                continue
            lossy = provider.is_lossy(using(provider, name, value))
            if value in option.lossy_values:
                assert lossy, f"{name}={value} is declared lossy"
            elif option.lossy_values:
                assert provider.default_is_lossy or not lossy, f"{name}={value} is not declared lossy"
            else:
                assert lossy is provider.default_is_lossy, f"{name}={value} says nothing of precision"
    if provider.exact:
        exact = Strategy(provider=provider.name, provider_options=dict(provider.exact))
        assert provider.check(exact) == provider.exact
        assert not provider.is_lossy(exact), "its exact options do not make it exact"


def check_devices(provider: Provider) -> None:
    """Devices where usable, and an unknown one is refused by name; without any, an error that says what to do."""
    found = provider.availability()
    if not found.usable:
        return
    try:
        offered = provider.devices()
    except ProviderError as error:
        assert str(error), "an error without a word"
        return
    assert offered, "a usable provider offers a device or raises ProviderError"
    assert all(device.provider == provider.name and device.kind in provider.kinds for device in offered)
    assert all(device.name for device in offered)
    assert not any(device.simulated for device in offered), "a simulated device is none of onnxruntime's"
    assert found.emulated or not all(device.emulated for device in offered), "all it offers is emulated: say so cheaply"
    assert not found.emulated or all(device.emulated for device in offered), "it offers more than emulation"
    assert all(device.memory_mb is None or device.memory_mb > 0 for device in offered)
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


def examples(option: Option) -> Iterator[str]:
    """Values that the option must take: all there are, or the ends of its range."""
    yield from option.values
    yield from (str(number) for number in option.numbers or ())


def outsiders(option: Option) -> Iterator[str]:
    """Values that it must refuse; none where it takes any text."""
    if option.values:
        yield "no such value"
    if option.numbers is not None:
        lowest, highest = option.numbers
        yield from (str(lowest - 1), str(highest + 1), "1.5", "many", "")
