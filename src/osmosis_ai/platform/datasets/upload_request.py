"""What may be uploaded: decided before a byte is sent, with every problem named at once."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

from osmosis_ai.datasets import SUPPORTED_EXTENSIONS
from osmosis_ai.datasets.validation import MAX_FILE_BYTES
from osmosis_ai.errors import OsmosisError

MAX_NAME_CHARS = 255
# What no file name on any client can hold, and what makes a name look like another one (UAX #9).
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class DatasetRejected(OsmosisError):
    """A request for a dataset that cannot be what was meant."""

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
        """Return the problems as the wire has them; a single one is said by the message alone."""
        return (
            []
            if len(self.issues) == 1
            else [{"key": key, "message": problem} for key, problem in self.issues]
        )


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """A file that a client is about to send: its stem, its extension, its exact size in bytes."""

    name: str
    extension: str
    size: int

    @classmethod
    def checked(
        cls, name: str, extension: str, size: int, *, max_bytes: int = MAX_FILE_BYTES
    ) -> UploadRequest:
        """Return the announcement of a file that may be sent."""
        announced = cls(normal_name(name), normal_extension(extension), size)
        issues = [
            (field, problem)
            for field, problem in (
                ("file_name", _problem_of_name(announced.name)),
                ("extension", _problem_of_extension(announced.extension)),
                ("file_size", _problem_of_size(size, max_bytes)),
            )
            if problem is not None
        ]
        if issues:
            raise DatasetRejected(issues)
        return announced


def normal_name(name: str) -> str:
    """Return the one spelling of a name: systems differ in how they write the same letters."""
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


def _problem_of_extension(extension: str) -> str | None:
    if extension in SUPPORTED_EXTENSIONS:
        return None
    return f"`extension` must be one of {', '.join(SUPPORTED_EXTENSIONS)}"


def _problem_of_size(size: int, max_bytes: int) -> str | None:
    if size < 1:
        return "the file is empty"
    if size > max_bytes:
        return f"the file has {size:,} bytes; the platform takes at most {max_bytes:,}"
    return None
