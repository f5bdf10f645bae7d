"""Agents that are served elsewhere: registered by whoever serves them; their keys go in and never come out."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from osmosis_ai.api.wire.base import Page, Timestamp, WireModel


class RolloutServerRegistration(WireModel):
    """Where an agent is served, and the key that it asks for."""

    host: Annotated[str, Field(min_length=1, max_length=255)]
    port: int
    agent_loop_name: Annotated[str, Field(min_length=1, max_length=255)]
    api_key: str | None = Field(default=None, repr=False)


class RolloutServerInfo(WireModel):
    """What an agent says of itself."""

    status: str | None = None
    agent_loop: str | None = None
    active_rollouts: int = 0
    completed_rollouts: int | None = None


class HealthCheckResult(WireModel):
    """How a probe ended: with what the agent said of itself, or with why it said nothing of use."""

    server_info: RolloutServerInfo | None = None
    error: str | None = None


class RegisteredRolloutServer(WireModel):
    """The reply to a registration and to a probe; any ``status`` but ``healthy`` is a warning."""

    id: str
    status: str
    health_check_result: HealthCheckResult = Field(default_factory=HealthCheckResult)
    name: str | None = None


class ListedRolloutServer(WireModel):
    """A registered agent, and how its last probe ended."""

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


class RolloutServerList(Page):
    """A page of registered agents."""

    rollout_servers: list[ListedRolloutServer]
