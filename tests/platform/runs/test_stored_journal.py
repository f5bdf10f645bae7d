"""The journal that stays with a run: what it says, and what it does not."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from osmosis_ai.errors import ConflictError
from osmosis_ai.evaluation.journal import replay
from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, sealed
from osmosis_ai.platform.runs.stored_journal import pack_journal, records_beside, stored_records
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.redaction import Redactor
from tests.evaluation.builders import record

SECRET = "canary-20260301"
RECORDS = [
    record(0, status="failed", reward=None, error=f"said {SECRET}"),
    record(1, input="1 * 1", output="1", notes="right", parts={SECRET: 1.0}, duration_ms=20260301),
    record(1, output="again", judgements=[{"explanation": f'"{SECRET}"'}]),
]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path, previous = tmp_path / "events.jsonl", BEFORE_THE_FIRST
    with path.open("wb") as lines:
        for each in RECORDS:
            line, previous = sealed(each.to_line(), previous)
            lines.write(line)
    return path


def stored(services: PlatformServices, journal: Path, *secrets: str) -> tuple[str, bytes]:
    lines = journal.read_bytes().splitlines(keepends=True)
    key = pack_journal(lines, "run_1", services.blobs, Redactor(secrets))
    assert key is not None
    with services.blobs.open(key) as packed:
        return key, gzip.decompress(packed.read())


def test_a_journal_without_secrets_is_kept_byte_by_byte(services: PlatformServices, journal: Path) -> None:
    key, content = stored(services, journal)
    assert content == journal.read_bytes()
    assert list(stored_records(services.blobs, key)) == RECORDS
    assert key.startswith("runs/run_1/")  # where deleting the run deletes


def test_secrets_are_blanked_and_the_lines_chained_anew(
    services: PlatformServices, journal: Path, tmp_path: Path
) -> None:
    key, content = stored(services, journal, SECRET, "20260301")
    assert SECRET.encode() not in content
    assert [each.duration_ms for each in stored_records(services.blobs, key)][1] == 20260301
    (tmp_path / "again").write_bytes(content)
    assert len(list(replay(tmp_path / "again"))) == len(RECORDS)


@pytest.mark.parametrize("damage", [b'{"row_index":', b"\xff\xfe\n", b"[]\n", b'{"row_index":7}\n'])
def test_of_a_damaged_journal_what_stands_before_is_kept(
    services: PlatformServices, journal: Path, damage: bytes
) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole + damage + whole)
    assert stored(services, journal)[1] == whole


def test_where_nothing_was_recorded_nothing_is_kept(services: PlatformServices) -> None:
    assert pack_journal([], "run_1", services.blobs, Redactor()) is None


def test_damage_of_a_stored_journal_is_seen(services: PlatformServices, journal: Path) -> None:
    key, whole = stored(services, journal)
    for damaged in (gzip.compress(whole.replace(b"right", b"wrong")), gzip.compress(whole)[:-20], b"no gzip"):
        services.blobs.put(key, io.BytesIO(damaged))
        with pytest.raises(ConflictError, match="damaged"):
            list(stored_records(services.blobs, key))


def test_what_samples_have_no_column_for_is_of_the_newest_record(
    services: PlatformServices, tmp_path: Path
) -> None:
    path, previous = tmp_path / "events.jsonl", BEFORE_THE_FIRST
    judged = {"judge_calls": 1, "judgements": [{"model": "j", "score": 1.0}]}
    records = [
        record(0, **judged),
        record(0),
        record(1),
        record(2, scores={"agent": 0.5}),
        record(1, **judged),
    ]
    with path.open("wb") as lines:
        for each in records:
            line, previous = sealed(each.to_line(), previous)
            lines.write(line)
    key, _ = stored(services, path)
    assert records_beside(services.blobs, key) == {(1, 0): judged, (2, 0): {"scores": {"agent": 0.5}}}
    assert records_beside(services.blobs, key, most_bytes=10) is None
    assert records_beside(services.blobs, key, only=(2, 0)) == {(2, 0): {"scores": {"agent": 0.5}}}
    assert records_beside(services.blobs, key, only=(0, 0)) == {}
