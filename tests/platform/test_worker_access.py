"""Worker tokens and tickets: what each is good for, and until when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text, update

from osmosis_ai._version import __version__
from osmosis_ai.api.wire.workers import WorkerOffer
from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.accounts import TokenRejected
from osmosis_ai.platform.db.tables import DbRun, DbWorkerToken
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.worker_access import CLAIM_WITHIN, WorkerAccess, WorkerRefused
from osmosis_ai.platform.worker_admissions import TRUSTED_S
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.viewer import runs_world

FIRST, SECOND = "a" * 32, "b" * 32


@pytest.fixture
def access(services: PlatformServices) -> WorkerAccess:
    return services.worker_access


@pytest.fixture
def run_id(services: PlatformServices, member: Member) -> str:
    return add_run(services, member)


def add_run(services: PlatformServices, member: Member, name: str = "first", pool: str | None = None) -> str:
    known = {"id": f"run_{name}", "status": "pending", "request": {}, "pool": pool}
    return runs_world.add_run(services, member, name, **known).id


def set_run(services: PlatformServices, run_id: str, **values: Any) -> None:
    with services.db.transaction() as session:
        session.execute(update(DbRun).where(DbRun.id == run_id).values(**values))


def offer(claim_id: str = FIRST, **said: Any) -> WorkerOffer:
    return WorkerOffer(claim_id=claim_id, **{"sdk_version": __version__, **said})


def refusal(access: WorkerAccess, bearer: str, what: WorkerOffer | str) -> tuple[int, str]:
    """Return status and code with which a claim, or an exchange about a run, is refused."""
    ask: Callable[..., object] = (
        access.authorize_claim if isinstance(what, WorkerOffer) else access.authorize_run
    )
    with pytest.raises(WorkerRefused) as caught:
        ask(bearer, what)
    return caught.value.status, caught.value.reason


def test_a_worker_token_is_for_the_runs_of_its_pool_and_kept_as_a_hash_alone(
    services: PlatformServices, access: WorkerAccess, member: Member
) -> None:
    token, plain = access.create_token("gpu", name="basement")
    add_run(services, member, "gpu-run", pool="gpu")
    add_run(services, member, "other", pool="cpu")
    add_run(services, member, "nobody", pool=None)
    scope = access.authorize_claim(plain, offer(pool="gpu"))
    assert (scope.run_id, scope.workspaces, scope.pool) == (None, None, "gpu")
    access.authorize_run(plain, "run_gpu-run")
    for run_id in ("run_other", "run_nobody", "run_none"):
        assert refusal(access, plain, run_id) == (403, "RUN_NOT_FOR_WORKER")
    with services.db.session() as session:
        kept = str(session.execute(text("SELECT * FROM worker_tokens")).all())
        assert session.get_one(DbWorkerToken, token.id).last_used_at == services.clock.now()
    assert plain not in kept and plain[5:] not in kept


def test_nobody_waits_for_a_run_that_can_not_come_and_one_of_others_is_told_as_none(
    services: PlatformServices, access: WorkerAccess, world: World, member: Member
) -> None:
    other = world.member("tom", workspace="moss")
    _, plain = access.create_token("gpu", workspace_ids=[member.workspace.id])
    add_run(services, member, "open", pool="gpu")
    add_run(services, member, "ended", pool="gpu")
    set_run(services, "run_ended", status="stopped")
    add_run(services, member, "nobody")
    add_run(services, other, "foreign", pool="gpu")
    assert access.authorize_claim(plain, offer(run_id="run_open", wait_s=20)).pool == "gpu"
    set_run(services, "run_open", status="running")
    assert access.authorize_claim(plain, offer(run_id="run_open", wait_s=20)).pool == "gpu"
    said = set()
    for name in ("ended", "nobody", "foreign", "none"):
        with pytest.raises(WorkerRefused) as caught:
            access.authorize_claim(plain, offer(run_id=f"run_{name}", wait_s=20))
        said.add((caught.value.status, caught.value.reason, caught.value.message))
        access.authorize_claim(plain, offer(run_id=f"run_{name}"))  # which finds nothing
    sentence = "there is no such run in the pool 'gpu' for this worker token, or it has ended."
    assert said == {(403, "RUN_NOT_FOR_WORKER", sentence)}
    with pytest.raises(WorkerRefused, match=r"`--run` takes a run's id \(`run_…`\)"):
        access.authorize_claim(plain, offer(run_id="open", wait_s=20))
    anywhere = access.create_token("gpu")[1]
    assert access.authorize_claim(anywhere, offer(run_id="run_foreign", wait_s=20)).pool == "gpu"


def test_a_machine_without_a_sandbox_gets_no_runs_of_several_workspaces_without_its_operators_word(
    access: WorkerAccess, world: World, member: Member
) -> None:
    _, everywhere = access.create_token("gpu")
    unable = {"sandbox": False, "sandbox_problem": "no user namespaces; sysctl -w x=1", "isolation": "auto"}
    alone = len(access.authorize_claim(everywhere, offer(**unable)).worker_id or "")
    assert alone
    other = world.member("tom", workspace="moss")
    with pytest.raises(WorkerRefused) as caught:
        access.authorize_claim(everywhere, offer(**unable))
    assert (caught.value.status, caught.value.reason) == (403, "WORKER_ISOLATION")
    assert "no runs of 2 workspaces" in caught.value.message and "sysctl -w x=1" in caught.value.message
    for said in ({"sandbox": True}, {"isolation": "off"}, {"sandbox": None}):
        assert access.authorize_claim(everywhere, offer(**{**unable, **said})).pool == "gpu"
    _, of_one = access.create_token("gpu", workspace_ids=[other.workspace.id])
    assert access.authorize_claim(of_one, offer(**unable)).workspaces == {other.workspace.id}
    _, of_both = access.create_token("gpu", workspace_ids=[member.workspace.id, other.workspace.id])
    assert refusal(access, of_both, offer(**unable)) == (403, "WORKER_ISOLATION")


def test_a_worker_token_of_some_workspaces_is_good_for_no_run_of_another(
    services: PlatformServices, access: WorkerAccess, world: World, member: Member
) -> None:
    other = world.member("tom", workspace="moss")
    _, plain = access.create_token("gpu", workspace_ids=[other.workspace.id])
    add_run(services, member, "hers", pool="gpu")
    add_run(services, other, "his", pool="gpu")
    assert access.authorize_claim(plain, offer()).workspaces == {other.workspace.id}
    access.authorize_run(plain, "run_his")
    assert refusal(access, plain, "run_hers") == (403, "RUN_NOT_FOR_WORKER")


def test_a_worker_token_of_another_pool_or_release_and_a_revoked_one_are_refused_with_a_sentence(
    services: PlatformServices, access: WorkerAccess, member: Member
) -> None:
    token, plain = access.create_token("gpu")
    add_run(services, member, pool="gpu")
    assert refusal(access, plain, offer(pool="cpu")) == (403, "WORKER_POOL")
    assert refusal(access, plain, offer(sdk_version="0.3.1\x1b[2J")) == (426, "WORKER_RELEASE")
    access.revoke_token(token.id)
    revoked_at = access.find_token(token.id).revoked_at
    assert access.revoke_token(token.id).revoked_at == revoked_at is not None
    assert refusal(access, plain, offer()) == (401, "TOKEN_REVOKED")
    assert refusal(access, plain, "run_first") == (401, "TOKEN_REVOKED")


@pytest.mark.parametrize(
    "bearer", ["", "osmw_", "osmt_", "osmw_x", "osmt_x", "x" * 5000, "\ud800", "osmw_' OR 1=1 --"]
)
def test_a_bearer_nobody_made_is_not_known(access: WorkerAccess, bearer: str) -> None:
    assert refusal(access, bearer, offer()) == (401, "TOKEN_INVALID")
    assert refusal(access, bearer, "run_first") == (401, "TOKEN_INVALID")


def test_users_and_workers_tokens_are_good_for_their_own_routes_alone(
    services: PlatformServices, access: WorkerAccess, member: Member, run_id: str
) -> None:
    for what in (offer(), run_id):
        assert refusal(access, member.token, what) == (403, "WORKER_TOKEN_REQUIRED")
    for plain in (access.create_token("gpu")[1], access.issue_ticket(run_id)):
        with pytest.raises(TokenRejected, match="good for executing runs alone"):
            services.accounts.authenticate(plain)


def test_a_ticket_is_bound_to_its_first_claim_until_the_worker_has_said_something(
    services: PlatformServices, access: WorkerAccess, run_id: str
) -> None:
    ticket = access.issue_ticket(run_id)
    assert refusal(access, ticket, run_id) == (403, "RUN_NOT_FOR_WORKER")
    assert access.authorize_claim(ticket, offer(run_id=run_id)).run_id == run_id
    assert access.authorize_claim(ticket, offer()).run_id == run_id
    set_run(services, run_id, attempt=1, status="running")
    assert access.authorize_claim(ticket, offer()).run_id == run_id
    access.authorize_run(ticket, run_id)
    access.authorize_run(ticket, run_id)
    assert refusal(access, ticket, offer()) == (409, "TICKET_USED")
    assert services.logs.page(run_id).logs == [], "its machine finds out whether the worker has begun"
    assert refusal(access, ticket, "run_other") == (403, "RUN_NOT_FOR_WORKER")


def test_another_claim_with_a_used_ticket_is_refused_and_noted_on_the_run_once_a_minute(
    services: PlatformServices, access: WorkerAccess, run_id: str, clock: ManualClock
) -> None:
    ticket = access.issue_ticket(run_id)
    access.authorize_claim(ticket, offer())
    for _ in range(3):
        assert refusal(access, ticket, offer(SECOND)) == (409, "TICKET_USED")
    assert access.authorize_claim(ticket, offer()).run_id == run_id
    clock.advance(61)
    assert refusal(access, ticket, offer(SECOND)) == (409, "TICKET_USED")
    lines = services.logs.page(run_id).logs
    assert [line.level for line in lines] == ["warning", "warning"]
    assert "with the ticket of attempt 1" in lines[0].message


@pytest.mark.parametrize("asked", [{"isolation": "required"}, {"network": "none"}])
def test_a_node_without_a_sandbox_claims_no_run_that_needs_one_however_it_is_set(
    services: PlatformServices, access: WorkerAccess, run_id: str, asked: dict[str, str]
) -> None:
    set_run(services, run_id, request={"advanced_config": {"execution": asked}})
    node = {
        "sandbox": False,
        "sandbox_problem": "no user namespaces",
        "isolation": "off",
        "machine": "node-7",
    }
    ticket = access.issue_ticket(run_id)
    assert refusal(access, ticket, offer(**node)) == (403, "WORKER_ISOLATION")
    [line] = services.logs.page(run_id).logs
    assert line.message == (
        "the machine 'node-7' does not get this run, which needs a sandbox: rollouts cannot be sandboxed there "
        "(no user namespaces)."
    )
    assert access.why_unconfined(run_id) == line.message
    assert access.authorize_claim(ticket, offer(**{**node, "sandbox": True})).run_id == run_id


def test_a_withdrawn_ticket_is_void_and_one_for_an_ended_or_later_attempt_claims_nothing(
    services: PlatformServices, access: WorkerAccess, run_id: str
) -> None:
    ticket = access.issue_ticket(run_id)
    set_run(services, run_id, attempt=1)
    assert refusal(access, ticket, offer()) == (409, "TICKET_VOID")
    ticket = access.issue_ticket(run_id)
    access.authorize_claim(ticket, offer())
    set_run(services, run_id, attempt=2, status="finished")
    assert refusal(access, ticket, offer()) == (409, "TICKET_VOID")
    access.authorize_run(ticket, run_id)  # its last words may be repeated
    access.withdraw(run_id)
    assert refusal(access, ticket, offer()) == (401, "TICKET_VOID")
    assert refusal(access, ticket, run_id) == (401, "TICKET_VOID")


def test_a_new_ticket_takes_the_place_of_those_that_nobody_used(access: WorkerAccess, run_id: str) -> None:
    old = access.issue_ticket(run_id)
    new = access.issue_ticket(run_id)
    assert refusal(access, old, offer()) == (401, "TICKET_VOID")
    assert access.authorize_claim(new, offer()).run_id == run_id
    access.issue_ticket(run_id)
    access.authorize_run(new, run_id)
    with pytest.raises(NotFoundError):
        access.issue_ticket("run_none")


def test_a_ticket_claims_for_ten_minutes_after_its_job_was_first_seen_running(
    access: WorkerAccess, run_id: str, clock: ManualClock
) -> None:
    ticket = access.issue_ticket(run_id)
    clock.advance(86_400)  # the job waited for a node
    access.note_running(run_id)
    clock.advance(CLAIM_WITHIN.total_seconds())
    access.note_running(run_id)
    access.authorize_claim(ticket, offer())
    clock.advance(1)
    assert refusal(access, ticket, offer()) == (401, "TICKET_VOID")
    access.authorize_run(ticket, run_id)


@pytest.mark.parametrize("hours", [-24, -1, 1, 24])
def test_a_ticket_is_good_for_no_day_more_because_a_clock_was_set(
    access: WorkerAccess, run_id: str, clock: ManualClock, hours: int
) -> None:
    ticket = access.issue_ticket(run_id)
    access.note_running(run_id)
    clock.jump(hours * 3600)
    assert refusal(access, ticket, offer()) == (401, "TICKET_VOID")
    access.authorize_claim(access.issue_ticket(run_id), offer())


def test_a_token_that_was_revoked_elsewhere_is_good_for_a_second_at_most(
    access: WorkerAccess, services: PlatformServices, clock: ManualClock, member: Member
) -> None:
    add_run(services, member, "gpu-run", pool="gpu")
    token, plain = access.create_token("gpu")
    access.authorize_run(plain, "run_gpu-run")
    assert access.is_admitted(plain, "run_gpu-run")
    assert not access.is_admitted(plain, "run_other") and not access.is_admitted("osmw_none", "run_gpu-run")
    elsewhere = WorkerAccess(services.db, clock, services.logs)
    elsewhere.revoke_token(token.id)
    clock.advance(TRUSTED_S)
    assert not access.is_admitted(plain, "run_gpu-run")
    assert refusal(access, plain, "run_gpu-run") == (401, "TOKEN_REVOKED")


def test_who_was_revoked_here_is_refused_at_once(
    access: WorkerAccess, services: PlatformServices, member: Member, run_id: str
) -> None:
    add_run(services, member, "gpu-run", pool="gpu")
    token, plain = access.create_token("gpu")
    ticket = access.issue_ticket(run_id)
    access.authorize_claim(ticket, offer(run_id=run_id))
    access.authorize_run(plain, "run_gpu-run")
    access.authorize_run(ticket, run_id)
    assert access.is_admitted(plain, "run_gpu-run") and access.is_admitted(ticket, run_id)
    assert not access.is_admitted(ticket, "run_gpu-run")
    access.withdraw(run_id)
    assert not access.is_admitted(ticket, run_id)
    access.revoke_token(token.id)
    assert not access.is_admitted(plain, "run_gpu-run")
