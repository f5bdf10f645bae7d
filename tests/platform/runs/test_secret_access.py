"""The secret access log: an entry for each answered claim, for the members of the workspace, kept after the run is deleted."""

from __future__ import annotations

from fastapi.testclient import TestClient

from tests.platform.conftest import ManualClock, Member, World
from tests.platform.fake_worker import EVALS, GPU, FakeWorker, claim, claim_request, pool_token, settle

RUNS, submitted = EVALS.route, EVALS.taken
AUDIT = "/api/cli/environment-secrets/audit"
CANARY = "sk-canary-4711"
SECRETS = {"required": ["B_KEY", "A_KEY"], "provided": {"A_KEY": CANARY, "B_KEY": CANARY}}


def test_each_answer_to_a_claim_has_an_entry(
    api: TestClient, world: World, member: Member, clock: ManualClock
) -> None:
    run = submitted(api, secrets=SECRETS, advanced_config=GPU)
    settle(world)
    request, token = claim_request(machine="basement"), pool_token(world)
    first = claim(world, token, request)
    assert first is not None
    assert claim(world, token, request) == first
    FakeWorker(world, first, token).releases()
    clock.advance(60)
    assert claim(world, token) is not None
    reply = api.get(AUDIT)
    rows = reply.json()["handouts"]
    assert [row.pop("id")[:4] for row in rows] == ["sac_"] * 3
    same = {"names": ["A_KEY", "B_KEY"], "run_id": run["id"], "run_name": run["name"], "pool": "gpu"}
    assert rows == [
        {**same, "attempt": 2, "machine": None, "handed_at": "2026-11-02T09:31:00.000Z"},
        *[{**same, "attempt": 1, "machine": "basement", "handed_at": "2026-11-02T09:30:00.000Z"}] * 2,
    ]
    assert reply.json()["total_count"] == 3 and CANARY not in reply.text


def test_it_outlives_the_run(api: TestClient, world: World, member: Member) -> None:
    run = submitted(api, secrets=SECRETS)
    FakeWorker.claims(world).finishes("failed", error="x")
    assert api.delete(f"{RUNS}/{run['id']}").status_code == 200
    assert api.get(f"{RUNS}/{run['id']}").status_code == 404
    assert [row["run_name"] for row in api.get(AUDIT).json()["handouts"]] == [run["name"]]
