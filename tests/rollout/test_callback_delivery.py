"""Callbacks when the controller is away, slow or unwilling. Time is the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from osmosis_ai.rollout import LocalBackend
from osmosis_ai.rollout.server import app
from osmosis_ai.rollout.server.callback_delivery import (
    ATTEMPTS,
    PATIENCE_S,
    PROBE_S,
    CallbackDelivery,
    DeliveryError,
)

from .world import Controller, ExactMatch, SayOk, serving


class Time:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def clock(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def delivery(time: Time) -> AsyncIterator[CallbackDelivery]:
    made = CallbackDelivery(sleep=time.sleep, clock=time.clock)
    yield made
    await made.close()


@pytest.fixture
def patient(time: Time, monkeypatch: pytest.MonkeyPatch) -> Time:
    """Servers built in this test wait in the test's own time."""
    monkeypatch.setattr(app, "CallbackDelivery", lambda: CallbackDelivery(sleep=time.sleep, clock=time.clock))
    return time


BUSY: list[tuple[int, dict[str, Any]]] = [(503, {"detail": "busy"})]


async def run_one(controller: Controller) -> None:
    async with serving(LocalBackend(workflow=SayOk, grader=ExactMatch)) as client:
        await client.post("/rollout", json=controller.init_body())


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_controller_in_trouble_is_asked_again_with_growing_pauses(
    controller: Controller, delivery: CallbackDelivery, time: Time, status: int
) -> None:
    controller.answers["completion"] = [(status, {})] * 5
    url = controller.init_body()["completion_callback_url"]

    answer = await delivery.deliver(url, b"{}", None)

    assert answer == b'{"ok": true}'
    assert [round(pause / wanted) for pause, wanted in zip(time.pauses, [0.5, 1, 2, 4, 8], strict=True)] == [
        1
    ] * 5
    assert all(
        0.75 <= pause / wanted <= 1.25 for pause, wanted in zip(time.pauses, [0.5, 1, 2, 4, 8], strict=True)
    )


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 302])
async def test_a_refusal_is_final(
    controller: Controller, delivery: CallbackDelivery, time: Time, status: int
) -> None:
    controller.answers["completion"] = [(status, {"detail": "no"})]
    url = controller.init_body()["completion_callback_url"]

    with pytest.raises(DeliveryError, match=f"HTTP {status}") as caught:
        await delivery.deliver(url, b"{}", None)

    assert caught.value.refused
    assert time.pauses == []


@pytest.mark.parametrize("url", ["", "no-scheme", "ftp://host/path", "http://"])
async def test_a_url_that_is_none_is_refused_at_once(
    delivery: CallbackDelivery, time: Time, url: str
) -> None:
    with pytest.raises(DeliveryError) as caught:
        await delivery.deliver(url, b"{}", None)

    assert caught.value.refused
    assert time.pauses == []


async def test_attempts_and_patience_are_limits(
    controller: Controller, delivery: CallbackDelivery, time: Time
) -> None:
    controller.answers["completion"] = BUSY * 1000
    url = controller.init_body()["completion_callback_url"]

    with pytest.raises(DeliveryError, match="in 5 tries") as caught:
        await delivery.deliver(url, b"{}", None, attempts=ATTEMPTS)
    assert not caught.value.refused
    assert len(time.pauses) == 4

    started = time.now
    with pytest.raises(DeliveryError):
        await delivery.deliver(url, b"{}", None, patience_s=PATIENCE_S)
    assert PATIENCE_S - 30 <= time.now - started <= PATIENCE_S


async def test_a_controller_that_is_down_is_waited_for(delivery: CallbackDelivery, time: Time) -> None:
    async with Controller().serving() as gone:
        url = gone.init_body()["completion_callback_url"]

    with pytest.raises(DeliveryError, match="in 3 tries"):
        await delivery.deliver(url, b"{}", None, attempts=3)


async def test_copies_of_callbacks_never_outnumber_first_tries_at_a_controller_that_is_late(
    delivery: CallbackDelivery, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: set[bytes] = set()
    copies = 0
    most_copies_of = 0.0
    waits: list[float] = []

    async def silence(url: str, body: bytes, headers: object) -> tuple[int | None, bytes, str, float, bool]:
        nonlocal copies, most_copies_of
        copies += body in first
        first.add(body)
        most_copies_of = max(most_copies_of, copies / len(first))
        if len(first) > 40:
            return 200, b"{}", "", 0.0, False
        await time.sleep(delivery._timeout_s)
        waits.append(delivery._timeout_s)
        return None, b"", "TimeoutError()", 0.0, True

    monkeypatch.setattr(delivery, "_post", silence)
    late = [asyncio.create_task(delivery.deliver("u", b"%d" % index, None)) for index in range(20)]
    for _ in range(400):
        await asyncio.sleep(0)
    assert len(first) == 20
    assert copies >= 20, "each may be sent again, once for each first try"
    probes = time.now / PROBE_S + 1
    assert copies <= 20 + probes
    # Work that comes in makes room for copies again, and then the controller has caught up.
    more = [asyncio.create_task(delivery.deliver("u", b"%d" % index, None)) for index in range(20, 60)]
    await asyncio.gather(*late, *more)
    assert most_copies_of <= 1 + probes / 20


async def test_an_answer_that_is_late_is_waited_for_twice_as_long_the_next_time(
    delivery: CallbackDelivery, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    class Late:
        def post(self, url: str, *, timeout: aiohttp.ClientTimeout, **_: Any) -> Any:
            assert timeout.sock_read is not None
            tried.append(timeout.sock_read)
            raise asyncio.TimeoutError

    monkeypatch.setattr(delivery, "_open", Late)
    with pytest.raises(DeliveryError):
        await delivery.deliver("http://controller/x", b"{}", None, patience_s=PATIENCE_S)
    assert tried[:5] == [10.0, 20.0, 40.0, 80.0, 160.0]
    assert set(tried[5:]) <= {160.0}


async def test_an_outage_longer_than_the_first_tries_costs_no_reward(
    controller: Controller, patient: Time
) -> None:
    controller.answers["grader"] = BUSY * 20

    await run_one(controller)

    assert patient.now > 60
    bodies = controller.bodies("grader")
    assert len(bodies) == 21
    assert all(body == bodies[0] for body in bodies)
    assert (bodies[0]["status"], bodies[0]["sample"]["reward"]) == ("success", 1.0)


async def test_a_completion_nobody_took_is_graded_anyway_and_delivered_before_the_grade(
    controller: Controller, patient: Time
) -> None:
    controller.answers["completion"] = BUSY * (ATTEMPTS + 2)

    await run_one(controller)

    channels = [callback.channel for callback in controller.callbacks]
    assert channels == ["completion"] * (ATTEMPTS + 3) + ["grader"]
    assert {body["status"] for body in controller.bodies("completion")} == {"success"}
    assert controller.bodies("grader")[0]["sample"]["reward"] == 1.0


async def test_a_refused_completion_is_not_repeated_and_the_grade_still_offered(
    controller: Controller, patient: Time
) -> None:
    controller.answers["completion"] = [(422, {})]

    await run_one(controller)

    assert [callback.channel for callback in controller.callbacks] == ["completion", "grader"]


async def test_an_outcome_refused_for_good_is_logged_and_nothing_is_invented(
    controller: Controller, patient: Time, caplog: pytest.LogCaptureFixture
) -> None:
    controller.answers["grader"] = [(404, {"detail": "unknown rollout"})]

    await run_one(controller)

    assert [body["status"] for body in controller.bodies("grader")] == ["success"]
    assert "its outcome is lost" in caplog.text
    assert "unknown rollout" in caplog.text
