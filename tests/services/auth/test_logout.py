"""Logging out: what is revoked, what is forgotten, and what a person hears of it."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.api.credentials import CredentialStore
from osmosis_ai.services.auth import logout, plan_logout
from tests.api.keyrings import MemoryKeyring
from tests.logins import FERN, TOKEN, save_login
from tests.services.auth.conftest import Warnings, saved


def test_logging_out_revokes_and_forgets(platform: respx.MockRouter, working: MemoryKeyring) -> None:
    store = save_login()
    revoke = platform.delete("/api/cli/tokens/ct_01J8").respond(204)
    plan = plan_logout()
    assert logout(plan) is True
    assert revoke.calls.last.request.headers["authorization"] == f"Bearer {TOKEN}"
    assert plan.resource(revoked=True) == {
        "logged_in": False,
        "revoked": True,
        "env_token_set": False,
        "persistent_login": False,
        "effective_source": None,
        "platform_url": FERN,
        "platforms": [FERN],
        "directories": [],
    }
    assert working.kept == {}
    assert not store.path.exists()


@pytest.mark.parametrize("reply", [httpx.Response(500), httpx.Response(404), httpx.ConnectError("down")])
def test_a_platform_that_does_not_revoke_does_not_keep_anyone_logged_in(
    platform: respx.MockRouter, warn: Warnings, reply: Any
) -> None:
    save_login()
    platform.delete("/api/cli/tokens/ct_01J8").mock(side_effect=[reply])
    assert logout(plan_logout(), warn=warn) is False
    assert warn.codes == ["TOKEN_REVOKE_FAILED"]
    assert saved() is None


def test_an_expired_login_is_forgotten_without_a_call(platform: respx.MockRouter) -> None:
    save_login(expires_at=datetime(2020, 1, 1, tzinfo=timezone.utc))
    assert logout(plan_logout()) is False
    assert platform.calls.call_count == 0
    assert CredentialStore().all() == ()


def test_a_login_that_lost_its_token_is_forgotten_with_a_warning(
    working: MemoryKeyring, warn: Warnings
) -> None:
    save_login()
    working.kept.clear()
    logout(plan_logout(), warn=warn)
    assert warn.codes == ["TOKEN_NOT_FOUND"]
    assert CredentialStore().all() == ()


def test_only_the_active_platform_is_left_unless_all_are(platform: respx.MockRouter) -> None:
    other = "https://other.example"
    save_login()
    save_login(other, token="osm_other", token_id="ct_OTHER")
    assert plan_logout().platforms == (FERN,)
    plan = plan_logout(everywhere=True)
    assert plan.platforms == (FERN, other)
    platform.delete("/api/cli/tokens/ct_01J8").respond(204)
    with respx.mock(base_url=other) as elsewhere:
        elsewhere.delete("/api/cli/tokens/ct_OTHER").respond(204)
        assert logout(plan) is True
    assert CredentialStore().all() == ()


def test_damaged_logins_can_be_left_behind(home: Path, warn: Warnings) -> None:
    path = home / ".config/osmosis/credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    plan = plan_logout()
    assert (plan.platforms, plan.is_empty) == ((), False)
    logout(plan, warn=warn)
    assert warn.codes == ["CREDENTIALS_METADATA_BACKED_UP"]
    assert plan_logout().is_empty
