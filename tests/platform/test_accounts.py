"""Users and tokens: guessed at, logged in from devices, disabled, removed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import (
    ManualClock,
    Member,
    World,
    application,
    assert_flat_error,
    assert_openai_error,
)
from tests.platform.datasets_world import Uploads, rows
from tests.platform.one_hop_client import OneHopClient
from tests.platform.pages.browsing import PASSWORD, csrf_of, sign_in
from tests.platform.viewer.runs_world import add_run

MARA = "mara@fern.example"
PAGE = {"Accept": "text/html"}


def test_tokens_and_passwords_are_stored_as_hashes(client: OneHopClient, world: World) -> None:
    mara = world.member(password=PASSWORD)
    assert mara.token.startswith("osm_") and len(mara.token) == 47
    assert client.get("/api/cli/verify", headers=mara.headers).json()["token_id"] == mara.token_id
    assert sign_in(client).status_code == 303
    for secret in (mara.token, mara.token[4:], PASSWORD, client.cookies["osmosis_session"]):
        assert not world.is_stored(secret)
    assert world.is_stored("$argon2id$")


def test_a_password_signs_its_user_in_and_nobody_else(client: OneHopClient, world: World) -> None:
    world.operate("user", "add", "Mara@Fern.example", "--password-stdin", stdin="correct horse")
    world.member("tom", workspace="fern")
    for email, password, status in (
        (" mara@fern.EXAMPLE ", "correct horse", 303),
        (MARA, "correct horsE", 403),
        ("nobody@fern.example", "correct horse", 403),
        ("tom@fern.example", "", 403),
    ):
        assert sign_in(client, email, password=password).status_code == status, email
    world.operate("user", "password", MARA, "--password-stdin", stdin="battery staple")
    assert sign_in(client, MARA, password="correct horse").status_code == 403
    assert sign_in(client, MARA, password="battery staple").status_code == 303


NO_ADDRESSES = ["", "mara", "@fern", "mara@", "ma ra@fern", "m\n@fern", "m" * 320 + "@fern"]
NO_NAMES = ["", "a/b", "..", "-x", "api", "Device", "x" * 65, "fern lab", "fé"]


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("user", "MARA@fern.example", "mara@fern.example already exists"),
        ("workspace", "FERN", "'FERN' already exists"),
        ("password", "short", "at least 10 characters"),
        *(("user", address, "not an e-mail address") for address in NO_ADDRESSES),
        *(("workspace", name, "cannot be a workspace's name") for name in NO_NAMES),
    ],
)
def test_what_is_taken_in_any_case_or_cannot_be_is_refused(
    world: World, member: Member, kind: str, value: str, problem: str
) -> None:
    arguments = [kind, "add", "--", value]
    if kind == "password":
        arguments = ["user", "add", "tom@fern.example", "--password-stdin"]
    with pytest.raises(AssertionError) as refused:
        world.operate(*arguments, stdin=value)
    assert problem in str(refused.value)


HOME, OFFICE, STRANGER = "192.0.2.7", "198.51.100.4", "203.0.113.9"
IVO = "ivo@fern.example"


@pytest.fixture
def people(client: OneHopClient, world: World) -> OneHopClient:
    """A browser on a platform with Mara and Ivo, whose passwords are the same."""
    for name in ("mara", "ivo"):
        world.member(name, password=PASSWORD)
    return client


def tried(
    browser: OneHopClient, email: str, source: str, times: int = 1, password: str = "a guess"
) -> list[int]:
    """Return the statuses of attempts to sign in."""
    browser.address = source
    browser.cookies.clear()
    form = {"csrf": csrf_of(browser.get("/login")), "email": email, "password": password, "next": "/"}
    return [
        browser.post("/login", data={**form, "email": email.format(number)}).status_code
        for number in range(times)
    ]


def test_a_stranger_who_guesses_at_an_account_does_not_lock_its_owner_out(people: OneHopClient) -> None:
    assert tried(people, MARA, STRANGER, 30) == [403] * 10 + [429] * 20
    assert tried(people, "MARA@fern.example ", STRANGER, password=PASSWORD) == [429]
    assert tried(people, MARA, HOME, password=PASSWORD) == [303]


def test_a_stranger_beside_people_keeps_none_of_them_out_who_has_signed_in_there(
    people: OneHopClient, clock: ManualClock
) -> None:
    assert tried(people, MARA, OFFICE, password=PASSWORD) == [303]
    assert tried(people, "user{}@fern.example", OFFICE, 80) == [403] * 50 + [429] * 30
    assert tried(people, MARA, OFFICE, password=PASSWORD) == [303]
    assert tried(people, IVO, OFFICE, password=PASSWORD) == [429]
    assert tried(people, IVO, HOME, password=PASSWORD) == [303]
    clock.advance(15 * 60)
    assert tried(people, IVO, OFFICE, password=PASSWORD) == [303]


def test_a_network_of_ipv6_is_one_source(people: OneHopClient) -> None:
    statuses = [tried(people, MARA, f"2001:db8:1:2::{number:x}")[0] for number in range(1, 13)]
    assert statuses == [403] * 10 + [429] * 2
    assert tried(people, MARA, "2001:db8:1:3::1") == [403]
    assert tried(people, MARA, "::ffff:192.0.2.7", 10) == [403] * 10
    assert tried(people, MARA, "192.0.2.7") == [429]


def test_what_strangers_can_make_the_platform_remember_is_bounded(
    people: OneHopClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.sign_in._MAX_KEYS", 30)
    assert tried(people, MARA, STRANGER, 11)[-1] == 429
    for number in range(31):
        tried(people, MARA, f"10.0.0.{number}")
    assert tried(people, MARA, STRANGER) == [403], "the oldest is forgotten first"


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
    client: TestClient, mara: Member, clock: ManualClock, world: World
) -> None:
    started = start(client)
    assert world.is_stored(started["user_code"]) and not world.is_stored(started["device_code"])
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
    tokens = world.operate("token", "list", "-u", "mara@fern.example", "--all")["items"]
    assert [token["name"] for token in tokens].count("maras-laptop") == 1
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


def test_the_cookie_is_secure_behind_tls(world: World) -> None:

    world.configure(public_url="https://osmosis.fern.example/lab")
    client = TestClient(application(world))
    assert "secure" in client.get("/device").headers["set-cookie"].lower()
    started = client.post("/api/cli/device/authorize", json={}).json()
    assert started["verification_uri"] == "https://osmosis.fern.example/lab/device"


def test_strangers_can_neither_fill_the_database_nor_keep_others_from_logging_in(
    client: OneHopClient, mara: Member, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.sign_in.MAX_OPEN", 3)
    flood = []
    for number in range(10):
        client.address = f"203.0.113.{number}"
        flood.append(start(client, "flood"))
        clock.advance(0.001)
    client.address = HOME
    started = start(client)
    codes = [poll(client, each).json()["code"] for each in (*flood, started)]
    assert codes == ["EXPIRED_TOKEN"] * 8 + ["AUTHORIZATION_PENDING"] * 3
    assert decide(client, started["user_code"]).status_code == 200


def test_a_disabled_user_is_let_in_by_nothing_they_had_until_they_are_enabled(
    client: OneHopClient, world: World
) -> None:
    mara = world.member(password=PASSWORD)
    world.member("tom", role="owner")
    v1 = world.token(mara, "api_key")
    assert sign_in(client).status_code == 303
    assert client.get("/api/cli/datasets", headers=mara.headers).status_code == 200
    assert client.get("/v1/models", headers=v1).status_code == 200
    assert client.get("/fern/evals", headers=PAGE).status_code == 200

    assert world.operate("user", "disable", MARA, "--yes")["resource"]["ended"] == 1
    assert_flat_error(client.get("/api/cli/datasets", headers=mara.headers), 401, "TOKEN_REVOKED")
    assert_openai_error(client.get("/v1/models", headers=v1), 401, "invalid_api_key")
    assert client.get("/fern/evals", headers=PAGE).status_code == 303
    assert sign_in(client).status_code == 403

    assert world.operate("user", "enable", MARA)["status"] == "success"
    assert client.get("/api/cli/datasets", headers=mara.headers).status_code == 200
    assert client.get("/v1/models", headers=v1).status_code == 200
    assert client.get("/fern/evals", headers=PAGE).status_code == 303, (
        "a session that has ended does not come back"
    )
    assert sign_in(client).status_code == 303
    assert world.operate("user", "enable", MARA)["status"] == "noop"


def statuses(client: TestClient, reader: Member) -> dict[str, tuple[str, str | None]]:
    """Return the status of each run that a member sees, or what it waits for, and its creator."""
    listed = client.get("/api/cli/eval-runs", headers=reader.headers).json()["eval_runs"]
    return {run["name"]: (run.get("waits", run["status"]), run.get("creator_name")) for run in listed}


def test_runs_of_a_disabled_user_go_on_unless_they_are_to_stop(
    client: TestClient, world: World, member: Member
) -> None:
    ben = world.member("ben")
    for name in ("pending", "running", "finished"):
        add_run(world, member, name, status=name, completed_at=None)
    done = world.operate("user", "disable", MARA, "--yes")["resource"]
    assert sorted(done["open_runs"]) == ["pending", "running"]
    assert statuses(client, ben)["running"] == ("running", "Mara")
    done = world.operate("user", "disable", MARA, "--yes", "--stop-runs")["resource"]
    assert sorted(done["stopped_runs"]) == ["pending", "running"]
    found = {name: status for name, (status, _) in statuses(client, ben).items()}
    assert "stop" in found.pop("running")
    assert found == {"pending": "stopped", "finished": "finished"}


def test_with_a_removed_user_go_tokens_and_personal_secrets_and_their_work_stays(
    client: TestClient, world: World, member: Member, uploads: Uploads
) -> None:
    ben = world.member("ben", role="member")
    for name in ("pending", "finished"):
        add_run(world, member, name, status=name, completed_at=None)
    uploads.upload("kept", rows())
    uploads.begin("half", rows())
    uploads.stop_checks()
    sent = uploads.begin("sent", rows())
    assert uploads.complete(sent["id"], uploads.send(sent, rows())).json()["status"] == "processing"
    for scope in ("user", "workspace"):
        world.put_secret(member, "API_KEY", f"sk-of-{scope}", scope)

    with pytest.raises(AssertionError, match="last owner of fern"):
        world.operate("user", "remove", MARA, "--yes")
    world.join(member.workspace.id, ben, "owner")
    done = world.operate("user", "remove", MARA, "--yes")["resource"]

    assert (done["stopped_runs"], done["deleted_personal_secrets"]) == (["pending"], 1)
    assert_flat_error(client.get("/api/cli/datasets", headers=member.headers), 401, "TOKEN_INVALID")
    assert statuses(client, ben) == {"pending": ("stopped", None), "finished": ("finished", None)}
    secrets = client.get("/api/cli/environment-secrets", headers=ben.headers).json()["environment_secrets"]
    assert [secret["scope"] for secret in secrets] == ["workspace"]
    kept = client.get("/api/cli/datasets", headers=ben.headers).json()["datasets"]
    assert {each["file_name"]: (each["status"], each.get("creator_name")) for each in kept} == {
        "kept": ("uploaded", None),
        "half": ("cancelled", None),
        "sent": ("processing", None),
    }
    with pytest.raises(AssertionError, match=r"no user mara@fern\.example"):
        world.operate("user", "enable", MARA)


def test_a_new_password_ends_sessions_and_on_request_tokens(client: OneHopClient, world: World) -> None:
    mara = world.member(password=PASSWORD)
    assert sign_in(client).status_code == 303 and client.get("/fern/evals", headers=PAGE).status_code == 200
    world.operate("user", "password", MARA)
    assert client.get("/fern/evals", headers=PAGE).status_code == 303
    assert client.get("/api/cli/datasets", headers=mara.headers).status_code == 200
    world.operate("user", "password", MARA, "--revoke-tokens")
    assert_flat_error(client.get("/api/cli/datasets", headers=mara.headers), 401, "TOKEN_REVOKED")


@pytest.mark.parametrize("only_this_workspace", [True, False])
def test_an_api_key_of_somebody_who_left_the_workspace_gets_no_model(
    client: TestClient, world: World, member: Member, only_this_workspace: bool
) -> None:
    home = member.workspace.id if only_this_workspace else None
    v1 = world.token(member, "api_key", workspace_id=home)
    asked = {"model": "osmosis/tiny", "messages": [{"role": "user", "content": "hi"}]}
    world.leave(member)
    for reply in (
        client.get("/v1/models", headers=v1),
        client.get("/v1/models/osmosis/tiny", headers=v1),
        client.post("/v1/chat/completions", headers=v1, json=asked),
    ):
        assert "no longer a member" in assert_openai_error(reply, 403, "not_a_member")
