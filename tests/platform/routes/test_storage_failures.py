"""Pages and routes without the stored files or the database: a sentence that does not name their location."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.blobs.local import LocalBlobStore
from osmosis_ai.platform.blobs.store import BlobStoreSilent
from osmosis_ai.platform.db.engine import Database, DatabaseUnreachableError
from tests.platform.conftest import Member, World, assert_flat_error
from tests.platform.evaluations import add_dataset
from tests.platform.pages.browsing import PASSWORD, sign_in
from tests.platform.viewer.runs_world import add_file, add_run, add_samples

PLACE = "planted-host"
SAMPLES: list[dict[str, Any]] = [
    {"row": 0, "attempt": 0, "reward": 1.0},
    {"row": 1, "attempt": 0, "reward": 0.0},
]
RUN = "/fern/evals/first"
PAGES = (
    *(RUN, f"{RUN}/samples", f"{RUN}/samples/0.0", f"{RUN}/log", f"{RUN}/samples.csv"),
    *("/fern/evals", "/fern/datasets", "/fern/datasets/multiply", "/fern/models"),
)
ROUTES = ("", "/metrics", "/manifest", "/journal", "/samples", "/logs", "/artifacts")


@pytest.fixture
def member(world: World) -> Member:
    mara = world.member(password=PASSWORD)
    add_dataset(world, mara)
    run = add_run(world, mara, "first")
    add_samples(world, run, [{"error_type": None, **each} for each in SAMPLES])
    add_file(world, run, "trajectories/row_0_run_0.json", b'{"messages": []}')
    return mara


def text_of(page: Any) -> str:
    return unescape(re.sub(r"<[^>]*>", " ", page.text))


def take_away_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object, **__: object) -> None:
        raise BlobStoreSilent(f"the bucket 'models' at https://{PLACE} cannot be reached.")

    for name in ("open", "read", "size", "put", "keys", "local_copy", "begin_upload", "parts", "check"):
        monkeypatch.setattr(LocalBlobStore, name, silent)


def take_away_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise DatabaseUnreachableError(f"the database postgresql://osmosis@{PLACE}/osmosis does not answer.")

    for name in ("session", "transaction"):
        monkeypatch.setattr(Database, name, unreachable)


def test_pages_without_the_stored_files_show_the_rest(
    client: TestClient, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.headers["accept"] = "text/html"
    assert sign_in(client).status_code == 303
    known = {path: client.get(path).status_code for path in PAGES}
    take_away_files(monkeypatch)
    shown = ""
    for path, status in known.items():
        page = client.get(path)
        assert page.status_code in ({200, 503} if status == 200 else {status}), (
            path,
            page.status_code,
            page.text,
        )
        assert PLACE not in page.text
        if page.status_code == 503:
            assert "cannot get at its stored files now" in text_of(page), path
        shown += text_of(page)
    assert "The platform cannot get at its stored files now; try again a little later." in shown
    assert client.get(RUN).status_code == 200, "a run's numbers are in the database"


def test_routes_answer_without_the_stored_files(
    api: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away_files(monkeypatch)
    for end in ROUTES:
        reply = api.get(f"/api/cli/eval-runs/first{end}")
        assert reply.status_code != 500 and PLACE not in reply.text, reply.text
        if reply.status_code >= 500:
            assert_flat_error(reply, 503, "BLOBS_UNAVAILABLE")
            assert reply.headers["retry-after"] == "5"
    assert_flat_error(
        api.post(
            "/api/cli/datasets", json={"file_name": "more.jsonl", "file_size": 12, "extension": "jsonl"}
        ),
        503,
        "BLOBS_UNAVAILABLE",
    )


def test_pages_and_routes_answer_without_the_database_and_hide_its_location(
    client: TestClient, member: Member, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client.headers["accept"] = "text/html"
    assert sign_in(client).status_code == 303
    take_away_database(monkeypatch)
    for path in PAGES:
        page = client.get(path)
        assert page.status_code == 503 and page.headers["retry-after"] == "5"
        assert "database is unavailable; its log has the reason" in text_of(page) and PLACE not in page.text
    client.headers["accept"] = "application/json"
    for path in ("/health", "/api/cli/eval-runs", "/api/cli/datasets", "/api/cli/whoami"):
        reply = client.get(path, headers=member.headers)
        if reply.status_code != 404:
            assert_flat_error(reply, 503, "DATABASE_BUSY")
        assert PLACE not in reply.text
    assert PLACE in caplog.text, "it is in the operator's log"
