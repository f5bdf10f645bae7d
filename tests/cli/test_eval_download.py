"""`osmosis eval download`: only known files, only into the run's directory, each whole."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis_ai.evaluation.journal_chain import BEFORE_THE_FIRST, sealed
from osmosis_ai.services.runs import download
from tests.api.blob_server import SIGNATURE, cut_after, serve, status
from tests.cli.eval_downloads import FILES
from tests.cli.eval_downloads import DownloadableRun as Run
from tests.cli.eval_replies import DETAIL, OWN
from tests.cli.maze import open_maze, sent
from tests.evaluation.builders import record


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    with open_maze(tmp_path, monkeypatch, capsys) as maze, serve() as store:
        yield Run(maze, store)


def test_metrics_and_trajectories_are_the_default(run: Run) -> None:
    outcome = run.download("--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert run.found() == FILES
    assert run.manifest.calls.last.request.url.params["types"] == "metrics,trajectories"
    assert "rows" not in run.manifest.calls.last.request.url.params
    envelope = outcome.json
    total = sum(map(len, FILES.values()))
    assert (envelope["operation"], envelope["status"]) == ("eval.download", "success")
    assert envelope["resource"] == {
        "eval_run": {"id": "er_8", "name": "amber-otter-42"},
        "status": "running",
        "selected_types": ["metrics", "trajectories"],
        "files_downloaded": 4,
        "files_skipped": 0,
        "files_failed": [],
        "bytes_downloaded": total,
        "total_files": 4,
        "total_bytes": total,
        "breakdown": {
            "metrics": {"files": 1, "bytes": len(FILES["metrics.json"])},
            "trajectories": {"files": 3, "bytes": total - len(FILES["metrics.json"])},
        },
        "manifest_totals": {"files": 4},
        "output_path": str(run.directory),
        **run.maze.resource,
    }
    assert (run.maze.workspace.state_dir / ".gitignore").exists()


def test_rows_that_the_run_has_nothing_of_are_told(run: Run) -> None:
    run.holds({name: content for name, content in FILES.items() if not name.startswith("trajectories/")})
    assert "The run has no trajectories of rows 999." in run.download("--rows", "999").out
    assert "The run has no" not in run.download("--rows", "999", "--type", "metrics").out
    run.holds(FILES)
    assert "The run has no" not in run.download("--rows", "0").out


def test_people_and_logs_see_how_much_came(run: Run) -> None:
    run.described({**DETAIL, "eval_run": {**DETAIL["eval_run"], "status": "finished"}})
    plain = run.download("--plain")
    assert plain.out == "Downloaded 4 files to .osmosis/evals/amber-otter-42.\n"
    assert plain.err.splitlines()[-1] == "Downloading: 48 B of 48 B (100%)"
    assert plain.err.count("100%") == 1
    assert "4 were there already" in run.download().out


@pytest.mark.parametrize("status", ["running", "finished", "failed"])
def test_whose_files_these_are_is_said_with_the_status_of_the_run(run: Run, status: str) -> None:
    run.described({**DETAIL, "eval_run": {**DETAIL["eval_run"], "status": status}})
    assert run.download("--json").json["resource"]["status"] == status
    assert ("run the same command again when it has ended" in run.download().out) == (status == "running")


def test_what_is_there_is_not_fetched_again_unless_asked(run: Run) -> None:
    run.download("--json")
    (run.directory / "metrics.json").write_bytes(b"cut")
    fetched = run.download("--json").json["resource"]
    assert (fetched["files_downloaded"], fetched["files_skipped"]) == (1, 3)
    assert run.store.asked("GET")[4:] == ["metrics.json"]
    assert run.download("--overwrite", "--json").json["resource"]["files_downloaded"] == 4
    assert run.found() == FILES


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
    assert run.download("--type", asked, "--rows", "3, 7,10-20", "--json").status == 0
    params = run.manifest.calls.last.request.url.params
    assert (params["types"], params["rows"]) == (sends, "3,7,10-20")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--type", "metrics,traces"), "`traces`"),
        (("--type", ""), "``"),
        (("--type", "all,logs"), "not both"),
        (("--type", "all,logs,journal"), "not both"),
        (("--rows", "1-"), "3,7,10-20"),
        (("--rows", "x"), "3,7,10-20"),
        (("--rows", "9-3"), "ends before it begins"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_platform_is_asked(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    error = run.download(*arguments, "--json").error
    assert (error["code"], said in error["message"]) == ("VALIDATION", True)
    assert not run.maze.router.calls


def test_a_run_that_has_not_started_has_no_files(run: Run) -> None:
    run.described({**DETAIL, "eval_run": {**OWN, "status": "pending"}})
    error = run.download("--json").error
    assert (error["code"], "has not started yet" in error["message"]) == ("VALIDATION", True)


def test_a_platform_without_downloads_is_told_as_such(run: Run) -> None:
    run.manifest.respond(404, json={"error": "Not Found"})
    error = run.download("--json").error
    assert (error["code"], "too old to offer downloads" in error["message"]) == ("NOT_FOUND", True)


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


def test_a_list_of_nothing_that_can_be_written_is_an_error(run: Run) -> None:
    run.lists([{"path": "../evil", "size": 1}])
    assert run.download("--json").error["code"] == "PLATFORM_ERROR"


@pytest.mark.parametrize("size", [1.5, True, "7", -1, None])
def test_a_size_that_is_none_is_not_believed(run: Run, size: Any) -> None:
    run.lists([{"path": "metrics.json", "size": size}])
    assert run.download("--json").error["code"] == "PLATFORM_ERROR"


def test_a_file_of_other_bytes_than_the_platform_knows_is_not_kept(run: Run) -> None:
    right, wrong = (hashlib.sha256(content).hexdigest() for content in (FILES["metrics.json"], b"another"))
    run.lists(
        [
            {"path": "metrics.json", "size": 16, "sha256": right},
            {"path": "summary.jsonl", "size": 17, "sha256": wrong},
        ]
    )
    (failed,) = run.download("--json").json["resource"]["files_failed"]
    assert failed["path"] == "summary.jsonl" and "has other bytes than announced" in failed["error"]
    assert run.found() == {"metrics.json": FILES["metrics.json"]}


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


def test_a_file_that_gets_no_url_counts_as_failed(run: Run) -> None:
    run.urls.mock(
        return_value=httpx.Response(
            200, json={"items": [{"path": "metrics.json", "url": run.store.signed("metrics.json")}]}
        )
    )
    resource = run.download("--json").json["resource"]
    assert (resource["files_downloaded"], len(resource["files_failed"])) == (1, 3)
    assert resource["files_failed"][0]["error"] == "the platform gave no URL for it"


def test_older_spellings_of_the_urls_are_understood(run: Run) -> None:
    run.lists([{"path": "metrics.json", "size": 16}])
    run.urls.mock(
        return_value=httpx.Response(
            200, json={"files": [{"path": "metrics.json", "presignedUrl": run.store.signed("metrics.json")}]}
        )
    )
    assert run.download("--json").status == 0


def test_urls_are_signed_in_batches_of_500(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert download.URL_BATCH == 500
    monkeypatch.setattr(download, "URL_BATCH", 20)
    many = {f"trajectories/row_{row}_run_0.json": b"%d" % row for row in range(44)}
    run.holds(many)
    assert run.download("--json").json["resource"]["files_downloaded"] == 44
    assert [len(sent(run.urls, call)["items"]) for call in range(3)] == [20, 20, 4]
    assert run.found() == many


def test_eight_files_come_at_once_and_no_more(run: Run) -> None:
    many = {f"trajectories/row_{row}_run_0.json": b"%d" % row for row in range(24)}
    run.holds(many)
    gate, arrived = threading.Barrier(8, timeout=60), []

    def wait_for_eight(handler: Any) -> None:
        arrived.append(handler)
        gate.wait()
        handler.send_blob()

    run.store.answers[:] = [wait_for_eight] * 24
    assert run.download("--json").json["resource"]["files_downloaded"] == 24
    assert len(arrived) == 24


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
    monkeypatch.setattr(download, "ASK_FROM_BYTES", 3)
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
    journal = sealed(record(0, notes="right").to_line(), BEFORE_THE_FIRST)[0]
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


def test_of_a_platform_without_journals_none_is_asked_for(run: Run) -> None:
    run.maze.get("/verify").respond(json={"valid": True})
    assert run.download("--type", "all", "--json").status == 0
    assert run.manifest.calls.last.request.url.params["types"] == "metrics,trajectories,artifacts,logs"
    run.described(DETAIL, headers={"X-Osmosis-Capabilities": "eval-retries"})
    error = run.download("--type", "journal", "--json").error
    assert "does not support downloading the journals of evaluations" in error["message"]
