from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.inference.protocol import OpenAIError, parse_request
from tests.inference.conftest import body, multiply_tool, question


def refusal(request: Any) -> dict[str, Any]:
    with pytest.raises(OpenAIError) as refused:
        parse_request(request)
    assert refused.value.status == 400
    error: dict[str, Any] = refused.value.body()["error"]
    assert error["type"] == "invalid_request_error"
    return error


def test_the_whole_of_what_is_supported_is_accepted() -> None:
    request = parse_request(
        body(
            temperature=0,
            top_p=1,
            seed=-5,
            n=2,
            max_tokens=9,
            max_completion_tokens=7,
            stop="x",
            logprobs=True,
            top_logprobs=20,
            stream=True,
            stream_options={"include_usage": True},
            tool_choice="auto",
            parallel_tool_calls=False,
            response_format={"type": "text"},
            frequency_penalty=0,
            presence_penalty=0.0,
            logit_bias={},
            return_token_ids=True,
            user="someone",
            metadata={"a": "b"},
        )
    )
    assert (request.stop, request.token_limit) == (["x"], 7)


def test_null_means_the_default_everywhere() -> None:
    optional = ("tools", "tool_choice", "temperature", "top_p", "seed", "n", "max_tokens", "stop", "logprobs")
    request = parse_request(body(**dict.fromkeys(optional), stream=None, response_format=None))
    assert request.token_limit == 256


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"temperature": float("nan")}, "temperature", "less than or equal to 2"),
        ({"top_p": -0.1}, "top_p", "greater than or equal to 0"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": True}, "n", "valid integer"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"stop": ["a"] * 5}, "stop", "up to four"),
        ({"stop": ""}, "stop", "none of them empty"),
        ({"stop": [1]}, "stop[0]", "valid string"),
        ({"top_logprobs": 2}, None, "'logprobs': true"),
        ({"stream_options": {"include_usage": True}}, None, "'stream': true"),
        ({"tool_choice": "required"}, "tool_choice", "can not be forced"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "'auto' or 'none'"),
        ({"response_format": {"type": "json_object"}}, "response_format", "'json_object' is not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "penalties"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "biases"),
        ({"tools": [{"type": "code"}]}, "tools[0].type", "'function'"),
        ({"tools": [multiply_tool("no spaces")]}, "tools[0].function.name", "pattern"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "valid list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'assistant'"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "'assistant'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "valid string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content",
            "text only",
        ),
        (
            {"messages": [*question(), {"role": "tool", "content": "1"}]},
            "messages[1].tool_call_id",
            "missing",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(
    change: dict[str, Any], param: str | None, words: str
) -> None:
    error = refusal(body(**change))
    assert error["param"] == param
    assert words in error["message"]


def test_an_unknown_parameter_is_refused_with_a_suggestion() -> None:
    error = refusal(body(temprature=1.0))
    assert error["message"] == "unrecognized request argument: 'temprature'; did you mean 'temperature'?"
    assert error["code"] == "unknown_parameter"


def test_a_missing_model_and_a_body_that_is_no_object_are_refused() -> None:
    assert refusal({"messages": question()})["param"] == "model"
    assert "JSON object" in refusal([1])["message"]


def test_text_parts_are_joined_and_developer_means_system() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 * 3?"}]
    messages = [{"role": "developer", "content": "Be exact."}, {"role": "user", "content": parts}]
    assert parse_request(body(messages=messages)).template_messages() == [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "What is 2 * 3?"},
    ]


def test_replies_can_be_sent_back_with_all_their_fields() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "multiply", "arguments": "{}"}}
    reply = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call], "annotations": []}
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "6"}
    request = parse_request(body(messages=[*question(), reply, answer]))
    assert request.template_messages()[1]["tool_calls"][0]["function"]["name"] == "multiply"


def test_tool_choice_none_offers_no_tools() -> None:
    assert parse_request(body(tool_choice="none")).offered_tools == []
    assert len(parse_request(body()).offered_tools) == 1
