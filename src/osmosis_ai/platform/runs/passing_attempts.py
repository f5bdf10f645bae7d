"""The passing attempts of an evaluation, as the conversations of a supervised training run (`sft_source`).

They are stored with the training run before its workers begin, so later changes of the evaluation do not affect it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO, cast

import orjson
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from osmosis_ai.config.training import SOURCE_PREFIX
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.evaluation.conversation import as_conversation_row, read_conversation
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbSample
from osmosis_ai.platform.runs.files import RunFiles
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.requests import RowSelection, evaluation_settings

EXTENSION = "jsonl"


def source_of(run: DbRun) -> str | None:
    """Return the name of the evaluation whose passing attempts a training run learns from."""
    source = (run.request.get("advanced_config") or {}).get("sft_source")
    return str(source).removeprefix(SOURCE_PREFIX) if source else None


def conversations_key(run: DbRun) -> str:
    return f"runs/{run.id}/conversations.{EXTENSION}"


def count_passing(db: Database, workspace_id: str, name: str) -> RowSelection:
    """Return the rows that a training run would have; raises OsmosisError if there are none, or not yet."""
    with db.session() as session:
        run = _evaluation(session, workspace_id, name)
        if run.status in OPEN:
            raise OsmosisError(f"the evaluation '{name}' has not finished.")
        passing = session.scalar(select(func.count()).where(*_passing(run))) or 0
    if not passing:
        raise OsmosisError(f"the evaluation '{name}' has no passing attempts.")
    return RowSelection(passing, passing, None, "", EXTENSION)


def collect_conversations(
    db: Database, blobs: BlobStore, files: RunFiles, run: DbRun, keep_lease: Callable[[], None]
) -> tuple[RowSelection, str]:
    """Store the conversations of a training run as a blob; return its rows now, and a sentence about them."""
    name, found = source_of(run) or "", 0
    with db.session() as session:
        source = _evaluation(session, run.workspace_id, name)
        attempts = select(DbSample.row_index, DbSample.run_index).where(*_passing(source))
        passing = session.execute(attempts.order_by(DbSample.row_index, DbSample.run_index)).all()
    with tempfile.SpooledTemporaryFile(max_size=8 << 20) as collected:
        for row, attempt in passing:
            keep_lease()
            file = db.get(DbRunFile, (source.id, f"trajectories/{item_name(row, attempt)}.json"))
            if file is None:
                continue
            with files.open(file) as content:
                conversation = as_conversation_row(read_conversation(content.read()))
            if conversation is not None:
                collected.write(orjson.dumps(conversation, option=orjson.OPT_APPEND_NEWLINE))
                found += 1
        if not found:
            raise OsmosisError(
                f"none of the {len(passing):,} passing attempts of '{name}' is usable: their model calls or "
                "tools were not recorded."
            )
        collected.seek(0)
        info = blobs.put(conversations_key(run), cast(BinaryIO, collected))
    others = ": the others have no usable conversation" if found < len(passing) else ""
    message = f"learns from {found:,} of {len(passing):,} passing attempts of the evaluation {name}{others}"
    rows = replace(RowSelection.read(run.selection), total_rows=found, limit=found, sha256=info.sha256)
    return rows, message


def _evaluation(session: Session, workspace_id: str, name: str) -> DbRun:
    named = DbRun.workspace_id == workspace_id, DbRun.kind == "eval", DbRun.name == name
    run = session.scalar(select(DbRun).where(*named))
    if run is None:
        raise OsmosisError(f"there is no evaluation '{name}' in this workspace.")
    return run


def _passing(run: DbRun) -> tuple[ColumnElement[bool], ...]:
    threshold = evaluation_settings(run.request).pass_threshold
    return DbSample.run_id == run.id, DbSample.status == "success", DbSample.reward >= threshold
