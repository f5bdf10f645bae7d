"""`/v1` as a client of OpenAI's meets it: models, keys, refusals, answers."""

from __future__ import annotations

import io
import json

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.db.tables import DbLoraModel, DbRun
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import Member, assert_openai_error
from tests.platform.model_servers import CHAT

# -- through the real model --------------------------------------------------------------------


@pytest.fixture
def v1(client: TestClient, api_key: str) -> TestClient:
    client.headers["Authorization"] = f"Bearer {api_key}"
    return client


@pytest.mark.integration
def test_the_built_in_model_answers_and_streams_the_same(v1: TestClient) -> None:
    body = {**CHAT, "seed": 7, "max_tokens": 8}
    whole = v1.post("/v1/chat/completions", json=body).json()
    assert whole["object"] == "chat.completion"
    assert whole["model"] == "osmosis/tiny"

    with v1.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["x-accel-buffering"] == "no"
        events = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert events[-1] == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])
    assert text == whole["choices"][0]["message"]["content"]

    bad = v1.post("/v1/chat/completions", json={**CHAT, "temperature": "hot"})
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "temperature"


# -- without a model ---------------------------------------------------------------------------


def test_models_are_listed_and_shown_without_starting_one(v1: TestClient, services: PlatformServices) -> None:
    model = {
        "id": "osmosis/tiny",
        "object": "model",
        "created": services.model_servers.created,
        "owned_by": "osmosis",
    }

    assert v1.get("/v1/models").json() == {"object": "list", "data": [model]}
    for name in ("osmosis/tiny", "osmosis%2Ftiny", "tiny"):
        assert v1.get(f"/v1/models/{name}").json() == model
    assert "'other' is not served here" in assert_openai_error(
        v1.get("/v1/models/other"), 404, "model_not_found"
    )


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Basic abc", "Bearer osm_wrong", "Bearer sk-12345", "Bearer ä"]
)
def test_without_an_api_key_nothing_is_answered(client: TestClient, authorization: str) -> None:
    headers = {"Authorization": authorization.encode()} if authorization else {}
    for reply in (
        client.post("/v1/chat/completions", json=CHAT, headers=headers),
        client.get("/v1/models", headers=headers),
    ):
        assert_openai_error(reply, 401, "invalid_api_key")


def test_a_token_of_the_command_line_is_no_api_key_and_the_error_says_how_to_make_one(
    client: TestClient, member: Member
) -> None:
    reply = client.get("/v1/models", headers={"Authorization": f"Bearer {member.token}"})
    assert "osmosis platform token create" in assert_openai_error(reply, 401, "invalid_api_key")


def test_an_api_key_is_no_token_of_the_command_line(v1: TestClient, member: Member) -> None:
    reply = v1.get("/api/cli/models/base", headers={"X-Osmosis-Git": member.repository.identity})
    assert reply.status_code == 401


def test_a_revoked_key_is_refused(v1: TestClient, services: PlatformServices, member: Member) -> None:
    token, plain = services.accounts.create_token(member.user.id, "api_key")
    services.accounts.revoke_token(token.id)

    reply = v1.get("/v1/models", headers={"Authorization": f"Bearer {plain}"})
    assert "revoked" in assert_openai_error(reply, 401, "invalid_api_key")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ('{"model": "gpt-5"}', 404, "model_not_found"),
        ('{"model": "osmosis/tiny/../x"}', 404, "model_not_found"),
        ("{}", 400, "missing_required_parameter"),
        ('{"model": 7}', 400, "missing_required_parameter"),
        ("[]", 400, "missing_required_parameter"),
        ("not json", 400, None),
        ("", 400, None),
    ],
)
def test_a_request_for_no_model_that_is_served_is_refused(
    v1: TestClient, body: str, status: int, code: str | None
) -> None:
    assert_openai_error(v1.post("/v1/chat/completions", content=body), status, code)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_other_routes_are_refused_in_the_shape_clients_read(v1: TestClient, method: str) -> None:
    assert_openai_error(v1.request(method, "/v1/embeddings"), 404, "unknown_url")


def _add_adapter(services: PlatformServices, member: Member, step: int, status: str | None) -> str:
    """Add an adapter whose stored files are damaged, so that no process can serve it; return its name."""
    run = DbRun(
        id=f"run_{step}",
        workspace_id=member.workspace.id,
        kind="training",
        name=f"finch-{step}",
        status="finished",
        created_at=services.clock.now(),
        request={},
        rollout_name="multiply",
        dataset_name="multiply",
        model_path="osmosis/tiny",
    )
    services.blobs.put(f"adapters/{step}", io.BytesIO(b"damaged"))
    model = DbLoraModel(
        id=f"lora_{step}",
        workspace_id=run.workspace_id,
        run_id=run.id,
        name=f"{run.name}-step-{step}",
        base_model="osmosis/tiny",
        step=step,
        files={"adapter_config.json": {"blob_key": f"adapters/{step}", "size": 7, "sha256": "0" * 64}},
        deployment_status=status,
        deployed_at=services.clock.now(),
        created_at=services.clock.now(),
    )
    with services.db.transaction() as session:
        session.add(run)
        session.flush()
        session.add(model)
    return f"osmosis/tiny:{model.name}"


def test_deployed_adapters_are_listed_for_members_of_their_workspace_alone(
    v1: TestClient, services: PlatformServices, member: Member, stranger: Member
) -> None:
    deployed = _add_adapter(services, member, 1, "active")
    others = [_add_adapter(services, member, 2, "inactive"), _add_adapter(services, member, 3, None)]
    theirs = _add_adapter(services, stranger, 4, "active")
    shown = v1.get("/v1/models").json()["data"][1:]
    assert [(model["id"], model["parent"]) for model in shown] == [(deployed, "osmosis/tiny")]
    assert v1.get(f"/v1/models/{deployed}").json() == shown[0]
    for name in (*others, theirs):
        refused = v1.post("/v1/chat/completions", json={**CHAT, "model": name})
        said = assert_openai_error(refused, 404, "model_not_found")
        assert f"'{deployed}'" in said
        assert "osmosis model deploy" in said
        assert_openai_error(v1.get(f"/v1/models/{name}"), 404, "model_not_found")


def test_an_adapter_whose_files_are_damaged_says_so(
    v1: TestClient, services: PlatformServices, member: Member
) -> None:
    name = _add_adapter(services, member, 1, "active")
    reply = v1.post("/v1/chat/completions", json={**CHAT, "model": name})
    said = assert_openai_error(reply, 503, "model_unavailable")
    assert name in said
    assert "adapter_config.json of the adapter 'finch-1-step-1' is damaged" in said
