"""Users and their tokens.

A token is shown once, when it is created; the database stores its SHA-256, which suffices for 256 random bits. Its
prefix separates users from workers before any lookup. Passwords are stored as Argon2 hashes. Revoked and expired tokens
and those of removed users never work again. Tokens of disabled users are suspended.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from sqlalchemy import bindparam, delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database, DatabaseBusyError, StorageFullError
from osmosis_ai.platform.db.tables import DbDeviceLogin, DbToken, DbUser, DbWorkerToken, new_id
from osmosis_ai.platform.refusals import ApiError
from osmosis_ai.platform.workspaces import WorkspaceStore

if TYPE_CHECKING:
    from argon2 import PasswordHasher

TokenKind = Literal["cli", "api_key", "web"]

USER_PREFIX = "osm_"
WORKER_TOKEN_PREFIX = "osmw_"
TICKET_PREFIX = "osmt_"
DEFAULT_TTL = timedelta(days=90)
SHORTEST_PASSWORD = 10
_LONGEST_PASSWORD = 1024
# More often would make every read of a busy client a write.
_USE_NOTED_EVERY = timedelta(minutes=1)
# Every request asks this; a statement that is built once is also compiled once.
_TOKEN_AND_USER = (
    select(DbToken, DbUser)
    .join(DbUser, DbUser.id == DbToken.user_id)
    .where(DbToken.token_hash == bindparam("digest"))
)


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request and the token it came with."""

    user: DbUser
    token: DbToken

    def may_revoke(self, token: DbToken) -> bool:
        """Return whether this token can revoke another one: of its user, and of its workspace if it has one."""
        same_workspace = self.token.workspace_id in (None, token.workspace_id)
        return token.user_id == self.user.id and same_workspace


@dataclass(frozen=True, slots=True)
class FirstLogin:
    """How to sign in to a new platform; the password is shown only now."""

    email: str
    password: str = field(repr=False)
    user_id: str
    workspace_id: str
    workspace_name: str


class TokenRejected(ApiError):
    """A token is not valid."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(401, reason, message, headers={"WWW-Authenticate": "Bearer"})


class AccountStore:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    # -- users -------------------------------------------------------------------------------

    def create_user(
        self, email: str, *, name: str | None = None, password: str | None = None, is_admin: bool = False
    ) -> DbUser:
        """Add a user; without a password they cannot sign in in a browser."""
        user = DbUser(
            id=new_id("usr"),
            email=_normal_email(email),
            name=name.strip() or None if name else None,
            password_hash=_hash_password(password) if password is not None else None,
            is_admin=is_admin,
            created_at=self._clock.now(),
        )
        try:
            with self._db.transaction() as session:
                session.add(user)
        except IntegrityError:
            raise ConflictError(f"the user {user.email} already exists.") from None
        return user

    def find_user(self, email: str) -> DbUser:
        address = _normal_email(email)
        user = self._db.scalar(select(DbUser).where(DbUser.email == address))
        if user is None:
            raise NotFoundError(
                f"there is no user {address}.", hint=f"add one with `osmosis platform user add {address}`"
            )
        return user

    def users(self) -> list[DbUser]:
        return self._db.scalars(select(DbUser).order_by(DbUser.email))

    def set_password(self, email: str, password: str, *, revoke_tokens: bool = False) -> int:
        """Replace a user's password, and end their sessions and the device logins they have approved."""
        user = self.find_user(email)
        hashed = _hash_password(password)
        with self._db.transaction() as session:
            session.execute(update(DbUser).where(DbUser.id == user.id).values(password_hash=hashed))
            return self.end_sessions(session, user.id, revoke_tokens=revoke_tokens)

    def end_sessions(self, session: Session, user_id: str, *, revoke_tokens: bool = False) -> int:
        """End a user's sessions as part of the caller's transaction; return how many rows ended."""
        session.execute(delete(DbDeviceLogin).where(DbDeviceLogin.user_id == user_id))
        now = self._clock.now()
        query = select(DbToken).where(
            DbToken.user_id == user_id,
            DbToken.revoked_at.is_(None),
            or_(DbToken.expires_at.is_(None), DbToken.expires_at > now),
        )
        ended = session.scalars(query if revoke_tokens else query.where(DbToken.kind == "web")).all()
        for token in ended:
            token.revoked_at = now
        return len(ended)

    def check_password(self, email: str, password: str) -> DbUser | None:
        """Return the user with this address and password, after the same work whether or not one exists."""
        from argon2.exceptions import VerificationError

        user = self._db.scalar(select(DbUser).where(DbUser.email == email.strip().lower()))
        expected = user.password_hash if user is not None and user.password_hash else _dummy_hash()
        try:
            _hasher().verify(expected, password[:_LONGEST_PASSWORD])
        except VerificationError:
            return None
        return user if user is not None and user.password_hash and user.disabled_at is None else None

    # -- tokens ------------------------------------------------------------------------------

    def create_token(
        self,
        user_id: str,
        kind: TokenKind = "cli",
        *,
        name: str | None = None,
        ttl: timedelta | None = DEFAULT_TTL,
        workspace_id: str | None = None,
        session: Session | None = None,
    ) -> tuple[DbToken, str]:
        """Create a token; return its row and the token itself, which is not stored."""
        now = self._clock.now()
        plain = new_bearer(USER_PREFIX)
        token = DbToken(
            id=new_id("tok"),
            user_id=user_id,
            workspace_id=workspace_id,
            kind=kind,
            name=name,
            token_hash=bearer_hash(plain),
            created_at=now,
            expires_at=now + ttl if ttl is not None else None,
        )
        with nullcontext(session) if session is not None else self._db.transaction() as used:
            used.add(token)
        return token, plain

    def authenticate(self, plain: str, *, kinds: tuple[TokenKind, ...] = ("cli",)) -> Principal:
        """Return whose token this is, and record its use."""
        with self._db.session() as session:
            principal = self.principal(session, plain, kinds=kinds)
        note_use(self._db, self._clock, principal.token)
        return principal

    def principal(
        self, session: Session, plain: str, *, kinds: tuple[TokenKind, ...] = ("cli",)
    ) -> Principal:
        """Return whose token this is, within the caller's session."""
        if plain.startswith((WORKER_TOKEN_PREFIX, TICKET_PREFIX)):
            raise TokenRejected(
                "TOKEN_INVALID",
                "this is a worker's token, good for executing runs alone; log in with `osmosis login`.",
            )
        digest = bearer_hash(plain)
        found = session.execute(_TOKEN_AND_USER, {"digest": digest}).first()
        if (
            found is None
            or not hmac.compare_digest(found[0].token_hash, digest)
            or found[0].kind not in kinds
        ):
            raise TokenRejected("TOKEN_INVALID", "this token does not exist on this platform.")
        token, user = found
        if token.revoked_at is not None:
            raise TokenRejected("TOKEN_REVOKED", "this token has been revoked.")
        if token.expires_at is not None and token.expires_at <= self._clock.now():
            raise TokenRejected("TOKEN_EXPIRED", "this token has expired.")
        if user.disabled_at is not None:
            raise TokenRejected("TOKEN_REVOKED", "the account of this token is disabled.")
        return Principal(user, token)

    def tokens(self, *, user_id: str | None = None) -> list[tuple[DbToken, DbUser]]:
        """Return the tokens of one user or of all users, newest first."""
        query = select(DbToken, DbUser).join(DbUser, DbUser.id == DbToken.user_id)
        if user_id is not None:
            query = query.where(DbToken.user_id == user_id)
        rows = self._db.rows(query.order_by(DbToken.created_at.desc(), DbToken.id.desc()))
        return [(token, user) for token, user in rows]

    def find_token(self, token_id: str) -> DbToken:
        token = self._db.get(DbToken, token_id)
        if token is None:
            raise _no_such_token(token_id)
        return token

    def revoke_token(self, token_id: str, *, by: Principal | None = None) -> DbToken:
        """Revoke a token for good, one of the user's own if ``by`` is given; a second time changes nothing."""
        with self._db.transaction() as session:
            token = session.get(DbToken, token_id)
            if token is None or (by is not None and not by.may_revoke(token)):
                raise _no_such_token(token_id)
            token.revoked_at = token.revoked_at or self._clock.now()
        return token


def new_bearer(prefix: str) -> str:
    """Return a new token of 256 random bits."""
    return prefix + secrets.token_urlsafe(32)


def bearer_hash(plain: str) -> str:
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()


def should_note_use(clock: Clock, token: DbToken | DbWorkerToken) -> bool:
    """Return whether the last recorded use of a token is more than a minute ago."""
    noted = token.last_used_at
    return noted is None or abs(clock.now() - noted) >= _USE_NOTED_EVERY


def note_use(db: Database, clock: Clock, token: DbToken | DbWorkerToken) -> None:
    """Record that ``token`` was used, if :func:`should_note_use`; never fails a request."""
    if not should_note_use(clock, token):
        return
    table = type(token)
    try:
        with db.transaction(wait_s=0) as session:
            session.execute(update(table).where(table.id == token.id).values(last_used_at=clock.now()))
    except (DatabaseBusyError, StorageFullError):
        return


def bootstrap(db: Database, clock: Clock) -> FirstLogin | None:
    """Give an empty platform its first user and workspace."""
    accounts, workspaces = AccountStore(db, clock), WorkspaceStore(db, clock)
    if db.scalar(select(DbUser.id).limit(1)) is not None:
        return None
    password = secrets.token_urlsafe(12)
    user = accounts.create_user("admin@localhost", name="Admin", password=password, is_admin=True)
    home = workspaces.create("default")
    workspaces.add_member(home.id, user.id, "owner")
    return FirstLogin(user.email, password, user.id, home.id, home.name)


def _no_such_token(token_id: str) -> NotFoundError:
    return NotFoundError(
        f"there is no token '{token_id}'.", hint="see them with `osmosis platform token list`"
    )


def _normal_email(email: str) -> str:
    address = email.strip().lower()
    local, at, domain = address.rpartition("@")
    if (
        not (local and at and domain)
        or len(address) > 320
        or any(c.isspace() or not c.isprintable() for c in address)
    ):
        raise OsmosisError(f"'{email}' is not an e-mail address.", hint="write it as name@example.com")
    return address


def _hash_password(password: str) -> str:
    if not SHORTEST_PASSWORD <= len(password) <= _LONGEST_PASSWORD:
        raise OsmosisError(
            f"a password needs at least {SHORTEST_PASSWORD} characters (and at most {_LONGEST_PASSWORD})."
        )
    return _hasher().hash(password)


@lru_cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher()


@lru_cache
def _dummy_hash() -> str:
    """A hash that no password has, so that an unknown address takes as long to refuse as a known one."""
    return _hasher().hash(secrets.token_urlsafe(32))
