"""A training run, as a worker executes it."""

from __future__ import annotations

from typing import NoReturn

from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import PlatformConfig
from osmosis_ai.platform.db.engine import Database
from osmosis_ai.platform.db.models import Run
from osmosis_ai.platform.runs.leases import Lease
from osmosis_ai.platform.runs.publisher import Publisher
from osmosis_ai.platform.runs.work import Interrupt, Prepared, Work
from osmosis_ai.platform.runs.working_directory import WorkingDirectory


class TrainingWork(Work[Prepared]):
    """The work on one training run, which no release can do yet: it says so, and where it can be done.

    Args:
        config, db: the platform's.
        directory: where the run works.
        lease: the right to it.
    """

    def __init__(
        self, config: PlatformConfig, db: Database, directory: WorkingDirectory, lease: Lease
    ) -> None:
        self._directory = directory

    def prepare(self) -> NoReturn:
        """Refuse.

        Raises:
            OsmosisError: always.
        """
        raise OsmosisError(
            "this release of the platform takes training runs on but has no trainer to execute them.",
            hint="upgrade the platform, then submit again",
        )

    async def execute(self, prepared: Prepared, publisher: Publisher, interrupt: Interrupt) -> NoReturn:
        """Never reached: there is nothing prepared."""
        raise AssertionError("a training run cannot be prepared")

    def record(self, run: Run) -> None:
        """Leave the numbers as they are: they are written step by step."""
