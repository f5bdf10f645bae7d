"""memberships: what somebody chose to do first in a workspace."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take this step."""
    op.add_column("memberships", sa.Column("quickstart_intent", sa.String(length=16), nullable=True))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("memberships", "quickstart_intent")
