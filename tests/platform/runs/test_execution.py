"""Runs executed by real worker processes: the engine, the built-in model, the server of an agent, kills and stops."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from osmosis_ai.controller.record import TerminalRecord
from osmosis_ai.datasets import file_digest, select_rows
from osmosis_ai.evaluation.hooks import RunHooks
from osmosis_ai.evaluation.runner import EvalRunner
from osmosis_ai.evaluation.sources import ProjectSource, open_policy
from osmosis_ai.evaluation.spec import DatasetInput, EvalRunOptions
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.db.tables import DbLogLine, DbRun, DbRunFile, DbSample
from osmosis_ai.platform.http.browser_sessions import begin_session
from osmosis_ai.platform.local_execution import LocalWorkers, open_local_executor
from osmosis_ai.platform.runs.desk.accepted_numbers import AcceptedNumbers
from osmosis_ai.platform.runs.execute.executor_loop import ExecutorLoop
from osmosis_ai.platform.runs.stored_journal import stored_records
from osmosis_ai.platform.services import PlatformServices
from tests.controller.served_loop import LoopProcess
from tests.e2e.turnstile import Turnstile
from tests.evaluation.builders import spec
from tests.platform.conftest import Member
from tests.platform.evaluations import ROLLOUT, ROWS, Code, experiment, submit_body, wait_until, worker_of
from tests.processes import stop_process
from tests.warm_osmosis import process_of

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm_children_without_torch")]
RUNS = "/api/cli/eval-runs"


@pytest.fixture
def clock() -> SystemClock:
    """The machine's own: workers are other processes."""
    return SystemClock()


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
    """A model provider that lets nobody in; its base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()


def hold_at(turnstile: Turnstile, services: PlatformServices, run: dict[str, Any], count: int) -> None:
    """Hold a run once its worker has recorded ``count`` attempts; the few in flight may still be added."""
    turnstile.may_pass = lambda: recorded(services, run["id"]) < count
    wait_until(lambda: recorded(services, run["id"]) >= count)


def submit(api: TestClient, **changes: Any) -> dict[str, Any]:
    reply = api.post(RUNS, json=submit_body(**changes))
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


def ended(api: TestClient, name: str) -> dict[str, Any]:
    """Wait for the run to end and return its detail."""

    def look() -> dict[str, Any] | None:
        detail: dict[str, Any] = api.get(f"{RUNS}/{name}").json()
        return detail if detail["eval_run"]["status"] in ("finished", "failed", "stopped") else None

    found: dict[str, Any] = wait_until(look)
    return found


def fetched(api: TestClient, name: str, types: str, rows: str | None = None) -> dict[str, bytes]:
    """Download files the way a client does."""
    asked = {"types": types} if rows is None else {"types": types, "rows": rows}
    manifest = api.get(f"{RUNS}/{name}/samples/manifest", params=asked).json()
    sizes = {file["path"]: file["size"] for file in manifest["files"]}
    urls = api.post(f"{RUNS}/{name}/samples/download-urls", json={"items": manifest["files"]}).json()
    contents = {item["path"]: api.get(item["url"]).content for item in urls["items"]}
    assert {path: len(content) for path, content in contents.items()} == sizes
    return contents


def cleaned_up(services: PlatformServices, run_id: str) -> None:
    """Wait for the worker to have left nothing behind."""
    wait_until(lambda: not (services.config.runs_dir / run_id).exists())


def log_of(services: PlatformServices, run_id: str) -> list[str]:
    with services.db.session() as session:
        lines = session.scalars(
            select(DbLogLine).where(DbLogLine.subject_id == run_id).order_by(DbLogLine.id)
        )
        return [f"[{line.step}] {line.message}" for line in lines]


def samples_of(services: PlatformServices, run_id: str) -> dict[tuple[int, int], tuple[Any, ...]]:
    with services.db.session() as session:
        rows = session.scalars(select(DbSample).where(DbSample.run_id == run_id))
        return {(s.row_index, s.run_index): (s.source_row_index, s.status, s.reward, s.tokens) for s in rows}


def journalled(services: PlatformServices, run_id: str) -> dict[tuple[int, int], TerminalRecord]:
    """Return what the journal that stays with a run says of each sample."""
    with services.db.session() as session:
        key = session.get_one(DbRun, run_id).journal_blob
    assert key is not None
    return {(each.row_index, each.run_index): each for each in stored_records(services.blobs, key)}


def recorded(services: PlatformServices, run_id: str) -> int:
    """Return how many samples a worker has journalled on its disk, of which the platform hears later, or at the end."""
    journals = list((services.config.runs_dir / run_id).glob("evaluation/*/events.jsonl"))
    try:
        lines = journals[0].read_bytes().count(b"\n") if journals else 0
    except FileNotFoundError:
        lines = 0  # the run has ended
    return max(lines, len(samples_of(services, run_id)))


def test_a_run_gives_the_samples_of_the_same_evaluation_on_ones_own_machine(
    api: TestClient, services: PlatformServices, executor: ExecutorLoop, tmp_path: Path
) -> None:
    submitted = submit(api)
    detail = ended(api, submitted["name"])
    assert detail["eval_run"]["status"] == "finished", detail

    local = EvalRunner(
        spec=spec(model_path="osmosis/tiny", n=2, batch_size=4),
        options=EvalRunOptions(name="local"),
        dataset=DatasetInput(ROWS, "multiply", file_digest(ROWS), "workspace"),
        selection=select_rows(200, limit=3, rows=None),
        rollout=ProjectSource(ROLLOUT),
        output_root=tmp_path / "evals",
        hooks=RunHooks(),
        open_model=lambda env, lost: open_policy("osmosis/tiny", env, lost),
    )
    summary = asyncio.run(local.run())
    assert summary is not None
    assert detail["environment"] == (summary.run_dir / "environment.txt").read_text().strip()
    assert "which meets `multiply/pyproject.toml`" in detail["environment"]

    def essence(lines: bytes) -> list[tuple[Any, ...]]:
        keys = ("row_index", "run_index", "status", "reward", "tokens", "trajectory_filename")
        return [tuple(json.loads(line).get(key) for key in keys) for line in lines.splitlines()]

    files = fetched(api, submitted["name"], "metrics,trajectories")
    assert essence(files["summary.jsonl"]) == essence((summary.run_dir / "summary.jsonl").read_bytes())
    metrics = json.loads(files["metrics.json"])
    assert metrics["summary"] == summary.metrics.summary
    assert metrics["eval_run"]["id"] == submitted["id"]
    assert metrics["eval_run"]["status"] == "finished"
    assert {p for p in files if p.startswith("trajectories/")} == {
        f"trajectories/row_{row}_run_{run}.json" for row in range(3) for run in range(2)
    }
    assert detail["results"]["total_runs"] == 6
    assert detail["results"]["score"] == pytest.approx(summary.metrics.summary["reward_stats"]["mean"])

    only = fetched(api, submitted["name"], "trajectories", rows="1")
    assert sorted(only) == ["summary.jsonl", "trajectories/row_1_run_0.json", "trajectories/row_1_run_1.json"]
    with services.db.session() as session:
        shown = {
            (sample.row_index, sample.run_index): (sample.input, sample.output, sample.parts)
            for sample in session.scalars(select(DbSample).where(DbSample.run_id == submitted["id"]))
        }
    records = journalled(services, submitted["id"])
    assert shown == {item: (each.input, each.output, each.parts) for item, each in records.items()}
    assert len(shown) == 6 and all(asked and answered for asked, answered, _ in shown.values())
    cleaned_up(services, submitted["id"])
    with services.db.session() as session:
        run = session.get_one(DbRun, submitted["id"])
    assert run.metrics is not None and run.metrics["journal_bytes"] == run.journal_bytes
    accepted = AcceptedNumbers(services.db, services.blobs, services.desk.leases)
    counted = accepted._measure(run, lambda: None)
    assert counted.summary == run.metrics["summary"], "the platform would have counted the same"
    known = {**run.metrics["estimates"], "limited_by": None}
    assert counted.estimates.model_dump(mode="json") == known
    steps = " ".join(log_of(services, submitted["id"]))
    for stage in ("checking the model", "preparing the rollout's environment", "starting the rollout's"):
        assert stage in steps


def test_a_stopped_run_keeps_what_was_finished(
    api: TestClient, services: PlatformServices, executor: ExecutorLoop, turnstile: Turnstile
) -> None:
    turnstile.hold()
    run = submit(api, evaluation_config={"limit": 100, "n": 20, "batch_size": 1})
    hold_at(turnstile, services, run, 3)
    wait_until(lambda: samples_of(services, run["id"]))
    assert api.post(f"{RUNS}/{run['name']}/stop", json={}).json() == {"id": run["id"], "status": "stopping"}
    detail = ended(api, run["name"])
    assert detail["eval_run"]["status"] == "stopped"
    assert "error" not in detail["eval_run"]
    kept = samples_of(services, run["id"])
    assert 0 < len(kept) < 2000
    assert journalled(services, run["id"]).keys() == kept.keys()
    assert detail["results"]["total_runs"] == len(kept)
    files = fetched(api, run["name"], "metrics,trajectories,logs")
    assert len(files["summary.jsonl"].splitlines()) == len(kept)
    assert json.loads(files["metrics.json"])["eval_run"]["status"] == "stopped"
    assert b"asked for the run to stop" in files["logs.txt"]
    again = api.post(f"{RUNS}/{run['id']}/stop", json={})
    assert (again.status_code, again.json()["status"]) == (409, "stopped")


def test_a_retried_run_goes_on_and_keeps_its_scores(
    api: TestClient, services: PlatformServices, unsandboxed: ExecutorLoop, code: Code, tmp_path: Path
) -> None:
    is_well = tmp_path / "well"
    first_line = "        messages: list[dict[str, Any]] = [INSTRUCTIONS, *ctx.prompt]\n"
    sick = (
        (ROLLOUT / "main.py")
        .read_text()
        .replace(
            first_line,
            f"{first_line}        if sum(map(ord, str(ctx.prompt))) % 2 and not os.path.exists({str(is_well)!r}):\n"
            "            raise RuntimeError('the search index is being rebuilt')\n",
        )
    )
    code.write("rollouts/multiply/main.py", sick)
    code.commit("fail now and then")
    run = submit(api, evaluation_config={"limit": 8, "n": 2, "batch_size": 4})
    unsandboxed.start()
    ended(api, run["name"])
    first, first_records = samples_of(services, run["id"]), journalled(services, run["id"])
    failed = {item for item, (_, status, *_) in first.items() if status == "failed"}
    with services.db.session() as session:
        kinds = session.scalars(select(DbRunFile.kind).where(DbRunFile.run_id == run["id"])).all()
    assert kinds.count("diagnostics") == len(failed)
    assert failed and failed != first.keys(), first
    cleaned_up(services, run["id"])
    is_well.touch()
    assert api.post(f"{RUNS}/{run['name']}/retry", json={}).json()["id"] == run["id"]
    detail = ended(api, run["name"])
    assert (detail["eval_run"]["status"], detail["eval_run"]["revision"]) == ("finished", 1), detail
    samples, records = samples_of(services, run["id"]), journalled(services, run["id"])
    assert samples.keys() == first.keys() and all(status == "success" for _, status, *_ in samples.values())
    assert {item: records[item] for item in first.keys() - failed} == {
        item: first_records[item] for item in first.keys() - failed
    }
    assert detail["results"]["failed"] == 0 and detail["results"]["total_runs"] == 16
    files = fetched(api, run["name"], "metrics,trajectories,journal")
    assert len(files["summary.jsonl"].splitlines()) == 16
    assert len(files["events.jsonl"].splitlines()) == 16 + len(failed)
    assert len([path for path in files if path.startswith("trajectories/")]) == 16
    with services.db.session() as session:
        kinds = session.scalars(select(DbRunFile.kind).where(DbRunFile.run_id == run["id"])).all()
    assert "diagnostics" not in kinds, "nothing of the failures is left"
    assert "nothing to retry" in api.post(f"{RUNS}/{run['name']}/retry", json={}).json()["error"]


def test_a_worker_ended_by_force(api: TestClient, services: PlatformServices, turnstile: Turnstile) -> None:
    executor = open_local_executor(services, stop_grace_s=0.0)
    executor.start()
    turnstile.hold()
    try:
        run = submit(api, evaluation_config={"limit": 100, "n": 20, "batch_size": 1})
        hold_at(turnstile, services, run, 3)
        wait_until(lambda: samples_of(services, run["id"]))
        worker = worker_of(executor, run["id"])
        assert worker is not None
        stop_process(process_of(worker.pid))
        api.post(f"{RUNS}/{run['name']}/stop", json={})
        wait_until(lambda: worker.poll() is not None)
        executor._stop_grace_s = 600.0
        assert ended(api, run["name"])["eval_run"]["status"] == "stopped"
    finally:
        executor.close()
    assert len(samples_of(services, run["id"])) > 0
    assert "[executor] the worker was ended by force" in log_of(services, run["id"])


def test_runs_go_on_after_the_platform_was_closed(
    api: TestClient, services: PlatformServices, executor: ExecutorLoop, turnstile: Turnstile
) -> None:
    turnstile.hold()
    run = submit(api, evaluation_config={"limit": 20, "n": 4, "batch_size": 2})
    hold_at(turnstile, services, run, 1)
    executor.close()
    turnstile.open()
    before = samples_of(services, run["id"])
    assert api.get(f"{RUNS}/{run['name']}").json()["eval_run"]["status"] == "running"
    assert 0 < len(before) < 80
    successor = open_local_executor(services)
    successor.start()
    try:
        detail = ended(api, run["name"])
    finally:
        successor.close()
    assert detail["eval_run"]["status"] == "finished"
    after = samples_of(services, run["id"])
    assert len(after) == 80
    assert before.items() <= after.items()


def test_a_run_whose_journal_was_damaged_here_goes_on_from_what_the_platform_has_of_it(
    api: TestClient, services: PlatformServices, executor: ExecutorLoop, turnstile: Turnstile
) -> None:
    turnstile.hold()
    run = submit(api, evaluation_config={"limit": 20, "n": 4, "batch_size": 2})
    hold_at(turnstile, services, run, 3)
    executor.close()
    turnstile.open()
    (journal,) = (services.config.runs_dir / run["id"]).glob("evaluation/*/events.jsonl")
    first, second, *rest = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(first + second.replace(b":", b"!", 1) + b"".join(rest))
    published = samples_of(services, run["id"])
    successor = open_local_executor(services)
    successor.start()
    try:
        detail = ended(api, run["name"])["eval_run"]
    finally:
        successor.close()
    assert detail["status"] == "finished", detail
    assert "which is kept as events.jsonl.diverged" in "".join(log_of(services, run["id"]))
    assert published.items() <= samples_of(services, run["id"]).items()
    with services.db.session() as session:
        assert session.get_one(DbRun, run["id"]).journal_generation == 1


def test_a_worker_that_always_dies_fails_its_run(api: TestClient, services: PlatformServices) -> None:
    workers = LocalWorkers(services, services.config)

    def dying(run_id: str, credential: str, claim_id: str) -> Any:
        process = workers(run_id, credential, claim_id)
        os.killpg(process.pid, signal.SIGKILL)
        return process

    executor = open_local_executor(services, start_worker=dying)
    executor.start()
    try:
        run = submit(api)
        detail = ended(api, run["name"])
    finally:
        executor.close()
        workers.close()
    assert detail["eval_run"]["status"] == "failed"
    assert detail["eval_run"]["error"].startswith(
        "the worker ended unexpectedly (signal 9, as when the machine has no memory left), 3 times in a row "
        "without getting anything done; see "
    )


def test_a_model_that_rejects_the_key_fails_the_run_in_the_providers_own_words(
    api: TestClient, services: PlatformServices, executor: ExecutorLoop, provider: str
) -> None:
    run = submit(
        api,
        experiment_config=experiment(model_path="openai/stand-in"),
        env_config={"OPENAI_BASE_URL": provider},
        secrets={"required": ["OPENAI_API_KEY"], "provided": {"OPENAI_API_KEY": "sk-canary-7291"}},
    )
    detail = ended(api, run["name"])
    assert detail["eval_run"]["status"] == "failed"
    assert "the key was revoked in May" in detail["eval_run"]["error"]
    assert "\n" not in detail["eval_run"]["error"]
    assert detail["resolved_secret_scopes"] == {"OPENAI_API_KEY": "run"}
    everything = json.dumps([detail, log_of(services, run["id"])])
    assert "sk-canary-7291" not in everything
    with services.db.session() as session:
        assert session.get_one(DbRun, run["id"]).sealed_secrets is None
    cleaned_up(services, run["id"])
    for path in services.config.home.rglob("*"):
        if path.is_file():
            assert b"sk-canary-7291" not in path.read_bytes(), path


def test_an_environment_that_does_not_build_fails_the_run_with_uvs_reason(
    api: TestClient, services: PlatformServices, executor: ExecutorLoop, code: Code
) -> None:
    needed = '"osmosis-ai[server]>=0.3.0rc1,<0.4"'
    project = (ROLLOUT / "pyproject.toml").read_text()
    assert needed in project
    code.write(
        "rollouts/multiply/pyproject.toml",
        project.replace(needed, f'{needed}, "no-such-package-of-osmosis==9"'),
    )
    code.commit("need what nobody has")
    run = submit(api)
    detail = ended(api, run["name"])
    assert detail["eval_run"]["status"] == "failed"
    assert "no-such-package-of-osmosis" in detail["eval_run"]["error"]
    assert "\n" not in detail["eval_run"]["error"]
    metrics = json.loads(fetched(api, run["name"], "metrics")["metrics.json"])
    assert metrics["eval_run"]["status"] == "failed"
    assert metrics["summary"]["total_samples"] == 0


def test_a_commit_may_hold_files_of_any_name(
    api: TestClient, services: PlatformServices, executor: ExecutorLoop, code: Code
) -> None:
    code.write(os.fsdecode(b"rollouts/multiply/caf\xe9/caf\xe9.txt"), "x")
    code.commit("add a file whose name is not UTF-8")
    run = submit(api)
    assert ended(api, run["name"])["eval_run"]["status"] == "finished"


def test_a_commit_whose_archive_has_other_bytes_than_its_digest_is_packed_anew_before_it_is_executed(
    api: TestClient, services: PlatformServices, executor_later: ExecutorLoop
) -> None:
    run = submit(api)
    (key,) = services.blobs.keys("sources")
    size = services.blobs.size(key)
    services.blobs.delete(key)
    services.blobs.put(key, io.BytesIO(bytes(size)))
    executor_later.start()
    detail = ended(api, run["name"])["eval_run"]
    assert detail["status"] == "finished"
    told = [line["message"] for line in api.get(f"{RUNS}/{run['name']}/logs").json()["logs"]]
    assert any("has other bytes than announced" in each for each in told), "no worker ran what it got first"
    assert len(set(services.blobs.keys("sources")) - {key}) == 1


def test_an_agent_sees_its_own_secrets_and_nothing_of_the_platforms_environment(
    api: TestClient,
    services: PlatformServices,
    member: Member,
    code: Code,
    unsandboxed: ExecutorLoop,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    services.secrets.put(
        member.workspace.id, member.user.id, "AGENT_KEY", "canary-of-the-workspace", "workspace"
    )
    services.secrets.put(
        member.workspace.id, member.user.id, "OTHER_KEY", "canary-not-asked-for", "workspace"
    )
    # Harmless ones, which JSON itself is full of: they garble nothing, and the run says that they cannot be hidden.
    harmless = {"FLAG": "true", "NOTHING": "null", "COUNT": "1", "LIMIT": "100000"}
    for name, value in harmless.items():
        services.secrets.put(member.workspace.id, member.user.id, name, value, "workspace")
    monkeypatch.setenv("OSMOSIS_TOKEN", "canary-of-the-shell")
    monkeypatch.setenv("OPENAI_API_KEY", "canary-of-the-operator")
    # Beside the platform's files, which are gone as soon as the run has ended, however fast that is.
    told = tmp_path / "environment.txt"
    source = (ROLLOUT / "main.py").read_text()
    spying = source.replace(
        'if __name__ == "__main__":',
        "import os\nfrom pathlib import Path\n"
        f'Path({str(told)!r}).write_text("\\n".join(f"{{k}}={{v}}" for k, v in os.environ.items()))\n'
        'print("my key is", os.environ["AGENT_KEY"], flush=True)\n'
        'if __name__ == "__main__":',
    )
    code.write("rollouts/multiply/main.py", spying)
    code.commit("look around")
    run = submit(api, secrets={"required": ["AGENT_KEY", *harmless]}, env_config={"LOG_LEVEL": "DEBUG"})
    unsandboxed.start()
    detail = ended(api, run["name"])
    assert detail["eval_run"]["status"] == "finished", detail
    seen = told.read_text()
    assert "AGENT_KEY=canary-of-the-workspace" in seen
    assert "LOG_LEVEL=DEBUG" in seen
    for canary in (
        "canary-not-asked-for",
        "canary-of-the-shell",
        "canary-of-the-operator",
        "OSMOSIS_DATABASE_URL",
    ):
        assert canary not in seen
    assert detail["resolved_secret_scopes"] == dict.fromkeys(["AGENT_KEY", *harmless], "workspace")
    cleaned_up(services, run["id"])
    log = log_of(services, run["id"])
    for name in harmless:
        assert sum(f"the value of {name} cannot be hidden" in line for line in log) == 1, log
    assert any(line.startswith("[run] session ends") for line in log), log
    for path in services.config.home.rglob("*"):
        if path.is_file():
            assert b"canary-of-the-workspace" not in path.read_bytes(), path


BREAKS = """\
        for question in ("What is it?", f"Are you sure, {os.environ['AGENT_KEY']}?"):
            messages.append({"role": "user", "content": question})
            messages.append(await self.ask_model(messages))
        raise RuntimeError("the agent broke")
"""
LOOP = "        for _ in range(MAX_TURNS):\n"


def test_both_calls_stand_on_its_page_without_the_runs_secrets(
    api: TestClient, services: PlatformServices, member: Member, code: Code, executor_later: ExecutorLoop
) -> None:
    source = (ROLLOUT / "main.py").read_text()
    assert LOOP in source
    code.write("rollouts/multiply/main.py", source.replace(LOOP, BREAKS + LOOP))
    code.commit("break")
    services.secrets.put(member.workspace.id, member.user.id, "AGENT_KEY", "canary-of-the-agent", "workspace")
    run = api.post("/api/cli/eval-runs", json=submit_body(secrets={"required": ["AGENT_KEY"]})).json()
    executor_later.start()
    wait_until(
        lambda: api.get(f"/api/cli/eval-runs/{run['name']}").json()["eval_run"]["status"] == "finished"
    )

    session = begin_session(services, member.user, "/").headers["set-cookie"].partition(";")[0]
    address = f"/{member.workspace.name}/evals/{run['name']}/samples"
    browser = {"Accept": "text/html", "Cookie": session}
    page = api.get(f"{address}/0.0", headers=browser)
    assert page.status_code == 200, page.text
    shown = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page.text)))
    assert "the agent broke" in shown
    assert "Taken from the model calls of an agent that ended without giving a conversation" in shown
    assert "What is it?" in shown and "Are you sure, [REDACTED]?" in shown
    assert len(re.findall(r"tokens read, \d+ written", shown)) == 2
    found = api.get(f"{address}?q=are+you+sure&in=conversations", headers=browser)
    assert f"{address}/0.0" in found.text
    for path in services.config.home.rglob("*"):
        assert not path.is_file() or b"canary-of-the-agent" not in path.read_bytes(), path


SERVED_KEY = "osm_rollout_canary-4711"


def test_a_killed_served_agent(api: TestClient, services: PlatformServices, executor: ExecutorLoop) -> None:
    served = {"rollout": "no-such-directory", "entrypoint": "server://calculater"}
    with LoopProcess(SERVED_KEY, works_on=20) as agent:
        registration = {
            "host": "127.0.0.1",
            "port": agent.port,
            "agent_loop_name": "calculator",
            "api_key": SERVED_KEY,
        }
        assert api.post("/api/cli/rollout-server/register", json=registration).json()["status"] == "healthy"
        refused = api.post(f"{RUNS}/check", json=submit_body(experiment_config=experiment(**served)))
        assert refused.status_code == 400
        assert "no served agent 'calculater' is registered" in refused.text
        assert "server://calculator" in refused.text
        served["entrypoint"] = "server://calculator"
        body = submit_body(
            experiment_config=experiment(**served), evaluation_config={"limit": 50, "n": 2, "batch_size": 16}
        )
        run = api.post(RUNS, json=body).json()
        wait_until(lambda: recorded(services, run["id"]) >= 10)
        agent.kill()
        # Started again as `osmosis serve` does: with another key, which the platform is told.
        with LoopProcess(f"{SERVED_KEY}-2", agent.port):
            registration["api_key"] = f"{SERVED_KEY}-2"
            assert (
                api.post("/api/cli/rollout-server/register", json=registration).json()["status"] == "healthy"
            )
            detail = ended(api, run["name"])
    log = log_of(services, run["id"])
    assert detail["eval_run"]["status"] == "finished", log
    samples = samples_of(services, run["id"])
    assert len(samples) == 100
    assert {(status, reward) for _, status, reward, _ in samples.values()} == {("success", 1.0)}
    assert SERVED_KEY not in "\n".join(log)
    assert any("the remote agent `calculator` is unavailable" in line for line in log)
    trajectories = fetched(api, run["name"], "trajectories", rows="1")
    assert {"trajectories/row_1_run_0.json", "trajectories/row_1_run_1.json"} <= trajectories.keys()
