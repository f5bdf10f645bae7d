"""Worker tokens and tickets: what each permits, and until when."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text, update

from osmosis_ai._version import __version__
from osmosis_ai.api.models.workers import ClaimRequest
from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.accounts import TokenRejected
from osmosis_ai.platform.db.tables import DbRun, DbRunShard, DbWorkerToken
from osmosis_ai.platform.queue.access import CLAIM_WITHIN, WorkerAccess
from osmosis_ai.platform.queue.queue import ClaimScope
from osmosis_ai.platform.refusals import ApiError
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.viewer import runs_world

FIRST, SECOND = "a" * 32, "b" * 32


@pytest.fixture
def access(world: World) -> WorkerAccess:
    return world.services.worker_access


def add_run(world: World, member: Member, name: str = "first", pool: str | None = None) -> str:
    """Add a pending run with a shard of work; return the shard's id."""
    known = {"id": f"run_{name}", "status": "pending", "request": {}, "pool": pool}
    runs_world.add_run(world, member, name, **known)
    with world.services.db.transaction() as session:
        session.add(DbRunShard(id=f"shd_{name}", run_id=f"run_{name}", kind="work"))
    return f"shd_{name}"


@pytest.fixture
def shard_id(world: World, member: Member) -> str:
    return add_run(world, member)


def change(world: World, row_id: str, **values: Any) -> None:
    table = DbRun if row_id.startswith("run_") else DbRunShard
    with world.services.db.transaction() as session:
        session.execute(update(table).where(table.id == row_id).values(**values))


def request(claim_id: str = FIRST, **fields: Any) -> ClaimRequest:
    return ClaimRequest(claim_id=claim_id, **{"sdk_version": __version__, **fields})


def refusal(access: WorkerAccess, bearer: str, **fields: Any) -> tuple[int, str]:
    """Return the status and code with which a claim is refused."""
    with pytest.raises(ApiError) as caught:
        access.authorize(bearer, request(**fields))
    return caught.value.status, caught.value.reason


# -- tokens ----------------------------------------------------------------------------------------


def test_a_worker_token_is_for_its_pool_and_workspaces_and_stored_as_a_hash(
    world: World, access: WorkerAccess, member: Member
) -> None:
    token, plain = access.create_token("gpu", name="basement")
    _, of_one = access.create_token("gpu", workspace_ids=[member.workspace.id])
    scope = access.authorize(plain, request(pool="gpu"))
    assert (scope.pool, scope.workspaces, scope.shard_id, scope.token_id) == ("gpu", None, None, token.id)
    assert access.authorize(of_one, request()).workspaces == {member.workspace.id}
    local = access.authorize(access.local_token, request())
    assert (local.pool, local.workspaces, local.shard_id) == (None, None, None)
    with world.services.db.session() as session:
        stored = str(session.execute(text("SELECT * FROM worker_tokens")).all())
        assert session.get_one(DbWorkerToken, token.id).last_used_at == world.services.clock.now()
    assert plain not in stored and plain[5:] not in stored


def test_a_token_of_another_pool_or_release_and_a_revoked_one_are_refused(access: WorkerAccess) -> None:
    token, plain = access.create_token("gpu")
    assert refusal(access, plain, pool="cpu") == (403, "WORKER_POOL")
    with pytest.raises(
        ApiError, match=r"this worker is '0.3.1\\x1b\[2J': install the platform's release"
    ) as other:
        access.authorize(plain, request(sdk_version="0.3.1\x1b[2J"))
    assert (other.value.status, other.value.reason) == (426, "WORKER_RELEASE")
    access.revoke_token(token.id)
    revoked_at = access.find_token(token.id).revoked_at
    assert access.revoke_token(token.id).revoked_at == revoked_at is not None
    assert refusal(access, plain) == (401, "TOKEN_REVOKED")
    with pytest.raises(ApiError, match="has been revoked"):
        access.note_left(plain, request(leaves=True))


def test_tokens_of_users_and_workers_are_not_interchangeable(
    world: World, access: WorkerAccess, member: Member, shard_id: str
) -> None:
    assert refusal(access, member.token) == (403, "WORKER_TOKEN_REQUIRED")
    for plain in (access.create_token("gpu")[1], access.issue_ticket(shard_id)):
        with pytest.raises(TokenRejected):
            world.services.accounts.authenticate(plain)


def test_waiting_for_a_run_that_cannot_come_is_refused_without_telling_why(
    world: World, access: WorkerAccess, member: Member
) -> None:
    other = world.member("tom", workspace="moss")
    _, plain = access.create_token("gpu", workspace_ids=[member.workspace.id])
    for name, owner, pool in (
        ("open", member, "gpu"),
        ("ended", member, "gpu"),
        ("local", member, None),
        ("foreign", other, "gpu"),
    ):
        add_run(world, owner, name, pool)
    change(world, "run_ended", status="stopped")
    for status in ("pending", "running"):
        change(world, "run_open", status=status)
        assert access.authorize(plain, request(run_id="run_open")).pool == "gpu"
    refusals = set()
    for name in ("ended", "local", "foreign", "none"):
        with pytest.raises(ApiError) as caught:
            access.authorize(plain, request(run_id=f"run_{name}"))
        refusals.add((caught.value.status, caught.value.reason, caught.value.message))
    sentence = "there is no such run, it has ended, or this token cannot claim it in the pool 'gpu'."
    assert refusals == {(403, "RUN_NOT_FOR_WORKER", sentence)}
    with pytest.raises(ApiError, match=r"`--run` takes a run's id \(`run_…`\)"):
        access.authorize(plain, request(run_id="open"))
    assert access.authorize(access.create_token("gpu")[1], request(run_id="run_foreign")).pool == "gpu"


UNABLE = {"sandbox": False, "sandbox_problem": "no user namespaces; sysctl -w x=1", "isolation": "auto"}


def test_a_machine_without_a_sandbox_gets_no_runs_of_several_workspaces_unless_its_operator_permits_it(
    access: WorkerAccess, world: World, member: Member
) -> None:
    _, everywhere = access.create_token("gpu")
    assert access.authorize(everywhere, request(**UNABLE)).worker_id
    other = world.member("tom", workspace="moss")
    with pytest.raises(ApiError, match=r"no runs of 2 workspaces.*sysctl -w x=1") as caught:
        access.authorize(everywhere, request(**UNABLE))
    assert (caught.value.status, caught.value.reason) == (403, "WORKER_ISOLATION")
    for fields in ({"sandbox": True}, {"isolation": "off"}, {"sandbox": None}):
        assert access.authorize(everywhere, request(**{**UNABLE, **fields})).pool == "gpu"
    _, of_one = access.create_token("gpu", workspace_ids=[other.workspace.id])
    assert access.authorize(of_one, request(**UNABLE)).workspaces == {other.workspace.id}
    _, of_both = access.create_token("gpu", workspace_ids=[member.workspace.id, other.workspace.id])
    assert refusal(access, of_both, **UNABLE) == (403, "WORKER_ISOLATION")


# -- tickets ---------------------------------------------------------------------------------------


def test_a_ticket_is_for_one_shard_and_bound_to_its_first_claim(
    world: World, access: WorkerAccess, shard_id: str, clock: ManualClock
) -> None:
    ticket = access.issue_ticket(shard_id)
    assert refusal(access, ticket, run_id="run_other") == (403, "RUN_NOT_FOR_WORKER")
    assert refusal(access, ticket, sdk_version="0.3.1") == (426, "WORKER_RELEASE")
    assert access.authorize(ticket, request(run_id="run_first")) == ClaimScope(shard_id=shard_id)
    change(world, shard_id, attempt=1, status="running")
    assert access.authorize(ticket, request()).shard_id == shard_id, "the answer was lost"
    for _ in range(3):
        assert refusal(access, ticket, claim_id=SECOND) == (409, "TICKET_USED")
    clock.advance(61)
    assert refusal(access, ticket, claim_id=SECOND) == (409, "TICKET_USED")
    lines = world.services.logs.page("run_first").logs
    assert [line.level for line in lines] == ["warning", "warning"], "at most one per minute"
    assert "with the ticket of attempt 1" in lines[0].message


@pytest.mark.parametrize(
    ("table_id", "values"),
    [
        ("shd_first", {"attempt": 1}),
        ("shd_first", {"status": "finished"}),
        ("run_first", {"status": "stopped"}),
    ],
)
def test_a_ticket_claims_nothing_after_its_attempt(
    world: World, access: WorkerAccess, shard_id: str, table_id: str, values: dict[str, Any]
) -> None:
    ticket = access.issue_ticket(shard_id)
    change(world, table_id, **values)
    assert refusal(access, ticket) == (409, "TICKET_VOID")


def test_a_withdrawn_or_replaced_ticket_is_void(access: WorkerAccess, shard_id: str) -> None:
    old, new = access.issue_ticket(shard_id), access.issue_ticket(shard_id)
    assert refusal(access, old) == (401, "TICKET_VOID")
    assert access.authorize(new, request()).shard_id == shard_id
    access.withdraw(shard_id)
    assert refusal(access, new) == (401, "TICKET_VOID")
    with pytest.raises(NotFoundError):
        access.issue_ticket("shd_none")


def test_a_ticket_can_be_used_for_ten_minutes_after_its_job_was_first_seen_running(
    access: WorkerAccess, shard_id: str, clock: ManualClock
) -> None:
    ticket = access.issue_ticket(shard_id)
    clock.advance(86_400)  # the job waited for a node
    access.note_running(shard_id)
    clock.advance(CLAIM_WITHIN.total_seconds())
    access.note_running(shard_id)
    access.authorize(ticket, request())
    clock.advance(1)
    assert refusal(access, ticket) == (401, "TICKET_VOID")


@pytest.mark.parametrize("hours", [-24, -1, 1, 24])
def test_a_clock_that_was_set_extends_no_ticket(
    access: WorkerAccess, shard_id: str, clock: ManualClock, hours: int
) -> None:
    ticket = access.issue_ticket(shard_id)
    access.note_running(shard_id)
    clock.jump(hours * 3600)
    assert refusal(access, ticket) == (401, "TICKET_VOID")
    access.authorize(access.issue_ticket(shard_id), request())


@pytest.mark.parametrize("asks", [{"isolation": "required"}, {"network": "none"}])
def test_a_node_without_a_sandbox_claims_no_run_that_needs_one(
    world: World, access: WorkerAccess, shard_id: str, asks: dict[str, str]
) -> None:
    change(world, "run_first", request={"advanced_config": {"execution": asks}})
    node = {
        "sandbox": False,
        "sandbox_problem": "no user namespaces",
        "isolation": "off",
        "machine": "node-7",
    }
    ticket = access.issue_ticket(shard_id)
    assert refusal(access, ticket, **node) == (403, "WORKER_ISOLATION")
    [line] = world.services.logs.page("run_first").logs
    assert "'node-7'" in line.message and "(no user namespaces)" in line.message
    with world.services.db.session() as session:
        waits = session.get_one(DbRunShard, shard_id).waits
    assert line.message == f"claim refused with the ticket of attempt 1: {waits}"
    assert access.authorize(ticket, request(**{**node, "sandbox": True})).shard_id == shard_id
