"""Results of judging sessions that were uploaded: a row with what lists show, and the document as a blob.

A name belongs to one result of its workspace, and a result never changes: the same document again is the one that is
there, another one of its name is refused. The bytes are there before the row, and go after it; what a killed request
or deletion leaves of them is swept an hour later.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any

import orjson
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis_ai.api.wire.rubric_results import (
    LARGEST_DOCUMENT_BYTES,
    LONGEST_NAME,
    JudgeCallCounts,
    deletion_command,
)
from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.blobs.store import BlobNotFound, BlobStore
from osmosis_ai.platform.clock import Clock
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.keyed_lists import newest_page
from osmosis_ai.platform.db.tables import DbRubricResult, DbUser, new_id
from osmosis_ai.platform.log_lines import storable
from osmosis_ai.platform.name_lookup import row_named
from osmosis_ai.viewer.judging_sessions import session_entry
from osmosis_ai.viewer.source import ItemPage

BLOB_PREFIX = "rubrics"
ID_PREFIX = "rub_"
_ID_PATTERN = rf"{ID_PREFIX}[0-9a-f]{{24}}"
_MOST_CALLS = 2**53
_MOST_RECORDS, _MOST_JUDGED = 10_000, 50_000
"""Records, and calls of judges in them: a page reads all of them, which takes about half a second then."""
_ID = re.compile(_ID_PATTERN)
_YEARS = (2000, 2999)
_SWEPT_AFTER = timedelta(hours=1)
_KEY = re.compile(rf"{BLOB_PREFIX}/(\d{{1,15}})-{_ID_PATTERN}\.json")
WITH_CREATORS = select(DbRubricResult, DbUser.name, DbUser.email).outerjoin(
    DbUser, DbUser.id == DbRubricResult.creator_id
)
"""A result, and who uploaded it."""


@dataclass(frozen=True, slots=True)
class FoundRubricResult:
    """A result, and who uploaded it."""

    row: DbRubricResult
    creator: str | None


class RubricResultStore:
    """The results of all workspaces.

    Args:
        db, blobs, clock: of the platform.
    """

    def __init__(self, db: Database, blobs: BlobStore, clock: Clock) -> None:
        self._db = db
        self._blobs = blobs
        self._clock = clock

    def add(
        self, workspace_id: str, creator_id: str, name: str, document: Mapping[str, Any], written: datetime
    ) -> tuple[FoundRubricResult, bool]:
        """Keep a result; returns it, and whether it is new: the same document of the same name is kept once.

        Args:
            workspace_id: whose it is.
            creator_id: the user who sends it.
            name: of the result.
            document: JSON.
            written: when it was made.

        Raises:
            ConflictError: the workspace has another document of this name.
            OsmosisError: the name is none, or the document can not be kept.
        """
        _require_name(name)
        if not _YEARS[0] <= written.year <= _YEARS[1]:
            raise _refused(f"the year {written.year} is not that of any result", "document.generated_at")
        _require_few(document)
        content = _content(document)
        digest = hashlib.sha256(content).hexdigest()
        there = self._known(workspace_id, name, digest)
        if there is not None:
            return there, False
        now, id = self._clock.now(), new_id("rub")
        row = DbRubricResult(
            id=id,
            workspace_id=workspace_id,
            name=name,
            sha256=digest,
            size=len(content),
            # The moment tells who sweeps whether its row may still come.
            blob_key=f"{BLOB_PREFIX}/{int(now.timestamp() * 1000)}-{id}.json",
            creator_id=creator_id,
            created_at=now,
            started_at=written,
            **_head(document, name, id),
        )
        key = row.blob_key
        self._blobs.put(key, BytesIO(content))
        try:
            with self._db.transaction() as session:
                session.add(row)
                session.flush()
                return find_rubric_result(session, workspace_id, id), True
        except IntegrityError:
            self._blobs.delete(key)
            # Uploaded twice at once, the other one was first; and it may be deleted by now.
            there = self._known(workspace_id, name, digest)
            if there is None:
                raise ConflictError(
                    f"a rubric result of the name '{name}' was uploaded and deleted meanwhile.",
                    hint="upload it again",
                ) from None
            return there, False
        except BaseException:
            self._blobs.delete(key)
            raise

    def get(self, workspace_id: str, name_or_id: str) -> FoundRubricResult:
        """Return a result by its name or id.

        Raises:
            NoSuchNameError: the workspace has none.
        """
        with self._db.session() as session:
            return find_rubric_result(session, workspace_id, name_or_id)

    def page(self, workspace_id: str, *, limit: int, cursor: str | None) -> ItemPage[FoundRubricResult]:
        """Return a workspace's results from a place on, the newest first.

        Raises:
            OsmosisError: the cursor is none of this list.
        """
        with self._db.session() as session:

            def entries(ids: Sequence[str]) -> dict[str, FoundRubricResult]:
                found = session.execute(WITH_CREATORS.where(DbRubricResult.id.in_(ids)))
                return {row.id: FoundRubricResult(row, name or email) for row, name, email in found}

            return newest_page(session, DbRubricResult, workspace_id, entries, limit=limit, cursor=cursor)

    def read(self, row: DbRubricResult) -> bytes:
        """Return a result's document, as JSON.

        Raises:
            NoSuchNameError: the result has been deleted meanwhile.
            ConflictError: it is gone, or is another one than was stored.
            BlobStoreError: the store does not give it now.
        """
        try:
            with self._blobs.open(row.blob_key) as stream:
                content = stream.read(LARGEST_DOCUMENT_BYTES + 1)
        except BlobNotFound:
            self.get(row.workspace_id, row.id)
            raise _lost(row, "gone") from None
        if hashlib.sha256(content).hexdigest() != row.sha256:
            raise _lost(row, "damaged: its SHA-256 has changed")
        return content

    def delete(self, row: DbRubricResult) -> None:
        """Delete a result that was found; one that has gone meanwhile is no error."""
        with self._db.transaction() as session:
            session.execute(delete(DbRubricResult).where(DbRubricResult.id == row.id))
        self._blobs.delete(row.blob_key)

    def sweep(self) -> None:
        """Remove documents that no row has: what stored or deleted them has ended too early."""
        before = (self._clock.now() - _SWEPT_AFTER).timestamp() * 1000
        found = (_KEY.fullmatch(key) for key in self._blobs.keys(BLOB_PREFIX))
        old = [match[0] for match in found if match is not None and int(match[1]) < before]
        if not old:
            return
        with self._db.session() as session:
            used = set(session.scalars(select(DbRubricResult.blob_key)))
        for key in old:
            if key not in used:
                self._blobs.delete(key)

    def _known(self, workspace_id: str, name: str, digest: str) -> FoundRubricResult | None:
        """Return the result of a name; None where there is none.

        Raises:
            ConflictError: it is another document.
        """
        mine = WITH_CREATORS.where(DbRubricResult.workspace_id == workspace_id, DbRubricResult.name == name)
        with self._db.session() as session:
            found = session.execute(mine).first()
        if found is None:
            return None
        row, creator, email = found
        if row.sha256 != digest:
            raise ConflictError(
                f"this workspace has another rubric result of the name '{name}'.",
                details={"id": row.id, "name": name},
                hint=f"give the file another name, or delete that one first with `{deletion_command(name)}`",
            )
        return FoundRubricResult(row, creator or email)


def find_rubric_result(session: Session, workspace_id: str, name_or_id: str) -> FoundRubricResult:
    """Return a result by its name or id.

    Raises:
        NoSuchNameError: the workspace has none.
    """
    mine: Any = WITH_CREATORS.where(DbRubricResult.workspace_id == workspace_id)
    wanted = storable(name_or_id)[:LONGEST_NAME]
    row, name, email = row_named(
        session,
        mine,
        DbRubricResult,
        wanted,
        called="rubric result",
        otherwise="`osmosis eval upload FILE.json` brings one",
    )
    return FoundRubricResult(row, name or email)


def _head(document: Mapping[str, Any], name: str, id: str) -> dict[str, Any]:
    """Return the columns that a document's head tells."""
    entry = session_entry(document, name, id)
    line = entry.headline.model_dump(mode="json") if entry.headline is not None else {}
    countable = all(0 <= line.get(count, -1) <= _MOST_CALLS for count in JudgeCallCounts.model_fields)
    texts = {"model_path": entry.model, "dataset_name": entry.dataset, "config": entry.config}
    return {
        "status": entry.status,
        **{column: text and storable(text)[:LONGEST_NAME] for column, text in texts.items()},
        "headline": line if countable else None,
        "reward": entry.reward,
        "cost_usd": entry.cost_usd,
        "duration_ms": entry.duration_s * 1000 if entry.duration_s is not None else None,
    }


def _require_few(document: Mapping[str, Any]) -> None:
    records = document["records"]
    told = (record.get("judgements", record.get("runs")) for record in records)
    calls = sum(len(each) for each in told if isinstance(each, list))
    if len(records) > _MOST_RECORDS or calls > _MOST_JUDGED:
        raise _refused(
            f"it has {len(records):,} records with {calls:,} calls of judges, and a platform keeps {_MOST_RECORDS:,} with "
            f"{_MOST_JUDGED:,} at most (`osmosis view` shows it where it is)",
            "document.records",
        )


def _content(document: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(document)
    except TypeError:
        raise _refused("it is nested too deeply, or has a number that is none", "document") from None


def _require_name(name: str) -> None:
    plain = 0 < len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip()
    if not plain or "/" in name or name in (".", "..") or _ID.fullmatch(name):
        raise _refused(
            f"its name must be 1 to {LONGEST_NAME} printable characters, and no path or id", "name"
        )


def _lost(row: DbRubricResult, what: str) -> ConflictError:
    return ConflictError(
        f"the stored document of the rubric result '{row.name}' is {what}.",
        hint="delete the result, and upload its file again",
    )


def _refused(what: str, field: str) -> OsmosisError:
    return OsmosisError(f"this rubric result cannot be kept: {what}.", details={"key": field})
