"""Rollouts that the platform has read from the synced repository, and remote agents.

Operators register remote agents. The keys of agents are write-only.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from osmosis_ai.api.models.base import Page, Timestamp, WireModel


class Rollout(WireModel):
    id: str
    name: str | None = None
    description: str | None = None
    is_active: bool = True
    last_synced_commit_sha: str | None = None
    last_synced_at: Timestamp | None = None
    repo_full_name: str | None = None
    created_at: Timestamp | None = None

    def printed(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"description", "last_synced_at"})


class RolloutList(Page[Rollout]):
    """A page of rollouts. ``sync_error`` says why they may be out of date."""

    items: list[Rollout] = Field(alias="rollouts")
    sync_error: str | None = None


class RolloutServerRegistration(WireModel):
    """The address of an agent, and the key that it requires."""

    host: Annotated[str, Field(min_length=1, max_length=255)]
    port: int
    agent_loop_name: Annotated[str, Field(min_length=1, max_length=255)]
    api_key: str | None = Field(default=None, repr=False)


class RolloutServerInfo(WireModel):
    """An agent's description of itself."""

    status: str | None = None
    agent_loop: str | None = None
    active_rollouts: int = 0
    completed_rollouts: int | None = None


class HealthCheckResult(WireModel):
    """The result of a probe: the agent's description, or an error."""

    server_info: RolloutServerInfo | None = None
    error: str | None = None


class RegisteredRolloutServer(WireModel):
    """The reply to a registration and to a probe; any ``status`` but ``healthy`` is a warning."""

    id: str
    status: str
    health_check_result: HealthCheckResult = Field(default_factory=HealthCheckResult)
    name: str | None = None


class ListedRolloutServer(WireModel):
    """A registered agent and the result of its last probe."""

    id: str
    name: str
    host: str
    port: int
    status: str
    has_key: bool = True
    error: str | None = None
    probed_at: Timestamp | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    creator_name: str | None = None


class RolloutServerList(Page[ListedRolloutServer]):
    items: list[ListedRolloutServer] = Field(alias="rollout_servers")
