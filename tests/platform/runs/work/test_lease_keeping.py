"""A worker keeps its lease and hears what the platform says of its run, by a clock of the test's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from osmosis_ai.api.wire.workers import Assignment, SyncReply, SyncRequest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.work.lease_keeping import LeaseKeeping
from osmosis_ai.platform.runs.work.platform_link import CredentialRefusedError, PlatformUnreachableError
from osmosis_ai.platform.runs.work.run_channel import RunChannel
from tests.platform.runs.work.test_http_link import ASSIGNMENT

TERM_S = 30.0
AWAY = PlatformUnreachableError("away.")


class Keeping:
    """A lease that is kept, a platform that answers as the test says, and threads that look when the test lets them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.failure: Exception | None = None
        self.stop = False
        self.on_its_way_s = 0.0
        self.asked = 0
        self.said: list[str] = []
        assignment = Assignment.model_validate({**ASSIGNMENT, "next_s": 1.0})
        self.channel = RunChannel(cast(Any, self), assignment, clock=lambda: self.now)
        words: dict[str, Any] = {f"on_{word}": self._noted(word) for word in ("lost", "cut_off", "refused")}
        self._keeping: Any = LeaseKeeping(self.channel, **words)
        self._keeping._ended = self
        self._changed = threading.Condition()
        self._resting = self._round = 0
        self._is_set = False
        self._keeping.start()

    def _noted(self, word: str) -> Any:
        return lambda: self.said.append(word)

    def sync(self, _: str, request: SyncRequest) -> SyncReply:
        self.asked += 1
        self.now += self.on_its_way_s
        if self.failure is not None:
            raise self.failure
        return SyncReply(stop=self.stop, term_s=TERM_S, next_s=1.0)

    def after(self, seconds: float, failure: Exception | None = None) -> list[str]:
        """Let time pass and the threads look once; return all that was said so far."""
        self.now, self.failure = self.now + seconds, failure
        with self._changed:
            self._await_rest()
            self._resting, self._round = 0, self._round + 1
            self._changed.notify_all()
            self._await_rest()
        return self.said

    def close(self) -> None:
        self._keeping.stop()

    # In the place of the event that ends a keeper.

    def wait(self, _: float) -> bool:
        with self._changed:
            seen = self._round
            self._resting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._round > seen or self._is_set)
            return self._is_set

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def _await_rest(self) -> None:
        assert self._changed.wait_for(lambda: self._resting == 2 or self._is_set, 300)


@pytest.fixture
def keeping() -> Iterator[Keeping]:
    made = Keeping()
    yield made
    made.close()


def test_two_leases_of_silence_are_reported_once(keeping: Keeping) -> None:
    assert keeping.after(TERM_S / 2, AWAY) == []
    assert keeping.after(0.0) == [] and not keeping.channel.has_run_out()
    for count in (1, 2):
        assert keeping.after(TERM_S, AWAY) == ["cut_off"] * count
        assert keeping.after(TERM_S, AWAY) == ["cut_off"] * count
        assert keeping.channel.has_run_out()
        keeping.after(0.0)
        assert keeping.after(2.0) == ["cut_off"] * count and not keeping.channel.has_run_out()


@pytest.mark.parametrize(
    ("failure", "word"),
    [(LeaseLostError("another's."), "lost"), (CredentialRefusedError("revoked."), "refused")],
)
def test_a_lost_lease_is_reported_once(keeping: Keeping, failure: OsmosisError, word: str) -> None:
    keeping.after(2.0, failure)
    assert keeping.after(2.0, failure) == [word]


def test_a_stop_is_heard_once(keeping: Keeping) -> None:
    keeping.channel.listen(lambda: keeping.said.append("stop"))
    keeping.stop = True
    for _ in range(3):
        assert keeping.after(2.0) == ["stop"]


def test_an_unexpected_failure_is_survived(keeping: Keeping, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        keeping.after(2.0, RuntimeError("odd"))
    asked = keeping.asked
    assert keeping.after(2.0) == [] and keeping.asked == asked + 1
    assert capsys.readouterr().err.count("RuntimeError: odd") == 1


@pytest.mark.parametrize(("news", "left_s"), [({}, 10.0), ({"may_wait": True}, 20.0)])
def test_a_slow_answer_adds_nothing(keeping: Keeping, news: dict[str, Any], left_s: float) -> None:
    keeping.on_its_way_s = 20.0
    keeping.channel.sync(**news)
    assert TERM_S - keeping.channel.silence_s() == left_s
