"""A served agent over HTTP: the protocol as it is written down, and what nobody should send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .agents import ADD, Calculator, Does, Unready
from .trainer import Trainer, served

KEY = {"Authorization": "Bearer osm_rollout_k"}
TOLD_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "number", "description": "The first.", "enum": None},
                "b": {"type": "number", "description": None, "enum": None},
            },
            "required": ["a", "b"],
        },
        "strict": False,
    },
}


async def test_a_rollout_is_initiated_asks_its_model_and_completes_in_the_exact_words_of_the_protocol(
    trainer: Trainer, tmp_path: Path
) -> None:
    async with served(Calculator(), api_key="osm_rollout_k", debug_dir=tmp_path) as server:
        accepted = await server.post("/v1/rollout/init", json=trainer.init(), headers=KEY)
        assert (accepted.status_code, accepted.json()) == (202, {"rollout_id": "R1", "tools": [TOLD_TOOL]})
        (completion,) = await trainer.completed()
    (chat,) = trainer.chats
    assert chat == {
        "model": "default",
        "messages": [{"role": "user", "content": "What is 6 * 7?"}],
        "rollout_id": "R1",
        "temperature": 0.5,
        "top_p": 1.0,
        "max_tokens": 64,
        "stop": ["END"],
        "logprobs": True,
        "authorization": "Bearer CB",
    }
    metrics = completion.pop("metrics")
    assert completion == {
        "rollout_id": "R1",
        "status": "COMPLETED",
        "final_messages": [
            {"role": "user", "content": "What is 6 * 7?"},
            {"role": "assistant", "content": "#### 42"},
        ],
        "finish_reason": "stop",
        "reward": 1.0,
        "extra_fields": {},
        "authorization": "Bearer CB",
    }
    assert metrics.pop("total_latency_ms") >= metrics.pop("llm_latency_ms") > 0
    assert metrics == {
        "tool_latency_ms": 2.0,
        "num_llm_calls": 1,
        "num_tool_calls": 1,
        "prompt_tokens": 5,
        "response_tokens": 3,
        "max_context_tokens": 0,
    }
    event = json.loads((tmp_path / "R1.jsonl").read_text())
    assert event == {"event": "start", "rollout_id": "R1", "row": {"ground_truth": "42"}}


@pytest.mark.parametrize(
    ("key", "lets_in"),
    [
        (None, False),
        ("Bearer wrong", False),
        ("Bearer k\u00e9y".encode(), False),
        ("bearer osm_rollout_k", True),
        ("osm_rollout_k", True),
    ],
)
async def test_a_request_without_the_key_is_refused_before_its_body_is_read(key: Any, lets_in: bool) -> None:
    read = []

    async def body() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"{}"

    headers = {} if key is None else {"Authorization": key}
    async with served(Calculator(), api_key="osm_rollout_k") as server:
        reply = await server.post("/v1/rollout/init", content=body(), headers=headers)
        health = await server.get("/platform/health", headers=headers)
    assert (reply.status_code, bool(read), health.status_code) == (
        (422, True, 200) if lets_in else (401, False, 401)
    )
    if not lets_in:
        assert reply.json() == {"detail": "Invalid or missing API key"}


async def test_health_is_open_and_the_platform_s_needs_a_key_to_exist() -> None:
    told = {"status": "healthy", "agent_loop": "calculator", "active_rollouts": 0, "completed_rollouts": 0}
    async with served(Calculator()) as server:
        assert (await server.get("/health")).json() == told
        assert (await server.get("/platform/health")).status_code == 404
        schema = (await server.get("/openapi.json")).json()
    assert "calculator" in schema["info"]["title"]
    assert "/v1/rollout/init" in schema["paths"]


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout_id": "../x"},
        {"rollout_id": "a\\b"},
        {"rollout_id": ".."},
        {"rollout_id": "a\nb"},
        {"rollout_id": "a" * 257},
        {"rollout_id": "  "},
        {"server_url": "ftp://controller"},
        {"server_url": "file:///etc/passwd"},
        {"server_url": "http://controller/\r\nX-Other: y"},
        {"server_url": "http://controller/\0"},
        {"server_url": "http://controller:99999"},
        {"server_url": "http://" + "\u2603" * 300},
        {"server_url": "http://user:password@controller"},
        {"server_url": "http://controller/?path="},
        {"api_key": "k\r\nX-Other: y"},
        {"api_key": "schl\u00fcssel"},
        {"metadata": {"much": "m" * 1_100_000}},
        {"messages": None},
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_and_nothing_starts(
    trainer: Trainer, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Also weakness 1: no id leads a debug file out of its directory."""
    agent = Calculator()
    async with served(agent, debug_dir=tmp_path / "log") as server:
        reply = await server.post("/v1/rollout/init", json=trainer.init(**changes))
    assert reply.status_code == 422
    (problem,) = reply.json()["detail"]
    assert problem["loc"] == ["body", next(iter(changes))]
    assert (agent.asked_for_tools, list(tmp_path.rglob("*.jsonl"))) == (0, [])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"<html>", b'{"rollout_id":' * 5000])
async def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    async with served(Calculator()) as server:
        assert (await server.post("/v1/rollout/init", content=body)).status_code == 422


async def test_a_body_with_a_million_mistakes_is_told_the_first() -> None:
    body = b'{"rollout_id": "r", "server_url": "http://c", "completion_params": {}, "messages": [%s1]}'
    async with served(Calculator()) as server:
        reply = await server.post("/v1/rollout/init", content=body % (b"1," * 1_000_000))
    assert (reply.status_code, len(reply.json()["detail"])) == (422, 1)


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_of_50_mb_is_refused_once_it_is_known_to_be_too_large(declared: bool) -> None:
    sent = []

    async def body() -> AsyncIterator[bytes]:
        for _ in range(50):
            sent.append(1)
            yield b"x" * 1_000_000

    headers = {"Content-Length": "50000000"} if declared else {}
    async with served(Calculator()) as server:
        reply = await server.post("/v1/rollout/init", content=body(), headers=headers)
    assert reply.status_code == 413
    assert len(sent) == 0 if declared else len(sent) < 20


async def test_weakness_2_nothing_runs_when_the_tools_cannot_be_told_and_a_retry_runs_it_once(
    trainer: Trainer,
) -> None:
    agent = Unready()
    async with served(agent) as server:
        refused = await server.post("/v1/rollout/init", json=trainer.init())
        assert refused.status_code == 500
        assert "the tool server is away" in refused.json()["detail"]
        assert (agent.runs, (await server.get("/health")).json()["active_rollouts"]) == (0, 0)
        assert (await server.post("/v1/rollout/init", json=trainer.init())).status_code == 202
        await trainer.completed()
    assert (agent.runs, len(trainer.offers)) == (1, 1)


async def test_a_repeated_request_gets_the_first_one_s_answer_while_it_runs_and_after(
    trainer: Trainer,
) -> None:
    agent = Calculator()
    async with served(agent) as server:
        first = await server.post("/v1/rollout/init", json=trainer.init("R1", idempotency_key="once"))
        again = await server.post("/v1/rollout/init", json=trainer.init("R2", idempotency_key="once"))
        await trainer.completed()
        after = await server.post("/v1/rollout/init", json=trainer.init("R3", idempotency_key="once"))
        assert first.content == again.content == after.content
    assert (agent.asked_for_tools, agent.runs, len(trainer.offers)) == (1, 1, 1)


async def test_weakness_13_tools_that_are_valid_are_served_without_their_descriptions_too(
    trainer: Trainer,
) -> None:
    from osmosis_ai.rollout.loop.validation import validate_agent_loop

    bare = {"type": "function", "function": {"name": "look-up"}}

    class Bare(Calculator):
        def get_tools(self, request: Any) -> list[Any]:
            return [bare, ADD]

    assert validate_agent_loop(Bare()).valid
    async with served(Bare()) as server:
        accepted = await server.post("/v1/rollout/init", json=trainer.init())
        assert accepted.status_code == 202
        assert [tool["function"]["name"] for tool in accepted.json()["tools"]] == ["look-up", "add"]
        assert (await trainer.completed())[0]["status"] == "COMPLETED"


async def test_tools_that_would_end_the_process_refuse_their_rollout_and_nothing_else(
    trainer: Trainer,
) -> None:
    class Leaves(Calculator):
        def get_tools(self, request: Any) -> list[Any]:
            raise SystemExit(3)

    async with served(Leaves()) as server:
        assert (await server.post("/v1/rollout/init", json=trainer.init())).status_code == 500
        assert (await server.get("/health")).json()["active_rollouts"] == 0


class Mute(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (lambda ctx: 1 / 0, "division by zero"),
        (lambda ctx: ctx.error("no tools today"), "no tools today"),
        (lambda ctx: "done", "returned str"),
        (lambda ctx: ctx.complete([], reward=float("nan")), "no finite number"),
        (lambda ctx: ctx.complete([{"role": "user", "content": object()}]), "cannot be reported"),
        (lambda ctx: ctx.complete("all of it"), "cannot be reported"),
        (lambda ctx: exec("raise SystemExit(3)"), "sys.exit(3)"),
        (lambda ctx: _raise(Mute()), "Mute, whose text cannot be had (RuntimeError)"),
    ],
)
async def test_whatever_an_agent_does_its_rollout_is_reported_once(
    trainer: Trainer, told: Any, message: str
) -> None:
    async with served(Does(told)) as server:
        assert (await server.post("/v1/rollout/init", json=trainer.init())).status_code == 202
        (completion,) = await trainer.completed()
    assert (completion["status"], completion["finish_reason"]) == ("ERROR", "error")
    assert message in completion["error_message"]
    assert (completion["final_messages"], len(trainer.offers)) == ([], 1)
    assert completion["metrics"]["total_latency_ms"] > 0
