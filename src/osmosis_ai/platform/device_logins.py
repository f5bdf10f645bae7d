"""Device login, the grant of RFC 8628, with one row per attempt.

A login moves ``pending -> approved -> used`` or ``pending -> denied``, and stays unchanged once it has expired. The
device receives its token exactly once, in exchange for its secret code. The short code that a user compares is
worthless without a sign-in.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from osmosis_ai.platform.accounts import AccountStore
from osmosis_ai.platform.bearers import bearer_hash
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbDeviceLogin, DbToken, DbUser, new_id

PollCode = Literal["authorization_pending", "slow_down", "expired_token", "access_denied"]

LIFETIME = timedelta(minutes=15)
POLL_INTERVAL_S = 5.0
MAX_OPEN = 1000
"""Logins that may wait at a time: what strangers can make the platform remember is bounded. A further one takes the
place of the oldest, and one source has no more than :data:`MAX_OF_SOURCE`, so that they lock nobody out either."""
MAX_OF_SOURCE = 20

_MAX_SOURCES = 10_000

_SLOWER_BY_S = 5.0
_SLOWEST_S = 30.0
# The network delivers two polls that were sent an interval apart a little closer together.
_EARLY_S = 0.5
# No vowels (no words), no letters that are taken for digits or for one another (RFC 8628, 6.1).
_LETTERS = "BCDFGHJKMPQRTVWXYZ"


class PollRefused(Exception):
    """There is no token for this poll; ``code`` says why, in the words of RFC 8628."""

    def __init__(self, code: PollCode) -> None:
        super().__init__(code)
        self.code: PollCode = code


@dataclass(frozen=True, slots=True)
class StartedDeviceLogin:
    """A login that waits for a person; ``device_code`` is known to the device alone."""

    device_code: str = field(repr=False)
    user_code: str
    expires_in_s: float
    interval_s: float


@dataclass(frozen=True, slots=True)
class GrantedDeviceLogin:
    """The end of a login: the token, its row and its user."""

    plain: str = field(repr=False)
    token: DbToken
    user: DbUser


class DeviceLoginStore:
    """The device logins of one platform."""

    def __init__(self, db: Database, clock: Clock, accounts: AccountStore) -> None:
        self._db = db
        self._clock = clock
        self._accounts = accounts
        self._by_source: dict[str, deque[str]] = {}
        self._lock = threading.Lock()

    def start(self, device_name: str, *, source: str = "") -> StartedDeviceLogin:
        """Begin a login."""
        now = self._clock.now()
        device_code = secrets.token_urlsafe(32)
        with self._db.transaction() as session:
            session.execute(delete(DbDeviceLogin).where(DbDeviceLogin.expires_at <= now))
            waiting = select(DbDeviceLogin.id).where(DbDeviceLogin.status == "pending")
            oldest = waiting.order_by(DbDeviceLogin.created_at.desc(), DbDeviceLogin.id).offset(MAX_OPEN - 1)
            _give_up(session, session.scalars(oldest).all())
            login = DbDeviceLogin(
                id=new_id("dev"),
                device_code_hash=bearer_hash(device_code),
                user_code=_fresh_user_code(session),
                device_name=_shown_name(device_name),
                status="pending",
                interval_s=POLL_INTERVAL_S,
                created_at=now,
                expires_at=now + LIFETIME,
            )
            session.add(login)
            _give_up(session, self._surplus(source, login.id))
        return StartedDeviceLogin(device_code, login.user_code, LIFETIME.total_seconds(), POLL_INTERVAL_S)

    def poll(self, device_code: str) -> GrantedDeviceLogin:
        """Return the token once the login is approved; it is given out once."""
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
                return self._grant(session, login)
            waited = (now - login.last_poll_at).total_seconds() if login.last_poll_at else None
            # A clock that was set back must not make everybody too fast.
            too_fast = waited is not None and 0 <= waited < login.interval_s - _EARLY_S
            if too_fast:
                login.interval_s = min(_SLOWEST_S, login.interval_s + _SLOWER_BY_S)
            login.last_poll_at = now
            refused = "slow_down" if too_fast else "authorization_pending"
        raise PollRefused(refused)

    def find(self, user_code: str) -> DbDeviceLogin | None:
        """Return the login that waits under this code, however a person typed it."""
        with self._db.session() as session:
            return self._waiting(session, user_code)

    def decide(self, user_code: str, user_id: str, *, approve: bool) -> bool:
        """Let the device in as this user, or turn it away; false when nothing waits under the code any more."""
        with self._db.transaction() as session:
            login = self._waiting(session, user_code, lock=True)
            if login is None:
                return False
            login.status = "approved" if approve else "denied"
            login.user_id = user_id
        return True

    def _surplus(self, source: str, login_id: str) -> list[str]:
        """Note a login of ``source``, and return which of its earlier ones are too many."""
        with self._lock:
            begun = self._by_source.pop(source, None) or deque()
            begun.append(login_id)
            self._by_source[source] = begun
            while len(self._by_source) > _MAX_SOURCES:
                self._by_source.pop(next(iter(self._by_source)))
            return [begun.popleft() for _ in range(len(begun) - MAX_OF_SOURCE)]

    def _grant(self, session: Session, login: DbDeviceLogin) -> GrantedDeviceLogin:
        user = session.get(DbUser, login.user_id)
        if user is None or user.disabled_at is not None:
            raise PollRefused("access_denied")
        login.status = "used"
        token, plain = self._accounts.create_token(user.id, name=login.device_name, session=session)
        return GrantedDeviceLogin(plain, token, user)

    def _waiting(self, session: Session, user_code: str, *, lock: bool = False) -> DbDeviceLogin | None:
        query = select(DbDeviceLogin).where(
            DbDeviceLogin.user_code == normal_user_code(user_code),
            DbDeviceLogin.status == "pending",
            DbDeviceLogin.expires_at > self._clock.now(),
        )
        return session.scalar(query.with_for_update() if lock else query)


def _give_up(session: Session, login_ids: Sequence[str]) -> None:
    if login_ids:
        still_waiting = (DbDeviceLogin.id.in_(login_ids), DbDeviceLogin.status == "pending")
        session.execute(delete(DbDeviceLogin).where(*still_waiting))


def normal_user_code(text: str) -> str:
    """Return a code as it is stored: ``abcd efgh`` and ``ABCDEFGH`` are ``ABCD-EFGH``."""
    letters = "".join(c for c in text.upper() if c.isascii() and c.isalnum())[:16]
    return f"{letters[:4]}-{letters[4:]}"


def _fresh_user_code(session: Session) -> str:
    while True:
        code = normal_user_code("".join(secrets.choice(_LETTERS) for _ in range(8)))
        if session.scalar(select(DbDeviceLogin.id).where(DbDeviceLogin.user_code == code)) is None:
            return code


def _shown_name(name: str) -> str:
    printable = "".join(c for c in name if c.isprintable()).strip()
    return printable[:100] or "Unknown"
