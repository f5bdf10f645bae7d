"""Development rollout servers: the code of a commit, served by the platform for a while."""

from __future__ import annotations

from pydantic import ConfigDict

from osmosis_ai.api.wire.base import Page, Timestamp, WireModel


class DevServerRequest(WireModel):
    """What to serve, from which commit; ``ttl_hours`` None serves it until it is taken down."""

    rollout_name: str
    commit_sha: str
    repository_path: str
    entrypoint: str
    ttl_hours: int | None = None


class DevServerReply(WireModel):
    """What the platform says of a server that it starts or stops; shown as it comes, whatever else is in it."""

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


class DevServerList(Page):
    dev_rollout_servers: list[DevServer]
