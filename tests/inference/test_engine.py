from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from osmosis_ai.inference.batching import ContinuousBatch, Emission, Generation
from osmosis_ai.inference.engine import EngineBusyError, EngineStoppedError, InferenceEngine, Submission
from osmosis_ai.inference.model import Model
from tests.inference.conftest import generation

pytestmark = pytest.mark.integration

WAIT_S = 60.0


class Recorder:
    """Remembers what it hears and in which order; can pause the engine's thread at the first token."""

    def __init__(self, name: str = "", log: list[str] | None = None, *, pause: bool = False) -> None:
        self.name, self.log = name, [] if log is None else log
        self.tokens: dict[Generation, list[int]] = {}
        self.error: EngineStoppedError | None = None
        self.heard, self.finished, self.go_on = threading.Event(), threading.Event(), threading.Event()
        self._pause = pause
        self._open = 0

    def submit(self, engine: InferenceEngine, generations: Sequence[Generation]) -> Submission:
        self._open = len(generations)
        return engine.submit(generations, self)

    def emitted(self, emission: Emission) -> None:
        if emission.generation not in self.tokens:
            self.log.append(self.name)
        self.tokens.setdefault(emission.generation, []).append(emission.token.id)
        self.heard.set()
        if self._pause:
            assert self.go_on.wait(WAIT_S)
        self._open -= emission.finish_reason is not None
        if not self._open:
            self.finished.set()

    def failed(self, error: EngineStoppedError) -> None:
        self.error = error
        self.finished.set()


def test_many_threads_get_the_tokens_each_would_get_alone(
    model: Model, prompts: list[tuple[int, ...]]
) -> None:
    def results(max_batch: int) -> list[list[int]]:
        recorders = [Recorder() for _ in prompts]
        with InferenceEngine(model, max_batch=max_batch) as engine:
            for seed, (recorder, prompt) in enumerate(zip(recorders, prompts, strict=True)):
                recorder.submit(engine, [generation(prompt, seed)])
                if max_batch == 1:
                    assert recorder.finished.wait(WAIT_S)
            assert all(recorder.finished.wait(WAIT_S) for recorder in recorders)
        return [tokens for recorder in recorders for tokens in recorder.tokens.values()]

    assert results(32) == results(1)


def test_a_full_queue_refuses_and_says_when_to_come_back(
    model: Model, prompts: list[tuple[int, ...]]
) -> None:
    engine = InferenceEngine(model, max_batch=1, max_waiting=2)  # not started: nothing leaves the queue
    Recorder().submit(engine, [generation(prompts[0], 0), generation(prompts[0], 1)])
    with pytest.raises(EngineBusyError, match="2 sequences are waiting") as refused:
        Recorder().submit(engine, [generation(prompts[0], 2)])
    assert 1 <= refused.value.retry_after_s <= 60


def test_a_request_for_many_choices_does_not_hold_up_the_one_behind_it(
    model: Model, prompts: list[tuple[int, ...]]
) -> None:
    order: list[str] = []
    first, many, single = Recorder("first", pause=True), Recorder("many", order), Recorder("single", order)
    with InferenceEngine(model, max_batch=1) as engine:
        first.submit(engine, [generation(prompts[0], 0)])
        assert first.heard.wait(WAIT_S)
        many.submit(engine, [generation(prompts[1], seed) for seed in range(5)])
        single.submit(engine, [generation(prompts[2], 9)])
        first.go_on.set()
        assert many.finished.wait(WAIT_S)
    assert order == ["many", "single", "many", "many", "many", "many"]


def test_a_cancelled_submission_leaves_the_queue_and_the_batch(
    tireless_model: Model, prompts: list[tuple[int, ...]]
) -> None:
    endless = [generation(prompts[0], seed, max_tokens=1900, stop_tokens=frozenset()) for seed in range(4)]
    abandoned, other = Recorder(pause=True), Recorder()
    with InferenceEngine(tireless_model, max_batch=2) as engine:
        submission = abandoned.submit(engine, endless)
        assert abandoned.heard.wait(WAIT_S)
        submission.cancel()
        assert engine.stats().waiting == 0
        other.submit(engine, [generation(prompts[1], 0, max_tokens=5)])
        abandoned.go_on.set()
        assert other.finished.wait(WAIT_S)
        submission.cancel()  # once more does no harm
        stats = engine.stats()
    assert (stats.running, stats.waiting, stats.finished) == (0, 0, 1)
    assert max(len(tokens) for tokens in abandoned.tokens.values()) <= 3


def test_closing_tells_whoever_still_waits(model: Model, prompts: list[tuple[int, ...]]) -> None:
    recorder = Recorder()
    with InferenceEngine(model) as engine:
        recorder.submit(engine, [generation(prompts[0], 0, max_tokens=1900, stop_tokens=frozenset())])
        assert recorder.heard.wait(WAIT_S)
    assert recorder.error is not None
    with pytest.raises(EngineStoppedError, match="shutting down"):
        engine.submit([generation(prompts[0], 0)], recorder)


def test_a_failing_model_fails_its_requests_and_the_engine_says_so(
    model: Model,
    prompts: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(self: ContinuousBatch) -> list[Emission]:
        raise MemoryError("no room")

    monkeypatch.setattr(ContinuousBatch, "step", broken)
    recorder = Recorder()
    with InferenceEngine(model) as engine:
        recorder.submit(engine, [generation(prompts[0], 0)])
        assert recorder.finished.wait(WAIT_S)
        assert engine.failure is recorder.error is not None
    assert "no room" in caplog.text
