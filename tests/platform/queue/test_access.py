"""Worker tokens and tickets: what each permits, and until when."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.evaluations import logged
from tests.platform.fake_worker import (
    EVALS,
    FakeWorker,
    Refused,
    claim,
    claim_request,
    pool_token,
    settle,
    waiting_shard,
)
from tests.platform.viewer.runs_world import add_run

FIRST = "a" * 32


@pytest.fixture
def run(api: TestClient, world: World) -> dict[str, Any]:
    """A run of the pool ``gpu`` with a shard that can be claimed."""
    return waiting_run(api, world)


@pytest.fixture
def shard_id(world: World, run: dict[str, Any]) -> str:
    return waiting_shard(world, run["id"])


@pytest.fixture
def ticket(world: World, shard_id: str) -> str:
    return ticket_for(world, shard_id)


def waiting_run(api: TestClient, world: World, **execution: Any) -> dict[str, Any]:
    run = EVALS.taken(api, advanced_config={"execution": {"pool": "gpu", **execution}})
    settle(world)
    return run


def ticket_for(world: World, shard_id: str) -> str:
    """Return the ticket that a launcher gives the job for a shard."""
    return str(world.services.worker_access.issue_ticket(shard_id))


def claimed(world: World, bearer: str, **fields: Any) -> str | None:
    """Return the id of the run that a claim gets."""
    found = claim(world, bearer, claim_request(**fields))
    return None if found is None else found.run.id


def refusal(world: World, bearer: str, **fields: Any) -> tuple[int, str]:
    """Return the status and code with which a claim is refused."""
    with pytest.raises(Refused) as caught:
        claim(world, bearer, claim_request(**fields))
    return caught.value.status, caught.value.code


# -- tokens ----------------------------------------------------------------------------------------


def test_a_worker_token_is_for_its_pool_and_workspaces_and_stored_as_a_hash(
    api: TestClient, world: World, member: Member, stranger: Member, run: dict[str, Any]
) -> None:
    local = EVALS.taken(api)
    settle(world)
    other, elsewhere, own, everywhere = (
        pool_token(world, "cpu"),
        pool_token(world, workspace_ids=[stranger.workspace.id]),
        pool_token(world, workspace_ids=[member.workspace.id]),
        pool_token(world, name="basement"),
    )
    assert claimed(world, other) is claimed(world, elsewhere) is None
    assert claimed(world, own, pool="gpu") == run["id"]
    assert claimed(world, everywhere) is None, "the other run is for this machine"
    assert claimed(world, world.services.worker_access.local_token) == local["id"]
    assert not any(world.is_stored(token) or world.is_stored(token[5:]) for token in (own, everywhere))
    tokens = world.operate("worker-token", "list")["items"]
    [listed] = [token for token in tokens if token["name"] == "basement"]
    assert (listed["pool"], listed["workspaces"]) == ("gpu", None)
    assert listed["last_used_at"].startswith("2026-11-02T09:30:00")


def test_a_token_of_another_pool_or_release_and_a_revoked_one_are_refused(world: World) -> None:
    token = pool_token(world)
    assert refusal(world, token, pool="cpu") == (403, "WORKER_POOL")
    with pytest.raises(
        Refused, match=r"this worker is '0.3.1\\x1b\[2J': install the platform's release"
    ) as other:
        claimed(world, token, sdk_version="0.3.1\x1b[2J")
    assert (other.value.status, other.value.code) == (426, "WORKER_RELEASE")
    token_id = world.operate("worker-token", "list")["items"][0]["id"]
    assert world.operate("worker-token", "revoke", token_id, "--yes")["status"] == "success"
    assert world.operate("worker-token", "revoke", token_id, "--yes")["status"] == "noop"
    assert refusal(world, token) == (401, "TOKEN_REVOKED")
    assert refusal(world, token, leaves=True) == (401, "TOKEN_REVOKED")


def test_tokens_of_users_and_workers_are_not_interchangeable(
    client: TestClient, world: World, member: Member, ticket: str
) -> None:
    assert refusal(world, member.token) == (403, "WORKER_TOKEN_REQUIRED")
    for plain in (pool_token(world), ticket):
        reply = client.get("/api/cli/verify", headers={"Authorization": f"Bearer {plain}"})
        assert_flat_error(reply, 401, "TOKEN_INVALID")


def test_waiting_for_a_run_that_cannot_come_is_refused_without_telling_why(
    api: TestClient, world: World, member: Member, stranger: Member, run: dict[str, Any]
) -> None:
    token = pool_token(world, workspace_ids=[member.workspace.id])
    for name, owner, pool, status in (
        ("ended", member, "gpu", "stopped"),
        ("local", member, None, "pending"),
        ("foreign", stranger, "gpu", "pending"),
    ):
        add_run(world, owner, name, id=f"run_{name}", status=status, pool=pool)
    assert claimed(world, token, run_id=run["id"]) == run["id"]
    assert claimed(world, token, run_id=run["id"]) is None, "another worker executes it"
    refusals = set()
    for name in ("ended", "local", "foreign", "none"):
        with pytest.raises(Refused) as caught:
            claimed(world, token, run_id=f"run_{name}")
        refusals.add((caught.value.status, caught.value.code, caught.value.body["error"]))
    sentence = "there is no such run, it has ended, or this token cannot claim it in the pool 'gpu'."
    assert refusals == {(403, "RUN_NOT_FOR_WORKER", sentence)}
    with pytest.raises(Refused, match=r"`--run` takes a run's id \(`run_…`\)"):
        claimed(world, token, run_id="open")
    assert claimed(world, pool_token(world), run_id="run_foreign") is None, "it may come"


UNABLE = {"sandbox": False, "sandbox_problem": "no user namespaces; sysctl -w x=1", "isolation": "auto"}


def test_a_machine_without_a_sandbox_gets_no_runs_of_several_workspaces_unless_its_operator_permits_it(
    world: World, member: Member
) -> None:
    everywhere = pool_token(world)
    assert claimed(world, everywhere, **UNABLE) is None
    other = world.member("tom", workspace="moss")
    with pytest.raises(Refused, match=r"no runs of 2 workspaces.*sysctl -w x=1") as caught:
        claimed(world, everywhere, **UNABLE)
    assert (caught.value.status, caught.value.code) == (403, "WORKER_ISOLATION")
    for fields in ({"sandbox": True}, {"isolation": "off"}, {"sandbox": None}):
        assert claimed(world, everywhere, **{**UNABLE, **fields}) is None
    of_one = pool_token(world, workspace_ids=[other.workspace.id])
    assert claimed(world, of_one, **UNABLE) is None
    of_both = pool_token(world, workspace_ids=[member.workspace.id, other.workspace.id])
    assert refusal(world, of_both, **UNABLE) == (403, "WORKER_ISOLATION")


# -- tickets ---------------------------------------------------------------------------------------


def test_a_ticket_is_for_one_shard_and_bound_to_its_first_claim(
    api: TestClient, world: World, run: dict[str, Any], ticket: str, clock: ManualClock
) -> None:
    assert refusal(world, ticket, run_id="run_other") == (403, "RUN_NOT_FOR_WORKER")
    assert refusal(world, ticket, sdk_version="0.3.1") == (426, "WORKER_RELEASE")
    assert claimed(world, ticket, claim_id=FIRST, run_id=run["id"]) == run["id"]
    assert claimed(world, ticket, claim_id=FIRST, run_id=run["id"]) == run["id"], "the answer was lost"
    for _ in range(3):
        assert refusal(world, ticket) == (409, "TICKET_USED")
    clock.advance(61)
    assert refusal(world, ticket) == (409, "TICKET_USED")
    lines = [line for line in logged(api, f"{EVALS.route}/{run['id']}") if "claim refused" in line]
    assert len(lines) == 2, "at most one per minute"
    assert "with the ticket of attempt 1" in lines[0]


@pytest.mark.parametrize("end", ["releases", "finishes", "stop"])
def test_a_ticket_claims_nothing_after_its_attempt(
    api: TestClient, world: World, run: dict[str, Any], ticket: str, end: str
) -> None:
    if end == "stop":
        assert api.post(f"{EVALS.route}/{run['id']}/stop", json={}).status_code == 200
    else:
        getattr(FakeWorker.claims(world, "gpu"), end)()
    assert refusal(world, ticket) == (409, "TICKET_VOID")


def test_a_withdrawn_or_replaced_ticket_is_void(
    world: World, run: dict[str, Any], shard_id: str, ticket: str
) -> None:
    newer = ticket_for(world, shard_id)
    assert refusal(world, ticket) == (401, "TICKET_VOID")
    world.services.worker_access.withdraw(shard_id)
    assert refusal(world, newer) == (401, "TICKET_VOID")
    assert claimed(world, ticket_for(world, shard_id)) == run["id"]


@pytest.mark.parametrize("late_s", [600, 601])
def test_a_ticket_can_be_used_for_ten_minutes_after_its_job_was_first_seen_running(
    world: World, run: dict[str, Any], shard_id: str, ticket: str, clock: ManualClock, late_s: int
) -> None:
    clock.advance(86_400)  # the job waited for a node
    for later in (0, late_s):
        clock.advance(later)
        world.services.worker_access.note_running(shard_id)
    if late_s > 600:
        assert refusal(world, ticket) == (401, "TICKET_VOID")
    else:
        assert claimed(world, ticket) == run["id"]


@pytest.mark.parametrize("hours", [-24, -1, 1, 24])
def test_a_clock_that_was_set_extends_no_ticket(
    world: World, run: dict[str, Any], shard_id: str, ticket: str, clock: ManualClock, hours: int
) -> None:
    world.services.worker_access.note_running(shard_id)
    clock.jump(hours * 3600)
    assert refusal(world, ticket) == (401, "TICKET_VOID")
    assert claimed(world, ticket_for(world, shard_id)) == run["id"]


@pytest.mark.parametrize("asks", [{"isolation": "required"}, {"network": "none"}])
def test_a_node_without_a_sandbox_claims_no_run_that_needs_one(
    api: TestClient, world: World, asks: dict[str, str]
) -> None:
    run = waiting_run(api, world, **asks)
    ticket = ticket_for(world, waiting_shard(world, run["id"]))
    node = {"sandbox_problem": "no user namespaces", "isolation": "off", "machine": "node-7"}
    assert refusal(world, ticket, sandbox=False, **node) == (403, "WORKER_ISOLATION")
    line = logged(api, f"{EVALS.route}/{run['id']}")[-1]
    assert "'node-7'" in line and "(no user namespaces)" in line
    assert line.startswith("claim refused with the ticket of attempt 1: the machine")
    assert claimed(world, ticket, sandbox=True, **node) == run["id"]
