"""Development rollout servers: the platform serves the code of a commit for a limited time."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from osmosis_ai.api.models.base import Page, Timestamp, WireModel


class DevServerReply(WireModel):
    """A reply that is printed unchanged, including unknown keys."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def _null_is_a_value(cls, key: str) -> bool:
        return key not in cls.model_fields


class StartedDevServer(DevServerReply):
    url: str


class DevServer(WireModel):
    id: str
    name: str | None = None
    url: str | None = None
    status: str | None = None
    expires_at: Timestamp | None = None
    started_at: Timestamp | None = None


class DevServerList(Page[DevServer]):
    items: list[DevServer] = Field(alias="dev_rollout_servers")
