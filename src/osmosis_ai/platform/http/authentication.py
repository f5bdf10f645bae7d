"""Authentication and authorization: the user and workspace of a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar, cast

from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import and_, bindparam, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from osmosis_ai.api.git_identity import parse_identity
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.accounts import Principal, note_use, should_note_use
from osmosis_ai.platform.db.tables import (
    DbMembership,
    DbRepository,
    DbRepositoryIdentity,
    DbUser,
    DbWorkspace,
)
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.workspaces import ROLES, Role

_Found = TypeVar("_Found")
_BEARER = HTTPBearer(
    auto_error=False, description="A token from `osmosis login` or `osmosis platform token create`."
)

# Built once, because every request executes it.
_REPOSITORY_AND_ROLE = (
    select(DbRepository, DbWorkspace, DbMembership.role)
    .join(DbRepositoryIdentity, DbRepositoryIdentity.repository_id == DbRepository.id)
    .join(DbWorkspace, DbWorkspace.id == DbRepository.workspace_id)
    .outerjoin(
        DbMembership,
        and_(DbMembership.workspace_id == DbWorkspace.id, DbMembership.user_id == bindparam("user_id")),
    )
    .where(DbRepositoryIdentity.identity == bindparam("identity"))
)


@dataclass(frozen=True, slots=True)
class Scope:
    """One user's view of one workspace."""

    principal: Principal
    workspace: DbWorkspace
    named_repository: DbRepository | None
    role: Role

    @property
    def repository(self) -> DbRepository:
        """The repository that the request names; refuses with 400 if it names only a workspace."""
        if self.named_repository is None:
            message = "this request needs the X-Osmosis-Git header (owner/repo)."
            raise ApiError(400, "GIT_SCOPE_HEADER_REQUIRED", message)
        return self.named_repository

    @property
    def workspace_id(self) -> str:
        """The workspace by which every query is filtered."""
        return self.workspace.id

    @property
    def user(self) -> DbUser:
        return self.principal.user

    def require_role(self, lowest: Role) -> None:
        """Refuse with 403 unless the user is at least ``lowest`` here."""
        if ROLES.index(self.role) > ROLES.index(lowest):
            message = f"this requires the role '{lowest}' in the workspace '{self.workspace.name}'."
            raise ApiError(403, "ROLE_REQUIRED", message)

    def require_maker(self, creator_id: str | None, what: str) -> None:
        """Refuse with 403 unless the user created ``what`` (a noun with its article) or is an admin."""
        if creator_id != self.user.id and ROLES.index(self.role) > ROLES.index("admin"):
            message = (
                f"only an admin of the workspace '{self.workspace.name}' can delete {what} of another user."
            )
            raise ApiError(403, "ROLE_REQUIRED", message)


async def get_services(request: Request) -> PlatformServices:
    services: PlatformServices = request.app.state.services
    return services


Services = Annotated[PlatformServices, Depends(get_services)]
GitHeader = Annotated[
    str | None, Header(alias="X-Osmosis-Git", description="The repository's identity: `owner/repo`.")
]
WorkspaceHeader = Annotated[
    str | None,
    Header(alias="X-Osmosis-Workspace", description="A workspace's name, where no repository is needed."),
]
_Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]


async def require_principal(request: Request, services: Services, _bearer: _Bearer = None) -> Principal:
    return await _authenticated(request, services, lambda _, principal: principal)


async def require_scope(
    request: Request,
    services: Services,
    git: GitHeader = None,
    workspace: WorkspaceHeader = None,
    _bearer: _Bearer = None,
) -> Scope:
    return await _authenticated(
        request, services, lambda session, principal: resolve_scope(session, principal, git, workspace)
    )


async def _authenticated(
    request: Request, services: PlatformServices, resolve: Callable[[Session, Principal], _Found]
) -> _Found:
    """Return what ``resolve`` finds for the user of a request, and record the use of the token."""
    plain = bearer_token(request)

    def read(session: Session) -> tuple[Principal, _Found]:
        principal = services.accounts.principal(session, plain)
        return principal, resolve(session, principal)

    principal, found = await services.db.read(read)
    if should_note_use(services.clock, principal.token):
        await run_in_threadpool(note_use, services.db, services.clock, principal.token)
    return found


Authenticated = Annotated[Principal, Depends(require_principal)]
"""The user and token of a request, with any valid token of the command line."""

WorkspaceScope = Annotated[Scope, Depends(require_scope)]
"""The user and workspace of a request."""


def resolve_scope(
    session: Session, principal: Principal, git: str | None, workspace: str | None = None
) -> Scope:
    """Return the user's view of the workspace of the repository in ``X-Osmosis-Git``, or of the named workspace."""
    if git is None or not git.strip():
        if workspace:
            return _scope_by_name(session, principal, workspace)
        message = "this request needs the X-Osmosis-Git header (owner/repo)."
        raise ApiError(400, "GIT_SCOPE_HEADER_REQUIRED", message)
    try:
        identity = parse_identity(git)
    except OsmosisError:
        message = "X-Osmosis-Git must be a repository's identity: owner/repo."
        raise ApiError(400, "GIT_SCOPE_HEADER_INVALID", message) from None
    found = session.execute(
        _REPOSITORY_AND_ROLE, {"identity": identity, "user_id": principal.user.id}
    ).first()
    if found is None:
        raise ApiError(
            404,
            "GIT_REPOSITORY_NOT_CONNECTED",
            f"{identity} is not connected to a workspace; on the platform's machine run "
            f"`osmosis platform connect URL --identity {identity}`.",
        )
    repository, home, role = found
    if role is None:
        message = f"you are not a member of the workspace of {identity}."
        raise ApiError(403, "GIT_REPOSITORY_ACCESS_DENIED", message)
    if principal.token.workspace_id not in (None, home.id):
        message = f"this token does not give access to the workspace of {identity}."
        raise ApiError(403, "GIT_SCOPE_HEADER_ACCESS_DENIED", message)
    return Scope(principal, home, repository, cast(Role, role))


def _scope_by_name(session: Session, principal: Principal, name: str) -> Scope:
    found = session.execute(
        select(DbWorkspace, DbMembership.role)
        .join(DbMembership, DbMembership.workspace_id == DbWorkspace.id)
        .where(DbWorkspace.name == name, DbMembership.user_id == principal.user.id)
    ).first()
    if found is None or principal.token.workspace_id not in (None, found[0].id):
        message = (
            f"you are not a member of a workspace named {name[:100]!r}, or this token is for another one."
        )
        raise ApiError(403, "WORKSPACE_ACCESS_DENIED", message)
    return Scope(principal, found[0], None, cast(Role, found[1]))


def bearer_token(request: Request) -> str:
    header = request.headers.get("authorization")
    if header is None:
        raise unauthorized("AUTH_HEADER_MISSING", "this request needs an Authorization header.")
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthorized("TOKEN_MISSING", "the Authorization header must have the form `Bearer TOKEN`.")
    return token.strip()


def unauthorized(code: str, message: str) -> ApiError:
    return ApiError(401, code, message, headers={"WWW-Authenticate": "Bearer"})
