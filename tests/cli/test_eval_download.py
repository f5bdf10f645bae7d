"""`osmosis eval download`: only known files, only into the run's directory, each whole."""

from __future__ import annotations

import hashlib
import html
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.blob_server import SIGNATURE, cut_after, serve, status
from tests.cli.eval_downloads import FILES, DownloadableRun
from tests.cli.eval_downloads import DownloadableRun as Run
from tests.cli.eval_replies import DETAIL, OWN
from tests.cli.maze import Maze, open_maze, sent
from tests.decisions.builders import write_journalled_run
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import journal_of


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    with open_maze(tmp_path, monkeypatch, capsys) as maze, serve() as store:
        yield Run(maze, store)


def test_what_is_there_is_not_fetched_again_unless_asked(run: Run) -> None:
    run.download("--json")
    (run.directory / "metrics.json").write_bytes(b"cut")
    fetched = run.download("--json").json["resource"]
    assert (fetched["files_downloaded"], fetched["files_skipped"]) == (1, 3)
    assert run.store.asked("GET")[4:] == ["metrics.json"]
    assert run.download("--overwrite", "--json").json["resource"]["files_downloaded"] == 4
    assert run.found() == FILES


def test_a_file_that_a_retry_replaced_by_one_of_the_same_size_is_fetched_again(run: Run) -> None:
    path = "trajectories/row_0_run_0.json"
    for content, fetched in ((b"{1}", 1), (b"{2}", 1), (b"{2}", 0)):
        run.store.blobs[path] = content
        run.lists([{"path": path, "size": 3, "sha256": hashlib.sha256(content).hexdigest()}])
        assert run.download("--json").json["resource"]["files_downloaded"] == fetched
        assert run.found() == {path: content}


@pytest.mark.parametrize(
    "asked, sends",
    [
        ("all", "metrics,trajectories,artifacts,logs"),
        ("LOGS, metrics,logs", "logs,metrics"),
        ("artifacts", "artifacts"),
    ],
)
def test_types_are_a_list_or_all(run: Run, asked: str, sends: str) -> None:
    run.lists([])
    assert run.download("--type", asked, "--rows", "3, 7-7,10-20", "--json").status == 0
    params = run.manifest.calls.last.request.url.params
    assert (params["types"], params["rows"]) == (sends, "3,7-7,10-20")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--type", "metrics,traces"), "`traces`"),
        (("--type", ""), "``"),
        (("--type", "all,logs"), "not both"),
        (("--rows", "1-"), "3,7,10-20"),
        (("--rows", "9-3"), "ends before it begins"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_platform_is_asked(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    error = run.download(*arguments, "--json").error
    assert (error["code"], said in error["message"]) == ("VALIDATION", True)
    assert not run.maze.router.calls


BAD_PATHS = [
    "../evil.json",
    "trajectories/../../evil.json",
    "/etc/evil",
    "artifacts/row_0_run_0//x",
    "artifacts/row_0_run_0/./x",
    "artifacts/row_0_run_0/..\\x",
    "artifacts/row_0_run_0/manifest.json",
    "artifacts/row_0_run_0/a\nb",
    "artifacts/x",
    "trajectories/row_0_run_0.json.exe",
    "trajectories/row_٣_run_0.json",
    "logs.txt",
    "elsewhere.json",
    "",
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_of_no_known_file_is_a_failure_and_never_written(run: Run, path: str) -> None:
    run.lists([{"path": "metrics.json", "size": 16}, {"path": path, "size": 1}])
    outcome = run.download("--type", "metrics,trajectories,artifacts", "--json")
    assert (outcome.status, outcome.json["status"]) == (1, "partial")
    (failed,) = outcome.json["resource"]["files_failed"]
    assert failed["path"] == path
    assert run.found() == {"metrics.json": FILES["metrics.json"]}
    assert not list(run.maze.workspace.root.rglob("*evil*"))
    assert run.store.asked("GET") == ["metrics.json"]


def test_a_file_listed_twice_is_fetched_once(run: Run) -> None:
    run.lists([{"path": "metrics.json", "size": 16}, {"path": "metrics.json", "size": 16}])
    outcome = run.download("--json")
    assert outcome.json["resource"]["files_failed"] == [{"path": "metrics.json", "error": "is listed twice"}]
    assert run.store.asked("GET") == ["metrics.json"]


def test_a_file_that_gets_no_url_counts_as_failed(run: Run) -> None:
    run.urls.mock(
        return_value=httpx.Response(
            200, json={"items": [{"path": "metrics.json", "url": run.store.signed("metrics.json")}]}
        )
    )
    resource = run.download("--json").json["resource"]
    assert (resource["files_downloaded"], len(resource["files_failed"])) == (1, 3)
    assert resource["files_failed"][0]["error"] == "the platform gave no URL for it"


def test_nothing_is_written_through_a_link(run: Run, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    run.directory.mkdir(parents=True)
    (run.directory / "trajectories").symlink_to(outside)
    (run.directory / "metrics.json").symlink_to(outside / "metrics.json")
    outcome = run.download("--json")
    assert len(outcome.json["resource"]["files_failed"]) == 3
    assert all("symbolic link" in failed["error"] for failed in outcome.json["resource"]["files_failed"])
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("size", [1.5, True, "7", -1, None])
def test_a_size_that_is_none_is_not_believed(run: Run, size: Any) -> None:
    run.lists([{"path": "metrics.json", "size": size}])
    assert run.download("--json").error["code"] == "PLATFORM_ERROR"


def test_a_url_that_has_ended_is_asked_for_again(run: Run) -> None:
    run.lists([{"path": "metrics.json", "size": 16, "token": "t:metrics.json"}])
    run.store.answers[:] = [status(403)]
    assert run.download("--json").status == 0
    assert sent(run.urls) == {"items": [{"path": "metrics.json", "token": "t:metrics.json"}]}
    assert run.urls.call_count == 2


def test_each_file_is_tried_three_times_and_the_others_are_not_kept_back(run: Run) -> None:
    run.lists([{"path": "metrics.json", "size": 16}, {"path": "summary.jsonl", "size": 99}])
    run.store.answers[:] = [status(500), cut_after(3)]
    outcome = run.download("--json")
    assert outcome.json["resource"]["files_downloaded"] == 1
    (failed,) = outcome.json["resource"]["files_failed"]
    assert failed["path"] == "summary.jsonl" and "instead of 99" in failed["error"]
    assert SIGNATURE not in outcome.out + outcome.err
    assert run.found() == {"metrics.json": FILES["metrics.json"]}
    steps = run.download("--plain").out
    assert "Failed: summary.jsonl — " in steps and "Run the same command again" in steps


def test_urls_are_signed_in_batches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.services.runs.download.URL_BATCH", 20)
    many = {f"trajectories/row_{row}_run_0.json": b"%d" % row for row in range(44)}
    run.holds(many)
    assert run.download("--json").json["resource"]["files_downloaded"] == 44
    assert [len(sent(run.urls, call)["items"]) for call in range(3)] == [20, 20, 4]
    assert run.found() == many


def test_a_large_download_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.lists([{"path": "metrics.json", "size": (100 << 20) + 1}])
    error = run.download("--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["summary"] == {
        "Files": "1",
        "Download size": "100.0 MB",
        "Destination": str(run.directory),
    }
    assert not run.urls.called
    monkeypatch.setattr("osmosis_ai.services.runs.download.ASK_FROM_BYTES", 3)
    run.holds(FILES)
    assert run.download("--yes", "--json").status == 0


@pytest.mark.parametrize(
    "name, directory",
    [
        ("amber-otter-42", "amber-otter-42"),
        ("Amber", "Amber--er_8"),
        ("a/b c", "a_b_c--er_8"),
        ("con", "con--er_8"),
        ("nul.txt", "nul.txt--er_8"),
        ("..", "_--er_8"),
        (".hidden", "_hidden--er_8"),
        ("ünï", "_n_--er_8"),
        (None, "er_8"),
    ],
)
def test_two_runs_never_share_a_directory_and_no_name_leaves_it(
    run: Run, name: str | None, directory: str
) -> None:
    run.described({**DETAIL, "eval_run": {**OWN, "name": name}})
    path = Path(run.download("--json").json["resource"]["output_path"])
    assert path == run.maze.workspace.evals_dir / directory


def test_a_very_long_name_is_cut_and_stays_one_of_its_kind(run: Run) -> None:
    run.described({**DETAIL, "eval_run": {**OWN, "name": "x" * 300}})
    path = Path(run.download("--json").json["resource"]["output_path"])
    assert len(path.name) < 150 and path.name.endswith("--er_8")


def test_an_evaluation_of_this_machine_keeps_its_directory(run: Run) -> None:
    run.directory.mkdir(parents=True)
    (run.directory / "manifest.json").write_text("{}")
    path = Path(run.download("--json").json["resource"]["output_path"])
    assert path.name == "amber-otter-42--er_8"


def test_the_user_may_choose_the_directory(run: Run, tmp_path: Path) -> None:
    run.download("-o", str(tmp_path / "mine"), "--json")
    assert (tmp_path / "mine" / "metrics.json").read_bytes() == FILES["metrics.json"]
    assert not run.maze.workspace.state_dir.exists()


def test_ctrl_c_leaves_whole_files_only_and_the_same_command_goes_on(run: Run) -> None:
    started = threading.Event()

    def hang(handler: Any) -> None:
        started.set()
        handler.send_blob(stop_after=1)

    def interrupt(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    run.urls.mock(side_effect=interrupt)
    assert run.download("--json").status == 130
    run.urls.mock(side_effect=run._sign)
    run.store.answers[:] = [hang]
    assert run.download("--json").status == 0
    assert started.is_set() and run.found() == FILES


OURS = {"X-Osmosis-Capabilities": "eval-journals"}


def test_the_journal_comes_by_name_and_whole_or_not_at_all(run: Run) -> None:
    journal = journal_of([record(0, notes="right")])
    run.described(DETAIL, headers=OURS)
    run.holds({"events.jsonl": journal.replace(b"right", b"wrong")})
    outcome = run.download("--type", "journal", "--json")
    (failed,) = outcome.json["resource"]["files_failed"]
    assert (outcome.status, failed["path"]) == (1, "events.jsonl") and "is damaged" in failed["error"]
    assert run.found() == {}
    run.holds({"events.jsonl": journal})
    assert run.download("--type", "all,journal", "--json").status == 0
    asked = run.manifest.calls.last.request.url.params["types"]
    assert asked == "metrics,trajectories,artifacts,logs,journal"
    assert run.found() == {"events.jsonl": journal}
    # What was changed here, and has its size, is fetched again.
    (run.directory / "events.jsonl").write_bytes(journal.replace(b"right", b"wrong"))
    assert run.download("--type", "journal", "--json").json["resource"]["files_downloaded"] == 1
    assert run.download("--type", "journal", "--json").json["resource"]["files_skipped"] == 1
    assert run.found() == {"events.jsonl": journal}


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
def metrics(maze: Maze, tmp_path: Path) -> dict[str, Any]:
    """The numbers of a run of two rows that both passed, as a platform of one's own writes them."""
    made = write_journalled_run(tmp_path / "made", [[1.0], [1.0]])
    numbers = maze.osmosis("eval", "info", str(made), "--json").json["data"]["metrics"]
    return {
        "eval_run": {"id": "er_8", "name": NAME, "model_name": "osmosis/tiny", "status": "finished"},
        "summary": {key: value for key, value in numbers.items() if key != "estimates"},
        "estimates": numbers["estimates"],
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
        "Its metrics.json, which has the pass threshold, is missing: a reward of 1 is assumed."
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
    assert f"the run downloaded to {stored.directory} lacks" in said
    assert hint == f"osmosis eval download {NAME} --type {needed} -o {stored.directory}"


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
    can_not = "1 line of the platform's list of its samples cannot be read: these samples are omitted."
    lacks = "Its numbers are of 2 samples, of which the list of samples has 1: the others are omitted."
    target = tmp_path / "run.html"
    if lines:
        said = [can_not, lacks] if torn_bytes else [lacks]
        assert run["problems"] == said
        assert told(stored, "show", stored.directory)["problems"] == said
        outcome = stored.maze.osmosis("view", str(stored.directory), "--report", str(target))
        assert outcome.status == 0, outcome.err
        page = html.unescape(target.read_text())
        assert "100.0% of 2 scored attempts pass" in page
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
