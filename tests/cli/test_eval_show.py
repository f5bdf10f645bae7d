"""`osmosis eval show`: conversations of runs of this machine, of a platform of ours and of the hosted service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from osmosis_ai.services.eval_runs import show as readers
from osmosis_ai.services.eval_runs import show as service
from osmosis_ai.viewer.source import SampleEntry
from tests.api.blob_server import serve
from tests.cli.eval_downloads import DownloadableRun
from tests.cli.eval_replies import DETAIL, OWN
from tests.cli.maze import Maze
from tests.evaluation.comparison.builders import write_journalled_run

DIGESTS = ["a" * 32, "b" * 32]
CALL = {"tool_call_id": "c1", "function_name": "multiply", "arguments": {"a": 2, "b": 3}}


def trajectory(text: str, **told: Any) -> bytes:
    steps = [
        {"source": "user", "message": "2 * 3?"},
        {
            "source": "agent",
            "message": "",
            "reasoning_content": "I multiply.",
            "tool_calls": [CALL],
            "observation": {"results": [{"source_call_id": "c1", "content": text}]},
        },
        {"source": "agent", "message": "#### 6"},
    ]
    return json.dumps({"steps": steps, "extra": {"osmosis": {"label": "6", **told}}}).encode()


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
    return [(each["row"], each["attempt"]) for each in outcome.json["data"]["samples"]]


def test_conversations_are_printed_without_what_a_terminal_obeys(maze: Maze) -> None:
    outcome = maze.osmosis("eval", "show", "fern", "--row", "0", "--attempt", "0", "--plain")
    assert outcome.status == 0
    assert outcome.out.splitlines() == [
        "row 0, attempt 0:",
        "user: 2 * 3?",
        "assistant: I multiply.",
        "assistant: multiply(a=2, b=3)",
        "tool: six (1 terminal sequence removed)",
        "assistant: #### 6",
        "grader: Nearly.",
        "grader: format: 1.000",
        "reward 1, the right answer being 6 (100 tokens · $0.0100 · 1.0s)",
    ]


def test_text_that_was_read_in_another_encoding_keeps_its_lines(maze: Maze) -> None:
    broken = "He said “no”, and ‛went‟ GÛTE".encode().decode("latin-1")
    said(maze, "fern", 0, 0, trajectory(broken))
    outcome = maze.osmosis("eval", "show", "fern", "--row", "0", "--attempt", "0", "--plain")
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("tool: ")]
    assert line.startswith("tool: He said â‹U+0080›‹U+009C›noâ‹U+0080›‹U+009D›, and ")
    assert line.endswith("TE") and "removed" not in outcome.out


def test_scripts_get_the_messages_and_what_came_of_them(maze: Maze) -> None:
    outcome = maze.osmosis("eval", "show", "fern", "--row", "0", "--limit", "1", "--json")
    data = outcome.json["data"]
    (sample,) = data["samples"]
    assert (data["run"], data["place"], data["has_more"]) == ("fern", "local", True)
    assert (sample["row"], sample["attempt"], sample["reward"], sample["passed"]) == (0, 0, 1.0, True)
    assert [each["role"] for each in sample["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert sample["messages"][2]["content"] == "\x1b[31msix\x1b]0;owned\x07"
    assert (sample["ground_truth"], sample["notes"], sample["parts"]) == ("6", "Nearly.", {"format": 1})


@pytest.mark.parametrize(
    ("arguments", "samples"),
    [
        ([], [(0, 0), (0, 1), (1, 0), (1, 1)]),
        (["--limit", "2"], [(0, 0), (0, 1)]),
        (["--attempt", "1"], [(0, 1), (1, 1)]),
        (["--passed"], [(0, 0)]),
        (["--failed"], [(0, 1), (1, 1)]),
        (["--unscored"], [(1, 0)]),
        (["--flaky"], [(0, 0), (0, 1)]),
        (["--search", "SEVEN"], [(0, 1)]),
        (["--search", "nearly"], [(0, 0)]),
        (["--search", "nowhere said"], []),
    ],
)
def test_one_asks_for_those_one_wants_to_see(
    maze: Maze, arguments: list[str], samples: list[tuple[int, int]]
) -> None:
    assert shown(maze, "fern", *arguments) == samples


def test_the_same_row_in_another_run_stands_beside_it_though_it_has_another_place_there(maze: Maze) -> None:
    outcome = maze.osmosis(
        "eval", "show", "fern", "--row", "0", "--attempt", "1", "--side-by-side", "moss", "--json"
    )
    (sample,) = outcome.json["data"]["samples"]
    assert (sample["run"], sample["beside"]["run"], sample["beside"]["row"]) == ("fern", "moss", 1)
    assert sample["beside"]["messages"][2]["content"] == "from moss"
    plain = maze.osmosis(
        "eval", "show", "fern", "--row", "0", "--attempt", "1", "--side-by-side", "moss", "--plain"
    )
    assert "fern, row 0, attempt 1:" in plain.out and "moss, row 1, attempt 0:" in plain.out


def test_two_conversations_stand_beside_each_other_where_there_is_room(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("eval", "show", "fern", "--row", "0", "--attempt", "1", "--side-by-side", "moss")
    for columns, beside in ((140, True), (80, False)):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = maze.osmosis(*arguments).out.splitlines()
        assert any("seven" in line and "from moss" in line for line in lines) is beside


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fern", "--row", "9"], "the run `fern` has no sample of row 9."),
        (["nosuch"], "no run `nosuch`"),
        (["local:nosuch"], "no run `nosuch`"),
    ],
)
def test_what_is_not_there_is_said_in_a_line(maze: Maze, arguments: list[str], sentence: str) -> None:
    maze.router.get(url__regex=r".*/api/cli/eval-runs.*").respond(404, json={"error": "no run `nosuch`"})
    outcome = maze.osmosis("eval", "show", *arguments)
    assert outcome.status == 1 and sentence in outcome.err and "Traceback" not in outcome.err


@pytest.mark.parametrize("second", ["--passed", "--flaky", "--unscored"])
def test_two_outcomes_at_once_are_a_wrong_command_line(maze: Maze, second: str) -> None:
    outcome = maze.osmosis("eval", "show", "fern", "--failed", second)
    assert (outcome.status, outcome.out) == (2, "") and "mutually exclusive" in outcome.err
    error = maze.osmosis("eval", "show", "fern", "--failed", second, "--json").error
    assert (error["code"], error["message"].startswith("--failed and --")) == ("VALIDATION", True)


NEAREST = "rows are numbered 0 to 1, attempts 0 to 1; the nearest, as ROW.ATTEMPT: 1.0, 1.1, 0.0"


def test_of_a_sample_that_is_not_there_the_nearest_are_named_as_on_its_page(maze: Maze) -> None:
    for row in ("9", "9" * 30):
        outcome = maze.osmosis("eval", "show", "fern", "--row", row, "--json")
        assert outcome.error["message"] == f"the run `fern` has no sample of row {row}."
        assert outcome.error["details"] == {"run": "fern", "samples": ["1.0", "1.1", "0.0"]}
    assert NEAREST in " ".join(maze.osmosis("eval", "show", "fern", "--row", "9").err.split())
    named = maze.osmosis("eval", "show", "fern", "--row", "0", "--attempt", "3", "--json").error
    assert named["message"] == "the run `fern` has no sample of row 0, attempt 3."
    assert named["details"]["samples"] == ["0.1", "0.0", "1.1"]


def test_a_broken_conversation_is_shown_as_far_as_it_can_be_read(maze: Maze) -> None:
    said(maze, "fern", 1, 1, trajectory("kept")[:-60])
    outcome = maze.osmosis("eval", "show", "fern", "--row", "1", "--plain")
    assert "note: The conversation was not kept" in outcome.out.replace(
        "the conversation", "The conversation"
    )
    assert "cut off" in outcome.out and "tool: kept" in outcome.out


def test_a_long_message_is_cut_for_people_and_whole_for_scripts(maze: Maze) -> None:
    said(maze, "fern", 0, 0, trajectory("x" * 20_000))
    one = ("eval", "show", "fern", "--limit", "1")
    assert "12,000 more characters, which --json has" in maze.osmosis(*one, "--plain").out
    assert maze.osmosis(*one, "--json").out.count("x") > 20_000


def test_a_search_reads_so_many_conversations_and_says_so(
    maze: Maze, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_SEARCHED", 1)
    monkeypatch.setattr(service, "_AT_ONCE", 1)
    outcome = maze.osmosis("eval", "show", "fern", "--search", "seven")
    assert "1 conversation was searched, not all" in outcome.out
    told = maze.osmosis("eval", "show", "fern", "--search", "seven", "--json").json["data"]["search"]
    assert told == {"conversations": 1, "without_conversation": 0, "too_large": 0, "complete": False}


def test_a_search_says_how_many_samples_it_could_not_look_into(maze: Maze) -> None:
    outcome = maze.osmosis("eval", "show", "fern", "--search", "seven")
    told = "2 of 4 samples have no conversation to read: of these, only previews and errors were searched."
    assert told in outcome.out
    whole = maze.osmosis("eval", "show", "fern", "--search", "seven", "--row", "0")
    assert "no conversation" not in whole.out
    told = maze.osmosis("eval", "show", "fern", "--search", "seven", "--json").json["data"]["search"]
    assert told == {"conversations": 2, "without_conversation": 2, "too_large": 0, "complete": True}
    said(maze, "fern", 1, 1, b" " * (33 << 20))
    outcome = maze.osmosis("eval", "show", "fern", "--search", "seven")
    assert "1 of 4 samples has no conversation to read" in outcome.out
    assert "Conversations that were not searched, each larger than 32 MiB: 1." in outcome.out
    told = maze.osmosis("eval", "show", "fern", "--search", "seven", "--json").json["data"]["search"]
    assert told == {"conversations": 2, "without_conversation": 1, "too_large": 1, "complete": False}


def test_of_a_conversation_that_is_too_large_the_run_s_own_file_is_named(maze: Maze) -> None:
    said(maze, "fern", 1, 1, b" " * (33 << 20))
    outcome = maze.osmosis("eval", "show", "fern", "--row", "1", "--attempt", "1", "--json")
    (problem,) = outcome.json["data"]["samples"][0]["problems"]
    told = "it is not read, the run's file `trajectories/row_1_run_1.json` has it."
    assert problem.endswith(told) and "download" not in problem
    assert (maze.workspace.evals_dir / "fern" / "trajectories/row_1_run_1.json").is_file()
    shown = maze.osmosis("eval", "show", "fern", "--row", "1", "--attempt", "1", "--plain").out
    assert told in " ".join(shown.split())


# -- platforms -----------------------------------------------------------------------------


@pytest.fixture
def stored(maze: Maze) -> Iterator[DownloadableRun]:
    """A run of a platform with two conversations, and the contract's list of samples."""
    with serve() as store:
        run = DownloadableRun(maze, store)
        listed = [
            {
                "row_index": 0,
                "run_index": 0,
                "status": "success",
                "reward": 1.0,
                "tokens": 5,
                "duration_ms": 9,
            },
            {"row_index": 0, "run_index": 1, "status": "failed", "duration_ms": 9, "error_type": "Timeout"},
            {"row_index": 1, "run_index": 0, "status": "success", "reward": 0.0, "duration_ms": 9},
        ]
        lines = b"".join(json.dumps(each).encode() + b"\n" for each in listed) + b"not JSON\n[]\n"
        run.holds(
            {
                "summary.jsonl": lines,
                "trajectories/row_0_run_0.json": trajectory("six"),
                "trajectories/row_1_run_0.json": trajectory("seven"),
            }
        )
        yield run


def test_a_run_of_the_hosted_service_is_read_by_its_list_of_files(stored: DownloadableRun) -> None:
    maze = stored.maze
    outcome = maze.osmosis("eval", "show", "platform:amber-otter-42", "--json")
    samples = outcome.json["data"]["samples"]
    assert [(each["row"], each["attempt"], each.get("passed")) for each in samples] == [
        (0, 0, True),
        (0, 1, None),
        (1, 0, False),
    ]
    assert samples[0]["messages"][2]["content"] == "six"
    assert samples[1]["problems"] == ["The platform has no conversation of it."]
    assert samples[1]["category"] == "Timeout"
    (problem,) = outcome.json["data"]["problems"]
    assert "2 lines of the platform's list of its samples can not be read" in problem
    assert shown(maze, "platform:amber-otter-42", "--search", "SEVEN") == [(1, 0)]
    assert shown(maze, "platform:amber-otter-42", "--row", "1") == [(1, 0)]
    assert stored.found() == {}, "nothing is left in the workspace"


def test_of_a_platform_s_conversation_that_is_too_large_the_command_that_fetches_it_is_named(
    stored: DownloadableRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LARGEST_CONVERSATION_BYTES", 100)
    outcome = stored.maze.osmosis("eval", "show", "platform:amber-otter-42", "--row", "1", "--json")
    (problem,) = outcome.json["data"]["samples"][0]["problems"]
    by_hand = "osmosis eval download amber-otter-42"
    assert problem.endswith(f"it is not read, `trajectories/row_1_run_0.json` of `{by_hand}` has it.")
    assert stored.maze.osmosis(*by_hand.split()[1:]).status == 0
    assert stored.found()["trajectories/row_1_run_0.json"] == trajectory("seven")


def test_of_a_platform_s_run_the_nearest_are_named_and_no_more_are_read_than_tell_them(
    stored: DownloadableRun,
) -> None:
    missing = stored.maze.osmosis("eval", "show", "platform:amber-otter-42", "--row", "4", "--json").error
    assert missing["message"] == "the run `amber-otter-42` has no sample of row 4."
    assert missing["details"]["samples"] == ["1.0", "0.0", "0.1"]
    run = object.__new__(readers.PlatformConversations)
    run.name, run._rows, run._n = "amber", 0, 0
    asked: list[int] = []

    def told(row: int | None, outcome: object) -> Iterator[SampleEntry]:
        for number in range(1, 1_000):
            asked.append(number)
            yield from (SampleEntry(number, attempt, "success") for attempt in range(2) if number != 5)

    run.samples = told  # type: ignore[method-assign]
    missing_here = run.no_sample(5, 1)
    assert missing_here.details["samples"] == ["4.1", "6.1", "4.0"] and len(asked) <= 8
    assert missing_here.hint == "which rows it has is not known"


def test_conversations_of_a_run_without_a_list_of_samples_are_shown_and_the_list_is_missed(
    stored: DownloadableRun,
) -> None:
    texts = {(10, 0): "ten", (2, 1): "two", (2, 0): "also two"}
    stored.holds(
        {f"trajectories/row_{row}_run_{run}.json": trajectory(said) for (row, run), said in texts.items()}
    )
    show = ("eval", "show", "platform:amber-otter-42")
    data = stored.maze.osmosis(*show, "--json").json["data"]
    found = [(each["row"], each["attempt"], each["messages"][2]["content"]) for each in data["samples"]]
    assert found == [(2, 0, "also two"), (2, 1, "two"), (10, 0, "ten")]
    assert "reward" not in data["samples"][0]
    assert "no list of its samples" in data["problems"][0]
    assert "no list of its samples" in " ".join(stored.maze.osmosis(*show, "--failed").out.split())


def test_a_list_of_samples_that_does_not_come_is_an_error_and_no_run_without_samples(
    stored: DownloadableRun,
) -> None:
    del stored.store.blobs["summary.jsonl"]
    outcome = stored.maze.osmosis("eval", "show", "platform:amber-otter-42")
    assert outcome.status == 1 and "could not be fetched" in outcome.err


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_conversations_are_fetched_than_are_shown(stored: DownloadableRun, limit: int) -> None:
    show = ("eval", "show", "platform:amber-otter-42", "--limit", str(limit), "--json")
    data = stored.maze.osmosis(*show).json["data"]
    assert (len(data["samples"]), data["has_more"]) == (limit, limit < 3)
    fetched = [path for path in stored.store.asked("GET") if path.startswith("trajectories/")]
    assert len(fetched) == {1: 1, 2: 1, 3: 2}[limit]  # the second attempt left none


def test_a_platform_of_ours_tells_its_samples_with_what_graders_noted(stored: DownloadableRun) -> None:
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
    (sample,) = maze.osmosis("eval", "show", "platform:amber-otter-42", "--json").json["data"]["samples"]
    assert (sample["notes"], sample["parts"], sample["source_row_index"]) == ("Almost.", {"format": 0.5}, 41)
    assert sample["messages"][2]["content"] == "seven"
    assert route.calls.last.request.url.params["details"] == "true"
    assert stored.manifest.calls.last.request.url.params["rows"] == "41"
    beside = maze.osmosis("eval", "show", "platform:amber-otter-42", "--side-by-side", "fern", "--json")
    assert beside.json["data"]["samples"][0]["beside"]["row"] == 0


def test_of_a_sample_that_a_retry_made_again_the_retry_s_conversation_is_shown(
    stored: DownloadableRun,
) -> None:
    maze, path = stored.maze, "trajectories/row_1_run_0.json"
    ours = {"X-Osmosis-Capabilities": "eval-samples"}

    def described(request: httpx.Request) -> httpx.Response:
        again = {**DETAIL, "eval_run": {**OWN, "id": "er_9", "name": "amber-otter-43"}}
        is_retry = request.url.path.endswith("/er_9")
        return httpx.Response(200, json=again if is_retry else DETAIL, headers=ours)

    maze.router.get(url__regex=r".*/api/cli/eval-runs/[^/]+$").mock(side_effect=described)
    told = {"attempt": 0, "status": "success", "reward": 0.0}
    samples = [{**told, "row": 0, "run_id": "er_8"}, {**told, "row": 1, "run_id": "er_9"}]
    maze.get("/eval-runs/er_8/samples").respond(json={"samples": samples}, headers=ours)
    stored.store.blobs["again"] = trajectory("eight")
    listed = {"path": path, "size": len(stored.store.blobs["again"])}
    maze.get("/eval-runs/er_9/samples/manifest").respond(json={"files": [listed], "totals": {"files": 1}})
    signed = {**listed, "url": stored.store.signed("again")}
    maze.post("/eval-runs/er_9/samples/download-urls").respond(json={"items": [signed], "expires_in": 900})
    show = ("eval", "show", "platform:amber-otter-42")
    first, again = maze.osmosis(*show, "--json").json["data"]["samples"]
    assert (first["messages"][2]["content"], again["messages"][2]["content"]) == ("six", "eight")
    assert shown(maze, "platform:amber-otter-42", "--search", "eight") == [(1, 0)]
    assert shown(maze, "platform:amber-otter-42", "--search", "seven") == []


RETRY = {**DETAIL, "eval_run": {**OWN, "id": "er_9", "name": "amber-otter-43"}}
MADE = {"row": 1, "attempt": 0, "status": "success", "reward": 0.0, "run_id": "er_9"}
ALONE = "`amber-otter-43` is a retry, and these are its samples alone"


def retry_of(stored: DownloadableRun, original: dict[str, Any]) -> respx.Route:
    """Let the platform have a retry, whose samples it tells alone when it is asked so."""
    ours = {"X-Osmosis-Capabilities": "eval-samples"}
    detail = {**RETRY, "retry_of": original}
    stored.maze.router.get(url__regex=r".*/api/cli/eval-runs/[^/]+$").respond(json=detail, headers=ours)
    stored.maze.get("/eval-runs/er_9/samples/manifest").respond(json={"files": [], "totals": {"files": 0}})

    def page(request: httpx.Request) -> httpx.Response:
        own = request.url.params.get("own") == "true"
        first = {**MADE, "row": 0, "run_id": "er_8"}
        told = {"samples": [MADE]} if own else {"samples": [first, MADE]}
        return httpx.Response(200, json=told, headers=ours)

    return stored.maze.get("/eval-runs/er_9/samples").mock(side_effect=page)


def test_of_a_retry_its_own_samples_are_shown_and_where_all_are(stored: DownloadableRun) -> None:
    retry_of(stored, {"id": "er_8", "name": "amber-otter-42", "status": "finished"})
    show = ("eval", "show", "platform:amber-otter-43")
    data = stored.maze.osmosis(*show, "--json").json["data"]
    assert [each["row"] for each in data["samples"]] == [1]
    assert data["extent"] == f"{ALONE}: `osmosis eval show platform:amber-otter-42` has all."
    printed = " ".join(stored.maze.osmosis(*show, "--failed").out.split())
    assert data["extent"] in printed
    missing = stored.maze.osmosis(*show, "--row", "0")
    assert missing.status == 1 and data["extent"] in " ".join(missing.err.split())


def test_of_a_retry_whose_first_run_is_gone_no_other_command_is_named(stored: DownloadableRun) -> None:
    retry_of(stored, {"id": "er_8", "name": "amber-otter-42"})
    data = stored.maze.osmosis("eval", "show", "platform:amber-otter-43", "--json").json["data"]
    assert data["extent"] == f"{ALONE}; the run that it is of is gone."


# -- any conversation ----------------------------------------------------------------------


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_any_conversation_is_printed_without_escapes(texts: list[str]) -> None:
    from rich.console import Console

    from osmosis_ai.cli.output.conversations import shown_run
    from osmosis_ai.cli.output.plain import lines_of
    from osmosis_ai.cli.output.terminal import print_result
    from osmosis_ai.evaluation.attempt_files import StoredConversation
    from osmosis_ai.evaluation.conversation import read_conversation
    from osmosis_ai.services.eval_runs.show import ShownConversation, ShownRun, WantedSamples
    from osmosis_ai.viewer.source import SampleDetail

    steps = [
        {"source": text, "message": text, "tool_calls": [{"function_name": text, "arguments": text}]}
        for text in texts
    ]
    conversation = read_conversation(json.dumps({"steps": steps}).encode())
    entry = SampleEntry(0, 0, "failed", error=texts[0], boundary=texts[-1])
    detail = SampleDetail(entry, {"notes": texts[0]}, ground_truth=texts)
    result = shown_run(
        ShownRun(
            "fern", "local", [ShownConversation("fern", detail, StoredConversation(b"{}"), conversation)]
        ),
        WantedSamples(),
    )
    stream = StringIO()
    print_result(Console(file=stream, width=80), result)
    printed = stream.getvalue() + "\n".join(lines_of(result))
    unsafe = {
        chr(code)
        for code in (*range(0x20), *range(0x7F, 0xA0), 0x200B, 0x202E, 0x2066)
        if chr(code) not in "\t\n"
    }
    assert not unsafe & set(printed)
    printed.encode()
