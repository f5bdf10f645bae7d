"""Whoever keeps a lease, with a platform that answers, is away, or gives the run to somebody else, and a clock of the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from osmosis_ai.api.wire.workers import Assignment, SyncReply, SyncRequest
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.runs.lifecycle import LeaseLostError
from osmosis_ai.platform.runs.work.lease_keeping import LeaseKeeping
from osmosis_ai.platform.runs.work.platform_link import (
    CredentialRefusedError,
    PlatformLink,
    PlatformUnreachableError,
)
from osmosis_ai.platform.runs.work.run_channel import RunChannel
from tests.platform.runs.work.test_http_link import ASSIGNMENT

TERM_S = 30.0
PATIENCE_S = 300.0
THREADS = 2


class Platform:
    """Answers a worker's syncs as it is told to, and counts the seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.failure: Exception | None = None
        self.stop = False
        self.on_its_way_s = 0.0
        self.asked: list[bool] = []

    def sync(self, _: str, request: SyncRequest) -> SyncReply:
        self.asked.append(request.may_wait)
        self.now += self.on_its_way_s
        if self.failure is not None:
            raise self.failure
        return SyncReply(stop=self.stop, term_s=TERM_S, next_s=1.0)


@pytest.fixture
def platform() -> Platform:
    return Platform()


@pytest.fixture
def channel(platform: Platform) -> RunChannel:
    assignment = Assignment.model_validate({**ASSIGNMENT, "next_s": 1.0})
    return RunChannel(cast("PlatformLink", platform), assignment, clock=lambda: platform.now)


class Looks:
    """In the place of the event that ends a keeper: its threads look once when a test says so, and rest in between."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._resting = self._round = 0
        self._is_set = False

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

    def look(self) -> None:
        """Let each thread look once, unless it has ended, and wait until all rest again."""
        with self._changed:
            self._await_rest()
            self._resting, self._round = 0, self._round + 1
            self._changed.notify_all()
            self._await_rest()

    def _await_rest(self) -> None:
        assert self._changed.wait_for(lambda: self._resting == THREADS or self._is_set, PATIENCE_S)


@pytest.fixture
def looks() -> Looks:
    return Looks()


class Asking:
    """A keeper and its platform, in which the time passes between two looks alone."""

    def __init__(self, platform: Platform, looks: Looks) -> None:
        self.platform = platform
        self._looks = looks

    def question(self, *, may_wait: bool, later_s: float = 0.0, away: bool = False) -> None:
        """Hold that a platform that is away, or answers, is asked so much later, once and like this."""
        before = len(self.platform.asked)
        self.platform.now += later_s
        self.platform.failure = PlatformUnreachableError("away.") if away else None
        self._looks.look()
        assert self.platform.asked[before:] == [may_wait]


@pytest.fixture
def asking(platform: Platform, looks: Looks) -> Asking:
    return Asking(platform, looks)


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
def told(channel: RunChannel, looks: Looks) -> Iterator[Told]:
    """What is said of the run while its lease is kept."""
    told = Told()
    said: dict[str, Any] = {f"on_{word}": told.say(word) for word in ("lost", "cut_off", "refused")}
    keeping = LeaseKeeping(channel, **said)
    cast("Any", keeping)._ended = looks
    keeping.start()
    yield told
    keeping.stop()


def test_half_a_lease_of_silence_is_asked_for_an_answer_at_once_and_nothing_else_happens(
    asking: Asking, channel: RunChannel, told: Told
) -> None:
    assert asking.platform.asked == [False]  # whether it is to stop is known before anything is begun
    asking.question(may_wait=True, later_s=2.0)
    asking.question(may_wait=False, later_s=TERM_S / 2, away=True)
    asking.question(may_wait=False)
    asking.question(may_wait=True, later_s=2.0)
    assert not channel.has_run_out()
    assert told.words == []


def test_a_question_that_fails_for_no_known_reason_is_followed_by_the_next(
    asking: Asking, looks: Looks, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    asking.platform.failure = RuntimeError("odd")
    asking.platform.now = 2.0
    for _ in range(2):
        looks.look()
    asking.question(may_wait=True)
    assert capsys.readouterr().err.count("RuntimeError: odd") == 1
    assert told.words == []


def test_two_leases_of_silence_are_said_once_and_again_after_an_answer(
    asking: Asking, channel: RunChannel, told: Told
) -> None:
    for words in (["cut_off"], ["cut_off", "cut_off"]):
        asking.question(may_wait=False, later_s=TERM_S, away=True)
        assert told.words == words
        asking.question(may_wait=False, later_s=TERM_S, away=True)
        assert channel.has_run_out()
        asking.question(may_wait=False)
        asking.question(may_wait=True, later_s=2.0)  # the one before was answered
        assert told.words == words


@pytest.mark.parametrize(
    ("failure", "word"),
    [(LeaseLostError("another's."), "lost"), (CredentialRefusedError("revoked."), "refused")],
)
def test_what_the_platform_says_of_owner_and_credential_is_passed_on_once(
    platform: Platform, looks: Looks, told: Told, failure: OsmosisError, word: str
) -> None:
    platform.failure = failure
    platform.now = 2.0
    for _ in range(2):
        looks.look()
    told.await_words(word)


def test_a_stop_is_heard_once(asking: Asking, channel: RunChannel, told: Told) -> None:
    channel.listen(told.say("stop"))
    asking.platform.stop = True
    for _ in range(3):
        asking.question(may_wait=True, later_s=2.0)
    assert told.words == ["stop"]


@pytest.mark.parametrize(("news", "left_s"), [({}, 10.0), ({"may_wait": True}, 20.0)])
def test_an_answer_that_was_long_on_its_way_keeps_a_lease_for_no_longer_than_the_platform_does(
    platform: Platform, channel: RunChannel, news: dict[str, Any], left_s: float
) -> None:
    platform.on_its_way_s = 20.0
    channel.sync(**news)
    assert TERM_S - channel.silence_s() == left_s
