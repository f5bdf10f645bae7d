"""What a run keeps of its attempts: scores, judges, notes, previews and logs, limited and without secrets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.evaluation.run_log import RunLog
from osmosis_ai.redaction import Redactor
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.cli.conftest import fleet as fleet
from tests.cli.conftest import logging_as_it_was as logging_as_it_was
from tests.cli.eval_world import CONFIG, World
from tests.conftest import home_of_a_module
from tests.decisions.builders import write_journalled_run
from tests.evaluation.rollouts import agent_with, write_rollout
from tests.standin_model import Reply, StandInModel
from tests.workspace.builders import MINIMAL_EVAL

PREVIEW_CHARS = 160
SECRET = "canary-1234567890"
SCORES = {
    "scores": {"rewards:exact": 1.0, "agent": 0.5},
    "unscored": {"rewards:judge": f"RuntimeError: {SECRET} was refused"},
    "finish_reason": "max_turns",
}
NAMES = [f"function-{number}" for number in range(5000)]
LARGE = {
    "scores": dict.fromkeys(NAMES, 1.0),
    "unscored": dict.fromkeys(NAMES[:300], "花" * 2000),
    "finish_reason": "x" * 10**6,
}
ODD_NAMES = {
    "scores": {SECRET: 1.0, "\ud800": 0.5},
    "unscored": {f"{SECRET}\ud800": "why\ud800"},
    "finish_reason": "stop\ud800",
}
JUDGED = {
    "calls": 9,
    "tokens": 100,
    "cost_usd": 0.25,
    "judgements": [
        {"model": "openai/j", "score": 0.5, "explanation": f"{SECRET} is " + "x" * 9999},
        {"model": "openai/j", "error": "too slow", "other": 1},
    ]
    * 9,
}
NOTES = {"notes": f"{SECRET} \ud800 " + "x" * 1900, "parts": {SECRET: 1, "b": 0.5}}
INVALID_SCORES = [
    None,
    "x",
    {"scores": [1], "unscored": 3},
    {"scores": {"a": "1", "b": float("inf"), "c": float("nan"), "d": 10**400}, "unscored": {"c": 1}},
]
INVALID_JUDGES = [
    "mine",
    {"calls": 0, "tokens": 1},
    {"calls": -1, "tokens": 1},
    {"calls": 10**30, "tokens": 1},
    {"calls": True, "tokens": 1},
    {"calls": 1, "tokens": 10**30},
    {"calls": 1, "tokens": None},
    {"calls": 1, "tokens": 1, "cost_usd": -1.0},
    {"calls": 1, "tokens": 1, "judgements": [{"model": 3}]},
    {"calls": 1, "tokens": 1, "outside_scale": 2},
]


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


CONVERSATION = [
    said("system", "be brief"),
    said("user", "  two\n\ttimes   two? "),
    said("assistant", "four"),
    said("user", "sure?"),
    said("assistant", [{"type": "output_text", "text": "yes,"}, {"type": "text", "text": "four"}]),
    said("assistant", None),
    said("tool", "42"),
]
ODD_CONTENTS = [None, 3, {"text": "x"}, [3, {"type": "image"}], "", " \n", [{"text": None}]]
PLACES_OF_SECRET = [0, 150, 500, 4090, 4600]


def around(spaces: int) -> list[dict[str, Any]]:
    text = "x" + " " * spaces + SECRET + " and on " * 3000
    return [said("user", text), said("assistant", text)]


# What the agent says and the grader reports: messages, extra fields, and the error that the grader raises, if any.
Case = tuple[list[dict[str, Any]], dict[str, Any], str]
ANSWER = [said("assistant", "done")]
CASES: dict[str, Case] = {
    "scores": (ANSWER, {"agent_loop": SCORES}, ""),
    "long": (
        ANSWER,
        {"agent_loop": {"finish_reason": f"{SECRET} " * 999, "unscored": {"a": "x" * 9999}}},
        "",
    ),
    "scores, failed": (ANSWER, {"agent_loop": SCORES}, "no judge"),
    "large": (ANSWER, {"agent_loop": LARGE}, ""),
    "large, with notes": (ANSWER, {"agent_loop": LARGE, "grader_notes": {"notes": "y" * 2000}}, ""),
    "odd names": (ANSWER, {"agent_loop": ODD_NAMES}, ""),
    "odd error": (ANSWER, {}, "boom \ud800"),
    **{f"invalid scores {n}": (ANSWER, {"agent_loop": it}, "") for n, it in enumerate(INVALID_SCORES)},
    "judges": (ANSWER, {"judge_calls": JUDGED}, "broke"),
    **{f"invalid judges {n}": (ANSWER, {"judge_calls": it}, "") for n, it in enumerate(INVALID_JUDGES)},
    "notes": (ANSWER, {"grader_notes": NOTES}, ""),
    "conversation": (CONVERSATION, {}, ""),
    "answer": (ANSWER, {}, ""),
    "long message": ([said("user", "\ud800" + "x" * 500_000)], {}, ""),
    "exact message": ([said("user", "x" * PREVIEW_CHARS)], {}, ""),
    **{
        f"odd content {n}": ([said("user", it), said("user", "then"), {"role": it}], {}, "")
        for n, it in enumerate(ODD_CONTENTS)
    },
    **{f"secret at {place}": (around(place), {}, "") for place in PLACES_OF_SECRET},
}
REPORTS = """

class Says(Agent):
    async def run(self, ctx):
        case = CASES.get(ctx.prompt[-1]["content"])
        return case[0] if case else await super().run(ctx)


class Reports(Grader):
    async def grade(self, ctx):
        _, fields, error = CASES.get(ctx.label, ([], {}, ""))
        notes = fields.pop("grader_notes", {})
        ctx.sample.extra_fields.update(fields)
        if error:
            raise RuntimeError(error)
        ctx.set_reward(1.0, **notes)
"""
TOKENS = [2**31 - 1, 2**31, 10**12]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The journal of one run with an attempt for each case."""
    root = tmp_path_factory.mktemp("reports")
    prompts = [*CASES, *(f"tokens {count}" for count in TOKENS)]

    def count(body: dict[str, Any]) -> Reply:
        tokens = int(body["messages"][-1]["content"].removeprefix("tokens "))
        return Reply(usage={"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens})

    async def run() -> list[dict[str, Any]]:
        async with StandInModel() as model:
            world = World(root, model)
            cases = f"inf, nan = float('inf'), float('nan')\nCASES = {CASES!r}\n"
            source = cases + agent_with(REPORTS, workflow="Says", grader="Reports")
            write_rollout(world.workspace.rollouts_dir / "multiply", source)
            require(world, SEARCH_KEY=SECRET)
            rows = [{"user_prompt": prompt, "ground_truth": prompt} for prompt in prompts]
            data = "".join(json.dumps(row) + "\n" for row in rows)
            (world.workspace.data_dir / "multiply.jsonl").write_text(data)
            model.script(Reply())  # the preflight
            model.respond = count
            outcome = await world.run("--name", "reports")
            assert outcome.status == 0, outcome.err
            return journal(world, "reports")

    with home_of_a_module(root / "homes"):
        return {prompts[record["row_index"]]: record for record in asyncio.run(run())}


def require(world: World, **secrets: str) -> None:
    """Give the rollout secrets."""
    (world.workspace.root / CONFIG).write_text(MINIMAL_EVAL.replace("[]", json.dumps(list(secrets))))
    (world.workspace.root / ".env").write_text(
        "".join(f"{name}={value}\n" for name, value in secrets.items())
    )


def journal(world: World, name: str) -> list[dict[str, Any]]:
    events = world.workspace.evals_dir / name / "events.jsonl"
    return [json.loads(line) for line in events.read_text().splitlines()]


Records = dict[str, dict[str, Any]]


def test_no_secret_is_recorded(records: Records) -> None:
    assert "canary" not in json.dumps(records)


def test_scores_and_finish_reason(records: Records) -> None:
    record = records["scores"]
    assert record["scores"] == SCORES["scores"]
    assert record["unscored"] == {"rewards:judge": "RuntimeError: [REDACTED] was refused"}
    assert record["finish_reason"] == "max_turns"
    long = records["long"]
    assert (len(long["finish_reason"]), len(long["unscored"]["a"])) == (200, 2000)
    assert "scores" not in records["scores, failed"]


def test_record_size_is_limited(records: Records) -> None:
    record, noted = records["large"], records["large, with notes"]
    assert len(json.dumps(record, ensure_ascii=False).encode()) < 256 << 10
    assert list(record["scores"])[:2] == ["function-0", "function-1"]
    assert 5 < len(record["unscored"]) < 50
    left_out = len(NAMES) + 300 - len(record["scores"]) - len(record["unscored"])
    told = f"{left_out:,} scores or reasons are left out (limit: 64 KiB per attempt)."
    assert record["notes"] == told
    assert len(noted["notes"]) == 2000
    assert noted["notes"].startswith("yyy") and noted["notes"].endswith("y\n" + told)


@pytest.mark.parametrize("number", range(len(INVALID_SCORES)))
def test_invalid_scores_are_ignored(records: Records, number: int) -> None:
    assert not {"scores", "unscored", "finish_reason"} & records[f"invalid scores {number}"].keys()


def test_invented_names_are_cleaned(records: Records) -> None:
    record = records["odd names"]
    assert record["scores"] == {"[REDACTED]": 1.0, "?": 0.5}
    assert (record["unscored"], record["finish_reason"]) == ({"[REDACTED]?": "why?"}, "stop?")
    assert records["odd error"]["error"] == "boom ?"


@pytest.mark.parametrize("tokens", TOKENS)
def test_impossible_token_counts_are_unknown(records: Records, tokens: int) -> None:
    record = records[f"tokens {tokens}"]
    assert ("tokens" not in record) == (tokens >= 2**31) and record["model_calls"] == 1


def test_judge_calls(records: Records) -> None:
    record = records["judges"]
    assert (record["judge_calls"], record["judge_tokens"], record["judge_cost_usd"]) == (9, 100, 0.25)
    assert len(record["judgements"]) == 4
    first, second = record["judgements"][:2]
    assert (first["score"], len(first["explanation"])) == (0.5, 2000)
    assert second == {"model": "openai/j", "error": "too slow"}


@pytest.mark.parametrize("number", range(len(INVALID_JUDGES)))
def test_invalid_judge_calls_are_ignored(records: Records, number: int) -> None:
    assert not [key for key in records[f"invalid judges {number}"] if key.startswith("judge")]


def test_grader_notes(records: Records) -> None:
    assert sorted(records["notes"]["parts"].values()) == [0.5, 1.0] and records["notes"]["notes"]


def test_previews(records: Records) -> None:
    def previews(case: str) -> tuple[str | None, str | None]:
        return records[case].get("input"), records[case].get("output")

    assert previews("conversation") == ("two times two?", "yes, four")
    assert previews("answer") == ("answer", "done")  # the row's prompt, as the agent left none
    shown = records["long message"]["input"]
    assert len(shown) == PREVIEW_CHARS and shown.endswith("x…")
    assert previews("exact message") == ("x" * PREVIEW_CHARS, None)


@pytest.mark.parametrize("number", range(len(ODD_CONTENTS)))
def test_previews_skip_non_text(records: Records, number: int) -> None:
    assert records[f"odd content {number}"]["input"] == "then"


# Logs


BREAKS = """
import sys


class Breaks(AgentWorkflow):
    async def run(self, ctx):
        sys.stdout.buffer.write(b"key=" + os.environ["S0"].encode() + b"\\n\\xff\\xfe kept\\n")
        sys.stdout.flush()
        raise RuntimeError(f"{os.environ['S1']} and {os.environ['S0']}\\nand more")
"""
VALUES = ["tokens", "tokens-and-more", "true", "null", "1", "123456", '"kind"', "session ends", '{"complete"']


@pytest.mark.e2e
async def test_logs_are_redacted_and_readable(tmp_path: Path) -> None:
    async with StandInModel() as model:
        world = World(tmp_path, model)
        require(world, **{f"S{number}": value for number, value in enumerate(VALUES)})
        write_rollout(world.workspace.rollouts_dir / "multiply", agent_with(BREAKS, workflow="Breaks"))
        world.rows(["one"])
        outcome = await world.osmosis("run", CONFIG, "--yes", "--plain", "--name", "fern", "--verbose")
    directory = world.workspace.evals_dir / "fern"
    path, log = directory / "logs.txt", (directory / "logs.txt").read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert "WARNING [result] failed: [REDACTED] and [REDACTED] and more {" in log
    for shown in (log, outcome.err):
        assert "and-more" not in shown and "tokens" not in shown and "session ends" not in shown
    lines = log.splitlines()
    assert all(re.fullmatch(r"\S+Z [A-Z]+ \[\w+\] .* \{.*\}", line) for line in lines)
    facts = [json.loads(line[line.index(" {") :]) for line in lines]
    assert facts[-1] == {"complete": True, "dispatched": 1}
    assert {"row_index": 0, "run_index": 0, "boundary": "agent"}.items() <= facts[-2].items()
    assert (directory / "rollout-server.log").read_bytes().startswith(b"key=[REDACTED]\n\xff\xfe kept\n")


def test_late_log_line_does_not_reach_a_reused_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed descriptor is reused for the next file, so ``close`` waits for a write in progress."""
    log = RunLog(tmp_path / "logs.txt", Redactor())
    write, writing, go_on = os.write, threading.Event(), threading.Event()

    def write_late(descriptor: int, line: bytes) -> int:
        if b" late " in line:
            writing.set()
            assert go_on.wait(300)
        return write(descriptor, line)

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(os, "write", write_late)
        late = threads.submit(log.write, "run", "late")
        try:
            assert writing.wait(300)
            closing = threads.submit(log.close)
            # Where closing does not wait, it is over at once.
            wait([closing], timeout=0.2)
            other = (tmp_path / "other").open("wb")
        finally:
            go_on.set()
        late.result(300)
        closing.result(300)
    other.close()
    log.write("run", "too late")
    assert (tmp_path / "other").read_bytes() == b""
    assert [line for line in (tmp_path / "logs.txt").read_text().splitlines() if " late {}" in line]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        *(
            ({"inputs": inputs}, "does not contain valid rows")
            for inputs in (
                {"n": "four"},
                {"dataset": {}},
                {"dataset": {"selected_source_rows": "0-x"}},
                {"dataset": {"selected_source_rows": "0-99999999999"}},
            )
        ),
        ({"digests": [None]}, "row 0, attempt 0 has no 'row_digest'"),
    ],
)
def test_run_without_readable_rows(cli: Cli, tmp_path: Path, run: dict[str, Any], message: str) -> None:
    directory = write_journalled_run(tmp_path / "fox", [[1.0]], **run)
    other = write_journalled_run(tmp_path / "owl", [[1.0]])
    error = cli("eval", "compare", str(other), str(directory), "--json").error
    assert message in error["message"]
