"""Initial schema: what the tables say today. The revision after it must first write out what this one creates."""

from __future__ import annotations

from alembic import op

from osmosis_ai.platform.db.tables import Base

# Development databases used 0001 to 0031; they must not pass for this one.
revision = "0032"
down_revision = None


def upgrade() -> None:
    Base.metadata.create_all(op.get_bind(), checkfirst=False)
