"""`osmosis eval download`: only known files, only into the run's directory, each whole."""

from __future__ import annotations

import hashlib
import html
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.blob_server import SIGNATURE, cut_after, status
from tests.cli.eval_downloads import FILES, DownloadableRun
from tests.cli.eval_replies import DETAIL, OWN
from tests.cli.maze import Maze, sent
from tests.cli.trained_runs import trajectory
from tests.decisions.builders import write_journalled_run
from tests.evaluation.builders import record
from tests.evaluation.recorded_runs import journal_of
from tests.viewer.builders import tiles_of


def test_existing_files_are_skipped(stored: DownloadableRun) -> None:
    stored.download("--json")
    (stored.directory / "metrics.json").write_bytes(b"cut")
    fetched = stored.download("--json").resource
    assert (fetched["files_downloaded"], fetched["files_skipped"]) == (1, 3)
    assert stored.store.asked("GET")[4:] == ["metrics.json"]
    assert stored.download("--overwrite", "--json").resource["files_downloaded"] == 4
    assert stored.found() == FILES


def test_replaced_file_of_the_same_size(stored: DownloadableRun) -> None:
    path = "trajectories/row_0_run_0.json"
    for content, fetched in ((b"{1}", 1), (b"{2}", 1), (b"{2}", 0)):
        stored.store.blobs[path] = content
        stored.lists([{"path": path, "size": 3, "sha256": hashlib.sha256(content).hexdigest()}])
        assert stored.download("--json").resource["files_downloaded"] == fetched
        assert stored.found() == {path: content}


@pytest.mark.parametrize(
    "types, sent_types",
    [
        ("all", "metrics,trajectories,artifacts,logs"),
        ("LOGS, metrics,logs", "logs,metrics"),
        ("artifacts", "artifacts"),
    ],
)
def test_types_and_rows(stored: DownloadableRun, types: str, sent_types: str) -> None:
    stored.lists([])
    assert stored.download("--type", types, "--rows", "3, 7-7,10-20", "--json").status == 0
    params = stored.manifest.calls.last.request.url.params
    assert (params["types"], params["rows"]) == (sent_types, "3,7-7,10-20")


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("--type", "metrics,traces", "`traces`"),
        ("--type", "", "``"),
        ("--type", "all,logs", "not both"),
        ("--rows", "1-", "3,7,10-20"),
        ("--rows", "9-3", "ends before it begins"),
    ],
)
def test_invalid_options(stored: DownloadableRun, option: str, value: str, message: str) -> None:
    outcome = stored.download(option, value, "--json")
    assert outcome.status == 2
    assert (outcome.error["code"], message in outcome.error["message"]) == ("VALIDATION", True)
    assert not stored.maze.router.calls


INVALID_PATHS = [
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


@pytest.mark.parametrize("path", INVALID_PATHS)
def test_invalid_paths(stored: DownloadableRun, path: str) -> None:
    stored.lists([{"path": "metrics.json", "size": 16}, {"path": path, "size": 1}])
    outcome = stored.download("--type", "metrics,trajectories,artifacts", "--json")
    assert (outcome.status, outcome.json["status"]) == (1, "partial")
    (failed,) = outcome.resource["files_failed"]
    assert failed["path"] == path
    assert stored.found() == {"metrics.json": FILES["metrics.json"]}
    assert not list(stored.maze.workspace.root.rglob("*evil*"))
    assert stored.store.asked("GET") == ["metrics.json"]


def test_duplicate_path_and_missing_url(stored: DownloadableRun) -> None:
    listed = {"path": "metrics.json", "size": 16}
    stored.lists([listed, listed])
    resource = stored.download("--json").resource
    assert resource["files_failed"] == [{"path": "metrics.json", "error": "is listed twice"}]
    assert stored.store.asked("GET") == ["metrics.json"]

    stored.holds(FILES)
    urls = {"items": [{"path": "metrics.json", "url": stored.store.signed("metrics.json")}]}
    stored.urls.mock(return_value=httpx.Response(200, json=urls), side_effect=None)
    resource = stored.download("--overwrite", "--json").resource
    assert (resource["files_downloaded"], len(resource["files_failed"])) == (1, 3)
    assert resource["files_failed"][0]["error"] == "the platform gave no URL for it"


def test_symbolic_links(stored: DownloadableRun, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    stored.directory.mkdir(parents=True)
    (stored.directory / "trajectories").symlink_to(outside)
    (stored.directory / "metrics.json").symlink_to(outside / "metrics.json")
    outcome = stored.download("--json")
    assert len(outcome.resource["files_failed"]) == 3
    assert all("symbolic link" in failed["error"] for failed in outcome.resource["files_failed"])
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("size", [1.5, True, "7", -1, None])
def test_invalid_size(stored: DownloadableRun, size: Any) -> None:
    stored.lists([{"path": "metrics.json", "size": size}])
    assert stored.download("--json").error["code"] == "PLATFORM_ERROR"


def test_expired_url_is_renewed(stored: DownloadableRun) -> None:
    stored.lists([{"path": "metrics.json", "size": 16, "token": "t:metrics.json"}])
    stored.store.answers[:] = [status(403)]
    assert stored.download("--json").status == 0
    assert sent(stored.urls) == {"items": [{"path": "metrics.json", "token": "t:metrics.json"}]}
    assert stored.urls.call_count == 2


def test_retries_per_file(stored: DownloadableRun) -> None:
    stored.lists([{"path": "metrics.json", "size": 16}, {"path": "summary.jsonl", "size": 99}])
    stored.store.answers[:] = [status(500), cut_after(3)]
    outcome = stored.download("--json")
    assert outcome.resource["files_downloaded"] == 1
    (failed,) = outcome.resource["files_failed"]
    assert failed["path"] == "summary.jsonl" and "instead of 99" in failed["error"]
    assert SIGNATURE not in outcome.out + outcome.err
    assert stored.found() == {"metrics.json": FILES["metrics.json"]}
    steps = stored.download("--plain").out
    assert "Failed: summary.jsonl — " in steps and "Run the same command again" in steps


def test_urls_are_signed_in_batches(stored: DownloadableRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osmosis_ai.services.runs.download.URL_BATCH", 20)
    many = {f"trajectories/row_{row}_run_0.json": b"%d" % row for row in range(44)}
    stored.holds(many)
    assert stored.download("--json").resource["files_downloaded"] == 44
    assert [len(sent(stored.urls, call)["items"]) for call in range(3)] == [20, 20, 4]
    assert stored.found() == many


def test_large_download_asks_first(stored: DownloadableRun, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.lists([{"path": "metrics.json", "size": (100 << 20) + 1}])
    error = stored.download("--json").error
    assert error["code"] == "INTERACTIVE_REQUIRED"
    assert error["details"]["summary"] == {
        "Files": "1",
        "Download size": "100.0 MB",
        "Destination": str(stored.directory),
    }
    assert not stored.urls.called
    monkeypatch.setattr("osmosis_ai.services.runs.download.ASK_FROM_BYTES", 3)
    stored.holds(FILES)
    assert stored.download("--yes", "--json").status == 0


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
        ("x" * 300, f"{'x' * 96}-0d4e2ca9--er_8"),
        ("local", "local--er_8"),
    ],
)
def test_directory_name(stored: DownloadableRun, name: str | None, directory: str) -> None:
    local = stored.maze.workspace.evals_dir / "local"
    local.mkdir(parents=True)
    (local / "manifest.json").write_text("{}")
    stored.described({**DETAIL, "eval_run": {**OWN, "name": name}})
    path = Path(stored.download("--json").resource["output_path"])
    assert path == stored.maze.workspace.evals_dir / directory


def test_output_directory(stored: DownloadableRun, tmp_path: Path) -> None:
    stored.download("-o", str(tmp_path / "mine"), "--json")
    assert (tmp_path / "mine" / "metrics.json").read_bytes() == FILES["metrics.json"]
    assert not stored.maze.workspace.state_dir.exists()
    file = tmp_path / "mine" / "metrics.json"
    error = stored.maze.osmosis("eval", "download", "amber-otter-42", "-o", str(file), "--json").error
    assert (error["code"], error["message"]) == ("CONFLICT", f"'{file}' is not a directory.")


def test_ctrl_c_and_resume(stored: DownloadableRun) -> None:
    started = threading.Event()

    def hang(handler: Any) -> None:
        started.set()
        handler.send_blob(stop_after=1)

    def interrupt(_request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    stored.urls.mock(side_effect=interrupt)
    assert stored.download("--json").status == 130
    stored.holds(FILES)
    stored.store.answers[:] = [hang]
    assert stored.download("--json").status == 0
    assert started.is_set() and stored.found() == FILES


OURS = {"X-Osmosis-Capabilities": "eval-journals"}


def test_journal(stored: DownloadableRun) -> None:
    journal = journal_of([record(0, notes="right")])
    stored.described(DETAIL, headers=OURS)
    stored.holds({"events.jsonl": journal.replace(b"right", b"wrong")})
    outcome = stored.download("--type", "journal", "--json")
    (failed,) = outcome.resource["files_failed"]
    assert (outcome.status, failed["path"]) == (1, "events.jsonl") and "is damaged" in failed["error"]
    assert stored.found() == {}
    stored.holds({"events.jsonl": journal})
    assert stored.download("--type", "all,journal", "--json").status == 0
    asked = stored.manifest.calls.last.request.url.params["types"]
    assert asked == "metrics,trajectories,artifacts,logs,journal"
    assert stored.found() == {"events.jsonl": journal}
    # What was changed here, and has its size, is fetched again.
    (stored.directory / "events.jsonl").write_bytes(journal.replace(b"right", b"wrong"))
    assert stored.download("--type", "journal", "--json").resource["files_downloaded"] == 1
    assert stored.download("--type", "journal", "--json").resource["files_skipped"] == 1
    assert stored.found() == {"events.jsonl": journal}


NAME = "amber-otter-42"
SAMPLES = [
    {"row_index": row, "run_index": 0, "rollout_id": f"ro-{row}", "status": "success", "reward": reward}
    for row, reward in enumerate((1.0, 0.5))
]
FETCHED = {
    "trajectories": {
        "summary.jsonl": b"".join(json.dumps(each).encode() + b"\n" for each in SAMPLES),
        "trajectories/row_0_run_0.json": trajectory("the word is six"),
    },
    "logs": {"logs.txt": b"2026-01-02T03:04:05.000Z INFO [run] the run began\n"},
    "artifacts": {"artifacts/row_0_run_0/plot.txt": b"x"},
}
NEEDS = {"info": "metrics", "show": "trajectories", "logs": "logs"}
"""The type of files that each command needs."""


@pytest.fixture
def metrics(maze: Maze, tmp_path: Path) -> dict[str, Any]:
    """The numbers of a run of two rows that both passed, as a platform of one's own writes them."""
    made = write_journalled_run(tmp_path / "made", [[1.0], [1.0]])
    numbers = maze.osmosis("eval", "info", str(made), "--json").data["metrics"]
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


def told(stored: DownloadableRun, command: str, directory: Path) -> dict[str, Any]:
    outcome = stored.maze.osmosis("eval", command, str(directory), "--json")
    assert outcome.status == 0, outcome.err
    return outcome.data


def test_show_without_metrics(stored: DownloadableRun) -> None:
    fetch(stored, "trajectories", FETCHED["trajectories"])
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
def test_missing_type_is_named(
    stored: DownloadableRun, metrics: dict[str, Any], command: str, fetched: str
) -> None:
    place(stored.directory, fetched, metrics)
    needed = NEEDS[command]
    if needed == fetched:
        assert stored.maze.osmosis("eval", command, str(stored.directory)).status == 0
        return
    error = stored.maze.osmosis("eval", command, str(stored.directory), "--json").error
    assert f"The run downloaded to '{stored.directory}' lacks" in error["message"]
    assert error["hint"] == f"osmosis eval download {NAME} --type {needed} -o {stored.directory}"


@pytest.mark.parametrize(
    ("lines", "torn_bytes"), [(1, 9), (1, 0), (0, 30), (0, 0)], ids=["torn", "cut", "torn first", "empty"]
)
def test_truncated_summary(
    stored: DownloadableRun, metrics: dict[str, Any], tmp_path: Path, lines: int, torn_bytes: int
) -> None:
    """Of two samples both of which passed, as metrics.json says; the list would have made it one of one."""
    listed = b"".join(json.dumps({**each, "reward": 1.0}).encode() + b"\n" for each in SAMPLES)
    whole = (listed.index(b"\n") + 1) * lines
    place(stored.directory, "metrics", metrics)
    (stored.directory / "summary.jsonl").write_bytes(listed[: whole + torn_bytes])
    run = told(stored, "info", stored.directory)
    assert {**metrics["summary"], "estimates": metrics["estimates"]} == run["metrics"]
    can_not = "1 line of the platform's list of attempts cannot be read; these attempts are omitted."
    lacks = "The metrics cover 2 attempts, but the list of attempts has only 1; the others are omitted."
    target = tmp_path / "run.html"
    if lines:
        said = [can_not, lacks] if torn_bytes else [lacks]
        assert run["problems"] == said
        assert told(stored, "show", stored.directory)["problems"] == said
        outcome = stored.maze.osmosis("view", str(stored.directory), "--report", str(target))
        assert outcome.status == 0, outcome.err
        page = html.unescape(target.read_text())
        shown = tiles_of(page)
        assert shown["Pass rate"].startswith("100.0%") and shown["Scored"].startswith("2 of")
        assert all(each in page for each in said)
    else:
        (said,) = run["problems"]
        assert f"The run downloaded to '{stored.directory}' has no attempts" in said
        fetching = f"osmosis eval download {NAME} --type trajectories -o {stored.directory}"
        assert fetching in said
        shown = stored.maze.osmosis("eval", "show", str(stored.directory), "--json")
        assert fetching in shown.error["hint"]
        refused = stored.maze.osmosis("view", str(stored.directory), "--report", str(target))
        assert refused.status == 1 and "has no attempts" in refused.err
        assert not target.exists()
    fetch(stored, "trajectories", {"summary.jsonl": listed})
    assert told(stored, "info", stored.directory)["problems"] == []
