"""The numbers of a run under way, from its live progress and what its engine last wrote."""

from __future__ import annotations

from dataclasses import replace

from osmosis_ai.evaluation.headline import Headline
from osmosis_ai.evaluation.run_state import ProgressSnapshot
from osmosis_ai.platform.runs.eval_results import live_results
from tests.evaluation.test_metrics import estimates_of

UNDER_WAY = ProgressSnapshot(
    completed=3,
    total=4,
    passed=1,
    failed=1,
    skipped=0,
    scored=2,
    reward_mean=0.5,
    tokens=7,
    cost_usd=None,
    in_flight=1,
    elapsed_s=1.0,
    finished=3,
)


def metrics_of(*statuses: str) -> dict[str, object]:
    return {"estimates": estimates_of(*statuses, planned=4).model_dump(mode="json")}


def test_metrics_from_before_the_first_score_do_not_say_that_nothing_is_scored() -> None:
    known = live_results({}, UNDER_WAY, metrics_of())
    for results in (
        known,
        live_results({**known, "headline": Headline().model_dump()}, UNDER_WAY, metrics_of()),
    ):
        headline = Headline.of_results(results, planned=4)
        assert headline is not None and (headline.scored, headline.failed, headline.pending) == (2, 1, 1)
        assert headline.brief == "50.0 % pass (reward >= 1.0), 2 of 4 planned scored, failed 1"


def test_metrics_that_have_scores_give_the_headline() -> None:
    results = live_results({}, UNDER_WAY, metrics_of("pass", "agent"))
    headline = Headline.of_results(results, planned=4)
    assert headline is not None and headline.scored == results["headline"]["scored"] > 0


def test_tokens_of_a_run_that_goes_on_elsewhere_are_not_taken_back() -> None:
    told = [live_results({}, replace(UNDER_WAY, tokens=1728), None)]
    for tokens in (1661, 1900):
        told.append(live_results(told[-1], replace(UNDER_WAY, tokens=tokens), None))
    assert [each["total_tokens"] for each in told] == [1728, 1728, 1900]
