"""Files of a run that anybody may have written: every page shows what can be read, and none fails."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.evaluation.log_pages import cursor_at, parse_line, read_log
from osmosis_ai.viewer.cursors import encode
from osmosis_ai.viewer.local.source import LocalSource
from osmosis_ai.viewer.source import RunQuery
from tests.evaluation.recorded_runs import chained
from tests.viewer.browsing import visitor
from tests.viewer.local_place import LocalPlace
from tests.viewer.source_contract import sample_record
from tests.viewer.test_rubric_page import a_document

PAGES = ("/", "/evals/run", "/evals/run/samples", "/evals/run/samples/0.0", "/evals/run/changes")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LocalPlace]:
    place = LocalPlace(tmp_path / "place")
    place.start("run", rows=2, n=1)
    place.add("run", [sample_record(0, 0, 1.0), sample_record(1, 0, 0.0)])
    yield place
    place.source.close()


def look(place: LocalPlace, *paths: str) -> list[str]:
    """Return the pages, none of which may be an error of the server."""
    # One that has not seen the files before.
    source = LocalSource(place.root, cache_dir=place.root / "cache")
    client = visitor(source)
    replies = [client.get(path) for path in paths]
    source.close()
    assert [reply.status_code for reply in replies if reply.status_code >= 500] == []
    return [reply.text for reply in replies]


def change(file: Path, **changes: Any) -> None:
    """Change members of a JSON file; a name with dots is that of an inner one."""
    document = json.loads(file.read_text())
    for name, value in changes.items():
        *above, last = name.split(".")
        inner = document
        for key in above:
            inner = inner[key]
        inner[last] = value
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "changes",
    [
        {"created_at": "0001-01-01T00:00:00+14:00"},
        {"created_at": "9999-12-31T23:59:59-14:00"},
        {"inputs.model_path": "\ud800"},
        {"inputs.n": math.inf},
        {"inputs.n": 10**12},
        {"inputs.dataset": {"selected_source_rows": "0-1999999999,1999999999-0"}},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_a_manifest_may_say_what_no_run_is(place: LocalPlace, changes: dict[str, Any]) -> None:
    change(place.evals / "run" / "manifest.json", **changes)
    look(place, *PAGES, "/compare?run=run&run=run")


@pytest.mark.parametrize(
    "written",
    [
        {"summary": None},
        {"summary": {"pass_threshold": 10**400}},
        {"eval_run": {"duration_ms": math.nan}},
        {"eval_run": {"rows": {"rows": None, "total": 3}}},
        {"eval_run": {"rows": {"rows": 1, "total": 3, "kind": True}}},
    ],
    ids=str,
)
def test_numbers_that_nobody_can_have_written_are_worked_out_anew(
    place: LocalPlace, written: dict[str, Any]
) -> None:
    (place.evals / "run" / "metrics.json").write_text(json.dumps(written))
    assert "2 of 2 planned" in look(place, *PAGES)[1]


@pytest.mark.parametrize(
    "odd",
    [{"tokens": 2**63}, {"completion_tokens": None}, {"cost_usd": 2**63}, {"status": []}, {"notes": 5}],
    ids=str,
)
def test_a_line_of_a_journal_may_hold_what_no_record_does(place: LocalPlace, odd: dict[str, Any]) -> None:
    journal = place.evals / "run" / "events.jsonl"
    line = {**json.loads(sample_record(0, 0, 1.0).to_line()), **odd}
    journal.write_bytes(chained([json.dumps(line).encode() + b"\n"]))
    look(place, *PAGES)


def test_a_directory_whose_name_is_no_text_has_a_page_all_the_same(place: LocalPlace) -> None:
    Path(place.evals / "run").rename(Path(os.fsdecode(os.fsencode(place.evals) + b"/run-\xff")))
    (name,) = [run.name for run in place.source.runs(RunQuery(), limit=9).items]
    assert name.startswith("run-\ufffd~")
    assert "2 of 2 planned" in look(place, f"/evals/{name}")[0]


@pytest.mark.parametrize(
    "metrics",
    [{"rollout/raw_reward": "<b>"}, {"eval/validation/reward": [1]}, {"train/loss": 1e308, "train/x": True}],
    ids=str,
)
def test_a_step_of_a_training_run_may_hold_no_numbers(place: LocalPlace, metrics: dict[str, Any]) -> None:
    history = place.evals / "run" / "metrics.jsonl"
    step = {"step": 1, "timestamp_ms": 1, "metrics": metrics, "warnings": 5, "validation_rewards": ["x"]}
    history.write_text(json.dumps(step) + "\n")
    look(place, "/", "/training?sort=reward", "/training/run", "/training/run/changes")


@pytest.mark.parametrize(
    "changes",
    [
        {"generated_at": "0001-01-01T00:00:00+14:00"},
        {"usage": {"elapsed_s": 10**400, "cost_usd": math.nan}},
        {"trust.score_max": math.inf},
        {"trust.score_min": 2**63},
        {"trust.counts.runs": -1},
        {"trust.counts.runs": 10**12},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_a_judging_session_may_tell_of_impossible_judges(place: LocalPlace, changes: dict[str, Any]) -> None:
    result = place.root / "answers.json"
    result.write_text(json.dumps({"generated_at": "2026-01-01T00:00:00Z", **a_document(records=2)}))
    change(result, **changes)
    assert "record 2" in look(place, "/", "/rubrics/answers")[1]


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.json", "logs.txt"])
def test_a_pipe_in_place_of_a_file_holds_no_page_up(place: LocalPlace, name: str) -> None:
    (place.evals / "run" / name).unlink(missing_ok=True)
    os.mkfifo(place.evals / "run" / name)
    place.start("other", rows=1, n=1)
    assert "other" in look(place, "/", "/evals/run", "/evals/run/log")[0]


def test_a_journal_that_goes_while_it_is_read_is_said_to_be_gone(
    place: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from osmosis_ai.viewer.local import run_index

    look(place, "/evals/run/samples")
    size = (place.evals / "run" / "events.jsonl").stat().st_size
    monkeypatch.setattr(run_index, "file_state", lambda _: (size, 0))
    (place.evals / "run" / "events.jsonl").unlink()
    page, _ = look(place, "/evals/run", "/evals/run/samples/0.0")
    assert "events.jsonl` can not be read (No such file or directory)" in page


def test_a_cursor_beyond_every_float_is_refused(place: LocalPlace) -> None:
    cursor = encode("samples:reward:asc", [10**310, 1, 0])
    (page,) = look(place, f"/evals/run/samples?sort=reward&cursor={cursor}")
    assert "The cursor is none of this list in this order." in page


def test_a_line_of_a_log_is_tried_for_details_at_a_few_places_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: tried.append(text) or loads(text))  # type: ignore[func-returns-value]
    head = b"2026-01-01T00:00:00Z INFO [run] at {place} of {{it}} "
    assert parse_line(head + b'{"row_index": 1}').details == {"row_index": 1}
    tried.clear()
    assert parse_line(head + b'{"a":' * 10_000 + b"}").details is None
    assert len(tried) < 100


def test_what_can_not_be_read_of_a_journal_is_read_once_and_again_when_it_may_be_another(
    place: LocalPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from osmosis_ai.viewer.local import run_index

    journal, asked = place.evals / "run" / "events.jsonl", []
    with journal.open("ab") as file:
        file.write(b"no record\n")
    parsed = run_index.parsed_lines
    monkeypatch.setattr(
        run_index, "parsed_lines", lambda *words, **more: asked.append(1) or parsed(*words, **more)
    )
    index = run_index.RunIndex(place.evals / "run", cache_dir=place.root / "cache")
    for _ in range(3):
        index.refresh()
        assert "is damaged" in str(index.damage)
    assert len(asked) == 1
    with journal.open("ab") as file:
        file.write(b"nor this\n")
    index.refresh()
    assert len(asked) == 2
    index.close()


@pytest.mark.parametrize("direction", ["older", "newer"])
def test_a_line_of_a_log_without_end_is_begun_and_counted_and_hides_no_other(
    tmp_path: Path, direction: str
) -> None:
    log = tmp_path / "logs.txt"
    log.write_bytes(b"first\n" + b"x" * 3_000_000 + b"\nlast\nunfinished")
    if direction == "newer":
        page = read_log(log, limit=9, cursor=cursor_at(0), direction="newer")
        messages = [entry.message or "" for entry in page.logs]
        assert page.next_cursor == cursor_at(3_000_012)
    else:
        messages, cursor = [], None
        while not messages or cursor is not None:
            page = read_log(log, limit=1, cursor=cursor)
            messages, cursor = [page.logs[0].message or "", *messages], page.next_cursor
    assert (messages[0], messages[2]) == ("first", "last")
    assert messages[1].startswith("xxx") and messages[1].endswith(
        "… (2,934,465 more bytes, which the file has)"
    )


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_log_that_is_no_file_is_empty(tmp_path: Path, kind: str) -> None:
    log = tmp_path / "logs.txt"
    if kind == "pipe":
        os.mkfifo(log)
    else:
        (tmp_path / "secret").write_text("secret\n")
        log.symlink_to(tmp_path / "secret")
    assert read_log(log, limit=9).logs == []


def test_what_is_damaged_is_said_once(place: LocalPlace) -> None:
    journal = place.evals / "run" / "events.jsonl"
    first, *others = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([b"damaged" + first[7:], *others]))
    with closing(LocalSource(place.root, cache_dir=place.root / "cache")) as source:
        said = source.run("eval", "run").summary.error
    (page,) = look(place, "/evals/run")
    assert said is not None and "damaged" in said
    assert unescape(page).count(said) == 1


def test_where_a_journal_is_damaged_is_said_once_however_often_the_page_is_looked_at(
    place: LocalPlace,
) -> None:
    place.add("run", [sample_record(0, 0, 1.0)])
    with (place.evals / "run" / "events.jsonl").open("ab") as journal:
        journal.write(b'{"row_index": 1, oops\n')
    with closing(LocalSource(place.root, cache_dir=place.root / "cache")) as source:
        pages = visitor(source)
        for _ in range(2):
            page = unescape(pages.get("/evals/run").text)
            assert (page.count("is damaged at"), page.count("is damaged at line 4")) == (1, 1)
            assert page.count("--salvage") == 1
