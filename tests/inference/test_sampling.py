from __future__ import annotations

import numpy as np
import pytest

from osmosis_ai.inference.sampling import SamplingParams, choose, log_probabilities, uniforms


def draw(
    logits: list[float], *, temperature: float = 1.0, top_p: float = 1.0, draws: int = 20_000
) -> np.ndarray:
    """The share of each token among ``draws`` draws at consecutive positions."""
    rows = np.tile(np.array(logits), (draws, 1))
    temperatures, top_ps = np.full(draws, temperature), np.full(draws, top_p)
    streams, positions = np.full(draws, 7, np.uint64), np.arange(draws)
    tokens = choose(log_probabilities(rows, temperatures), temperatures, top_ps, streams, positions)
    return np.bincount(tokens, minlength=len(logits)) / draws


def test_the_random_numbers_are_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # its outputs for seed 0
    numbers = uniforms(np.zeros(3, np.uint64), np.arange(3))
    assert numbers.tolist() == [(value >> 11) * 2.0**-53 for value in published]


def test_random_numbers_are_uniform_and_neighbouring_seeds_are_unrelated() -> None:
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200))
    numbers = uniforms(seeds.ravel(), positions.ravel()).reshape(200, 200)
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert abs(counts - 2000).max() < 5 * np.sqrt(2000)
    correlations = [np.corrcoef(numbers[:, k], numbers[:, k + 1])[0, 1] for k in range(199)]
    assert np.abs(correlations).max() < 0.35
    assert np.abs(np.mean(correlations)) < 0.02


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    assert np.abs(draw(np.log(probabilities).tolist()) - probabilities).max() < 0.015


def test_temperature_sharpens_and_zero_takes_the_most_likely() -> None:
    logits = np.log([0.4, 0.6]).tolist()
    assert abs(draw(logits, temperature=0.5)[1] - 0.36 / 0.52) < 0.015
    assert draw(logits, temperature=0.0).tolist() == [0.0, 1.0]
    assert draw(logits, temperature=1e-300).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.0, [0]), (0.49, [0]), (0.5, [0]), (0.51, [0, 2]), (0.8, [0, 2]), (0.81, [0, 1, 2])]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, kept: list[int]) -> None:
    shares = draw([np.log(0.5), np.log(0.15), np.log(0.3), np.log(0.05)], top_p=top_p, draws=4000)
    assert np.flatnonzero(shares).tolist() == kept


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    assert draw([0.0, -np.inf, 0.0, -np.inf])[[1, 3]].tolist() == [0.0, 0.0]


def test_log_probabilities_are_at_the_temperature_and_before_top_p() -> None:
    logits = np.array([[1.0, 2.0, 3.0]] * 2)
    half, greedy = log_probabilities(logits, np.array([0.5, 0.0]))
    assert half == pytest.approx(2 * logits[0] - np.log(np.exp(2 * logits[0]).sum()))
    assert greedy == pytest.approx(logits[0] - np.log(np.exp(logits[0]).sum()))


def test_without_a_seed_every_request_differs_and_with_one_each_choice_does() -> None:
    assert SamplingParams().stream() != SamplingParams().stream()
    seeded = [SamplingParams(seed=5).stream(choice) for choice in range(100)]
    assert seeded == [SamplingParams(seed=5).stream(choice) for choice in range(100)]
    assert seeded[0] == 5 and len(set(seeded)) == 100
    assert SamplingParams(seed=-1).stream() == 2**64 - 1
