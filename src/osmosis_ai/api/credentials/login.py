"""A login: a token and its metadata. No ``repr`` or error contains the token."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal

from osmosis_ai.api.models.auth import User

TokenStoreKind = Literal["keyring", "file"]


@dataclass(frozen=True)
class Credentials:
    """The token for requests to one platform."""

    token: str = field(repr=False)
    platform_url: str
    source: Literal["environment", "keyring", "file"]
    user: User | None = None
    token_id: str | None = None
    expires_at: datetime | None = None

    def is_expired(self, now: datetime | None = None) -> bool:
        """Tell whether the token has expired at ``now`` (default: the current time)."""
        return self.expires_at is not None and self.expires_at <= (now or datetime.now(timezone.utc))


@dataclass(frozen=True)
class SavedLogin:
    """A login as the credentials file records it, without the token."""

    platform_url: str
    token_store: TokenStoreKind
    user: User
    token_id: str | None
    expires_at: datetime
    created_at: datetime | None = None
