"""Uploads of datasets: what may be sent, checked before a byte is sent, and uploads in progress."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from osmosis_ai.api.models.datasets import CompletedPart, UploadIntent
from osmosis_ai.datasets import SUPPORTED_EXTENSIONS
from osmosis_ai.datasets.validation import MAX_FILE_BYTES
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.blobs.parted_upload import PartedUpload
from osmosis_ai.platform.blobs.store import Part
from osmosis_ai.platform.db.tables import DbDataset

MAX_NAME_CHARS = 255
_MOST_ISSUES = 20
# Characters that no file name contains, and those that make a name look like another one (UAX #9).
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class DatasetRejected(OsmosisError):
    """An invalid upload, with every problem and the field that has it."""

    def __init__(self, issues: list[tuple[str, str]]) -> None:
        problems = [problem for _, problem in issues]
        super().__init__(
            f"{problems[0]}." if len(problems) == 1 else f"the dataset has {len(problems)} problems."
        )
        self.issues = issues

    @property
    def field(self) -> str:
        """The first field that has a problem."""
        return self.issues[0][0]

    def wire_issues(self) -> list[dict[str, Any]]:
        """Return the problems in wire format; a single one is in the message alone."""
        if len(self.issues) == 1:
            return []
        return [{"key": key, "message": problem} for key, problem in self.issues]


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """A file that a client is about to send: its stem, its extension and its exact size in bytes."""

    name: str
    extension: str
    size: int
    overwrite_id: str | None = None
    intent: UploadIntent | None = None

    @classmethod
    def checked(
        cls,
        name: str,
        extension: str,
        size: int,
        *,
        overwrite_id: str | None = None,
        intent: UploadIntent | None = None,
        max_bytes: int = MAX_FILE_BYTES,
    ) -> UploadRequest:
        """Return the request, if the file may be sent."""
        request = cls(normal_name(name), normal_extension(extension), size, overwrite_id, intent)
        issues = [("file_name", problem) for problem in [_problem_of_name(request.name)] if problem]
        if request.extension not in SUPPORTED_EXTENSIONS:
            issues.append(("extension", f"`extension` must be one of {', '.join(SUPPORTED_EXTENSIONS)}"))
        if size < 1:
            issues.append(("file_size", "the file is empty"))
        elif size > max_bytes:
            most = f"the maximum is {max_bytes:,}"
            issues.append(("file_size", f"the file has {size:,} bytes; {most}"))
        if issues:
            raise DatasetRejected(issues)
        return request


def normal_name(name: str) -> str:
    """Return a name in Unicode normal form C, since systems differ."""
    return unicodedata.normalize("NFC", name)


def normal_extension(extension: str) -> str:
    """Return an extension in lower case, without the dot."""
    return extension.strip().lower().removeprefix(".")


def _problem_of_name(name: str) -> str | None:
    if not name.strip():
        return "a dataset needs a name"
    if len(name) > MAX_NAME_CHARS:
        return f"a dataset's name has at most {MAX_NAME_CHARS} characters, and this one {len(name)}"
    if name != name.strip():
        return "a dataset's name must not begin or end with white space"
    if "/" in name or "\\" in name or ".." in name or name == ".":
        return "a dataset's name is a file's name without its extension: no `/`, `\\` or `..`"
    if any(unicodedata.category(c) in _UNPRINTABLE or c in _DIRECTION_MARKS for c in name):
        return "a dataset's name must not hold control characters"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingUpload(PartedUpload):
    """An upload in progress, as stored in the dataset's row until its bytes have been checked.

    A later upload of the same dataset replaces it, and work on the earlier one stops when it finds another id in the row.
    """

    extension: str
    creator_id: str | None
    expires_at: datetime
    etags: tuple[str, ...] | None = None
    intent: UploadIntent | None = None

    @classmethod
    def of(cls, row: DbDataset | None) -> PendingUpload | None:
        """Return the upload that a dataset waits for, or None."""
        if row is None or row.upload is None:
            return None
        return _PENDING.validate_python(row.upload)

    def to_json(self) -> dict[str, Any]:
        """Return the value that the row stores."""
        stored: dict[str, Any] = _PENDING.dump_python(self, mode="json")
        return stored

    def is_of(self, creator_id: str, request: UploadRequest) -> bool:
        """Return whether the same user is still sending the same file."""
        if self.intent is None or request.intent is None or self.etags is not None:
            return False
        same_file = (self.extension, self.size) == (request.extension, request.size)
        return same_file and self.creator_id == creator_id and self.intent.sha256 == request.intent.sha256

    def match(self, received: Mapping[int, Part], named: Sequence[CompletedPart] | None) -> list[str]:
        """Return the ETags of all parts in order, if all have arrived as the client names them."""
        problems = self.problems_with(received, named)
        if problems:
            more = len(problems) - _MOST_ISSUES
            shown = problems[:_MOST_ISSUES] + ([f"and {more} more"] if more > 0 else [])
            raise DatasetRejected([("parts", problem) for problem in shown])
        return self.all_etags(received)


_PENDING = TypeAdapter(PendingUpload)
