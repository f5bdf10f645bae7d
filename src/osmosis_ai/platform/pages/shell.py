"""The frame of all pages: browser sessions, protection of forms, rendering in the viewer's layout, and routes.

A session is a token in a cookie, which is valid for pages only and for half a day. Forms are protected against CSRF by
double submit of a secret that is masked differently on every page.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import re
import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from http import HTTPStatus
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

from fastapi import APIRouter, Depends, Form, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment
from starlette.responses import Response, StreamingResponse

from osmosis_ai.api.platform_url import is_loopback
from osmosis_ai.config.issues import nearest
from osmosis_ai.errors import NotFoundError
from osmosis_ai.platform.accounts import Principal, TokenRejected
from osmosis_ai.platform.db.tables import DbUser, DbWorkspace
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.errors import ApiError, as_api_error
from osmosis_ai.platform.http.routing import ApiRoute, is_encrypted, root_path, workspace_path
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.platform.workspaces import NoSuchNameError, Role
from osmosis_ai.ui.pages import THEME_COOKIE, NavItem, ShellView, assets, page_headers, templates, theme_of
from osmosis_ai.viewer.access import environment
from osmosis_ai.viewer.queries import require_known, word

SESSION_TTL = timedelta(hours=12)
SESSION_COOKIE = "osmosis_session"
Csrf = Annotated[str, Form(max_length=128)]
"""The form field with the CSRF token."""
STALE_FORM = "This form has expired or was not sent from this page. Try again."
_CSRF_COOKIE = "osmosis_csrf"
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_SECRET_BYTES = 32
_COMPRESSED_FROM_BYTES = 1024

# The pages of a workspace, in the order of their tabs.
TABS = {
    (): "Runs",
    ("evals",): "Evaluations",
    ("training",): "Training",
    ("datasets",): "Datasets",
    ("models",): "Models",
    ("secrets",): "Secrets",
    ("integrations", "git"): "Repositories",
    ("api-keys",): "API keys",
    ("members",): "Members",
}


# -- sessions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visitor:
    """A signed-in user and their workspaces."""

    principal: Principal
    workspaces: Sequence[tuple[DbWorkspace, Role]]

    @property
    def user(self) -> DbUser:
        return self.principal.user

    def workspace(self, name: str) -> tuple[DbWorkspace, Role] | None:
        """Return the visitor's workspace with this name or id."""
        for workspace, role in self.workspaces:
            if name.lower() == workspace.name.lower() or name == workspace.id:
                return workspace, role
        return None


def _visitor(request: Request, services: Services) -> Visitor:
    """Return who has signed in (a dependency)."""
    cookie = request.cookies.get(SESSION_COOKIE, "")
    try:
        principal = services.accounts.authenticate(cookie, kinds=("web",))
    except TokenRejected:
        accept = request.headers.get("accept", "*/*")
        if "text/html" not in accept:
            # The script of a page accepts anything too, but has a session.
            if cookie:
                raise ApiError(401, "SIGN_IN_REQUIRED", "your session has ended: sign in again.") from None
            # Other programs must not get a page.
            if accept != "*/*" or request.url.path.startswith("/api/"):
                raise page_not_found(request) from None
        wanted = request.scope["path"] + (f"?{request.url.query}" if request.url.query else "")
        login = f"{root_path(services)}/login?{urlencode({'next': wanted})}"
        raise ApiError(303, "SIGN_IN_REQUIRED", "sign in first.", headers={"Location": login}) from None
    found = services.workspaces.of_user(principal.user.id)
    return Visitor(principal, [(workspace, role) for workspace, role, _ in found])


SignedIn = Annotated[Visitor, Depends(_visitor)]
"""The signed-in user; others are redirected to the sign-in page."""


def page_not_found(request: Request) -> ApiError:
    """Return the reply to a program that requests a page."""
    return ApiError(404, "ROUTE_NOT_FOUND", f"no route matches {request.method} {request.url.path}.")


def begin_session(services: PlatformServices, user: DbUser, wanted: str) -> Response:
    """Sign a user in, and redirect to the page they wanted."""
    _, plain = services.accounts.create_token(user.id, "web", name="browser", ttl=SESSION_TTL)
    reply = RedirectResponse(root_path(services) + _own_path(wanted), status_code=303)
    reply.set_cookie(
        SESSION_COOKIE,
        plain,
        max_age=int(SESSION_TTL.total_seconds()),
        httponly=True,
        # Not strict: links in mails and chats must work.
        samesite="lax",
        secure=is_encrypted(services),
    )
    return reply


def end_session(services: PlatformServices, visitor: Visitor) -> Response:
    """Sign a user out."""
    services.accounts.revoke_token(visitor.principal.token.id)
    reply = RedirectResponse(f"{root_path(services)}/login", status_code=303)
    reply.delete_cookie(SESSION_COOKIE)
    return reply


def _own_path(wanted: str) -> str:
    """Return a path of this platform: the wanted one, or the first page for anything else."""
    is_own = wanted.startswith("/") and not wanted.startswith("//") and "\\" not in wanted
    return wanted if is_own and wanted.isprintable() and wanted.isascii() else "/"


# -- forms -------------------------------------------------------------------------------------------


def csrf_token(request: Request) -> str:
    """Return a token for the forms of a page, different each time."""
    secret: str | None = getattr(request.state, "csrf_secret", None)
    if secret is None:
        cookie = request.cookies.get(_CSRF_COOKIE, "")
        secret = cookie if _SECRET.fullmatch(cookie) else secrets.token_urlsafe(_SECRET_BYTES)
        request.state.csrf_secret = secret
    mask = secrets.token_bytes(_SECRET_BYTES)
    return base64.urlsafe_b64encode(mask + _xor(mask, _decoded(secret))).decode().rstrip("=")


def set_csrf_cookie(request: Request, reply: Response) -> None:
    """Store the secret of a page's tokens in the browser, if the page has any."""
    secret = getattr(request.state, "csrf_secret", None)
    if secret is not None and secret != request.cookies.get(_CSRF_COOKIE):
        secure = is_encrypted(request.app.state.services)
        reply.set_cookie(_CSRF_COOKIE, secret, httponly=True, samesite="strict", secure=secure)


def is_own_form(request: Request, token: str) -> bool:
    """Whether a form was sent from one of our pages, judged by its token and by the browser's headers."""
    cookie = request.cookies.get(_CSRF_COOKIE, "")
    if not _SECRET.fullmatch(cookie) or _is_cross_site(request):
        return False
    try:
        raw = _decoded(token)
    except (ValueError, binascii.Error):
        return False
    mask, masked = raw[:_SECRET_BYTES], raw[_SECRET_BYTES:]
    return len(masked) == len(mask) and secrets.compare_digest(_xor(mask, masked), _decoded(cookie))


def _is_cross_site(request: Request) -> bool:
    # Servers on other ports of this host share our cookies, so the token alone proves too little.
    site, origin = (request.headers.get(name, "") for name in ("sec-fetch-site", "origin"))
    if site:
        return site not in ("same-origin", "none")
    # Our pages send no referrer, so their forms come from "null".
    if origin in ("", "null"):
        return False
    services: PlatformServices = request.app.state.services
    own = {request.headers.get("host", ""), urlsplit(services.config.base_url).netloc}
    return origin.partition("://")[2] not in own


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


# -- rendering ---------------------------------------------------------------------------------------


def load_templates() -> None:
    """Load everything that pages consist of, before an upgrade on the disk could change it."""
    _environment(), environment(), assets()


def render_page(
    request: Request,
    template: str,
    *,
    status: int = 200,
    form_leads_to: str = "",
    keep: bool = True,
    shell: ShellView | None = None,
    **values: Any,
) -> HTMLResponse:
    """Return a page."""
    shell = shell or shell_of(request)
    shown = {"shell": shell, "csrf": shell.csrf, "root": shell.root, **values}
    text = _environment().get_template(template).render(shown)
    headers = page_headers(form_leads_to=form_leads_to, keep=keep)
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=status, headers=headers)


def shell_of(
    request: Request,
    *,
    user: DbUser | None = None,
    workspace: DbWorkspace | None = None,
    workspaces: Sequence[DbWorkspace] = (),
    tab: Sequence[str] | None = None,
) -> ShellView:
    """Return the layout around a page, with the tabs of the user's workspace and links to the others."""
    services: PlatformServices = request.app.state.services
    root, nav = root_path(services), []
    if workspace is not None:
        below = workspace_path(services, workspace)
        current = tuple(tab) if tab is not None else None
        nav = [
            NavItem(name, "/".join([below, *segments]), segments == current)
            for segments, name in TABS.items()
        ]
    return ShellView(
        workspace=workspace.name if workspace is not None else "",
        workspaces=[
            NavItem(each.name, workspace_path(services, each) + "/evals", each == workspace)
            for each in workspaces
        ]
        if len(workspaces) > 1
        else (),
        nav=nav,
        root=root,
        assets=f"{root}/assets",
        user=user.email if user is not None else None,
        sign_out=f"{root}/logout" if user is not None else None,
        csrf=csrf_token(request),
        theme=theme_of(request.cookies.get(THEME_COOKIE)),
    )


@lru_cache
def _environment() -> Environment:
    return templates(Path(__file__).with_name("templates"))


# -- workspaces --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkspaceVisit:
    """A visitor's request for a page of a workspace."""

    request: Request
    services: PlatformServices
    visitor: Visitor
    workspace: DbWorkspace
    role: Role

    def href(self, *segments: str) -> str:
        """Return the path of a page of the workspace."""
        below = [quote(segment, safe="") for segment in segments]
        return "/".join([workspace_path(self.services, self.workspace), *below])

    def shell(self, tab: Sequence[str] | None) -> ShellView:
        """Return the layout around a page."""
        mine = [workspace for workspace, _ in self.visitor.workspaces]
        return shell_of(
            self.request, user=self.visitor.user, workspace=self.workspace, workspaces=mine, tab=tab
        )

    def page(
        self, template: str, tab: Sequence[str], *, status: int = 200, keep: bool = True, **values: Any
    ) -> HTMLResponse:
        """Return a page."""
        shown = {"shell": self.shell(tab), "visit": self, **values}
        return render_page(self.request, template, status=status, keep=keep, **shown)

    def message(self, title: str, problem: str, *, status: int, tab: Sequence[str]) -> HTMLResponse:
        """Return a page that explains why something was not done."""
        return self.page("message.html", tab, status=status, title=title, problem=problem)


class NoSuchWorkspaceError(NoSuchNameError):
    """The visitor has no workspace of this name, whether or not it exists."""


def workspace_visit(
    request: Request, services: Services, visitor: SignedIn, workspace: str
) -> WorkspaceVisit:
    """Return the visit to a workspace (a dependency)."""
    if (found := visitor.workspace(workspace)) is None:
        names = [each.name for each, _ in visitor.workspaces]
        mine = nearest(workspace[:255], names, most=3, cutoff=0)
        raise NoSuchWorkspaceError(
            f"you are not a member of a workspace named '{workspace[:100]}'.", nearest=mine
        )
    visit = WorkspaceVisit(request, services, visitor, *found)
    request.state.shell_under = visit.shell  # for an error page
    return visit


WorkspacePage = Annotated[WorkspaceVisit, Depends(workspace_visit)]


# -- routes ------------------------------------------------------------------------------------------


def page_router(*, strict: bool = False) -> APIRouter:
    """Return a router of pages; a strict one refuses unknown query parameters."""
    dependencies = [Depends(_require_known_parameters)] if strict else []
    return APIRouter(route_class=PageRoute, redirect_slashes=False, dependencies=dependencies)


def _require_known_parameters(request: Request) -> None:
    require_known(request.query_params, sorted(_parameters(request.scope["route"].dependant)))
    for name in request.query_params:
        word({name: request.query_params.getlist(name)}, name)


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _parameters(each)


class PageRoute(ApiRoute):
    """A route whose errors are pages as well."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                _refuse_foreign_host(request)
                reply = await handle(request)
            except Exception as error:
                accepts_pages = "text/html" in request.headers.get("accept", "")
                refusal = as_api_error(error, request)
                if not (accepts_pages or isinstance(error, NotFoundError)) or refusal.status == 303:
                    raise refusal from error
                reply = _error_page(request, refusal, error)
            set_csrf_cookie(request, reply)
            return _compressed(request, reply)

        return handle_page


def _refuse_foreign_host(request: Request) -> None:
    """Refuse requests under a host name that somebody pointed at this machine (DNS rebinding)."""
    services: PlatformServices = request.app.state.services
    if is_loopback(urlsplit(services.config.base_url).hostname) and not is_loopback(request.url.hostname):
        raise ApiError(403, "FOREIGN_HOST", f"this host name is not allowed; use {services.config.base_url}.")


def _error_page(request: Request, refusal: ApiError, error: Exception) -> Response:
    """Return a page with the problem, the nearest names, and a link back to the list."""
    services: PlatformServices = request.app.state.services
    # The segments of the path before a parameter are the tab.
    below = request.scope["route"].path.split("/")[2:]
    tab = list(takewhile(lambda segment: not segment.startswith("{"), below))
    workspace, back = request.path_params.get("workspace"), None
    if isinstance(error, NoSuchWorkspaceError):
        back = f"{root_path(services)}/"
    elif workspace is not None:
        back = "/".join([root_path(services), quote(workspace, safe=""), *tab])
    found = error.nearest if isinstance(error, NoSuchNameError) and back else ()
    shell_under: Callable[[Sequence[str]], ShellView] | None = getattr(request.state, "shell_under", None)
    reply = render_page(
        request,
        "refusal.html",
        status=refusal.status,
        shell=shell_under(tab) if shell_under is not None else None,
        title=HTTPStatus(refusal.status).phrase.capitalize(),
        problem=refusal.message[:1].upper() + refusal.message[1:],
        back=back,
        nearest=[(name, f"{(back or '').rstrip('/')}/{quote(name, safe='')}") for name in found],
    )
    reply.headers.update(refusal.headers)
    return reply


def _compressed(request: Request, reply: Response) -> Response:
    is_page = not isinstance(reply, StreamingResponse) and (reply.media_type or "").startswith("text/html")
    accepts_gzip = "gzip" in request.headers.get("accept-encoding", "").lower()
    if is_page and accepts_gzip and len(reply.body) >= _COMPRESSED_FROM_BYTES:
        reply.body = gzip.compress(bytes(reply.body), compresslevel=5, mtime=0)
        reply.headers.update(
            {"Content-Encoding": "gzip", "Content-Length": str(len(reply.body)), "Vary": "Accept-Encoding"}
        )
    return reply
