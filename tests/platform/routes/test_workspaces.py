from __future__ import annotations

from fastapi.testclient import TestClient

from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import Member, assert_flat_error


def test_verify_tells_user_token_and_workspace(api: TestClient, member: Member) -> None:
    workspace = {"id": member.workspace.id, "name": "fern", "role": "owner"}
    assert api.get("/api/cli/verify").json() == {
        "user": {"id": member.user.id, "email": "mara@fern.example", "name": "Mara"},
        "expires_at": "2027-01-31T09:30:00.000Z",
        "token_id": member.token_id,
        "valid": True,
        "workspace": workspace,
        "organization": workspace,
    }


def test_a_token_revokes_itself_and_the_users_other_tokens_and_nobody_elses(
    api: TestClient, services: PlatformServices, member: Member, stranger: Member
) -> None:
    assert_flat_error(api.delete(f"/api/cli/tokens/{stranger.token_id}"), 404, "NOT_FOUND")
    other, _ = services.accounts.create_token(member.user.id)
    assert api.delete(f"/api/cli/tokens/{other.id}").status_code == 200
    assert api.delete(f"/api/cli/tokens/{member.token_id}").json() == {}
    assert_flat_error(api.delete(f"/api/cli/tokens/{member.token_id}"), 401, "TOKEN_REVOKED")
    assert services.accounts.authenticate(stranger.token)


def test_workspaces_are_listed_with_their_repository(
    api: TestClient, services: PlatformServices, member: Member, stranger: Member
) -> None:
    empty = services.workspaces.create("alder")
    services.workspaces.add_member(empty.id, member.user.id, "admin")
    assert api.get("/api/cli/workspaces").json() == {
        "workspaces": [
            {
                "id": empty.id,
                "name": "alder",
                "role": "admin",
                "has_billing_setup": True,
                "connected_repo": None,
            },
            {
                "id": member.workspace.id,
                "name": "fern",
                "role": "owner",
                "has_billing_setup": True,
                "connected_repo": {"id": member.repository.id, "repo_full_name": "fern/agents"},
            },
        ]
    }


def test_the_first_steps_wait_for_a_repository_and_never_for_a_bill(
    api: TestClient, services: PlatformServices, member: Member
) -> None:
    empty = services.workspaces.create("alder")
    services.workspaces.add_member(empty.id, member.user.id, "admin")
    quickstart = "/api/cli/quickstart"
    assert api.get(quickstart, params={"organizationId": empty.id}).json() == {
        "repo": {"connected": False, "full_name": None, "clone_url": None},
        "billing_ready": True,
        "completed": False,
    }
    connected = api.get(quickstart, params={"organizationId": member.workspace.id}).json()
    assert connected["repo"] == {
        "connected": True,
        "full_name": "fern/agents",
        "clone_url": member.repository.clone_url,
    }
    choice = {"organizationId": empty.id, "intent": "eval"}
    for _ in range(2):
        assert api.post(quickstart, json=choice).json() == {"completed": True}
        assert api.get(quickstart, params={"organizationId": empty.id}).json()["completed"] is True
    # It is one's own, and of one workspace.
    other = services.workspaces.create("birch")
    services.workspaces.add_member(other.id, member.user.id, "admin")
    assert api.get(quickstart, params={"organizationId": other.id}).json()["completed"] is False
    assert_flat_error(api.post(quickstart, json={**choice, "intent": "dance"}), 400, "VALIDATION_FAILED")
    assert_flat_error(
        api.post(quickstart, json={**choice, "organizationId": "wsp_other"}), 404, "WORKSPACE_NOT_FOUND"
    )
    assert_flat_error(api.get(quickstart), 400, "VALIDATION_FAILED")
