"""What travels, the schemas of tools, and settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from osmosis_ai.errors import OsmosisError
from osmosis_ai.rollout import config as settings_module
from osmosis_ai.rollout.config import (
    RolloutClientSettings,
    RolloutServerSettings,
    RolloutSettings,
    configure,
    get_settings,
    reset_settings,
)
from osmosis_ai.rollout.core import schemas as s
from osmosis_ai.rollout.tools import InvalidToolError, normalize_tools, tool_payloads
from osmosis_ai.rollout.types import ExecutionResult, RolloutCompleteRequest, RolloutStatus

from .agents import request


@pytest.fixture(autouse=True)
def _fresh_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(s, "_metadata_limit", None)
    reset_settings()
    yield
    reset_settings()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rollout_id": ""}, "too_short"),
        ({"rollout_id": "  "}, "cannot be empty or whitespace"),
        ({"rollout_id": "x" * 257}, "string_too_long"),
        ({"server_url": "ftp://x"}, "http"),
        ({"server_url": "http://"}, "host"),
        ({"metadata": {"a": object()}}, "JSON-serializable"),
        ({"messages": None}, "list"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        request(**given)


def test_a_request_has_the_documented_defaults_and_ignores_what_it_does_not_know() -> None:
    made = request(rollout_id="x" * 256, new_field=1, api_key="secret")

    assert (made.max_turns, made.max_tokens_total, made.metadata, made.idempotency_key) == (
        10,
        8192,
        {},
        None,
    )
    assert "secret" not in repr(made)


def test_the_metadata_limit_is_the_one_that_was_set() -> None:
    s.set_max_metadata_size_bytes(10)
    assert s.get_max_metadata_size_bytes() == 10
    with pytest.raises(ValidationError, match="exceeds maximum"):
        request(metadata={"a": "1234567890"})
    with pytest.raises(ValueError, match="must be positive"):
        s.set_max_metadata_size_bytes(0)


def test_the_metadata_limit_of_the_settings_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_ROLLOUT_MAX_METADATA_SIZE_BYTES", "1024")
    reset_settings()
    with pytest.raises(ValidationError, match="exceeds maximum of 1024"):
        request(metadata={"a": "x" * 2000})
    configure(RolloutSettings(max_metadata_size_bytes=4096))
    assert request(metadata={"a": "x" * 2000}).metadata
    assert s.get_max_metadata_size_bytes() == 4096


def test_settings_come_from_arguments_the_environment_the_dotenv_file_and_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    ("model", "field", "low", "high"),
    [
        (RolloutClientSettings, "timeout_seconds", 1, 3600),
        (RolloutClientSettings, "max_retries", 0, 10),
        (RolloutClientSettings, "complete_rollout_retries", 0, 10),
        (RolloutClientSettings, "retry_base_delay", 0.1, 60),
        (RolloutClientSettings, "retry_max_delay", 1, 300),
        (RolloutClientSettings, "max_connections", 1, 1000),
        (RolloutClientSettings, "max_keepalive_connections", 1, 100),
        (RolloutServerSettings, "max_concurrent_rollouts", 1, 10_000),
        (RolloutServerSettings, "max_queued_rollouts", 0, 100_000),
        (RolloutServerSettings, "record_ttl_seconds", 60, 86_400),
        (RolloutServerSettings, "cleanup_interval_seconds", 10, 3600),
        (RolloutServerSettings, "request_timeout_seconds", 10, 3600),
        (RolloutServerSettings, "registration_readiness_timeout_seconds", 1, 60),
        (RolloutServerSettings, "registration_readiness_poll_interval_seconds", 0.05, 5),
        (RolloutServerSettings, "registration_shutdown_timeout_seconds", 1, 300),
        (RolloutSettings, "max_metadata_size_bytes", 1024, 104_857_600),
    ],
)
def test_each_setting_has_its_range(model: Any, field: str, low: float, high: float) -> None:
    assert (getattr(model(**{field: low}), field), getattr(model(**{field: high}), field)) == (low, high)
    for outside in (low - 1, high + 1):
        with pytest.raises(ValidationError):
            model(**{field: outside})


def test_a_variable_out_of_range_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_RECORD_TTL_SECONDS", "1")
    with pytest.raises(OsmosisError, match="OSMOSIS_ROLLOUT_SERVER_RECORD_TTL_SECONDS='1' cannot be used"):
        settings_module.get_settings()


def test_a_dotenv_file_that_is_no_text_is_said_to_be_the_trouble(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES=\xff\n")
    with pytest.raises(OsmosisError, match=r"\.env` cannot be read: 'utf-8' codec"):
        settings_module.get_settings()


def test_a_property_keeps_every_key_of_json_schema() -> None:
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


def test_weakness_13_a_dict_tool_without_description_can_be_served_and_sent() -> None:
    tool = {"type": "function", "function": {"name": "get-time", "parameters": {"properties": {}}}}

    (served,) = normalize_tools([tool])

    assert (served.function.description, served.function.parameters.type) == ("", "object")
    assert tool_payloads([tool]) == [tool]
    with pytest.raises(InvalidToolError, match=r"tools\[1\]: missing 'function'"):
        normalize_tools([tool, {"type": "function"}])
    with pytest.raises(InvalidToolError, match=r"tools\[0\].function.parameters.properties"):
        normalize_tools([{"type": "function", "function": {"name": "f", "parameters": {"properties": 3}}}])


def test_each_protocol_refuses_the_statuses_of_the_other() -> None:
    assert s.RolloutResponse(rollout_id="r", status=RolloutStatus.COMPLETED).status == "COMPLETED"
    assert RolloutCompleteRequest(status=RolloutStatus.SUCCESS).status == "success"
    for loop_only in ("COMPLETED", "ERROR"):
        for body in (RolloutCompleteRequest, ExecutionResult):
            with pytest.raises(ValidationError, match="agent loop"):
                body(status=loop_only)
    with pytest.raises(ValidationError, match="COMPLETED or ERROR"):
        s.RolloutResponse(rollout_id="r", status=RolloutStatus.SUCCESS)


@pytest.mark.parametrize("rollout_id", ["", "   ", "\n", "r" * 257])
def test_completions_name_their_rollout(rollout_id: str) -> None:
    with pytest.raises(ValidationError, match="rollout_id"):
        s.CompletionsRequest(rollout_id=rollout_id, messages=[])


def test_completions_have_the_documented_defaults() -> None:
    asked = s.CompletionsRequest(messages=[], rollout_id="r")
    assert (asked.model, asked.temperature, asked.top_p, asked.max_tokens) == ("default", 1.0, 1.0, 512)
    assert (asked.stop, asked.logprobs) == (None, True)
    choice = s.CompletionsChoice(message={"role": "assistant"})
    answered = s.CompletionsResponse(id="r", created=1, choices=[choice])
    assert (answered.object, answered.usage, choice.index, choice.finish_reason) == (
        "chat.completion",
        None,
        0,
        "stop",
    )


def test_calls_are_read_and_bad_arguments_are_told() -> None:
    read = s.OpenAIFunctionCallSchema.from_openai_function_parsed_schema
    parsed = s.OpenAIFunctionParsedSchema

    call, failed = read(parsed(name="add", arguments='{"a": 1}'))
    assert (call.name, call.arguments, failed) == ("add", {"a": 1}, False)
    for bad in ("{", "[1]", "null"):
        call, failed = read(parsed(name="add", arguments=bad))
        assert (call.arguments, failed) == ({}, True)
    assert s.OpenAIFunctionToolCall(id="1", function=call).type == "function"


def test_a_tools_response_tells_what_is_in_it() -> None:
    assert s.ToolResponse().is_empty() and not s.ToolResponse().is_text_only()
    assert s.ToolResponse(text="x").is_text_only()
    assert not s.ToolResponse(text="x", image=["i"]).is_text_only()
    with pytest.raises(ValidationError):
        s.ToolResponse(image="not a list")  # type: ignore[arg-type]
