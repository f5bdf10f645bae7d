"""A platform's runs as the viewer reads them: whole, by index, and of one workspace alone."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest

from osmosis_ai.api.wire.workers import JournalPart
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, sealed
from osmosis_ai.platform.db.tables import DbRun
from osmosis_ai.platform.runs.desk.journal_intake import as_next, take_lines
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.viewer.source import PlatformSource
from osmosis_ai.viewer.source import RunQuery, SampleQuery, SampleSort
from tests.evaluation.builders import record
from tests.platform.conftest import ManualClock, Member
from tests.platform.viewer.runs_world import (
    add_file,
    add_run,
    add_samples,
    every_page,
    keep_journal,
    places,
    run_row,
    source_of,
    statements_of,
)

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
def source(services: PlatformServices, member: Member) -> PlatformSource:
    return source_of(services, member)


@pytest.fixture
def run(services: PlatformServices, member: Member) -> DbRun:
    counts = {"sampled_rows": 3, "total_dataset_rows": 200, "pass_threshold": 1.0, "graded": 3, "passed": 1}
    made = add_run(services, member, "first", results=counts)
    known = [{"error_type": None, **each} for each in SAMPLES]
    add_samples(services, made, known)
    return made


# Samples


@pytest.mark.parametrize("sort", get_args(SampleSort))
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_pages_in_every_order_hold_each_sample_once(
    source: PlatformSource, run: DbRun, sort: SampleSort, descending: bool, limit: int
) -> None:
    query = SampleQuery(sort=sort, descending=descending)
    found = [place for page in every_page(source, run.name, query, limit=limit) for place in page]
    assert sorted(found) == sorted((each["row"], each["attempt"]) for each in SAMPLES)


def test_what_has_no_value_comes_last_in_either_direction(source: PlatformSource, run: DbRun) -> None:
    rising, falling = (
        places(source.samples("first", SampleQuery(sort="reward", descending=down), limit=9).items)
        for down in (False, True)
    )
    assert rising == [(0, 1), (1, 0), (0, 0), (1, 1), (2, 0)]
    assert falling == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (SampleQuery(outcome="passed"), [(0, 0)]),
        (SampleQuery(outcome="failed"), [(0, 1), (1, 0)]),
        (SampleQuery(outcome="unscored"), [(1, 1), (2, 0)]),
        (SampleQuery(outcome="flaky"), [(0, 0), (0, 1)]),
        (SampleQuery(row=1), [(1, 0), (1, 1)]),
        (SampleQuery(category="crash"), [(2, 0)]),
        (SampleQuery(boundary="provider"), [(1, 1)]),
        (SampleQuery(reward=(0.25, 0.75)), [(1, 0)]),
        (SampleQuery(tokens=(11, None)), [(0, 1)]),
        (SampleQuery(text="IT IS"), [(0, 0)]),
        (SampleQuery(text="% wrong_"), [(2, 0)]),
        (SampleQuery(text="_____"), []),
        (SampleQuery(row=2**62), []),
        (SampleQuery(tokens=(1e300, None), cost_usd=(None, 1e300)), []),
    ],
)
def test_a_filter_finds_what_it_names(
    source: PlatformSource, run: DbRun, query: SampleQuery, found: list[tuple[int, int]]
) -> None:
    page = source.samples(run.name, query, limit=9)
    assert places(page.items) == found
    assert page.counts == {
        "unfiltered": 5, "total": len(found), "passed": 1, "failed": 2, "unscored": 2, "pending": 1, "flaky": 2,
    }  # fmt: skip


def test_a_sample_knows_its_neighbours_inside_the_filter_and_its_other_attempts(
    source: PlatformSource, run: DbRun
) -> None:
    query = SampleQuery(outcome="failed", sort="reward", descending=True)
    found = source.sample(run.name, 1, 0, query)
    assert (found.next, found.previous) == ((0, 1), None)
    assert places(found.attempts) == [(1, 0), (1, 1)]
    assert found.record["rollout_id"] == "r1-0"
    assert [each.flaky for each in source.sample(run.name, 0, 0, query).attempts] == [True, True]


def test_a_retry_s_results_stand_in_for_those_before_and_alone_on_its_own_page(
    source: PlatformSource, services: PlatformServices, member: Member, run: DbRun, clock: ManualClock
) -> None:
    clock.advance(60)
    made = [[1, 1], [2, 0], [2, 1]]
    retry = add_run(services, member, "again", retry_of_id=run.id, retry_of_name=run.name, retried=made)
    add_samples(services, retry, [{"row": row, "attempt": attempt, "reward": 1.0} for row, attempt in made])
    for sort in get_args(SampleSort):
        found = every_page(source, run.name, SampleQuery(sort=sort), limit=2)
        assert sorted(place for page in found for place in page) == list(product(range(3), range(2)))
    page = source.samples(run.name, SampleQuery(outcome="passed"), limit=9)
    assert places(page.items) == [(0, 0), (1, 1), (2, 0), (2, 1)]
    assert places(source.samples(retry.name, SampleQuery(), limit=9).items) == [
        tuple(place) for place in made
    ]
    detail = source.run("eval", run.name)
    assert detail.estimates is not None and detail.estimates.counts.scored == 6
    assert ("Retry", "again (finished)") in detail.facts
    alone = source.run("eval", "again")
    assert ("Retry of", "first") in alone.facts and detail.problems == []
    assert alone.problems == [
        "Only samples that had no score in first are here; that run's page has the numbers of all together."
    ]
    # What was chosen by its failures is not measured by the run that it was chosen from.
    assert alone.previous is None


@pytest.mark.parametrize("sort", get_args(SampleSort))
@pytest.mark.parametrize("descending", [False, True])
def test_a_cursor_from_before_a_retry_goes_on_with_each_sample_that_stayed(
    source: PlatformSource,
    services: PlatformServices,
    member: Member,
    run: DbRun,
    clock: ManualClock,
    sort: SampleSort,
    descending: bool,
) -> None:
    query = SampleQuery(sort=sort, descending=descending)
    first = source.samples(run.name, query, limit=2)
    clock.advance(60)
    made = {"retry_of_id": run.id, "retry_of_name": run.name, "retried": [[1, 1]]}
    retry = add_run(services, member, "again", **made)
    anew = {"row": 1, "attempt": 1, "reward": 0.75, "tokens": 20, "cost_usd": 0.3, "duration_ms": 15.0}
    add_samples(services, retry, [anew])
    seen, cursor = places(first.items), first.next
    while cursor is not None:
        page = source.samples(run.name, query, limit=1, cursor=cursor)
        seen += places(page.items)
        cursor = page.next
    stayed = [(each["row"], each["attempt"]) for each in SAMPLES if (each["row"], each["attempt"]) != (1, 1)]
    assert sorted(place for place in seen if place != (1, 1)) == stayed


def test_what_judges_were_asked_is_read_from_the_stored_journals_of_run_and_retry(
    source: PlatformSource, services: PlatformServices, member: Member, run: DbRun, clock: ManualClock
) -> None:
    clock.advance(60)
    retry = add_run(services, member, "again", retry_of_id=run.id, retry_of_name=run.name, retried=[[1, 1]])
    add_samples(services, retry, [{"row": 1, "attempt": 1, "reward": 1.0}])
    said = [{"model": "judge-1", "score": 0.5, "explanation": "half of it"}]
    judged = {"judge_calls": 2, "judge_tokens": 10, "judge_cost_usd": 0.25, "judgements": said}
    keep_journal(services, run, record(0, 0, **judged, scores={"agent": 0.5}), record(1, 1, **judged))
    keep_journal(services, retry, record(1, 1, **judged))
    detail = source.sample(run.name, 0, 0, SampleQuery())
    assert (detail.record["judgements"], detail.record["scores"]) == (said, {"agent": 0.5})
    assert "judgements" not in source.sample(run.name, 0, 1, SampleQuery()).record
    merged = source.run("eval", run.name).estimates
    # The failed attempt's judge counts no more than its result: the retry's stands for it.
    assert merged is not None and merged.judges is not None
    assert (merged.judges.calls, merged.judges.tokens, merged.judges.cost_usd) == (4, 20, 0.5)
    services.blobs.delete(f"runs/{run.id}/events.jsonl.gz")
    gone = source_of(services, member)
    estimates = gone.run("eval", run.name).estimates
    assert estimates is not None and estimates.judges is not None and estimates.judges.calls == 2
    assert any("judges of first" in warning for warning in estimates.warnings)
    assert "judgements" not in gone.sample(run.name, 0, 0, SampleQuery()).record


def test_samples_of_the_same_row_are_found_in_other_runs_of_the_workspace_alone(
    source: PlatformSource,
    services: PlatformServices,
    member: Member,
    stranger: Member,
    run: DbRun,
    clock: ManualClock,
) -> None:
    clock.advance(60)
    add_samples(services, add_run(services, member, "later"), [{"row": 1, "attempt": 0, "reward": 1.0}])
    add_samples(services, add_run(services, stranger, "theirs"), [{"row": 1, "attempt": 0, "reward": 1.0}])
    found = source.elsewhere(f"{1:032x}", limit=9)
    assert [(entry.name, sample.row, sample.attempt) for entry, sample in found] == [
        ("later", 1, 0),
        ("first", 1, 0),
        ("first", 1, 1),
    ]


# A run


def test_a_run_is_told_in_full_without_the_values_of_its_secrets(
    source: PlatformSource, services: PlatformServices, member: Member, run: DbRun, clock: ManualClock
) -> None:
    services.secrets.put(member.workspace.id, member.user.id, "MARAS_KEY", "sk-canary-4711", "user")
    clock.advance(60)
    add_run(services, member, "second", error="it broke")
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


def test_a_run_tells_what_it_ran_in_and_what_held_it_back(
    source: PlatformSource, services: PlatformServices, member: Member
) -> None:
    ran = {"environment": "an environment of its own, built by uv", "isolation": "bubblewrap, network host"}
    add_run(services, member, "held", **ran)
    facts = source.run("eval", "held").facts
    assert ("Environment", ran["environment"]) in facts and ("Isolation", ran["isolation"]) in facts


def test_a_run_that_waits_for_a_machine_with_a_sandbox_says_so_and_what_to_do(
    source: PlatformSource, services: PlatformServices, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "required, and not possible, so no run is executed: no user namespaces; sysctl -w x=1"
    monkeypatch.setitem(services.config.__dict__, "executes_nothing", why)
    for name, known in {"waits": {}, "elsewhere": {"pool": "gpu"}, "over": {"status": "failed"}}.items():
        add_run(services, member, name, **{"status": "pending", **known})
        told = [fact for fact in source.run("eval", name).facts if why in fact[1]]
        assert told == ([("Waits", f"isolation: {why}")] if name == "waits" else []), "it is said once"


def test_what_another_workspace_has_is_not_there_and_the_nearest_names_are(
    services: PlatformServices, member: Member, stranger: Member, run: DbRun
) -> None:
    theirs = source_of(services, stranger)
    for ask in (
        lambda: theirs.run("eval", run.name),
        lambda: theirs.run("eval", run.id),
        lambda: theirs.samples(run.name, SampleQuery(), limit=1),
        lambda: theirs.changes("eval", run.name),
        lambda: theirs.log("eval", run.name, limit=1),
        lambda: theirs.conversation(run.name, 0, 0, max_bytes=1),
        lambda: theirs.run_samples([run.name]),
        lambda: source_of(services, member).run("training", run.name),
    ):
        with pytest.raises(NotFoundError):
            ask()
    with pytest.raises(NotFoundError) as caught:
        source_of(services, member).run("eval", "firts\0")
    assert caught.value.details["nearest"] == ["first"]


def test_a_sample_says_where_its_error_came_from(
    source: PlatformSource, services: PlatformServices, run: DbRun
) -> None:
    add_file(services, run, "diagnostics/row_0_run_0.json", b'{"traceback": "in main.py"}')
    assert source.sample(run.name, 0, 0, SampleQuery()).traceback == "in main.py"
    assert source.sample(run.name, 0, 1, SampleQuery()).traceback is None
    assert source.artifacts(run.name, 0, 0) == []


def test_files_of_a_sample_are_those_of_its_newest_result_and_no_path_leads_elsewhere(
    source: PlatformSource, services: PlatformServices, run: DbRun
) -> None:
    add_file(services, run, "trajectories/row_0_run_0.json", b'{"steps": []}')
    add_file(services, run, "artifacts/row_0_run_0/out/plan.txt", b"canary")
    add_file(services, run, "artifacts/row_0xrun_0/other.txt", b"not of this sample")
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


def test_changes_say_what_finished_since_and_a_cursor_stays_while_nothing_does(
    source: PlatformSource, services: PlatformServices, run: DbRun
) -> None:
    before = source.changes("eval", run.name)
    assert source.changes("eval", run.name, since=before.cursor) == before
    add_samples(services, run, [{"row": 2, "attempt": 1, "reward": 1.0}])
    with statements_of(services.db) as noted:
        after = source.changes("eval", run.name, since=before.cursor)
    assert (after.samples, after.more) == ([(2, 1)], False) and after.cursor != before.cursor
    assert len([each for each, _ in noted if each.startswith("SELECT")]) == 2
    with pytest.raises(OsmosisError):
        source.changes("eval", run.name, since="nothing")


def test_a_run_and_its_retries_are_compared_as_one(
    source: PlatformSource, services: PlatformServices, member: Member, run: DbRun
) -> None:
    retry = add_run(services, member, "again", retry_of_id=run.id, retried=[[1, 1]])
    add_samples(services, retry, [{"row": 1, "attempt": 1, "reward": 1.0}])
    samples = source.run_samples([run.name])[0]
    assert (samples.samples.size, int(samples.passed.sum()), len(samples.row_keys)) == (5, 2, 3)
    assert samples.planned == 6


# Lists of runs


def test_runs_are_found_by_what_is_known_of_them(
    source: PlatformSource, services: PlatformServices, member: Member, clock: ManualClock
) -> None:
    add_run(services, member, "one", model_path="a/b", results={"score": 0.5, "graded": 2, "passed": 1})
    clock.advance(60)
    add_run(services, member, "two_%", status="failed", results={"score": 0.75, "graded": 4, "passed": 3})
    clock.advance(60)
    add_run(services, member, "three", kind="training", results={"reward": 0.1})
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
    assert source.runs(RunQuery(model="a/b"), limit=9).counts == {"total": 1, "unfiltered": 3}
    trend = source.runs(RunQuery(kind="eval"), limit=1).items[0].trend
    assert list(trend) == [0.75], "the run before is of another model"


def test_a_run_is_measured_by_those_of_its_model_rows_and_bar(
    services: PlatformServices, member: Member, source: PlatformSource, clock: ManualClock
) -> None:
    def selection(limit: int | None, **more: Any) -> dict[str, Any]:
        return run_row(services, member, "any")["selection"] | {"limit": limit} | more

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
        add_run(services, member, name, results={"score": 0.5, "graded": 16, "passed": passed}, **changes)
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


def test_the_run_before_is_the_last_one_that_finished_and_has_scores(
    services: PlatformServices, member: Member, source: PlatformSource, clock: ManualClock
) -> None:
    scored = {"results": {"score": 0.5, "graded": 4, "passed": 2}}
    runs: dict[str, dict[str, Any]] = {
        "silver-bloom-25": scored,
        "cedar-bay-74": {"status": "stopped", "results": {"sampled_rows": 3, "total_runs": 0}},
        "part": {"status": "failed", **scored},
        "all-failed": {"results": {"graded": 0, "passed": 0, "failed": 4}},
        "waiting": {"status": "pending", "results": {"sampled_rows": 3}},
        "going-on": {"status": "running", "results": {"score": 0.25, "graded": 4, "passed": 1}},
    }
    for name, changes in runs.items():
        add_run(services, member, name, **changes)
        clock.advance(60)
    before = {name: source.run("eval", name).previous for name in runs}
    assert [each.name if each is not None else None for each in before.values()] == [
        None, *["silver-bloom-25"] * 5,
    ]  # fmt: skip
    trends = {run.name: list(run.trend) for run in source.runs(RunQuery(kind="eval"), limit=9).items}
    assert trends["going-on"] == [0.5, 0.25] and trends["waiting"] == [0.5, None]


def test_a_run_is_not_measured_by_a_retry_which_has_only_what_failed(
    services: PlatformServices, member: Member, source: PlatformSource, clock: ManualClock
) -> None:
    first = add_run(services, member, "first", results={"score": 0.5, "graded": 2, "passed": 1})
    clock.advance(60)
    retried = {"retry_of_id": first.id, "retry_of_name": "first"}
    add_run(services, member, "again", results={"score": 0.0, "graded": 1, "passed": 0}, **retried)
    clock.advance(60)
    add_run(services, member, "third", results={"score": 0.75, "graded": 4, "passed": 3})
    trends = {run.name: list(run.trend) for run in source.runs(RunQuery(kind="eval"), limit=3).items}
    assert trends == {"first": [0.5], "again": [0.5, 0.0], "third": [0.5, 0.75]}
    before = source.run("eval", "third").previous
    assert before is not None and before.name == "first"


@pytest.mark.parametrize("cursor", ["x", "", "e30", "WyJydW5zOnN0YXJ0ZWQ6ZGVzYyIsMCwiMSIsMl0"])
def test_a_cursor_that_is_none_is_refused(source: PlatformSource, run: DbRun, cursor: str) -> None:
    if cursor:
        with pytest.raises(OsmosisError) as caught:
            source.runs(RunQuery(), limit=1, cursor=cursor)
        assert caught.value.code == "VALIDATION"
        with pytest.raises(OsmosisError):
            source.samples(run.name, SampleQuery(), limit=1, cursor=cursor)


def test_what_is_flaky_follows_each_line_that_is_accepted(
    source: PlatformSource, services: PlatformServices, run: DbRun
) -> None:
    flaky = SampleQuery(outcome="flaky")
    assert places(source.samples(run.name, flaky, limit=9).items) == [(0, 0), (0, 1)]
    lines, last = "", BEFORE_THE_FIRST
    for attempt, (reward, found) in enumerate(
        [(0.0, [(0, 0), (0, 1)]), (1.0, [(0, 0), (0, 1), (2, 0), (2, 1)])]
    ):
        line, last = sealed(record(2, attempt, reward=reward).to_line(), last)
        with services.db.transaction() as session:
            row = session.get_one(DbRun, run.id)
            part = JournalPart(generation=0, offset=len(lines), lines=line.decode())
            assert take_lines(session, row, as_next(run.id, part))
        lines += line.decode()
        page = source.samples(run.name, flaky, limit=9)
        assert places(page.items) == found and page.counts["flaky"] == len(found)
