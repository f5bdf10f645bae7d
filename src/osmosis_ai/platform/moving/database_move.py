"""The rows of a platform, from one database into another.

Each piece of a table arrives in one transaction together with the key of its last row, so a move that was killed goes
on behind it. What decides is the comparison at the end, made while nobody can write to the source: a table that
differs, because somebody worked on the platform in between, is copied anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Table, delete, func, select

from osmosis_ai.errors import ConflictError
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.move_marks import forget_last_keys, read_last_keys, write_last_key, write_mark
from osmosis_ai.platform.db.postgres_demands import permitted, require_unicode
from osmosis_ai.platform.db.row_copies import (
    TableDigest,
    batches,
    clear,
    digest,
    digests,
    hold_still,
    insert_rows,
    key_of,
    require_this_schema,
    set_sequences,
    tables,
    what_is_in,
)
from osmosis_ai.platform.move_marks import Mark
from osmosis_ai.platform.moving.sides import Bar, Showing, Stage, departure_of, stage_of

_ROUNDS = 4


class DatabaseMove:
    """One move of rows.

    Args:
        source: where they are.
        target: where they are to be.
    """

    what = "database"

    def __init__(self, source: Database, target: Database) -> None:
        self._source = source
        self._target = target
        self.shown = target.shown
        self.stage = Stage.NEW
        self._mark = Mark.of_new_move(target.shown)

    def prepare(self) -> None:
        """Find out how far the move is.

        Raises:
            ConflictError: the target is not to be taken.
            OsmosisError: a database cannot be used, or has another schema.
        """
        require_this_schema(self._source)
        marks = self._source.move_marks()
        replace(marks, departure=None).require_here("database", self._source.shown, "OSMOSIS_DATABASE_URL")
        self._mark = departure_of(marks, self._target.shown)
        if not self._mark.finished:
            with self._source.transaction() as rows:
                write_mark(rows.connection(), "departure", self._mark)
        path = self._target.sqlite_path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.stage = stage_of(
            self.what,
            replace(marks, departure=self._mark),
            self._target.move_marks(),
            self._target.shown,
            self._content,
        )
        if self.stage is Stage.BEGUN:
            require_this_schema(self._target)

    @property
    def backup(self) -> Path | None:
        """The file that keeps what the move replaces, as soon as that is to be written."""
        return None if self._mark.backup is None else Path(self._mark.backup)

    def note_backup(self, file: Path) -> None:
        """Write down, before it is written, where what is replaced is kept: whoever goes on says so."""
        self._mark = replace(self._mark, backup=str(file))
        with self._source.transaction() as rows:
            write_mark(rows.connection(), "departure", self._mark)

    def begin(self) -> None:
        """Mark the target as one that is being filled, and empty it when it was not."""
        if self.stage not in (Stage.NEW, Stage.REPLACES):
            return
        with permitted(self._target.shown):
            self._require_unicode()
            self._target.bring_up_to_date()
            with self._target.transaction() as rows:
                clear(rows)
                forget_last_keys(rows.connection())
                write_mark(rows.connection(), "arrival", Mark(self._mark.id, self._source.shown))
                write_mark(rows.connection(), "departure", None)

    def copy(self, showing: Showing) -> None:
        """Bring what the target has not yet."""
        with self._source.session() as rows:
            counts = {
                table.name: rows.scalar(select(func.count()).select_from(table)) or 0 for table in tables()
            }
        with showing("Moving rows", total=sum(counts.values()), unit="rows") as bar:
            done = 0
            for table in tables():
                self._copy_table(table, _after(done, bar))
                done += counts[table.name]
                bar.update(done)

    def depart(self) -> dict[str, TableDigest]:
        """Compare everything, and let the source's platform start no more; return what both sides hold.

        Raises:
            ConflictError: the source does not stand still.
        """
        for _ in range(_ROUNDS):
            with self._source.transaction() as rows:
                hold_still(rows)
                with self._target.session() as arrived:
                    here, there = digests(rows), digests(arrived)
                if here == there:
                    write_mark(rows.connection(), "departure", replace(self._mark, finished=True))
                    return here
            self._copy_what_differs()
        differing = ", ".join(name for name in here if here[name] != there[name])
        raise ConflictError(
            f"rows of {differing} change while they are moved: something works on {self._source.shown}.",
            hint="end it, then run the same command again",
        )

    def arrive(self) -> None:
        """Let a platform start on the target."""
        with self._target.transaction() as rows:
            set_sequences(rows)
            forget_last_keys(rows.connection())
            write_mark(rows.connection(), "arrival", Mark(self._mark.id, self._source.shown, finished=True))

    def _content(self) -> str | None:
        table = what_is_in(self._target)
        return None if table is None else f"the table {table}"

    def _copy_table(self, table: Table, tell: Callable[[int], None]) -> None:
        """Copy what a table lacks, and tell how many rows of it have come."""
        with self._target.session() as arrived:
            after = read_last_keys(arrived.connection()).get(table.name)
        copied = 0
        with self._source.session() as rows:
            for batch in batches(rows, table, after):
                with self._target.transaction() as arriving:
                    insert_rows(arriving, table, batch)
                    last = [batch[-1][column.name] for column in key_of(table)]
                    write_last_key(arriving.connection(), table.name, last)
                copied += len(batch)
                tell(copied)

    def _copy_what_differs(self) -> None:
        # Parents first: what is deleted with them is seen to differ when its turn comes.
        for table in tables():
            with self._source.session() as rows, self._target.session() as arrived:
                if digest(rows, table) == digest(arrived, table):
                    continue
            with self._target.transaction() as arriving:
                arriving.execute(delete(table))
                write_last_key(arriving.connection(), table.name, None)
            self._copy_table(table, lambda _: None)

    def _require_unicode(self) -> None:
        if self._target.is_sqlite:
            return
        with self._target.session() as session:
            require_unicode(session.connection(), self._target.shown)


def _after(done: int, bar: Bar) -> Callable[[int], None]:
    """Return what tells a bar of rows that come after others."""
    return lambda copied: bar.update(done + copied)
