"""Artifact files of a rollout, stored in ``<root>/<rollout_id>/artifacts``."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

logger = logging.getLogger(__name__)

HEALTH_MARKER = ".osmosis-health-check"
DIAGNOSTICS_FILE = "diagnostics.json"
PENDING_TRAJECTORY_FILE = ".trajectory.json.pending"
"""Conversation of an unfinished rollout. A killed server leaves it for rollouts it has acknowledged."""
CREATE_ATTEMPTS = 3
CREATE_BACKOFF_SECONDS = 0.05


def artifact_root() -> Path:
    """Return the parent directory of all rollouts' files."""
    return Path(os.environ.get("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT") or Path.home() / ".osmosis")


class ArtifactsOnDemand:
    """Mixin of a context that creates the artifacts directory when user code first asks for it: most code never does."""

    artifacts_home: Path | None = None
    """The rollout's directory, once it is known."""
    _directory: Path | None = None

    @property
    def artifacts_dir(self) -> Path | None:
        if self._directory is None and self.artifacts_home is not None:
            self._directory, self.artifacts_home = create_artifacts_dir(self.artifacts_home), None
        return self._directory

    @artifacts_dir.setter
    def artifacts_dir(self, directory: Path | None) -> None:
        self._directory = directory


def create_artifacts_dir(home: Path) -> Path | None:
    """Create the artifacts directory of the rollout at ``home`` and verify with a marker file that it is writable.

    Returns None if it cannot be created; the rollout then runs without it. The pauses between tries are short, because
    the event loop waits.
    """
    artifacts = home / "artifacts"
    for attempt in range(CREATE_ATTEMPTS):
        if attempt:
            time.sleep(CREATE_BACKOFF_SECONDS * 2 ** (attempt - 1))
        try:
            if not artifacts.is_dir():
                home.mkdir(parents=True, exist_ok=True)
                artifacts.mkdir(exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    (home / HEALTH_MARKER).touch(exist_ok=False)
            return artifacts
        except OSError as error:
            logger.warning("cannot create the artifacts directory in %s: %s", home, error)
    return None
