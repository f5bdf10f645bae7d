"""Comparisons of runs: metrics, verdicts, slices and unusual runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from osmosis_ai.decisions.compare import CompareOptions, RunComparison, compare_runs
from osmosis_ai.decisions.samples import RunSamples
from osmosis_ai.errors import OsmosisError
from tests.decisions.builders import INPUTS, run_of

Rewards = Sequence[Sequence[float | None]]


def passes(counts: Sequence[int], n: int = 4) -> list[list[float | None]]:
    """Return attempts of which so many pass on each row."""
    return [[1.0] * count + [0.0] * (n - count) for count in counts]


def compared(a: Rewards, *others: Rewards, **options: Any) -> RunComparison:
    names = ["fern", "moss", "reed", "sage"]
    runs = [run_of(rewards, name=name) for name, rewards in zip(names, (a, *others), strict=False)]
    return compare_runs(runs[0], runs[1:], CompareOptions(**options))


HARD = [0, 1, 2, 3, 4] * 20
BETTER = [1, 2, 3, 4, 4] * 20


def metric(found: RunComparison, name: str, candidate: int = 0) -> dict[str, Any]:
    return next(each for each in found.data()["candidates"][candidate]["metrics"] if each["metric"] == name)


def test_amounts_are_compared_by_ratio() -> None:
    a, b = run_of(passes(HARD), name="fern"), run_of(passes(HARD), name="moss")
    dearer = b.samples.copy()
    dearer["cost_usd"] *= 2
    dearer["tokens"][::2] *= 3
    found = compare_runs(a, [replace(b, samples=dearer)], CompareOptions(metric="tokens"))
    assert metric(found, "cost_per_row")["ratio"]["value"] == pytest.approx(2)
    assert metric(found, "cost_per_row")["baseline"]["value"] == pytest.approx(0.04)
    assert metric(found, "tokens")["ratio"]["value"] == pytest.approx(2)
    assert metric(found, "latency")["baseline"]["value"] == 1.0


def test_unscored_attempts() -> None:
    found = compared(passes([2] * 40), *[[[1.0, None, None, None]] * 40] * 2)
    rate = metric(found, "pass_rate")
    assert rate["difference"]["value"] == 0.5 and rate["difference"]["p_adjusted"] < 0.05
    worst = rate["unscored_at_worst"]
    assert (worst["value"], worst["p_adjusted"]) == (-0.25, 1.0) and worst["p"] < 0.05
    found = compared([[1.0], [0.0], [None], [1.0]], [[None], [1.0], [1.0], [None]])
    rate = metric(found, "pass_rate")
    assert (rate["unscored_at_worst"]["value"], rate["unscored_at_best"]["value"]) == (-0.25, 0.5)
    assert (
        next(change.unscored for change in found.candidates[0].changes if change.metric == "pass_rate") == 3
    )


def test_verdict_among_several_candidates() -> None:
    up = [
        count + 1 if row < 15 and count < 4 else max(count - 1, 0) if row in (70, 71, 72, 73) else count
        for row, count in enumerate(HARD)
    ]
    alone = compared(passes(HARD), passes(up)).candidates[0]
    assert alone.verdict.direction == "better"
    among = compared(passes(HARD), passes(up), passes(HARD[::-1]), passes(HARD[1:] + HARD[:1]))
    assert among.candidates[0].verdict.direction == "unclear"
    assert "significant alone, but not among 3 candidates" in among.sentence


def test_default_metric() -> None:
    graded = [[0.1], [0.7]] * 5
    assert compared(passes(HARD), passes(BETTER)).metric == "pass_rate"
    assert compared(graded, [[0.2], [0.8]] * 5).metric == "reward"
    inputs = replace(INPUTS, pass_threshold=0.5)
    runs = [run_of(graded, name=name, inputs=replace(inputs, model=name)) for name in "ab"]
    assert compare_runs(runs[0], runs[1:], CompareOptions()).metric == "pass_rate"


def test_largest_changes() -> None:
    a, b = [0] * 40, [0] * 40
    (a[0], b[0]), (a[1], b[1]), (a[2], b[2]) = (0, 16), (16, 0), (8, 9)
    rows = compared(passes(a, 16), passes(b, 16)).data()["candidates"][0]["rows"]
    assert (rows["compared"], rows["higher"], rows["lower"]) == (40, 2, 1)
    found = [(row["source_row_index"], row["change"]) for row in rows["largest"]]
    assert found == [(1, -1.0), (0, 1.0), (2, 1 / 16)]
    assert rows["largest"][0] == {
        "source_row_index": 1,
        "digest": "row-1",
        "baseline": {"passes": 16, "attempts": 16, "reward": 1.0},
        "candidate": {"passes": 0, "attempts": 16, "reward": 0.0},
        "change": -1.0,
    }


def test_runs_with_the_same_name() -> None:
    fern, moss = run_of(passes(HARD), name="fern"), run_of(passes(BETTER), name="moss")
    with pytest.raises(OsmosisError, match="moss is named twice"):
        compare_runs(fern, [moss, moss], CompareOptions())
    other = replace(moss, name="fern", place="platform")
    assert compare_runs(fern, [other], CompareOptions()).sentence.startswith("platform:fern is better")


def test_different_inputs() -> None:
    a = run_of(passes(HARD), name="fern", inputs=replace(INPUTS, n=4, env={}, time_limits_s=(None, 60)))
    other = {"model": "osmosis/small", "dirty": True, "seed": 7, "env": {"REGION": "north", "A": "1"}}
    b = run_of(passes(BETTER), name="moss", inputs=replace(INPUTS, n=4, time_limits_s=(90, 60), **other))
    differs = {
        each["input"]: each["values"] for each in compare_runs(a, [b], CompareOptions()).data()["differs"]
    }
    assert differs == {
        "model": ["osmosis/tiny", "osmosis/small"],
        "commit": ["cccccccccccc", "cccccccccccc with changes"],
        "seed": ["0", "7"],
        "env": ["none", "A=1, REGION=north"],
        "agent time limit": ["none", "90 s"],
    }
    imported = replace(INPUTS, n=4, seed=None, source_digest=None, config=None, env=None, grader_digest=None)
    unknown = run_of(passes(BETTER), name="moss", inputs=imported)
    assert compare_runs(a, [unknown], CompareOptions()).differs == {}


def test_huge_rewards_and_costs(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(OsmosisError, match=r"fern has a reward of 1e\+308: its variance cannot be computed"):
        compared([[1e308], [2.0]] * 5, [[1.0], [2.0]] * 5)
    a, b = run_of(passes(HARD), name="fern"), run_of(passes(BETTER), name="moss")
    dear = b.samples.copy()
    dear["cost_usd"] = 1e308
    found = compare_runs(a, [replace(b, samples=dear)], CompareOptions())
    json.dumps(found.data(), allow_nan=False)
    assert "cost_per_row" not in [change.metric for change in found.candidates[0].changes]
    assert not recwarn.list


def sliced(monkeypatch: pytest.MonkeyPatch, values: Sequence[str | None], b: Rewards) -> list[dict[str, Any]]:
    monkeypatch.setattr(RunSamples, "slice_values", lambda *_: list(values))
    return list(compared(passes(HARD), b, slices=("difficulty",)).data()["candidates"][0]["slices"])


def test_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [None] * 5 + ["hard"] * 45 + ["easy"] * 50
    better_when_easy = [*HARD[:50], *BETTER[50:]]
    found = sliced(monkeypatch, values, passes(better_when_easy))
    assert [(each["value"], each["verdict"], each["difference"]["rows"]) for each in found] == [
        ("easy", "better", 50),
        ("hard", "unclear", 45),
        (None, None, 5),
    ]
    assert found[0]["difference"]["p_adjusted"] >= found[0]["difference"]["p"]
    assert found[2]["difference"]["p_adjusted"] is None
