"""`--report`: the single output file of any command that writes a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.files import is_stream, replacing, require_writable

if TYPE_CHECKING:
    from osmosis_ai.viewer.local_runs import RunKind


@dataclass(frozen=True, slots=True)
class ReportFile:
    """Destination of a report.

    Attributes:
        text: include text of models, datasets and tools; otherwise numbers only.
        announce: called with the run's kind, None for a comparison, once writing is certain to start.
    """

    path: Path
    overwrite: bool = False
    text: bool = True
    announce: Callable[[RunKind | None], None] = lambda _: None

    def check(self) -> None:
        """Check early that the file can be written, and that an existing one may be replaced."""
        if self.path.name == "-":
            raise OsmosisError(
                "Report file name is invalid: '-'.", hint="name a file, for instance report.html"
            )
        try:
            if self.path.is_dir():
                raise OsmosisError(
                    f"Report path '{self.path}' is a directory; name a file, for instance report.html."
                )
            if os.path.lexists(self.path) and not self.overwrite:
                raise ConflictError(f"'{self.path}' already exists.", hint="use '--force' to replace it")
            if is_stream(self.path):
                # An atomic write would replace the device or pipe.
                raise OsmosisError(f"'{self.path}' cannot be written: it is a device or a pipe, not a file.")
            require_writable(self.path)
        except OSError as error:
            raise self._refused(error) from error

    @contextmanager
    def opened(self, kind: RunKind | None = None) -> Iterator[IO[bytes]]:
        """Open the report for atomic writing; no file remains if the block fails."""
        self.check()
        self.announce(kind)
        try:
            with replacing(self.path) as file:
                yield file
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> OsmosisError:
        return OsmosisError(f"'{self.path}' cannot be written: {error.strerror or error}.")
