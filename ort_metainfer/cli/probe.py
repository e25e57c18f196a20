"""``probe``: measure what a device can do, once, and keep it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.figures import change_lines, curve_lines, doubt_lines, feature_table, fingerprint_table
from ort_metainfer.cli.output import console, only_json, print_json, progress
from ort_metainfer.errors import CacheError, ProviderError, TrialError
from ort_metainfer.settings import Settings, resolve

if TYPE_CHECKING:
    from ort_metainfer.hardware.profile import Profile
    from ort_metainfer.hardware.toolchain import Change, ToolchainEffect
    from ort_metainfer.problem import Device
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["probe"]

BUDGET_S = 25.0
"""Ten for the probe, fifteen for the fingerprint."""

DISCOVERY_S = 30.0

WAIT_FACTOR = 3.0
"""How many budgets to wait for another process: it may have been given a larger one, or begin with another device."""


@dataclass(frozen=True)
class Outcome:
    """One device's profile, and how it compares.

    Attributes:
        profile: as it is kept now.
        was_kept: whether nothing was measured, because it was there.
        changes: against the one that was kept under the same versions; None where there was none, or nothing was
            measured.
        effects: what other versions of the software changed.
    """

    profile: Profile
    was_kept: bool
    changes: tuple[Change, ...] | None
    effects: tuple[ToolchainEffect, ...]


@click.command()
@click.option("--provider", "providers", multiple=True, help="Execution provider whose devices to measure.")
@click.option("--device", "names", multiple=True, help="Only devices of this name (CPU, AUTO, GPU.0) or class (gpu).")
@click.option(
    "--budget-s",
    type=click.FloatRange(2, 86_400),
    callback=lambda context, option, value: _a_number(value),
    default=BUDGET_S,
    show_default=True,
    help="Seconds per device.",
)
@click.option("--refresh", is_flag=True, help="Measure again what is kept.")
@click.option("--against-last", is_flag=True, help="Measure again, and say which figures did not repeat.")
@click.option("--cache-dir", help="Where profiles are kept, if not in the configured place.")
@as_json
def probe(
    providers: tuple[str, ...],
    names: tuple[str, ...],
    budget_s: float,
    refresh: bool,
    against_last: bool,
    cache_dir: str | None,
    as_json: bool,
) -> None:
    """Measure each device: micro-benchmarks, and small reference networks under every strategy that can be used.

    What was measured before is shown, not measured again, as long as versions are the same. Without --provider, every
    usable provider that is no emulation and needs not be named.
    """
    with only_json(as_json), progress("probe") as step:
        store = _store(cache_dir)
        devices, refused = chosen_devices(providers, names)
        outcomes = [measure(device, store, budget_s, refresh or against_last, step) for device in devices]
    if as_json:
        print_json(document(outcomes, refused))
    else:
        show(outcomes, refused, against_last)
    if store.last_failure:
        raise CacheError(store.last_failure)


def _a_number(value: float) -> float:
    """``value``; click lets NaN through every range."""
    if math.isnan(value):
        raise click.BadParameter("nan is not in the range 2<=x<=86400.")
    return value


def chosen_devices(providers: Sequence[str], names: Sequence[str]) -> tuple[list[Device], list[tuple[str, str]]]:
    """The devices to measure, and (provider, reason) for each provider that offers none.

    Without names, one per provider and piece of hardware: OpenVINO offers the same CPU as CPU and AUTO.

    Raises:
        ProviderError: there is no such provider or device.
    """
    from ort_metainfer.hardware.discovery import offered_devices
    from ort_metainfer.providers import get_provider, usable_providers

    wanted = [get_provider(name).name for name in providers]
    usable = [provider.name for provider in usable_providers(wanted or None)]
    absent = [(name, get_provider(name).availability().reason) for name in wanted if name not in usable]
    asked = [name for name in usable if not wanted or name in wanted]
    found, refused = offered_devices(asked, time.monotonic() + DISCOVERY_S)
    if names:
        chosen = [device for device in found if _is_named(device, names)]
    else:
        chosen = list({(device.provider, device.kind, device.name): device for device in reversed(found)}.values())[
            ::-1
        ]
    if not chosen:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in [*absent, *refused])
        there_is = ", ".join(f"{device.provider} {device.provider_device or device.kind}" for device in found) or "none"
        raise ProviderError(f"no device to measure; there is: {there_is}{'; ' + reasons if reasons else ''}")
    return chosen, [*absent, *refused]


def _is_named(device: Device, names: Sequence[str]) -> bool:
    spellings = {text.lower() for text in (device.provider_device, device.kind, device.name) if text}
    return any(name.lower() in spellings for name in names)


def measure(
    device: Device, store: StrategyCache, budget_s: float, refresh: bool, step: Callable[[str], None]
) -> Outcome:
    """One device's profile, measured where it is not kept or where ``refresh`` is wanted.

    One process at a time, of those that share a cache directory, measures one piece of hardware, whatever the provider:
    two would measure each other.

    Raises:
        TrialError: another process is still measuring it after the time that both may take.
    """
    from ort_metainfer.strategy_cache.lock import deciding

    name = f"{device.provider.removesuffix('ExecutionProvider')} {device.provider_device or device.kind}"
    lock, wait_s = f"probe {device.kind} {device.name}", WAIT_FACTOR * max(budget_s, BUDGET_S)

    def measured() -> Outcome:
        return _measured(device, store, budget_s, refresh, lambda text: step(f"{name}: {text}"))

    if not refresh and _is_kept(device, store):
        return measured()
    with deciding(store.directory, lock, 0) as is_free:
        if is_free:
            return measured()
    step(f"{name}: another process is measuring this hardware; waiting for it to end")
    with deciding(store.directory, lock, wait_s) as is_free:
        if is_free:
            return measured()
    raise TrialError(f"{device}: another process has been measuring it for {wait_s:.0f} s; try again when it has ended")


def _is_kept(device: Device, store: StrategyCache) -> bool:
    from ort_metainfer.hardware.profiles import known_profile, suffices, versions_of

    kept = known_profile(store, device, versions_of(device))
    return kept is not None and suffices(kept)


def _measured(
    device: Device, store: StrategyCache, budget_s: float, refresh: bool, say: Callable[[str], None]
) -> Outcome:
    from ort_metainfer.hardware.profiles import known_effects, known_profile, profile_device, suffices, versions_of
    from ort_metainfer.hardware.toolchain import changes

    before = known_profile(store, device, versions_of(device))
    profile = profile_device(device, store, budget_s, refresh, say)
    was_kept = before is not None and suffices(before) and not refresh
    compared = changes(before, profile) if before is not None and not was_kept else None
    return Outcome(profile, was_kept, compared, tuple(known_effects(store, profile)))


def document(outcomes: Sequence[Outcome], refused: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What ``--json`` prints."""
    rows = [
        {
            "profile": outcome.profile.as_dict(),
            "was_kept": outcome.was_kept,
            "changes": None if outcome.changes is None else [asdict(change) for change in outcome.changes],
            "effects": [effect.as_dict() for effect in outcome.effects],
        }
        for outcome in outcomes
    ]
    return {"devices": rows, "refused": [{"provider": name, "reason": reason} for name, reason in refused]}


def show(outcomes: Sequence[Outcome], refused: Sequence[tuple[str, str]], against_last: bool) -> None:
    """For people."""
    for outcome in outcomes:
        profile = outcome.profile
        console().print("\n".join(heading(outcome)))
        if profile.measurements:
            console().print("\n".join(["", "curves", *curve_lines(profile.measurements)]))
        if profile.references:
            console().print("\nfingerprint: ln(time / geometric mean of the strategies), time of a run")
            console().print(fingerprint_table(profile.references))
            console().print("\n".join(doubt_lines(profile.references)))
        console().print(feature_table([feature for feature in profile.features if feature.origin != "fingerprint"]))
        if outcome.changes is not None:
            console().print("\n".join(["", *change_lines(outcome.changes)]))
        elif against_last:
            console().print("\nrepeatability  nothing was kept of these versions to compare with; probe again")
        if outcome.effects:
            console().print("\n".join(["", "toolchain effects", *(f"  {e.describe()}" for e in outcome.effects)]))
        console().print()
    for name, reason in refused:
        console().print(f"{name}: {reason}")


def heading(outcome: Outcome) -> Iterator[str]:
    """Which device, which versions, when, and under which conditions."""
    profile = outcome.profile
    name = " ".join(text for text in (profile.device.provider_device, profile.device.name) if text)
    marks = "".join(f" [{mark}]" for mark in ("emulated", "simulated") if getattr(profile.device, mark))
    yield f"{profile.device.provider}  {profile.device.kind}: {name}{marks}"
    yield "versions       " + ", ".join(f"{name} {version}" for name, version in sorted(profile.versions.items()))
    how = "kept from" if outcome.was_kept else "measured"
    yield f"{how:<15}{profile.measured_at}, in {profile.seconds:.0f} s"
    for when in ("before", "after"):
        state = getattr(profile, when)
        if state is not None:
            yield f"{when:<15}{state.busy_reason or 'quiet'}"


def _store(cache_dir: str | None) -> StrategyCache:
    from ort_metainfer.places import cache_directory
    from ort_metainfer.strategy_cache.store import open_cache

    return open_cache(cache_directory(resolve(Settings(cache_dir=cache_dir))[0]))
