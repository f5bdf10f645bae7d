from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from osmosis_ai.driving import callback_registry
from osmosis_ai.driving.callback_registry import (
    CallbackStore,
    DuplicateRegistrationError,
    TerminalCallbackResult,
    UnknownRolloutIdError,
    duplicate_callback_payload,
)
from tests.driving.wire import ROLLOUT_ID, completion, grader


class Journal:
    """A commit hook that records what it is given, can be held, and can fail."""

    def __init__(self) -> None:
        self.committed: list[TerminalCallbackResult] = []
        self.failures: list[Exception] = []
        self.calls = 0
        self.acknowledgment: Mapping[str, Any] | None = None
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, result: TerminalCallbackResult) -> Mapping[str, Any] | None:
        self.calls += 1
        self.started.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.committed.append(result)
        return self.acknowledgment


@pytest.fixture
async def journal() -> Journal:
    return Journal()


@pytest.fixture
async def store(journal: Journal) -> CallbackStore:
    store = CallbackStore(on_terminal_commit=journal)
    await store.register(ROLLOUT_ID)
    return store


async def test_a_completion_is_remembered_and_ends_nothing(store: CallbackStore, journal: Journal) -> None:
    assert await store.handle_completion(ROLLOUT_ID, completion()) == {"ok": True}
    assert journal.calls == 0


async def test_a_completion_is_told_what_is_known_until_the_terminal_says_more(journal: Journal) -> None:
    store = CallbackStore(
        on_terminal_commit=journal, acknowledge_completion=lambda rollout_id: {"calls of": rollout_id}
    )
    await store.register(ROLLOUT_ID)
    journal.acknowledgment = {"ok": True, "trajectory": {}}
    assert await store.handle_completion(ROLLOUT_ID, completion()) == {"calls of": ROLLOUT_ID}
    await store.handle_grader(ROLLOUT_ID, grader())
    assert await store.handle_completion(ROLLOUT_ID, completion()) == journal.acknowledgment


async def test_the_grader_callback_commits_what_both_callbacks_said(
    store: CallbackStore, journal: Journal
) -> None:
    waiter = asyncio.create_task(store.wait_terminal(ROLLOUT_ID))
    await store.handle_completion(ROLLOUT_ID, completion())
    assert await store.handle_grader(ROLLOUT_ID, grader()) == {"ok": True}
    result = await waiter
    assert journal.committed == [result]
    assert result.source == "grader"
    assert result.completion == completion()
    assert result.grader == grader()


async def test_the_acknowledgement_waits_for_the_commit(store: CallbackStore, journal: Journal) -> None:
    journal.gate.clear()
    handler = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    waiter = asyncio.create_task(store.wait_terminal(ROLLOUT_ID))
    await journal.started.wait()
    assert not handler.done() and not waiter.done()
    journal.gate.set()
    assert await handler == {"ok": True}
    assert (await waiter).source == "grader"


async def test_a_mapping_from_the_hook_replaces_the_acknowledgement(
    store: CallbackStore, journal: Journal
) -> None:
    journal.acknowledgment = {"ok": True, "trajectory": {"model_name": "m"}}
    assert await store.handle_grader(ROLLOUT_ID, grader()) == journal.acknowledgment
    await store.discard(ROLLOUT_ID)
    assert await store.handle_grader(ROLLOUT_ID, grader()) == journal.acknowledgment
    assert await store.handle_completion(ROLLOUT_ID, completion()) == journal.acknowledgment


async def test_a_repeated_callback_gets_the_first_answer_without_a_second_commit(
    store: CallbackStore, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.gate.clear()
    first = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    await journal.started.wait()
    second = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    journal.gate.set()
    assert await first == await second == await store.handle_grader(ROLLOUT_ID, grader())
    assert journal.calls == 1
    assert not caplog.records


@pytest.mark.parametrize("when", ["committing", "accepted", "discarded"])
async def test_a_contradicting_grader_callback_is_logged_and_the_first_stands(
    store: CallbackStore, journal: Journal, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    if when == "committing":
        journal.gate.clear()
    first = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    await journal.started.wait()
    if when != "committing":
        await first
    if when == "discarded":
        await store.discard(ROLLOUT_ID)
    second = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader(reward=0.0)))
    journal.gate.set()
    assert await second == await first == {"ok": True}
    assert [result.grader for result in journal.committed] == [grader()]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "conflicting duplicate" in caplog.text


@pytest.mark.parametrize("discarded", [False, True])
async def test_a_contradicting_completion_is_logged_and_the_first_stands(
    store: CallbackStore, journal: Journal, caplog: pytest.LogCaptureFixture, discarded: bool
) -> None:
    await store.handle_completion(ROLLOUT_ID, completion())
    await store.handle_completion(ROLLOUT_ID, completion())
    assert not caplog.records
    if discarded:
        await store.handle_grader(ROLLOUT_ID, grader())
        await store.discard(ROLLOUT_ID)
    await store.handle_completion(ROLLOUT_ID, completion(status="failure", err_message="no"))
    assert "conflicting duplicate" in caplog.text
    if not discarded:
        await store.handle_grader(ROLLOUT_ID, grader())
    assert journal.committed[0].completion == completion()


async def test_a_failed_commit_is_not_durable_and_the_retried_callback_commits_again(
    store: CallbackStore, journal: Journal
) -> None:
    journal.failures = [OSError("disk full")]
    waiter = asyncio.create_task(store.wait_terminal(ROLLOUT_ID))
    journal.gate.clear()
    observers = [asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader())) for _ in range(3)]
    await journal.started.wait()
    journal.gate.set()
    outcomes = await asyncio.gather(*observers, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["disk full"] * 3
    assert not waiter.done()
    assert await store.handle_grader(ROLLOUT_ID, grader()) == {"ok": True}
    assert (await waiter).source == "grader"
    assert journal.calls == 2


async def test_cancelling_every_handler_neither_cancels_nor_repeats_the_commit(
    store: CallbackStore, journal: Journal
) -> None:
    journal.gate.clear()
    handlers = [asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader())) for _ in range(3)]
    await journal.started.wait()
    for handler in handlers:
        handler.cancel()
    await asyncio.gather(*handlers, return_exceptions=True)
    journal.gate.set()
    assert (await store.wait_terminal(ROLLOUT_ID)).source == "grader"
    assert journal.calls == 1


async def test_a_failed_commit_that_nobody_watches_leaves_the_rollout_open(
    store: CallbackStore, journal: Journal
) -> None:
    journal.failures = [OSError("disk full")]
    journal.gate.clear()
    handler = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    await journal.started.wait()
    handler.cancel()
    await asyncio.gather(handler, return_exceptions=True)
    journal.gate.set()
    assert (await store.acknowledge_without_commit(ROLLOUT_ID)).source == "cancelled"


async def test_cancelling_a_waiter_disturbs_nobody_else(store: CallbackStore, journal: Journal) -> None:
    impatient = asyncio.create_task(store.wait_terminal(ROLLOUT_ID))
    patient = asyncio.create_task(store.wait_terminal(ROLLOUT_ID))
    await asyncio.sleep(0)
    impatient.cancel()
    await store.handle_grader(ROLLOUT_ID, grader())
    assert (await patient).source == "grader"


async def test_a_timeout_is_committed_and_late_callbacks_get_its_acknowledgement(
    store: CallbackStore, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    acknowledgment = {"ok": True, "error_type": "callback_timeout"}
    result = await store.finalize_timeout(ROLLOUT_ID, acknowledgment=acknowledgment)
    assert result.source == "timeout"
    assert journal.committed == [result]
    assert await store.handle_grader(ROLLOUT_ID, grader()) == acknowledgment
    await store.discard(ROLLOUT_ID)
    assert await store.handle_completion(ROLLOUT_ID, completion()) == acknowledgment
    assert await store.handle_grader(ROLLOUT_ID, grader()) == acknowledgment
    assert journal.calls == 1
    assert not caplog.records


async def test_a_timeout_loses_to_a_commit_under_way(store: CallbackStore, journal: Journal) -> None:
    journal.gate.clear()
    handler = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    await journal.started.wait()
    timeout = asyncio.create_task(store.finalize_timeout(ROLLOUT_ID))
    journal.gate.set()
    assert (await timeout).source == "grader"
    assert await handler == {"ok": True}


async def test_a_cancellation_skips_the_hook_and_answers_late_callbacks(
    store: CallbackStore, journal: Journal
) -> None:
    result = await store.acknowledge_without_commit(ROLLOUT_ID, acknowledgment={"ok": True, "late": True})
    assert result.source == "cancelled"
    assert await store.handle_grader(ROLLOUT_ID, grader()) == {"ok": True, "late": True}
    assert journal.calls == 0


async def test_a_cancellation_loses_to_a_commit_under_way(store: CallbackStore, journal: Journal) -> None:
    journal.gate.clear()
    handler = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    await journal.started.wait()
    cancellation = asyncio.create_task(store.acknowledge_without_commit(ROLLOUT_ID))
    await asyncio.sleep(0)
    assert not cancellation.done()
    journal.gate.set()
    assert (await cancellation).source == "grader"
    assert await handler == {"ok": True}


async def test_discarding_cancels_the_waiter_and_not_the_commit(
    store: CallbackStore, journal: Journal
) -> None:
    journal.gate.clear()
    waiter = asyncio.create_task(store.wait_terminal(ROLLOUT_ID))
    handler = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    await journal.started.wait()
    await store.discard(ROLLOUT_ID)
    with pytest.raises(asyncio.CancelledError):
        await waiter
    repeated = asyncio.create_task(store.handle_grader(ROLLOUT_ID, grader()))
    late = asyncio.create_task(store.wait_terminal(ROLLOUT_ID))
    await asyncio.sleep(0)
    journal.gate.set()
    assert await handler == await repeated == {"ok": True}
    assert journal.calls == 1
    assert (await late).grader == grader()
    assert (await store.wait_terminal(ROLLOUT_ID)).source == "grader"
    assert await store.handle_grader(ROLLOUT_ID, grader()) == {"ok": True}


async def test_an_id_is_good_for_one_rollout(store: CallbackStore) -> None:
    with pytest.raises(DuplicateRegistrationError):
        await store.register(ROLLOUT_ID)
    await store.handle_grader(ROLLOUT_ID, grader())
    await store.discard(ROLLOUT_ID)
    with pytest.raises(DuplicateRegistrationError):
        await store.register(ROLLOUT_ID)


async def test_unknown_ids_are_refused_everywhere_but_by_discard(store: CallbackStore) -> None:
    with pytest.raises(UnknownRolloutIdError):
        await store.handle_completion("stranger", completion("stranger"))
    with pytest.raises(UnknownRolloutIdError):
        await store.handle_grader("stranger", grader("stranger"))
    with pytest.raises(UnknownRolloutIdError):
        await store.finalize_timeout("stranger")
    with pytest.raises(UnknownRolloutIdError):
        await store.acknowledge_without_commit("stranger")
    with pytest.raises(UnknownRolloutIdError):
        await store.wait_terminal("stranger")
    await store.discard("stranger")


async def test_an_unfinished_rollout_is_forgotten_when_it_is_discarded(store: CallbackStore) -> None:
    await store.discard(ROLLOUT_ID)
    with pytest.raises(UnknownRolloutIdError):
        await store.handle_grader(ROLLOUT_ID, grader())


def test_payloads_are_compared_by_content() -> None:
    assert duplicate_callback_payload(grader(), grader())
    assert not duplicate_callback_payload(grader(), grader(reward=0.5))
    torn = grader(err_message="a lone surrogate \ud800")
    assert duplicate_callback_payload(torn, torn)


def test_finished_rollouts_are_remembered_within_both_bounds() -> None:
    memory = callback_registry.FinishedRollouts(max_rollouts=3, max_bytes=100)
    for index in range(5):
        acknowledgment = {"ok": True, "trajectory": str(index) * 40} if index != 3 else {"ok": True}
        memory.add(
            str(index),
            callback_registry.FinishedRollout.of(acknowledgment, "grader", completion=None, grader=grader()),
        )
    assert len(memory) == 3
    assert "1" not in memory
    assert memory.acknowledgment_bytes <= 100
    answers = {key: rollout.acknowledgment() for key in "234" if (rollout := memory.get(key))}
    assert answers == {"2": {"ok": True}, "3": {"ok": True}, "4": {"ok": True, "trajectory": "4" * 40}}


async def test_thousands_of_rollouts_leave_only_what_late_callbacks_need() -> None:
    async def commit(result: TerminalCallbackResult) -> None:
        return None

    store = CallbackStore(on_terminal_commit=commit)
    remembered = callback_registry.REMEMBERED_ROLLOUTS
    for index in range(remembered + 100):
        rollout_id = f"rollout-{index}"
        await store.register(rollout_id)
        await store.acknowledge_without_commit(rollout_id)
        await store.discard(rollout_id)
    assert not store._sessions
    assert len(store._finished) == remembered
