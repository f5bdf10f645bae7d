"""Models outside the platform: `osmosis model download --merged` and `osmosis model push`, with real weights and HTTP."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.maze import Maze
from tests.cli.test_model import CONTENT, files_in, offer
from tests.lazily import import_what_waits, lazily

pytestmark = pytest.mark.integration

with lazily("torch", "peft", "transformers"):
    import peft
    import torch
    import transformers

    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.training.learner.policy_model import load_policy, save_adapter
    from tests.training.test_model_matrix import EXPERTS, saved_model

TOKEN = "hf_" + "t" * 30
REPOSITORY = "fern-org/multiplier"


def offer_adapter(maze: Maze, kind: str, changes: dict[str, Any], dtype: str) -> tuple[Path, Path]:
    """Let the platform have an adapter of a random model; return the directories of both."""
    import_what_waits(sys.modules[saved_model.__module__])
    base, adapter = saved_model(kind, changes, maze.scratch / "base"), maze.scratch / "adapter"
    network = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype))
    network.save_pretrained(base)
    (base / "tokenizer.json").write_text('{"version": "1.0"}')
    (base / "tokenizer_config.json").write_text("{}")
    (base / "chat_template.jinja").write_text("{{ messages }}")
    policy = load_policy(str(base), TrainingSettings(lora_rank=4), torch.device("cpu"))
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn_like(parameter) * 0.3
    save_adapter(policy, adapter)
    (adapter / "provenance.json").write_text('{"run": "keen-owl-2"}')
    listing = offer(maze, files_in(adapter))
    maze.get("/models/maze-lora/download").respond(json={**listing, "base_model": str(base)})
    return base, adapter


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.float().eval()(torch.arange(3, 60).reshape(3, 19)).logits


@pytest.mark.parametrize(
    ("kind", "changes", "dtype", "tolerance"),
    [("Qwen3Config", {}, "float32", 1e-5), ("Qwen3MoeConfig", "experts", "bfloat16", 0.05)],
)
def test_a_merged_model_computes_what_the_adapter_does(
    maze: Maze, kind: str, changes: Any, dtype: str, tolerance: float
) -> None:
    base, adapter = offer_adapter(maze, kind, EXPERTS if changes else {}, dtype)
    outcome = maze.osmosis("model", "download", "maze-lora", "--merged", "--json")
    assert outcome.status == 0, outcome.err
    place = maze.workspace.root / ".osmosis" / "models" / "maze-lora-merged"
    assert outcome.resource["output_path"] == str(place)
    assert sorted(path.name for path in place.parent.iterdir()) == ["maze-lora", "maze-lora-merged"]
    assert {"config.json", "model.safetensors", "tokenizer_config.json", "chat_template.jinja"} <= files_in(
        place
    ).keys()
    assert json.loads((place / "provenance.json").read_text())["run"] == "keen-owl-2"

    assert len({path.stat().st_mode for path in place.iterdir()}) == 1, "colleagues can read all or none"
    merged = transformers.AutoModelForCausalLM.from_pretrained(place, dtype="auto")
    assert merged.dtype == getattr(torch, dtype)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    expected = peft.PeftModel.from_pretrained(plain, adapter).merge_and_unload()
    assert (logits(merged) - logits(expected)).abs().max() < tolerance * logits(expected).abs().max()
    assert maze.osmosis("model", "download", "maze-lora", "--merged", "--json").json["status"] == "noop"


@pytest.mark.parametrize(
    ("broken", "message", "hint"),
    [
        ("extra", "`train` extra", "pip install"),
        ("base", "is not on this machine", "--allow-download"),
        ("disk", "not enough disk space", "--output"),
        ("quantized", "bitsandbytes", None),
        ("damaged", "cannot be merged", None),
    ],
)
def test_what_a_merge_lacks_is_named_and_nothing_is_left(
    maze: Maze, monkeypatch: pytest.MonkeyPatch, broken: str, message: str, hint: str | None
) -> None:
    base, _ = offer_adapter(maze, "Qwen3Config", {}, "float32")
    if broken == "extra":
        monkeypatch.setattr("osmosis_ai.training.find_spec", lambda name: None)
    elif broken == "base":
        offer(maze)
    elif broken == "disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10_000}))
    elif broken == "damaged":
        (base / "model.safetensors").write_bytes(b"no weights")
    else:
        config = json.loads((base / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
        (base / "config.json").write_text(json.dumps(config))
    place = maze.workspace.root / ".osmosis" / "models"
    error = maze.osmosis("model", "download", "maze-lora", "--merged", "--json").error
    assert message in error["message"]
    assert error.get("hint") is hint or hint in error["hint"]
    assert not list(place.glob("*merged*")) and not list(place.glob(".*merg*"))


class Hub(BaseHTTPRequestHandler):
    """The routes of the Hugging Face Hub that an upload needs."""

    status = 404
    siblings: list[str] = []
    seen: list[tuple[str, Any]] = []

    def do_GET(self) -> None:
        code = {404: "RepoNotFound", 403: "GatedRepo"}.get(self.status)
        found = {
            "id": REPOSITORY,
            "private": False,
            "siblings": [{"rfilename": name} for name in self.siblings],
        }
        self._reply(self.status, found, {"X-Error-Code": code} if code else {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        self.seen.append((self.path, body))
        if self.path.endswith("/preupload/main"):
            files = [
                {**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]
            ]
            self._reply(200, {"files": files}, {})
        elif self.path.endswith("/commit/main"):
            url = f"{self.root}/{REPOSITORY}/commit/1"
            self._reply(200, {"commitUrl": url, "commitOid": "1", "hookOutput": ""}, {})
        else:
            self._reply(200, {"url": f"{self.root}/{REPOSITORY}"}, {})

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]

    def _reply(self, status: int, body: Any, headers: dict[str, str]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(content)),
            "Content-Type": "application/json",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("HubOfOneTest", (Hub,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield handler
        server.shutdown()


def committed(hub: type[Hub]) -> set[str]:
    """The paths of the files in the only commit."""
    [body] = [body for path, body in hub.seen if path.endswith("/commit/main")]
    lines = [json.loads(line) for line in body.splitlines()]
    return {line["value"]["path"] for line in lines if line["key"] == "file"}


def test_push_an_adapter(maze: Maze, hub: type[Hub]) -> None:
    offer(maze, {**CONTENT, "provenance.json": b"{}"})
    outcome = maze.osmosis("model", "push", "maze-lora", REPOSITORY, "--yes", "--json")
    assert outcome.status == 0, outcome.err
    assert outcome.resource["url"].endswith(f"/{REPOSITORY}")
    created = next(json.loads(body) for path, body in hub.seen if path == "/api/repos/create")
    assert (created["name"], created["organization"]) == ("multiplier", "fern-org")
    assert "private" in (created.get("visibility"), *(key for key, value in created.items() if value is True))
    assert outcome.err == ""
    assert committed(hub) == CONTENT.keys()  # not the run's config
    assert TOKEN not in outcome.out + outcome.err


def test_push_a_merged_model(maze: Maze, hub: type[Hub]) -> None:
    offer_adapter(maze, "Qwen3Config", {}, "float32")
    hub.status, hub.siblings = 200, [".gitattributes"]
    outcome = maze.osmosis("model", "push", "maze-lora", REPOSITORY, "--merged", "--yes", "--json")
    assert outcome.status == 0, outcome.err
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= committed(hub)


def test_push_asks_and_names_what_is_there(maze: Maze, hub: type[Hub]) -> None:
    offer(maze)
    hub.status, hub.siblings = 200, [".gitattributes", "README.md", "model.safetensors"]
    error = maze.osmosis("model", "push", "maze-lora", REPOSITORY, "--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED" and "--yes" in error["message"]
    assert error["details"]["prompt"] == (
        f"Upload the adapter 'maze-lora' to the public repository '{REPOSITORY}', which has 2 files?"
    )
    assert not hub.seen and not (maze.workspace.root / ".osmosis" / "models").exists()


@pytest.mark.parametrize(
    ("repository", "status", "token", "code", "message"),
    [
        ("multiplier", 404, TOKEN, "VALIDATION", "must have the form ORG/REPO"),
        (REPOSITORY, 404, None, "AUTH_REQUIRED", "no Hugging Face token"),
        (REPOSITORY, 401, TOKEN, "AUTH_REQUIRED", "refused"),
        (REPOSITORY, 403, TOKEN, "AUTH_REQUIRED", "refused"),
        (REPOSITORY, 500, TOKEN, "PLATFORM_ERROR", "refused"),
        (REPOSITORY, None, TOKEN, "NETWORK", "unreachable"),
    ],
)
def test_push_problems(
    maze: Maze,
    hub: type[Hub],
    monkeypatch: pytest.MonkeyPatch,
    repository: str,
    status: int | None,
    token: str | None,
    code: str,
    message: str,
) -> None:
    offer(maze)
    if status is None:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    else:
        hub.status = status
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    error = maze.osmosis("model", "push", "maze-lora", repository, "--yes", "--json").error
    assert (error["code"], message in error["message"]) == (code, True), error
    assert not hub.seen
