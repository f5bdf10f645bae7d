"""Runs of agents that are served elsewhere: submitted by name, driven by a real worker, killed over."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.runs.execute.executor_loop import ExecutorLoop
from osmosis_ai.platform.services import PlatformServices
from tests.driving.served_loop import LoopProcess
from tests.platform.evaluations import experiment, submit_body, wait_until
from tests.platform.runs.test_execution import RUNS, ended, fetched, log_of, recorded, samples_of

pytestmark = pytest.mark.e2e
KEY = "osm_rollout_canary-4711"


@pytest.fixture
def clock() -> SystemClock:
    """The machine's own: workers are other processes."""
    return SystemClock()


def test_a_served_agent_is_evaluated_and_killed_over_a_hundred_rollouts(
    api: TestClient, services: PlatformServices, executor: ExecutorLoop
) -> None:
    served = {"rollout": "no-such-directory", "entrypoint": "server://calculater"}
    with LoopProcess(KEY, works_on=20) as agent:
        registration = {
            "host": "127.0.0.1",
            "port": agent.port,
            "agent_loop_name": "calculator",
            "api_key": KEY,
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
        with LoopProcess(f"{KEY}-2", agent.port):
            registration["api_key"] = f"{KEY}-2"
            assert (
                api.post("/api/cli/rollout-server/register", json=registration).json()["status"] == "healthy"
            )
            detail = ended(api, run["name"])
    log = log_of(services, run["id"])
    assert detail["eval_run"]["status"] == "finished", log
    samples = samples_of(services, run["id"])
    assert len(samples) == 100
    assert {(status, reward) for _, status, reward, _ in samples.values()} == {("success", 1.0)}
    assert KEY not in "\n".join(log)
    assert any("the served agent `calculator` is gone" in line for line in log)
    trajectories = fetched(api, run["name"], "trajectories", rows="1")
    assert {"trajectories/row_1_run_0.json", "trajectories/row_1_run_1.json"} <= trajectories.keys()
