"""A local run is uploaded to a platform at its end, then shown, gated, downloaded and uploaded again."""

from __future__ import annotations

import json

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
