"""Runs executed by real worker processes: the engine, the built-in model, an agent's server, kills and stops."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.controller.served_loop import LoopProcess
from tests.platform.conftest import Member, World
from tests.platform.evaluations import ROLLOUT, Code, experiment, logged, submit_body, wait_until
from tests.platform.fake_worker import EVALS, file_url
from tests.platform.runs.conftest import ended
from tests.platform.viewer.runs_world import sealed_secrets

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm_children_without_torch")]
RUNS, submit = EVALS.route, EVALS.taken


class _Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.dumps({"error": {"message": "the key was revoked in May", "code": "invalid_api_key"}})
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[str]:
    """The base URL of a model provider that refuses every key."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()


def fetched(api: TestClient, name: str, types: str, rows: str | None = None) -> dict[str, bytes]:
    """Download files the way a client does."""
    asked = {"types": types} if rows is None else {"types": types, "rows": rows}
    manifest = api.get(f"{RUNS}/{name}/samples/manifest", params=asked).json()
    sizes = {file["path"]: file["size"] for file in manifest["files"]}
    urls = api.post(f"{RUNS}/{name}/samples/download-urls", json={"items": manifest["files"]}).json()
    contents = {item["path"]: api.get(item["url"]).content for item in urls["items"]}
    assert {path: len(content) for path, content in contents.items()} == sizes
    return contents


def change_agent(code: Code, old: str, new: str) -> None:
    """Commit another agent."""
    source = (ROLLOUT / "main.py").read_text()
    assert old in source
    code.write("rollouts/multiply/main.py", source.replace(old, new))
    code.commit("change the agent")


def wait_for_removal(world: World) -> None:
    """Wait until the workers have removed their directories."""
    wait_until(lambda: not list(world.services.config.runs_dir.glob("*")))


def samples_of(api: TestClient, run_id: str) -> dict[tuple[int, int], dict[str, Any]]:
    found, query = {}, {"limit": 200}
    while True:
        page = api.get(f"{RUNS}/{run_id}/samples", params=query).json()
        found |= {(each["row"], each["attempt"]): each for each in page["samples"]}
        if (cursor := page.get("next_cursor")) is None:
            return found
        query["cursor"] = cursor


def journal_of(api: TestClient, run_id: str) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the newest record of each attempt in the journal that is kept with a run."""
    lines = map(json.loads, fetched(api, run_id, "journal")["events.jsonl"].splitlines())
    return {(line["row_index"], line["run_index"]): line for line in lines}


def diagnosed(api: TestClient, run_id: str, attempts: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the attempts that have left diagnostics."""
    return {
        (row, run) for row, run in attempts if file_url(api, run_id, f"diagnostics/row_{row}_run_{run}.json")
    }


def recorded(api: TestClient, world: World, run: dict[str, Any]) -> int:
    """Return how many attempts the worker of a run has recorded on its disk, or has reported."""
    lines = 0
    for journal in world.services.config.runs_dir.glob(f"*/evaluation/{run['name']}/events.jsonl"):
        with suppress(FileNotFoundError):  # the shard has ended
            lines += journal.read_bytes().count(b"\n")
    return max(lines, len(samples_of(api, run["id"])))


def test_a_retry_repeats_the_attempts_without_a_score(
    api: TestClient, world: World, unsandboxed: Any, code: Code, tmp_path: Path
) -> None:
    is_fixed = tmp_path / "fixed"
    first_line = "        messages: list[dict[str, Any]] = [INSTRUCTIONS, *ctx.prompt]\n"
    failing = (
        f"{first_line}        if sum(map(ord, str(ctx.prompt))) % 2 and not os.path.exists({str(is_fixed)!r}):\n"
        "            raise RuntimeError('the search index is being rebuilt')\n"
    )
    change_agent(code, first_line, failing)
    settings = {"limit": 8, "n": 2, "batch_size": 4}
    run = submit(api, evaluation_config=settings, advanced_config={"execution": {"workers": 2}})
    ended(api, RUNS, run["name"])
    first, first_records = samples_of(api, run["id"]), journal_of(api, run["id"])
    failed = {item for item, sample in first.items() if sample["status"] == "failed"}
    assert diagnosed(api, run["id"], first) == failed
    assert failed and failed != first.keys(), first
    wait_for_removal(world)
    is_fixed.touch()
    assert api.post(f"{RUNS}/{run['name']}/retry", json={}).json()["id"] == run["id"]
    detail = ended(api, RUNS, run["name"])
    assert (detail["eval_run"]["status"], detail["eval_run"]["revision"]) == ("finished", 1), detail
    samples, records = samples_of(api, run["id"]), journal_of(api, run["id"])
    assert samples.keys() == first.keys()
    assert {sample["status"] for sample in samples.values()} == {"success"}
    assert {item: records[item] for item in first.keys() - failed} == {
        item: first_records[item] for item in first.keys() - failed
    }
    assert detail["results"]["failed"] == 0 and detail["results"]["total_runs"] == 16
    files = fetched(api, run["name"], "metrics,trajectories,journal")
    assert len(files["summary.jsonl"].splitlines()) == 16
    assert len(files["events.jsonl"].splitlines()) == 16 + len(failed)
    assert len([path for path in files if path.startswith("trajectories/")]) == 16
    assert not diagnosed(api, run["id"], first), "replaced failures leave no files"
    assert "nothing to retry" in api.post(f"{RUNS}/{run['name']}/retry", json={}).json()["error"]


def test_a_refused_key_fails_the_run_with_the_providers_message(
    api: TestClient, world: World, host: Any, provider: str
) -> None:
    run = submit(
        api,
        experiment_config=experiment(model_path="openai/stand-in"),
        env_config={"OPENAI_BASE_URL": provider},
        secrets={"required": ["OPENAI_API_KEY"], "provided": {"OPENAI_API_KEY": "sk-canary-7291"}},
    )
    detail = ended(api, RUNS, run["name"])
    assert detail["eval_run"]["status"] == "failed"
    assert "the key was revoked in May" in detail["eval_run"]["error"]
    assert "\n" not in detail["eval_run"]["error"]
    assert detail["resolved_secret_scopes"] == {"OPENAI_API_KEY": "run"}
    everything = json.dumps([detail, logged(api, f"{RUNS}/{run['id']}")])
    assert "sk-canary-7291" not in everything
    assert sealed_secrets(world, run["id"]) is None
    wait_for_removal(world)
    assert not world.is_stored("sk-canary-7291")


def test_an_environment_that_does_not_build_fails_the_run_with_the_reason_of_uv(
    api: TestClient, world: World, host: Any, code: Code
) -> None:
    needed = '"osmosis-ai[server]>=0.3.0rc1,<0.4"'
    project = (ROLLOUT / "pyproject.toml").read_text()
    assert needed in project
    project = project.replace(needed, f'{needed}, "no-such-package-of-osmosis==9"')
    code.write("rollouts/multiply/pyproject.toml", project)
    code.commit("add a dependency that does not exist")
    run = submit(api)
    detail = ended(api, RUNS, run["name"])
    assert detail["eval_run"]["status"] == "failed"
    assert "no-such-package-of-osmosis" in detail["eval_run"]["error"]
    assert "\n" not in detail["eval_run"]["error"]
    metrics = json.loads(fetched(api, run["name"], "metrics")["metrics.json"])
    assert metrics["eval_run"]["status"] == "failed"
    assert metrics["summary"]["total_samples"] == 0


def test_an_agent_sees_its_own_secrets_and_not_the_environment_of_the_platform(
    api: TestClient,
    world: World,
    member: Member,
    code: Code,
    unsandboxed: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # These values occur everywhere in JSON, so they cannot be redacted, and the run's log says so.
    harmless = {"FLAG": "true", "NOTHING": "null", "COUNT": "1", "LIMIT": "100000"}
    keys = {"AGENT_KEY": "canary-of-the-workspace", "OTHER_KEY": "canary-not-asked-for"}
    for name, value in {**harmless, **keys}.items():
        world.put_secret(member, name, value, "workspace")
    monkeypatch.setenv("OSMOSIS_TOKEN", "canary-of-the-shell")
    monkeypatch.setenv("OPENAI_API_KEY", "canary-of-the-operator")
    seen_at = tmp_path / "environment.txt"
    main = 'if __name__ == "__main__":'
    spying = (
        "import os\nfrom pathlib import Path\n"
        f'Path({str(seen_at)!r}).write_text("\\n".join(f"{{k}}={{v}}" for k, v in os.environ.items()))\n'
        'print("my key is", os.environ["AGENT_KEY"], flush=True)\n'
    )
    change_agent(code, main, spying + main)
    run = submit(api, secrets={"required": ["AGENT_KEY", *harmless]}, env_config={"LOG_LEVEL": "DEBUG"})
    detail = ended(api, RUNS, run["name"])
    assert detail["eval_run"]["status"] == "finished", detail
    seen = seen_at.read_text()
    assert "AGENT_KEY=canary-of-the-workspace" in seen and "LOG_LEVEL=DEBUG" in seen
    for canary in ("not-asked-for", "of-the-shell", "of-the-operator", "OSMOSIS_DATABASE_URL"):
        assert canary not in seen
    assert detail["resolved_secret_scopes"] == dict.fromkeys(["AGENT_KEY", *harmless], "workspace")
    wait_for_removal(world)
    log = logged(api, f"{RUNS}/{run['id']}")
    for name in harmless:
        assert sum(f"the value of {name} cannot be hidden" in line for line in log) == 1, log
    assert any(line.startswith("session ends") for line in log), log
    assert sum("environment: " in line for line in log) == 1, log
    assert not world.is_stored("canary-of-the-workspace")


SERVED_KEY = "osm_rollout_canary-4711"


def test_a_remote_agent_is_killed_and_started_again(api: TestClient, world: World, host: Any) -> None:
    def register(agent: LoopProcess, key: str) -> None:
        registration = {
            "host": "127.0.0.1",
            "port": agent.port,
            "agent_loop_name": "calculator",
            "api_key": key,
        }
        reply = api.post("/api/cli/rollout-server/register", json=registration)
        assert reply.json()["status"] == "healthy"

    served = {"rollout": "no-such-directory", "entrypoint": "server://calculater"}
    with LoopProcess(SERVED_KEY, works_on=20) as agent:
        register(agent, SERVED_KEY)
        refused = api.post(f"{RUNS}/check", json=submit_body(experiment_config=experiment(**served)))
        assert refused.status_code == 400
        assert "no served agent 'calculater' is registered" in refused.text
        assert "server://calculator" in refused.text
        served["entrypoint"] = "server://calculator"
        settings = {"limit": 50, "n": 2, "batch_size": 16}
        run = submit(api, experiment_config=experiment(**served), evaluation_config=settings)
        wait_until(lambda: recorded(api, world, run) >= 10)
        agent.kill()
        # `osmosis serve` registers with a new key each time.
        with LoopProcess(f"{SERVED_KEY}-2") as restarted:
            register(restarted, f"{SERVED_KEY}-2")
            detail = ended(api, RUNS, run["name"])
    log = logged(api, f"{RUNS}/{run['id']}")
    assert detail["eval_run"]["status"] == "finished", log
    samples = samples_of(api, run["id"])
    assert len(samples) == 100
    assert {(sample["status"], sample["reward"]) for sample in samples.values()} == {("success", 1.0)}
    assert SERVED_KEY not in "\n".join(log)
    assert any("the remote agent `calculator` is unavailable" in line for line in log)
    trajectories = fetched(api, run["name"], "trajectories", rows="1")
    assert {"trajectories/row_1_run_0.json", "trajectories/row_1_run_1.json"} <= trajectories.keys()
