"""Authentication of the server's callbacks to the controller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ControllerAuth:
    """The controller's key for callbacks."""

    api_key: str | None = None

    def __repr__(self) -> str:
        """Show whether there is a key, but not the key."""
        return f"ControllerAuth(api_key={'<set>' if self.api_key else None})"

    def as_bearer_headers(self) -> dict[str, str] | None:
        """Return the ``Authorization`` header, or None without a key."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else None
