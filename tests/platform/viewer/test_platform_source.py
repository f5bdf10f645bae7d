"""A platform's runs as the viewer reads them: whole, by index, and of one workspace alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.decisions.samples import run_slices
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.db.tables import DbRun, DbSample
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.ui.numbers import date
from osmosis_ai.viewer.source import RunQuery, SampleQuery
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, Member, World
from tests.platform.databases import platform_database, postgres_database
from tests.platform.evaluations import add_dataset
from tests.platform.viewer.runs_world import (
    PlatformPlace,
    add_file,
    add_run,
    add_samples,
    keep_journal,
    run_row,
    source_of,
)
from tests.viewer.source_contract import SourceContract

SAMPLES: list[dict[str, Any]] = [
    {"row": 0, "attempt": 0, "reward": 1.0, "tokens": 10, "cost_usd": 0.5, "output": "Zero <b>it is</b>"},
    {"row": 0, "attempt": 1, "reward": 0.0, "tokens": 30},
    {"row": 1, "attempt": 0, "reward": 0.5, "tokens": 10, "cost_usd": 0.25},
    {
        "row": 1,
        "attempt": 1,
        "status": "failed",
        "boundary": "provider",
        "category": "timeout",
        "error": "too late",
    },
    {
        "row": 2,
        "attempt": 0,
        "status": "failed",
        "boundary": "agent",
        "error_type": "crash",
        "error": "100% wrong_",
    },
]


@pytest.fixture
def source(world: World, member: Member) -> PlatformSource:
    return source_of(world, member)


@pytest.fixture
def run(world: World, member: Member) -> DbRun:
    counts = {"sampled_rows": 3, "total_dataset_rows": 200, "pass_threshold": 1.0, "graded": 3, "passed": 1}
    made = add_run(world, member, "first", results=counts)
    known = [{"error_type": None, **each} for each in SAMPLES]
    add_samples(world, made, known)
    return made


# Samples


def test_what_judges_said_is_read_from_the_stored_journal(
    source: PlatformSource, world: World, member: Member, run: DbRun
) -> None:
    said = [{"model": "judge-1", "score": 0.5, "explanation": "half of it"}]
    judged = {"judge_calls": 2, "judge_tokens": 10, "judge_cost_usd": 0.25, "judgements": said}
    # A retried attempt has two records, of which the last counts.
    keep_journal(
        world, run.id, record(0, 0, **judged, scores={"agent": 0.5}), record(1, 1, **judged), record(1, 1)
    )
    detail = source.sample(run.name, 0, 0, SampleQuery())
    assert (detail.record["judgements"], detail.record["scores"]) == (said, {"agent": 0.5})
    assert "judgements" not in source.sample(run.name, 0, 1, SampleQuery()).record
    assert "judgements" not in source.sample(run.name, 1, 1, SampleQuery()).record
    world.services.blobs.delete(f"runs/{run.id}/journals/0-events.jsonl.gz")
    assert "judgements" not in source_of(world, member).sample(run.name, 0, 0, SampleQuery()).record


def test_samples_of_the_same_row_are_found_in_other_runs_of_the_workspace_alone(
    source: PlatformSource, world: World, member: Member, stranger: Member, run: DbRun, clock: ManualClock
) -> None:
    clock.advance(60)
    add_samples(world, add_run(world, member, "later"), [{"row": 1, "attempt": 0, "reward": 1.0}])
    add_samples(world, add_run(world, stranger, "theirs"), [{"row": 1, "attempt": 0, "reward": 1.0}])
    found = source.elsewhere(f"{1:032x}", limit=9)
    assert [(entry.name, sample.row, sample.attempt) for entry, sample in found] == [
        ("later", 1, 0),
        ("first", 1, 0),
        ("first", 1, 1),
    ]


# A run


def test_a_run_is_told_in_full_without_the_values_of_its_secrets(
    source: PlatformSource, world: World, member: Member, run: DbRun, clock: ManualClock
) -> None:
    world.put_secret(member, "MARAS_KEY", "sk-canary-4711", "user")
    clock.advance(60)
    add_run(world, member, "second", error="it broke")
    detail = source.run("eval", run.name)
    assert [(each.boundary, each.category, each.count, each.example) for each in detail.failures] == [
        ("provider", "timeout", 1, (1, 1)),
        ("agent", "crash", 1, (2, 0)),
    ]
    assert detail.rewards is not None and sum(detail.rewards.counts) == 3
    assert detail.secret_names == ["MARAS_KEY"] and "canary" not in repr(detail)
    assert detail.config_effective["evaluation"]["n"] == 2
    assert detail.config_written is not None and "[evaluation]\nlimit = 3\nn = 2\n" in detail.config_written
    later = source.run("eval", "second")
    assert later.previous is not None and later.previous.name == "first"
    assert (later.summary.error, later.summary.person) == ("it broke", "Mara")


def test_a_retried_run_says_how_often_and_when_and_is_compared_as_a_whole(
    source: PlatformSource, world: World, member: Member, run: DbRun, clock: ManualClock
) -> None:
    before = source.state("eval", run.name)
    with world.services.db.transaction() as session:
        reopened = session.get_one(DbRun, run.id)
        reopened.status, reopened.revision, reopened.retried_at = "running", 2, clock.now()
        session.get_one(DbSample, (run.id, 1, 1)).position = 9000
    assert ("Retried", f"2 times, last {date(clock.now())}") in source.run("eval", run.name).facts
    assert "Retried" not in dict(source.run("eval", add_run(world, member, "other").name).facts)
    assert source.state("eval", run.name).cursor != before.cursor
    (compared,) = source.run_samples([run.name])
    assert compared.revision == 2
    assert compared.unfinished == "the run first is running: not all of its attempts are available yet."


def test_files_of_a_sample_are_those_of_its_newest_result_and_no_path_leads_elsewhere(
    source: PlatformSource, world: World, run: DbRun
) -> None:
    add_file(world, run, "trajectories/row_0_run_0.json", b'{"steps": []}')
    add_file(world, run, "artifacts/row_0_run_0/out/plan.txt", b"canary")
    add_file(world, run, "artifacts/row_0xrun_0/other.txt", b"not of this sample")
    assert source.conversation(run.name, 0, 0, max_bytes=100).content == b'{"steps": []}'
    with pytest.raises(NotFoundError):
        source.conversation(run.name, 10**30, 0, max_bytes=100)
    assert source.conversation(run.name, 0, 0, max_bytes=5).content is None
    assert "no trajectory" in (source.conversation(run.name, 0, 1, max_bytes=100).missing or "")
    assert [(each.path, each.size) for each in source.artifacts(run.name, 0, 0)] == [("out/plan.txt", 6)]
    with source.open_artifact(run.name, 0, 0, "out/plan.txt") as content:
        assert content.read() == b"canary"
    for path in ("../row_0_run_0/out/plan.txt", "/etc/passwd", "out", "", "out/plan.txt\0"):
        with pytest.raises(NotFoundError):
            source.open_artifact(run.name, 0, 0, path)


# Lists of runs


def test_runs_are_found_by_what_is_known_of_them(
    source: PlatformSource, world: World, member: Member, clock: ManualClock
) -> None:
    add_run(world, member, "one", model_path="a/b", results={"score": 0.5, "graded": 2, "passed": 1})
    clock.advance(60)
    add_run(world, member, "two_%", status="failed", results={"score": 0.75, "graded": 4, "passed": 3})
    clock.advance(60)
    add_run(world, member, "three", kind="training", results={"reward": 0.1})
    names = {
        query: [run.name for run in source.runs(query, limit=9).items]
        for query in (
            RunQuery(),
            RunQuery(kind="eval", sort="reward"),
            RunQuery(kind="rubric"),
            RunQuery(model="a/b"),
            RunQuery(status="failed"),
            RunQuery(text="_%"),
            RunQuery(person="Mara", sort="name", descending=False),
            RunQuery(person="Ivo"),
            RunQuery(commit="c0ffee", since=clock.now()),
        )
    }
    assert list(names.values()) == [
        ["three", "two_%", "one"], ["two_%", "one"], [], ["one"], ["two_%"], ["two_%"], ["one", "three", "two_%"], [],
        ["three"],
    ]  # fmt: skip
    counts = {"total": 1, "unfiltered": 3, "finished": 2, "failed": 1}
    assert source.runs(RunQuery(model="a/b"), limit=9).counts == counts
    trend = source.runs(RunQuery(kind="eval"), limit=1).items[0].trend
    assert list(trend) == [0.75], "the run before is of another model"


def test_a_run_is_measured_by_those_of_its_model_rows_and_bar(
    world: World, member: Member, source: PlatformSource, clock: ManualClock
) -> None:
    def selection(limit: int | None, **more: Any) -> dict[str, Any]:
        return run_row(world, member, "any")["selection"] | {"limit": limit} | more

    def asked(**settings: Any) -> dict[str, Any]:
        return {"evaluation_config": {"limit": 3, **settings}}

    runs: dict[str, dict[str, Any]] = {
        "first": {},
        "limit": {"selection": selection(100), "request": asked(limit=100, n=4)},
        "model": {"model_path": "a/b"},
        "bar": {"request": asked(pass_threshold=0.5)},
        "draw": {"selection": selection(None, draw_seed=1)},
        "chosen": {"selection": selection(None, chosen=True)},
        "dataset": {"dataset_name": "divide"},
        "attempts": {"request": asked(n=4, pass_threshold=1, batch_size=7)},
        "redrawn": {"selection": selection(None, draw_seed=2)},
        "limit-again": {"selection": selection(100)},
        "bar-again": {"request": asked(pass_threshold=0.5)},
    }
    for passed, (name, changes) in enumerate(runs.items()):
        add_run(world, member, name, results={"score": 0.5, "graded": 16, "passed": passed}, **changes)
        clock.advance(60)
    before = {name: source.run("eval", name).previous for name in runs}
    assert {name: run.name for name, run in before.items() if run is not None} == {
        "attempts": "first",
        "redrawn": "draw",
        "limit-again": "limit",
        "bar-again": "bar",
    }
    place = {name: passed / 16 for passed, name in enumerate(runs)}
    for entry in source.runs(RunQuery(kind="eval"), limit=20).items:
        earlier = before[entry.name]
        expected = [place[earlier.name]] if earlier is not None else []
        assert list(entry.trend) == [*expected, place[entry.name]], entry.name


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformPlace]:
    home = tmp_path_factory.mktemp("contract") / "platform"
    with platform_database(home) as url, World.opened(home, url, ManualClock(), port=8735) as world:
        yield PlatformPlace(world, world.member())


class TestPlatformSource(SourceContract):
    @pytest.fixture
    def place(self, shared: PlatformPlace) -> PlatformPlace:
        return shared


def find_letters(place: PlatformPlace, world: World, member: Member) -> None:
    """Look for text in samples and in the list of runs."""
    SourceContract().test_text_filter_ignores_case(place)
    for name, model in (("one", "openai/Äpfel"), ("two", "openai/Привет_1"), ("three", "openai/apfel")):
        add_run(world, member, name, model_path=model)
    found = {text: place.source.runs(RunQuery(text=text), limit=5).items for text in ("/äPFEL", "ПРИВЕТ_")}
    assert {text: [run.name for run in runs] for text, runs in found.items()} == {
        "/äPFEL": ["one"],
        "ПРИВЕТ_": ["two"],
    }


def test_text_is_found_whatever_its_case_on_postgresql(tmp_path: Path) -> None:
    """As far as its database's locale knows letters, which the locale C does not."""
    options = "TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'"
    with (
        postgres_database(options) as url,
        World.opened(tmp_path / "platform", url, ManualClock(), port=8736) as world,
    ):
        member = world.member()
        find_letters(PlatformPlace(world, member), world, member)


def test_a_run_is_cut_by_a_column_of_its_dataset_while_that_is_the_one_it_used(
    source: PlatformSource, world: World, member: Member, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = [{"user_prompt": "?", "ground_truth": "1", "level": level} for level in ("easy", "hard", "easy")]
    used = add_dataset(world, member, "sums", rows=rows)
    known = {"dataset_name": "sums", "selection": {"sha256": used.sha256}}
    run = add_run(world, member, "cut", **known)
    samples = [{"row": row, "attempt": 0, "reward": float(row == 1)} for row in range(3)]
    add_samples(world, run, samples)

    def by_level() -> list[tuple[str | None, int]]:
        return [(each.value, each.rows) for each in run_slices(source.run_samples(["cut"])[0], ["level"])]

    assert sorted(by_level()) == [("easy", 2), ("hard", 1)]
    gc.collect()
    assert list(tmp_path.glob("osmosis-dataset-*")) == [], "a copy for one look at a page"
    with pytest.raises(OsmosisError, match="Dataset 'sums' has no column 'levle'"):
        run_slices(source.run_samples(["cut"])[0], ["levle"])
    monkeypatch.setattr("osmosis_ai.platform.viewer.source.LARGEST_DATASET_BYTES", used.file_size - 1)
    with pytest.raises(OsmosisError, match="too large to be read for a page"):
        by_level()
    with world.services.db.transaction() as session:
        session.merge(used).sha256 = "ab" * 32
    with pytest.raises(OsmosisError, match="not there any more, or another one by now"):
        by_level()
