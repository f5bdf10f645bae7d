"""`osmosis view platform:NAME --report`: a platform's run in one file, fetched for it and left nowhere else."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from html import unescape
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.services.runs import download
from tests.api.blob_server import serve
from tests.cli.eval_downloads import DownloadableRun
from tests.cli.eval_replies import DETAIL
from tests.cli.maze import Maze
from tests.cli.train_replies import offer

NAMED = "platform:amber-otter-42"


def trajectory(text: str) -> bytes:
    return json.dumps({"steps": [{"source": "agent", "message": text}]}).encode()


@pytest.fixture
def stored(maze: Maze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DownloadableRun]:
    """A run of a platform with two conversations; what is temporary goes where one can look for it."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    facts = {
        "eval_run": {"id": "er_8", "name": "amber-otter-42", "model_name": "osmosis/tiny"},
        "summary": {},
    }
    samples = [
        {
            "row_index": row,
            "run_index": 0,
            "rollout_id": f"ro-{row}",
            "status": "success",
            "reward": reward,
            "duration_ms": 9,
        }
        for row, reward in enumerate((1.0, 0.0))
    ]
    with serve() as store:
        run = DownloadableRun(maze, store)
        run.holds(
            {
                "metrics.json": json.dumps(facts).encode(),
                "summary.jsonl": b"".join(json.dumps(each).encode() + b"\n" for each in samples),
                "trajectories/row_0_run_0.json": trajectory("the word is six"),
                "trajectories/row_1_run_0.json": trajectory("the word is seven"),
            }
        )
        yield run


def is_clean(stored: DownloadableRun, tmp_path: Path) -> bool:
    return stored.found() == {} and not list((tmp_path / "scratch").iterdir())


def test_a_run_of_a_platform_is_written_into_one_file(stored: DownloadableRun, tmp_path: Path) -> None:
    report = tmp_path / "run.html"
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report), "--json")
    assert outcome.status == 0, outcome.err
    resource = outcome.json["resource"]
    assert (resource["run"], resource["samples"], resource["conversations"]) == ("amber-otter-42", 2, 2)
    text = report.read_text("utf-8")
    assert "amber-otter-42" in text and "the word is six" in text and "the word is seven" in text
    assert is_clean(stored, tmp_path)


def test_a_report_of_a_run_that_was_retried_says_that_the_retry_is_not_in_it(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    retry = {"id": "er_9", "name": "amber-otter-43", "status": "finished"}
    stored.described({**DETAIL, "retries": [retry]})
    report = tmp_path / "run.html"
    assert stored.maze.osmosis("view", NAMED, "--report", str(report)).status == 0
    told = "Samples of it were made again by amber-otter-43: these results are not in here"
    assert told in report.read_text("utf-8")
    assert is_clean(stored, tmp_path)


def test_a_retry_that_the_platform_does_not_name_is_told_in_a_report_all_the_same(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    stored.described({**DETAIL, "retries": [{"status": "finished"}, {"id": "er_9", "name": None}]})
    report = tmp_path / "run.html"
    assert stored.maze.osmosis("view", NAMED, "--report", str(report)).status == 0
    assert "Samples of it were made again by another run, er_9: these results" in report.read_text("utf-8")


def test_what_a_report_holds_is_told_in_words(stored: DownloadableRun, tmp_path: Path) -> None:
    kept = {name: content for name, content in stored.store.blobs.items() if "row_1" not in name}
    kept["summary.jsonl"] = kept["summary.jsonl"].splitlines(keepends=True)[0]
    two = stored.maze.osmosis("view", NAMED, "--report", str(tmp_path / "two.html"), "--json").json
    stored.holds(kept)
    one = stored.maze.osmosis("view", NAMED, "--report", str(tmp_path / "one.html"), "--json").json
    assert two["message"].endswith(": 2 samples, 2 conversations")
    assert one["message"].endswith(": 1 sample, 1 conversation")


def test_what_can_not_be_read_of_a_platform_s_list_is_counted_on_the_page(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    whole = stored.store.blobs["summary.jsonl"]
    bare = {
        "row_index": 2,
        "run_index": 0,
        "status": "success",
        "rollout_id": None,
        "tokens": "many",
        "reward": None,
    }
    odd = [
        b"null",
        b"[]",
        b"7",
        b'{"row_index": null, "run_index": 0, "status": "success"}',
        b'{"row_index": 3, "run',
    ]
    lines = [json.dumps(bare).encode(), *odd]
    listing = whole + b"\n".join(lines)
    stored.holds({**stored.store.blobs, "summary.jsonl": listing})
    report = tmp_path / "run.html"
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report), "--json")
    assert outcome.status == 0, outcome.err
    assert outcome.json["resource"]["samples"] == 3
    said = "5 lines of the platform&#39;s list of its samples can not be read: these samples are left out."
    assert said in report.read_text("utf-8") and is_clean(stored, tmp_path)
    stored.holds({**stored.store.blobs, "summary.jsonl": b"\n".join(odd)})
    report.unlink()
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report))
    told = " ".join(outcome.err.split())
    assert outcome.status == 1 and "has no sample: 5 lines of its list of samples can not be read" in told
    assert not report.exists() and is_clean(stored, tmp_path)


def test_of_conversations_that_are_too_large_the_report_names_the_command_that_fetches_them(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    stored.holds({**stored.store.blobs, "trajectories/row_1_run_0.json": b" " * (33 << 20)})
    report = tmp_path / "run.html"
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report))
    assert outcome.status == 0, outcome.err
    page = unescape(report.read_text("utf-8"))
    assert "it is not read, the run's file `trajectories/row_1_run_0.json` has it." in page
    assert (
        "1 conversation has more than 32 MB and can not be read here: `osmosis eval download amber-otter-42` "
        "fetches the run's files."
    ) in page
    assert is_clean(stored, tmp_path)


def test_without_text_no_conversation_is_fetched(stored: DownloadableRun, tmp_path: Path) -> None:
    report = tmp_path / "run.html"
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report), "--no-text")
    assert outcome.status == 0, outcome.err
    assert "the word is" not in report.read_text("utf-8")
    assert sorted(stored.store.asked("GET")) == ["metrics.json", "summary.jsonl"]


def test_a_run_that_is_large_or_whose_files_do_not_come_names_the_two_commands_instead(
    stored: DownloadableRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "run.html"
    commands = (
        "osmosis eval download amber-otter-42, then osmosis view .osmosis/evals/amber-otter-42 --report"
    )
    del stored.store.blobs["trajectories/row_1_run_0.json"]
    broken = stored.maze.osmosis("view", NAMED, "--report", str(report))
    assert broken.status == 1 and "1 file of `amber-otter-42` did not come: " in " ".join(broken.err.split())
    monkeypatch.setattr(download, "ASK_FROM_BYTES", 10)
    large = stored.maze.osmosis("view", NAMED, "--report", str(report))
    said = " ".join(large.err.split())
    assert large.status == 1 and "--no-text reads its numbers alone" in said and commands in said
    assert not report.exists() and is_clean(stored, tmp_path)


def test_a_report_that_is_there_is_told_before_anything_is_fetched(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    report = tmp_path / "run.html"
    report.write_text("mine")
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report))
    assert outcome.status == 1 and "exists" in outcome.err and report.read_text() == "mine"
    assert not stored.manifest.calls


def test_without_a_report_one_is_told_what_shows_a_run_of_a_platform(stored: DownloadableRun) -> None:
    said = " ".join(stored.maze.osmosis("view", NAMED).err.split())
    assert f"{NAMED} is a platform's run, which has its pages there" in said
    assert f"osmosis view {NAMED} --report FILE.html" in said and f"osmosis eval show {NAMED}" in said


def test_a_training_run_of_a_platform_is_the_file_that_train_info_writes(maze: Maze, tmp_path: Path) -> None:
    maze.get("/eval-runs/copper").respond(404, json={"error": "No such evaluation run."})
    offer(maze)
    report, same = tmp_path / "view.html", tmp_path / "info.html"
    outcome = maze.osmosis("view", "platform:copper", "--report", str(report), "--json")
    assert outcome.status == 0, outcome.err
    assert outcome.json["resource"]["run"] == "copper finch/9"
    assert maze.osmosis("train", "info", "copper", "--report", str(same)).status == 0
    assert report.read_text("utf-8") == same.read_text("utf-8")


def test_a_name_that_a_platform_does_not_know_says_where_runs_and_results_of_judges_are(
    maze: Maze, tmp_path: Path
) -> None:
    for kind in ("eval", "training"):
        maze.get(f"/{kind}-runs/copper").respond(404, json={"error": f"No such {kind} run."})
    outcome = maze.osmosis("view", "platform:copper", "--report", str(tmp_path / "run.html"))
    said = " ".join(outcome.err.split())
    assert outcome.status == 1 and "No such eval run." in said
    for command in ("osmosis eval list", "osmosis train list", "osmosis view FILE.json --report FILE.html"):
        assert command in said
    assert not (tmp_path / "run.html").exists()


def test_an_answer_that_is_no_missing_run_is_told_as_it_is(maze: Maze, tmp_path: Path) -> None:
    maze.get("/eval-runs/copper").respond(404, json={"error": "No such evaluation run."})
    maze.get("/training-runs/copper").respond(403, json={"error": "Not for you."})
    outcome = maze.osmosis("view", "platform:copper", "--report", str(tmp_path / "run.html"))
    assert outcome.status == 1 and "Not for you." in outcome.err and not (tmp_path / "run.html").exists()


# -- what a platform tells of each sample beside the list ------------------------------------

OURS = {"X-Osmosis-Capabilities": "eval-samples"}
FAILED = {
    "row": 1,
    "attempt": 0,
    "status": "failed",
    "run_id": "er_8",
    "source_row_index": 41,
    "row_digest": "ab" * 16,
    "tokens": 77,
    "cost_usd": 0.0123,
    "duration_ms": 61500.4,
    "model_latency_ms": 12.5,
    "boundary": "grader",
    "category": "invalid_value",
    "error": "the grader gave banana",
    "input": "how much is six",
    "output": "it is seven",
    "notes": "not a number at all",
    "parts": {"tidiness": 0.25},
}
TEXTS = ("the grader gave banana", "how much is six", "it is seven", "not a number at all", "tidiness")


def tells(stored: DownloadableRun, *pages: dict[str, Any], **detail: Any) -> respx.Route:
    """Let the platform offer the results of single attempts, and a list that knows little of a failure."""
    stored.described({**DETAIL, **detail}, headers=OURS)
    listed = [
        {"row_index": 0, "run_index": 0, "rollout_id": "ro-0", "status": "success", "reward": 1.0},
        {"row_index": 1, "run_index": 0, "rollout_id": "ro-1", "status": "failed"},
    ]
    lines = b"".join(
        json.dumps({**each, "error_type": "validation_error"}).encode() + b"\n" for each in listed
    )
    stored.holds({**stored.store.blobs, "summary.jsonl": lines})
    route = stored.maze.get("/eval-runs/er_8/samples")
    route.mock(side_effect=[httpx.Response(200, json=page, headers=OURS) for page in pages])
    return route


def written(stored: DownloadableRun, tmp_path: Path, *options: str) -> str:
    report = tmp_path / "run.html"
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report), "--force", *options)
    assert outcome.status == 0, outcome.err
    assert is_clean(stored, tmp_path)
    return unescape(report.read_text("utf-8"))


def test_a_report_says_of_each_sample_what_the_platform_s_page_says(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    first = {**FAILED, "row": 0, "status": "success", "error": None, "input": "how much is five"}
    route = tells(stored, {"samples": [first], "next_cursor": "0-0"}, {"samples": [FAILED]})
    text = written(stored, tmp_path)
    assert '<th scope="row">grader</th><td>invalid_value</td>' in text and "not known" not in text
    passed, failed = cells_of_samples(text)
    for said in ("how much is five", "it is seven", "77", "$0.0123"):
        assert said in passed, said
    for said in ("how much is six", "the grader gave banana", "77", "$0.0123", "1m"):
        assert said in failed, said
    assert "not a number at all" in text and "not recorded" not in passed + failed
    asked = [dict(call.request.url.params) for call in route.calls]
    assert [(each.get("cursor"), each["details"]) for each in asked] == [(None, "true"), ("0-0", "true")]


def test_without_text_a_report_has_the_numbers_of_each_sample_and_no_word_of_them(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    retry = {"id": "er_9", "name": "amber-otter-43", "status": "finished"}
    tells(stored, {"samples": [FAILED]}, retries=[retry])
    text = written(stored, tmp_path, "--no-text")
    assert '<th scope="row">grader</th><td>invalid_value</td>' in text and "$0.0123" in text
    assert not any(each in text for each in TEXTS)
    assert "Samples of it were made again by amber-otter-43: these results are not in here" in text


def test_a_report_of_a_run_that_was_retried_has_what_the_run_itself_came_to(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    route = tells(stored, retries=[{"id": "er_9", "name": "amber-otter-43", "status": "finished"}])
    again = {**FAILED, "run_id": "er_9", "status": "success", "reward": 1.0, "error": None}

    def page(request: httpx.Request) -> httpx.Response:
        own = request.url.params.get("own") == "true"
        told = {"samples": [FAILED]} if own else {"samples": [again]}
        return httpx.Response(200, json=told, headers=OURS)

    route.mock(side_effect=page)
    text = written(stored, tmp_path)
    assert '<th scope="row">grader</th><td>invalid_value</td>' in text and "not known" not in text
    assert "the grader gave banana" in cells_of_samples(text)[1]


def test_what_the_list_of_samples_says_stays(stored: DownloadableRun, tmp_path: Path) -> None:
    tells(stored, {"samples": [{**FAILED, "row": 0, "reward": 0.0}]})
    row = cells_of_samples(written(stored, tmp_path))[0]
    assert "passed" in row and "$0.0123" in row


@pytest.mark.parametrize(
    "unfit",
    [
        {"boundary": "moon", "row_digest": "../x", "category": None, "duration_ms": -1.0},
        {"boundary": None, "duration_ms": 1e400, "cost_usd": -1e400},
        {"row": 2**70, "boundary": "moon"},
        {"notes": "half of \ud83d a sign", "parts": {"format": 1e400}},
    ],
)
def test_what_is_no_value_of_a_sample_s_is_left_out(
    stored: DownloadableRun, tmp_path: Path, unfit: dict[str, Any]
) -> None:
    content = json.dumps({"samples": [{**FAILED, **unfit}], "next_cursor": "x"})
    content = content.replace("Infinity", "1e400")
    tells(stored).mock(side_effect=lambda _: httpx.Response(200, content=content, headers=OURS))
    text = written(stored, tmp_path)
    assert "moon" not in text and ("row" in unfit or "how much is six" in text)


def test_pages_that_lead_nowhere_end(stored: DownloadableRun, tmp_path: Path) -> None:
    numbers = count()

    def in_circles(_: httpx.Request) -> httpx.Response:
        assert next(numbers) < 50
        page = {"samples": [{**FAILED, "row": 0}], "next_cursor": f"{next(numbers)}"}
        return httpx.Response(200, json=page, headers=OURS)

    tells(stored).mock(side_effect=in_circles)
    written(stored, tmp_path)


def test_a_reply_that_is_no_page_of_samples_leaves_the_list_and_is_told(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    told = "What the platform tells of single samples can not be read"
    tells(stored, {"samples": [FAILED], "next_cursor": "1-0"}, {"samples": [{"row": "many"}]})
    assert told not in written(stored, tmp_path), "the list has no sample behind these"
    tells(stored, {"samples": [{"row": "many"}]})
    for options in ((), ("--no-text",)):
        tells(stored, {"samples": [{"row": "many"}]})
        text = written(stored, tmp_path, *options)
        assert told in text and "validation_error" in text


def test_a_platform_that_tells_no_single_samples_is_not_asked_for_them(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    route = tells(stored)
    stored.described(DETAIL)
    assert "validation_error" in written(stored, tmp_path) and not route.calls


def cells_of_samples(text: str) -> list[str]:
    return re.findall(r"<tr(?: id=\"row-\d+\")?><th scope=\"row\">.*?</tr>", text, re.DOTALL)[-2:]


def test_a_run_without_a_list_of_samples_is_refused_in_a_sentence(
    stored: DownloadableRun, tmp_path: Path
) -> None:
    tells(stored, {"samples": []})
    stored.holds({"metrics.json": stored.store.blobs["metrics.json"]})
    report = tmp_path / "run.html"
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report))
    assert outcome.status == 1 and "the platform has no list of samples of `amber-otter-42`" in outcome.err
    assert not report.exists() and is_clean(stored, tmp_path)
