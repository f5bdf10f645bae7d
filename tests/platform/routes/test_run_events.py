"""Events of a run, as the command line reads them."""

from __future__ import annotations

import json

import httpx
import pytest

from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import Member
from tests.platform.viewer.runs_world import add_run, add_samples

STREAM = {"Accept": "text/event-stream"}


@pytest.mark.parametrize(("path", "kind"), [("eval-runs", "eval"), ("training-runs", "training")])
def test_the_events_of_an_ended_run_are_its_state_and_an_end(
    api: httpx.Client, services: PlatformServices, member: Member, path: str, kind: str
) -> None:
    run = add_run(services, member, "calm-fern-1", kind=kind)
    for name in (run.name, run.id):
        reply = api.get(f"/api/cli/{path}/{name}/events", headers=STREAM)
        assert reply.headers["content-type"].startswith("text/event-stream")
        change, end, _ = reply.text.split("\n\n")
        state = json.loads(change.split("data: ")[1].partition("\n")[0])
        assert (state["status"], state["ended"]) == ("finished", True)
        assert json.loads(end.partition("data: ")[2]) == {"reason": "ended"}
        cursor = change.rpartition("id: ")[2]
        back = api.get(f"/api/cli/{path}/{name}/events", headers={**STREAM, "Last-Event-ID": cursor})
        assert back.status_code == 204


CANARY = "sk-canary-4711"


def test_events_contain_no_text_of_a_conversation_and_no_secret(
    api: httpx.Client, services: PlatformServices, member: Member
) -> None:
    services.secrets.put(member.workspace.id, member.user.id, "MARAS_KEY", CANARY, "user")
    texts = dict.fromkeys(("input", "output", "error", "notes", "error_type"), f"it was {CANARY}")
    run = add_run(services, member, "calm-fern-1", error=f"it was {CANARY}", status="running")
    add_samples(services, run, [{"row": 0, "attempt": 0, "status": "failed", **texts}])
    services.logs.append(run.id, [LogLine(f"it was {CANARY}", level="warning", step="run")])
    first = api.get("/api/cli/eval-runs/calm-fern-1/events")
    add_samples(services, run, [{"row": 1, "attempt": 0, "reward": 1.0, **texts}])
    with services.db.transaction() as session:
        session.get_one(DbRun, run.id).status = "failed"
    back = {"Last-Event-ID": first.json()["cursor"]}
    stream = api.get("/api/cli/eval-runs/calm-fern-1/events", headers={**STREAM, **back})
    assert '"status":"failed"' in stream.text.replace(" ", "")
    for reply in (first, stream):
        assert reply.status_code == 200
        assert "canary" not in reply.text + str(dict(reply.headers))
