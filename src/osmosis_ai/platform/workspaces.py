"""Workspaces, their members and connected repositories.

A repository belongs to exactly one workspace, and an identity (the clients' ``X-Osmosis-Git``) means one repository on
the whole platform. A repository may have several identities, because clients derive them from their origin. A request
can access the workspace of its repository if the user is a member.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, cast, get_args

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai.api.git_identity import identify_origin, parse_identity
from osmosis_ai.config.issues import closest
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
from osmosis_ai.platform.gitsync.clone_url import parse_clone_url

Role = Literal["owner", "admin", "member"]
ROLES: tuple[Role, ...] = get_args(Role)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# A workspace has its pages at `/<name>/…`, beside these.
_TAKEN_PATHS = frozenset({"api", "blobs", "cli-auth", "device", "health", "login", "logout", "static", "v1"})

_OF_USER = (
    select(DbWorkspace, DbMembership.role, DbRepository)
    .join(DbMembership, DbMembership.workspace_id == DbWorkspace.id)
    .outerjoin(DbRepository, DbRepository.workspace_id == DbWorkspace.id)
    .where(DbMembership.user_id == bindparam("user_id"))
    .order_by(DbWorkspace.name, DbRepository.created_at, DbRepository.id)
)


class WorkspaceStore:
    """The workspaces of one platform."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def create(self, name: str) -> DbWorkspace:
        """Add a workspace."""
        if not _NAME.fullmatch(name) or name.lower() in _TAKEN_PATHS:
            raise OsmosisError(
                f"'{name}' cannot be a workspace's name.",
                hint="use up to 64 letters, digits, `-`, `_` and `.`, beginning with a letter or digit",
            )
        workspace = DbWorkspace(id=new_id("wsp"), name=name, created_at=self._clock.now())
        try:
            with self._db.transaction() as session:
                taken = select(DbWorkspace.name).where(func.lower(DbWorkspace.name) == name.lower())
                if session.scalar(taken) is not None:
                    raise ConflictError(f"there is a workspace '{name}' already.")
                session.add(workspace)
        except IntegrityError as error:
            raise ConflictError(f"there is a workspace '{name}' already.") from error
        return workspace

    def find(self, name_or_id: str) -> DbWorkspace:
        """Return a workspace by its name or id."""
        with self._db.session() as session:
            workspace = session.scalar(
                select(DbWorkspace).where(
                    (DbWorkspace.id == name_or_id) | (func.lower(DbWorkspace.name) == name_or_id.lower())
                )
            )
        if workspace is None:
            raise NotFoundError(
                f"there is no workspace '{name_or_id}'.",
                hint=f"add one with `osmosis platform workspace add {name_or_id}`",
            )
        return workspace

    def all(self) -> list[DbWorkspace]:
        """Return every workspace, by name."""
        with self._db.session() as session:
            return list(session.scalars(select(DbWorkspace).order_by(DbWorkspace.name)))

    def add_member(self, workspace_id: str, user_id: str, role: Role = "member") -> DbMembership:
        """Let a user in, or change the role of one who is."""
        with self._db.transaction() as session:
            membership = session.get(DbMembership, (workspace_id, user_id))
            if membership is None:
                membership = DbMembership(
                    workspace_id=workspace_id, user_id=user_id, role=role, created_at=self._clock.now()
                )
                session.add(membership)
            membership.role = role
        return membership

    def remove_member(self, workspace_id: str, user_id: str) -> None:
        """Take a user out; one who is not in is out already."""
        with self._db.transaction() as session:
            session.execute(
                delete(DbMembership).where(
                    DbMembership.workspace_id == workspace_id, DbMembership.user_id == user_id
                )
            )

    def require_member(self, workspace: DbWorkspace, user: DbUser) -> None:
        """Check that a user is in a workspace."""
        with self._db.session() as session:
            if session.get(DbMembership, (workspace.id, user.id)) is None:
                raise NotFoundError(
                    f"{user.email} is not a member of {workspace.name}.",
                    hint=f"let them in with `osmosis platform member add {workspace.name} {user.email}`",
                )

    def quickstart_intent(self, workspace_id: str, user_id: str) -> str | None:
        """Return what a member chose to do first; None before."""
        with self._db.session() as session:
            membership = session.get(DbMembership, (workspace_id, user_id))
            return membership.quickstart_intent if membership is not None else None

    def record_quickstart(self, workspace_id: str, user_id: str, intent: str) -> None:
        """Note what a member does first."""
        with self._db.transaction() as session:
            membership = session.get(DbMembership, (workspace_id, user_id))
            if membership is not None:
                membership.quickstart_intent = intent

    def has_member(self, user_id: str, workspace_id: str | None) -> bool:
        """Tell whether a user is in a workspace; in any at all, when none is named."""
        with self._db.session() as session:
            of_user = select(DbMembership.user_id).where(DbMembership.user_id == user_id)
            asked = (
                of_user if workspace_id is None else of_user.where(DbMembership.workspace_id == workspace_id)
            )
            return session.scalar(asked.limit(1)) is not None

    def members(self, workspace_id: str) -> list[tuple[DbUser, Role]]:
        """Return who is in a workspace, by address."""
        with self._db.session() as session:
            rows = session.execute(
                select(DbUser, DbMembership.role)
                .join(DbMembership, DbMembership.user_id == DbUser.id)
                .where(DbMembership.workspace_id == workspace_id)
                .order_by(DbUser.email)
            )
            return [(user, cast(Role, role)) for user, role in rows]

    def repositories(self, workspace_id: str) -> list[DbRepository]:
        """Return the repositories of a workspace, the first connected first."""
        with self._db.session() as session:
            return list(
                session.scalars(
                    select(DbRepository)
                    .where(DbRepository.workspace_id == workspace_id)
                    .order_by(DbRepository.created_at, DbRepository.id)
                )
            )

    def of_user(self, user_id: str) -> list[tuple[DbWorkspace, Role, list[DbRepository]]]:
        """Return where a user is a member, by name: the workspace, the role, the repositories connected."""
        found: dict[str, tuple[DbWorkspace, Role, list[DbRepository]]] = {}
        with self._db.session() as session:
            for workspace, role, repository in session.execute(_OF_USER, {"user_id": user_id}):
                _, _, repositories = found.setdefault(workspace.id, (workspace, cast(Role, role), []))
                if repository is not None:
                    repositories.append(repository)
        return list(found.values())

    def identities(self, repository_id: str) -> list[str]:
        """Return every identity under which clients reach a repository, in alphabetical order."""
        with self._db.session() as session:
            return list(
                session.scalars(
                    select(DbRepositoryIdentity.identity)
                    .where(DbRepositoryIdentity.repository_id == repository_id)
                    .order_by(DbRepositoryIdentity.identity)
                )
            )

    def find_repository(self, name: str) -> DbRepository:
        """Return a repository by any of its identities, its id or what it is cloned from."""
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
        """Return the names of runs of a repository that have not begun, and so still need its code."""
        with self._db.session() as session:
            waiting = select(DbRun.name).where(
                DbRun.repository_id == repository_id, DbRun.status == "pending"
            )
            return list(session.scalars(waiting.order_by(DbRun.created_at, DbRun.id)))

    def disconnect_repository(self, repository_id: str) -> None:
        """Take a repository out of its workspace, with its identities and rollouts; its runs stay."""
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
        """Connect a repository, or tell what one that is connected is called and cloned from now."""
        known_as = parse_identity(identity)
        source = checked_clone_url(clone_url)
        names = {known_as, *also_known_as, *_identities_of(source)}
        with self._db.transaction() as session:
            owners = _owners(session, names)
            repository = owners.get(known_as)
            if repository is None:
                same = (owners.get(name) for name in sorted(names))
                repository = next((it for it in same if it and _is_of(it, workspace_id, source)), None)
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


def _owners(session: Session, identities: Iterable[str]) -> dict[str, DbRepository]:
    """Return which repository is reached under each of the identities that are taken."""
    rows = session.execute(
        select(DbRepositoryIdentity.identity, DbRepository)
        .join(DbRepository, DbRepository.id == DbRepositoryIdentity.repository_id)
        .where(DbRepositoryIdentity.identity.in_(identities))
    )
    return {row[0]: row[1] for row in rows}


def _is_of(repository: DbRepository, workspace_id: str, clone_url: str) -> bool:
    return repository.workspace_id == workspace_id and repository.clone_url == clone_url


def _identities_of(clone_url: str) -> list[str]:
    """Return what clients send whose origin is the clone URL itself; nothing where it cannot be an origin."""
    try:
        return [identify_origin(clone_url).identity]
    except OsmosisError:
        return []


def checked_clone_url(clone_url: str) -> str:
    """Return what Git will be given; credentials would lie readable in the database."""
    parsed = parse_clone_url(clone_url, allow_local=True)
    if parsed.username or parsed.password:
        raise OsmosisError(
            "a clone URL must not carry credentials.",
            hint="connect over SSH, or name a Git credential helper in `git/config` of the platform's data directory",
        )
    return parsed.address
