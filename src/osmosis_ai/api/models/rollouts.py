"""Rollouts that the platform has read from the synced repository."""

from __future__ import annotations

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


class RolloutList(Page):
    """A page of rollouts. ``sync_error`` says why they may be out of date."""

    rollouts: list[Rollout]
    sync_error: str | None = None
