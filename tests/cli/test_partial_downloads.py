"""Commands on a download that has some of a run's files: `eval info`, `eval show` and `eval logs` each need one alone."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.evaluation.local_results import read_local_results
from tests.api.blob_server import serve
from tests.cli.eval_downloads import DownloadableRun
from tests.cli.maze import Maze
from tests.evaluation.comparison.builders import write_journalled_run

NAME = "amber-otter-42"
SAMPLES = [
    {"row_index": row, "run_index": 0, "rollout_id": f"ro-{row}", "status": "success", "reward": reward}
    for row, reward in enumerate((1.0, 0.5))
]
FETCHED = {
    "trajectories": {
        "summary.jsonl": b"".join(json.dumps(each).encode() + b"\n" for each in SAMPLES),
        "trajectories/row_0_run_0.json": json.dumps(
            {"steps": [{"source": "agent", "message": "the word is six"}]}
        ).encode(),
    },
    "logs": {"logs.txt": b"2026-01-02T03:04:05.000Z INFO [run] the run began\n"},
    "artifacts": {"artifacts/row_0_run_0/plot.txt": b"x"},
}
NEEDS = {"info": "metrics", "show": "trajectories", "logs": "logs"}
"""By command, the type of files that it can not do without."""


@pytest.fixture
def stored(maze: Maze) -> Iterator[DownloadableRun]:
    with serve() as store:
        yield DownloadableRun(maze, store)


@pytest.fixture
def metrics(tmp_path: Path) -> dict[str, Any]:
    """The numbers of a run of two rows that both passed, as a platform of one's own writes them."""
    numbers = read_local_results(write_journalled_run(tmp_path / "made", [[1.0], [1.0]])).metrics
    return {
        "eval_run": {"id": "er_8", "name": NAME, "model_name": "osmosis/tiny", "status": "finished"},
        "summary": numbers.summary,
        "estimates": numbers.estimates.model_dump(mode="json"),
        "journal_bytes": 4711,
    }


def fetch(stored: DownloadableRun, kind: str, files: dict[str, bytes], *options: str) -> None:
    stored.holds(files)
    outcome = stored.download("--type", kind, *options)
    assert outcome.status == 0, outcome.err


def place(directory: Path, kind: str, metrics: dict[str, Any]) -> None:
    """Put what a download of a type leaves into a directory."""
    files = {
        **FETCHED,
        "metrics": {"metrics.json": json.dumps(metrics).encode()},
        "journal": {"events.jsonl": b""},
    }[kind]
    for path, content in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def fails(stored: DownloadableRun, command: str, directory: Path) -> tuple[str, str]:
    """Return what a command that is refused says, and the hint it gives."""
    outcome = stored.maze.osmosis("eval", command, str(directory), "--json")
    assert outcome.status == 1
    error = json.loads(outcome.err or outcome.out)["error"]
    return error["message"], error["hint"]


def told(stored: DownloadableRun, command: str, directory: Path) -> dict[str, Any]:
    outcome = stored.maze.osmosis("eval", command, str(directory), "--json")
    assert outcome.status == 0, outcome.err
    found: dict[str, Any] = outcome.json
    return found.get("data", found)


def test_a_log_alone_is_read(stored: DownloadableRun) -> None:
    fetch(stored, "logs", FETCHED["logs"])
    outcome = stored.maze.osmosis("eval", "logs", str(stored.directory))
    assert outcome.status == 0 and "the run began" in outcome.out, outcome.err


def test_numbers_alone_are_shown_as_they_were_written(
    stored: DownloadableRun, metrics: dict[str, Any]
) -> None:
    fetch(stored, "metrics", {"metrics.json": json.dumps(metrics).encode()})
    outcome = stored.maze.osmosis("eval", "info", str(stored.directory))
    assert outcome.status == 0, outcome.err
    samples = f"osmosis eval download {NAME} --type trajectories -o "
    assert samples in " ".join((outcome.out + outcome.err).split())
    run = told(stored, "info", stored.directory)
    assert run["problems"] == []
    assert run["local_run"]["status"] == "finished" and run["local_run"]["model"] == "osmosis/tiny"
    assert {**metrics["summary"], "estimates": metrics["estimates"]} == run["metrics"]
    assert stored.found() == {"metrics.json": json.dumps(metrics).encode()}


def test_numbers_that_need_the_samples_name_what_fetches_them(
    stored: DownloadableRun, metrics: dict[str, Any]
) -> None:
    """The hosted service's numbers are fewer: nothing is made up for those that lack."""
    del metrics["estimates"]
    fetch(stored, "metrics", {"metrics.json": json.dumps(metrics).encode()})
    said, hint = fails(stored, "info", stored.directory)
    assert "does not have all numbers" in said
    assert hint == f"osmosis eval download {NAME} --type metrics,trajectories -o {stored.directory}"


def test_samples_are_shown_without_the_numbers_and_what_passes_is_said(stored: DownloadableRun) -> None:
    fetch(stored, "trajectories", FETCHED["trajectories"])
    outcome = stored.maze.osmosis("eval", "show", str(stored.directory))
    assert outcome.status == 0 and "the word is six" in outcome.out, outcome.err
    run = told(stored, "show", stored.directory)
    assert [(each["row"], each["reward"], each["passed"]) for each in run["samples"]] == [
        (0, 1.0, True),
        (1, 0.5, False),
    ]
    assert run["problems"] == [
        "Its metrics.json did not come, which tells what passes: a reward of 1 is taken for it."
    ]


@pytest.mark.parametrize("fetched", ["trajectories", "logs", "artifacts", "metrics", "journal"])
@pytest.mark.parametrize("command", NEEDS)
def test_what_is_missing_is_named_with_the_command_that_fetches_it(
    stored: DownloadableRun, metrics: dict[str, Any], command: str, fetched: str
) -> None:
    place(stored.directory, fetched, metrics)
    needed = NEEDS[command]
    if needed == fetched:
        assert stored.maze.osmosis("eval", command, str(stored.directory)).status == 0
        return
    said, hint = fails(stored, command, stored.directory)
    assert f"did not come with the run that was downloaded to {stored.directory}" in said
    assert hint == f"osmosis eval download {NAME} --type {needed} -o {stored.directory}"


def test_the_command_that_is_named_fetches_what_is_missing(
    stored: DownloadableRun, tmp_path: Path, metrics: dict[str, Any]
) -> None:
    """The directory's own name is the user's; the run's is in its numbers."""
    mine = tmp_path / "my runs"
    fetch(stored, "metrics", {"metrics.json": json.dumps(metrics).encode()}, "-o", str(mine))
    assert fails(stored, "logs", mine)[1] == f"osmosis eval download {NAME} --type logs -o '{mine}'"
    fetch(stored, "logs", FETCHED["logs"], "-o", str(mine))
    assert "the run began" in stored.maze.osmosis("eval", "logs", str(mine)).out
    (mine / "metrics.json").unlink()
    assert fails(stored, "info", mine)[1].startswith("osmosis eval download RUN --type metrics ")


@pytest.mark.parametrize(
    ("lines", "torn_bytes"), [(1, 9), (1, 0), (0, 30), (0, 0)], ids=["torn", "cut", "torn first", "empty"]
)
def test_the_numbers_are_the_run_s_where_its_list_of_samples_came_in_part(
    stored: DownloadableRun, metrics: dict[str, Any], tmp_path: Path, lines: int, torn_bytes: int
) -> None:
    """Of two samples both of which passed, as metrics.json says; the list would have made it one of one."""
    listed = b"".join(json.dumps({**each, "reward": 1.0}).encode() + b"\n" for each in SAMPLES)
    whole = (listed.index(b"\n") + 1) * lines
    place(stored.directory, "metrics", metrics)
    (stored.directory / "summary.jsonl").write_bytes(listed[: whole + torn_bytes])
    run = told(stored, "info", stored.directory)
    assert {**metrics["summary"], "estimates": metrics["estimates"]} == run["metrics"]
    can_not = "1 line of the platform's list of its samples can not be read: these samples are left out."
    lacks = (
        "Its numbers are of 2 samples, of which the list of samples that came has 1: the others are left out."
    )
    target = tmp_path / "run.html"
    if lines:
        said = [can_not, lacks] if torn_bytes else [lacks]
        assert run["problems"] == said
        assert told(stored, "show", stored.directory)["problems"] == said
        outcome = stored.maze.osmosis("view", str(stored.directory), "--report", str(target))
        assert outcome.status == 0, outcome.err
        page = html.unescape(target.read_text())
        assert "100.0 % of 2 scored samples pass" in page
        assert all(each in page for each in said)
    else:
        (said,) = run["problems"]
        assert f"the run that was downloaded to {stored.directory} has no sample" in said
        fetching = f"osmosis eval download {NAME} --type trajectories -o {stored.directory}"
        assert fetching in said
        assert fetching in fails(stored, "show", stored.directory)[1]
        refused = stored.maze.osmosis("view", str(stored.directory), "--report", str(target))
        assert refused.status == 1 and "has no sample" in refused.err
        assert not target.exists()
    fetch(stored, "trajectories", {"summary.jsonl": listed})
    assert told(stored, "info", stored.directory)["problems"] == []


def test_a_directory_of_something_else_is_no_run(stored: DownloadableRun, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "artifacts" / "wheels").mkdir(parents=True)
    (other / "notes.txt").write_text("mine\n")
    for command in (*NEEDS, "export"):
        assert f"there is no run in {other}." in fails(stored, command, other)[0]


@pytest.mark.parametrize("fetched", ["trajectories", "logs", "artifacts", "metrics", "journal"])
def test_an_export_names_what_fetches_the_numbers_and_samples_it_needs(
    stored: DownloadableRun, metrics: dict[str, Any], fetched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(stored.directory, fetched, metrics)
    # A directory is meant, also one whose name could be a run's: nobody is asked for that.
    with monkeypatch.context() as beside:
        beside.chdir(stored.directory.parent)
        assert fails(stored, "export", Path(NAME))[0].endswith(f"downloaded to {stored.directory}.")
    said, hint = fails(stored, "export", stored.directory)
    lacks = {
        "metrics": "the list of samples (summary.jsonl)",
        "trajectories": "the numbers (metrics.json)",
    }.get(fetched, "the numbers (metrics.json) and the list of samples (summary.jsonl)")
    assert said == f"{lacks} did not come with the run that was downloaded to {stored.directory}."
    needed = ",".join(kind for kind in ("metrics", "trajectories") if kind != fetched)
    assert hint == f"osmosis eval download {NAME} --type {needed} -o {stored.directory}"
    for kind in ("metrics", "trajectories"):
        place(stored.directory, kind, metrics)
    outcome = stored.maze.osmosis("eval", "export", str(stored.directory), "--json")
    assert outcome.status == 0, outcome.err


@pytest.mark.parametrize("fetched", ["trajectories", "logs", "artifacts", "metrics", "journal"])
def test_a_comparison_of_a_download_names_the_run_itself(
    stored: DownloadableRun, metrics: dict[str, Any], fetched: str
) -> None:
    """No file of a download says what the rows of the dataset were: only the platform does."""
    place(stored.directory, fetched, metrics)
    outcome = stored.maze.osmosis("eval", "compare", str(stored.directory), str(stored.directory), "--json")
    assert outcome.status == 1
    error = json.loads(outcome.err or outcome.out)["error"]
    assert error["message"] == (
        f"`{stored.directory}` is a download of a platform's run, which does not say what its rows are."
    )
    assert error["hint"] == f"name the run itself: platform:{NAME}"
