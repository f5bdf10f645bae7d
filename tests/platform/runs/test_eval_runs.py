"""Evaluation runs over HTTP, as far as that goes without a worker: submits, lists, details, stops."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from osmosis_ai._version import __version__
from tests.platform.conftest import ManualClock, Member, World, assert_flat_error
from tests.platform.evaluations import Code, add_dataset, experiment, git, issue, submit_body
from tests.platform.fake_worker import EVALS, FakeWorker
from tests.platform.viewer.runs_world import add_run, sealed_secrets

RUNS, submitted, refused = EVALS.route, EVALS.taken, EVALS.refused
SUBMITTER = "osmosis_ai.platform.runs.submitter"


def test_detail(
    api: TestClient, code: Code, member: Member, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(api, advanced_config={"engine": {"max_parallel": 6}}, env_config={"LOG_LEVEL": "DEBUG"})
    assert set(run) == {"id", "name", "status", "created_at", "platform_url"}
    assert run["platform_url"] == f"http://127.0.0.1:8733/fern/evals/{run['name']}"
    assert run["status"] == "pending"
    assert run["created_at"] == "2026-11-02T09:30:00.000Z"
    by_name, by_id = api.get(f"{RUNS}/{run['name']}").json(), api.get(f"{RUNS}/{run['id']}").json()
    assert by_name == by_id
    assert by_name["eval_run"] == {
        "id": run["id"],
        "name": run["name"],
        "status": "pending",
        "created_at": "2026-11-02T09:30:00.000Z",
        "creator_name": "Mara",
        "creator_email": member.user.email,
        "platform_url": run["platform_url"],
    }
    assert by_name["config"] == {
        "model_path": "osmosis/tiny",
        "limit": 3,
        "n": 2,
        "batch_size": 4,
        "pass_threshold": 1.0,
        "seed": 0,
    }
    assert by_name["results"] == {
        "pass_threshold": 1.0,
        "total_runs": 0,
        "sampled_rows": 3,
        "total_dataset_rows": 200,
        "rows_drawn": {
            "rows": 3,
            "total": 200,
            "kind": "first",
            "fraction": None,
            "seed": None,
            "words": "first 3 of 200 rows",
        },
    }
    assert by_name["commit_sha"] == code.head
    assert (len(by_name["dataset_sha256"]), by_name["platform_version"]) == (64, __version__)
    # A run can be submitted again by its own request.
    assert by_name["request"]["advanced_config"] == {"engine": {"max_parallel": 6}}
    assert api.post(RUNS, json=by_name["request"]).status_code == 200
    assert "isolation" not in by_name
    why = "required but unavailable, so no run is executed: no user namespaces; sysctl -w x=1"
    world.configure(executes_nothing=why)
    assert api.get(f"{RUNS}/{run['name']}").json()["isolation"] == why
    assert by_name["entrypoint"] == "main.py"
    assert by_name["env_config"] == {"LOG_LEVEL": "DEBUG"}
    assert by_name["dataset"]["name"] == by_name["rollout"]["name"] == "multiply"


def test_check_creates_no_run(api: TestClient, code: Code, world: World, member: Member) -> None:
    world.put_secret(member, "STORED", "value-of-it", "workspace")
    secrets = {"required": ["STORED", "GIVEN"], "provided": {"GIVEN": "sk-only-for-this"}}
    asked = api.post(f"{RUNS}/check", json=submit_body(secrets=secrets))
    assert asked.status_code == 200, asked.text
    told = asked.json()
    assert told.pop("dataset")["name"] == "multiply"
    assert len(told.pop("dataset_sha256")) == 64
    assert told == {
        "platform_version": __version__,
        "dry_run": True,
        "commit_sha": code.head,
        "repository": {"identity": "fern/agents", "local": True},
        "sampled_rows": 3,
        "total_dataset_rows": 200,
        "resolved_secret_scopes": {"STORED": "workspace", "GIVEN": "run"},
    }
    assert api.get(RUNS).json()["total_count"] == 0


def test_all_issues_are_reported_at_once(api: TestClient) -> None:
    body = refused(
        api,
        400,
        "INVALID_CONFIG",
        experiment_config={
            "rollout": "../multiply",
            "entrypoint": "/main.py",
            "model_path": " ",
            "datset": "multiply",
            "branch": "main",
            "commit_sha": "xyz",
        },
        evaluation_config={"n": 0, "limit": 2.5, "pass_treshold": 1, "batch_size": True},
        env_config={"lower": "a", "_OSMOSIS_X": "b", "FINE": 3},
        secrets={"required": ["FINE", "1BAD"], "provided": {"UNLISTED": "sk-canary"}},
        training_config={"lr": 1},
        evalution_config={},
    )
    keys = {each["key"] for each in body["issues"]}
    assert keys >= {
        "experiment.rollout",
        "experiment.entrypoint",
        "experiment.model_path",
        "experiment.dataset",
        "experiment.datset",
        "experiment.commit_sha",
        "evaluation.n",
        "evaluation.limit",
        "evaluation.pass_treshold",
        "evaluation.batch_size",
        "env",
        "env.lower",
        "env._OSMOSIS_X",
        "env.FINE",
        "secrets.required",
        "secrets.provided",
        "training_config",
        "evalution_config",
    }
    assert issue(body, "evaluation.pass_treshold")["key_correction"] == "evaluation.pass_threshold"
    assert issue(body, "evalution_config")["key_correction"] == "evaluation_config"
    assert "sk-canary" not in json.dumps(body)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "VALIDATION_FAILED"),
        (b"[]", "VALIDATION_FAILED"),
        (b"{}", "INVALID_CONFIG"),
        (b'{"experiment_config": null}', "INVALID_CONFIG"),
        (b'{"experiment_config": []}', "INVALID_CONFIG"),
        (b'{"experiment_config": {}, "secrets": "sk-canary"}', "INVALID_CONFIG"),
        (b'{"secrets": {"provided": "sk-canary"}}', "INVALID_CONFIG"),
        (b'{"evaluation_config": {"pass_threshold": NaN}}', "INVALID_JSON"),
        (b"{", "INVALID_JSON"),
    ],
)
def test_invalid_bodies(api: TestClient, content: bytes, reason: str) -> None:
    reply = api.post(RUNS, content=content, headers={"Content-Type": "application/json"})
    assert_flat_error(reply, 400, reason)
    assert "sk-canary" not in reply.text


@pytest.mark.usefixtures("code")
def test_a_dataset_by_its_id(api: TestClient) -> None:
    dataset = api.get("/api/cli/datasets/multiply").json()
    run = submitted(api, experiment_config=experiment(dataset=dataset["id"]))
    assert api.get(f"{RUNS}/{run['id']}").json()["dataset"] == {"id": dataset["id"], "name": "multiply"}


def test_unknown_datasets(api: TestClient, world: World, stranger: Member) -> None:
    body = refused(api, 404, "DATASET_NOT_FOUND", experiment_config=experiment(dataset="multiplyy"))
    assert body["error"] == "there is no dataset 'multiplyy' in this workspace; did you mean multiply?"
    add_dataset(world, stranger, "theirs")
    refused(api, 404, "DATASET_NOT_FOUND", experiment_config=experiment(dataset="theirs"))


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        ("processing", None, "still being checked (processing)"),
        ("error", "row 7 has no user_prompt.", "cannot be used: row 7 has no user_prompt. Fix the file"),
        ("uploading", None, "has not been uploaded yet (uploading)"),
        ("cancelled", None, "was cancelled; upload it again"),
    ],
)
def test_unusable_datasets(
    api: TestClient, world: World, member: Member, status: str, error: str | None, said: str
) -> None:
    add_dataset(world, member, "half", status=status, error=error)
    body = refused(api, 409, "DATASET_NOT_READY", experiment_config=experiment(dataset="half"))
    assert said in body["error"]


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"rollout": "multiplly"}, "experiment.rollout", "did you mean 'multiply'?"),
        ({"entrypoint": "mian.py"}, "experiment.entrypoint", "there is no file rollouts/multiply/mian.py"),
        ({"entrypoint": "a/../../multiply/x.py"}, "experiment.entrypoint", "must not leave"),
        (
            {"branch": "nain"},
            "experiment.branch",
            "; did you mean main? If it exists on your machine: `git push origin nain`",
        ),
        ({"commit_sha": "0123456789abcdef"}, "experiment.commit_sha", "`git push origin HEAD`"),
        ({"commit_sha": "HEAD"}, "experiment.commit_sha", "must be 7 to 40 hexadecimal digits"),
        ({"model_path": "opena/gpt-5"}, "experiment.model_path", "did you mean 'openai/gpt-5'?"),
        ({"model_path": "openai/gpt-5-mini"}, "experiment.model_path", "store the secret `OPENAI_API_KEY`"),
        ({"model_path": "osmosis/huge"}, "experiment.model_path", "Unknown built-in model: osmosis/huge"),
        ({"dataset": "d" * 300}, "experiment.dataset", "must not be longer than 255"),
    ],
)
def test_unknown_code_and_models(api: TestClient, changes: dict[str, str], key: str, said: str) -> None:
    body = refused(api, 400, "INVALID_CONFIG", experiment_config=experiment(**changes))
    assert said in issue(body, key)["message"]


def test_uncommitted_code(api: TestClient, code: Code) -> None:
    code.write("rollouts/fresh/main.py", "")
    body = refused(api, 400, "INVALID_CONFIG", experiment_config=experiment(rollout="fresh"))
    # The platform reads this checkout, so that nothing is pushed.
    assert issue(body, "experiment.rollout")["message"].endswith("; commit it")
    git(code.path, "update-ref", "-d", "refs/heads/main")
    body = refused(api, 400, "INVALID_CONFIG")
    assert "has no commit on its default branch" in issue(body, "experiment.branch")["message"]


def test_commits_are_resolved_at_submit(api: TestClient, code: Code) -> None:
    first = code.head
    submitted(api)
    pushed = code.commit("better")
    by_default = submitted(api)
    pinned = submitted(api, experiment_config=experiment(commit_sha=first[:9]))
    assert api.get(f"{RUNS}/{by_default['name']}").json()["commit_sha"] == pushed
    assert api.get(f"{RUNS}/{pinned['name']}").json()["commit_sha"] == first


def test_unreachable_repository(api: TestClient, code: Code) -> None:
    first = code.head
    submitted(api)
    code.path.rename(code.path.with_name("moved"))
    body = assert_flat_error(api.post(RUNS, json=submit_body()), 502, "REPOSITORY_NOT_FETCHED")
    assert "fern/agents cannot be fetched" in body["error"]
    submitted(api, experiment_config=experiment(commit_sha=first))


def test_secret_values_never_come_back(api: TestClient, world: World, member: Member) -> None:
    world.put_secret(member, "STORED", "one", "workspace")
    world.put_secret(member, "STORED", "two", "user")
    run = submitted(api, secrets={"required": ["STORED", "GIVEN"], "provided": {"GIVEN": "sk-canary-4417"}})
    detail = api.get(f"{RUNS}/{run['name']}")
    assert detail.json()["resolved_secret_scopes"] == {"STORED": "user_override", "GIVEN": "run"}
    assert "sk-canary-4417" not in detail.text
    assert api.get("/api/cli/environment-secrets").json()["total_count"] == 2
    assert not world.is_stored("sk-canary-4417")
    assert sealed_secrets(world, run["id"]) is not None
    api.post(f"{RUNS}/{run['name']}/stop", json={})
    assert sealed_secrets(world, run["id"]) is None


def test_random_rows(api: TestClient, world: World, member: Member) -> None:
    run = submitted(api, evaluation_config={})
    detail = api.get(f"{RUNS}/{run['name']}").json()
    assert detail["results"]["sampled_rows"] == 20
    seed = detail["config"]["row_draw_seed"]
    assert isinstance(seed, int)
    assert detail["results"]["rows_drawn"]["words"] == f"20 of 200 rows, random 10%, seed {seed}"
    (listed,) = api.get(RUNS).json()["eval_runs"]
    assert listed["results"]["rows_drawn"] == detail["results"]["rows_drawn"]
    add_dataset(world, member, "few", rows=[{"user_prompt": "1", "label": "1"}] * 4)
    few = submitted(api, evaluation_config={}, experiment_config=experiment(dataset="few"))
    assert api.get(f"{RUNS}/{few['name']}").json()["results"]["sampled_rows"] == 1


def test_concurrent_submits_get_different_names(
    api: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So few names that every other draw is taken.
    monkeypatch.setattr(
        f"{SUBMITTER}.draw_name", lambda draws, tries: f"amber-otter-{draws.randint(1, 12 + 4 * tries)}"
    )
    with ThreadPoolExecutor(8) as threads:
        runs = list(threads.map(lambda _: submitted(api), range(12)))
    assert len({run["name"] for run in runs}) == 12


def test_unknown_run(api: TestClient) -> None:
    name = submitted(api)["name"]
    said = assert_flat_error(api.get(f"{RUNS}/{name}0"), 404, "NOT_FOUND")["error"]
    assert said == f"there is no evaluation run '{name}0' in this workspace; did you mean {name}?"
    said = assert_flat_error(api.get(f"{RUNS}/@@@"), 404, "NOT_FOUND")["error"]
    assert said == "there is no evaluation run '@@@' in this workspace; see `osmosis eval list`."


def test_list_pages(api: TestClient, world: World, member: Member, clock: ManualClock) -> None:
    for number in range(70):
        add_run(world, member, f"amber-otter-{number}")
    clock.advance(60)
    newest = submitted(api)
    first = api.get(RUNS).json()
    assert (first["total_count"], first["has_more"], first["next_offset"]) == (71, True, 50)
    assert first["eval_runs"][0]["name"] == newest["name"]
    rest = api.get(RUNS, params={"offset": 50}).json()
    assert (len(rest["eval_runs"]), rest["next_offset"]) == (21, None)
    names = [run["name"] for run in first["eval_runs"] + rest["eval_runs"]]
    assert len(set(names)) == 71
    row = first["eval_runs"][0]
    assert row["model"] == {"id": "osmosis/tiny", "name": "osmosis/tiny"}
    assert row["dataset"]["name"] == row["rollout"]["name"] == "multiply"
    pages = {run["name"]: run["platform_url"] for run in first["eval_runs"] + rest["eval_runs"]}
    assert pages == {name: f"http://127.0.0.1:8733/fern/evals/{name}" for name in names}
    assert_flat_error(api.get(RUNS, params={"limit": 51}), 400, "VALIDATION_FAILED")
    clock.jump(-120)
    submitted(api)
    assert api.get(RUNS).json()["total_count"] == 72, "counted again, although it is not the newest run"


def test_stop(api: TestClient, world: World) -> None:
    run = submitted(api)
    path = f"{RUNS}/{run['name']}"
    assert api.post(f"{path}/stop", json={}).json()["status"] == "stopped"
    again = assert_flat_error(api.post(f"{path}/stop", json={}), 409, "RUN_ENDED")
    assert (again["id"], again["status"]) == (run["id"], "stopped")
    assert again["error"] == f"the run {run['name']} has already ended: stopped."
    assert api.get(path).json()["eval_run"]["completed_at"]
    path = f"{RUNS}/{submitted(api)['name']}"
    FakeWorker.claims(world)
    for _ in range(2):
        assert api.post(f"{path}/stop", json={}).json()["status"] == "stopping"
    said = [line["message"] for line in api.get(f"{path}/logs").json()["logs"]]
    assert said == ["mara@fern.example asked for the run to stop"]
