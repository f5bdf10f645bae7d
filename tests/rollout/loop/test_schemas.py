"""What travels, the schemas of tools, and settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout import (
    ExecutionResult,
    RolloutClientSettings,
    RolloutCompleteRequest,
    RolloutSettings,
    RolloutStatus,
    configure,
    get_settings,
    reset_settings,
)
from osmosis_ai.rollout.core import schemas as s
from osmosis_ai.rollout.tools import tool_payloads

from .agents import request


@pytest.fixture(autouse=True)
def _fresh_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(s, "_metadata_limit", None)
    reset_settings()
    yield
    reset_settings()


def test_request_defaults_and_unknown_fields() -> None:
    made = request(rollout_id="x" * 256, new_field=1, api_key="secret")

    assert (made.max_turns, made.max_tokens_total) == (10, 8192)
    assert (made.metadata, made.idempotency_key) == ({}, None)
    assert "secret" not in repr(made)


def test_metadata_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_ROLLOUT_MAX_METADATA_SIZE_BYTES", "1024")
    with pytest.raises(ValidationError, match="exceeds maximum of 1024"):
        request(metadata={"a": "x" * 2000})
    configure(RolloutSettings(max_metadata_size_bytes=4096))
    assert request(metadata={"a": "x" * 2000}).metadata
    assert s.get_max_metadata_size_bytes() == 4096
    s.set_max_metadata_size_bytes(10)
    assert s.get_max_metadata_size_bytes() == 10
    with pytest.raises(ValidationError, match="exceeds maximum"):
        request(metadata={"a": "1234567890"})
    with pytest.raises(ValidationError, match="JSON-serializable"):
        request(metadata={"a": object()})
    with pytest.raises(ValueError, match="must be positive"):
        s.set_max_metadata_size_bytes(0)


def test_sources_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text(
        "OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES=7\nOSMOSIS_ROLLOUT_SERVER_MAX_CONCURRENT_ROLLOUTS=5\nOTHER=1\n"
    )
    monkeypatch.setenv("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "8")
    monkeypatch.setenv("osmosis_rollout_client_timeout_seconds", "12.5")

    found = get_settings()

    assert (found.client.max_retries, found.client.timeout_seconds) == (8, 12.5)
    assert (found.server.max_concurrent_rollouts, found.server.record_ttl_seconds) == (5, 3600)
    assert RolloutClientSettings(max_retries=1).max_retries == 1
    assert get_settings() is found
    reset_settings()
    assert get_settings() is not found


@pytest.mark.parametrize(
    ("env_file", "problem"),
    [
        (
            b"OSMOSIS_ROLLOUT_SERVER_RECORD_TTL_SECONDS=1",
            "OSMOSIS_ROLLOUT_SERVER_RECORD_TTL_SECONDS='1' cannot be used",
        ),
        (b"OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES=x", "OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES='x' cannot be used"),
        (b"OSMOSIS_ROLLOUT_MAX_METADATA_SIZE_BYTES=1", "OSMOSIS_ROLLOUT_MAX_METADATA_SIZE_BYTES='1' cannot"),
        (b"OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES=\xff", r"\.env' cannot be read: 'utf-8' codec"),
    ],
)
def test_invalid_settings(tmp_path: Path, env_file: bytes, problem: str) -> None:
    (tmp_path / ".env").write_bytes(env_file + b"\n")
    with pytest.raises(OsmosisError, match=problem):
        get_settings()


def test_a_property_keeps_every_json_schema_key() -> None:
    schema = {
        "type": ["array", "null"],
        "items": {"type": "object", "properties": {"x": {"type": "number", "minimum": 0}}},
        "default": None,
        "enum": [None, 1, "a"],
        "$comment": "kept",
    }
    either = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    parameters = {"properties": {"a": schema, "b": either}, "required": ["a"], "additionalProperties": False}
    as_schema = s.OpenAIFunctionToolSchema.model_validate(
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    )

    (sent,) = tool_payloads([as_schema])

    assert sent["function"]["parameters"] == {"type": "object", **parameters}
    assert "type" not in as_schema.model_dump()["function"]["parameters"]["properties"]["b"]


def test_statuses_of_both_protocols() -> None:
    assert s.RolloutResponse(rollout_id="r", status=RolloutStatus.COMPLETED).status == "COMPLETED"
    assert RolloutCompleteRequest(status=RolloutStatus.SUCCESS).status == "success"
    for loop_only in ("COMPLETED", "ERROR"):
        for body in (RolloutCompleteRequest, ExecutionResult):
            with pytest.raises(ValidationError, match="agent loop"):
                body(status=loop_only)
    with pytest.raises(ValidationError, match="COMPLETED or ERROR"):
        s.RolloutResponse(rollout_id="r", status=RolloutStatus.SUCCESS)


@pytest.mark.parametrize("rollout_id", ["", "   ", "\n", "r" * 257])
def test_completions_need_a_valid_rollout_id(rollout_id: str) -> None:
    with pytest.raises(ValidationError, match="rollout_id"):
        s.CompletionsRequest(rollout_id=rollout_id, messages=[])


def test_completions_defaults() -> None:
    completions = s.CompletionsRequest(messages=[], rollout_id="r")
    sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 512, "stop": None, "logprobs": True}
    assert {"model": "default", **sampling}.items() <= completions.model_dump().items()
    choice = s.CompletionsChoice(message={"role": "assistant"})
    answered = s.CompletionsResponse(id="r", created=1, choices=[choice])
    assert (answered.object, answered.usage) == ("chat.completion", None)
    assert (choice.index, choice.finish_reason) == (0, "stop")


def test_function_call_arguments() -> None:
    read = s.OpenAIFunctionCallSchema.from_openai_function_parsed_schema
    parsed = s.OpenAIFunctionParsedSchema

    call, failed = read(parsed(name="add", arguments='{"a": 1}'))
    assert (call.name, call.arguments, failed) == ("add", {"a": 1}, False)
    for bad in ("{", "[1]", "null"):
        call, failed = read(parsed(name="add", arguments=bad))
        assert (call.arguments, failed) == ({}, True)
    assert s.OpenAIFunctionToolCall(id="1", function=call).type == "function"


def test_tool_response() -> None:
    assert s.ToolResponse().is_empty() and not s.ToolResponse().is_text_only()
    assert s.ToolResponse(text="x").is_text_only()
    assert not s.ToolResponse(text="x", image=["i"]).is_text_only()
    with pytest.raises(ValidationError):
        s.ToolResponse(image="not a list")  # type: ignore[arg-type]
