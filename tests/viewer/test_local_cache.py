"""The cache of local runs: it can be lost at any time, and no foreign file is written."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from osmosis_ai.evaluation.local_results import read_local_results
from osmosis_ai.evaluation.run_directory import RunDirectory
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.source import RunQuery, SampleQuery
from tests.viewer.conftest import LocalPlace
from tests.viewer.source_contract import listed, places_of, sample_record


@pytest.mark.parametrize("harm", ["no database", "read-only"])
def test_unwritable_or_damaged_cache(local: LocalPlace, harm: str) -> None:
    local.start("run", rows=2, n=1, records=[sample_record(0, 0, 1.0)])
    cache = local.root / "other-cache"
    if harm == "read-only":
        cache.write_text("a file is where the directory should be")
    else:
        first = LocalSource(local.root, cache_dir=cache)
        assert len(listed(first, "run", SampleQuery())) == 1
        first.close()
        for path in (cache / "viewer").iterdir():
            path.write_bytes(b"no database at all" * 1000)
    source = LocalSource(local.root, cache_dir=cache)
    assert [entry.name for entry in source.runs(RunQuery(), limit=5).items] == ["run"]
    assert places_of(listed(source, "run", SampleQuery())) == [(0, 0)]
    problems = source.run("eval", "run").problems
    assert bool(problems) == (harm == "read-only")
    assert all("in memory" in problem for problem in problems)
    source.close()


@pytest.mark.parametrize("kept_open", [False, True], ids=["before it is opened", "while it is open"])
def test_damaged_index_is_rebuilt(local: LocalPlace, kept_open: bool) -> None:
    local.start("run", rows=200, n=1)
    local.add("run", [sample_record(row, 0, row / 200, output="a long answer " * 10) for row in range(200)])
    before = listed(local.source, "run", SampleQuery(sort="reward"))
    assert len(before) == 200
    (index,) = (local.root / "cache" / "viewer").glob("run-*.sqlite")
    if not kept_open:
        local.source.close()
    with closing(sqlite3.connect(index)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = database.execute("PRAGMA page_size").fetchone()
    with index.open("r+b") as file:
        file.seek(page * 2)  # the first says what is where, the second how far the journal is read
        file.write(b"\xff" * (index.stat().st_size - page * 2))
    for again in (local.source, LocalSource(local.root, cache_dir=local.root / "cache")):
        assert listed(again, "run", SampleQuery(sort="reward")) == before
        assert again.sample("run", 7, 0, SampleQuery()).summary.reward == 7 / 200
        assert not again.run("eval", "run").problems
        again.close()


def test_cache_is_private_and_can_be_deleted(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1, records=[sample_record(0, 0, 1.0)])
    listed(local.source, "run", SampleQuery())
    kept = list((local.root / "cache" / "viewer").glob("*.sqlite"))
    assert kept
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}

    local.source.runs(RunQuery(), limit=5)
    shutil.rmtree(local.root / "cache")
    local.add("run", [sample_record(1, 0, 0.0)])
    local.start("other", rows=1, n=1)
    assert places_of(listed(local.source, "run", SampleQuery())) == [(0, 0), (1, 0)]
    assert listed(local.source, "other", SampleQuery()) == []
    assert local.source.runs(RunQuery(), limit=5).counts["total"] == 2


REPLACEMENTS: dict[str, Callable[[Path, Path], object]] = {
    "symbolic link": lambda index, other: index.symlink_to(other),
    "link to an empty file": lambda index, other: (other.write_bytes(b""), index.symlink_to(other)),
    "hard link": lambda index, other: index.hardlink_to(other),
    "foreign database": lambda index, other: (other.rename(index), other.symlink_to(index)),
    "directory": lambda index, other: index.mkdir(),
    "pipe": lambda index, other: os.mkfifo(index),
}


@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_foreign_file_in_place_of_an_index_is_kept(
    local: LocalPlace, replace: Callable[[Path, Path], object]
) -> None:
    local.start("run", rows=2, n=1, records=[sample_record(0, 0, 1.0)])
    listed(local.source, "run", SampleQuery())
    local.source.close()
    (index,) = (local.root / "cache" / "viewer").glob("run-*.sqlite")
    for file in index.parent.glob(f"{index.name}*"):
        file.unlink()
    other = local.root / "other.db"
    with closing(sqlite3.connect(other)) as database:
        database.executescript("CREATE TABLE precious (value); INSERT INTO precious VALUES (7);")
    replace(index, other)
    before, kind = other.read_bytes(), stat.S_IFMT(index.lstat().st_mode)
    source = LocalSource(local.root, cache_dir=local.root / "cache")
    assert places_of(listed(source, "run", SampleQuery())) == [(0, 0)]
    assert "in memory" in source.run("eval", "run").problems[0]
    source.close()
    assert (other.read_bytes(), stat.S_IFMT(index.lstat().st_mode)) == (before, kind)


def test_metrics_of_a_part_of_the_journal(local: LocalPlace) -> None:
    local.start("run", rows=2, n=1, records=[sample_record(0, 0, 1.0)])
    run = RunDirectory(local.evals / "run")
    metrics = read_local_results(run.path).metrics
    run.write_results({}, metrics, journal_bytes=run.events.stat().st_size)
    local.add("run", [sample_record(1, 0, 1.0)])

    def scored() -> int | None:
        # As a copy leaves them: all files of one moment.
        for file in filter(Path.exists, (run.metrics, run.events)):
            os.utime(file, (10, 10))
        headline = LocalSource(local.root, cache_dir=local.root / "none").run("eval", "run").summary.headline
        return headline.scored if headline is not None else None

    assert scored() == 2
    # Killed while more was being counted.
    run.write_results({"status": "running"}, metrics)
    assert scored() == 2
    # Or the copy of one whose last session was killed: nothing says that these are of the whole journal.
    run.write_results({"status": "finished"}, metrics)
    assert scored() == 2
    # Without a journal they are all there is.
    run.events.unlink()
    assert scored() == 1
