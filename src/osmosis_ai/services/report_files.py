"""`--report`: the one file that a result is written into, whichever command makes it."""

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
    from osmosis_ai.evaluation.run_places import RunKind


@dataclass(frozen=True, slots=True)
class ReportFile:
    """Where a report goes.

    Attributes:
        overwrite: whether it may be there already.
        text: whether it holds what models, datasets and tools said; without, numbers alone.
        announce: called when nothing stands in the way any more, before the first byte is written, with the kind of what
            goes in; None of a comparison.
    """

    path: Path
    overwrite: bool = False
    text: bool = True
    announce: Callable[[RunKind | None], None] = lambda _: None

    def check(self) -> None:
        """Find out whether it can be written, before there is work to lose.

        Raises:
            ConflictError: it exists, and is not to be overwritten.
            OsmosisError: it cannot be written, or is not a file name.
        """
        if self.path.name == "-":
            raise OsmosisError(
                "a report goes into a file, and `-` is none.", hint="name one, for instance report.html"
            )
        try:
            if self.path.is_dir():
                raise OsmosisError(
                    f"Report path '{self.path}' is a directory; name a file, for instance report.html."
                )
            if os.path.lexists(self.path) and not self.overwrite:
                raise ConflictError(
                    f"{self.path} exists.", hint="write another file, or this one with --force"
                )
            if is_stream(self.path):
                # What is written beside it would take its place.
                raise OsmosisError(f"{self.path} can not be written: it is a device or a pipe, and no file.")
            require_writable(self.path)
        except OSError as error:
            raise self._refused(error) from error

    @contextmanager
    def opened(self, kind: RunKind | None = None) -> Iterator[IO[bytes]]:
        """Yield it to be written; it is there when the block ends well, and nothing of it otherwise.

        Args:
            kind: of the run that goes in.

        Raises:
            ConflictError, OsmosisError: as :meth:`check`, and where the disk does not take it.
        """
        self.check()
        self.announce(kind)
        try:
            with replacing(self.path) as file:
                yield file
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> OsmosisError:
        return OsmosisError(f"{self.path} can not be written: {error.strerror or error}.")
