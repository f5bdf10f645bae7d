"""What becomes of a sample's files on their way to the platform's blobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.platform.runs.work.sample_files import SampleFiles
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.redaction import Redactor
from tests.evaluation.builders import record


@pytest.mark.parametrize(
    ("name", "content", "stored"),
    [
        ("n.json", b'{"n": 123456, "pin": "123456"}', b'{"n": 123456, "pin": "[REDACTED]"}'),
        ("same.json", b'{ "n":123456, "x": NaN }\n', b'{ "n":123456, "x": NaN }\n'),
        ("n.jsonl", b'{"n": 123456}\n{"a": "123456"}\n', b'{"n": 123456}\n{"a": "[REDACTED]"}\n'),
        ("pretty.json", b'{\n  "n": 123456,\n  "ok": true\n}', b'{\n  "n": 123456,\n  "ok": true\n}'),
        ("note.txt", b"{said} 123456 true\n\xff", b"{said} [REDACTED] true\n\xff"),
    ],
)
def test_no_value_of_a_secret_makes_an_artifact_of_json_unreadable(
    services: PlatformServices, tmp_path: Path, name: str, content: bytes, stored: bytes
) -> None:
    directory = RunDirectory(tmp_path / "run")
    artifact = directory.artifacts / "row_0_run_0" / name
    artifact.parent.mkdir(parents=True)
    artifact.write_bytes(content)
    files = SampleFiles("run_1", directory, services.blobs, Redactor(["123456", "true"]), frozenset())
    files.expect([record()])
    ((row,),) = files.store_rest()
    with services.blobs.open(row["blob_key"]) as blob:
        kept = blob.read()
    assert kept == stored
    assert row["size"] == len(stored)
    if name.endswith(".json"):
        assert json.loads(kept)
