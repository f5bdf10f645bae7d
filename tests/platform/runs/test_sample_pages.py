"""The results of a run's attempts over HTTP: page by page, with those of its retries, and of nobody else's run."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from osmosis_ai.platform.db.tables import DbSample
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member, assert_flat_error
from tests.platform.evaluations import Code, Samples, Submits, end_with, submit_body

RUNS = "/api/cli/eval-runs"
PASSED: dict[str, Any] = {"status": "success", "reward": 1.0}
FAILED: dict[str, Any] = {"status": "failed", "boundary": "provider", "error_type": "timeout"}
SAMPLES: Samples = {(0, 0): PASSED, (0, 1): FAILED, (1, 0): PASSED, (1, 1): FAILED, (2, 1): PASSED}


@pytest.fixture
def run(api: TestClient, services: PlatformServices) -> dict[str, Any]:
    """A finished run of which the attempt (2, 0) was never made."""
    made = Submits(RUNS, submit_body).taken(api)
    end_with(services, made["id"], SAMPLES)
    return made


def pages(api: TestClient, name: str, limit: int, **asked: str) -> list[list[dict[str, Any]]]:
    """Return the samples of every page, following the cursors."""
    found, cursor = [], None
    while True:
        query = {"limit": limit, **asked, **({"cursor": cursor} if cursor else {})}
        page = api.get(f"{RUNS}/{name}/samples", params=query).json()
        found.append(page["samples"])
        cursor = page.get("next_cursor")
        if cursor is None:
            return found


def places(samples: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(sample["row"], sample["attempt"]) for sample in samples]


def test_an_attempt_says_what_its_row_is_and_what_it_came_to(
    api: TestClient, services: PlatformServices, run: dict[str, Any]
) -> None:
    values = {"tokens": 12, "cost_usd": 0.5, "model_latency_ms": 3.0}
    with services.db.transaction() as session:
        session.execute(
            update(DbSample).where(DbSample.row_index == 0, DbSample.run_index == 0).values(**values)
        )
    first, second = api.get(f"{RUNS}/{run['name']}/samples", params={"limit": 2}).json()["samples"]
    assert first == {
        "row": 0,
        "attempt": 0,
        "status": "success",
        "source_row_index": 0,
        "row_digest": "0000000000000001" * 2,
        "reward": 1.0,
        "duration_ms": 1.0,
        **values,
    }
    assert (second["status"], "reward" in second) == ("failed", False)


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_the_pages_hold_every_attempt_once_in_order(api: TestClient, run: dict[str, Any], limit: int) -> None:
    found = pages(api, run["id"], limit)
    assert places([sample for page in found for sample in page]) == sorted(SAMPLES)
    assert all(len(page) == limit for page in found[:-1])
    assert found[-1]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_an_attempt_that_was_retried_is_there_once_as_it_ended_last(
    api: TestClient, services: PlatformServices, clock: ManualClock, run: dict[str, Any], limit: int
) -> None:
    clock.advance(1)
    retry = api.post(f"{RUNS}/{run['id']}/retry", json={}).json()
    end_with(services, retry["id"], {(0, 1): PASSED, (1, 1): FAILED, (2, 0): PASSED})
    for name in (run["name"], retry["name"]):
        samples = [sample for page in pages(api, name, limit) for sample in page]
        assert places(samples) == [(row, attempt) for row in range(3) for attempt in range(2)]
        assert [sample["status"] for sample in samples] == ["success"] * 3 + ["failed"] + ["success"] * 2
        asked = {"limit": 6, "details": "true"}
        told = api.get(f"{RUNS}/{name}/samples", params=asked).json()["samples"]
        made = {
            place for place, each in zip(places(told), told, strict=True) if each["run_id"] == retry["id"]
        }
        assert made == {(0, 1), (1, 1), (2, 0)}


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_run_s_own_results_are_told_when_they_are_asked_for_whatever_retries_came_to(
    api: TestClient, services: PlatformServices, clock: ManualClock, run: dict[str, Any], limit: int
) -> None:
    clock.advance(1)
    retry = api.post(f"{RUNS}/{run['id']}/retry", json={}).json()
    again: Samples = {(0, 1): PASSED, (1, 1): FAILED, (2, 0): PASSED}
    end_with(services, retry["id"], again)
    for made, results in ((run, SAMPLES), (retry, again)):
        asked = {"own": "true", "details": "true"}
        told = [each for page in pages(api, made["name"], limit, **asked) for each in page]
        assert {place: each["status"] for place, each in zip(places(told), told, strict=True)} == {
            place: result["status"] for place, result in results.items()
        }
        assert places(told) == sorted(results) and {each["run_id"] for each in told} == {made["id"]}


@pytest.mark.parametrize("cursor", ["x", "1", "-1-2", "1-2-3", "٣-٣", "9" * 60])
def test_a_cursor_that_is_none_is_refused(api: TestClient, run: dict[str, Any], cursor: str) -> None:
    reply = api.get(f"{RUNS}/{run['name']}/samples", params={"cursor": cursor})
    assert "`cursor` did not come from a page" in assert_flat_error(reply, 400, "VALIDATION")["error"]


@pytest.mark.parametrize("limit", ["0", "5001", "many"])
def test_a_page_has_1_to_5000_samples(api: TestClient, run: dict[str, Any], limit: str) -> None:
    assert api.get(f"{RUNS}/{run['name']}/samples", params={"limit": limit}).status_code == 400


def test_a_run_of_another_workspace_is_not_there(
    client: TestClient, run: dict[str, Any], stranger: Member
) -> None:
    path = f"{RUNS}/{run['name']}/samples"
    assert_flat_error(client.get(path, headers=stranger.headers), 404, "NOT_FOUND")
    assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_detail_and_a_list_tell_commit_and_digests(
    api: TestClient, services: PlatformServices, run: dict[str, Any], code: Code
) -> None:
    assert api.get(RUNS).json()["eval_runs"][0]["commit_sha"] == code.head
    detail = api.get(f"{RUNS}/{run['id']}").json()
    assert len(detail["dataset_sha256"]) == 64
    assert "grader_digest" not in detail


def test_previews_errors_and_notes_come_when_they_are_asked_for(
    api: TestClient, services: PlatformServices, run: dict[str, Any]
) -> None:
    noted: dict[str, Any] = {"input": "2 * 3?", "output": "6", "notes": "Nearly.", "parts": {"format": 1.0}}
    with services.db.transaction() as session:
        session.execute(
            update(DbSample).where(DbSample.row_index == 0, DbSample.run_index == 0).values(**noted)
        )
    path = f"{RUNS}/{run['name']}/samples"
    (plain, _), (told, failed) = (
        api.get(path, params={"limit": 2, **more}).json()["samples"] for more in ({}, {"details": "true"})
    )
    assert {**plain, **noted, "run_id": run["id"]} == told and not noted.keys() & plain.keys()
    assert failed["boundary"] == "provider"
