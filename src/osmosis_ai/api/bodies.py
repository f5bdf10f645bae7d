"""Encode messages as strict JSON, and decode and validate them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from osmosis_ai.api.http_errors import UnreadableReply
from osmosis_ai.api.models.base import WireModel
from osmosis_ai.errors import OsmosisError

M = TypeVar("M", bound=WireModel)


def encode(body: WireModel | Mapping[str, Any]) -> bytes:
    value = body.to_wire() if isinstance(body, WireModel) else body
    try:
        return json.dumps(value, allow_nan=False).encode("ascii")
    except ValueError:
        raise OsmosisError("nan and inf are no values that can be sent to a platform.") from None


def decode(content: bytes, model: type[M], call: str) -> M:
    """Decode the success reply to ``call``; an empty reply has no fields."""
    try:
        value = json.loads(content, parse_constant=lambda _: None) if content.strip() else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        page = (
            "the reply is a web page, perhaps from a proxy or a login page; "
            if content.lstrip()[:1] == b"<"
            else ""
        )
        raise UnreadableReply("Invalid JSON response from platform", hint=f"{page}check the platform's URL")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [
            f"`{'.'.join(map(str, problem['loc']))}`: {problem['msg'].lower()}"
            for problem in error.errors(include_url=False, include_context=False, include_input=False)[:3]
        ]
        raise UnreadableReply(
            f"the platform's reply to {call} cannot be read: {', '.join(problems)}."
        ) from None
