"""Uploaded results of judges on a platform's pages: listed among runs, read record by record."""

from __future__ import annotations

import re
from io import BytesIO
from itertools import product
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.viewer.source import RunQuery, RunSort
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.http.pages.browsing import PASSWORD, sign_in, text_of
from tests.platform.rubric_documents import ROUTE, a_result
from tests.platform.viewer.runs_world import add_run, source_of, statements_of

HOSTILE = "</script><script>alert(1)</script>{{ 7*7 }}"


@pytest.fixture
def member(world: World) -> Member:
    return world.member(password=PASSWORD)


@pytest.fixture
def browser(client: TestClient, member: Member) -> TestClient:
    """Mara's browser, signed in."""
    client.headers["accept"] = "text/html,application/xhtml+xml"
    sign_in(client)
    return client


def upload(client: TestClient, member: Member, name: str, many: int = 2, **changes: Any) -> None:
    body = {"name": name, "document": a_result(many, **changes)}
    reply = client.post(ROUTE, json=body, headers=member.headers)
    assert reply.status_code == 200, reply.text


def listed(page: Any) -> list[str]:
    """Return the names of the runs on a page, in their order."""
    return re.findall(r'<th scope="row" class="name"><a href="[^"]+">([^<]+)</a>', page.text)


# Lists


def test_a_workspace_without_results_says_how_the_first_is_made(browser: TestClient, member: Member) -> None:
    text = text_of(browser.get("/fern/rubrics"))
    assert "osmosis eval upload FILE.json" in text and "training directory" not in text
    assert '<a href="/fern/rubrics">Rubric results</a>' in browser.get("/fern").text


def test_results_are_listed_alone_and_among_all_runs(
    browser: TestClient, member: Member, services: PlatformServices, clock: ManualClock
) -> None:
    for number in range(3):
        add_run(services, member, f"run-{number}")
        clock.advance(1)
        upload(browser, member, f"judged-{number}")
        clock.advance(1)
    newest_first = [name for n in (2, 1, 0) for name in (f"judged-{n}", f"run-{n}")]
    assert listed(browser.get("/fern")) == newest_first
    assert listed(browser.get("/fern/rubrics")) == newest_first[::2]
    assert listed(browser.get("/fern/evals")) == newest_first[1::2]
    text = text_of(browser.get("/fern/rubrics"))
    assert "3 runs." in text and "2 of 2 planned" in text and "0.750" in text and "$0.25" in text
    assert "what is scored, failed and planned are calls of judges" in text and "Mara" in text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("status=finished", ["b", "a"]),
        ("status=incomplete", ["c"]),
        ("model=openai/other", ["b"]),
        ("dataset=else.jsonl", ["a"]),
        ("q=CLAR", ["c", "a"]),
        ("q=else", ["a"]),
        ("person=Mara", ["c", "b", "a"]),
        ("person=Nobody", []),
        ("rollout=multiply", []),
        ("commit=c0ffee", []),
        ("since=2026-11-02", ["c", "b", "a"]),
        ("until=2026-11-01", []),
        ("sort=reward", ["b", "c", "a"]),
        ("sort=reward&dir=asc", ["a", "c", "b"]),
        ("sort=name&dir=asc", ["a", "b", "c"]),
        ("sort=cost", ["c", "b", "a"]),
        ("sort=pass_rate", ["a", "b", "c"]),
    ],
)
def test_results_are_filtered_and_sorted(
    browser: TestClient, member: Member, clock: ManualClock, words: str, found: list[str]
) -> None:
    changes: dict[str, dict[str, Any]] = {
        "a": {"data_path": "else.jsonl", "overall_statistics": {"average": 0.1}},
        "b": {
            "model": "openai/other",
            "rubric_id": "b",
            "overall_statistics": {"average": 0.9},
            "usage": {"cost_usd": 1},
        },
        "c": {"complete": False, "overall_statistics": {"average": 0.5}, "usage": {"cost_usd": 2}},
    }
    for name, change in changes.items():
        upload(browser, member, name, **change)
        clock.advance(1)
    page = browser.get(f"/fern/rubrics?{words}")
    if words == "sort=pass_rate":  # no result has one: any order, each once
        assert sorted(listed(page)) == found
    else:
        assert listed(page) == found


SORTS: tuple[RunSort, ...] = ("started", "name", "status", "reward", "pass_rate", "cost", "duration")


@pytest.mark.parametrize(("sort", "descending"), list(product(SORTS, (False, True))))
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_list_of_runs_and_results_holds_each_once_in_either_direction(
    client: TestClient,
    member: Member,
    services: PlatformServices,
    clock: ManualClock,
    sort: RunSort,
    descending: bool,
    limit: int,
) -> None:
    for number in range(4):
        # Names that both have, ties, and numbers that nobody knows.
        statistics = {"average": number % 2} if number else {}
        upload(client, member, f"same-{number}", overall_statistics=statistics)
        results = {"reward": 0.5, "sampled_rows": 1} if number % 2 else {}
        add_run(services, member, f"same-{number}", results=results)
        clock.advance(number % 2)
    source, query = source_of(services, member), RunQuery(sort=sort, descending=descending)
    pages, cursor = [], None
    while True:
        page = source.runs(query, limit=limit, cursor=cursor)
        pages.append([(run.kind, run.name) for run in page.items])
        assert page.counts == {"total": 8, "unfiltered": 8}
        if page.next is None:
            break
        cursor = page.next
    whole = [(run.kind, run.name) for run in source.runs(query, limit=20).items]
    assert [each for page_ in pages for each in page_] == whole and len(set(whole)) == 8
    back = [pages[-1]]
    while page.previous is not None:
        page = source.runs(query, limit=limit, cursor=page.previous)
        back.insert(0, [(run.kind, run.name) for run in page.items])
    assert back == pages
    if sort == "name":
        assert [name for _, name in whole] == sorted((name for _, name in whole), reverse=descending)


def test_the_scores_of_earlier_results_of_a_rubric_and_its_judges_are_the_trend(
    client: TestClient, member: Member, services: PlatformServices, clock: ManualClock
) -> None:
    for number in range(12):
        upload(client, member, f"r{number}", overall_statistics={"average": number / 100})
        upload(client, member, f"other{number}", rubric_id="other")
        clock.advance(1)
    found = source_of(services, member).runs(RunQuery(kind="rubric", text="11"), limit=5).items
    entry = next(each for each in found if each.name == "r11")
    assert entry.trend == tuple(number / 100 for number in range(2, 12))


# A page


def test_a_result_has_the_page_that_its_machine_shows(browser: TestClient, member: Member) -> None:
    records = a_result(60)["records"]
    records[0]["label"] = records[0]["judgements"][0]["explanation"] = HOSTILE
    upload(browser, member, "answers", records=records)
    page = browser.get("/fern/rubrics/answers")
    text = text_of(page)
    assert "Mean score 0.750 on a scale from 0 to 1, over 60 records." in text
    for fact in (
        "clarity",
        "openai/judge",
        "answers.jsonl",
        "Uploaded",
        "2026-11-02T09:30:00Z",
        "Mara",
        "Be good",
    ):
        assert fact in text, fact
    assert 'id="record-50"' in page.text and 'id="record-51"' not in page.text
    assert 'id="record-60"' in browser.get("/fern/rubrics/answers?cursor=50").text
    assert "<script>alert" not in page.text and "&lt;script&gt;alert" in page.text
    assert browser.get("/fern/rubrics/answers?cursor=x").status_code == 400


def test_a_result_whose_document_is_gone_says_so(
    browser: TestClient, member: Member, services: PlatformServices
) -> None:
    upload(browser, member, "answers")
    (key,) = services.blobs.keys("rubrics")
    services.blobs.put(key, BytesIO(b"{}"))
    assert "is damaged: its SHA-256 has changed" in text_of(browser.get("/fern/rubrics/answers"))
    services.blobs.delete(key)
    gone = browser.get("/fern/rubrics/answers")
    assert gone.status_code == 200 and "is gone" in text_of(gone) and key not in gone.text
    assert listed(browser.get("/fern/rubrics")) == ["answers"]


def test_a_name_that_is_not_there_is_told_with_the_nearest_and_another_workspace_s_the_same(
    browser: TestClient, member: Member, stranger: Member
) -> None:
    upload(browser, member, "answers")
    upload(browser, stranger, "theirs")
    missing, theirs = (browser.get(f"/fern/rubrics/{name}") for name in ("answer", "theirs"))
    assert missing.status_code == theirs.status_code == 404
    assert '<a href="/fern/rubrics/answers">' in missing.text
    nowhere = browser.get("/fern/rubrics/nowhere")
    said = [page.text.partition("<main")[2] for page in (theirs, nowhere)]
    assert said[0].replace("theirs", "*") == said[1].replace("nowhere", "*")
    assert browser.get("/moss/rubrics/theirs").status_code == 404
    assert listed(browser.get("/fern/rubrics")) == ["answers"]


def test_pages_take_few_statements_and_read_one_document(
    browser: TestClient,
    member: Member,
    services: PlatformServices,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(60):
        upload(browser, member, f"judged-{number}", 60)
        add_run(services, member, f"run-{number}")
        clock.advance(1)
    read = []
    opened = type(services.blobs).open
    monkeypatch.setattr(
        type(services.blobs), "open", lambda self, key: (read.append(key), opened(self, key))[1]
    )
    for address, documents in (
        ("", 0),
        ("/rubrics", 0),
        ("/rubrics?sort=reward&q=judge", 0),
        ("/rubrics/judged-7", 1),
        ("/rubrics/judged-7?cursor=50", 1),
    ):
        read.clear()
        with statements_of(services.db) as noted:
            shown = browser.get(f"/fern{address}")
        assert shown.status_code == 200, address
        assert 0 < len(noted) <= 12, (address, [statement for statement, _ in noted])
        assert len(read) == documents, address
    missing = browser.get("/fern/compare?run=judged-1&run=run-1")
    assert missing.status_code == 404 and "There is no run &#39;judged-1&#39; to compare" in missing.text
