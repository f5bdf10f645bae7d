"""`osmosis preview`: what a file of rubrics or records holds, entry by entry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.files import expanded


@dataclass(frozen=True)
class PreviewedEntry:
    """An entry of a file.

    Attributes:
        title: what it is, and where it stands.
        text: its content, as YAML or JSON.
        value: the same for programs.
    """

    title: str
    text: str
    value: Any


@dataclass(frozen=True)
class FilePreview:
    """A file's entries.

    Attributes:
        kind: ``rubrics`` or ``records``.
        summary: how many there are, in a sentence.
    """

    path: Path
    kind: str
    summary: str
    entries: list[PreviewedEntry]


def preview_file(path: Path) -> FilePreview:
    """Read a ``.yaml``, ``.yml`` or ``.jsonl`` file.

    Raises:
        OsmosisError: there is no such file, it is of another kind, or it cannot be read.
    """
    path = expanded(path)
    if not path.exists():
        raise NotFoundError(f"Path '{path}' does not exist.")
    if path.is_dir():
        raise OsmosisError(f"Expected a file path but got directory '{path}'.")
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        return _preview_rubrics(path)
    if suffix == ".jsonl":
        return _preview_records(path)
    raise OsmosisError(
        f"Unsupported file extension '{suffix}'.",
        hint="rubrics are in .yaml or .yml files, records in .jsonl files",
    )


def _preview_rubrics(path: Path) -> FilePreview:
    from osmosis_ai.rubric.config import find_items

    entries = [
        PreviewedEntry(
            f"Rubric config #{number} ({item.label})", _as_yaml(item.payload), _plain(item.payload)
        )
        for number, item in enumerate(find_items(path), start=1)
    ]
    return FilePreview(path, "rubrics", f"Loaded {len(entries)} rubric config(s) from {path}", entries)


def _preview_records(path: Path) -> FilePreview:
    from osmosis_ai.rubric.records import iter_objects

    entries = [
        PreviewedEntry(f"JSONL record #{number}", json.dumps(value, indent=2, ensure_ascii=False), value)
        for number, (_, value) in enumerate(iter_objects(path), start=1)
    ]
    return FilePreview(path, "records", f"Loaded {len(entries)} JSONL record(s) from {path}", entries)


def _as_yaml(payload: dict[str, Any]) -> str:
    """Return the entry as a person would write it: keys in their order, long texts as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return False

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump(payload, Dumper=Dumper, sort_keys=False, allow_unicode=True).rstrip()


def _plain(value: Any) -> Any:
    """Return what YAML read as JSON has it: dates become text, and what has no form in JSON becomes YAML."""
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return _as_yaml(value)
