"""What a judging session tells whoever runs it, while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """How far a session is."""

    completed: int
    total: int
    scored: int
    unscored: int
    failed: int
    mean: float | None
    tokens: int
    cost_usd: float | None
    in_flight: int
    rate_per_s: float | None


class SessionHooks:
    """What a session tells its caller. Override what you care about."""

    def started(self, interrupt: Callable[[], None]) -> None:
        """Take the function that stops the session gracefully."""

    def progress(self, snapshot: SessionSnapshot) -> None:
        """Show how far the session is; called a few times a second."""

    def ended(self) -> None:
        """Take note that nothing is being spent any more."""
