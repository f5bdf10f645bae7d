from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, text

from osmosis_ai.platform.db.tables import DbDeviceLogin, DbToken
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import ManualClock, Member, World, application, assert_flat_error

PASSWORD = "correct horse battery"


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


def csrf_of(page: Any) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


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
    client: TestClient, mara: Member, clock: ManualClock
) -> None:
    started = start(client)
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
    assert issued["user"] == {"id": mara.user.id, "email": "mara@fern.example", "name": "Mara"}
    assert issued["expires_at"] == "2027-01-31T09:30:05.000Z"
    verified = client.get("/api/cli/verify", headers={"Authorization": f"Bearer {issued['token']}"}).json()
    assert verified["token_id"] == issued["token_id"]


def test_a_token_is_given_out_once(client: TestClient, mara: Member, services: PlatformServices) -> None:
    started = start(client)
    decide(client, started["user_code"])
    assert poll(client, started).status_code == 200
    body = assert_flat_error(poll(client, started), 400, "EXPIRED_TOKEN")
    assert body["error"] == "expired_token"
    with services.db.session() as session:
        count = select(func.count()).select_from(DbToken).where(DbToken.name == "maras-laptop")
        assert session.scalar(count) == 1


def test_a_denied_device_is_told_so(client: TestClient, mara: Member) -> None:
    started = start(client)
    assert "turned away" in decide(client, started["user_code"], "deny").text
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


def test_polling_at_the_interval_is_never_too_fast(client: TestClient, clock: ManualClock) -> None:
    started = start(client)
    for _ in range(20):
        assert poll(client, started).json()["error"] == "authorization_pending"
        clock.advance(4.7)
    clock.jump(-3600)
    assert poll(client, started).json()["error"] == "authorization_pending"


def test_the_page_forgives_how_a_code_is_typed(client: TestClient, mara: Member) -> None:
    code = start(client)["user_code"]
    for typed in (code.lower(), code.replace("-", ""), f" {code[:4]} {code[5:]} "):
        assert client.get("/device", params={"code": typed}).status_code == 200
    for typed in ("ABCD-EFGH", "<script>alert(1)</script>", "\0", "名前", "x" * 5000):
        page = client.get("/device", params={"code": typed})
        assert page.status_code == 404
        assert "<script>" not in page.text


def test_the_page_without_a_code_asks_for_one(client: TestClient) -> None:
    page = client.get("/device")
    assert page.status_code == 200 and 'name="code"' in page.text


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


def test_a_wrong_password_lets_nobody_in_and_is_not_repeated(client: TestClient, mara: Member) -> None:
    started = start(client)
    for changes in ({"password": "canary-4711"}, {"email": "nobody@fern.example"}, {"password": ""}):
        reply = decide(client, started["user_code"], **changes)
        assert reply.status_code == 403 and "do not belong together" in reply.text
        assert "canary-4711" not in reply.text
    assert_flat_error(poll(client, started), 400, "AUTHORIZATION_PENDING")


def test_guessing_a_password_is_stopped_and_lets_the_owner_in_later(
    client: TestClient, mara: Member, clock: ManualClock
) -> None:
    code = start(client)["user_code"]
    for _ in range(10):
        assert decide(client, code, password="wrong wrong wrong").status_code == 403
    stopped = decide(client, code)
    assert stopped.status_code == 429
    assert 0 < int(stopped.headers["retry-after"]) <= 901
    clock.advance(901)
    code = start(client)["user_code"]
    assert decide(client, code).status_code == 200


def test_guessing_codes_is_stopped(client: TestClient, mara: Member) -> None:
    code = start(client)["user_code"]
    for _ in range(20):
        assert client.get("/device", params={"code": "BCDF-GHJK"}).status_code == 404
    assert client.get("/device", params={"code": code}).status_code == 429


def test_the_page_can_be_neither_framed_nor_scripted_by_others_nor_cached(client: TestClient) -> None:
    page = client.get("/device")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert page.headers["cache-control"] == "no-store"
    cookie = page.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie


def test_the_cookie_is_secure_behind_tls(services: PlatformServices) -> None:
    from dataclasses import replace

    public = replace(services, config=replace(services.config, public_url="https://osmosis.fern.example/lab"))
    client = TestClient(application(public))
    assert "secure" in client.get("/device").headers["set-cookie"].lower()
    started = client.post("/api/cli/device/authorize", json={}).json()
    assert started["verification_uri"] == "https://osmosis.fern.example/lab/device"


@pytest.mark.parametrize("name", ["", "<b>bold</b>", "x" * 5000, "line\nbreak", "名前"])
def test_a_device_may_call_itself_anything(client: TestClient, mara: Member, name: str) -> None:
    page = client.get("/device", params={"code": start(client, name)["user_code"]})
    assert page.status_code == 200 and "<b>bold" not in page.text


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
    monkeypatch.setattr("osmosis_ai.platform.device_logins.MAX_OPEN", 3)
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


def test_one_source_gives_up_its_own_log_ins_and_nobody_elses(
    services: PlatformServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.device_logins.MAX_OF_SOURCE", 2)
    first = services.device_logins.start("laptop", source="192.0.2.7")
    flood = [services.device_logins.start("flood", source="203.0.113.1") for _ in range(5)]
    assert services.device_logins.find(first.user_code) is not None
    found = [services.device_logins.find(each.user_code) is not None for each in flood]
    assert found == [False, False, False, True, True]


def test_the_device_code_is_kept_as_a_hash_alone(client: TestClient, services: PlatformServices) -> None:
    started = start(client)
    with services.db.session() as session:
        kept = str(session.execute(text("SELECT * FROM device_logins")).all())
    assert started["user_code"] in kept and started["device_code"] not in kept
