"""Choose the reader for a file; every error names the file and the position in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

from osmosis_ai.datasets.reader import NoteRepeats, Progress, RecordReader, Report
from osmosis_ai.errors import OsmosisError

SUPPORTED_EXTENSIONS = ("csv", "jsonl", "json", "parquet")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def iter_records(path: Path, *, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (source row index from 0, record) for the records of a dataset file from row ``start``."""
    reader = open_reader(path, report=raise_for(path))
    for index, (number, record) in enumerate(reader.behind(start), start):
        yield index, reader.exactly(number, record)


def count_records(path: Path) -> int:
    """Return the number of records in a dataset file, without checking them."""
    return open_reader(path, report=raise_for(path)).count()


def require_file(path: Path) -> None:
    """Raise an error if ``path`` is not a file."""
    if path.is_dir():
        raise OsmosisError(f"`{path}` is a directory; expected a dataset file.")
    if not path.is_file():
        raise OsmosisError(f"File not found: {path.absolute()}")


def extension_of(path: Path) -> str:
    """Return a file's extension in lower case, without the dot."""
    return path.suffix.lower().removeprefix(".")


def describe_file_problem(path: Path) -> str | None:
    """Return why a file cannot be read as a dataset, regardless of its records, or None."""
    extension = extension_of(path)
    if extension in SUPPORTED_EXTENSIONS:
        with path.open("rb") as handle:
            start = handle.read(len(LFS_POINTER))
        if start == LFS_POINTER:
            return "the file is a Git LFS pointer; run `git lfs pull` to get its content"
        return None if start else "the file is empty"
    supported = ", ".join(f".{name}" for name in SUPPORTED_EXTENSIONS)
    found = f"unsupported file extension '.{extension}'" if extension else "the file has no extension"
    return f"{found}; supported: {supported}"


def open_reader(
    path: Path,
    *,
    report: Report,
    progress: Progress | None = None,
    note_repeats: NoteRepeats | None = None,
    only: Collection[str] | None = None,
    uniform: bool = True,
) -> RecordReader:
    """Return the reader for ``path`` by its extension; the other arguments are passed to the reader."""
    require_file(path)
    problem = describe_file_problem(path)
    if problem is not None:
        raise OsmosisError(f"{path}: {problem}.")
    reader = _reader_class(extension_of(path))
    return reader(
        path, report=report, progress=progress, note_repeats=note_repeats, only=only, uniform=uniform
    )


def raise_for(path: Path) -> Callable[[str], NoReturn]:
    """Return a ``report`` that raises the first problem of ``path``."""

    def report(problem: str) -> NoReturn:
        raise OsmosisError(f"{path}: {problem}.")

    return report


def _reader_class(extension: str) -> type[RecordReader]:
    if extension == "jsonl":
        from osmosis_ai.datasets.jsonl import JsonLinesReader

        return JsonLinesReader
    if extension == "json":
        from osmosis_ai.datasets.json_array import JsonArrayReader

        return JsonArrayReader
    if extension == "csv":
        from osmosis_ai.datasets.delimited import CsvReader

        return CsvReader
    from osmosis_ai.datasets.parquet import ParquetReader

    return ParquetReader
