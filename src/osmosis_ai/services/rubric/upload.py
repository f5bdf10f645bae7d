"""A result of judges on this machine to the platform: its document in one call, which may be repeated.

What is sent is what `osmosis view` shows of it (rubric, judges, scores, what judges said), without where files lie on
this machine. A document that holds the value of a key, as far as the environment has it, stays here.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import NotFoundError, OsmosisError, WorkspaceRequiredError, reason_of
from osmosis_ai.files import can_be_path, expanded, size_of

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.rubric_results import StoredRubricResult

_SHORTEST_SECRET = 8
_SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_MADE_BY = (
    "a rubric result is made by `osmosis eval rubric --data ANSWERS.jsonl --rubric TEXT --output FILE.json`"
)
_PATHS = ("data_path", "config_path", "rubric_source")


@dataclass(frozen=True)
class LocalRubricResult:
    """A result file of this machine; ``name`` is what it is called in lists, here and there."""

    path: Path
    name: str

    @property
    def size_bytes(self) -> int:
        """How large the file is; 0 where it has gone."""
        return size_of(self.path)


@dataclass(frozen=True)
class UploadedRubricResult:
    """A result, and what the platform has of it."""

    local: LocalRubricResult
    stored: StoredRubricResult

    def resource(self) -> dict[str, Any]:
        """Return it as scripts see it."""
        stored = self.stored
        return {
            "rubric_result_id": stored.id,
            "rubric_result_name": stored.name,
            "local_path": str(self.local.path),
            "sha256": stored.sha256,
            "size": stored.size,
            "is_new": bool(stored.is_new),
            "platform_url": stored.platform_url,
        }


def find_rubric_result(reference: str) -> LocalRubricResult | None:
    """Return the result that a path means: its file, or the directory that it is in alone; None where it means none.

    Raises:
        OsmosisError: the directory has several, and nothing else.
    """
    from osmosis_ai.evaluation.run_places import RunPlaces, is_result, kind_of

    given = expanded(reference)
    if not can_be_path(reference) or not given.exists():
        return None
    if given.is_file():
        return _named(given.absolute()) if is_result(given) else None
    if kind_of(given) is not None:
        return None
    places = RunPlaces(given.absolute()).all()
    if not places or any(place.kind != "rubric" for place in places):
        return None
    if len(places) > 1:
        names = ", ".join(str(given / place.path.relative_to(given.absolute())) for place in places[:5])
        raise OsmosisError(
            f"`{reference}` has {len(places)} rubric results.", hint=f"name the one that is meant: {names}"
        )
    return _named(places[0].path)


def find_run_beside_results(reference: str) -> Path:
    """Return the directory of the run that a reference means, where it means no result; files are told as files.

    Raises:
        NotFoundError: there is no such file, or no such run.
        OsmosisError: a file holds no result, and is no run's; or as ``find_local_run``.
    """
    from osmosis_ai.services.eval_runs.resolver import find_local_run, run_of_file

    given = expanded(reference)
    is_file = can_be_path(reference) and given.is_file()
    # Without an ending it may be a run's name as well; that of a place (`local:`) or a commit (`git:`) is no file's.
    if is_file and given.suffix and run_of_file(given) is None:
        raise OsmosisError(f"`{given}` {_why_no_result(given)}.", hint=_MADE_BY)
    try:
        return find_local_run(reference)
    except (NotFoundError, WorkspaceRequiredError):
        if is_file:
            raise OsmosisError(f"`{given}` {_why_no_result(given)}.", hint=_MADE_BY) from None
        if given.suffix == ".json" and ":" not in reference and not given.exists():
            raise NotFoundError(
                f"there is no file `{given}`.", details={"reference": reference}, hint=_MADE_BY
            ) from None
        raise


def _why_no_result(path: Path) -> str:
    """Return what speaks against a file that does not begin as a result."""
    try:
        with path.open("rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        return f"cannot be read: {reason_of(error)}"
    return f"{'is empty' if is_empty else 'holds no rubric result, and is no file of a run'}"


def upload_rubric_result(client: PlatformClient, local: LocalRubricResult) -> UploadedRubricResult:
    """Upload a result.

    Raises:
        PlatformError: the platform refuses it, or cannot be reached.
        OsmosisError: the file cannot be read, or holds what is not sent.
    """
    from osmosis_ai.api.capabilities import Capability
    from osmosis_ai.services.capabilities import require_offered

    require_offered(client, Capability.RUBRIC_RESULTS)
    return UploadedRubricResult(local, client.rubric_results.upload(local.name, read_sendable(local.path)))


def read_sendable(path: Path) -> Mapping[str, Any]:
    """Return the document of a result as it is sent.

    Raises:
        OsmosisError: it cannot be read, or holds what is not sent.
    """
    import orjson

    from osmosis_ai.api.wire.rubric_results import LARGEST_DOCUMENT_BYTES
    from osmosis_ai.rubric.written_results import read_result

    try:
        document = without_places(read_result(path).document)
        size = len(orjson.dumps(document))
    except OSError as error:
        raise _refused(f"`{path}` cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, TypeError) as error:
        raise _refused(f"`{path}` cannot be read as a result ({reason_of(error)})") from None
    if size > LARGEST_DOCUMENT_BYTES:
        raise _refused(
            f"it has {size:,} bytes, and {LARGEST_DOCUMENT_BYTES:,} are the most",
            f"osmosis view {shlex.quote(str(path))} --report FILE.html makes a page of it that can be sent to people",
        )
    _require_no_secret(path, document)
    return document


def without_places(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result's document with the names alone of the files that it tells of: where they lie is nobody's business."""
    sent = dict(document)
    for key in _PATHS:
        if isinstance(sent.get(key), str):
            sent[key] = PurePath(sent[key]).name
    compared = sent.get("baseline_comparison")
    if isinstance(compared, dict) and isinstance(compared.get("source_path"), str):
        sent["baseline_comparison"] = {**compared, "source_path": PurePath(compared["source_path"]).name}
    return sent


def _require_no_secret(path: Path, document: Mapping[str, Any]) -> None:
    from osmosis_ai.redaction import Redactor

    secrets = dict(_secret_values())
    if Redactor(secrets.values(), shortest=_SHORTEST_SECRET).tree(document) == document:
        return
    for name, value in secrets.items():
        if Redactor([value], shortest=_SHORTEST_SECRET).tree(document) != document:
            raise _refused(f"`{path}` holds the value of the secret {name}", "take it out of the file")


def _secret_values() -> Iterator[tuple[str, str]]:
    """Yield the variables of the environment that hold a key which can be told from other text, with their values."""
    from osmosis_ai.llm.providers import credential_variables

    known = credential_variables()
    for name, value in os.environ.items():
        is_secret = name in known or name.upper().endswith(_SECRET_ENDINGS)
        if is_secret and len(value.strip()) >= _SHORTEST_SECRET:
            yield name, value.strip()


def _named(path: Path) -> LocalRubricResult:
    from osmosis_ai.evaluation.run_places import RunPlaces

    place = next((each for each in RunPlaces(path).all() if each.kind == "rubric"), None)
    if place is None:
        raise NotFoundError(f"{path} is gone.")
    return LocalRubricResult(path, place.name)


def _refused(what: str, hint: str | None = None) -> OsmosisError:
    return OsmosisError(f"this rubric result cannot be uploaded: {what}.", hint=hint)
