"""`osmosis model …` against replies written by hand: what is offered where inference is, and where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.maze import Maze, replies

BASE: dict[str, Any] = {
    "id": "bm_1",
    "model_name": "fern/base-32b",
    "base_model": "fern/base-32b",
    "creator_name": "Osmosis",
    "created_at": "2026-10-01T07:00:00Z",
    "updated_at": "2026-10-01T08:00:00Z",
}
LORA: dict[str, Any] = {
    "id": "lo_1",
    "model_name": "maze-lora",
    "base_model": "fern/base-32b",
    "training_run_name": "copper-finch",
    "checkpoint_step": 40,
    "reward": 0.75,
    "validation_reward": 0.5,
    "created_at": "2026-10-02T07:00:00Z",
}
DEPLOYED = {
    **LORA,
    "deployment_status": "active",
    "deployed_at": "2026-10-02T08:00:00Z",
    "deployed_by": "Mara",
}
DETAIL: dict[str, Any] = {
    **DEPLOYED,
    "hf_upload_status": "in_progress",
    "hf_url": "https://hf.example/maze",
    "uploaded_by": "Ivo",
    "inference_model": "fern/base-32b:maze-lora",
    "platform_url": "https://osmosis.fern.example/fern-lab/models/lo_1",
}


@pytest.fixture
def maze(maze: Maze) -> Maze:
    maze.get("/models/base").respond(json={"models": [BASE, {"id": "bm_2"}], "total_count": 2})
    maze.get("/models/lora").respond(
        json={
            "models": [DEPLOYED, {"id": "lo_2", "deployment_status": None}],
            "total_count": 2,
            "active_deployments": 1,
            "max_active_deployments": 3,
        }
    )
    return maze


def test_both_lists_come_in_one_envelope_each_with_its_own_pages(maze: Maze) -> None:
    envelope = maze.osmosis("model", "list", "--json").json
    assert [item["id"] for item in envelope["base_models"]["items"]] == ["bm_1", "bm_2"]
    assert envelope["base_models"]["items"][0] == {
        **BASE,
        "created_at": "2026-10-01T07:00:00.000Z",
        "updated_at": "2026-10-01T08:00:00.000Z",
    }
    full, minimal = envelope["lora_models"]["items"]
    assert full == {
        **DEPLOYED,
        "created_at": "2026-10-02T07:00:00.000Z",
        "deployed_at": "2026-10-02T08:00:00.000Z",
    }
    assert (minimal["model_name"], minimal["deployment_status"]) == (None, None)
    assert (envelope["active_deployments"], envelope["max_active_deployments"]) == (1, 3)
    assert envelope["git"] == maze.resource["git"]


def test_one_type_is_an_ordinary_list(maze: Maze) -> None:
    base = maze.osmosis("model", "list", "--type", "base", "--json").json
    assert (len(base["items"]), base["total_count"], "active_deployments" in base) == (2, 2, False)
    assert not maze.get("/models/lora").called
    lora = maze.osmosis("model", "list", "--type", "LORA", "--json").json
    assert (len(lora["items"]), lora["active_deployments"]) == (2, 1)
    wrong = maze.osmosis("model", "list", "--type", "big", "--json").error
    assert (wrong["code"], "all, base or lora" in wrong["message"]) == ("VALIDATION", True)


def test_people_see_what_is_deployed(maze: Maze) -> None:
    plain = maze.osmosis("model", "list", "--type", "lora", "--plain").out.splitlines()
    assert plain[0] == "maze-lora\tfern/base-32b\tcopper-finch\t40\t0.750\t2026-10-02T07:00:00Z\t[active]"
    assert plain[1].endswith("[not deployed]")
    rich = maze.osmosis("model", "list").out
    for shown in ("Base Models", "LoRA Models", "maze-lora", "[active]", "Deployed: 1 of 3"):
        assert shown in rich, shown


def test_where_inference_is_not_offered_nothing_is_said_of_it(maze: Maze) -> None:
    maze.get("/models/lora").respond(json={"models": [LORA]})
    envelope = maze.osmosis("model", "list", "--json").json
    assert "active_deployments" not in envelope
    assert "deployment_status" not in envelope["lora_models"]["items"][0]
    assert "eploy" not in maze.osmosis("model", "list").out
    maze.get("/models/maze-lora").respond(json=LORA)
    assert "eploy" not in maze.osmosis("model", "info", "maze-lora").out


def test_all_pages_are_fetched_when_asked_for(maze: Maze) -> None:
    maze.get("/models/base").mock(
        side_effect=replies({"models": [BASE], "next_offset": 1}, {"models": [{"id": "bm_2"}]})
    )
    listed = maze.osmosis("model", "list", "--type", "base", "--all", "--json").json
    assert [item["id"] for item in listed["items"]] == ["bm_1", "bm_2"]


def test_a_model_is_described_in_full(maze: Maze) -> None:
    maze.get("/models/maze-lora").respond(json=DETAIL)
    data = maze.osmosis("model", "info", "maze-lora", "--json").json["data"]
    assert data == {
        "lora_model": {
            **{key: value for key, value in DETAIL.items() if key != "platform_url"},
            "created_at": "2026-10-02T07:00:00.000Z",
            "deployed_at": "2026-10-02T08:00:00.000Z",
        },
        "platform_url": DETAIL["platform_url"],
        **maze.resource,
    }
    plain = maze.osmosis("model", "info", "maze-lora", "--plain").out
    for shown in ("Upload Status: In Progress", "Deployed By: Mara", "Model Name: fern/base-32b:maze-lora"):
        assert shown in plain, shown


AS_SERVED = "fern%2Fbase-32b%3Amaze-lora"


def test_a_model_can_be_called_as_its_endpoint_calls_it(maze: Maze) -> None:
    maze.get(f"/models/{AS_SERVED}").respond(404, json={"error": "no such model"})
    maze.get("/models/maze-lora").respond(json=DETAIL)
    data = maze.osmosis("model", "info", "fern/base-32b:maze-lora", "--json").json["data"]
    assert data["lora_model"]["model_name"] == "maze-lora"
    for verb, status in (("deploy", "active"), ("undeploy", "inactive")):
        maze.post(f"/models/{AS_SERVED}/{verb}").respond(404, json={"error": "no such model"})
        maze.post(f"/models/maze-lora/{verb}").respond(json={"id": "lo_1", "status": status})
        done = maze.osmosis("model", verb, "fern/base-32b:maze-lora", "--json").json
        assert done["resource"]["status"] == status


def test_a_name_with_a_colon_goes_to_the_platform_as_it_is(maze: Maze) -> None:
    maze.get("/models/sweep%3Amaze-lora").respond(json={**DETAIL, "model_name": "sweep:maze-lora"})
    data = maze.osmosis("model", "info", "sweep:maze-lora", "--json").json["data"]
    assert data["lora_model"]["model_name"] == "sweep:maze-lora"
    assert not maze.get("/models/maze-lora").called


def test_an_adapter_of_another_base_model_is_not_meant(maze: Maze) -> None:
    maze.post("/models/oak%2Fbase-7b%3Amaze-lora/deploy").respond(
        404, json={"error": "no 'oak/base-7b:maze-lora'"}
    )
    maze.get("/models/maze-lora").respond(json=DETAIL)
    deploy = maze.post("/models/maze-lora/deploy").respond(json={"id": "lo_1"})
    error = maze.osmosis("model", "deploy", "oak/base-7b:maze-lora", "--json").error
    assert (error["code"], error["message"]) == ("NOT_FOUND", "no 'oak/base-7b:maze-lora'")
    assert not deploy.called


def test_a_deployed_model_comes_with_a_request_that_it_answers(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    maze.get("/models/maze-lora").respond(json=DETAIL)
    shown = maze.osmosis("model", "info", "maze-lora").out
    assert "curl https://osmosis.fern.example/v1/chat/completions \\" in shown
    assert "Bearer $OSMOSIS_API_KEY" in shown and '"model": "fern/base-32b:maze-lora"' in shown
    assert "osmosis model undeploy maze-lora" in shown
    monkeypatch.setenv("OSMOSIS_INFERENCE_URL", "https://models.fern.example/")
    elsewhere = maze.osmosis("model", "info", "maze-lora").out
    assert "curl https://models.fern.example/v1/chat/completions" in elsewhere


def test_a_model_that_is_not_deployed_says_how_to(maze: Maze) -> None:
    maze.get("/models/maze-lora").respond(json={**DETAIL, "deployment_status": "inactive"})
    shown = maze.osmosis("model", "info", "maze-lora").out
    assert "osmosis model deploy maze-lora" in shown and "curl" not in shown


def test_a_model_of_which_little_is_known_can_be_shown(maze: Maze) -> None:
    maze.get("/models/x").respond(json={**dict.fromkeys(DETAIL), "id": "lo_1"})
    for mode in (["--json"], ["--plain"], []):
        assert maze.osmosis("model", "info", "x", *mode).status == 0


@pytest.mark.parametrize("verb, status", [("deploy", "active"), ("undeploy", "inactive")])
def test_a_script_that_deploys_or_takes_back_is_asked_nothing(maze: Maze, verb: str, status: str) -> None:
    maze.post(f"/models/maze-lora/{verb}").respond(
        json={"id": "lo_1", "model_name": "maze-lora", "status": status}
    )
    agreed = ["--yes"] if verb == "undeploy" else []
    shown = maze.osmosis("model", verb, "maze-lora", *agreed)
    assert (shown.status, "osmosis model info maze-lora" in shown.out) == (0, verb == "deploy")
    done = maze.osmosis("model", verb, "maze-lora", "--json").json
    assert (done["operation"], done["status"]) == (f"model.{verb}", "success")
    assert done["message"] == f"LoRA model {verb}ed: maze-lora"
    assert done["resource"] == {"id": "lo_1", "model_name": "maze-lora", "status": status, **maze.resource}


def test_a_person_is_asked_before_a_model_is_taken_back(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    called = maze.post("/models/maze-lora/undeploy").respond(json={"id": "lo_1", "model_name": "maze-lora"})
    monkeypatch.setattr("osmosis_ai.cli.output.formats.is_terminal", lambda _: True)
    monkeypatch.setattr("osmosis_ai.cli.output.prompts.ask_yes_no", lambda *_, **__: False)
    assert maze.osmosis("model", "undeploy", "maze-lora").out == "Cancelled.\n"
    assert not called.called
    assert maze.osmosis("model", "undeploy", "maze-lora", "--yes").status == 0
    assert called.called


def test_why_a_model_is_not_deployed_is_said(maze: Maze) -> None:
    maze.post("/models/maze-lora/deploy").respond(
        409, json={"error": "8 models are deployed.", "code": "CONFLICT", "field": "loraName"}
    )
    error = maze.osmosis("model", "deploy", "maze-lora", "--json").error
    assert (error["code"], error["message"]) == ("CONFLICT", "8 models are deployed.")
    maze.post("/models/maze-lora/deploy").respond(
        403, json={"error": "no plan", "code": "SUBSCRIPTION_REQUIRED"}
    )
    assert maze.osmosis("model", "deploy", "maze-lora", "--json").error["code"] == "SUBSCRIPTION_REQUIRED"
