"""The page of a sample whose agent broke, in its sandbox, after it had asked the model twice."""

from __future__ import annotations

import re
from html import unescape

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.http.browser_sessions import begin_session
from osmosis_ai.platform.runs.execute.executor_loop import ExecutorLoop
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import Member
from tests.platform.evaluations import ROLLOUT, Code, submit_body, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm_children_without_torch")]

BREAKS = """\
        for question in ("What is it?", f"Are you sure, {os.environ['AGENT_KEY']}?"):
            messages.append({"role": "user", "content": question})
            messages.append(await self.ask_model(messages))
        raise RuntimeError("the agent broke")
"""
LOOP = "        for _ in range(MAX_TURNS):\n"


@pytest.fixture
def clock() -> SystemClock:
    """The machine's own: workers are other processes."""
    return SystemClock()


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
