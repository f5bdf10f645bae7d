"""What is new in a run, told to the command line."""

from __future__ import annotations

import json

import httpx
import pytest

from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.log_lines import LogLine
from osmosis_ai.platform.services import PlatformServices
from tests.platform.conftest import Member, assert_flat_error
from tests.platform.viewer.runs_world import add_run, add_samples

LISTENS = {"Accept": "text/event-stream"}


@pytest.mark.parametrize(("path", "kind"), [("eval-runs", "eval"), ("training-runs", "training")])
def test_a_run_that_has_ended_tells_how_it_stands_and_that_it_is_over(
    api: httpx.Client, services: PlatformServices, member: Member, path: str, kind: str
) -> None:
    run = add_run(services, member, "calm-fern-1", kind=kind)
    for name in (run.name, run.id):
        reply = api.get(f"/api/cli/{path}/{name}/events", headers=LISTENS)
        assert reply.headers["content-type"].startswith("text/event-stream")
        change, end, _ = reply.text.split("\n\n")
        told = json.loads(change.split("data: ")[1].partition("\n")[0])
        assert (told["status"], told["ended"], told["samples"]) == ("finished", True, [])
        assert json.loads(end.partition("data: ")[2]) == {"reason": "ended"}
        cursor = change.rpartition("id: ")[2]
        back = api.get(f"/api/cli/{path}/{name}/events", headers={**LISTENS, "Last-Event-ID": cursor})
        assert back.status_code == 204


def test_a_run_is_told_of_in_its_workspace_alone(
    client: httpx.Client, services: PlatformServices, member: Member, stranger: Member
) -> None:
    add_run(services, member, "calm-fern-1")
    there = client.get("/api/cli/eval-runs/calm-fern-1/events", headers={**stranger.headers, **LISTENS})
    nowhere = client.get("/api/cli/eval-runs/no-such-run/events", headers={**stranger.headers, **LISTENS})
    assert_flat_error(there, 404, assert_flat_error(nowhere, 404, nowhere.json()["code"])["code"])
    assert there.json()["error"].replace("calm-fern-1", "no-such-run") == nowhere.json()["error"]
    assert_flat_error(client.get("/api/cli/eval-runs/calm-fern-1/events"), 401, "AUTH_HEADER_MISSING")


CANARY = "sk-canary-4711"


def test_no_stream_tells_what_anybody_said_or_a_secret(
    api: httpx.Client, services: PlatformServices, member: Member
) -> None:
    services.secrets.put(member.workspace.id, member.user.id, "MARAS_KEY", CANARY, "user")
    said = dict.fromkeys(("input", "output", "error", "notes", "error_type"), f"it was {CANARY}")
    run = add_run(services, member, "calm-fern-1", error=f"it was {CANARY}", status="running")
    add_samples(services, run, [{"row": 0, "attempt": 0, "status": "failed", **said}])
    services.logs.append(run.id, [LogLine(f"it was {CANARY}", level="warning", step="run")])
    first = api.get("/api/cli/eval-runs/calm-fern-1/events")
    add_samples(services, run, [{"row": 1, "attempt": 0, "reward": 1.0, **said}])
    with services.db.transaction() as session:
        session.get_one(DbRun, run.id).status = "failed"
    back = {"Last-Event-ID": first.json()["cursor"]}
    stream = api.get("/api/cli/eval-runs/calm-fern-1/events", headers={**LISTENS, **back})
    assert '"status":"failed"' in stream.text.replace(" ", "")
    for reply in (first, stream):
        assert reply.status_code == 200
        assert "canary" not in reply.text + str(dict(reply.headers))
