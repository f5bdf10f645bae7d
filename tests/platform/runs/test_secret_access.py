"""The secret access log: an entry for each answered claim, for the members of the workspace, kept after the run is deleted."""

from __future__ import annotations

from fastapi.testclient import TestClient
from sqlalchemy import delete, func, select

from osmosis_ai.platform.db.tables import DbSecretAccess, DbWorkspace
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member
from tests.platform.fake_worker import EVALS, GPU, FakeWorker, claim, claim_request, pool_token, settle

RUNS, submitted = EVALS.route, EVALS.taken
AUDIT = "/api/cli/environment-secrets/audit"
CANARY = "sk-canary-4711"
SECRETS = {"required": ["B_KEY", "A_KEY"], "provided": {"A_KEY": CANARY, "B_KEY": CANARY}}


def test_each_answer_to_a_claim_has_an_entry(
    api: TestClient, services: PlatformServices, member: Member, clock: ManualClock
) -> None:
    run = submitted(api, secrets=SECRETS, advanced_config=GPU)
    settle(services)
    request, token = claim_request(machine="basement"), pool_token(services)
    first = claim(services, token, request)
    assert first is not None
    assert claim(services, token, request) == first
    FakeWorker(services, first, token).releases()
    clock.advance(60)
    assert claim(services, token) is not None
    reply = api.get(AUDIT)
    rows = reply.json()["handouts"]
    assert [row.pop("id")[:4] for row in rows] == ["sac_"] * 3
    same = {"names": ["A_KEY", "B_KEY"], "run_id": run["id"], "run_name": run["name"], "pool": "gpu"}
    assert rows == [
        {**same, "attempt": 2, "machine": None, "handed_at": "2026-11-02T09:31:00.000Z"},
        *[{**same, "attempt": 1, "machine": "basement", "handed_at": "2026-11-02T09:30:00.000Z"}] * 2,
    ]
    assert reply.json()["total_count"] == 3 and CANARY not in reply.text


def test_it_outlives_the_run(api: TestClient, services: PlatformServices, member: Member) -> None:
    run = submitted(api, secrets=SECRETS)
    FakeWorker.claims(services).finishes("failed", error="x")
    assert api.delete(f"{RUNS}/{run['id']}").status_code == 200
    assert api.get(f"{RUNS}/{run['id']}").status_code == 404
    assert [row["run_name"] for row in api.get(AUDIT).json()["handouts"]] == [run["name"]]
    with services.db.transaction() as session:
        session.execute(delete(DbWorkspace).where(DbWorkspace.id == member.workspace.id))
        assert session.scalar(select(func.count()).select_from(DbSecretAccess)) == 0
