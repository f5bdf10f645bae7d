"""Metrics of a run as `eval info` prints them, compared with values computed by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osmosis_ai.statistics.pass_at_k import (
    estimate_pass_at_k,
    estimate_pass_hat_k,
    pass_at_k,
    pass_at_k_by_row,
    pass_hat_k,
    pass_hat_k_by_row,
)
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.cli.conftest import fleet as fleet
from tests.cli.conftest import logging_as_it_was as logging_as_it_was
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import append_records, write_run

Measure = Callable[..., dict[str, Any]]


def attempt(row: int, run: int, status: str, reward: float | None, **known: Any) -> Any:
    """Return a result whose tokens and duration are unknown unless they are given."""
    known = {"tokens": None, "duration_ms": 0, "row_digest": f"{row + 1:016x}", **known}
    return record(row, run, status=status, reward=reward, **known)


@pytest.fixture
def info(cli: Cli, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return what `eval info` prints about a run of these results."""
    numbers = itertools.count()

    def info(rows: int, n: int, *results: Any, pass_threshold: float = 1.0) -> dict[str, Any]:
        directory = write_run(tmp_path / f"run-{next(numbers)}", [[""] * n] * rows)
        (directory / "config.toml").write_text(f"[evaluation]\npass_threshold = {pass_threshold}\n")
        append_records(directory / "events.jsonl", results)
        return cli("eval", "info", str(directory), "--json").data

    return info


@pytest.fixture
def measure(info: Measure) -> Measure:
    """Return the metrics of a run of these results."""
    return lambda *run, **options: info(*run, **options)["metrics"]


def estimates_of(info: Measure, *rows: str, planned: int | None = None) -> dict[str, Any]:
    """Return estimates of rows with a character per attempt: passed (1), not passed (0) or failed (-)."""
    results = [
        attempt(row, run, "failed", None) if outcome == "-" else attempt(row, run, "success", float(outcome))
        for row, attempts in enumerate(rows)
        for run, outcome in enumerate(attempts)
    ]
    found = info(planned or len(rows), max(map(len, rows)), *results)
    return {**found["metrics"]["estimates"], "headline": found["headline"]}


def test_product_summary(measure: Measure) -> None:
    metrics = measure(
        3,
        2,
        attempt(0, 0, "success", 1.0, tokens=100),
        attempt(0, 1, "success", 0.0, tokens=50),
        attempt(1, 0, "failed", None, tokens=7, boundary="agent", error_type="timeout"),
        attempt(1, 1, "success", 0.5, prompt_tokens=20, completion_tokens=3),
        attempt(2, 0, "skipped", 1.0, tokens=1),
        attempt(2, 1, "success", None),
        pass_threshold=0.5,
    )
    del metrics["estimates"]
    assert metrics == {
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


def test_empty_run(measure: Measure) -> None:
    metrics = measure(5, 2)
    estimates = metrics.pop("estimates")
    assert metrics == {
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
    empty = {"reward": None, "pass_rate": None, "unscored": None, "pass_at_k": {}, "variance": None}
    assert {**estimates, **empty} == estimates
    assert estimates["counts"]["pending"] == 10
    assert estimates["cost_usd"]["total"] is None and estimates["latency"]["rollout_ms"] is None


def test_unscored_attempts_are_not_zero(measure: Measure) -> None:
    metrics = measure(
        3,
        2,
        attempt(0, 0, "success", 1.0),
        attempt(0, 1, "failed", None, boundary="agent", error_type="timeout"),
        attempt(1, 0, "failed", None, boundary="provider", error_type="agent_error", category="rate_limited"),
        attempt(1, 1, "success", math.nan),
        attempt(2, 0, "failed", None),
    )
    assert metrics["pass_rate"] == 1 / 5  # the product's: failures are attempts that did not pass
    estimates, rate = metrics["estimates"], metrics["estimates"]["pass_rate"]
    assert (rate["value"], rate["n"], rate["clusters"]) == (1.0, 1, 1)
    expected = {
        "scored": 1,
        "unscored": {"no_reward": 1, "rate_limited": 1, "timeout": 1, "unknown": 1},
        "failed_by_boundary": {"unknown": 1, "provider": 1, "agent": 1},
        "infrastructure_failures": 1,
        "pending": 1,
    }
    assert {**estimates["counts"], **expected} == estimates["counts"]


def test_rows_weigh_the_same(info: Measure) -> None:
    estimates = estimates_of(info, "1---", "0000")
    assert (estimates["pass_rate"]["value"], estimates["pass_rate"]["n"]) == (0.5, 5)
    assert estimates["reward"]["value"] == 0.5


def test_unscored_share(measure: Measure) -> None:
    results = [attempt(0, 0, "success", 1.0), attempt(1, 0, "failed", None), attempt(2, 0, "skipped", None)]
    share = measure(4, 1, *results)["estimates"]["unscored"]
    assert (share["value"], share["n"], share["clusters"]) == (0.5, 2, 2) and share["at_most"] > 0.9


def test_pass_at_k_estimates(info: Measure) -> None:
    points = estimates_of(info, *["0000", "1000", "1100"] * 2, "0000", "1000", "110-")["pass_at_k"]
    assert list(points) == ["1", "2", "4"]
    assert points["2"]["value"] == pytest.approx((pass_at_k(4, 1, 2) * 3 + pass_at_k(4, 2, 2) * 2 + 1) / 9)
    assert (points["4"]["clusters"], points["4"]["n"]) == (8, 32)
    assert all(point["low"] < point["value"] for point in points.values())


def test_pass_hat_k_estimates(info: Measure) -> None:
    estimates = estimates_of(info, "1111", "1110", "1100", "0000", "11-1")
    at, hat = estimates["pass_at_k"], estimates["pass_hat_k"]
    assert list(hat) == list(at) == ["1", "2", "4"]
    # Of 3 passes in 4 attempts half of the pairs pass, of 2 one in six.
    assert hat["2"]["value"] == pytest.approx((1 + 1 / 2 + 1 / 6 + 0 + 1) / 5)
    assert (hat["4"]["value"], hat["4"]["clusters"]) == (0.25, 4)
    assert hat["1"]["value"] == at["1"]["value"]
    assert estimates_of(info, "1", "0")["pass_hat_k"] == {}


def test_variance_between_rows_and_attempts(info: Measure) -> None:
    shares = estimates_of(info, "1100", "1110", "1111", "0000")["variance"]
    # By hand: MSB 4 * 0.547 / 3 = 0.729, MSW 1.75 / 12 = 0.146, and between rows (0.729 - 0.146) / 4 = 0.146.
    assert shares["between_rows"] == pytest.approx(0.5)
    assert (shares["rows"], shares["attempts_per_row"], shares["below_zero"]) == (4, 4, False)
    assert shares["between_rows"] + shares["between_attempts"] == 1


@pytest.mark.parametrize("rows", [("1", "0", "1"), ("11", "11"), ("10",), ("--", "--")])
def test_variance_unknown(info: Measure, rows: tuple[str, ...]) -> None:
    assert estimates_of(info, *rows)["variance"] is None


@pytest.mark.parametrize(("costs", "total"), [((1e308, 1e308), None), ((0.1,) * 10, 1.0)])
def test_total_of_costs(measure: Measure, costs: tuple[float, ...], total: float | None) -> None:
    results = [attempt(row, 0, "success", 1.0, cost_usd=cost) for row, cost in enumerate(costs)]
    assert measure(len(costs), 1, *results)["estimates"]["cost_usd"]["total"] == total


def test_costs_tokens_and_latencies(measure: Measure) -> None:
    results = [
        attempt(
            row,
            0,
            "success",
            1.0,
            prompt_tokens=100,
            completion_tokens=10,
            cost_usd=0.1 if row else None,
            duration_ms=1000 * (row + 1),
            model_latency_ms=600.0,
            model_calls=2,
        )
        for row in range(3)
    ]
    failed = attempt(3, 0, "failed", None, boundary="rollout_server", duration_ms=4000)
    estimates = measure(4, 1, *results, failed)["estimates"]
    tokens = {"prompt": 300, "completion": 30, "total": 330, "per_sample": 110.0, "known_samples": 3}
    assert {**estimates["tokens"], **tokens} == estimates["tokens"]
    cost = {"total": pytest.approx(0.2), "known_samples": 2, "recorded_samples": 4}
    assert estimates["cost_usd"] == cost
    latency = estimates["latency"]
    assert (latency["rollout_ms"]["p50"], latency["model_ms"]["p99"]) == (2500.0, 600.0)
    assert latency["model_call_mean_ms"] == 300.0
    # Of 400, 1,400 and 2,400: the attempt that called no model has no part in it.
    elsewhere = latency["elsewhere_ms"]
    assert (elsewhere["n"], elsewhere["p50"], elsewhere["p90"]) == (3, 1400.0, 2200.0)


def test_latency_elsewhere_is_not_negative(measure: Measure) -> None:
    at_once = attempt(0, 0, "success", 1.0, duration_ms=100, model_latency_ms=250.0, model_calls=3)
    found = measure(1, 1, at_once)["estimates"]["latency"]["elsewhere_ms"]
    assert (found["p50"], found["n"]) == (0.0, 1)


def test_huge_rewards(measure: Measure) -> None:
    rewards = (1.7e308, -1.7e308, 1e308)
    metrics = measure(3, 1, *(attempt(row, 0, "success", reward) for row, reward in enumerate(rewards)))
    assert metrics["graded"] == 3


statuses = st.sampled_from(["success", "failed", "skipped"])
rewards = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 6),
    n=st.integers(1, 5),
    outcomes=st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 4)), st.tuples(statuses, rewards)),
)
def test_every_attempt_is_counted_once(
    measure: Measure, rows: int, n: int, outcomes: dict[tuple[int, int], tuple[str, float | None]]
) -> None:
    known = {place: outcome for place, outcome in outcomes.items() if place[0] < rows and place[1] < n}
    metrics = measure(rows, n, *(attempt(*place, *outcome) for place, outcome in known.items()))
    counts = metrics["estimates"]["counts"]
    assert counts["planned"] == rows * n
    everything = (counts["scored"], *counts["unscored"].values(), counts["skipped"], counts["pending"])
    assert sum(everything) == rows * n
    assert sum(counts["failed_by_boundary"].values()) == metrics["failed"]
    assert (counts["scored"], metrics["total_samples"]) == (metrics["graded"], len(known))


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


def test_warning_below_90_percent_scored(info: Measure) -> None:
    assert estimates_of(info, *["1"] * 18, *["-"] * 2, planned=25)["warnings"] == []
    few = estimates_of(info, *["1"] * 17, *["-"] * 3, planned=25)
    warning = "only 17 of 20 finished attempts have a score (85.0%); the numbers exclude the rest"
    assert few["warnings"] == few["headline"]["warnings"] == [warning]


def test_unknown_pass_rate_is_not_zero(info: Measure) -> None:
    headline = estimates_of(info, "-")["headline"]
    shown = "pass rate – (reward >= 1.0, scored attempts only); scored 0 of 1 planned"
    assert headline["words"].startswith(shown) and headline["brief"].startswith("no scores, 0 of 1 planned")


def test_duplicate_rows_do_not_narrow_intervals(measure: Measure) -> None:
    def rate_of(rows: int) -> dict[str, Any]:
        results = [
            attempt(row, 0, "success", float(row % 3 > 0), row_digest=f"{row % 30 + 1:016x}")
            for row in range(rows)
        ]
        found: dict[str, Any] = measure(rows, 1, *results)["estimates"]
        return found

    one, three = rate_of(30)["pass_rate"], rate_of(90)
    assert three["pass_rate"]["clusters"] == 30
    assert three["pass_rate"]["high"] - three["pass_rate"]["low"] >= 0.99 * (one["high"] - one["low"])
    assert three["counts"]["copies"] == 60
    assert any("60 of 90 rows are duplicates of another" in warning for warning in three["warnings"])
