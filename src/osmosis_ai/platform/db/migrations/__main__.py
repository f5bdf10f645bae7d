"""Draft the next revision from what ``tables.py`` declares: ``python -m … "what changes"``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command
from sqlalchemy import create_engine

from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.migrations import alembic_config, newest_revision

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        url = f"sqlite:///{Path(scratch) / 'draft.db'}"
        Database(url).migrate()
        number = f"{int(newest_revision()) + 1:04d}"
        with create_engine(url).connect() as connection:
            command.revision(alembic_config(connection), sys.argv[1], autogenerate=True, rev_id=number)
