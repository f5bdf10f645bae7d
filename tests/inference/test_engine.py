"""The NumPy engine: batches, slots, sampling, its queue and its end."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from osmosis_ai.inference.engine import (
    SAMPLING_ROW,
    ContinuousBatch,
    Emission,
    EngineStoppedError,
    Generation,
    InferenceEngine,
    Submission,
    draw_tokens,
    random_stream,
    uniforms,
)
from osmosis_ai.inference.model import Model
from tests.inference.conftest import Tokens, generate, generation, ids

WAIT_S = 60.0


class Recorder:
    """Records tokens and their order; can pause the engine's thread at the first token."""

    def __init__(self, name: str = "", log: list[str] | None = None, *, pause: bool = False) -> None:
        self.name, self.log = name, [] if log is None else log
        self.tokens: Tokens = {}
        self.error: EngineStoppedError | None = None
        self.heard, self.finished, self.resume = threading.Event(), threading.Event(), threading.Event()
        self._pause = pause
        self._open = 0

    def submit(self, engine: InferenceEngine, generations: Sequence[Generation]) -> Submission:
        self._open = len(generations)
        return engine.submit(generations, self)

    def emitted(self, emission: Emission) -> None:
        if emission.generation not in self.tokens:
            self.log.append(self.name)
        self.tokens.setdefault(emission.generation, []).append(emission.token)
        self.heard.set()
        if self._pause:
            assert self.resume.wait(WAIT_S)
        self._open -= emission.finish_reason is not None
        if not self._open:
            self.finished.set()

    def failed(self, error: EngineStoppedError) -> None:
        self.error = error
        self.finished.set()


@pytest.mark.integration
def test_requests_take_turns_in_the_queue(model: Model, prompts: list[tuple[int, ...]]) -> None:
    order: list[str] = []
    first, many, single = Recorder("first", pause=True), Recorder("many", order), Recorder("single", order)
    with InferenceEngine(model, max_batch=1) as engine:
        first.submit(engine, [generation(prompts[0], 0)])
        assert first.heard.wait(WAIT_S)
        many.submit(engine, [generation(prompts[1], seed) for seed in range(5)])
        single.submit(engine, [generation(prompts[2], 9)])
        first.resume.set()
        assert many.finished.wait(WAIT_S)
    assert order == ["many", "single", "many", "many", "many", "many"]


@pytest.mark.integration
def test_a_cancelled_submission(tireless_model: Model, prompts: list[tuple[int, ...]]) -> None:
    endless = [generation(prompts[0], seed, max_tokens=1900, stop_tokens=frozenset()) for seed in range(4)]
    abandoned, other = Recorder(pause=True), Recorder()
    with InferenceEngine(tireless_model, max_batch=2) as engine:
        submission = abandoned.submit(engine, endless)
        assert abandoned.heard.wait(WAIT_S)
        submission.cancel()
        assert engine.stats()["waiting"] == 0
        other.submit(engine, [generation(prompts[1], 0, max_tokens=5)])
        abandoned.resume.set()
        assert other.finished.wait(WAIT_S)
        submission.cancel()  # once more does no harm
        stats = engine.stats()
    assert (stats["running"], stats["waiting"], stats["finished"]) == (0, 0, 1)
    assert max(len(tokens) for tokens in abandoned.tokens.values()) <= 3


@pytest.mark.integration
def test_a_failing_model(
    model: Model,
    prompts: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(self: ContinuousBatch) -> list[Emission]:
        raise RuntimeError("no room")

    monkeypatch.setattr(ContinuousBatch, "step", broken)
    recorder = Recorder()
    with InferenceEngine(model) as engine:
        recorder.submit(engine, [generation(prompts[0], 0)])
        assert recorder.finished.wait(WAIT_S)
        assert engine.failure is recorder.error is not None
    assert "no room" in caplog.text


def run(model: Model, generations: list[Generation], *, capacity: int, joining: int | None = None) -> Tokens:
    return generate(ContinuousBatch(model, capacity), generations, joining=joining)


@pytest.fixture(scope="module")
def alone(model: Model, prompts: list[tuple[int, ...]]) -> Tokens:
    """Generations of all kinds, one after the other."""
    mix = [
        generation(prompt, seed, temperature=(1.0, 0.7, 1.5, 0.0)[seed % 4], top_p=(1.0, 0.9)[seed % 2])
        for seed, prompt in enumerate(prompts)
    ]
    return run(model, mix, capacity=1)


@pytest.mark.integration
@pytest.mark.parametrize(("capacity", "joining"), [(32, 32), (32, 3), (5, 2)])
def test_tokens_do_not_depend_on_the_batch(model: Model, alone: Tokens, capacity: int, joining: int) -> None:
    together = run(model, list(alone), capacity=capacity, joining=joining)
    assert ids(together) == ids(alone)
    assert len({tuple(tokens) for tokens in ids(alone)}) > 20
    for generation_, tokens in together.items():
        for token, reference in zip(tokens, alone[generation_], strict=True):
            assert token.logprob == pytest.approx(reference.logprob, abs=1e-11)


@pytest.mark.integration
def test_the_whole_context_can_be_used(model: Model) -> None:
    limit = model.config.max_positions
    full = generation((5,) * (limit - 3), 0, max_tokens=3, stop_tokens=frozenset())
    assert len(run(model, [full], capacity=1)[full]) == 3


@pytest.mark.integration
def test_discarding_does_not_affect_other_generations(model: Model, prompts: list[tuple[int, ...]]) -> None:
    mix = [
        generation(prompt, seed, max_tokens=8, stop_tokens=frozenset())
        for seed, prompt in enumerate(prompts[:6])
    ]
    alone = run(model, mix, capacity=1)
    batch = ContinuousBatch(model, 6)
    emissions = batch.admit(mix) + batch.step()
    batch.discard(lambda g: g in mix[:3] or g is mix[5])
    assert len(batch) == 2
    while len(batch):
        emissions += batch.step()
    for kept in mix[3:5]:
        assert [e.token.id for e in emissions if e.generation is kept] == [token.id for token in alone[kept]]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The rows and columns of the tokens that the model computed."""
    shapes: list[tuple[int, ...]] = []
    extend = Model.extend

    def counting(self: Model, cache: object, rows: slice, ids: np.ndarray, *rest: object) -> object:
        shapes.append(ids.shape)
        return extend(self, cache, rows, ids, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "extend", counting)
    return shapes


@pytest.mark.integration
def test_a_second_turn_is_cached(model: Model, prompts: list[tuple[int, ...]], computed: list[Any]) -> None:
    batch = ContinuousBatch(model, 2, kept=4)
    (reply,) = ids(generate(batch, [generation(prompts[0], 1)]))
    for noise in range(3):  # others come and go, and use the same slot
        generate(batch, [generation(prompts[2 + noise], noise)])
    computed.clear()
    generate(batch, [generation((*prompts[0], *reply, 7, 8, 9), 2, max_tokens=1)])
    # The last token of the reply was never fed to the model.
    assert computed == [(1, 1 + 3)]


@pytest.mark.integration
def test_cached_prefixes_change_no_token(model: Model, prompts: list[tuple[int, ...]]) -> None:
    rng = random.Random(5)
    remembering, forgetful = ContinuousBatch(model, 6, kept=5), ContinuousBatch(model, 6, kept=0)
    known: list[tuple[int, ...]] = list(prompts)
    for round_ in range(30):
        wave = []
        for _ in range(rng.randint(1, 6)):
            base = rng.choice(known)
            prompt = base[: rng.randint(1, len(base))] + tuple(
                rng.choices(range(7, 512), k=rng.randint(0, 5))
            )
            wave.append(generation(prompt, round_, max_tokens=rng.randint(1, 20)))
        fresh = ContinuousBatch(model, 6, kept=0)
        replies, *others = (ids(generate(batch, wave)) for batch in (remembering, forgetful, fresh))
        assert others == [replies, replies]
        known += [(*g.prompt, *reply) for g, reply in zip(wave, replies, strict=True)]


def draw(
    logits: list[float], *, temperature: float = 1.0, top_p: float = 1.0, draws: int = 20_000
) -> np.ndarray:
    """The share of each token among ``draws`` draws at consecutive positions."""
    rows = np.tile(np.array(logits), (draws, 1))
    sampling = np.zeros(draws, SAMPLING_ROW)
    sampling["temperature"], sampling["top_p"], sampling["stream"] = temperature, top_p, 7
    sampling["position"] = np.arange(draws)
    drawn = draw_tokens(np, rows, sampling)
    return np.bincount([token for token, _, _ in drawn], minlength=len(logits)) / draws


def test_the_random_numbers_are_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # its outputs for seed 0
    numbers = uniforms(np.zeros(3, np.uint64), np.arange(3))
    assert numbers.tolist() == [(value >> 11) * 2.0**-53 for value in published]


def test_random_numbers_are_uniform_and_independent_of_neighbouring_seeds() -> None:
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200))
    numbers = uniforms(seeds.ravel(), positions.ravel()).reshape(200, 200)
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert abs(counts - 2000).max() < 5 * np.sqrt(2000)
    correlations = [np.corrcoef(numbers[:, k], numbers[:, k + 1])[0, 1] for k in range(199)]
    assert np.abs(correlations).max() < 0.35
    assert np.abs(np.mean(correlations)) < 0.02


def test_draws_follow_the_probabilities() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    assert np.abs(draw(np.log(probabilities).tolist()) - probabilities).max() < 0.015


def test_temperature() -> None:
    logits = np.log([0.4, 0.6]).tolist()
    assert abs(draw(logits, temperature=0.5)[1] - 0.36 / 0.52) < 0.015
    assert draw(logits, temperature=0.0).tolist() == [0.0, 1.0]
    assert draw(logits, temperature=1e-300).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.0, [0]), (0.49, [0]), (0.5, [0]), (0.51, [0, 2]), (0.8, [0, 2]), (0.81, [0, 1, 2])]
)
def test_top_p(top_p: float, kept: list[int]) -> None:
    shares = draw([np.log(0.5), np.log(0.15), np.log(0.3), np.log(0.05)], top_p=top_p, draws=4000)
    assert np.flatnonzero(shares).tolist() == kept


def test_seeds_of_requests_and_choices() -> None:
    assert random_stream(None) != random_stream(None)
    seeded = [random_stream(5, choice) for choice in range(100)]
    assert seeded == [random_stream(5, choice) for choice in range(100)]
    assert seeded[0] == 5 and len(set(seeded)) == 100
    assert random_stream(-1) == 2**64 - 1
