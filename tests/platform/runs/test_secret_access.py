"""Who was handed which secrets: written once for each claim, seen by the workspace's own people, and kept without the run."""

from __future__ import annotations

import re
from html import unescape
from typing import NoReturn

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, func, select

from tests.platform.conftest import ManualClock, Member
from tests.platform.platform_parts import (
    DatabaseBusyError,
    DbSecretHandout,
    DbWorkspace,
    PlatformServices,
    new_id,
)
from tests.platform.runs.desk.desk_workers import (
    GPU,
    RUNS,
    DeskWorker,
    Refused,
    claim,
    offer,
    pool_token,
    submitted,
)

AUDIT = "/api/cli/environment-secrets/audit"
PASSWORD = "correct horse battery"
CANARY = "sk-canary-4711"
SECRETS = {"required": ["B_KEY", "A_KEY"], "provided": {"A_KEY": CANARY, "B_KEY": CANARY}}


@pytest.fixture
def password() -> str:
    return PASSWORD


def test_a_claim_is_in_the_audit_once_however_often_it_is_made_and_a_second_one_beside_it(
    api: TestClient, services: PlatformServices, member: Member, clock: ManualClock
) -> None:
    run = submitted(api, secrets=SECRETS, advanced_config=GPU)
    asked, token = offer(machine="basement"), pool_token(services)
    first = [claim(services, token, asked) for _ in range(3)][-1]
    assert first is not None
    DeskWorker(services, first, token).releases()
    clock.advance(60)
    assert claim(services, token) is not None
    reply = api.get(AUDIT)
    rows = reply.json()["handouts"]
    assert [row.pop("id")[:4] for row in rows] == ["sho_"] * 2
    same = {"names": ["A_KEY", "B_KEY"], "run_id": run["id"], "run_name": run["name"], "pool": "gpu"}
    assert rows == [
        {**same, "attempt": 2, "machine": None, "handed_at": "2026-11-02T09:31:00.000Z"},
        {**same, "attempt": 1, "machine": "basement", "handed_at": "2026-11-02T09:30:00.000Z"},
    ]
    assert reply.json()["total_count"] == 2 and CANARY not in reply.text


def test_a_run_without_secrets_is_not_in_the_audit(api: TestClient, services: PlatformServices) -> None:
    submitted(api)
    DeskWorker.claims(services)
    assert api.get(AUDIT).json()["handouts"] == []


def test_nobody_is_handed_what_can_not_be_written_down(
    api: TestClient, services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_asked: object, **_more: object) -> NoReturn:
        raise DatabaseBusyError("the database is busy.")

    submitted(api, secrets=SECRETS, advanced_config=GPU)
    asked, token = offer(), pool_token(services)
    with monkeypatch.context() as broken:
        broken.setattr(services.secret_handouts, "note", fails)
        with pytest.raises(Refused, match="DATABASE_BUSY"):
            claim(services, token, asked)
    assert api.get(AUDIT).json()["handouts"] == []
    given = claim(services, token, asked)
    assert given is not None and given.secrets
    assert [row["attempt"] for row in api.get(AUDIT).json()["handouts"]] == [1]


def test_it_outlives_the_run(api: TestClient, services: PlatformServices, member: Member) -> None:
    run = submitted(api, secrets=SECRETS)
    DeskWorker.claims(services).ends("failed", error="x")
    assert api.delete(f"{RUNS}/{run['id']}").status_code == 200
    assert api.get(f"{RUNS}/{run['id']}").status_code == 404
    assert [row["run_name"] for row in api.get(AUDIT).json()["handouts"]] == [run["name"]]
    with services.db.transaction() as session:
        session.execute(delete(DbWorkspace).where(DbWorkspace.id == member.workspace.id))
        assert session.scalar(select(func.count()).select_from(DbSecretHandout)) == 0


def test_another_workspace_sees_none(api: TestClient, services: PlatformServices, stranger: Member) -> None:
    submitted(api, secrets=SECRETS)
    DeskWorker.claims(services)
    theirs = api.get(AUDIT, headers=stranger.headers)
    assert theirs.status_code == 200 and theirs.json()["handouts"] == []
    page = services.secret_handouts.page(stranger.workspace.id, limit=10, cursor=None)
    assert list(page.items) == []


def test_the_page_shows_newest_first(client: TestClient, services: PlatformServices, member: Member) -> None:
    browser = client
    browser.headers["accept"] = "text/html"
    with services.db.transaction() as session:
        session.add_all(
            DbSecretHandout(
                id=new_id("sho"),
                workspace_id=member.workspace.id,
                run_id="run_gone",
                run_name=f"run-{number:02}",
                attempt=1,
                claim_id=f"{number:032x}",
                names=["A_KEY", "<b>"],
                machine="basement",
                pool=None,
                created_at=services.clock.now().replace(second=number),
            )
            for number in range(40)
        )
    csrf = re.search(r'name="csrf" value="([^"]+)"', browser.get("/login").text)
    assert csrf is not None
    form = {"csrf": csrf[1], "email": "mara@fern.example", "password": PASSWORD, "next": "/"}
    browser.post("/login", data=form)
    first = browser.get("/fern/secrets")
    assert first.status_code == 200 and "Secret access log" in first.text and "<b>" not in first.text
    assert "A_KEY, &lt;b&gt;" in first.text and "basement" in first.text
    found = re.search(r'rel="next" href="([^"]+)"', first.text)
    assert found is not None
    second = browser.get(f"/fern/secrets{unescape(found[1])}")
    shown = [re.findall(r"run-\d\d", page.text) for page in (first, second)]
    assert [len(names) for names in shown] == [30, 10]
    assert [*shown[0], *shown[1]] == [f"run-{number:02}" for number in reversed(range(40))]
