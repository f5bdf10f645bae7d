"""Environment secrets. Values are sent to the platform and never returned."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from osmosis_ai.api.models.base import Page, Timestamp, WireModel


class SecretSetRequest(WireModel):
    """``scope`` is ``workspace`` or ``user``."""

    name: str
    value: str = Field(repr=False)
    scope: str


class SecretDeleteRequest(WireModel):
    name: str
    scope: str


class Secret(WireModel):
    id: str
    name: str | None = None
    scope: str | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    creator_name: str | None = None
    updater_name: str | None = None
    platform_url: str | None = None

    def printed(self) -> dict[str, Any]:
        item = self.model_dump(mode="json", exclude={"platform_url"})
        return {**item, "scope": "personal" if self.scope == "user" else self.scope}


class SecretList(Page[Secret]):
    items: list[Secret] = Field(alias="environment_secrets")
    platform_url: str | None = None


class SecretHandout(WireModel):
    """The names of secrets that a run's worker received; kept after the run is deleted."""

    id: str
    names: list[str]
    run_id: str
    run_name: str | None = None
    attempt: int | None = None
    machine: str | None = None
    pool: str | None = None
    handed_at: Timestamp | None = None


class SecretHandoutList(Page[SecretHandout]):
    items: list[SecretHandout] = Field(alias="handouts")
    platform_url: str | None = None
