"""Tables that every path and setting adds to stay bounded: what was written longest ago goes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import pytest

from ort_metainfer.strategy_cache import store, table
from ort_metainfer.strategy_cache.store import StrategyCache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StrategyCache:
    """A cache whose table ``starts`` holds eight rows at most."""
    monkeypatch.setattr(store, "MOST_ROWS", MappingProxyType({"starts": 8}))
    return StrategyCache(tmp_path)


def test_what_was_written_longest_ago_goes_first(cache: StrategyCache) -> None:
    for number in range(8):
        assert cache.put("starts", f"key {number}", {"number": number})
    assert len(cache.keys("starts")) == 8
    assert cache.put("starts", "key 8", {"number": 8})
    assert cache.keys("starts") == [f"key {number}" for number in range(3, 9)]
    assert cache.get("starts", "key 8") == {"number": 8}


def test_a_row_that_is_written_again_is_new(cache: StrategyCache) -> None:
    for number in [*range(8), 0, 8]:
        cache.put("starts", f"key {number}", {})
    assert cache.keys("starts") == [f"key {number}" for number in (0, 4, 5, 6, 7, 8)]


def test_it_never_grows_beyond_the_bound(cache: StrategyCache) -> None:
    for number in range(40):
        cache.put("starts", f"key {number}", {})
        assert len(cache.keys("starts")) <= 8
    assert cache.get("starts", "key 39") == {}


def test_what_was_decided_is_never_dropped(cache: StrategyCache) -> None:
    for number in range(20):
        cache.put("entries", f"key {number}", {})
    assert len(cache.keys("entries")) == 20


def test_reading_a_bounded_table_writes_nothing(cache: StrategyCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("starts", "key", {"a": 1})
    opened: Callable[..., object] = lambda *_: pytest.fail("a write")  # noqa: E731
    monkeypatch.setattr(table, "opened_table", opened)
    assert cache.get("starts", "key") == {"a": 1}


def test_the_tables_of_starts_and_of_files_are_bounded() -> None:
    assert {"starts", "files"} <= set(store.MOST_ROWS)
    assert {"entries", "decisions", "models", "rewritten"}.isdisjoint(store.MOST_ROWS)
