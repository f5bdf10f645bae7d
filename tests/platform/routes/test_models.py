"""Models over HTTP: the built-in one, and the adapters that training runs have saved."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.viewer.runs_world import add_model, add_run

MODELS = "/api/cli/models"
MOST_DEPLOYED = 8


def add_models(world: World, member: Member, *steps: int, **columns: Any) -> list[str]:
    run = add_run(world, member, "copper-finch-8", kind="training")
    return [
        add_model(world, run, step, reward=step / 100, validation_reward=step / 200, **columns)
        for step in steps
    ]


def test_the_built_in_model_is_the_base_model(api: TestClient) -> None:
    listed = api.get(f"{MODELS}/base").json()

    assert listed == {
        "models": [
            {
                "id": "osmosis/tiny",
                "model_name": "osmosis/tiny",
                "base_model": "osmosis/tiny",
                "creator_name": "Osmosis",
            }
        ],
        "total_count": 1,
        "has_more": False,
        "next_offset": None,
    }
    assert api.get(f"{MODELS}/base", params={"offset": 1}).json()["models"] == []
    assert api.get(f"{MODELS}/base/osmosis%2Ftiny").json() == listed["models"][0]
    assert_flat_error(api.get(f"{MODELS}/base/osmosis%2Fhuge"), 404, "MODEL_NOT_FOUND")


def test_adapters_are_listed_newest_first_page_by_page(
    api: TestClient, world: World, member: Member, clock: ManualClock
) -> None:
    run = add_run(world, member, "copper-finch-8", kind="training")
    for step in (20, 40, 60):
        add_model(world, run, step, reward=step / 100, validation_reward=step / 200)
        clock.advance(60)
    page = api.get(f"{MODELS}/lora", params={"limit": 2}).json()
    assert [model["checkpoint_step"] for model in page["models"]] == [60, 40]
    assert (page["total_count"], page["has_more"], page["next_offset"]) == (3, True, 2)
    shown = page["models"][1]
    assert {**shown, "id": ""} == {
        "id": "",
        "model_name": "copper-finch-8-step-40",
        "base_model": "osmosis/tiny",
        "training_run_name": "copper-finch-8",
        "checkpoint_step": 40,
        "reward": 0.4,
        "validation_reward": 0.2,
        "created_at": "2026-11-02T09:31:00.000Z",
        # Null, not absent: it could be deployed, and never was.
        "deployment_status": None,
    }


def test_a_deployed_adapter_says_since_when_by_whom_and_as_what(
    api: TestClient, world: World, member: Member, clock: ManualClock
) -> None:
    (name,) = add_models(world, member, 40)
    clock.advance(60)
    changed = api.post(f"{MODELS}/{name}/deploy", json={}).json()
    model = api.get(f"{MODELS}/{name}").json()
    assert changed == {"id": model["id"], "model_name": name, "status": "active"}
    assert {
        key: model[key] for key in ("deployment_status", "deployed_at", "deployed_by", "inference_model")
    } == {
        "deployment_status": "active",
        "deployed_at": "2026-11-02T09:31:00.000Z",
        "deployed_by": "Mara",
        "inference_model": "osmosis/tiny:copper-finch-8-step-40",
    }
    assert api.get(f"{MODELS}/{model['id']}").json() == model
    clock.advance(60)
    assert api.post(f"{MODELS}/{name}/deploy", json={}).json() == changed
    assert api.get(f"{MODELS}/{name}").json() == model, "deploying twice changes nothing"
    assert api.get(f"{MODELS}/lora").json()["active_deployments"] == 1
    for _ in range(2):
        assert api.post(f"{MODELS}/{name}/undeploy", json={}).json()["status"] == "inactive"
    assert api.get(f"{MODELS}/{name}").json()["deployment_status"] == "inactive"
    assert api.get(f"{MODELS}/lora").json()["active_deployments"] == 0


def test_an_adapter_of_a_base_model_that_is_not_served_here_offers_no_deployment(
    api: TestClient, world: World, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.training.find_spec", lambda _: None)
    (name,) = add_models(world, member, 40, base_model="fern/base-32b")
    listed = api.get(f"{MODELS}/lora").json()["models"][0]
    detail = api.get(f"{MODELS}/{name}").json()
    assert not {"deployment_status", "inference_model"} & (set(listed) | set(detail))
    body = assert_flat_error(api.post(f"{MODELS}/{name}/deploy", json={}), 409, "CONFLICT")
    assert (body["field"], "base model `fern/base-32b` requires torch" in body["error"]) == ("loraName", True)


def test_no_more_adapters_are_deployed_than_may_be_however_many_ask_at_once(
    api: TestClient, world: World, member: Member
) -> None:
    names = add_models(world, member, *range(1, MOST_DEPLOYED + 5))

    def deploy(name: str) -> Any:
        return api.post(f"{MODELS}/{name}/deploy", json={})

    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(deploy, names))
    assert sorted(reply.status_code for reply in replies) == [200] * MOST_DEPLOYED + [409] * 4
    refused = next(reply for reply in replies if reply.status_code == 409)
    body = assert_flat_error(refused, 409, "CONFLICT")
    assert (body["field"], "osmosis model undeploy" in body["error"]) == ("loraName", True)
    assert api.get(f"{MODELS}/lora").json()["active_deployments"] == MOST_DEPLOYED


def test_an_adapter_is_downloaded_file_by_file_from_urls_that_need_no_token(
    client: TestClient, world: World, member: Member, clock: ManualClock
) -> None:
    content = {"adapter_config.json": b'{"r": 8}', "adapter_model.safetensors": bytes(range(256)) * 40}
    files = {}
    for path, data in content.items():
        info = world.store(f"runs/tr_1/checkpoints/40/{path}", data)
        files[path] = {
            "blob_key": f"runs/tr_1/checkpoints/40/{path}",
            "size": info.size,
            "sha256": info.sha256,
        }
    (name,) = add_models(world, member, 40, files=files)
    reply = client.get(f"{MODELS}/{name}/download", headers=member.headers).json()
    assert (reply["model_name"], reply["base_model"], reply["expires_in"]) == (name, "osmosis/tiny", 3600)
    assert [file["path"] for file in reply["files"]] == sorted(content)
    for file in reply["files"]:
        fetched = client.get(file["url"])
        assert fetched.content == content[file["path"]]
        assert file["size"] == len(fetched.content)
        assert file["sha256"] == hashlib.sha256(fetched.content).hexdigest()
    clock.advance(3601)
    assert client.get(reply["files"][0]["url"]).status_code == 403


def test_members_take_back_what_they_deployed_and_admins_everything(
    client: TestClient, world: World, member: Member
) -> None:
    joined = world.member("ivo", role="member", identity="fern/more")
    (name,) = add_models(world, member, 40)
    assert client.post(f"{MODELS}/{name}/deploy", json={}, headers=member.headers).status_code == 200
    refused = client.post(f"{MODELS}/{name}/undeploy", json={}, headers=joined.headers)
    assert_flat_error(refused, 403, "ROLE_REQUIRED")
    for who in (member, joined):
        assert client.post(f"{MODELS}/{name}/undeploy", json={}, headers=who.headers).status_code == 200
    assert client.post(f"{MODELS}/{name}/deploy", json={}, headers=joined.headers).status_code == 200
    assert client.post(f"{MODELS}/{name}/undeploy", json={}, headers=member.headers).status_code == 200


@pytest.mark.parametrize("name", ["mine", "a%2Fb", "..%2F..", "%C3%A4", "x" * 300])
def test_an_unknown_adapter_is_not_found_whatever_is_done_with_it(api: TestClient, name: str) -> None:
    for reply in (
        api.get(f"{MODELS}/{name}"),
        api.get(f"{MODELS}/{name}/download"),
        api.post(f"{MODELS}/{name}/deploy", json={}),
        api.post(f"{MODELS}/{name}/undeploy", json={}),
    ):
        assert_flat_error(reply, 404, "MODEL_NOT_FOUND")
