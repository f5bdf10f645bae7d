"""What a platform needs of a PostgreSQL database: tables of its own, and any text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from osmosis_ai.errors import OsmosisError


def require_unicode(connection: Connection, shown: str) -> None:
    """Refuse a database that not every text can be kept in."""
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise OsmosisError(
            f"{shown} keeps text as {encoding}, which not every text can be kept in.",
            hint="make a database with ENCODING 'UTF8'",
        )


@contextmanager
def permitted(shown: str) -> Iterator[None]:
    """Say of what a user may not do that it may not."""
    try:
        yield
    except ProgrammingError as error:
        said = str(error.orig).splitlines()[0]
        raise OsmosisError(
            f"{shown} refuses what a platform needs: {said}.",
            hint="let its user make tables there: as the database's owner, or with GRANT CREATE ON SCHEMA public",
        ) from None
