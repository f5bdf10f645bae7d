"""Validate requests of the Chat Completions API.

Nothing is silently ignored: a parameter is honoured, or it cannot change the result, or the request is refused
with the parameter's name, as OpenAI's own endpoint does.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_CHOICES = 128
DEFAULT_MAX_TOKENS = 256


class OpenAIError(Exception):
    """A refusal in OpenAI's format, with the HTTP status and the value of Retry-After, if any."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self._error = {"message": message, "type": type, "param": param, "code": code}

    def body(self) -> dict[str, Any]:
        return {"error": dict(self._error)}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def _joined_text(content: Any) -> Any:
    """Join a list of text parts; other values are left for the type check."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            raise ValueError(f"this model reads text only; a content part of type {kind!r} is not supported")
        if not isinstance(part.get(kind), str):
            raise ValueError(f"a content part of type {kind!r} needs a string under {kind!r}")
        texts.append(part[kind])
    return "".join(texts)


Text = Annotated[str, BeforeValidator(_joined_text)]


class _Part(BaseModel):
    """A part of a request, whose unknown keys are ignored."""

    model_config = {"strict": True, "frozen": True}


class TextMessage(_Part):
    role: Literal["system", "developer", "user"]
    content: Text


class CalledFunction(_Part):
    name: str
    arguments: str


class EarlierToolCall(_Part):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(_Part):
    role: Literal["assistant"]
    content: Text | None = None
    tool_calls: list[EarlierToolCall] | None = None


class ToolMessage(_Part):
    role: Literal["tool"]
    content: Text
    tool_call_id: str


Message = Annotated[TextMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionDefinition(_Part):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(_Part):
    type: Literal["function"]
    function: FunctionDefinition


class StreamOptions(_Part):
    include_usage: bool = False


class ResponseFormat(_Part):
    type: str


def _stop_strings(value: Any) -> Any:
    strings = [value] if isinstance(value, str) else value
    if isinstance(strings, list) and (len(strings) > 4 or not all(strings)):
        raise ValueError("give up to four stop strings, none of them empty")
    return strings


def _unforced(value: Any) -> Any:
    if value not in (None, "none", "auto"):
        raise ValueError("this model cannot be forced to call a tool; use 'auto' or 'none'")
    return value


def _plain_text(value: ResponseFormat | None) -> ResponseFormat | None:
    if value and value.type != "text":
        problem = f"a response format of type {value.type!r} is not supported"
        raise ValueError(f"this model answers in free text; {problem}")
    return value


def _nothing(value: Any) -> Any:
    if value:
        raise ValueError("this model's probabilities cannot be changed by penalties or biases")
    return value


class ChatRequest(BaseModel):
    """A valid request; the fields have the meaning of OpenAI's API."""

    model_config = {"extra": "forbid", "strict": True, "frozen": True}

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Annotated[Literal["none", "auto"] | None, BeforeValidator(_unforced)] = None
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_stop_strings)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    response_format: Annotated[ResponseFormat | None, AfterValidator(_plain_text)] = None
    frequency_penalty: Annotated[float | None, AfterValidator(_nothing)] = None
    presence_penalty: Annotated[float | None, AfterValidator(_nothing)] = None
    logit_bias: Annotated[dict[str, Any] | None, AfterValidator(_nothing)] = None
    # They label or route a request and cannot change its result.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @model_validator(mode="after")
    def _check_combinations(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("'top_logprobs' needs 'logprobs': true")
        if self.stream_options and not self.stream:
            raise ValueError("'stream_options' needs 'stream': true")
        return self

    @property
    def token_limit(self) -> int:
        """The requested number of tokens of a choice; the newer of the two names wins."""
        return self.max_completion_tokens or self.max_tokens or DEFAULT_MAX_TOKENS

    @cached_property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools for the template; empty if the request disables tool calls."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools or []]

    def template_messages(self) -> list[dict[str, Any]]:
        messages = [message.model_dump(exclude_none=True) for message in self.messages]
        return [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]


def parse_request(body: Any) -> ChatRequest:
    """Validate a decoded request body; raises OpenAIError."""
    if not isinstance(body, Mapping):
        raise OpenAIError(400, "the request body must be a JSON object.")
    try:
        return ChatRequest.model_validate(dict(body))
    except ValidationError as error:
        raise _explain(error) from None


def _explain(error: ValidationError) -> OpenAIError:
    """Return the first problem in OpenAI's wording."""
    problem = error.errors(include_url=False, include_input=False)[0]
    # After the index of a message, pydantic puts its role.
    path = [part for index, part in enumerate(problem["loc"]) if not (index == 2 and part in ROLES)]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    code = "invalid_value"
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(param, ChatRequest.model_fields, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        message, code = f"unrecognized request argument: '{param}'{hint}", "unknown_parameter"
    elif problem["type"].startswith("union_tag"):
        param = f"{param}.role"
        message = f"invalid '{param}': expected one of {', '.join(map(repr, ROLES))}."
    elif problem["type"] == "missing":
        message, code = f"missing required parameter: '{param}'.", "missing_required_parameter"
    else:
        reason = problem["msg"].removeprefix("Value error, ")
        message = f"invalid '{param}': " if param else ""
        message += f"{reason[:1].lower()}{reason[1:]}."
    return OpenAIError(400, message, param=param or None, code=code)
