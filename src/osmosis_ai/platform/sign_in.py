"""Rate limit sign-in attempts by source, never by account.

A source with several failures at one account is blocked from it for a while. A source with failures at many accounts is
blocked from all accounts it never signed in to. Users therefore can sign in from their usual source, whatever
attackers do. State is in bounded memory, and the least recently used entries are dropped; attackers cannot
gain from that, nor cause a restart.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import deque

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.tables import DbUser

_WINDOW_S = 15 * 60.0
_PER_ACCOUNT = 10
_PER_SOURCE = 50
_CODES_PER_SOURCE = 20
# Passwords are typed once in a session's half day; a month of not coming makes a source new again.
_KNOWN_S = 30 * 86_400.0
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
    """Sign-ins with address and password, and other guesses at what only the right person knows."""

    def __init__(self, accounts: AccountStore, clock: Clock) -> None:
        self._accounts = accounts
        self._by_account = AttemptLimit(clock, allowed=_PER_ACCOUNT, window_s=_WINDOW_S)
        self._by_source = AttemptLimit(clock, allowed=_PER_SOURCE, window_s=_WINDOW_S)
        self._codes = AttemptLimit(clock, allowed=_CODES_PER_SOURCE, window_s=_WINDOW_S)
        self._known = _RecentSignIns(clock, remembered_s=_KNOWN_S)

    def check(self, email: str, password: str, *, source: str) -> DbUser | None:
        """Return the user whom address and password name, or None."""
        network = network_of(source)
        pair = f"{network} {email.strip().lower()}"
        self._refuse(self._by_account.wait_s(pair))
        if pair not in self._known:
            self._refuse(self._by_source.wait_s(network))
        user = self._accounts.check_password(email, password)
        if user is None:
            self._by_account.failed(pair)
            self._by_source.failed(network)
        else:
            # Keep the source's failures: an attacker may have an account of their own.
            self._by_account.succeeded(pair)
            self._known.add(pair)
        return user

    def refuse_guessing(self, source: str) -> None:
        """Raise :class:`TooManyAttempts` when ``source`` has named too many codes that nothing waits under."""
        self._refuse(self._codes.wait_s(network_of(source)))

    def record_wrong_guess(self, source: str) -> None:
        """Count a code of ``source`` that nothing waits under."""
        self._codes.failed(network_of(source))

    @staticmethod
    def _refuse(wait_s: float) -> None:
        if wait_s > 0:
            raise TooManyAttempts(wait_s)


def network_of(source: str) -> str:
    """Return what one guesser can be told from the next by: with IPv6, a household has 2^64 addresses."""
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return source
    if address.version == 4:
        return str(address)
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))


class AttemptLimit:
    """At most ``allowed`` failures per key within ``window_s`` seconds."""

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


class _RecentSignIns:
    """From where which accounts were signed in to lately."""

    def __init__(self, clock: Clock, *, remembered_s: float) -> None:
        self._clock = clock
        self._remembered_s = remembered_s
        self._at: dict[str, float] = {}
        self._lock = threading.Lock()

    def __contains__(self, pair: str) -> bool:
        with self._lock:
            at = self._at.get(pair)
            return at is not None and self._clock.monotonic() - at < self._remembered_s

    def add(self, pair: str) -> None:
        with self._lock:
            self._at.pop(pair, None)
            self._at[pair] = self._clock.monotonic()
            while len(self._at) > _MAX_KEYS:
                self._at.pop(next(iter(self._at)))
