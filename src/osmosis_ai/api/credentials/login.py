"""A login: a token and what is known about it. The token is in no ``repr`` and in no error."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal

from osmosis_ai.api.wire.auth import User

TokenStoreKind = Literal["keyring", "file"]


@dataclass(frozen=True)
class Credentials:
    """What a request to one platform is signed with."""

    token: str = field(repr=False)
    platform_url: str
    source: Literal["environment", "keyring", "file"]
    user: User | None = None
    token_id: str | None = None
    expires_at: datetime | None = None

    def is_expired(self, now: datetime | None = None) -> bool:
        """Whether the token's time is over at ``now`` (default: this moment)."""
        return self.expires_at is not None and self.expires_at <= (now or datetime.now(timezone.utc))


@dataclass(frozen=True)
class SavedLogin:
    """What the credentials file says of one login: everything but the token."""

    platform_url: str
    token_store: TokenStoreKind
    user: User
    token_id: str | None
    expires_at: datetime
    created_at: datetime | None = None
