"""`osmosis model …` against replies written by hand: what is offered where inference is, and where it is not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli import train_replies
from tests.cli.golden_cases import MODEL
from tests.cli.maze import Maze

AS_SERVED = "fern%2Fbase-32b%3Amaze-lora"


def test_names_of_a_model(maze: Maze) -> None:
    maze.get("/models/maze-lora").respond(json=MODEL)
    deploy = maze.post("/models/maze-lora/deploy").respond(json={"id": "lo_1"})
    refusal = {"error": "no 'oak/base-7b:maze-lora'"}
    maze.post("/models/oak%2Fbase-7b%3Amaze-lora/deploy").respond(404, json=refusal)
    error = maze.osmosis("model", "deploy", "oak/base-7b:maze-lora", "--json").error
    assert (error["code"], error["message"]) == ("NOT_FOUND", "no 'oak/base-7b:maze-lora'")
    maze.post(f"/models/{AS_SERVED}/deploy").respond(409, json={"error": "too many are deployed"})
    error = maze.osmosis("model", "deploy", "fern/base-32b:maze-lora", "--json").error
    assert error["message"] == "too many are deployed" and not deploy.called

    maze.get(f"/models/{AS_SERVED}").respond(404, json={"error": "no such model"})
    data = maze.osmosis("model", "info", "fern/base-32b:maze-lora", "--json").data
    assert data["lora_model"]["model_name"] == "maze-lora"
    for verb, status in (("deploy", "active"), ("undeploy", "inactive")):
        maze.post(f"/models/{AS_SERVED}/{verb}").respond(404, json={"error": "no such model"})
        maze.post(f"/models/maze-lora/{verb}").respond(json={"id": "lo_1", "status": status})
        done = maze.osmosis("model", verb, "fern/base-32b:maze-lora", "--json")
        assert done.resource["status"] == status


@pytest.mark.parametrize(
    ("reference", "name", "reason"),
    [
        ("kestrel", "copper-step-20", "(best, selected among 2 validations)"),
        ("kestrel@best", "copper-step-20", "(best, sel"),
        ("kestrel@last", "copper-step-40", "(last, step 40)"),
        ("kestrel@40", "copper-step-40", "(step 40)"),
        ("copper", "copper-step-40", "(last, step 40)"),
        ("kestrel@30", None, "kestrel@last, kestrel@STEP (20, 40), or kestrel@best if"),
        ("kestrel@", "copper-step-20", "(best, sel"),
        ("copper@best", None, "copper@STEP (20, 40)"),
        ("copper-step-30", None, "did you mean copper-step-20 or "),
        ("kestrelx", None, "did you mean kestrel or kestrel-step-20?"),
        ("fallen", None, "choose one: fallen@last or fallen@STEP (20, 40)"),
    ],
)
def test_deploy_a_checkpoint_of_a_run(maze: Maze, reference: str, name: str | None, reason: str) -> None:
    (train_replies.offer if reference.startswith("copper") else train_replies.offer_validated)(maze)
    own = {**train_replies.DETAIL["training_run"], "id": "tr_9", "name": "fallen", "status": "finished"}
    maze.get("/training-runs/fallen").respond(json={**train_replies.DETAIL, "training_run": own})
    fell = {
        "metric_key": "eval/validation/dropped",
        "title": "",
        "data_points": [{"step": 40, "value": 1, "timestamp": 0}],
    }
    maze.get("/training-runs/tr_9/metrics").respond(json={"metrics": [fell]})
    maze.get("/training-runs/tr_9/checkpoints").respond(json=train_replies.CHECKPOINTS)
    unknown = {"error": "not found"}
    maze.post(f"/models/{reference}/deploy").respond(404, json=unknown)
    for name_of_none in ("copper-step-30", "kestrelx"):
        maze.get(f"/training-runs/{name_of_none}").respond(404, json=unknown)
    names = ("copper-step-20", "kestrel-step-20")
    models = [{"id": each, "model_name": each} for each in names]
    maze.get("/models/lora").respond(json={"models": models, "total_count": 2})
    runs = [{**train_replies.ROW, "name": each} for each in ("fallen", "kestrel")]
    maze.get("/training-runs").respond(json={"training_runs": runs, "total_count": 2})
    for each in ("copper-step-20", "copper-step-40"):
        maze.post(f"/models/{each}/deploy").respond(
            json={"id": "lo_1", "model_name": each, "status": "active"}
        )
        served = {"id": "lo_1", "model_name": each, "inference_model": f"fern/base-32b:{each}"}
        maze.get(f"/models/{each}").respond(json=served)
    outcome = maze.osmosis("model", "deploy", reference, "--json")
    if name is None:
        assert (outcome.error["code"], reason in outcome.error["hint"]) == ("NOT_FOUND", True), outcome.error
        return
    assert outcome.resource["model_path"] == f"fern/base-32b:{name}"
    assert reason in outcome.json["message"]
    assert (
        f'model_path = "{outcome.resource["model_path"]}"' in maze.osmosis("model", "deploy", reference).out
    )


def test_adapter_of_a_run(maze: Maze) -> None:
    """A run's name means its only deployed adapter."""
    maze.get("/models/kestrel").respond(404, json={"error": "not found"})
    maze.post("/models/kestrel/undeploy").respond(404, json={"error": "not found"})
    names = [f"kestrel-step-{step}" for step in (20, 40)]
    maze.post(f"/models/{names[1]}/undeploy").respond(json={"id": "lo_1", "model_name": names[1]})
    maze.get(f"/models/{names[1]}").respond(json={"id": "lo_1", "model_name": names[1]})

    def offer_deployed(*active: str) -> None:
        models = [
            {
                "id": each,
                "model_name": each,
                "training_run_name": "kestrel",
                "deployment_status": "active" if each in active else None,
            }
            for each in names
        ]
        maze.get("/models/lora").respond(json={"models": models, "total_count": 2})

    offer_deployed()
    maze.post(f"/models/{names[0]}/undeploy").respond(json={"id": "lo_0", "model_name": names[0]})
    assert maze.osmosis("model", "undeploy", "kestrel").status == 0, "undeploying twice changes nothing"
    offer_deployed(names[1])
    assert maze.osmosis("model", "undeploy", "kestrel", "--json").resource["model_name"] == names[1]
    assert maze.osmosis("model", "info", "kestrel", "--json").data["lora_model"]["model_name"] == names[1]
    for active in ((), names):
        offer_deployed(*active)
        for verb in ("info", "undeploy") if active else ("info",):
            error = maze.osmosis("model", verb, "kestrel", "--json").error
            assert error["code"] == "NOT_FOUND" and ", ".join(names) in error["hint"]


def test_undeploy_asks_first(maze: Maze, monkeypatch: pytest.MonkeyPatch) -> None:
    called = maze.post("/models/maze-lora/undeploy").respond(json={"id": "lo_1", "model_name": "maze-lora"})
    monkeypatch.setattr("osmosis_ai.cli.output.formats.is_terminal", lambda _: True)
    monkeypatch.setattr("osmosis_ai.cli.output.prompts.ask_yes_no", lambda *_, **__: False)
    assert maze.osmosis("model", "undeploy", "maze-lora").out == "Cancelled.\n"
    assert not called.called
    assert maze.osmosis("model", "undeploy", "maze-lora", "--yes").status == 0
    assert called.called


STORE = "https://store.fern.example/adapters"
CONTENT = {
    "README.md": b"# maze-lora\n",
    "adapter_config.json": json.dumps({"peft_type": "LORA", "r": 16}).encode(),
    "adapter_model.safetensors": bytes(range(256)) * 64,
}


def offer(maze: Maze, content: dict[str, bytes] = CONTENT, **replaced: bytes) -> dict[str, Any]:
    """Let the platform have the adapter; ``replaced`` says what the store has instead of a file."""
    listing = {
        "model_name": "maze-lora",
        "base_model": "fern/base-32b",
        "expires_in": 900,
        "files": [
            {
                "path": path,
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "url": f"{STORE}/{path}",
            }
            for path, data in content.items()
        ],
    }
    maze.get("/models/maze-lora/download").respond(json=listing)
    for path, data in content.items():
        if not path.isprintable():
            continue
        stored = replaced.get(path.partition(".")[0], data)
        maze.router.get(f"{STORE}/{path}").respond(content=stored)
    return listing


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_download(maze: Maze) -> None:
    offer(maze)
    outcome = maze.osmosis("model", "download", "maze-lora", "--json")
    assert outcome.status == 0, outcome.err
    place = maze.workspace.root / ".osmosis" / "models" / "maze-lora"
    assert files_in(place) == CONTENT
    assert [path.name for path in place.parent.iterdir()] == ["maze-lora"]
    resource = outcome.resource
    assert resource["output_path"] == str(place)
    assert (resource["base_model"], len(resource["files"])) == ("fern/base-32b", 3)
    assert "store.fern.example" not in outcome.out  # URLs are signed: no business of a log

    again = maze.osmosis("model", "download", "maze-lora", "--json")
    assert (again.status, again.json["status"]) == (0, "noop")
    assert maze.router.get(f"{STORE}/adapter_model.safetensors").call_count == 1


def test_download_wrong_content(maze: Maze, tmp_path: Path) -> None:
    offer(maze, adapter_model=bytes(256 * 64))
    place = tmp_path / "mine"
    outcome = maze.osmosis("model", "download", "maze-lora", "-o", str(place), "--json")
    assert outcome.status == 1 and outcome.out == ""
    assert not place.exists()
    offer(maze)
    assert maze.osmosis("model", "download", "maze-lora", "-o", str(place)).status == 0
    assert files_in(place) == CONTENT
    assert maze.router.get(f"{STORE}/adapter_config.json").call_count == 1


def test_download_to_used_directory(maze: Maze, tmp_path: Path) -> None:
    offer(maze)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("dear")
    error = maze.osmosis("model", "download", "maze-lora", "-o", str(tmp_path / "mine"), "--json").error
    assert (error["code"], "--output" in error["hint"]) == ("CONFLICT", True)
    assert files_in(tmp_path / "mine") == {"thesis.tex": b"dear"}
    file = tmp_path / "mine" / "thesis.tex"
    error = maze.osmosis("model", "download", "maze-lora", "-o", str(file), "--json").error
    assert error["message"] == f"'{file}' is not a directory."


@pytest.mark.parametrize("path", ["../evil", "a/b", "/etc/passwd", ".ssh", "", "x\n"])
def test_download_invalid_path(maze: Maze, path: str, tmp_path: Path) -> None:
    offer(maze, {**CONTENT, path: b"x"})
    error = maze.osmosis("model", "download", "maze-lora", "-o", str(tmp_path / "mine"), "--json").error
    assert error["code"] == "PLATFORM_ERROR"
    assert not (tmp_path / "mine").exists()


def test_download_invalid_adapter(maze: Maze, tmp_path: Path) -> None:
    offer(maze, {"README.md": b"x"})
    assert "not an adapter" in maze.osmosis("model", "download", "maze-lora", "--json").error["message"]
    offer(maze, {**CONTENT, "adapter_config.json": b"[]"})
    error = maze.osmosis("model", "download", "maze-lora", "-o", str(tmp_path / "mine"), "--json").error
    assert "is not PEFT's" in error["message"]
    assert not (tmp_path / "mine").exists()


def test_download_expired_url(maze: Maze, tmp_path: Path) -> None:
    offer(maze)
    weights = CONTENT["adapter_model.safetensors"]
    maze.router.get(f"{STORE}/adapter_model.safetensors").mock(
        side_effect=[httpx.Response(403), httpx.Response(200, content=weights)]
    )
    outcome = maze.osmosis("model", "download", "maze-lora", "-o", str(tmp_path / "mine"))
    assert outcome.status == 0, outcome.err
    assert maze.get("/models/maze-lora/download").call_count == 2
