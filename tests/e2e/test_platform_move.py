"""A platform that moves to PostgreSQL and a bucket, trains there, and moves back, through real processes."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from osmosis_ai.platform.blobs.copies import BlobCopies
from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.s3_address import parse_s3_address
from osmosis_ai.services.demo import prepare_scratch
from tests.e2e.platform_checkout import Outcome, run, running
from tests.platform.databases import postgres_database
from tests.platform.s3_server import CREDENTIALS, new_bucket
from tests.warm_osmosis import warm_python

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
EVAL, TRAIN = "configs/eval/few.toml", "configs/training/few.toml"
HEAD = """
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "osmosis/tiny"
dataset = "multiply"
"""
EVALUATION = f"{HEAD}[evaluation]\nlimit = 4\nn = 2\n[secrets]\nrequired = []\n"
TRAINING = f"""{HEAD}
[training]
lr = 2e-3
n_samples_per_prompt = 2
rollout_batch_size = 2
max_prompt_length = 512
max_response_length = 64
[checkpoints]
checkpoint_save_freq = 1
[advanced]
max_steps = 2
[secrets]
required = ["MOVED_KEY"]
"""
# Runs a command that kills itself after it has copied some of the tables.
KILLED = """
import os, signal, sys
from osmosis_ai.cli.main import main
from osmosis_ai.platform.moving.database_move import DatabaseMove

copy, left = DatabaseMove._copy_table, list(range(5))

def copy_some(*arguments):
    left.pop() if left else os.kill(os.getpid(), signal.SIGKILL)
    copy(*arguments)

DatabaseMove._copy_table = copy_some
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.nightly
def test_a_platform_moves_to_a_server_and_a_bucket_trains_there_and_moves_back(tmp_path: Path) -> None:
    scratch, bucket = prepare_scratch(tmp_path / "demo"), new_bucket()
    (scratch.workspace / EVAL).write_text(EVALUATION)
    (scratch.workspace / TRAIN).write_text(TRAINING)
    scratch.push()
    env: dict[str, str] = {}

    def osmosis(*words: str) -> Outcome:
        done = run(*words, cwd=scratch.workspace, env=env)
        assert done.status == 0, done.err
        return done

    with running(scratch) as given:
        env = given
        osmosis("platform", "connect", str(scratch.origin))
        osmosis("dataset", "upload", "data/multiply.jsonl", "--wait", "--yes")
        env["MOVED_KEY"] = "sk-canary-4711"
        osmosis("secret", "set", "MOVED_KEY", "--env", "MOVED_KEY")
        del env["MOVED_KEY"]
        evaluated = osmosis("eval", "submit", EVAL, "--yes").resource["name"]
        assert osmosis("eval", "watch", evaluated).resource["status"] == "finished"
        told = osmosis("eval", "info", evaluated).out.replace(env["OSMOSIS_PLATFORM_URL"], "")
        while_it_runs = ("platform", "move", "--blobs", bucket)
        refused = run(*while_it_runs, cwd=scratch.workspace, env={**env, **CREDENTIALS})
        assert refused.error["message"].startswith("a platform runs in ")

    with postgres_database() as url:
        there = {"OSMOSIS_DATABASE_URL": url, "OSMOSIS_BLOBS_URL": bucket}
        env = {**env, **CREDENTIALS}
        moving = ["platform", "move", "--database", url, "--blobs", bucket]
        killed = subprocess.run([warm_python(), "-c", KILLED, *moving], cwd=scratch.workspace, env=env)
        assert killed.returncode == -signal.SIGKILL
        moved = osmosis(*moving).resource
        assert moved["files"]["count"] > 0 and {"runs", "samples"} <= {
            table["name"] for table in moved["database"]["tables"] if table["rows"]
        }
        assert (
            run("platform", "start", cwd=scratch.workspace, env=env)
            .error["message"]
            .startswith("this platform's database moved to postgresql://")
        )
        with running(scratch, trains=True, **there, **CREDENTIALS) as given:
            env = given
            assert [each["name"] for each in json.loads(osmosis("eval", "list").out)["items"]] == [evaluated]
            assert osmosis("eval", "info", evaluated).out.replace(env["OSMOSIS_PLATFORM_URL"], "") == told
            trained = osmosis("train", "submit", TRAIN, "--yes").resource["name"]
            assert osmosis("train", "watch", trained).resource["status"] == "finished"
            saved = [
                each["checkpoint_step"]
                for each in json.loads(osmosis("train", "checkpoints", trained).out)["items"]
            ]
            assert max(saved) == 2
        store = S3BlobStore(parse_s3_address(bucket), SystemClock(), BlobCopies(tmp_path / "copies"))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in CREDENTIALS.items():
                patch.setenv(name, value)
            adapters = [key for key in store.keys("") if key.endswith(".safetensors")]
        assert adapters
        back = osmosis("platform", "move", "--database", "sqlite", "--blobs", "local", "--replace").resource
        assert Path(back["backup"]).is_file()

    with running(scratch) as given:
        env = given
        osmosis("eval", "download", evaluated, "--yes")
        assert osmosis("eval", "info", evaluated).out.replace(env["OSMOSIS_PLATFORM_URL"], "") == told
        listed = json.loads(osmosis("train", "checkpoints", trained).out)["items"]
        assert [each["checkpoint_step"] for each in listed] == saved
    results = scratch.workspace / ".osmosis" / "evals" / evaluated
    rows = [path.read_bytes() for path in (scratch.root / "data").glob("platform.db*")]
    assert rows and not [each for each in rows if b"sk-canary" in each]
    assert len(list((results / "trajectories").glob("*.json"))) == 8
    assert all((scratch.root / "data" / "blobs" / "objects" / key).is_file() for key in adapters)
