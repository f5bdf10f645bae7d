"""A page takes at most twelve statements, on either database, however much there is to show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.databases import platform_database, postgres_database
from tests.platform.http.test_workspace_pages import PASSWORD, sign_in, text_of
from tests.platform.viewer.runs_world import add_run, add_samples, statements_of

_LISTS = "", "/evals", "/evals?sort=reward"
_COMPARISONS = "/compare?run=first&run=retry-3", "/compare?run=retry-3&run=first"
_SAMPLES = "", "/log", "/samples", "/samples?outcome=flaky", "/samples?q=times"
_CONVERSATIONS = "", "?outcome=flaky&sort=reward", "?outcome=passed", "?q=times&sort=cost&dir=asc"
_ADDRESSES = (
    *_LISTS,
    *_COMPARISONS,
    *(f"/evals/first{rest}" for rest in _SAMPLES),
    *(f"/evals/first/samples/1.1{rest}" for rest in _CONVERSATIONS),
)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlatformConfig]:
    home = tmp_path / "platform"
    with platform_database(home) if request.param == "sqlite" else postgres_database() as url:
        yield PlatformConfig(home=home, database_url=url, port=8733)


@pytest.fixture
def member(world: World) -> Member:
    return world.member(password=PASSWORD)


def test_a_run_that_was_retried_many_times_takes_no_more_statements_than_any(
    client: TestClient, member: Member, services: PlatformServices, clock: ManualClock
) -> None:
    client.headers["accept"] = "text/html,application/xhtml+xml"
    sign_in(client)
    original = add_run(services, member, "first")
    add_samples(services, original, [{"row": row, "attempt": 0, "reward": row % 2} for row in range(3)])
    for number in range(30):
        clock.advance(1)
        made = {"retry_of_id": original.id, "retry_of_name": "first", "retried": [[number % 3, 1]]}
        retry = add_run(services, member, f"retry-{number}", **made)
        add_samples(services, retry, [{"row": number % 3, "attempt": 1, "reward": 1.0}])
    for address in _ADDRESSES:
        services.sample_counts._known.clear()
        with statements_of(services.db) as noted:
            shown = client.get(f"/fern{address}")
        assert shown.status_code == 200, address
        assert 0 < len(noted) <= 12, (address, [statement for statement, _ in noted])
    assert "6 of 6 planned scored" in text_of(client.get("/fern/evals/first"))
