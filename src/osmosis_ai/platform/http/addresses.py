"""Addresses of the platform's pages, and of clients."""

from __future__ import annotations

import logging
from functools import lru_cache
from urllib.parse import quote, urlsplit

from fastapi import Request

from osmosis_ai.platform.db.tables import DbWorkspace
from osmosis_ai.platform.services import PlatformServices

logger = logging.getLogger("osmosis_ai.platform.http")

RUN_PAGES = {"eval": "evals", "training": "training"}


def root_path(services: PlatformServices) -> str:
    """Return the path prefix of the platform behind a proxy; usually empty."""
    return urlsplit(services.config.base_url).path


def workspace_path(services: PlatformServices, workspace: DbWorkspace) -> str:
    """Return the path of a workspace's pages."""
    return f"{root_path(services)}/{quote(workspace.name, safe='')}"


def is_encrypted(services: PlatformServices) -> bool:
    return services.config.base_url.startswith("https://")


def page_url(services: PlatformServices, workspace: DbWorkspace, *segments: str) -> str:
    path = "/".join(quote(segment, safe="") for segment in (workspace.name, *segments))
    return f"{services.config.base_url}/{path}"


def run_url(services: PlatformServices, workspace: DbWorkspace, kind: str, name: str) -> str:
    return page_url(services, workspace, RUN_PAGES[kind], name)


def client_address(request: Request) -> str:
    """Return the address of the client, by which wrong passwords are counted."""
    services: PlatformServices = request.app.state.services
    if not services.config.trusted_proxies and "x-forwarded-for" in request.headers:
        _warn_about_unnamed_proxy()
    return request.client.host if request.client else "unknown"


@lru_cache
def _warn_about_unnamed_proxy() -> None:
    """Log it once: anyone can set the header, so it is ignored."""
    logger.warning(
        "requests have an X-Forwarded-For header, but OSMOSIS_TRUSTED_PROXIES is not set: the sign-in limits treat all "
        "users behind the proxy as one client"
    )
