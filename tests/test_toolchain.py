"""Two profiles of one device: what the software changed, and what does not repeat."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ort_metainfer.hardware.profile import Feature, Profile
from ort_metainfer.hardware.toolchain import (
    changes,
    flag_effects,
    flag_unrepeatable,
    is_same_device,
    toolchain_effects,
)
from ort_metainfer.problem import Device

DEVICE = Device("CPUExecutionProvider", "cpu", "Some CPU", features=("avx2",), cores=2.0)


def feature(name: str, value: float, unit: str = "ms", **fields: Any) -> Feature:
    return Feature(name, value, unit, fields.pop("origin", "probe"), **fields)


def profile(*features: Feature, version: str = "1.31.1", device: Device = DEVICE) -> Profile:
    return Profile(device, {"onnxruntime": version}, features)


OLD, NEW = "1.31.1", "1.32.0"


def test_a_figure_that_another_version_changed_by_more_than_15_percent_is_an_effect() -> None:
    before = profile(feature("a", 1.0), feature("b", 1.0), feature("c", 2.0), version=OLD)
    after = profile(feature("a", 1.14), feature("b", 1.16), feature("c", 1.0), version=NEW)
    effects = toolchain_effects(before, after)
    assert {effect.feature: effect.ratio for effect in effects} == {
        "b": pytest.approx(1.16),
        "c": pytest.approx(0.5),
    }
    assert effects[0].versions == {"onnxruntime": (OLD, NEW)}
    assert "1 ms became 1.16 (1.16x) with onnxruntime 1.31.1 -> 1.32.0" in effects[0].describe()
    json.dumps([effect.as_dict() for effect in effects], allow_nan=False)


def test_logarithms_are_compared_by_their_difference() -> None:
    before = profile(feature("near", -0.1, "ln"), feature("far", 0.0, "ln"), version=OLD)
    after = profile(feature("near", 0.03, "ln"), feature("far", -0.5, "ln"), version=NEW)
    (effect,) = toolchain_effects(before, after)
    assert effect.feature == "far" and effect.ratio == pytest.approx(0.60653, rel=1e-4)


def test_an_effect_keeps_the_feature_from_learners_and_from_nothing_else() -> None:
    before, after = (
        profile(feature("a", 1.0), feature("b", 1.0)),
        profile(feature("a", 2.0), feature("b", 1.0), version=NEW),
    )
    flagged = flag_effects(after, toolchain_effects(before, after))
    assert dict(flagged.values()) == {"b": 1.0}
    assert flagged["a"].value == 2.0
    assert (flagged["a"].flag or "").startswith("toolchain effect: 1 ms became 2")


def test_what_was_not_trusted_already_is_not_charged_to_the_software() -> None:
    before = profile(feature("a", 1.0, flag="unsteady"), feature("b", 1.0), version=OLD)
    after = profile(feature("a", 2.0), feature("b", 2.0, flag="disturbed"), version=NEW)
    assert toolchain_effects(before, after) == ()


def test_a_difference_that_spread_explains_is_no_effect() -> None:
    before, after = profile(feature("a", 1.0, spread=0.4)), profile(feature("a", 1.3, spread=0.4), version=NEW)
    assert toolchain_effects(before, after) == ()
    steady = profile(feature("a", 1.3, spread=0.02), version=NEW)
    assert len(toolchain_effects(profile(feature("a", 1.0, spread=0.02)), steady)) == 1


def test_what_the_system_tells_is_not_measured_and_what_only_one_has_is_not_compared() -> None:
    before = profile(feature("cores", 2.0, "1", origin="static"), feature("gone", 1.0), version=OLD)
    after = profile(feature("cores", 4.0, "1", origin="static"), feature("new", 1.0), version=NEW)
    assert toolchain_effects(before, after) == ()


def test_without_another_version_or_on_another_device_there_is_no_effect() -> None:
    before, after = profile(feature("a", 1.0)), profile(feature("a", 2.0))
    assert toolchain_effects(before, after) == ()
    elsewhere = profile(feature("a", 2.0), version=NEW, device=replace(DEVICE, name="Another CPU"))
    assert toolchain_effects(before, elsewhere) == ()


def test_a_version_that_one_side_lacks_is_named_as_absent() -> None:
    before, after = profile(feature("a", 1.0)), profile(feature("a", 2.0))
    after = replace(after, versions={**after.versions, "driver": "7"})
    (effect,) = toolchain_effects(before, after)
    assert effect.versions == {"driver": ("", "7")}
    assert "driver absent -> 7" in effect.describe()


def test_zero_and_negative_figures_have_no_ratio_and_do_no_harm() -> None:
    before = profile(feature("a", 0.0), feature("b", 1.0), feature("c", -1.0), feature("d", 0.0, "ln"))
    after = profile(feature("a", 1.0), feature("b", 0.0), feature("c", 5.0), feature("d", 1e4, "ln"), version=NEW)
    assert toolchain_effects(before, after) == ()


def test_a_driver_is_no_part_of_which_device_it_is_but_simulation_is() -> None:
    first = profile()
    assert is_same_device(first, profile(device=replace(DEVICE, driver="7"), version=NEW))
    assert not is_same_device(first, profile(device=replace(DEVICE, provider_device="AUTO")))
    assert not is_same_device(first, replace(first, simulated=True))
    assert not is_same_device(first, replace(first, schema=first.schema + 1))


def test_what_differs_under_the_same_versions_is_flagged_whatever_its_spread() -> None:
    before = profile(feature("a", 1.0, spread=0.5), feature("b", 1.0), feature("c", 1.0, flag="unsteady"))
    after = profile(feature("a", 1.3, spread=0.5), feature("b", 1.1), feature("c", 2.0, flag="disturbed"))
    flagged = flag_unrepeatable(before, after)
    assert flagged["a"].flag == "not repeatable: 1 ms when it was measured before, 1.3 now"
    assert flagged["b"].flag is None
    assert (flagged["c"].flag or "").endswith("; disturbed")


def test_a_figure_that_repeats_again_loses_its_flag() -> None:
    first = profile(feature("a", 1.0))
    second = flag_unrepeatable(first, profile(feature("a", 2.0)))
    third = flag_unrepeatable(second, profile(feature("a", 2.05)))
    assert second["a"].flag is not None and third["a"].flag is None


def test_other_versions_say_nothing_about_repeatability() -> None:
    after = profile(feature("a", 2.0), version=NEW)
    assert flag_unrepeatable(profile(feature("a", 1.0)), after) == after


def test_changes_are_told_the_largest_first() -> None:
    before = profile(feature("a", 1.0), feature("b", 1.0), feature("c", 1.0, "ln"))
    after = profile(feature("a", 1.1), feature("b", 0.2), feature("c", 1.3, "ln"))
    told = changes(before, after)
    assert [(change.feature, change.large) for change in told] == [("b", True), ("c", True), ("a", False)]
    assert changes(before, profile(device=replace(DEVICE, kind="gpu"))) == ()
