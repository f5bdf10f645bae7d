"""Whether the platform answers: for `osmosis platform status`, proxies and supervisors."""

from __future__ import annotations

from sqlalchemy import text

from osmosis_ai._version import __version__
from osmosis_ai.platform.http.authentication import Services
from osmosis_ai.platform.http.routing import api_router

router = api_router()


@router.get("/health")
def health(services: Services) -> dict[str, str]:
    """Answer when the database can be read."""
    with services.db.session() as session:
        session.execute(text("SELECT 1"))
    return {"status": "ok", "version": __version__}
