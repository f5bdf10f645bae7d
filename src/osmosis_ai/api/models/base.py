"""The base classes of messages."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator
from typing_extensions import Self


class WireModel(BaseModel):
    # A reply may contain a token, so errors must not quote the input.
    model_config = ConfigDict(
        extra="ignore", populate_by_name=True, protected_namespaces=(), hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        # Most messages contain no null and need no copy.
        if not isinstance(data, dict) or None not in data.values():
            return data
        return {key: value for key, value in data.items() if value is not None or cls._null_is_a_value(key)}

    @classmethod
    def _null_is_a_value(cls, key: str) -> bool:
        field = cls.model_fields.get(key)
        # If a field has several spellings, one that is null must not hide the others.
        return field is not None and field.default is None and field.validation_alias is None

    @classmethod
    def of(cls, row: object, *, nulls: bool = True, **more: Any) -> Self:
        """Return the message with the attributes of ``row`` that have its fields' names, and ``more``.

        Without ``nulls``, attributes that are None are absent from the message.
        """
        found = {name: getattr(row, name) for name in cls.model_fields if hasattr(row, name)} | more
        return cls(**{name: value for name, value in found.items() if nulls or value is not None})

    def printed(self) -> dict[str, Any]:
        """Return the JSON object that commands print."""
        return self.model_dump(mode="json")

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object to send: only the fields that were set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def wire_time(moment: datetime) -> str:
    """Format a moment for the wire: ISO 8601 in UTC with milliseconds and ``Z``."""
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


T = TypeVar("T")


class Page(WireModel, Generic[T]):
    """A page of a list, or the whole list. Each list has its own name for the items on the wire."""

    model_config = ConfigDict(populate_by_name=False)

    items: list[T]
    total_count: int = 0
    has_more: bool = False
    next_offset: int | None = None


class LogEntry(WireModel):
    timestamp: str | None = None
    level: str | None = None
    step: str | None = None
    message: str | None = None
    details: Annotated[
        dict[str, Any] | None, BeforeValidator(lambda found: found if isinstance(found, dict) else None)
    ] = None


class LogPage(WireModel):
    """Log lines, oldest first; ``next_cursor`` continues in the requested direction."""

    logs: list[LogEntry] = []
    next_cursor: str | None = None


class Named(WireModel):
    """A reference to another resource."""

    id: str | None = None
    name: str | None = None
