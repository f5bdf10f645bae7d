"""A local run is uploaded to a platform at its end, then shown, gated, downloaded and uploaded again."""

from __future__ import annotations

import json
import shutil
import time
from datetime import datetime

import pytest

from tests.e2e.platform_checkout import World

pytestmark = pytest.mark.e2e


def test_upload_of_a_local_run(world: World) -> None:
    config = world.write_config("tiny")
    ran = world.json("eval", "run", config, "--name", "baseline", "--upload", "--yes")
    assert ran.resource["upload"]["status"] == "finalized"
    assert ran.resource["upload"]["eval_run_name"] == "baseline"
    assert ran.resource["platform_url"] == f"{world.url}/default/evals/baseline"

    told = json.loads(world.json("eval", "info", "platform:baseline").out)["data"]
    assert told["eval_run"]["status"] == "finished"
    assert told["eval_run"]["imported"]["local_run_id"] == ran.resource["local_run_id"]
    ours = ran.resource["metrics"]["estimates"]["pass_rate"]
    assert told["metrics"]["estimates"]["pass_rate"] == ours
    assert "imported; " in world.osmosis("--plain", "eval", "list").out

    directory = world.root / ".osmosis" / "evals" / "baseline"
    fetched = world.root / "fetched"
    assert world.json("eval", "download", "baseline", "-o", str(fetched)).status == 0
    assert (fetched / "summary.jsonl").read_bytes() == (directory / "summary.jsonl").read_bytes()
    for conversation in (directory / "trajectories").iterdir():
        assert (fetched / "trajectories" / conversation.name).read_bytes() == conversation.read_bytes()

    # What was fetched is read as a run of this machine is, and gives the numbers that the platform gives.
    read = json.loads(world.json("eval", "info", str(fetched)).out)["data"]
    assert read["metrics"]["estimates"] == told["metrics"]["estimates"]
    assert read["local_run"]["output_path"] == str(fetched)
    shown = json.loads(world.json("eval", "show", str(fetched), "--limit", "1").out)["data"]
    assert shown["samples"][0]["messages"] and shown["has_more"]
    missing = world.json("eval", "logs", str(fetched))
    assert missing.error["code"] == "NOT_FOUND" and "--type logs" in missing.error["hint"]
    world.json("eval", "download", "baseline", "-o", str(fetched), "--type", "logs")
    assert json.loads(world.json("eval", "logs", str(fetched)).out)["items"]

    again = world.json("eval", "upload", "baseline").resource
    assert again["eval_run_id"] == ran.resource["upload"]["eval_run_id"]

    # Here the run is gated by its journal; where it is known from the platform alone, it has to be asked for.
    directory.rename(directory.with_name("elsewhere"))
    refused = world.json("eval", "gate", "baseline", "--min", "pass_rate=0")
    assert refused.error["code"] == "CONFLICT" and "was imported" in refused.error["message"]
    allowed = world.json("eval", "gate", "baseline", "--max", "failed=1", "--allow-imported")
    assert allowed.resource["verdict"] == "pass"


BREAKS = """\
        if ctx.prompt[-1]["content"] == {first!r}:
            raise RuntimeError("no luck")
"""


def test_export_of_an_uploaded_run(world: World) -> None:
    """An attempt that failed before its first model call, and another one."""
    agent = world.root / "rollouts" / "breaking"
    shutil.copytree(world.root / "rollouts" / "multiply", agent)
    first = json.loads((world.root / "data" / "multiply.jsonl").open().readline())["user_prompt"]
    start = "        messages: list"
    code = (agent / "main.py").read_text()
    (agent / "main.py").write_text(code.replace(start, BREAKS.format(first=first) + start, 1))
    config = world.write_config("breaking", rollout="breaking")
    ran = world.json("eval", "run", config, "--name", "breaking", "--upload", "--yes").resource

    told = json.loads(world.json("eval", "info", "platform:breaking").out)["data"]
    counts = told["metrics"]["estimates"]["counts"]
    assert counts == ran["metrics"]["estimates"]["counts"] and counts["failed_by_boundary"] == {"agent": 1}
    exported = []
    for run in ("breaking", "platform:breaking"):
        done = world.json("eval", "export", run, "--format", "jsonl", "-o", f"{run[:8]}.jsonl")
        assert done.status == 0, done.err
        lines = (world.root / f"{run[:8]}.jsonl").read_text().splitlines()
        exported.append([json.loads(line) for line in lines])
    here, there = exported
    assert [each["error"] for each in there] == [each["error"] for each in here]
    assert there[0]["error"].endswith("no luck") and there[1]["finish_reasons"] and there[1]["row_digest"]
    # The sum of rounded calls, and the rounded sum.
    latency_ms = here[1].pop("model_latency_ms")
    assert there[1].pop("model_latency_ms") == pytest.approx(latency_ms, abs=0.01)
    differ = [
        {name for name in one if one[name] != other[name]} for one, other in zip(here, there, strict=True)
    ]
    # A conversation without metrics does not state that the model was never called.
    assert differ == [{"model_calls"}, set()]


def test_duration_of_a_paused_run(world: World) -> None:
    run = ("eval", "run", world.write_config("paused"), "--name", "paused", "--yes")
    assert world.json(*run, "--max-in-flight", "1", "--max-tokens", "1").status == 1
    time.sleep(3)
    assert world.json(*run, "--upload").resource["pending"] == 0
    told = json.loads(world.json("eval", "info", "platform:paused").out)["data"]
    moments = [
        datetime.fromisoformat(told["eval_run"][f"{name}_at"][:23]) for name in ("started", "completed")
    ]
    whole_s = (moments[1] - moments[0]).total_seconds()
    assert 0 < told["metrics"]["overview"]["duration_ms"] / 1000 < whole_s - 3
