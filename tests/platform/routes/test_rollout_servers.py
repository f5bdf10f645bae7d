"""Agents that are served elsewhere: who may register them, what is shown of them, and where nothing connects to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.controller.served_loop import LoopProcess
from tests.platform.conftest import Member, World, assert_flat_error

REGISTER, SERVERS = "/api/cli/rollout-server/register", "/api/cli/rollout-servers"
KEY = "osm_rollout_canary-4711"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where an agent is served that takes ``KEY``."""
    with LoopProcess(KEY) as agent:
        yield agent.port


def registration(served_at: int, **changes: Any) -> dict[str, Any]:
    return {
        "host": "127.0.0.1",
        "port": served_at,
        "agent_loop_name": "calculator",
        "api_key": KEY,
        **changes,
    }


@pytest.mark.integration
def test_an_agent_is_registered_probed_listed_and_removed_and_its_key_never_shown(
    api: TestClient, world: World, port: int
) -> None:
    replies = [api.post(REGISTER, json=registration(port))]
    told = replies[0].json()
    assert told == {
        "id": told["id"],
        "name": "calculator",
        "status": "healthy",
        "health_check_result": {
            "server_info": {
                "status": "healthy",
                "agent_loop": "loop",
                "active_rollouts": 0,
                "completed_rollouts": 0,
            }
        },
    }
    replies.append(api.get(SERVERS))
    (listed,) = replies[-1].json()["rollout_servers"]
    assert listed | {"created_at": "", "updated_at": "", "probed_at": ""} == {
        "id": told["id"],
        "name": "calculator",
        "host": "127.0.0.1",
        "port": port,
        "status": "healthy",
        "has_key": True,
        "error": None,
        "creator_name": "Mara",
        "created_at": "",
        "updated_at": "",
        "probed_at": "",
    }
    # The newest registration of a name is the agent of that name; an unhealthy one is kept, and says why.
    replies.append(api.post(REGISTER, json=registration(port, api_key="osm_rollout_wrong")))
    assert (replies[-1].json()["id"], replies[-1].json()["status"]) == (told["id"], "unhealthy")
    assert "refuses the key" in replies[-1].json()["health_check_result"]["error"]
    replies.append(api.post(REGISTER, json=registration(port)))
    assert world.operate("secret-key", "rotate")["resource"]["resealed"] == 1
    replies.append(api.post(f"{SERVERS}/calculator/probe", json={}))
    assert replies[-1].json()["status"] == "healthy"
    assert KEY not in "".join(reply.text for reply in replies) and not world.is_stored(KEY)
    assert api.delete(f"{SERVERS}/calculator").json() == {}
    for gone in (api.delete(f"{SERVERS}/calculator"), api.post(f"{SERVERS}/calculator/probe", json={})):
        assert_flat_error(gone, 404, "NOT_FOUND")
        assert "list" not in gone.json()["error"]  # the command names its list, or similar names
    assert api.get(SERVERS).json()["rollout_servers"] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "169.254.169.254"}, "is refused"),
        ({"host": "::ffff:169.254.169.254"}, "is refused"),
        ({"host": "0.0.0.0"}, "is refused"),
        ({"host": "64:ff9b::169.254.169.254"}, "is refused"),
        ({"host": "2852039166"}, "neither a host name nor an IP address"),
        ({"host": "h\r\nX: y"}, "neither a host name nor an IP address"),
        ({"host": "u:p@127.0.0.1"}, "neither a host name nor an IP address"),
        ({"host": "127.0.0.1/x?"}, "neither a host name nor an IP address"),
        ({"port": 0}, "is not between 1 and 65535"),
        ({"port": 70000}, "is not between 1 and 65535"),
        ({"agent_loop_name": " "}, "name of a served agent"),
        ({"agent_loop_name": "a\nb"}, "name of a served agent"),
        ({"api_key": "k\r\nX: y"}, "key of a served agent"),
        ({"api_key": "schlüssel"}, "key of a served agent"),
        ({"api_key": ""}, "key of a served agent"),
    ],
)
def test_what_can_be_no_agent_is_refused_and_nothing_is_asked(
    api: TestClient, port: int, changes: dict[str, Any], words: str
) -> None:
    refused = api.post(REGISTER, json=registration(port, **changes))
    assert refused.status_code == 400 and words in refused.json()["error"], refused.text
    assert api.get(SERVERS).json()["rollout_servers"] == []


def test_the_workspace_is_that_of_the_token_or_of_the_repository(
    client: TestClient, world: World, member: Member, stranger: Member, port: int
) -> None:
    def register(token: str, **headers: str) -> Any:
        sent = {"Authorization": f"Bearer {token}", **headers}
        return client.post(REGISTER, json=registration(port), headers=sent)

    assert_flat_error(client.post(REGISTER, json=registration(port)), 401, "AUTH_HEADER_MISSING")
    # As the 0.2 line asks: a token of one workspace, and no header that names a repository.
    without_repository = world.token(member, workspace_id=member.workspace.id)
    of_fern = without_repository["Authorization"].removeprefix("Bearer ")
    assert register(of_fern).status_code == 200
    (listed,) = client.get(SERVERS, headers=without_repository).json()["rollout_servers"]
    assert listed["name"] == "calculator"
    probed = client.post(f"{SERVERS}/calculator/probe", json={}, headers=without_repository)
    assert probed.json()["status"] == "healthy"
    assert client.delete(f"{SERVERS}/calculator", headers=without_repository).json() == {}
    assert client.get(SERVERS, headers=without_repository).json()["rollout_servers"] == []
    assert register(of_fern).status_code == 200
    assert [s["name"] for s in client.get(SERVERS, headers=member.headers).json()["rollout_servers"]] == [
        "calculator"
    ]
    assert client.get(SERVERS, headers=stranger.headers).json()["rollout_servers"] == []
    other = f"{SERVERS}/calculator"
    assert_flat_error(client.delete(other, headers=stranger.headers), 404, "NOT_FOUND")
    assert_flat_error(
        register(stranger.token, **{"X-Osmosis-Git": "fern/agents"}), 403, "GIT_REPOSITORY_ACCESS_DENIED"
    )
    world.join(stranger.workspace.id, member)
    assert_flat_error(register(member.token), 400, "WORKSPACE_REQUIRED")
    ambiguous = client.get(SERVERS, headers={"Authorization": f"Bearer {member.token}"})
    assert_flat_error(ambiguous, 400, "WORKSPACE_REQUIRED")
    assert register(member.token, **{"X-Osmosis-Git": "moss/agents"}).status_code == 200
    world.leave(member)
    assert_flat_error(register(of_fern), 403, "WORKSPACE_ACCESS_DENIED")
