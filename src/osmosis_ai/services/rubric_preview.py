"""`osmosis preview`: the entries of a file of rubrics or records, and whether judges could use it."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.files import expanded
from osmosis_ai.rubric.config import find_items, load_rubrics
from osmosis_ai.rubric.records import iter_objects, iter_records


class PreviewedEntry(NamedTuple):
    """An entry of a file: kind and position, content as YAML or JSON, and the content for the JSON output."""

    title: str
    text: str
    value: Any


class FilePreview(NamedTuple):
    """The entries of a file, ``rubrics`` or ``records``, their number as a sentence, and why no judge would take it."""

    path: Path
    kind: str
    summary: str
    entries: list[PreviewedEntry]
    problem: str | None = None


def preview_file(path: Path) -> FilePreview:
    """Read a ``.yaml``, ``.yml`` or ``.jsonl`` file."""
    path = expanded(path)
    if not path.exists():
        raise NotFoundError(f"Path '{path}' does not exist.")
    if path.is_dir():
        raise OsmosisError(f"Expected a file path but got directory '{path}'.")
    suffix = path.suffix.lower()
    read = {".yaml": _preview_rubrics, ".yml": _preview_rubrics, ".jsonl": _preview_records}.get(suffix)
    if read is not None:
        return read(path)._replace(problem=_judging_problem(path))
    raise OsmosisError(
        f"Unsupported file extension '{suffix}'.",
        hint="rubrics are in .yaml or .yml files, records in .jsonl files",
    )


def _preview_rubrics(path: Path) -> FilePreview:
    entries = [
        PreviewedEntry(f"Rubric config #{number} ({item.label})", _as_yaml(payload), _plain(payload))
        for number, item in enumerate(find_items(path), start=1)
        if (payload := _without_keys(item.payload))
    ]
    return FilePreview(path, "rubrics", f"Loaded {len(entries)} rubric config(s) from {path}", entries)


def _preview_records(path: Path) -> FilePreview:
    entries = [
        PreviewedEntry(f"JSONL record #{number}", json.dumps(value, indent=2, ensure_ascii=False), value)
        for number, value in enumerate(iter_objects(path), start=1)
    ]
    return FilePreview(path, "records", f"Loaded {len(entries)} JSONL record(s) from {path}", entries)


def _judging_problem(path: Path) -> str | None:
    """Return why `osmosis eval rubric` rejects a file, if it does."""
    try:
        if path.suffix.lower() == ".jsonl":
            deque(iter_records(path), maxlen=0)
        else:
            load_rubrics(path, need_model=False, strict=True)
    except OsmosisError as error:
        return error.with_hint
    return None


def _without_keys(payload: dict[str, Any]) -> dict[str, Any]:
    """Hide the key of a judge's configuration."""
    info = payload.get("model_info")
    if not isinstance(info, dict) or not info.get("api_key"):
        return payload
    return {**payload, "model_info": {**info, "api_key": "<hidden>"}}


def _as_yaml(payload: dict[str, Any]) -> str:
    """Format an entry as YAML: keys in their order, long texts as blocks."""

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return False

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(payload, Dumper=Dumper, sort_keys=False, allow_unicode=True).rstrip()


def _plain(value: Any) -> Any:
    """Convert a YAML value to JSON types: dates become text, and values without a JSON form become YAML text."""
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return _as_yaml(value)
