from __future__ import annotations

from types import SimpleNamespace

import pytest

from osmosis_ai.api.retrying import Transient, Waits
from osmosis_ai.errors import OsmosisError


def test_a_call_is_tried_once_more_than_there_are_waits(slept: list[float]) -> None:
    calls = 0

    def attempt() -> None:
        nonlocal calls
        calls += 1
        raise Transient(OsmosisError(f"failure {calls}"))

    with pytest.raises(OsmosisError, match="failure 5"):
        Waits((1, 2, 4, 8)).run(attempt)
    assert slept == [1, 2, 4, 8]


def test_the_server_may_ask_for_a_longer_wait_but_not_for_a_coffee_break(slept: list[float]) -> None:
    asked = iter([7.0, 0.1, 3600.0])

    def attempt() -> None:
        raise Transient(OsmosisError("busy"), retry_after_s=next(asked))

    with pytest.raises(OsmosisError, match="busy"):
        Waits((1, 2, 4)).run(attempt)
    assert slept == [7, 2]


def test_waits_that_last_are_repeated_until_their_time_is_over(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 10.0, 20.0, 29.0, 31.0])
    monkeypatch.setattr("osmosis_ai.api.retrying.time", SimpleNamespace(monotonic=lambda: next(now)))

    def attempt() -> None:
        raise Transient(OsmosisError("away"))

    with pytest.raises(OsmosisError, match="away"):
        Waits((1, 2)).lasting(30.0).run(attempt)
    assert slept == [1, 2, 2, 2, 2]


def test_another_error_ends_it_at_once(slept: list[float]) -> None:
    def attempt() -> None:
        raise OsmosisError("no")

    with pytest.raises(OsmosisError):
        Waits((1, 2)).run(attempt)
    assert slept == []
