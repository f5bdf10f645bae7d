"""`osmosis eval show`: conversations of runs of this machine, of a platform of ours and of the hosted service."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.eval_downloads import DownloadableRun
from tests.cli.eval_replies import DETAIL, run
from tests.cli.maze import Maze
from tests.cli.trained_runs import trajectory
from tests.decisions.builders import write_journalled_run
from tests.workspace.builders import git

DIGESTS = ["a" * 32, "b" * 32]


def said(maze: Maze, run: str, row: int, attempt: int, content: bytes) -> None:
    folder = maze.workspace.evals_dir / run / "trajectories"
    folder.mkdir(exist_ok=True)
    (folder / f"row_{row}_run_{attempt}.json").write_bytes(content)


@pytest.fixture
def maze(maze: Maze) -> Maze:
    """With two runs on this machine: the first row passes now and then, the second has an error."""
    write_journalled_run(maze.workspace.evals_dir / "fern", [[1.0, 0.0], [None, 0.0]], digests=DIGESTS)
    write_journalled_run(maze.workspace.evals_dir / "moss", [[0.0], [1.0]], digests=DIGESTS[::-1])
    notes = {"grader_notes": {"notes": "Nearly.", "parts": {"format": 1}}}
    said(maze, "fern", 0, 0, trajectory("\x1b[31msix\x1b]0;owned\x07", sample_extra_fields=notes))
    said(maze, "fern", 0, 1, trajectory("seven"))
    said(maze, "moss", 1, 0, trajectory("from moss"))
    return maze


def shown(maze: Maze, *arguments: str) -> list[tuple[int, int]]:
    outcome = maze.osmosis("eval", "show", *arguments, "--json")
    assert outcome.status == 0, outcome.err
    return [(each["row"], each["attempt"]) for each in outcome.data["samples"]]


@pytest.mark.parametrize(
    ("arguments", "samples"),
    [
        ([], [(0, 0), (0, 1), (1, 0), (1, 1)]),
        (["--limit", "2"], [(0, 0), (0, 1)]),
        (["--attempt", "1"], [(0, 1), (1, 1)]),
        (["--passed"], [(0, 0)]),
        (["--below"], [(0, 1), (1, 1)]),
        (["--failed"], [(1, 0)]),
        (["--unscored"], [(1, 0)]),
        (["--flaky"], [(0, 0), (0, 1)]),
        (["--search", "SEVEN"], [(0, 1)]),
        (["--search", "nearly"], [(0, 0)]),
        (["--search", "nowhere said"], []),
    ],
)
def test_filters(maze: Maze, arguments: list[str], samples: list[tuple[int, int]]) -> None:
    assert shown(maze, "fern", *arguments) == samples


def test_last_line_of_a_traceback(maze: Maze) -> None:
    trial = maze.workspace.evals_dir / "fern" / "rollout_trials" / "row-1-run-0"
    trial.mkdir(parents=True)
    frames = "".join(f'  File "{name}.py", line 3, in run\n    {name}()\n' for name in ("server", "agent"))
    written = f"Traceback (most recent call last):\n{frames}KeyError\n"
    (trial / "diagnostics.json").write_text(json.dumps({"traceback": written}))
    shown = maze.osmosis("eval", "show", "fern", "--failed", "--plain").out
    assert 'File "agent.py", line 3, in run agent()' in shown and "server.py" not in shown
    (sample,) = maze.osmosis("eval", "show", "fern", "--failed", "--json").data["samples"]
    assert sample["traceback"] == written


def test_platform_command_with_a_local_run(maze: Maze) -> None:
    missing = {"error": "there is no evaluation run 'fern'; see `osmosis eval list`."}
    maze.post("/eval-runs/fern/stop").respond(404, json=missing)
    maze.get("/eval-runs/fern").respond(404, json=missing)
    maze.get("/eval-runs/fern/logs").respond(404, json=missing)
    verbs = ("stop", "delete", "download", "retry", "resubmit")
    for words in (*((verb, "fern", "--yes") for verb in verbs), ("logs", "platform:fern")):
        error = maze.osmosis("eval", *words[:-1] if words[0] == "download" else words, "--json").error
        assert error["code"] == "NOT_FOUND"
        assert error["message"] == "Run 'fern' is on this machine, not on the platform."
        assert str(maze.workspace.evals_dir / "fern") in error["hint"] and "Ctrl-C stops it" in error["hint"]


@pytest.mark.parametrize("missing", ["run", "login", "origin"])
def test_platform_command_with_a_run_called_local(maze: Maze, missing: str) -> None:
    if missing == "login":
        maze.patch.setenv("OSMOSIS_PLATFORM_URL", "https://elsewhere.example")
    elif missing == "origin":
        git(maze.workspace.root, "remote", "remove", "origin")
    for verb in ("stop", "delete", "retry", "resubmit", "download"):
        error = maze.osmosis("eval", verb, "local:fern", "--json").error
        assert error["message"] == "Run 'fern' is on this machine, not on the platform."
        plain = maze.osmosis("eval", verb, "fern", "--json").error if missing != "run" else error
        assert plain["message"].startswith("Run 'fern' is on this machine, ")
    if missing == "run":
        error = maze.osmosis("eval", "stop", "local:heron", "--json").error
        assert (error["code"], error["message"]) == (
            "NOT_FOUND",
            "Run 'local:heron' is not a platform's run.",
        )


def test_side_by_side(maze: Maze) -> None:
    show = ("eval", "show", "fern", "--row", "0", "--attempt", "1", "--side-by-side", "moss")
    (sample,) = maze.osmosis(*show, "--json").data["samples"]
    assert (sample["run"], sample["beside"]["run"], sample["beside"]["row"]) == ("fern", "moss", 1)
    assert sample["beside"]["messages"][2]["content"] == "from moss"
    plain = maze.osmosis(*show, "--plain")
    assert (
        "fern, row 0, attempt 1 (below threshold):" in plain.out
        and "moss, row 1, attempt 0 (passed):" in plain.out
    )


def test_broken_and_long_conversations(maze: Maze) -> None:
    said(maze, "fern", 1, 1, trajectory("kept")[:-60])
    outcome = maze.osmosis("eval", "show", "fern", "--row", "1", "--plain")
    assert "note: No conversation of this attempt was stored" in outcome.out
    assert "note: The file is not valid JSON." in outcome.out

    said(maze, "fern", 0, 0, trajectory("x" * 20_000))
    one = ("eval", "show", "fern", "--limit", "1")
    assert "12,000 more characters, which --json has" in maze.osmosis(*one, "--plain").out
    assert maze.osmosis(*one, "--json").out.count("x") > 20_000


def call(name: str, arguments: Any = "x") -> dict[str, Any]:
    return {"tool_call_id": name, "function_name": f"f{name}", "arguments": arguments}


def test_calls_with_equal_ids_and_results_without_call(maze: Maze) -> None:
    names = enumerate(["a", "a", "gone", "b"])
    results: list[Any] = [{"source_call_id": name, "content": f"{name}{n}"} for n, name in names]
    step = {"source": "agent", "tool_calls": [call(name) for name in "abac"]}
    late = {
        "source": "system",
        "observation": {"results": [{"content": "found", "extra": {"tool_name": "search"}}]},
    }
    steps = [{**step, "observation": {"results": results}}, late]
    said(maze, "fern", 0, 0, json.dumps({"steps": steps}).encode())
    (sample,) = maze.osmosis("eval", "show", "fern", "--limit", "1", "--json").data["samples"]
    asks, *tools = sample["messages"]
    assert [each["function"]["name"] for each in asks["tool_calls"]] == ["fa", "fb", "fa", "fc"]
    assert [each["content"] for each in tools] == ["a0", "b3", "a1", "gone2", "found"]
    shown = maze.osmosis("eval", "show", "fern", "--limit", "1").out
    assert "calls a tool" in shown and "fa(x)" in shown and "search" in shown


@pytest.mark.parametrize(
    "word", ["six", "5eed", "call-77", "easy", "gpt-5", "osmosis", "explanation", "grader_notes"]
)
def test_search_ignores_answers_ids_and_keys(maze: Maze, word: str) -> None:
    facts = {
        "label": "six",
        "request_metadata": {"level": "easy"},
        "sample_extra_fields": {
            "grader_notes": {"notes": "No unit."},
            "judge_calls": {"judgements": [{"model": "m", "score": 0.5, "explanation": "Half of it."}]},
        },
    }
    step = {"source": "agent", "tool_calls": [{**call("multiply"), "tool_call_id": "call-77"}]}
    document = {"agent": {"model_name": "openai/gpt-5-mini"}, "steps": [step], "session_id": "5eed"}
    said(maze, "fern", 0, 0, json.dumps({**document, "extra": {"osmosis": facts}}).encode())
    assert shown(maze, "fern", "--search", "multiply", "--row", "0") == [(0, 0), (0, 1)]
    assert (0, 0) not in shown(maze, "fern", "--search", word)


def test_search_reports_unsearched_samples(maze: Maze) -> None:
    said(maze, "fern", 1, 1, b" " * (33 << 20))
    told = maze.osmosis("eval", "show", "fern", "--search", "seven", "--json").data["search"]
    assert told == {"conversations": 2, "without_conversation": 1, "too_large": 1, "complete": False}


@pytest.fixture
def stored(stored: DownloadableRun) -> DownloadableRun:
    """A run of a platform with two conversations, and the contract's list of samples."""
    passed = {"row_index": 0, "run_index": 0, "status": "success", "reward": 1.0, "tokens": 5}
    failed = {"row_index": 0, "run_index": 1, "status": "failed", "error_type": "Timeout"}
    listed = [passed, failed, {"row_index": 1, "run_index": 0, "status": "success", "reward": 0.0}]
    lines = b"".join(json.dumps(each).encode() + b"\n" for each in listed) + b"not JSON\n[]\n"
    stored.holds(
        {
            "summary.jsonl": lines,
            "trajectories/row_0_run_0.json": trajectory("six"),
            "trajectories/row_1_run_0.json": trajectory("seven"),
        }
    )
    return stored


def test_hosted_run(stored: DownloadableRun) -> None:
    maze = stored.maze
    outcome = maze.osmosis("eval", "show", "platform:amber-otter-42", "--json")
    samples = outcome.data["samples"]
    assert [(each["row"], each["attempt"], each.get("passed")) for each in samples] == [
        (0, 0, True),
        (0, 1, None),
        (1, 0, False),
    ]
    assert samples[0]["messages"][2]["content"] == "six"
    assert samples[1]["problems"] == ["The platform has no conversation for it."]
    assert samples[1]["category"] == "Timeout"
    (problem,) = outcome.data["problems"]
    assert "2 lines of the platform's list of attempts cannot be read" in problem
    assert shown(maze, "platform:amber-otter-42", "--search", "SEVEN") == [(1, 0)]
    assert shown(maze, "platform:amber-otter-42", "--row", "1") == [(1, 0)]
    assert shown(maze, "platform:amber-otter-42", "--below") == [(1, 0)]
    assert shown(maze, "platform:amber-otter-42", "--failed") == [(0, 1)]
    assert stored.found() == {}, "nothing is left in the workspace"


def test_hosted_run_without_summary(stored: DownloadableRun) -> None:
    texts = {(10, 0): "ten", (2, 1): "two", (2, 0): "also two"}
    stored.holds(
        {f"trajectories/row_{row}_run_{run}.json": trajectory(said) for (row, run), said in texts.items()}
    )
    show = ("eval", "show", "platform:amber-otter-42")
    data = stored.maze.osmosis(*show, "--json").data
    found = [(each["row"], each["attempt"], each["messages"][2]["content"]) for each in data["samples"]]
    assert found == [(2, 0, "also two"), (2, 1, "two"), (10, 0, "ten")]
    assert "reward" not in data["samples"][0]
    assert "no list of the run's attempts" in data["problems"][0]
    assert "no list of the run's attempts" in " ".join(stored.maze.osmosis(*show, "--failed").out.split())


def test_hosted_summary_fails(stored: DownloadableRun) -> None:
    del stored.store.blobs["summary.jsonl"]
    outcome = stored.maze.osmosis("eval", "show", "platform:amber-otter-42")
    assert outcome.status == 1 and "could not be fetched" in outcome.err


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_only_shown_conversations_are_fetched(stored: DownloadableRun, limit: int) -> None:
    show = ("eval", "show", "platform:amber-otter-42", "--limit", str(limit), "--json")
    data = stored.maze.osmosis(*show).data
    assert (len(data["samples"]), data["has_more"]) == (limit, limit < 3)
    fetched = [path for path in stored.store.asked("GET") if path.startswith("trajectories/")]
    assert len(fetched) == {1: 1, 2: 1, 3: 2}[limit]  # the second attempt left none


def test_platform_samples_with_notes(stored: DownloadableRun) -> None:
    maze = stored.maze
    ours = {"X-Osmosis-Capabilities": "eval-samples"}
    maze.router.get(url__regex=r".*/api/cli/eval-runs/[^/]+$").respond(json=DETAIL, headers=ours)
    told = {
        "row": 1,
        "attempt": 0,
        "status": "success",
        "reward": 0.0,
        "source_row_index": 41,
        "row_digest": "a" * 32,
    }
    route = maze.get("/eval-runs/er_8/samples")
    route.respond(json={"samples": [{**told, "notes": "Almost.", "parts": {"format": 0.5}}]}, headers=ours)
    (sample,) = maze.osmosis("eval", "show", "platform:amber-otter-42", "--json").data["samples"]
    assert (sample["notes"], sample["parts"], sample["source_row_index"]) == ("Almost.", {"format": 0.5}, 41)
    assert sample["messages"][2]["content"] == "seven"
    assert route.calls.last.request.url.params["details"] == "true"
    assert stored.manifest.calls.last.request.url.params["rows"] == "41"
    beside = maze.osmosis("eval", "show", "platform:amber-otter-42", "--side-by-side", "fern", "--json")
    assert beside.data["samples"][0]["beside"]["row"] == 0


def test_platform_run_without_attempts(maze: Maze) -> None:
    ours = {"X-Osmosis-Capabilities": "eval-samples"}
    maze.get("/eval-runs/amber").respond(json=run("pending"), headers=ours)
    maze.get("/eval-runs/er_8/samples").respond(json={"samples": []}, headers=ours)
    shown = maze.osmosis("eval", "show", "platform:amber", "--failed").out
    assert shown == "The run 'amber-otter-42' has no attempts yet.\n"


def test_control_characters(maze: Maze) -> None:
    hostile = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x200B, 0x202E, 0x2066, 0xD800)))
    text = f"a{hostile}b"
    call = {"function_name": text, "arguments": text}
    steps = [{"source": text, "message": text, "tool_calls": [call]}]
    said(maze, "fern", 0, 0, json.dumps({"steps": steps, "extra": {"osmosis": {"label": text}}}).encode())
    for mode in ([], ["--plain"]):
        outcome = maze.osmosis("eval", "show", "fern", "--row", "0", "--attempt", "0", *mode)
        assert outcome.status == 0 and not (set(hostile) - {"\t", "\n"}) & set(outcome.out)
