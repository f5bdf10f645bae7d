"""Sign-in with a password, and device login (RFC 8628), both protected against guessing and flooding.

Attempts are limited by source, never by account. A source with several failures at one account is blocked from it
for a while. A source with failures at many accounts is blocked from all accounts it never signed in to. Users can
therefore sign in from their usual source, whatever attackers do. The limits are in bounded memory, and the least
recently used entries are dropped.

A device login moves ``pending -> approved -> used`` or ``pending -> denied``, and stays unchanged once it has expired.
The device receives its token exactly once, in exchange for its secret code. The short code that a user compares is
worthless without a sign-in.
"""

from __future__ import annotations

import ipaddress
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, TypeVar

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.accounts import AccountStore, Principal, bearer_hash
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDeviceLogin, DbUser, new_id

T = TypeVar("T")
PollCode = Literal["authorization_pending", "slow_down", "expired_token", "access_denied"]

LIFETIME = timedelta(minutes=15)
POLL_INTERVAL_S = 5.0
MAX_OPEN = 1000
"""Pending device logins of all sources; a further one replaces the oldest."""
MAX_OF_SOURCE = 20
"""Maximum of pending device logins per source, so that one source cannot displace others."""

_WINDOW_S = 15 * 60.0
_PER_ACCOUNT = 10
_PER_SOURCE = 50
_CODES_PER_SOURCE = 20
_KNOWN_S = 30 * 86_400.0
_MAX_KEYS = 10_000
_SLOWER_BY_S = 5.0
_SLOWEST_S = 30.0
# The network delivers two polls that were sent an interval apart a little closer together.
_EARLY_S = 0.5
# No vowels (no words), no letters that are taken for digits or for one another (RFC 8628, 6.1).
_LETTERS = "BCDFGHJKMPQRTVWXYZ"


class TooManyAttempts(OsmosisError):
    """The source has to wait ``wait_s`` seconds before its next attempt."""

    default_code = "RATE_LIMITED"

    def __init__(self, wait_s: float) -> None:
        minutes = max(1, round(wait_s / 60))
        super().__init__(
            f"too many failed attempts; try again in {minutes} minute{'s' if minutes > 1 else ''}."
        )
        self.wait_s = wait_s


class SignIns:
    """Checks passwords and counts wrong guesses, by source."""

    def __init__(self, accounts: AccountStore, clock: Clock) -> None:
        self._accounts = accounts
        self._by_account = RecentEvents(clock, _PER_ACCOUNT, _WINDOW_S)
        self._by_source = RecentEvents(clock, _PER_SOURCE, _WINDOW_S)
        self._codes = RecentEvents(clock, _CODES_PER_SOURCE, _WINDOW_S)
        self._known = RecentEvents(clock, 1, _KNOWN_S)

    def check(self, email: str, password: str, *, source: str) -> DbUser | None:
        network = network_of(source)
        pair = f"{network} {email.strip().lower()}"
        self._by_account.refuse_too_many(pair)
        if not self._known.wait_s(pair):
            self._by_source.refuse_too_many(network)
        user = self._accounts.check_password(email, password)
        if user is None:
            self._by_account.record(pair)
            self._by_source.record(network)
        else:
            # Keep the source's failures: an attacker may have an account of their own.
            self._by_account.forget(pair)
            self._known.record(pair)
        return user

    def refuse_guessing(self, source: str) -> None:
        """Raise :class:`TooManyAttempts` if ``source`` has tried too many unknown codes of device logins."""
        self._codes.refuse_too_many(network_of(source))

    def record_wrong_guess(self, source: str) -> None:
        self._codes.record(network_of(source))


class RecentEvents:
    """Counts events by key; ``allowed`` of them within ``window_s`` seconds are too many."""

    def __init__(self, clock: Clock, allowed: int, window_s: float) -> None:
        self._clock = clock
        self._allowed = allowed
        self._window_s = window_s
        self._events: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def wait_s(self, key: str) -> float:
        """Return how many seconds ``key`` has to wait; 0 if it has fewer events than allowed."""
        with self._lock:
            recent = self._events.get(key)
            if recent is None or len(recent) < self._allowed:
                return 0.0
            return max(0.0, recent[0] + self._window_s - self._clock.monotonic())

    def refuse_too_many(self, key: str) -> None:
        """Raise :class:`TooManyAttempts` if ``key`` has to wait."""
        if (wait_s := self.wait_s(key)) > 0:
            raise TooManyAttempts(wait_s)

    def record(self, key: str) -> None:
        """Count one event of ``key``; only the latest ``allowed`` ones matter."""
        with self._lock:
            recent = self._events.pop(key, None) or deque(maxlen=self._allowed)
            recent.append(self._clock.monotonic())
            _add_newest(self._events, key, recent)

    def forget(self, key: str) -> None:
        with self._lock:
            self._events.pop(key, None)


def _add_newest(by_key: dict[str, deque[T]], key: str, value: deque[T]) -> None:
    """Add a key at the end and drop the least recently used ones."""
    by_key[key] = value
    while len(by_key) > _MAX_KEYS:
        by_key.pop(next(iter(by_key)))


def network_of(source: str) -> str:
    """Return the network of an address; with IPv6, one household has 2^64 addresses."""
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return source
    if address.version == 4:
        return str(address)
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))


# -- device logins ---------------------------------------------------------------------------------------


class PollRefused(Exception):
    """A poll gets no token; ``code`` is the error code of RFC 8628."""

    def __init__(self, code: PollCode) -> None:
        super().__init__(code)
        self.code: PollCode = code


class DeviceLoginStore:
    def __init__(self, db: Database, clock: Clock, accounts: AccountStore) -> None:
        self._db = db
        self._clock = clock
        self._accounts = accounts
        self._by_source: dict[str, deque[str]] = {}
        self._lock = threading.Lock()

    def start(self, device_name: str, *, source: str = "") -> tuple[DbDeviceLogin, str]:
        """Start a login; return it and the secret code of the device."""
        now = self._clock.now()
        device_code = secrets.token_urlsafe(32)
        name = "".join(c for c in device_name if c.isprintable()).strip()[:100]
        with self._db.transaction() as session:
            session.execute(delete(DbDeviceLogin).where(DbDeviceLogin.expires_at <= now))
            waiting = select(DbDeviceLogin.id).where(DbDeviceLogin.status == "pending")
            oldest = waiting.order_by(DbDeviceLogin.created_at.desc(), DbDeviceLogin.id).offset(MAX_OPEN - 1)
            _drop_pending(session, session.scalars(oldest).all())
            login = DbDeviceLogin(
                id=new_id("dev"),
                device_code_hash=bearer_hash(device_code),
                user_code=_fresh_user_code(session),
                device_name=name or "Unknown",
                status="pending",
                interval_s=POLL_INTERVAL_S,
                created_at=now,
                expires_at=now + LIFETIME,
            )
            session.add(login)
            _drop_pending(session, self._surplus(network_of(source), login.id))
        return login, device_code

    def poll(self, device_code: str) -> tuple[Principal, str]:
        """Return the user with a new token once the login is approved; it is issued once."""
        refused: PollCode
        now = self._clock.now()
        with self._db.transaction() as session:
            login = session.scalar(
                select(DbDeviceLogin)
                .where(DbDeviceLogin.device_code_hash == bearer_hash(device_code))
                .with_for_update()
            )
            if login is None or login.expires_at <= now or login.status == "used":
                raise PollRefused("expired_token")
            if login.status == "denied":
                raise PollRefused("access_denied")
            if login.status == "approved" and login.user_id is not None:
                return self._issue_token(session, login)
            waited = (now - login.last_poll_at).total_seconds() if login.last_poll_at else None
            # A clock that was set back must not make every client too fast.
            too_fast = waited is not None and 0 <= waited < login.interval_s - _EARLY_S
            if too_fast:
                login.interval_s = min(_SLOWEST_S, login.interval_s + _SLOWER_BY_S)
            login.last_poll_at = now
            refused = "slow_down" if too_fast else "authorization_pending"
        raise PollRefused(refused)

    def find(self, user_code: str) -> DbDeviceLogin | None:
        """Return the pending login with this code, in any spelling."""
        with self._db.session() as session:
            return self._pending(session, user_code)

    def decide(self, user_code: str, user_id: str, *, approve: bool) -> bool:
        """Approve or deny a login as this user; False if no login is pending under the code."""
        with self._db.transaction() as session:
            login = self._pending(session, user_code, lock=True)
            if login is None:
                return False
            login.status = "approved" if approve else "denied"
            login.user_id = user_id
        return True

    def _surplus(self, source: str, login_id: str) -> list[str]:
        """Record a login of ``source``, and return its earlier ones above the limit."""
        with self._lock:
            started = self._by_source.pop(source, None) or deque()
            started.append(login_id)
            _add_newest(self._by_source, source, started)
            return [started.popleft() for _ in range(len(started) - MAX_OF_SOURCE)]

    def _issue_token(self, session: Session, login: DbDeviceLogin) -> tuple[Principal, str]:
        user = session.get(DbUser, login.user_id)
        if user is None or user.disabled_at is not None:
            raise PollRefused("access_denied")
        login.status = "used"
        token, plain = self._accounts.create_token(user.id, name=login.device_name, session=session)
        return Principal(user, token), plain

    def _pending(self, session: Session, user_code: str, *, lock: bool = False) -> DbDeviceLogin | None:
        query = select(DbDeviceLogin).where(
            DbDeviceLogin.user_code == _normal_user_code(user_code),
            DbDeviceLogin.status == "pending",
            DbDeviceLogin.expires_at > self._clock.now(),
        )
        return session.scalar(query.with_for_update() if lock else query)


def _drop_pending(session: Session, login_ids: Sequence[str]) -> None:
    if login_ids:
        pending = (DbDeviceLogin.id.in_(login_ids), DbDeviceLogin.status == "pending")
        session.execute(delete(DbDeviceLogin).where(*pending))


def _normal_user_code(text: str) -> str:
    """Return a code as it is stored: ``abcd efgh`` and ``ABCDEFGH`` become ``ABCD-EFGH``."""
    letters = "".join(c for c in text.upper() if c.isascii() and c.isalnum())[:16]
    return f"{letters[:4]}-{letters[4:]}"


def _fresh_user_code(session: Session) -> str:
    while True:
        code = _normal_user_code("".join(secrets.choice(_LETTERS) for _ in range(8)))
        if session.scalar(select(DbDeviceLogin.id).where(DbDeviceLogin.user_code == code)) is None:
            return code
