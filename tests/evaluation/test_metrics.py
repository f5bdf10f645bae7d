"""Metrics of a run, compared with values computed by hand."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.datasets import DatasetRow, row_digest
from osmosis_ai.decisions.run_dataset import read_prompts, read_slice_values
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.hooks import ProgressSnapshot
from osmosis_ai.evaluation.metrics import RunMetrics, RunScore, describe_few_scored, total_of
from osmosis_ai.statistics.pass_at_k import (
    estimate_pass_at_k,
    estimate_pass_hat_k,
    pass_at_k,
    pass_at_k_by_row,
    pass_hat_k,
    pass_hat_k_by_row,
)
from osmosis_ai.ui.run_numbers import describe_briefly, describe_score
from tests.evaluation.builders import MeasuredResults

Outcome = tuple[int, int, str, "float | None"]


def numbers_of(rows: int, n: int, *outcomes: Outcome, **options: float) -> RunMetrics:
    metrics = MeasuredResults(rows, n, **options)
    for row, run, status, reward in outcomes:
        metrics.add(row, run, status, reward)
    return metrics.summary()


def written(metrics: RunMetrics) -> Any:
    return json.loads(json.dumps(metrics.model_dump(mode="json"), allow_nan=False))


def test_progress_has_the_reward_of_the_metrics() -> None:
    metrics = MeasuredResults(3, 2)
    for row, run, reward in ((0, 0, 1.0), (0, 1, 0.0), (2, 1, 0.25)):
        metrics.add(row, run, "success", reward)
    seen = ProgressSnapshot.of(metrics, 1.0, tokens=0, cost_usd=None, in_flight=0, elapsed_s=0, finished=3)
    reward = metrics.summary().estimates.reward
    assert reward is not None and seen.reward_mean == reward.value == 0.375


def test_product_summary() -> None:
    metrics = MeasuredResults(3, 2, pass_threshold=0.5)
    metrics.add(0, 0, "success", 1.0, tokens=100)
    metrics.add(0, 1, "success", 0.0, tokens=50)
    metrics.add(1, 0, "failed", None, tokens=7, boundary="agent", error_type="timeout")
    metrics.add(1, 1, "success", 0.5, prompt_tokens=20, completion_tokens=3)
    metrics.add(2, 0, "skipped", 1.0, tokens=1)
    metrics.add(2, 1, "success", None)
    assert metrics.summary().summary == {
        "total_samples": 6,
        "completed_samples": 5,
        "graded": 3,
        "passed": 2,
        "failed": 1,
        "skipped": 1,
        "pass_rate": 2 / 5,
        "pass_threshold": 0.5,
        "tokens_used": 181,
        "reward_stats": {
            "mean": 0.5,
            "median": 0.5,
            "std": pytest.approx(math.sqrt(1 / 6)),
            "min": 0.0,
            "max": 1.0,
        },
        "n_runs": 2,
        "pass_at_k": [{"k": 1, "value": pytest.approx(1 / 3)}, {"k": 2, "value": 1.0}],
    }


def test_empty_run() -> None:
    metrics = numbers_of(5, 2)
    assert metrics.summary == {
        "total_samples": 0,
        "completed_samples": 0,
        "graded": 0,
        "passed": 0,
        "failed": 0,
        "skipped": 0,
        "pass_rate": 0.0,
        "pass_threshold": 1.0,
        "tokens_used": 0,
    }
    estimates = metrics.estimates
    assert estimates.reward is None and estimates.pass_rate is None and estimates.pass_at_k == {}
    assert estimates.counts.pending == 10
    assert estimates.cost_usd.total is None and estimates.latency.rollout_ms is None


def test_unscored_attempts_are_not_zero() -> None:
    metrics = MeasuredResults(3, 2)
    metrics.add(0, 0, "success", 1.0)
    metrics.add(0, 1, "failed", None, boundary="agent", error_type="timeout")
    metrics.add(1, 0, "failed", None, boundary="provider", error_type="agent_error", category="rate_limited")
    metrics.add(1, 1, "success", math.nan)
    metrics.add(2, 0, "failed", None)
    found = metrics.summary()
    assert found.summary["pass_rate"] == 1 / 5  # the product's: failures are attempts that did not pass
    estimates = found.estimates
    assert estimates.pass_rate is not None and estimates.reward is not None
    assert (estimates.pass_rate.value, estimates.pass_rate.n, estimates.pass_rate.clusters) == (1.0, 1, 1)
    counts = estimates.counts
    assert counts.scored == 1
    assert counts.unscored == {"no_reward": 1, "rate_limited": 1, "timeout": 1, "unknown": 1}
    assert counts.failed_by_boundary == {"unknown": 1, "provider": 1, "agent": 1}
    assert counts.infrastructure_failures == 1
    assert counts.pending == 1


def test_rows_weigh_the_same() -> None:
    found = numbers_of(
        2, 4, (0, 0, "success", 1.0), *[(0, run, "failed", None) for run in (1, 2, 3)],
        *[(1, run, "success", 0.0) for run in range(4)],
    )  # fmt: skip
    assert found.estimates.pass_rate is not None and found.estimates.reward is not None
    assert (found.estimates.pass_rate.value, found.estimates.pass_rate.n) == (0.5, 5)
    assert found.estimates.reward.value == 0.5
    assert found.summary["pass_rate"] == 1 / 8  # the wire's counts attempts, failed ones included


def test_unscored_share() -> None:
    found = numbers_of(
        4, 1, (0, 0, "success", 1.0), (1, 0, "failed", None), (2, 0, "skipped", None)
    ).estimates.unscored
    assert found is not None
    assert (found.value, found.n, found.clusters) == (0.5, 2, 2)
    assert found.at_most is not None and found.at_most > 0.9
    assert numbers_of(4, 1).estimates.unscored is None


def test_pass_at_k_estimates() -> None:
    outcomes: list[Outcome] = [
        (row, run, "success", float(run < row % 3)) for row in range(9) for run in range(4)
    ]
    outcomes[-1] = (8, 3, "failed", None)
    points = numbers_of(9, 4, *outcomes).estimates.pass_at_k
    assert list(points) == [1, 2, 4]
    assert points[2].value == pytest.approx((pass_at_k(4, 1, 2) * 3 + pass_at_k(4, 2, 2) * 2 + 1) / 9)
    assert (points[4].clusters, points[4].n) == (8, 32)
    assert all(point.low is not None and point.low < point.value for point in points.values())


def passed(*rows: str, planned: int | None = None) -> MeasuredResults:
    """Return results of rows with a character per attempt: passed (1), not passed (0) or failed (-)."""
    metrics = MeasuredResults(planned or len(rows), max(map(len, rows)))
    for row, attempts in enumerate(rows):
        for run, outcome in enumerate(attempts):
            reward = None if outcome == "-" else float(outcome)
            status = "failed" if reward is None else "success"
            metrics.add(row, run, status, reward, source_row_index=100 + row)
    return metrics


def test_pass_hat_k_estimates() -> None:
    estimates = passed("1111", "1110", "1100", "0000", "11-1").summary().estimates
    assert list(estimates.pass_hat_k) == list(estimates.pass_at_k) == [1, 2, 4]
    # Of 3 passes in 4 attempts half of the pairs pass, of 2 one in six.
    assert estimates.pass_hat_k[2].value == pytest.approx((1 + 1 / 2 + 1 / 6 + 0 + 1) / 5)
    assert (estimates.pass_hat_k[4].value, estimates.pass_hat_k[4].clusters) == (0.25, 4)
    assert estimates.pass_hat_k[1].value == estimates.pass_at_k[1].value
    assert passed("1", "0").summary().estimates.pass_hat_k == {}


def test_variance_between_rows_and_attempts() -> None:
    shares = passed("1100", "1110", "1111", "0000").summary().estimates.variance
    # By hand: MSB 4 * 0.547 / 3 = 0.729, MSW 1.75 / 12 = 0.146, and between rows (0.729 - 0.146) / 4 = 0.146.
    assert shares is not None and shares.between_rows == pytest.approx(0.5)
    assert (shares.rows, shares.attempts_per_row, shares.below_zero) == (4, 4, False)
    assert shares.between_rows + shares.between_attempts == 1


@pytest.mark.parametrize("rows", [("1", "0", "1"), ("11", "11"), ("10",), ("--", "--"), ()])
def test_variance_unknown(rows: tuple[str, ...]) -> None:
    metrics = passed(*rows) if rows else MeasuredResults(0, 2)
    assert metrics.summary().estimates.variance is None


def test_total_of_costs() -> None:
    assert total_of(np.array([1e308, 1e308])) is None
    assert total_of(np.array([0.1] * 10)) == 1.0
    assert total_of(np.array([])) is None


def test_costs_tokens_and_latencies() -> None:
    metrics = MeasuredResults(4, 1)
    for row in range(3):
        metrics.add(
            row,
            0,
            "success",
            1.0,
            prompt_tokens=100,
            completion_tokens=10,
            cost_usd=0.1 if row else None,
            duration_ms=1000.0 * (row + 1),
            model_latency_ms=600.0,
            model_calls=2,
        )
    metrics.add(3, 0, "failed", None, boundary="rollout_server", duration_ms=4000)
    estimates = metrics.summary().estimates
    tokens, cost, latency = estimates.tokens, estimates.cost_usd, estimates.latency
    assert (tokens.prompt, tokens.completion, tokens.total) == (300, 30, 330)
    assert (tokens.per_sample, tokens.known_samples) == (110.0, 3)
    assert cost.total == pytest.approx(0.2)
    assert (cost.known_samples, cost.recorded_samples) == (2, 4)
    assert latency.rollout_ms is not None and latency.rollout_ms.p50 == 2500.0
    assert latency.model_ms is not None and latency.model_ms.p99 == 600.0
    assert latency.model_call_mean_ms == 300.0
    # Of 400, 1,400 and 2,400: the attempt that called no model has no part in it.
    assert latency.elsewhere_ms is not None and latency.elsewhere_ms.n == latency.model_ms.n == 3
    assert (latency.elsewhere_ms.p50, latency.elsewhere_ms.p90) == (1400.0, 2200.0)


def test_latency_elsewhere() -> None:
    at_once, untimed = MeasuredResults(1, 1), MeasuredResults(1, 1)
    at_once.add(0, 0, "success", 1.0, duration_ms=100, model_latency_ms=250.0, model_calls=3)
    untimed.add(0, 0, "success", 1.0, model_latency_ms=250.0, model_calls=3)
    found = at_once.summary().estimates.latency.elsewhere_ms
    assert found is not None and (found.p50, found.n) == (0.0, 1)
    assert untimed.summary().estimates.latency.elsewhere_ms is None


def test_huge_numbers_in_json() -> None:
    outcomes: list[Outcome] = [
        (0, 0, "success", 1.7e308),
        (1, 0, "success", -1.7e308),
        (2, 0, "success", 1e308),
    ]
    written(numbers_of(3, 1, *outcomes))


statuses = st.sampled_from(["success", "failed", "skipped"])
rewards = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0]))


@given(
    st.integers(1, 6),
    st.integers(1, 5),
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 4)), st.tuples(statuses, rewards)),
)
def test_every_attempt_is_counted_once(
    rows: int, n: int, outcomes: dict[tuple[int, int], tuple[str, float | None]]
) -> None:
    known = {place: outcome for place, outcome in outcomes.items() if place[0] < rows and place[1] < n}
    metrics = numbers_of(rows, n, *[(*place, *outcome) for place, outcome in known.items()])
    counts, summary = metrics.estimates.counts, metrics.summary
    assert counts.planned == rows * n
    assert counts.scored + sum(counts.unscored.values()) + counts.skipped + counts.pending == rows * n
    assert sum(counts.failed_by_boundary.values()) == summary["failed"]
    assert counts.scored == summary["graded"]
    assert summary["total_samples"] == len(known)
    written(metrics)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_equals_enumeration(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_pass_at_k_by_row() -> None:
    assert pass_at_k(5000, 1, 2500) == pytest.approx(0.5)
    assert pass_at_k(5000, 0, 5000) == 0.0
    assert pass_at_k(5000, 5000, 1) == 1.0

    assert pass_at_k_by_row([4, 2, 1, 4, 4], [1, 1, 1, 0, 1], 2).tolist() == [0.5, 1.0, 0.0, 0.5]
    assert pass_at_k_by_row([1, 1], [0, 1], 2).size == 0
    estimate = estimate_pass_at_k([4, 2, 1, 4, 4], [1, 1, 1, 0, 1], 2)
    assert estimate is not None
    assert (estimate.value, estimate.n, estimate.clusters) == (0.5, 14, 4)
    assert estimate_pass_at_k([1, 1], [0, 1], 2) is None

    attempts, passes = [4, 2, 1, 4, 4], [4, 1, 1, 3, 0]
    assert pass_hat_k_by_row(attempts, passes, 2).tolist() == [1.0, 0.0, 0.5, 0.0]
    estimate = estimate_pass_hat_k(attempts, passes, 2)
    assert estimate is not None and estimate.low is not None and estimate.high is not None
    assert (estimate.value, estimate.n, estimate.clusters, estimate.method) == (0.375, 14, 4, "korn-graubard")
    assert 0 < estimate.low < estimate.value < estimate.high < 1
    assert estimate_pass_hat_k([1, 1], [0, 1], 2) is None


@pytest.mark.parametrize("n, c, k", [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5), (0, 0, 1)])
def test_invalid_pass_at_k(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, c, k)
    with pytest.raises(ValueError, match=rf"pass\^{k}"):
        pass_hat_k(n, c, k)


def test_warning_below_90_percent_scored() -> None:
    enough = passed(*["1"] * 18, *["-"] * 2, planned=25).summary().estimates
    few = passed(*["1"] * 17, *["-"] * 3, planned=25).summary().estimates
    assert enough.warnings == []
    assert few.warnings == [
        "only 17 of 20 finished attempts have a score (85.0%); the numbers exclude the rest"
    ]
    assert RunScore.of(few).warnings == few.warnings
    assert describe_few_scored(0, 0) is None


@pytest.mark.parametrize(
    ("score", "scored", "brief"),
    [
        (RunScore.of(passed("-").summary().estimates), "0 of 1", "no scores, 0 of 1 planned"),
        (
            RunScore.of_results({"graded": 8, "failed": 1, "total_runs": 9}, planned=10),
            "8 of 10",
            "pass rate unknown, 8 of 10 planned scored, failed 1",
        ),
    ],
    ids=["no scores", "pass count unknown"],
)
def test_unknown_pass_rate_is_not_zero(score: RunScore, scored: str, brief: str) -> None:
    shown = f"pass rate – (reward >= 1.0, scored attempts only); scored {scored} planned"
    assert describe_score(score).startswith(shown)
    assert describe_briefly(score).startswith(brief)


def test_duplicate_rows_do_not_narrow_intervals() -> None:
    rewards = [float(number % 3 > 0) for number in range(30)]
    alone, tripled = MeasuredResults(30, 1), MeasuredResults(90, 1)
    for table in (alone, tripled):
        for index in range(table.rows):
            prompt = [{"role": "user", "content": f"row {index % 30}"}]
            table.set_row_digest(index, row_digest(DatasetRow(index, prompt, "ok", None)))
    for number, reward in enumerate(rewards):
        alone.add(number, 0, "success", reward)
    for number, reward in enumerate(rewards * 3):
        tripled.add(number, 0, "success", reward)
    one, three = alone.summary().estimates, tripled.summary().estimates
    assert one.pass_rate is not None and three.pass_rate is not None
    assert three.pass_rate.clusters == 30
    assert three.pass_rate.high - three.pass_rate.low >= 0.99 * (one.pass_rate.high - one.pass_rate.low)
    assert three.counts.copies == 60
    assert any("60 of 90 rows are duplicates of another" in warning for warning in three.warnings)


def dataset(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_slice_values_limit(tmp_path: Path) -> None:
    rows = [{"user_prompt": f"{row}", "ground_truth": "x", "few": row % 50} for row in range(51)]
    file = dataset(tmp_path / "rows.jsonl", rows)
    assert len(set(read_slice_values(file, "few", np.arange(51), "rows"))) == 50
    with pytest.raises(OsmosisError, match="'user_prompt' has more than 50 values"):
        read_slice_values(file, "user_prompt", np.arange(51), "rows")


def test_prompts_do_not_depend_on_answers(tmp_path: Path) -> None:
    first = dataset(tmp_path / "a.jsonl", [{"user_prompt": "a", "ground_truth": "1"}])
    other = dataset(
        tmp_path / "b.jsonl",
        [{"user_prompt": "b", "ground_truth": "1"}, {"user_prompt": "a", "ground_truth": "2"}],
    )
    assert read_prompts(first, np.array([0]))[0] == read_prompts(other, np.array([1]))[1]
