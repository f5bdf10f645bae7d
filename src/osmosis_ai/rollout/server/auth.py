"""How the server proves to the controller that a callback is its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ControllerAuth:
    """The key the controller handed over with a rollout."""

    api_key: str | None = None

    def __repr__(self) -> str:
        """Tell whether there is a key, never which."""
        return f"ControllerAuth(api_key={'<set>' if self.api_key else None})"

    def as_bearer_headers(self) -> dict[str, str] | None:
        """Return the ``Authorization`` header; None when there is no key."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else None
