"""Guessing is slow: after a few failures the same source, or the same target, has to wait.

Kept in memory, because a guess costs an attacker nothing either way and a restart is not theirs to cause.
"""

from __future__ import annotations

import threading
from collections import deque

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.accounts import Accounts
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.models import User

_WINDOW_S = 15 * 60.0
_PER_ADDRESS = 20
_PER_EMAIL = 10
_MAX_KEYS = 10_000


class TooManyAttempts(OsmosisError):
    """Somebody has to wait ``wait_s`` seconds before the next try."""

    default_code = "RATE_LIMITED"

    def __init__(self, wait_s: float) -> None:
        minutes = max(1, round(wait_s / 60))
        super().__init__(
            f"too many failed attempts; try again in {minutes} minute{'s' if minutes > 1 else ''}."
        )
        self.wait_s = wait_s


class SignIns:
    """Sign-ins with address and password, and other guesses at what only the right person knows.

    Args:
        accounts: knows the passwords.
        clock: measures how long a failure counts.
    """

    def __init__(self, accounts: Accounts, clock: Clock) -> None:
        self._accounts = accounts
        self._by_source = AttemptLimit(clock, allowed=_PER_ADDRESS, window_s=_WINDOW_S)
        self._by_email = AttemptLimit(clock, allowed=_PER_EMAIL, window_s=_WINDOW_S)

    def check(self, email: str, password: str, *, source: str) -> User | None:
        """Return the user whom address and password name, or None.

        Args:
            email: as it was typed.
            password: likewise.
            source: where the attempt comes from (a network address).

        Raises:
            TooManyAttempts: right or wrong, it is not looked at now.
        """
        target = email.strip().lower()
        self.refuse_guessing(source)
        self._refuse(self._by_email.wait_s(target))
        user = self._accounts.check_password(email, password)
        if user is None:
            self.guessed_wrong(source)
            self._by_email.failed(target)
        else:
            self._by_email.succeeded(target)
        return user

    def refuse_guessing(self, source: str) -> None:
        """Raise :class:`TooManyAttempts` when ``source`` has guessed wrong too often."""
        self._refuse(self._by_source.wait_s(source))

    def guessed_wrong(self, source: str) -> None:
        """Count a wrong guess of ``source``."""
        self._by_source.failed(source)

    @staticmethod
    def _refuse(wait_s: float) -> None:
        if wait_s > 0:
            raise TooManyAttempts(wait_s)


class AttemptLimit:
    """At most ``allowed`` failures per key within ``window_s`` seconds.

    Args:
        clock: measures the window.
        allowed: failures before a key has to wait.
        window_s: how long a failure counts.
    """

    def __init__(self, clock: Clock, *, allowed: int, window_s: float) -> None:
        self._clock = clock
        self._allowed = allowed
        self._window_s = window_s
        self._failures: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def wait_s(self, key: str) -> float:
        """Return for how many seconds ``key`` is refused; 0 when it is not."""
        with self._lock:
            recent = self._recent(key)
            if len(recent) < self._allowed:
                return 0.0
            return recent[-self._allowed] + self._window_s - self._clock.monotonic()

    def failed(self, key: str) -> None:
        """Count one failure of ``key``."""
        with self._lock:
            recent = self._recent(key)
            recent.append(self._clock.monotonic())
            # The key moves to the end; what has been quiet longest is forgotten first.
            self._failures.pop(key, None)
            self._failures[key] = recent
            while len(self._failures) > _MAX_KEYS:
                self._failures.pop(next(iter(self._failures)))

    def succeeded(self, key: str) -> None:
        """Forget the failures of ``key``."""
        with self._lock:
            self._failures.pop(key, None)

    def _recent(self, key: str) -> deque[float]:
        recent = self._failures.get(key)
        if recent is None:
            return deque(maxlen=self._allowed)
        oldest = self._clock.monotonic() - self._window_s
        while recent and recent[0] <= oldest:
            recent.popleft()
        return recent
