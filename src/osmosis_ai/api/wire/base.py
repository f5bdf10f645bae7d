"""What every message shares."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator


class WireModel(BaseModel):
    """Base of all messages."""

    # What a reply holds may be a token: an error that quotes it must not.
    model_config = ConfigDict(
        extra="ignore", populate_by_name=True, protected_namespaces=(), hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        # Most messages hold no null, and then there is nothing to copy.
        if not isinstance(data, dict) or None not in data.values():
            return data
        return {key: value for key, value in data.items() if value is not None or cls._null_is_a_value(key)}

    @classmethod
    def _null_is_a_value(cls, key: str) -> bool:
        field = cls.model_fields.get(key)
        # Of several spellings of a field, one that is null must not hide the others.
        return field is not None and field.default is None and field.validation_alias is None

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object to send: the fields that were set, no others."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def wire_time(moment: datetime) -> str:
    """Return a moment as it is sent: ISO 8601 in UTC with milliseconds and ``Z``."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _zoned(moment: datetime) -> datetime:
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    try:
        zoned.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError("no moment of a calendar in UTC") from None
    return zoned


Timestamp = Annotated[datetime, AfterValidator(_zoned), PlainSerializer(wire_time, return_type=str)]
"""A moment with a zone; sent as ISO 8601 in UTC with ``Z``."""


class Page(WireModel):
    """The keys beside the items of an offset list."""

    total_count: int = 0
    has_more: bool = False
    next_offset: int | None = None


def _object_or_none(value: Any) -> Any:
    return value if isinstance(value, dict) else None


class LogEntry(WireModel):
    """One line of a log."""

    timestamp: str | None = None
    level: str | None = None
    step: str | None = None
    message: str | None = None
    details: Annotated[dict[str, Any] | None, BeforeValidator(_object_or_none)] = None


class LogPage(WireModel):
    """Log lines, oldest first; ``next_cursor`` goes on in the requested direction."""

    logs: list[LogEntry] = []
    next_cursor: str | None = None


class Named(WireModel):
    """A reference to another resource."""

    id: str | None = None
    name: str | None = None
