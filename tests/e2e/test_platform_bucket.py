"""A platform that stores its files in a bucket, with real processes and a real store."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from pathlib import Path

import pytest

from osmosis_ai.platform.blobs.s3 import S3BlobStore
from osmosis_ai.platform.clock import SystemClock
from osmosis_ai.platform.s3_address import parse_s3_address
from tests.e2e.platform_checkout import Outcome, World, prepare_scratch
from tests.platform.s3_server import CREDENTIALS, new_bucket

pytestmark = pytest.mark.e2e
CONFIG = "configs/eval/few.toml"
FEW = """
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "osmosis/tiny"
dataset = "multiply"
[evaluation]
limit = 4
n = 2
[secrets]
required = []
"""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, url = prepare_scratch(tmp_path / "demo"), new_bucket()
    scratch.push()
    (scratch.workspace / CONFIG).write_text(FEW)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    bucket = S3BlobStore(parse_s3_address(url), SystemClock(), tmp_path / "copies")

    def osmosis(world: World, *words: str, **env: str) -> Outcome:
        done = world.json(*words, **env)
        assert done.status == 0, done.err
        return done

    with closing(World(scratch, OSMOSIS_BLOBS_URL=url, **CREDENTIALS)) as world:
        status = json.loads(osmosis(world, "platform", "status").out)["data"]
        assert status["blobs"].startswith("the bucket")
        osmosis(world, "platform", "connect", str(scratch.origin))
        osmosis(world, "dataset", "upload", "data/multiply.jsonl", "--wait", "--yes")
        name = osmosis(world, "eval", "submit", CONFIG, "--yes").resource["name"]
        assert osmosis(world, "eval", "watch", name).resource["status"] == "finished"
        backup = scratch.root / "backup.tar.gz"
        osmosis(world, "platform", "backup", str(backup))
    assert list(bucket.keys("datasets")) and list(bucket.keys("runs"))
    assert not [path for path in (scratch.root / "data").rglob("blobs/objects/**/*") if path.is_file()]

    # The restored platform reads the bucket with its own database.
    restored = {"OSMOSIS_BLOBS_URL": url, "OSMOSIS_HOME": str(tmp_path / "other")}
    osmosis(world, "platform", "restore", str(backup), **restored)
    with closing(World(scratch, **restored, **CREDENTIALS)) as world:
        osmosis(world, "eval", "download", name, "--yes")
        osmosis(world, "dataset", "download", "multiply", "--output", "fetched.jsonl")
        assert digest(scratch.workspace / "fetched.jsonl") == digest(
            scratch.workspace / "data/multiply.jsonl"
        )
        osmosis(world, "eval", "delete", name, "--yes")
        osmosis(world, "dataset", "delete", "multiply", "--yes")
    results = scratch.workspace / ".osmosis" / "evals" / name
    assert len(list((results / "trajectories").glob("*.json"))) == 8
    assert json.loads((results / "metrics.json").read_text())["summary"]["graded"] == 8
    assert list(bucket.keys("datasets")) == [] and list(bucket.keys("runs")) == []
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [
        path for path in kept for secret in CREDENTIALS.values() if secret.encode() in path.read_bytes()
    ]
