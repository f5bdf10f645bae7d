"""The passing attempts of an evaluation, as the conversations of a supervised training run (`sft_source`).

They are collected before the run's workers begin, into a blob of the training run. Later changes of the evaluation do
not affect it, and workers read it like a dataset.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import orjson
from sqlalchemy import ColumnElement, func, select

from osmosis_ai.config.issues import Issue, closest
from osmosis_ai.config.training import SOURCE_PREFIX
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.attempt_files import item_name
from osmosis_ai.evaluation.conversation import as_conversation_row, read_conversation
from osmosis_ai.platform.blobs.store import BlobStore
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.tables import DbRun, DbRunFile, DbSample
from osmosis_ai.platform.runs.files import RunFiles
from osmosis_ai.platform.runs.lifecycle import OPEN
from osmosis_ai.platform.runs.requests import RowSelection, evaluation_settings, rejected

EXTENSION = "jsonl"
_IN_MEMORY_BYTES = 8 << 20


def source_of(run: DbRun) -> str | None:
    """Return the name of the evaluation whose passing attempts a training run learns from."""
    source = (run.request.get("advanced_config") or {}).get("sft_source")
    return str(source).removeprefix(SOURCE_PREFIX) if source else None


def conversations_key(run: DbRun) -> str:
    """Return the key of the blob with a training run's conversations."""
    return f"runs/{run.id}/conversations.{EXTENSION}"


def check_source(db: Database, workspace_id: str, name: str) -> RowSelection:
    """Count what a training run would learn from; raises SubmitRejectedError."""
    with db.session() as session:
        mine = DbRun.workspace_id == workspace_id, DbRun.kind == "eval"
        run = session.scalar(select(DbRun).where(*mine, DbRun.name == name))
        if run is None:
            names = session.scalars(
                select(DbRun.name).where(*mine).order_by(DbRun.created_at.desc()).limit(1000)
            )
            near = closest(name, list(names))
            problem = f"there is no evaluation '{name}' in this workspace"
            raise _rejected(problem, None if near is None else SOURCE_PREFIX + near)
        if run.status in OPEN:
            raise _rejected(f"the evaluation '{name}' has not ended; wait for its results")
        passing = session.scalar(select(func.count()).where(*_passing(run))) or 0
    if not passing:
        raise _rejected(f"the evaluation '{name}' has no passing attempt to learn from")
    return RowSelection(passing, passing, None, "", EXTENSION)


def collect_conversations(
    db: Database, blobs: BlobStore, files: RunFiles, run: DbRun, keep_lease: Callable[[], None]
) -> tuple[RowSelection, str]:
    """Store the conversations of a training run as a blob; return its rows, and what was collected in a sentence."""
    name = source_of(run)
    named = DbRun.workspace_id == run.workspace_id, DbRun.kind == "eval", DbRun.name == name
    with db.session() as session:
        source = session.scalar(select(DbRun).where(*named))
        if source is None:
            raise OsmosisError(f"The evaluation '{name}' was deleted before the run began.")
        attempts = select(DbSample.row_index, DbSample.run_index).where(*_passing(source))
        in_order = attempts.order_by(DbSample.row_index, DbSample.run_index)
        passing = session.execute(in_order).all()
    found = 0
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as collected:
        for row, attempt in passing:
            keep_lease()
            with db.session() as session:
                file = session.get(DbRunFile, (source.id, f"trajectories/{item_name(row, attempt)}.json"))
            if file is None:
                continue
            with files.open(file) as content:
                conversation = as_conversation_row(read_conversation(content.read()))
            if conversation is not None:
                collected.write(orjson.dumps(conversation, option=orjson.OPT_APPEND_NEWLINE))
                found += 1
        if not found:
            raise OsmosisError(
                f"None of the {len(passing):,} passing attempts of '{name}' has a conversation to learn from: their "
                "model calls, or the tools that they offered, were not recorded."
            )
        collected.seek(0)
        info = blobs.put(conversations_key(run), cast(BinaryIO, collected))
    left_out = f" of {len(passing):,}" if found < len(passing) else ""
    why = ": the others have no usable conversation" if left_out else ""
    message = f"learns from {found:,}{left_out} passing attempts of the evaluation {name}{why}"
    return RowSelection(found, found, None, info.sha256, EXTENSION), message


def _passing(run: DbRun) -> tuple[ColumnElement[bool], ...]:
    threshold = evaluation_settings(run.request).pass_threshold
    return DbSample.run_id == run.id, DbSample.status == "success", DbSample.reward >= threshold


def _rejected(problem: str, suggestion: str | None = None) -> Any:
    return rejected([Issue("advanced.sft_source", problem, suggestion=suggestion)])
