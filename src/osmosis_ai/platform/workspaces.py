"""Workspaces, their members and connected repositories; and the search for what a workspace has, by name.

A repository belongs to exactly one workspace, and an identity (the clients' ``X-Osmosis-Git``) means one repository on
the whole platform. A repository may have several identities, because clients derive them from their origin. A request
can access the workspace of its repository if the user is a member.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast, get_args

from sqlalchemy import ColumnElement, Select, bindparam, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai.api.git_identity import identify_origin, parse_identity
from osmosis_ai.config.issues import closest, nearest
from osmosis_ai.errors import ConflictError, NotFoundError, OsmosisError
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import (
    DbMembership,
    DbRepository,
    DbRepositoryIdentity,
    DbRun,
    DbUser,
    DbWorkspace,
    new_id,
)
from osmosis_ai.platform.gitsync.git import parse_clone_url

Role = Literal["owner", "admin", "member"]
ROLES: tuple[Role, ...] = get_args(Role)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# The pages of a workspace are at `/<name>/…`, next to these.
_TAKEN_PATHS = frozenset({"api", "blobs", "cli-auth", "device", "health", "login", "logout", "static", "v1"})

# A wrong name is compared with so many, and so many similar ones are suggested.
_COMPARED, _SUGGESTED = 1000, 3

_OF_USER = (
    select(DbWorkspace, DbMembership.role, DbRepository)
    .join(DbMembership, DbMembership.workspace_id == DbWorkspace.id)
    .outerjoin(DbRepository, DbRepository.workspace_id == DbWorkspace.id)
    .where(DbMembership.user_id == bindparam("user_id"))
    .order_by(DbWorkspace.name, DbRepository.created_at, DbRepository.id)
)


class WorkspaceStore:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def create(self, name: str) -> DbWorkspace:
        if not _NAME.fullmatch(name) or name.lower() in _TAKEN_PATHS:
            raise OsmosisError(
                f"'{name}' cannot be a workspace's name.",
                hint="use up to 64 letters, digits, `-`, `_` and `.`, beginning with a letter or digit",
            )
        workspace = DbWorkspace(id=new_id("wsp"), name=name, created_at=self._clock.now())
        taken = ConflictError(f"the workspace '{name}' already exists.")
        try:
            with self._db.transaction() as session:
                if session.scalar(select(DbWorkspace).where(_is_named(name))) is not None:
                    raise taken
                session.add(workspace)
        except IntegrityError:
            raise taken from None
        return workspace

    def find(self, name_or_id: str) -> DbWorkspace:
        meant = (DbWorkspace.id == name_or_id) | _is_named(name_or_id)
        workspace = self._db.scalar(select(DbWorkspace).where(meant))
        if workspace is None:
            raise NotFoundError(
                f"there is no workspace '{name_or_id}'.",
                hint=f"add one with `osmosis platform workspace add {name_or_id}`",
            )
        return workspace

    def all(self) -> list[DbWorkspace]:
        return self._db.scalars(select(DbWorkspace).order_by(DbWorkspace.name))

    def add_member(self, workspace_id: str, user_id: str, role: Role = "member") -> DbMembership:
        """Add a member, or change a member's role; the last owner stays one."""
        with self._db.transaction() as session:
            membership = session.get(DbMembership, (workspace_id, user_id))
            if role != "owner":
                _require_another_owner(session, workspace_id, user_id)
            if membership is None:
                membership = DbMembership(
                    workspace_id=workspace_id, user_id=user_id, role=role, created_at=self._clock.now()
                )
                session.add(membership)
            membership.role = role
        return membership

    def remove_member(self, workspace_id: str, user_id: str) -> None:
        """Remove a member, but not the last owner; harmless for other users."""
        membership = (DbMembership.workspace_id == workspace_id, DbMembership.user_id == user_id)
        with self._db.transaction() as session:
            _require_another_owner(session, workspace_id, user_id)
            session.execute(delete(DbMembership).where(*membership))

    def require_member(self, workspace: DbWorkspace, user: DbUser) -> None:
        if not self.has_member(user.id, workspace.id):
            raise NotFoundError(
                f"{user.email} is not a member of {workspace.name}.",
                hint=f"add them with `osmosis platform member add {workspace.name} {user.email}`",
            )

    def quickstart_intent(self, workspace_id: str, user_id: str) -> str | None:
        """Return what a member chose to do first; None before."""
        membership = self._db.get(DbMembership, (workspace_id, user_id))
        return membership.quickstart_intent if membership is not None else None

    def record_quickstart(self, workspace_id: str, user_id: str, intent: str) -> None:
        with self._db.transaction() as session:
            membership = session.get(DbMembership, (workspace_id, user_id))
            if membership is not None:
                membership.quickstart_intent = intent

    def has_member(self, user_id: str, workspace_id: str | None) -> bool:
        """Return whether a user is a member of a workspace; of any one, if none is named."""
        memberships = select(DbMembership.user_id).where(DbMembership.user_id == user_id)
        if workspace_id is not None:
            memberships = memberships.where(DbMembership.workspace_id == workspace_id)
        return self._db.scalar(memberships.limit(1)) is not None

    def members(self, workspace_id: str) -> list[tuple[DbUser, Role]]:
        """Return the members of a workspace with their roles, by address."""
        members = (
            select(DbUser, DbMembership.role)
            .join(DbMembership, DbMembership.user_id == DbUser.id)
            .where(DbMembership.workspace_id == workspace_id)
            .order_by(DbUser.email)
        )
        return [(user, cast(Role, role)) for user, role in self._db.rows(members)]

    def repositories(self, workspace_id: str) -> list[DbRepository]:
        """Return the repositories of a workspace, the first connected first."""
        found = select(DbRepository).where(DbRepository.workspace_id == workspace_id)
        return self._db.scalars(found.order_by(DbRepository.created_at, DbRepository.id))

    def of_user(
        self, user_id: str, only: str | None = None
    ) -> list[tuple[DbWorkspace, Role, list[DbRepository]]]:
        """Return the workspaces of a user by name, each with the user's role and the connected repositories.

        ``only`` is the id of the one workspace that a token gives access to.
        """
        found: dict[str, tuple[DbWorkspace, Role, list[DbRepository]]] = {}
        with self._db.session() as session:
            for workspace, role, repository in session.execute(_OF_USER, {"user_id": user_id}):
                _, _, repositories = found.setdefault(workspace.id, (workspace, cast(Role, role), []))
                if repository is not None:
                    repositories.append(repository)
        return [each for each in found.values() if only in (None, each[0].id)]

    def identities(self, repository_id: str) -> list[str]:
        """Return the identities of a repository, in alphabetical order."""
        identity = DbRepositoryIdentity.identity
        found = select(identity).where(DbRepositoryIdentity.repository_id == repository_id)
        return self._db.scalars(found.order_by(identity))

    def find_repository(self, name: str) -> DbRepository:
        """Return a repository by any of its identities, its id or its clone URL."""
        with self._db.session() as session:
            by_identity = (
                select(DbRepository)
                .join(DbRepositoryIdentity, DbRepositoryIdentity.repository_id == DbRepository.id)
                .where(DbRepositoryIdentity.identity == name.lower())
            )
            named = (DbRepository.id == name) | (DbRepository.clone_url == name)
            found = session.scalar(by_identity) or session.scalar(select(DbRepository).where(named))
            if found is None:
                known = session.scalars(select(DbRepositoryIdentity.identity)).all()
        if found is None:
            near = closest(name, known)
            listing = "`osmosis platform repository list` lists them"
            raise NotFoundError(
                f"no repository '{name}' is connected.", hint=f"did you mean {near}?" if near else listing
            )
        return found

    def waiting_runs(self, repository_id: str) -> list[str]:
        """Return the names of the pending runs of a repository, which still need its code."""
        waiting = select(DbRun.name).where(DbRun.repository_id == repository_id, DbRun.status == "pending")
        return self._db.scalars(waiting.order_by(DbRun.created_at, DbRun.id))

    def disconnect_repository(self, repository_id: str) -> None:
        """Delete a repository with its identities and rollouts; its runs stay."""
        with self._db.transaction() as session:
            session.execute(delete(DbRepository).where(DbRepository.id == repository_id))

    def connect_repository(
        self,
        workspace_id: str,
        identity: str,
        clone_url: str,
        *,
        also_known_as: Sequence[str] = (),
        default_branch: str | None = None,
    ) -> DbRepository:
        """Connect a repository, or change the identity and clone URL of a connected one."""
        known_as = parse_identity(identity)
        source = checked_clone_url(clone_url)
        names = {known_as, *also_known_as, *_identities_of(source)}
        with self._db.transaction() as session:
            owners = _owners(session, names)
            repository = owners.get(known_as)
            if repository is None:
                same = (owners[name] for name in sorted(owners))
                mine = (it for it in same if (it.workspace_id, it.clone_url) == (workspace_id, source))
                repository = next(mine, None)
            if repository is None:
                repository = DbRepository(
                    id=new_id("rep"), workspace_id=workspace_id, created_at=self._clock.now()
                )
            elif repository.workspace_id != workspace_id:
                raise ConflictError(
                    f"{known_as} is connected to another workspace.",
                    hint="a repository belongs to one workspace; choose another identity with --identity",
                )
            elif repository.clone_url != source:
                repository.last_synced_sha = repository.last_synced_at = repository.sync_error = None
            repository.identity = known_as
            repository.clone_url = source
            repository.default_branch = default_branch or repository.default_branch
            session.add(repository)
            session.flush()
            session.add_all(
                DbRepositoryIdentity(identity=name, repository_id=repository.id)
                for name in names - owners.keys()
            )
        return repository


def _is_named(name: str) -> ColumnElement[bool]:
    return func.lower(DbWorkspace.name) == name.lower()


def _require_another_owner(session: Session, workspace_id: str, user_id: str) -> None:
    """Raise a ConflictError if this user is the workspace's only owner."""
    owners = set(
        session.scalars(
            select(DbMembership.user_id)
            .where(DbMembership.workspace_id == workspace_id, DbMembership.role == "owner")
            .with_for_update()
        )
    )
    if owners == {user_id}:
        workspace, user = session.get_one(DbWorkspace, workspace_id), session.get_one(DbUser, user_id)
        raise last_owner(user.email, [workspace.name])


def last_owner(email: str, workspaces: Sequence[str]) -> ConflictError:
    """Return the error for a change that would leave workspaces without an owner."""
    return ConflictError(
        f"{email} is the last owner of {', '.join(workspaces)}.",
        details={"email": email, "workspaces": [*workspaces]},
        hint=f"add another first: osmosis platform member add {workspaces[0]} EMAIL --role owner",
    )


def _owners(session: Session, identities: Iterable[str]) -> dict[str, DbRepository]:
    rows = session.execute(
        select(DbRepositoryIdentity.identity, DbRepository)
        .join(DbRepository, DbRepository.id == DbRepositoryIdentity.repository_id)
        .where(DbRepositoryIdentity.identity.in_(identities))
    )
    return {row[0]: row[1] for row in rows}


def _identities_of(clone_url: str) -> list[str]:
    """Return the identity that clients derive from this clone URL, if it can be an origin."""
    try:
        return [identify_origin(clone_url).identity]
    except OsmosisError:
        return []


def checked_clone_url(clone_url: str) -> str:
    """Return the address for Git; refuse credentials, which would be stored readable in the database."""
    parsed = parse_clone_url(clone_url)
    if parsed.username or parsed.password:
        raise OsmosisError(
            "a clone URL must not carry credentials.",
            hint="connect over SSH, or name a Git credential helper in `git/config` of the platform's data directory",
        )
    if parsed.transport in ("http", "https") and "?" in parsed.address:
        raise OsmosisError("a clone URL must not have a query: it may contain credentials.")
    return parsed.address


# -- by name -------------------------------------------------------------------------------------------


class NoSuchNameError(NotFoundError):
    """A workspace has nothing of this name; ``nearest`` are similar names."""

    def __init__(
        self, message: str, *, nearest: Sequence[str], meant: str | None = None, otherwise: str | None = None
    ) -> None:
        details = {"suggestion": meant} if meant else None
        super().__init__(message, details=details, hint=f"did you mean {meant}?" if meant else otherwise)
        self.nearest = nearest


def row_named(
    session: Session, rows: Select[Any], table: Any, name_or_id: str, *, called: str, otherwise: str
) -> Any:
    """Return the one of ``rows`` with this name, or else this id."""
    for column in (table.name, table.id):
        row = session.execute(rows.where(column == name_or_id)).first()
        if row is not None:
            return row
    names = rows.with_only_columns(table.name).order_by(table.created_at.desc())
    raise no_such_name(session, called, name_or_id, names, otherwise)


def no_such_name(
    session: Session, called: str, wanted: str, names: Select[str], otherwise: str | None
) -> NoSuchNameError:
    near = nearest(wanted[:255], session.scalars(names.limit(_COMPARED)), most=_SUGGESTED, cutoff=0)
    message = f"there is no {called} '{wanted[:200]}' in this workspace."
    return NoSuchNameError(message, nearest=near, meant=closest(wanted[:255], near), otherwise=otherwise)
