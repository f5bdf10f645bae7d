"""People can be sent away, and let in again, while the platform runs."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.errors import ConflictError, NotFoundError
from osmosis_ai.platform.accounts import TokenRejected
from osmosis_ai.platform.db.tables import DbDataset, DbRun, DbSecret, DbToken
from osmosis_ai.platform.http.browser_sessions import begin_session
from osmosis_ai.platform.offboarding import Offboarding
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error, assert_openai_error
from tests.platform.datasets_world import Uploads, rows

MARA = "mara@fern.example"


@pytest.fixture
def offboarding(services: PlatformServices, clock: ManualClock) -> Offboarding:
    return Offboarding(services.db, clock, services.accounts)


def signed_in(services: PlatformServices, member: Member) -> dict[str, str]:
    """Return the headers of a browser in which somebody has signed in."""
    reply = begin_session(services, member.user, "/")
    return {"Accept": "text/html", "Cookie": reply.headers["set-cookie"].partition(";")[0]}


def open_run(services: PlatformServices, member: Member, name: str, status: str) -> None:
    with services.db.transaction() as session:
        session.add(
            DbRun(
                id=f"run_{name}",
                workspace_id=member.workspace.id,
                kind="eval",
                name=name,
                status=status,
                creator_id=member.user.id,
                created_at=services.clock.now(),
                request={},
                rollout_name="multiply",
                dataset_name="rows",
                model_path="osmosis/tiny",
            )
        )


def run_of(services: PlatformServices, name: str) -> DbRun:
    with services.db.session() as session:
        return session.get_one(DbRun, f"run_{name}")


def test_a_disabled_user_is_let_in_by_nothing_they_had_until_they_are_enabled(
    client: TestClient, services: PlatformServices, world: World, offboarding: Offboarding
) -> None:
    mara = world.member(password="correct horse")
    _, key = services.accounts.create_token(mara.user.id, "api_key")
    v1 = {"Authorization": f"Bearer {key}"}
    browser = signed_in(services, mara)
    assert client.get("/api/cli/datasets", headers=mara.headers).status_code == 200
    assert client.get("/v1/models", headers=v1).status_code == 200
    assert client.get("/", headers=browser).headers["location"] != "/login?next=%2F"

    done = offboarding.disable(MARA)

    assert (done.changed, done.sessions) == (True, 1)
    reply = client.get("/api/cli/datasets", headers=mara.headers)
    assert_flat_error(reply, 401, "TOKEN_REVOKED")
    assert_openai_error(client.get("/v1/models", headers=v1), 401, "invalid_api_key")
    assert client.get("/", headers=browser).headers["location"].startswith("/login")
    assert services.accounts.check_password(MARA, "correct horse") is None
    assert offboarding.disable(MARA).changed is False

    assert offboarding.enable(MARA).changed is True
    assert client.get("/api/cli/datasets", headers=mara.headers).status_code == 200
    assert client.get("/v1/models", headers=v1).status_code == 200
    assert services.accounts.check_password(MARA, "correct horse") is not None
    # A session that has ended does not come back.
    assert client.get("/", headers=browser).headers["location"].startswith("/login")
    assert offboarding.enable(MARA).changed is False


def test_a_log_in_that_was_approved_by_somebody_who_is_disabled_gives_no_token(
    client: TestClient, services: PlatformServices, member: Member, offboarding: Offboarding
) -> None:
    started = client.post("/api/cli/device/authorize", json={"deviceName": "laptop"}).json()
    assert services.device_logins.decide(started["user_code"], member.user.id, approve=True)
    offboarding.disable(MARA)
    offboarding.enable(MARA)
    reply = client.post("/api/cli/device/token", json={"device_code": started["device_code"]})
    assert_flat_error(reply, 400, "EXPIRED_TOKEN")


def test_runs_of_a_disabled_user_go_on_unless_they_are_to_stop(
    services: PlatformServices, member: Member, offboarding: Offboarding
) -> None:
    open_run(services, member, "waiting", "pending")
    open_run(services, member, "working", "running")
    open_run(services, member, "done", "finished")
    assert offboarding.disable(MARA).still_open == ["waiting", "working"]
    assert run_of(services, "waiting").status == "pending"

    assert offboarding.disable(MARA, stop_runs=True).stopped == ["waiting", "working"]
    assert run_of(services, "waiting").status == "stopped"
    working = run_of(services, "working")
    assert working.status == "running" and working.stop_requested_at is not None
    assert run_of(services, "done").status == "finished"


def test_with_a_removed_user_go_tokens_and_personal_secrets_and_their_work_stays(
    client: TestClient,
    services: PlatformServices,
    world: World,
    member: Member,
    offboarding: Offboarding,
    uploads: Uploads,
) -> None:
    world.member("ben", role="member")
    open_run(services, member, "waiting", "pending")
    open_run(services, member, "done", "finished")
    uploads.upload("kept", rows())
    begun = uploads.begin("half", rows())
    for scope in ("user", "workspace"):
        services.secrets.put(member.workspace.id, member.user.id, "API_KEY", f"sk-of-{scope}", scope)  # type: ignore[arg-type]

    done = offboarding.remove(MARA)

    assert (done.stopped, done.personal_secrets) == (["waiting"], 1)
    assert done.ownerless == ["fern"]
    reply = client.get("/api/cli/datasets", headers=member.headers)
    assert_flat_error(reply, 401, "TOKEN_INVALID")
    with pytest.raises(NotFoundError, match=r"no user mara@fern\.example"):
        services.accounts.find_user(MARA)
    with services.db.session() as session:
        assert [secret.scope for secret in session.scalars(select(DbSecret))] == ["workspace"]
        assert session.scalar(select(DbToken.id).where(DbToken.user_id == member.user.id)) is None
        kept = {
            row.name: (row.status, row.creator_id, row.upload) for row in session.scalars(select(DbDataset))
        }
    assert kept == {"kept": ("uploaded", None, None), "half": ("cancelled", None, None)}
    assert begun["status"] == "pending"
    assert run_of(services, "waiting").status == "stopped"
    assert (run_of(services, "done").status, run_of(services, "done").creator_id) == ("finished", None)


def test_what_a_removed_user_had_sent_whole_becomes_a_dataset_of_nobody(
    services: PlatformServices, world: World, member: Member, offboarding: Offboarding, uploads: Uploads
) -> None:
    data = rows()
    begun = uploads.begin("sent", data)
    parts = uploads.send(begun, data)
    services.datasets.ingest.close()
    assert uploads.complete(begun["id"], parts).json()["status"] == "processing"
    offboarding.remove(MARA)
    services.datasets.ingest.start()
    services.datasets.ingest.recover()
    uploads.settle()
    with services.db.session() as session:
        row = session.scalars(select(DbDataset)).one()
    assert (row.status, row.creator_id, row.row_count) == ("uploaded", None, 10)


def test_the_last_administrator_can_be_neither_disabled_nor_removed(
    services: PlatformServices, offboarding: Offboarding
) -> None:
    for name in ("ada", "bea"):
        services.accounts.create_user(f"{name}@fern.example", is_admin=True)
    offboarding.disable("ada@fern.example")
    for act in (offboarding.disable, offboarding.remove):
        with pytest.raises(ConflictError, match=r"bea@fern\.example is the last administrator"):
            act("bea@fern.example")
    # One who is disabled is no administrator that anybody could do without.
    offboarding.remove("ada@fern.example")
    assert [user.email for user in services.accounts.users()] == ["bea@fern.example"]


def test_a_new_password_ends_sessions_and_on_request_tokens(
    client: TestClient, services: PlatformServices, world: World
) -> None:
    mara = world.member(password="correct horse")
    browser = signed_in(services, mara)
    assert services.accounts.set_password(MARA, "battery staple") == 1
    assert client.get("/", headers=browser).headers["location"].startswith("/login")
    services.accounts.authenticate(mara.token)
    assert services.accounts.set_password(MARA, "correct horses", revoke_tokens=True) == 1
    with pytest.raises(TokenRejected, match="revoked"):
        services.accounts.authenticate(mara.token)


@pytest.mark.parametrize("only_this_workspace", [True, False])
def test_an_api_key_of_somebody_who_left_the_workspace_gets_no_model(
    client: TestClient, services: PlatformServices, member: Member, only_this_workspace: bool
) -> None:
    home = member.workspace.id if only_this_workspace else None
    _, key = services.accounts.create_token(member.user.id, "api_key", workspace_id=home)
    v1 = {"Authorization": f"Bearer {key}"}
    asked = {"model": "osmosis/tiny", "messages": [{"role": "user", "content": "hi"}]}
    services.workspaces.remove_member(member.workspace.id, member.user.id)
    for reply in (
        client.get("/v1/models", headers=v1),
        client.get("/v1/models/osmosis/tiny", headers=v1),
        client.post("/v1/chat/completions", headers=v1, json=asked),
    ):
        assert "not a member" in assert_openai_error(reply, 403, "not_a_member")


def test_no_signed_url_is_made_for_somebody_who_left_the_workspace(
    client: TestClient, services: PlatformServices, member: Member, uploads: Uploads
) -> None:
    uploads.upload("kept", rows())
    services.workspaces.remove_member(member.workspace.id, member.user.id)
    for reply in (
        uploads.announce("new", 100),
        uploads.request("GET", "/kept/download"),
        client.post(
            "/api/cli/eval-runs/any/samples/download-urls",
            headers=member.headers,
            json={"files": [{"path": "metrics.json"}]},
        ),
        client.get("/api/cli/models/any/download", headers=member.headers),
    ):
        assert "presigned" not in reply.text and reply.status_code in (403, 404), reply.text
