"""lora_models.validation_reward: the reward of the validation after the checkpoint's step."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("lora_models", sa.Column("validation_reward", sa.Float(), nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("lora_models", "validation_reward")
