from __future__ import annotations

from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from osmosis_ai.api.retrying import Transient, Waits, retry_after_s
from osmosis_ai.errors import OsmosisError


def test_a_call_is_tried_once_more_than_there_are_waits() -> None:
    slept: list[float] = []
    calls = 0

    def attempt() -> None:
        nonlocal calls
        calls += 1
        raise Transient(OsmosisError(f"failure {calls}"))

    with pytest.raises(OsmosisError, match="failure 5"):
        Waits((1, 2, 4, 8)).run(attempt, sleep=slept.append)
    assert slept == [1, 2, 4, 8]


def test_the_server_may_ask_for_a_longer_wait_but_not_for_a_coffee_break() -> None:
    slept: list[float] = []
    asked = iter([7.0, 0.1, 3600.0])

    def attempt() -> None:
        raise Transient(OsmosisError("busy"), retry_after_s=next(asked))

    with pytest.raises(OsmosisError, match="busy"):
        Waits((1, 2, 4)).run(attempt, sleep=slept.append)
    assert slept == [7, 2]


def test_another_error_ends_it_at_once() -> None:
    def attempt() -> None:
        raise OsmosisError("no")

    with pytest.raises(OsmosisError):
        Waits((1, 2)).run(attempt, sleep=lambda _: pytest.fail("slept"))


def test_retry_after_is_read_as_seconds_and_as_a_date() -> None:
    assert retry_after_s({"retry-after": " 12 "}) == 12
    assert retry_after_s({"retry-after": "-3"}) == 0
    soon = datetime.now(timezone.utc) + timedelta(seconds=30)
    waited = retry_after_s({"retry-after": format_datetime(soon, usegmt=True)})
    assert waited is not None and 25 < waited <= 30
    for nothing in ({}, {"retry-after": "soon"}, {"retry-after": "nan"}, {"retry-after": "inf"}):
        assert retry_after_s(nothing) is None
