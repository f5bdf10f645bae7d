"""Draft the next revision of the database from what ``tables.py`` declares: ``scripts/draft_migration.py "what changes"``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command
from sqlalchemy import create_engine

from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.migrations import alembic_config, newest_revision

with tempfile.TemporaryDirectory() as scratch:
    url = f"sqlite:///{Path(scratch) / 'draft.db'}"
    Database(url).migrate()
    number = f"{int(newest_revision()) + 1:04d}"
    with create_engine(url).connect() as connection:
        config = alembic_config(connection)
        config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
        command.revision(config, sys.argv[1], autogenerate=True, rev_id=number)
