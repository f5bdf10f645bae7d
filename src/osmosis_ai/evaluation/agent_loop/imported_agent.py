"""An agent loop as the classic commands name it, ``module:attribute``, as an evaluation's agent and its rows.

It is the user's code in the user's directory, in this very interpreter: nothing is built for it. What it is made of
are the files of the user's own that importing it and its eval functions has loaded.
"""

from __future__ import annotations

import hashlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.agent_loop.dataset import KNOWN_COLUMNS, DatasetReader, row_messages
from osmosis_ai.evaluation.rollout_source import RolloutSource, ServerSetting
from osmosis_ai.evaluation.spec import DatasetInput

if TYPE_CHECKING:
    from osmosis_ai.controller.environments import RolloutEnvironment
    from osmosis_ai.controller.server_process import RolloutServer
    from osmosis_ai.datasets import DatasetRow, Selection
    from osmosis_ai.rollout.loop.workflow import HostedLoopSettings

_PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class ImportedAgent(RolloutSource):
    """An agent that this process has imported, and that its server will import again."""

    reference: str
    directory: Path
    settings: HostedLoopSettings
    base_url: str | None
    files: tuple[Path, ...]

    def source_digest(self, output_root: Path) -> str:
        """Return the digest of the agent's files, those of its eval functions among them."""
        digest = hashlib.sha256()
        for path in self.files:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise OsmosisError(
                    f"`{path}`, of which the agent is made, cannot be read: {error}."
                ) from None
            digest.update(os.fsencode(os.path.relpath(path, self.directory)) + b"\0")
            digest.update(hashlib.sha256(content).digest())
        return digest.hexdigest()

    def inputs(self) -> dict[str, Any]:
        """Return how the agent is hosted, and where its model is."""
        hosted = self.settings.model_dump(mode="json", exclude={"debug_dir"})
        return {"agent_loop": {**hosted, "base_url": self.base_url}}

    async def server(self, setting: ServerSetting) -> tuple[RolloutEnvironment, RolloutServer]:
        """Return the server; its settings travel in one variable, where no list of processes shows them."""
        from osmosis_ai.controller.server_process import prepare_server
        from osmosis_ai.rollout.loop.workflow import SETTINGS_ENV

        return await prepare_server(
            self.directory,
            self.reference,
            environ={**setting.environ, SETTINGS_ENV: self.settings.model_dump_json()},
            variables=setting.spec.env,
            secret_values=setting.secret_values,
            artifact_root=setting.directory.trials,
            log_path=setting.directory.server_log,
            cache_dir=setting.cache_dir,
            note=setting.note,
            port=setting.port,
        )


@dataclass(frozen=True)
class LoopDataset(DatasetInput):
    """The rows of an agent loop: prompts become messages, further columns metadata."""

    def rows(self, selection: Selection) -> Iterator[tuple[int, DatasetRow]]:
        """Yield (row_index, row) of the selected rows, which are contiguous."""
        from osmosis_ai.datasets import DatasetRow

        indices, position = selection.indices, 0
        for position, row in enumerate(
            DatasetReader(self.path).iter_rows(limit=len(indices), offset=indices[0] if len(indices) else 0),
            1,
        ):
            further = {name: value for name, value in row.items() if name not in KNOWN_COLUMNS}
            yield (
                position - 1,
                DatasetRow(
                    source_row_index=indices[position - 1],
                    messages=row_messages(row),
                    label=row["ground_truth"],
                    metadata=further or None,
                ),
            )
        if position < len(indices):
            raise OsmosisError(
                f"`{self.path}` has no row {indices[position]} any more: the file was changed."
            )


def imported_files(directory: Path, *references: str) -> tuple[Path, ...]:
    """Return the user's own files among the modules that are imported, sorted."""
    packages = {reference.partition(":")[0].partition(".")[0] for reference in references}
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if (
            not path.is_file()
        ):  # modules that are made at run time say what they like: torch's have "_classes.py"
            continue
        if (name.partition(".")[0] in packages or path.is_relative_to(directory)) and not _is_installed(path):
            found.add(path)
    return tuple(sorted(found))


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in _installed_places())


def _installed_places() -> Iterator[Path]:
    yield _PACKAGE
    paths = sysconfig.get_paths()
    for place in {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]}:
        yield Path(place).resolve()
    for place in site.getsitepackages():
        yield Path(place).resolve()
