"""Whoever keeps a lease, with a platform that answers, is away, or gives the run to somebody else, and a clock of the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from osmosis_ai.api.wire.workers import Assignment, SyncReply, SyncRequest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.work import lease_keeping
from osmosis_ai.platform.runs.work.lease_keeping import LeaseKeeping
from osmosis_ai.platform.runs.work.platform_link import (
    CredentialRefusedError,
    PlatformLink,
    PlatformUnreachableError,
)
from osmosis_ai.platform.runs.work.run_channel import RunChannel
from tests.platform.runs.work.test_http_link import ASSIGNMENT

TERM_S = 30.0
PATIENCE_S = 60.0


class Platform:
    """Answers a worker's syncs as it is told to, and counts the seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.failure: OsmosisError | None = None
        self.stop = False
        self.on_its_way_s = 0.0
        self.asked: list[bool] = []
        self._asked = threading.Condition()

    def sync(self, _: str, request: SyncRequest) -> SyncReply:
        with self._asked:
            self.asked.append(request.may_wait)
            self._asked.notify_all()
            self.now += self.on_its_way_s
            if self.failure is not None:
                raise self.failure
            return SyncReply(stop=self.stop, term_s=TERM_S, next_s=1.0)

    def await_question(self, *, may_wait: bool, later_s: float = 0.0, away: bool = False) -> None:
        """Wait for the first question, so much later, to a platform that is away or answers."""
        with self._asked:
            begin = len(self.asked)
            self.now += later_s
            self.failure = PlatformUnreachableError("away.") if away else None
            assert self._asked.wait_for(lambda: len(self.asked) > begin, PATIENCE_S)
            assert self.asked[begin] == may_wait


@pytest.fixture
def platform() -> Platform:
    return Platform()


@pytest.fixture
def channel(platform: Platform) -> RunChannel:
    assignment = Assignment.model_validate({**ASSIGNMENT, "next_s": 1.0})
    return RunChannel(cast(PlatformLink, platform), assignment, clock=lambda: platform.now)


class Told:
    """What a keeper has said, in order."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._changed = threading.Condition()

    def say(self, word: str) -> Callable[[], None]:
        def said() -> None:
            with self._changed:
                self.words.append(word)
                self._changed.notify_all()

        return said

    def await_words(self, *words: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.words == list(words), PATIENCE_S), self.words


@pytest.fixture
def told(channel: RunChannel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What is said of the run while its lease is kept."""
    monkeypatch.setattr(lease_keeping, "_LOOK_S", 0.001)
    told = Told()
    said: dict[str, Any] = {f"on_{word}": told.say(word) for word in ("lost", "cut_off", "refused")}
    keeping = LeaseKeeping(channel, **said)
    keeping.start()
    yield told
    keeping.stop()


def test_half_a_lease_of_silence_is_asked_for_an_answer_at_once_and_nothing_else_happens(
    platform: Platform, channel: RunChannel, told: Told
) -> None:
    assert platform.asked == [False]  # whether it is to stop is known before anything is begun
    platform.await_question(may_wait=True, later_s=2.0)
    platform.await_question(may_wait=False, later_s=TERM_S / 2, away=True)
    platform.await_question(may_wait=False)
    platform.await_question(may_wait=True, later_s=2.0)
    assert not channel.has_run_out()
    assert told.words == []


def test_two_leases_of_silence_are_said_once_and_again_after_an_answer(
    platform: Platform, channel: RunChannel, told: Told
) -> None:
    for words in (["cut_off"], ["cut_off", "cut_off"]):
        platform.await_question(may_wait=False, later_s=TERM_S, away=True)
        told.await_words(*words)
        platform.await_question(may_wait=False, later_s=TERM_S, away=True)
        assert channel.has_run_out()
        platform.await_question(may_wait=False)
        platform.await_question(may_wait=True, later_s=2.0)  # the one before was answered
        told.await_words(*words)


@pytest.mark.parametrize(
    ("failure", "word"),
    [(LeaseLostError("another's."), "lost"), (CredentialRefusedError("revoked."), "refused")],
)
def test_what_the_platform_says_of_owner_and_credential_is_passed_on(
    platform: Platform, told: Told, failure: OsmosisError, word: str
) -> None:
    platform.failure = failure
    platform.now = 2.0
    told.await_words(word)


def test_a_stop_is_heard_once(platform: Platform, channel: RunChannel, told: Told) -> None:
    channel.listen(told.say("stop"))
    platform.stop = True
    for _ in range(3):
        platform.await_question(may_wait=True, later_s=2.0)
    told.await_words("stop")


@pytest.mark.parametrize(("news", "left_s"), [({}, 10.0), ({"may_wait": True}, 20.0)])
def test_an_answer_that_was_long_on_its_way_keeps_a_lease_for_no_longer_than_the_platform_does(
    platform: Platform, channel: RunChannel, news: dict[str, Any], left_s: float
) -> None:
    platform.on_its_way_s = 20.0
    channel.sync(**news)
    assert TERM_S - channel.silence_s() == left_s
