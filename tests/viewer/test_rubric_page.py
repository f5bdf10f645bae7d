"""The page of a judging session, as a visitor sees it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from osmosis_ai.rubric.judge_agreement import AgreementReport, measure_agreement
from osmosis_ai.viewer.source import RunDetail
from tests.rubric.tables import simulated
from tests.viewer.browsing import gzipped, page_text, visitor
from tests.viewer.fake_source import FakeSource, a_run

HOSTILE = "</script><script>alert(1)</script>{{ 7*7 }}"


def a_document(records: int = 60) -> dict[str, Any]:
    """Return a result as `osmosis eval rubric` writes it, read again from its JSON."""
    table = simulated(records=records)
    agreement = measure_agreement(table)
    written = {
        "score_min": table.score_min,
        "score_max": table.score_max,
        "overall_statistics": {"average": 0.5},
        "trust": agreement.to_json(),
        "records": [
            {
                "index": row + 1,
                "label": f"record {row + 1} {HOSTILE if not row else ''}",
                "statistics": {"average": 0.25},
                "judgements": [
                    {
                        "model": table.models[place],
                        "run": run + 1,
                        "score": None if np.isnan(score) else float(score),
                        "explanation": HOSTILE,
                    }
                    for place, runs in enumerate(table.scores[row])
                    for run, score in enumerate(runs)
                ],
            }
            for row in range(records)
        ],
    }
    found: dict[str, Any] = json.loads(json.dumps(written))
    return found


def pages_of(document: dict[str, Any]) -> Any:
    """Return a client of the page of a session."""
    run = a_run("answers", "rubric")
    return visitor(FakeSource([run], {"answers": RunDetail(run, summary_numbers=document)}))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return a_document()


def test_what_was_measured_is_read_again_as_it_was() -> None:
    agreement = measure_agreement(simulated(records=30))
    assert AgreementReport.from_json(json.loads(json.dumps(agreement.to_json()))) == agreement


def test_the_page_has_what_the_report_has_and_the_records_by_page(document: dict[str, Any]) -> None:
    pages = pages_of(document)
    text = page_text(pages.get("/rubrics/answers"))
    assert "Mean score 0.500 on a scale from" in text and "over 60 records." in text
    for heading in (
        "Agreement of the judges",
        "Repeatability",
        "Bias by length and order",
    ):
        assert heading in text
    assert "Histograms of the scores of each judge" in text
    assert 'id="record-50"' in text and 'id="record-51"' not in text
    assert 'id="record-51"' in page_text(pages.get("/rubrics/answers?cursor=50"))
    for cursor in ("60", "-1", "x", "9" * 20):
        page_text(pages.get(f"/rubrics/answers?cursor={cursor}"), status=400)


def test_what_judges_and_records_say_is_text(document: dict[str, Any]) -> None:
    text = page_text(pages_of(document).get("/rubrics/answers"))
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text and "{{ 7*7 }}" in text


def test_a_page_of_a_session_is_small_over_the_wire(document: dict[str, Any]) -> None:
    assert gzipped(page_text(pages_of(document).get("/rubrics/answers"))) < 200_000


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"trust": {}, "records": None},
        {"trust": [1], "records": [1, {}, {"judgements": 3}, {"runs": [{"score": True, "run_index": "x"}]}]},
        {"records": [{"judgements": [{"score": 1e999, "run": -1, "model": {"a": 1}}], "label": ["x"]}]},
    ],
)
def test_a_file_that_is_no_result_of_ours_has_a_page(strange: dict[str, Any]) -> None:
    text = page_text(pages_of(strange).get("/rubrics/answers"))
    assert "Agreement of the judges" not in text


def test_scores_beyond_their_scale_leave_the_histogram_out(document: dict[str, Any]) -> None:
    beyond = json.loads(json.dumps(document))
    beyond["records"][0]["judgements"][0]["score"] = 1e9
    text = page_text(pages_of(beyond).get("/rubrics/answers"))
    assert "Histograms" not in text and "Agreement of the judges" in text


def test_a_record_without_a_score_has_no_mean_and_does_not_count(document: dict[str, Any]) -> None:
    calls = [{**call, "score": None} for call in document["records"][0]["judgements"]]
    unscored = {**document["records"][0], "statistics": {"average": 0.0}, "judgements": calls}
    records = [unscored, *document["records"][1:]]
    trust = {**document["trust"], "counts": {**document["trust"]["counts"], "scored_records": 59}}
    text = page_text(pages_of({**document, "records": records, "trust": trust}).get("/rubrics/answers"))
    assert "over the 59 of 60 records that have a score." in text
    record, _, following = text.partition('id="record-1"')[2].partition('id="record-2"')
    assert "0.000" not in record and '<span class="given">–</span></summary>' in record
    assert '<span class="given">0.250</span>' in following
    none = page_text(pages_of({**document, "records": [unscored], "trust": None}).get("/rubrics/answers"))
    assert "1 record, none with a score." in none


def test_the_list_of_sessions_promises_no_intervals(document: dict[str, Any]) -> None:
    text = page_text(pages_of(document).get("/rubrics"))
    assert (
        "Scores are over scored records; what is scored, failed and planned are calls of judges." in text
        and "95 % intervals" not in text
    )
