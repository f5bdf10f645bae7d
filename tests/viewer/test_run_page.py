"""An evaluation's page, its samples and its log, as a visitor sees them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from osmosis_ai.api.wire.base import LogEntry
from osmosis_ai.config.decisions import Decisions
from osmosis_ai.evaluation.comparison.verdict import signed_words
from osmosis_ai.evaluation.headline import Headline
from osmosis_ai.evaluation.metrics import MetricsAccumulator
from osmosis_ai.viewer.cursors import changes_cursor
from osmosis_ai.viewer.source import FailureCount, Histogram, RunDetail
from tests.datasets.builders import jsonl
from tests.evaluation.comparison.builders import run_of
from tests.evaluation.recorded_runs import record
from tests.viewer.browsing import gzipped, page_text, visitor
from tests.viewer.fake_source import FakeSource, a_run, a_sample

if TYPE_CHECKING:
    from starlette.testclient import TestClient

HOSTILE = "<script>alert(1)</script>{{ 7*7 }}<img src=x onerror=alert(1)>\u202e\x1b]8;;http://evil\x07"


@pytest.fixture(scope="module")
def pages() -> TestClient:
    """Return a visitor of a run of six rows, whose attempts passed, failed and broke."""
    metrics = MetricsAccumulator(rows=6, n=2)
    outcomes = [[1.0, 0.0], [1.0, "agent"], [0.0, 0.0], ["provider", "provider"], [1.0, 1.0], [0.0, "agent"]]
    for row, attempts in enumerate(outcomes):
        for attempt, outcome in enumerate(attempts):
            metrics.add_record(record(row, attempt, outcome))
    found = metrics.summary()
    entry = a_run("calm-fern-1", headline=Headline.of(found.estimates), config="configs/eval/rows.toml")
    before = a_run("calm-fern-0", headline=Headline(pass_rate=0.5, scored=10, planned=10))
    detail = RunDetail(
        entry,
        found.estimates,
        found.summary,
        config_written='dataset = "rows"\n',
        config_effective={"evaluation": {"n": 2, "grader": HOSTILE}},
        facts=[("Seed", "7"), ("Isolation", "bubblewrap")],
        secret_names=["OPENAI_API_KEY"],
        failures=[
            FailureCount("agent", "crash", 2, (1, 1), HOSTILE),
            FailureCount("provider", None, 2, (3, 0)),
        ],
        rewards=Histogram([0.0, 0.5, 1.0], [4, 4]),
        previous=before,
        problems=["The journal ends in a torn line."],
        commands=["osmosis eval run configs/eval/rows.toml --name calm-fern-1 --retry-failed"],
    )
    samples = [
        a_sample(
            row,
            attempt,
            passed=None if isinstance(outcome, str) else outcome == 1.0,
            status="failed" if isinstance(outcome, str) else "success",
            reward=None if isinstance(outcome, str) else outcome,
            boundary=outcome if isinstance(outcome, str) else None,
            error=HOSTILE if isinstance(outcome, str) else None,
            input=f"question {row} {HOSTILE}",
            output="=1+1",
            tokens=1234,
        )
        for row, attempts in enumerate(outcomes)
        for attempt, outcome in enumerate(attempts)
    ]
    said = json.dumps({"steps": [{"source": "agent", "message": "a secret wörd"}]})
    source = FakeSource(
        [entry, before, a_run("other", "training")],
        {"calm-fern-1": detail},
        {"calm-fern-1": samples},
        conversations={("calm-fern-1", 2, 1): said.encode(), ("calm-fern-1", 4, 0): b'{"steps": []}'},
        lines=[
            LogEntry(timestamp="2026-05-04T12:00:00Z", level="warning", message=f"line {n} {HOSTILE}")
            for n in range(300)
        ],
    )
    return visitor(source)


def test_the_run_page_says_the_result_in_a_sentence_and_each_number_with_its_denominator(
    pages: TestClient,
) -> None:
    text = page_text(pages.get("/evals/calm-fern-1"))
    assert "of 8 scored samples pass" in text and "8 of 12 planned scored." in text
    assert "Pass rate (reward &gt;= 1.0, scored samples only)" in text
    assert "8 scored samples of 5 rows" in text
    assert "korn-graubard" in text


def test_where_few_are_scored_the_bounds_stand_above_the_numbers(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-1"))
    warning = "Were all 4 others to fail, 33.3 % of 12 would pass; were all to pass, 66.7 %."
    assert 0 < text.index(warning) < text.index('id="numbers"')


def test_the_run_page_leads_to_failures_to_flaky_rows_and_to_the_run_before(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-1"))
    assert "/evals/calm-fern-1/samples/1.1?outcome=unscored&amp;boundary=agent&amp;category=crash" in text
    assert "/evals/calm-fern-1/samples?row=0" in text
    assert "/compare?run=calm-fern-0&amp;run=calm-fern-1" in text
    assert "OPENAI_API_KEY" in text and "--retry-failed" in text and "evaluation.n" in text


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (0.45, 0.4875, "+3.8 points since."),
        (0.5, 0.5, "0.0 points since."),
        (0.5, 0.375, "-12.5 points since."),
    ],
)
def test_the_run_before_is_told_apart_in_the_words_of_a_comparison(
    before: float, now: float, words: str
) -> None:
    older, entry = (
        a_run(name, headline=Headline(pass_rate=rate, scored=80, planned=80))
        for name, rate in (("calm-fern-0", before), ("calm-fern-1", now))
    )
    source = FakeSource([entry, older], {"calm-fern-1": RunDetail(entry, previous=older)})
    assert words == f"{signed_words('pass_rate', round(now - before, 6))} points since."
    assert f"; {words}" in page_text(visitor(source).get("/evals/calm-fern-1"))


@pytest.mark.parametrize(("status", "offered"), [("finished", True), ("running", False), ("stopped", False)])
def test_a_part_of_a_run_is_not_offered_to_be_compared(status: str, offered: bool) -> None:
    told = Headline(pass_rate=0.5, scored=80, planned=80)
    older, entry = a_run("calm-fern-0", headline=told), a_run("calm-fern-1", headline=told, status=status)
    source = FakeSource([entry, older], {"calm-fern-1": RunDetail(entry, previous=older)})
    text = page_text(visitor(source).get("/evals/calm-fern-1"))
    assert "Before it with this config, model and rows" in text
    assert ("Compare them" in text) is offered


def test_failures_are_drawn_by_what_failed_and_nothing_is_drawn_of_none() -> None:
    entry = a_run("calm-fern-1", headline=Headline(planned=20))
    kinds = [FailureCount("agent", f"kind{place}", 20 - place, (place, 0)) for place in range(12)]
    kinds[1] = FailureCount(None, None, 19, (1, 0))
    pages = visitor(FakeSource([entry], {"calm-fern-1": RunDetail(entry, failures=kinds)}))
    for text in (
        page_text(pages.get("/evals/calm-fern-1")),
        pages.get("/evals/calm-fern-1", headers={"X-Live-Part": "failures"}).text,
    ):
        figure = text.partition("<figure")[2].partition("</figure>")[0]
        assert 'aria-label="Failures by boundary and category"' in figure
        rows = re.findall(r'<th scope="row">([^<]*)</th><td>(\d+)</td>', figure)
        assert rows[:3] == [("agent, kind0", "20"), ("not known", "19"), ("agent, kind2", "18")]
        assert len(rows) == figure.count('class="fill-1"') == 10 and "kind11" in text
    bare = visitor(FakeSource([entry], {"calm-fern-1": RunDetail(entry)}))
    assert "<figure" not in page_text(bare.get("/evals/calm-fern-1"))


@pytest.mark.parametrize(
    "path", ["", "/samples", "/samples?group=row", "/log", "/samples?q=w%C3%B6rd&in=conversations"]
)
def test_what_others_wrote_does_nothing(pages: TestClient, path: str) -> None:
    text = page_text(pages.get(f"/evals/calm-fern-1{path}"))
    body = text.partition("</head>")[2]
    assert "<script" not in body and "<img" not in body and "\u202e" not in text and "\x1b" not in text
    assert gzipped(text) < 100_000


@pytest.mark.parametrize("path", ["", "/samples?outcome=unscored", "/samples?group=row"])
def test_an_error_in_a_table_has_lost_its_terminal_sequences_which_are_counted(
    pages: TestClient, path: str
) -> None:
    part = {} if path else {"X-Live-Part": "failures"}
    text = pages.get(f"/evals/calm-fern-1{path}", headers=part).text
    told = re.findall(r"onerror=alert\(1\)&gt;‹U\+202E›(.{34})", text)
    assert '<span class="removed">1 terminal s' in told, told


def test_a_name_that_is_not_there_leads_to_the_three_nearest(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-2/samples"), status=404)
    assert text.count('href="/evals/calm-fern-') == 2 and 'href="/evals"' in text
    page_text(pages.get("/evals/other"), status=404)


def test_samples_are_filtered_by_outcome_and_keep_it_in_their_links(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-1/samples?outcome=unscored"))
    assert "/samples/1.1?outcome=unscored" in text and "/samples/0.0" not in text
    assert "4 samples." in text


def test_samples_by_row_say_how_many_of_them_passed(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-1/samples?group=row"))
    assert "Row 0: 1 of 2 shown passed" in text
    assert "only where they are sorted by row" in page_text(
        pages.get("/evals/calm-fern-1/samples?group=row&sort=reward")
    )


def test_text_is_found_in_conversations_though_it_is_escaped_there(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-1/samples?q=SECRET+W%C3%96RD&in=conversations"))
    assert (
        "Looked through 2 conversations here, from sample 0.0 to 5.1" in text
        and "follow the other filters, not this text" in text
        and 'href="/evals/calm-fern-1/samples/2.1"' in text
        and "/samples/4.0" not in text
    )
    assert "That was the end." in text
    assert "10 of 12 samples here have no conversation to read and were not searched." in text
    href = re.search(r'href="([^"]+\.jsonl[^"]+)"', text)
    assert href is not None
    lines = pages.get(href[1].replace("&amp;", "&")).text.splitlines()
    assert [(each["row"], each["attempt"]) for each in map(json.loads, lines)] == [(2, 1)]


@pytest.mark.parametrize(
    "words",
    [
        "outcome=good",
        "outcome=passed&outcome=failed",
        "sort=reward&sort=row",
        "row=1&row=2",
        "category=zz",
        "finish=stop",
        "row=-1",
        "row=1e3",
        "min_reward=nan",
        "min_reward=2&max_reward=1",
        "max_cost=much",
        "sort=name",
        "cursor=x",
        "dir=1",
    ],
)
def test_filters_that_make_no_sense_are_refused(pages: TestClient, words: str) -> None:
    page_text(pages.get(f"/evals/calm-fern-1/samples?{words}"), status=400)
    if words != "cursor=x":
        page_text(pages.get(f"/evals/calm-fern-1/samples.csv?{words}"), status=400)


def test_samples_are_listed_by_how_their_replies_ended() -> None:
    samples = [
        a_sample(0),
        a_sample(1, finish_reasons={"length": 1}),
        a_sample(2, finish_reasons={"refusal": 2}),
    ]
    pages = visitor(FakeSource([a_run("fern")], listed={"fern": samples}))
    text = page_text(pages.get("/evals/fern/samples"))
    assert (text.count(">truncated</span>"), text.count(">refused</span>")) == (1, 1)
    found = page_text(pages.get("/evals/fern/samples?finish=length"))
    assert ">1.0</a>" in found and ">2.0</a>" not in found
    assert '<option value="length" selected>truncated</option>' in found
    lines = pages.get("/evals/fern/samples.csv?finish=refusal").text.splitlines()
    assert len(lines) == 2 and '"{""refusal"": 2}"' in lines[1]


def test_a_filter_with_two_values_and_an_unknown_category_are_told_for_what_they_are(
    pages: TestClient,
) -> None:
    samples = "/evals/calm-fern-1/samples"
    both = unescape(page_text(pages.get(f"{samples}?outcome=passed&outcome=failed"), status=400))
    assert "'outcome' is given as 'passed' and as 'failed': a page takes one of them." in both
    assert page_text(pages.get(f"{samples}?outcome=passed&outcome=&outcome=passed"))
    unknown = unescape(page_text(pages.get(f"{samples}?category=zz"), status=400))
    assert "Nothing in this run failed with the category 'zz': what failed is crash." in unknown
    assert "No sample passes these filters" in page_text(pages.get(f"{samples}?category=crash&row=0"))
    whole = visitor(FakeSource([a_run("fern")], listed={"fern": [a_sample(0)]}))
    of_nothing = unescape(page_text(whole.get("/evals/fern/samples?category=crash"), status=400))
    assert "Nothing in this run failed with the category 'crash': it has no failures." in of_nothing


@pytest.mark.parametrize("row", ["9" * 24, "9" * 60, str(2**63)])
def test_a_row_beyond_all_rows_is_told_the_largest(pages: TestClient, row: str) -> None:
    refused = unescape(page_text(pages.get(f"/evals/calm-fern-1/samples?row={row}"), status=400))
    assert f"'row' is too large: rows are counted from 0 up to {2**63 - 1}." in refused
    assert "is a whole number from 0, and not '1.5'" in unescape(
        page_text(pages.get("/evals/calm-fern-1/samples?row=1.5"), status=400)
    )
    assert page_text(pages.get(f"/evals/calm-fern-1/samples?row={2**63 - 1}"))


def test_what_is_filtered_is_a_file_whose_cells_no_spreadsheet_computes(pages: TestClient) -> None:
    reply = pages.get("/evals/calm-fern-1/samples.csv?outcome=unscored")
    assert (
        reply.headers["content-disposition"].startswith("attachment")
        and "sandbox" in reply.headers["content-security-policy"]
    )
    lines = list(csv.DictReader(io.StringIO(reply.text)))
    assert [(line["row"], line["attempt"]) for line in lines] == [
        ("1", "1"),
        ("3", "0"),
        ("3", "1"),
        ("5", "1"),
    ]
    assert {line["output"] for line in lines} == {"'=1+1"}
    samples = [json.loads(line) for line in pages.get("/evals/calm-fern-1/samples.jsonl").text.splitlines()]
    assert len(samples) == 12 and samples[0]["output"] == "=1+1"


@pytest.mark.parametrize(
    ("said", "cell"),
    [
        ("\x1b]0;title\x07\x1b[31mred\x1b[0m", "␛]0;title␇␛[31mred␛[0m"),
        ("\x9b2J\x7f\0\u202eevil\u200b\ud800", "‹U+009B›2J‹U+007F›␀‹U+202E›evil‹U+200B›‹U+D800›"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\r=1+1", "␍=1+1"),
        ("\r\n=1+1", "'\n=1+1"),
        *((f"{sign}cmd|' /C calc'!A0", f"'{sign}cmd|' /C calc'!A0") for sign in "=+-@\t\n＝＋－＠"),
        ("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"),
        ("+1\n", "'+1\n"),
        ("-41.5", "-41.5"),
        ("+1", "+1"),
        ("1=1", "1=1"),
    ],
)
def test_a_cell_is_what_was_said_with_marks_for_what_is_not_seen_and_a_line_of_json_is_it_exactly(
    said: str, cell: str
) -> None:
    sample = a_sample(0, reward=-0.25, error=said)
    pages = visitor(FakeSource([a_run("one")], listed={"one": [sample]}))
    text = pages.get("/evals/one/samples.csv").content.decode()
    (line,) = csv.DictReader(io.StringIO(text, newline=""))
    assert (line["error"], line["reward"]) == (cell, "-0.25")
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202e]", text)
    exact = pages.get("/evals/one/samples.jsonl").content
    assert json.loads(exact)["error"] == said and exact.rstrip(b"\n").decode("ascii").isprintable()


def test_the_log_begins_with_its_end_and_goes_back(pages: TestClient) -> None:
    text = page_text(pages.get("/evals/calm-fern-1/log"))
    assert "line 299 " in text and "line 99 " not in text and "cursor=100" in text
    assert "line 99 " in page_text(pages.get("/evals/calm-fern-1/log?cursor=100"))


def test_a_live_page_gets_the_part_that_it_asks_for(pages: TestClient) -> None:
    part = pages.get("/evals/calm-fern-1", headers={"X-Live-Part": "numbers"}).text
    assert "8 scored samples of 5 rows" in part and "<html" not in part
    assert pages.get("/evals/calm-fern-1", headers={"X-Live-Part": "../run"}).status_code == 404


def test_a_run_without_anything_has_a_page() -> None:
    source = FakeSource([a_run("new", status="pending", started_at=None, ended_at=None)])
    text = page_text(visitor(source).get("/evals/new"))
    assert "No sample has a score yet." in text and 'data-live-source="/evals/new/changes"' in text
    # What the page shows needs not be told to it again.
    assert f'data-live-cursor="{changes_cursor("pending", [0], 0)}"' in text
    assert "This run has no sample with a result." in page_text(visitor(source).get("/evals/new/samples"))


@pytest.mark.parametrize("status", ["stopped", "failed", "incomplete"])
def test_a_run_that_has_ended_without_a_score_promises_none(status: str) -> None:
    source = FakeSource([a_run("ended", status=status, headline=Headline(planned=4, pending=4))])
    text = page_text(visitor(source).get("/evals/ended"))
    assert "No sample has a score: 0 of 4 planned scored." in text and "There are none." in text
    assert "yet" not in text[text.index("<main") :]


def test_a_run_that_is_deleted_while_its_page_is_open_is_not_found() -> None:
    source = FakeSource([a_run("calm-fern-1"), a_run("calm-fern-2")], listed={"calm-fern-1": [a_sample(0)]})
    pages = visitor(source)
    page_text(pages.get("/evals/calm-fern-1/samples"))
    del source.entries[0]
    for path in ("", "/samples", "/samples/0.0", "/log", "/samples.csv"):
        assert "calm-fern-2" in page_text(pages.get(f"/evals/calm-fern-1{path}"), status=404)


def test_numbers_are_told_by_a_column_of_the_dataset_or_why_not(tmp_path: Path) -> None:
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text(
        jsonl([{"user_prompt": "x", "level": "hard" if row < 2 else "easy"} for row in range(4)])
    )
    run = run_of([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]], name="calm-fern-1")
    run = replace(run, open_dataset=lambda: dataset)
    pages = visitor(FakeSource([a_run("calm-fern-1")], samples_of={"calm-fern-1": run}))
    text = page_text(pages.get("/evals/calm-fern-1?slice=level"))
    assert "25.0 %" in text and ">hard</th>" in text and ">easy</th>" in text
    refused = page_text(pages.get("/evals/calm-fern-1?slice=colour"), status=400)
    assert "has no column &#39;colour&#39;" in refused and 'value="colour"' in refused
    assert "has no column" not in page_text(pages.get("/evals/calm-fern-1?slice="))
    away = replace(run, open_dataset=None)
    pages = visitor(FakeSource([a_run("calm-fern-1")], samples_of={"calm-fern-1": away}))
    assert "can not be cut into slices" in page_text(pages.get("/evals/calm-fern-1?slice=level"))


def test_columns_of_the_decide_file_are_there_unasked_unless_that_reads_very_much(tmp_path: Path) -> None:
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text(jsonl([{"user_prompt": "x", "level": "hard"} for _ in range(4)]))
    samples = replace(run_of([[1.0]] * 4, name="calm-fern-1"), open_dataset=lambda: dataset)
    decided = replace(Decisions.none(), slices=("level", "colour"))

    def page_of(planned: int) -> str:
        run = a_run("calm-fern-1", headline=Headline(scored=4, planned=planned))
        source = FakeSource(
            [run],
            {"calm-fern-1": RunDetail(run, decided=decided)},
            samples_of={"calm-fern-1": samples},
        )
        return page_text(visitor(source).get("/evals/calm-fern-1"))

    text = page_of(4)
    assert ">hard</th>" in text and "has no column &#39;colour&#39;" in text
    text = page_of(100_000)
    assert ">hard</th>" not in text and 'href="/evals/calm-fern-1?slice=level#slices"' in text


@pytest.mark.parametrize("words", ["group=colour", "in=dreams", "outcome=x"])
def test_a_word_of_the_samples_that_makes_no_sense_is_refused(words: str) -> None:
    source = FakeSource([a_run("fern")], listed={"fern": [a_sample(0), a_sample(0, 1)]})
    page_text(visitor(source).get(f"/evals/fern/samples?{words}"), status=400)
    assert "2 of 2 shown passed" in page_text(visitor(source).get("/evals/fern/samples?group=row&in="))
