"""Pages of runs: what they show while a run waits, is executed and has ended, and what their buttons do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from tests.evaluation.builders import record
from tests.lazily import needs
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.evaluations import Code, add_dataset, end_with, logged, submit_body, training_body
from tests.platform.fake_worker import FakeWorker, settle
from tests.platform.pages.browsing import PASSWORD, csrf_of, sign_in, submitted, text_of
from tests.platform.viewer.runs_world import (
    add_model,
    add_points,
    add_run,
    add_samples,
    add_shard,
    change_run,
    keep_journal,
    source_of,
    statements_of,
)

RUNS, TRAININGS = "/api/cli/eval-runs", "/api/cli/training-runs"
PASSED: dict[str, Any] = {"status": "success", "reward": 1.0}
FAILED: dict[str, Any] = {"status": "failed", "boundary": "provider"}


@pytest.fixture
def member(world: World, tmp_path: Path) -> Member:
    mara = world.member(password=PASSWORD, clone_url=str(Code(tmp_path / "code").path))
    add_dataset(world, mara)
    return mara


@pytest.fixture
def browser(client: TestClient, member: Member) -> TestClient:
    """Mara's browser, signed in."""
    client.headers["accept"] = "text/html,application/xhtml+xml"
    sign_in(client)
    return client


@pytest.fixture
def run(browser: TestClient, member: Member, world: World) -> str:
    """The name of a finished run of which one sample failed."""
    made = submitted(browser, RUNS, submit_body(), member)
    samples = {(row, attempt): PASSED for row in range(3) for attempt in range(2)}
    end_with(world, made["id"], {**samples, (1, 1): FAILED})
    return str(made["name"])


def form_of(page: Any) -> dict[str, str]:
    once = re.search(r'name="once" value="([^"]+)"', page.text)
    assert once, page.text
    return {"csrf": csrf_of(page), "once": once[1]}


def resumed_by_api(browser: TestClient, member: Member, name: str) -> Any:
    return browser.post(f"{TRAININGS}/{name}/resume", headers=member.headers)


def log_of(browser: TestClient, member: Member, name: str, route: str = RUNS) -> str:
    return "\n".join(logged(browser, f"{route}/{name}", member.headers))


def runs_of(browser: TestClient, member: Member, route: str = RUNS) -> dict[str, Any]:
    """Return the runs that the API lists, by name."""
    (_, runs), *_ = browser.get(route, headers=member.headers).json().items()
    return {run["name"]: run for run in runs}


def test_a_run_that_goes_on_is_stopped_after_asking_and_a_second_click_is_harmless(
    browser: TestClient, member: Member, world: World
) -> None:
    name = submitted(browser, RUNS, submit_body(), member)["name"]
    shown = browser.get(f"/fern/evals/{name}")
    assert f'href="/fern/evals/{name}/stop"' in shown.text
    form = form_of(browser.get(f"/fern/evals/{name}/stop"))
    for _ in range(2):
        done = browser.post(f"/fern/evals/{name}/stop", data=form)
        assert (done.status_code, done.headers["location"]) == (303, f"/fern/evals/{name}")
    assert runs_of(browser, member)[name]["status"] == "stopped"
    assert (
        log_of(browser, member, name).count("mara@fern.example (on the run's page) asked for the run to stop")
        == 1
    )
    assert "the run has ended (stopped)" in text_of(browser.get(f"/fern/evals/{name}"))
    again = browser.get(f"/fern/evals/{name}/stop")
    assert again.status_code == 409 and "has already ended" in again.text


def test_failed_samples_run_again_in_the_same_run_however_often_it_is_clicked(
    browser: TestClient, member: Member, world: World, run: str
) -> None:
    samples = browser.get(f"{RUNS}/{run}/samples", headers=member.headers).json()["samples"]
    known = [(each["row"], each["attempt"], each["status"], each.get("reward")) for each in samples]
    records = [record(row, attempt, status=status, reward=reward) for row, attempt, status, reward in known]
    keep_journal(world, runs_of(browser, member)[run]["id"], *records)
    asked = browser.get(f"/fern/evals/{run}/retry")
    assert "1 of 6" in text_of(asked) and "1 failed, 0 without a reward" in text_of(asked)
    assert "run again on the same commit and rows" in text_of(asked)
    form = form_of(asked)
    for _ in range(2):
        assert browser.post(f"/fern/evals/{run}/retry", data=form).headers["location"] == f"/fern/evals/{run}"
    reopened = browser.get(f"{RUNS}/{run}", headers=member.headers).json()["eval_run"]
    assert (reopened["status"], reopened["revision"]) == ("pending", 1)
    assert list(runs_of(browser, member)) == [run]
    assert "Retried 1 time, last" in text_of(browser.get(f"/fern/evals/{run}"))
    retried = "(on the run's page) retried the run: 1 attempt without a score runs again"
    assert log_of(browser, member, run).count(retried) == 1
    refused = browser.post(f"/fern/evals/{run}/retry", data={**form, "once": "another"})
    assert refused.status_code == 409 and "cannot be retried: it is pending" in refused.text


def test_submitting_again_shows_config_rows_samples_and_cost_first(
    browser: TestClient, member: Member, world: World, run: str
) -> None:
    estimates = {"cost_usd": {"total": 3.0, "known_samples": 6}}
    change_run(world, runs_of(browser, member)[run]["id"], metrics={"estimates": estimates})
    asked = browser.get(f"/fern/evals/{run}/resubmit")
    shown = text_of(asked)
    assert "3 of 200" in shown and "Attempts 6" in shown and "$3.00" in shown
    assert "experiment.model_path osmosis/tiny" in shown and "evaluation.n 2" in shown
    form = form_of(asked)
    led = {browser.post(f"/fern/evals/{run}/resubmit", data=form).headers["location"] for _ in range(3)}
    assert len(led) == 1 and len(runs_of(browser, member)) == 2
    (name,) = (path.rpartition("/")[2] for path in led)
    assert f"mara@fern.example resubmitted {run}" in log_of(browser, member, name)
    assert log_of(browser, member, run).count(f"mara@fern.example resubmitted this run as {name}") == 1


def test_a_training_that_ended_early_is_resumed_after_asking_and_one_that_finished_is_not(
    browser: TestClient, member: Member, world: World, clock: ManualClock
) -> None:
    needs("torch")  # without it no training run is accepted
    run = submitted(browser, TRAININGS, training_body(), member)
    page = f"/fern/training/{run['name']}"
    assert "from its last checkpoint, if it has one." in text_of(browser.get(f"{page}/stop"))

    def end(status: str) -> None:
        change_run(world, run["id"], status=status, completed_at=clock.now())

    end("finished")
    refused = browser.get(f"{page}/resume")
    assert refused.status_code == 409 and "has finished: there is nothing left to do" in refused.text
    end("failed")
    refused = browser.get(f"{page}/resume")
    assert refused.status_code == 409 and "has no checkpoint to resume from" in refused.text
    shown = browser.get(page)
    assert f'href="{page}/resume"' not in shown.text
    answer = resumed_by_api(browser, member, run["name"])
    assert answer.status_code == 409 and "has no checkpoint to resume from" in text_of(shown)
    assert str(answer.json()["error"]).partition(";")[0] in text_of(shown)
    change_run(world, run["id"], training_state={"resume": {"step": 7}})
    assert f'href="{page}/resume"' in browser.get(page).text
    asked = browser.get(f"{page}/resume")
    assert "from its last checkpoint (step 7)" in text_of(asked)
    done = browser.post(f"{page}/resume", data=form_of(asked))
    assert (done.status_code, done.headers["location"]) == (303, page)
    assert runs_of(browser, member, TRAININGS)[run["name"]]["status"] == "pending"
    resumed = "mara@fern.example (on the run's page) resumed the run from the checkpoint of step 7"
    assert resumed in log_of(browser, member, run["name"], TRAININGS)


def test_a_model_is_deployed_and_taken_back_by_who_may(
    browser: TestClient, member: Member, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.routes.models.is_servable", lambda _model: True)
    run = add_run(world, member, "trained", kind="training", request=training_body())
    add_model(world, run)
    page = browser.get("/fern/models/trained-step-5")
    assert 'action="/fern/models/trained-step-5/deploy"' in page.text
    form = {"csrf": csrf_of(page)}
    assert browser.post("/fern/models/trained-step-5/deploy", data={"csrf": "x"}).status_code == 403
    for _ in range(2):
        assert browser.post("/fern/models/trained-step-5/deploy", data=form).status_code == 303
    lines = log_of(browser, member, "trained", TRAININGS)
    assert lines == "mara@fern.example deployed `trained-step-5` (on the run's page)"
    world.member("noa", role="member", password=PASSWORD)
    browser.cookies.clear()
    sign_in(browser, "noa@fern.example")
    theirs = browser.get("/fern/training/trained")
    assert "disabled" in theirs.text and "requires the role" in theirs.text
    form = {"csrf": csrf_of(theirs)}
    refused = browser.post("/fern/models/trained-step-5/undeploy", data=form)
    assert refused.status_code == 403 and "requires the role &#39;admin&#39;" in refused.text
    model = browser.get("/api/cli/models/trained-step-5", headers=member.headers).json()
    assert model["deployment_status"] == "active"


# Pages of runs


def test_a_page_takes_at_most_12_statements_and_shows_no_secret(
    browser: TestClient, member: Member, world: World, run: str, clock: ManualClock
) -> None:
    world.put_secret(member, "MARAS_KEY", "sk-canary-4711", "user")
    hostile = "<script>alert(1)</script>{{ 7*7 }}\u202e"
    made = add_run(world, member, f"a/b {hostile} ünï", error=hostile, model_path=hostile)
    texts = {"input": hostile, "output": hostile, "error": hostile, "category": hostile}
    add_samples(
        world,
        made,
        [
            {"row": row, "attempt": attempt, "status": "failed", **texts}
            for row in range(40)
            for attempt in range(2)
        ],
    )
    below = f"/fern/evals/{quote(made.name, safe='')}"
    paths = ["/fern", "/fern/evals", "/fern/training", below, f"{below}/samples"]
    paths += [f"{below}/samples/3.1", f"{below}/log", f"/fern/evals/{run}", f"{below}/samples.csv"]
    paths += ["/fern/datasets", "/fern/models", "/fern/secrets", "/fern/members", "/fern/api-keys"]
    add_run(world, member, "other")
    for name in ("learned-0", "learned-1"):
        _add_training(world, member, name)
    paths += [f"/fern/compare?run={run}&run=other&allow=same", "/fern/compare?run=learned-0&run=learned-1"]
    for path in paths:
        with statements_of(world) as noted:
            page = browser.get(path)
        assert page.status_code == 200, (path, page.text)
        assert len([each for each, _ in noted if each.startswith("SELECT")]) <= 12, (path, noted)
        assert "sk-canary" not in page.text
        if path.endswith(".csv"):
            assert page.headers["content-disposition"].startswith("attachment")
            continue
        assert "<script>alert" not in page.text and ">49<" not in page.text and "\u202e" not in page.text
        assert page.headers["cache-control"] == "private, no-cache"


def test_a_run_of_three_workers_is_one_run_on_its_pages(
    browser: TestClient, member: Member, world: World, clock: ManualClock
) -> None:
    execution = {"execution": {"pool": "gpu", "workers": 3}}
    body = submit_body(evaluation_config={"limit": 3, "n": 1}, advanced_config=execution)
    name = submitted(browser, RUNS, body, member)["name"]
    training = add_run(
        world, member, "training", kind="training", status="pending", pool="gpu", request=training_body()
    )
    add_shard(world, training, attempt=0)

    def shown(path: str = f"/fern/evals/{name}") -> str:
        with statements_of(world) as noted:
            page = browser.get(path)
        assert len([each for each, _ in noted if each.startswith("SELECT")]) <= 12, (path, noted)
        return text_of(page)

    assert "its code is being packed for workers" in shown()
    settle(world)
    assert "no worker token is valid for the pool 'gpu'" in shown()
    assert shown("/fern/evals").count("no worker token is valid for the pool 'gpu'") == 1
    assert "no worker token is valid for the pool 'gpu'" in text_of(browser.get("/fern/training/training"))
    workers = [FakeWorker.claims(world, "gpu") for _ in range(3)]
    assert "Waits" not in shown()
    source = source_of(world, member)
    before = source.state("eval", name)
    for number in (0, 2):
        workers[number].records(1, reward=float(number == 0))
        workers[number].logs("started")
    settle(world)
    assert "Pass rate 50.0%" in shown() and "Scored 2 of 3 planned" in shown()
    assert "2 of 3 planned" in shown("/fern/evals")
    assert source.state("eval", name).cursor != before.cursor
    log = shown(f"/fern/evals/{name}/log")
    assert "worker 1: started" in log and "worker 3: started" in log
    clock.advance(20)
    for number in (0, 2):
        workers[number].sync()
    assert re.search("worker 2 of 3: its worker .* 20 s; another worker may continue it in 10 s", shown())
    workers[1].records(1)
    for worker in workers:
        worker.finishes(settles=False)
    assert "running" in shown("/fern/evals")
    settle(world)
    assert "Scored 3 of 3 planned" in shown() and "the run has ended (finished)" in shown()
    assert "3 attempts." in shown(f"/fern/evals/{name}/samples")


def test_a_run_with_a_used_up_budget_is_ending_though_a_worker_is_silent(
    browser: TestClient, member: Member, world: World, clock: ManualClock
) -> None:
    execution = {"pool": "gpu", "labels": ["a100"], "workers": 2, "max_cost": 5, "max_tokens": 100}
    body = submit_body(evaluation_config={"limit": 2, "n": 1}, advanced_config={"execution": execution})
    name = submitted(browser, RUNS, body, member)["name"]
    settle(world)
    worker, _silent = (FakeWorker.claims(world, "gpu", labels=["a100"]) for _ in range(2))
    clock.advance(20)
    worker.records(1, tokens=200, cost_usd=0.1, model_calls=1)
    worker.finishes(settles=False)
    page = text_of(browser.get(f"/fern/evals/{name}"))
    assert (
        "it is ending because its budget is used up: it had used 200 tokens, and max_tokens is 100. " in page
    )
    assert "another worker" not in page
    assert "Pool gpu Workers 2 Labels a100 Budget $5.00 or 100 tokens" in page
    clock.advance(60)
    settle(world)
    asked = text_of(browser.get(f"/fern/evals/{name}/retry"))
    assert "Budget $5.00 or 100 tokens for this retry; earlier use does not count" in asked


def test_a_live_page_notices_that_its_session_has_ended(
    browser: TestClient, run: str, clock: ManualClock
) -> None:
    path = f"/fern/evals/{run}/changes"
    asked = {"accept": "application/json"}
    first = browser.get(path, headers=asked)
    assert first.status_code == 200 and first.json()["status"] == "finished"
    assert first.headers["cache-control"] == "no-store"
    clock.advance(13 * 3600)
    assert browser.get(path, headers=asked).status_code == 401
    assert browser.get(f"/fern/evals/{run}").status_code == 303


def test_assets_are_there_for_who_has_not_signed_in_and_kept_for_good(client: TestClient) -> None:
    client.headers["accept"] = "text/html"
    page = client.get("/login")
    sources = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page.text)
    assert len(sources) == 2
    for source in sources:
        reply = client.get(source, headers={"accept": "*/*"})
        assert reply.status_code == 200 and "immutable" in reply.headers["cache-control"]
    assert client.get("/assets/nothing.css").status_code == 404


def _add_training(world: World, member: Member, name: str) -> None:
    run = add_run(world, member, name, kind="training", request=training_body())
    for key in ("rollout/raw_reward", "eval/validation/reward"):
        add_points(world, run, key, {step: step / 9 for step in range(1, 10)})
