"""`osmosis test`: an agent loop tried on rows of a file, from any directory."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.outcome import Outcome
from tests.cli.terminal import Terminal, terminal
from tests.rubric.serving import serving
from tests.standin_model import Reply, StandInModel, error_reply
from tests.warm_osmosis import warm_osmosis

AGENT = """
import asyncio, time
from osmosis_ai.rollout import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "tried"
    def get_tools(self, request):
        what = request.messages[-1]["content"]
        if what == "tools raise":
            raise RuntimeError("no catalogue")
        if what == "tools none":
            return None
        function = {"name": "look-up", "description": "Look.", "parameters": {"properties": {}}}
        return [{"type": "function", "function": function}]
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        what = messages[-1]["content"]
        if what == "hang":
            await asyncio.Event().wait()
        if what == "block":
            print("blocking", flush=True)
            open("blocking", "w").close()
            while True:
                time.sleep(0.01)
        reply = await ctx.chat(messages, **ctx.request.completion_params)
        messages.append(reply.message)
        if what == "raise":
            raise ValueError("bad [red]luck")
        if what == "ctx.error":
            return ctx.error("no [bold]calculator")
        if what == "nothing":
            return None
        return ctx.complete(messages, reward=0.25)

agent_loop = Agent()
"""
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


class Loop:
    """A directory with an agent and rows, and a model that answers."""

    def __init__(self, cli: Cli, model: StandInModel) -> None:
        self._cli = cli
        self.model = model

    def rows(self, *questions: str) -> None:
        rows = [{"System_Prompt": "s", "user_prompt": question, "level": 1} for question in questions]
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def test(self, *arguments: str, module: str = "tried_agent:agent_loop", at: str | None = None) -> Outcome:
        where = ["--base-url", at or self.model.base_url, "--model", "org/name"]
        return self._cli("test", "-m", module, "-d", "rows.jsonl", *where, *arguments)


@pytest.fixture
def loop(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("tried_agent.py").write_text(AGENT)
    with serving(StandInModel(lambda _: Reply(usage=USAGE))) as model:
        found = Loop(cli, model)
        found.rows("a", "b", "c")
        yield found
    sys.modules.pop("tried_agent", None)


def results(path: str = "out/results.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found


def test_results_file(loop: Loop) -> None:
    outcome = loop.test(
        "-o", "out/results.json", "--temperature", "0.5", "--max-tokens", "9", "--offset", "1"
    )
    assert outcome.status == 0
    assert "[1/2] Row 1: OK" in outcome.err
    assert "2 of 2 rows passed" in outcome.out
    probe, *calls = (request.body for request in loop.model.requests)
    assert "tools" not in probe
    assert [call["model"] for call in calls] == ["org/name"] * 2
    assert [(call["temperature"], call["max_tokens"]) for call in calls] == [(0.5, 9)] * 2
    assert calls[0]["tools"][0]["function"]["name"] == "look-up"
    found = results()
    assert found["summary"].pop("total_duration_ms") > 0
    assert found["results"][0].pop("duration_ms") > 0
    assert found["summary"] == {"total": 2, "passed": 2, "failed": 0, "total_tokens": 14}
    assert found["results"][0] == {
        "row_index": 1,
        "success": True,
        "error": None,
        "token_usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "num_llm_calls": 1},
        "reward": 0.25,
        "finish_reason": "stop",
        "finish_reasons": {"stop": 1},
    }


def test_failed_rows(loop: Loop) -> None:
    loop.rows("raise", "ctx.error", "nothing", "tools raise", "tools none", "fine", "hang")
    outcome = loop.test("-o", "out/results.json", "--batch-size", "3", "--no-probe", "--limit", "6")
    assert outcome.status == 1
    rows = results()["results"]
    assert [row["success"] for row in rows] == [False] * 5 + [True]
    assert [row["token_usage"]["total_tokens"] for row in rows] == [7, 7, 7, 0, 0, 7]
    assert rows[0]["error"] == "bad [red]luck"
    assert rows[1]["error"] == "no [bold]calculator"
    said = outcome.err.splitlines()
    for place, words in enumerate(
        [
            "ValueError: bad [red]luck (tried_agent.py:",
            "no [bold]calculator",
            "run returned NoneType; it must return ctx.complete(...) or",
            "no catalogue",
            "Tool validation error: get_tools returned None",
            "OK",
        ]
    ):
        (line,) = (line for line in said if line.startswith(f"[{place + 1}/6] Row {place}: "))
        assert words in line
    assert "1 of 6 rows passed" in outcome.out
    hung = loop.test("--offset", "6", "--timeout", "0.05s", "--no-probe")
    assert hung.status == 1
    assert "Row 6: FAILED" in hung.err
    assert "the agent did not finish within 0.05 s." in hung.err


def test_unreported_tokens(loop: Loop) -> None:
    usages = iter([True, True, False, False])  # the first call is the probe
    loop.model.respond = lambda _: Reply(usage=next(usages) and USAGE)
    outcome = loop.test("--batch-size", "1", "--plain", "-o", "out/results.json")
    assert outcome.status == 0
    assert results()["summary"]["rows_without_tokens"] == 2
    assert ", 7 tokens)" in outcome.err
    assert outcome.err.count(", unknown tokens)") == 2
    assert "Total tokens\t7 (1 of 3 rows)" in outcome.out


def test_concurrent_rows_are_printed_in_order(loop: Loop) -> None:
    loop.rows(*(str(number) for number in range(6)))
    last_asked = asyncio.Event()

    def respond(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["content"] == "5":
            last_asked.set()
        return Reply(wait_for=last_asked)

    loop.model.respond = respond
    outcome = loop.test("--batch-size", "6", "--no-probe", "--plain")
    assert outcome.status == 0
    told = [line.partition(": ")[0] for line in outcome.err.splitlines() if line.startswith("[")]
    assert told == [f"[{number + 1}/6] Row {number}" for number in range(6)]


def test_blocking_agent_fails_only_its_row(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.rows("block", "fine")
    alarms: list[float] = []

    def ring_when_it_blocks() -> None:
        while not Path("blocking").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGALRM)

    with monkeypatch.context() as patch:
        # On a busy machine the alarm could ring before the agent blocks.
        patch.setattr(signal, "setitimer", lambda _which, seconds: alarms.append(seconds))
        ringing = threading.Thread(target=ring_when_it_blocks)
        ringing.start()
        outcome = loop.test("--timeout", "0.5s", "--no-probe", "--json", "--limit", "1")
        ringing.join()
    assert alarms[0] == 0.5 and alarms[-1] == 0
    assert outcome.status == 1
    rows = outcome.resource["results"]  # what the agent printed is not in it
    assert "blocked the event loop for 0.5 s" in rows[0]["error"]
    assert "blocking" in outcome.err
    assert loop.test("--no-probe", "--offset", "1").status == 0


def start_process(loop: Loop, *options: str) -> subprocess.Popen[str]:
    where = ("--base-url", loop.model.base_url, "--model", "m", "--no-probe", "-d", "rows.jsonl")
    command = [*warm_osmosis(), "test", "-m", "tried_agent:agent_loop", *where, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    assert any(text in line for line in process.stderr)


def test_ctrl_c_keeps_finished_rows(loop: Loop) -> None:
    never = asyncio.Event()
    loop.model.respond = lambda body: Reply(
        wait_for=never if body["messages"][-1]["content"] == "b" else None
    )
    process = start_process(loop, "-o", "kept.json")
    wait_for_line(process, "[1/3] Row 0: OK")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "1 of 1 rows passed, 2 not run." in out and "Traceback" not in err
    assert [row["row_index"] for row in results("kept.json")["results"]] == [0]


def test_second_ctrl_c_kills_a_blocking_agent(loop: Loop) -> None:
    loop.rows("block")
    process = start_process(loop)
    wait_for_line(process, "blocking")
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        select.select([], [], [], 0.05)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err.splitlines()[-1]) == (130, "Error: Interrupted.")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--batch-size", "0"], "--batch-size must be >= 1."),
        (["--row", "0"], "--row needs --interactive."),
        (["-i", "--batch-size", "2"], "--interactive runs one row at a time"),
        (["--offset", "9"], "No rows to test: rows.jsonl has 3, and --offset is 9."),
        (["-o", "."], "is a directory"),
        (["-o", "rows.jsonl/x/results.json"], "Results file cannot be written"),
        (["-m", "tried_agent:asyncio"], "RolloutAgentLoop"),
        (["--base-url", "localhost:1"], "is not an http(s) address"),
        (["--base-url", "http://127.0.0.1:1/v1"], "could not be reached"),
    ],
)
def test_invalid_arguments(loop: Loop, arguments: list[str], said: str) -> None:
    outcome = loop.test(*arguments)
    assert (outcome.status, outcome.out) == (1, "")
    (line,) = (line for line in outcome.err.splitlines() if line.startswith("Error: "))
    assert said in line
    assert "Traceback" not in outcome.err
    assert loop.model.calls == 0


@pytest.mark.parametrize(
    "refusal, said",
    [
        (error_reply(401, "Incorrect API key"), "Incorrect API key"),
        (error_reply(404, "the model `org/name` does not exist"), "does not exist"),
    ],
)
def test_failing_probe(loop: Loop, refusal: Reply, said: str) -> None:
    loop.model.respond = lambda _: refusal
    outcome = loop.test("-o", "out/results.json")
    assert outcome.status == 1
    assert said in outcome.err
    assert "Row 0" not in outcome.err
    assert loop.model.calls == 1
    assert not Path("out/results.json").exists()
    unprobed = loop.test("--no-probe")
    assert "[1/3] Row 0: FAILED" in unprobed.err


STEP_PROMPT = "[Enter] next, [c]ontinue, [m]essages, [t]ools, [r]ow N, [q]uit, [?] help > "
RESULT_PROMPT = "[m]essages, [r]ow N, [q]uit or [Enter] > "
CHOOSE = "Select a row to test [1-2] or 'q' to quit: "
STEPPED_AGENT = """
from osmosis_ai.rollout import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "stepped"
    def get_tools(self, request):
        return [{"type": "function", "function": {"name": "look-up", "description": "Look."}}]
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for turn in range(3):
            try:
                reply = await ctx.chat(messages)
            except Exception as error:
                return ctx.error(f"swallowed {error}")
            messages += [reply.message, {"role": "user", "content": f"go on {turn}"}]
        return ctx.complete(messages, reward=0.75)
"""


@contextmanager
def session(model: StandInModel, *arguments: str) -> Iterator[Terminal]:
    Path("stepped_agent.py").write_text(STEPPED_AGENT)
    rows = [{"system_prompt": "s", "user_prompt": f"question {number} [/b]"} for number in range(4)]
    Path("rows.json").write_text(json.dumps(rows))
    words = ["test", "-i", "-m", "stepped_agent:Agent", "-d", "rows.json", "--offset", "1", "--limit", "2"]
    at = ("--base-url", model.base_url, "--model", "m")
    program = (sys.executable, "-m", "osmosis_ai")
    with terminal(
        *words, *at, *arguments, program=program, controls=True, COLUMNS="100", TERM="dumb"
    ) as screen:
        yield screen


def answer(screen: Terminal, keys: str, until: str) -> str:
    """Type keys and Enter; return what shows up to ``until``."""
    screen.type(f"{keys}\n")
    return screen.until(until)


@pytest.mark.e2e
def test_interactive_keys() -> None:
    replies = iter(range(1, 100))
    with (
        serving(StandInModel(lambda _: Reply(content=f"reply [red]{next(replies)}"))) as model,
        session(model, "-o", "out.json", "--no-probe", "--row", "7") as screen,
    ):
        assert "Row 7 is out of range [1-2]." in screen.until(CHOOSE)
        assert "run the last row again" in answer(screen, "what?", CHOOSE)
        first = answer(screen, "1", STEP_PROMPT)
        assert "question 1 [/b]" in first
        assert "reply [red]1" in first
        assert "look-up: Look." in answer(screen, "t", STEP_PROMPT)
        assert "Ctrl-D" in answer(screen, "?", STEP_PROMPT)
        assert "reply [red]2" in answer(screen, "", STEP_PROMPT)
        messages = answer(screen, "m", STEP_PROMPT)
        assert all(word in messages for word in ("question 1", "reply [red]1", "go on 0", "reply [red]2"))
        assert "reply [red]3" in answer(screen, "n", STEP_PROMPT)
        result = answer(screen, "next", RESULT_PROMPT)
        assert all(word in result for word in ("Status: OK", "Reward: 0.75", "Finish reason: stop"))
        assert "go on 1" in answer(screen, "m", RESULT_PROMPT)

        assert "question 2" in answer(screen, "row 2", STEP_PROMPT)
        assert "Status: OK" in answer(screen, "c", RESULT_PROMPT)
        answer(screen, "", CHOOSE)

        answer(screen, "row 1", STEP_PROMPT)
        assert "Aborted by user." in answer(screen, "q", CHOOSE)  # whatever the agent catches
        assert "question 1" in answer(screen, "r", STEP_PROMPT)
        answer(screen, "q", CHOOSE)
        screen.type("\x04")
        assert "Results: " in screen.until("out.json\n")
        assert screen.process.wait(120) == 0
    results = json.loads(Path("out.json").read_text())["results"]
    facts: list[Any] = [(row["row_index"], row["success"], row["error"], row["reward"]) for row in results]
    assert facts == [(1, False, "Aborted by user", None), (2, True, None, 0.75)]


@pytest.mark.e2e
def test_ctrl_c_in_interactive_mode() -> None:
    with serving(StandInModel()) as model, session(model, "--row", "1") as screen:
        screen.until(STEP_PROMPT)
        ctrl_c(screen, "0 of 1 rows passed.", status=0)
    with serving(StandInModel(latency_s=300)) as model, session(model) as screen:
        wait_for_call(model)  # the probe, before any prompt
        ctrl_c(screen, "Interrupted", status=130)
    with serving(StandInModel(latency_s=300)) as model, session(model, "--no-probe", "--row", "1") as screen:
        screen.until("question 1")
        wait_for_call(model)
        ctrl_c(screen, "0 of 1 rows passed.", status=0)


def wait_for_call(model: StandInModel) -> None:
    while not model.calls:
        select.select([], [], [], 0.01)


def ctrl_c(screen: Terminal, last: str, *, status: int) -> None:
    screen.type("\x03")
    assert "Traceback" not in screen.until(last)
    assert screen.process.wait(120) == status
