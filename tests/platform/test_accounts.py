"""Users and tokens: guessed at, logged in from devices, disabled, removed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, text

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform import sign_in
from osmosis_ai.platform.accounts import TokenRejected, bootstrap
from osmosis_ai.platform.db.tables import DbDataset, DbDeviceLogin, DbRun, DbSecret, DbToken, DbUser
from osmosis_ai.platform.offboarding import Offboarding
from osmosis_ai.platform.pages.shell import begin_session
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.sign_in import SignIns, TooManyAttempts, network_of
from tests.platform.conftest import (
    ManualClock,
    Member,
    World,
    application,
    assert_flat_error,
    assert_openai_error,
    leave_workspace,
)
from tests.platform.datasets_world import Uploads, rows
from tests.platform.pages.browsing import PASSWORD, csrf_of
from tests.platform.viewer.runs_world import add_run


def test_a_token_says_whose_it_is_and_is_kept_as_a_hash_alone(
    services: PlatformServices, member: Member
) -> None:
    assert member.token.startswith("osm_") and len(member.token) == 47
    principal = services.accounts.authenticate(member.token)
    assert principal.user.email == "mara@fern.example"
    assert principal.token.id == member.token_id
    with services.db.session() as session:
        kept = str(session.execute(text("SELECT * FROM tokens")).all())
    assert member.token not in kept and member.token[4:] not in kept


def test_a_password_signs_its_user_in_and_nobody_else(services: PlatformServices) -> None:
    services.accounts.create_user("Mara@Fern.example", password="correct horse")
    services.accounts.create_user("tom@fern.example")
    signed_in = services.accounts.check_password(" mara@fern.EXAMPLE ", "correct horse")
    assert signed_in is not None and signed_in.email == "mara@fern.example"
    assert services.accounts.check_password("mara@fern.example", "correct horsE") is None
    assert services.accounts.check_password("nobody@fern.example", "correct horse") is None
    assert services.accounts.check_password("tom@fern.example", "") is None
    services.accounts.set_password("mara@fern.example", "battery staple")
    assert services.accounts.check_password("mara@fern.example", "correct horse") is None
    with services.db.session() as session:
        kept = session.scalar(text("SELECT password_hash FROM users WHERE email LIKE 'mara%'"))
    assert str(kept).startswith("$argon2id$")


NO_ADDRESSES = ["", "mara", "@fern", "mara@", "ma ra@fern", "m\n@fern", "m" * 320 + "@fern"]
NO_NAMES = ["", "a/b", "..", "-x", "api", "Device", "x" * 65, "fern lab", "fé"]


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("user", "MARA@fern.example", "mara@fern.example already exists"),
        ("workspace", "fern", "'fern' already exists"),
        ("password", "short", "at least 10 characters"),
        *(("user", address, "not an e-mail address") for address in NO_ADDRESSES),
        *(("workspace", name, "cannot be a workspace's name") for name in NO_NAMES),
    ],
)
def test_what_is_taken_in_any_case_or_cannot_be_is_refused(
    services: PlatformServices, kind: str, value: str, problem: str
) -> None:
    services.accounts.create_user("mara@fern.example")
    services.workspaces.create("Fern")
    assert services.workspaces.find("FERN").name == "Fern"
    create = {
        "user": services.accounts.create_user,
        "workspace": services.workspaces.create,
        "password": lambda password: services.accounts.create_user("tom@fern.example", password=password),
    }
    with pytest.raises(OsmosisError, match=problem):
        create[kind](value)


def test_the_first_start_makes_an_admin_once(services: PlatformServices, clock: ManualClock) -> None:
    login = bootstrap(services.db, clock)
    assert login is not None
    assert login.password not in repr(login)
    user = services.accounts.check_password(login.email, login.password)
    assert user is not None and user.is_admin and user.id == login.user_id
    assert [(w.name, role) for w, role, _ in services.workspaces.of_user(user.id)] == [("default", "owner")]
    assert bootstrap(services.db, clock) is None


HOME, OFFICE, STRANGER = "192.0.2.7", "198.51.100.4", "203.0.113.9"


class _Accounts:
    """Everybody's password is their address: Argon2 is tested elsewhere and slow on purpose."""

    def check_password(self, email: str, password: str) -> DbUser | None:
        return DbUser(email=email) if password == email else None


@pytest.fixture
def sign_ins(services: PlatformServices, clock: ManualClock) -> SignIns:
    return SignIns(_Accounts(), clock)  # type: ignore[arg-type]


def outcome(sign_ins: SignIns, email: str, password: str, source: str) -> str:
    try:
        return "in" if sign_ins.check(email, password, source=source) else "wrong"
    except TooManyAttempts:
        return "wait"


def test_a_stranger_who_guesses_at_an_account_does_not_lock_its_owner_out(sign_ins: SignIns) -> None:
    tried = [outcome(sign_ins, "mara@fern.example", "guess", STRANGER) for _ in range(30)]
    assert tried == ["wrong"] * 10 + ["wait"] * 20
    assert outcome(sign_ins, "MARA@fern.example ", "mara@fern.example", STRANGER) == "wait"
    assert outcome(sign_ins, "mara@fern.example", "mara@fern.example", HOME) == "in"


def test_a_stranger_beside_people_keeps_none_of_them_out_who_has_signed_in_there(
    sign_ins: SignIns, clock: ManualClock
) -> None:
    assert outcome(sign_ins, "mara@fern.example", "mara@fern.example", OFFICE) == "in"
    tried = [outcome(sign_ins, f"user{number}@fern.example", "guess", OFFICE) for number in range(80)]
    assert tried == ["wrong"] * 50 + ["wait"] * 30
    assert outcome(sign_ins, "mara@fern.example", "mara@fern.example", OFFICE) == "in"
    assert outcome(sign_ins, "ivo@fern.example", "ivo@fern.example", OFFICE) == "wait"
    assert outcome(sign_ins, "ivo@fern.example", "ivo@fern.example", HOME) == "in"
    clock.advance(15 * 60)
    assert outcome(sign_ins, "ivo@fern.example", "ivo@fern.example", OFFICE) == "in"


def test_a_network_of_ipv6_is_one_source(sign_ins: SignIns) -> None:
    tried = [outcome(sign_ins, "mara@fern.example", "guess", f"2001:db8:1:2::{n:x}") for n in range(1, 13)]
    assert tried == ["wrong"] * 10 + ["wait"] * 2
    assert network_of("2001:db8:1:3::1") != network_of("2001:db8:1:2::1")
    assert network_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert network_of("unknown") == "unknown"


def test_what_strangers_can_make_the_platform_remember_is_bounded(
    sign_ins: SignIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "_MAX_KEYS", 100)
    for number in range(1000):
        outcome(sign_ins, f"user{number}@fern.example", "guess", f"10.0.{number // 250}.{number % 250}")
    limits = (sign_ins._by_account, sign_ins._by_source)
    assert [len(limit._events) for limit in limits] == [100, 100]


@pytest.fixture
def mara(world: World) -> Member:
    return world.member(password=PASSWORD)


def start(client: TestClient, name: str = "maras-laptop") -> dict[str, Any]:
    reply = client.post("/api/cli/device/authorize", json={"deviceName": name})
    assert reply.status_code == 200, reply.text
    started: dict[str, Any] = reply.json()
    return started


def poll(client: TestClient, started: dict[str, Any]) -> Any:
    return client.post("/api/cli/device/token", json={"device_code": started["device_code"]})


def decide(client: TestClient, code: str, decision: str = "approve", **changes: str) -> Any:
    page = client.get("/device", params={"code": code})
    form = {
        "csrf": csrf_of(page),
        "code": code,
        "email": "mara@fern.example",
        "password": PASSWORD,
        "decision": decision,
    }
    return client.post("/device", data={**form, **changes})


def test_a_device_is_approved_on_the_page_and_logged_in(
    client: TestClient, mara: Member, clock: ManualClock, services: PlatformServices
) -> None:
    started = start(client)
    with services.db.session() as session:
        kept = str(session.execute(text("SELECT * FROM device_logins")).all())
    assert started["user_code"] in kept and started["device_code"] not in kept, "stored as a hash alone"
    assert re.fullmatch(r"[BCDFGHJKMPQRTVWXYZ]{4}-[BCDFGHJKMPQRTVWXYZ]{4}", started["user_code"])
    assert started["verification_uri"] == "http://127.0.0.1:8733/device"
    assert started["verification_uri_complete"].endswith(f"/device?code={started['user_code']}")
    assert (started["expires_in"], started["interval"]) == (900, 5)
    assert_flat_error(poll(client, started), 400, "AUTHORIZATION_PENDING")

    page = client.get("/device", params={"code": started["user_code"]})
    assert page.status_code == 200
    assert "maras-laptop" in page.text and started["user_code"] in page.text
    assert "<script>" not in page.text
    done = decide(client, started["user_code"])
    assert done.status_code == 200 and "mara@fern.example" in done.text

    clock.advance(5)
    issued = poll(client, started).json()
    # The token is issued once.
    assert assert_flat_error(poll(client, started), 400, "EXPIRED_TOKEN")["error"] == "expired_token"
    with services.db.session() as session:
        count = select(func.count()).select_from(DbToken).where(DbToken.name == "maras-laptop")
        assert session.scalar(count) == 1
    assert issued["user"] == {"id": mara.user.id, "email": "mara@fern.example", "name": "Mara"}
    assert issued["expires_at"] == "2027-01-31T09:30:05.000Z"
    verified = client.get("/api/cli/verify", headers={"Authorization": f"Bearer {issued['token']}"}).json()
    assert verified["token_id"] == issued["token_id"]


def test_a_denied_device_is_told_so(client: TestClient, mara: Member) -> None:
    started = start(client)
    assert "login was denied" in decide(client, started["user_code"], "deny").text
    body = assert_flat_error(poll(client, started), 400, "ACCESS_DENIED")
    assert body["error"] == "access_denied"


def test_a_login_expires_for_the_device_and_for_the_page(
    client: TestClient, mara: Member, clock: ManualClock
) -> None:
    started = start(client)
    clock.advance(900)
    assert client.get("/device", params={"code": started["user_code"]}).status_code == 404
    assert_flat_error(poll(client, started), 400, "EXPIRED_TOKEN")
    assert_flat_error(poll(client, {"device_code": "nobody"}), 400, "EXPIRED_TOKEN")


def test_a_device_that_polls_too_fast_is_slowed_down(client: TestClient, clock: ManualClock) -> None:
    started = start(client)
    answers = []
    for pause_s in (0, 1, 10, 4, 15):
        clock.advance(pause_s)
        answers.append(poll(client, started).json()["error"])
    # The interval is 5 s, then 10 after the first hurry, and 15 after the second.
    assert answers == [
        "authorization_pending",
        "slow_down",
        "authorization_pending",
        "slow_down",
        "authorization_pending",
    ]


@pytest.mark.parametrize("csrf", ["", "x" * 43, "not the right one"])
def test_a_form_from_elsewhere_changes_nothing(client: TestClient, mara: Member, csrf: str) -> None:
    started = start(client)
    reply = decide(client, started["user_code"], csrf=csrf)
    assert reply.status_code == 403
    client.cookies.clear()
    token = csrf_of(reply)
    client.cookies.clear()
    form = {"csrf": token, "code": started["user_code"], "email": "mara@fern.example"}
    without_cookie = client.post("/device", data={**form, "password": PASSWORD, "decision": "approve"})
    assert without_cookie.status_code == 403
    assert_flat_error(poll(client, started), 400, "AUTHORIZATION_PENDING")


def test_guessing_codes_is_stopped(client: TestClient, mara: Member) -> None:
    code = start(client)["user_code"]
    for _ in range(20):
        assert client.get("/device", params={"code": "BCDF-GHJK"}).status_code == 404
    assert client.get("/device", params={"code": code}).status_code == 429


def test_the_cookie_is_secure_behind_tls(services: PlatformServices) -> None:
    from dataclasses import replace

    services.config = replace(services.config, public_url="https://osmosis.fern.example/lab")
    client = TestClient(application(services))
    assert "secure" in client.get("/device").headers["set-cookie"].lower()
    started = client.post("/api/cli/device/authorize", json={}).json()
    assert started["verification_uri"] == "https://osmosis.fern.example/lab/device"


def waiting(services: PlatformServices) -> int:
    with services.db.session() as session:
        return session.scalar(select(func.count()).select_from(DbDeviceLogin)) or 0


def test_strangers_can_neither_fill_the_database_nor_keep_others_from_logging_in(
    client: TestClient,
    mara: Member,
    services: PlatformServices,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.sign_in.MAX_OPEN", 3)
    for number in range(10):
        services.device_logins.start("flood", source=f"203.0.113.{number}")
        clock.advance(0.001)
    assert waiting(services) == 3
    started = start(client)
    assert waiting(services) == 3
    assert decide(client, started["user_code"]).status_code == 200
    clock.advance(900)
    start(client)
    assert waiting(services) == 1


MARA = "mara@fern.example"


@pytest.fixture
def offboarding(services: PlatformServices, clock: ManualClock) -> Offboarding:
    return Offboarding(services.db, clock, services.accounts)


def signed_in(services: PlatformServices, member: Member) -> dict[str, str]:
    """Return the headers of a browser in which somebody has signed in."""
    reply = begin_session(services, member.user, "/")
    return {"Accept": "text/html", "Cookie": reply.headers["set-cookie"].partition(";")[0]}


def open_run(services: PlatformServices, member: Member, name: str, status: str) -> None:
    add_run(services, member, name, id=f"run_{name}", status=status, completed_at=None)


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
    ben = world.member("ben", role="member")
    open_run(services, member, "waiting", "pending")
    open_run(services, member, "done", "finished")
    uploads.upload("kept", rows())
    begun = uploads.begin("half", rows())
    services.datasets.ingest.close()
    sent = uploads.begin("sent", rows())
    assert uploads.complete(sent["id"], uploads.send(sent, rows())).json()["status"] == "processing"
    for scope in ("user", "workspace"):
        services.secrets.put(member.workspace.id, member.user.id, "API_KEY", f"sk-of-{scope}", scope)  # type: ignore[arg-type]

    with pytest.raises(ConflictError, match="last owner of fern"):
        offboarding.remove(MARA)
    services.workspaces.add_member(member.workspace.id, ben.user.id, "owner")
    done = offboarding.remove(MARA)

    assert (done.stopped, done.personal_secrets) == (["waiting"], 1)
    reply = client.get("/api/cli/datasets", headers=member.headers)
    assert_flat_error(reply, 401, "TOKEN_INVALID")
    with pytest.raises(NotFoundError, match=r"no user mara@fern\.example"):
        services.accounts.find_user(MARA)
    with services.db.session() as session:
        assert [secret.scope for secret in session.scalars(select(DbSecret))] == ["workspace"]
        assert session.scalar(select(DbToken.id).where(DbToken.user_id == member.user.id)) is None
        kept = {
            row.name: (row.status, row.creator_id, row.pending_upload)
            for row in session.scalars(select(DbDataset))
        }
    status, _, upload = kept.pop("sent")
    assert status == "processing" and upload is not None and upload["creator_id"] is None
    assert kept == {"kept": ("uploaded", None, None), "half": ("cancelled", None, None)}
    assert begun["status"] == "pending"
    assert run_of(services, "waiting").status == "stopped"
    assert (run_of(services, "done").status, run_of(services, "done").creator_id) == ("finished", None)


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
    leave_workspace(services, member)
    for reply in (
        client.get("/v1/models", headers=v1),
        client.get("/v1/models/osmosis/tiny", headers=v1),
        client.post("/v1/chat/completions", headers=v1, json=asked),
    ):
        assert "no longer a member" in assert_openai_error(reply, 403, "not_a_member")
