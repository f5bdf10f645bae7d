"""Device login and revocation of tokens."""

from __future__ import annotations

import pytest

from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.credentials import Credentials
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.services.auth import authorize_device, poll_device_token, revoke
from tests.contract.conftest import BASE, Wire


def test_device_login(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/device/authorize",
        """{"device_code": "dc_canary", "user_code": "WXYZ-1234", "verification_uri": "https://p.example/device",
            "verification_uri_complete": "https://p.example/device?code=WXYZ-1234", "expires_in": 900,
            "interval": 5}""",
    )
    device = authorize_device(client, "mara-laptop")
    assert wire.sent == {"deviceName": "mara-laptop"}
    assert "authorization" not in wire.headers and "x-osmosis-git" not in wire.headers
    assert (device.user_code, device.expires_in, device.interval) == ("WXYZ-1234", 900, 5)
    assert device.verification_uri_complete == "https://p.example/device?code=WXYZ-1234"
    assert "dc_canary" not in repr(device)

    wire.answers(
        "POST",
        "/api/cli/device/token",
        """{"token": "osm_u_canary", "token_id": "ct_01J8", "expires_at": "2027-02-01T09:00:00Z",
            "user": {"id": "usr_5", "email": "mara@fern.example", "name": "Mara"}}""",
    )
    issued = poll_device_token(client, device.device_code)
    assert wire.sent == {"device_code": "dc_canary"}
    assert "authorization" not in wire.headers
    assert not isinstance(issued, str)
    assert (issued.token, issued.token_id, issued.user.name) == ("osm_u_canary", "ct_01J8", "Mara")
    assert "osm_u_canary" not in f"{issued!r} {issued}"


def test_device_login_with_minimal_replies(client: PlatformClient, wire: Wire) -> None:
    wire.answers(
        "POST",
        "/api/cli/device/authorize",
        '{"device_code": "dc_1", "user_code": "u", "verification_uri": "v", "expires_in": 900.5, "interval": 1,'
        ' "verification_uri_complete": null}',
    )
    assert authorize_device(client, "x").verification_uri_complete is None
    wire.answers(
        "POST",
        "/api/cli/device/token",
        '{"token": "t", "user": {"id": "u", "email": "e", "name": null}, "expires_at": null, "token_id": null}',
    )
    issued = poll_device_token(client, "dc_1")
    assert not isinstance(issued, str) and issued.expires_at is None and issued.token_id is None


@pytest.mark.parametrize("word", ["authorization_pending", "slow_down"])
def test_pending_login(client: PlatformClient, wire: Wire, word: str) -> None:
    wire.answers("POST", "/api/cli/device/token", f'{{"error": "{word}"}}', status=400)
    assert poll_device_token(client, "dc_1") == word


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
def test_failed_login(
    client: PlatformClient, wire: Wire, word: str, status: int, code: str, words: str
) -> None:
    wire.answers("POST", "/api/cli/device/token", f'{{"error": "{word}"}}', status=status)
    with pytest.raises(PlatformError, match=words) as caught:
        poll_device_token(client, "dc_1")
    assert caught.value.code == code


def test_an_invalid_token_reply_does_not_show_the_token(client: PlatformClient, wire: Wire) -> None:
    wire.answers("POST", "/api/cli/device/token", '{"token": "osm_canary", "user": {"id": "osm_canary"}}')
    with pytest.raises(PlatformError) as caught:
        poll_device_token(client, "dc_1")
    assert "osm_canary" not in f"{caught.value.message} {caught.value.details} {caught.value.__context__}"


@pytest.mark.parametrize("status", [200, 204])
def test_revoke_sends_no_body(client: PlatformClient, wire: Wire, status: int) -> None:
    wire.answers("DELETE", "/api/cli/tokens/ct_01J8", "", status=status)
    revoke(Credentials("osm_u_7Qd", BASE, "file", token_id="ct_01J8"))
    assert wire.sent is None
    assert wire.headers["authorization"] == "Bearer osm_u_7Qd"
    assert wire.headers["content-type"] == "application/json"
