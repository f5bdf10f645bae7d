"""What `osmosis view`, and every command with a report, makes of its options before it looks at anything."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from html import unescape
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from tests.cli.conftest import Cli
from tests.cli.eval_downloads import DownloadableRun
from tests.cli.eval_replies import DETAIL
from tests.cli.trained_runs import trajectory
from tests.workspace.builders import make_workspace

NEEDS_REPORT = "needs --report FILE.html"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("eval compare one other --no-text", f"--no-text {NEEDS_REPORT}"),
        ("eval compare one other --force", f"--force {NEEDS_REPORT}"),
        ("train info run --no-text --force", f"--force {NEEDS_REPORT}"),
        ("eval rubric -d a.jsonl -r tone --model openai/gpt-5-mini --no-text", f"--no-text {NEEDS_REPORT}"),
        ("view run --report page.html --max-mb nan", "must be a finite number"),
    ],
)
def test_report_options(cli: Cli, words: str, message: str) -> None:
    result = cli(*words.split())
    assert (result.status, result.out) == (2, "")
    assert message in result.err


@pytest.mark.parametrize("words", [("view",), ("eval", "compare", "one", "other"), ("train", "info", "run")])
def test_report_path(
    cli: Cli, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for named, said in (
        ("", "is a directory"),
        ("..", "is a directory"),
        ("-", "Report file name is invalid: '-'"),
    ):
        result = cli(*words, "--report", named)
        assert (result.status, result.out) == (1, "") and said in " ".join(result.err.split()), result.err
        assert "for instance report.html" in " ".join(result.err.split())
        assert "is a directory" in cli(*words, "--report", "..", "--force").err
    assert not list(tmp_path.iterdir())


ADDRESS = re.compile(r": http://[^/\s]+:(\d+)/open\?key=\S+")
IS_SHOWN = "Opened in your browser."


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages that were opened, by a viewer that is asked to end as soon as it has said where it is."""
    pages: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda page: pages.append(page) or True)  # type: ignore[func-returns-value]
    monkeypatch.setattr("osmosis_ai.viewer.serving.RunningViewer.run", lambda viewer: viewer.listener.close())
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OSMOSIS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(make_workspace(tmp_path / "here").root)
    return pages


@pytest.mark.parametrize("ssh", ["", "SSH_CONNECTION", "SSH_TTY"])
def test_without_display(cli: Cli, opened: list[str], monkeypatch: pytest.MonkeyPatch, ssh: str) -> None:
    if ssh:
        monkeypatch.setenv(ssh, "somewhere")
        # As after `ssh -X`: a window would open, slowly, from the other machine.
        monkeypatch.setenv("DISPLAY", "localhost:10.0")
    result = cli("view")
    address = ADDRESS.search(result.out)
    assert (result.status, opened) == (0, []) and address is not None
    assert IS_SHOWN not in result.err and "Ctrl-C" in result.err
    command = f"ssh -N -L {address[1]}:127.0.0.1:{address[1]} "
    assert command in " ".join(result.err.split()) if ssh else "ssh" not in result.err


NAMED = "platform:amber-otter-42"


@pytest.fixture
def stored(stored: DownloadableRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DownloadableRun:
    """A run of a platform with two conversations; what is temporary goes where one can look for it."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    facts = {
        "eval_run": {"id": "er_8", "name": "amber-otter-42", "model_name": "osmosis/tiny"},
        "summary": {},
    }
    sample = {"run_index": 0, "status": "success", "duration_ms": 9}
    samples = [
        {**sample, "row_index": row, "rollout_id": f"ro-{row}", "reward": reward}
        for row, reward in enumerate((1.0, 0.0))
    ]
    stored.holds(
        {
            "metrics.json": json.dumps(facts).encode(),
            "summary.jsonl": b"".join(json.dumps(each).encode() + b"\n" for each in samples),
            "trajectories/row_0_run_0.json": trajectory("the word is six"),
            "trajectories/row_1_run_0.json": trajectory("the word is seven"),
        }
    )
    return stored


def test_platform_run_in_a_browser(stored: DownloadableRun) -> None:
    """The hint is a command that works as it is."""
    assert stored.maze.osmosis("eval", "download", "amber-otter-42").status == 0
    for name in (NAMED, "amber-otter-42"):
        error = stored.maze.osmosis("view", name, "--json").error
        assert error["message"] == f"{name} is a platform's run; its pages are there."
        _, *words = error["hint"].split()
        assert words == ["view", name, "--report", "amber-otter-42.html"]
        assert stored.maze.osmosis(*words).status == 0
        Path("amber-otter-42.html").unlink()
    missing = stored.maze.osmosis("view", "heron", "--json").error
    assert missing["message"] == "Run 'heron' not found."
    assert missing["hint"].endswith("osmosis view platform:heron --report heron.html")


def is_clean(stored: DownloadableRun, tmp_path: Path) -> bool:
    return stored.found() == {} and not list((tmp_path / "scratch").iterdir())


def test_report_of_platform_run(stored: DownloadableRun, tmp_path: Path) -> None:
    report = tmp_path / "run.html"
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report), "--json")
    assert outcome.status == 0, outcome.err
    resource = outcome.resource
    assert (resource["run"], resource["samples"], resource["conversations"]) == ("amber-otter-42", 2, 2)
    text = report.read_text("utf-8")
    assert "amber-otter-42" in text and "the word is six" in text and "the word is seven" in text
    assert is_clean(stored, tmp_path)


def test_report_of_a_download_by_its_name(stored: DownloadableRun, tmp_path: Path) -> None:
    assert stored.maze.osmosis("eval", "download", "amber-otter-42").status == 0
    report = tmp_path / "run.html"
    outcome = stored.maze.osmosis("view", "amber-otter-42", "--report", str(report))
    assert outcome.status == 0, outcome.err
    assert "the word is six" in report.read_text("utf-8")


def test_report_without_text(stored: DownloadableRun, tmp_path: Path) -> None:
    report = tmp_path / "run.html"
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report), "--no-text")
    assert outcome.status == 0, outcome.err
    assert "the word is" not in report.read_text("utf-8")
    assert sorted(stored.store.asked("GET")) == ["metrics.json", "summary.jsonl"]

    tells(stored, {"samples": [FAILED]})
    text = written(stored, tmp_path, "--no-text")
    assert '<th scope="row">grader<span class="interval">invalid_value</span>' in text and "$0.0123" in text
    assert not any(each in text for each in TEXTS)


def test_report_download_problems(
    stored: DownloadableRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "run.html"
    commands = (
        "osmosis eval download amber-otter-42, then osmosis view .osmosis/evals/amber-otter-42 --report"
    )
    del stored.store.blobs["trajectories/row_1_run_0.json"]
    broken = stored.maze.osmosis("view", NAMED, "--report", str(report))
    assert broken.status == 1 and "1 file of 'amber-otter-42' could not be downloaded: " in " ".join(
        broken.err.split()
    )
    monkeypatch.setattr("osmosis_ai.services.runs.download.ASK_FROM_BYTES", 10)
    large = stored.maze.osmosis("view", NAMED, "--report", str(report))
    said = " ".join(large.err.split())
    assert large.status == 1 and "--no-text reads its numbers alone" in said and commands in said
    assert not report.exists() and is_clean(stored, tmp_path)


def test_existing_report(stored: DownloadableRun, tmp_path: Path) -> None:
    report = tmp_path / "run.html"
    report.write_text("mine")
    outcome = stored.maze.osmosis("view", NAMED, "--report", str(report))
    assert outcome.status == 1 and "exists" in outcome.err and report.read_text() == "mine"
    assert not stored.manifest.calls


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


def tells(stored: DownloadableRun, *pages: dict[str, Any]) -> respx.Route:
    """Let the platform offer the results of single attempts, and a list that knows little of a failure."""
    stored.described(DETAIL, headers=OURS)
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


def test_report_of_platform_samples(stored: DownloadableRun, tmp_path: Path) -> None:
    first = {**FAILED, "row": 0, "status": "success", "error": None, "input": "how much is five"}
    route = tells(stored, {"samples": [first], "next_cursor": "0-0"}, {"samples": [FAILED]})
    text = written(stored, tmp_path)
    assert (
        '<th scope="row">grader<span class="interval">invalid_value</span>' in text
        and "not known" not in text
    )
    rows = re.findall(r"<tr(?: id=\"row-\d+\")?><th scope=\"row\">.*?</tr>", text, re.DOTALL)
    passed, failed = rows[-2:]
    for said in ("how much is five", "it is seven", "77", "$0.0123"):
        assert said in passed, said
    for said in ("how much is six", "the grader gave banana", "77", "$0.0123", "1m"):
        assert said in failed, said
    assert "not a number at all" in text and "not recorded" not in passed + failed
    asked = [dict(call.request.url.params) for call in route.calls]
    assert [(each.get("cursor"), each["details"]) for each in asked] == [(None, "true"), ("0-0", "true")]


@pytest.mark.parametrize(
    "unfit",
    [
        {"boundary": "moon", "row_digest": "../x", "category": None, "duration_ms": -1.0},
        {"boundary": None, "duration_ms": 1e400, "cost_usd": -1e400},
        {"row": 2**70, "boundary": "moon"},
        {"notes": "half of \ud83d a sign", "parts": {"format": 1e400}},
    ],
)
def test_invalid_sample_values(stored: DownloadableRun, tmp_path: Path, unfit: dict[str, Any]) -> None:
    content = json.dumps({"samples": [{**FAILED, **unfit}], "next_cursor": "x"})
    content = content.replace("Infinity", "1e400")
    tells(stored).mock(side_effect=lambda _: httpx.Response(200, content=content, headers=OURS))
    text = written(stored, tmp_path)
    assert "moon" not in text and ("row" in unfit or "how much is six" in text)


def test_endless_pages(stored: DownloadableRun, tmp_path: Path) -> None:
    numbers = count()

    def in_circles(_: httpx.Request) -> httpx.Response:
        assert next(numbers) < 50
        page = {"samples": [{**FAILED, "row": 0}], "next_cursor": f"{next(numbers)}"}
        return httpx.Response(200, json=page, headers=OURS)

    tells(stored).mock(side_effect=in_circles)
    written(stored, tmp_path)


def test_invalid_samples_reply(stored: DownloadableRun, tmp_path: Path) -> None:
    told = "The platform's details of the attempts cannot be read"
    tells(stored, {"samples": [FAILED], "next_cursor": "1-0"}, {"samples": [{"row": "many"}]})
    assert told not in written(stored, tmp_path), "the list has no sample behind these"
    tells(stored, {"samples": [{"row": "many"}]})
    for options in ((), ("--no-text",)):
        tells(stored, {"samples": [{"row": "many"}]})
        text = written(stored, tmp_path, *options)
        assert told in text and "validation_error" in text
