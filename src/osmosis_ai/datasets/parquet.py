"""Parquet: read in batches that use little memory for row groups of any size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from osmosis_ai.datasets.reader import Record, RecordReader, quote_names

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BATCH_BYTES = 1 << 20
_MOST_BATCH_ROWS = 4096


class ParquetReader(RecordReader):
    """Yields (row number, record)."""

    unit = "row"

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return self.behind(0)

    def behind(self, rows: int) -> Iterator[tuple[int, Record]]:
        """Yield the records after the first ``rows``; row groups before them are not read."""
        import pyarrow as pa

        with self._open_parquet() as file:
            groups, number = _groups_behind(file, rows)
            planned = file.metadata.num_rows
            wanted = [name for name in self.columns if self.only is None or name in self.only]
            size = self.path.stat().st_size
            try:
                # A single thread: every additional one uses its own memory.
                batches = file.iter_batches(
                    _batch_rows(file), row_groups=groups, columns=wanted, use_threads=False
                )
                for batch in batches:
                    passed = min(max(rows - number, 0), batch.num_rows)
                    kept = batch.slice(passed)
                    records = kept.to_pylist() if wanted else [{}] * kept.num_rows
                    _shorten_floats(records, batch.schema)
                    yield from enumerate(records, number + passed + 1)
                    number += batch.num_rows
                    if self.progress is not None:
                        self.progress(size * number // max(planned, 1))
            except (pa.ArrowException, OSError) as error:
                self.fail(f"row {number + 1}: cannot be read: {_first_line(error)}")

    def count(self) -> int:
        """Return the number of rows in the file's footer."""
        with self._open_parquet() as file:
            return int(file.metadata.num_rows)

    def metadata_type(self) -> str | None:
        """Return the type of the ``metadata`` column unless it is a struct or a string."""
        import pyarrow as pa

        with self._open_parquet() as file:
            kind = file.schema_arrow.field("metadata").type
        fits = pa.types.is_struct(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        return None if fits else str(kind)

    def _open_parquet(self) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # By default (no buffer size, pre-buffering), pyarrow reads whole column chunks ahead.
            file = pq.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            self.fail(f"not a Parquet file: {_first_line(error).rstrip('.')}")
        names = file.schema_arrow.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            self.fail(f"the schema names {quote_names(twice)} more than once")
        self.columns = tuple(names)
        return file


def _shorten_floats(records: list[Record], schema: pa.Schema) -> None:
    """Replace narrow floats with the shortest numbers that round to them: 0.1 for 0.10000000149011612."""
    for column in schema:
        if "float" in str(column.type):
            for record in records:
                record[column.name] = _shortened(record[column.name], column.type)


def _shortened(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return float(str(kind.to_pandas_dtype()(value)))
    if pa.types.is_struct(kind):
        return {field.name: _shortened(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_shortened(key, kind.key_type), _shortened(item, kind.item_type)) for key, item in value]
    if pa.types.is_dictionary(kind):
        return _shortened(value, kind.value_type)
    if isinstance(value, list):
        return [_shortened(item, kind.value_type) for item in value]
    return value


def _batch_rows(file: Any) -> int:
    """Return the number of rows per batch for the target size."""
    footer = file.metadata
    total = sum(footer.row_group(index).total_byte_size for index in range(footer.num_row_groups))
    row_bytes = total / max(footer.num_rows, 1)
    return max(1, min(_MOST_BATCH_ROWS, int(_BATCH_BYTES / max(row_bytes, 1))))


def _groups_behind(file: Any, rows: int) -> tuple[list[int], int]:
    """Return the row groups after the first ``rows`` rows, and the number of rows before the first of these groups."""
    footer, before = file.metadata, 0
    for group in range(footer.num_row_groups):
        held = footer.row_group(group).num_rows
        if before + held > rows:
            return list(range(group, footer.num_row_groups)), before
        before += held
    return [], before


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
