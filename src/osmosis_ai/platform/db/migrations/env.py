"""Alembic runs the revisions on the connection it is given, in the transaction that is open there."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

from osmosis_ai.platform.db.base import Base, UtcDateTime


def render_item(kind: str, item: Any, _autogen: Any) -> str | Literal[False]:
    """Keep revisions free of our own types, which may change after a revision was written."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    render_item=render_item,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
