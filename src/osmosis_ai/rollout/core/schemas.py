"""Wire format between a controller and a served agent loop, and tool schemas.

Unknown fields are ignored, except in tool schemas, which keep every JSON Schema key.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, TypedDict

from ..config import DEFAULT_MAX_METADATA_SIZE_BYTES as DEFAULT_MAX_METADATA_SIZE_BYTES
from ..config import get_settings
from ..types import MessageDict as MessageDict
from ..types import RolloutStatus as RolloutStatus

_MAX_ROLLOUT_ID_CHARACTERS = 256


def _is_not_blank(value: str) -> str:
    if not value.strip():
        # Use the error type of `min_length`, whose text does not mention whitespace.
        kind: Literal["string_too_short", "value_error"] = "value_error" if value else "string_too_short"
        raise PydanticCustomError(kind, "rollout_id cannot be empty or whitespace")
    return value


RolloutId = Annotated[
    str,
    Field(max_length=_MAX_ROLLOUT_ID_CHARACTERS, json_schema_extra={"minLength": 1}),
    AfterValidator(_is_not_blank),
]

_metadata_limit: int | None = None


def get_max_metadata_size_bytes() -> int:
    """Return the maximum size of a request's metadata in bytes: the value set here, or else the setting."""
    return get_settings().max_metadata_size_bytes if _metadata_limit is None else _metadata_limit


def set_max_metadata_size_bytes(size: int) -> None:
    """Set the maximum size of a request's metadata in bytes, encoded as JSON."""
    global _metadata_limit
    if size <= 0:
        raise ValueError(f"the metadata limit must be positive, not {size}")
    _metadata_limit = size


class SamplingParamsDict(TypedDict):
    """Sampling parameters, all optional."""

    temperature: NotRequired[float]
    top_p: NotRequired[float]
    max_tokens: NotRequired[int]
    stop: NotRequired[str | list[str] | None]
    logprobs: NotRequired[bool]
    seed: NotRequired[int]


class OpenAIFunctionPropertySchema(BaseModel):
    """One parameter of a tool. ``items``, nested ``properties``, ``anyOf`` and all other keys are kept."""

    model_config = ConfigDict(extra="allow")

    type: str | list[str] | None = None
    description: str | None = None
    enum: list[Any] | None = None

    @model_serializer(mode="wrap")
    def _without_missing_type(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # `anyOf` and `$ref` have no type, and a null type is not valid JSON Schema.
        written: dict[str, Any] = serialize(self)
        if self.type is None:
            written.pop("type", None)
        return written


class OpenAIFunctionParametersSchema(BaseModel):
    """The parameters of a tool, usually an object."""

    model_config = ConfigDict(extra="allow")

    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema] = Field(default_factory=dict)
    required: list[str] = Field(default_factory=list)


class OpenAIFunctionSchema(BaseModel):
    """A function description for a model."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str
    parameters: OpenAIFunctionParametersSchema = Field(default_factory=OpenAIFunctionParametersSchema)
    strict: bool = False


class OpenAIFunctionToolSchema(BaseModel):
    """One tool that a model may call."""

    model_config = ConfigDict(extra="allow")

    type: str
    function: OpenAIFunctionSchema


class OpenAIFunctionParsedSchema(BaseModel):
    """A call as written by the model, with its arguments as text."""

    name: str
    arguments: str


class OpenAIFunctionCallSchema(BaseModel):
    """A call with parsed arguments."""

    name: str
    arguments: dict[str, Any]

    @staticmethod
    def from_openai_function_parsed_schema(
        parsed_schema: OpenAIFunctionParsedSchema,
    ) -> tuple[OpenAIFunctionCallSchema, bool]:
        """Parse the arguments. If they are not a JSON object, return a call without arguments, and True."""
        try:
            arguments = json.loads(parsed_schema.arguments)
        except (ValueError, RecursionError):
            arguments = None
        readable = isinstance(arguments, dict)
        call = OpenAIFunctionCallSchema(name=parsed_schema.name, arguments=arguments if readable else {})
        return call, not readable


class OpenAIFunctionToolCall(BaseModel):
    """One tool call requested by a model."""

    id: str
    type: Literal["function"] = "function"
    function: OpenAIFunctionCallSchema


class ToolResponse(BaseModel):
    """Result of a tool: text, images, videos or a combination."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        """Return whether the result is empty."""
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        """Return whether the result is only text."""
        return bool(self.text) and not self.image and not self.video


class RolloutMetrics(BaseModel):
    """Latencies in milliseconds and counts of a rollout."""

    total_latency_ms: float = 0.0
    llm_latency_ms: float = 0.0
    tool_latency_ms: float = 0.0
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    max_context_tokens: int = 0


class RolloutRequest(BaseModel):
    """``POST /v1/rollout/init``: start one rollout.

    Attributes:
        rollout_id: 1 to 256 characters.
        server_url: The controller, which serves the model and receives the result.
        messages: The initial conversation.
        completion_params: Sampling parameters for the agent to pass on.
        metadata: Fields of the dataset row as JSON, up to :func:`get_max_metadata_size_bytes`.
        api_key: The bearer token for ``server_url``.
        idempotency_key: Requests with the same key start one rollout.
    """

    rollout_id: RolloutId
    server_url: str
    # Stop at the first error: a body may hold millions of wrong messages.
    messages: Annotated[list[MessageDict], FailFast()]
    completion_params: dict[str, Any]
    tool_server_url: str | None = None
    max_turns: int = 10
    max_tokens_total: int = 8192
    metadata: dict[str, Any] = Field(default_factory=dict)
    api_key: str | None = Field(default=None, repr=False)
    idempotency_key: str | None = None

    @field_validator("server_url")
    @classmethod
    def _is_an_http_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("server_url must be an http:// or https:// address with a host")
        return value

    @field_validator("metadata")
    @classmethod
    def _is_json_of_some_size(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            size = len(json.dumps(value).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"metadata must be JSON-serializable: {error}") from error
        limit = get_max_metadata_size_bytes()
        if size > limit:
            raise ValueError(f"metadata of {size} bytes exceeds maximum of {limit} bytes")
        return value


class InitResponse(BaseModel):
    """Reply to ``init``: the rollout is accepted and has these tools."""

    rollout_id: str
    tools: list[OpenAIFunctionToolSchema] = Field(default_factory=list)


def _ends_a_loop(status: RolloutStatus) -> RolloutStatus:
    if status not in (RolloutStatus.COMPLETED, RolloutStatus.ERROR):
        raise ValueError("status must be COMPLETED or ERROR")
    return status


class RolloutResponse(BaseModel):
    """``POST /v1/rollout/completed``: the rollout completed or failed."""

    rollout_id: str
    status: Annotated[RolloutStatus, AfterValidator(_ends_a_loop)]
    final_messages: list[MessageDict] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None
    metrics: RolloutMetrics | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)


class CompletionsRequest(BaseModel):
    """``POST /v1/chat/completions``: OpenAI's request plus the rollout's id. Other keys are kept."""

    model_config = ConfigDict(extra="allow")

    model: str = "default"
    messages: list[MessageDict]
    rollout_id: RolloutId
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: list[str] | None = None
    logprobs: bool = True


class CompletionUsage(BaseModel):
    """Token counts of a call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class CompletionsChoice(BaseModel):
    """One reply."""

    index: int = 0
    message: MessageDict
    finish_reason: str | None = "stop"


class CompletionsResponse(BaseModel):
    """Reply of ``/v1/chat/completions``, with the sampled tokens if the model is being trained."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str = "default"
    choices: list[CompletionsChoice]
    usage: CompletionUsage | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_token_ids: list[int] | None = None
