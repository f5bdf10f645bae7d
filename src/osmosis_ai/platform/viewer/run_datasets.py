"""The dataset of an evaluation, for who looks at its numbers by the values of a column."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.datasets.store import find_dataset, open_dataset
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.ui.numbers import size

LARGEST_BYTES = 256 * 1024 * 1024
"""Of a dataset that is read for a page."""
_NAME_CHARS = 50  # with the extension, a file's name in any system


@dataclass(frozen=True)
class RunDataset:
    """Opens the dataset of a run as a file, which is there as long as this is."""

    services: PlatformServices
    workspace_id: str
    run: str
    name: str | None
    sha256: str | None

    def __call__(self) -> Path:
        """Return the file, with the bytes that the run used."""
        with self.services.db.session() as session:
            found = find_dataset(session, self.workspace_id, self.name or "")
        if found is None or self.sha256 is None or found.sha256 != self.sha256:
            raise OsmosisError(
                f"the dataset that {self.run} used is not there any more, or another one by now."
            )
        if found.file_size > LARGEST_BYTES:
            raise OsmosisError(
                f"the dataset {found.name} is too large to be read for a page: {size(found.file_size)}. "
                f"`osmosis eval info {self.run} --slice COLUMN` reads it on your machine."
            )
        target = self._directory / f"{found.name[:_NAME_CHARS]}.{found.extension}"
        try:
            copied = open_dataset(self.services.db, self.services.blobs, found.id, target)
        except OSError as error:
            raise OsmosisError(f"the dataset {found.name} cannot be read here: {error.strerror}.") from error
        if copied.sha256 != self.sha256:
            raise OsmosisError(f"the dataset that {self.run} used has been replaced just now.")
        return target

    @cached_property
    def _directory(self) -> Path:
        made = Path(tempfile.mkdtemp(prefix="osmosis-dataset-"))
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return made
