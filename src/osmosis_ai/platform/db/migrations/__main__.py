"""Draft the next step of the schema from what ``models.py`` says: ``python -m … "what changes"``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command
from sqlalchemy import create_engine

from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.migrations import HERE, alembic_config

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        url = f"sqlite:///{Path(scratch) / 'draft.db'}"
        Database(url).migrate()
        number = f"{1 + len(list((HERE / 'versions').glob('[0-9]*.py'))):04d}"
        with create_engine(url).connect() as connection:
            command.revision(alembic_config(connection), sys.argv[1], autogenerate=True, rev_id=number)
