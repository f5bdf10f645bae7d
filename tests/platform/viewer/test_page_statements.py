"""A page takes at most twelve statements, on either database, however much there is to show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.evaluation.trajectory_export import item_name
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.tables import DbMetricPoint
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.viewer import conversation_search
from osmosis_ai.viewer.source import SampleQuery
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.databases import platform_database, postgres_database
from tests.platform.evaluations import training_body
from tests.platform.http.pages.browsing import PASSWORD, sign_in, text_of
from tests.platform.viewer.runs_world import add_file, add_run, add_samples, places, source_of, statements_of

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


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
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
    for item in ("0.7", "99.0", f"{10**40}.0"):
        services.sample_counts._known.clear()
        assert 0 < _statements(client, services, f"/evals/first/samples/{item}", status=404) <= 12
    assert (
        '<a href="/fern/evals/first/samples/2.0">Row 2, attempt 0</a>'
        in client.get("/fern/evals/first/samples/99.0").text
    )


def test_conversations_are_searched_in_as_many_statements_however_many_they_are(
    client: TestClient,
    member: Member,
    services: PlatformServices,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.headers["accept"] = "text/html,application/xhtml+xml"
    sign_in(client)
    for name, count in (("few", 5), ("many", 60)):
        clock.advance(1)
        run = add_run(services, member, name)
        add_samples(services, run, [{"row": row, "attempt": 0, "reward": 1.0} for row in range(count)])
        for row in range(count - 1):
            add_file(services, run, f"trajectories/{item_name(row, 0)}.json", _saying("a hedgehog"))
        clock.advance(1)
        retry = add_run(services, member, f"{name}-again", retry_of_id=run.id, retry_of_name=name)
        add_samples(services, retry, [{"row": row, "attempt": 0, "reward": 1.0} for row in (0, 1)])
        add_file(services, retry, f"trajectories/{item_name(0, 0)}.json", _saying("a badger"))
    told = []
    for most_bytes in (1 << 26, len(_saying("a badger")) + 1):
        monkeypatch.setattr(conversation_search, "MOST_BYTES", most_bytes)
        # The whole scan is of interest here, not what a busy machine has time for.
        monkeypatch.setattr(conversation_search, "MOST_SECONDS", math.inf)
        for name in ("few", "few", "many"):
            services.sample_counts._known.clear()
            address = f"/evals/{name}/samples?q=hedgehog&in=conversations"
            told.append(_statements(client, services, address))
    # The first of all asks what is asked once in a platform's life.
    assert told[1] == told[2] and told[3] == told[4] == told[5] and 0 < max(told) <= 12, told
    monkeypatch.setattr(conversation_search, "MOST_BYTES", 1 << 26)
    source = source_of(services, member)
    for name, count in (("few", 5), ("many", 60)):
        found = conversation_search.search_conversations(
            source, name, SampleQuery(text="hedgehog"), cursor=None
        )
        # What was made again says something else, or left nothing; the last has never had any.
        assert places(found.page.items) == [(row, 0) for row in range(2, count - 1)]
        assert (found.looked_at, found.without) == (count - 2, 2)


def _saying(text: str) -> bytes:
    return json.dumps({"steps": [{"step_id": 1, "source": "agent", "message": text}]}).encode()


def _statements(client: TestClient, services: PlatformServices, address: str, status: int = 200) -> int:
    with statements_of(services.db) as noted:
        shown = client.get(f"/fern{address}", follow_redirects=False)
    assert shown.status_code == status, (address, shown.text)
    return len(noted)


def _compared(names: list[str]) -> str:
    return f"/compare?{urlencode({'run': names, 'allow': 'same'}, doseq=True)}"


def test_runs_are_compared_in_as_many_statements_however_many_they_are(
    client: TestClient, member: Member, services: PlatformServices, clock: ManualClock
) -> None:
    client.headers["accept"] = "text/html,application/xhtml+xml"
    sign_in(client)
    evals, trainings = [f"try-{number}" for number in range(8)], [f"learned-{number}" for number in range(4)]
    for number, name in enumerate(evals):
        clock.advance(1)
        run = add_run(services, member, name)
        rewards = [(row * 5 + attempt * 3 + number) % 4 % 2 for row in range(3) for attempt in range(2)]
        samples = [{"row": at // 2, "attempt": at % 2, "reward": reward} for at, reward in enumerate(rewards)]
        add_samples(services, run, samples)
        made = {"retry_of_id": run.id, "retry_of_name": name, "retried": [[1, 1]]}
        add_samples(
            services,
            add_run(services, member, f"{name}-again", **made),
            [{"row": 1, "attempt": 1, "reward": 1.0}],
        )
    for name in trainings:
        _add_training(services, member, name)
    # What is asked once in a platform's life is asked now.
    for names in (evals, trainings):
        _statements(client, services, _compared(names))
    of_evals = [_statements(client, services, _compared(evals[:most])) for most in (2, 4, 8)]
    of_trainings = [_statements(client, services, _compared(trainings[:most])) for most in (2, 4)]
    assert len(set(of_evals)) == 1 and 0 < of_evals[0] <= 12
    assert len(set(of_trainings)) == 1 and 0 < of_trainings[0] <= 12
    refused = {"/compare?run=try-0&run=learned-0": 400, _compared([*evals, "gone"]): 404}
    assert all(
        0 < _statements(client, services, address, status) <= 12 for address, status in refused.items()
    )
    row = f"/compare/row?run=try-0&run=try-7&row={1:032x}"
    assert 0 < _statements(client, services, row, 303) <= 12


def _add_training(services: PlatformServices, member: Member, name: str) -> None:
    run = add_run(services, member, name, kind="training", request=training_body())
    of_run = {"run_id": run.id, "timestamp": services.clock.now()}
    with services.db.transaction() as session:
        for key in ("rollout/raw_reward", "eval/validation/reward"):
            session.add_all(
                DbMetricPoint(key=key, step=step, value=step / 9, **of_run) for step in range(1, 10)
            )
