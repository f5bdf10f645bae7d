"""The addresses of pages, as replies name them and commands print them: `<platform>/<workspace>/…`."""

from __future__ import annotations

from urllib.parse import quote

from osmosis_ai.platform.db.tables import DbRun, DbWorkspace
from osmosis_ai.platform.services import PlatformServices

RUN_PAGES = {"eval": "evals", "training": "training"}


def page_url(services: PlatformServices, workspace: DbWorkspace, *segments: str) -> str:
    """Return the address of a page of a workspace."""
    path = "/".join(quote(segment, safe="") for segment in (workspace.name, *segments))
    return f"{services.config.base_url}/{path}"


def runs_url(services: PlatformServices, workspace: DbWorkspace, kind: str) -> str:
    """Return the address of the page below which the runs of a kind have theirs (:func:`run_url_below`)."""
    return page_url(services, workspace, RUN_PAGES[kind])


def run_url_below(runs_url: str, name: str) -> str:
    """Return the address of the page of the run ``name``."""
    return f"{runs_url}/{quote(name, safe='')}"


def run_url(services: PlatformServices, workspace: DbWorkspace, run: DbRun) -> str:
    """Return the address of a run's page."""
    return run_url_below(runs_url(services, workspace, run.kind), run.name)
