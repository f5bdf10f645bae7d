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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Outcome
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


def test_rows_are_run_and_the_documented_results_written(loop: Loop) -> None:
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


def test_failed_rows_say_why_as_it_is_and_count_their_tokens(loop: Loop) -> None:
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
            "run returned NoneType; it must return what ctx.complete",
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
    assert "the agent did not end within 0.05 s." in hung.err


def test_tokens_that_the_model_does_not_report_are_unknown(loop: Loop) -> None:
    usages = iter([True, True, False, False])  # the first call is the probe
    loop.model.respond = lambda _: Reply(usage=next(usages) and USAGE)
    outcome = loop.test("--batch-size", "1", "--plain", "-o", "out/results.json")
    assert outcome.status == 0
    assert results()["summary"]["rows_without_tokens"] == 2
    assert ", 7 tokens)" in outcome.err
    assert outcome.err.count(", unknown tokens)") == 2
    assert "Total tokens\t7 (1 of 3 rows)" in outcome.out


def test_rows_with_truncated_and_filtered_replies_are_counted(loop: Loop) -> None:
    reasons = iter(["length", "content_filter", "length", "stop"])
    loop.model.respond = lambda _: Reply(finish_reason=next(reasons))
    outcome = loop.test("--no-probe", "--plain", "-o", "out/results.json")
    assert outcome.status == 0
    assert "tokens, truncated)" in outcome.err and "tokens, filtered)" in outcome.err
    assert "Rows with a filtered reply\t1\nRows with a truncated reply\t2" in outcome.out
    counted = [row["finish_reasons"] for row in results()["results"]]
    assert counted == [{"length": 1}, {"content_filter": 1}, {"length": 1}]


def test_rows_go_on_beside_each_other_and_are_told_in_order(loop: Loop) -> None:
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


def test_an_agent_that_blocks_the_event_loop_fails_its_row_alone(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    rows = json.loads(outcome.out)["resource"]["results"]  # what the agent printed is not in it
    assert "blocked the event loop for 0.5 s" in rows[0]["error"]
    assert "blocking" in outcome.err
    assert loop.test("--no-probe", "--offset", "1").status == 0


def test_no_row_pays_for_what_is_imported_of_ours(loop: Loop) -> None:
    loop.rows("one")
    Path("bare_agent.py").write_text(
        "import sys\n"
        "from osmosis_ai.rollout.loop.agent import RolloutAgentLoop\n"
        "class Agent(RolloutAgentLoop):\n"
        "    name = 'bare'\n"
        "    def get_tools(self, request):\n"
        "        return []\n"
        "    async def run(self, ctx):\n"
        "        await ctx.chat(ctx.request.messages)\n"
        "        return ctx.complete([])\n"
    )
    watched = (
        "import sys\n"
        "from osmosis_ai.cli.agent_loops.screens import LiveRows\n"
        "from osmosis_ai.cli.main import main\n"
        "def started(self, interrupt): self.before = set(sys.modules)\n"
        "def ended(self): print(sorted(set(sys.modules) - self.before), file=sys.stderr)\n"
        "LiveRows.started, LiveRows.ended = started, ended\n"
        "main(sys.argv[1:])\n"
    )
    words = [
        "test",
        "-m",
        "bare_agent:Agent",
        "-d",
        "rows.jsonl",
        "--base-url",
        loop.model.base_url,
        "--model",
        "m",
    ]
    ran = subprocess.run(
        [sys.executable, "-c", watched, *words, "--plain"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert "1 of 1 rows passed." in ran.stdout, ran.stderr
    assert "'osmosis_ai" not in ran.stderr


def test_ctrl_c_keeps_the_rows_that_had_ended(loop: Loop) -> None:
    never = asyncio.Event()
    loop.model.respond = lambda body: Reply(
        wait_for=never if body["messages"][-1]["content"] == "b" else None
    )
    words = ["test", "-m", "tried_agent:agent_loop", "-d", "rows.jsonl", "--no-probe", "-o", "kept.json"]
    process = subprocess.Popen(
        [*warm_osmosis(), *words, "--base-url", loop.model.base_url, "--model", "m"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any("[1/3] Row 0: OK" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "1 of 1 rows passed, 2 not run." in out
    assert "Traceback" not in err
    assert [row["row_index"] for row in results("kept.json")["results"]] == [0]


def test_a_second_ctrl_c_ends_the_process_though_the_agent_blocks_it(loop: Loop) -> None:
    loop.rows("block")
    words = ["test", "-m", "tried_agent:agent_loop", "-d", "rows.jsonl", "--no-probe"]
    process = subprocess.Popen(
        [*warm_osmosis(), *words, "--base-url", loop.model.base_url, "--model", "m"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any("blocking" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        select.select([], [], [], 0.05)
    assert process.stderr.read().splitlines()[-1] == "Error: Interrupted."
    assert process.returncode == 1


def test_json_is_one_document_and_quiet_says_nothing(loop: Loop) -> None:
    loop.rows("a", "raise")
    outcome = loop.test("--json", "--no-probe")
    document = json.loads(outcome.out)
    assert outcome.status == 1
    assert (document["status"], document["resource"]["summary"]["failed"]) == ("failed", 1)
    assert loop.test("--quiet", "--no-probe") == Outcome(1, "", "")
    assert loop.test("--quiet", "--no-probe", "--limit", "1") == Outcome(0, "", "")


def test_debugging_writes_events_below_the_current_directory(loop: Loop) -> None:
    Path("tried_agent.py").write_text(
        AGENT.replace(
            '        if what == "hang":',
            '        ctx.log_event("asked", n=1)\n'
            '        __import__("logging").getLogger("mine").debug("thinking of [b]")\n'
            '        if what == "hang":',
        )
    )
    outcome = loop.test("--debug", "--limit", "1")
    assert outcome.status == 0
    assert "DEBUG mine: thinking of [b]" in outcome.err
    assert "asyncio" not in outcome.err
    assert "thinking" not in loop.test("--limit", "1", "--no-probe").err
    (event,) = Path("test_debug/test-0.jsonl").read_text().splitlines()
    assert json.loads(event)["event"] == "asked"
    assert Path("test_debug/.gitignore").read_text() == "*\n"  # Git lists nothing of it


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--batch-size", "0"], "--batch-size must be >= 1."),
        (["--max-turns", "0"], "--max-turns must be >= 1."),
        (["--limit", "0"], "--limit must be >= 1."),
        (["--offset", "-1"], "--offset must be >= 0."),
        (["--row", "0"], "--row needs --interactive."),
        (["-i", "--batch-size", "2"], "--interactive runs one row at a time"),
        (["--offset", "9"], "No rows to test: rows.jsonl has 3, and `--offset` is 9."),
        (["-o", "."], "is a directory"),
        (["-o", "rows.jsonl/x/results.json"], "cannot write `--output"),
        (["-d", "missing.jsonl"], "missing.jsonl"),
        (["-d", "tried_agent.py"], "Unsupported file format"),
        (["-m", "tried_agent"], "module:attribute"),
        (["-m", "no_such_module:agent_loop"], "no_such_module"),
        (["-m", "tried_agent:agent_lop"], "agent_lop"),
        (["-m", "tried_agent:asyncio"], "RolloutAgentLoop"),
        (["--base-url", "localhost:1"], "is not an http(s) address"),
        (["--base-url", "http://127.0.0.1:1/v1"], "could not be reached"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_any_row(
    loop: Loop, arguments: list[str], said: str
) -> None:
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
def test_a_model_that_cannot_be_called_is_found_by_one_probe(loop: Loop, refusal: Reply, said: str) -> None:
    loop.model.respond = lambda _: refusal
    outcome = loop.test("-o", "out/results.json")
    assert outcome.status == 1
    assert said in outcome.err
    assert "Row 0" not in outcome.err
    assert loop.model.calls == 1
    assert not Path("out/results.json").exists()
    unprobed = loop.test("--no-probe")
    assert "[1/3] Row 0: FAILED" in unprobed.err


def test_a_bad_row_is_found_before_the_model_is_asked(loop: Loop) -> None:
    with Path("rows.jsonl").open("a") as file:
        file.write(json.dumps({"system_prompt": "s", "user_prompt": " "}) + "\n")
    outcome = loop.test()
    assert outcome.status == 1
    assert "Row 3: 'user_prompt' cannot be empty." in outcome.err
    assert loop.model.calls == 0
    assert loop.test("--limit", "3").status == 0


def test_interactive_needs_a_terminal(loop: Loop) -> None:
    outcome = loop.test("-i")
    assert outcome.status == 1
    assert "it needs a terminal" in outcome.err


def test_an_interrupted_test_keeps_what_had_ended() -> None:
    from osmosis_ai.services.agent_loops import (
        AgentTestOutcome,
        AgentTestRequest,
        prepare_agent_test,
        run_agent_test,
    )

    class StopsAfterTwo:
        def started(self, interrupt: Callable[[], None]) -> None:
            self.interrupt = interrupt

        def row_ended(self, number: int, total: int, result: object) -> None:
            if number == 2:
                self.interrupt()

        def ended(self) -> None:
            pass

    async def interrupted() -> AgentTestOutcome:
        Path("stops_agent.py").write_text(AGENT)
        rows = [{"system_prompt": "s", "user_prompt": str(number)} for number in range(5)]
        Path("rows.json").write_text(json.dumps(rows))
        async with StandInModel() as model:
            request = AgentTestRequest(
                "stops_agent:Agent", Path("rows.json"), base_url=model.base_url, output=Path("out.json")
            )
            return await run_agent_test(prepare_agent_test(request), StopsAfterTwo())

    outcome = asyncio.run(interrupted())
    assert (len(outcome.rows), outcome.pending) == (2, 3)
    assert results("out.json")["summary"]["total"] == 2
