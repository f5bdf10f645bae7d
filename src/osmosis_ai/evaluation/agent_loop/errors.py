"""What can go wrong with an agent loop on this machine, before or outside of the agent itself."""

from __future__ import annotations

from osmosis_ai.errors import NotFoundError, OsmosisError


class LocalExecutionError(OsmosisError):
    """The base of what stops a row, or all rows, of a local run."""


class DatasetParseError(LocalExecutionError):
    """A dataset file is no file of its format."""


class DatasetValidationError(LocalExecutionError):
    """A row lacks what an agent loop needs; the message begins with ``Row <index>:``."""


class MissingDatasetError(NotFoundError, FileNotFoundError):
    """There is no dataset file of that name."""

    def __str__(self) -> str:
        # OSError would show its own arguments.
        return self.message


class ToolValidationError(LocalExecutionError):
    """An agent's tools cannot be given to a model."""


class ProviderError(LocalExecutionError):
    """A model call failed, in the provider's words behind a lead that names the kind of failure."""
