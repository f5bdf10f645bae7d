"""Environment secrets, write-only except for the process of a run.

A secret belongs to a workspace or to one of its members. A member's own secret overrides the workspace's of the
same name. Rows hold sealed values, and only :func:`resolve_secrets` returns plain ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from sqlalchemy import ColumnElement, and_, bindparam, select
from sqlalchemy.exc import IntegrityError

from osmosis_ai.config.checks import LOGIN_TOKEN, LONGEST_SECRET_NAME, SECRET_NAME, is_secret_name
from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.keyset import PagedRows
from osmosis_ai.platform.db.tables import DbSecret, DbSecretAccess, new_id
from osmosis_ai.platform.vault import Vault, sealing_context
from osmosis_ai.viewer.source import ItemPage

SecretScope = Literal["workspace", "user"]
ResolvedScope = Literal["workspace", "user", "user_override"]
SECRET_SCOPES: tuple[SecretScope, ...] = get_args(SecretScope)

MAX_VALUE_BYTES = 64 * 1024

_BY_NAME = PagedRows(
    DbSecret,
    and_(
        DbSecret.workspace_id == bindparam("workspace_id"),
        DbSecret.owner_id.in_(bindparam("owners", expanding=True)),
    ),
    *(DbSecret.name, DbSecret.scope),
)
_ACCESSES: PagedRows[DbSecretAccess] = PagedRows.newest(DbSecretAccess)


class MissingSecretsError(NotFoundError):
    """Some secrets of a run are not stored. Clients read the names out of the message."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"Secret(s) not found: {', '.join(names)}",
            hint=f"store each with `osmosis secret set NAME`, for instance `osmosis secret set {names[0]}`",
            details={"missing": list(names)},
        )
        self.names = tuple(names)


class ResolvedSecret(NamedTuple):
    """A value for a run and its scope; its repr has only the scope."""

    value: str
    scope: ResolvedScope

    def __repr__(self) -> str:
        return f"ResolvedSecret(scope={self.scope!r})"


class SecretStore:
    def __init__(self, db: Database, vault: Vault, clock: Clock) -> None:
        self._db = db
        self._vault = vault
        self._clock = clock

    def page(
        self,
        workspace_id: str,
        user_id: str,
        scopes: Iterable[SecretScope] = SECRET_SCOPES,
        *,
        limit: int,
        offset: int | None = None,
        cursor: str | None = None,
    ) -> ItemPage[DbSecret]:
        """Return a page of the secrets that a user may see, by name."""
        visible = {"workspace_id": workspace_id, "owners": [_owner(user_id, scope) for scope in scopes]}
        with self._db.session() as session:
            return _BY_NAME.page(session, visible, limit=limit, offset=offset, cursor=cursor)

    def accesses(
        self, workspace_id: str, *, limit: int, offset: int | None = None, cursor: str | None = None
    ) -> ItemPage[DbSecretAccess]:
        """Return a page of the secret access log, newest first."""
        mine = {"workspace_id": workspace_id}
        with self._db.session() as session:
            return _ACCESSES.page(session, mine, limit=limit, offset=offset, cursor=cursor)

    def put(self, workspace_id: str, user_id: str, name: str, value: str, scope: SecretScope) -> DbSecret:
        """Store a secret, or replace its value."""
        _check_name(name)
        if name == LOGIN_TOKEN:
            raise OsmosisError(f"the name of a secret is reserved: {name}.", details={"field": "name"})
        plaintext = _checked_value(value)
        try:
            return self._put(workspace_id, user_id, name, plaintext, scope)
        except IntegrityError:
            # Another process created it a moment ago.
            return self._put(workspace_id, user_id, name, plaintext, scope)

    def _put(
        self, workspace_id: str, user_id: str, name: str, plaintext: bytes, scope: SecretScope
    ) -> DbSecret:
        now = self._clock.now()
        with self._db.transaction() as session:
            secret = session.scalar(select(DbSecret).where(_one(workspace_id, user_id, name, scope)))
            if secret is None:
                secret = DbSecret(
                    id=new_id("sec"),
                    workspace_id=workspace_id,
                    scope=scope,
                    owner_id=_owner(user_id, scope),
                    name=name,
                    creator_id=user_id,
                    created_at=now,
                )
                session.add(secret)
            secret.sealed = self._vault.seal(plaintext, context=sealing_context(secret))
            secret.updater_id = user_id
            secret.updated_at = now
            session.flush()
            session.refresh(secret)
        return secret

    def delete(self, workspace_id: str, user_id: str, name: str, scope: SecretScope) -> None:
        wanted = select(DbSecret).where(_one(workspace_id, user_id, name, scope))
        with self._db.transaction() as session:
            # Not every database accepts every text, so only valid names are looked up.
            secret = session.scalar(wanted) if is_secret_name(name) else None
            if secret is None:
                kind = "personal" if scope == "user" else "workspace"
                raise NotFoundError(f"there is no {kind} secret '{name[:255]}'.")
            session.delete(secret)


def resolve_scopes(
    db: Database, workspace_id: str, user_id: str, names: Sequence[str]
) -> dict[str, ResolvedScope]:
    """Return where each secret of a run would come from, without opening any."""
    return {name: scope for name, (_, scope) in _find(db, workspace_id, user_id, names).items()}


def resolve_secrets(
    db: Database, vault: Vault, workspace_id: str, user_id: str, names: Sequence[str]
) -> dict[str, ResolvedSecret]:
    """Return the value of each secret of a run; a member's own overrides the workspace's."""
    return {
        name: ResolvedSecret(vault.open(secret.sealed, context=sealing_context(secret)).decode(), scope)
        for name, (secret, scope) in _find(db, workspace_id, user_id, names).items()
    }


def _check_name(name: str) -> None:
    if not is_secret_name(name):
        # Users may confuse name and value, so the name is not repeated.
        raise OsmosisError(
            f"the name of a secret must match ^{SECRET_NAME.pattern}$ and have at most "
            f"{LONGEST_SECRET_NAME} characters.",
            details={"field": "name"},
        )


def _checked_value(value: str) -> bytes:
    try:
        plaintext = value.encode("utf-8")
    except UnicodeEncodeError:
        raise OsmosisError("the value of a secret must be valid Unicode text.") from None
    if not plaintext:
        raise OsmosisError("the value of a secret must not be empty.")
    if b"\0" in plaintext:
        raise OsmosisError("the value of a secret must not contain NUL: no environment variable can hold it.")
    if len(plaintext) > MAX_VALUE_BYTES:
        raise OsmosisError(
            f"the value of a secret may have {MAX_VALUE_BYTES // 1024} KiB at most; this one has "
            f"{len(plaintext)} bytes."
        )
    return plaintext


def _find(
    db: Database, workspace_id: str, user_id: str, names: Sequence[str]
) -> dict[str, tuple[DbSecret, ResolvedScope]]:
    wanted = and_(_visible(workspace_id, user_id, SECRET_SCOPES), DbSecret.name.in_(names))
    rows = db.scalars(select(DbSecret).where(wanted)) if names else []
    found: dict[str, dict[str, DbSecret]] = {}
    for secret in rows:
        found.setdefault(secret.name, {})[secret.scope] = secret
    if missing := [name for name in dict.fromkeys(names) if name not in found]:
        raise MissingSecretsError(missing)
    resolved: dict[str, tuple[DbSecret, ResolvedScope]] = {}
    for name in names:
        personal, shared = found[name].get("user"), found[name].get("workspace")
        if personal is not None:
            resolved[name] = personal, "user_override" if shared is not None else "user"
        elif shared is not None:
            resolved[name] = shared, "workspace"
    return resolved


def _visible(workspace_id: str, user_id: str, scopes: Iterable[SecretScope]) -> ColumnElement[bool]:
    owners = [_owner(user_id, scope) for scope in scopes]
    return and_(DbSecret.workspace_id == workspace_id, DbSecret.owner_id.in_(owners))


def _one(workspace_id: str, user_id: str, name: str, scope: SecretScope) -> ColumnElement[bool]:
    return and_(_visible(workspace_id, user_id, [scope]), DbSecret.name == name)


def _owner(user_id: str, scope: SecretScope) -> str:
    return user_id if scope == "user" else ""
