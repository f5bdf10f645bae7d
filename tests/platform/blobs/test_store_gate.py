"""Who may ask a store that does not answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from osmosis_ai.platform.blobs import store_gate
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStoreBusy, BlobStoreSilent
from osmosis_ai.platform.blobs.store_gate import AGAIN_AFTER_S, AT_ONCE, StoreGate


class Hand:
    """A clock that is set."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


def ask(gate: StoreGate, outcome: Exception | None = None) -> None:
    with gate.passing():
        if outcome is not None:
            raise outcome


def refusal_of_another(gate: StoreGate) -> BaseException | None:
    """Return what another thread is told that asks."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask, gate).exception()


def test_a_silent_store_is_left_alone_for_a_while_and_then_asked_by_one() -> None:
    clock = Hand()
    gate = StoreGate("the bucket", clock)
    with pytest.raises(BlobStoreSilent):
        ask(gate, BlobStoreSilent("no answer from the bucket"))
    with pytest.raises(BlobStoreSilent, match="no answer from the bucket"):
        ask(gate, AssertionError("it was asked"))
    clock.at_s += AGAIN_AFTER_S
    with gate.passing():
        assert isinstance(refusal_of_another(gate), BlobStoreSilent)
    ask(gate)


def test_the_one_that_finds_out_asks_again_within_its_turn() -> None:
    clock = Hand()
    gate = StoreGate("the bucket", clock)
    with pytest.raises(BlobStoreSilent):
        ask(gate, BlobStoreSilent("no answer"))
    clock.at_s += AGAIN_AFTER_S
    with pytest.raises(BlobStoreSilent, match="still none"), gate.passing():
        ask(gate, BlobStoreSilent("still none"))
    with pytest.raises(BlobStoreSilent, match="still none"):
        ask(gate, AssertionError("it was asked"))
    clock.at_s += AGAIN_AFTER_S
    with gate.passing():
        ask(gate)
        ask(gate)
    ask(gate)


def test_who_asks_within_its_turn_takes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_gate, "_TURN_WITHIN_S", 0.01)
    monkeypatch.setattr(store_gate, "AT_ONCE", 1)
    gate = StoreGate("the bucket")
    with gate.passing():
        ask(gate)
        assert isinstance(refusal_of_another(gate), BlobStoreBusy), "the turn is still taken"
    ask(gate)


@pytest.mark.parametrize("said", [BlobStoreBusy("503"), BlobNotFound("gone")])
def test_whoever_gets_any_answer_lets_the_others_in(said: Exception) -> None:
    clock = Hand()
    gate = StoreGate("the bucket", clock)
    with pytest.raises(BlobStoreSilent):
        ask(gate, BlobStoreSilent("no answer"))
    clock.at_s += AGAIN_AFTER_S
    with pytest.raises(type(said)):
        ask(gate, said)
    ask(gate)


def test_no_more_wait_for_a_store_than_leave_threads_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_gate, "_TURN_WITHIN_S", 0.01)
    gate, answers, inside = StoreGate("the bucket"), threading.Event(), threading.Barrier(AT_ONCE + 1)

    def wait() -> None:
        with gate.passing():
            inside.wait(60)
            answers.wait(60)

    threads = [threading.Thread(target=wait) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    inside.wait(60)
    with pytest.raises(BlobStoreBusy, match="the bucket is slow to answer"):
        ask(gate)
    answers.set()
    for thread in threads:
        thread.join()
    ask(gate)
