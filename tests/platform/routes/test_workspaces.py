from __future__ import annotations

from fastapi.testclient import TestClient

from tests.platform.conftest import Member, World, assert_flat_error


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
    api: TestClient, world: World, member: Member, stranger: Member
) -> None:
    assert_flat_error(api.delete(f"/api/cli/tokens/{stranger.token_id}"), 404, "NOT_FOUND")
    other = world.token(member)
    other_id = api.get("/api/cli/verify", headers=other).json()["token_id"]
    assert api.delete(f"/api/cli/tokens/{other_id}").status_code == 200
    assert_flat_error(api.get("/api/cli/verify", headers=other), 401, "TOKEN_REVOKED")
    assert api.delete(f"/api/cli/tokens/{member.token_id}").json() == {}
    assert_flat_error(api.delete(f"/api/cli/tokens/{member.token_id}"), 401, "TOKEN_REVOKED")
    assert api.get("/api/cli/verify", headers=stranger.headers).status_code == 200


def test_workspaces_are_listed_with_their_repository(
    api: TestClient, world: World, member: Member, stranger: Member
) -> None:
    empty = world.create_workspace("alder")
    world.join(empty, member, "admin")
    assert api.get("/api/cli/workspaces").json() == {
        "workspaces": [
            {
                "id": empty,
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


def test_a_workspace_is_named_in_place_of_its_repository(
    api: TestClient, world: World, member: Member
) -> None:
    world.join(world.create_workspace("alder"), member, "member")
    for name in ("fern", "alder"):
        headers = world.token(member) | {"X-Osmosis-Git": "", "X-Osmosis-Workspace": name}
        assert api.get("/api/cli/datasets", headers=headers).json()["total_count"] == 0
        # A run needs the code of a repository.
        submitted = api.post("/api/cli/eval-runs", json={}, headers=headers)
        assert_flat_error(submitted, 400, "GIT_SCOPE_HEADER_REQUIRED")
    unknown = api.get("/api/cli/datasets", headers=headers | {"X-Osmosis-Workspace": "birch"})
    assert_flat_error(unknown, 403, "WORKSPACE_ACCESS_DENIED")


def test_the_first_steps_wait_for_a_repository_and_never_for_a_bill(
    api: TestClient, world: World, member: Member
) -> None:
    empty = world.create_workspace("alder")
    world.join(empty, member, "admin")
    quickstart = "/api/cli/quickstart"
    assert api.get(quickstart, params={"organizationId": empty}).json() == {
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
    choice = {"organizationId": empty, "intent": "eval"}
    for _ in range(2):
        assert api.post(quickstart, json=choice).json() == {"completed": True}
        assert api.get(quickstart, params={"organizationId": empty}).json()["completed"] is True
    # It is one's own, and of one workspace.
    other = world.create_workspace("birch", member)
    assert api.get(quickstart, params={"organizationId": other}).json()["completed"] is False
    assert_flat_error(api.post(quickstart, json={**choice, "intent": "dance"}), 400, "VALIDATION_FAILED")
    assert_flat_error(
        api.post(quickstart, json={**choice, "organizationId": "wsp_other"}), 404, "WORKSPACE_NOT_FOUND"
    )
    assert_flat_error(api.get(quickstart), 400, "VALIDATION_FAILED")
