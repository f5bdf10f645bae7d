from __future__ import annotations

from datetime import datetime, timezone

import pytest

from tests.contract.conftest import BASE, PlatformClient, PlatformError, Wire

VERIFY = """{"valid": true, "user": {"id": "usr_5", "email": "mara@fern.example", "name": "Mara"},
 "expires_at": "2027-02-01T10:00:00+01:00", "token_id": "ct_01J8",
 "workspace": {"id": "ws_1", "name": "fern-lab", "role": "admin"},
 "organization": {"id": "ws_1", "name": "fern-lab", "role": "owner"}, "unknown": {"x": [1]}}"""


def test_verify_full(client: PlatformClient, wire: Wire) -> None:
    wire.answers("GET", "/api/cli/verify", VERIFY)
    found = client.verify()
    assert (found.user.id, found.user.email, found.user.name) == ("usr_5", "mara@fern.example", "Mara")
    assert found.expires_at == datetime(2027, 2, 1, 9, tzinfo=timezone.utc)
    assert found.token_id == "ct_01J8"
    assert found.workspace is not None
    assert (found.workspace.id, found.workspace.name, found.workspace.role) == ("ws_1", "fern-lab", "admin")
    assert wire.headers["x-osmosis-git"] == "fern/maze"


@pytest.mark.parametrize(
    "reply",
    [
        '{"user": {"id": "u", "email": "e"}}',
        '{"user": {"id": "u", "email": "e", "name": null}, "workspace": null, "expires_at": null,'
        ' "token_id": null, "valid": null, "organization": null}',
    ],
)
def test_verify_minimal_and_null(wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/verify", reply)
    with PlatformClient(BASE, "osm_t") as client:
        found = client.verify()
    assert (found.user.name, found.workspace, found.expires_at, found.token_id) == (None, None, None, None)
    assert "x-osmosis-git" not in wire.headers


@pytest.mark.parametrize("reply", ["{}", '{"user": null}', '{"user": {"id": "u"}}', '{"user": "mara"}'])
def test_verify_without_a_user_is_no_verification(client: PlatformClient, wire: Wire, reply: str) -> None:
    wire.answers("GET", "/api/cli/verify", reply)
    with pytest.raises(PlatformError, match="`user"):
        client.verify()


def test_a_time_without_a_zone_is_utc(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET", "/api/cli/verify", '{"user": {"id": "u", "email": "e"}, "expires_at": "2027-02-01T09:00:00"}'
    )
    assert client.verify().expires_at == datetime(2027, 2, 1, 9, tzinfo=timezone.utc)


def test_device_login_from_the_code_to_the_token(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/device/authorize",
        """{"device_code": "dc_canary", "user_code": "WXYZ-1234", "verification_uri": "https://p.example/device",
            "verification_uri_complete": "https://p.example/device?code=WXYZ-1234", "expires_in": 900,
            "interval": 5}""",
    )
    asked = client.auth.authorize_device("mara-laptop")
    assert wire.sent == {"deviceName": "mara-laptop"}
    assert "authorization" not in wire.headers and "x-osmosis-git" not in wire.headers
    assert (asked.user_code, asked.expires_in, asked.interval) == ("WXYZ-1234", 900, 5)
    assert asked.verification_uri_complete == "https://p.example/device?code=WXYZ-1234"
    assert "dc_canary" not in repr(asked)

    wire.answers(
        "POST",
        "/api/cli/device/token",
        """{"token": "osm_u_canary", "token_id": "ct_01J8", "expires_at": "2027-02-01T09:00:00Z",
            "user": {"id": "usr_5", "email": "mara@fern.example", "name": "Mara"}}""",
    )
    issued = client.auth.poll_device_token(asked.device_code)
    assert wire.sent == {"device_code": "dc_canary"}
    assert "authorization" not in wire.headers
    assert not isinstance(issued, str)
    assert (issued.token, issued.token_id, issued.user.name) == ("osm_u_canary", "ct_01J8", "Mara")
    assert "osm_u_canary" not in f"{issued!r} {issued}"


def test_device_login_with_the_least_a_platform_may_say(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/device/authorize",
        '{"device_code": "dc_1", "user_code": "u", "verification_uri": "v", "expires_in": 900.5, "interval": 1,'
        ' "verification_uri_complete": null}',
    )
    assert client.auth.authorize_device("x").verification_uri_complete is None
    wire.answers(
        "POST",
        "/api/cli/device/token",
        '{"token": "t", "user": {"id": "u", "email": "e", "name": null}, "expires_at": null, "token_id": null}',
    )
    issued = client.auth.poll_device_token("dc_1")
    assert not isinstance(issued, str) and issued.expires_at is None and issued.token_id is None


@pytest.mark.parametrize("word", ["authorization_pending", "slow_down"])
def test_waiting_for_the_user_is_no_error(client: PlatformClient, wire: Wire, word: str) -> None:
    wire.answers("POST", "/api/cli/device/token", f'{{"error": "{word}"}}', status=400)
    assert client.auth.poll_device_token("dc_1") == word


@pytest.mark.parametrize(
    "word, status, code, words",
    [
        ("expired_token", 400, "AUTH_REQUIRED", "not confirmed in time"),
        ("access_denied", 400, "AUTH_REQUIRED", "declined"),
        ("something_else", 400, "VALIDATION", "something_else"),
        ("busy", 503, "PLATFORM_ERROR", "busy"),
        ("slower", 429, "RATE_LIMITED", "slower"),
    ],
)
def test_every_other_answer_ends_the_login(
    client: PlatformClient, wire: Wire, word: str, status: int, code: str, words: str
) -> None:
    wire.answers("POST", "/api/cli/device/token", f'{{"error": "{word}"}}', status=status)
    with pytest.raises(PlatformError, match=words) as caught:
        client.auth.poll_device_token("dc_1")
    assert caught.value.code == code


def test_a_token_reply_that_cannot_be_read_does_not_show_the_token(
    client: PlatformClient, wire: Wire
) -> None:
    wire.answers("POST", "/api/cli/device/token", '{"token": "osm_canary", "user": {"id": "osm_canary"}}')
    with pytest.raises(PlatformError) as caught:
        client.auth.poll_device_token("dc_1")
    assert "osm_canary" not in f"{caught.value.message} {caught.value.details} {caught.value.__context__}"


@pytest.mark.parametrize("status", [200, 204])
def test_revoke_sends_no_body(client: PlatformClient, wire: Wire, status: int) -> None:
    wire.answers("DELETE", "/api/cli/tokens/ct_01J8", "", status=status)
    client.auth.revoke("ct_01J8")
    assert wire.sent is None
    assert wire.headers["authorization"] == "Bearer osm_u_7Qd"
    assert wire.headers["content-type"] == "application/json"


def test_workspaces(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "GET",
        "/api/cli/workspaces",
        """{"workspaces": [
            {"id": "ws_1", "name": "fern-lab", "role": "owner", "has_billing_setup": true,
             "connected_repo": {"id": "r_1", "repo_full_name": "fern/maze"}},
            {"id": "ws_2", "name": "moss", "connected_repo": null},
            {"id": "ws_3", "name": "reed", "role": null, "has_billing_setup": null,
             "connected_repo": {"repo_full_name": "reed/x"}}]}""",
    )
    first, second, third = client.workspaces.list().workspaces
    assert first.connected_repo is not None and first.connected_repo.repo_full_name == "fern/maze"
    assert (first.role, second.connected_repo, third.role) == ("owner", None, None)
    assert "x-osmosis-git" not in wire.headers
